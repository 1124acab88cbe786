# SPDX-License-Identifier: Apache-2.0
# Whatever clients wait for when the daemon dies, is told to end or is cut off,
# they go on at once.
# MANUAL
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
# What a client does that is not answered for long; args: staged, published.
WAITS = {
    "wait": "open(args[0] / '.weights' / 'wait').read()",
    "publish": "os.rename(args[0], args[1].parent / args[0].name)",
    "create": "(time.sleep(.2), open(args[0] / 'new', 'w'))",
    "rename": "(time.sleep(.2), os.rename(args[0] / 'config.json', "
              "args[0] / '1_Pooling' / 'c'))",
    "truncate": "(time.sleep(.2), os.truncate(args[0] / 'config.json', 0))",
    "list": "[os.listdir(args[1].parent) for _ in range(1 << 30)]",
    "read": "[(args[1] / 'config.json').read_text() for _ in range(1 << 30)]",
    "put": "[(args[0] / ('x%d' % i)).write_text('x') for i in range(1 << 30)]",
    "lookup": "[os.path.exists(args[1] / ('%d' % i)) for i in range(1 << 30)]",
    "fsync": "[os.fsync(os.open(args[0] / 'config.json', 0)) and None "
             "for i in range(500)] and time.sleep(100)",
}
ENDS = {
    "killed": lambda d: d.kill(),
    "told": lambda d: d.process.terminate(),
    "cut off": lambda d: run("umount", "-i", "-f", MNT, status=None),
}


def end(kind, how):
    d = Daemon("durability=none,publish_wait=30s")
    outlives = passthrough()
    line = lineage(kind.replace(" ", "-"))
    gen = put(line, 1, SRC)
    stage = staging(line, 2, SRC)
    clients = {}
    with contextlib.ExitStack() as stack:
        # Keeps publishing and waiting from ending, and holds what is read.
        holder = stack.enter_context(Client())
        holder.do("f = os.open(args[0], os.O_RDWR); "
                  "g = os.open(args[1], os.O_RDONLY); m = mapped(args[1]); "
                  "e = os.open(args[2], os.O_RDONLY); os.listdir(e)",
                  stage / "model.safetensors", gen / "model.safetensors", gen)
        for name, text in WAITS.items():
            c = clients[name] = stack.enter_context(Client())
            c.do("import threading, signal")
            c.send("exec", text, stage, gen)
        time.sleep(.6)  # any moment will do
        how(d)
        deadline = time.monotonic() + 30
        for name, c in clients.items():
            os.kill(c.pid, signal.SIGKILL)
            while os.waitpid(c.pid, os.WNOHANG) == (0, 0):
                check(time.monotonic() < deadline, f"{kind}: {name} hangs: " +
                      run("cat", f"/proc/{c.pid}/wchan", status=None))
                time.sleep(.01)
        if kind == "killed" and outlives:
            equal(holder.get("hashlib.sha256(m).hexdigest()"),
                  sha(SRC / "model.safetensors"), "mapped all the while")
        elif kind != "killed":
            equal(d.process.wait(30), 0, f"{kind}: status of the daemon")
        holder.kill()
    run("umount", "-i", "-l", MNT, status=None)
    d = Daemon("durability=none")
    same_tree(gen, SRC)
    put(line, 3, SRC)
    d.stop()


for kind, how in ENDS.items():
    if kind == "cut off" and os.geteuid() != 0:
        continue
    print("#", kind, flush=True)
    end(kind, how)
EOP
expect_log 'aborted|not connected|reading'
