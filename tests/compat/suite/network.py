"""A network of the program's own, in which every port is free whatever else runs on the machine."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

MARK = "TESTS_HAVE_OWN_NETWORK"
# From <linux/sockios.h> and <linux/if.h>.
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def is_own():
    """Whether this process has been started again in a network of its own."""
    return MARK in os.environ


def start_again_in_own():
    """Starts this program again where only the loopback is; does nothing where the system refuses that."""
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    bring_up = [sys.executable, __file__]
    if not shutil.which("unshare") or subprocess.run([*command, *bring_up], stderr=subprocess.DEVNULL).returncode != 0:
        print("without a network of its own: the ports that suites want must be free", flush=True)
        return
    os.environ[MARK] = "1"
    os.execvp(command[0], [*command, *bring_up, sys.executable, *sys.argv])


def main():
    """Inside: brings the loopback up, and runs the command that follows."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP).ljust(40, b"\0"))
    if sys.argv[1:]:
        os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
