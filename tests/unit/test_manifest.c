/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "core/json.h"
#include "core/manifest.h"
#include "core/util.h"
#include "fault.h"
#include "suite.h"

#define BASE "weights/default/demo/main/7"
#define PAYLOAD BASE "/payload/00000000000000000000000000000001/"
#define MANAGED                                                                \
	"weight:"                                                              \
	"d959bc5c5b651824ad866863c325ebbf49a98a9482863ced2c1f7caac4039d73"

static struct manifest_top top_of(const char *group_id)
{
	return (struct manifest_top){
		.name_space = "default",
		.resource_id = "demo",
		.revision = "main",
		.group_id = group_id,
		.manifest_key = BASE "/manifest",
		.created_at = "2026-01-01T00:00:00Z",
		.weight_generation = 7,
	};
}

static struct manifest_id id_of(const char *text)
{
	return (struct manifest_id){ .data = text, .len = strlen(text) };
}

static const uint64_t zero[3];
static const uint64_t shape44[] = { 4, 4 };
static const uint64_t shape24[] = { 2, 4 };
static const uint64_t place20[] = { 2, 0 };
static const uint64_t shape4[] = { 4 };
static const uint32_t dim0[] = { 0 };
static const struct manifest_axis matrix_axes[] = {
	{ .semantics = MANIFEST_REPLICATED, .kind = MANIFEST_DP },
	{ .semantics = MANIFEST_SPLIT, .kind = MANIFEST_TP, .dim = 0 },
};
static const struct manifest_axis vector_axes[] = {
	{ .semantics = MANIFEST_REPLICATED, .kind = MANIFEST_DP },
	{ .semantics = MANIFEST_REPLICATED, .kind = MANIFEST_TP },
};

static struct manifest_tensor matrix(void)
{
	return (struct manifest_tensor){
		.id = id_of("layers.0.w"),
		.global_shape = shape44,
		.rank = 2,
		.dtype = "float16",
		.itemsize = 2,
		.layer_id = 0,
		.expert_id = MANIFEST_NO_ID,
		.layout_fingerprint = "demo:v1",
		.shard_dims = dim0,
		.shard_dim_count = 1,
		.axes = matrix_axes,
		.axis_count = 2,
	};
}

static struct manifest_tensor vector(void)
{
	return (struct manifest_tensor){
		.id = id_of("norm"),
		.global_shape = shape4,
		.rank = 1,
		.dtype = "float16",
		.itemsize = 2,
		.layer_id = MANIFEST_NO_ID,
		.expert_id = MANIFEST_NO_ID,
		.layout_fingerprint = "demo:v1",
		.axes = vector_axes,
		.axis_count = 2,
	};
}

static const struct manifest_fragment fragments[] = {
	{
		.fragment_id = "09bf561dd285601ea35dace2",
		.tensor = 0,
		.global_offset = zero,
		.local_shape = shape24,
		.object_key = PAYLOAD "09bf561dd285601ea35dace2",
		.nbytes = 16,
	},
	{
		.fragment_id = "ad739dc3df5ebc17dd1954c5",
		.tensor = 0,
		.global_offset = place20,
		.local_shape = shape24,
		.object_key = PAYLOAD "ad739dc3df5ebc17dd1954c5",
		.nbytes = 16,
	},
	{
		.fragment_id = "1b98455b86b61477f168b245",
		.tensor = 1,
		.global_offset = zero,
		.local_shape = shape4,
		.object_key = PAYLOAD "1b98455b86b61477f168b245",
		.nbytes = 8,
	},
};

static int demo(const char *group_id, struct manifest **ret, struct buf *why)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	struct manifest_top top = top_of(group_id);
	struct manifest_tensor w = matrix();
	struct manifest_tensor norm = vector();
	int r;

	if ((r = manifest_new(&top, &m, why)) < 0 ||
	    (r = manifest_add_tensor(m, &w, why)) < 0 ||
	    (r = manifest_add_tensor(m, &norm, why)) < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(fragments); i++) {
		r = manifest_add_fragment(m, &fragments[i], why);
		if (r < 0)
			return r;
	}
	r = manifest_finish(m, why);
	if (r < 0)
		return r;
	*ret = take_ptr(m);
	return 0;
}

/* clang-format off */
static const struct {
	const char *group_id;
	const char *digest;
} golden[] = {
	{ BASE,
	  "305282370b166e15c76f46f30b26016a688a22766b1588dd04e2b9b9eadcc3ee" },
	{ MANAGED,
	  "38859234e344886884a15870dbd72e7d0452cf45237c43dc6c8d0ccc06881341" },
};
/* clang-format on */

START_TEST(the_digest_is_the_one_that_others_compute)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(manifest_unref_cleanup) struct manifest *again = NULL;
	cleanup(buf_release) struct buf text = BUF_INIT;
	cleanup(buf_release) struct buf second = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	char hex[DIGEST_HEX_LEN + 1];
	struct digest d;

	ck_assert_msg(demo(golden[_i].group_id, &m, &why) == 0, "%s", why.data);
	ck_assert_int_eq(manifest_write(m, &text), 0);
	ck_assert_int_eq(manifest_digest(text.data, text.len, &d), 0);
	digest_to_hex(&d, hex);
	ck_assert_str_eq(hex, golden[_i].digest);

	ck_assert_msg(manifest_parse(text.data, text.len, &again, &why) == 0,
		      "%s", why.data);
	ck_assert_int_eq(manifest_write(again, &second), 0);
	ck_assert_str_eq(text.data, second.data);
}
END_TEST

