# SPDX-License-Identifier: Apache-2.0
# Whoever holds what from before: no byte, name, mode or time changes after it.
# OPTIONS: durability=none
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
import array
import socket

from wf import *

line = lineage()
counter = iter(range(1, 1000))
SRC = checkpoint("src")
NAME = "model.safetensors"


def attempt(stage):
    target = stage.parent.parent / stage.name
    try:
        os.rename(stage, target)
        return target
    except OSError as e:
        # The end of a ring interrupts whatever its process waits for.
        check(e.errno in (errno.EBUSY, errno.EINTR), f"{stage}: {e!r}")
        return None


def in_flight(path):
    """A writable descriptor that only a socket's queue holds."""
    a, b = socket.socketpair(socket.AF_UNIX)
    fd = os.open(path, os.O_RDWR)
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                        array.array("i", [fd]))])
    os.close(fd)

    def take():
        _, anc, _, _ = b.recvmsg(1, socket.CMSG_SPACE(4))
        got = array.array("i", anc[0][2])[0]
        os.pwrite(got, b"CHANGED", 0)
        os.close(got)
    return take


class Uring:
    """Just enough of io_uring: a registered file, written by its number."""
    def __init__(self, fd):
        p = ctypes.create_string_buffer(120)
        self.fd = _checked_syscall(425, 4, p)
        sq_off = struct.unpack_from("10I", p.raw, 40)
        cq_off = struct.unpack_from("10I", p.raw, 80)
        self.sq = mmap.mmap(self.fd, sq_off[6] + 4 * 16 + 4096, offset=0)
        self.sqes = mmap.mmap(self.fd, 64 * 4, offset=0x10000000)
        self.sq_off, self.cq_off = sq_off, cq_off
        arr = array.array("i", [fd])
        addr, _ = arr.buffer_info()
        _checked_syscall(427, self.fd, 2, ctypes.c_void_p(addr), 1)

    def write(self, data):
        buf = ctypes.create_string_buffer(data, len(data))
        sqe = struct.pack("BBHiQQIIQ", 23, 1, 0, 0, 0, ctypes.addressof(buf),
                          len(data), 0, 1)
        self.sqes[0:len(sqe)] = sqe
        tail = struct.unpack_from("I", self.sq, self.sq_off[1])[0]
        mask = struct.unpack_from("I", self.sq, self.sq_off[2])[0]
        struct.pack_into("I", self.sq, self.sq_off[6] + 4 * (tail & mask), 0)
        struct.pack_into("I", self.sq, self.sq_off[1], tail + 1)
        _checked_syscall(426, self.fd, 1, 1, 1, None, 0)

    def close(self):
        self.sq.close()
        self.sqes.close()
        os.close(self.fd)


def _checked_syscall(*args):
    r = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a
                       for a in args])
    if r < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return r


def registered(path):
    fd = os.open(path, os.O_RDWR)
    try:
        ring = Uring(fd)
    except OSError as e:
        os.close(fd)
        print("# no io_uring:", e)
        return None
    os.close(fd)

    def use():
        ring.write(b"CHANGED")
        ring.close()
    return use


def piped(path):
    """Pages of the file in a pipe, and a writable descriptor."""
    fd = os.open(path, os.O_RDWR)
    r, w = os.pipe()
    os.write(w, b"CHANGED")

    def use():
        os.splice(r, fd, 7, offset_dst=0)
        for f in (fd, r, w):
            os.close(f)
    return use


def second_process_maps(path):
    c = Client()
    c.do("f = open(args[0], 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close()",
         path)

    def use():
        c.do("m[0:7] = b'CHANGED'; m.flush()")
        c.kill()
    return use


for hold in (in_flight, registered, piped, second_process_maps):
    print("#", hold.__name__, flush=True)
    stage = staging(line, next(counter), SRC)
    use = hold(stage / NAME)
    if not use:
        continue
    check(attempt(stage) is None, f"published under {hold.__name__}")
    use()
    equal((stage / NAME).read_bytes()[:7], b"CHANGED", "it could still write")
    run("cp", "-a", SRC / NAME, stage)
    gen = wait_for(lambda: attempt(stage), "published in the end")
    same_tree(gen, SRC)

