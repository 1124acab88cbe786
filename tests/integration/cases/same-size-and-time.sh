# SPDX-License-Identifier: Apache-2.0
# Bytes belong to the generation in the path: no size, time or inode number that
# two files have in common makes one pass for the other. In a staging directory
# the last ones written are published; what somebody changed in the store itself
# is never served.
# MANUAL
# TIMEOUT: 400
. "$TESTS/integration/tools/py.sh"
expect_log 'Input/output error'

py <<'EOP'
from residency import *
from wf import *

need_root()
MIB = 1 << 20
SIZE = 8 * MIB
WHEN = 1_700_000_000_123_456_789
NAME = "model.safetensors"


def same_times(top):
    for path in [top, *top.rglob("*")]:
        os.utime(path, ns=(WHEN, WHEN))
    return top


def version(n):
    """Sizes, names and times are those of every other one."""
    return same_times(checkpoint(f"v{n}", size=SIZE, seed=n))


def tensors_of(gen):
    return {p.name: sha(p) for p in (gen / ".weights" / "tensors").iterdir()}


def by_mapping(path):
    with mapped(path) as m:
        return hashlib.sha256(m).hexdigest()


def by_sendfile(path):
    out = os.memfd_create("out")
    fd = os.open(path, os.O_RDONLY)
    at, size = 0, os.fstat(fd).st_size
    while at < size:
        at += os.sendfile(out, fd, at, size - at)
    os.close(fd)
    os.lseek(out, 0, os.SEEK_SET)
    with os.fdopen(out, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def direct(path):
    """Past the cache, as far as that is allowed."""
    size = os.stat(path).st_size
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as e:
        equal(e.errno, errno.EINVAL, "O_DIRECT")
        return sha(path)
    m = mmap.mmap(-1, (size + 4095) // 4096 * 4096)
    at = 0
    while at < size:
        n = os.preadv(fd, [memoryview(m)[at:]], at)
        check(n > 0, "a short direct read")
        at += n
    os.close(fd)
    return hashlib.sha256(m[:size]).hexdigest()


def with_dd(path):
    return run("sha256sum", path).split()[0]


def is_version(gen, source, where):
    """Read in all ways, by us and by others, it is what was copied in."""
    want = sha(source / NAME)
    for how in [sha, by_mapping, by_sendfile, direct, with_dd]:
        equal(how(gen / NAME), want, f"{where} {how.__name__}")
    equal(attr(gen / NAME, "sha256"), want, f"{where} sha256")
    same_tree(gen, source)


def generations():
    """One after the other, side by side, and in the place of a removed one."""
    line = lineage("generations")
    sources = [version(n) for n in range(1, 4)]
    gens, tensors = [], []
    for n, source in enumerate(sources, 1):
        gen = put(line, n, source)
        gens.append(gen)
        os.symlink(str(n), line / "new")
        os.rename(line / "new", line / "latest")
        is_version(line / "latest", source, "latest")
        tensors.append(tensors_of(gen))
        for old, src in zip(gens, sources):
            is_version(old, src, old.name)
    check(len({tuple(sorted(t.items())) for t in tensors}) == len(tensors),
          "tensors of two generations are the same")
    equal(len({attr(g / NAME, "digest") for g in gens}), 3, "digests")
    for gen, source in zip(gens, sources):
        settle(gen)
        move(gen, "cold")
        settle(gen)
        is_version(gen, source, "cold " + gen.name)
        move(gen, "hot")
        settle(gen)
        is_version(gen, source, "hot " + gen.name)
        equal(tensors_of(gen), tensors[gens.index(gen)], "tensors")
    # Those of a number that comes again in another lineage are others.
    other = put(lineage("others"), 1, sources[2])
    is_version(other, sources[2], "another lineage")
    is_version(gens[0], sources[0], "the first lineage")


def inode_numbers():
    """What is removed leaves its inodes to what comes next."""
    line = lineage("inodes")
    seen, again = set(), 0
    for n in range(1, 9):
        source = version(10 + n)
        gen = put(line, n, source)
        with mapped(gen / NAME) as m:
            equal(hashlib.sha256(m).hexdigest(), sha(source / NAME), "mapped")
        again += os.stat(gen / NAME).st_ino in seen
        seen.add(os.stat(gen / NAME).st_ino)
        is_version(gen, source, f"generation {n}")
        tensors = tensors_of(gen)
        equal(tensors_of(gen), tensors, "tensors, again")
        equal(sorted(tensors.values()), sorted(of_file(source / NAME)),
              "tensors of the file")

        def gone(gen=gen):
            try:
                remove(gen)
            except OSError as e:
                equal(e.errno, errno.EBUSY, "remove")
                return False
            return True
        wait_for(gone, "removed")
    print(f"# {again} of 8 got the inode number of another before")


def of_file(path):
    """The digests of its tensors, as a loader finds them."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    return [hashlib.sha256(data[8 + length:][slice(*t["data_offsets"])])
            .hexdigest() for t in header.values()]


def in_place(path, data):
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, data, os.fstat(fd).st_size - 1000)
    os.close(fd)


def through_a_mapping(path, data):
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[len(m) - 1000:len(m) - 1000 + len(data)] = data


def truncated_and_copied(path, data):
    old = bytearray(path.read_bytes())
    old[len(old) - 1000:len(old) - 1000 + len(data)] = data
    path.write_bytes(old)


def renamed_over(path, data):
    shutil.copy2(path, path.with_name("other"))
    in_place(path.with_name("other"), data)
    os.rename(path.with_name("other"), path)


def by_copy_file_range(path, data):
    one = path.with_name("piece")
    one.write_bytes(data)
    a, b = os.open(one, os.O_RDONLY), os.open(path, os.O_RDWR)
    at = os.fstat(b).st_size - 1000
    equal(os.copy_file_range(a, b, len(data), 0, at), len(data), "copied")
    os.close(a)
    os.close(b)
    one.unlink()


def in_staging():
    """Four bytes more are others; digests had been made of the old ones."""
    line = lineage("staged")
    source = version(30)
    for n, how in enumerate([in_place, through_a_mapping, truncated_and_copied,
                             renamed_over, by_copy_file_range], 1):
        stage = staging(line, n, source)
        ready(stage)
        old = bytearray((stage / NAME).read_bytes())
        data = b"%04d" % n
        check(data not in old, "it is there already")
        with Client() as c:
            c.do("held = open(args[0], 'rb')", stage / NAME)
            before = os.stat(stage / NAME)
            how(stage / NAME, data)
            os.utime(stage / NAME, ns=(before.st_atime_ns, before.st_mtime_ns))
            after = os.stat(stage / NAME)
            equal((after.st_size, after.st_mtime_ns),
                  (before.st_size, before.st_mtime_ns), "size and time")
            old[len(old) - 1000:len(old) - 1000 + 4] = data
            want = hashlib.sha256(old).hexdigest()
            equal(sha(stage / NAME), want, f"{how.__name__}: staged")
            equal(c.get("hashlib.sha256(open(args[0], 'rb').read())"
                        ".hexdigest()", stage / NAME), want, "for another")
            if how is not renamed_over:
                equal(c.get("hashlib.sha256(held.read()).hexdigest()"), want,
                      f"{how.__name__}: who has it open")
        gen = publish(stage)
        for read in [sha, by_mapping, by_sendfile, direct]:
            equal(read(gen / NAME), want, f"{how.__name__} {read.__name__}")
        equal(attr(gen / NAME, "sha256"), want, how.__name__)
        set_attr(gen, "scrub", 1)
        settle(gen)
        says(attr(gen, "scrub"), ", 0 bad$")
        equal(attr(gen, "durable"), "yes", "durable")


def changed_below(below, at):
    st = below.stat()
    fd = os.open(below, os.O_RDWR)
    old = os.pread(fd, 4, at)
    os.pwrite(fd, bytes(b ^ 0xff for b in old), at)
    os.fsync(fd)
    os.close(fd)
    os.utime(below, ns=(st.st_atime_ns, st.st_mtime_ns))


def changed_by_mapping(below, at):
    st = below.stat()
    with open(below, "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[at] ^= 0xff
        m.flush()
    os.utime(below, ns=(st.st_atime_ns, st.st_mtime_ns))


def replaced_below(below, at):
    other = WORK / "store" / "foreign"
    shutil.copy2(below, other)
    changed_below(other, at)
    os.rename(other, below)


def of_another_generation(below, at):
    """The file of a neighbour, with its size and its times."""
    other = WORK / "store" / "foreign"
    shutil.copy2(WORK / "v41" / NAME, other)
    os.rename(other, below)


def never_foreign(gen, source):
    """Right, or EIO. How many pieces were EIO."""
    want = (source / NAME).read_bytes()
    bad = 0
    try:
        fd = os.open(gen / NAME, os.O_RDONLY)
    except OSError as e:
        check(e.errno in (errno.EIO, errno.EINPROGRESS), repr(e))
        return 1
    try:
        for at in range(0, len(want), 256 << 10):
            try:
                equal(os.pread(fd, 256 << 10, at), want[at:at + (256 << 10)],
                      f"bytes at {at}")
            except OSError as e:
                equal(e.errno, errno.EIO, f"at {at}")
                bad += 1
    finally:
        os.close(fd)
    try:
        equal(by_mapping_safely(gen / NAME), sha(source / NAME), "mapped")
    except OSError as e:
        check(e.errno in (errno.EIO, errno.EINPROGRESS), repr(e))
    return bad


def by_mapping_safely(path):
    """SIGBUS is an answer, too."""
    with Client() as c:
        try:
            return c.get("hashlib.sha256(mapped(args[0])).hexdigest()", path)
        except EOFError as e:
            raise OSError(errno.EIO, "SIGBUS") from e


def behind_the_back(d, instants):
    source, _ = version(40), version(41)
    n = 0
    for how in [changed_below, changed_by_mapping, replaced_below,
                of_another_generation]:
        for temperature in ["hot", "cold"]:
            for instant in instants:
                n += 1
                line = lineage(f"back{n}")
                gen = put(line, 1, source)
                settle(gen)
                move(gen, temperature)
                settle(gen)
                where = f"{how.__name__} {temperature} {instant}"
                print("#", where, flush=True)
                wait_for(lambda: attr(gen, "leases") == "0", "no lease")
                if instant == "stopped":
                    d.stop()
                elif instant == "killed":
                    d.kill()
                below = [p for p in (STORE / "groups").rglob(NAME)
                         if sha(p) == sha(source / NAME)]
                equal(len(below), 1, "files")
                how(below[0], 5 * MIB + 17)
                if instant != "running":
                    d.start()
                bad = never_foreign(gen, source)
                print("#   pieces that are EIO:", bad, flush=True)
                stage = staging(line, 2, source)
                ready(stage)
                set_attr(gen, "repair", 1)
                settle(gen)
                equal(attr(gen, "availability"), "ready", where)
                equal(sha(gen / NAME), sha(source / NAME), where)
                remove_soon(gen)
                shutil.rmtree(stage)


def remove_soon(gen):
    def gone():
        try:
            remove(gen)
        except OSError as e:
            equal(e.errno, errno.EBUSY, "remove")
            return False
        return True
    wait_for(gone, "removed")


def life(instants, *options):
    with Daemon(*options) as d:
        generations()
        inode_numbers()
        in_staging()
        behind_the_back(d, instants)


life(["running", "stopped", "killed"])
shutil.rmtree(STORE)
life(["running", "killed"], "passthrough=off")
EOP
