/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

static struct buf why;

static void setup(void)
{
	why = (struct buf)BUF_INIT;
}

static void teardown(void)
{
	buf_release(&why);
}

/* Whether a is b, as far as options can tell. */
static void assert_same(const struct config *a, const struct config *b)
{
	struct buf text_a = BUF_INIT, text_b = BUF_INIT;

	ck_assert_int_eq(config_print(a, &text_a), 0);
	ck_assert_int_eq(config_print(b, &text_b), 0);
	ck_assert_str_eq(text_a.data, text_b.data);
	buf_release(&text_a);
	buf_release(&text_b);
}

START_TEST(the_defaults_are_those_of_the_manual)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_uint_eq(cfg.memory_bytes, 0);
	ck_assert_uint_eq(cfg.headroom_bytes, 0);
	ck_assert_int_eq(cfg.durability, CONFIG_DURABILITY_WRITEBACK);
	ck_assert_uint_eq(cfg.io_limit, 0);
	ck_assert_uint_eq(cfg.publish_wait_ms, 5000);
	ck_assert_uint_eq(cfg.open_wait_ms, 10000);
	ck_assert_int_eq(cfg.direct, CONFIG_DIRECT_REFUSE);
	ck_assert_uint_eq(cfg.scrub_every_ms, (uint64_t)720 * 3600000);
	ck_assert_uint_eq(cfg.scrub_rate, 100 << 20);
	ck_assert_uint_eq(cfg.lease_ttl_ms, 86400000);
	ck_assert_uint_eq(cfg.derived_bytes, 0);
	ck_assert_int_eq(cfg.passthrough, CONFIG_PASSTHROUGH_AUTO);
	ck_assert_int_eq(cfg.control, CONFIG_CONTROL_HIDDEN);
	ck_assert_uint_eq(cfg.publish_mode.count, 0);
	ck_assert_int_eq(cfg.allow_other, CONFIG_ALLOW_OTHER_AUTO);
	ck_assert_int_eq(cfg.tenants, CONFIG_TENANTS_ANY);
	ck_assert_int_eq(cfg.log, CONFIG_LOG_AUTO);
	ck_assert_str_eq(cfg.log_file, "");
	ck_assert_int_eq(cfg.log_level, LOG_LEVEL_INFO);
	ck_assert_int_eq(cfg.policy.preferred, WEIGHT_HOT);
	ck_assert(cfg.policy.mixed_hot_ratio == 0.5);
	ck_assert_int_eq(cfg.policy.mode, WEIGHT_AUTO);
	ck_assert_str_eq(cfg.config_file, "");
}
END_TEST

START_TEST(the_defaults_of_moves_and_of_the_log)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_uint_eq(cfg.staging_ttl_ms, 0);
	ck_assert_uint_eq(cfg.migration_round_members, 64);
	ck_assert_uint_eq(cfg.migration_round_bytes, 1073741824);
	ck_assert_uint_eq(cfg.migration_cooldown_ms, 30000);
	ck_assert(cfg.eviction_high_watermark_ratio == 0.90);
	ck_assert(cfg.eviction_ratio == 0.05);
	ck_assert(!cfg.management_oplog_confirmed);
	ck_assert(!cfg.lineage_oplog_confirmed);
	ck_assert_uint_eq(cfg.oplog_keep, 65536);
}
END_TEST

