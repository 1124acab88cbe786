# SPDX-License-Identifier: Apache-2.0
"""What the rows of the bench stand on: a private directory that is emptied
after each row, works of reader.c, memory that is warm, and the limits that are
not a file.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

from mounts import MIB, Failed, is_mounted, mount_tmpfs, run, unmount
from mounts import write_safetensors

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TENSOR_BYTES = 16 * MIB
BLOCK_BYTES = 64 * MIB
CHUNK_BYTES = 4 * MIB
# Not all memory may be taken to warm it: others live here too.
SPARE_BYTES = 2 << 30
# Where tests/clients/setup puts readers and models.
CLIENTS = pathlib.Path(os.environ.get("WEIGHTFS_CLIENTS_DIR",
                                      ROOT / "build" / "clients"))
MODELS = ("minilm", "random")
LIBRARIES = ("-llmdb", "-lyajl", "-lcrypto", "-lxxhash", "-lpthread")


def timed(function, *args):
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def quiet(*argv):
    """A command whose output nobody reads; its seconds."""
    return timed(lambda: subprocess.run(
        [str(a) for a in argv], check=True, stdout=subprocess.DEVNULL))


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


class World:
    def __init__(self, args):
        self.daemon = pathlib.Path(args.daemon).resolve()
        self.args = args
        parent = pathlib.Path(args.dir)
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="weightfs-bench.",
                                                 dir=parent)).resolve()
        self.mounts, self.tmpfs, self.others = [], [], []
        self.reader_path = self.dir / "reader"
        self.block = os.urandom(min(BLOCK_BYTES, max(args.size // 4, MIB)))
        run(os.environ.get("CC", "cc"), "-O2", "-D_GNU_SOURCE",
            HERE / "reader.c", "-o", self.reader_path)

    def clear(self):
        """Ends all mounts and removes all files, whatever a row left."""
        for process, path in self.others:
            unmount(path)
            process.terminate()
            process.wait()
        for mount in self.mounts:
            with contextlib.suppress(OSError):
                mount.stop()
        for path in self.tmpfs:
            unmount(path)
        self.mounts, self.tmpfs, self.others = [], [], []
        for path in self.dir.iterdir():
            if path == self.reader_path or is_mounted(path):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    def close(self):
        self.clear()
        self.reader_path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.dir.rmdir()

    def reader(self, *args, with_open=False):
        """Seconds of one work of reader.c."""
        said = run(self.reader_path, *args).split()
        return int(said[1 if with_open else 0]) / 1e9

    def models(self):
        """Real checkpoints: the one that was named, or those of the tests
        with real clients."""
        if self.args.model:
            return [pathlib.Path(self.args.model)]
        return [p for p in (CLIENTS / "models" / name for name in MODELS)
                if any(p.glob("*.safetensors"))]

    @staticmethod
    def model_name(path):
        return "noise" if path.name == "random" else path.name

    def warm(self, size):
        """Freed memory that has rested goes back to the host and is slow to
        come again: take and free as much at once."""
        size = min(size, available_bytes() - SPARE_BYTES)
        if size > 0:
            self.reader("warm", size)

    def new_tmpfs(self, name, options):
        path = self.dir / name
        mount_tmpfs(path, options)
        self.tmpfs.append(path)
        return path

    def checkpoint(self, name, size, shards):
        """A directory with about size bytes of safetensors."""
        path = self.dir / name
        path.mkdir()
        count = max(1, size // shards // TENSOR_BYTES)
        each = size // shards // count
        weights = {}
        for i in range(shards):
            file = (f"model-{i + 1:05}-of-{shards:05}.safetensors"
                    if shards > 1 else "model.safetensors")
            names = [f"layers.{i}.{j}.weight" for j in range(count)]
            write_safetensors(path / file, [(n, each) for n in names],
                              self.block)
            weights |= {n: file for n in names}
        if shards > 1:
            (path / "model.safetensors.index.json").write_text(json.dumps(
                {"metadata": {"total_size": size}, "weight_map": weights}))
        (path / "config.json").write_text('{"model_type": "bench"}\n')
        return path

    def sha256_seconds(self, size):
        """SHA-256 of size bytes in chunks with all cores, from memory."""
        cores = len(os.sched_getaffinity(0))
        chunk = self.block[:CHUNK_BYTES]
        left = [-(-size // len(chunk))]
        lock = threading.Lock()

        def work():
            while True:
                with lock:
                    left[0] -= 1
                    if left[0] < 0:
                        return
                hashlib.sha256(chunk).digest()

        threads = [threading.Thread(target=work) for _ in range(cores)]

        def all_of_them():
            for t in threads:
                t.start()
            for t in threads:
                t.join()

        return timed(all_of_them)

    def passthrough_example(self, source):
        """Mounts libfuse's own example over source; the mount point."""
        program = self.build_example()
        path = self.dir / "example.mnt"
        path.mkdir()
        process = subprocess.Popen([program, "--foreground", source, path],
                                   stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.others.append((process, path))
        deadline = time.monotonic() + 10
        while not is_mounted(path):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed("libfuse's example does not mount")
            time.sleep(0.02)
        return path

    def build(self, name):
        """A program of this folder, made with what the daemon was linked
        from."""
        library = self.daemon.parent.parent / "core" / "libcore.a"
        if not library.exists():
            raise Failed(f"no core/libcore.a beside the folder of "
                         f"{self.daemon}")
        program = self.dir / name
        run(os.environ.get("CC", "cc"), "-O2", "-std=gnu17", "-D_GNU_SOURCE",
            f"-I{ROOT}", HERE / f"{name}.c", library, *LIBRARIES, "-o",
            program)
        return program

    def build_example(self):
        source = ROOT / "subprojects" / "fuse3"
        build = self.daemon.parent / "bench-fuse3"
        program = build / "example" / "passthrough_hp"
        if program.exists():
            return program
        if not (source / "example").is_dir():
            raise Failed("no source of libfuse in subprojects/fuse3")
        run("meson", "setup", build, source, "--buildtype=release",
            "-Dexamples=true", "-Dtests=false", "-Dutils=false",
            "-Ddefault_library=static")
        run("ninja", "-C", build, "example/passthrough_hp")
        return program
