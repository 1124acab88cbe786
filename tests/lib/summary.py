#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up a run of meson test.

usage: summary.py TESTLOG [EXPECTED-FEATURES]

TESTLOG is meson's testlog.json. A TAP program counts as its subtests. The
last line is 'N passed, N failed, N skipped'. With EXPECTED-FEATURES, what is
listed there must have run. The status is 0 if all is well and anything ran.
"""
import json
import re
import sys

FAILED = {"FAIL", "TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS"}
TAP = re.compile(r"^(not )?ok\b[^#\n]*(?:#\s*(skip)\b\s*(.*))?", re.I | re.M)


def split_name(name):
    """'weightfs:unit / buf' (or 'buf' alone) as suite and name."""
    m = re.match(r"(?:[^:]*:)?(?:(\S+) / )?(.*)", name)
    return m[1] or "", m[2]


def outcomes(test):
    """Yields (outcome, what) for a test or its subtests."""
    suite, name = split_name(test["name"])
    out = test.get("stdout") or ""
    result = test["result"]
    tap = [m for m in TAP.finditer(out)] if re.search(
        r"^(TAP version |1\.\.)\d+", out, re.M) else []
    for m in tap:
        if m[2]:
            yield suite, name, "skipped", m[3] or "no reason given"
        else:
            yield suite, name, "failed" if m[1] else "passed", m[0].strip()
    if result in FAILED and not any(m[1] for m in tap):
        yield suite, name, "failed", f"{result}, status {test['returncode']}"
    elif result == "SKIP" and not tap:
        m = re.search(r"^SKIP: (.*)", out, re.M)
        yield suite, name, "skipped", m[1] if m else "no reason given"
    elif not tap and result not in FAILED:
        yield suite, name, "passed", ""


def expectation_errors(path, facts):
    """What the file at path asks for and the run does not show."""
    may_skip = []
    with open(path, encoding="utf-8") as f:
        lines = [re.sub(r"\s*#.*", "", x).split(None, 1) for x in f]
    for word, rest in (x for x in lines if x):
        if word == "may-skip":
            may_skip.append(rest.strip())
        elif word == "suite":
            if not any(f[0] == rest.strip() and f[2] == "passed"
                       for f in facts):
                yield f"nothing of suite {rest.strip()} ran"
    for suite, name, outcome, why in facts:
        if outcome == "skipped" and not any(
                re.search(p, f"{name}: {why}") for p in may_skip):
            yield f"{suite}/{name} must not be skipped here: {why}"


def main():
    facts = []
    with open(sys.argv[1], encoding="utf-8") as f:
        for line in f:
            facts += outcomes(json.loads(line))
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for suite, name, outcome, why in facts:
        count[outcome] += 1
        if outcome != "passed":
            print(f"{outcome}: {suite}/{name}: {why}")
    missing = []
    if len(sys.argv) > 2:
        missing = list(expectation_errors(sys.argv[2], facts))
        for line in missing:
            print(f"failed: expected of this machine: {line}")
    count["failed"] += len(missing)
    print(", ".join(f"{n} {outcome}" for outcome, n in count.items()))
    return bool(count["failed"]) or not count["passed"]


sys.exit(main())
