/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids and digests of placements: what is hashed is canonical JSON in the ASCII
 * dialect, so core/json.h and core/digest.h together must give the golden
 * values, whoever fills in the objects.
 *
 * The objects are written here by hand, their keys in sorted order.
 *
 * Source: weight contracts, sections 1.3 to 1.5.
 */
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/json.h"
#include "core/util.h"
#include "suite.h"

#define ID_LEN (sizeof("sha256:") - 1 + DIGEST_HEX_LEN)
#define PER_PART 2
#define RANK_MAX 2
#define NONE UINT64_MAX /* as layer or expert: null */

struct rank {
	uint64_t dp, tp, pp, ep;
};

struct axis {
	bool splits; /* along dimension 0; else replicated */
	const char *kind;
};

struct tensor {
	const char *id, *dtype, *fingerprint;
	uint64_t itemsize, layer, expert;
	unsigned dims;
	uint64_t shape[RANK_MAX];
	unsigned axis_count;
	struct axis axes[2];
};

struct fragment {
	const char *tensor_id;
	unsigned dims;
	uint64_t offset[RANK_MAX];
	uint64_t shape[RANK_MAX];
	uint64_t nbytes;
	char id[ID_LEN + 1]; /* "": it is derived */
};

struct part {
	const char *participant;
	struct rank rank;
	unsigned count;
	struct fragment fragments[PER_PART];
};

struct placement {
	const char *resource, *revision, *set;
	uint64_t generation, tp_size, dp_size;
	unsigned tensor_count, part_count;
	const struct tensor *tensors;
	struct part *parts;
	char topology_id[ID_LEN + 1];
	char id[ID_LEN + 1];
	char digest[DIGEST_HEX_LEN + 1];
};

/* ---- Writing ---- */

static void put(struct buf *out, const char *text)
{
	ck_assert_int_eq(buf_append(out, text, strlen(text)), 0);
}

static void put_text(struct buf *out, const char *key, const char *value)
{
	put(out, key);
	ck_assert_int_eq(
		json_write_string(out, value, strlen(value), JSON_ASCII), 0);
}

static void put_number(struct buf *out, const char *key, uint64_t value)
{
	put(out, key);
	if (value == NONE)
		put(out, "null");
	else
		ck_assert_int_eq(json_write_u64(out, value), 0);
}

static void put_numbers(struct buf *out, const char *key, const uint64_t *v,
			unsigned count)
{
	put(out, key);
	put(out, "[");
	for (unsigned i = 0; i < count; i++)
		put_number(out, i > 0 ? "," : "", v[i]);
	put(out, "]");
}

static void put_rank(struct buf *out, const struct rank *r)
{
	put_number(out, "\"rank\":{\"dp\":", r->dp);
	put_number(out, ",\"ep\":", r->ep);
	put_number(out, ",\"pp\":", r->pp);
	put_number(out, ",\"tp\":", r->tp);
	put(out, "}");
}

/* without_id: as its own id is derived from it. */
static void put_fragment(struct buf *out, const struct fragment *f,
			 const struct rank *rank, bool without_id)
{
	put_numbers(out, "{\"aliases\":[],\"global_offset\":", f->offset,
		    f->dims);
	put_numbers(out, ",\"local_shape\":", f->shape, f->dims);
	put_number(out, ",\"nbytes\":", f->nbytes);
	if (!without_id)
		put_text(out, ",\"placement_fragment_id\":", f->id);
	put(out, ",");
	put_rank(out, rank);
	if (without_id)
		put(out, ",\"schema\":\"weight-placement-fragment\"");
	put_text(out, ",\"tensor_id\":", f->tensor_id);
	put(out, "}");
}

static void put_participants(struct buf *out, const struct placement *p)
{
	put(out, "\"participants\":[");
	for (unsigned i = 0; i < p->part_count; i++) {
		put_text(out,
			 i > 0 ? ",{\"participant_id\":" :
				 "{\"participant_id\":",
			 p->parts[i].participant);
		put(out, ",");
		put_rank(out, &p->parts[i].rank);
		put(out, "}");
	}
	put(out, "]");
}