/* Payload summary of the example: 3 objects, 40 bytes. */
START_TEST(the_example_has_three_objects_of_forty_bytes)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	uint64_t count = 0, bytes = 0;

	ck_assert_int_eq(demo(MANAGED, &m, NULL), 0);
	for (size_t i = 0; i < m->fragment_count; i++) {
		const struct manifest_fragment *f = &m->fragments[i];
		bool is_new = true;

		for (size_t k = 0; k < i; k++)
			is_new &= strcmp(f->object_key,
					 m->fragments[k].object_key) != 0;
		count += is_new;
		bytes += f->nbytes;
	}
	ck_assert_uint_eq(count, 3);
	ck_assert_uint_eq(bytes, 40);
}
END_TEST

START_TEST(everything_can_be_found_again)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	const struct manifest_fragment *f;
	const struct manifest_tensor *t;

	ck_assert_int_eq(demo(MANAGED, &m, NULL), 0);
	t = manifest_tensor_find(m, "norm", 4);
	ck_assert_ptr_eq(t, &m->tensors[1]);
	ck_assert_str_eq(t->dtype, "float16");
	ck_assert_int_eq(t->layer_id, MANIFEST_NO_ID);
	ck_assert_ptr_null(manifest_tensor_find(m, "nor", 3));
	ck_assert_ptr_null(manifest_tensor_find(m, "norm", 5));
	ck_assert_uint_eq(manifest_tensor_fragment_count(m, 0), 2);
	ck_assert_uint_eq(manifest_tensor_fragment_count(m, 1), 1);
	f = manifest_tensor_fragment(m, 0, 1);
	ck_assert_str_eq(f->fragment_id, "ad739dc3df5ebc17dd1954c5");
	ck_assert_uint_eq(f->global_offset[0], 2);
	ck_assert_ptr_null(manifest_object_of(m, f));
	ck_assert_ptr_null(manifest_object_find(m, f->object_key));
	ck_assert_ptr_null(manifest_file_find(m, "a"));
}
END_TEST

START_TEST(a_reference_keeps_it_alive)
{
	cleanup(manifest_unref_cleanup) struct manifest *second = NULL;
	struct manifest *first = NULL;

	ck_assert_int_eq(demo(BASE, &first, NULL), 0);
	second = manifest_ref(first);
	manifest_unref(first);
	ck_assert_str_eq(second->top.revision, "main");
}
END_TEST

/*
 * Texts of a manifest are put together from here: T tensors, F fragments, and
 * whatever else goes in front.
 */
#define TEXT(more, f, t)                                                       \
	"{\"created_at\":\"c\"," more "\"fragments\":[" f "],"                 \
	"\"group_id\":\"g\",\"manifest_key\":\"g/manifest\","                  \
	"\"namespace\":\"n\",\"resource_id\":\"r\","                           \
	"\"resource_kind\":\"model_weight\",\"revision\":\"v\","               \
	"\"tensors\":[" t "],\"weight_generation\":0}"
#define TEN(id, shape, layer, expert, axes, dims)                              \
	"{\"dtype\":\"d\",\"expert_id\":" expert ",\"global_shape\":" shape    \
	",\"itemsize\":2,\"layer_id\":" layer                                  \
	",\"layout_fingerprint\":\"l\",\"parallel_axes\":" axes                \
	",\"shard_dims\":" dims ",\"tensor_id\":\"" id "\"}"
#define T_(id, shape) TEN(id, shape, "null", "null", "[]", "[]")
#define FRA(alias, fid, at, shape, bytes, key, pos, id)                        \
	"{\"aliases\":" alias ",\"fragment_id\":\"" fid                        \
	"\",\"global_offset\":" at ",\"local_shape\":" shape                   \
	",\"nbytes\":" bytes ",\"object_key\":\"" key                          \
	"\",\"object_offset\":" pos ",\"tensor_id\":\"" id "\"}"
#define F_(fid, at, shape, bytes, id)                                          \
	FRA("[]", fid, at, shape, bytes, "g/payload/" fid, "0", id)
#define FILE_(kind, mode, mtime, object, path, size, target)                   \
	"{\"kind\":\"" kind "\",\"mode\":" mode ",\"mtime\":\"" mtime          \
	"\",\"object\":" object ",\"path\":\"" path "\",\"size\":" size        \
	",\"target\":" target "}"
#define DIR_(path)                                                             \
	FILE_("directory", "493", "0.000000000", "null", path, "0", "null")
#define REG_(path)                                                             \
	FILE_("regular", "420", "1.000000001", "\"g/payload/o\"", path, "0",   \
	      "null")
#define EMPTY_SHA                                                              \
	"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define ZERO_SHA                                                               \
	"0000000000000000000000000000000000000000000000000000000000000000"
/* SHA-256 of 32 zero bytes */
#define ROOT_SHA                                                               \
	"66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925"
#define OBJ(chunk, chunks, sha, key, size)                                     \
	"{\"chunk_size\":" chunk ",\"chunks\":[" chunks "],\"digest\":\"" sha  \
	"\",\"key\":\"" key "\",\"size\":" size "}"
#define EMPTY_OBJ OBJ("1", "", EMPTY_SHA, "g/payload/o", "0")
#define ONE_OBJ OBJ("8", "\"" ZERO_SHA "\"", ROOT_SHA, "g/payload/o", "8")
#define FILES(list) "\"files\":[" list "],"
#define SPLIT_TP(dim)                                                          \
	"{\"dim\":" dim ",\"kind\":\"tp\",\"semantics\":\"split\"}"

#define AB "[\"a\",\"b\"]"
#define ABC "[\"a\",\"b\",\"c\"]"
#define FA(alias, fid, key, pos, id)                                           \
	FRA(alias, fid, "[0]", "[4]", "8", "g/payload/" key, pos, id)

