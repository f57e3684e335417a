"""What a cluster needs, by formulas: keys and bytes in etcd, requests to the object store and their price, the time of a failover.

The constants were measured, or are the defaults of settings. Prices are those of Amazon S3 Standard in us-east-1, as in
`mainstem storage status`. Sizes and rates are of compressed records.
"""

from dataclasses import dataclass

MB, GB, TB, PB = 1e6, 1e9, 1e12, 1e15
# Settings: logs of a broker, object.store.diskless.object.bytes and .interval.ms, object.store.merged.object.bytes, the session.
LOGS, OBJECT_BYTES, INTERVAL, MERGED_BYTES, SESSION = 2, 8 << 20, 0.25, 64 << 20, 3.0
# Assumed: partitions of a topic, and producers with idempotence that begin each second at a broker.
OF_A_TOPIC, NEW_PRODUCERS = 100, 1
# Topics of groups and of transactions, and their partitions.
INTERNAL_TOPICS, INTERNAL_PARTITIONS = 2, 100
# Bytes of keys and values in etcd: of a topic, each of its partitions (an id of 36 characters and a number, in JSON), a broker, the owner of a
# log, a lane for commits, and the ids and counters, of which there are four (crates/broker/src/image/records.rs, crates/etcd/src/lanes.rs).
TOPIC_BYTES, PARTITION_BYTES, BROKER_BYTES, OWNER_BYTES, LANE_BYTES, IDS, IDS_BYTES = 140, 46, 200, 180, 56, 4, 220
# Lanes of a broker; signs of life in a session; producer ids that a broker takes at once.
LANES, SIGNS, PRODUCER_IDS = 4, 3, 1000
# Revisions of etcd: a broker's lease ends, there is a new controller, and new owners; it joins, and its logs shall move; for each log, the
# broker is ready and is the owner.
TO_FAIL_OVER, TO_RETURN, TO_RETURN_A_LOG = 3, 2, 2
# Measured by tests/cluster/scale: bytes of memory of a partition in its broker.
MEMORY_BYTES = 14_000
# Requests of a takeover that come one after the other, those for each object, those that are made at once, objects that one LIST names, and
# the time of a request. Seconds until clients know the new leader, and their first records are stored.
STEPS, OF_AN_OBJECT, AT_ONCE, LISTED, LATENCY, CLIENTS = 10, 2, 32, 1000, 0.02, 1.0
# Seconds between two looks of the broker that stands by, and between two at all objects.
STAND_BY, STAND_BY_ALL = 10, 600
# Numbers of a manifest of each level, bytes of a part, and parts that are read at once; the newest objects are in none.
SHORT, LONG, PART_BYTES, PARTS_AT_ONCE = 64, 4096, 2 << 20, 8
# About: bytes of an object's local file, without streams and for each; bytes a second that a store gives to 32 requests, and that the disk of a
# broker gives (assumed); seconds to write one such file and sync it.
LOCAL_BYTES, LOCAL_STREAM_BYTES, STORE_RATE, DISK_RATE, LOCAL_SECONDS = 12_288, 150, 200 * MB, 1 * GB, 0.0004
WRITE_PRICE, READ_PRICE, STORAGE_PRICE = 0.005 / 1000, 0.0004 / 1000, 0.023 / GB
MONTH = 30 * 86400


