# SPDX-License-Identifier: Apache-2.0
"""Mounts that always go away again, checkpoints of any size, and what the
kernel says of a process. Also for tests/counts.
"""
import ctypes
import errno
import json
import os
import struct
import subprocess
import time

LINEAGE = "bench/bench/model/main"
MIB = 1 << 20
MNT_DETACH = 2

libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A row can't be measured; the text says why."""


def run(*argv, **more):
    done = subprocess.run([str(a) for a in argv], capture_output=True,
                          text=True, check=False, **more)
    if done.returncode != 0:
        raise Failed(f"{argv[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def mount_tmpfs(path, options):
    path.mkdir()
    if libc.mount(b"bench", bytes(path), b"tmpfs", 0, options.encode()) != 0:
        path.rmdir()
        raise Failed(f"tmpfs: {os.strerror(ctypes.get_errno())}")


def is_mounted(path):
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        return any(line.split()[1] == str(path) for line in mounts)


def unmount(path):
    """Everything of ours has closed it; what the kernel is about to put still
    needs a moment."""
    deadline = time.monotonic() + 10
    while libc.umount2(bytes(path), 0) != 0:
        if ctypes.get_errno() != errno.EBUSY or time.monotonic() > deadline:
            libc.umount2(bytes(path), MNT_DETACH)
            return
        time.sleep(0.02)


def status_kib(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    return 0


class Mount:
    """A daemon and its mount."""

    def __init__(self, world, name, options=""):
        self.world, self.options = world, options
        self.store = world.dir / f"{name}.store"
        self.path = world.dir / f"{name}.mnt"
        self.log = world.dir / f"{name}.log"
        self.process, self.status = None, 0
        self.path.mkdir(exist_ok=True)
        world.mounts.append(self)
        self.start()

    @property
    def pid(self):
        return self.process.pid

    @property
    def lineage(self):
        return self.path / LINEAGE

    def launch(self):
        argv = [self.world.daemon, "-f", self.store, self.path]
        if self.options:
            argv += ["-o", self.options]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)

    def start(self):
        self.launch()
        version = self.path / ".weights" / "version"
        deadline = time.monotonic() + 30
        while not (is_mounted(self.path) and version.exists()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the daemon does not serve: "
                             f"{self.log.read_text()[-500:]}")
            time.sleep(0.01)

    def stop(self):
        if is_mounted(self.path):
            unmount(self.path)
        if self.process:
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            # Of all that ran, the worst; a signal is a negative number.
            self.status = self.process.returncode or self.status
        self.process = None

    def fresh(self):
        """Nothing of before: no node, no handle, no lease in memory."""
        self.stop()
        self.start()

    def stage(self, generation):
        staged = self.lineage / ".staging" / str(generation)
        staged.mkdir(parents=True)
        return staged

    def wait(self, generation):
        (self.lineage / ".staging" / str(generation) / ".weights" /
         "wait").read_text()

    def publish(self, generation):
        target = self.lineage / str(generation)
        os.rename(self.lineage / ".staging" / str(generation), target)
        return target

    def put(self, source, generation):
        staged = self.stage(generation)
        run("cp", "-r", f"{source}/.", staged)
        self.wait(generation)
        return self.publish(generation)

    def settle(self, generation, residency=None, seconds=300):
        """Waits until nothing is pending and, if asked, until it is there."""
        deadline = time.monotonic() + seconds
        path = self.lineage / str(generation)
        while True:
            said = (path / ".weights" / "wait").read_text()
            where = self.attribute(generation, "residency")
            if residency in (None, where):
                return
            if time.monotonic() > deadline:
                raise Failed(f"it is {where}, not {residency}: {said}")
            time.sleep(0.01)

    def migrate(self, generation, residency):
        """Seconds until it is there and nothing is pending."""
        path = self.lineage / str(generation)
        start = time.perf_counter()
        os.setxattr(path, "user.weights.residency", residency.encode())
        (path / ".weights" / "wait").read_text()
        took = time.perf_counter() - start
        where = self.attribute(generation, "residency")
        if where != residency:
            raise Failed(f"it is {where}, not {residency}")
        return took

    def attribute(self, generation, name):
        return os.getxattr(self.lineage / str(generation),
                           f"user.weights.{name}").decode()

    def remove(self, generation):
        os.setxattr(self.lineage / str(generation), "user.weights.remove",
                    str(generation).encode())

    def backing(self, name):
        """Where the bytes of a published file really are."""
        found = [p for p in (self.store / "groups").glob(f"*/*/files/{name}")]
        if len(found) != 1:
            raise Failed(f"{len(found)} backing files named {name}")
        return found[0]

    def metric(self, name):
        text = (self.path / ".weights" / "metrics").read_text()
        for line in text.splitlines():
            if line.startswith(f"weightfs_{name} "):
                return int(line.split()[1])
        raise Failed(f"no metric {name}")


def write_safetensors(path, sizes, block):
    """One shard; sizes: a list of (name, bytes). The same random block again
    and again: nothing that is measured looks for repetition."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, size in sizes:
        header[name] = {"dtype": "U8", "shape": [size],
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb", buffering=0) as f:
        f.write(struct.pack("<Q", len(text)) + text)
        while offset:
            offset -= f.write(block[:min(offset, len(block))])
