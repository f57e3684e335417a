"""The cases against a server of ours. Each takes the running `Place` and returns a note."""

import json
import random
import time

import chart
import served
from load import DRIVER_CLASS, check_result, driver, steady, workload
from suite.ports import free_address
from suite.server import Server

GONE_SECONDS = 30

# As OMB's files for Kafka are written: comments, blank lines, blocks, the same keys; our own words and figures.
LIKE_OMB_WORKLOAD = """#
# Who may use this file, in many words.
#

name: One producer and one consumer, one topic of 16 partitions

topics: 1
partitionsPerTopic: 16
messageSize: 1024
payloadFile: "payload/a-kilobyte.data"
subscriptionsPerTopic: 1
consumerPerSubscription: 1
producersPerTopic: 1
producerRate: 2000
consumerBacklogSizeGB: 0
testDurationMinutes: 0.05
warmupDurationMinutes: 0.02
"""
LIKE_OMB_DRIVER = """#
# Who may use this file, in many words.
#


name: Kafka
driverClass: {driver_class}

# For Kafka's clients
replicationFactor: 1

topicConfig: |
  min.insync.replicas=1

commonConfig: |
  bootstrap.servers={bootstrap}
  request.timeout.ms=120000

producerConfig: |
  acks=all
  linger.ms=1
  batch.size=131072

consumerConfig: |
  auto.offset.reset=earliest
  enable.auto.commit=false
  max.partition.fetch.bytes=10485760"""


class Place:
    """What the cases have: the load generator and a server of ours."""

    def __init__(self, load, server, directory):
        self.load, self.server, self.directory = load, server, directory
        self.bootstrap = server.bootstrap

    def run(self, name, engine, driver_text, *more, **changed):
        """A run that succeeds; its topics stay. The result was read as OMB's chart script does."""
        outcome = self.load.run(name, driver_text, workload(**changed), engine, "--keep-topics", *more)
        result = outcome.result()
        chart.draw(result)
        return result


def like_omb(place, engine):
    folder = place.load.files(f"like omb {engine}",
                              LIKE_OMB_DRIVER.format(bootstrap=place.bootstrap, driver_class=DRIVER_CLASS),
                              LIKE_OMB_WORKLOAD)
    payload = random.Random(1).randbytes(1024)
    (folder / "payload").mkdir()
    (folder / "payload" / "a-kilobyte.data").write_bytes(payload)
    outcome = place.load.end(place.load.begin(folder, engine, "--keep-topics"), folder)
    result = outcome.result()
    assert "ignored" not in outcome.err, f"a setting of OMB's own is ignored: {outcome.err}"
    assert outcome.out == "result.json\n", f"it printed {outcome.out!r}"
    samples = chart.draw(result)
    steady(2 <= samples <= 4, f"{samples} samples in 3 s")
    assert result["workload"].startswith("One producer and one") and result["driver"] == "Kafka", "the names"
    note = check_result(result, engine, partitionsPerTopic=16, messageSize=1024,
                        client={"acks": "all", "batch.size": 131072, "max.partition.fetch.bytes": 10485760})
    for partition in served.partitions(place.bootstrap, 16):
        assert partition.records and partition.codecs == {"none"}, "a partition has no records"
        assert all(record == (None, payload) for record in partition.records), "a record is another one than was sent"
    return note


def keys_in_turn(place, engine):
    producer = {"acks": 1, "compression.type": "gzip"}
    # 10,000 keys: with so many messages the first come again.
    changed = {"partitionsPerTopic": 8, "keyDistributor": "KEY_ROUND_ROBIN", "useRandomizedPayloads": True,
               "randomBytesRatio": 0.25, "randomizedPayloadPoolSize": 50, "producerRate": 4000,
               "messageSize": 200}
    result = place.run("keys in turn", engine, driver(place.bootstrap, producer), **changed)
    note = check_result(result, engine, client=producer, **changed)
    places, payloads = {}, set()
    for number, partition in enumerate(served.partitions(place.bootstrap, 8)):
        assert partition.codecs == {"gzip"}, f"batches are {partition.codecs}"
        for key, value in partition.records:
            assert len(value) == 200 and not any(value[50:]) and any(value[:50]), "a payload is not as asked for"
            assert places.setdefault(key, number) == number, f"the key {key} is in two partitions"
            payloads.add(value)
    assert len(places) > 5000, f"{len(places)} keys"
    assert len(payloads) == 50, f"{len(payloads)} payloads instead of 50"
    return f"{note}, {len(places)} keys"


