#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: run_reader.py READ_CASES GENERATOR [--large]

Runs GENERATOR (a script that takes a directory and fills it with weight files,
checkpoints and expected.json) and compares what READ_CASES says with what
expected.json says: verdict, words of the refusal, tensors and their ranges.

Exit status: 0 all as expected, 1 a difference, 77 there is no generator.
"""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile

# Not the reader's: links are refused by whoever walks the tree.
LINKS_ARE_OTHERS = {"dangling_links", "link_outside", "link_loop"}


def read(reader, path):
    """-> (verdict, why, tensors)"""
    done = subprocess.run([reader, path], capture_output=True, text=True,
                          timeout=60)
    if done.returncode != 0:
        return "crash", "status %d: %s" % (done.returncode,
                                           done.stderr[-2000:]), []
    first, _, rest = done.stdout.partition("\n")
    verdict, _, why = first.partition(": ")
    return verdict, why, [json.loads(x) for x in rest.splitlines()]


def expected_tensors(top, entry):
    if "tensors_file" in entry:
        with open(os.path.join(top, entry["tensors_file"])) as f:
            return [json.loads(x) for x in f]
    return entry.get("tensors") or entry.get("tensors_if_accepted") or []


def in_our_form(entry, t):
    """GGUF stores axes fastest first, we show them slowest first."""
    shape = t["shape"][::-1] if entry["format"] == "gguf" else t["shape"]
    return (t["name"], t["dtype"], tuple(shape), t["begin"], t["end"])


def file_faults(reader, top, entry):
    verdict, why, tensors = read(reader, os.path.join(top, entry["file"]))
    hint = entry.get("error_should_say")
    if verdict not in ("accept", "reject"):
        yield why
    if verdict != entry["verdict"]:
        if entry["strength"] == "must" or verdict == "crash":
            yield "verdict %s (%s)" % (verdict, why)
        else:
            print("# policy %s: we %s" % (entry["file"], verdict))
    if verdict == "reject" and hint and hint not in why:
        yield "does not say %r: %s" % (hint, why)
    if verdict == "reject" and len(why) < 20:
        yield "says too little: %r" % why
    if verdict != "accept":
        return
    got = {(t["name"], t["dtype"], tuple(t["shape"]), t["begin"], t["end"])
           for t in tensors}
    want = {in_our_form(entry, t) for t in expected_tensors(top, entry)}
    if got != want or len(tensors) != len(want):
        yield "tensors differ: %s" % sorted(got ^ want)[:4]


def tree_of(top, entry, scratch):
    """The directory as a user would copy it, links followed."""
    path = os.path.join(top, entry["dir"])
    snapshots = os.path.join(path, "snapshots")
    if not os.path.isdir(snapshots):
        return path
    copy = os.path.join(scratch, "followed")
    shutil.copytree(os.path.join(snapshots, os.listdir(snapshots)[0]), copy)
    return copy


def tree_faults(reader, top, entry, scratch):
    verdict, why, tensors = read(reader, tree_of(top, entry, scratch))
    hint = entry.get("error_should_say")
    if verdict != entry["verdict"]:
        if entry["strength"] == "must" or verdict == "crash":
            yield "verdict %s (%s)" % (verdict, why)
        else:
            print("# policy %s: we %s" % (entry["dir"], verdict))
    if verdict == "reject" and hint and hint not in why:
        yield "does not say %r: %s" % (hint, why)
    home = {t["id"]: t["file"] for t in tensors}
    for name, path in (entry.get("tensor_home") or {}).items():
        if home.get(name) != path:
            yield "%s is in %s" % (name, home.get(name))


def main(argv):
    if len(argv) not in (2, 3):
        sys.exit(__doc__)
    reader, generator = argv[0], argv[1]
    if not os.path.exists(generator):
        print("no generator of cases at %s" % generator)
        sys.exit(77)
    bad = count = 0
    with tempfile.TemporaryDirectory() as scratch:
        top = os.path.join(scratch, "cases")
        subprocess.run([sys.executable, generator, top] + argv[2:],
                       check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(top, "expected.json")) as f:
            doc = json.load(f)
        work = [(e["file"], file_faults(reader, top, e))
                for e in doc["files"]]
        work += [(e["dir"], tree_faults(reader, top, e, scratch))
                 for e in doc["checkpoints"]
                 if os.path.basename(e["dir"]) not in LINKS_ARE_OTHERS]
        for name, faults in work:
            count += 1
            for fault in faults:
                bad += 1
                print("FAIL %s: %s" % (name, fault))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print("%d cases, %d differences, peak %d KiB" % (count, bad, peak))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
