# SPDX-License-Identifier: Apache-2.0
# Safe by default: no way to the store, no set-id bits, devices, capabilities.
# OPTIONS: durability=none
need_root
need setpriv
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
line = lineage()
gen = put(line, 1, SRC)

# ---- The store, and the mount's flags
equal(stat.S_IMODE(os.stat(STORE).st_mode), 0o700, "mode of the store")
mine = [x.split() for x in
        pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        if f" {MNT} " in x]
equal(len(mine), 1, "mounts")
for flag in ("nosuid", "nodev"):
    check(flag in mine[0][5].split(","), f"not {flag}: {mine[0]}")
equal(mine[0][mine[0].index("-") + 1], "fuse.weightfs", "type")
with Client(12345) as c:
    try:
        c.get("os.stat(args[0])", WORK)
    except OSError:
        skip("the build directory is closed to other users")
    refused("EACCES", c.get, "os.listdir(args[0])", STORE)
    refused("EACCES", c.get, "os.stat(args[0])", STORE / "groups")
    # Nor by what /proc shows of the daemon, or of a file that is open.
    daemon = int(os.environ["DAEMON_PID"])
    refused("EACCES|EPERM", c.get, "os.listdir(args[0])",
            f"/proc/{daemon}/fd")
    c.do("f = os.open(args[0], os.O_RDONLY); m = mapped(args[0])",
         gen / "model.safetensors")
    text = pathlib.Path(f"/proc/{c.pid}/maps").read_text()
    check(str(STORE) not in text and "/groups/" not in text, text)
    link = os.readlink(f"/proc/{c.pid}/fd/{c.get('f')}")
    check(str(STORE) not in link, link)
    c.do("t = mapped(args[0])",
         gen / ".weights" / "tensors" / "layers.0.a.weight")
    for x in pathlib.Path(f"/proc/{c.pid}/maps").read_text().splitlines():
        check("/memfd" not in x and "groups" not in x, x)
# The memory filesystem of tensors is mounted nowhere.
for x in pathlib.Path(
        f"/proc/{daemon}/mountinfo").read_text().splitlines():
    check(" - tmpfs " not in x or "weightfs" not in x, f"mounted: {x}")

# ---- set-id bits never get in, whichever way
stage = staging(line, 2, SRC)
f = stage / "f"
fd = os.open(f, os.O_CREAT | os.O_WRONLY, 0o6777)
equal(stat.S_IMODE(os.fstat(fd).st_mode) & 0o6000, 0, "open's mode")
os.fchmod(fd, 0o6755)
equal(stat.S_IMODE(os.fstat(fd).st_mode), 0o755, "fchmod")
os.close(fd)
for mode in (0o4755, 0o2755, 0o6777):
    os.chmod(f, mode)
    equal(stat.S_IMODE(os.stat(f).st_mode), mode & 0o1777, "chmod")
os.mkdir(stage / "d", 0o2777)
equal(stat.S_IMODE(os.stat(stage / "d").st_mode) & 0o6000, 0, "mkdir")
os.chmod(stage / "d", 0o2777)
equal(stat.S_IMODE(os.stat(stage / "d").st_mode) & 0o6000, 0, "chmod dir")
os.mknod(stage / "n", 0o6777 | stat.S_IFREG)
equal(stat.S_IMODE(os.stat(stage / "n").st_mode) & 0o6000, 0, "mknod")
(WORK / "suid").write_text("x")
os.chmod(WORK / "suid", 0o6755)
run("cp", "-p", WORK / "suid", stage / "copied")
run("install", "-m", "6755", WORK / "suid", stage / "installed")
for name in ("copied", "installed"):
    equal(stat.S_IMODE(os.stat(stage / name).st_mode) & 0o6000, 0, name)
for path in (line, MNT / "t"):
    mode = stat.S_IMODE(os.stat(path).st_mode)
    os.chmod(path, mode | 0o6000)
    equal(stat.S_IMODE(os.stat(path).st_mode) & 0o6000, 0, f"{path}")

# ---- Devices, sockets, fifos
for kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK):
    refused("EPERM", os.mknod, stage / "dev", 0o666 | kind,
            os.makedev(1, 3) if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0)
    refused("EROFS|EPERM", os.mknod, gen / "dev", 0o666 | kind,
            os.makedev(1, 3))
    refused("EPERM", os.mknod, line / "dev", 0o666 | kind, os.makedev(1, 3))
check(not (stage / "dev").exists(), "a device is there")

# ---- Foreign attribute namespaces
for name in ("security.capability", "security.selinux", "security.x",
             "trusted.x", "system.posix_acl_access", "system.x"):
    refused("EOPNOTSUPP|EINVAL" if "posix" in name else "EOPNOTSUPP",
            os.setxattr, f, name, b"\1\0\0\2" + bytes(16))
    refused("EOPNOTSUPP|ENODATA", os.getxattr, f, name)
    check(name not in os.listxattr(f), f"{name} is listed")
    refused("EOPNOTSUPP|EROFS|EINVAL" if "posix" in name
            else "EOPNOTSUPP|EROFS", os.setxattr, gen / "config.json", name,
            b"\1\0\0\2" + bytes(16))
if shutil.which("setcap"):
    says(run("setcap", "cap_net_raw+ep", f, status=None), "not supported")
# What cp -a and rsync -X make of that is no failure.
run("cp", "-a", WORK / "suid", stage / "a")
# Still not turned off for the mount: others answer.
os.setxattr(f, "user.x", b"y")
equal(os.getxattr(f, "user.x"), b"y", "user attributes go on")

# ---- And nothing of it is in what gets published
gen2 = publish(stage)
for p in [gen2, *gen2.rglob("*")]:
    mode = os.lstat(p).st_mode
    check(not mode & 0o6000, f"set-id: {p}")
    check(stat.S_ISREG(mode) or stat.S_ISDIR(mode), f"kind of {p}")
for p in STORE.rglob("*"):
    check(not os.lstat(p).st_mode & 0o6000, f"set-id in the store: {p}")

# ---- Programs in a revision run, without what nosuid denies
shutil.copy("/usr/bin/id", WORK / "id")
stage = staging(line, 3)
run("cp", WORK / "id", stage)
os.chmod(stage / "id", 0o755)
gen3 = publish(stage)
equal(run("setpriv", "--reuid=12345", "--clear-groups", gen3 / "id",
          "-u").strip(), "12345", "id")
EOP
