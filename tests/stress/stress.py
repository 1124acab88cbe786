#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Readers under stress: processes map, read, splice and close files of several
revisions without end, and look at every byte, while revisions are published,
moved between HOT and COLD, and removed.

usage: stress.py SECONDS DAEMON CLIENT

No byte is wrong, no revision goes while somebody holds it, no call hangs. When
all is over, leases, pinned bytes, the daemon's memory and its descriptors are
back at their level. A short round before sets the levels. Mount options can be
given in WEIGHTFS_TEST_OPTIONS.
"""
import collections
import contextlib
import errno
import mmap
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent /
                       "bench"))
from mounts import Mount, status_kib  # noqa: E402

READERS = 8
ALIVE = 4           # generations at a time
HANG_S = 60         # nothing may take longer
WARM_UP_SHARE = 4   # one part in so many
WARM_UP_S_MIN = 5
SLACK_KIB = 8192
SLACK_DESCRIPTORS = 20
SKIP = 77
# As in client.c: struct board.
HEAD_WORDS, SLOT_WORDS, SLOTS, GENERATIONS = 4, 4, 64, 65536
GENERATIONS_AT = 8 * (HEAD_WORDS + SLOT_WORDS * SLOTS)
AVOID, GONE = 1, 2
WAYS = ["map", "long map", "read", "direct read", "splice", "late pipe",
        "open", "tensor map", "tensor read"]


class Wrong(Exception):
    """What was promised does not hold."""


def check(truth, what):
    if not truth:
        raise Wrong(what)


def wait_for(condition, what, seconds=HANG_S):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        check(time.monotonic() < deadline, f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return value


class Board:
    """What driver and readers know of each other."""

    def __init__(self, path):
        with open(path, "w+b") as f:
            f.truncate(GENERATIONS_AT + GENERATIONS)
            self.map = mmap.mmap(f.fileno(), 0)
        self.words = memoryview(self.map)[:GENERATIONS_AT].cast("Q")

    def stop(self, value):
        self.words[0] = value

    def held(self):
        return [self.words[HEAD_WORDS + SLOT_WORDS * i] for i in
                range(READERS)]

    def hanging(self):
        """What a reader has been doing for too long, or None."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
        for i in range(READERS):
            at = HEAD_WORDS + SLOT_WORDS * i
            since = self.words[at + 1]
            if since and now - since > HANG_S * 1000:
                return f"reader {i}, {WAYS[self.words[at + 2]]}"
        return None

    def set_flag(self, generation, flag):
        self.map[GENERATIONS_AT + generation] |= flag

    def clear_flag(self, generation, flag):
        self.map[GENERATIONS_AT + generation] &= ~flag


class World:
    """What a mount of tests/bench wants to know."""

    def __init__(self, daemon, directory):
        self.daemon, self.dir, self.mounts = daemon, directory, []


