"""What a server holds after a run, asked by a few requests of our own: another view than the load generator's."""

import struct
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hostile"))

import wire  # noqa: E402
from peer import Peer  # noqa: E402

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADER_BYTES = 61
FETCH_BYTES = 256 * 1024


def topics(peer):
    """topic -> partitions, of the load generator's topics."""
    described = wire.topics_described(peer.ask(wire.Request(3, 4, False).array(-1).add("?", False)))
    return {topic: partitions for topic, (_, partitions) in described.items() if topic.startswith("test-topic-")}


def varint(data, at):
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def field(data, at):
    length, at = varint(data, at)
    return (None, at) if length < 0 else (data[at:at + length], at + length)


def records(data, count):
    """(key, value) of each record."""
    at = 0
    for _ in range(count):
        length, at = varint(data, at)
        end = at + length
        at += 1
        _, at = varint(data, at)
        _, at = varint(data, at)
        key, at = field(data, at)
        value, _ = field(data, at)
        yield key, value
        at = end


class Partition:
    """The first batches of a partition."""

    def __init__(self, data):
        self.codecs, self.append_time, self.records, self.producers = set(), set(), [], set()
        while len(data) >= HEADER_BYTES:
            length, = struct.unpack_from(">i", data, 8)
            if len(data) < 12 + length:
                break
            attributes, = struct.unpack_from(">h", data, 21)
            producer, = struct.unpack_from(">q", data, 43)
            count, = struct.unpack_from(">i", data, 57)
            codec = CODECS[attributes & 7]
            self.codecs.add(codec)
            self.append_time.add(bool(attributes & 8))
            self.producers.add(producer)
            inner = data[HEADER_BYTES:12 + length]
            if codec == "gzip":
                inner = zlib.decompress(inner, 31)
            if codec in ("none", "gzip"):
                self.records += records(inner, count)
            data = data[12 + length:]


def connect(bootstrap):
    host, _, port = bootstrap.rpartition(":")
    return Peer((host, int(port)))


def remove(peer, found):
    request = wire.Request(20, 1, False).array(len(found))
    for topic in found:
        request.text(topic)
    peer.ask(request.add("i", 10_000))


def clear(bootstrap):
    """Removes what a run has left."""
    with connect(bootstrap) as peer:
        remove(peer, topics(peer))


def partitions(bootstrap, count):
    """The partitions of the only topic that a run has left."""
    with connect(bootstrap) as peer:
        (topic, found), = topics(peer).items()
        assert found == count, f"{topic} has {found} partitions instead of {count}"
        read = []
        for number in range(count):
            body = peer.ask(wire.fetch(topic, [(number, 0)], partition_bytes=FETCH_BYTES))
            (error, _, data), = wire.fetched(body).values()
            assert error == 0, f"fetching {topic}-{number}: error {error}"
            read.append(Partition(data))
    return read
