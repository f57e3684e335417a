"""A bound on the memory of servers, page cache included: a control group of Linux, version 1 or 2.

Programs are put into it by scripts that stand in their place, since `mainstem-bench compare` starts the servers.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# A group can be removed once the last of its processes is gone, which the kernel may notice late.
REMOVE_SECONDS = 10


class MemoryLimit:
    """A control group of this process's own."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        version2 = (ROOT / "cgroup.controllers").is_file()
        parent = ROOT if version2 else ROOT / "memory"
        self.file = "memory.max" if version2 else "memory.limit_in_bytes"
        self.group = parent / f"mainstem-bench-{os.getpid()}"

    def make(self) -> None:
        """An OSError says why there can be none."""
        if not self.group.parent.is_dir():
            raise OSError("there is no control group for memory")
        self.group.mkdir()
        try:
            # Where memory is not controlled, the file is not there and cannot be created.
            (self.group / self.file).write_text(str(self.bytes_max))
            entered = subprocess.run(["sh", "-c", f"echo $$ > {self.group}/cgroup.procs"], stderr=subprocess.DEVNULL)
            if entered.returncode != 0:
                raise OSError("processes cannot be put into a control group")
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        until = time.monotonic() + REMOVE_SECONDS
        while True:
            try:
                self.group.rmdir()
                return
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def wrap(self, program: Path, directory: Path, name: str) -> None:
        """Writes a script of this name that runs the program within the limit."""
        directory.mkdir(parents=True, exist_ok=True)
        script = directory / name
        inside = shlex.quote(str(self.group / "cgroup.procs"))
        script.write_text(f'#!/bin/sh\necho $$ > {inside} || exit 1\nexec {shlex.quote(str(program))} "$@"\n')
        script.chmod(0o755)
