# SPDX-License-Identifier: Apache-2.0
# No tool that cleans up removes or changes a published revision.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
(SRC / "empty").mkdir()
line = lineage()
gen = put(line, 1, SRC)
os.symlink("1", line / "serving")
want = facts(line)
S = str

REMOVE_TREE = """
use File::Path 'remove_tree';
remove_tree($ARGV[0], {error => \\my $e});
"""
TOOLS = [
    ["rmdir", gen], ["sh", "-c", f"rmdir {line}/*"],
    ["sh", "-c", f"cd {line} && rmdir -p 1/empty"],
    ["rmdir", "--ignore-fail-on-non-empty", gen],
    ["rmdir", "-p", "--ignore-fail-on-non-empty", gen / "empty"],
    ["find", gen, "-delete"], ["find", line / "1", "-depth", "-delete"],
    ["find", gen, "-type", "f", "-exec", "rm", "-f", "{}", "+"],
    ["find", gen, "-empty", "-delete"],
    ["rm", "-r", gen], ["rm", "-rf", gen], ["rm", "-d", gen],
    ["rm", "-rf", f"{gen}/"], ["sh", "-c", f"rm -rf {gen}/*"],
    ["sh", "-c", f"rm -rf {line}/*/"],
    ["python3", "-c", f"import shutil; shutil.rmtree({S(gen)!r}, "
     "ignore_errors=True)"],
    ["python3", "-c", f"import os; os.removedirs({S(gen / 'empty')!r})"],
    ["python3", "-c", f"import shutil; shutil.move({S(gen)!r}, "
     f"{S(WORK / 'moved')!r})"],
    ["perl", "-e", REMOVE_TREE, gen],
    ["tar", "--remove-files", "-cf", WORK / "x.tar", "-C", line, "1"],
    ["rsync", "-a", "--delete", f"{WORK}/nothing/", f"{gen}/"],
    ["rsync", "-a", "--delete", "--remove-source-files", f"{gen}/",
     f"{WORK}/taken/"],
    ["git", "-C", gen, "clean", "-ffdx"],
    ["node", "-e", f"require('fs').rmSync({S(gen)!r}, "
     "{recursive: true, force: true})"],
    ["truncate", "-s", "0", gen / "config.json"],
    ["shred", "-u", gen / "config.json"],
    ["mv", gen, WORK / "moved2"], ["mv", gen / "config.json", WORK],
    ["chmod", "-R", "777", gen], ["chown", "-R", "1:1", gen],
    ["touch", "-a", gen / "config.json"],
    ["cp", "--remove-destination", "/dev/null", gen / "config.json"],
    ["install", "/dev/null", gen / "config.json"],
    ["ln", "-sf", "/dev/null", gen / "config.json"],
    ["tar", "-xf", WORK / "in.tar", "-C", gen, "--unlink-first"],
    ["tar", "-xf", WORK / "in.tar", "-C", gen, "--recursive-unlink"],
    ["setfattr", "-x", "user.weights.availability", gen],
    ["setfattr", "-x", "user.weights.remove", gen],
]
if shutil.which("systemd-tmpfiles"):
    (WORK / "tmpfiles.conf").write_text(
        f"d {gen} - - - 0\nR {gen} - - - -\ne {line} - - - 0\n")
    TOOLS += [["systemd-tmpfiles", "--clean", "--remove",
               WORK / "tmpfiles.conf"]]
(WORK / "nothing").mkdir()
run("tar", "-cf", WORK / "in.tar", "-C", SRC, ".")
(WORK / "moved2").mkdir()
used = 0
with open(gen / "model.safetensors", "rb") as f:
    mapping = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
for argv in TOOLS:
    if not shutil.which(argv[0]):
        continue
    used += 1
    run("timeout", "20", *argv, status=None)
    try:
        # Symlinks above it are the user's own.
        if not (line / "serving").is_symlink():
            os.symlink("1", line / "serving")
        equal(facts(line), want, "the lineage")
    except AssertionError as e:
        raise AssertionError(f"{argv}: {e}") from e
check(used > 30, "too few tools here")
equal(mapping[:], (SRC / "model.safetensors").read_bytes(), "the mapping")
run("rm", "-rf", MNT / "t", status=None)
same_tree(gen, SRC)
EOP
