#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the models of the tests, and verifies each.

usage: make_models.py minilm         PACKAGES OUT
       make_models.py minilm-sharded MINILM OUT
       make_models.py gemma          PACKAGES OUT
       make_models.py gemma-split    GEMMA OUT
       make_models.py random         OUT [--bytes N] [--shards N] [--seed N]

PACKAGES is a directory that the packages were installed into. minilm and
gemma are real models as they are; the next are the same tensors in several
files, as large models come. random is F16 noise in several safetensors files
with an index. OUT appears when all of it is right.
"""
import argparse
import contextlib
import hashlib
import json
import pathlib
import shutil
import sys

MINILM_SHA256 = {
    "model.safetensors":
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json":
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "vocab.txt":
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "config.json":
        "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
}
MINILM_SHARD = "30MB"       # three shards
GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = \
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_SPLIT = 70 * 10**6    # four files, the first without a tensor
PIECE = 1 << 22


def require(truth, what):
    if not truth:
        sys.exit(f"error: {what}")


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


@contextlib.contextmanager
def appearing(out):
    """A directory beside out that becomes out if nothing goes wrong."""
    new = out.with_name(out.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    yield new
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)


def one(paths, what):
    found = list(paths)
    require(len(found) == 1, f"{len(found)} times {what}, not once")
    return found[0]


def minilm(args):
    source = one(args.source.glob("*/model/model.safetensors"),
                 "model.safetensors").parent
    with appearing(args.out) as out:
        shutil.copytree(source, out, dirs_exist_ok=True)
        for name, expected in MINILM_SHA256.items():
            require(sha256(out / name) == expected, f"another {name}")
        require((out / ".gitattributes").exists(), "no dot file in it")
        require((out / "1_Pooling").is_dir(), "no directory in it")


def safetensors_of(folder):
    """Name to array, of all safetensors files of a folder."""
    from safetensors.numpy import load_file
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, array in load_file(path).items():
            require(name not in tensors, f"twice {name}")
            tensors[name] = array
    return tensors


def minilm_sharded(args):
    from transformers import AutoModel
    with appearing(args.out) as out:
        AutoModel.from_pretrained(args.source).save_pretrained(
            out, max_shard_size=MINILM_SHARD, safe_serialization=True)
        for path in args.source.glob("*.*"):
            if path.suffix in (".json", ".txt") and not (
                    out / path.name).exists():
                shutil.copy2(path, out)
        whole, parts = safetensors_of(args.source), safetensors_of(out)
        # The numbers of the positions are made, not saved, by newer versions.
        absent = set(whole) - set(parts) - {"embeddings.position_ids"}
        require(not absent and set(parts) <= set(whole), "other tensors")
        for name, array in parts.items():
            require(array.tobytes() == whole[name].tobytes(),
                    f"{name} differs")
        index = json.loads(
            (out / "model.safetensors.index.json").read_text())
        require(set(index["weight_map"]) == set(parts), "another index")
        require(len(set(index["weight_map"].values())) > 1, "only one shard")


def gemma(args):
    chunks = sorted(args.source.glob(f"*/data/{GEMMA}.part*"))
    require(chunks, "no chunk of it")
    with appearing(args.out) as out:
        with open(out / GEMMA, "wb") as f:
            for chunk in chunks:
                with open(chunk, "rb") as g:
                    shutil.copyfileobj(g, f, PIECE)
        require(sha256(out / GEMMA) == GEMMA_SHA256, f"another {GEMMA}")


def gemma_split(args):
    import gguf
    reader = gguf.GGUFReader(args.source / GEMMA)
    with appearing(args.out) as out:
        writer = gguf.GGUFWriter(
            out / "gemma.gguf", reader.fields["general.architecture"]
            .contents(), split_max_size=GEMMA_SPLIT, small_first_shard=True)
        for name, field in reader.fields.items():
            if name.startswith("GGUF.") or name == "general.architecture":
                continue
            of = field.types[-1] \
                if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], of)
        for t in reader.tensors:
            writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        shards = [gguf.GGUFReader(p) for p in sorted(out.glob("*.gguf"))]
        require(len(shards) > 2, f"{len(shards)} files only")
        require(not shards[0].tensors, "a tensor in the first file")
        whole = {t.name: t for t in reader.tensors}
        parts = [t for shard in shards for t in shard.tensors]
        require(len(parts) == len(whole), "other tensors")
        for t in parts:
            of = whole[t.name]
            require(t.tensor_type == of.tensor_type and
                    t.data.tobytes() == of.data.tobytes(),
                    f"{t.name} differs")


def random(args):
    import numpy
    from safetensors.numpy import save_file
    rng = numpy.random.default_rng(args.seed)
    each = args.bytes // args.shards
    weight_map, total = {}, 0
    with appearing(args.out) as out:
        for i in range(args.shards):
            shard = f"model-{i + 1:05}-of-{args.shards:05}.safetensors"
            tensors, left = {}, each
            # Layers of two matrices and a norm, the last as large as fits.
            while left > 0:
                rows = min(4096, max(1, left // (2 * 1024)))
                for name, shape in (("up", (rows, 1024)),
                                    ("down", (1024, rows)),
                                    ("norm", (2048,))):
                    name = f"layers.{len(weight_map)}.{name}.weight"
                    size = 2 * int(numpy.prod(shape))
                    if name.endswith("norm.weight") or left > 0:
                        tensors[name] = numpy.frombuffer(
                            rng.bytes(size), numpy.float16).reshape(shape)
                        weight_map[name] = shard
                        left -= size
                        total += size
            save_file(tensors, out / shard, metadata={"format": "pt"})
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2))
        (out / "config.json").write_text('{"model_type": "random"}\n')


MAKERS = {"minilm": minilm, "minilm-sharded": minilm_sharded,
          "gemma": gemma, "gemma-split": gemma_split, "random": random}


def main():
    parser = argparse.ArgumentParser(
        usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name in MAKERS:
        kind = kinds.add_parser(name)
        if name == "random":
            kind.add_argument("--bytes", type=int, default=64 << 20)
            kind.add_argument("--shards", type=int, default=4)
            kind.add_argument("--seed", type=int, default=1)
        else:
            kind.add_argument("source", type=pathlib.Path)
        kind.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    MAKERS[args.kind](args)


main()