/* Before its id is known: what it is derived from. */
static void put_topology(struct buf *out, const struct placement *p)
{
	put_number(out, "{\"dp_size\":", p->dp_size);
	put(out, ",\"ep_size\":1,");
	put_participants(out, p);
	put(out, ",\"pp_size\":1");
	if (p->topology_id[0])
		put_text(out, ",\"topology_id\":", p->topology_id);
	else
		put(out, ",\"schema\":\"weight-parallel-topology\"");
	put_number(out, ",\"tp_size\":", p->tp_size);
	put(out, "}");
}

static void put_axes(struct buf *out, const struct tensor *t)
{
	bool is_split = false;

	put(out, ",\"parallel_axes\":[");
	for (unsigned i = 0; i < t->axis_count; i++) {
		const struct axis *a = &t->axes[i];

		put(out, i > 0 ? ",{" : "{");
		put_text(out, a->splits ? "\"dim\":0,\"kind\":" : "\"kind\":",
			 a->kind);
		put_text(out,
			 ",\"semantics\":", a->splits ? "split" : "replicated");
		put(out, "}");
		is_split |= a->splits;
	}
	put(out, is_split ? "],\"shard_dims\":[0]" : "],\"shard_dims\":[]");
}

static void put_tensors(struct buf *out, const struct placement *p)
{
	put(out, ",\"tensors\":[");
	for (unsigned i = 0; i < p->tensor_count; i++) {
		const struct tensor *t = &p->tensors[i];

		put_text(out, i > 0 ? ",{\"dtype\":" : "{\"dtype\":", t->dtype);
		put_number(out, ",\"expert_id\":", t->expert);
		put_numbers(out, ",\"global_shape\":", t->shape, t->dims);
		put_number(out, ",\"itemsize\":", t->itemsize);
		put_number(out, ",\"layer_id\":", t->layer);
		put_text(out, ",\"layout_fingerprint\":", t->fingerprint);
		put_axes(out, t);
		put_text(out, ",\"tensor_id\":", t->id);
		put(out, "}");
	}
	put(out, "]");
}

static void put_parts(struct buf *out, const struct placement *p)
{
	put(out, "\"parts\":[");
	for (unsigned i = 0; i < p->part_count; i++) {
		const struct part *part = &p->parts[i];

		put(out, i > 0 ? ",{\"fragments\":[" : "{\"fragments\":[");
		for (unsigned k = 0; k < part->count; k++) {
			put(out, k > 0 ? "," : "");
			put_fragment(out, &part->fragments[k], &part->rank,
				     false);
		}
		put_text(out, "],\"participant_id\":", part->participant);
		put(out, ",");
		put_rank(out, &part->rank);
		put(out, "}");
	}
	put(out, "]");
}

/* Before its id is known: what it is derived from. */
static void put_placement(struct buf *out, const struct placement *p)
{
	put(out, "{");
	put_parts(out, p);
	if (p->id[0])
		put_text(out, ",\"placement_id\":", p->id);
	put_text(out, ",\"placement_set_id\":", p->set);
	put_text(out, ",\"resource_id\":", p->resource);
	if (p->id[0])
		put(out, ",\"resource_kind\":\"model_weight\"");
	put_text(out, ",\"revision\":", p->revision);
	if (!p->id[0])
		put(out, ",\"schema\":\"complete-weight-placement\"");
	put_tensors(out, p);
	put(out, ",\"topology\":");
	put_topology(out, p);
	put_number(out, ",\"weight_generation\":", p->generation);
	put(out, "}");
}

/* ---- Hashing ---- */

static void hex_of(const struct buf *text, char ret[static DIGEST_HEX_LEN + 1])
{
	struct digest d;

	ck_assert_int_eq(digest_of(text->data, text->len, &d), 0);
	digest_to_hex(&d, ret);
}

static void id_of(const struct buf *text, char ret[static ID_LEN + 1])
{
	memcpy(ret, "sha256:", ID_LEN - DIGEST_HEX_LEN);
	hex_of(text, ret + ID_LEN - DIGEST_HEX_LEN);
}

