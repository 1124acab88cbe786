# SPDX-License-Identifier: Apache-2.0
"""A wall clock of the daemon's own, which a test moves. See clock_jump.c."""
import os
import pathlib
import shutil

from wf import DAEMON, WORK, run


class Clock:
    """What to start a daemon with: Daemon(env=clock.env)."""

    def __init__(self):
        self._file = WORK / "clock"
        self._file.write_text("0\n")
        self.env = {}
        library = WORK / "clock_jump.so"
        linked = run("ldd", DAEMON, status=None)
        if "libasan" in linked or "libtsan" in linked or \
                not shutil.which("cc"):
            return
        run("cc", "-shared", "-fPIC", "-O1", "-o", library,
            pathlib.Path(os.environ["TESTS"]) /
            "integration/tools/clock_jump.c")
        self.env = {"LD_PRELOAD": str(library), "CLOCK_FILE": str(self._file)}

    @property
    def moves(self):
        """False where it can't be moved: with sanitizers, or no compiler."""
        return bool(self.env)

    def jump(self, hours):
        new = int(self._file.read_text()) + hours * 3600
        (WORK / "clock.new").write_text(f"{new}\n")
        os.rename(WORK / "clock.new", self._file)
