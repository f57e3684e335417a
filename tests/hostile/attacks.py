"""The attacks. Each says what it expects of the server, besides what watch.py checks after every one.

A case is (name, seconds at most, attack, megabytes that it alone may cost).
"""

import itertools
import struct
import threading
import time

import wire
from peer import ANSWER_SECONDS, Peer
from watch import GROWTH_MB_MAX
from wire import ARRAY, BYTES, STRING, TAGS, Request, batch, varint

# Kafka's error codes.
UNKNOWN_SERVER_ERROR = -1
OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE = 1, 2, 3, 10
INVALID_REQUIRED_ACKS, INVALID_TIMESTAMP, UNSUPPORTED_VERSION, UNSUPPORTED_FOR_MESSAGE_FORMAT = 21, 32, 35, 43
FETCH_SESSION_ID_NOT_FOUND, INVALID_RECORD = 70, 87

FRAME_MAX = 104_857_600  # socket.request.max.bytes
MESSAGE_MAX = 1_048_588  # message.max.bytes
FETCH_MAX = 16_777_216  # fetch.max.bytes
ELEMENTS_MAX, TAGS_MAX, TEXT_MAX = 1_000_000, 10_000, 32_767

PARTITIONS, BIG_BATCHES, BIG_BYTES = 3, 24, 1_000_000
OLD_BATCHES, OLD_BYTES = 4000, 100_000
SMALL_COST_MB = 64
AT_ONCE = 100
# A frame that has begun has to go on within this (the server's own limit), and the slack of this suite.
STALL_SECONDS, STALL_SLACK_SECONDS = 30, 6
DRAIN_SECONDS = 5
# How long an attack that clogs something goes on.
HOLD_SECONDS = 4