static void derive_fragment(struct fragment *f, const struct rank *rank)
{
	cleanup(buf_release) struct buf text = BUF_INIT;

	put_fragment(&text, f, rank, true);
	id_of(&text, f->id);
}

static int by_id(const void *a, const void *b)
{
	return strcmp(((const struct fragment *)a)->id,
		      ((const struct fragment *)b)->id);
}

static void derive_fragments(struct placement *p)
{
	for (unsigned i = 0; i < p->part_count; i++) {
		struct part *part = &p->parts[i];

		for (unsigned k = 0; k < part->count; k++)
			if (!part->fragments[k].id[0])
				derive_fragment(&part->fragments[k],
						&part->rank);
		qsort(part->fragments, part->count, sizeof(part->fragments[0]),
		      by_id);
	}
}

/* Returns how many bytes the whole of it has. */
static size_t derive(struct placement *p)
{
	cleanup(buf_release) struct buf topology = BUF_INIT;
	cleanup(buf_release) struct buf source = BUF_INIT;
	cleanup(buf_release) struct buf whole = BUF_INIT;

	derive_fragments(p);
	put_topology(&topology, p);
	id_of(&topology, p->topology_id);
	put_placement(&source, p);
	id_of(&source, p->id);
	put_placement(&whole, p);
	hex_of(&whole, p->digest);
	return whole.len;
}

/* ---- Two tensors on two by two participants ---- */

static const struct tensor demo_tensors[] = {
	{ .id = "layers.0.w",
	  .dtype = "float16",
	  .fingerprint = "demo:v1",
	  .itemsize = 2,
	  .layer = 0,
	  .expert = NONE,
	  .dims = 2,
	  .shape = { 4, 4 },
	  .axis_count = 2,
	  .axes = { { false, "dp" }, { true, "tp" } } },
	{ .id = "norm",
	  .dtype = "float16",
	  .fingerprint = "demo:v1",
	  .itemsize = 2,
	  .layer = NONE,
	  .expert = NONE,
	  .dims = 1,
	  .shape = { 4 },
	  .axis_count = 2,
	  .axes = { { false, "dp" }, { false, "tp" } } },
};

/* As they stand in their parts, which is by id. */
static const struct {
	const char *participant, *tensor_id, *id;
} demo_ids[] = {
	{ "w00", "norm",
	  "a3d08ccbbb81aac1643f7c9c31fa55adaf4dbaed20090764bb515b4f88697f94" },
	{ "w00", "layers.0.w",
	  "b9bd72451567b936d552b1eeac8229827aa87bb784788bcfaf5c9bb0e07b6527" },
	{ "w01", "layers.0.w",
	  "2db4496c5bb45805d22105335900c43600348a6e68f362ca3f66dd7d6c75ae7b" },
	{ "w01", "norm",
	  "94fea159d8037d9083c2177f6654581f1f84e944733021acdd68fe1cc8c2a79f" },
	{ "w10", "norm",
	  "2888b57d62392ffafe4735cf42cb1d11f4c64fd6aeae11de4171b292d939e58d" },
	{ "w10", "layers.0.w",
	  "41db63997751d76d7f31bc051960d40d8581e928a8a4d8b30e30fedee0c5e898" },
	{ "w11", "layers.0.w",
	  "0f5569575218d47ebb6dd6bd4747396b649334096e28c413ded9c388e86f8144" },
	{ "w11", "norm",
	  "ba9141600a82cd21673146cb886bb260bc05778dc75579536a74ff46bcafed10" },
};

static struct part demo_part(const char *participant, uint64_t dp, uint64_t tp)
{
	return (struct part){
		.participant = participant,
		.rank = { .dp = dp, .tp = tp },
		.count = 2,
		.fragments = { { .tensor_id = "layers.0.w",
				 .dims = 2,
				 .offset = { 2 * tp, 0 },
				 .shape = { 2, 4 },
				 .nbytes = 16 },
			       { .tensor_id = "norm",
				 .dims = 1,
				 .shape = { 4 },
				 .nbytes = 8 } },
	};
}

