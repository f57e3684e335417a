"""A disk that is destroyed: what the bucket has comes back, and its content is compared with what was produced.

One cluster lives on three machines after another. Each loses its disk and is restored from the bucket by
`mainstem restore`: the first when everything is stored, the second when records wait that a snapshot names or that
nobody knows of, the third in the middle of work, while the store loses answers. A record's key, value, headers and
timestamp follow from its place, so each of them is compared and none is kept.
"""

import bisect
import collections
import functools
import logging
import random
import re
import shutil
import struct
import threading
import time
import urllib.request
from typing import NamedTuple

from confluent_kafka import (
    Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding, AclBindingFilter, AclOperation, AclPermissionType, AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource,
    NewTopic, ResourcePatternType, ResourceType, ScramCredentialInfo, ScramMechanism,
    UserScramCredentialUpsertion,
)

import offsets
import wire
from store import BUCKET, SETTINGS
from suite.ports import free_address
from suite.report import CaseTimeout, until


class Size(NamedTuple):
    partitions: int
    # Of values that no codec makes smaller.
    bytes: int
    value_bytes: tuple
    # The time-out of transactions that nobody ends.
    expires_seconds: int


class Kind(NamedTuple):
    # Of the partitions, or their number.
    partitions: float
    codec: str
    settings: dict


SHORT, LONG = Size(300, 64 << 20, (2_000, 18_000), 10), Size(5000, 2 << 30, (16_000, 64_000), 60)
TIERED = {"remote.storage.enable": "true", "retention.ms": "-1"}
DISKLESS = {"diskless.enable": "true", "retention.ms": "-1"}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000"}
TOPICS = {
    "tiered": Kind(0.3, "zstd", TIERED),
    "dropped": Kind(0.2, "none", TIERED | {"local.retention.ms": "1"}),
    "diskless": Kind(0.3, "lz4", DISKLESS),
    "kept": Kind(0.2, "snappy", DISKLESS | {"local.retention.ms": "-2"}),
    "compacted": Kind(4, "gzip", DISKLESS | COMPACTED),
    "local": Kind(4, "zstd", {}),
    "bank-tiered": Kind(9, "none", TIERED),
    "bank-diskless": Kind(9, "none", DISKLESS),
    "numbered-tiered": Kind(1, "none", TIERED),
    "numbered-diskless": Kind(1, "none", DISKLESS),
}
PLAIN = ("tiered", "dropped", "diskless", "kept", "compacted", "local")
BANKS, NUMBERED = ("bank-tiered", "bank-diskless"), ("numbered-tiered", "numbered-diskless")
INTERNAL = ("__consumer_offsets", "__transaction_state")
KEYS = 5
# Records of a partition come in so many parts, between which all other partitions have theirs.
PARTS = 3
# Records below are deleted in the first partition of some topics.
DELETED_BELOW = {("tiered", 0): 3, ("diskless", 0): 5}
# The partitions of a bank. All have transactions that ended. Some have one that is open when the first disk is destroyed,
# some have one of which the store has only a part when the second is, and one is in use when the third is.
ENDED, ABANDONED, GOES_ON, EXPIRES, OPENED, ABORTED, COMMITTED, DECIDED, SUDDEN = range(9)
TRANSACTION_RECORDS, ENDED_TRANSACTIONS = 3, 3
CLIENT_SECONDS, TOOL_SECONDS = 30, 300
GROUP_SECONDS, SNAPSHOT_SECONDS, SNAPSHOT_WAIT_SECONDS = 10, 0.3, 1.0
QUOTA_KEY, QUOTA = "producer_byte_rate", 123_456_789.0
DESCRIBE_QUOTAS, ALTER_QUOTAS, INIT_PRODUCER_ID = 48, 49, 22
EARLIEST, OUT_OF_ORDER = -2, 45
# It would tell of producers that are fenced as they should be.
SILENT = logging.Logger("silent")
SILENT.addHandler(logging.NullHandler())
ANY_USER, BROKER = "User:somebody", "1"
WEATHER = {"lost": 0.02, "torn": 0.01, "late": 0.02, "busy": 0.02, "done-busy": 0.02, "slow": 0.05}
STORM_SECONDS, STORM_PLACES, STORM_RECORDS, STORM_REST_SECONDS = (1.0, 2.5), 8, 3000, 0.002
NOT_STORED = re.compile(r"^not stored: (.+)-(\d+) offsets (\d+)(?: to (\d+))?$", re.MULTILINE)
COUNTS = re.compile(r"(\d+) topics with (\d+) partitions, (\d+) users, (\d+) ACLs, (\d+) quotas, (\d+) groups with")


def restore(report, site, seed, long):
    """Runs the cases. Each needs those before it, but for what is only looked at."""
    size = LONG if long else SHORT
    scale = 10 if long else 1
    cluster = Cluster(site, seed, size)

    def case(name, seconds_max, what, *arguments):
        return report.run(f"restore: {name}", seconds_max * scale, functools.partial(what, *arguments))

    try:
        for steps in (cluster.settled_disaster, cluster.unstored_disaster, cluster.sudden_disaster):
            for name, seconds_max, what, *arguments in steps():
                optional = name.startswith("?")
                if not case(name.lstrip("?"), seconds_max, what, *arguments) and not optional:
                    return
    finally:
        cluster.end()


