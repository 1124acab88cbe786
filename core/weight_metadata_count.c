/* SPDX-License-Identifier: Apache-2.0 */
/* What the metrics count of records. */
#include <assert.h>

#include "core/metrics.h"
#include "core/util.h"
#include "core/weight_metadata_store.h"
#include "core/weight_metadata_store_priv.h"

static enum metric availability_metric(enum weight_availability a)
{
	switch (a) {
	case WEIGHT_IMPORTING:
		return METRIC_REVISIONS_IMPORTING;
	case WEIGHT_READY:
		return METRIC_REVISIONS_READY;
	case WEIGHT_DEGRADED:
		return METRIC_REVISIONS_DEGRADED;
	case WEIGHT_DELETING:
		return METRIC_REVISIONS_DELETING;
	case WEIGHT_DELETED:
		break;
	}
	return METRIC_REVISIONS_DELETED;
}

static enum metric residency_metric(enum weight_residency r)
{
	switch (r) {
	case WEIGHT_UNKNOWN:
		return METRIC_RESIDENCY_UNKNOWN;
	case WEIGHT_HOT:
		return METRIC_RESIDENCY_HOT;
	case WEIGHT_COLD:
		return METRIC_RESIDENCY_COLD;
	case WEIGHT_MIXED:
		return METRIC_RESIDENCY_MIXED;
	case WEIGHT_ABSENT:
		break;
	}
	return METRIC_RESIDENCY_ABSENT;
}

/* clang-format off */
static const enum metric claims[][WEIGHT_ABORTED + 1] = {
	[WEIGHT_PUT_FIRST] = {
		[WEIGHT_PREPARING_TARGET] =
			METRIC_CLAIMS_PUT_FIRST_PREPARING_TARGET,
		[WEIGHT_RETIRING_BASE] = METRIC_CLAIMS_PUT_FIRST_RETIRING_BASE,
		[WEIGHT_DELETING_BASE] = METRIC_CLAIMS_PUT_FIRST_DELETING_BASE,
		[WEIGHT_TARGET_IMPORTING] =
			METRIC_CLAIMS_PUT_FIRST_TARGET_IMPORTING,
		[WEIGHT_COMPLETED] = METRIC_CLAIMS_PUT_FIRST_COMPLETED,
		[WEIGHT_ABORTED] = METRIC_CLAIMS_PUT_FIRST_ABORTED,
	},
	[WEIGHT_DELETE_FIRST] = {
		[WEIGHT_PREPARING_TARGET] =
			METRIC_CLAIMS_DELETE_FIRST_PREPARING_TARGET,
		[WEIGHT_RETIRING_BASE] =
			METRIC_CLAIMS_DELETE_FIRST_RETIRING_BASE,
		[WEIGHT_DELETING_BASE] =
			METRIC_CLAIMS_DELETE_FIRST_DELETING_BASE,
		[WEIGHT_TARGET_IMPORTING] =
			METRIC_CLAIMS_DELETE_FIRST_TARGET_IMPORTING,
		[WEIGHT_COMPLETED] = METRIC_CLAIMS_DELETE_FIRST_COMPLETED,
		[WEIGHT_ABORTED] = METRIC_CLAIMS_DELETE_FIRST_ABORTED,
	},
};
/* clang-format on */

enum metric wms_claim_metric(enum weight_upsert_mode mode,
			     enum weight_upsert_phase phase)
{
	assert((size_t)mode < ARRAY_LEN(claims));
	assert((size_t)phase < ARRAY_LEN(claims[0]));
	return claims[mode][phase];
}

enum metric wms_claim_failure_metric(enum weight_upsert_mode mode)
{
	assert((size_t)mode < ARRAY_LEN(claims));
	return mode == WEIGHT_PUT_FIRST ? METRIC_CLAIM_FAILURES_PUT_FIRST :
					  METRIC_CLAIM_FAILURES_DELETE_FIRST;
}

enum metric wms_claim_recovery_metric(enum weight_upsert_mode mode)
{
	assert((size_t)mode < ARRAY_LEN(claims));
	return mode == WEIGHT_PUT_FIRST ? METRIC_CLAIM_RECOVERIES_PUT_FIRST :
					  METRIC_CLAIM_RECOVERIES_DELETE_FIRST;
}

struct wms_shape wms_shape_of(const struct weight_metadata *m,
			      const struct weight_operation *op)
{
	struct wms_shape shape = { .there = m != NULL };

	if (m) {
		shape.availability = m->availability;
		shape.residency = m->residency;
		shape.operates = m->operation_id != 0;
	}
	if (shape.operates && op && op->operation_id == m->operation_id)
		shape.remaining_bytes = op->total_bytes - op->processed_bytes;
	/* What somebody announced may be of any size. */
	if (shape.remaining_bytes > INT64_MAX)
		shape.remaining_bytes = INT64_MAX;
	return shape;
}

static void count(const struct wms_shape *shape, int delta)
{
	if (!shape->there)
		return;
	metrics_add(availability_metric(shape->availability), delta);
	metrics_add(residency_metric(shape->residency), delta);
	if (shape->operates)
		metrics_add(METRIC_PENDING_OPERATIONS, delta);
	metrics_add(METRIC_MIGRATION_REMAINING_BYTES,
		    delta * (int64_t)shape->remaining_bytes);
}

void wms_count_change(const struct wms_shape *before,
		      const struct wms_shape *after)
{
	count(before, -1);
	count(after, 1);
}

void wms_count_found(struct weight_metadata_store *store,
		     const struct weight_metadata *m)
{
	cleanup(weight_operation_free_cleanup) struct weight_operation *op =
		NULL;
	struct wms_shape shape;

	/* One that can't be read has nothing left that could be counted. */
	if (m->operation_id != 0)
		(void)wms_operation_get(store, m->identity.lineage.tenant,
					m->operation_id, &op);
	shape = wms_shape_of(m, op);
	count(&shape, 1);
}

void wms_count_claim(const struct weight_claim *before,
		     const struct weight_claim *after)
{
	if (before)
		metrics_add(wms_claim_metric(before->mode, before->phase), -1);
	metrics_add(wms_claim_metric(after->mode, after->phase), 1);
}

void wms_count_lineage_found(const struct weight_lineage_record *l)
{
	if (l->claimed)
		wms_count_claim(NULL, &l->claim);
}
