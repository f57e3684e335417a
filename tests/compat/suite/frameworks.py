"""The cases for Kafka's frameworks: Streams with its own smoke test and its word count, Connect, MirrorMaker."""

import collections
import json
import random
import re
import time
import urllib.error
import urllib.request

from .kafka import Kafka
from .ports import free_address
from .test_tools import same, same_in_order
from .topics import Record, Topics

# SmokeTestDriver names its topics and says how many records it makes.
SMOKE_TOPICS = ("data", "fk", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "sws-raw",
                "sws-suppressed", "cnt", "avg", "tagg")
SMOKE_PARTITIONS, SMOKE_RECORDS = 5, 20_000
COUNT_INPUT, COUNT_OUTPUT, COUNT_PARTITIONS = "streams-plaintext-input", "streams-wordcount-output", 3
COUNT_LINES, COUNT_WORDS_A_LINE = 2000, 6
WORDS = [f"word{n}" for n in range(50)]
CONNECT_LINES = 5000
MIRRORED_RECORDS, MIRRORED_PARTITIONS = 4000, 3
# Not older than topics are kept: retention looks every five minutes, and the server of this suite runs for as long.
MIRRORED_FROM_MS = int(time.time() * 1000) - 3_600_000
# How soon a member that was killed is missed. Streams' consumers otherwise take 45 seconds.
SESSION_MS = 10_000


def streams_settings(cluster, name):
    return {
        "bootstrap.servers": cluster.bootstrap, "application.id": cluster.named(name),
        "processing.guarantee": "exactly_once_v2", "session.timeout.ms": SESSION_MS,
    }


def streams_smoke(cluster, tools):
    """Of two instances one is killed in the middle, and a broker of a cluster, and both when all is sent: the driver finds each result right."""
    cluster.topics.create(*SMOKE_TOPICS, partitions=SMOKE_PARTITIONS)
    settings = tools.properties("smoke", streams_settings(cluster, "smoke"))

    def start(name, command="process"):
        return tools.start(name, "streams.tests.StreamsSmokeTest", settings, command)

    instances = [start("instance-0"), start("instance-1")]
    for instance in instances:
        instance.until(lambda: "SMOKE-TEST-CLIENT-STARTED" in instance.text(), "its start")
    driver = start("driver", "run")
    driver.until(lambda: f" {SMOKE_RECORDS // 2} records produced" in driver.text(), "half of the records")
    instances.pop(0).kill()
    instances.append(start("instance-2"))
    cluster.kill_a_broker()
    driver.until(lambda: f" {SMOKE_RECORDS} records produced" in driver.text(), "the records")
    # The driver now waits until no transaction is open, and fails when one ends between its two looks at a partition,
    # the end first and then what is committed. So nothing runs, and the server has to end what the dead left open.
    for instance in instances:
        instance.kill()
    driver.until(lambda: "resetting retry" in driver.text(), "the end of all transactions")
    instances += [start("instance-3"), start("instance-4")]
    driver.finish()
    for instance in instances[-2:]:
        # Without a farewell, which takes each half a minute of its own disk work.
        instance.kill()

    said = driver.text()
    assert re.search("^SUCCESS$", said, re.M) and re.search("^ALL-RECORDS-DELIVERED$", said, re.M), said[-600:]
    assert "PROCESSED-MORE-THAN-GENERATED" not in said, "records were processed twice"
    for instance in instances:
        assert "SMOKE-TEST-CLIENT-EXCEPTION" not in instance.text(), f"see {instance.output_path}"
    data, echo = (
        [(record.key, record.value) for records in cluster.topics.read(topic).values() for record in records
         if record.key != b"flush"]
        for topic in ("data", "echo")
    )
    assert len(data) == SMOKE_RECORDS, f"{len(data)} records in data"
    same(data, echo, "echo")
    return f"{SMOKE_RECORDS} records"


