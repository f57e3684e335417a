"""Members of copy sets that are neither well nor gone: what the others feel of them has bounds."""

import contextlib
import os
import signal
import time

from machines import until
from network import run

FLAPS, CUT_SECONDS, MENDED_SECONDS = 12, (0.05, 1.5), (0.05, 1)
STUTTERS, STOPPED_SECONDS, GOING_SECONDS = 10, (0.2, 1), (0.05, 0.4)
# Room for some segments beside what stays free (log.reserve.bytes, 256 MiB).
FULL_DISK_BYTES = 512 << 20


def a_link_flaps(cluster, ledger, rng):
    """Between a broker and its peers, time and again, for shorter and for longer than a disk may lag."""
    broker = cluster.brokers[rng.choice(list(cluster.brokers))]
    peers = [other.machine.address for other in cluster.brokers.values() if other is not broker]

    def flap():
        for _ in range(FLAPS):
            broker.machine.cut_off(*peers)
            try:
                time.sleep(rng.uniform(*CUT_SECONDS))
            finally:
                broker.machine.mend()
            time.sleep(rng.uniform(*MENDED_SECONDS))
    gap = ledger.gap_of(flap)
    cluster.at_home()
    cluster.in_sync()
    return f"broker {broker.node}; {gap}"


def a_broker_stutters(cluster, ledger, rng):
    """As on a machine that is far too slow: it stands still for most of the time, but never for as long as its lease."""
    broker = cluster.brokers[rng.choice(list(cluster.brokers))]

    def stutter():
        for _ in range(STUTTERS):
            broker.process.send_signal(signal.SIGSTOP)
            try:
                time.sleep(rng.uniform(*STOPPED_SECONDS))
            finally:
                broker.process.send_signal(signal.SIGCONT)
            time.sleep(rng.uniform(*GOING_SECONDS))
    gap = ledger.gap_of(stutter)
    cluster.at_home()
    cluster.in_sync()
    return f"broker {broker.node}; {gap}"


def may_mount():
    return os.geteuid() == 0


def a_disk_for_copies_is_full(cluster, ledger, rng):
    """It takes no more blocks, and takes them again once there is room. It is another disk than the broker had before, which comes back."""
    cluster.in_sync()
    broker = cluster.brokers[rng.choice(list(cluster.brokers))]
    copies = broker.directory / "data" / "copies"
    broker.stop()
    run("mount", "-t", "tmpfs", "-o", f"size={FULL_DISK_BYTES}", "tmpfs", copies)
    try:
        broker.start()
        cluster.at_home()
        cluster.in_sync()
        ballast = copies / "ballast"

        def is_full():
            # Segments that are not needed any more make room.
            fill(ballast)
            return cluster.out_of_sync() == {broker.node}
        gap = ledger.gap_of(lambda: until(is_full, "a full disk to leave the copy sets"))
        flows = ledger.flows()
        ballast.unlink()
        cluster.in_sync()
    finally:
        broker.stop()
        run("umount", copies)
        broker.start()
    cluster.at_home()
    cluster.in_sync()
    return f"broker {broker.node}; {gap}; {flows}"


def fill(ballast):
    """Takes all room that there is."""
    with open(ballast, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(65536)):
            pass
