/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/metrics.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

static struct buf text;

static void setup(void)
{
	text = (struct buf)BUF_INIT;
	metrics_reset();
}

static void teardown(void)
{
	buf_release(&text);
}

/* Those whose names are fixed, and one of each other kind. */
static const char *const from_the_start[] = {
	"weight_revisions{availability=\"importing\"} 0",
	"weight_revisions{availability=\"ready\"} 0",
	"weight_revisions{availability=\"degraded\"} 0",
	"weight_revisions{availability=\"deleting\"} 0",
	"weight_revisions{availability=\"deleted\"} 0",
	"weight_revision_residency{residency=\"unknown\"} 0",
	"weight_revision_residency{residency=\"hot\"} 0",
	"weight_revision_residency{residency=\"cold\"} 0",
	"weight_revision_residency{residency=\"mixed\"} 0",
	"weight_revision_residency{residency=\"absent\"} 0",
	"weight_active_leases 0",
	"weight_pending_operations 0",
	"weight_oldest_operation_age_ms 0",
	"weight_reconciliation_failures_total 0",
	"weight_group_guard_refusals_total 0",
	"weight_expired_leases_total 0",
	"weight_operations_finished_total 0",
	"weight_operation_failures_total 0",
	"weight_operation_retries_total 0",
	"weight_migration_processed_bytes_total 0",
	"weight_migration_remaining_bytes 0",
	"weight_migration_duration_ms_total 0",
	"weight_abandoned_imports_total 0",
	"weight_claims{mode=\"put_first\",phase=\"preparing_target\"} 0",
	"weight_claims{mode=\"delete_first\",phase=\"aborted\"} 0",
	"weight_claim_failures_total{mode=\"put_first\"} 0",
	"weight_claim_failures_total{mode=\"delete_first\"} 0",
	"weight_claim_recoveries_total{mode=\"put_first\"} 0",
	"weight_claim_recoveries_total{mode=\"delete_first\"} 0",
	"weight_auto_triggers_total{trigger=\"pressure\"} 0",
	"weight_auto_triggers_total{trigger=\"capacity\"} 0",
	"weight_auto_triggers_total{trigger=\"access\"} 0",
	"oplog_entries 0",
	"oplog_appends_total 0",
	"publishes_total 0",
	"derived_bytes 0",
	"build_info{version=\"unknown\"} 1",
};

START_TEST(everything_is_there_from_the_start)
{
	char line[128];

	(void)snprintf(line, sizeof(line), "\nweightfs_%s\n",
		       from_the_start[_i]);
	ck_assert_int_eq(metrics_write(&text), 0);
	ck_assert_msg(strstr(text.data, line), "no line '%s' in\n%s",
		      from_the_start[_i], text.data);
}
END_TEST

/* Holds for rows added later, too, as do the next two. */
START_TEST(nothing_was_counted_at_the_start)
{
	ck_assert_int_eq(metrics_write(&text), 0);
	for (char *line = text.data; *line; line = strchr(line, '\n') + 1)
		if (*line != '#' &&
		    strncmp(line, "weightfs_build_info", 19) != 0)
			ck_assert_msg(
				strncmp(strchr(line, '\n') - 2, " 0", 2) == 0,
				"%s", line);
}
END_TEST

START_TEST(no_two_lines_are_about_the_same)
{
	ck_assert_int_eq(metrics_write(&text), 0);
	for (char *line = text.data; *line; line = strchr(line, '\n') + 1) {
		char head[160];

		(void)snprintf(head, sizeof(head), "\n%.*s",
			       (int)strcspn(line, "\n"), line);
		*strrchr(head, ' ') = '\0';
		if (*line != '#')
			ck_assert_msg(!strstr(line, head), "twice: %s", head);
	}
}
END_TEST

START_TEST(each_metric_has_a_line_of_its_own)
{
	for (int i = 0; i < METRIC_COUNT; i++) {
		char end[32];

		metrics_add((enum metric)i, 1000000 + i);
		buf_release(&text);
		ck_assert_int_eq(metrics_write(&text), 0);
		(void)snprintf(end, sizeof(end), " %d\n", 1000000 + i);
		ck_assert_msg(strstr(text.data, end), "metric %d", i);
	}
}
END_TEST

#define LABEL "[a-z]+=\"[a-z_]+\""

static void match(const char *line, size_t len, const char *pattern)
{
	char copy[256];
	regex_t re;

	ck_assert_uint_lt(len, sizeof(copy));
	memcpy(copy, line, len);
	copy[len] = '\0';
	ck_assert_int_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
	ck_assert_msg(regexec(&re, copy, 0, NULL, 0) == 0,
		      "'%s' does not match '%s'", copy, pattern);
	regfree(&re);
}

