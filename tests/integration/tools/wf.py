# SPDX-License-Identifier: Apache-2.0
"""What the Python programs of the cases share.

The case's settings come through the environment, see py.sh. A program passes
by reaching its end; an exception fails it.
"""
import contextlib
import ctypes
import errno
import hashlib
import json
import mmap
import os
import pathlib
import pickle
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time

MNT = pathlib.Path(os.environ["MNT"])
STORE = pathlib.Path(os.environ["STORE"])
WORK = pathlib.Path(os.environ["WORK"])
# Runs a command with mounts of its own; empty where that is refused.
APART = os.environ.get("APART", "").split()
LOG = pathlib.Path(os.environ["LOG"])
DAEMON = os.environ["DAEMON"]

RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4

libc = ctypes.CDLL(None, use_errno=True)


def skip(why):
    print("SKIP:", why, flush=True)
    sys.exit(77)


def need(*programs):
    for p in programs:
        if not shutil.which(p):
            skip("no " + p)


def need_root():
    if os.geteuid() != 0:
        skip("not root")


# ---- Claims

def check(truth, what):
    if not truth:
        raise AssertionError(what)


def equal(found, expected, what):
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, not {expected!r}")


def refused(names, function, *args, **kwargs):
    """The call fails with one of these errnos ("EROFS" or "EROFS|EPERM")."""
    try:
        value = function(*args, **kwargs)
    except OSError as e:
        name = errno.errorcode.get(e.errno, e.errno)
        if e.errno not in [getattr(errno, n) for n in names.split("|")]:
            raise AssertionError(
                f"{name}, not {names}: {function} {args}") from e
        return e
    raise AssertionError(f"went well, not {names}: {function} {args}: {value}")


def wait_for(condition, what, seconds=15):
    """Polls until condition() is true, and returns what it returned."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def says(sentence, *patterns):
    for p in patterns:
        if not re.search(p, sentence):
            raise AssertionError(f"{sentence!r} does not say {p!r}")


# ---- Calls that Python lacks

def _checked(result):
    if result < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return result


def rename2(old, new, flags=0):
    return _checked(libc.renameat2(-100, os.fsencode(old), -100,
                                   os.fsencode(new), flags))


def fallocate(fd, mode, offset, length):
    return _checked(libc.fallocate(fd, mode, ctypes.c_long(offset),
                                   ctypes.c_long(length)))


def getxattr_size(path, name, size):
    """getxattr(2) with a buffer of that size: the length it returned."""
    buf = ctypes.create_string_buffer(max(size, 1))
    return _checked(libc.getxattr(os.fsencode(path), name.encode(), buf,
                                  ctypes.c_size_t(size)))


def listxattr_size(path, size):
    buf = ctypes.create_string_buffer(max(size, 1))
    return _checked(libc.listxattr(os.fsencode(path), buf,
                                   ctypes.c_size_t(size)))


# ---- Commands

def run(*argv, status=0, cwd=None, env=None, input=None):
    """Runs a program, checks its status (None: any), returns its output."""
    done = subprocess.run([str(a) for a in argv], cwd=cwd, input=input,
                          text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False,
                          errors="surrogateescape",
                          env={**os.environ, "LC_ALL": "C", **(env or {})})
    if status is not None and done.returncode != status:
        raise AssertionError(f"status {done.returncode}, not {status}, of "
                             f"{argv}: {done.stdout}")
    return done.stdout


# ---- Trees

def sha(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest() \
            if hasattr(hashlib, "file_digest") \
            else hashlib.sha256(f.read()).hexdigest()


def unreadable(e):
    raise e


def facts(top, owners=False, times=True):
    """All that must survive: kinds, modes, times, bytes, links of a tree."""
    out, first = {}, {}
    top = os.fsencode(top)
    for path, dirs, files in os.walk(top, onerror=unreadable):
        for name in dirs + files:
            p = os.path.join(path, name)
            rel = os.path.relpath(p, top)
            st = os.lstat(p)
            fact = [stat.S_IFMT(st.st_mode), stat.S_IMODE(st.st_mode)]
            if owners:
                fact += [st.st_uid, st.st_gid]
            if stat.S_ISLNK(st.st_mode):
                fact.append(os.readlink(p))
            elif stat.S_ISREG(st.st_mode):
                fact += [st.st_size, sha(p)]
                if times:
                    fact.append(st.st_mtime_ns)
                same = first.setdefault((st.st_dev, st.st_ino), set())
                same.add(rel)
                fact += [st.st_nlink, same]
            out[rel] = fact
    for fact in out.values():
        if isinstance(fact[-1], set):
            fact[-1] = sorted(fact[-1])
    return out


def same_tree(found, expected, **kwargs):
    a, b = facts(found, **kwargs), facts(expected, **kwargs)
    for name in sorted(set(a) | set(b)):
        if a.get(name) != b.get(name):
            raise AssertionError(f"{name!r}: {a.get(name)}, "
                                 f"not {b.get(name)}")


def safetensors(path, tensors, junk=b""):
    """tensors: name to bytes."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)],
                        "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for data in tensors.values():
            f.write(data)
        f.write(junk)


