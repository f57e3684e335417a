"""What docs/operations.md promises of stores that cannot be used, that are away, or that disappear, case by case.

Every case has a server and a bucket of its own. `ordinary` is a topic without settings: whatever the store does, its
records must go in and out. Of `tiered` everything leaves the local disk that may leave it.
"""

import contextlib
import functools
import shutil
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import offsets
import wire
from storms import KINDS
from suite.report import until

ORDINARY, TIERED = "ordinary", "tiered"
VALUE_BYTES = 10_000
# Several segments of the log, so that local copies leave.
MANY, FEW = 1500, 100
PRODUCE_SECONDS, READ_SECONDS = 10, 20
# A fetch of records in a store that does not answer has to be refused, and others must not wait for it.
REFUSED_SECONDS, UNMOVED_SECONDS = 5, 2
KAFKA_STORAGE_ERROR = 56
TELLS = "nothing goes to the object store"
STARTS_WITHOUT = "the object store does not answer; the server starts without it and tries again"
READ_FAILED = "a read failed; others are not logged for ten seconds"
TAKES_NO_PART = "takes no more part in the object store"
# The server waits so long for an answer.
REQUEST_SECONDS = 30


def cases(site, long):
    """(name, seconds at most, case)"""
    short = [
        ("wrong credentials: the server does not start", 60, wrong_credentials),
        ("no such bucket: the server does not start", 60, no_bucket),
        ("a store without conditional writes: the server does not start", 60, unconditional),
        ("a store that is away at the start: all goes in, and is stored when it is back", 90, away_at_start),
        ("a bucket that disappears: ordinary topics and local records do not notice", 60, bucket_gone),
        ("credentials that no longer hold: records stay on the local disk until they do", 60, credentials_changed),
        ("a copy of a data directory: the second server says so, and stores nothing more", 60, two_servers),
        ("a store that alters what it was given: no such record is served, and reads go on when it is right again", 60, altered),
    ]
    slow = [
        ("a store that does not answer: all goes in, and is stored when it does", 150, silent),
        ("a store that does not answer: reads of local records do not wait for it", 60, readers),
    ]
    for name, seconds_max, case in short + (slow if long else []):
        yield name, seconds_max, functools.partial(tidily, site, case)


def tidily(site, case):
    """However a case ends, the next one finds the store at work."""
    try:
        return case(site)
    finally:
        site.proxy.clear()


def wrong_credentials(site):
    site.minio.s3.make_bucket("refusing")
    server = site.server("wrong-credentials", "refusing", password="another password")
    server.require_refusal("object.store = s3://refusing", "refused the request", "SignatureDoesNotMatch")


def no_bucket(site):
    site.server("no-bucket", "missing").require_refusal("object.store = s3://missing", "NoSuchBucket")


def unconditional(site):
    site.minio.s3.make_bucket("unconditional")
    site.proxy.tell(mode="unconditional")
    server = site.server("unconditional", "unconditional")
    server.require_refusal("object.store = s3://unconditional", "the store needs conditional writes (If-None-Match)")
    assert not site.minio.s3.keys("unconditional"), "the probe left objects"


def away_at_start(site):
    site.minio.s3.make_bucket("away")
    site.proxy.tell(mode="away")
    begin = time.monotonic()
    with site.server("away", "away") as server:
        seconds = time.monotonic() - begin
        assert server.logged(STARTS_WITHOUT), "the log does not say that the store is away"
        create_topics(server)
        values = fill(server)
        until(lambda: server.logged(TELLS), "the log to tell of the store")
        assert offsets.local_start(server.bootstrap, TIERED, 0) == 0, "local copies left that nobody has stored"
        require_read(server, TIERED, values)
        site.proxy.tell(mode="open")
        until(lambda: dropped(server), "the records to be in the store alone")
        require_read(server, TIERED, values)
        server.require_no_bug()
    return f"the start took {seconds:.1f} s"


def bucket_gone(site):
    site.minio.s3.make_bucket("gone")
    with site.server("gone", "gone") as server:
        listed = site.proxy.counted("listed")
        create_topics(server)
        values = fill(server)
        until(lambda: dropped(server), "the records to be in the store alone")
        # A server that misses objects when it lists them stores nothing more.
        await_list(site, listed)
        site.minio.s3.remove_bucket("gone")
        values += fill(server, FEW)
        until(lambda: server.logged(TELLS), "the log to tell of the store")
        refused = require_refused(server)
        local = offsets.local_start(server.bootstrap, TIERED, 0)
        require_read(server, TIERED, values, local)
        lines = server.logged(TELLS)
        assert len(lines) == 1 and server.logged("NoSuchBucket"), f"{len(lines)} lines: {lines[:2]}"
        site.minio.s3.make_bucket("gone")
        until(lambda: offsets.is_stored(server.bootstrap, TIERED, 0), "the store to have the newest records")
        require_read(server, TIERED, values, local)
        server.require_no_bug(READ_FAILED)
    return f"{local} of {len(values)} records were in the bucket alone, refused in {refused:.1f} s"