class StressedMount(Mount):
    """A daemon, and what it says of itself."""

    def service(self, name):
        return (self.path / ".weights" / name).read_text()

    def pinned(self):
        m = re.search(r"^weightfs_\w*pinned_bytes (\d+)",
                      self.service("metrics"), re.M)
        check(m, "no metric says what is pinned")
        return int(m[1])

    def memory_kib(self):
        """Its own, without the files that it has mapped."""
        return sum(status_kib(self.pid, field)
                   for field in ("RssAnon", "RssShmem"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def is_sanitized(daemon):
    """Then what it keeps in memory is the sanitizer's affair."""
    return "san.so" in subprocess.run(["ldd", daemon], capture_output=True,
                                      text=True, check=False).stdout


def attr(path, name):
    return os.getxattr(path, "user.weights." + name).decode()


def set_attr(path, name, value):
    os.setxattr(path, "user.weights." + name, str(value).encode())


def errno_of(function, *args):
    """0, or the errno with which the call failed."""
    try:
        function(*args)
        return 0
    except OSError as e:
        return e.errno


class Stress:
    def __init__(self, mount, board, client):
        self.mount, self.board, self.client = mount, board, client
        self.line = mount.path / "t" / "n" / "r" / "main"
        self.line.mkdir(parents=True)
        self.counts = collections.Counter()
        self.lock = threading.Lock()
        self.alive = set()   # published, and nobody removes it
        self.claimed = set()  # by one thread, for itself
        self.last = 0
        self.over = False
        self.readers = []
        self.wrong = []
        self.doing = {}      # thread to what, since when

    # ---- Threads

    def note(self, what):
        """What this thread is about to do, so that a hang has a name."""
        self.doing[threading.current_thread().name] = (what, time.monotonic())

    def guarded(self, turn):
        while not self.over:
            try:
                turn()
            except Exception as e:  # whatever it is, the test has failed
                self.wrong.append(f"{turn.__name__}: {e!r}")
                self.over = True
        self.doing.pop(threading.current_thread().name, None)

    def claim(self):
        with self.lock:
            free = sorted(self.alive - self.claimed)
            if not free:
                return None
            generation = random.choice(free)
            self.claimed.add(generation)
            return generation

    def release(self, generation):
        with self.lock:
            self.claimed.discard(generation)

    # ---- What the driver does

    def publish(self):
        self.note("publish")
        if len(self.alive) >= ALIVE:
            time.sleep(0.05)
            return
        self.last += 1
        n, stage = self.last, self.line / ".staging" / str(self.last)
        stage.mkdir()
        subprocess.run([self.client, "write", stage, str(n)], check=True,
                       timeout=HANG_S)
        if random.random() < 0.5:
            (stage / ".weights" / "wait").read_text()
        # Not ready yet is an answer, for a while.
        deadline = time.monotonic() + HANG_S
        while (e := errno_of(os.rename, stage, self.line / str(n))):
            check(e == errno.EAGAIN and time.monotonic() < deadline,
                  f"publishing {n}: {errno.errorcode[e]}")
        with self.lock:
            self.alive.add(n)
        self.counts["published"] += 1

    def move(self):
        generation = self.claim()
        if generation is None:
            time.sleep(0.05)
            return
        to = random.choice(["hot", "cold"])
        self.note(f"move {generation} {to}")
        try:
            if random.random() < 0.5:
                self.move_quietly(generation, to)
            else:
                self.move_under_readers(generation, to)
        finally:
            self.board.clear_flag(generation, AVOID)
            self.release(generation)

    def ask(self, generation, to):
        """True when the operation began, False when another one runs."""
        e = errno_of(set_attr, self.line / str(generation), "residency", to)
        check(e in (0, errno.EBUSY),
              f"{generation} to {to}: {errno.errorcode.get(e)}, "
              f"{self.sentence(generation)}")
        self.counts["moves asked" if e == 0 else "moves refused"] += 1
        return e == 0

    def sentence(self, generation):
        with contextlib.suppress(OSError):
            return attr(self.line / str(generation), "error")
        return "no sentence"

    def move_under_readers(self, generation, to):
        self.ask(generation, to)
        time.sleep(random.random() / 5)

    def move_quietly(self, generation, to):
        """Readers leave it: then it has to get there."""
        path = self.line / str(generation)
        self.board.set_flag(generation, AVOID)
        wait_for(lambda: self.over or self.ask(generation, to),
                 f"moving {generation} {to}")
        if self.over:
            return
        text = (path / ".weights" / "wait").read_text()
        is_at = attr(path, "residency")
        check(is_at == to, f"{generation} is {is_at}, not {to}, after the "
              f"wait, which said {text[-200:]!r}")
        self.counts["moved " + to] += 1

    def remove(self):
        self.note("remove")
        if len(self.alive) < ALIVE:
            time.sleep(0.05)
            return
        generation = self.claim()
        if generation is None:
            return
        for attempt in range(20):
            if self.removed(generation) or self.over:
                break
            time.sleep(random.random() / 50)
        else:
            self.board.set_flag(generation, AVOID)
            wait_for(lambda: self.over or self.removed(generation),
                     f"removing {generation}, which nobody uses")
        self.release(generation)

    def removed(self, generation):
        e = errno_of(set_attr, self.line / str(generation), "remove",
                     generation)
        if e == errno.EBUSY:
            self.counts["removals refused"] += 1
            return False
        check(e == 0, f"removing {generation}: {errno.errorcode.get(e)}")
        self.board.set_flag(generation, GONE)
        check(generation not in self.board.held(),
              f"{generation} was removed while a reader held it")
        with self.lock:
            self.alive.discard(generation)
        self.counts["removed"] += 1
        return True

    # ---- Rounds

    def start_readers(self, board_path):
        self.board.stop(0)
        self.readers = [subprocess.Popen(
            [self.client, "read", self.line, board_path, str(i)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for i in range(READERS)]

    def hanging(self):
        for what, since in list(self.doing.values()):
            if time.monotonic() - since > 3 * HANG_S:
                return what
        return self.board.hanging()

    def watch(self, seconds):
        """Until the time is over or something is wrong."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.over:
            what = self.hanging()
            check(not what, f"it hangs: {what}")
            check(self.mount.process.poll() is None, "the daemon died")
            for r in self.readers:
                if r.poll() is not None:
                    raise Wrong(f"a reader ended: {r.communicate()[1]}")
            time.sleep(0.1)

    def end_readers(self):
        self.board.stop(1)
        for r in self.readers:
            out, err = r.communicate(timeout=HANG_S)
            check(r.returncode == 0, f"a reader: {err}")
            for line in out.splitlines():
                name, count = line.rsplit("=", 1)
                self.counts[name] += int(count)
        self.readers = []

    def run(self, seconds, board_path):
        self.over = False
        self.start_readers(board_path)
        threads = [threading.Thread(target=self.guarded, args=[turn],
                                    daemon=True)
                   for turn in (self.publish, self.move, self.remove)]
        for t in threads:
            t.start()
        try:
            self.watch(seconds)
        finally:
            self.over = True
        for t in threads:
            t.join(3 * HANG_S)
            check(not t.is_alive(), f"it hangs: {self.doing}")
        self.end_readers()
        check(not self.wrong, "; ".join(self.wrong))

    def drain(self):
        """Everything comes to rest, then everything goes."""
        (self.mount.path / ".weights" / "wait").read_text()
        for n in sorted(self.alive):
            wait_for(lambda n=n: attr(self.line / str(n), "leases") == "0",
                     f"no lease on {n}")
            check(errno_of(attr, self.line / str(n), "operation") ==
                  errno.ENODATA, f"{n} still has an operation")
        wait_for(lambda: not self.mount.service("leases").strip(),
                 "no lease is left")
        for n in sorted(self.alive):
            wait_for(lambda n=n: self.removed(n), f"{n} is removed")
        wait_for(lambda: not list(self.mount.store.glob("groups/*/*")),
                 "no bytes are left in the store")
        wait_for(lambda: self.mount.pinned() == 0,
                 "nothing is pinned")


def passes_through(mount):
    return "passthrough: yes" in mount.service("health")


def compare(mount, level, is_exact):
    memory = mount.memory_kib()
    print(f"passthrough: {'yes' if passes_through(mount) else 'no'}\n"
          f"memory: {level[0]} KiB, then {memory} KiB\n"
          f"descriptors: {level[1]}, then {mount.descriptors()}")
    check(not is_exact or memory <= level[0] * 5 // 4 + SLACK_KIB,
          "the daemon's memory grows")
    wait_for(lambda: mount.descriptors() <= level[1] + SLACK_DESCRIPTORS,
             "the daemon's descriptors are back at their level")


def stress(seconds, daemon, client, work):
    board_path = work / "board"
    board = Board(board_path)
    mount = StressedMount(World(daemon, work), "stress",
                          os.environ.get("WEIGHTFS_TEST_OPTIONS", ""))
    s = Stress(mount, board, client)
    try:
        s.run(max(WARM_UP_S_MIN, seconds / WARM_UP_SHARE), board_path)
        s.drain()
        level = mount.memory_kib(), mount.descriptors()
        s.counts.clear()
        s.run(seconds, board_path)
        s.drain()
        for name, count in s.counts.items():
            print(f"{name}: {count}")
        compare(mount, level, not is_sanitized(daemon))
        for name in ("published", "removed", "removals refused", "moved hot",
                     "moved cold"):
            check(s.counts[name] > 0, f"nothing was {name}")
        mount.stop()
        check(mount.status == 0, f"the daemon ended with {mount.status}")
    except BaseException:
        for r in s.readers:
            r.kill()
        print(*[line for line in mount.log.read_text(errors="replace")
                .splitlines() if "refusal_note" not in line][-30:], sep="\n")
        raise
    finally:
        if mount.process:
            mount.process.kill()
            mount.stop()


def main():
    seconds, daemon, client = sys.argv[1:4]
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        print("SKIP: not root, or no /dev/fuse")
        return SKIP
    if not shutil.which("fusermount3"):
        print("SKIP: no fusermount3")
        return SKIP
    # Beside the daemon, not in /tmp, which may be in memory.
    work = pathlib.Path(tempfile.mkdtemp(
        prefix="stress.", dir=pathlib.Path(daemon).resolve().parent))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        stress(float(seconds), daemon, client, work)
    except Wrong as e:
        print(f"FAILED: {e}")
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


sys.exit(main())
