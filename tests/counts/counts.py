#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what must never grow: requests, faults, syncs, bytes. Never a time.

usage: counts.py DAEMON

Prints TAP. Real mounts below the daemon's own directory, all removed at the
end. What can't be counted here (no strace, no passthrough) is a skip.
"""
import contextlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent /
                       "bench"))
from mounts import MIB, Mount, run, status_kib, write_safetensors  # noqa: E402
from watch import Watch  # noqa: E402

FILE_BYTES = 128 * MIB
FILES = 200
OPENS = 200
HANDLES = 5_000
TENSORS = 100_000
SHARDS = 16

# Limits, each with what it stands for.
ANON_BASE_BYTES = 64 * MIB
ANON_HANDLE_BYTES = 200
LIST_FIRST_MAX = 3       # per entry: the name, and what ls asks beside it
LIST_AGAIN_MAX = 2       # per entry: only what ls asks beside the attributes
LIST_FIXED_MAX = 24      # the directory itself and the path to it
SYNCS_PUBLISH_MAX = 24   # the manifest, directories, the record; no payload
SYNCS_BACK_MAX = 24      # the same again, but for the manifest, and the stamps
FAULTS_GIB_MAX = 20_000  # 64 KiB each and some; huge folios need 512
READ_BYTES_MAX = MIB     # what the daemon reads while others read 128 MiB
WRITTEN_BYTES_MAX = MIB  # what it writes while 128 MiB become durable
STORE_BYTES_MAX = 8 * MIB  # what a store has on the disk beside the payload


class Skip(Exception):
    pass


class World:
    def __init__(self, daemon):
        self.daemon = daemon
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="counts.",
                                                 dir=daemon.parent))
        self.mounts = []
        self.block = os.urandom(MIB)
        text = daemon.read_bytes()
        self.sanitized = b"__asan_init" in text or b"__tsan_init" in text
        self.mount = Mount(self, "all",
                           os.environ.get("WEIGHTFS_TEST_OPTIONS", ""))
        health = (self.mount.path / ".weights" / "health").read_text()
        self.passthrough = "passthrough: yes" in health
        self.pins = "memory can be locked: yes" in health

    def close(self):
        for mount in self.mounts:
            with contextlib.suppress(OSError):
                mount.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def source(self, name):
        path = self.dir / name
        path.mkdir()
        return path

    def publish(self, source, generation):
        """Nothing is pending any more: what comes is what a test does."""
        path = self.mount.put(source, generation)
        shutil.rmtree(source)
        self.mount.settle(generation)
        return path

    def need(self, passthrough=False, strace=False, plain=False, pins=False):
        if passthrough and not self.passthrough:
            raise Skip("no passthrough here")
        if strace and not shutil.which("strace"):
            raise Skip("no strace")
        if pins and not self.pins:
            raise Skip("memory can't be locked here")
        if plain and self.sanitized:
            raise Skip("a sanitizer has memory of its own")

    def watch(self, mount=None):
        self.need(strace=True)
        return Watch(mount or self.mount, self.dir / "trace")

    def one_file(self):
        """A revision with one large file, made when first asked for."""
        path = self.mount.lineage / "1" / "model.safetensors"
        if not path.exists():
            source = self.source("one")
            write_safetensors(source / "model.safetensors",
                              [("a", FILE_BYTES)], self.block)
            self.publish(source, 1)
            if self.pins:
                check(self.mount.attribute(1, "residency") == "hot", "not hot")
        return path

    def many_files(self):
        path = self.mount.lineage / "2"
        if not path.exists():
            source = self.source("many")
            for i in range(FILES):
                (source / f"part-{i:03}.txt").write_text(f"{i}\n")
            self.publish(source, 2)
        return path

    def many_tensors(self):
        path = self.mount.lineage / "3"
        if not path.exists():
            source = self.source("tensors")
            write_safetensors(source / "model.safetensors",
                              [(f"model.layers.{i}.weight", 4)
                               for i in range(TENSORS)], self.block)
            self.publish(source, 3)
        return path / ".weights" / "tensors"


def check(holds, text):
    if not holds:
        raise AssertionError(text)


def open_and_close(path, count):
    for _ in range(count):
        os.close(os.open(path, os.O_RDONLY))


@contextlib.contextmanager
def leased(path):
    """Held open, and used once: the steady state of a server's files."""
    fd = os.open(path, os.O_RDONLY)
    try:
        open_and_close(path, 1)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def an_open_and_its_close_are_two_requests(world):
    """And no disk is written or waited for."""
    world.need(passthrough=True)
    with leased(world.one_file()) as path, world.watch() as watch:
        with watch.section() as seen:
            open_and_close(path, OPENS)
        said = f"{OPENS} times: {seen}"
        check(seen.requests["OPEN"] == OPENS, said)
        check(seen.requests["RELEASE"] <= OPENS, said)
        check(sum(seen.requests.values()) <= 2 * OPENS, said)
        check(seen.writes == 0 and not seen.syncs,
              f"{seen.writes} writes, {sum(seen.syncs.values())} syncs")
        return said