@dataclass
class Cluster:
    brokers: int
    partitions: int
    bytes_per_second: float
    days: float

    @property
    def logs(self):
        return self.brokers * LOGS

    @property
    def memory(self):
        return self.partitions / self.brokers * MEMORY_BYTES

    @property
    def topics(self):
        return self.partitions / OF_A_TOPIC + INTERNAL_TOPICS

    @property
    def etcd_keys(self):
        return self.topics + self.brokers * (1 + LANES) + self.logs + IDS

    @property
    def etcd_bytes(self):
        of_topics = self.topics * TOPIC_BYTES + (self.partitions + INTERNAL_PARTITIONS) * PARTITION_BYTES
        return of_topics + self.brokers * (BROKER_BYTES + LANES * LANE_BYTES) + self.logs * OWNER_BYTES + IDS_BYTES

    @property
    def signs_of_life(self):
        return self.brokers * SIGNS / SESSION

    @property
    def etcd_writes(self):
        return self.brokers * NEW_PRODUCERS / PRODUCER_IDS

    @property
    def etcd_writes_of_a_death(self):
        return TO_FAIL_OVER + TO_RETURN + LOGS * TO_RETURN_A_LOG

    @property
    def puts(self):
        """Objects a second of all logs: each when it is full, or after the interval."""
        seconds = min(INTERVAL, OBJECT_BYTES / (self.bytes_per_second / self.logs))
        return self.logs / seconds

    @property
    def merges(self):
        return self.bytes_per_second / MERGED_BYTES

    @property
    def stored(self):
        return self.bytes_per_second * self.days * 86400

    @property
    def objects(self):
        """Objects of one log at rest."""
        return self.stored / MERGED_BYTES / self.logs

    @property
    def local_bytes(self):
        """Bytes of the local file of a merged object, which has all streams of its log."""
        return LOCAL_BYTES + LOCAL_STREAM_BYTES * self.partitions / self.logs

    @property
    def manifests(self):
        """Parts of manifests of a log: each stretch has one at least, and the newest stretches are short."""
        numbers = (self.puts + self.merges) / self.logs * self.days * 86400
        return max(numbers / LONG, self.objects * self.local_bytes / PART_BYTES) + LONG / SHORT

    @property
    def manifest_bytes(self):
        """Of all logs."""
        return self.logs * self.objects * self.local_bytes

    @property
    def manifest_puts(self):
        """A second: a short stretch when it is full, and the parts of the long ones."""
        numbers = self.puts + self.merges
        return numbers / SHORT + max(numbers / LONG, self.merges * self.local_bytes / PART_BYTES)

    @property
    def gets(self):
        """A second. A merge reads each small object once, and the broker that stands by reads of each object what a takeover reads."""
        return self.puts + OF_AN_OBJECT * (self.puts + self.merges)

    @property
    def lists(self):
        """A second, of the brokers that stand by: what is new, and from time to time all objects."""
        return self.logs * (1 / STAND_BY + self.objects / LISTED / STAND_BY_ALL)

    @property
    def requests_price(self):
        """Dollars a month. A store takes as much for a LIST as for a PUT."""
        return MONTH * ((self.puts + self.merges + self.manifest_puts + self.lists) * WRITE_PRICE + self.gets * READ_PRICE)

    @property
    def storage_price(self):
        return (self.stored + self.manifest_bytes) * STORAGE_PRICE

    @property
    def failover_stood_by(self):
        """Seconds until a log of a broker that was killed answers again: its session, the steps, the lists, the objects since the last look,
        and the local files, which are there."""
        new = (self.puts + self.merges) / self.logs * STAND_BY
        requests = STEPS + (self.objects + self.manifests) / LISTED + OF_AN_OBJECT * new / AT_ONCE
        return SESSION + LATENCY * requests + self.objects * self.local_bytes / DISK_RATE + CLIENTS

    @property
    def failover(self):
        """The same where nobody stood by: the lists, the manifests, the objects that are in none, and the local file of each object."""
        manifests = self.manifests
        requests = STEPS + (self.objects + manifests) / LISTED + manifests / PARTS_AT_ONCE + OF_AN_OBJECT * 2 * SHORT / AT_ONCE
        return SESSION + LATENCY * requests + self.objects * (self.local_bytes / STORE_RATE + LOCAL_SECONDS) + CLIENTS


def count(number):
    return f"{number:,.0f}"


def megabytes(number):
    return f"{number / MB:.1f} MB"


def size(number):
    for unit, name, digits in ((PB, "PB", 2), (TB, "TB", 1), (GB, "GB", 1)):
        if number >= unit:
            return f"{number / unit:.{digits}f} {name}"
    return megabytes(number)


def seconds(time):
    return f"{time:.1f} s" if time < 120 else f"{time / 60:.0f} min"