def random_keys(place, engine):
    changed = {"keyDistributor": "RANDOM_NANO", "topicConfig": {"message.timestamp.type": "LogAppendTime"}}
    result = place.run("random keys", engine, driver(place.bootstrap), **changed)
    note = check_result(result, engine, **changed)
    keys = set()
    for partition in served.partitions(place.bootstrap, 4):
        assert partition.records, "a partition has no records"
        assert partition.append_time == {True}, "the topic's setting did not reach the server"
        keys.update(key for key, _ in partition.records)
    assert None not in keys and len(keys) > 500, f"{len(keys)} keys"
    return f"{note}, {len(keys)} keys"


def unacknowledged(place, engine):
    producer = {"acks": 0, "compression.type": "snappy"}
    result = place.run("unacknowledged", engine, driver(place.bootstrap, producer))
    note = check_result(result, engine, client=producer)
    for partition in served.partitions(place.bootstrap, 4):
        assert partition.codecs == {"snappy"}, f"batches are {partition.codecs}"
        assert partition.producers == {-1}, "an idempotent producer, without acknowledgements"
    return note


def many_of_all(place, engine):
    producer = {"acks": "all", "compression.type": "zstd", "enable.idempotence": "true"}
    changed = {"topics": 2, "subscriptionsPerTopic": 2, "consumerPerSubscription": 2, "producersPerTopic": 2}
    text = driver(place.bootstrap, producer, topic={"retention.ms": 3600000})
    outcome = place.load.run("many of all", text, workload(**changed), engine)
    result = outcome.result()
    chart.draw(result)
    note = check_result(result, engine, groups=2, client=producer, **changed)
    with served.connect(place.bootstrap) as peer:
        left = served.topics(peer)
    assert not left, f"topics are left: {left}"
    return note


def backlog(place, engine):
    producer = {"compression.type": "lz4"}
    # Two megabytes for one group, which takes two seconds.
    changed = {"consumerBacklogSizeGB": 0.002, "backlogDrainRatio": 1.0, "messageSize": 500, "testDurationSeconds": 2,
               "producerRate": 2000}
    result = place.run("backlog", engine, driver(place.bootstrap, producer), **changed)
    note = check_result(result, engine, client=producer, **changed)
    found = result["bench"]["backlog"]
    # Binary or decimal gigabytes: OMB's are binary.
    assert found["messages"] >= 3900, f"the backlog was {found}"
    steady(found["messages"] <= 6500, f"the backlog was {found}")
    steady(1.5 <= found["buildSeconds"] <= 5 and 0 <= found["drainSeconds"] < 5, f"the backlog was {found}")
    steady(max(result["backlog"]) >= 1500, f"backlogs of {result['backlog']}")
    steady(min(result["publishRate"]) > 1000, f"producers did not go on: {result['publishRate']}")
    assert result["bench"]["seconds"] >= found["buildSeconds"] + found["drainSeconds"] + 2, "the test's own time"
    for partition in served.partitions(place.bootstrap, 4):
        assert partition.codecs == {"lz4"}, f"batches are {partition.codecs}"
    return f"{note}, {found['messages']} messages drained in {found['drainSeconds']:.2f} s"


def highest_rate(place, engine):
    changed = {"producerRate": 0, "messageSize": 100, "testDurationSeconds": 8}
    result = place.load.run("highest rate", driver(place.bootstrap), workload(**changed), engine).result()
    chart.draw(result)
    note = check_result(result, engine, rate=0, **changed)
    found = result["bench"]["sustainableRate"]
    steady(found > 10_000, f"it found {found}/s")
    # It began at 10,000/s and more was tried.
    steady(max(result["publishRate"]) > 12_000, f"rates of {result['publishRate']}")
    return f"{note}, found {found:.0f}/s"