class Cluster:
    def __init__(self, site, seed, size):
        self.site, self.seed, self.size = site, seed, size
        self.base_ms = int(time.time() * 1000)
        shares = {name: kind.partitions for name, kind in TOPICS.items()}
        few = sum(share for share in shares.values() if share >= 1)
        many = size.partitions - few
        self.partitions = {name: int(share if share >= 1 else share * many) for name, share in shares.items()}
        self.partitions["tiered"] += size.partitions - sum(self.partitions.values())
        # Where each partition begins and ends, and the lives that its records come from: (first offset, life).
        self.first = {place: 0 for topic in TOPICS for place in self.places(topic)}
        self.next, self.lives = dict(self.first), {place: [(0, 0)] for place in self.first}
        self.life, self.server, self.disks = 0, None, []
        self.members, self.admins = [], {}
        self.bank = Bank(self)
        self.tail = random.Random(seed).randbytes(64)

    def places(self, *topics):
        return [(topic, partition) for topic in topics for partition in range(self.partitions[topic])]

    def end(self):
        for member in self.members:
            member.close()
        self.bank.forget()
        if self.server is not None:
            self.server.__exit__()

    # The cases: (name, seconds at most, what to do). A failure ends the run, unless the name begins with "?".

    def settled_disaster(self):
        yield "a server, topics, users, ACLs, quotas", 20, self.set_up
        yield "records in all partitions", 40, self.fill
        yield "transactions and groups", 30, self.fill_more
        yield "everything is stored, and a snapshot knows it", 30, self.settle
        yield "?log verify finds no damage beside the server", 30, self.verify_bucket, "note"
        yield "one more open transaction is stored, and the disk is destroyed", 30, self.open_and_lose
        yield "log verify has no findings", 30, self.verify_bucket
        yield "restore says what came back, and what was not stored", 30, self.restore_disk, self.named_local
        yield "the server starts on the restored disk", 30, self.start
        yield "?topics, settings, users, ACLs and quotas are as they were", 20, self.verify_metadata
        yield "?read_committed sees no open and no aborted transaction", 20, self.bank.verify_committed
        yield "every stored record is at its offset, unaltered", 60, self.verify_records
        yield "?groups have their committed offsets", 20, self.verify_groups
        yield "?members of groups go on", 40, self.verify_members
        yield "?an open transaction is committed by its producer", 20, self.bank.commit_open
        yield "?an open transaction is aborted by the next producer of its id", 20, self.bank.fence_open
        yield "?an open transaction without a producer expires", 60, self.bank.await_expiry
        yield "?a producer's retry is recognized, and its next batch accepted", 20, self.go_on_numbered
        yield "?new records get the next offsets, in all partitions", 40, self.append, 1, 1
        yield "everything is stored again", 30, self.settle
        yield "every record is at its offset, old ones and new ones", 60, self.verify_records
        yield "?read_committed sees all that was committed", 20, self.bank.verify_committed

    def unstored_disaster(self):
        yield "a server that stores late, and a store that goes away, leave records on the disk alone", 60, self.leave_unstored
        yield "the disk is destroyed; restore names what the snapshot knows", 30, self.lose_and_restore, self.named_unstored
        yield "the server starts on the restored disk, again", 30, self.start
        yield "?topics and settings are as they were, again", 20, self.verify_metadata
        yield "every stored record is there, and none that was not", 60, self.verify_records
        yield "?a transaction that began late is not visible, and ends", 60, self.bank.verify_late, OPENED
        yield "?a transaction that was aborted late is not visible", 20, self.bank.verify_late, ABORTED
        yield "?a transaction that was committed late is visible", 20, self.bank.verify_late, COMMITTED
        yield "?a transaction whose commit is stored, and was answered, is visible", 60, self.bank.verify_late, DECIDED
        yield "?new records get the next offsets, again", 40, self.append, 1, 1

    def sudden_disaster(self):
        yield "producers and faults of the store; the server is killed", 60, self.storm
        yield "the disk is destroyed; restore names what is missing", 30, self.lose_and_restore, self.named_sudden
        yield "the server starts on the restored disk, once more", 30, self.start
        yield "what diskless topics acknowledged is there, and nothing is torn", 60, self.verify_sudden
        yield "?readers see what diskless topics committed, and nothing open or aborted", 60, self.bank.verify_sudden
        yield "everything is stored, once more", 30, self.settle
        yield "log verify has no findings behind three lives", 30, self.verify_end
        yield "?servers: no bug in their logs", 10, self.require_no_bug

    # Servers, and what they keep

    def machine(self, **changed):
        """A new machine at the same address, with the same bucket and without data."""
        server = self.site.server(f"restore-{self.life}", prefix="restore")
        if self.server is not None:
            server.listen = self.server.listen
        server.admin = free_address()
        self.set(server, **changed)
        self.disks.append(server)
        return server

    def set(self, server, **changed):
        settings = dict(setting.split("=", 1) for setting in SETTINGS) | {
            "object.store": f"s3://{BUCKET}/restore", "admin.listen": server.admin,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS", "object.store.diskless.interval.ms": "20",
            "log.cleaner.backoff.ms": "500",
            "object.store.metadata.snapshot.interval.ms": str(int(1000 * SNAPSHOT_SECONDS)),
        } | {name.replace("_", "."): value for name, value in changed.items()}
        server.settings = [f"{name}={value}" for name, value in settings.items()]

    @property
    def admin(self):
        """A client for each machine. One that is let go of before an answer is there never gets it."""
        if self.server not in self.admins:
            self.admins[self.server] = AdminClient(client(self.server))
        return self.admins[self.server]

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.server.admin}/metrics", timeout=CLIENT_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(name + r"[{ ]", line))

    def set_up(self):
        self.server = self.machine()
        self.server.__enter__()
        admin = self.admin
        topics = [NewTopic(name, self.partitions[name], 1, config=kind.settings) for name, kind in TOPICS.items()]
        done(admin.create_topics([*topics, NewTopic("deleted", 3, 1)], request_timeout=CLIENT_SECONDS))
        done(admin.delete_topics(["deleted"]))
        changed = {("tiered", ResourceType.TOPIC): ("max.message.bytes", "2000000"),
                   ("local", ResourceType.TOPIC): ("retention.ms", "400000000"),
                   (BROKER, ResourceType.BROKER): ("log.cleaner.min.cleanable.ratio", "0.3")}
        for (name, of), (setting, value) in changed.items():
            entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
            done(admin.incremental_alter_configs([ConfigResource(of, name, incremental_configs=[entry])]))
        acls = [AclBinding(ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, ANY_USER, "*", operation,
                           AclPermissionType.ALLOW)
                for name in ("tier", "disk") for operation in (AclOperation.READ, AclOperation.WRITE)]
        done(admin.create_acls(acls))
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        users = [UserScramCredentialUpsertion(user, credential, b"a password of the tests") for user in ("ann", "bob")]
        done(admin.alter_user_scram_credentials(users))
        alter_quotas(self.server.bootstrap, "ann", QUOTA)
        return f"{len(self.first)} partitions"

    def metadata(self):
        """Everything that clients can ask about topics and users, in a form to compare."""
        admin = self.admin
        found = {}
        described = admin.describe_topics(TopicCollection(list(TOPICS)))
        for name, future in described.items():
            topic = future.result(CLIENT_SECONDS)
            found[f"topic {name}"] = (str(topic.topic_id), len(topic.partitions))
        assert "deleted" not in admin.list_topics(timeout=CLIENT_SECONDS).topics, "a deleted topic is there"
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in TOPICS]
        resources.append(ConfigResource(ResourceType.BROKER, BROKER))
        for resource, future in admin.describe_configs(resources).items():
            entries = future.result(CLIENT_SECONDS).values()
            # Of a broker, what clients changed: addresses and directories are those of the machine.
            found[f"settings of {resource.restype.name} {resource.name}"] = {
                entry.name: entry.value for entry in entries if resource.restype == ResourceType.TOPIC or entry.source == 2}
        any_acl = acl_filter()
        found["ACLs"] = sorted(str(acl) for acl in admin.describe_acls(any_acl).result(CLIENT_SECONDS))
        users = admin.describe_user_scram_credentials().result(CLIENT_SECONDS)
        found["users"] = {name: [(str(one.mechanism), one.iterations) for one in user.scram_credential_infos]
                          for name, user in users.items()}
        found["quotas"] = describe_quotas(self.server.bootstrap)
        return found

    def verify_metadata(self):
        found = self.metadata()
        differing = [name for name in self.known | found if self.known.get(name) != found.get(name)]
        differing = [f"{name} was {self.known.get(name)}, is {found.get(name)}"[:400] for name in differing]
        assert not differing, f"{len(differing)} things differ: {differing[:3]}"
        users, acls = len(found["users"]), len(found["ACLs"])
        assert (users, acls) == (2, 4), f"{users} users, {acls} ACLs"
        assert list(found["quotas"].values()) == [QUOTA], f"quotas: {found['quotas']}"
        return f"{len(found)} things asked"

    # Records

    def record(self, place, number, life=0):
        """(key, value, headers, timestamp) of a record."""
        topic, partition = place
        rng = random.Random(f"{self.seed} {topic} {partition} {number} {life}")
        low, high = self.size.value_bytes if life == 0 else (50, 500)
        value = rng.randbytes(rng.randint(low, high))
        # Codecs shall have something to do.
        value = None if number % 13 == 12 else value + self.tail * (len(value) // 512)
        key = f"{topic} {partition} {number % KEYS if topic == 'compacted' else number}".encode()
        if number % 7 == 6 and topic not in ("compacted", "bank"):
            key = None
        headers = [("life", str(life).encode()), ("nothing", None), ("bytes", rng.randbytes(9))] if number % 3 else None
        return key, value, headers, self.base_ms + 10 * number + partition % 10

    def life_of(self, place, offset):
        lives = self.lives[place]
        return lives[bisect.bisect_right(lives, (offset, 1 << 60)) - 1][1]

    def expected(self, place, offset):
        """The record at an offset; None if there must not be any."""
        if place[0] in BANKS:
            return self.bank.record(place, offset)
        if place[0] in NUMBERED:
            return None, f"{place} {offset}".encode(), None, self.base_ms
        return self.record(place, offset, self.life_of(place, offset))

    def send(self, places, per_partition, patience=CLIENT_SECONDS, stop=None, parts=PARTS):
        """So many more records into each place. Returns what was sent and what was acknowledged, place by place. With
        `stop`, what is not acknowledged when that event is set is given up."""
        producers = {topic: sender(self.server, self.size, TOPICS[topic].codec, patience) for topic, _ in places}
        sent = {place: self.next[place] for place in places}
        acked, failed = dict(sent), []

        def delivered(error, message):
            place = message.topic(), message.partition()
            if error is not None:
                failed.append(f"{place}: {error}")
            elif message.offset() != acked[place]:
                failed.append(f"{place}: offset {message.offset()} for record {acked[place]}")
            else:
                acked[place] += 1

        for place in places:
            # An offset that was used on a disk that is lost may come again, for another record.
            if self.lives[place][-1][1] != self.life and per_partition:
                self.lives[place].append((sent[place], self.life))
        for part in range(parts):
            count = per_partition * (part + 1) // parts - per_partition * part // parts
            for place in places:
                # With a rest now and then: in a storm there are other clients, too.
                if stop is not None and stop.wait(STORM_REST_SECONDS):
                    break
                for _ in range(count):
                    sent[place] += self.put(producers[place[0]], place, sent[place], delivered, stop)
            for producer in producers.values():
                producer.poll(0)
        for producer in producers.values():
            deadline = time.monotonic() + patience
            while len(producer) and time.monotonic() < deadline and not (stop and stop.is_set()):
                producer.flush(0.1)
            if stop is not None or patience < CLIENT_SECONDS:
                producer.purge()
                producer.flush(1)
        return sent, acked, failed

    def put(self, producer, place, number, delivered, stop):
        """Hands a record over, when there is room. Says whether it did before `stop`."""
        key, value, headers, timestamp = self.record(place, number, self.life_of(place, number))
        while stop is None or not stop.is_set():
            try:
                producer.produce(place[0], value, key, place[1], delivered, timestamp=timestamp, headers=headers or [])
                return True
            except BufferError:
                producer.poll(0.1)
        return False

    def append(self, per_partition, life_step=0):
        """So many more records into each partition of the plain topics, all of them acknowledged."""
        self.life += life_step
        places = self.places(*PLAIN)
        sent, acked, failed = self.send(places, per_partition)
        missing = [place for place in places if acked[place] < sent[place]]
        assert not missing and not failed, f"{len(missing)} partitions lack answers; {len(failed)} failed: {failed[:2]}"
        self.next |= sent
        for topic in PLAIN:
            ends = offsets_of(self.server.bootstrap, topic, self.partitions[topic], offsets.LATEST)
            assert ends == [self.next[place] for place in self.places(topic)], f"{topic} ends elsewhere"

    def fill(self):
        begin = time.monotonic()
        plain = len(self.places(*PLAIN))
        each = sum(self.size.value_bytes) / 2 * 12 / 13
        per_partition = max(PARTS, int(-(-self.size.bytes // (plain * each))))
        self.append(per_partition)
        for place, below in DELETED_BELOW.items():
            done(self.admin.delete_records([TopicPartition(*place, below)]))
            self.first[place] = below
        megabytes = self.size.bytes >> 20
        return f"{plain * per_partition} records, {megabytes} MiB and more, {megabytes / (time.monotonic() - begin):.0f} MiB/s"

    def read(self, places, take, isolation="read_uncommitted"):
        """Calls `take` with each record of these partitions, until all ends are reached."""
        consumer = Consumer(client(self.server) | {
            "group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error",
            "isolation.level": isolation, "check.crcs": True, "fetch.wait.max.ms": 20,
        })
        waiting = set(places)
        try:
            consumer.assign([TopicPartition(*place, self.first[place]) for place in places])
            while waiting:
                for message in consumer.consume(500, 0.2):
                    place = message.topic(), message.partition()
                    if message.error() is None:
                        take(place, message)
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        waiting.discard(place)
                    else:
                        raise AssertionError(f"{place}: {message.error()}")
        except CaseTimeout as error:
            state = f", with {len(waiting)} partitions that were not read to their ends, {sorted(waiting)[:3]}"
            raise CaseTimeout(state) from error
        finally:
            consumer.close()

    def compare(self, place, message):
        """The record is the one that was produced there."""
        offset, wanted = message.offset(), self.expected(place, message.offset())
        assert wanted is not None, f"{place} offset {offset}: a record that nobody produced, {str(message.value())[:60]}"
        found = message.key(), message.value(), message.headers(), message.timestamp()[1]
        for what, one, other in zip(("key", "value", "headers", "timestamp"), found, wanted):
            assert one == other, f"{place} offset {offset}: its {what} is {str(one)[:80]}, and was {str(other)[:80]}"
        return len(message.value() or b"")

    def verify_records(self):
        """Each partition has each of its records once, at its offset, and no others."""
        begin, first_seconds, total = time.monotonic(), None, 0
        places, at = [place for place in self.first if place not in self.bank.unsure], dict(self.first)
        newest = {place: {} for place in self.places("compacted")}
        self.compacted = {place: [] for place in newest}
        self.bank.notice_expiry()
        self.verify_bounds()

        def take(place, message):
            nonlocal first_seconds, total
            first_seconds = first_seconds or time.monotonic() - begin
            total += self.compare(place, message)
            offset = message.offset()
            assert offset >= at[place], f"{place}: offset {offset} after {at[place]}"
            if place[0] == "compacted":
                newest[place][message.key()] = offset
                self.compacted[place].append(offset)
            elif place[0] in BANKS:
                skipped = self.bank.between(place, at[place], offset)
                assert not skipped, f"{place}: offsets {skipped[:5]} are missing, before {offset}"
            else:
                assert offset == at[place], f"{place}: offsets {at[place]} to {offset - 1} are missing"
            at[place] = offset + 1

        self.read(places, take)
        for place in places:
            if place[0] in BANKS:
                missing = self.bank.between(place, at[place], self.next[place])
            elif place[0] == "compacted":
                wanted = {self.record(place, offset)[0]: offset for offset in range(self.next[place])}
                missing = sorted(set(wanted.values()) - set(newest[place].values()))
            else:
                missing = list(range(at[place], self.next[place]))
            assert not missing, f"{place}: {len(missing)} records are missing, from {missing[0]} on"
        seconds = time.monotonic() - begin
        left, put = sum(map(len, self.compacted.values())), sum(self.next[place] for place in self.compacted)
        return (f"{total >> 20} MiB in {len(places)} partitions, {left} of {put} compacted records, "
                f"the first after {first_seconds:.2f} s, {total / seconds / (1 << 20):.0f} MiB/s")

    def verify_bounds(self):
        for topic in TOPICS:
            places = self.places(topic)
            for what, timestamp, wanted in (("begins", EARLIEST, self.first), ("ends", offsets.LATEST, self.next)):
                found = offsets_of(self.server.bootstrap, topic, len(places), timestamp)
                # Compaction may have taken the first records.
                wrong = [f"{place} {what} at {offset}, not at {wanted[place]}" for place, offset in zip(places, found)
                         if offset != wanted[place] and not (topic == "compacted" and timestamp == EARLIEST)]
                assert not wrong, f"{len(wrong)} partitions: {wrong[:3]}"

    # Groups, transactions, producers

    def fill_more(self):
        server, simple = self.server, Consumer(client(self.server) | {"group.id": "simple"})
        commits = [TopicPartition(*place, self.next[place] - place[1] % 3, metadata=f"note {place[1]}")
                   for place in self.places("dropped", "kept")]
        simple.commit(offsets=commits, asynchronous=False)
        gone = Consumer(client(server) | {"group.id": "gone"})
        gone.commit(offsets=commits[:5], asynchronous=False)
        for consumer in (simple, gone):
            consumer.close()
        done(self.admin.delete_consumer_groups(["gone"]))
        for group, topic, protocol in (("classic", "tiered", "classic"), ("kip-848", "diskless", "consumer")):
            member = Member(server, group, topic, protocol)
            self.members.append(member)
            until(lambda: member.assigned() == self.partitions[topic], f"{group} to have its partitions", member.assigned)
            member.commit({place: self.next[place] // 2 for place in self.places(topic)})
        self.numbered = {topic: Numbered(server, topic, self.base_ms) for topic in NUMBERED}
        for topic, numbered in self.numbered.items():
            for _ in range(7):
                numbered.append()
            self.next[topic, 0] = numbered.end
        self.bank.fill()
        return f"{len(self.bank.outcomes)} transactions, {sum(len(of) for of in self.committed().values())} committed offsets"

    def committed(self):
        """group -> {place: (offset, metadata)}"""
        found = {}
        for group in ("simple", "classic", "kip-848", "paid", "gone"):
            future = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
            try:
                listed = future.result(GROUP_SECONDS).topic_partitions
            except TimeoutError:
                raise AssertionError(f"{group}: no answer about its offsets") from None
            found[group] = {(one.topic, one.partition): (one.offset, one.metadata) for one in listed if one.offset >= 0}
        return found

    def verify_groups(self):
        found = self.committed()
        for group, known in self.known_groups.items():
            wrong = [place for place in known | found[group] if known.get(place) != found[group].get(place)]
            assert not wrong, (f"{group}: {len(wrong)} of {len(known)} offsets differ, {wrong[0]} was {known.get(wrong[0])}, "
                               f"is {found[group].get(wrong[0])}")
        assert not found["gone"], "the offsets of a deleted group are there"
        return f"{sum(map(len, found.values()))} offsets"

    def verify_members(self):
        """Members that were there before the disk was lost commit again, whether they had to join anew or not."""
        for member in self.members:
            until(member.goes_on, f"{member.group} to commit", member.state)
            found = {place: offset for place, (offset, _) in self.committed()[member.group].items()}
            assert found == member.wanted, f"{member.group}: the server does not have what it has committed"
        for member in self.members:
            member.close()
        self.members.clear()

    def go_on_numbered(self):
        for numbered in self.numbered.values():
            numbered.repeat(self.server)
            numbered.append()
            self.next[numbered.topic, 0] = numbered.end
        ids = {numbered.producer for numbered in self.numbered.values()}
        new, _ = init_producer(self.server.bootstrap)
        assert new not in ids, f"the producer id {new} is handed out again"
        return f"producer {max(ids)}, and {new} is new"

    # The disk

    def settle(self):
        """Waits until the store has everything, and a snapshot was taken after that."""
        begin = time.monotonic()
        self.await_stored()
        keys = self.site.minio.s3.keys(BUCKET, "restore/logs/")
        return f"{len(keys)} objects, {sum(keys.values()) >> 20} MiB, after {time.monotonic() - begin:.1f} s"

    def await_snapshot(self):
        """The newest snapshot has what the server knew a moment ago: none may be older, unless nothing has changed."""
        time.sleep(SNAPSHOT_WAIT_SECONDS)
        assert self.metric("mainstem_metadata_snapshot_time_seconds") > 0, "no metadata snapshot was put"

    def await_stored(self):
        until(self.is_stored, "everything to be stored", lambda: self.waiting)
        self.await_snapshot()
        self.known, self.known_groups = self.metadata(), self.committed()

    def is_stored(self):
        self.waiting = f"{self.metric('mainstem_log_unstored_bytes'):.0f} bytes"
        if not self.waiting.startswith("0 "):
            return False
        for topic, partitions in [(topic, self.partitions[topic]) for topic in TOPICS] + [(topic, 50) for topic in INTERNAL]:
            if topic == "local":
                continue
            late = unstored(self.server.bootstrap, topic, partitions)
            if late:
                self.waiting = f"{topic}: {late[:5]}"
                return False
        return True

    def tool(self, server, *arguments):
        """Runs a command on the bucket. (exit code, what it printed, seconds)"""
        begin = time.monotonic()
        code, text = server.on_bucket(*arguments, seconds=TOOL_SECONDS)
        with open(self.site.directory / "tools.log", "a") as log:
            log.write(f"# {' '.join(map(str, arguments))}: {code}\n{text}\n")
        return code, text, time.monotonic() - begin

    def verify_bucket(self, allowed=" "):
        code, text, seconds = self.tool(self.server, "log", "verify")
        found = re.findall("^(?:note|warning|error): .*", text, re.MULTILINE)
        # Merging takes objects away, and leaves gaps in their numbers.
        found = [line for line in found if "no record needed" not in line and not line.startswith(allowed)]
        assert code == 0 and not found, f"exit code {code}, {len(found)} findings: {(found or [text])[0][:300]}"
        return text.strip().splitlines()[-1]

    def verify_end(self):
        self.server.stop()
        return self.verify_bucket()

    def open_and_lose(self):
        self.bank.open_expiring()
        self.lose()

    def lose(self):
        """Kills the server, and removes its data."""
        if self.server.process.poll() is None:
            self.server.kill()
        shutil.rmtree(self.server.directory / "data")
        # What is under way on the net belongs to the machine that is gone.
        self.site.proxy.clear()

    def lose_and_restore(self, named):
        self.lose()
        return self.restore_disk(named)

    def restore_disk(self, named):
        """Restores the disk on another machine. `named` checks the offsets that the command names, place by place."""
        self.life += 1
        self.server = self.machine()
        code, text, seconds = self.tool(self.server, "restore", "--data-dir", self.server.directory / "data")
        assert code in (0, 1), f"exit code {code}: {text[-600:]}"
        found = {}
        for topic, partition, first, last in NOT_STORED.findall(text):
            found.setdefault((topic, int(partition)), []).append((int(first), int(last or first) + 1))
        other = [line for line in text.splitlines() if re.match("error|warning|not restored", line)]
        assert not other, f"{len(other)} lines: {other[0][:400]}"
        named(found)
        assert code == bool(found), f"exit code {code}, and {len(found)} partitions are named"
        self.require_counts(text)
        lines = [line for line in text.splitlines() if " batches (" in line]
        return f"{seconds:.1f} s; {lines[0]}; {len(found)} partitions named"

    def require_counts(self, text):
        topics, partitions, users, acls, quotas, groups = map(int, COUNTS.search(text).groups())
        wanted = len(TOPICS) + len(INTERNAL), len(self.first) + 50 * len(INTERNAL)
        assert (topics, partitions) == wanted, f"{topics} topics, {partitions} partitions, should be {wanted}"
        known = sum(1 for committed in self.known_groups.values() if committed)
        counts = users, acls, quotas, groups
        assert counts == (2, 4, 1, known), f"{counts} users, ACLs, quotas and groups, should be {(2, 4, 1, known)}"

    def named_local(self, found):
        """All records of the ordinary topic, and nothing else. It goes on where it was."""
        wanted = {place: [(self.first[place], self.next[place])] for place in self.places("local")}
        require_same(found, wanted)
        for place in self.places("local"):
            self.first[place] = self.next[place]

    def start(self):
        begin = time.monotonic()
        self.server.__enter__()
        return f"{time.monotonic() - begin:.2f} s"

    # The second and the third disaster

    def leave_unstored(self):
        """What is stored stays in `next`; `unstored` has what only the disk and the snapshot know."""
        self.bank.open_decided()
        until(self.is_stored, "everything to be stored", lambda: self.waiting)
        self.server.stop()
        self.set(self.server, object_store_upload_interval_ms="600000", object_store_object_bytes=str(256 << 20))
        self.server.start()
        self.life += 1
        places = self.places("tiered", "local")[::3]
        sent, acked, failed = self.send(places, 4)
        assert sent == acked and not failed, f"not all records were acknowledged: {failed[:2]}"
        self.unstored = {place: [(self.next[place], sent[place])] for place in places}
        self.bank.end_late()
        self.await_snapshot()
        self.site.proxy.tell(mode="away")
        # Nobody knows of these: the store is away. Those of diskless topics are not acknowledged.
        before = dict(self.next)
        self.next |= sent
        self.send(places[::2], 2)
        _, acked, _ = self.send(self.places("diskless")[::3], 2, patience=1)
        assert all(acked[place] == before[place] for place in acked), "a diskless topic acknowledged what no store has"
        self.next = before
        self.drop_lives()
        return f"{sum(to - begin for ((begin, to),) in self.unstored.values())} records for the snapshot to name"

    def drop_lives(self):
        """Of what is beyond the ends nobody will hear again."""
        for place, lives in self.lives.items():
            self.lives[place] = [life for life in lives if life[0] < self.next[place]] or lives[:1]

    def named_unstored(self, found):
        """Exactly what the snapshot knew. What is said of internal topics does not matter here."""
        found = {place: ranges for place, ranges in found.items() if place[0] not in INTERNAL}
        wanted = dict(self.unstored)
        for place in self.places("local"):
            end = wanted.get(place, [(0, self.next[place])])[0][1]
            if end > self.first[place]:
                wanted[place] = [(self.first[place], end)]
            self.first[place] = self.next[place] = end
        require_same(found, wanted)

    def storm(self):
        """Records into partitions of all kinds, and transactions, while the store has faults; in the middle the end."""
        stop, rng = threading.Event(), random.Random(f"{self.seed} storm")
        self.life += 1
        topics = [topic for topic in PLAIN if topic not in ("compacted", "local")]
        places = [place for topic in topics for place in self.places(topic)[:STORM_PLACES]]
        self.site.proxy.tell(rates=WEATHER)
        teller = threading.Thread(target=self.bank.transfer_until, args=(stop,), daemon=True)
        teller.start()
        seconds = rng.uniform(*STORM_SECONDS)

        def destroy():
            self.server.kill()
            stop.set()

        end = threading.Timer(seconds, destroy)
        end.start()
        self.sent, self.acked, _ = self.send(places, STORM_RECORDS, stop=stop, parts=STORM_RECORDS // 20)
        assert stop.is_set(), "all was sent before the server was killed"
        end.join()
        teller.join(CLIENT_SECONDS)
        count = sum(self.acked[place] - self.next[place] for place in places)
        return f"killed after {seconds:.1f} s, {count} records and {len(self.bank.sudden)} transactions acknowledged"

    def named_sudden(self, found):
        """Ranges at the ends of what was sent."""
        for place, ranges in found.items():
            if place[0] in PLAIN and place[0] != "local":
                assert len(ranges) == 1 and ranges[0][1] <= self.sent.get(place, self.next[place]), f"{place}: {ranges}"
                assert place[0] == "tiered" or place[0] == "dropped", f"{place} is diskless, and {ranges} is not stored"
        for place in self.places("local"):
            self.first[place] = self.next[place]

    def verify_sudden(self):
        lost = 0
        for topic in ("tiered", "dropped", "diskless", "kept"):
            ends = offsets_of(self.server.bootstrap, topic, self.partitions[topic], offsets.LATEST)
            for place, end in zip(self.places(topic), ends):
                acked, sent = self.acked.get(place, self.next[place]), self.sent.get(place, self.next[place])
                assert end <= sent, f"{place} ends at {end}, and {sent} were sent"
                if TOPICS[topic].settings.get("diskless.enable"):
                    assert end >= acked, f"{place} ends at {end}, and {acked} were acknowledged"
                else:
                    lost += max(0, acked - end)
                self.next[place] = end
        self.drop_lives()
        self.bank.take_ends()
        return f"{self.verify_records()}; {lost} of tiered topics were not stored yet"

    def require_no_bug(self):
        for server in self.disks:
            server.require_no_bug("a read failed")


class Bank:
    """Transactions in two topics: what each of their offsets has, and how its transaction ended."""

    def __init__(self, cluster):
        self.cluster = cluster
        # place -> {offset: (number, transaction)}
        self.entries = collections.defaultdict(dict)
        # The transaction of each record, by its number.
        self.names, self.number = {}, 0
        self.outcomes, self.producers, self.payer, self.sudden = {}, {}, None, []
        # Places whose offsets nobody knows, since the server was killed before it could say.
        self.unsure = set()

    def forget(self):
        self.producers.clear()

    def producer(self, name, seconds=600):
        producer = Producer(client(self.cluster.server) | {
            "transactional.id": name, "transaction.timeout.ms": seconds * 1000, "linger.ms": 0, "batch.num.messages": 2,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
        }, logger=SILENT)
        producer.init_transactions(CLIENT_SECONDS)
        return producer

    def begin(self, producer, name, partition, topics=BANKS, stop=None):
        """A transaction with records in one partition of each topic, all of them acknowledged."""
        producer.begin_transaction()
        self.outcomes[name] = "open"
        failed = []

        def delivered(number, error, message):
            if error is not None:
                failed.append(str(error))
            else:
                self.entries[message.topic(), message.partition()][message.offset()] = (number, name)

        for _ in range(TRANSACTION_RECORDS):
            for topic in topics:
                key, value, headers, timestamp = self.cluster.record(("bank", partition), self.number, 1)
                told = functools.partial(delivered, self.number)
                self.names[self.number] = name
                producer.produce(topic, value, key, partition, told, timestamp=timestamp, headers=headers or [])
                self.number += 1
        deadline = time.monotonic() + CLIENT_SECONDS
        while producer.flush(0.1) and time.monotonic() < deadline:
            if stop is not None and stop.is_set():
                raise Stopped
        assert not failed, f"{name}: {failed[:2]}"

    def record(self, place, offset):
        number, _ = self.entries[place].get(offset, (None, None))
        return None if number is None else self.cluster.record(("bank", place[1]), number, 1)

    def between(self, place, begin, end):
        return sorted(offset for offset in self.entries[place] if begin <= offset < end)

    def pay(self, producer, offset, partition):
        """The transaction commits an offset of a group, too."""
        if self.payer is None:
            self.payer = Consumer(client(self.cluster.server) | {"group.id": "paid"})
        whose = self.payer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition("tiered", partition, offset)], whose, CLIENT_SECONDS)

    def fill(self):
        for partition in range(9):
            self.end_some(partition, "before")
        for partition, name in ((ABANDONED, "abandoned"), (GOES_ON, "goes-on")):
            self.producers[name] = self.producer(name)
            self.begin(self.producers[name], name, partition)
            self.pay(self.producers[name], 4, partition)
            self.end_some(partition, "behind")
        self.take_ends()

    def open_expiring(self):
        """Late, so that it is open when the disk is destroyed."""
        self.producers["expires"] = self.producer("expires", self.cluster.size.expires_seconds)
        self.begin(self.producers["expires"], "expires", EXPIRES)
        self.end_some(EXPIRES, "behind")
        self.take_ends()
        self.cluster.await_stored()

    def end_some(self, partition, when):
        producer = self.producer(f"ends-{partition}")
        for at in range(ENDED_TRANSACTIONS):
            name = f"{when} {partition} {at}"
            self.begin(producer, name, partition)
            if at % 3 == 1:
                self.pay(producer, 99, partition)
                producer.abort_transaction(CLIENT_SECONDS)
                self.outcomes[name] = "aborted"
            else:
                self.pay(producer, 2, partition)
                producer.commit_transaction(CLIENT_SECONDS)
                self.outcomes[name] = "committed"

    def take_ends(self):
        cluster = self.cluster
        for topic in BANKS:
            ends = offsets_of(cluster.server.bootstrap, topic, cluster.partitions[topic], offsets.LATEST)
            cluster.next |= dict(zip(cluster.places(topic), ends))

    def stable(self):
        """The last stable offset of each partition."""
        cluster, found = self.cluster, {}
        for topic in BANKS:
            bounds = offsets_of(cluster.server.bootstrap, topic, cluster.partitions[topic], offsets.LATEST, committed=True)
            found |= dict(zip(cluster.places(topic), bounds))
        return found

    def notice_expiry(self):
        """On a slow machine a transaction may expire before it is looked at. A marker is behind its records then."""
        if self.outcomes.get("expires") == "open" and self.stable()[BANKS[0], EXPIRES] > self.cluster.next[BANKS[0], EXPIRES]:
            self.await_expiry()

    def verify_committed(self):
        """What a reader of committed records sees: those below the first open transaction, if any."""
        self.notice_expiry()
        cluster, seen, stable = self.cluster, collections.defaultdict(list), self.stable()
        places = cluster.places(*BANKS)

        def take(place, message):
            cluster.compare(place, message)
            seen[place].append(message.offset())

        cluster.read(places, take, "read_committed")
        count = 0
        for place in places:
            entries = sorted(self.entries[place].items())
            open_from = [offset for offset, (_, name) in entries if self.outcomes[name] == "open"]
            end = min(open_from, default=cluster.next[place])
            assert stable[place] == end, f"{place}: the last stable offset is {stable[place]}, not {end}"
            wanted = [offset for offset, (_, name) in entries if self.outcomes[name] == "committed" and offset < end]
            self.require_seen(place, seen[place], wanted)
            count += len(wanted)
        return f"{count} records"

    def commit_open(self):
        """The producer is the one from before the disk was lost."""
        self.producers.pop("goes-on").commit_transaction(CLIENT_SECONDS)
        self.outcomes["goes-on"] = "committed"
        self.await_ended(GOES_ON)
        found = self.cluster.committed()["paid"]["tiered", GOES_ON][0]
        assert found == 2, f"the offset of the group is {found}: transactions that began later committed 2"

    def fence_open(self):
        new = self.producer("abandoned")
        self.outcomes["abandoned"] = "aborted"
        self.await_ended(ABANDONED)
        try:
            self.producers.pop("abandoned").commit_transaction(CLIENT_SECONDS)
        except KafkaException as error:
            assert error.args[0].fatal(), f"the old producer got {error}, which is not fatal"
        else:
            raise AssertionError("the old producer committed")
        self.begin(new, "after abandoned", ABANDONED)
        new.commit_transaction(CLIENT_SECONDS)
        self.outcomes["after abandoned"] = "committed"
        self.take_ends()

    def await_expiry(self):
        self.producers.pop("expires", None)
        self.outcomes["expires"] = "aborted"
        self.await_ended(EXPIRES)
        self.take_ends()

    def has_ended(self, partition):
        self.take_ends()
        stable = self.stable()
        return all(stable[topic, partition] == self.cluster.next[topic, partition] for topic in BANKS)

    def await_ended(self, partition):
        """Waits until no transaction is open there. Markers are written after the answer to whoever asks for the end."""
        def bounds():
            stable = self.stable()
            ends = self.cluster.next
            return ", ".join(f"{topic}-{partition}: last stable offset {stable[topic, partition]}, end {ends[topic, partition]}"
                             for topic in BANKS)

        until(lambda: self.has_ended(partition), "transactions to end", bounds)

    def open_decided(self):
        self.producers["decided"] = self.producer("decided", self.cluster.size.expires_seconds)
        self.begin(self.producers["decided"], "decided", DECIDED, BANKS[1:])

    def end_late(self):
        """Transactions in the diskless topic, whose records are stored. What the server notes elsewhere about them is not."""
        for name, partition in (("late open", OPENED), ("late aborted", ABORTED), ("late committed", COMMITTED)):
            self.producers[name] = self.producer(name, self.cluster.size.expires_seconds)
            self.begin(self.producers[name], name, partition, BANKS[1:])
        self.producers["late aborted"].abort_transaction(CLIENT_SECONDS)
        self.outcomes["late aborted"] = "aborted"
        for name in ("late committed", "decided"):
            self.producers[name].commit_transaction(CLIENT_SECONDS)
            self.outcomes[name] = "committed"
        self.require_stored()
        self.take_ends()

    def require_stored(self):
        """Of the diskless topic, the markers, too."""
        until(lambda: not unstored(self.cluster.server.bootstrap, BANKS[1], 9), "the markers to be stored")

    def verify_late(self, partition):
        """Whatever is open ends by itself, and a reader sees what was committed. Nobody has to know the transactional id."""
        self.producers.clear()
        self.outcomes["late open"] = "aborted"
        return self.require_visible(partition)

    def require_visible(self, partition):
        place = BANKS[1], partition
        seen, stable = [], self.stable()[place]
        before = {self.outcomes[self.entries[place][offset][1]] for offset in self.between(place, stable, 1 << 60)}
        self.await_ended(partition)
        self.take_ends()
        self.cluster.read([place], lambda _, message: seen.append(message.offset()), "read_committed")
        wanted = [offset for offset, (_, name) in sorted(self.entries[place].items()) if self.outcomes[name] == "committed"]
        self.require_seen(place, seen, wanted)
        return f"{len(seen)} records, behind the last stable offset at the start: {', '.join(before) or 'none'}"

    def require_seen(self, place, found, wanted):
        """These offsets; otherwise it says which transactions make the difference."""
        names = {what: sorted({self.entries[place][offset][1] for offset in some})
                 for what, some in (("too many", set(found) - set(wanted)), ("missing", set(wanted) - set(found)))}
        difference = ", ".join(f"{what}: {of[:4]}" for what, of in names.items() if of)
        assert found == wanted, f"{place}: a reader sees {len(found)} records, not {len(wanted)}: {difference}"

    def transfer_until(self, stop):
        """Transactions in both topics, one after another, until the server is gone. `sudden` has the answered ones. """
        self.unsure = {(topic, SUDDEN) for topic in BANKS}
        try:
            producer = self.producer("sudden", self.cluster.size.expires_seconds)
            for at in range(1_000_000):
                name = f"sudden {at}"
                self.begin(producer, name, SUDDEN, stop=stop)
                # Whether the server gets to it or not.
                outcome = "aborted" if at % 3 == 1 else "committed"
                self.outcomes[name] = f"perhaps {outcome}"
                self.patiently(producer.abort_transaction if at % 3 == 1 else producer.commit_transaction, stop)
                self.outcomes[name] = outcome
                self.sudden.append(name)
        except (KafkaException, Stopped):
            producer.purge()

    def patiently(self, ask, stop):
        """Asks until there is an answer, or nobody who could give one."""
        while not stop.is_set():
            try:
                return ask(0.2)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        raise Stopped

    def verify_sudden(self):
        """The next producer of the id ends what is open. Then readers see whole transactions: those of the diskless topic that
        were committed, and none that was not."""
        self.producer("sudden")
        self.await_ended(SUDDEN)
        seen = {topic: collections.defaultdict(set) for topic in BANKS}
        places = [(topic, SUDDEN) for topic in BANKS]

        def take(place, message):
            number = int(message.key().split()[-1])
            wanted = self.cluster.record(("bank", SUDDEN), number, 1)
            assert (message.key(), message.value()) == wanted[:2], f"{place} offset {message.offset()}: another record"
            seen[place[0]][self.names[number]].add(number)

        self.cluster.read(places, take, "read_committed")
        for topic, names in seen.items():
            wrong = [name for name in names if self.outcomes[name] not in ("committed", "perhaps committed")]
            assert not wrong, (f"{topic}: readers see {len(wrong)} transactions of {len(names)} that were not committed: "
                               f"{wrong[:4]}, {self.outcomes[wrong[0]]}")
            torn = [name for name, numbers in names.items() if topic == BANKS[1] and len(numbers) != TRANSACTION_RECORDS]
            assert not torn, f"{topic}: readers see a part of {torn[:4]}"
        lost = [name for name in self.sudden if self.outcomes[name] == "committed" and name not in seen[BANKS[1]]]
        assert not lost, (f"readers do not see {len(lost)} of {len(self.sudden)} transactions whose end was answered, "
                          f"and which were committed: {lost[:4]}")
        return f"{len(seen[BANKS[1]])} transactions"


class Stopped(Exception):
    """The server is gone."""


class Member:
    """A member of a group, from before the disk is lost until after it."""

    def __init__(self, server, group, topic, protocol):
        self.group, self.wanted, self.problem = group, {}, None
        self.consumer = Consumer(client(server) | {
            "group.id": group, "group.protocol": protocol, "enable.auto.commit": False, "auto.offset.reset": "latest",
            "max.poll.interval.ms": 3_600_000, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
            # It is not here to read.
            "queued.max.messages.kbytes": 1024, "queued.min.messages": 1,
        })
        self.consumer.subscribe([topic])

    def assigned(self):
        self.consumer.poll(0.05)
        return len(self.consumer.assignment())

    def commit(self, places):
        self.wanted = places
        commits = [TopicPartition(*place, offset, metadata=self.group) for place, offset in places.items()]
        for one in self.consumer.commit(offsets=commits, asynchronous=False):
            if one.error is not None:
                raise KafkaException(one.error)

    def goes_on(self):
        """It has all its partitions, and the server takes its commits."""
        try:
            if self.assigned() != len(self.wanted):
                return False
            self.commit({place: offset + 1 for place, offset in self.wanted.items()})
            return True
        except KafkaException as error:
            self.problem = str(error)
            return False

    def state(self):
        return f"{len(self.wanted)} offsets, {self.problem}"

    def close(self):
        self.consumer.close()


class Numbered:
    """An idempotent producer that says itself what it repeats."""

    def __init__(self, server, topic, timestamp):
        self.server, self.topic, self.timestamp = server, topic, timestamp
        self.producer, self.epoch = init_producer(server.bootstrap)
        self.end, self.batches = 0, []

    def produce(self, base, count, sequence):
        values = [f"{(self.topic, 0)} {base + at}".encode() for at in range(count)]
        data = wire.batch(values, producer=self.producer, epoch=self.epoch, sequence=sequence, timestamp=self.timestamp)
        answer = offsets.ask(self.server.bootstrap, wire.produce(self.topic, {0: data}), CLIENT_SECONDS)
        return wire.produced(answer)[0]

    def append(self, count=5):
        found = self.produce(self.end, count, self.end)
        assert found == (0, self.end), f"{self.topic}: error and offset {found} for the batch at {self.end}"
        self.batches.append((self.end, count))
        self.end += count

    def repeat(self, server):
        """On another server: the last batches are known, and a gap is refused."""
        self.server = server
        for base, count in self.batches[-5:]:
            found = self.produce(base, count, base)
            assert found == (0, base), f"{self.topic}: error and offset {found} for the batch at {base}, sent again"
        end = offsets.offset_of(server.bootstrap, self.topic, 0, offsets.LATEST)
        assert end == self.end, f"{self.topic}: ends at {end}, not at {self.end}: a batch is there twice"
        error, _ = self.produce(self.end + 1, 1, self.end + 1)
        assert error == OUT_OF_ORDER, f"{self.topic}: error {error} for a batch behind a gap"


# Clients and requests


def client(server):
    return {"bootstrap.servers": server.bootstrap, "enable.metrics.push": False, "log_level": 0}


def sender(server, size, codec, patience):
    return Producer(client(server) | {
        "enable.idempotence": True, "linger.ms": 20, "compression.type": codec, "batch.size": 900_000,
        "queue.buffering.max.kbytes": 64 << 10, "queue.buffering.max.messages": 100_000,
        "message.timeout.ms": int(patience * 1000), "reconnect.backoff.max.ms": 200,
    })


def done(futures):
    for future in futures.values() if isinstance(futures, dict) else [futures]:
        future.result(CLIENT_SECONDS)


def acl_filter():
    return AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
                            AclPermissionType.ANY)


def require_same(found, wanted):
    wrong = [place for place in wanted | found if wanted.get(place) != found.get(place)]
    assert not wrong, (f"{len(wrong)} of {len(wanted)} partitions differ: of {wrong[0]} restore names {found.get(wrong[0])}, "
                       f"should be {wanted.get(wrong[0])}")


def offsets_of(bootstrap, topic, partitions, timestamp, committed=False):
    """Of all partitions of a topic, in order."""
    request = wire.Request(2, offsets.LIST_OFFSETS_VERSION, True).add("ib", -1, int(committed)).array(1).text(topic)
    request.array(partitions)
    for partition in range(partitions):
        request.add("iiq", partition, -1, timestamp).tags()
    body = offsets.ask(bootstrap, request.tags().add("i", CLIENT_SECONDS * 1000).tags(), CLIENT_SECONDS)
    # Each with its tags; behind them the tags of the topic and of the answer.
    found = sorted(struct.iter_unpack(">ihqqib", body[-2 - 27 * partitions:-2]))
    assert [row[0] for row in found] == list(range(partitions)), f"ListOffsets of {topic}: not its partitions"
    errors = [row[:2] for row in found if row[1]]
    assert not errors, f"ListOffsets of {topic} at {timestamp}: errors {errors[:3]}"
    return [row[3] for row in found]


def unstored(bootstrap, topic, partitions):
    """The partitions with records that the store does not have."""
    starts, stored, ends = (offsets_of(bootstrap, topic, partitions, timestamp)
                            for timestamp in (EARLIEST, offsets.LATEST_STORED, offsets.LATEST))
    return [at for at, (start, last, end) in enumerate(zip(starts, stored, ends)) if start < end != last + 1]


def init_producer(bootstrap):
    """(producer id, epoch)"""
    request = wire.Request(INIT_PRODUCER_ID, 4, True).text(None).add("iqh", 1000, -1, -1).tags()
    _, error, producer, epoch = struct.unpack_from(">ihqh", offsets.ask(bootstrap, request, CLIENT_SECONDS), 1)
    assert error == 0, f"InitProducerId: error {error}"
    return producer, epoch


def alter_quotas(bootstrap, user, value):
    request = wire.Request(ALTER_QUOTAS, 0, False).array(1).array(1).text("user").text(user)
    request.array(1).text(QUOTA_KEY).add("d??", value, False, False)
    _, entries, error = struct.unpack_from(">iih", offsets.ask(bootstrap, request, CLIENT_SECONDS))
    assert (entries, error) == (1, 0), f"AlterClientQuotas: error {error}"


def describe_quotas(bootstrap):
    """(user, key) -> value"""
    request = wire.Request(DESCRIBE_QUOTAS, 0, False).array(0).add("?", False)
    answer = wire.Answer(offsets.ask(bootstrap, request, CLIENT_SECONDS))
    _, error = answer.take("ih")
    assert error == 0, f"DescribeClientQuotas: error {error} {answer.text()}"
    answer.text()
    found = {}
    for _ in answer.each():
        entity = tuple((answer.text(), answer.text()) for _ in answer.each())
        for _ in answer.each():
            key = answer.text()
            found[entity, key] = answer.take("d")
    answer.end()
    return found
