"""The ledger of tests/crash on topics whose records are in a store: kills of the server and of the store, and faults.

The load, the checker and the ways to end the server are those of tests/crash. A round here also has weather, which is
what the proxy does to requests, and the store may be killed while the server works, ends or starts.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from confluent_kafka.admin import (
    AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType,
)

import offsets
import rounds
from ledger import SINGLE, SLOTS, WIDE, Checker, Notes
from load import Load
from store import BUCKET
from suite.report import until

# The settings of a topic of each kind.
KINDS = {
    "local": {},
    "tiered": {"remote.storage.enable": "true"},
    # Local copies go as soon as the store has the records.
    "dropped": {"remote.storage.enable": "true", "local.retention.ms": "1"},
    # The store alone acknowledges acks=all.
    "diskless": {"diskless.enable": "true"},
}
# Faults of the proxy and their rates.
WEATHERS = {
    "clear": {},
    "answers lost": {"lost": 0.25, "torn": 0.1},
    "requests late": {"late": 0.3},
    "store busy": {"busy": 0.2, "done-busy": 0.15, "conflict": 0.1},
    "store slow": {"slow": 0.6},
    "requests garbled": {"garbled": 0.3},
    "all of it": {"lost": 0.06, "torn": 0.04, "late": 0.06, "busy": 0.05, "done-busy": 0.05, "conflict": 0.05, "slow": 0.1,
                  "garbled": 0.05},
}
# For a read of everything: each failed request costs the server a pause.
READING = {"lost": 0.04, "torn": 0.03, "busy": 0.03}
# Of the bytes in the store, when the topics are deleted.
LEFT_SHARE = 0.1
# A fault with this rate meets some request of each round: the start alone has thirty.
FREQUENT = 0.2
# A server that starts without an answer from the store waits for one for some seconds, so most absences are short.
STORE_KILL_SHARE, AWAY_SECONDS = 0.4, (0.05, 1.0)
# The first kill comes when the server has been under load for a moment.
STORE_KILL_SECONDS = (0.0, 2.0)


@dataclass
class Plan:
    crash: rounds.Plan
    weather: str
    # (after so many seconds, for so many), if the store is killed.
    blink: tuple | None = None

    def __str__(self):
        text = f"{self.crash}; {self.weather}"
        if self.blink is not None:
            text += "; store killed after %.0f ms for %.0f ms" % tuple(1000 * seconds for seconds in self.blink)
        return text


def schedule(rng, count):
    """Each weather in turn, in an order of its own each time."""
    plans, weathers = [], []
    for crash in rounds.schedule(rng, count):
        weathers = weathers or rng.sample(sorted(WEATHERS), len(WEATHERS))
        blink = None
        if rng.random() < STORE_KILL_SHARE:
            blink = (rng.uniform(*STORE_KILL_SECONDS), rng.uniform(*AWAY_SECONDS))
        plans.append(Plan(crash, weathers.pop(), blink))
    return plans


class StoredLoad(Load):
    """The load on topics of the given kinds: the wide one of the first, the single one of the last."""

    def __init__(self, server, directory, seed, kinds):
        super().__init__(server, directory, seed)
        self.kinds = {WIDE: kinds[0], SINGLE: kinds[-1]}
        if "diskless" in kinds:
            # acks=1 is answered before a diskless topic's consumers see the records: a read after a crash may come too early.
            self.mortal_profiles = ("mixed",)

    def admin(self):
        return AdminClient({"bootstrap.servers": self.server.bootstrap, "enable.metrics.push": False, "log_level": 0})

    def create_topics(self):
        admin = self.admin()
        for topic, kind in self.kinds.items():
            partitions = sum(name == topic for name, _ in SLOTS)
            created = admin.create_topics([NewTopic(topic, partitions, 1, config=KINDS[kind])], request_timeout=15)
            created[topic].result(15)

    def tiered(self):
        """The places whose records go to the store and need not stay on the local disk."""
        return [place for place in SLOTS if KINDS[self.kinds[place[0]]]]

    def all_stored(self):
        return all(offsets.is_stored(self.server.bootstrap, *place) for place in self.tiered())

    def drop_local_copies(self):
        """Lets everything go from the local disk that may go. Says how much of the records is in the store alone."""
        admin = self.admin()
        change = [ConfigEntry("local.retention.ms", "1", incremental_operation=AlterConfigOpType.SET)]
        for topic in {topic for topic, _ in self.tiered()}:
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=change)
            admin.incremental_alter_configs([resource])[resource].result(15)
        gone = self.wait_until_gone()
        return f"{100 * min(gone):.0f} to {100 * max(gone):.0f} % of a partition is in the store alone"

    def wait_until_gone(self):
        until(lambda: min(self.gone()) > 0.5, "local copies to go", self.gone)
        return self.gone()

    def gone(self):
        """For each place, the share of its records that have left the local disk."""
        bootstrap = self.server.bootstrap
        return [offsets.local_start(bootstrap, *place) / offsets.offset_of(bootstrap, *place, offsets.LATEST)
                for place in self.tiered()]

    def delete_topics(self):
        admin = self.admin()
        for future in admin.delete_topics(list(self.kinds), request_timeout=15).values():
            future.result(15)


class Storms(rounds.Rounds):
    """Rounds of tests/crash with weather."""

    def __init__(self, site, server, load, mode):
        super().__init__(server, load, lose=False)
        self.site, self.mode = site, mode
        # Faults that many requests must have met.
        self.expected = set()

    def run(self, plan):
        self.expected |= {fault for fault, rate in WEATHERS[plan.weather].items() if rate >= FREQUENT}
        self.site.proxy.tell(rates=WEATHERS[plan.weather], mode=self.mode)
        with ThreadPoolExecutor(1) as pool:
            blink = plan.blink and pool.submit(self.site.minio.blink, *plan.blink)
            note = super().run(plan.crash)
            if blink:
                blink.result()
        return note

    def settle(self):
        """The store has everything, once it works again."""
        counts = self.site.proxy.clear()["counts"]
        faults = {name.split()[0] for name in counts} - {"open"}
        assert self.expected <= faults, f"no request met {sorted(self.expected - faults)}"
        until(self.load.all_stored, "the store to have everything")
        return f"{sum(counts.values())} requests, with {', '.join(sorted(faults)) or 'no faults'}"

    def compare_keys(self):
        """Every local file stands for an object that is there, and no other object stays."""
        def differing():
            before = set(self.server.stored_locally())
            there = {int(key.rpartition("/")[2]) for key in self.keys()}
            named = set(self.server.stored_locally())
            # An object has its local file after it is put, and no longer when it is deleted.
            lost = (before & named) - there
            assert not lost, f"{len(lost)} objects are not there, of {len(named)} that have a local file: {sorted(lost)[:5]}"
            return sorted(there - named)

        # What no record needs is deleted when the server has started.
        until(lambda: not differing(), "objects to be deleted that no record needs", differing)
        return f"{len(self.keys())} objects"

    def keys(self):
        return self.site.minio.s3.keys(BUCKET, f"{self.server.directory.name}/logs/")

    def read_from_store(self, rates):
        """Everything once more, by a server that has nothing in memory."""
        stopped = self.server.stop()
        self.server.start()
        # Segments that are alive have local copies again.
        self.load.wait_until_gone()
        self.site.proxy.tell(rates=rates)
        before = self.site.proxy.counted("GET")
        begin = time.monotonic()
        note = rounds.verify(self.load, Notes(self.load.notes_directory), Checker())
        reads = self.site.proxy.counted("GET") - before
        self.site.proxy.clear()
        assert reads > 0, "nothing was read from the store"
        return f"{note}; {reads} requests to the store in {time.monotonic() - begin:.1f} s, stopped in {stopped:.1f} s"

    def delete_all(self):
        """Little is left without the topics: the newest object, and what the server keeps there for itself."""
        before = sum(self.keys().values())
        self.load.delete_topics()
        until(lambda: sum(self.keys().values()) < LEFT_SHARE * before, "objects to be deleted", self.keys)
        return f"{before >> 20} MiB before, {sum(self.keys().values()) >> 10} KiB after"