def an_open_in_steady_state_writes_nothing_to_disk(world):
    def written():
        with open(f"/proc/{world.mount.pid}/io", encoding="ascii") as f:
            io = dict(line.split(": ") for line in f.read().splitlines())
        return (int(io["write_bytes"]),
                world.mount.metric("lease_writes_total"),
                world.mount.metric("metadata_commits_total"),
                world.mount.metric("fsyncs_total"))

    with leased(world.one_file()) as path:
        before = written()
        open_and_close(path, 10 * OPENS)
        after = written()
    check(after == before, f"bytes, lease writes, commits, fsyncs: "
          f"{before} became {after}")


def read_all(path):
    with open(path, "rb", buffering=0) as f:
        while f.read(MIB):
            pass


TOUCH = """
import mmap, os, resource, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
m = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF)[6:8]
m[0]
before = faults()
for at in range(0, len(m), 4096):
    m[at]
print(*(now - then for now, then in zip(faults(), before)))
"""


def faults_of(path):
    """All of them, and those that waited for the disk."""
    few, slow = map(int, run(sys.executable, "-c", TOUCH, path).split())
    return few + slow, slow


def reading_and_mapping_reach_no_daemon(world):
    """A gigabyte costs what its opening costs."""
    world.need(passthrough=True)
    path = world.one_file()
    with leased(path) as held, world.watch() as watch:
        with watch.section() as seen:
            fd = os.open(held, os.O_RDONLY)
            with open(fd, "rb", buffering=0) as f:
                while f.read(MIB):
                    pass
        check(sum(seen.requests.values()) <= 4, f"read: {seen}")
        said = f"read: {seen}"
        with watch.section() as seen:
            faults_of(path)
        # Names on the way may have to be asked for again.
        few = seen.requests.total() - seen.requests["LOOKUP"]
        check(few <= 6 and seen.requests["READ"] == 0, f"mapped: {seen}")
        return f"{said}; mapped: {seen}"


def the_daemon_reads_no_byte_that_is_read(world):
    world.need(passthrough=True)
    path = world.one_file()

    def daemon_read():
        with open(f"/proc/{world.mount.pid}/io", encoding="ascii") as f:
            return int(f.readline().split()[1])

    before = daemon_read()
    read_all(path)
    faults_of(path)
    check(daemon_read() - before <= READ_BYTES_MAX,
          f"{daemon_read() - before} bytes")


