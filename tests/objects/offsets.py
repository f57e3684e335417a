"""What no Python client asks for: ListOffsets with the timestamps of tiered storage, and fetches one by one."""

import struct
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "hostile"))

import wire  # noqa: E402
from peer import Peer  # noqa: E402

LATEST, EARLIEST_LOCAL, LATEST_STORED = -1, -4, -5
# The first ones that know these timestamps, and KAFKA_STORAGE_ERROR.
LIST_OFFSETS_VERSION, FETCH_VERSION = 11, 6
PARTITION_BYTES = 1 << 20
ANSWER_SECONDS = 10


def ask(bootstrap, request, seconds):
    host, _, port = bootstrap.rpartition(":")
    with Peer((host, int(port))) as peer:
        return peer.ask(request, seconds)


def offset_of(bootstrap, topic, partition, timestamp):
    request = wire.Request(2, LIST_OFFSETS_VERSION, True).add("ib", -1, 0).array(1).text(topic).array(1)
    request.add("iiq", partition, -1, timestamp).tags().tags().add("i", ANSWER_SECONDS * 1000).tags()
    body = ask(bootstrap, request, ANSWER_SECONDS)
    # Tags of the header, throttle time, one topic with its name, one partition.
    assert len(body) == 1 + 4 + 1 + 1 + len(topic) + 1 + 26 + 3, f"an answer of {len(body)} bytes"
    index, error, _, offset, _ = struct.unpack_from(">ihqqi", body, len(body) - 29)
    assert (index, error) == (partition, 0), f"ListOffsets of {topic}/{partition} at {timestamp}: error {error}"
    return offset


def local_start(bootstrap, topic, partition):
    return offset_of(bootstrap, topic, partition, EARLIEST_LOCAL)


def is_stored(bootstrap, topic, partition):
    """Whether the store has the last record, too."""
    last = offset_of(bootstrap, topic, partition, LATEST_STORED)
    return last + 1 == offset_of(bootstrap, topic, partition, LATEST)


def fetch(bootstrap, topic, partition, offset, seconds):
    """(error, records)"""
    request = wire.Request(1, FETCH_VERSION, False).add("iiiib", -1, 0, 0, 1 << 24, 0).array(1).text(topic)
    request.array(1).add("iqqi", partition, offset, 0, PARTITION_BYTES)
    answer = wire.Answer(ask(bootstrap, request, seconds))
    answer.take("i")
    assert (len(answer.each()), answer.text(), len(answer.each())) == (1, topic, 1), "an answer about something else"
    index, error, _, _, _ = answer.take("ihqqq")
    assert index == partition, f"an answer about partition {index}"
    for _ in answer.each():
        answer.take("qq")
    records = answer.bytes() or b""
    answer.end()
    return error, records
