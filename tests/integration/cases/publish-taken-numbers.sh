# SPDX-License-Identifier: Apache-2.0
# A number that is taken is refused as taken, whatever is moved to it.
# OPTIONS: durability=none
. "$TESTS/integration/tools/py.sh"

py <<'EOP'
from wf import *

SRC = checkpoint("src")
line = lineage()
taken = put(line, 1, SRC)
remove(put(line, 2, SRC))
five = staging(line, 5, SRC)
ROWS = [  # target, flags, errno, what mv prints, what the sentence says
    ("1", 0, "ENOTEMPTY", "Directory not empty", "1.*published"),
    ("1", RENAME_NOREPLACE, "EEXIST", None, None),
    ("2", 0, "ECANCELED", "Operation canceled", "2.*removed"),
    ("2", RENAME_NOREPLACE, "ECANCELED", None, "2.*removed"),
    ("6", 0, "EPERM", "Operation not permitted", "5"),
    ("name", 0, "EPERM", "Operation not permitted", "5"),
]
for name, flags, err, printed, sentence in ROWS:
    try:
        refused(err, rename2, five, line / name, flags)
        if sentence:
            says(attr(five, "error"), sentence)
        if printed:
            says(run("mv", "-T", five, line / name, status=1), printed)
    except AssertionError as e:
        raise AssertionError(f"to {name}, flags {flags}: {e}") from e
    same_tree(five, SRC)
    same_tree(taken, SRC)
same_tree(publish(five), SRC)
EOP