# ---- Ways that do not count as writers, and so must be of no use afterwards
stage = staging(line, next(counter), SRC)
os.chmod(stage / NAME, 0o666)
run("cp", "-a", "--no-preserve=mode", SRC / NAME, stage)
os.chmod(stage / NAME, 0o644)
os.utime(stage / NAME, ns=(os.stat(SRC / NAME).st_mtime_ns,) * 2)
path_fd = os.open(stage / NAME, os.O_PATH)
read_fd = os.open(stage / NAME, os.O_RDONLY)
top_fd = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
top_path = os.open(stage, os.O_PATH | os.O_DIRECTORY)
sub_fd = os.open(stage / "1_Pooling", os.O_RDONLY | os.O_DIRECTORY)
private = mmap.mmap(read_fd, 0, mmap.MAP_PRIVATE,
                    mmap.PROT_READ | mmap.PROT_WRITE)
shared = mmap.mmap(read_fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
other = staging(line, next(counter))
(other / "x").write_bytes(b"other")
loose = os.open(other / "x", os.O_RDWR)
gen = publish(stage)
before = facts(gen)
private[0:7] = b"CHANGED"
PROC = "/proc/self/fd/%d"
FICLONE, FICLONERANGE, SETFLAGS = 0x40049409, 0x4020940d, 0x40086602


def ioctl(fd, request, arg):
    import fcntl
    fcntl.ioctl(fd, request, arg)


TRIES = {
    "reopen O_PATH": lambda: os.open(PROC % path_fd, os.O_RDWR),
    "reopen read": lambda: os.open(PROC % read_fd, os.O_WRONLY | os.O_APPEND),
    "reopen trunc": lambda: os.open(PROC % read_fd, os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda: os.truncate(PROC % path_fd, 0),
    "creat": lambda: os.open("new", os.O_CREAT | os.O_RDWR, dir_fd=top_fd),
    "creat existing": lambda: os.open(NAME, os.O_CREAT | os.O_RDWR,
                                      dir_fd=top_path),
    "tmpfile": lambda: os.open(PROC % top_fd, os.O_TMPFILE | os.O_RDWR),
    "unlink": lambda: os.unlink(NAME, dir_fd=top_fd),
    "unlink sub": lambda: os.unlink("config.json", dir_fd=sub_fd),
    "rmdir": lambda: os.rmdir("1_Pooling", dir_fd=top_fd),
    "mkdir": lambda: os.mkdir("d", dir_fd=sub_fd),
    "mknod": lambda: os.mknod("f", dir_fd=sub_fd),
    "fifo": lambda: os.mkfifo("f", dir_fd=sub_fd),
    "symlink": lambda: os.symlink("a", "l", dir_fd=sub_fd),
    "rename": lambda: os.rename(NAME, "y", src_dir_fd=top_fd,
                                dst_dir_fd=top_fd),
    "rename down": lambda: os.rename(NAME, "y", src_dir_fd=top_fd,
                                     dst_dir_fd=sub_fd),
    "rename out": lambda: os.rename(NAME, other / "y", src_dir_fd=top_fd),
    "rename in": lambda: os.rename(other / "x", NAME, dst_dir_fd=top_fd),
    "rename dir out": lambda: os.rename("1_Pooling", other / "p",
                                        src_dir_fd=top_fd),
    "exchange": lambda: rename2(other / "x", gen / NAME, RENAME_EXCHANGE),
    "link in": lambda: os.link(other / "x", "z", dst_dir_fd=top_fd),
    "link out": lambda: os.link(NAME, other / "z", src_dir_fd=top_fd),
    "link proc": lambda: os.link(PROC % read_fd, other / "z",
                                 follow_symlinks=True),
    "fchmod": lambda: os.fchmod(read_fd, 0o777),
    "fchmod top": lambda: os.fchmod(top_fd, 0o777),
    "fchmodat": lambda: os.chmod(NAME, 0o777, dir_fd=top_fd),
    "chmod proc": lambda: os.chmod(PROC % path_fd, 0o777),
    "fchown": lambda: os.fchown(read_fd, 1, 1),
    "chownat": lambda: os.chown(NAME, 1, 1, dir_fd=top_path),
    "futimens": lambda: os.utime(read_fd),
    "utimensat": lambda: os.utime("1_Pooling", (1, 1), dir_fd=top_fd),
    "utimes top": lambda: os.utime(top_fd, (1, 1)),
    "fsetxattr": lambda: os.setxattr(read_fd, "user.a", b"b"),
    "fsetxattr top": lambda: os.setxattr(top_fd, "user.a", b"b"),
    "setxattr proc": lambda: os.setxattr(PROC % path_fd, "user.a", b"b"),
    "removexattr": lambda: os.removexattr(read_fd, "user.a"),
    "acl": lambda: os.setxattr(read_fd, "system.posix_acl_access", b"\2\0\0\0"),
    "security": lambda: os.setxattr(read_fd, "security.capability", b"x" * 20),
    "fallocate": lambda: fallocate(read_fd, 0, 0, 1 << 20),
    "punch": lambda: fallocate(read_fd, 3, 0, 4096),
    "copy range": lambda: os.copy_file_range(loose, read_fd, 5),
    "clone": lambda: ioctl(read_fd, FICLONE, loose),
    "clone range": lambda: ioctl(read_fd, FICLONERANGE,
                                 struct.pack("qQQQ", loose, 0, 0, 0)),
    "flags": lambda: ioctl(read_fd, SETFLAGS, struct.pack("l", 16)),
    "write read": lambda: os.pwrite(read_fd, b"CHANGED", 0),
    "mprotect": lambda: _mprotect(shared),
    "map writable": lambda: mmap.mmap(read_fd, 0, mmap.MAP_SHARED,
                                      mmap.PROT_WRITE),
    "control": lambda: os.open(".weights/manifest.json", os.O_RDWR,
                               dir_fd=top_fd),
    "control new": lambda: os.open(".weights/x", os.O_RDWR | os.O_CREAT,
                                   dir_fd=top_fd),
    "control unlink": lambda: os.unlink(".weights/wait", dir_fd=top_fd),
    "control mode": lambda: os.chmod(".weights/manifest.json", 0o777,
                                     dir_fd=top_fd),
    "tensor": lambda: os.open(".weights/tensors/layers.0.a.weight", os.O_RDWR,
                              dir_fd=top_fd),
    "tensor trunc": lambda: os.truncate(
        gen / ".weights" / "tensors" / "layers.0.a.weight", 0),
    "swap": lambda: _swapon(gen / NAME),
    "overwrite": lambda: os.rename(other, gen),
    "restage": lambda: os.rename(gen, line / ".staging" / gen.name),
    "move away": lambda: os.rename(gen, line / "other"),
    "move parents": lambda: os.rename(line, line.parent / "else"),
    "move tenant": lambda: os.rename(MNT / "t", MNT / "u"),
    "over tenant": lambda: (os.mkdir(MNT / "u"),
                            os.rename(MNT / "u", MNT / "t")),
    "rmdir gen": lambda: os.rmdir(gen),
    "rmdir line": lambda: os.rmdir(line),
    "symlink over": lambda: os.symlink("x", line / gen.name),
    "rename symlink over": lambda: (os.symlink("x", line / "s"),
                                    os.rename(line / "s", gen)),
}


def _mprotect(m):
    addr = ctypes.addressof(ctypes.c_char.from_buffer_copy(b"x"))
    text = open("/proc/self/maps").read()
    at = next(x for x in text.splitlines() if NAME in x and "r--s" in x)
    begin, end = (int(x, 16) for x in at.split()[0].split("-"))
    if libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin),
                     3) < 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def _swapon(p):
    if libc.swapon(os.fsencode(p), 0) < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


for name, do in TRIES.items():
    try:
        do()
        raise AssertionError(f"went well: {name}")
    except OSError as e:
        print(f"# {name}: {errno.errorcode[e.errno]}", flush=True)
    after = facts(gen)
    if after != before:
        raise AssertionError(f"{name} changed something")
check(open(PROC % read_fd, "rb").read() == (SRC / NAME).read_bytes(), "bytes")
run("sha256sum", "-c", "--quiet", gen / ".weights" / "sha256sums", cwd=gen)
equal(int(attr(gen, "leases")), 1, "leases")
EOP