START_TEST(a_list_sets_every_option)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_int_eq(
		config_parse_list(
			&cfg,
			"durability=none,publish_wait=250ms,lease_ttl=1ms,"
			"memory=3G,headroom=512M,io_limit=200M,open_wait=2m,"
			"direct=allow,scrub=24h,scrub_rate=0,"
			"derived=64M,passthrough=off,control=visible,"
			"publish_mode=u=rw\\,go=r,allow_other,tenants=default,"
			"log=/var/log/w\\,\\\\x,log_level=debug,"
			"default_weight_preferred_residency=mixed,"
			"default_weight_mixed_hot_ratio=0.25,"
			"default_weight_migration_mode=manual",
			&why),
		0);
	ck_assert_str_eq(why.data, "");
	ck_assert_int_eq(cfg.durability, CONFIG_DURABILITY_NONE);
	ck_assert_uint_eq(cfg.publish_wait_ms, 250);
	ck_assert_uint_eq(cfg.lease_ttl_ms, 1);
	ck_assert_uint_eq(cfg.derived_bytes, 64 << 20);
	ck_assert_uint_eq(cfg.memory_bytes, (uint64_t)3 << 30);
	ck_assert_uint_eq(cfg.headroom_bytes, 512 << 20);
	ck_assert_uint_eq(cfg.io_limit, 200 << 20);
	ck_assert_uint_eq(cfg.open_wait_ms, 120000);
	ck_assert_int_eq(cfg.direct, CONFIG_DIRECT_ALLOW);
	ck_assert_uint_eq(cfg.scrub_every_ms, 86400000);
	ck_assert_uint_eq(cfg.scrub_rate, 0);
	ck_assert_int_eq(cfg.passthrough, CONFIG_PASSTHROUGH_OFF);
	ck_assert_int_eq(cfg.control, CONFIG_CONTROL_VISIBLE);
	ck_assert_str_eq(cfg.publish_mode.text, "u=rw,go=r");
	ck_assert_uint_eq(mode_change_apply(&cfg.publish_mode, 0777, false),
			  0644);
	ck_assert_int_eq(cfg.allow_other, CONFIG_ALLOW_OTHER_ON);
	ck_assert_int_eq(cfg.tenants, CONFIG_TENANTS_DEFAULT);
	ck_assert_int_eq(cfg.log, CONFIG_LOG_FILE);
	ck_assert_str_eq(cfg.log_file, "/var/log/w,\\x");
	ck_assert_int_eq(cfg.log_level, LOG_LEVEL_DEBUG);
	ck_assert_int_eq(cfg.policy.preferred, WEIGHT_MIXED);
	ck_assert(cfg.policy.mixed_hot_ratio == 0.25);
	ck_assert_int_eq(cfg.policy.mode, WEIGHT_MANUAL);
}
END_TEST

static const char of_moves[] =
	"staging_ttl=36h,weight_migration_max_members_per_round=1,"
	"weight_migration_max_bytes_per_round=64M,"
	"weight_migration_cooldown_ms=2500,"
	"eviction_high_watermark_ratio=1,eviction_ratio=0,"
	"weight_management_oplog_capability_confirmed=on,"
	"weight_lineage_oplog_capability_confirmed,oplog_keep=1000";

/* MasterServiceConfig.WeightCapabilityConfirmationPropagates */
START_TEST(a_list_sets_every_option_of_moves_and_of_the_log)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_int_eq(config_parse_list(&cfg, of_moves, &why), 0);
	ck_assert_str_eq(why.data, "");
	ck_assert_uint_eq(cfg.staging_ttl_ms, 129600000);
	ck_assert_uint_eq(cfg.migration_round_members, 1);
	ck_assert_uint_eq(cfg.migration_round_bytes, 64 << 20);
	ck_assert_uint_eq(cfg.migration_cooldown_ms, 2500);
	ck_assert(cfg.eviction_high_watermark_ratio == 1.0);
	ck_assert(cfg.eviction_ratio == 0.0);
	ck_assert(cfg.management_oplog_confirmed);
	ck_assert(cfg.lineage_oplog_confirmed);
	ck_assert_uint_eq(cfg.oplog_keep, 1000);
}
END_TEST

START_TEST(a_name_that_ends_in_ms_takes_a_bare_number)
{
	static const struct {
		const char *text;
		uint64_t ms;
	} rows[] = {
		{ "0", 0 },
		{ "1", 1 },
		{ "30000", 30000 },
		{ "30s", 30000 },
		{ "1500ms", 1500 },
		{ "2h", 7200000 },
		{ "315360000000", CONFIG_LONG_MS_MAX },
		{ "87600h", CONFIG_LONG_MS_MAX },
	};
	struct config cfg;
	char text[80];

	config_init(&cfg);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		(void)snprintf(text, sizeof(text),
			       "weight_migration_cooldown_ms=%s", rows[i].text);
		ck_assert_int_eq(config_set(&cfg, text, &why), 0);
		ck_assert_uint_eq(cfg.migration_cooldown_ms, rows[i].ms);
	}
}
END_TEST