/* A strict text has files before group_id, and objects after namespace. */
#define STORE(files, objects, f, t)                                            \
	"{\"created_at\":\"c\",\"files\":[" files "],\"fragments\":[" f "],"   \
	"\"group_id\":\"g\",\"manifest_key\":\"g/manifest\","                  \
	"\"namespace\":\"n\",\"objects\":[" objects "],"                       \
	"\"resource_id\":\"r\",\"resource_kind\":\"model_weight\","            \
	"\"revision\":\"v\",\"tensors\":[" t "],\"weight_generation\":0}"

/* clang-format off */
static const struct {
	const char *what;
	const char *text;
} accepted[] = {
	{ "nothing in it", TEXT("", "", "") },
	{ "empty optional lists", STORE("", "", "", "") },
	{ "rank 0", TEXT("", F_("f", "[]", "[]", "2", "t"), T_("t", "[]")) },
	{ "zero extent", TEXT("", F_("f", "[0,0]", "[0,4]", "0", "t"),
			      T_("t", "[0,4]")) },
	{ "zero extent in two parts",
	  TEXT("", F_("f", "[0,0]", "[0,2]", "0", "t") ","
	       F_("g", "[0,2]", "[0,2]", "0", "t"), T_("t", "[0,4]")) },
	{ "a huge shape with a zero extent",
	  TEXT("", F_("f", "[0,0,0]",
		      "[18446744073709551615,18446744073709551615,0]", "0",
		      "t"),
	       T_("t", "[18446744073709551615,18446744073709551615,0]")) },
	{ "an empty tensor id", TEXT("", F_("f", "[0]", "[4]", "8", ""),
				     T_("", "[4]")) },
	{ "strange tensor ids",
	  TEXT("", F_("f", "[0]", "[4]", "8", "a\\u0000b") ","
	       F_("g", "[0]", "[4]", "8", "\xc3\xa9\x7f/%\\n"),
	       T_("a\\u0000b", "[4]") "," T_("\xc3\xa9\x7f/%\\n", "[4]")) },
	{ "lists that are not sorted",
	  TEXT("", F_("f", "[2]", "[2]", "4", "z") ","
	       F_("g", "[0]", "[4]", "8", "a") ","
	       F_("h", "[0]", "[2]", "4", "z"),
	       T_("z", "[4]") "," T_("a", "[4]")) },
	{ "four quarters", TEXT("", F_("f", "[0,0]", "[2,2]", "8", "t") ","
				F_("g", "[0,2]", "[2,2]", "8", "t") ","
				F_("h", "[2,0]", "[2,2]", "8", "t") ","
				F_("i", "[2,2]", "[2,2]", "8", "t"),
				T_("t", "[4,4]")) },
	{ "expert and layer, an ownership axis",
	  TEXT("", F_("f", "[0]", "[4]", "8", "t"),
	       TEN("t", "[4]", "3", "9223372036854775807",
		   "[{\"kind\":\"ep\",\"semantics\":\"ownership\"},"
		   SPLIT_TP("0") "]", "[0]")) },
	{ "an alias group",
	  TEXT("", FA(AB, "f", "f", "0", "a") "," FA(AB, "g", "g", "0", "b"),
	       T_("a", "[4]") "," T_("b", "[4]")) },
	{ "an alias group on one range",
	  TEXT("", FA(ABC, "f", "o", "4", "a") "," FA(ABC, "g", "o", "4", "b")
	       "," FA(ABC, "h", "o", "4", "c"),
	       T_("a", "[4]") "," T_("b", "[4]") "," T_("c", "[4]")) },
	{ "ranges side by side",
	  TEXT("", FA("[]", "f", "o", "8", "a") "," FA("[]", "g", "o", "0", "b")
	       "," FRA("[]", "h", "[0]", "[0]", "0", "g/payload/o", "3", "c"),
	       T_("a", "[4]") "," T_("b", "[4]") "," T_("c", "[0]")) },
	{ "files of each kind and a hard link",
	  STORE(DIR_("d") "," REG_("d/x") "," REG_("d/y") ","
		FILE_("symlink", "511", "-1.999999999", "null", "l", "3",
		      "\"d/x\""),
		EMPTY_OBJ, "", "") },
	{ "a fragment in an object",
	  STORE("", ONE_OBJ, FA("[]", "f", "o", "0", "a"), T_("a", "[4]")) },
	{ "times at the ends",
	  STORE(FILE_("directory", "4095", "-9223372036854775808.000000000",
		      "null", "a", "0", "null") ","
		FILE_("directory", "0", "9223372036854775807.999999999",
		      "null", "b", "0", "null"), "", "", "") },
};
/* clang-format on */

START_TEST(what_is_legal_is_read_and_written_as_it_was)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(buf_release) struct buf out = BUF_INIT;
	cleanup(buf_release) struct buf why = BUF_INIT;
	const char *text = accepted[_i].text;

	ck_assert_msg(manifest_parse(text, strlen(text), &m, &why) == 0,
		      "%s: %s", accepted[_i].what, why.data);
	ck_assert_int_eq(manifest_write(m, &out), 0);
	ck_assert_str_eq(out.data, text);
}
END_TEST

#define ONE(t) TEXT("", F_("f", "[0]", "[4]", "8", "t"), t)
#define AXES(axes, dims) ONE(TEN("t", "[4]", "null", "null", axes, dims))
#define AXES44(axes, dims)                                                     \
	TEXT("", F_("f", "[0,0]", "[4,4]", "32", "t"),                         \
	     TEN("t", "[4,4]", "null", "null", axes, dims))
#define REP(kind) "{\"kind\":\"" kind "\",\"semantics\":\"replicated\"}"
#define FRAG(at, shape, bytes)                                                 \
	TEXT("", F_("f", at, shape, bytes, "t"), T_("t", "[4]"))