def steps(place, engine):
    rates = [1000, 3000]
    folder = place.load.files(f"steps {engine}", driver(place.bootstrap),
                              workload(name="in steps", producerRates=rates, testDurationSeconds=2))
    process = place.load.spawn(folder, "run", "-d", "driver.yaml", "workload.yaml", "-o", "results/of today",
                               "--engine", engine)
    outcome = place.load.end(process, folder)
    outcome.succeeded()
    files = sorted((folder / "results" / "of today").iterdir())
    printed = sorted(folder / line for line in outcome.out.splitlines())
    assert files == printed, f"it wrote {files} and printed {printed}"
    results = {one["bench"]["producerRate"]: one for one in (json.loads(file.read_text()) for file in files)}
    assert sorted(results) == rates, f"results for {sorted(results)}"
    for rate, result in results.items():
        chart.draw(result)
        check_result(result, engine, rate=rate)
        assert result["workload"] == f"in steps at {rate:g}/s", result["workload"]
    return ", ".join(file.name for file in files)


def killed(place, engine):
    """The server is gone in the middle of a run."""
    directory = place.directory / f"killed-server-{engine}"
    directory.mkdir()
    with Server(None, directory, settings=["group.initial.rebalance.delay.ms=0"]) as server:
        folder = place.load.files(f"killed {engine}", driver(server.bootstrap), workload(testDurationSeconds=40))
        process = place.load.begin(folder, engine)
        try:
            begun = time.monotonic()
            while "measuring: " not in (folder / "stderr").read_text():
                assert time.monotonic() - begun < 20 and process.poll() is None, (folder / "stderr").read_text()
                time.sleep(0.05)
            time.sleep(0.5)
            server.kill()
            since = time.monotonic()
        except BaseException:
            process.kill()
            process.wait()
            raise
        outcome = place.load.end(process, folder, GONE_SECONDS + 5, since)
    outcome.failed("a workload on Kafka: ", server.bootstrap.rpartition(":")[2], "lost the connection|does not answer",
                   seconds=GONE_SECONDS)
    return f"{outcome.message().removeprefix('mainstem-bench: ')[:100]}, after {outcome.seconds:.1f} s"


def not_there(place):
    address = free_address()
    for engine in ("native", "librdkafka"):
        outcome = place.load.run("not there", driver(address), workload(), engine)
        outcome.failed(f"cannot connect to {address}", "refused", seconds=5)
    outcome = place.load.run("nobody's name", driver("no-such-host.invalid:9092"), workload())
    return outcome.failed("no-such-host.invalid:9092", seconds=20)


