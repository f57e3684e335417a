"""A slow disk: the kernel lets a process write to its device a few times a second, by a control group."""

import contextlib
import os
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
NAME = f"mainstem-slow-{os.getpid()}"


def device_of(directory):
    """The numbers of the whole disk that a directory is on, as the kernel writes them, or None."""
    of = os.stat(directory).st_dev
    block = Path(f"/sys/dev/block/{os.major(of)}:{os.minor(of)}")
    if not block.exists():
        # An overlay, or memory.
        return None
    whole = block.resolve().parent if (block / "partition").exists() else block
    return (whole / "dev").read_text().strip()


@contextlib.contextmanager
def group(device, writes):
    """A control group whose processes write to a device so often in a second. A process that moves there takes its threads along."""
    unified = (GROUPS / "cgroup.controllers").exists()
    parent = GROUPS if unified else GROUPS / "blkio"
    made = parent / NAME
    if unified:
        (parent / "cgroup.subtree_control").write_text("+io")
    made.mkdir()
    try:
        (made / ("io.max" if unified else "blkio.throttle.write_iops_device")).write_text(
            f"{device} {f'wiops={writes}' if unified else writes}")
        yield made
    finally:
        for process in (made / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (parent / "cgroup.procs").write_text(process)
        made.rmdir()


def why_not(directory):
    """Why no disk can be slowed here; "" if one can."""
    device = device_of(directory)
    if device is None:
        return "not on a disk of its own"
    try:
        with group(device, 1):
            return ""
    except OSError as error:
        return str(error)


@contextlib.contextmanager
def slow(process, directory, writes):
    """Slows the disk of a process."""
    with group(device_of(directory), writes) as made:
        (made / "cgroup.procs").write_text(str(process))
        yield
