"""The cases of the matrix, each written once. A case is a column of the table; it makes its own topics and groups.

A client goes through a case if it offers the operations that the case needs. Contents are compared by
tests/compat/suite/records.py: key, value, headers, time, order, each record once.

What a client cannot express is left out of what it sends; it says so among its `lacks`:

    null keys           keys that are null
    null values         values that are null
    neither key nor value      in one record
    null headers        header values that are null
    empty keys          keys of no bytes, told from null
    empty values        values of no bytes, told from null
    empty headers       header values of no bytes, told from null
    headers             headers at all
    times               of the user's: the client sets the time of sending
    repeated headers    a name that comes twice in one record
    header order        headers in another order than by name
    cluster id, controller     in what it says of the cluster
    features from 0     features whose lowest version is 0
    earliest and latest        offsets by those names
    none so late        a time after all records, told from the end
"""

import functools
import time
from dataclasses import dataclass
from typing import Callable

from suite import records
from suite.report import until
from suite.worker import RequestFailed

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True)
class Case:
    name: str
    seconds_max: int
    needs: frozenset
    about: str
    run: Callable
    codec: str = ""  # one that the client has to have
    lack: str = ""  # what the client must not lack

    def offered_by(self, program):
        return (self.needs <= program.operations and (not self.codec or self.codec in program.codecs)
                and self.lack not in program.lacks)


def batch(program, count, seed, partitions=PARTITIONS):
    """Records that the client can express."""
    made = records.make(count, seed, partitions)
    for record in made:
        if "neither key nor value" in program.lacks and record["value"] is None and record["key"] is None:
            record["value"] = records.text(b"for null")
        if "null values" in program.lacks and record["value"] is None:
            record["value"] = records.text(b"for null")
        if "empty values" in program.lacks and record["value"] == "":
            record["value"] = records.text(b"for empty")
        if "empty keys" in program.lacks and record["key"] == "":
            record["key"] = records.text(b"for empty")
        if "null keys" in program.lacks and record["key"] is None:
            record["key"] = records.text(b"for null")
        record["headers"] = [[name, header(program, value)] for name, value in record["headers"]]
        if "repeated headers" in program.lacks:
            record["headers"] = [list(pair) for pair in dict(record["headers"]).items()]
        if "header order" in program.lacks:
            record["headers"].sort()
        if "headers" in program.lacks:
            record["headers"] = []
    return made


def header(program, value):
    if value is None and "null headers" in program.lacks or value == "" and "empty headers" in program.lacks:
        return records.text(b"stands for it")
    return value


def new_topic(program, what, partitions=PARTITIONS, **configs):
    topic = program.named(what)
    program.call("create_topic", topic=topic, partitions=partitions, configs=configs)
    # Until a broker knows of it, what is produced may be refused in part, and some clients send all of it again.
    until(lambda: topic in program.call("topics"), "the topic among the topics")
    return topic


def expected(sent, starts=None):
    """{(partition, offset): record} of records whose partitions are new, or go on at `starts`."""
    nexts = dict(starts or {})
    result = {}
    for record in sent:
        offset = nexts.get(record["partition"], 0)
        nexts[record["partition"]] = offset + 1
        result[record["partition"], offset] = record
    return result


def produce(program, topic, sent, starts=None, **more):
    """Sends; {(partition, offset): record}, which is also what the client was told as far as it tells."""
    answer = program.call("produce", topic=topic, records=sent, **{"codec": "none", "idempotent": False, **more})
    result = expected(sent, starts)
    check_places(result, answer)
    return result


def check_places(result, answer):
    assert len(answer) == len(result), f"{len(answer)} places for {len(result)} records"
    for (partition, offset), told in zip(result, answer):
        assert told in ([partition, offset], [partition, -1]), \
            f"the client was told {told} for a record at {[partition, offset]}"


def same(program, sent, got):
    if "times" in program.lacks:
        now = time.time() * 1000
        for record in got:
            assert now - HOUR_MS / 2 < record["timestamp"] <= now, f"not a time of sending: {record['timestamp']}"
        sent = {place: {**record, "timestamp": None} for place, record in sent.items()}
        got = [{**record, "timestamp": None} for record in got]
    records.same(sent, got)


def read(program, topic, sent, committed=False):
    return program.call("read", topic=topic, ends=records.ends(sent), committed=committed)


# The cases


