# SPDX-License-Identifier: Apache-2.0
# A file name that is not UTF-8 is published as it is, or refused by its name.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
line = lineage()
stage2 = staging(line, 6, SRC)
stage2 = staging(line, 6, SRC)
bad = os.path.join(os.fsencode(stage2), b"\xff\xfe.bin")
with open(bad, "wb") as f:
    f.write(b"x")
want = facts(stage2)
try:
    equal(facts(publish(stage2)), want, "with a name that is not UTF-8")
except OSError as e:
    equal(e.errno, errno.EBADMSG, "a name that is not UTF-8")
    # Whoever reads it has to find the file.
    says(attr(stage2, "error"), r"ff.*fe|\\377|%FF|\ufffd|\.bin")
    os.unlink(bad)
    publish(stage2)
EOP
