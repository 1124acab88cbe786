# SPDX-License-Identifier: Apache-2.0
"""Small filesystems on loop devices, and what can go wrong with a disk.

The device of a mounted Disk can be cut short, so that what lies behind the cut
answers EIO to whoever reads or writes it, and be made whole again.
"""
import contextlib
import fcntl
import mmap
import os
import pathlib
import re
import struct
import subprocess

from wf import WORK, check, fallocate, run, skip

LOOP_SET_STATUS64, LOOP_GET_STATUS64 = 0x4C04, 0x4C05
INFO_BYTES, SIZELIMIT_AT = 232, 32
BLOCK = 4096

os.environ["PATH"] += ":/sbin:/usr/sbin"


def need(*programs):
    for p in programs:
        if subprocess.run(["sh", "-c", f"command -v {p}"], check=False,
                          stdout=subprocess.DEVNULL).returncode:
            skip("no " + p)


def tmpfs(name, size):
    """A filesystem in memory, mounted on $WORK/NAME."""
    path = WORK / name
    path.mkdir()
    said = run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", path,
               status=None)
    if said.strip():
        skip("no mounts: " + said.strip().splitlines()[-1])
    return path


def fill(path):
    """Takes all the room of a filesystem, to the last block."""
    with open(path, "wb", buffering=0) as f:
        for size in [64 << 20, 1 << 20, BLOCK]:
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(f.fileno(), f.seek(0, os.SEEK_END), size)
        with contextlib.suppress(OSError):
            while True:
                f.seek(0, os.SEEK_END)
                f.write(bytes(BLOCK))
    return path


class Disk:
    """An ext4 of so many bytes in a file, mounted on $WORK/NAME."""

    def __init__(self, name, size, *mkfs, where=WORK):
        need("mkfs.ext4", "losetup", "filefrag")
        self.image = where / (name + ".img")
        self.top = WORK / name
        self.top.mkdir()
        with open(self.image, "wb") as f:
            f.truncate(size)
        # Metadata at the start and no journal: what is cut off is data.
        said = run("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-E",
                   "packed_meta_blocks=1,lazy_itable_init=0", "-b", BLOCK,
                   *mkfs, self.image, status=None)
        if said.strip():
            skip("no ext4: " + said.strip().splitlines()[-1])
        with open(self.image, "r+b") as f:
            os.posix_fallocate(f.fileno(), 0, size)
        said = run("mount", "-o", "loop,errors=continue", self.image, self.top,
                   status=None)
        if said.strip():
            skip("no loop mounts: " + said.strip().splitlines()[-1])
        mounts = pathlib.Path("/proc/self/mounts").read_text()
        self.device = re.search(rf"^(\S+) {self.top} ", mounts, re.M)[1]

    @property
    def store(self):
        return self.top / "store"

    # ---- Cutting it short

    def _limit(self, size):
        with open(self.device, "rb") as f:
            info = bytearray(INFO_BYTES)
            fcntl.ioctl(f, LOOP_GET_STATUS64, info)
            struct.pack_into("<Q", info, SIZELIMIT_AT, size)
            fcntl.ioctl(f, LOOP_SET_STATUS64, info)

    def _size(self):
        name = self.device.rsplit("/", 1)[1]
        return 512 * int(
            pathlib.Path(f"/sys/block/{name}/size").read_text())

    def cut(self, at):
        """Nothing behind that byte can be read or written any more."""
        try:
            self._limit(at)
        except OSError as e:
            skip(f"a loop device can't be cut short: {e}")
        if self._size() != at:
            skip("a loop device can't be cut short")

    def mend(self):
        self._limit(0)
        check(self._size() == self.image.stat().st_size, "the device's size")

    # ---- Where files are

    def extents(self, path):
        """(offset in the file, offset on the device, length) of each."""
        found = []
        for line in run("filefrag", "-v", f"-b{BLOCK}", path).splitlines():
            m = re.match(r"\s*\d+:\s*(\d+)\.\.\s*(\d+):\s*(\d+)\.\.\s*\d+:",
                         line)
            if m:
                first, last, at = map(int, m.groups())
                found.append((first * BLOCK, at * BLOCK,
                              (last - first + 1) * BLOCK))
        check(found, f"no extents of {path}")
        return found

    def on_device(self, path, offset):
        for at, there, length in self.extents(path):
            if at <= offset < at + length:
                return there + offset - at
        raise AssertionError(f"nothing at {offset} of {path}")

    def flip(self, path, offset, bit=6):
        """A bit of a file turns over on the device, and nobody is told."""
        there = self.on_device(path, offset)
        self.raw(there // BLOCK * BLOCK, there % BLOCK, bit)

    def raw(self, at, byte, bit):
        # Past the cache of the image, which the loop device may read past.
        page = mmap.mmap(-1, BLOCK)
        fd = os.open(self.image, os.O_RDWR | os.O_DIRECT)
        try:
            check(os.preadv(fd, [page], at) == BLOCK, "a short read")
            page[byte] ^= 1 << bit
            check(os.pwritev(fd, [page], at) == BLOCK, "a short write")
            os.fsync(fd)
        finally:
            os.close(fd)
            page.close()

    def take_away(self, path):
        """The image forgets the blocks of a file, and needs new ones, for which
        its filesystem has no room. Returns a function that makes some."""
        ballast = []
        with open(self.image, "r+b") as f:
            while not ballast or self._has_any(f, path):
                for _, at, length in self.extents(path):
                    # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
                    fallocate(f.fileno(), 3, at, length)
                ballast.append(fill(self.image.with_name(
                    f"ballast{len(ballast)}")))
        return lambda: [b.unlink() for b in ballast]

    def _has_any(self, image, path):
        """Somebody may write while the room is being taken."""
        for _, at, length in self.extents(path):
            try:
                if os.lseek(image.fileno(), at, os.SEEK_DATA) < at + length:
                    return True
            except OSError:
                return False
        return False

    # ---- Who lies where

    def split(self, low, high):
        """Takes all the room, then gives some back at the disk's start. The
        same again at its end comes from give_high()."""
        piece = 1 << 20
        places, names = {}, iter(range(1 << 20))
        with contextlib.suppress(OSError):
            while True:
                path = self.top / f"piece{next(names)}"
                with open(path, "wb") as f:
                    os.posix_fallocate(f.fileno(), 0, piece)
                places[path] = max(there for _, there, _ in
                                   self.extents(path))
        path.unlink(missing_ok=True)
        self._pieces = sorted(places, key=places.get)
        self._high = high // piece
        for path in self._pieces[:low // piece]:
            path.unlink()

    def give_high(self):
        """From now on, until the plug that it returns is gone, what is written
        lies at the end."""
        plug = self.fill("plug")
        for path in self._pieces[-self._high:]:
            path.unlink()
        return plug

    def fill(self, name="ballast"):
        """Takes all the room, to the last block; the file that does."""
        return fill(self.top / name)
