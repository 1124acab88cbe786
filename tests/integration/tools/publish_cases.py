# SPDX-License-Identifier: Apache-2.0
"""Publishes every file and directory of CASES/expected.json on a mount.

expected.json has "files" (file, verdict, strength, error_should_say, tensors
with name, dtype, shape, begin, end, sha256) and "checkpoints" (dir, verdict,
strength, error_should_say, tensor_home).
"""
from wf import *

TOP = pathlib.Path(sys.argv[1])
DAEMON_PID = int(os.environ["DAEMON_PID"])
# A refusal takes no memory worth mentioning, whatever the file asks for.
REFUSAL_BYTES_MAX = 8 << 20
REFUSAL_SECONDS_MAX = 5
faults = []
line = lineage()


def peak():
    text = pathlib.Path(f"/proc/{DAEMON_PID}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024


def reset_peak():
    with contextlib.suppress(OSError):
        pathlib.Path(f"/proc/{DAEMON_PID}/clear_refs").write_text("5")


def tensor_list(entry):
    if "tensors_file" in entry:
        with open(TOP / entry["tensors_file"], encoding="utf-8") as f:
            return [json.loads(x) for x in f]
    return entry.get("tensors") or entry.get("tensors_if_accepted") or []


def attempt(n, fill):
    """Stages with fill, publishes: the verdict, and the sentence or path."""
    stage = line / ".staging" / str(n)
    stage.mkdir()
    fill(stage)
    # Digests are no part of a refusal.
    with contextlib.suppress(OSError):
        ready(stage)
    before = facts(stage)
    reset_peak()
    low = peak()
    began = time.monotonic()
    try:
        os.rename(stage, line / str(n))
        return "accept", line / str(n)
    except OSError as e:
        took = time.monotonic() - began
        sentence = attr(stage, "error")
        equal(errno.errorcode[e.errno], "EBADMSG", f"errno ({sentence})")
        check(took < REFUSAL_SECONDS_MAX, f"refused after {took:.1f} s")
        grown = peak() - low
        check(grown < REFUSAL_BYTES_MAX, f"refusal took {grown} bytes")
        equal(facts(stage), before, "staging after a refusal")
        check(not (line / str(n)).exists(), "half published")
        shutil.rmtree(stage)
        return "reject", sentence


def same_shape(logical, stored):
    """Quantized types count blocks along their last axis."""
    return stored == logical or (
        len(stored) == len(logical) > 0 and stored[:-1] == logical[:-1]
        and stored[-1] > 0 and logical[-1] % (32 * stored[-1]) == 0)


def tensors_are_right(gen, name, expected, gguf):
    """Each expected tensor is in the manifest and has its file."""
    folder = gen / ".weights" / "tensors"
    manifest = json.loads((gen / ".weights" / "manifest.json").read_text())
    equal(len(manifest["tensors"]), len(expected), "tensors in the manifest")
    ids = {t["tensor_id"] for t in manifest["tensors"]}
    equal(ids, {t["name"] for t in expected}, "their names")
    listed = names(folder)
    equal(len(listed), len(expected), "tensor files")
    if len(expected) > 1000:
        # The names are plain there; some of them stand for all.
        some = random.Random(1).sample(expected, 50)
        by_range = {(t["begin"], t["end"]): t["name"] for t in some}
        listed = [t["name"] for t in some]
    want = {}
    for t in expected:
        want.setdefault((t["begin"], t["end"]), []).append(t)
    for file in listed:
        p = folder / file
        path, offset, length = attr(p, "extent").rsplit(",", 2)
        key = (int(offset), int(offset) + int(length))
        equal(path, name, "extent's file")
        shape = json.loads(attr(p, "shape"))
        dtype = attr(p, "dtype")
        match = [t for t in want.get(key, [])
                 if same_shape(t["shape"][::-1] if gguf else t["shape"], shape)
                 and t["dtype"].lower() == dtype.lower()]
        check(match, f"{file}: {dtype} {shape} at {key} is not expected: "
              f"{want.get(key)}")
        want[key].remove(match[0])
        equal(sha(p), match[0]["sha256"], f"bytes of {file}")
    if len(expected) <= 1000:
        equal([x for x in want.values() if x], [], "tensors without a file")


def judge(what, entry, verdict, said, hint_file):
    """The verdict, and that the sentence helps."""
    if verdict != entry["verdict"]:
        if entry["strength"] == "must":
            raise AssertionError(f"{verdict}, not {entry['verdict']}: {said}")
        print(f"# policy: {what}: we {verdict}: {said}")
    if verdict == "reject":
        if hint_file:
            check(hint_file in said, f"no name of the file: {said}")
        hint = entry.get("error_should_say")
        check(not hint or hint.lower() in said.lower(),
              f"does not say {hint!r}: {said}")
        check(len(said) > 20, f"says little: {said}")


def one_file(n, entry):
    path = TOP / entry["file"]
    gguf = path.suffix == ".gguf"
    verdict, said = attempt(n, lambda d: shutil.copy(path, d))
    judge(path.name, entry, verdict, said, path.name)
    if verdict == "accept":
        equal(sha(said / path.name), sha(path), "bytes")
        tensors_are_right(said, path.name, tensor_list(entry), gguf)


def one_directory(n, entry):
    top = TOP / entry["dir"]
    verdict, said = attempt(n, lambda d: shutil.copytree(
        top, d, symlinks=True, dirs_exist_ok=True))
    judge(top.name, entry, verdict, said, None)
    if verdict == "accept":
        equal(facts(said, times=False), facts(top, times=False), "the tree")
        for tensor, home in entry.get("tensor_home", {}).items():
            equal(attr(said / ".weights" / "tensors" / tensor, "extent")
                  .rsplit(",", 2)[0], home, "home of a tensor")


def main():
    doc = json.loads((TOP / "expected.json").read_text())
    n = 0
    for kind, key, function in (("files", "file", one_file),
                                ("checkpoints", "dir", one_directory)):
        for entry in doc[kind]:
            n += 1
            try:
                function(n, entry)
            except (AssertionError, OSError, KeyError, ValueError) as e:
                faults.append(f"{entry[key]}: {e}")
                if not os.path.isdir(f"/proc/{DAEMON_PID}/fd"):
                    break
    print(f"# {n} cases, {len(faults)} faults")
    for fault in faults:
        print("FAULT", fault[:600])
    check(not faults, f"{len(faults)} faults")


main()
