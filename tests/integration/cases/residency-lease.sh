# SPDX-License-Identifier: Apache-2.0
# Who maps a file keeps the revision in memory: the operation waits, says so,
# and goes on when the reader has gone.
# TIMEOUT: 120
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from residency import *
from wf import *

src = checkpoint("src", size=8 << 20)
gen = put(lineage(), 1, src)
settle(gen)
comes_to(gen, "hot")
file = gen / "model.safetensors"
want = sha(src / "model.safetensors")

with Client() as reader:
    if passthrough():
        reader.do(MAP, str(file))
    else:
        reader.do("f = open(args[0], 'rb')\n"
                  "at = 0\n"
                  "def again(): return hashlib.sha256(f.read()).hexdigest()",
                  str(file))
    move(gen, "cold")
    ident = wait_for(lambda: operation(gen), "an operation")
    says(run("getfattr", "-d", gen), f'user.weights.operation="{ident}"')
    says(wait_for(lambda: "read it" in (line := first_line(gen)) and line,
                  "the wait says who is waited for"),
         rf"operation {ident} to cold: waiting for those who read it \(\d+\)")
    # It goes on waiting, and nothing has left the memory.
    time.sleep(2.5)
    equal(operation(gen), ident, "the operation")
    equal(attr(gen, "residency"), "hot", "residency while it is read")
    equal(attr(gen, "availability"), "ready", "availability")
    equal(operation_text(ident)["target_residency"], "cold", "target")
    check(operation_text(ident)["message"] != "completed", "it is over")
    # Who changes his mind need not wait for the readers.
    first = ident
    move(gen, "hot")
    settle(gen)
    says(operation_text(first)["message"], "another operation took its place")
    comes_to(gen, "hot")
    move(gen, "cold")
    ident = wait_for(lambda: operation(gen), "an operation")
    # Others read on meanwhile.
    equal(sha(file), want, "read by another")
    if passthrough():
        equal(reader.get(MAPPED_SHA), want, "mapped")
        reader.do(UNMAP)
    else:
        equal(reader.get("again()"), want, "read")
        reader.do("f.close()")
    settle(gen)
comes_to(gen, "cold")
equal(operation_text(ident)["message"], "completed", "message")
equal(attr(gen, "pinned_bytes"), "0", "pinned_bytes")
same_tree(gen, src)

# ---- A reader that is killed holds nothing
move(gen, "hot")
settle(gen)
comes_to(gen, "hot")
reader = Client()
reader.do("held = open(args[0], 'rb')", str(file))
move(gen, "cold")
time.sleep(1)
equal(attr(gen, "residency"), "hot", "residency while it is open")
reader.kill()
settle(gen)
comes_to(gen, "cold")

# ---- Into memory goes what is read, too
with Client() as reader:
    reader.do("held = open(args[0], 'rb')", str(file))
    move(gen, "hot")
    settle(gen)
    comes_to(gen, "hot")
    equal(sha(file), want, "while it is held")

# ---- Who removes it doesn't wait for an operation
with Client() as reader:
    reader.do("held = open(args[0], 'rb')", str(file))
    move(gen, "cold")
    ident = wait_for(lambda: operation(gen), "an operation")
    refused("EBUSY", remove, gen)
wait_for(lambda: attr(gen, "leases") == "0", "the lease ends")
remove(gen)
wait_for(lambda: operation_text(ident)["message"] in
         ("completed", "the revision was removed"), "the operation is over")
EOP
