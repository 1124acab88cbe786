#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a small checkpoint: safetensors shards with an index, and companions.

usage: checkpoint.py DIR [--shards N] [--bytes N] [--seed N]

The same arguments give the same bytes. --bytes is about the size of all
tensors together; the sizes are odd, so that tensors begin off any page.
"""
import argparse
import json
import pathlib
import random
import struct


def write_shard(path, tensors):
    """tensors: a list of (name, bytes)."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, data in tensors:
        header[name] = {"dtype": "U8", "shape": [len(data)],
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors:
            f.write(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    args.dir.mkdir(parents=True, exist_ok=True)
    names = [f"model-{i + 1:05}-of-{args.shards:05}.safetensors"
             for i in range(args.shards)]
    if args.shards == 1:
        names = ["model.safetensors"]
    each = max(1, args.bytes // (4 * args.shards)) | 1
    weight_map = {}
    for i, name in enumerate(names):
        tensors = [(f"layers.{i}.{part}.weight", rng.randbytes(each))
                   for part in ("q", "k", "v", "o")]
        write_shard(args.dir / name, tensors)
        weight_map |= {tensor: name for tensor, _ in tensors}
    if args.shards > 1:
        index = {"metadata": {"total_size": 4 * each * args.shards},
                 "weight_map": weight_map}
        (args.dir / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2))
    (args.dir / "config.json").write_text('{"model_type": "demo"}\n')
    (args.dir / ".gitattributes").write_text("*.safetensors binary\n")
    (args.dir / "1_Pooling").mkdir(exist_ok=True)
    (args.dir / "1_Pooling" / "config.json").write_text('{"mode": "mean"}\n')


main()
