# SPDX-License-Identifier: Apache-2.0
# weightctl stat, ls, rm, wait and help say what is true, for people and as
# JSON.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

CTL = pathlib.Path(DAEMON).parent.parent / "mount-helpers" / "weightctl"
if not CTL.exists():
    skip("no weightctl")
SRC = checkpoint("src")
line = lineage()
P = "user.weights."


def ctl(*argv, status=0, cwd=None):
    return run(CTL, *argv, status=status, cwd=cwd)


def objects(*argv):
    return [json.loads(x) for x in ctl(*argv).splitlines()]


gens = {n: put(line, n, SRC) for n in (2, 10, 9)}
gen = gens[9]
staging(line, 11, SRC)
os.symlink("9", line / "serving")
os.symlink("9", line / "odd \x1b name")

# ---- stat: all that listxattr names, in text and JSON
tensor = next((gen / ".weights" / "tensors").iterdir())
for path in (gen, gen / "model.safetensors", tensor, line,
             line / ".staging" / "11"):
    listed = {n.removeprefix(P) for n in os.listxattr(path)
              if n.startswith(P)}
    rows = dict(x.split(maxsplit=1) for x in ctl("stat", path).splitlines())
    equal(set(rows), listed, f"stat {path}")
    (facts,) = objects("stat", "--json", path)
    equal(set(facts), listed | {"path"}, f"stat --json {path}")
    for name in listed:
        equal(rows[name], attr(path, name), name)
(facts,) = objects("stat", "--json", gen)
equal(facts["logical_bytes"], int(attr(gen, "logical_bytes")), "a number")
equal(facts["durable"], attr(gen, "durable") == "yes", "a truth")
equal([f["path"] for f in objects("stat", "-j", gens[2], line / "serving")],
      [str(gens[2]), str(gen)], "several")
says(ctl("stat", "/", status=1), "not on a mount")
says(ctl("stat", line / "99", gen, status=1), "99.*No such file",
     "availability")

# ---- ls: in numeric order, with what points to them
text = ctl("ls", line)
equal([x.split()[0] for x in text.splitlines()[1:]], ["2", "9", "10", "11"],
      "numbers")
says(text, r"(?m)^9 +ready .*serving", r"(?m)^11 +staged")
check("\x1b" not in text, "a name reaches the terminal as it is")
(facts,) = objects("ls", "--json", line)
rows = {g["generation"]: g for g in facts["generations"]}
equal(sorted(rows[9]["names"]), ["odd \x1b name", "serving"], "names")
equal(rows[11]["availability"], "staged", "staged")
equal(rows[2]["logical_bytes"], facts["generations"][1]["logical_bytes"],
      "sizes")
equal(objects("ls", "--json", MNT / "t")[0]["generations"], [], "no lineage")
equal(ctl("ls", MNT / "t"), "", "no lineage")
ctl("ls", gen, status=1)

# ---- wait: ready, and what can't be waited for
equal(ctl("wait", gen, gen / "model.safetensors", line / ".staging" / "11"),
      "", "wait")
says(ctl("wait", line, status=1), "revision")
says(ctl("op", gen), "no operation")
says(ctl("op", "12345", cwd=line, status=1), "12345")

# ---- rm: by its number only, with the mount's own sentence
for path in (line / "serving", gen / "model.safetensors", gen / "1_Pooling",
             line / ".staging" / "11", line, line / "99"):
    says(ctl("rm", path, status=1), "^weightctl: ")
equal(names(line), sorted(["2", "9", "10", "serving", "odd \x1b name"] +
                          [n for n in names(line) if n == ".staging"]),
      "all is there")
says(ctl("rm", "--if=99999", gens[2], status=1), "remove=2,if=99999")
with Client() as c:
    c.do("m = mapped(args[0])", gens[2] / "model.safetensors")
    said = ctl("rm", gens[2], status=1)
    equal(said.strip(), f"weightctl: {gens[2]}: remove=2: "
          + attr(gens[2], "error"), "the sentence")
    says(said, r"\b%d\b" % c.pid)


def removed():
    return run(CTL, "rm", f"{gens[2]}/", status=None) == ""


wait_for(removed, "it is removed")
refused("ENOENT", os.stat, gens[2])
ctl("rm", "10", cwd=line)

# ---- help: what --help names is explained, within 80 columns
text = ctl("--help")
commands = re.findall(r"(?m)^  ([a-z]+)  ", text)
check(len(commands) >= 9, f"commands {commands}")
for name in commands:
    one = ctl("help", name)
    equal(ctl(name, "--help"), one, f"{name} --help")
    says(one, f"^Usage: weightctl {name} ")
    text += one
text += ctl("help") + ctl("help", "attributes")
equal([x for x in text.splitlines() if len(x) > 80], [], "long lines")
for name in ("availability", "residency", "remove", "sha256"):
    says(ctl("help", "attributes"), rf"(?m)^  {name} +\S")
says(ctl("--version"), r"^weightctl \d+\.\d+")
ctl("help", "nothing", status=2)
ctl(status=2)
# The manual names every command and option.
page = (pathlib.Path(os.environ["TESTS"]).parent / "mount-helpers" / "man" /
        "weightctl.8").read_text().replace("\\-", "-")
for name in commands:
    says(page, rf"(?m)^\.B {name}$")
for option in set(re.findall(r"--[a-z-]+", text)):
    check(option in page, f"the manual does not name {option}")

# ---- Completion knows what the program knows
script = (pathlib.Path(os.environ["TESTS"]).parent / "mount-helpers" /
          "completion" / "weightctl")


def completed(*words):
    return run("bash", "-c", '. "$1"; shift; PATH=$1:$PATH; shift; '
               'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weightctl; '
               'printf "%s\\n" "${COMPREPLY[@]}"', "-", script, CTL.parent,
               *words).split()


equal(completed("weightctl", "mig"), ["migrate"], "a command")
equal(completed("weightctl", "help", "att"), ["attributes"], "help")
equal(completed("weightctl", "put", "--k"), ["--keep"], "an option")
equal(completed("weightctl", "rm", "--i"), ["--if="], "with a value")
equal(completed("weightctl", "migrate", "x", "c"), ["cold"], "a target")
equal(completed("weightctl", "policy", "x", "m"), ["mode="], "a setting")
for words in (("mode", "="), ("mode", "=", ""), ("ratio=1", "mode", "=", "")):
    equal(completed("weightctl", "policy", "x", *words),
          ["pinned", "manual", "auto"], "its values")
equal(completed("weightctl", "policy", "x", "preferred", "=", "c"), ["cold"],
      "a value")
equal(completed("weightctl", "upsert", "--mode", "=", "d"), ["delete_first"],
      "a mode")
equal(set(completed("weightctl", "")) - {"help", "--help", "--version"},
      set(commands), "all commands")
EOP