class Attacks:
    def __init__(self, watch, topic, big_topic, old_topic, rng):
        self.watch, self.address, self.topic, self.big_topic, self.rng = watch, watch.address, topic, big_topic, rng
        self.old_topic = old_topic
        self.catalogue = list(wire.catalogue(topic))
        self.slow, self.stalled, self.begun, self.writer = [], [], 0.0, None

    def peer(self, **options):
        return Peer(self.address, **options)

    def cases(self):
        def case(name, attack, seconds=20, cost=GROWTH_MB_MAX):
            return name, seconds, attack, cost

        yield case("slow writers begin", self.slow_begin)
        yield case("honest requests of every kind are answered", self.honest_requests)
        yield case("frame sizes: 0, negative, 2 GiB, just above the maximum: closed", self.frame_sizes)
        yield case("frames cut at every length, with an honest size: closed", self.cut_frames)
        yield case("connections ended at every length of a frame: closed", self.cut_connections)
        yield case("arrays, strings and tags with impossible counts: closed", self.impossible_counts)
        yield case("bytes behind the end of a request: let pass, as Kafka does", self.trailing)
        yield case("unknown API keys and versions: closed", self.unknown)
        yield case("ApiVersions of unknown versions: version 0 and error 35", self.api_versions)
        yield case("TLS and HTTP: closed", self.other_protocols)
        yield case("random bytes", self.random_bytes)
        yield case("random bytes behind an honest header", self.random_bodies)
        yield case("honest requests with random bytes changed", self.mutations)
        yield case("a bad CRC: error 2 for its partition alone", self.bad_crc)
        yield case("batches that lie: the right error, nothing appended", self.lying_batches)
        yield case("batches whose records are fewer than they claim", self.lying_counts)
        yield case("produce: acks=5, partitions that are not there", self.odd_produces)
        yield case("fetch: offsets, sizes, sessions that make no sense", self.odd_fetches)
        yield case("200 connections claim 100 MB and send a few bytes", self.claims, cost=SMALL_COST_MB)
        yield case("200 connections claim 100 MB and send 1 MB", self.larger_claims)
        yield case("2,500 connections claim 100 MB and send a few bytes", self.many_claims)
        yield case("thousands of fetches and no answer read", self.never_reads_fetch)
        yield case("400 connections read a log back, each from its own place, and take nothing", self.never_reads_backlog)
        yield case("thousands of metadata requests and no answer read", self.never_reads_metadata)
        yield case("10,000 requests at once, answers in order", self.pipelined)
        yield case("2,000 idle connections", self.idle_connections, cost=SMALL_COST_MB)
        yield case("500 connections vanish in the middle of a request", self.vanish)
        yield case("half-closed connections get their answers and end", self.half_closed)
        yield case("100,000 elements of other kinds", self.many_elements)
        yield case("slow writers: answered, and closed when they stall", self.slow_end, seconds=40)
        yield case("short requests with long answers: a topic named 50,000 times", self.repeated_topic)
        yield case("short requests with long answers: configs asked 20,000 times", self.repeated_configs)
        yield case("100,000 elements: partitions to fetch", self.many_fetch_partitions)

    # The frame

    def honest_requests(self):
        for name, request in self.catalogue:
            with self.peer() as peer:
                body = peer.send(request.frame()).answer()
                assert len(body) >= 2, f"{name}: the answer is {body.hex()}"
                # The connection is fit for more.
                error, _ = wire.versions_listed(peer.ask(wire.api_versions()))
                assert error == 0, f"{name}: then error {error}"
        return f"{len(self.catalogue)} requests"

    def closed_each(self, frames, half=False):
        """Every frame, on a connection of its own, ends the connection without an answer."""
        count = 0
        frames = iter(frames)
        while group := list(itertools.islice(frames, AT_ONCE)):
            peers = []
            for what, data in group:
                peer = self.peer().send(data)
                peers.append((what, data, peer.end() if half else peer))
            for what, data, peer in peers:
                with peer:
                    try:
                        peer.closed()
                    except AssertionError as error:
                        raise AssertionError(f"{what}: {error}; sent {data[:200].hex()}") from None
            count += len(group)
        return f"{count} connections"

    def frame_sizes(self):
        sizes = (0, -1, -2, -(1 << 31), (1 << 31) - 1, FRAME_MAX + 1, 1 << 30)
        note = self.closed_each((f"size {size}", struct.pack(">i", size)) for size in sizes)
        self.closed_each((f"size {size} and more", struct.pack(">i", size) + bytes(100)) for size in sizes)
        with self.peer() as peer:
            peer.send(struct.pack(">i", FRAME_MAX)).still_open(0.3)
        return note

    def cut_frames(self):
        def frames():
            for name, request in self.catalogue:
                body = request.body()
                for length in range(1, len(body)):
                    yield f"{name} cut to {length} of {len(body)}", wire.frame(body[:length])
        return self.closed_each(frames())

    def cut_connections(self):
        def frames():
            for name, request in self.catalogue:
                data = request.frame()
                for length in range(len(data)):
                    yield f"{name}, ended after {length} of {len(data)}", data[:length]
        return self.closed_each(frames(), half=True)

    def impossible_counts(self):
        def counts(kind, flexible):
            huge = [1 << 31, (1 << 32) - 1]
            if kind == TAGS:
                yield from (varint(count) for count in (TAGS_MAX + 1, *huge))
                yield b"\xff" * 5 + b"\x0f"
                yield varint(1) + varint(0) + varint((1 << 31) - 1)
            elif flexible:
                beyond = {ARRAY: ELEMENTS_MAX + 1, STRING: TEXT_MAX + 1, BYTES: 1 << 20}[kind]
                yield from (varint(count + 1) for count in (beyond, (1 << 31) - 1, (1 << 32) - 2))
                yield b"\xff" * 5 + b"\x0f"
            elif kind == STRING:
                yield from (struct.pack(">h", length) for length in (-2, -(1 << 15), TEXT_MAX))
            else:
                lengths = (-2, -(1 << 31), ELEMENTS_MAX + 1, (1 << 31) - 1)
                yield from (struct.pack(">i", length) for length in lengths)

        def frames():
            for name, request in self.catalogue:
                for at, (kind, _) in enumerate(request.parts):
                    if kind == wire.FIXED:
                        continue
                    for data in counts(kind, request.flexible):
                        yield f"{name}, part {at}, {kind} {data.hex()}", request.with_part(at, data)
        return self.closed_each(frames())

    def trailing(self):
        """librdkafka's Metadata v13 has some."""
        for name, request in self.catalogue:
            for more in (b"\0", b"\xff" * 100):
                with self.peer() as peer:
                    body = peer.send(wire.frame(request.body() + more)).answer()
                    assert len(body) >= 2, f"{name} and {len(more)} bytes: the answer is {body.hex()}"
                    error, _ = wire.versions_listed(peer.ask(wire.api_versions()))
                    assert error == 0, f"{name} and {len(more)} bytes: then error {error}"

    def unknown(self):
        def frames():
            for key in (-1, -(1 << 15), 4, 5, 6, 7, 67, 77, 93, 200, 999, (1 << 15) - 1):
                for version in (0, 1, 7):
                    yield f"key {key} version {version}", Request(key, version, False).frame()
                    yield f"key {key} version {version}, flexible", Request(key, version, True).frame()
            for version in (0, 1, 2):
                data = wire.produce(self.topic, {0: batch([b"old"])})
                yield f"Produce v{version}", data.with_part(0, struct.pack(">hhi", 0, version, 1))
            for key in (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20, 22, 32):
                for version in (-1, 99, (1 << 15) - 1, -(1 << 15)):
                    yield f"key {key} version {version}", Request(key, version, True).frame()
        return self.closed_each(frames())

    def api_versions(self):
        for version in (99, 6, (1 << 15) - 1, -1):
            for more in (b"", b"\0", b"\x80" * 50):
                with self.peer() as peer:
                    request = Request(18, version, version > 0).raw(more)
                    error, versions = wire.versions_listed(peer.ask(request))
                    assert error == UNSUPPORTED_VERSION, f"version {version}: error {error}"
                    assert set(versions) == {18}, f"version {version}: {versions}"
                    error, all_of_them = wire.versions_listed(peer.ask(wire.api_versions()))
                    assert error == 0 and all_of_them[18] == versions[18] and len(all_of_them) > 50, f"then: error {error}"

    def other_protocols(self):
        hello = bytes.fromhex("16030100a5010000a10303") + bytes(range(32)) + bytes(118)
        posts = (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /topics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"EHLO localhost\r\n", hello)
        return self.closed_each((repr(data[:12]), data) for data in posts)

    # Noise

    def answers_or_end(self, peer, what):
        """Whatever comes are whole answers, then the connection ends."""
        deadline = time.monotonic() + DRAIN_SECONDS + 2
        while (body := peer.answer_or_end(max(0.01, deadline - time.monotonic()))) is not None:
            assert len(body) >= 4, f"{what}: an answer of {len(body)} bytes"

    def random_bytes(self):
        def frames():
            for _ in range(1000):
                data = self.rng.randbytes(self.rng.choice((1, 3, 4, 5, 20, 200, 5000)))
                yield "random bytes", data
        return self.closed_each(frames(), half=True)

    def noise(self, frames):
        count = 0
        frames = iter(frames)
        while group := list(itertools.islice(frames, AT_ONCE)):
            peers = [(data, self.peer().send(data).end()) for data in group]
            for data, peer in peers:
                with peer:
                    self.answers_or_end(peer, data.hex())
            count += len(group)
        return f"{count} connections"

    def random_bodies(self):
        """Of any API and version, so mostly closed; nothing of it may be understood as a change."""
        harmless = [key for key in range(0, 70) if key not in (19, 20, 37)]

        def frames():
            for _ in range(1500):
                head = struct.pack(">hhih", self.rng.choice(harmless), self.rng.randint(0, 17), 1, -1)
                yield wire.frame(head + self.rng.randbytes(self.rng.choice((1, 8, 40, 400))))
        return self.noise(frames())

    def mutations(self):
        able = [(name, request.body()) for name, request in self.catalogue
                if not name.startswith(("CreateTopics", "CreatePartitions", "DeleteTopics"))]

        def frames():
            for number in range(2500):
                body = bytearray(able[number % len(able)][1])
                for _ in range(self.rng.randint(1, 3)):
                    # Behind the correlation id.
                    at = self.rng.randrange(8, len(body))
                    body[at] = self.rng.choice((0, 1, 0x7F, 0x80, 0xFF, self.rng.randrange(256)))
                yield wire.frame(bytes(body))
        return self.noise(frames())

    # Batches

    def ends(self, peer):
        return {partition: offset for partition, (_, offset)
                in wire.offsets_listed(peer.ask(wire.list_offsets(self.topic, range(PARTITIONS)))).items()}

    def bad_crc(self):
        with self.peer() as peer:
            for version in (3, 9):
                before = self.ends(peer)
                good, bad = batch([b"good"] * 2), batch([b"bad"] * 2, crc=0xDEAD)
                flipped = bytearray(good)
                flipped[-2] ^= 1
                for wrong in (bad, bytes(flipped)):
                    request = wire.produce(self.topic, {0: good, 1: wrong, 2: good}, version=version)
                    if version == 3:
                        errors = {at: error for at, (error, _) in wire.produced(peer.ask(request)).items()}
                        assert errors == {0: 0, 1: CORRUPT_MESSAGE, 2: 0}, f"errors {errors}"
                    else:
                        peer.ask(request)
                after = self.ends(peer)
                grown = {at: after[at] - before[at] for at in after}
                assert grown == {0: 4, 1: 0, 2: 4}, f"the partitions grew by {grown}"

    def lying_batches(self):
        good = batch([b"a record"])
        length = len(good) - 12
        cases = {
            "length one more than there is": (batch([b"a record"], length=length + 1), INVALID_RECORD),
            "length far more than there is": (batch([b"a record"], length=(1 << 31) - 1), INVALID_RECORD),
            "length one less than there is": (batch([b"a record"], length=length - 1), INVALID_RECORD),
            "length of less than a header": (batch([b"a record"], length=10), CORRUPT_MESSAGE),
            "length 0": (batch([b"a record"], length=0), CORRUPT_MESSAGE),
            "length negative": (batch([b"a record"], length=-1), CORRUPT_MESSAGE),
            "length -2 GiB": (batch([b"a record"], length=-(1 << 31)), CORRUPT_MESSAGE),
            "a header cut short": (good[:40], INVALID_RECORD),
            "one byte": (b"\0", INVALID_RECORD),
            "no bytes": (b"", INVALID_RECORD),
            "null": (None, INVALID_RECORD),
            "two batches": (good + good, INVALID_RECORD),
            # Kafka says INVALID_RECORD here; both are final for a client.
            "magic 0": (batch([b"a record"], magic=0), (UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD)),
            "magic 1": (batch([b"a record"], magic=1), (UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD)),
            "magic 3": (batch([b"a record"], magic=3), (UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD)),
            "magic -1": (batch([b"a record"], magic=-1), (UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD)),
            "unknown codec": (batch([b"a record"], attributes=7), (CORRUPT_MESSAGE, INVALID_RECORD)),
            "a control batch": (batch([b"a record"], attributes=0x20), INVALID_RECORD),
            "a transaction nobody began":
                (batch([b"a record"], attributes=0x10, producer=5, epoch=0, sequence=0), None),
            "count 0": (batch([b"a record"], count=0), (INVALID_RECORD, CORRUPT_MESSAGE)),
            "count negative": (batch([b"a record"], count=-1), (INVALID_RECORD, CORRUPT_MESSAGE)),
            "count more than offsets": (batch([b"a record"], count=5), (INVALID_RECORD, CORRUPT_MESSAGE)),
            "offsets more than count": (batch([b"a record"], delta=5), (INVALID_RECORD, CORRUPT_MESSAGE)),
            "last offset delta negative": (batch([b"a record"], delta=-1), (INVALID_RECORD, CORRUPT_MESSAGE)),
            "a producer without a sequence": (batch([b"a record"], producer=7, epoch=0), None),
            "a timestamp in the year 292 million": (batch([b"a record"], timestamp=(1 << 63) - 1), INVALID_TIMESTAMP),
            "larger than message.max.bytes": (batch([bytes(MESSAGE_MAX)]), MESSAGE_TOO_LARGE),
        }
        with self.peer() as peer:
            before, wrong = self.ends(peer), []
            for what, (data, expected) in cases.items():
                (error, base), = wire.produced(peer.ask(wire.produce(self.topic, {1: data}))).values()
                allowed = expected if isinstance(expected, tuple) else (expected,)
                if error == 0 or expected is not None and error not in allowed or base != -1:
                    wrong.append(f"{what}: error {error} base {base}, expected {allowed}")
            after = self.ends(peer)
            assert not wrong, "; ".join(wrong)
            assert after == before, f"the partitions went from {before} to {after}"
        return f"{len(cases)} batches"

    def lying_counts(self):
        """A header that is consistent and claims more records than there are. Records are never decoded, so a server
        may take it, and then has to give it back as it came, at any offset of it, and go on behind it."""
        refused = 0
        with self.peer() as peer:
            for count in (2, 1000, (1 << 31) - 1):
                data = batch([b"only one"], count=count, delta=count - 1)
                before = self.ends(peer)[2]
                (error, base), = wire.produced(peer.ask(wire.produce(self.topic, {2: data}))).values()
                if error:
                    assert error in (INVALID_RECORD, CORRUPT_MESSAGE), f"count {count}: error {error}"
                    assert self.ends(peer)[2] == before, f"count {count} was refused and appended"
                    refused += 1
                    continue
                assert (base, self.ends(peer)[2]) == (before, before + count), f"count {count}: base {base}"
                for offset in (base, base + count - 1):
                    (code, _, records), = wire.fetched(peer.ask(wire.fetch(self.topic, [(2, offset)]))).values()
                    assert code == 0 and records[16:] == data[16:], f"count {count}: fetch {offset} gave {code}"
                honest = batch([b"behind it"])
                (error, base), = wire.produced(peer.ask(wire.produce(self.topic, {2: honest}))).values()
                assert (error, base) == (0, before + count), f"behind count {count}: error {error}, base {base}"
                (code, _, records), = wire.fetched(peer.ask(wire.fetch(self.topic, [(2, base)]))).values()
                assert code == 0 and records[16:] == honest[16:], f"behind count {count}: fetch gave {code}"
        return f"{refused} of 3 refused"

    def odd_produces(self):
        data = batch([b"a record"])
        with self.peer() as peer:
            before = self.ends(peer)
            for acks in (5, -2, 2, 32767):
                (error, _), = wire.produced(peer.ask(wire.produce(self.topic, {0: data}, acks=acks))).values()
                assert error == INVALID_REQUIRED_ACKS, f"acks={acks}: error {error}"
            for partition in (-1, PARTITIONS, (1 << 31) - 1, -(1 << 31)):
                (error, _), = wire.produced(peer.ask(wire.produce(self.topic, {partition: data}))).values()
                assert error == UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition}: error {error}"
            # No other attack names it: Metadata may create what it names.
            for topic in ("hostile-absent", "", "../../etc", "a" * 300):
                (error, _), = wire.produced(peer.ask(wire.produce(topic, {0: data}))).values()
                assert error == UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic[:20]}: error {error}"
            assert self.ends(peer) == before, "something was appended"
        # Who asks for no answer learns of an error by a closed connection.
        with self.peer() as peer:
            peer.send(wire.produce(self.topic, {0: batch([b"x"], crc=1)}, acks=0).frame()).closed()

    def odd_fetches(self):
        with self.peer() as peer:
            end = self.ends(peer)[0]
            for offset in (-1, -5, -(1 << 63), end + 1, (1 << 63) - 1):
                (error, _, records), = wire.fetched(peer.ask(wire.fetch(self.topic, [(0, offset)]))).values()
                assert (error, records) == (OFFSET_OUT_OF_RANGE, b""), f"offset {offset}: error {error}"
            for partition in (-1, PARTITIONS, (1 << 31) - 1):
                (error, _, _), = wire.fetched(peer.ask(wire.fetch(self.topic, [(partition, 0)]))).values()
                assert error == UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition}: error {error}"
            lowest = -(1 << 31)
            for limits in ({"bytes_max": lowest}, {"bytes_max": 0}, {"partition_bytes": lowest}, {"wait": lowest},
                           {"bytes_min": lowest}, {"bytes_min": (1 << 31) - 1}, {"wait": -1, "bytes_min": 1 << 30}):
                (error, _, _), = wire.fetched(peer.ask(wire.fetch(self.topic, [(0, 0)], **limits))).values()
                # Kafka fails at a negative number of bytes, and says so of the partition.
                wanted = UNKNOWN_SERVER_ERROR if lowest in (limits.get("bytes_max"), limits.get("partition_bytes")) else 0
                assert error == wanted, f"{limits}: error {error}"
            answer = wire.Answer(peer.ask(wire.fetch_session(self.topic, 12345, 7))[1:])
            _, error, session = answer.take("ihi")
            assert error == FETCH_SESSION_ID_NOT_FOUND, f"a session nobody began: error {error}"
            # The records of one partition asked for over and over in one request.
            limits = {"bytes_max": (1 << 31) - 1, "partition_bytes": (1 << 31) - 1}
            body = peer.ask(wire.fetch(self.big_topic, [(0, 0)] * 1000, **limits))
            assert len(body) <= FETCH_MAX + 1000 * 100 + MESSAGE_MAX, f"an answer of {len(body)} bytes"

    # Memory

    def claims(self):
        peers = [self.peer() for _ in range(200)]
        start = wire.produce(self.topic, {0: batch([b"x"])}).body()[:40]
        for peer in peers:
            peer.send(struct.pack(">i", FRAME_MAX) + start)
        time.sleep(1)
        for peer in peers[::20]:
            peer.still_open(0.02)
        for peer in peers:
            peer.socket.close()

    def larger_claims(self):
        """They hold what queued.max.request.bytes allows, and have to let others through all the same."""
        return self.pour(200, struct.pack(">i", FRAME_MAX) + bytes(1_000_000), HOLD_SECONDS, Peer.vanish)

    def many_claims(self):
        """A few bytes each: what is set aside for each must not add up to all that others need."""
        start = struct.pack(">i", FRAME_MAX) + wire.produce(self.topic, {0: batch([b"x"])}).body()[:40]
        return self.pour(2500, start, HOLD_SECONDS, Peer.vanish)

    def pour(self, connections, data, seconds, end, **options):
        """Sends `data` on each connection, as far as the server takes it in the time there is, and reads nothing."""
        peers = [self.peer(**options) for _ in range(connections)]
        left = {peer: memoryview(data) for peer in peers}
        try:
            for peer in peers:
                peer.socket.setblocking(False)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                for peer in peers:
                    try:
                        if left[peer]:
                            left[peer] = left[peer][peer.socket.send(left[peer][:1 << 16]):]
                    except BlockingIOError:
                        pass
                time.sleep(0.01)
        finally:
            for peer in peers:
                end(peer)
        sent = sum(len(data) - len(rest) for rest in left.values())
        return f"{connections} connections, {sent / 1e6:.1f} MB sent"

    def flood(self, request, connections, requests):
        """Sends and never reads, as far as the server lets it."""
        return self.pour(connections, request.frame() * requests, HOLD_SECONDS, Peer.vanish, receive_bytes=2048)

    def never_reads_fetch(self):
        # The whole topic is more than one answer may carry, so each is as long as can be.
        request = wire.fetch(self.big_topic, [(0, 0)], bytes_max=(1 << 31) - 1, partition_bytes=(1 << 31) - 1)
        return self.flood(request, 50, 5000)

    def never_reads_backlog(self):
        """No two are given the same bytes, so that no cache pays for them."""
        count, answered = 400, 0
        peers = [self.peer(receive_bytes=2048) for _ in range(count)]
        try:
            for number, peer in enumerate(peers):
                offset = number * (OLD_BATCHES // count)
                limits = {"bytes_max": (1 << 31) - 1, "partition_bytes": (1 << 31) - 1}
                peer.send(wire.fetch(self.old_topic, [(0, offset)], **limits).frame())
            time.sleep(HOLD_SECONDS)
            for peer in peers:
                size, ended = peer.receive(4, time.monotonic() + ANSWER_SECONDS)
                # In it is the batch that was asked for at least.
                answered += not ended and struct.unpack(">i", size)[0] > OLD_BYTES
        finally:
            for peer in peers:
                peer.vanish()
        assert answered == count, f"{answered} of {count} were answered with records"

    def never_reads_metadata(self):
        return self.flood(wire.metadata([self.topic, self.big_topic, "__consumer_offsets"] * 5), 50, 5000)

    def repeated_topic(self):
        """A metadata answer with the fifty partitions of a topic, 50,000 times over, would be 80 MB."""
        request = wire.metadata(["__consumer_offsets"] * 50_000)
        return self.long_answer(request)

    def repeated_configs(self):
        request = Request(32, 4, True).array(20_000)
        for _ in range(20_000):
            request.add("b", 4).text("1").raw(b"\0").tags()
        return self.long_answer(request.add("??", True, True).tags())

    def long_answer(self, request):
        """Answered or closed; what it costs is for the watch to judge."""
        data = request.frame()
        with self.peer() as peer:
            body = peer.send(data).answer_or_end(15)
            return f"{len(data) / 1e6:.1f} MB asked, {len(body or b'') / 1e6:.1f} MB answered"

    # Many

    def pipelined(self):
        with self.peer() as peer:
            count, window = 10_000, 500
            for begin in range(0, count, window):
                peer.send(b"".join(wire.api_versions(correlation=number).frame() if number % 2 else
                                   wire.metadata([self.topic], correlation=number).frame()
                                   for number in range(begin, begin + window)))
                for number in range(begin, begin + window):
                    peer.answer(number)

    def idle_connections(self):
        before, memory = self.watch.open_files(), self.watch.server.memory()
        peers = [self.peer() for _ in range(2000)]
        try:
            # Asked twice: those that were let in must still be there when all are.
            for _ in range(2):
                for peer in peers:
                    peer.send(wire.api_versions().frame())
                for peer in peers:
                    error, _ = wire.versions_listed(peer.answer())
                    assert error == 0, f"error {error}"
                assert self.watch.open_files() >= 2000, "connections were not kept"
            self.watch.settle()
            grown = (self.watch.server.memory() - memory) / (1 << 20)
        finally:
            for peer in peers:
                peer.socket.close()
        self.files_come_back(before)
        return f"{grown:+.0f} MB while they idle"

    def vanish(self):
        before = self.watch.open_files()
        data = wire.produce(self.topic, {0: batch([bytes(20_000)])}).frame()
        for number in range(500):
            peer = self.peer().send(data[:self.rng.randrange(1, len(data))])
            if number % 2:
                peer.vanish()
            else:
                peer.socket.close()
        self.files_come_back(before)

    def files_come_back(self, before):
        deadline = time.monotonic() + 5
        # The honest client opens one now and then.
        while (now := self.watch.open_files()) > before + 3:
            assert time.monotonic() < deadline, f"{now} files are open, {before} were before"
            time.sleep(0.05)

    def half_closed(self):
        with self.peer() as peer:
            peer.end().closed()
        for name, request in self.catalogue:
            with self.peer() as peer:
                peer.send(request.frame()).end().answer()
                peer.closed()
        with self.peer() as peer:
            peer.send(b"".join(wire.api_versions(correlation=number).frame() for number in range(100))).end()
            for number in range(100):
                peer.answer(number)
            peer.closed()
        with self.peer() as peer:
            # Nothing will come for it, and nobody may be there to wait.
            end = self.ends(peer)[0]
            peer.send(wire.fetch(self.topic, [(0, end)], wait=(1 << 31) - 1, bytes_min=1 << 20).frame()).end()
            try:
                peer.receive(1, time.monotonic() + DRAIN_SECONDS + 2)
            except AssertionError:
                raise AssertionError("a fetch without end keeps a half-closed connection") from None

    def many_fetch_partitions(self):
        count = 100_000
        request = wire.fetch("hostile-nobody", [(number, 0) for number in range(count)])
        peers = [self.peer().send(request.frame()) for _ in range(3)]
        for peer in peers:
            with peer:
                found = wire.fetched(peer.answer(seconds=12))
                assert len(found) == count, f"{len(found)} partitions in the answer"

    def many_elements(self):
        count = 100_000
        names = [f"nobody-{number}" for number in range(count)]

        def of_names(request, *end):
            for name in names:
                request.text(name)
            return request.add(*end).tags() if end else request.tags()

        commit = Request(8, 8, True).text("hostile-nobody").add("i", -1).text("").text(None)
        commit.array(1).text("hostile-nobody").array(count)
        offsets = Request(9, 8, True).array(1).text("hostile-nobody").array(1).text(self.topic).array(count)
        leave = Request(13, 4, True).text("hostile-nobody").array(count)
        join = Request(11, 5, False).text("hostile-many").add("ii", 10_000, 10_000).text("").text(None)
        join.text("consumer").array(count)
        for number in range(count):
            commit.add("iqi", number, 1, -1).text(None).tags()
            offsets.add("i", number)
            leave.text(names[number]).text(None).tags()
            join.text(names[number]).bytes(b"")
        configs = Request(32, 4, True).array(1).add("b", 2).text(self.topic).array(count)
        requests = {
            "Metadata": wire.metadata(names),
            "Produce": wire.produce("hostile-nobody", dict.fromkeys(range(count), b"")),
            "ListOffsets": wire.list_offsets("hostile-nobody", range(count)),
            "DescribeGroups": of_names(Request(15, 5, True).array(count), "?", False),
            "FindCoordinator": of_names(Request(10, 4, True).add("b", 0).array(count)),
            "DeleteGroups": of_names(Request(42, 2, True).array(count)),
            "DeleteTopics": of_names(Request(20, 4, True).array(count), "i", 1000),
            "DescribeConfigs": of_names(configs).add("??", True, True).tags(),
            "OffsetCommit": commit.tags().tags(),
            "OffsetFetch": offsets.tags().tags().add("?", False).tags(),
            "LeaveGroup": leave.tags(),
            "JoinGroup": join,
        }
        slowest = {}
        for name, request in requests.items():
            with self.peer() as peer:
                begin = time.monotonic()
                try:
                    peer.send(request.frame()).answer(seconds=8)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from None
                slowest[time.monotonic() - begin] = name
        return f"slowest {slowest[max(slowest)]} {max(slowest) * 1000:.0f} ms"

    # Slow

    def slow_begin(self):
        """Some write a byte a second and get to the end, others stop; they are looked at again at the end."""
        request = wire.api_versions().frame()
        slow = self.slow = [self.peer() for _ in range(20)]
        self.stalled = [self.peer() for _ in range(20)]
        self.begun = time.monotonic()
        for peer in self.stalled:
            peer.send(wire.produce(self.topic, {0: batch([b"x"])}).frame()[:30])

        def write():
            for byte in request:
                for peer in slow:
                    peer.send(bytes([byte]))
                time.sleep(1)
        self.writer = threading.Thread(target=write, daemon=True)
        self.writer.start()

    def slow_end(self):
        if self.writer is None:
            self.slow_begin()
        self.writer.join()
        self.writer = None
        for peer in self.slow:
            with peer:
                error, _ = wire.versions_listed(peer.answer())
                assert error == 0, f"error {error}"
        for peer in self.stalled:
            with peer:
                left = self.begun + STALL_SECONDS + STALL_SLACK_SECONDS - time.monotonic()
                peer.closed(max(1, left))
        return f"closed {time.monotonic() - self.begun:.0f} s after they began at the latest"