START_TEST(a_placement_of_four_participants_has_the_golden_ids)
{
	struct part parts[] = {
		demo_part("w00", 0, 0),
		demo_part("w01", 0, 1),
		demo_part("w10", 1, 0),
		demo_part("w11", 1, 1),
	};
	struct placement p = {
		.resource = "demo",
		.revision = "main",
		.set = "set-a",
		.generation = 7,
		.tp_size = 2,
		.dp_size = 2,
		.tensor_count = 2,
		.part_count = 4,
		.tensors = demo_tensors,
		.parts = parts,
	};

	ck_assert_uint_eq(derive(&p), 3240);
	ck_assert_str_eq(p.topology_id,
			 "sha256:8316da7721015ac28e5d76e1503eeb83"
			 "8e7bab9626bb45dfd94ee058acf82566");
	ck_assert_str_eq(p.id, "sha256:2aeda450afab3f3092a1f65b824844b4"
			       "f4051127366d54207accabc164d48999");
	ck_assert_str_eq(p.digest, "5c50686b02a5e62fea69ede5974530b4"
				   "447e742cffe6cb95bce80529c86886f1");
	for (size_t i = 0; i < ARRAY_LEN(demo_ids); i++) {
		const struct part *part = &parts[i / 2];
		const struct fragment *f = &part->fragments[i % 2];

		ck_assert_str_eq(part->participant, demo_ids[i].participant);
		ck_assert_str_eq(f->tensor_id, demo_ids[i].tensor_id);
		ck_assert_str_eq(f->id + ID_LEN - DIGEST_HEX_LEN,
				 demo_ids[i].id);
	}
}
END_TEST

/* ---- One expert's tensor on one participant ---- */

START_TEST(a_placement_of_one_participant_has_the_golden_ids)
{
	static const struct tensor tensor = {
		.id = "layers.2.experts.3.w1",
		.dtype = "bfloat16",
		.fingerprint = "test:qwen:bf16:v1",
		.itemsize = 2,
		.layer = 2,
		.expert = 3,
		.dims = 2,
		.shape = { 4, 4 },
		.axis_count = 1,
		.axes = { { true, "tp" } },
	};
	struct part part = {
		.participant = "worker-0",
		.count = 1,
		.fragments = { { .tensor_id = tensor.id,
				 .dims = 2,
				 .shape = { 4, 4 },
				 .nbytes = 32,
				 .id = "placement-0" } },
	};
	struct placement p = {
		.resource = "model",
		.revision = "revision",
		.set = "placement-set-7",
		.generation = 7,
		.tp_size = 1,
		.dp_size = 1,
		.tensor_count = 1,
		.part_count = 1,
		.tensors = &tensor,
		.parts = &part,
	};

	(void)derive(&p);
	ck_assert_str_eq(p.topology_id,
			 "sha256:017d6c66843ba96ccd39ed1b118b7635"
			 "fee56677a41dc3d39c48b7bb3ccccdf4");
	ck_assert_str_eq(p.id, "sha256:618f22d9994d8d327a7afd97f3cfcf1f"
			       "6680a337d71ea3a8162a7827ed0346db");
	ck_assert_str_eq(p.digest, "a2ade0db5b17691e6a7c16d589d0498a"
				   "64359eef91589addc870590899512d98");
}
END_TEST

START_TEST(a_fragment_without_an_id_gets_the_golden_one)
{
	struct fragment f = {
		.tensor_id = "tensor", .dims = 2, .shape = { 2, 4 }, .nbytes = 8
	};

	derive_fragment(&f, &(struct rank){ 0 });
	ck_assert_str_eq(f.id, "sha256:a2622eb35ef9901ef29fa9d6a4ecd4f0"
			       "210c4bca6501ca8235f029f9ba8cff79");
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("golden_placement");
	TCase *tc = tcase_create("golden_placement");

	tcase_add_test(tc, a_placement_of_four_participants_has_the_golden_ids);
	tcase_add_test(tc, a_placement_of_one_participant_has_the_golden_ids);
	tcase_add_test(tc, a_fragment_without_an_id_gets_the_golden_one);
	suite_add_tcase(s, tc);
	return s;
}
