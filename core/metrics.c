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
 * their labels; help is that of the first of them.
 */
/* clang-format off */
#define IS(label, value) #label "=\"" #value "\""

static const struct row {
	const char *name;
	enum kind kind;
	const char *help;
	const char *labels; /* as they are printed; NULL: none */
} rows[METRIC_COUNT] = {
#define FAMILY(index, name, kind, help, labels)                                \
	[METRIC_##index] = { name, kind, help, labels }
#define MEMBER(index, name, kind, labels)                                      \
	[METRIC_##index] = { name, kind, NULL, labels }
#define ALONE(index, name, kind, help)                                         \
	[METRIC_##index] = { name, kind, help, NULL }

	FAMILY(REVISIONS_IMPORTING, "weight_revisions", GAUGE,
	       "Weight revisions by availability.",
	       IS(availability, importing)),
	MEMBER(REVISIONS_READY, "weight_revisions", GAUGE,
	       IS(availability, ready)),
	MEMBER(REVISIONS_DEGRADED, "weight_revisions", GAUGE,
	       IS(availability, degraded)),
	MEMBER(REVISIONS_DELETING, "weight_revisions", GAUGE,
	       IS(availability, deleting)),
	MEMBER(REVISIONS_DELETED, "weight_revisions", GAUGE,
	       IS(availability, deleted)),

	FAMILY(RESIDENCY_UNKNOWN, "weight_revision_residency", GAUGE,
	       "Weight revisions by observed residency.",
	       IS(residency, unknown)),
	MEMBER(RESIDENCY_HOT, "weight_revision_residency", GAUGE,
	       IS(residency, hot)),
	MEMBER(RESIDENCY_COLD, "weight_revision_residency", GAUGE,
	       IS(residency, cold)),
	MEMBER(RESIDENCY_MIXED, "weight_revision_residency", GAUGE,
	       IS(residency, mixed)),
	MEMBER(RESIDENCY_ABSENT, "weight_revision_residency", GAUGE,
	       IS(residency, absent)),

	ALONE(ACTIVE_LEASES, "weight_active_leases", GAUGE,
	      "Leases on weight revisions that have not expired."),
	ALONE(EXPIRED_LEASES, "weight_expired_leases_total", COUNTER,
	      "Leases that were removed because they had expired."),
	ALONE(PENDING_OPERATIONS, "weight_pending_operations", GAUGE,
	      "Residency operations that have not finished."),
	ALONE(OLDEST_OPERATION_AGE_MS, "weight_oldest_operation_age_ms", GAUGE,
	      "Milliseconds since the oldest unfinished operation started."),
	ALONE(OPERATIONS_FINISHED, "weight_operations_finished_total", COUNTER,
	      "Residency operations that reached their target."),
	ALONE(OPERATION_FAILURES, "weight_operation_failures_total", COUNTER,
	      "Errors that were recorded on residency operations."),
	ALONE(OPERATION_RETRIES, "weight_operation_retries_total", COUNTER,
	      "Moves that were begun again after a failure."),
	ALONE(MIGRATION_PROCESSED_BYTES,
	      "weight_migration_processed_bytes_total", COUNTER,
	      "Bytes that residency operations recorded as done."),
	ALONE(MIGRATION_REMAINING_BYTES, "weight_migration_remaining_bytes",
	      GAUGE, "Bytes that unfinished operations have not recorded."),
	ALONE(MIGRATION_DURATION_MS, "weight_migration_duration_ms_total",
	      COUNTER, "Milliseconds that finished operations took in all."),
	ALONE(RECONCILIATION_FAILURES, "weight_reconciliation_failures_total",
	      COUNTER, "Rounds of background work that failed."),
	ALONE(ABANDONED_IMPORTS, "weight_abandoned_imports_total", COUNTER,
	      "Imports that were given up because nobody went on with them."),
	ALONE(GROUP_GUARD_REFUSALS, "weight_group_guard_refusals_total",
	      COUNTER, "Refused changes to parts of published revisions."),

#define CLAIMS "weight_claims"
	FAMILY(CLAIMS_PUT_FIRST_PREPARING_TARGET, CLAIMS, GAUGE,
	       "Replacements of a revision by mode and phase.",
	       IS(mode, put_first) "," IS(phase, preparing_target)),
	MEMBER(CLAIMS_PUT_FIRST_RETIRING_BASE, CLAIMS, GAUGE,
	       IS(mode, put_first) "," IS(phase, retiring_base)),
	MEMBER(CLAIMS_PUT_FIRST_DELETING_BASE, CLAIMS, GAUGE,
	       IS(mode, put_first) "," IS(phase, deleting_base)),
	MEMBER(CLAIMS_PUT_FIRST_TARGET_IMPORTING, CLAIMS, GAUGE,
	       IS(mode, put_first) "," IS(phase, target_importing)),
	MEMBER(CLAIMS_PUT_FIRST_COMPLETED, CLAIMS, GAUGE,
	       IS(mode, put_first) "," IS(phase, completed)),
	MEMBER(CLAIMS_PUT_FIRST_ABORTED, CLAIMS, GAUGE,
	       IS(mode, put_first) "," IS(phase, aborted)),
	MEMBER(CLAIMS_DELETE_FIRST_PREPARING_TARGET, CLAIMS, GAUGE,
	       IS(mode, delete_first) "," IS(phase, preparing_target)),
	MEMBER(CLAIMS_DELETE_FIRST_RETIRING_BASE, CLAIMS, GAUGE,
	       IS(mode, delete_first) "," IS(phase, retiring_base)),
	MEMBER(CLAIMS_DELETE_FIRST_DELETING_BASE, CLAIMS, GAUGE,
	       IS(mode, delete_first) "," IS(phase, deleting_base)),
	MEMBER(CLAIMS_DELETE_FIRST_TARGET_IMPORTING, CLAIMS, GAUGE,
	       IS(mode, delete_first) "," IS(phase, target_importing)),
	MEMBER(CLAIMS_DELETE_FIRST_COMPLETED, CLAIMS, GAUGE,
	       IS(mode, delete_first) "," IS(phase, completed)),
	MEMBER(CLAIMS_DELETE_FIRST_ABORTED, CLAIMS, GAUGE,
	       IS(mode, delete_first) "," IS(phase, aborted)),
#undef CLAIMS

	FAMILY(CLAIM_FAILURES_PUT_FIRST, "weight_claim_failures_total", COUNTER,
	       "Steps of replacements that failed, by mode.",
	       IS(mode, put_first)),
	MEMBER(CLAIM_FAILURES_DELETE_FIRST, "weight_claim_failures_total",
	       COUNTER, IS(mode, delete_first)),
	FAMILY(CLAIM_RECOVERIES_PUT_FIRST, "weight_claim_recoveries_total",
	       COUNTER,
	       "Steps of replacements that their client had left, by mode.",
	       IS(mode, put_first)),
	MEMBER(CLAIM_RECOVERIES_DELETE_FIRST, "weight_claim_recoveries_total",
	       COUNTER, IS(mode, delete_first)),

	FAMILY(AUTO_PRESSURE, "weight_auto_triggers_total", COUNTER,
	       "Moves that were decided automatically, by what led to them.",
	       IS(trigger, pressure)),
	MEMBER(AUTO_CAPACITY, "weight_auto_triggers_total", COUNTER,
	       IS(trigger, capacity)),
	MEMBER(AUTO_ACCESS, "weight_auto_triggers_total", COUNTER,
	       IS(trigger, access)),

	ALONE(OPLOG_ENTRIES, "oplog_entries", GAUGE,
	      "Entries that the operation log holds."),
	ALONE(OPLOG_APPENDS, "oplog_appends_total", COUNTER,
	      "Entries that were appended to the operation log."),

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
#undef IS
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

/* Two changes may be counted in another order than they were made in. */
static uint64_t value_of(enum metric m)
{
	uint64_t value = metrics_get(m);

	return rows[m].kind == GAUGE && value > INT64_MAX ? 0 : value;
}

static int write_row(struct buf *out, enum metric m)
{
	const struct row *row = &rows[m];
	unsigned long long value = value_of(m);
	int r;

	if (row->help) {
		r = write_head(out, row->name, row->kind, row->help);
		if (r < 0)
			return r;
	}
	if (!row->labels)
		return buf_printf(out, METRICS_PREFIX "%s %llu\n", row->name,
				  value);
	return buf_printf(out, METRICS_PREFIX "%s{%s} %llu\n", row->name,
			  row->labels, value);
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