def credentials_changed(site):
    site.minio.s3.make_bucket("revoked")
    with site.server("revoked", "revoked") as server:
        listed = site.proxy.counted("listed")
        create_topics(server)
        values = fill(server)
        until(lambda: dropped(server), "the records to be in the store alone")
        # The list at the start would tell of a store that is away for a moment, and the log tells one reason a minute.
        await_list(site, listed)
        site.minio.kill()
        try:
            site.minio.start("another password")
            values += fill(server, FEW)
            until(lambda: server.logged("SignatureDoesNotMatch"), "the log to tell of the credentials")
            refused = require_refused(server)
        finally:
            site.minio.end()
            site.minio.start()
        until(lambda: offsets.is_stored(server.bootstrap, TIERED, 0), "the store to have everything")
        require_read(server, TIERED, values)
        server.require_no_bug(READ_FAILED)
    return f"reads of stored records are refused in {refused:.1f} s"


def two_servers(site):
    site.minio.s3.make_bucket("copied")
    first, second = site.server("copied", "copied"), site.server("copy", "copied", prefix="copied")
    with first:
        create_topics(first)
        before = fill(first, FEW)
        until(lambda: offsets.is_stored(first.bootstrap, TIERED, 0), "the store to have everything")
        first.stop()
        shutil.copytree(first.directory / "data", second.directory / "data")
        first.start()
        of_first = before + fill(first, FEW)
        until(lambda: offsets.is_stored(first.bootstrap, TIERED, 0), "the store to have everything")
        with second:
            of_second = before + fill(second, FEW)
            until(lambda: second.logged(TAKES_NO_PART), "the second server to find objects that are not its own")
            first.stop()
            # A metadata snapshot may have been on its way.
            time.sleep(1)
            keys = site.minio.s3.keys("copied", "copied/")
            create_topics(second, suffix="-of-the-copy")
            of_second += fill(second, FEW)
            # Several times the interval of uploads, and longer than changed metadata waits.
            time.sleep(3)
            assert site.minio.s3.keys("copied", "copied/") == keys, "the second server stored or deleted objects"
            require_read(second, TIERED, of_second)
            assert len(second.logged(TAKES_NO_PART)) == 1, "the second server says so more than once"
        first.start()
        of_first += fill(first, FEW)
        until(lambda: offsets.is_stored(first.bootstrap, TIERED, 0), "the store to have everything")
        require_read(first, TIERED, of_first)
        first.require_no_bug(TAKES_NO_PART)
    return f"{len(keys)} objects"


def altered(site):
    site.minio.s3.make_bucket("altered")
    with site.server("altered", "altered") as server:
        create_topics(server)
        values = fill(server)
        until(lambda: dropped(server), "the records to be in the store alone")
        restart_cold(server)
        site.proxy.tell(mode="altering")
        local = offsets.local_start(server.bootstrap, TIERED, 0)
        refused = 0
        for begin in range(0, local, 100):
            error, records = offsets.fetch(server.bootstrap, TIERED, 0, begin, READ_SECONDS)
            require_genuine(records)
            refused += error != 0
        assert refused > 0, "no read met a byte that was altered"
        site.proxy.tell(mode="open")
        require_read(server, TIERED, values)
    return f"{refused} of {-(-local // 100)} reads refused"


def silent(site):
    site.minio.s3.make_bucket("silent")
    with site.server("silent", "silent") as server:
        create_topics(server)
        values = fill(server)
        until(lambda: dropped(server), "the records to be in the store alone")
        site.proxy.tell(mode="silent")
        begin, puts = time.monotonic(), 0
        # Longer than the patience with one request, so that it is repeated while the first may land.
        while time.monotonic() - begin < 1.3 * REQUEST_SECONDS or puts < 2:
            values += fill(server, FEW)
            puts = site.proxy.counted("silent", "PUT")
            time.sleep(0.5)
        site.proxy.clear()
        until(lambda: offsets.is_stored(server.bootstrap, TIERED, 0), "the store to have everything")
        assert len(server.logged(TELLS)) == 1, "not one line a minute"
        until(lambda: dropped(server), "the records to be in the store alone")
        require_read(server, TIERED, values)
        server.require_no_bug(READ_FAILED)
    return f"{puts} puts without an answer; {len(values)} records"