def checkpoint(name="ckpt", size=50_000, seed=1, files=1):
    """A local checkpoint: weights, a config, a directory. Its path."""
    rng = random.Random(seed)
    top = WORK / name
    top.mkdir(exist_ok=True)
    for i in range(files):
        part = "" if files == 1 else f"-{i}"
        safetensors(top / f"model{part}.safetensors",
                    {f"layers.{i}.{x}.weight": rng.randbytes(size // 2 | 1)
                     for x in "ab"})
    (top / "config.json").write_text('{"model_type": "demo"}\n')
    (top / "1_Pooling").mkdir(exist_ok=True)
    (top / "1_Pooling" / "config.json").write_text("{}\n")
    return top


# ---- The mount

def lineage(name="main", resource="r"):
    path = MNT / "t" / "n" / resource / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def staging(line, generation, source=None):
    """Makes a staging directory, with what is in source copied in."""
    path = line / ".staging" / str(generation)
    path.mkdir()
    if source:
        run("cp", "-a", f"{source}/.", path)
    return path


def ready(stage):
    """Reads the staging directory's wait to its end."""
    with open(stage / ".weights" / "wait", "rb", buffering=0) as f:
        text = b""
        while part := f.read(4096):
            text += part
    return text.decode()


def publish(stage):
    """Waits, renames, and returns the published directory.

    What can't be published may fail the wait already; the rename then says so.
    """
    with contextlib.suppress(OSError):
        ready(stage)
    target = stage.parent.parent / stage.name
    os.rename(stage, target)
    return target


def put(line, generation, source):
    return publish(staging(line, generation, source))


def attr(path, name):
    return os.getxattr(path, "user.weights." + name).decode()


def set_attr(path, name, value):
    os.setxattr(path, "user.weights." + name, str(value).encode())


def remove(generation_dir):
    set_attr(generation_dir, "remove", generation_dir.name)


def metric(name):
    m = re.search(rf"^{name}(?:{{[^}}]*}})? (\d+)",
                  (MNT / ".weights" / "metrics").read_text(), re.M)
    return int(m[1]) if m else 0


def passthrough():
    """Whether the kernel moves the bytes, so that readers outlive it."""
    return "passthrough: yes" in (MNT / ".weights" / "health").read_text()


def names(path):
    return sorted(os.listdir(path))


# ---- Other processes

class Client:
    """Another process that does what it is told, one expression at a time.

    What it makes is kept in its variables, so it can hold descriptors, maps
    and directories for as long as a test wants, and be killed with them.
    """

    def __init__(self, uid=None, gid=None):
        down_r, down_w = os.pipe()
        up_r, up_w = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(down_w)
            os.close(up_r)
            self._serve(os.fdopen(down_r, "rb"), os.fdopen(up_w, "wb"),
                        uid, gid)
        os.close(down_r)
        os.close(up_w)
        self._down = os.fdopen(down_w, "wb")
        self._up = os.fdopen(up_r, "rb")

    @staticmethod
    def _serve(down, up, uid, gid):
        if uid is not None:
            os.setgroups([])
            os.setgid(gid if gid is not None else uid)
            os.setuid(uid)
        space = dict(globals())
        while True:
            try:
                kind, text, args = pickle.load(down)
            except EOFError:
                kind = "end"
            if kind == "end":
                os._exit(0)
            try:
                space["args"] = args
                value = None
                if kind == "eval":
                    value = eval(text, space)
                else:
                    exec(text, space)
                answer = ("value", value)
            except OSError as e:
                answer = ("errno", (e.errno, e.strerror))
            except BaseException as e:
                answer = ("raised", repr(e))
            pickle.dump(answer, up)
            up.flush()

    def send(self, kind, text, *args):
        pickle.dump((kind, text, args), self._down)
        self._down.flush()

    def answer(self):
        kind, value = pickle.load(self._up)
        if kind == "errno":
            raise OSError(*value)
        if kind == "raised":
            raise AssertionError(value)
        return value

    def do(self, text, *args):
        """Executes statements; args is what they see as args."""
        self.send("exec", text, *args)
        return self.answer()

    def get(self, text, *args):
        """Evaluates an expression; its value must be plain."""
        self.send("eval", text, *args)
        return self.answer()

    def end(self):
        # Other children may hold our end of the pipe, so closing won't do.
        self.send("end", "")
        os.waitpid(self.pid, 0)
        self._down.close()
        self._up.close()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._down.close()
        self._up.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.kill()


def mapped(path):
    """A shared read-only mapping of a whole file, its descriptor closed."""
    with open(path, "rb") as f:
        return mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED,
                         prot=mmap.PROT_READ)


