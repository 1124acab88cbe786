/* SPDX-License-Identifier: Apache-2.0 */
/* How many revisions there are of each kind, for the metrics. */
#include "core/metrics.h"
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

struct wms_shape wms_shape_of(const struct weight_metadata *m)
{
	struct wms_shape shape = { .there = m != NULL };

	if (m) {
		shape.availability = m->availability;
		shape.residency = m->residency;
		shape.operates = m->operation_id != 0;
	}
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
}

void wms_count_change(const struct wms_shape *before,
		      const struct wms_shape *after)
{
	count(before, -1);
	count(after, 1);
}

void wms_count_found(const struct weight_metadata *m)
{
	const struct wms_shape shape = wms_shape_of(m);

	count(&shape, 1);
}
