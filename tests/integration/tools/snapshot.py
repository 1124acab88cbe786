# SPDX-License-Identifier: Apache-2.0
"""Snapshots of metadata as bytes, see core/weight_snapshot.h."""
import hashlib
import struct

HEAD = struct.Struct("<8sIIQQQ")
ITEM = struct.Struct("<BI")
KINDS = 4
OPERATION = 3
# In the record of an operation, see core/weight_record.h.
OPERATION_ID_AT = 4


def with_operations(snapshot, count):
    """The same with so many more operations, as the finished one that it has."""
    head = list(HEAD.unpack_from(snapshot))
    items, at = {kind: [] for kind in range(1, KINDS + 1)}, HEAD.size
    while snapshot[at]:
        kind, length = ITEM.unpack_from(snapshot, at)
        at += ITEM.size + length
        items[kind].append(snapshot[at - length:at])
    model = next(r for r in items[OPERATION] if b"completed" in r)
    for ident in range(head[5], head[5] + count):
        items[OPERATION].append(model[:OPERATION_ID_AT] +
                                struct.pack("<Q", ident) +
                                model[OPERATION_ID_AT + 8:])
    head[5] += count
    out = bytearray(HEAD.pack(*head))
    for kind, records in items.items():
        for record in records:
            out += ITEM.pack(kind, len(record)) + record
    out += struct.pack("<B4Q", 0, *(len(r) for r in items.values()))
    return bytes(out) + hashlib.sha256(out).digest()