/* A family is HELP, TYPE and then its samples; counters end in _total. */
START_TEST(the_output_is_what_prometheus_reads)
{
	char name[128] = "";

	ck_assert_int_eq(metrics_write(&text), 0);
	for (const char *line = text.data; *line;) {
		size_t len = strcspn(line, "\n");
		char pattern[256];

		ck_assert_int_eq(line[len], '\n');
		if (strncmp(line, "# HELP ", 7) == 0) {
			char seen[160];

			match(line, len,
			      "^# HELP weightfs_[a-z_]+ [A-Z].+\\.$");
			(void)snprintf(name, sizeof(name), "%.*s",
				       (int)strcspn(line + 7, " "), line + 7);
			(void)snprintf(seen, sizeof(seen), "# HELP %s ", name);
			ck_assert_ptr_eq(strstr(text.data, seen), line);
		} else if (*line == '#') {
			bool total = strstr(name, "_total") != NULL;

			(void)snprintf(pattern, sizeof(pattern),
				       "^# TYPE %s %s$", name,
				       total ? "counter" : "gauge");
			match(line, len, pattern);
		} else {
			(void)snprintf(pattern, sizeof(pattern),
				       "^%s(\\{" LABEL "(," LABEL
				       ")*\\})? [0-9]+$",
				       name);
			match(line, len, pattern);
		}
		line += len + 1;
	}
}
END_TEST

START_TEST(a_gauge_goes_up_and_down)
{
	metrics_add(METRIC_ACTIVE_LEASES, 3);
	metrics_add(METRIC_ACTIVE_LEASES, -1);
	ck_assert_uint_eq(metrics_get(METRIC_ACTIVE_LEASES), 2);
	metrics_set(METRIC_ACTIVE_LEASES, 9);
	ck_assert_int_eq(metrics_write(&text), 0);
	ck_assert_ptr_nonnull(
		strstr(text.data, "\nweightfs_weight_active_leases 9\n"));
}
END_TEST

/* As when what one thread adds is counted after what another one takes off. */
START_TEST(a_gauge_is_never_seen_below_zero)
{
	metrics_add(METRIC_ACTIVE_LEASES, -1);
	ck_assert_int_eq(metrics_write(&text), 0);
	ck_assert_ptr_nonnull(
		strstr(text.data, "\nweightfs_weight_active_leases 0\n"));
	metrics_add(METRIC_ACTIVE_LEASES, 3);
	ck_assert_uint_eq(metrics_get(METRIC_ACTIVE_LEASES), 2);
}
END_TEST

START_TEST(what_others_count_never_goes_down)
{
	metrics_raise(METRIC_PREFETCHED_BYTES, 7);
	metrics_raise(METRIC_PREFETCHED_BYTES, 5);
	ck_assert_uint_eq(metrics_get(METRIC_PREFETCHED_BYTES), 7);
	metrics_raise(METRIC_PREFETCHED_BYTES, 9);
	ck_assert_int_eq(metrics_write(&text), 0);
	ck_assert_ptr_nonnull(
		strstr(text.data, "\nweightfs_prefetched_bytes_total 9\n"));
}
END_TEST

START_TEST(a_version_is_escaped)
{
	metrics_set_version("1.0 \"x\\y\"\n");
	ck_assert_int_eq(metrics_write(&text), 0);
	ck_assert_ptr_nonnull(
		strstr(text.data,
		       "build_info{version=\"1.0 \\\"x\\\\y\\\"\\n\"} 1\n"));
}
END_TEST

static void *add_many(void *arg)
{
	for (int i = 0; i < 10000; i++)
		metrics_add(METRIC_OPENS, 1);
	return arg;
}

START_TEST(no_thread_loses_a_count)
{
	pthread_t threads[4];

	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, add_many, NULL), 0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
	ck_assert_uint_eq(metrics_get(METRIC_OPENS), 40000);
}
END_TEST

static int write_all(void)
{
	struct buf out = BUF_INIT;
	int r = metrics_write(&out);

	buf_release(&out);
	return r;
}

START_TEST(every_allocation_may_fail)
{
	fault_sweep(write_all);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("metrics");
	TCase *tc = tcase_create("core");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, everything_is_there_from_the_start, 0,
			    ARRAY_LEN(from_the_start));
	tcase_add_test(tc, nothing_was_counted_at_the_start);
	tcase_add_test(tc, no_two_lines_are_about_the_same);
	tcase_add_test(tc, each_metric_has_a_line_of_its_own);
	tcase_add_test(tc, the_output_is_what_prometheus_reads);
	tcase_add_test(tc, a_gauge_goes_up_and_down);
	tcase_add_test(tc, a_gauge_is_never_seen_below_zero);
	tcase_add_test(tc, what_others_count_never_goes_down);
	tcase_add_test(tc, a_version_is_escaped);
	tcase_add_test(tc, no_thread_loses_a_count);
	tcase_add_test(tc, every_allocation_may_fail);
	suite_add_tcase(s, tc);
	return s;
}