START_TEST(a_later_option_wins_and_empty_items_say_nothing)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_int_eq(config_parse_list(&cfg,
					   ",log=/x,,derived=1K,log=syslog,"
					   "derived=2K,",
					   &why),
			 0);
	ck_assert_uint_eq(cfg.derived_bytes, 2048);
	ck_assert_int_eq(cfg.log, CONFIG_LOG_SYSLOG);
	ck_assert_str_eq(cfg.log_file, "");
	ck_assert_int_eq(config_parse_list(&cfg, "", &why), 0);
}
END_TEST

/* clang-format off */
static const struct {
	const char *list;
	const char *sentence;
} refused[] = {
	{ "sparkle=on", "unknown option 'sparkle'; --help lists all options" },
	{ "derived=1K,Derived=2K",
	  "unknown option 'Derived'; --help lists all options" },
	{ "=on", "unknown option ''; --help lists all options" },
	{ "a\nb", "unknown option 'a?b'; --help lists all options" },
	{ "durability",
	  "option 'durability' needs a value; "
	  "give one of writeback|writethrough|none" },
	{ "durability=",
	  "option 'durability' can't be ''; "
	  "give one of writeback|writethrough|none" },
	{ "durability=write_back",
	  "option 'durability' can't be 'write_back'; "
	  "give one of writeback|writethrough|none" },
	{ "memory=half",
	  "option 'memory' can't be 'half'; give a number of bytes, "
	  "or one with K, M, G or T, from 0 to 1024T" },
	{ "io_limit=100M/s",
	  "option 'io_limit' can't be '100M/s'; give a number of bytes, "
	  "or one with K, M, G or T, from 0 to 1024T" },
	{ "direct=on",
	  "option 'direct' can't be 'on'; give one of refuse|allow" },
	{ "open_wait=2h",
	  "option 'open_wait' can't be '2h'; "
	  "give a number with ms, s, m or h, from 0 to 1h" },
	{ "scrub=never",
	  "option 'scrub' can't be 'never'; "
	  "give a number with ms, s, m or h, from 0 to 87600h" },
	{ "scrub=87601h",
	  "option 'scrub' can't be '87601h'; "
	  "give a number with ms, s, m or h, from 0 to 87600h" },
	{ "publish_wait=5",
	  "option 'publish_wait' can't be '5'; "
	  "give a number with ms, s, m or h, from 0 to 1h" },
	{ "publish_wait=61m",
	  "option 'publish_wait' can't be '61m'; "
	  "give a number with ms, s, m or h, from 0 to 1h" },
	{ "lease_ttl=0",
	  "option 'lease_ttl' can't be '0'; "
	  "give a number with ms, s, m or h, from 1ms to 24h" },
	{ "lease_ttl=86400001ms",
	  "option 'lease_ttl' can't be '86400001ms'; "
	  "give a number with ms, s, m or h, from 1ms to 24h" },
	{ "derived=-1",
	  "option 'derived' can't be '-1'; give a number of bytes, "
	  "or one with K, M, G or T, from 0 to 1024T" },
	{ "derived=1025T",
	  "option 'derived' can't be '1025T'; give a number of bytes, "
	  "or one with K, M, G or T, from 0 to 1024T" },
	{ "publish_mode=a+q",
	  "option 'publish_mode' can't be 'a+q'; give what chmod takes, such "
	  "as a+rX or 644, in at most 127 characters" },
	{ "default_weight_mixed_hot_ratio=0",
	  "option 'default_weight_mixed_hot_ratio' can't be '0'; "
	  "give a number between 0 and 1, such as 0.5" },
	{ "default_weight_mixed_hot_ratio=1",
	  "option 'default_weight_mixed_hot_ratio' can't be '1'; "
	  "give a number between 0 and 1, such as 0.5" },
	{ "default_weight_preferred_residency=absent",
	  "option 'default_weight_preferred_residency' can't be 'absent'; "
	  "give one of hot|cold|mixed" },
	{ "log=weightfs.log",
	  "option 'log' can't be 'weightfs.log'; "
	  "give one of auto|syslog|stderr, or a path that begins with '/'" },
	{ "log=/a\tb",
	  "option 'log' can't be '/a?b'; "
	  "give one of auto|syslog|stderr, or a path that begins with '/'" },
	{ "config=here",
	  "option 'config' can't be 'here'; give a path that begins with '/'" },
	{ "derived=1K\\", "the options end in a backslash" },
};
/* clang-format on */

