"""The cases for the tools that Apache Kafka's system tests are made of: VerifiableProducer and VerifiableConsumer,
TransactionalMessageCopier, ClientCompatibilityTest, LogCompactionTester."""

import collections
import re

from .topics import Record

VERIFIABLE_RECORDS, VERIFIABLE_A_SECOND, VERIFIABLE_PARTITIONS = 20_000, 4000, 6
COPIED_RECORDS, COPIED_PARTITIONS, TRANSACTION_RECORDS = 20_000, 4, 50
COMPACTED_RECORDS, COMPACTED_TOPICS, DUPLICATES = 100_000, 2, 5
# Long enough for compaction to find the new records, with the settings that the servers are started with.
COMPACTION_SECONDS = 6


def same(want, got, what):
    """Both have the same members, as often."""
    want, got = collections.Counter(want), collections.Counter(got)
    lost, extra = want - got, got - want
    assert not lost and not extra, \
        f"{what}: {lost.total()} lost, {extra.total()} too many, as {next(iter(lost or extra))!r:.200}"


def same_in_order(want, got, what):
    """Both have the same members in the same order."""
    for at, (one, other) in enumerate(zip(want, got)):
        assert one == other, f"{what}: {other!r:.200} instead of {one!r:.200} at {at}"
    assert len(want) == len(got), f"{what}: {len(got)} instead of {len(want)}"


