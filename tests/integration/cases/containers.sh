# SPDX-License-Identifier: Apache-2.0
# Who may look: other users, other namespaces, bind mounts, and a dead mount.
# MANUAL
# TIMEOUT: 90
need_root
need unshare setpriv
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

if not APART:
    skip("no mount namespaces")

SRC = checkpoint("src")
run("chmod", "-R", "a+rX", SRC)
d = Daemon("durability=none")
line = lineage()
gen = put(line, 1, SRC)
with Client(12345) as c:
    try:
        c.get("os.stat(args[0])", WORK)
    except OSError:
        skip("the build directory is closed to other users")
    c.get("open(args[0]).read()", gen / "config.json")

# ---- A bind mount of a generation, in a namespace of its own
pod = subprocess.Popen(
    [*APART, "sh", "-c",
     f"mkdir {WORK}/pod && mount --bind {gen} {WORK}/pod && echo up && "
     f"exec python3 -c '\nimport sys, mmap\n"
     f"f = open(\"{WORK}/pod/model.safetensors\", \"rb\")\n"
     "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
     "print(\"mapped\", flush=True)\nsys.stdin.readline()\n"
     "print(len(m[:]), flush=True)\nsys.stdin.readline()'"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
equal(pod.stdout.readline(), "up\n", "bind mount")
equal(pod.stdout.readline(), "mapped\n", "mapped in there")
refused("EBUSY", remove, gen)
refused("EROFS|EPERM", os.unlink, gen / "config.json")

# ---- The daemon dies and comes back: old mappings live, new views are fresh
# In a chroot mounts can only be copied as they are.
SLAVE = (APART if "unchanged" in APART
         else ["unshare", "-m", "--propagation", "slave"])
slave = subprocess.Popen(
    [*SLAVE, "sh", "-c",
     f"echo up; read x; ls {MNT}; cat {gen}/config.json"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    text=True)
equal(slave.stdout.readline(), "up\n", "slave")
d.kill()
for path in (MNT, gen, gen / "config.json"):
    refused("ENOTCONN", lambda: os.listdir(path) if path == MNT
            else os.stat(path) and os.open(path, os.O_RDONLY))
d.start()
same_tree(gen, SRC)
out = slave.communicate("\n")[0]
if "not connected" in out:
    print("# mounts do not propagate here")
else:
    says(out, "demo")
if passthrough():
    refused("EBUSY", remove, gen)
    pod.stdin.write("\n")
    pod.stdin.flush()
    equal(int(pod.stdout.readline()),
          os.stat(SRC / "model.safetensors").st_size,
          "the mapping after the daemon's death")
pod.kill()
pod.wait(20)


def removed():
    try:
        remove(gen)
        return True
    except OSError as e:
        equal(e.errno, errno.EBUSY, "remove")
        return False


wait_for(removed, "removed after the pod has ended", 20)
d.stop()

# ---- Only the one who mounts, where that is wanted
d = Daemon("durability=none", "allow_other=off")
gen = put(lineage("main"), 2, SRC)
with Client(12345) as c:
    refused("EACCES", c.get, "os.listdir(args[0])", MNT)
d.stop()

# ---- As an ordinary user: works, or says in one line what is missing
home = WORK / "home"
(home / "mnt").mkdir(parents=True)
for p in (home, home / "mnt"):
    os.chown(p, 12345, 12345)
log = WORK / "user.log"
user = subprocess.Popen(
    ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", DAEMON,
     "-f", home / "store", home / "mnt"], stderr=open(log, "w"),
    stdout=subprocess.DEVNULL)


def settled():
    if user.poll() is not None:
        return True
    with Client(12345) as c, contextlib.suppress(OSError):
        return c.get("(args[0] / '.weights' / 'version').read_text()",
                     home / "mnt")
    return False


wait_for(settled, "it serves or says why not", 20)
if user.poll() is None:
    with Client(12345) as c:
        c.do("""
import wf
wf.MNT = args[0]
line = args[0] / 't' / 'n' / 'r' / 'v'
line.mkdir(parents=True)
gen = put(line, 1, args[1])
same_tree(gen, args[1])
m = mapped(gen / 'model.safetensors')
refused('EBUSY', remove, gen)
m.close()
""", home / "mnt", SRC)
        text = c.get("(args[0] / '.weights' / 'health').read_text()",
                     home / "mnt")
        says(text, "passthrough: no")
    user.send_signal(signal.SIGTERM)
    equal(user.wait(30), 0, "status")
else:
    text = log.read_text().strip()
    check(text, "it ended without a word")
    print("# as a user:", text)
EOP
