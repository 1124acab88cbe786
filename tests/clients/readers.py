#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A process that reads weights as servers do, and stays.

usage: readers.py READER DIRECTORY

Loads what is in DIRECTORY with READER, prints one line of JSON about it, and
keeps it until stdin ends. A line on stdin makes it say the same again, from
what it holds. 'tensors' is the SHA-256 over the names, types, shapes and bytes
of all of them.

       readers.py save DIRECTORY

Writes a checkpoint into DIRECTORY with the library's own save_file.
"""
import hashlib
import json
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1",
                  TOKENIZERS_PARALLELISM="false",
                  RUNAI_STREAMER_CONCURRENCY="4")

SENTENCE = "weights are directories"


def digest(tensors):
    """tensors: pairs of a name and a numpy array, or a thing to make one."""
    total = hashlib.sha256()
    for name, array in sorted(tensors, key=lambda pair: pair[0]):
        array = array.numpy() if hasattr(array, "numpy") else array
        total.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        if not array.flags.c_contiguous:
            array = array.copy()
        total.update(array.reshape(-1).view("uint8"))
    return total.hexdigest()


def files(folder, suffix):
    return sorted(folder.glob(f"*.{suffix}"))


def safetensors_numpy(folder):
    from safetensors.numpy import load_file
    held = {}
    for path in files(folder, "safetensors"):
        held |= load_file(path)
    return held, lambda: {"tensors": digest(held.items())}


def safetensors_torch(folder):
    from safetensors.torch import load_file
    held = {}
    for path in files(folder, "safetensors"):
        held |= load_file(path)
    return held, lambda: {"tensors": digest(held.items())}


def transformers(folder):
    import torch
    from transformers import AutoModel, AutoTokenizer
    model = AutoModel.from_pretrained(folder, low_cpu_mem_usage=True)
    tokens = AutoTokenizer.from_pretrained(folder)(
        SENTENCE, return_tensors="pt")

    def say():
        with torch.no_grad():
            out = model(**tokens).last_hidden_state.sum().item()
        return {"tensors": digest(model.state_dict().items()), "sum": out}
    return model, say


def fastsafetensors(folder):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    held = {}
    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: [str(p) for p in files(folder, "safetensors")]})
    buffers = loader.copy_files_to_device()
    for name in buffers.key_to_rank_lidx:
        held[name] = buffers.get_tensor(name).clone()
    buffers.close()
    loader.close()
    return held, lambda: {"tensors": digest(held.items())}


def runai(folder):
    from runai_model_streamer import SafetensorsStreamer
    held = {}
    with SafetensorsStreamer() as streamer:
        for path in files(folder, "safetensors"):
            streamer.stream_file(str(path))
            for name, tensor in streamer.get_tensors():
                held[name] = tensor.clone()
    return held, lambda: {"tensors": digest(held.items())}


def gguf(folder):
    from gguf import GGUFReader
    held = [GGUFReader(p) for p in files(folder, "gguf")]
    return held, lambda: {"tensors": digest(
        (t.name, t.data) for reader in held for t in reader.tensors)}


READERS = {"safetensors-numpy": safetensors_numpy,
           "safetensors-torch": safetensors_torch,
           "transformers": transformers, "fastsafetensors": fastsafetensors,
           "runai": runai, "gguf": gguf}


def save(folder):
    import numpy
    from safetensors.numpy import save_file
    rng = numpy.random.default_rng(5)
    for shard in (1, 2):
        save_file({f"{shard}.{name}": rng.random((300, 1001), numpy.float32)
                   for name in "abc"},
                  folder / f"model-{shard:05}-of-00002.safetensors")
    # Once more over a name that is there, as a trainer does.
    save_file({"extra": numpy.arange(7)}, folder / "extra.safetensors")
    save_file({"extra": numpy.arange(9)}, folder / "extra.safetensors")


def main():
    what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if what == "save":
        save(folder)
        return
    held, say = READERS[what](folder)
    print(json.dumps(say()), flush=True)
    for _ in sys.stdin:
        print(json.dumps(say()), flush=True)
    del held


main()