def topics(program):
    topic = new_topic(program, "topics")
    refused(program, "create_topic", topic=topic, partitions=1, configs={})
    program.call("delete_topic", topic=topic)
    until(lambda: topic not in program.call("topics"), "the topic to be gone")


def refused(program, operation, **arguments):
    try:
        program.call(operation, **arguments)
    except RequestFailed:
        return
    raise AssertionError(f"{operation} again was not refused")


def cluster(program):
    found = program.call("cluster")
    brokers = [broker["id"] for broker in found["brokers"]]
    assert len(brokers) == program.brokers == len(set(brokers)), found
    assert all(broker["address"].startswith("127.0.0.1:") for broker in found["brokers"]), found
    assert "cluster id" in program.lacks or found["cluster_id"], f"no cluster id: {found}"
    assert "controller" in program.lacks or found["controller"] in brokers, f"the controller is no broker: {found}"


def features(program):
    """Up to 3.8 a client fails if it is told of a feature whose lowest version is 0; later ones are told of those too."""
    found = program.call("features")
    assert all(0 <= lowest <= highest for lowest, highest in found.values()), found
    if any(lowest == 0 for lowest, _ in found.values()) or "features from 0" not in program.lacks:
        assert found["transaction.version"] == [0, 2] and found["group.version"] == [0, 1], found


def configs(program):
    topic = new_topic(program, "configs", **{"retention.ms": str(9 * DAY_MS)})
    settings = program.call("configs", topic=topic)
    assert settings["retention.ms"] == str(9 * DAY_MS), settings["retention.ms"]
    assert settings["cleanup.policy"] == "delete", settings["cleanup.policy"]
    program.call("set_config", topic=topic, name="cleanup.policy", value="compact")
    until(lambda: program.call("configs", topic=topic)["cleanup.policy"] == "compact", "the new setting")
    if "replace_configs" in program.operations:
        program.call("replace_configs", topic=topic, name="retention.ms", value=str(8 * DAY_MS))

        def replaced():
            now = program.call("configs", topic=topic)
            return now["retention.ms"] == str(8 * DAY_MS) and now["cleanup.policy"] == "delete"

        until(replaced, "the setting replaced, and the other reset")


def codec(program, name):
    """Twice, so that the second producer goes on where the first has ended."""
    topic = new_topic(program, f"codec-{name}")
    sent = produce(program, topic, batch(program, 90, name), codec=name)
    starts = {partition: 30 for partition in range(PARTITIONS)}
    sent.update(produce(program, topic, batch(program, 30, f"{name} again"), starts, codec=name))
    same(program, sent, read(program, topic, sent))


def idempotent(program):
    topic = new_topic(program, "idempotent")
    sent = produce(program, topic, batch(program, 90, "idempotent"), idempotent=True)
    same(program, sent, read(program, topic, sent))


def transactions(program):
    """Committed, aborted, committed, and a record outside of them: the end of each transaction takes an offset too."""
    topic, group, name = new_topic(program, "transactions", 1), program.named("transactions"), program.named("id")
    with_offsets = "transact_offsets" in program.operations
    sent, next_offset = [], 0
    for index, commit in enumerate((True, False, True)):
        part = batch(program, 10, f"transaction {index}", 1)
        more = {"group": group, "offset": index + 1} if with_offsets else {}
        answer = program.call("transact", topic=topic, records=part, transaction=name, commit=commit, **more)
        placed = expected(part, {0: next_offset})
        if commit:
            check_places(placed, answer)
        sent.append(placed)
        next_offset += len(part) + 1
        if with_offsets:
            # The end of a transaction is answered before all of its markers are written.
            committed = {"0": 3 if index == 2 else 1}
            until(lambda: repeated(program, "committed", group=group, topic=topic) == committed, f"the group to be at {committed}")
    last = produce(program, topic, batch(program, 1, "after all", 1), {0: next_offset})
    visible = {**sent[0], **sent[2], **last}
    same(program, visible, read(program, topic, visible, committed=True))
    everything = {**visible, **sent[1]}
    same(program, everything, read(program, topic, everything, committed=False))


def group(program):
    """Two turns of a group and a third one after more was sent: each record comes once."""
    topic, name = new_topic(program, "group"), program.named("group")
    sent = produce(program, topic, batch(program, 60, "group"))
    got = consume(program, name, topic, 35)
    got += consume(program, name, topic, 25)
    if "committed" in program.operations:
        found = repeated(program, "committed", group=name, topic=topic)
        assert found == {str(p): 20 for p in range(PARTITIONS)}, f"committed: {found}"
    starts = {partition: 20 for partition in range(PARTITIONS)}
    sent.update(produce(program, topic, batch(program, 9, "group again"), starts))
    got += consume(program, name, topic, 9)
    same(program, sent, sorted(got, key=lambda r: (r["partition"], r["offset"])))