def word_count(cluster, tools):
    """Each word is counted from one up without a gap or a repetition, over a kill."""
    cluster.topics.create(COUNT_INPUT, COUNT_OUTPUT, partitions=COUNT_PARTITIONS)
    settings = {
        **streams_settings(cluster, "count"), "num.stream.threads": 2, "state.dir": tools.directory / "state",
        "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
        "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    }
    path, chosen = tools.properties("count", settings), random.Random(1)
    lines = [chosen.choices(WORDS, range(1, len(WORDS) + 1), k=COUNT_WORDS_A_LINE) for _ in range(COUNT_LINES)]
    records = [Record(n % COUNT_PARTITIONS, None, " ".join(words).encode()) for n, words in enumerate(lines)]

    def start(name):
        return tools.start(name, "streams.examples.wordcount.WordCountDemo", path)

    def counted():
        found = collections.defaultdict(list)
        for records in cluster.topics.read(COUNT_OUTPUT).values():
            for record in records:
                found[record.key.decode()].append(int.from_bytes(record.value, "big"))
        return found

    first = start("first")
    cluster.topics.send(COUNT_INPUT, records[:COUNT_LINES // 4])
    first.until(counted, "a count")
    cluster.topics.send(COUNT_INPUT, records[COUNT_LINES // 4:COUNT_LINES // 2])
    first.kill()
    before = sum(map(len, counted().values()))
    second = start("second")
    cluster.topics.send(COUNT_INPUT, records[COUNT_LINES // 2:])
    total = COUNT_LINES * COUNT_WORDS_A_LINE
    second.until(lambda: sum(map(len, counted().values())) >= total, "all counts")
    second.stop()

    found, want = counted(), collections.Counter(word for words in lines for word in words)
    assert found.keys() == want.keys(), f"words {found.keys() ^ want.keys()}"
    for word, times in want.items():
        # Without a cache in the way, every count on the way is sent.
        same_in_order(list(range(1, times + 1)), found[word], word)
    return f"{total} counts, {before} of them before the kill"


class Connect:
    """A worker, spoken to over its REST API."""

    def __init__(self, cluster, tools):
        self.address = f"http://{free_address()}"
        self.tools = tools
        self.path = tools.properties("connect", {
            "bootstrap.servers": cluster.bootstrap, "group.id": cluster.named("connect"), "listeners": self.address,
            **{f"{what}.storage.topic": cluster.named(f"connect-{what}") for what in ("config", "offset", "status")},
            **{f"{what}.storage.replication.factor": 1 for what in ("config", "offset", "status")},
            **{f"{what}.converter": "org.apache.kafka.connect.storage.StringConverter" for what in ("key", "value")},
            "exactly.once.source.support": "enabled", "plugin.discovery": "service_load",
            "session.timeout.ms": SESSION_MS, "scheduled.rebalance.max.delay.ms": 0, "offset.flush.interval.ms": 1000,
            "consumer.session.timeout.ms": SESSION_MS, "consumer.auto.offset.reset": "earliest",
            # A worker that was killed leaves a transaction open, and the next one waits for its end.
            "producer.transaction.timeout.ms": SESSION_MS,
        })

    def start(self, name):
        self.worker = self.tools.start(name, "connect.cli.ConnectDistributed", self.path)
        self.worker.until(lambda: self.ask("/connectors") is not None, "its REST API")

    def ask(self, path, method="GET", body=None):
        """The answer, or None while there is none: a worker that starts or rebalances refuses."""
        request = urllib.request.Request(
            self.address + path, method=method, data=body and json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code in (404, 409, 500, 503):
                return None
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:300]}") from None
        except OSError:
            return None

    def running(self, name):
        status = self.ask(f"/connectors/{name}/status")
        tasks = status["tasks"] if status else []
        failed = [task["trace"] for task in tasks if task["state"] == "FAILED"]
        assert not failed, failed[0][:400]
        return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)

    def make(self, name, settings):
        self.worker.until(lambda: self.ask(f"/connectors/{name}/config", "PUT", settings) is not None, f"making {name}")
        self.worker.until(lambda: self.running(name), f"{name} running")


def connect(cluster, tools):
    """A file goes through a topic to a file; then the worker is killed in the middle of it."""
    worker, topic = Connect(cluster, tools), cluster.named("lines")
    worker.start("worker-a")
    cluster.topics.create(topic, partitions=1)
    source, sink = tools.directory / "source.txt", tools.directory / "sink.txt"
    # The source takes characters for bytes when it finds its place again: all before the kill has to be ASCII.
    lines = [f"line {n} {('a' if n < CONNECT_LINES * 3 // 4 else 'é') * (n % 7)}" for n in range(CONNECT_LINES)]

    def write(some):
        with open(source, "a") as file:
            file.write("".join(line + "\n" for line in some))

    def got():
        return sink.read_text().splitlines() if sink.exists() else []

    half = CONNECT_LINES // 2
    write(lines[:half // 2])
    worker.make("lines-in", {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
        "file": str(source), "topic": topic, "exactly.once.support": "required", "batch.size": "100",
    })
    worker.make("lines-out", {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "tasks.max": "1",
        "file": str(sink), "topics": topic,
    })
    write(lines[half // 2:half])
    worker.worker.until(lambda: len(got()) >= half, "half of the lines")
    same_in_order(lines[:half], got(), "the sink")
    # The topic gets each line once, by transactions; the sink may repeat what it had not committed.
    write(lines[half:half + half // 2])
    worker.worker.until(lambda: len(got()) > half, "more lines")
    worker.worker.kill()
    write(lines[half + half // 2:])
    worker.start("worker-b")
    worker.worker.until(lambda: lines[-1] in got()[-1:], "the last line")
    want = [line.encode() for line in lines]
    same_in_order(want, [record.value for record in cluster.topics.read(topic)[0]], "the topic")
    repeated = len(got()) - len(lines)
    same_in_order(lines, list(dict.fromkeys(got())), "the sink, after the kill")
    worker.worker.stop()
    return f"{len(lines)} lines, {repeated} repeated by the sink after a kill"


def mirrored_record(n):
    key = None if n % 11 == 0 else b"key %d" % (n % 100)
    value = None if n % 13 == 0 else bytes([n % 256]) * (n % 300)
    headers = (("n", b"%d" % n), ("n", b"\xff\x00"), ("none", None)) if n % 3 == 0 else ()
    return Record(n % MIRRORED_PARTITIONS, key, value, headers, MIRRORED_FROM_MS + n * 7)


def mirror_maker(cluster, tools):
    """A topic of Apache Kafka's and a group's offsets come over as they are."""
    with Kafka(tools.directory / "source") as kafka:
        source, topic, group = Topics(kafka.bootstrap), cluster.named("mirrored"), cluster.named("mirrored-group")
        source.create(topic, partitions=MIRRORED_PARTITIONS)
        records = [mirrored_record(n) for n in range(MIRRORED_RECORDS)]
        codecs = ("none", "gzip", "snappy", "lz4", "zstd")
        step = len(records) // len(codecs)
        for n, codec in enumerate(codecs[:-1]):
            source.send(topic, records[n * step:(n + 1) * step], **{"compression.type": codec})
        ends = source.ends(topic)
        source.commit(group, topic, ends)
        mirror = tools.start("mirror", "connect.mirror.MirrorMaker", tools.properties("mirror", {
            "clusters": "source,target", "source.bootstrap.servers": kafka.bootstrap,
            "target.bootstrap.servers": cluster.bootstrap, "source->target.enabled": "true",
            "target->source.enabled": "false", "source->target.topics": topic, "source->target.groups": group,
            "sync.group.offsets.enabled": "true", "tasks.max": 2, "replication.factor": 1, "offset.lag.max": 0,
            **{f"{what}.interval.seconds": 1 for what in (
                "refresh.topics", "refresh.groups", "emit.checkpoints", "sync.group.offsets", "emit.heartbeats")},
            **{f"{what}.topic.replication.factor": 1 for what in ("checkpoints", "heartbeats", "offset-syncs")},
            **{f"{what}.storage.replication.factor": 1 for what in ("config", "offset", "status")},
        }))
        there = f"source.{topic}"
        mirror.until(lambda: there in cluster.topics.names(), "the topic")
        source.send(topic, records[(len(codecs) - 1) * step:], **{"compression.type": codecs[-1]})
        mirror.until(lambda: sum(cluster.topics.ends(there).values()) >= MIRRORED_RECORDS, "all records")
        original, copy = source.read(topic), cluster.topics.read(there)
        assert sum(map(len, original.values())) == MIRRORED_RECORDS
        assert original.keys() == copy.keys(), f"{copy.keys()} instead of {original.keys()}"
        for partition, want in original.items():
            same_in_order(want, copy[partition], f"partition {partition}")

        ends = source.ends(topic)
        source.commit(group, topic, ends)
        mirror.until(lambda: cluster.topics.committed(group, there) == ends, "the group's offsets")
        mirror.stop()
    return f"{MIRRORED_RECORDS} records; offsets {sorted(ends.values())}"


CASES = (
    ("Streams: its smoke test", 240, streams_smoke),
    ("Streams: WordCountDemo", 120, word_count),
    ("Connect: FileStreamSource, FileStreamSink", 150, connect),
    ("MirrorMaker, from Apache Kafka", 150, mirror_maker),
)