def verifiable(cluster, tools):
    """Two consumers share a group, one of them stops in the middle: each record once, each commit in place."""
    topic, group = cluster.named("verifiable"), cluster.named("verifiable-group")
    cluster.topics.create(topic, partitions=VERIFIABLE_PARTITIONS)
    common = ("--bootstrap-server", cluster.bootstrap, "--topic", topic)
    consumers = [
        tools.start(f"consumer-{n}", "tools.VerifiableConsumer", *common, "--group-id", group, "--verbose",
                    "--group-protocol", "classic")
        for n in range(2)
    ]
    for consumer in consumers:
        consumer.until(lambda: len(assigned(consumer)) == VERIFIABLE_PARTITIONS // 2, "its half of the partitions")
    producer = tools.start("producer", "tools.VerifiableProducer", *common, "--max-messages", VERIFIABLE_RECORDS,
                           "--throughput", VERIFIABLE_A_SECOND, "--acks", "-1")
    consumers[0].until(lambda: len(consumed(consumers[0])) > VERIFIABLE_RECORDS // 6, "enough records")
    consumers[0].stop()
    assert named(consumers[0], "shutdown_complete"), "consumer-0 did not close"
    first = len(consumed(consumers[0]))
    assert first < VERIFIABLE_RECORDS // 2, f"stopped too late, after {first} records"
    producer.finish()
    consumers[1].until(lambda: len(consumed(consumers[1])) + first >= VERIFIABLE_RECORDS, "the rest of the records")
    consumers[1].stop()

    sent = [place_of(event) for event in named(producer, "producer_send_success")]
    same(map(str, range(VERIFIABLE_RECORDS)), [value for *_, value in sent], "acknowledged")
    same(sent, consumed(consumers[0]) + consumed(consumers[1]), "consumed")
    commits = [event for consumer in consumers for event in named(consumer, "offsets_committed")]
    assert commits and all(event["success"] for event in commits), "a commit failed"
    ends = {partition: offset + 1 for partition, offset, _ in sorted(sent)}
    found = cluster.topics.committed(group, topic)
    assert found == ends, f"{found} is committed instead of {ends}"
    return f"{first} + {VERIFIABLE_RECORDS - first} records, {len(commits)} commits"


def named(tool, name):
    return [event for event in tool.events() if event["name"] == name]


def assigned(consumer):
    events = named(consumer, "partitions_assigned")
    return events[-1]["partitions"] if events else []


def place_of(event):
    return event["partition"], event["offset"], event["value"]


def consumed(consumer):
    return [place_of(event) for event in named(consumer, "record_data")]


def copier(cluster, tools):
    """Two copiers in a group, a third of their transactions aborted, one killed and started again under its id."""
    source, sink, group = cluster.named("source"), cluster.named("sink"), cluster.named("copiers")
    cluster.topics.create(source, sink, partitions=COPIED_PARTITIONS)
    records = [Record(n % COPIED_PARTITIONS, b"key %d" % n, b"value %d" % n) for n in range(COPIED_RECORDS)]
    cluster.topics.send(source, records)

    def start(n, life):
        return tools.start(
            f"copier-{n}{life}", "tools.TransactionalMessageCopier", "--broker-list", cluster.bootstrap,
            "--input-topic", source, "--input-partition", -1, "--output-topic", sink, "--consumer-group", group,
            "--transactional-id", cluster.named(f"copier-{n}"), "--transaction-size", TRANSACTION_RECORDS,
            "--enable-random-aborts", "--group-mode", "--use-group-metadata",
        )

    copiers = [start(0, "a"), start(1, "a")]
    copiers[0].until(lambda: any(event["totalProcessed"] > COPIED_RECORDS // 10 for event in copiers[0].events()),
                     "enough transactions")
    copiers[0].kill()
    copiers[0] = start(0, "b")
    for one in copiers:
        one.finish()

    ends = cluster.topics.ends(source)
    found = cluster.topics.committed(group, source)
    assert found == ends, f"{found} is committed instead of {ends}"
    got = cluster.topics.read(sink)
    for partition in range(COPIED_PARTITIONS):
        want = [(record.key, record.value) for record in records if record.partition == partition]
        same_in_order(want, [(record.key, record.value) for record in got[partition]], f"partition {partition}")
    written = sum(map(len, cluster.topics.read(sink, committed=False).values()))
    assert written > COPIED_RECORDS, "no transaction was aborted"
    return f"{COPIED_RECORDS} records, {written - COPIED_RECORDS} more in aborted transactions"


def client_compatibility(cluster, tools):
    """What a client may ask of a server, and two records compared byte by byte."""
    topic = cluster.named("compatibility")
    # It makes one topic of its own, always under this name.
    cluster.topics.remove("newtopic")
    cluster.topics.create(topic, partitions=1)
    tool = tools.start(
        "compatibility", "tools.ClientCompatibilityTest", "--bootstrap-server", cluster.bootstrap, "--topic", topic,
        "--offsets-for-times-supported", "true", "--cluster-id-supported", "true",
        "--expect-record-too-large-exception", "false", "--num-cluster-nodes", str(cluster.brokers), "--create-topics-supported", "true",
        "--describe-acls-supported", "true", "--describe-configs-supported", "true",
        "--idempotent-producer-supported", "true",
    )
    tool.finish()
    assert "SUCCESS." in tool.text(), tool.text()[-400:]
    left = [len(record.value) for record in cluster.topics.read(topic)[0]]
    assert left == [8, 4096], f"records of {left} bytes are left"


def compaction(cluster, tools):
    """Its check, that the newest of each key is left, must hold, and compaction must have run when it looked."""
    tool = tools.start(
        "compaction", "tools.LogCompactionTester", "--bootstrap-server", cluster.bootstrap, "--messages",
        COMPACTED_RECORDS, "--topics", COMPACTED_TOPICS, "--duplicates", DUPLICATES, "--percent-deletes", 10,
        "--sleep", COMPACTION_SECONDS,
    )
    tool.finish()
    text = tool.text()
    assert "Data verification is completed" in text, text[-400:]
    produced, left = map(int, re.search(r"(\d+) rows of data produced, (\d+) rows of data consumed", text).groups())
    checked, wrong = map(int, re.search(r"Validated (\d+) values, (\d+) mismatches", text).groups())
    assert produced == COMPACTED_RECORDS * COMPACTED_TOPICS and wrong == 0, text[-400:]
    # Nine of ten keys end with a value, some are never drawn.
    keys = produced // DUPLICATES
    assert checked > keys * 3 // 4, f"{checked} values of {keys} keys were compared"
    assert left < produced * 3 // 4, f"{left} of {produced} records are left: nothing was compacted"
    return f"{left} of {produced} records left, {checked} values compared"


def selftest():
    """The comparisons find what is wrong."""
    same([1, 2, 2], [2, 1, 2], "")
    same_in_order([1, 2], [1, 2], "")
    wrong = [(same, [1, 2, 2], other) for other in ([1, 2], [1, 2, 2, 2], [1, 1, 2], [], [1, 2, 3])]
    wrong += [(same_in_order, [1, 2], other) for other in ([2, 1], [1], [1, 2, 2], [1, 3], [])]
    for compare, want, got in wrong:
        try:
            compare(want, got, "")
        except AssertionError:
            continue
        raise AssertionError(f"{got} passed for {want}")


CASES = (
    ("VerifiableProducer, VerifiableConsumer", 90, verifiable),
    ("TransactionalMessageCopier", 120, copier),
    ("ClientCompatibilityTest", 60, client_compatibility),
    ("LogCompactionTester", 120, compaction),
)
