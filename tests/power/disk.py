"""A disk whose power can be cut: ext4 on a loop device, whose image lies on a file system that shares blocks.

    data/        ext4, mounted: what the server works on
    host/        btrfs (or xfs), mounted: disk.img, which is data/'s device, and a file for each cut
    host.img     an ordinary sparse file, which is host/'s device

The loop device of disk.img does direct I/O: it has no cache, so what was written to it is in the image and what ext4
and the page cache still hold back is not. A reference copy of the image is therefore what a cut at that moment leaves:
ext4 is not asked to write anything for it, and finds its journal as after a crash.

A copy is of one moment: the host keeps writers of the image out for as long as it lasts (moment.py looks whether that
is so). What a drive would have lost from its own cache is not lost here: a flush that is missing after a direct
write is not seen.

Nothing here undoes a mount or a device. All of it belongs to this process and its mount namespace and vanishes with
them: a loop device detaches itself with its last user.
"""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

HOST_BYTES, DISK_BYTES = 16 << 30, 4 << 30
# What all cuts of a run take at most, roughly; the files are sparse.
FREE_BYTES_MIN = 4 << 30
# A server's files may be let go of a moment after the process is gone: io_uring ends by itself.
UNMOUNT_SECONDS = 10

# How each host is made and mounted. Without checksums btrfs takes direct writes as such; with them it copies each.
HOSTS = {
    "btrfs": (["mkfs.btrfs", "-q"], "noatime,nodatasum"),
    "xfs": (["mkfs.xfs", "-q", "-m", "reflink=1"], "noatime,nouuid"),
}

# From linux/fs.h and linux/loop.h.
FICLONE = 0x40049409
LOOP_CONFIGURE, LOOP_CTL_GET_FREE = 0x4C0A, 0x4C82
LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO = 4, 16
# File and block size; the 232 bytes of loop_info64, of which only the flags are set; 64 bytes for later.
LOOP_CONFIG = struct.Struct("=II 52xI 176x 64x")


class Unavailable(Exception):
    """This machine does not let us have such a disk."""


def call(*command):
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is missing") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        raise Unavailable(f"{Path(command[0]).name} failed: {said or done.returncode}")


def attach(image, direct):
    """An open loop device that detaches itself with its last user: (file descriptor, name)."""
    with open(image, "r+b") as file, open("/dev/loop-control", "r+b", buffering=0) as control:
        flags = LO_FLAGS_AUTOCLEAR | (LO_FLAGS_DIRECT_IO if direct else 0)
        config = LOOP_CONFIG.pack(file.fileno(), 0, flags)
        while True:
            number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, config)
                break
            except OSError as error:
                os.close(device)
                # Another program was quicker.
                if error.errno != errno.EBUSY:
                    raise
    if direct and Path(f"/sys/block/loop{number}/loop/dio").read_text().strip() != "1":
        os.close(device)
        raise Unavailable("loop devices do no direct I/O here")
    return device, f"/dev/loop{number}"


def clone(source, target):
    """Makes `target` share all blocks of `source`. Returns the moments before and after."""
    with open(source, "rb") as image, open(target, "wb") as copy:
        before = time.monotonic_ns()
        fcntl.ioctl(copy, FICLONE, image.fileno())
        return before, time.monotonic_ns()


class Disk:
    def __init__(self, directory, kind):
        self.kind = kind
        self.host_image = directory / "host.img"
        self.host, self.data = directory / "host", directory / "data"
        self.image = self.host / "disk.img"
        self.mounted = False

    def open(self):
        free = shutil.disk_usage(self.host_image.parent).free
        if free < FREE_BYTES_MIN:
            raise Unavailable(f"{free >> 20} MiB are free where {FREE_BYTES_MIN >> 20} are needed")
        make, options = HOSTS[self.kind]
        try:
            self.host.mkdir()
            self.data.mkdir()
            self.make_image(self.host_image, HOST_BYTES)
            device, name = attach(self.host_image, direct=False)
            call(*make, name)
            call("mount", "-t", self.kind, "-o", options, name, self.host)
            os.close(device)
            # Whether both can be had shows now, and not as a failure of the first round.
            self.renew()
            clone(self.image, self.path("probe"))
            self.forget([self.path("probe")])
        except OSError as error:
            raise Unavailable(f"no loop device or no copy by reference: {error}") from error

    @staticmethod
    def make_image(path, size):
        with open(path, "wb") as image:
            image.truncate(size)

    def renew(self):
        """An empty file system on a new image."""
        self.unmount()
        self.image.unlink(missing_ok=True)
        self.make_image(self.image, DISK_BYTES)
        self.mount(lambda name: call("mkfs.ext4", "-q", name))

    def mount(self, first=lambda name: None):
        device, name = attach(self.image, direct=True)
        try:
            first(name)
            call("mount", "-t", "ext4", name, self.data)
        finally:
            os.close(device)
        self.mounted = True

    def sync(self):
        """Writes out all that ext4 holds back: never between a server's start and a cut."""
        call("sync", "-f", self.data)

    def unmount(self):
        deadline = time.monotonic() + UNMOUNT_SECONDS
        while self.mounted:
            try:
                call("umount", self.data)
                self.mounted = False
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the disk is still in use: {error}") from None
                time.sleep(0.05)

    def path(self, name):
        return self.host / f"{name}.img"

    def cut(self, name):
        """Keeps what a power cut now would leave. Returns the moments between which it was."""
        return clone(self.image, self.path(name))

    def restore(self, name):
        """Powers on again after the cut, which itself stays as it is."""
        self.unmount()
        self.image.unlink()
        clone(self.path(name), self.image)
        self.mount()

    def forget(self, paths):
        for path in paths:
            path.unlink()

    def keep(self, name, directory):
        """A sparse copy of a cut, to be looked at later."""
        path = directory / f"{name}.img"
        call("cp", "--sparse=always", "--reflink=never", self.path(name), path)
        return path
