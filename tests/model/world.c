/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: an operation goes to the store and the model, and all is compared. */
#include "world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/util.h"
#include "core/weight_management.h"
#include "invariants.h"

#define START_MS 1000000
#define COMPARE_EVERY 64
#define SNAPSHOT_EVERY 512

bool world_make(struct world *w)
{
	bool unclean = true;

	memset(w, 0, sizeof(*w));
	model_init(&w->model);
	w->now_ms = START_MS;
	if (!store_make(&w->leader))
		return false;
	if (store_boot(&w->leader, 1, &unclean) < 0 ||
	    unclean != model_boot(&w->model, 1)) {
		(void)printf("the first boot fails or is not clean\n");
		return false;
	}
	return true;
}

void world_remove(struct world *w)
{
	store_remove(&w->leader);
	store_remove(&w->follower);
}

/* ---- Comparing ---- */

#define SAME(kind, what)                                                       \
	(store->has_##what == model->has_##what &&                             \
			 memcmp(&store->what, &model->what,                    \
				sizeof(store->what)) == 0 ?                    \
		 true :                                                        \
		 (record_print_difference(kind, &store->what, &model->what),   \
		  false))

static void print_error(const char *who, int err)
{
	(void)printf("%s %s", who, err ? strerrorname_np(-err) : "success");
}

static bool items_equal(const struct outcome *store,
			const struct outcome *model)
{
	if (store->count != model->count || strcmp(store->text, model->text)) {
		(void)printf("%zu items and '%s', the model has %zu and '%s'\n",
			     store->count, store->text, model->count,
			     model->text);
		return false;
	}
	for (size_t i = 0; i < store->count; i++)
		if (memcmp(&store->items[i], &model->items[i],
			   sizeof(store->items[i])) != 0) {
			record_print_difference(RECORD_REVISION,
						&store->items[i],
						&model->items[i]);
			return false;
		}
	return true;
}

bool outcome_equal(const struct outcome *store, const struct outcome *model)
{
	if (store->err != model->err) {
		print_error("the store says", store->err);
		print_error(", the model", model->err);
		(void)printf("\n");
		return false;
	}
	if (memcmp(store->numbers, model->numbers, sizeof(store->numbers))) {
		(void)printf("the store says %" PRIu64 " and %" PRIu64
			     ", the model %" PRIu64 " and %" PRIu64 "\n",
			     store->numbers[0], store->numbers[1],
			     model->numbers[0], model->numbers[1]);
		return false;
	}
	return SAME(RECORD_REVISION, revision) && SAME(RECORD_LEASE, lease) &&
	       SAME(RECORD_OPERATION, operation) &&
	       SAME(RECORD_LINEAGE, lineage) && SAME(RECORD_STAGING, staging) &&
	       items_equal(store, model);
}

static bool log_is_as_long(struct world *w)
{
	struct model *m = &w->model;
	struct wms_oplog_state state = { 0, 0 };
	int r = wms_oplog_state(w->leader.s, &state);

	if (r == 0 && model_log_is(m, state.first, state.next))
		return true;
	(void)printf("oplog_state: %d; the log goes from %" PRIu64
		     " to %" PRIu64 ", in the model from %" PRIu64
		     " or up to %" PRIu64 " to %" PRIu64 "\n",
		     r, state.first, state.next, m->oplog_first,
		     m->oplog_first_max, m->oplog_next);
	return false;
}

bool world_compare(struct world *w, bool snapshot)
{
	static struct state from_snapshot;

	if (!store_read_all(&w->leader, &w->seen) ||
	    !state_equal(&w->seen, &w->model.s, true) || !log_is_as_long(w))
		return false;
	if (!snapshot)
		return true;
	state_copy(&from_snapshot, &w->seen, false);
	return store_read_snapshot(&w->leader, &w->model, &from_snapshot) &&
	       state_equal(&from_snapshot, &w->model.s, true) &&
	       store_is_sound(&w->leader);
}

/* Reads what a call can have changed, and compares all that is known. */
static bool read_changes(struct world *w, const struct call *c)
{
	const struct state *s = &w->seen;
	uint64_t lineage = c->lineage;

	if (!store_read_lineage(&w->leader, lineage, &w->seen) ||
	    !store_read_leases(&w->leader, &w->seen) ||
	    !store_read_operation(&w->leader, w->before.operation_count + 1,
				  &w->seen) ||
	    !store_read_operation(&w->leader, c->operation, &w->seen))
		return false;
	/* Leases and accesses go with any revision. */
	for (size_t i = 0; i < w->before.revision_count; i++)
		if (w->before.revisions[i].lineage == lineage &&
		    !store_read_operation(&w->leader,
					  w->before.revisions[i].operation_id,
					  &w->seen))
			return false;
	if (s->operation_count != w->model.s.operation_count) {
		(void)printf("%zu operations in the store, %zu in the model\n",
			     s->operation_count, w->model.s.operation_count);
		return false;
	}
	return state_equal(s, &w->model.s, false);
}