START_TEST(a_bad_list_is_refused_by_name)
{
	struct config cfg, untouched;
	int r;

	config_init(&cfg);
	config_init(&untouched);
	r = config_parse_list(&cfg, refused[_i].list, &why);
	ck_assert_msg(r == -EINVAL, "'%s': got %d", refused[_i].list, r);
	ck_assert_str_eq(why.data, refused[_i].sentence);
	assert_same(&cfg, &untouched);
	ck_assert_int_eq(config_parse_list(&cfg, refused[_i].list, NULL),
			 -EINVAL);
}
END_TEST

#define SWITCH "give one of on|off"
#define TIMES "a number with ms, s, m or h, from 0 to 87600h"
#define SIZES                                                                  \
	"give a number of bytes, or one with K, M, G or T, from 1 to 1024T"
#define PARTS "give a number from 0 to 1, such as 0.5"
#define MEMBERS "give a number, from 1 to 1000000000"
#define KEPT "give a number, from 1000 to 1000000000"

/* clang-format off */
static const struct {
	const char *name;
	const char *value;
	const char *allowed;
} refused_values[] = {
	{ "weight_management_oplog_capability_confirmed", "true", SWITCH },
	{ "weight_management_oplog_capability_confirmed", "", SWITCH },
	{ "weight_lineage_oplog_capability_confirmed", "1", SWITCH },
	{ "weight_migration_cooldown_ms", "-1", "give milliseconds, or " TIMES },
	{ "weight_migration_cooldown_ms", "1.5",
	  "give milliseconds, or " TIMES },
	{ "weight_migration_cooldown_ms", "87601h",
	  "give milliseconds, or " TIMES },
	{ "weight_migration_max_members_per_round", "0", MEMBERS },
	{ "weight_migration_max_members_per_round", "4K", MEMBERS },
	{ "weight_migration_max_members_per_round", "1000000001", MEMBERS },
	{ "weight_migration_max_bytes_per_round", "0", SIZES },
	{ "weight_migration_max_bytes_per_round", "1GB", SIZES },
	{ "eviction_high_watermark_ratio", "1.01", PARTS },
	{ "eviction_high_watermark_ratio", "90", PARTS },
	{ "eviction_ratio", "-0.1", PARTS },
	{ "eviction_ratio", "nan", PARTS },
	{ "staging_ttl", "60", "give " TIMES },
	{ "staging_ttl", "never", "give " TIMES },
	{ "oplog_keep", "999", KEPT },
	{ "oplog_keep", "64K", KEPT },
};
/* clang-format on */

/* In either place, with the same sentence. */
START_TEST(a_bad_value_is_refused_by_name)
{
	const char *name = refused_values[_i].name;
	const char *value = refused_values[_i].value;
	struct config cfg, untouched;
	char text[128], sentence[256], line[300];

	config_init(&cfg);
	config_init(&untouched);
	(void)snprintf(text, sizeof(text), "%s=%s", name, value);
	(void)snprintf(sentence, sizeof(sentence),
		       "option '%s' can't be '%s'; %s", name, value,
		       refused_values[_i].allowed);
	ck_assert_int_eq(config_parse_list(&cfg, text, &why), -EINVAL);
	ck_assert_str_eq(why.data, sentence);
	buf_release(&why);
	(void)snprintf(line, sizeof(line), "'f', line 1: %s", sentence);
	ck_assert_int_eq(config_parse_text(&cfg, "f", text, strlen(text), &why),
			 -EINVAL);
	ck_assert_str_eq(why.data, line);
	assert_same(&cfg, &untouched);
}
END_TEST

START_TEST(a_long_value_is_cut_in_the_sentence)
{
	char text[16 + 300] = "durability=";
	struct config cfg;

	memset(text + strlen(text), 'x', 300);
	config_init(&cfg);
	ck_assert_int_eq(config_set(&cfg, text, &why), -EINVAL);
	ck_assert_uint_lt(why.len, 200);
	ck_assert_ptr_nonnull(strstr(why.data, "xxx...'"));
}
END_TEST

