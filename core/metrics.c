/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "core/util.h"

enum kind {
	GAUGE,
	COUNTER,
};

/*
 * In the order of the output. Rows of one name stand together and differ in
 * their label; kind and help are taken from the first of them.
 */
/* clang-format off */
static const struct row {
	const char *name;
	enum kind kind;
	const char *help;
	const char *label; /* NULL: none */
	const char *value;
} rows[METRIC_COUNT] = {
#define FAMILY(index, name, kind, help, label, value)                          \
	[METRIC_##index] = { name, kind, help, label, value }
#define MEMBER(index, name, label, value)                                      \
	[METRIC_##index] = { name, GAUGE, NULL, label, value }
#define ALONE(index, name, kind, help)                                         \
	[METRIC_##index] = { name, kind, help, NULL, NULL }

	FAMILY(REVISIONS_IMPORTING, "weight_revisions", GAUGE,
	       "Weight revisions by availability.",
	       "availability", "importing"),
	MEMBER(REVISIONS_READY, "weight_revisions", "availability", "ready"),
	MEMBER(REVISIONS_DEGRADED, "weight_revisions",
	       "availability", "degraded"),
	MEMBER(REVISIONS_DELETING, "weight_revisions",
	       "availability", "deleting"),
	MEMBER(REVISIONS_DELETED, "weight_revisions",
	       "availability", "deleted"),

	FAMILY(RESIDENCY_UNKNOWN, "weight_revision_residency", GAUGE,
	       "Weight revisions by observed residency.",
	       "residency", "unknown"),
	MEMBER(RESIDENCY_HOT, "weight_revision_residency", "residency", "hot"),
	MEMBER(RESIDENCY_COLD, "weight_revision_residency",
	       "residency", "cold"),
	MEMBER(RESIDENCY_MIXED, "weight_revision_residency",
	       "residency", "mixed"),
	MEMBER(RESIDENCY_ABSENT, "weight_revision_residency",
	       "residency", "absent"),

	ALONE(ACTIVE_LEASES, "weight_active_leases", GAUGE,
	      "Leases on weight revisions that have not expired."),
	ALONE(PENDING_OPERATIONS, "weight_pending_operations", GAUGE,
	      "Residency operations that have not finished."),
	ALONE(OLDEST_OPERATION_AGE_MS, "weight_oldest_operation_age_ms", GAUGE,
	      "Milliseconds since the oldest unfinished operation started."),
	ALONE(RECONCILIATION_FAILURES, "weight_reconciliation_failures_total",
	      COUNTER, "Rounds of background work that failed."),
	ALONE(GROUP_GUARD_REFUSALS, "weight_group_guard_refusals_total",
	      COUNTER, "Refused changes to parts of published revisions."),

	ALONE(PUBLISHES, "publishes_total", COUNTER,
	      "Revisions that were published."),
	ALONE(PUBLISH_FAILURES, "publish_failures_total", COUNTER,
	      "Attempts to publish that were refused or failed."),
	ALONE(REMOVALS, "removals_total", COUNTER,
	      "Revisions that were removed."),
	ALONE(CHUNKS_HASHED, "chunks_hashed_total", COUNTER,
	      "Chunks whose digest was computed."),
	ALONE(BYTES_HASHED, "bytes_hashed_total", COUNTER,
	      "Bytes that went into chunk digests."),
	ALONE(FSYNCS, "fsyncs_total", COUNTER,
	      "Files and directories that were made durable."),
	ALONE(METADATA_COMMITS, "metadata_commits_total", COUNTER,
	      "Transactions that the metadata store committed."),
	ALONE(OPENS, "opens_total", COUNTER,
	      "Files of published revisions that were opened."),
	ALONE(PASSTHROUGH_OPENS, "passthrough_opens_total", COUNTER,
	      "Opens that the kernel serves without the daemon."),
	ALONE(LEASE_WRITES, "lease_writes_total", COUNTER,
	      "Leases taken, renewed or ended on disk."),
	ALONE(DERIVED_BYTES, "derived_bytes", GAUGE,
	      "Bytes of memory in derived files."),
	ALONE(MEMORY_BYTES, "memory_bytes", GAUGE,
	      "Bytes of memory that may be pinned (option memory)."),
	ALONE(PINNED_BYTES, "pinned_bytes", GAUGE,
	      "Bytes of files that are pinned in memory."),
	ALONE(PINNED_FILES, "pinned_files", GAUGE,
	      "Files that are mapped to be pinned."),
	ALONE(WRITE_BACKS, "write_backs_total", COUNTER,
	      "Revisions that were written back, read back and found right."),
	ALONE(WRITE_BACK_FAILURES, "write_back_failures_total", COUNTER,
	      "Failures to write back a file or to read it back."),
	ALONE(BYTES_READ_BACK, "read_back_bytes_total", COUNTER,
	      "Bytes that were read from the device to compare them."),
	ALONE(BAD_CHUNKS, "bad_chunks_total", COUNTER,
	      "Chunks that were not what was published, on disk or in memory."),
	ALONE(MENDED_CHUNKS, "mended_chunks_total", COUNTER,
	      "Bad chunks that were written again from a good copy."),
	ALONE(SCRUBS, "scrubs_total", COUNTER,
	      "Revisions that were scrubbed to the end."),
	ALONE(PREFETCHED_BYTES, "prefetched_bytes_total", COUNTER,
	      "Bytes that were read ahead of who opened a file."),
#undef FAMILY
#undef MEMBER
#undef ALONE
};
/* clang-format on */

static _Atomic uint64_t values[METRIC_COUNT];

/* Written only before the first thread starts, read from every thread. */
static const char *build_version = "unknown";

void metrics_add(enum metric m, int64_t delta)
{
	assert(m < METRIC_COUNT);
	assert(delta >= 0 || rows[m].kind == GAUGE);
	/* The sum modulo 2^64 is right for a negative delta, too. */
	(void)atomic_fetch_add_explicit(&values[m], (uint64_t)delta,
					memory_order_relaxed);
}

void metrics_set(enum metric m, uint64_t value)
{
	assert(m < METRIC_COUNT && rows[m].kind == GAUGE);
	atomic_store_explicit(&values[m], value, memory_order_relaxed);
}

void metrics_raise(enum metric m, uint64_t value)
{
	uint64_t seen;

	assert(m < METRIC_COUNT && rows[m].kind == COUNTER);
	seen = atomic_load_explicit(&values[m], memory_order_relaxed);
	while (seen < value &&
	       !atomic_compare_exchange_weak_explicit(&values[m], &seen, value,
						      memory_order_relaxed,
						      memory_order_relaxed))
		;
}

uint64_t metrics_get(enum metric m)
{
	assert(m < METRIC_COUNT);
	return atomic_load_explicit(&values[m], memory_order_relaxed);
}

void metrics_set_version(const char *version)
{
	build_version = version;
}

void metrics_reset(void)
{
	for (size_t i = 0; i < METRIC_COUNT; i++)
		atomic_store_explicit(&values[i], 0, memory_order_relaxed);
}

static int write_head(struct buf *out, const char *name, enum kind kind,
		      const char *help)
{
	return buf_printf(out,
			  "# HELP " METRICS_PREFIX "%s %s\n"
			  "# TYPE " METRICS_PREFIX "%s %s\n",
			  name, help, name,
			  kind == COUNTER ? "counter" : "gauge");
}

static int write_row(struct buf *out, enum metric m)
{
	const struct row *row = &rows[m];
	unsigned long long value = metrics_get(m);
	int r;

	if (row->help) {
		r = write_head(out, row->name, row->kind, row->help);
		if (r < 0)
			return r;
	}
	if (!row->label)
		return buf_printf(out, METRICS_PREFIX "%s %llu\n", row->name,
				  value);
	return buf_printf(out, METRICS_PREFIX "%s{%s=\"%s\"} %llu\n", row->name,
			  row->label, row->value, value);
}

/* Inside a label's value a backslash, a quote and a newline are escaped. */
static int write_escaped(struct buf *out, const char *text)
{
	int r = 0;

	for (; r == 0 && *text; text++) {
		if (*text == '\n')
			r = buf_append(out, "\\n", 2);
		else if (*text == '"' || *text == '\\')
			r = buf_printf(out, "\\%c", *text);
		else
			r = buf_append(out, text, 1);
	}
	return r;
}

static int write_build_info(struct buf *out)
{
	static const char start[] = METRICS_PREFIX "build_info{version=\"";
	static const char end[] = "\"} 1\n";
	int r;

	if ((r = write_head(out, "build_info", GAUGE,
			    "A constant 1 that carries the version.")) < 0 ||
	    (r = buf_append(out, start, sizeof(start) - 1)) < 0 ||
	    (r = write_escaped(out, build_version)) < 0)
		return r;
	return buf_append(out, end, sizeof(end) - 1);
}

int metrics_write(struct buf *out)
{
	for (size_t i = 0; i < METRIC_COUNT; i++) {
		int r = write_row(out, (enum metric)i);

		if (r < 0)
			return r;
	}
	return write_build_info(out);
}
