# SPDX-License-Identifier: Apache-2.0
# Files that change while they are hashed are published as they became.
# OPTIONS: durability=none
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

line = lineage()
rng = random.Random(4)
MODEL = {"w": rng.randbytes(8_000_000)}


def digests_are_right(gen):
    manifest = json.loads((gen / ".weights" / "manifest.json").read_text())
    sums = {}
    for p in gen.rglob("*"):
        if p.is_file() and not p.is_symlink():
            data = p.read_bytes()
            for o in manifest["objects"]:
                if o["size"] == len(data):
                    step = o["chunk_size"]
                    chunks = [hashlib.sha256(data[i:i + step]).hexdigest()
                              for i in range(0, len(data), step)]
                    if chunks == o["chunks"]:
                        sums[p] = o
    files = {p for p in gen.rglob("*") if p.is_file() and not p.is_symlink()}
    equal(set(sums), files, "files whose digests are right")
    run("sha256sum", "-c", "--quiet", gen / ".weights" / "sha256sums",
        cwd=gen)


def rewritten(stage):
    with open(stage / "model.safetensors", "r+b") as f:
        f.seek(-5, os.SEEK_END)
        f.write(b"LATER")


def rewritten_with_old_times(stage):
    st = os.stat(stage / "model.safetensors")
    rewritten(stage)
    os.utime(stage / "model.safetensors",
             ns=(st.st_atime_ns, st.st_mtime_ns))


def mapped_and_changed(stage):
    with open(stage / "model.safetensors", "r+b") as f:
        m = mmap.mmap(f.fileno(), 0)
    ready_in_part(stage)
    m[-5:] = b"LATER"
    m.close()


def ready_in_part(stage):
    with contextlib.suppress(OSError):
        fd = os.open(stage / ".weights" / "wait", os.O_RDONLY)
        os.read(fd, 100)
        os.close(fd)


def recreated(stage):
    os.unlink(stage / "model.safetensors")
    safetensors(stage / "model.safetensors", {"w": MODEL["w"][::-1]})


def replaced(stage):
    safetensors(stage / ".new", {"w": MODEL["w"][::-1]})
    os.rename(stage / ".new", stage / "model.safetensors")


def renamed_away_and_back(stage):
    os.rename(stage / "model.safetensors", stage / "x.bin")
    os.mkdir(stage / "d")
    os.rename(stage / "x.bin", stage / "d" / "model.safetensors")


def linked_and_unlinked(stage):
    os.link(stage / "model.safetensors", stage / "second.safetensors")
    os.unlink(stage / "model.safetensors")
    os.link(stage / "second.safetensors", stage / "third.safetensors")


def exchanged(stage):
    safetensors(stage / "other.safetensors", {"v": MODEL["w"][:-1]})
    rename2(stage / "other.safetensors", stage / "model.safetensors",
            RENAME_EXCHANGE)


def truncated_and_grown(stage):
    size = os.stat(stage / "model.safetensors").st_size
    os.truncate(stage / "model.safetensors", 100_000)
    os.truncate(stage / "model.safetensors", size)


def punched(stage):
    with open(stage / "model.safetensors", "r+b") as f:
        fallocate(f.fileno(), 3, 1 << 20, 1 << 20)


def copied_into(stage):
    with open(stage / "model.safetensors", "r+b") as f:
        with contextlib.suppress(OSError):
            os.copy_file_range(f.fileno(), f.fileno(), 4096, 100_000, 200_000)


def appended(stage):
    with open(stage / "notes.txt", "a") as f:
        f.write("more\n")


def unlinked_while_open(stage):
    with open(stage / "notes.txt", "a") as f:
        os.unlink(stage / "notes.txt")
        f.write("more\n")
    (stage / "notes.txt").write_text("again\n")


def moved_to_another_staging(stage):
    other = staging(line, int(stage.name) + 500)
    os.rename(stage / "model.safetensors", other / "model.safetensors")
    os.rename(other / "model.safetensors", stage / "moved.safetensors")
    os.rmdir(other)


CHANGES = [rewritten, rewritten_with_old_times, mapped_and_changed, recreated,
           replaced, renamed_away_and_back, linked_and_unlinked, exchanged,
           truncated_and_grown, punched, copied_into, appended,
           unlinked_while_open, moved_to_another_staging]
n = 0
for change in CHANGES:
    for when in ("at once", "when ready"):
        n += 1
        print("#", change.__name__, when, flush=True)
        stage = staging(line, n)
        (stage / "notes.txt").write_text("notes\n")
        safetensors(stage / "model.safetensors", MODEL)
        if when == "when ready":
            ready(stage)
        change(stage)
        want = facts(stage)
        os.rename(stage, line / str(n))
        equal(facts(line / str(n)), want, change.__name__)
        digests_are_right(line / str(n))
EOP
