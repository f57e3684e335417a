"""Just enough of the Kafka protocol to say honest things, and to say each of them wrong in a chosen place.

A `Request` is a list of parts, each with its kind: fixed bytes, or the count of an array, the length of a
string, of a byte field, the number of tagged fields. An attack replaces one part and leaves the rest.
"""

import struct

CORRELATION = 0x1234567

FIXED, ARRAY, STRING, BYTES, TAGS = "fixed", "array", "string", "bytes", "tags"


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value):
    return varint((value << 1) ^ (value >> 63))


def crc32c_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


CRC32C = tuple(crc32c_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def frame(body):
    return struct.pack(">i", len(body)) + body


class Request:
    """Builds one; `flexible` versions have compact lengths and tagged fields (KIP-482)."""

    def __init__(self, key, version, flexible, correlation=CORRELATION):
        self.key, self.version, self.flexible = key, version, flexible
        self.parts = [(FIXED, struct.pack(">hhi", key, version, correlation))]
        # The client id keeps its 16-bit length in every version.
        self.parts += [(FIXED, struct.pack(">h", 7)), (FIXED, b"hostile")]
        self.tags()

    def add(self, form, *values):
        self.parts.append((FIXED, struct.pack(">" + form, *values)))
        return self

    def raw(self, data):
        self.parts.append((FIXED, data))
        return self

    def array(self, count):
        self.parts.append((ARRAY, varint(count + 1) if self.flexible else struct.pack(">i", count)))
        return self

    def text(self, value):
        if value is None:
            self.parts.append((FIXED, b"\0" if self.flexible else b"\xff\xff"))
            return self
        data = value.encode()
        self.parts.append((STRING, varint(len(data) + 1) if self.flexible else struct.pack(">h", len(data))))
        return self.raw(data)

    def bytes(self, data):
        self.parts.append((BYTES, varint(len(data) + 1) if self.flexible else struct.pack(">i", len(data))))
        return self.raw(data)

    def tags(self):
        if self.flexible:
            self.parts.append((TAGS, b"\0"))
        return self

    def body(self):
        return b"".join(data for _, data in self.parts)

    def frame(self):
        return frame(self.body())

    def with_part(self, at, data):
        """The frame with part `at` replaced; its size is right."""
        parts = [part for _, part in self.parts]
        parts[at] = data
        return frame(b"".join(parts))


class Answer:
    """Reads a response body from front to back, older encoding only."""

    def __init__(self, body):
        self.body, self.at = body, 0

    def take(self, form):
        values = struct.unpack_from(">" + form, self.body, self.at)
        self.at += struct.calcsize(">" + form)
        return values if len(values) > 1 else values[0]

    def bytes(self, form="i"):
        length = self.take(form)
        if length < 0:
            return None
        self.at += length
        assert self.at <= len(self.body), "a length reaches beyond the answer"
        return self.body[self.at - length:self.at]

    def text(self):
        data = self.bytes("h")
        return None if data is None else data.decode()

    def each(self):
        return range(max(0, self.take("i")))

    def end(self):
        assert self.at == len(self.body), f"{len(self.body) - self.at} bytes follow the answer"


def batch(values, **changed):
    """A record batch, format v2. `changed` gives header fields other values: length, magic, crc, attributes, delta,
    count, timestamp, producer, epoch, sequence; the CRC fits all but a `crc` that is given."""
    records = b""
    for at, value in enumerate(values):
        record = b"\0" + zigzag(0) + zigzag(at) + zigzag(-1) + zigzag(len(value)) + value + zigzag(0)
        records += zigzag(len(record)) + record
    have = {"length": 49 + len(records), "leader_epoch": -1, "magic": 2, "attributes": 0, "delta": len(values) - 1,
            "timestamp": 1_700_000_000_000, "producer": -1, "epoch": -1, "sequence": -1, "count": len(values),
            **changed}
    covered = struct.pack(">hiqqqhii", have["attributes"], have["delta"], have["timestamp"], have["timestamp"],
                          have["producer"], have["epoch"], have["sequence"], have["count"]) + records
    crc = changed.get("crc", crc32c(covered))
    return struct.pack(">qiibI", 0, have["length"], have["leader_epoch"], have["magic"], crc) + covered


# Requests that are in order


def produce(topic, batches, acks=-1, version=3, correlation=CORRELATION):
    """`batches`: partition -> bytes, or None for null."""
    request = Request(0, version, version >= 9, correlation).text(None).add("hi", acks, 10_000)
    request.array(1).text(topic).array(len(batches))
    for partition, data in batches.items():
        request.add("i", partition)
        if data is None:
            request.raw(b"\0" if request.flexible else b"\xff\xff\xff\xff")
        else:
            request.bytes(data)
        request.tags()
    return request.tags().tags()


def fetch(topic, partitions, wait=0, bytes_min=0, bytes_max=1 << 24, partition_bytes=1 << 20, correlation=CORRELATION):
    """`partitions`: (number, offset) pairs."""
    request = Request(1, 4, False, correlation).add("iiiib", -1, wait, bytes_min, bytes_max, 0)
    request.array(1).text(topic).array(len(partitions))
    for number, offset in partitions:
        request.add("iqi", number, offset, partition_bytes)
    return request


def fetch_session(topic, session, epoch):
    request = Request(1, 12, True).add("iiiibii", -1, 0, 0, 1 << 20, 0, session, epoch)
    request.array(1).text(topic).array(1).add("iiqiqi", 0, -1, 0, -1, -1, 1 << 20).tags().tags()
    return request.array(1).text(topic).array(1).add("i", 5).tags().text("").tags()


def metadata(topics, create=False, version=4, correlation=CORRELATION):
    request = Request(3, version, version >= 9, correlation).array(len(topics))
    for topic in topics:
        if version >= 10:
            request.add("16s", b"")
        request.text(topic).tags()
    request.add("?", create)
    return request.add("?", False).tags() if version >= 11 else request


def api_versions(version=0, correlation=CORRELATION):
    request = Request(18, version, version >= 3, correlation)
    return request.text("hostile").text("1").tags() if version >= 3 else request


def create_topic(topic, partitions, validate_only=False, version=2):
    request = Request(19, version, version >= 5).array(1).text(topic).add("ih", partitions, 1).array(0)
    request.array(1).text("retention.ms").text("100000000").tags().tags()
    return request.add("i?", 10_000, validate_only).tags()


def list_offsets(topic, partitions, version=4, timestamp=-1):
    request = Request(2, version, version >= 6).add("ib", -1, 0).array(1).text(topic).array(len(partitions))
    for partition in partitions:
        request.add("iiq", partition, -1, timestamp).tags()
    return request.tags().tags()


def join_group(group, version):
    request = Request(11, version, version >= 6).text(group).add("ii", 10_000, 10_000).text("").text(None)
    request.text("consumer").array(1).text("range").bytes(b"\0" * 12).tags()
    return (request.text(None) if version >= 8 else request).tags()


def catalogue(topic):
    """One honest request of every kind; none of them changes anything but `topic`'s records."""
    data = batch([b"an honest record"])
    nobody = "hostile-nobody"
    yield "ApiVersions v3", api_versions(3)
    yield "Metadata v4", metadata([topic, nobody])
    yield "Metadata v12", metadata([topic, nobody], version=12)
    yield "Produce v3", produce(topic, {0: data})
    yield "Produce v9", produce(topic, {0: data, 1: data}, version=9)
    yield "Fetch v4", fetch(topic, [(0, 0), (1, 0)], bytes_max=100, partition_bytes=10)
    yield "Fetch v12", fetch_session(topic, 0, -1)
    yield "ListOffsets v4", list_offsets(topic, [0, 1])
    yield "ListOffsets v6", list_offsets(topic, [0, 1], 6)
    yield "JoinGroup v5", join_group("hostile-group", 5)
    yield "JoinGroup v9", join_group("hostile-group", 9)
    sync = Request(14, 5, True).text(nobody).add("i", 1).text("member").text(None).text("consumer").text("range")
    yield "SyncGroup v5", sync.array(1).text("member").bytes(b"\0" * 8).tags().tags()
    yield "Heartbeat v4", Request(12, 4, True).text(nobody).add("i", 1).text("member").text(None).tags()
    yield "LeaveGroup v4", Request(13, 4, True).text(nobody).array(1).text("member").text(None).tags().tags()
    commit = Request(8, 8, True).text(nobody).add("i", 3).text("member").text(None)
    commit.array(1).text(topic).array(1).add("iqi", 0, 1, -1).text("note").tags().tags()
    yield "OffsetCommit v8", commit.tags()
    offsets = Request(9, 8, True).array(1).text(nobody).array(1).text(topic).array(1).add("i", 0)
    yield "OffsetFetch v8", offsets.tags().tags().add("?", False).tags()
    yield "FindCoordinator v4", Request(10, 4, True).add("b", 0).array(1).text(nobody).tags()
    yield "DescribeGroups v5", Request(15, 5, True).array(1).text(nobody).add("?", False).tags()
    yield "ListGroups v4", Request(16, 4, True).array(1).text("Stable").tags()
    yield "InitProducerId v4", Request(22, 4, True).text(None).add("iqh", 1000, -1, -1).tags()
    configs = Request(32, 4, True).array(1).add("b", 2).text(topic).array(1).text("retention.ms").tags()
    yield "DescribeConfigs v4", configs.add("??", True, True).tags()
    epochs = Request(23, 4, True).add("i", -1).array(1).text(topic).array(1).add("iii", 0, -1, 0).tags()
    yield "OffsetForLeaderEpoch v4", epochs.tags().tags()
    yield "CreateTopics v5", create_topic(nobody, 1, True, 5)
    yield "DeleteTopics v4", Request(20, 4, True).array(1).text(nobody).add("i", 1000).tags()
    yield "DeleteGroups v2", Request(42, 2, True).array(1).text(nobody).tags()
    alter = Request(44, 1, True).array(1).add("b", 2).text(nobody).array(1).text("retention.ms").add("b", 0)
    yield "IncrementalAlterConfigs v1", alter.text("1000").tags().tags().add("?", True).tags()
    partitions = Request(37, 2, True).array(1).text(nobody).add("i", 2).array(1).array(1).add("i", 1).tags().tags()
    yield "CreatePartitions v2", partitions.add("i?", 1000, True).tags()
    yield "DescribeCluster v0", Request(60, 0, True).add("?", False).tags()
    yield "OffsetDelete v0", Request(47, 0, False).text(nobody).array(1).text(topic).array(1).add("i", 0)


# Answers


def produced(body):
    """partition -> (error, base offset), of version 3."""
    answer, found = Answer(body), {}
    for _ in answer.each():
        answer.text()
        for _ in answer.each():
            partition, error, base, _ = answer.take("ihqq")
            found[partition] = (error, base)
    answer.take("i")
    answer.end()
    return found


def fetched(body):
    """partition -> (error, high watermark, records), of version 4."""
    answer, found = Answer(body), {}
    answer.take("i")
    for _ in answer.each():
        answer.text()
        for _ in answer.each():
            partition, error, end, _ = answer.take("ihqq")
            for _ in answer.each():
                answer.take("qq")
            found[partition] = (error, end, answer.bytes() or b"")
    answer.end()
    return found


def offsets_listed(body):
    """partition -> (error, offset), of version 4."""
    answer, found = Answer(body), {}
    answer.take("i")
    for _ in answer.each():
        answer.text()
        for _ in answer.each():
            partition, error, _, offset, _ = answer.take("ihqqi")
            found[partition] = (error, offset)
    answer.end()
    return found


def topics_described(body):
    """topic -> (error, partitions), of Metadata version 4."""
    answer, found = Answer(body), {}
    answer.take("i")
    for _ in answer.each():
        answer.take("i"), answer.text(), answer.take("i"), answer.text()
    answer.text(), answer.take("i")
    for _ in answer.each():
        error, topic, _ = answer.take("h"), answer.text(), answer.take("?")
        partitions = 0
        for _ in answer.each():
            answer.take("hii")
            for _ in range(2):
                for _ in answer.each():
                    answer.take("i")
            partitions += 1
        found[topic] = (error, partitions)
    answer.end()
    return found


def versions_listed(body):
    """(error, {key: (first, last)}), of version 0."""
    answer = Answer(body)
    error = answer.take("h")
    found = {}
    for _ in answer.each():
        key, first, last = answer.take("hhh")
        found[key] = (first, last)
    answer.end()
    return error, found