#define A_AND_B T_("a", "[4]") "," T_("b", "[4]")
#define ONE_FILE(f) STORE(f, EMPTY_OBJ, "", "")

/* clang-format off */
static const struct {
	const char *what;
	const char *text;
	const char *said;
} refused[] = {
	{ "no JSON", "{", "JSON" },
	{ "not an object", "[]", "not an object" },
	{ "a key that is not there", "{\"created_at\":\"c\"}", "missing" },
	{ "an unknown key", TEXT("\"lease_id\":1,", "", ""), "lease_id" },
	{ "a key twice", TEXT("\"fragments\":[],", "", ""), "duplicate" },
	{ "a list where none belongs", TEXT("\"revision\":[],", "", ""),
	  "list" },
	{ "no list", TEXT("\"files\":{},", "", ""), "list" },
	{ "another kind of resource",
	  "{\"resource_kind\":\"dataset\"}", "resource_kind" },
	{ "a generation that is a float", "{\"weight_generation\":1.0}",
	  "64-bit" },
	{ "a generation that is a bool", "{\"weight_generation\":true}",
	  "64-bit" },
	{ "an empty namespace", "{\"namespace\":\"\"}", "empty" },
	{ "a NUL byte in a text", "{\"namespace\":\"a\\u0000\"}", "NUL" },
	{ "an element that is no object", TEXT("", "1", ""), "element 0" },
	{ "an element with an unknown key", TEXT("", "{\"address\":1}", ""),
	  "address" },
	{ "an element without a key", TEXT("", "", "{\"dtype\":\"d\"}"),
	  "missing" },

	{ "itemsize 0", "{\"tensors\":[{\"dtype\":\"d\",\"expert_id\":null,"
	  "\"global_shape\":[],\"itemsize\":0,\"layer_id\":null,"
	  "\"layout_fingerprint\":\"l\",\"parallel_axes\":[],"
	  "\"shard_dims\":[],\"tensor_id\":\"t\"}]}", "itemsize" },
	{ "an empty dtype", "{\"tensors\":[{\"dtype\":\"\",\"expert_id\":null,"
	  "\"global_shape\":[],\"itemsize\":1,\"layer_id\":null,"
	  "\"layout_fingerprint\":\"l\",\"parallel_axes\":[],"
	  "\"shard_dims\":[],\"tensor_id\":\"t\"}]}", "dtype" },
	{ "a shape that is an object", ONE(T_("t", "{}")), "array" },
	{ "a negative extent", ONE(T_("t", "[-4]")), "64-bit" },
	{ "a size beyond 64 bits",
	  TEXT("", "", T_("t", "[9223372036854775808]")), "64 bits" },
	{ "a layer that is negative",
	  ONE(TEN("t", "[4]", "-1", "null", "[]", "[]")), "layer_id" },
	{ "a layer beyond 63 bits",
	  ONE(TEN("t", "[4]", "9223372036854775808", "null", "[]", "[]")),
	  "layer_id" },
	{ "a tensor twice", ONE(T_("t", "[4]") "," T_("t", "[4]")), "twice" },

	{ "an axis of no known kind", AXES("[" REP("xp") "]", "[]"), "words" },
	{ "an axis of no known semantics",
	  AXES("[{\"kind\":\"tp\",\"semantics\":\"cut\"}]", "[]"), "words" },
	{ "axes that are not in order",
	  AXES("[" REP("tp") "," REP("dp") "]", "[]"), "order" },
	{ "an axis twice", AXES("[" REP("tp") "," REP("tp") "]", "[]"),
	  "order" },
	{ "a dim on an axis that is not split",
	  AXES("[{\"dim\":0,\"kind\":\"tp\",\"semantics\":\"replicated\"}]",
	       "[]"), "dim" },
	{ "a split axis without a dim",
	  AXES("[{\"kind\":\"tp\",\"semantics\":\"split\"}]", "[0]"), "dim" },
	{ "a dim beyond the shape", AXES("[" SPLIT_TP("1") "]", "[1]"),
	  "dim" },
	{ "dp that splits",
	  AXES("[{\"dim\":0,\"kind\":\"dp\",\"semantics\":\"split\"}]",
	       "[0]"), "dp" },
	{ "ep that splits dim 1",
	  AXES44("[{\"dim\":1,\"kind\":\"ep\",\"semantics\":\"split\"}]",
		 "[1]"), "dim 0" },
	{ "two axes that split one dim",
	  AXES("[" SPLIT_TP("0") ",{\"dim\":0,\"kind\":\"cp\","
	       "\"semantics\":\"split\"}]", "[0]"), "same dim" },
	{ "an expert that ep splits",
	  ONE(TEN("t", "[4]", "null", "0", "[{\"dim\":0,\"kind\":\"ep\","
		  "\"semantics\":\"split\"}]", "[0]")), "expert_id" },
	{ "shard_dims without a split axis", AXES("[]", "[0]"), "shard_dims" },
	{ "a split axis without shard_dims", AXES("[" SPLIT_TP("0") "]", "[]"),
	  "shard_dims" },
	{ "shard_dims twice", AXES("[" SPLIT_TP("0") "]", "[0,0]"),
	  "shard_dims" },
	{ "a shard dim beyond 32 bits",
	  AXES("[" SPLIT_TP("0") "]", "[4294967296]"), "32-bit" },

	{ "a tensor without fragments", TEXT("", "", T_("t", "[4]")),
	  "no fragment" },
	{ "a fragment of no tensor",
	  TEXT("", F_("f", "[0]", "[4]", "8", "x"), T_("t", "[4]")),
	  "not in tensors" },
	{ "offset and shape of different rank", FRAG("[0,0]", "[4]", "8"),
	  "dimensions" },
	{ "another rank than the tensor", FRAG("[0,0]", "[4,1]", "8"),
	  "dimensions" },
	{ "a box beyond the shape", FRAG("[1]", "[4]", "8"), "beyond" },
	{ "an end beyond 64 bits", FRAG("[18446744073709551615]", "[4]", "8"),
	  "beyond" },
	{ "nbytes that is not the shape's", FRAG("[0]", "[4]", "4"),
	  "nbytes" },
	{ "nbytes that is a float", FRAG("[0]", "[4]", "8.0"), "64-bit" },
	{ "a gap", FRAG("[0]", "[3]", "6"), "cover" },
	{ "an empty fragment id", TEXT("", F_("", "[0]", "[4]", "8", "t"),
				       T_("t", "[4]")), "fragment_id" },
	{ "a fragment id twice",
	  TEXT("", F_("f", "[0]", "[4]", "8", "a") ","
	       FRA("[]", "f", "[0]", "[4]", "8", "g/payload/g", "0", "b"),
	       A_AND_B), "twice" },
	{ "the same box twice",
	  TEXT("", F_("f", "[0]", "[0]", "0", "t") ","
	       F_("g", "[0]", "[0]", "0", "t"), T_("t", "[0]")), "same" },
	{ "boxes that overlap",
	  TEXT("", F_("f", "[0]", "[3]", "6", "t") ","
	       F_("g", "[2]", "[2]", "4", "t"), T_("t", "[4]")), "overlap" },
	{ "an overlap that hides a gap",
	  TEXT("", F_("f", "[0]", "[2]", "4", "t") ","
	       F_("g", "[1]", "[2]", "4", "t"), T_("t", "[4]")), "overlap" },
	{ "an overlap in two dimensions",
	  TEXT("", F_("f", "[0,0]", "[2,2]", "8", "t") ","
	       F_("g", "[1,1]", "[2,2]", "8", "t") ","
	       F_("h", "[3,0]", "[1,4]", "8", "t") ","
	       F_("i", "[0,3]", "[2,1]", "4", "t") ","
	       F_("j", "[2,3]", "[1,1]", "2", "t") ","
	       F_("k", "[2,0]", "[1,1]", "2", "t"), T_("t", "[4,4]")),
	  "overlap" },
	{ "ranges that overlap",
	  TEXT("", FA("[]", "f", "o", "0", "a") "," FA("[]", "g", "o", "7", "b"),
	       A_AND_B), "overlaps" },
	{ "one range twice",
	  TEXT("", FA("[]", "f", "o", "0", "a") "," FA("[]", "g", "o", "0", "b"),
	       A_AND_B), "overlaps" },
	{ "an alias group on ranges that overlap in part",
	  TEXT("", FA(AB, "f", "o", "0", "a") "," FA(AB, "g", "o", "4", "b"),
	       A_AND_B), "overlaps" },
	{ "a range beyond 64 bits",
	  TEXT("", FA("[]", "f", "o", "18446744073709551615", "a"),
	       T_("a", "[4]")), "64 bits" },
	{ "a key of another group",
	  TEXT("", FRA("[]", "f", "[0]", "[4]", "8", "h/payload/f", "0", "t"),
	       T_("t", "[4]")), "payload" },
	{ "a key beside the payload",
	  TEXT("", FRA("[]", "f", "[0]", "[4]", "8", "g/other/f", "0", "t"),
	       T_("t", "[4]")), "payload" },

	{ "an alias alone",
	  TEXT("", FA("[\"a\"]", "f", "f", "0", "a"), T_("a", "[4]")),
	  "two members" },
	{ "aliases that are not sorted",
	  TEXT("", FA("[\"b\",\"a\"]", "f", "f", "0", "a"), A_AND_B),
	  "sorted" },
	{ "an alias twice",
	  TEXT("", FA("[\"a\",\"a\"]", "f", "f", "0", "a"), T_("a", "[4]")),
	  "sorted" },
	{ "an alias group without the tensor itself",
	  TEXT("", FA("[\"b\",\"c\"]", "f", "f", "0", "a"), T_("a", "[4]")),
	  "not in its alias group" },
	{ "an alias of no tensor",
	  TEXT("", FA(AB, "f", "f", "0", "a"), T_("a", "[4]")),
	  "does not exist" },
	{ "an alias group that one member does not declare",
	  TEXT("", FA(AB, "f", "f", "0", "a") "," FA("[]", "g", "g", "0", "b"),
	       A_AND_B), "complete" },
	{ "an alias group that the first member does not declare",
	  TEXT("", FA("[]", "f", "f", "0", "a") "," FA(AB, "g", "g", "0", "b"),
	       A_AND_B), "complete" },
	{ "two alias groups in one",
	  TEXT("", FA(AB, "f", "f", "0", "a") "," FA("[\"a\",\"b\",\"c\"]", "g",
	       "g", "0", "b") "," FA("[\"b\",\"c\"]", "h", "h", "0", "c"),
	       A_AND_B "," T_("c", "[4]")), "complete" },
	{ "an alias in other pieces",
	  TEXT("", FA(AB, "f", "f", "0", "a") ","
	       FRA(AB, "g", "[0]", "[2]", "4", "g/payload/g", "0", "b") ","
	       FRA(AB, "h", "[2]", "[2]", "4", "g/payload/h", "0", "b"),
	       A_AND_B), "complete" },
	{ "an alias of another layer",
	  TEXT("", FA(AB, "f", "f", "0", "a") "," FA(AB, "g", "g", "0", "b"),
	       T_("a", "[4]") "," TEN("b", "[4]", "1", "null", "[]", "[]")),
	  "differ" },

	{ "an absolute path", ONE_FILE(DIR_("/a")), "path" },
	{ "an empty path", ONE_FILE(DIR_("")), "path" },
	{ "a path that ends in a slash", ONE_FILE(DIR_("a/")), "path" },
	{ "dot-dot", ONE_FILE(DIR_("a/../b")), "path" },
	{ "a dot", ONE_FILE(DIR_(".")), "path" },
	{ "a file twice", ONE_FILE(DIR_("a") "," DIR_("a")), "twice" },
	{ "a file below a file", ONE_FILE(REG_("a") "," DIR_("a/b/c")),
	  "below" },
	{ "a kind that is not known",
	  ONE_FILE(FILE_("fifo", "0", "0.000000000", "null", "a", "0",
			 "null")), "words" },
	{ "a mode with a type",
	  ONE_FILE(FILE_("directory", "4096", "0.000000000", "null", "a", "0",
			 "null")), "mode" },
	{ "a directory with a size",
	  ONE_FILE(FILE_("directory", "0", "0.000000000", "null", "a", "1",
			 "null")), "size" },
	{ "a directory with an object",
	  ONE_FILE(FILE_("directory", "0", "0.000000000", "\"g/payload/o\"",
			 "a", "0", "null")), "object" },
	{ "a regular file without an object",
	  ONE_FILE(FILE_("regular", "0", "0.000000000", "null", "a", "0",
			 "null")), "object" },
	{ "a regular file with an object that is not there",
	  ONE_FILE(FILE_("regular", "0", "0.000000000", "\"g/payload/x\"",
			 "a", "0", "null")), "not in objects" },
	{ "a regular file of another size than its object",
	  ONE_FILE(FILE_("regular", "0", "0.000000000", "\"g/payload/o\"",
			 "a", "1", "null")), "size" },
	{ "a symlink without a target",
	  ONE_FILE(FILE_("symlink", "0", "0.000000000", "null", "a", "0",
			 "null")), "target" },
	{ "a symlink with a wrong size",
	  ONE_FILE(FILE_("symlink", "0", "0.000000000", "null", "a", "1",
			 "\"xy\"")), "size" },
	{ "a time without nanoseconds",
	  ONE_FILE(FILE_("directory", "0", "0", "null", "a", "0", "null")),
	  "seconds" },
	{ "a time with a leading zero",
	  ONE_FILE(FILE_("directory", "0", "01.000000000", "null", "a", "0",
			 "null")), "seconds" },
	{ "a time of minus zero",
	  ONE_FILE(FILE_("directory", "0", "-0.500000000", "null", "a", "0",
			 "null")), "seconds" },
	{ "a time beyond 64 bits",
	  ONE_FILE(FILE_("directory", "0", "9223372036854775808.000000000",
			 "null", "a", "0", "null")), "seconds" },
	{ "a time with signs inside",
	  ONE_FILE(FILE_("directory", "0", "1.00000000-", "null", "a", "0",
			 "null")), "seconds" },

	{ "an object twice", STORE("", EMPTY_OBJ "," EMPTY_OBJ, "", ""),
	  "twice" },
	{ "an object of another group",
	  STORE("", OBJ("1", "", EMPTY_SHA, "h/payload/o", "0"), "", ""),
	  "payload" },
	{ "chunk_size 0",
	  STORE("", OBJ("0", "", EMPTY_SHA, "g/payload/o", "0"), "", ""),
	  "chunk_size" },
	{ "too few chunks",
	  STORE("", OBJ("1", "", EMPTY_SHA, "g/payload/o", "1"), "", ""),
	  "chunks" },
	{ "a digest that is not that of the chunks",
	  STORE("", OBJ("8", "\"" ZERO_SHA "\"", EMPTY_SHA, "g/payload/o",
			"8"), "", ""), "digest" },
	{ "an upper-case digest",
	  STORE("", OBJ("8", "\"E3B0c44298fc1c149afbf4c8996fb92427ae41e4649b934"
			"ca495991b7852b855\"", ROOT_SHA, "g/payload/o", "8"),
		"", ""), "hex" },
	{ "a fragment without its object",
	  STORE("", EMPTY_OBJ, FA("[]", "f", "x", "0", "a"), T_("a", "[4]")),
	  "not in objects" },
	{ "a fragment beyond its object",
	  STORE("", ONE_OBJ, FA("[]", "f", "o", "1", "a"), T_("a", "[4]")),
	  "beyond" },
};
/* clang-format on */

