"""What a cluster needs, by formulas: keys and bytes in etcd, requests to the object store and their price, the time of a failover.

The constants were measured, or are the defaults of settings. Prices are those of Amazon S3 Standard in us-east-1, as in
`mainstem storage status`. Sizes and rates are of compressed records.
"""

from dataclasses import dataclass

MB, GB, TB, PB = 1e6, 1e9, 1e12, 1e15
# Settings: logs of a broker, object.store.diskless.object.bytes and .interval.ms, object.store.merged.object.bytes, the session.
LOGS, OBJECT_BYTES, INTERVAL, MERGED_BYTES, SESSION = 2, 8 << 20, 0.25, 64 << 20, 3.0
# Measured by tests/cluster/scale: bytes of a partition in etcd, where 100 of them are one topic, and of memory in its broker.
ETCD_BYTES, MEMORY_BYTES = 50, 14_000
# Requests of a takeover that come one after the other, those for each object, those that are made at once, objects that one LIST names, and
# the time of a request.
STEPS, OF_AN_OBJECT, AT_ONCE, LISTED, LATENCY = 10, 2, 32, 1000, 0.02
# Numbers of a manifest of each level, bytes of a part, and parts that are read at once; the newest objects are in none.
SHORT, LONG, PART_BYTES, PARTS_AT_ONCE = 64, 4096, 2 << 20, 8
# About: bytes of an object's local file, without streams and for each; bytes a second that a store gives to 32 requests (assumed); seconds to
# write one such file and sync it.
LOCAL_BYTES, LOCAL_STREAM_BYTES, STORE_RATE, LOCAL_SECONDS = 12_288, 150, 200 * MB, 0.0004
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
    def puts(self):
        """Objects a second of all logs: each when it is full, or after the interval."""
        seconds = min(INTERVAL, OBJECT_BYTES / (self.bytes_per_second / self.logs))
        return self.logs / seconds

    @property
    def merges(self):
        """Merged objects a second."""
        return self.bytes_per_second / MERGED_BYTES

    @property
    def stored(self):
        return self.bytes_per_second * self.days * 86400

    @property
    def objects(self):
        """Objects of one log at rest."""
        return self.stored / MERGED_BYTES / self.logs

    @property
    def failover(self):
        """Seconds until a log of a broker that was killed answers again: its session, the steps, the lists, the manifests, the objects that are
        in none, and the local file of each object."""
        manifests = self.manifests
        requests = STEPS + (self.objects + manifests) / LISTED + manifests / PARTS_AT_ONCE + OF_AN_OBJECT * 2 * SHORT / AT_ONCE
        return SESSION + LATENCY * requests + self.objects * (self.local_bytes / STORE_RATE + LOCAL_SECONDS)

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
    def requests_price(self):
        # A merge reads each small object once.
        return MONTH * ((self.puts + self.merges) * WRITE_PRICE + self.puts * READ_PRICE)

    def rows(self):
        return {
            "partitions, of which a broker leads": f"{self.partitions:,}, {self.partitions // self.brokers:,}",
            "memory of a broker for them": f"{self.partitions / self.brokers * MEMORY_BYTES / MB:.0f} MB",
            "etcd: bytes": f"{self.partitions * ETCD_BYTES / MB:.1f} MB",
            "etcd: signs of life a second": f"{self.brokers * 3 / SESSION:.0f}",
            "etcd: other writes a second, without administration and failures": "0",
            "objects put a second": f"{self.puts + self.merges:,.0f}",
            "stored": f"{self.stored / PB:.2f} PB" if self.stored >= PB else f"{self.stored / TB:.1f} TB",
            "objects of a log": f"{self.objects:,.0f}",
            "requests, dollars a month": f"{self.requests_price:,.0f}",
            "storage, dollars a month": f"{self.stored * STORAGE_PRICE:,.0f}",
            "a killed broker, and nobody stood by: its partitions answer after": seconds(self.failover),
        }


def seconds(time):
    return f"{time:.1f} s" if time < 120 else f"{time / 60:.0f} min"


CLUSTERS = [Cluster(3, 1000, 10 * MB, 7), Cluster(3, 10_000, 300 * MB, 1), Cluster(12, 50_000, 1 * GB, 7), Cluster(100, 200_000, 10 * GB, 30)]


def table():
    """The clusters as a Markdown table."""
    def rate(of):
        return f"{of / GB:.0f} GB/s" if of >= GB else f"{of / MB:.0f} MB/s"
    heads = [f"{of.brokers} brokers, {rate(of.bytes_per_second)}, {of.days} d" for of in CLUSTERS]
    columns = [of.rows() for of in CLUSTERS]
    lines = [["what", *heads], *([name, *(of[name] for of in columns)] for name in columns[0])]
    first, *rest = ["| " + " | ".join(cells) + " |" for cells in lines]
    return "\n".join([first, "|---" * (len(heads) + 1) + "|", *rest])


if __name__ == "__main__":
    print(table())
