/* SPDX-License-Identifier: Apache-2.0 */
/* What real revisions leave in the metadata: how much, and in the log. */
#include "core/weight_record.h"
#include "weight_tree_fixture.h"

static uint64_t log_entries(void)
{
	uint64_t entries;

	weight_tree_gauges(store);
	entries = metrics_get(METRIC_OPLOG_ENTRIES);
	/* None of them has gone yet. */
	ck_assert_uint_eq(metrics_get(METRIC_OPLOG_APPENDS), entries);
	return entries;
}

START_TEST(the_operation_log_is_counted)
{
	struct weight_group *g;
	uint64_t published_at, settled_at;

	metrics_reset();
	ck_assert_uint_eq(log_entries(), 0);
	g = stage("7");
	ck_assert_uint_eq(log_entries(), 0);
	weight_file_unref(
		put(g, "model.safetensors", model, sizeof(model) - 1));
	publish(g, "7");
	published_at = log_entries();
	ck_assert_uint_ge(published_at, 1);
	settle(g);
	settled_at = log_entries();
	ck_assert_uint_ge(settled_at, published_at);
	weight_group_unref(g);
	/* The next daemon goes on with it. */
	reopen_store();
	metrics_reset();
	ck_assert_uint_ge(log_entries(), settled_at);
}
END_TEST

/* A checkpoint of so many tensors of one byte. */
static struct weight_group *published_tensors(const char *name, unsigned count)
{
	cleanup(buf_release) struct buf file = BUF_INIT;
	cleanup(buf_release) struct buf header = BUF_INIT;
	struct weight_group *g = stage(name);
	uint64_t len;

	for (unsigned i = 0; i < count; i++)
		ck_assert_int_eq(
			buf_printf(&header,
				   "%c\"t%05u\":{\"dtype\":\"U8\",\"shape\":[1]"
				   ",\"data_offsets\":[%u,%u]}",
				   i ? ',' : '{', i, i, i + 1),
			0);
	ck_assert_int_eq(buf_append(&header, "}", 1), 0);
	while (header.len % 8)
		ck_assert_int_eq(buf_append(&header, " ", 1), 0);
	len = header.len;
	for (unsigned i = 0; i < 8; i++) {
		char byte = (char)(len >> 8 * i);

		ck_assert_int_eq(buf_append(&file, &byte, 1), 0);
	}
	ck_assert_int_eq(buf_append(&file, header.data, header.len), 0);
	for (unsigned i = 0; i < count; i++)
		ck_assert_int_eq(buf_append(&file, "x", 1), 0);
	weight_file_unref(put(g, "model.safetensors", file.data, file.len));
	publish(g, name);
	return g;
}

static size_t record_len(struct weight_group *g, uint64_t tensors)
{
	cleanup(weight_metadata_free_cleanup) struct weight_metadata *m =
		record_of(g);
	cleanup(buf_release) struct buf b = BUF_INIT;

	ck_assert_uint_eq(m->affinity_count, tensors);
	ck_assert_int_eq(weight_record_metadata_encode(m, &b), 0);
	return b.len;
}

/* WeightManagementContract.MetadataDoesNotDuplicateManifestChildren */
START_TEST(a_record_is_no_longer_for_more_tensors)
{
	struct weight_group *few = published_tensors("7", 2);
	struct weight_group *many = published_tensors("8", 5000);

	ck_assert_uint_eq(record_len(many, 5000), record_len(few, 2));
	weight_group_unref(few);
	weight_group_unref(many);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("weight_tree_metadata");
	TCase *t = tcase_create("weight_tree_metadata");

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, the_operation_log_is_counted);
	tcase_add_test(t, a_record_is_no_longer_for_more_tensors);
	suite_add_tcase(s, t);
	return s;
}
