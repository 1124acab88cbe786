/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/attr_names.h"

#include <string.h>

/* clang-format off */
#define REVISION ATTR_OF_REVISION
#define STAGED   ATTR_OF_STAGED
#define LINEAGE  ATTR_OF_LINEAGE
#define PLAIN    ATTR_OF_FILE
#define TENSOR   ATTR_OF_TENSOR

const struct attr_name attr_names[ATTR_COUNT] = {
	[ATTR_AVAILABILITY] = {
		"availability", "ready, degraded, or on its way in or out",
		.get = REVISION },
	[ATTR_RESIDENCY] = {
		"residency",
		"hot, cold or mixed; set to hot or cold[,if=N]: moves it",
		.get = REVISION | PLAIN | TENSOR, .set = REVISION },
	[ATTR_HOT_RATIO] = {
		"hot_ratio", "the part that is held in memory, 0 to 1",
		.get = REVISION | PLAIN },
	[ATTR_PINNED_BYTES] = {
		"pinned_bytes", "bytes that are held in memory",
		.get = REVISION | PLAIN },
	[ATTR_PREFERRED] = {
		"preferred", "the residency that its policy asks for",
		.get = REVISION },
	[ATTR_MIXED_HOT_RATIO] = {
		"mixed_hot_ratio",
		"the hot part that its policy asks for when mixed",
		.get = REVISION },
	[ATTR_MODE] = {
		"mode", "pinned, manual or auto: who may move it",
		.get = REVISION },
	[ATTR_POLICY] = {
		"policy", "preferred=,ratio=,mode=; set to some of them[,if=N]",
		.get = REVISION | STAGED, .set = REVISION | STAGED,
		.unlisted = true },
	[ATTR_METADATA_GENERATION] = {
		"metadata_generation", "goes up with each change of its record",
		.get = REVISION },
	[ATTR_LOGICAL_BYTES] = {
		"logical_bytes", "size of all files",
		.get = REVISION },
	[ATTR_PAYLOAD_COUNT] = {
		"payload_count", "number of objects",
		.get = REVISION },
	[ATTR_MANIFEST_SHA256] = {
		"manifest_sha256", "digest of .weights/manifest.json",
		.get = REVISION },
	[ATTR_MANIFEST_KEY] = {
		"manifest_key", "key of the manifest",
		.get = REVISION },
	[ATTR_GROUP_ID] = {
		"group_id", "id of the group of objects",
		.get = REVISION },
	[ATTR_OPERATION] = {
		"operation", "id of the operation that moves it, while one runs",
		.get = REVISION },
	[ATTR_LEASES] = {
		"leases", "how many hold it",
		.get = REVISION },
	[ATTR_DURABLE] = {
		"durable", "yes when it survives a power loss",
		.get = REVISION },
	[ATTR_SCRUB] = {
		"scrub", "when all bytes were last checked; set to 1: now",
		.get = REVISION, .set = REVISION },
	[ATTR_CREATED] = {
		"created", "when it was published",
		.get = REVISION },
	[ATTR_UPDATED] = {
		"updated", "when its record last changed",
		.get = REVISION },
	[ATTR_LAST_ACCESSED] = {
		"last_accessed", "when it was last opened",
		.get = REVISION },
	[ATTR_ERROR] = {
		"error", "why the last request on it was refused, in words",
		.get = REVISION | STAGED | LINEAGE },
	[ATTR_PROGRESS] = {
		"progress", "what is left to do before it can be published",
		.get = STAGED },
	[ATTR_REPLACES] = {
		"replaces",
		"BASE[,mode=][,request_id=][,if=N]: what it will replace",
		.get = STAGED, .set = STAGED, .unlisted = true },
	[ATTR_WATERMARK] = {
		"watermark", "the generation that replacements have come to",
		.get = LINEAGE },
	[ATTR_CLAIM] = {
		"claim", "the latest replacement in it, and its phase",
		.get = LINEAGE },
	[ATTR_DIGEST] = {
		"digest", "root of the digests of its chunks",
		.get = PLAIN },
	[ATTR_DTYPE] = {
		"dtype", "type of the elements",
		.get = TENSOR },
	[ATTR_SHAPE] = {
		"shape", "extents, such as [2,3]",
		.get = TENSOR },
	[ATTR_EXTENT] = {
		"extent", "file,offset,length: where its bytes are",
		.get = TENSOR },
	[ATTR_SHA256] = {
		"sha256", "SHA-256 of its bytes, computed when asked for",
		.get = PLAIN | TENSOR, .unlisted = true },
	[ATTR_REPAIR] = {
		"repair", "set to 1: mends a degraded one with good copies",
		.set = REVISION },
	[ATTR_REMOVE] = {
		"remove", "set to GENERATION[,if=METADATA_GENERATION]: removes it",
		.set = REVISION },
};
/* clang-format on */

enum attr_id attr_names_find(const char *name)
{
	enum attr_id id = 0;

	while (id < ATTR_COUNT && strcmp(attr_names[id].name, name) != 0)
		id++;
	return id;
}

int attr_help(struct buf *ret)
{
	int r = 0;

	for (size_t i = 0; i < ATTR_COUNT && r == 0; i++)
		r = buf_printf(ret, "  %-20s %s\n", attr_names[i].name,
			       attr_names[i].help);
	return r;
}