START_TEST(what_breaks_a_rule_is_refused_with_a_reason)
{
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct manifest *untouched = NULL;
	const char *text = refused[_i].text;
	int r = manifest_parse(text, strlen(text), &untouched, &why);

	ck_assert_msg(r == -EBADMSG, "%s: got %d", refused[_i].what, r);
	ck_assert_ptr_null(untouched);
	ck_assert_msg(strstr(why.data, refused[_i].said), "%s: said %s",
		      refused[_i].what, why.data);
	ck_assert_ptr_null(strchr(why.data, '\n'));
}
END_TEST

START_TEST(a_reason_names_entry_and_key)
{
	static const char text[] =
		TEXT("", "", T_("t", "[4]") "," T_("u", "4"));
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct manifest *m = NULL;

	ck_assert_int_eq(manifest_parse(text, strlen(text), &m, &why),
			 -EBADMSG);
	ck_assert_str_eq(why.data, "not an array (key 'global_shape'), in "
				   "element 1 of 'tensors'");
}
END_TEST

/* clang-format off */
static const struct {
	const char *group_id;
	const char *manifest_key;
	int r;
} groups[] = {
	{ "a/b",   "a/b/manifest", 0 },
	{ MANAGED, "a/b/manifest", 0 },
	{ "a/c",   "a/b/manifest", -EBADMSG },
	{ "a/b/",  "a/b/manifest", -EBADMSG },
	{ "a",     "a/b/manifest", -EBADMSG },
	{ "a/b",   "a/b/other",    -EBADMSG },
	{ "",      "/manifest",    -EBADMSG },
	{ MANAGED, "/manifest",    -EBADMSG },
	{ MANAGED "0", "a/manifest", -EBADMSG },
	{ "weight:0",  "a/manifest", -EBADMSG },
};
/* clang-format on */