def a_map_faults_as_rarely_as_on_the_disk(world):
    world.need(passthrough=True)
    path = world.one_file()
    read_all(path)
    native, _ = faults_of(world.mount.backing("model.safetensors"))
    ours, _ = faults_of(path)
    scale = (1 << 30) // FILE_BYTES
    said = f"{ours * scale} faults per GiB, natively {native * scale}"
    check(ours * scale <= FAULTS_GIB_MAX, said)
    check(ours <= native + native // 10 + 16, said)
    return said


def a_hot_map_never_waits_for_the_disk(world):
    """And faults as rarely, in whatever way it came into memory."""
    world.need(passthrough=True, pins=True)
    path = world.one_file()
    seen = {"published": faults_of(path)}
    world.mount.migrate(1, "cold")
    world.mount.migrate(1, "hot")
    seen["moved"] = faults_of(path)
    world.mount.fresh()
    world.mount.settle(1, "hot")
    seen["restarted"] = faults_of(path)
    scale = (1 << 30) // FILE_BYTES
    said = ", ".join(f"{how}: {few * scale} faults per GiB, {slow} slow"
                     for how, (few, slow) in seen.items())
    for few, slow in seen.values():
        check(few * scale <= FAULTS_GIB_MAX and slow == 0, said)
    return said


def listing_with_attributes_asks_little_per_entry(world):
    revision = world.many_files()
    world.mount.fresh()
    with world.watch() as watch:
        with watch.section() as first:
            run("ls", "-l", revision)
        with watch.section() as again:
            run("ls", "-l", revision)
    said = f"{FILES} entries, first: {first}; again: {again}"
    check(first.requests.total() <= LIST_FIRST_MAX * FILES + LIST_FIXED_MAX,
          said)
    check(again.requests.total() <= LIST_AGAIN_MAX * FILES + LIST_FIXED_MAX,
          said)
    return said


def stage_shards(world, mount, generation, shards):
    source = world.source(f"shards-{shards}")
    for i in range(shards):
        write_safetensors(source / f"model-{i}.safetensors",
                          [(f"layer.{i}", 65537)], world.block)
    staged = mount.stage(generation)
    run("cp", "-r", f"{source}/.", staged)
    shutil.rmtree(source)
    mount.wait(generation)


def hashed(world):
    return (world.mount.metric("chunks_hashed_total"),
            world.mount.metric("bytes_hashed_total"))


def a_rename_after_wait_hashes_nothing(world):
    """What is written back is read again, each byte once."""
    stage_shards(world, world.mount, 10, SHARDS)
    before = hashed(world)
    check(before[0] >= SHARDS, f"only {before[0]} chunks were hashed")
    revision = world.mount.publish(10)
    world.mount.settle(10)
    size = sum(p.stat().st_size for p in revision.iterdir())
    after = hashed(world)
    check((after[0] - before[0], after[1] - before[1]) == (SHARDS, size),
          f"{before} became {after}, of {SHARDS} files with {size} bytes")


def fsyncs(seen):
    """Those that wait for all of a file. The others write some of it out."""
    return seen.syncs.total() - seen.syncs["sync_file_range"]


def publishing_syncs_no_payload(world):
    """As many syncs for many files as for one, and few."""
    # Nothing gets written back within an hour.
    slow = Mount(world, "slow", "io_limit=1K")
    syncs = []
    for generation, shards in ((11, 1), (12, SHARDS)):
        stage_shards(world, slow, generation, shards)
        with world.watch(slow) as watch, watch.section() as seen:
            slow.publish(generation)
        syncs.append(fsyncs(seen))
        check(slow.attribute(generation, "durable") == "no", "durable")
    slow.stop()
    said = f"{syncs[0]} syncs with 1 file, {syncs[1]} with {SHARDS}"
    check(syncs[0] == syncs[1] and syncs[0] <= SYNCS_PUBLISH_MAX, said)
    return said


def what_becomes_durable_is_synced_once(world):
    """Each file, from being copied in until it is durable; and few others."""
    syncs, counted = [], []
    for generation, shards in ((13, 1), (14, SHARDS)):
        before = world.mount.metric("fsyncs_total")
        with world.watch() as watch, watch.section() as seen:
            stage_shards(world, world.mount, generation, shards)
            world.mount.publish(generation)
            world.mount.settle(generation)
        check(world.mount.attribute(generation, "durable") == "yes", "not")
        syncs.append(fsyncs(seen))
        counted.append(world.mount.metric("fsyncs_total") - before)
    said = (f"{syncs[0]} syncs with 1 file, {syncs[1]} with {SHARDS}; the "
            f"daemon counts {counted[0]} and {counted[1]} but for its records")
    check(syncs[1] - syncs[0] == SHARDS - 1, said)
    check(counted[1] - counted[0] == SHARDS - 1, said)
    check(syncs[0] <= SYNCS_PUBLISH_MAX + SYNCS_BACK_MAX, said)
    return said


def every_byte_is_there_once(world):
    """Publishing, pinning and writing back copy nothing."""
    world.need(passthrough=True, plain=True)

    def daemon():
        with open(f"/proc/{world.mount.pid}/io", encoding="ascii") as f:
            io = dict(line.split(": ") for line in f.read().splitlines())
        return int(io["rchar"]), int(io["wchar"])

    source = world.source("once")
    write_safetensors(source / "model.safetensors", [("a", FILE_BYTES)],
                      world.block)
    before, anon = daemon(), anon_bytes(world)
    revision = world.publish(source, 20)
    after = daemon()
    read, written = after[0] - before[0], after[1] - before[1]
    size = (revision / "model.safetensors").stat().st_size
    grown = anon_bytes(world) - anon
    said = (f"{size / MIB:.1f} MiB: read {read / MIB:.1f}, wrote "
            f"{written / MIB:.1f}, memory of its own grew by "
            f"{grown / MIB:.1f}")
    # Once for the digests, once back from the device.
    check(read <= 2 * size + READ_BYTES_MAX, said)
    check(written <= WRITTEN_BYTES_MAX and grown <= ANON_BASE_BYTES, said)
    used = int(run("du", "-s", "--block-size=1", world.mount.store / "groups")
               .split()[0])
    payload = sum(p.stat().st_size for p in
                  (world.mount.store / "groups").glob("*/*/files/*"))
    check(used <= payload + STORE_BYTES_MAX,
          f"{used} bytes on the disk for {payload}")
    world.mount.remove(20)
    return said


def anon_bytes(world):
    return status_kib(world.mount.pid, "RssAnon") * 1024


def open_files_cost_the_daemon_little(world):
    world.need(plain=True)
    path = world.one_file()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 2 * HANDLES:
        raise Skip(f"only {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * HANDLES, hard))
    before, fds = anon_bytes(world), []
    try:
        while len(fds) < HANDLES:
            fds.append(os.open(path, os.O_RDONLY))
        after = anon_bytes(world)
    finally:
        for fd in fds:
            os.close(fd)
    said = (f"{after / MIB:.1f} MiB with {HANDLES} files open, "
            f"{(after - before) / HANDLES:.0f} bytes each")
    check(after <= ANON_BASE_BYTES + HANDLES * ANON_HANDLE_BYTES, said)
    return said


def many_tensors_cost_the_daemon_little(world):
    """Also with every name looked up and some tensors mapped."""
    world.need(plain=True)
    tensors = world.many_tensors()
    before = anon_bytes(world)
    names = os.listdir(tensors)
    check(len(names) == TENSORS, f"{len(names)} names")
    listed = anon_bytes(world)
    run("ls", "-l", tensors)
    for name in names[::TENSORS // 100]:
        (tensors / name).read_bytes()
    after = anon_bytes(world)
    said = (f"{TENSORS} tensors: {before / MIB:.1f} MiB published, "
            f"{listed / MIB:.1f} listed, {after / MIB:.1f} looked up")
    check(after <= ANON_BASE_BYTES, said)
    return said


def the_daemon_has_ended_in_order(world):
    world.mount.stop()
    check(world.mount.status == 0, f"status {world.mount.status}: "
          f"{world.mount.log.read_text()[-2000:]}")


TESTS = [
    an_open_and_its_close_are_two_requests,
    an_open_in_steady_state_writes_nothing_to_disk,
    reading_and_mapping_reach_no_daemon,
    the_daemon_reads_no_byte_that_is_read,
    a_map_faults_as_rarely_as_on_the_disk,
    a_hot_map_never_waits_for_the_disk,
    listing_with_attributes_asks_little_per_entry,
    a_rename_after_wait_hashes_nothing,
    publishing_syncs_no_payload,
    what_becomes_durable_is_synced_once,
    every_byte_is_there_once,
    open_files_cost_the_daemon_little,
    many_tensors_cost_the_daemon_little,
    the_daemon_has_ended_in_order,
]


def one(number, test, world):
    name = test.__name__.replace("_", " ")
    try:
        said = test(world)
    except Skip as e:
        print(f"ok {number} - {name} # SKIP {e}", flush=True)
        return True
    except Exception as e:  # noqa: BLE001: the rest still runs
        print(f"not ok {number} - {name}")
        for line in traceback.format_exception(e):
            print("# " + line.rstrip().replace("\n", "\n# "))
        return False
    print(f"ok {number} - {name}", flush=True)
    if said:
        print(f"# {said}", flush=True)
    return True


def main():
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        print("1..0 # SKIP not root, or no /dev/fuse")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    world = World(pathlib.Path(sys.argv[1]).resolve())
    try:
        print(f"1..{len(TESTS)}")
        good = [one(i, test, world) for i, test in enumerate(TESTS, 1)]
    finally:
        world.close()
    return 0 if all(good) else 1


sys.exit(main())
