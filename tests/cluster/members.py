"""Members of copy sets that are neither well nor gone: what the others feel of them has bounds."""

import contextlib
import os
import shutil
import signal
import struct
import time
from collections import Counter

import throttle
from ledger import PARTITIONS, TOPIC, read
from machines import until
from network import run

FLAPS, CUT_SECONDS, MENDED_SECONDS = 12, (0.05, 1.5), (0.05, 1)
STUTTERS, STOPPED_SECONDS, GOING_SECONDS = 10, (0.2, 1), (0.05, 0.4)
# Room for some segments beside what stays free (log.reserve.bytes, 256 MiB).
FULL_DISK_BYTES = 512 << 20
AFTER_A_CUT, CUT_PARTITIONS, CUT_RECORDS, LONGER_THAN_A_SESSION = "after-a-cut", 12, 5000, 5
# What a disk forgets that lies, at the end of what it has synced.
FORGOTTEN_BYTES = (4096, 1 << 20)
SECTOR, BLOCK_MAGIC = 4096, b"MSbk"
# Writes of a slow disk in a second; a synced one takes two or three.
SLOW_WRITES, SLOW_SYNCS_MIN = 4, 3
# The longest time, in seconds, for which a partition may not answer: a slow, full or missing disk has left the sets by then, and no
# request has waited for its end (ten seconds). Half a second and one are usual.
GAP_MAX = 5
# The alert rule MainstemReplicasComeAndGo rings after more.
SHRINKS_ALARM = 5
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"


def a_link_flaps(cluster, ledger, rng):
    """Between a broker and its peers, time and again, for shorter and for longer than a disk may lag."""
    broker = cluster.brokers[rng.choice(list(cluster.brokers))]
    peers = [other.machine.address for other in cluster.brokers.values() if other is not broker]

    def flap():
        broker.machine.cut_off(*peers)
        try:
            time.sleep(rng.uniform(*CUT_SECONDS))
        finally:
            broker.machine.mend()
        time.sleep(rng.uniform(*MENDED_SECONDS))
    return comes_and_goes(cluster, ledger, broker, flap, FLAPS)


def comes_and_goes(cluster, ledger, broker, event, times):
    """So often, and until the alarm for that would ring: it holds up producers in bounds."""
    cluster.at_home()
    cluster.in_sync()
    before = shrinks(cluster)

    def shrunk():
        return max((shrinks(cluster) - before).values(), default=0)

    def events():
        for number in range(4 * times):
            event()
            if number + 1 >= times and shrunk() > SHRINKS_ALARM:
                break
    gap = gap_in_bounds(ledger, events)
    cluster.at_home()
    cluster.in_sync()
    most = shrunk()
    assert most > SHRINKS_ALARM, f"no broker says that a disk left its copy sets more than {most:.0f} times"
    return f"broker {broker.node}; the longest gap is {gap:.2f} s; a broker's copy sets shrank {most:.0f} times"


def gap_in_bounds(ledger, event):
    """The longest time without an answer, in seconds, that one of the partitions had: not more than GAP_MAX."""
    gap = max(ledger.gaps_of(event).values())
    assert gap <= GAP_MAX, f"a partition did not answer for {gap:.2f} s"
    return gap


def shrinks(cluster):
    """How often a disk left a copy set, by the broker that leads."""
    return Counter({node: broker.metrics()["kafka_server_replicamanager_isrshrinks_total"] for node, broker in cluster.brokers.items()})


def a_broker_stutters(cluster, ledger, rng):
    """As on a machine that is far too slow: it stands still for most of the time, but never for as long as its lease."""
    broker = cluster.brokers[rng.choice(list(cluster.brokers))]

    def stutter():
        broker.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(rng.uniform(*STOPPED_SECONDS))
        finally:
            broker.process.send_signal(signal.SIGCONT)
        time.sleep(rng.uniform(*GOING_SECONDS))
    return comes_and_goes(cluster, ledger, broker, stutter, STUTTERS)


def a_disk_is_slow(cluster, ledger, rng):
    """So slow that it has to leave the copy sets. Producers hardly notice, also where its broker leads, whose own log is not synced.
    Its syncs raise the alarm, also where it has nothing but copies."""
    cluster.at_home()
    cluster.in_sync()
    broker = cluster.brokers[rng.choice(list(cluster.brokers))]
    own = led_by(cluster, broker.node)
    assert 0 < len(own) < PARTITIONS, own

    def alarms(of):
        before = broker.syncs()

        def rings():
            since = broker.syncs() - before
            return since["all"] >= SLOW_SYNCS_MIN and since["slow"] > since["all"] / 100
        until(rings, f"slow syncs of a broker that {of}")

    def leaves():
        until(lambda: cluster.out_of_sync() == {broker.node}, "the slow disk to leave the copy sets")
        alarms("leads")

    with throttle.slow(broker.process.pid, broker.directory, SLOW_WRITES):
        gaps = ledger.gaps_of(leaves)
        worst = max(gaps.values())
        assert worst <= GAP_MAX, f"a partition did not answer for {worst:.2f} s"
        leading = max(gaps[partition] for partition in own)
        beside = max(gap for partition, gap in gaps.items() if partition not in own)
        drained = max(ledger.gaps_of(lambda: cluster.tell("drain", broker.node)).values())
        after = gap_in_bounds(ledger, lambda: alarms("only copies"))
    cluster.tell("drain", broker.node, "--undo")
    cluster.at_home()
    cluster.in_sync()
    return (f"broker {broker.node}; the longest gaps: {leading:.2f} s where it leads, {beside:.2f} s beside, "
            f"{drained:.2f} s while it was drained, {after:.2f} s afterwards")


