# SPDX-License-Identifier: Apache-2.0
"""Stores that no daemon has open: checked, exported, imported."""
import os
import re
import subprocess

from wf import DAEMON, LOG, STORE, check, equal, facts, says

SUMMARY = (r"(\d+) revisions?, (\d+) leases?, (\d+) operations?, "
           r"(\d+) lineages?")


def weightfs(*argv, status=0, stdin=None, stdout=None):
    """Runs the program; what it said on stdout and stderr, a pair."""
    done = subprocess.run([DAEMON, *map(str, argv)], check=False, timeout=60,
                          stdin=stdin or subprocess.DEVNULL,
                          stdout=stdout or subprocess.PIPE,
                          stderr=subprocess.PIPE)
    out, err = (done.stdout or b"").decode(), done.stderr.decode()
    equal(done.returncode, status, f"status of {argv} ({out}{err})")
    with open(LOG, "a", encoding="utf-8") as f:
        f.write(err)
    return out, err


def everything(store):
    """All of a directory, times of change included: reading changes none."""
    found = {}
    for path in [store, *sorted(store.rglob("*"))]:
        st = os.lstat(path)
        found[str(path)] = (st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns,
                            st.st_ctime_ns, st.st_blocks)
    return found


def sound(store=STORE):
    """Nothing is wrong, and nothing changed. The summary's line."""
    before = everything(store)
    out, err = weightfs("--check", store)
    equal(err, "", "what a check says on stderr")
    equal(everything(store), before, "a check changed something")
    says(out, rf"\Achecked {SUMMARY}(, log entries \d+ to \d+)?"
              r"(, \d+ staged)?: nothing is wrong\n\Z")
    return out


def wrong(*patterns, store=STORE, unreadable=False):
    """A check finds these things, a line each, and nothing else."""
    before = everything(store)
    out, err = weightfs("--check", store, status=2)
    equal(everything(store), before, "a check changed something")
    lines = out.splitlines()
    if unreadable:
        equal(lines[-1], "nothing else was checked", "the last line")
    else:
        says(lines[-1], rf"^checked {SUMMARY}.*: {len(patterns)} things? "
                        "(is|are) wrong$")
    equal(err, "", "what a check says on stderr")
    equal(len(lines) - 1, len(patterns), f"findings in {lines}")
    for p in patterns:
        check(any(re.search(p, line) for line in lines), f"no {p!r} in {lines}")
    return lines


def exported(file, store=STORE):
    out, err = weightfs("--export", file, store)
    says(out, rf"\Aexported {SUMMARY} as of log entry \d+\n\Z")
    equal(err, "", "what an export says on stderr")
    equal(os.stat(file).st_mode & 0o777, 0o600, "mode of the snapshot")
    check(not os.path.exists(f"{file}.part"), "a part is left")
    return out


def imported(file, store=STORE):
    out, _ = weightfs("--import", file, store)
    says(out, rf"(?m)^imported {SUMMARY} as of log entry \d+$")
    return out


def group(gen, store=STORE):
    """The directory below groups/ that a generation on the mount has."""
    ino = next(os.stat(p).st_ino for p in gen.rglob("*") if p.is_file())
    found = [p for p in (store / "groups").glob("*/*/files/**/*")
             if p.is_file() and p.stat().st_ino == ino]
    check(found, f"behind {gen}")
    return (store / "groups").joinpath(
        *found[0].relative_to(store / "groups").parts[:2])


def attributes(gen):
    """Those that a revision keeps, whatever becomes of its store."""
    return {n: os.getxattr(gen, n) for n in os.listxattr(gen)
            if n.rsplit(".", 1)[1] not in
            ("durable", "residency", "hot_ratio", "pinned_bytes", "leases",
             "operation", "metadata_generation", "updated", "last_accessed",
             "scrub", "error")}


def whole_tree(top):
    """Names, kinds, modes, owners and bytes of a mount."""
    return facts(top, owners=True)
