# SPDX-License-Identifier: Apache-2.0
# .weights/metrics is what Prometheus reads: each family once, with all of its
# members from the start, and it counts what is done.
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\d+)")


def parse(text):
    """Family to (type, {labels: value}); strict about the format 0.0.4."""
    check(text.endswith("\n"), "the last line has no end")
    families, name = {}, None
    for line in text[:-1].split("\n"):
        if m := re.fullmatch(rf"# HELP ({NAME}) (.+)", line):
            name = m[1]
            check(name not in families, f"twice: {name}")
            check(not re.search(r"\\[^\\n]", m[2]), f"escapes of {line!r}")
            families[name] = (None, {})
        elif m := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            equal(m[1], name, "TYPE after its HELP")
            equal(families[name], (None, {}), f"before the TYPE of {name}")
            families[name] = (m[2], {})
        else:
            m = SAMPLE.fullmatch(line)
            check(m, f"no sample: {line!r}")
            equal(m[1], name, "a sample below its family")
            kind, samples = families[name]
            check(kind, f"no TYPE before {line!r}")
            equal(name.endswith("_total"), kind == "counter", line)
            labels = m[2] or ""
            keys = re.findall(r'(\w+)="', labels)
            equal(len(set(keys)), len(keys), f"labels of {line!r}")
            check(labels not in samples, f"twice: {line!r}")
            check(int(m[3]) < 1 << 63, f"below zero: {line!r}")
            samples[labels] = int(m[3])
    for name, (kind, samples) in families.items():
        check(samples, f"{name} has no samples")
        keys = {tuple(re.findall(r'(\w+)="', labels)) for labels in samples}
        equal(len(keys), 1, f"label names of {name}")
    return families


def read():
    return parse((MNT / ".weights" / "metrics").read_text())


def each(key, words):
    return {f'{key}="{word}"' for word in words.split()}


ALONE = {""}
MODES = each("mode", "put_first delete_first")
PHASES = each("phase", "preparing_target retiring_base deleting_base "
              "target_importing completed aborted")
WEIGHTS = {
    "revisions": ("gauge", each("availability", "importing ready degraded "
                                "deleting deleted")),
    "revision_residency": ("gauge", each("residency", "unknown hot cold mixed "
                                         "absent")),
    "active_leases": ("gauge", ALONE),
    "pending_operations": ("gauge", ALONE),
    "oldest_operation_age_ms": ("gauge", ALONE),
    "reconciliation_failures_total": ("counter", ALONE),
    "group_guard_refusals_total": ("counter", ALONE),
    "operation_failures_total": ("counter", ALONE),
    "operation_retries_total": ("counter", ALONE),
    "operations_finished_total": ("counter", ALONE),
    "migration_processed_bytes_total": ("counter", ALONE),
    "migration_remaining_bytes": ("gauge", ALONE),
    "migration_duration_ms_total": ("counter", ALONE),
    "expired_leases_total": ("counter", ALONE),
    "abandoned_imports_total": ("counter", ALONE),
    "claims": ("gauge", {f"{m},{p}" for m in MODES for p in PHASES}),
    "claim_failures_total": ("counter", MODES),
    "claim_recoveries_total": ("counter", MODES),
    "auto_triggers_total": ("counter", each("trigger", "pressure capacity "
                                            "access"))}

# ---- All of it is there with zero before anything was done
start = read()
for name, (kind, members) in WEIGHTS.items():
    check(f"weightfs_weight_{name}" in start, f"no {name}")
    equal(start[f"weightfs_weight_{name}"],
          (kind, dict.fromkeys(members, 0)), name)
for name, kind in [("entries", "gauge"), ("appends_total", "counter")]:
    equal(start[f"weightfs_oplog_{name}"], (kind, {"": 0}), name)
equal(list(start["weightfs_build_info"][1].values()), [1], "build_info")

# ---- What is done is counted, and nothing goes away
src = checkpoint("src", files=2)
total = sum(p.stat().st_size for p in src.rglob("*") if p.is_file())
gen = put(lineage(), 7, src)
(gen / ".weights" / "wait").read_text()
with open(gen / "config.json", "rb") as f:
    f.read()
    equal(metric("weightfs_weight_active_leases"), 1, "leases")
refused("EROFS|EPERM", os.unlink, gen / "config.json")
before = read()
equal(before["weightfs_weight_revisions"][1]['availability="ready"'], 1,
      "revisions")
check(before["weightfs_weight_group_guard_refusals_total"][1][""] > 0,
      "no refusal was counted")
if attr(gen, "residency") == "hot":
    finished = "weightfs_weight_operations_finished_total"
    processed = "weightfs_weight_migration_processed_bytes_total"
    for moves, target in enumerate(("cold", "hot"), 1):
        move(gen, target)
        comes_to(gen, target)
        wait_for(lambda: metric(finished) == before[finished][1][""] + moves,
                 "finished")
        after = read()
        equal(after[processed][1][""],
              before[processed][1][""] + moves * total, "processed bytes")
        for name in ("migration_remaining_bytes", "pending_operations",
                     "oldest_operation_age_ms"):
            equal(after["weightfs_weight_" + name][1][""], 0, name)
        equal(after["weightfs_weight_revision_residency"][1]
              [f'residency="{target}"'], 1, "residency")
else:
    print("# nothing can be held in memory here")
end = read()
equal({n: (k, set(s)) for n, (k, s) in end.items()},
      {n: (k, set(s)) for n, (k, s) in start.items()}, "families and labels")
for name, (kind, samples) in end.items():
    for labels, value in samples.items():
        check(kind == "gauge" or value >= before[name][1][labels],
              f"{name}{{{labels}}} went down")
EOP
