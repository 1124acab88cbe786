# SPDX-License-Identifier: Apache-2.0
# A process that unmaps what is dirty and an attempt never wait for each other.
# OPTIONS: durability=none,passthrough=off
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

BYTES = 32 << 20
# Each writes dirty pages with the lock of the address space held, which
# whoever looks for the names of writers wants too.
ENDS = {
    "mapped over": "libc.mmap(ctypes.c_void_p(m), ctypes.c_size_t(BYTES), 0, "
                   "0x32, -1, ctypes.c_long(0))",
    "unmapped": "libc.munmap(ctypes.c_void_p(m), ctypes.c_size_t(BYTES))",
    "exit": "os._exit(0)",
}
line = lineage()
for n, (how, end) in enumerate(ENDS.items(), 1):
    stage = staging(line, n)
    (stage / "f").write_bytes(bytes(BYTES))
    c = Client()
    c.do("""
BYTES = args[1]
libc.mmap.restype = ctypes.c_void_p
f = os.open(args[0], os.O_RDWR)
m = libc.mmap(None, ctypes.c_size_t(BYTES), 3, 1, f, ctypes.c_long(0))
os.close(f)
ctypes.memset(m, 1, BYTES)
""", stage / "f", BYTES)
    p = subprocess.Popen(["mv", "-T", stage, line / str(n)],
                         stderr=subprocess.PIPE)
    wait_for(lambda: p.poll() is not None or "wait" in pathlib.Path(
        f"/proc/{p.pid}/wchan").read_text(), "mv waits")
    c.send("exec", end)
    said = p.communicate(timeout=30)[1].decode()
    print("#", how, p.returncode, said.strip(), flush=True)
    check(p.returncode == 0 or "busy" in said, said)
    if how != "exit":
        c.answer()
    c.kill()
    if p.returncode:
        publish(stage)
    equal((line / str(n) / "f").read_bytes(), b"\1" * BYTES, how)
EOP