# Errors of a leader or coordinator that has just moved.
MOVED = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "NOT_LEADER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH")


def repeated(program, operation, **arguments):
    """An operation that some clients try once, whatever the server: rd_kafka_committed and the admin client of librdkafka look for
    the new leader or coordinator, and give their caller the error. Where brokers move, the caller asks again."""
    while True:
        try:
            return program.call(operation, **arguments)
        except RequestFailed as error:
            if not program.moving or not any(code in str(error) for code in MOVED):
                raise
            if "FENCED_LEADER_EPOCH" in str(error):
                # The admin client of librdkafka goes on with the epoch that it knows until something else asks for metadata.
                program.call("topics")
            time.sleep(0.05)


def consume(program, name, topic, count):
    got = program.call("consume", group=name, topic=topic, count=count)
    records.check_order(got)
    return got


def groups(program):
    topic, name = new_topic(program, "groups", 1), program.named("groups")
    produce(program, topic, batch(program, 5, "groups", 1))
    consume(program, name, topic, 5)
    assert name in program.call("groups"), "the group is not listed"
    until(lambda: program.call("group_state", group=name).lower() == "empty", "the group to be empty")
    if "delete_group" in program.operations:
        program.call("delete_group", group=name)
        assert name not in program.call("groups"), "the group is listed after it was deleted"


def offsets_by_time(program):
    """The client's own time stamps decide, also those inside of a batch."""
    topic = new_topic(program, "by-time", 1)
    sent = batch(program, 20, "by time", 1)
    produce(program, topic, sent, codec="gzip" if "gzip" in program.codecs else "none")
    times = [record["timestamp"] for record in sent]
    wanted = {times[0] - 1: 0, times[0]: 0, times[0] + 1: 1, times[7]: 7, times[7] + 1: 8, times[19]: 19,
              times[19] + 1: -1}
    if "earliest and latest" not in program.lacks:
        wanted |= {"earliest": 0, "latest": 20}
    for operation in program.operations & {"offset_at", "admin_offset_at"}:
        for at, offset in wanted.items():
            found = repeated(program, operation, topic=topic, partition=0, at=at)
            # Where no record is as late, some clients say the end.
            right = found == offset or offset == -1 and "none so late" in program.lacks and found == 20
            assert right, f"{operation} {at - times[0] if isinstance(at, int) else at}: {found}, not {offset}"


def delete_records(program):
    topic = new_topic(program, "delete-records", 1)
    sent = produce(program, topic, batch(program, 20, "delete records", 1))
    low = repeated(program, "delete_records", topic=topic, partition=0, offset=12)
    assert low in (None, 12), f"low watermark {low}"
    left = {place: record for place, record in sent.items() if place[1] >= 12}
    same(program, left, read(program, topic, sent))


def needing(*operations):
    return frozenset(operations) | {"create_topic", "topics"}


ROUND_TRIP = needing("produce", "read")
CASES = (
    Case("topics", 20, needing("delete_topic"), "create, list, delete; creating twice is refused", topics),
    *(Case(name, 30, ROUND_TRIP, f"produce with codec {name} and read back", functools.partial(codec, name=name), name)
      for name in CODECS),
    Case("idempotent", 30, ROUND_TRIP | {"idempotent"}, "produce with idempotence and read back", idempotent),
    Case("transactions", 45, ROUND_TRIP | {"transact", "read_committed"},
         "commit, abort, commit, with a group's offsets where the client has that; both isolation levels", transactions),
    Case("group", 60, needing("produce", "consume"), "a group reads, commits, leaves and resumes, twice", group),
    Case("time", 30, needing("produce", "offset_at"), "offsets by time, the first and the last", offsets_by_time,
         lack="times"),
    Case("configs", 20, needing("set_config", "configs"), "describe and alter a topic's settings", configs),
    Case("cluster", 20, frozenset({"cluster"}), "describe the cluster", cluster),
    Case("groups", 45, needing("produce", "consume", "groups", "group_state"),
         "list, describe and delete groups", groups),
    Case("records", 30, ROUND_TRIP | {"delete_records"}, "delete records and read the rest", delete_records),
    Case("features", 20, frozenset({"features"}), "describe the server's features", features),
)
