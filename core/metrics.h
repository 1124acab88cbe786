/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics: every counter and gauge, in one table in metrics.c.
 *
 * They belong to the process and are there, with zero, from its start. Adding
 * one is adding a name here and a row there. Counters only go up.
 *
 * Thread-safe. Values of different metrics are not read at one instant.
 *
 * Source: weight contracts, section 9.1, for the weight_* names.
 */
#ifndef CORE_METRICS_H
#define CORE_METRICS_H

#include <stdint.h>

#include "core/buf.h"

#define METRICS_PREFIX "weightfs_"

enum metric {
	METRIC_REVISIONS_IMPORTING,
	METRIC_REVISIONS_READY,
	METRIC_REVISIONS_DEGRADED,
	METRIC_REVISIONS_DELETING,
	METRIC_REVISIONS_DELETED,
	METRIC_RESIDENCY_UNKNOWN,
	METRIC_RESIDENCY_HOT,
	METRIC_RESIDENCY_COLD,
	METRIC_RESIDENCY_MIXED,
	METRIC_RESIDENCY_ABSENT,
	METRIC_ACTIVE_LEASES,
	METRIC_EXPIRED_LEASES,
	METRIC_PENDING_OPERATIONS,
	METRIC_OLDEST_OPERATION_AGE_MS,
	METRIC_OPERATIONS_FINISHED,
	METRIC_OPERATION_FAILURES,
	METRIC_OPERATION_RETRIES,
	METRIC_MIGRATION_PROCESSED_BYTES,
	METRIC_MIGRATION_REMAINING_BYTES,
	METRIC_MIGRATION_DURATION_MS,
	METRIC_RECONCILIATION_FAILURES,
	METRIC_ABANDONED_IMPORTS,
	METRIC_GROUP_GUARD_REFUSALS,
	METRIC_CLAIMS_PUT_FIRST_PREPARING_TARGET,
	METRIC_CLAIMS_PUT_FIRST_RETIRING_BASE,
	METRIC_CLAIMS_PUT_FIRST_DELETING_BASE,
	METRIC_CLAIMS_PUT_FIRST_TARGET_IMPORTING,
	METRIC_CLAIMS_PUT_FIRST_COMPLETED,
	METRIC_CLAIMS_PUT_FIRST_ABORTED,
	METRIC_CLAIMS_DELETE_FIRST_PREPARING_TARGET,
	METRIC_CLAIMS_DELETE_FIRST_RETIRING_BASE,
	METRIC_CLAIMS_DELETE_FIRST_DELETING_BASE,
	METRIC_CLAIMS_DELETE_FIRST_TARGET_IMPORTING,
	METRIC_CLAIMS_DELETE_FIRST_COMPLETED,
	METRIC_CLAIMS_DELETE_FIRST_ABORTED,
	METRIC_CLAIM_FAILURES_PUT_FIRST,
	METRIC_CLAIM_FAILURES_DELETE_FIRST,
	METRIC_CLAIM_RECOVERIES_PUT_FIRST,
	METRIC_CLAIM_RECOVERIES_DELETE_FIRST,
	METRIC_AUTO_PRESSURE,
	METRIC_AUTO_CAPACITY,
	METRIC_AUTO_ACCESS,
	METRIC_OPLOG_ENTRIES,
	METRIC_OPLOG_APPENDS,
	METRIC_PUBLISHES,
	METRIC_PUBLISH_FAILURES,
	METRIC_REMOVALS,
	METRIC_CHUNKS_HASHED,
	METRIC_BYTES_HASHED,
	METRIC_FSYNCS,
	METRIC_METADATA_COMMITS,
	METRIC_OPENS,
	METRIC_PASSTHROUGH_OPENS,
	METRIC_LEASE_WRITES,
	METRIC_DERIVED_BYTES,
	METRIC_MEMORY_BYTES,
	METRIC_PINNED_BYTES,
	METRIC_PINNED_FILES,
	METRIC_WRITE_BACKS,
	METRIC_WRITE_BACK_FAILURES,
	METRIC_BYTES_READ_BACK,
	METRIC_BAD_CHUNKS,
	METRIC_MENDED_CHUNKS,
	METRIC_SCRUBS,
	METRIC_PREFETCHED_BYTES,
	METRIC_COUNT, /* not a metric */
};

/*
 * A counter takes no negative delta. A gauge that is below zero, because what
 * was added is counted later, is shown as zero.
 */
void metrics_add(enum metric m, int64_t delta);

/* m is a gauge. */
void metrics_set(enum metric m, uint64_t value);

/* A counter that somebody else keeps has come to this; it never goes down. */
void metrics_raise(enum metric m, uint64_t value);

uint64_t metrics_get(enum metric m);

/*
 * What the constant build_info says; "unknown" before the first call. version
 * is borrowed for good. Belongs before the first thread.
 */
void metrics_set_version(const char *version);

/* Every value back to zero, for tests. */
void metrics_reset(void);

/*
 * Appends all metrics in the text format of Prometheus, version 0.0.4.
 * Errors: those of buf_append().
 */
int metrics_write(struct buf *out);

#endif
