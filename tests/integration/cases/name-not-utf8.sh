# SPDX-License-Identifier: Apache-2.0
# A file name that is not UTF-8 is published as it is, or refused by its name.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
line = lineage()
stage = staging(line, 6, SRC)
bad = os.path.join(os.fsencode(stage), b"\xff\xfe.bin")
with open(bad, "wb") as f:
    f.write(b"x")
want = facts(stage)
try:
    equal(facts(publish(stage)), want, "with a name that is not UTF-8")
except OSError as e:
    equal(e.errno, errno.EBADMSG, "a name that is not UTF-8")
    # Whoever reads it has to find the file.
    says(attr(stage, "error"), r"ff.*fe|\\377|%FF|\ufffd|\.bin")
    os.unlink(bad)
    publish(stage)
EOP
