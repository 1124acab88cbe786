# SPDX-License-Identifier: Apache-2.0
"""System calls on staged files, each beside the same on a local directory.

Every function gets a directory. It runs in one on the local disk first, which
shows that the test is right, then in one that is staged.
"""
import fcntl
import socket

from wf import *

CALLS = []


def call(function):
    CALLS.append(function)
    return function


def write(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o644)
    try:
        equal(os.write(fd, data), len(data), "short write")
    finally:
        os.close(fd)


@call
def create_and_append(d):
    write(d / "f", b"one")
    write(d / "f", b"two", os.O_WRONLY | os.O_APPEND)
    equal((d / "f").read_bytes(), b"onetwo", "append")
    equal(os.stat(d / "f").st_size, 6, "size")
    refused("EEXIST", os.open, d / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    refused("ENOENT", os.open, d / "absent", os.O_RDONLY)
    refused("EISDIR", os.open, d, os.O_WRONLY)
    refused("ENOTDIR", os.stat, d / "f" / "below")
    write(d / "f", b"x")
    equal((d / "f").read_bytes(), b"x", "O_TRUNC")


@call
def size_then_write(d):
    """As safetensors saves: the size first, then the bytes."""
    data = random.Random(1).randbytes(3_000_000)
    with open(d / "f", "wb") as f:
        f.truncate(len(data))
        equal(os.fstat(f.fileno()).st_size, len(data), "size when set")
        for at in range(0, len(data), 500_000):
            f.seek(at)
            f.write(data[at:at + 500_000])
    equal((d / "f").read_bytes(), data, "bytes")
    os.truncate(d / "f", 10)
    os.truncate(d / "f", 20)
    equal((d / "f").read_bytes(), data[:10] + bytes(10), "shrunk and grown")


@call
def empty_and_sparse(d):
    write(d / "empty", b"")
    equal((d / "empty").read_bytes(), b"", "empty")
    fd = os.open(d / "s", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"end", 50_000_000)
    equal(os.pread(fd, 4, 100), bytes(4), "hole")
    check(os.fstat(fd).st_blocks * 512 < 1_000_000, "holes take room")
    check(os.lseek(fd, 0, os.SEEK_DATA) >= 49_000_000, "SEEK_DATA")
    equal(os.lseek(fd, 0, os.SEEK_HOLE), 0, "SEEK_HOLE")
    refused("ENXIO", os.lseek, fd, 60_000_000, os.SEEK_DATA)
    fallocate(fd, 0, 0, 1 << 20)
    check(os.fstat(fd).st_blocks * 512 >= 1 << 20, "allocated")
    fallocate(fd, 1, 60_000_000, 4096)
    equal(os.fstat(fd).st_size, 50_000_003, "KEEP_SIZE")
    os.pwrite(fd, b"x" * 65536, 0)
    fallocate(fd, 1 | 2, 4096, 4096)
    equal(os.pread(fd, 65536, 0), b"x" * 4096 + bytes(4096) + b"x" * 57344,
          "punched")
    os.close(fd)


@call
def mmap_writers(d):
    write(d / "m", bytes(1 << 20))
    with open(d / "m", "r+b") as f:
        m = mmap.mmap(f.fileno(), 0)
    m[0:5] = b"first"
    m[1_000_000:1_000_004] = b"last"
    equal((d / "m").read_bytes()[:5], b"first", "seen by read")
    with open(d / "m", "r+b") as f:
        f.seek(100)
        f.write(b"written")
    equal(m[100:107], b"written", "written file seen in the map")
    m.flush()
    m.close()
    data = (d / "m").read_bytes()
    equal((len(data), data[1_000_000:1_000_004]), (1 << 20, b"last"), "bytes")
    with open(d / "m", "rb") as f:
        p = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE,
                      prot=mmap.PROT_READ | mmap.PROT_WRITE)
    p[0:5] = b"PRIVA"
    equal((d / "m").read_bytes()[:5], b"first", "a private map leaks")