START_TEST(there_is_room_for_the_longest_path_and_no_more)
{
	char text[4 + PATH_MAX + 1024] = "log=/";
	struct config cfg;

	config_init(&cfg);
	memset(text + 5, 'x', PATH_MAX - 2);
	ck_assert_int_eq(config_set(&cfg, text, &why), 0);
	ck_assert_uint_eq(strlen(cfg.log_file), PATH_MAX - 1);
	text[5 + PATH_MAX - 2] = 'x';
	ck_assert_int_eq(config_set(&cfg, text, &why), -EINVAL);
	memset(text + 5, 'x', sizeof(text) - 6);
	ck_assert_int_eq(config_set(&cfg, text, &why), -EFBIG);
	ck_assert_int_eq(config_parse_list(&cfg, text, &why), -EFBIG);
	ck_assert_int_eq(config_parse_text(&cfg, "f", text, strlen(text), &why),
			 -EFBIG);
}
END_TEST

static int parse_text(struct config *cfg, const char *text)
{
	return config_parse_text(cfg, "f", text, strlen(text), &why);
}

START_TEST(a_text_is_read_line_by_line)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_int_eq(parse_text(&cfg, "# comment, with = in it\n"
					  "\n"
					  "  derived =  3G \r\n"
					  "\t# another\n"
					  "publish_mode=u=rwX,go=rX\n"
					  "allow_other\n"
					  "log = /var/log/my file"),
			 0);
	ck_assert_uint_eq(cfg.derived_bytes, (uint64_t)3 << 30);
	ck_assert_str_eq(cfg.publish_mode.text, "u=rwX,go=rX");
	ck_assert_int_eq(cfg.allow_other, CONFIG_ALLOW_OTHER_ON);
	ck_assert_str_eq(cfg.log_file, "/var/log/my file");
}
END_TEST

/* clang-format off */
static const struct {
	const char *text;
	const char *sentence;
} refused_texts[] = {
	{ "derived = 1K\n\nsparkle = 1\n",
	  "'f', line 3: unknown option 'sparkle'; --help lists all options" },
	{ "derived\n",
	  "'f', line 1: option 'derived' needs a value; give a number of "
	  "bytes, or one with K, M, G or T, from 0 to 1024T" },
	{ "# x\nderived = 1 K",
	  "'f', line 2: option 'derived' can't be '1 K'; give a number of "
	  "bytes, or one with K, M, G or T, from 0 to 1024T" },
	{ "derived = 1K\nderived = 1K\n",
	  "'f', line 2: the option is given twice" },
	{ "config = /etc/other\n",
	  "'f', line 1: a configuration file can't name another; write its "
	  "options here" },
};
/* clang-format on */

START_TEST(a_bad_text_is_refused_by_line)
{
	struct config cfg, untouched;

	config_init(&cfg);
	config_init(&untouched);
	ck_assert_int_eq(parse_text(&cfg, refused_texts[_i].text), -EINVAL);
	ck_assert_str_eq(why.data, refused_texts[_i].sentence);
	assert_same(&cfg, &untouched);
}
END_TEST

START_TEST(a_zero_byte_is_refused)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_int_eq(config_parse_text(&cfg, "f", "\nlog\0=x\n", 8, &why),
			 -EINVAL);
	ck_assert_str_eq(why.data, "'f', line 2: the line holds a zero byte");
}
END_TEST

static char path[] = "/tmp/test_config.XXXXXX";

static void write_file(const char *bytes, size_t len)
{
	int fd = mkstemp(path);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	(void)close(fd);
}

START_TEST(mount_options_win_over_the_file)
{
	static const char text[] = "derived = 1K\nlog = stderr\n";
	struct config cfg;
	char list[128];

	write_file(text, sizeof(text) - 1);
	(void)snprintf(list, sizeof(list), "derived=2K,config=%s", path);
	config_init(&cfg);
	ck_assert_int_eq(config_parse_list(&cfg, list, &why), 0);
	ck_assert_uint_eq(cfg.derived_bytes, 2048);
	ck_assert_int_eq(cfg.log, CONFIG_LOG_STDERR);
	ck_assert_str_eq(cfg.config_file, path);
	(void)unlink(path);
}
END_TEST

START_TEST(a_bad_file_leaves_everything_as_it_was)
{
	struct config cfg, untouched;
	char list[128];

	write_file("log = stderr\nderived = x\n", 25);
	(void)snprintf(list, sizeof(list), "derived=2K,config=%s", path);
	config_init(&cfg);
	config_init(&untouched);
	ck_assert_int_eq(config_parse_list(&cfg, list, &why), -EINVAL);
	ck_assert_ptr_nonnull(strstr(why.data, path));
	ck_assert_ptr_nonnull(strstr(why.data, "line 2: option 'derived'"));
	assert_same(&cfg, &untouched);
	(void)unlink(path);
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_named)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_int_eq(config_read_file(&cfg, "/nowhere/x", &why), -ENOENT);
	ck_assert_str_eq(why.data, "reading the configuration file "
				   "'/nowhere/x': No such file or directory");
	ck_assert_int_eq(config_read_file(&cfg, "/", &why), -EISDIR);
}
END_TEST