def wrong_files(place):
    """What is wrong is named with its file and key, and nothing is sent."""
    good_driver, good_workload = driver(place.bootstrap), workload()
    wrong = [
        ("a topic too few", good_driver, workload(topics=0), ("workload.yaml", "topics")),
        ("no partitions", good_driver, workload(partitionsPerTopic=None), ("workload.yaml", "partitionsPerTopic")),
        ("a word for a number", good_driver, workload(messageSize="large"), ("workload.yaml", "messageSize", "large")),
        ("a word for a rate", good_driver, workload(producerRate="fast"), ("workload.yaml", "producerRate", "fast")),
        ("unknown keys", good_driver, workload(keyDistributor="BY_TASTE"), ("workload.yaml", "keyDistributor", "BY_TASTE")),
        ("no time", good_driver, workload(testDurationSeconds=0), ("workload.yaml", "testDuration")),
        ("no YAML", good_driver, "topics: [", ("workload.yaml", "line 1")),
        ("a payload that is not there", good_driver, workload(payloadFile="none.data"), ("none.data",)),
        ("random payloads of none", good_driver, workload(useRandomizedPayloads=True),
         ("workload.yaml", "randomizedPayloadPoolSize")),
        ("another system", good_driver.replace("kafka.Kafka", "pulsar.Pulsar"), good_workload,
         ("driver.yaml", "PulsarBenchmarkDriver", "Kafka")),
        ("no servers", good_driver.replace("bootstrap.servers", "bootstrap"), good_workload,
         ("driver.yaml", "bootstrap.servers")),
        ("acks of two", driver(place.bootstrap, {"acks": 2}), good_workload, ("driver.*Kafka", "producerConfig", "acks=2")),
        ("a codec that is none", driver(place.bootstrap, {"compression.type": "rar"}), good_workload,
         ("producerConfig", "compression.type=rar")),
        ("a protocol that is none", driver(place.bootstrap, common={"security.protocol": "TLS"}), good_workload,
         ("security.protocol=TLS",)),
        ("append times without acknowledgements",
         driver(place.bootstrap, {"acks": 0}, {"message.timestamp.type": "LogAppendTime"}), good_workload,
         ("acks=0", "LogAppendTime")),
        ("a setting of topics that is none", driver(place.bootstrap, topic={"no.such.setting": 1}), good_workload,
         ("INVALID_CONFIG", "no.such.setting")),
        ("a block that is a list", good_driver.replace("topicConfig", "x") + "topicConfig: [1]\n", good_workload,
         ("driver.yaml", "topicConfig")),
    ]
    problems = []
    for name, driver_text, workload_text, words in wrong:
        try:
            place.load.run(name, driver_text, workload_text).failed(*words, seconds=5)
        except AssertionError as error:
            problems.append(f"{name}: {error}")
    assert not problems, "; ".join(problems)
    return f"{len(wrong)} files"


def three_copies(place):
    """OMB's drivers ask for three copies; one server has one, and says so."""
    text = driver(place.bootstrap, topic={"min.insync.replicas": 2}, replicas=3)
    outcome = place.load.run("three copies", text, workload(testDurationSeconds=1))
    outcome.succeeded()
    for words in ("replicationFactor is 3 and there are 1 servers", "min.insync.replicas is 2: 1 is set"):
        assert words in outcome.err, outcome.err


def unknown_keys(place):
    text = driver(place.bootstrap, {"interceptor.classes": "x.Y"}) + "reset: true\n"
    outcome = place.load.run("unknown keys", text, workload(flavour="mild", testDurationSeconds=1))
    outcome.succeeded()
    for name in ("flavour", "reset", "interceptor.classes"):
        assert f"ignored, because it means nothing here: {name}" in outcome.err, outcome.err


def one_file_for_several(place):
    folder = place.load.files("one file for several", driver(place.bootstrap), workload(producerRates=[1, 2]))
    several = place.load.end(place.load.begin(folder, "native"), folder)
    several.failed("2 tests", "--output is to be a directory", "result.json", seconds=5)
    folder = place.load.files("one file for two workloads", driver(place.bootstrap), workload())
    process = place.load.spawn(folder, "run", "-d", "driver.yaml", "workload.yaml", "workload.yaml", "-o", "result.json")
    return place.load.end(process, folder).failed("2 tests", "--output is to be a directory", seconds=5)


ENGINES = ("native", "librdkafka")
# Name, its limit in seconds, the case.
OF_ENGINES = [
    ("files like OMB's, payload file", 20, like_omb),
    ("keys in turn, random payloads, gzip, acks 1", 20, keys_in_turn),
    ("random keys, append times", 20, random_keys),
    ("snappy, acks 0", 30, unacknowledged),
    ("2 topics, 2 groups of 2, zstd", 30, many_of_all),
    ("a backlog, lz4", 30, backlog),
    ("highest rate", 40, highest_rate),
    ("server killed", 70, killed),
]
OTHERS = [
    ("rates in steps", 30, lambda place: steps(place, "native")),
    ("server not there", 40, not_there),
    ("wrong files", 60, wrong_files),
    ("three copies", 15, three_copies),
    ("unknown keys", 15, unknown_keys),
    ("one file for several tests", 15, one_file_for_several),
]
