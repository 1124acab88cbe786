#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who may include what. The rules are the tables; the rest applies them.

usage: layers.py SOURCE-ROOT

fs -> core <- transport, and inside core/ a file includes only equal or lower
ranks, and headers without cycles. mount-helpers stays outside the doors, and
examples come in through the first one. Every source file has a place in the
build.
"""
import pathlib
import re
import sys

MAY_INCLUDE = {
    "core": {"core"},
    "transport": {"core", "transport"},
    "fs": {"core", "fs"},
    "mount-helpers": {"core", "mount-helpers"},
    "examples": {"core"},
}
EXEMPT = {"fs/main.c": {"core", "fs", "transport"}}
# Single headers of other folders.
ALSO = {"mount-helpers": {"fs/attr_names"}}

# The ranks of core/. A file belongs to the module with the longest name that
# its own name is, or begins with and goes on with "_".
RANKS = {
    0: "util cleanup log buf dir arena utf8 cursor map list parse checked "
       "clock metrics workers pace step file_io",
    1: "weight_management weight_lineage weight_key weight_record digest json mode_change "
       "placement binding manifest file_reader tensor_range safetensors gguf "
       "checkpoint weight_decision upkeep_decision config memory_limit "
       "oplog weight_snapshot",
    2: "meta weight_metadata_store weight_metadata chunk_digest "
       "chunk_buffer chunk_check payload holders pins prefetch stamps "
       "store_dir store_trial derived",
    3: "weight_upload_plan weight_reshard weight_residency_planner",
    # What runs lives in one running store, behind its two doors.
    4: "lease_keeper staging publish reconciler removal tree upkeep view weight_store "
       "weight_tree",
}
RANK_OF = {m: r for r, names in RANKS.items() for m in names.split()}

# The other folders come in through the doors; what is below rank 2 is free.
FREE_RANK_MAX = 1
DOORS = {"weight_store", "weight_tree"}
# Programs that are users of a mount, like any other, and those that show how
# one does without.
OUTSIDE = {"mount-helpers": set(), "examples": {"weight_store"}}

# A third-party header, and the only files that may include it.
OWNERS = {
    r"lmdb\.h": r"core/meta\.c",
    r"yajl/": r"core/json\.c",
    r"openssl/": r"core/digest\.c|transport/tls_.*",
    r"xxhash\.h": r"core/oplog\.c",
    r"fuse": r"fs/.*",
    r"(infiniband|rdma)/": r"transport/rdma_.*\.c",
}


def module(stem):
    """The module of core/ that a file belongs to, or None."""
    while stem not in RANK_OF:
        stem, underscore, _ = stem.rpartition("_")
        if not underscore:
            return None
    return stem


def rank_error(name, target):
    """Why file `name` may not include core/`target`, or None."""
    folder, stem = name.split("/")[0], pathlib.Path(name).stem
    to = module(target)
    if to is None:
        return f"core/{target}.h has no rank"
    if folder == "core":
        own = module(stem)
        if own is not None and RANK_OF[to] > RANK_OF[own]:
            return f"rank {RANK_OF[own]} may not include core/{target}.h"
    elif RANK_OF[to] > FREE_RANK_MAX and to not in OUTSIDE.get(folder, DOORS):
        return f"core/{target}.h is behind the doors"
    return None


def include_errors(root, edges):
    for folder, allowed in MAY_INCLUDE.items():
        for path in sorted((root / folder).rglob("*.[ch]")):
            name = str(path.relative_to(root))
            if folder == "core" and module(path.stem) is None:
                yield f"{name}: its module has no rank"
            for no, line in enumerate(path.read_text().splitlines(), 1):
                if m := re.match(r'#\s*include "([\w-]+)/(\w+)\.h"', line):
                    if (m[1] not in EXEMPT.get(name, allowed) and
                            f"{m[1]}/{m[2]}" not in ALSO.get(folder, ())):
                        yield f"{name}:{no}: may not include from {m[1]}/"
                    elif m[1] == "core":
                        if why := rank_error(name, m[2]):
                            yield f"{name}:{no}: {why}"
                        elif folder == "core" and path.suffix == ".h":
                            edges.setdefault(path.stem, set()).add(m[2])
                if m := re.match(r"#\s*include <(.+)>", line):
                    for header, owner in OWNERS.items():
                        if (re.match(header, m[1]) and
                                not re.fullmatch(owner, name)):
                            yield f"{name}:{no}: <{m[1]}> belongs to {owner}"


def cycle_errors(edges):
    done = set()

    def visit(node, trail):
        if node in trail:
            yield "cycle: " + " -> ".join(trail[trail.index(node):] + [node])
            return
        if node in done:
            return
        done.add(node)
        for to in sorted(edges.get(node, ())):
            yield from visit(to, trail + [node])

    for node in sorted(edges):
        yield from visit(node, [])


def build_errors(root):
    """Every source file is listed in its folder's meson.build, once."""
    for folder in MAY_INCLUDE:
        build = root / folder / "meson.build"
        if not build.exists():
            continue
        listed = re.findall(r"'(\w+\.c)'", build.read_text())
        there = [p.name for p in (root / folder).glob("*.c")]
        for name in sorted(set(there) - set(listed)):
            yield f"{folder}/meson.build: {name} is not listed"
        if folder == "core" and listed != sorted(listed):
            yield f"{folder}/meson.build: the list is not sorted"


def main():
    root = pathlib.Path(sys.argv[1])
    edges = {}
    found = list(include_errors(root, edges))
    found += cycle_errors(edges)
    found += build_errors(root)
    print("\n".join(found))
    return bool(found)


sys.exit(main())