def readers(site):
    """Cold reads of the local disk and of the store are read by the same threads."""
    site.minio.s3.make_bucket("readers")
    with site.server("readers", "readers") as server:
        create_topics(server, partitions=8)
        produce(server, [(TIERED, partition) for partition in range(8)], ["x" * VALUE_BYTES] * (MANY // 4))
        fill(server)
        restart_cold(server, 8)
        site.proxy.tell(mode="silent")
        patience = REQUEST_SECONDS + READ_SECONDS
        for partition in range(8):
            threading.Thread(target=wait_for_store, args=(server, partition, patience), daemon=True).start()
        until(lambda: site.proxy.counted("silent", "GET") > 0, "reads to wait for the store")
        begin = time.monotonic()
        error, records = offsets.fetch(server.bootstrap, ORDINARY, 0, 0, patience)
        seconds = time.monotonic() - begin
        assert error == 0 and records, f"the ordinary topic: error {error}, {len(records)} bytes"
        assert seconds < UNMOVED_SECONDS, f"a read of the local disk took {seconds:.1f} s while the store did not answer"
    return f"{seconds:.2f} s"


# Servers and clients


def create_topics(server, partitions=1, suffix=""):
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "enable.metrics.push": False, "log_level": 0})
    topics = [NewTopic(ORDINARY + suffix, 1, 1), NewTopic(TIERED + suffix, partitions, 1, config=KINDS["dropped"])]
    for future in admin.create_topics(topics, request_timeout=PRODUCE_SECONDS).values():
        future.result(PRODUCE_SECONDS)


def fill(server, count=MANY):
    """Values for both topics, each acknowledged in time; no two calls have the same. Those of the ordinary topic are
    read back. Returns them."""
    begin = time.monotonic_ns()
    values = [f"{server.directory.name} {begin} {number} ".ljust(VALUE_BYTES, "x").encode() for number in range(count)]
    produce(server, [(ORDINARY, 0), (TIERED, 0)], values)
    end = offsets.offset_of(server.bootstrap, ORDINARY, 0, offsets.LATEST)
    require_read(server, ORDINARY, values, end - count, end - count)
    return values


def produce(server, places, values):
    """All values into each (topic, partition)."""
    producer = Producer({
        "bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 5,
        "message.timeout.ms": PRODUCE_SECONDS * 1000, "enable.metrics.push": False, "log_level": 0,
    })
    failed = []

    def delivered(error, _):
        if error is not None:
            failed.append(error)

    for topic, partition in places:
        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
    left = producer.flush(PRODUCE_SECONDS)
    assert not left and not failed, f"{left} records without an answer, {len(failed)} refused: {failed[:1]}"


def require_read(server, topic, values, begin=0, first=0):
    """The topic has `values` from offset `first` on; they are read from offset `begin` to the end."""
    consumer = Consumer({
        "bootstrap.servers": server.bootstrap, "group.id": "promises", "enable.auto.commit": False,
        "auto.offset.reset": "error", "check.crcs": True, "fetch.wait.max.ms": 20, "enable.metrics.push": False, "log_level": 0,
    })
    wanted, found, deadline = values[begin - first:], [], time.monotonic() + READ_SECONDS
    try:
        consumer.assign([TopicPartition(topic, 0, begin)])
        while len(found) < len(wanted):
            assert time.monotonic() < deadline, f"{topic}: read {len(found)} of {len(wanted)} records from {begin} on"
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, f"{topic}: {message.error()}"
                found.append((message.offset(), message.value()))
    finally:
        consumer.close()
    for at, (offset, value) in enumerate(found):
        assert (offset, value) == (begin + at, wanted[at]), f"{topic}: offset {offset} has {value[:60]}"


def restart_cold(server, partitions=1):
    """Nothing is in memory after this. Segments that are alive have local copies again, which leave once more."""
    server.stop()
    server.start()
    until(lambda: all(dropped(server, partition) for partition in range(partitions)), "local copies to go")


def await_list(site, listed):
    """Waits until the server has the whole list of the log's objects; it had `listed` of them before."""
    until(lambda: site.proxy.counted("listed") > listed, "the list of objects")


def dropped(server, partition=0):
    """The store has everything, and much of it is nowhere else."""
    place = server.bootstrap, TIERED, partition
    return offsets.is_stored(*place) and offsets.local_start(*place) > offsets.offset_of(*place, offsets.LATEST) // 2


def wait_for_store(server, partition, seconds):
    """A fetch whose answer nobody needs."""
    with contextlib.suppress(AssertionError, OSError):
        offsets.fetch(server.bootstrap, TIERED, partition, 0, seconds)


def require_refused(server):
    """A fetch of the first record, which is in the store alone. Returns the seconds that it took."""
    begin = time.monotonic()
    error, _ = offsets.fetch(server.bootstrap, TIERED, 0, 0, REFUSED_SECONDS)
    assert error == KAFKA_STORAGE_ERROR, f"a fetch of what only the store has: error {error}"
    return time.monotonic() - begin


def require_genuine(records):
    """Each whole batch has the checksum that it was made with."""
    at = 0
    while at + 12 <= len(records):
        length = int.from_bytes(records[at + 8:at + 12], "big")
        batch = records[at:at + 12 + length]
        if len(batch) < 12 + length:
            break
        crc = int.from_bytes(batch[17:21], "big")
        assert wire.crc32c(batch[21:]) == crc, f"a batch of {len(batch)} bytes is not what was produced"
        at += len(batch)