static bool operations_equal(const struct world *w, const struct state *before)
{
	const struct state *seen = &w->seen, *model = &w->model.s;

	for (size_t i = 0; i < before->revision_count; i++) {
		uint64_t id = before->revisions[i].operation_id;

		if (id && memcmp(&seen->operations[id - 1],
				 &model->operations[id - 1],
				 sizeof(seen->operations[0]))) {
			record_print_difference(RECORD_OPERATION,
						&seen->operations[id - 1],
						&model->operations[id - 1]);
			return false;
		}
	}
	return true;
}

/* When the operations of a revision changed last that an entry may be about. */
static uint64_t operations_changed(struct world *w, const struct call *c)
{
	const struct revision *before =
		state_revision(&w->before, c->lineage, c->generation);
	const struct revision *after =
		state_revision(&w->seen, c->lineage, c->generation);
	const uint64_t ids[] = { c->operation,
				 before ? before->operation_id : 0,
				 after->operation_id };
	uint64_t at = 0;

	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		const struct operation *op = state_operation(&w->seen, ids[i]);

		if (op)
			at = later(at, op->updated_at_ms);
	}
	return at;
}

/* The entry of a mutation has the time of the records that it changed. */
static bool entry_is_timed(struct world *w, const struct call *c)
{
	enum oplog_type type = OPLOG_METADATA_UPSERT;
	uint64_t from, to;

	switch (kind_family(c->kind)) {
	case FAMILY_CLAIMS:
		type = OPLOG_LINEAGE_UPSERT;
		from = to = w->seen.lineages[c->lineage].updated_at_ms;
		break;
	case FAMILY_LEASES:
		/* Whoever releases one doesn't say when. */
		if (c->kind == OP_RELEASE)
			return true;
		type = c->kind == OP_SWEEP ? OPLOG_LEASE_DELETE :
					     OPLOG_LEASE_UPSERT;
		from = to = c->now_ms;
		break;
	default:
		if (c->kind == OP_DELETE_FINISH)
			type = OPLOG_METADATA_DELETE;
		from = state_revision(&w->seen, c->lineage, c->generation)
			       ->updated_at_ms;
		to = later(from, operations_changed(w, c));
	}
	return store_log_says(&w->leader, w->model.oplog_next - 1, type, from,
			      to);
}

/* ---- Steps ---- */

static bool call_step(struct world *w, const struct op *op,
		      const struct call *c)
{
	static struct outcome got, expected;
	struct step step = { .call = c,
			     .before = &w->before,
			     .after = &w->seen };
	uint64_t sequence = w->model.oplog_next;

	model_apply(&w->model, c, &expected);
	store_apply(&w->leader, c, &got);
	if (!outcome_equal(&got, &expected) || !log_is_as_long(w))
		return false;
	w->results[op->kind][got.err != 0]++;
	world_learn(w, op, c, &got);
	if (kind_family(op->kind) == FAMILY_QUESTIONS)
		return true;
	if (!read_changes(w, c) || !operations_equal(w, &w->before) ||
	    !operations_equal(w, &w->seen))
		return false;
	if (w->model.oplog_next > sequence && !entry_is_timed(w, c))
		return false;
	step.err = got.err;
	return invariants_hold(&step);
}

bool world_step(struct world *w, const struct op *op)
{
	struct call c;

	w->steps++;
	state_copy(&w->before, &w->seen, false);
	w->before.operation_count = w->seen.operation_count;
	if (kind_family(op->kind) == FAMILY_WHOLE) {
		w->results[op->kind][0]++;
		return world_whole(w, op);
	}
	world_resolve(w, op, &c);
	if (op->arg[A_CRASH] ? !world_crash(w, op, &c) : !call_step(w, op, &c))
		return false;
	return w->steps % COMPARE_EVERY ||
	       world_compare(w, w->steps % SNAPSHOT_EVERY == 0);
}

bool world_end(struct world *w)
{
	const struct op follow = { .kind = OP_FOLLOW };

	return world_compare(w, true) &&
	       (!*w->follower.dir || world_step(w, &follow));
}