START_TEST(keys_are_bound_to_the_group)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct manifest_top top = top_of(groups[_i].group_id);

	top.manifest_key = groups[_i].manifest_key;
	ck_assert_int_eq(manifest_new(&top, &m, &why), groups[_i].r);
	ck_assert_int_eq(m != NULL, groups[_i].r == 0);
	ck_assert_int_eq(why.len > 0, groups[_i].r != 0);
}
END_TEST

START_TEST(texts_have_a_limit_and_are_utf8)
{
	static char text[MANIFEST_STRING_MAX + 2];
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	struct manifest_top top = top_of(BASE);
	struct manifest *none = NULL;

	memset(text, 'x', MANIFEST_STRING_MAX);
	top.revision = text;
	ck_assert_int_eq(manifest_new(&top, &m, NULL), 0);
	text[MANIFEST_STRING_MAX] = 'x';
	ck_assert_int_eq(manifest_new(&top, &none, NULL), -EFBIG);
	top.revision = "\xff";
	ck_assert_int_eq(manifest_new(&top, &none, NULL), -EBADMSG);
}
END_TEST

START_TEST(paths_have_limits)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	struct manifest_top top = top_of(BASE);
	char path[MANIFEST_PATH_MAX + 2];
	struct manifest_file f = {
		.path = path,
		.kind = MANIFEST_DIRECTORY,
		.object = MANIFEST_NO_OBJECT,
	};

	ck_assert_int_eq(manifest_new(&top, &m, NULL), 0);
	memset(path, 'x', sizeof(path));
	for (size_t i = MANIFEST_NAME_MAX; i < sizeof(path);
	     i += MANIFEST_NAME_MAX + 1)
		path[i] = '/';
	path[MANIFEST_PATH_MAX] = '\0';
	ck_assert_int_eq(manifest_add_file(m, &f, NULL), 0);
	path[MANIFEST_NAME_MAX] = '\0';
	ck_assert_int_eq(manifest_add_file(m, &f, NULL), 0);
	path[MANIFEST_NAME_MAX] = 'x';
	path[MANIFEST_NAME_MAX + 1] = '\0';
	ck_assert_int_eq(manifest_add_file(m, &f, NULL), -EBADMSG);
	memset(path, 'x', sizeof(path));
	for (size_t i = 1; i < sizeof(path); i += 2)
		path[i] = '/';
	path[MANIFEST_PATH_MAX + 1] = '\0';
	ck_assert_int_eq(manifest_add_file(m, &f, NULL), -EBADMSG);
	f.path = "\xff";
	ck_assert_int_eq(manifest_add_file(m, &f, NULL), -EBADMSG);
}
END_TEST