START_TEST(a_file_may_be_as_long_as_the_limit_and_no_longer)
{
	size_t len = CONFIG_FILE_BYTES_MAX;
	char *text = malloc(len + 1);
	struct config cfg;

	ck_assert_ptr_nonnull(text);
	memset(text, '\n', len + 1);
	config_init(&cfg);
	write_file(text, len);
	ck_assert_int_eq(config_read_file(&cfg, path, &why), 0);
	ck_assert_int_eq(truncate(path, (off_t)len + 1), 0);
	ck_assert_int_eq(config_read_file(&cfg, path, &why), -EFBIG);
	ck_assert_int_eq(config_parse_text(&cfg, "f", text, len + 1, &why),
			 -EFBIG);
	(void)unlink(path);

	text[len] = '\0';
	memset(text, ',', len);
	ck_assert_int_eq(config_parse_list(&cfg, text, &why), 0);
	(void)unlink(path);
	free(text);
}
END_TEST

START_TEST(what_is_printed_can_be_read_back)
{
	struct config cfg, again;
	struct buf text = BUF_INIT;

	config_init(&cfg);
	config_init(&again);
	ck_assert_int_eq(config_parse_list(
				 &cfg,
				 "durability=writethrough,publish_wait=1500ms,"
				 "memory=5G,headroom=1025,io_limit=1M,"
				 "open_wait=61s,direct=allow,scrub=90m,"
				 "scrub_rate=3M,"
				 "lease_ttl=90s,derived=1536K,passthrough=off,"
				 "control=visible,publish_mode=a+rX\\,g=u,"
				 "allow_other=off,tenants=default,"
				 "log=/var/log/x y,log_level=warn,"
				 "default_weight_preferred_residency=cold,"
				 "default_weight_mixed_hot_ratio=0.30000000001,"
				 "default_weight_migration_mode=pinned",
				 &why),
			 0);
	ck_assert_int_eq(config_print(&cfg, &text), 0);
	ck_assert_ptr_nonnull(strstr(text.data, "lease_ttl = 90s\n"));
	ck_assert_ptr_nonnull(strstr(text.data, "derived = 1536K\n"));
	ck_assert_ptr_nonnull(strstr(text.data, "ratio = 0.30000000001\n"));
	*strstr(text.data, "config = ") = '#';
	ck_assert_int_eq(parse_text(&again, text.data), 0);
	assert_same(&cfg, &again);
	ck_assert(memcmp(&cfg, &again, sizeof(cfg)) == 0);
	buf_release(&text);
}
END_TEST

START_TEST(what_is_printed_of_moves_can_be_read_back)
{
	struct config cfg, again;
	struct buf text = BUF_INIT;

	config_init(&cfg);
	config_init(&again);
	ck_assert_int_eq(config_parse_list(&cfg, of_moves, &why), 0);
	ck_assert_int_eq(
		config_set(&cfg, "weight_migration_cooldown_ms=5s", &why), 0);
	ck_assert_int_eq(config_print(&cfg, &text), 0);
	ck_assert_ptr_nonnull(strstr(text.data, "cooldown_ms = 5000\n"));
	ck_assert_ptr_nonnull(strstr(text.data, "bytes_per_round = 64M\n"));
	ck_assert_ptr_nonnull(strstr(text.data, "members_per_round = 1\n"));
	ck_assert_ptr_nonnull(strstr(text.data, "oplog_keep = 1000\n"));
	ck_assert_ptr_nonnull(
		strstr(text.data, "lineage_oplog_capability_confirmed = on\n"));
	*strstr(text.data, "config = ") = '#';
	ck_assert_int_eq(parse_text(&again, text.data), 0);
	assert_same(&cfg, &again);
	ck_assert(memcmp(&cfg, &again, sizeof(cfg)) == 0);
	buf_release(&text);
}
END_TEST

