# SPDX-License-Identifier: Apache-2.0
"""Replacing one generation by another, as users see it."""
import json
import os
import pathlib
import re
import shutil
import subprocess

from wf import (DAEMON, MNT, STORE, WORK, attr, check, equal, run, set_attr,
                wait_for)

CLAIMS = MNT / ".weights" / "claims"


def announce(stage, base, mode=None, request=None, fence=None):
    value = str(base)
    for key, what in (("mode", mode), ("request_id", request), ("if", fence)):
        if what is not None:
            value += f",{key}={what}"
    set_attr(stage, "replaces", value)


def claim(line):
    """The latest claim of a lineage, as its attribute and its file say."""
    text = attr(line, "claim")
    m = re.fullmatch(r"(\d+) by (\d+), mode=(\w+), phase=(\w+), "
                     r"request_id=(.*?)(?:, error=(.*))?", text)
    check(m, f"the claim is {text!r}")
    return {"base": int(m[1]), "target": int(m[2]), "mode": m[3],
            "phase": m[4], "request_id": m[5], "error": m[6] or ""}


def claim_text(line):
    return json.loads((CLAIMS / line.relative_to(MNT)).read_text())


def is_claimed(line, base, target, mode, phase, request=None, watermark=None):
    """All that tells of a claim tells the same."""
    said, text = claim(line), claim_text(line)
    for key, what in (("base", base), ("target", target), ("mode", mode),
                      ("phase", phase), ("request_id", request)):
        if what is not None:
            equal(said[key], what, f"{key} of the claim")
        equal(text[key], said[key], f"{key} in claims/")
    equal(text["error"], said["error"], "error in claims/")
    equal([text[k] for k in ("tenant_id", "namespace", "resource_id",
                             "revision")],
          list(line.relative_to(MNT).parts), "lineage in claims/")
    mark = int(attr(line, "watermark"))
    equal(text["committed_weight_generation"], mark, "watermark in claims/")
    if watermark is not None:
        equal(mark, watermark, "watermark")
    equal(claims_in(mode, phase) > 0, True, f"metric of {mode}, {phase}")


def comes_to(line, phase, seconds=30):
    wait_for(lambda: claim(line)["phase"] == phase, f"claim is {phase}",
             seconds)


def claims_in(mode, phase):
    text = (MNT / ".weights" / "metrics").read_text()
    m = re.search(rf'^weightfs_weight_claims{{mode="{mode}",'
                  rf'phase="{phase}"}} (\d+)$', text, re.M)
    return int(m[1])


def counted(what, mode):
    """How many steps of replacements were "failures" or "recoveries"."""
    text = (MNT / ".weights" / "metrics").read_text()
    return int(re.search(rf'^weightfs_weight_claim_{what}_total'
                         rf'{{mode="{mode}"}} (\d+)$', text, re.M)[1])


def backing_directory(gen):
    """Of a published generation, in the store."""
    ino = os.stat(gen / "config.json").st_ino
    return next(p.parent for p in (STORE / "groups").rglob("config.json")
                if p.stat().st_ino == ino)


class Disk:
    """On which nothing is deleted while it is held. See held_unlink.c.

    What to start a daemon with: Daemon(env=disk.env).
    """

    def __init__(self):
        self._file = WORK / "hold"
        self.env = {}
        library = WORK / "held_unlink.so"
        linked = run("ldd", DAEMON, status=None)
        if "libasan" in linked or "libtsan" in linked or \
                not shutil.which("cc"):
            return
        run("cc", "-shared", "-fPIC", "-O1", "-o", library,
            pathlib.Path(os.environ["TESTS"]) /
            "integration/tools/held_unlink.c")
        self.env = {"LD_PRELOAD": str(library), "HOLD_FILE": str(self._file)}

    @property
    def holds(self):
        """False where it can't be held: with sanitizers, or no compiler."""
        return bool(self.env)

    def hold(self):
        self._file.touch()

    def free(self):
        self._file.unlink(missing_ok=True)


class Stuck:
    """A generation of which the store can't delete a file."""

    def __init__(self, gen):
        self.path = backing_directory(gen) / "config.json"
        self.works = bool(shutil.which("chattr")) and \
            not run("chattr", "+i", self.path, status=None).strip()

    def free(self):
        run("chattr", "-i", self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.works:
            subprocess.run(["chattr", "-i", str(self.path)], check=False,
                           stderr=subprocess.DEVNULL)