/* A tensor of rank 1 cut into count pieces of one element. */
static int pieces(size_t count, struct manifest **ret, struct buf *why)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	struct manifest_top top = top_of(BASE);
	struct manifest_tensor t = vector();
	uint64_t extent = count, one = 1, at = 0;
	char id[32];
	int r;

	t.global_shape = &extent;
	if ((r = manifest_new(&top, &m, why)) < 0 ||
	    (r = manifest_add_tensor(m, &t, why)) < 0)
		return r;
	for (; at < count; at++) {
		struct manifest_fragment f = {
			.fragment_id = id,
			.global_offset = &at,
			.local_shape = &one,
			.object_key = PAYLOAD "o",
			.object_offset = 2 * at,
			.nbytes = 2,
		};

		(void)snprintf(id, sizeof(id), "%zu", (size_t)at);
		r = manifest_add_fragment(m, &f, why);
		if (r < 0)
			return r;
	}
	r = manifest_finish(m, why);
	if (r == 0)
		*ret = take_ptr(m);
	return r;
}

START_TEST(many_fragments_of_one_tensor_are_checked_quickly)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;

	ck_assert_int_eq(pieces(50000, &m, NULL), 0);
	ck_assert_uint_eq(manifest_tensor_fragment_count(m, 0), 50000);
	ck_assert_str_eq(manifest_tensor_fragment(m, 0, 77)->fragment_id, "77");
}
END_TEST

/*
 * n * n boxes that all start near 0 in both dimensions, so that no order
 * separates them: box i covers one row or column of a frame.
 */
START_TEST(fragments_that_would_take_too_long_are_refused)
{
	enum { N = 3000 };
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(buf_release) struct buf why = BUF_INIT;
	struct manifest_top top = top_of(BASE);
	struct manifest_tensor t = matrix();
	uint64_t shape[2] = { N, N }, at[2], box[2];
	uint64_t pos = 0;
	char id[32];

	t.global_shape = shape;
	ck_assert_int_eq(manifest_new(&top, &m, NULL), 0);
	ck_assert_int_eq(manifest_add_tensor(m, &t, NULL), 0);
	/* From the corner on: a row to the right, then a column down. */
	for (uint64_t i = 0; i < 2 * N - 1; i++) {
		uint64_t k = i / 2;
		struct manifest_fragment f = {
			.fragment_id = id,
			.global_offset = at,
			.local_shape = box,
			.object_key = PAYLOAD "o",
			.object_offset = pos,
		};

		at[0] = k + (i & 1);
		at[1] = k;
		box[0] = i & 1 ? N - k - 1 : 1;
		box[1] = i & 1 ? 1 : N - k;
		f.nbytes = 2 * box[0] * box[1];
		pos += f.nbytes;
		(void)snprintf(id, sizeof(id), "%zu", (size_t)i);
		ck_assert_int_eq(manifest_add_fragment(m, &f, NULL), 0);
	}
	ck_assert_int_eq(manifest_finish(m, &why), -EFBIG);
	ck_assert_ptr_nonnull(strstr(why.data, "too many"));
}
END_TEST