# What is computed, how it is shown, and its formula.
ROWS = {
    "partitions": (lambda of: of.partitions, count, "given, as are brokers, bytes a second and days"),
    "partitions that a broker leads": (lambda of: of.partitions // of.brokers, count, "partitions / brokers"),
    "memory of a broker for them": (lambda of: of.memory, megabytes, f"{MEMORY_BYTES:,} bytes a partition"),
    "etcd: keys": (
        lambda of: of.etcd_keys, count,
        f"topics + {1 + LANES} × brokers + logs + {IDS}; topics = partitions / {OF_A_TOPIC} + {INTERNAL_TOPICS}; logs = {LOGS} × brokers"),
    "etcd: bytes": (
        lambda of: of.etcd_bytes, megabytes,
        f"{TOPIC_BYTES} × topics + {PARTITION_BYTES} × (partitions + {INTERNAL_PARTITIONS}) + {BROKER_BYTES + LANES * LANE_BYTES} × brokers"
        f" + {OWNER_BYTES} × logs + {IDS_BYTES}"),
    "etcd: signs of life a second, which write nothing": (
        lambda of: of.signs_of_life, count, f"{SIGNS} × brokers / session; the session is {SESSION:.0f} s"),
    "etcd: writes a second at rest": (
        lambda of: of.etcd_writes, lambda number: f"{number:.3f}",
        f"new producers a second / {PRODUCER_IDS:,}; with {NEW_PRODUCERS} a second at each broker"),
    "etcd: writes for a broker that dies and comes back": (
        lambda of: of.etcd_writes_of_a_death, count, f"{TO_FAIL_OVER + TO_RETURN} + {TO_RETURN_A_LOG} × logs of the broker"),
    "objects put a second": (
        lambda of: of.puts + of.merges, count,
        f"logs / min({INTERVAL} s, {OBJECT_BYTES >> 20} MiB / rate of a log) + rate / {MERGED_BYTES >> 20} MiB: small objects and merged ones"),
    "stored": (lambda of: of.stored, size, "rate × days"),
    "objects of a log": (lambda of: of.objects, count, f"stored / {MERGED_BYTES >> 20} MiB / logs"),
    "manifests of all logs": (
        lambda of: of.logs * of.manifests, count,
        f"logs × (max(numbers of a log / {LONG:,}, objects of a log × local bytes / {PART_BYTES >> 20} MiB) + {LONG // SHORT});"
        " a number is used for each object that is put"),
    "manifests, bytes": (
        lambda of: of.manifest_bytes, size,
        f"logs × objects of a log × local bytes; local bytes = {LOCAL_BYTES:,} + {LOCAL_STREAM_BYTES} × partitions / logs"),
    "manifests put a second": (
        lambda of: of.manifest_puts, lambda number: f"{number:.1f}",
        f"objects put / {SHORT} + max(objects put / {LONG:,}, merged objects × local bytes / {PART_BYTES >> 20} MiB)"),
    "GET requests a second, without those of consumers": (
        lambda of: of.gets, count, f"small objects, for merges, + {OF_AN_OBJECT} × objects put, for brokers that stand by"),
    "LIST requests a second": (
        lambda of: of.lists, lambda number: f"{number:.1f}",
        f"logs × (1 / {STAND_BY} s + objects of a log / {LISTED:,} / {STAND_BY_ALL} s), of brokers that stand by"),
    "requests, dollars a month": (
        lambda of: of.requests_price, count,
        f"(objects and manifests put + LISTs) × {WRITE_PRICE * 1000:g} / 1,000 + GETs × {READ_PRICE * 1000:g} / 1,000"),
    "storage, dollars a month": (lambda of: of.storage_price, count, f"(stored + manifests) × {STORAGE_PRICE * GB:g} a GB"),
    "a killed broker, for whose logs others stood by: its partitions answer after": (
        lambda of: of.failover_stood_by, seconds,
        f"session + {LATENCY} s × ({STEPS} + (objects + manifests) / {LISTED:,} + {OF_AN_OBJECT} × objects put in {STAND_BY} s / {AT_ONCE})"
        f" + objects × local bytes / {DISK_RATE / GB:.0f} GB/s + {CLIENTS:.0f} s for clients; all of one log"),
    "the same, and nobody stood by": (
        lambda of: of.failover, seconds,
        f"session + {LATENCY} s × ({STEPS} + (objects + manifests) / {LISTED:,} + manifests / {PARTS_AT_ONCE} + {OF_AN_OBJECT * 2 * SHORT // AT_ONCE})"
        f" + objects × (local bytes / {STORE_RATE / MB:.0f} MB/s + {LOCAL_SECONDS * 1000:g} ms) + {CLIENTS:.0f} s"),
}
CLUSTERS = [Cluster(3, 1000, 10 * MB, 7), Cluster(3, 10_000, 300 * MB, 1), Cluster(12, 50_000, 1 * GB, 7), Cluster(100, 200_000, 10 * GB, 30)]


def markdown(heads, rows):
    first, *rest = ["| " + " | ".join(cells) + " |" for cells in (heads, *rows)]
    return "\n".join([first, "|---" * len(heads) + "|", *rest])


def tables():
    """The clusters, and the formulas, each as a Markdown table."""
    def rate(of):
        return f"{of / GB:.0f} GB/s" if of >= GB else f"{of / MB:.0f} MB/s"
    heads = [f"{of.brokers} brokers, {rate(of.bytes_per_second)}, {of.days} d" for of in CLUSTERS]
    clusters = [[name, *(show(compute(of)) for of in CLUSTERS)] for name, (compute, show, _) in ROWS.items()]
    formulas = [[name, formula] for name, (_, _, formula) in ROWS.items()]
    return markdown(["what", *heads], clusters), markdown(["what", "formula"], formulas)


if __name__ == "__main__":
    print("\n\n".join(tables()))