/* Every option that is printed has its help: holds for rows added later. */
START_TEST(the_help_names_every_option_in_80_columns)
{
	struct buf help = BUF_INIT, text = BUF_INIT;
	struct config cfg;

	config_init(&cfg);
	ck_assert_int_eq(config_help(&help), 0);
	ck_assert_int_eq(config_print(&cfg, &text), 0);
	for (char *line = text.data; *line; line = strchr(line, '\n') + 1) {
		char head[128];
		int len = (int)strcspn(line, " ");

		(void)snprintf(head, sizeof(head), "  -o %.*s=", len, line);
		ck_assert_msg(strstr(help.data, head), "no '%s'", head);
	}
	for (char *line = help.data; *line; line = strchr(line, '\n') + 1)
		ck_assert_msg(strcspn(line, "\n") <= 80, "%s", line);
	buf_release(&help);
	buf_release(&text);
}
END_TEST

START_TEST(pins_get_half_of_it_and_derived_files_a_quarter_of_pins)
{
	struct config cfg;

	config_init(&cfg);
	ck_assert_uint_eq(config_memory_bytes(&cfg, 8192), 4096);
	ck_assert_uint_eq(config_derived_bytes(&cfg, 8192), 1024);
	cfg.memory_bytes = 400;
	ck_assert_uint_eq(config_memory_bytes(&cfg, 8192), 400);
	ck_assert_uint_eq(config_derived_bytes(&cfg, 8192), 100);
	cfg.derived_bytes = 5;
	ck_assert_uint_eq(config_derived_bytes(&cfg, 8192), 5);
}
END_TEST

static int refuse_and_read(void)
{
	struct buf sentence = BUF_INIT;
	struct config cfg;
	int r;

	config_init(&cfg);
	r = config_set(&cfg, "derived=x", &sentence);
	if (r == -EINVAL)
		r = config_set(&cfg, "sparkle", &sentence);
	if (r == -EINVAL)
		r = config_parse_text(&cfg, "f", "log = x", 7, &sentence);
	if (r == -EINVAL)
		r = config_read_file(&cfg, "/nowhere/x", &sentence);
	if (r == -ENOENT)
		r = config_read_file(&cfg, "/dev/null", &sentence);
	buf_release(&sentence);
	return r;
}

static int print_and_help(void)
{
	struct buf text = BUF_INIT;
	struct config cfg;
	int r;

	config_init(&cfg);
	r = config_print(&cfg, &text);
	if (r == 0)
		r = config_help(&text);
	buf_release(&text);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(refuse_and_read);
	fault_sweep(print_and_help);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("config");
	TCase *tc = tcase_create("core");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, the_defaults_are_those_of_the_manual);
	tcase_add_test(tc, the_defaults_of_moves_and_of_the_log);
	tcase_add_test(tc, a_list_sets_every_option);
	tcase_add_test(tc, a_list_sets_every_option_of_moves_and_of_the_log);
	tcase_add_test(tc, a_name_that_ends_in_ms_takes_a_bare_number);
	tcase_add_test(tc, a_later_option_wins_and_empty_items_say_nothing);
	tcase_add_loop_test(tc, a_bad_list_is_refused_by_name, 0,
			    ARRAY_LEN(refused));
	tcase_add_loop_test(tc, a_bad_value_is_refused_by_name, 0,
			    ARRAY_LEN(refused_values));
	tcase_add_test(tc, a_long_value_is_cut_in_the_sentence);
	tcase_add_test(tc, there_is_room_for_the_longest_path_and_no_more);
	tcase_add_test(tc, a_text_is_read_line_by_line);
	tcase_add_loop_test(tc, a_bad_text_is_refused_by_line, 0,
			    ARRAY_LEN(refused_texts));
	tcase_add_test(tc, a_zero_byte_is_refused);
	tcase_add_test(tc, mount_options_win_over_the_file);
	tcase_add_test(tc, a_bad_file_leaves_everything_as_it_was);
	tcase_add_test(tc, a_file_that_cannot_be_read_is_named);
	tcase_add_test(tc, a_file_may_be_as_long_as_the_limit_and_no_longer);
	tcase_add_test(tc, what_is_printed_can_be_read_back);
	tcase_add_test(tc, what_is_printed_of_moves_can_be_read_back);
	tcase_add_test(tc, the_help_names_every_option_in_80_columns);
	tcase_add_test(tc,
		       pins_get_half_of_it_and_derived_files_a_quarter_of_pins);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