@call
def direct(d):
    buf = mmap.mmap(-1, 1 << 16)
    buf[:] = random.Random(2).randbytes(1 << 16)
    fd = os.open(d / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    equal(os.pwritev(fd, [buf], 0), 1 << 16, "O_DIRECT write")
    back = mmap.mmap(-1, 1 << 16)
    equal(os.preadv(fd, [back], 0), 1 << 16, "O_DIRECT read")
    equal(back[:], buf[:], "bytes")
    os.close(fd)
    equal((d / "f").read_bytes(), buf[:], "read without O_DIRECT")


@call
def links(d):
    write(d / "a", b"a")
    os.link(d / "a", d / "b")
    equal(os.stat(d / "a").st_nlink, 2, "st_nlink")
    equal(os.stat(d / "a").st_ino, os.stat(d / "b").st_ino, "st_ino")
    write(d / "b", b"through b")
    equal((d / "a").read_bytes(), b"through b", "one file")
    os.unlink(d / "a")
    equal(os.stat(d / "b").st_nlink, 1, "st_nlink after unlink")
    (d / "dir").mkdir()
    os.symlink("../b", d / "dir" / "l")
    equal((d / "dir" / "l").read_bytes(), b"through b", "symlink")
    equal(os.lstat(d / "dir" / "l").st_size, 4, "length of a symlink")
    refused("EEXIST", os.symlink, "x", d / "b")
    refused("EEXIST", os.link, d / "b", d / "dir")
    refused("EPERM", os.link, d / "dir", d / "dir2")


@call
def renames(d):
    (d / "sub").mkdir()
    write(d / "a", b"a")
    write(d / "b", b"b")
    os.rename(d / "a", d / "b")
    equal((d / "b").read_bytes(), b"a", "replaced")
    write(d / "c", b"c")
    rename2(d / "b", d / "c", RENAME_EXCHANGE)
    equal(((d / "b").read_bytes(), (d / "c").read_bytes()), (b"c", b"a"),
          "exchanged")
    refused("EEXIST", rename2, d / "b", d / "c", RENAME_NOREPLACE)
    rename2(d / "b", d / "sub" / "b", RENAME_NOREPLACE)
    refused("EINVAL", rename2, d / "c", d / "x",
            RENAME_NOREPLACE | RENAME_EXCHANGE)
    refused("EISDIR", os.rename, d / "c", d / "sub")
    (d / "other").mkdir()
    refused("ENOTEMPTY|EEXIST", os.rename, d / "other", d / "sub")
    os.rename(d / "sub", d / "other")
    equal(names(d / "other"), ["b"], "a directory over an empty one")
    refused("ENOTEMPTY", os.rmdir, d / "other")
    refused("EISDIR", os.unlink, d / "other")
    refused("ENOTDIR", os.rmdir, d / "c")


@call
def unlinked_but_open(d):
    fd = os.open(d / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"still here")
    os.unlink(d / "f")
    equal(os.pread(fd, 100, 0), b"still here", "read")
    os.pwrite(fd, b"more", 10)
    os.ftruncate(fd, 12)
    st = os.fstat(fd)
    equal((st.st_size, st.st_nlink), (12, 0), "fstat")
    os.fchmod(fd, 0o600)
    os.close(fd)
    check(not (d / "f").exists(), "it is back")
    write(d / "f", b"new")
    equal((d / "f").read_bytes(), b"new", "made anew")


@call
def locks(d):
    write(d / "f", b"x")
    with Client() as c:
        c.do("import fcntl; f = open(args[0], 'r+'); fcntl.flock(f, 2)",
             d / "f")
        with open(d / "f", "r+") as f:
            refused("EAGAIN", fcntl.flock, f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            c.do("fcntl.flock(f, 8)")
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        c.do("fcntl.lockf(f, 2 | 4, 10, 0)")
        with open(d / "f", "r+") as f:
            refused("EAGAIN|EACCES", fcntl.lockf, f,
                    fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0)


@call
def names_of_all_kinds(d):
    odd = [b".hidden", b"..three", b"-n", b" ", b"new\nline",
           "\u2581\U0001f600".encode(), b"a" * 255, b"%41", b"con:", b"*",
           b"\\", b"._model.safetensors", b"7"]
    for name in odd:
        write(os.path.join(os.fsencode(d), name), name)
    equal(sorted(os.listdir(os.fsencode(d))), sorted(odd), "names")
    for name in odd:
        with open(os.path.join(os.fsencode(d), name), "rb") as f:
            equal(f.read(), name, "bytes")
    refused("ENAMETOOLONG", write, os.path.join(os.fsencode(d), b"a" * 256),
            b"")


@call
def modes_and_times(d):
    write(d / "f", b"x")
    os.chmod(d / "f", 0o640)
    equal(os.stat(d / "f").st_mode & 0o7777, 0o640, "chmod")
    os.utime(d / "f", ns=(1, 2_000_000_003))
    st = os.stat(d / "f")
    equal((st.st_atime_ns, st.st_mtime_ns), (1, 2_000_000_003), "utimensat")
    before = time.time() - 60
    write(d / "f", b"y")
    check(os.stat(d / "f").st_mtime > before, "mtime moves with a write")
    os.mkdir(d / "sub", 0o750)
    equal(os.stat(d / "sub").st_mode & 0o7777, 0o750, "mkdir's mode")
    os.symlink("f", d / "l")
    os.utime(d / "l", ns=(5, 7), follow_symlinks=False)
    equal(os.lstat(d / "l").st_mtime_ns, 7, "times of a symlink")
    os.mknod(d / "n", 0o600 | stat.S_IFREG)
    equal(os.stat(d / "n").st_mode, 0o600 | stat.S_IFREG, "mknod")


@call
def user_attributes(d):
    write(d / "f", b"x")
    os.setxattr(d / "f", "user.note", b"v\0\xff")
    os.setxattr(d, "user.dir", b"")
    equal(os.getxattr(d / "f", "user.note"), b"v\0\xff", "value")
    equal([n for n in os.listxattr(d / "f") if n.startswith("user.")],
          ["user.note"], "list")
    refused("EEXIST", os.setxattr, d / "f", "user.note", b"", os.XATTR_CREATE)
    refused("ENODATA", os.setxattr, d / "f", "user.n", b"", os.XATTR_REPLACE)
    os.removexattr(d / "f", "user.note")
    refused("ENODATA", os.getxattr, d / "f", "user.note")
    refused("ENODATA", os.removexattr, d / "f", "user.note")


@call
def sync_calls(d):
    fd = os.open(d / "f", os.O_WRONLY | os.O_CREAT | os.O_DSYNC)
    os.write(fd, b"x" * 10000)
    os.fsync(fd)
    os.fdatasync(fd)
    os.close(fd)
    fd = os.open(d, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    run("sync", d / "f")
    run("sync", "-f", d)


@call
def copies_in_the_kernel(d):
    data = random.Random(3).randbytes(300_000)
    write(d / "a", data)
    fa = os.open(d / "a", os.O_RDWR)
    fb = os.open(d / "b", os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def copy(length, at, to):
        try:
            return os.copy_file_range(fa, fb, length, at, to)
        except OSError as e:
            # A plain error, from which tools fall back, is fine.
            check(e.errno in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL),
                  repr(e))
            return None
    n = copy(len(data), 0, 0)
    if n is not None:
        check(n > 0, "0 is for the end of the file")
        equal(os.pread(fb, n, 0), data[:n], "copy_file_range")
        equal(copy(0, 0, 0), 0, "no bytes")
        equal(copy(1000, 10**9, 0), 0, "past the end")
        n = copy(2**31, 299_000, 5)
        if n is not None:
            equal(os.pread(fb, n, 5), data[299_000:299_000 + n],
                  "up to the end")
        refused("EINVAL", os.copy_file_range, fa, fa, 1000, 0, 500)
    os.ftruncate(fb, 0)
    n = 0
    while n < len(data):
        n += os.sendfile(fb, fa, n, len(data) - n)
    equal(os.pread(fb, len(data), 0), data, "sendfile into it")
    left, right = socket.socketpair()
    equal(os.sendfile(left.fileno(), fa, 100, 5000), 5000, "sendfile")
    got = b""
    while len(got) < 5000:
        got += right.recv(5000)
    equal(got, data[100:5100], "sendfile out of it")
    r, w = os.pipe()
    equal(os.splice(fa, w, 4096, offset_src=7) if hasattr(os, "splice")
          else os.write(w, data[7:7 + 4096]), 4096, "splice")
    equal(os.read(r, 5000), data[7:7 + 4096], "spliced")
    for fd in (fa, fb, r, w):
        os.close(fd)
    for option in ("auto", "never"):
        run("cp", f"--reflink={option}", d / "a", d / option)
        equal((d / option).read_bytes(), data, "cp --reflink")
    said = run("cp", "--reflink=always", d / "a", d / "always", status=None)
    if "failed to clone" in said:
        check(not (d / "always").exists() or
              (d / "always").stat().st_size == 0, "half a clone")


@call
def two_processes_see_each_other(d):
    write(d / "f", b"0" * 8192)
    with Client() as c:
        c.do("f = os.open(args[0], os.O_RDWR)", d / "f")
        fd = os.open(d / "f", os.O_RDWR)
        for i in range(20):
            os.pwrite(fd, b"%04d" % i, i * 100)
            equal(c.get("os.pread(f, 4, args[0])", i * 100), b"%04d" % i,
                  "seen by the other")
            c.do("os.pwrite(f, b'back', args[0])", i * 100 + 4)
            equal(os.pread(fd, 4, i * 100 + 4), b"back", "seen by this one")
        c.do("os.ftruncate(f, 10)")
        equal(os.fstat(fd).st_size, 10, "size set by the other")
        c.do("os.write(os.open(args[0], os.O_WRONLY|os.O_APPEND), b'+')",
             d / "f")
        equal(os.fstat(fd).st_size, 11, "size after its append")
        # Same size and time, other bytes: nothing may rely on them.
        st = os.stat(d / "f")
        c.do("os.pwrite(f, b'ABCD', 0); os.utime(f, ns=args[0])",
             (st.st_atime_ns, st.st_mtime_ns))
        equal((d / "f").read_bytes()[:4], b"ABCD", "rewritten in place")
        os.close(fd)


@call
def many_files(d):
    for i in range(300):
        write(d / f"f{i:03}", b"%d" % i)
    equal(names(d), [f"f{i:03}" for i in range(300)], "listing")
    with os.scandir(d) as entries:
        for i, e in enumerate(entries):
            check(e.is_file(), "d_type")
            if i % 2:
                os.unlink(e.path)
    equal(len(names(d)), 150, "removed while listing")
    run("rm", "-r", *[d / n for n in names(d)])
    equal(names(d), [], "rm")


@call
def handles_follow_the_file(d):
    """A directory's handle and a cwd go with a rename."""
    (d / "old").mkdir()
    dirfd = os.open(d / "old", os.O_RDONLY | os.O_DIRECTORY)
    os.rename(d / "old", d / "new")
    fd = os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=dirfd)
    os.close(fd)
    equal(names(d / "new"), ["f"], "created by the old handle")
    os.close(dirfd)
    shutil.rmtree(d / "new")


def main():
    line = lineage()
    for i, function in enumerate(CALLS, 1):
        local = WORK / "local" / function.__name__
        local.mkdir(parents=True)
        for d in (local, staging(line, i)):
            try:
                function(d)
            except BaseException:
                print(f"in {function.__name__} on {d}", file=sys.stderr)
                raise
    refused("EOPNOTSUPP|EISDIR", os.open, line / ".staging" / "1",
            os.O_TMPFILE | os.O_RDWR)
    if passthrough():
        check(metric("weightfs_passthrough_opens_total") > 0, "no passthrough")
    # What cannot be published says so, everything else can.
    for i, function in enumerate(CALLS, 1):
        stage = line / ".staging" / str(i)
        want = facts(stage, times=False)
        same = facts(publish(stage), times=False)
        equal(same, want, f"what {function.__name__} left, published")


main()