# ---- The daemon, for cases that are MANUAL

class Daemon:
    def __init__(self, *options, store=STORE, mnt=MNT, env=None):
        self.env = {**os.environ, **(env or {})}
        self.options, self.store, self.mnt = list(options), store, mnt
        self.process = None
        self.start()

    def argv(self):
        options = [*filter(None, [os.environ.get("WEIGHTFS_TEST_OPTIONS")]),
                   *self.options]
        return [DAEMON, "-f", str(self.store), str(self.mnt),
                *(["-o", ",".join(options)] if options else [])]

    def start(self):
        with open(LOG, "ab") as log:
            self.process = subprocess.Popen(self.argv(), stdout=log,
                                            stderr=log, env=self.env,
                                            stdin=subprocess.DEVNULL)

        def served():
            if self.process.poll() is not None:
                raise AssertionError("the daemon ended with "
                                     f"{self.process.returncode}")
            with contextlib.suppress(OSError):
                return (self.mnt / ".weights" / "version").read_text()
        wait_for(served, "the mount is served", 30)

    @property
    def pid(self):
        return self.process.pid

    def ends(self):
        status = self.process.wait(60)
        equal(status, 0, "status of the daemon")

    def stop(self):
        """Unmounts; the daemon ends in order."""
        def unmounted():
            return subprocess.run(["fusermount3", "-u", str(self.mnt)],
                                  stderr=subprocess.DEVNULL,
                                  check=False).returncode == 0
        wait_for(unmounted, "the mount is not busy", 10)
        self.ends()

    def terminate(self):
        self.process.terminate()
        self.ends()

    def kill(self):
        """kill -9. The dead mount stays."""
        self.process.kill()
        self.process.wait()

    def restart(self, *options):
        """After stop() or kill()."""
        if options:
            self.options = list(options)
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.process.kill()
        else:
            self.stop()
