"""Ports for the servers that tests start.

A port that the kernel has just given for 0 is no reservation: the next socket that asks for one, the next connection that goes out, or a
test in another process may get it before the server has started, or while the server is down. So ports are taken from outside of the range
that the kernel gives, and nobody who asks here gets one that another process has got here.
"""

import random
import socket

# Below net.ipv4.ip_local_port_range, which starts at 32768.
PORTS = range(20_000, 29_000)
# The same in crates/testing/src/ports.rs: a Unix socket of this name, in the kernel's memory, is the lock of a port. Like the ports it
# belongs to a network namespace, and it goes with the process.
LOCK = "\0mainstem-tests-port-{}"

_locks = []


def free_port():
    """A port at which nobody listens, for as long as this process lives."""
    for port in random.Random().sample(PORTS, len(PORTS)):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(LOCK.format(port))
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            lock.close()
            continue
        _locks.append(lock)
        return port
    raise OSError(f"no port is free from {PORTS.start} to {PORTS.stop}")


def free_address():
    return f"127.0.0.1:{free_port()}"
