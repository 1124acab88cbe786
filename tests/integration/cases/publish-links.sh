# SPDX-License-Identifier: Apache-2.0
# Links that dangle, loop or leave the tree are refused; leftovers do no harm.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

line = lineage()
counter = iter(range(1, 1000))

# ---- A hub's cache: a snapshot is a directory of links into blobs
hub = WORK / "hub" / "models--acme--tiny"
snapshot = hub / "snapshots" / "0123abcd"
(hub / "blobs").mkdir(parents=True)
snapshot.mkdir(parents=True)
safetensors(hub / "blobs" / "aa", {"w": b"0123456789"})
(hub / "blobs" / "bb").write_text("{}\n")
os.symlink("../../blobs/aa", snapshot / "model.safetensors")
os.symlink("../../blobs/bb", snapshot / "config.json")

stage = staging(line, next(counter))
run("cp", "-rL", f"{snapshot}/.", stage)
gen = publish(stage)
equal(names(gen), ["config.json", "model.safetensors"], "followed copy")
equal((gen / ".weights" / "tensors" / "w").read_bytes(), b"0123456789", "w")

stage = staging(line, next(counter))
run("cp", "-r", f"{snapshot}/.", stage)
refused("EBADMSG", publish, stage)
says(attr(stage, "error"), r"config\.json|model\.safetensors")
# Mended in place, it can be published.
for name, blob in [("model.safetensors", "aa"), ("config.json", "bb")]:
    os.unlink(stage / name)
    run("cp", hub / "blobs" / blob, stage / name)
publish(stage)

# The whole cache, links and all, is a tree that is closed in itself.
stage = staging(line, next(counter))
run("cp", "-a", f"{hub}/.", stage)
gen = publish(stage)
same_tree(gen, hub)
equal(sha(gen / "snapshots" / "0123abcd" / "model.safetensors"),
      sha(hub / "blobs" / "aa"), "through the link")

# ---- Each bad link is refused by its name, wherever it stands
SRC = checkpoint("src")
BAD = {"dangling": "no/such/file", "absolute": "/etc/hostname",
       "root": "/", "up": "..", "far-up": "../../../../../../../etc/hostname",
       "sibling": "../1/config.json", "self": "self",
       "into-weights": ".weights/metadata.json",
       "through-file": "config.json/x",
       "out-and-in": "../" + "{n}" + "/config.json"}
for name, target in BAD.items():
    for where in ("", "1_Pooling/"):
        n = next(counter)
        stage = staging(line, n, SRC)
        os.symlink(target.replace("{n}", str(n)), stage / (where + name))
        if where and name in ("up", "sibling"):
            if name == "up":
                publish(stage)  # it stays within the tree
                continue
        e = refused("EBADMSG", publish, stage)
        says(attr(stage, "error"), re.escape(where + name))
        check(stage.exists() and not (line / str(n)).exists(), "half moved")
        os.unlink(stage / (where + name))
        same_tree(publish(stage), SRC, times=False)
n = next(counter)
stage = staging(line, n, SRC)
os.symlink("b", stage / "a")
os.symlink("a", stage / "b")
refused("EBADMSG", publish, stage)
says(attr(stage, "error"), r"\b[ab]\b")
os.unlink(stage / "a")
os.unlink(stage / "b")

# ---- Good ones
os.symlink("config.json", stage / "one")
os.symlink("one", stage / "two")
os.symlink("../two", stage / "1_Pooling" / "three")
os.symlink("1_Pooling/../1_Pooling/three", stage / "four")
os.symlink(".", stage / "here")
gen = publish(stage)
equal((gen / "four").read_text(), (SRC / "config.json").read_text(), "chain")
equal(os.readlink(gen / "here"), ".", "readlink")

# ---- Companions and leftovers are copied along, and are no weights
stage = staging(line, next(counter), SRC)
junk = {"._model.safetensors": b"\0\5\x16\7" + bytes(4000), ".DS_Store": b"x",
        "._config.json": b"x", "model.safetensors~": b"old",
        ".config.json.swp": b"b0VIM", ".model.safetensors.Xy12ab": b"half",
        ".cache/huggingface/download/model.safetensors.lock": b"",
        ".cache/huggingface/download/model.safetensors.metadata": b"x\n",
        ".git/HEAD": b"ref: refs/heads/main\n",
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "model.safetensors.incomplete": b"part", "empty": b""}
for name, data in junk.items():
    (stage / name).parent.mkdir(parents=True, exist_ok=True)
    (stage / name).write_bytes(data)
want = facts(stage)
gen = publish(stage)
equal(facts(gen), want, "with leftovers")
equal(names(gen / ".weights" / "tensors"),
      ["layers.0.a.weight", "layers.0.b.weight"], "tensors")

# ---- A target that no filesystem could have is a link that dangles
stage = staging(line, next(counter), SRC)
os.symlink("x" * 3000, stage / "long")
refused("EBADMSG", publish, stage)
says(attr(stage, "error"), "'long'")
EOP
