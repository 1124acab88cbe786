# SPDX-License-Identifier: Apache-2.0
# A publish that fails says why, changes nothing, and works after mending.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src", files=2)
line = lineage()
counter = iter(range(1, 1000))


def cut(stage):
    os.truncate(stage / "model-1.safetensors", 20_000)
    return "model-1.safetensors", "truncated"


def empty(stage):
    os.truncate(stage / "model-1.safetensors", 0)
    return "model-1.safetensors", "empty"


def pointer(stage):
    (stage / "model-1.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{'ab' * 32}\nsize 4976698672\n")
    return "model-1.safetensors", "git-lfs pointer"


def web_page(stage):
    (stage / "model.gguf").write_text("<!DOCTYPE html><html></html>\n")
    return "model.gguf", "web page|HTML|html"


def trailing(stage):
    with open(stage / "model-1.safetensors", "ab") as f:
        f.write(b"x")
    return "model-1.safetensors", "1 byte"


def shards(stage, name="model.safetensors.index.json", **changes):
    entries = {f"layers.{i}.{x}.weight": f"model-{i}.safetensors"
               for i in (0, 1) for x in "ab"}
    entries.update(changes)
    (stage / name).write_text(json.dumps({"metadata": {},
                                          "weight_map": entries}))


def missing_shard(stage):
    shards(stage)
    os.unlink(stage / "model-1.safetensors")
    return "index.json", r"model-1\.safetensors"


def index_leaves(stage):
    shards(stage, x="../1/model-0.safetensors")
    return "index.json", r"\.\./1/model-0"


def index_cut(stage):
    shards(stage)
    text = (stage / "model.safetensors.index.json").read_text()
    (stage / "model.safetensors.index.json").write_text(text[:60])
    return "index.json", "."


def fifo_like(stage):
    os.symlink("/dev/null", stage / "null")
    return "null", "."


def deep(stage):
    (stage / "/".join(["d"] * 80)).mkdir(parents=True)
    return "d/d", "deep|64|levels"


def outside_link(stage):
    other = staging(line, int(stage.name) + 500, SRC)
    os.rename(other / "config.json", other / "x")
    refused("EXDEV|EPERM", os.link, other / "x", stage / "x")
    shutil.rmtree(other)
    return cut(stage)


log_at = 0


def log_lines():
    global log_at
    text = LOG.read_text()[log_at:]
    log_at += len(text)
    return text.splitlines()


for spoil in [cut, empty, pointer, web_page, trailing, missing_shard,
              index_leaves, index_cut, fifo_like, deep, outside_link]:
    n = next(counter)
    stage = staging(line, n, SRC)
    file, words = spoil(stage)
    want = facts(stage)
    log_lines()
    for attempt in range(2):
        refused("EBADMSG|EFBIG", os.rename, stage, line / str(n))
        sentence = attr(stage, "error")
        says(sentence, re.escape(file), words)
        lines = [x for x in log_lines() if f".staging/{n}'" in x]
        equal(len(lines), 1, f"lines in the log: {lines}")
        says(lines[0], re.escape(sentence))
        equal(facts(stage), want, "the staging directory after a failure")
        refused("ENOENT", os.stat, line / str(n))
    says(run("mv", "-T", stage, line / str(n), status=1), "Bad message|large")
    # Mended: everything that was added goes, what was spoilt is copied anew.
    for p in stage.iterdir():
        if p.name not in names(SRC):
            shutil.rmtree(p) if p.is_dir() and not p.is_symlink() else \
                p.unlink()
    run("cp", "-a", f"{SRC}/.", stage)
    gen = publish(stage)
    same_tree(gen, SRC)
    refused("ENODATA", attr, gen, "error")

equal(metric("weightfs_publish_failures_total") > 20, True, "failures counted")

# A missing shard that is added makes the same staging directory whole.
stage = staging(line, next(counter), SRC)
missing_shard(stage)
refused("EBADMSG", publish, stage)
run("cp", SRC / "model-1.safetensors", stage)
publish(stage)

# An abort leaves nothing, and the number is free again.
stage = staging(line, 400, SRC)
run("rm", "-r", stage)
refused("ENOENT", os.stat, stage)
put(line, 400, SRC)
refused("ENOTEMPTY", os.rmdir, staging(line, 401, SRC))
run("rm", "-rf", line / ".staging" / "401")
equal([p for p in STORE.rglob("model-0.safetensors")
       if p.stat().st_nlink < 1], [], "left in the store")
EOP