def led_by(cluster, node):
    """The partitions that a broker leads."""
    from confluent_kafka.admin import AdminClient
    topic = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(TOPIC, 10).topics[TOPIC]
    return {partition for partition, of in topic.partitions.items() if of.leader == node}


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
        gap = gap_in_bounds(ledger, lambda: until(is_full, "a full disk to leave the copy sets"))
        lacking = [other for other in cluster.brokers.values() if other.metrics()[UNDER_REPLICATED]]
        assert lacking and broker not in lacking, f"brokers that say that copies are lacking: {lacking}"
        flows = ledger.flows()
        ballast.unlink()
        cluster.in_sync()
    finally:
        broker.stop()
        run("umount", copies)
        broker.start()
    cluster.at_home()
    cluster.in_sync()
    return f"broker {broker.node}; the longest gap is {gap:.2f} s; {flows}"


def a_disk_forgets_its_end(cluster, ledger, rng):
    """Its broker and another one lose their power, and it lacks the last that it had said to be synced. The third broker has that."""
    cluster.in_sync()
    liar, other = two_are_killed(cluster, rng)
    lost = forget(liar.directory / "data" / "copies", rng.randint(*FORGOTTEN_BYTES))
    liar.start()
    other.start()
    outcome = ledger.answers()
    cluster.at_home()
    cluster.in_sync()
    return f"{lost} blocks of broker {liar.node}, and broker {other.node}; all partitions answer after {outcome:.1f} s"


def the_power_is_cut(cluster, rng):
    """All brokers lose their power at once, and the disk of the one that is back first lacks the last that it had said to be synced,
    which the others have. No load is on: librdkafka 2.16 may hang for ever when every broker is gone for some seconds."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(AFTER_A_CUT, CUT_PARTITIONS, config={"diskless.enable": "false"})
    admin.create_topics([new])[AFTER_A_CUT].result(20)
    cluster.in_sync()
    acknowledged = [[] for _ in range(CUT_PARTITIONS)]

    def delivered(error, message):
        assert error is None, error
        acknowledged[message.partition()].append((message.offset(), int(message.value())))

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 1, "log_level": 0})
    for number in range(CUT_RECORDS):
        producer.produce(AFTER_A_CUT, str(number), partition=number % CUT_PARTITIONS, on_delivery=delivered)
    assert producer.flush(30) == 0
    brokers = list(cluster.brokers.values())
    rng.shuffle(brokers)
    for broker in brokers:
        broker.kill()
    del producer, admin
    liar, *others = brokers
    lost = forget(liar.directory / "data" / "copies", rng.randint(*FORGOTTEN_BYTES))
    liar.start()
    # It gets all logs, and would open them with what it has.
    time.sleep(LONGER_THAN_A_SESSION)
    for broker in others:
        broker.start()
    found = read(cluster, AFTER_A_CUT, CUT_PARTITIONS)
    gone = {p: len(of) - len(found[p]) for p, of in enumerate(acknowledged) if sorted(of) != found[p]}
    assert not gone, f"of {CUT_RECORDS} acknowledged records, partitions lack these or have others in their place: {gone}"
    return f"{lost} blocks of broker {liar.node} gone; all of {CUT_RECORDS} records are there"


def a_disk_forgets_a_block(cluster, ledger, rng):
    """In the midst of others: this shows, and the broker does not start with that disk, but with an empty one."""
    from suite.server import ServerFailed
    cluster.in_sync()
    liar, other = two_are_killed(cluster, rng)
    copies = liar.directory / "data" / "copies"
    # Later blocks say that it was synced.
    forget_block(copies, 20)
    other.start()
    try:
        liar.start()
    except ServerFailed:
        said = liar.log_path.read_text().splitlines()[-1]
    else:
        raise AssertionError("the damage was not noticed")
    assert "without that directory, the broker starts with none: segment file" in said and str(copies) in said, said
    assert said.count("is damaged at byte") == 1, said
    shutil.rmtree(copies)
    liar.start()
    outcome = ledger.answers()
    cluster.at_home()
    cluster.in_sync()
    return f"broker {liar.node}, and broker {other.node}; all partitions answer after {outcome:.1f} s"


def two_are_killed(cluster, rng):
    both = rng.sample(list(cluster.brokers.values()), 2)
    for broker in both:
        broker.kill()
    return both


def blocks_of(directory):
    """Where the blocks of a log are, in their order: file and position."""
    found = []
    for file in directory.glob("[0-9]*.log"):
        with open(file, "rb") as log:
            content = log.read()
        sequence = int(file.stem)
        for position in range(0, len(content), SECTOR):
            magic, lsn = struct.unpack_from("<4s12xQ", content, position)
            if magic == BLOCK_MAGIC and lsn == sequence << 32 | position:
                found.append((lsn, file, position))
    return [(file, position) for _, file, position in sorted(found)]


def forget(directory, count):
    """Forgets the blocks in about so many bytes at the end of a log, within its newest segment. Returns how many those were."""
    blocks = blocks_of(directory)
    newest, last = blocks[-1]
    lost = [position for file, position in blocks if file == newest and position >= last - count]
    zero(newest, lost[0], newest.stat().st_size)
    return len(lost)


def forget_block(directory, back):
    """Forgets one block, with so many behind it, or with as many as there are in its segment."""
    blocks = blocks_of(directory)
    inside = [position for file, position in blocks if file == blocks[-1][0]]
    at = max(0, len(inside) - 1 - back)
    zero(blocks[-1][0], inside[at], inside[at + 1])


def zero(file, begin, end):
    with open(file, "r+b") as log:
        log.seek(begin)
        log.write(bytes(end - begin))


def fill(ballast):
    """Takes all room that there is."""
    with open(ballast, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(65536)):
            pass