START_TEST(a_fragment_needs_its_tensor_first)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	struct manifest_top top = top_of(BASE);

	ck_assert_int_eq(manifest_new(&top, &m, NULL), 0);
	ck_assert_int_eq(manifest_add_fragment(m, &fragments[0], NULL),
			 -EBADMSG);
}
END_TEST

START_TEST(limits_of_one_entry_hold)
{
	static uint64_t dims[MANIFEST_RANK_MAX + 1];
	static struct manifest_id aliases[MANIFEST_ALIASES_MAX + 1];
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	struct manifest_top top = top_of(BASE);
	struct manifest_fragment f = fragments[0];
	struct manifest_tensor t = vector();

	ck_assert_int_eq(manifest_new(&top, &m, NULL), 0);
	t.global_shape = dims;
	t.rank = MANIFEST_RANK_MAX;
	ck_assert_int_eq(manifest_add_tensor(m, &t, NULL), 0);
	t.rank = MANIFEST_RANK_MAX + 1;
	ck_assert_int_eq(manifest_add_tensor(m, &t, NULL), -EBADMSG);
	f.global_offset = dims;
	f.local_shape = dims;
	f.aliases = aliases;
	f.alias_count = MANIFEST_ALIASES_MAX + 1;
	ck_assert_int_eq(manifest_add_fragment(m, &f, NULL), -EFBIG);
}
END_TEST

START_TEST(a_hundred_thousand_tensors_are_read_and_written)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(manifest_unref_cleanup) struct manifest *again = NULL;
	cleanup(buf_release) struct buf text = BUF_INIT;
	struct manifest_top top = top_of(BASE);
	enum { COUNT = 100000 };

	ck_assert_int_eq(manifest_new(&top, &m, NULL), 0);
	for (uint32_t i = 0; i < COUNT; i++) {
		struct manifest_tensor t = vector();
		struct manifest_fragment f = fragments[2];
		char name[64];

		(void)snprintf(name, sizeof(name),
			       "model.layers.%u.mlp.experts.%u.weight", i / 100,
			       i % 100);
		t.id = id_of(name);
		f.tensor = i;
		f.fragment_id = name;
		f.object_key = PAYLOAD "o";
		f.object_offset = UINT64_C(8) * i;
		ck_assert_int_eq(manifest_add_tensor(m, &t, NULL), 0);
		ck_assert_int_eq(manifest_add_fragment(m, &f, NULL), 0);
	}
	ck_assert_int_eq(manifest_finish(m, NULL), 0);
	ck_assert_int_eq(manifest_write(m, &text), 0);
	ck_assert_int_eq(manifest_parse(text.data, text.len, &again, NULL), 0);
	ck_assert_uint_eq(again->tensor_count, COUNT);
	ck_assert_ptr_nonnull(manifest_tensor_find(
		again, "model.layers.999.mlp.experts.99.weight", 38));
}
END_TEST

static int build_and_drop(void)
{
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;
	cleanup(buf_release) struct buf text = BUF_INIT;
	int r = demo(BASE, &m, NULL);

	return r < 0 ? r : manifest_write(m, &text);
}

static int parse_and_drop(void)
{
	static const char text[] =
		STORE(DIR_("d") "," REG_("d/x"),
		      EMPTY_OBJ "," OBJ("8", "\"" ZERO_SHA "\"", ROOT_SHA,
					"g/payload/p", "8"),
		      FA(AB, "f", "p", "0", "a") "," FA(AB, "g", "p", "0", "b"),
		      A_AND_B);
	cleanup(manifest_unref_cleanup) struct manifest *m = NULL;

	return manifest_parse(text, strlen(text), &m, NULL);
}

START_TEST(every_allocation_may_fail)
{
	struct digest warm;

	/* The crypto library is opened once, which is not our subject. */
	ck_assert_int_eq(digest_of("", 0, &warm), 0);
	fault_sweep(build_and_drop);
	fault_sweep(parse_and_drop);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("manifest");
	TCase *t = tcase_create("manifest");

	suite_add_tcase(s, t);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, the_digest_is_the_one_that_others_compute, 0,
			    ARRAY_LEN(golden));
	tcase_add_test(t, the_example_has_three_objects_of_forty_bytes);
	tcase_add_test(t, everything_can_be_found_again);
	tcase_add_test(t, a_reference_keeps_it_alive);
	tcase_add_loop_test(t, what_is_legal_is_read_and_written_as_it_was, 0,
			    ARRAY_LEN(accepted));
	tcase_add_loop_test(t, what_breaks_a_rule_is_refused_with_a_reason, 0,
			    ARRAY_LEN(refused));
	tcase_add_test(t, a_reason_names_entry_and_key);
	tcase_add_loop_test(t, keys_are_bound_to_the_group, 0,
			    ARRAY_LEN(groups));
	tcase_add_test(t, texts_have_a_limit_and_are_utf8);
	tcase_add_test(t, paths_have_limits);
	tcase_add_test(t, many_fragments_of_one_tensor_are_checked_quickly);
	tcase_add_test(t, fragments_that_would_take_too_long_are_refused);
	tcase_add_test(t, a_fragment_needs_its_tensor_first);
	tcase_add_test(t, limits_of_one_entry_hold);
	tcase_add_test(t, a_hundred_thousand_tensors_are_read_and_written);
	tcase_add_test(t, every_allocation_may_fail);
	return s;
}
