# SPDX-License-Identifier: Apache-2.0
# Processes that share one descriptor and jump about in a cold file, in small
# pieces and large ones: their bytes are right, and the disk is asked once for
# each of them, however many ask.
# MANUAL
# TIMEOUT: 180
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
import threading

from disks import Disk
from residency import *
from wf import *

need_root()
MIB = 1 << 20
SIZE, CHILDREN = 64 * MIB, 8
src = checkpoint("src", size=SIZE)
NAME = "model.safetensors"
data = (src / NAME).read_bytes()
disk = Disk("disk", 192 * MIB)


def eighth(i):
    return len(data) * i // CHILDREN, len(data) * (i + 1) // CHILDREN


def compare(fd, at, size, end):
    size = min(size, end - at)
    return os.pread(fd, size, at) == data[at:at + size]


def forward(fd, i):
    first, end = eighth(i)
    return all(compare(fd, at, 256 << 10, end)
               for at in range(first, end, 256 << 10))


def backward(fd, i):
    first, end = eighth(i)
    return all(compare(fd, at, 128 << 10, end)
               for at in reversed(range(first, end, 128 << 10)))


def in_pages(fd, i):
    """All pages of its eighth, 4 KiB each, in no order."""
    first, end = eighth(i)
    places = list(range(first, end, 4096))
    random.Random(i).shuffle(places)
    return all(compare(fd, at, 4096, end) for at in places)


def in_turn(fd, i):
    """The pieces of one sequence, dealt to the children like cards."""
    return all(compare(fd, at, 256 << 10, len(data))
               for at in range(i * (256 << 10), len(data),
                               CHILDREN * (256 << 10)))


def everybody_all(fd, i):
    """Each wants the whole file, and starts elsewhere."""
    step = 512 << 10
    places = list(range(0, len(data), step))
    places = places[i * len(places) // 8:] + places[:i * len(places) // 8]
    return all(compare(fd, at, step, len(data)) for at in places)


def by_mapping(fd, i):
    first, end = eighth(i)
    m = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    return m[first:end] == data[first:end]


def one_position(fd, i):
    """read(2) moves the position that all share: whatever it returns was there
    where it says, and the end comes for all."""
    while part := os.read(fd, 64 << 10):
        if part not in (data[at:at + len(part)]
                        for at in range(0, len(data), 64 << 10)):
            return False
    return True


def forked(fd, how):
    pids = []
    for i in range(CHILDREN):
        pid = os.fork()
        if pid == 0:
            status = 3
            with contextlib.suppress(BaseException):
                status = 0 if how(fd, i) else 2
            os._exit(status)
        pids.append(pid)
    for i, pid in enumerate(pids):
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        check(status == 0, f"{how.__name__}: child {i}: " + (
            "wrong bytes" if status == 2 else f"status {status}"))


def threads(fd, how):
    results = [False] * CHILDREN

    def do(i):
        results[i] = how(fd, i)
    running = [threading.Thread(target=do, args=(i,)) for i in range(CHILDREN)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    check(all(results), f"{how.__name__} in threads: {results}")


def read_bytes():
    """What the device of the store was asked for so far."""
    name = disk.device.rsplit("/", 1)[1]
    return 512 * int(pathlib.Path(f"/sys/block/{name}/stat").read_text()
                     .split()[2])


def forget(gen, below):
    for path in [gen / NAME, below]:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def nobody_has_it(gen, below):
    """Prefetching for who looked before is over, and the cache is empty."""
    def empty():
        if attr(gen, "leases") != "0":
            return False
        with open(below, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return resident(below) == 0.0
    forget(gen, below)
    wait_for(empty, "it is out of the cache", 60)


def once(gen, below, how, run_in):
    nobody_has_it(gen, below)
    before = read_bytes()
    fd = os.open(gen / NAME, os.O_RDONLY)
    run_in(fd, how)
    os.close(fd)
    asked = read_bytes() - before
    print(f"# {how.__name__}: {asked / len(data):.2f} of the file", flush=True)
    check(asked > len(data) * 0.9, f"{how.__name__}: it wasn't cold: {asked}")
    check(asked < len(data) * 1.5, f"{how.__name__}: {asked} bytes were read "
          f"for {len(data)}")


def read_ahead():
    dev = os.stat(MNT).st_dev
    path = pathlib.Path(f"/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}"
                        "/read_ahead_kb")
    return int(path.read_text())


def life(options, generation):
    with Daemon(*options, store=disk.store):
        check(read_ahead() >= 1024, f"read_ahead_kb is {read_ahead()}")
        line = lineage()
        gen = line / str(generation)
        if not gen.exists():
            gen = put(line, generation, src)
        settle(gen)
        move(gen, "cold")
        settle(gen)
        comes_to(gen, "cold")
        below = next((disk.store / "groups").rglob(NAME))
        for how in [forward, backward, in_turn, in_pages, everybody_all,
                    by_mapping]:
            once(gen, below, how, forked)
        once(gen, below, forward, threads)
        nobody_has_it(gen, below)
        fd = os.open(gen / NAME, os.O_RDONLY)
        forked(fd, one_position)
        os.close(fd)
        equal(attr(gen, "residency"), "cold", "residency")
        print("# prefetched:", metric("weightfs_prefetched_bytes_total"))


life([], 1)
life(["passthrough=off"], 1)
EOP
