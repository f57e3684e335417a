"""The load on a cluster and what it was promised: numbered records of an idempotent producer, groups that follow them."""

import collections
import faulthandler
import json
import subprocess
import threading
import time

from clientlogs import ClientLogs, stamp, threads
from errors import REPEATED
from suite import place

TOPIC, PARTITIONS = "ledger", 12
# Records of a partition that are sent and not acknowledged yet.
IN_FLIGHT_MAX = 50
PRODUCERS = 6
ANSWER_SECONDS_MAX = 60


class Ledger:
    """Everything under load. The transactions and the histories have topics of their own."""

    def __init__(self, cluster, transfers, histories, errors):
        self.cluster, self.transfers, self.histories, self.errors = cluster, transfers, histories, errors
        self.stopping, self.lock, self.logs = threading.Event(), threading.Lock(), ClientLogs()
        self.acknowledged = collections.defaultdict(list)
        # When each partition answered last, and the longest time without an answer that it had.
        self.last_answer, self.longest = {}, {}
        self.failed, self.in_flight = [], collections.Counter()
        # Seconds until all partitions answered, for each broker that was killed.
        self.after_kills = []
        # Each protocol of groups, and a group that reads what is committed.
        self.groups = [
            Group(cluster, errors, "classic", TOPIC, PARTITIONS, {"session.timeout.ms": 10_000}),
            Group(cluster, errors, "consumer", TOPIC, PARTITIONS, {"group.protocol": "consumer"}, rack=2),
            Group(cluster, errors, "committed", transfers.topic, transfers.partitions,
                  {"session.timeout.ms": 10_000, "isolation.level": "read_committed"}, transfers.saw, rack=3),
        ]
        self.threads, self.broken = [], []

    def begin(self):
        from confluent_kafka.admin import AdminClient, NewTopic
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        deadline = time.monotonic() + 30
        missing = {TOPIC: PARTITIONS, **{of.topic: of.partitions for of in (self.transfers, self.histories)}}
        while missing:
            topic, partitions = next(iter(missing.items()))
            # A broker that has just joined owns no log yet.
            try:
                admin.create_topics([NewTopic(topic, partitions, **self.cluster.options_of(topic))])[topic].result(20)
                del missing[topic]
            except Exception:
                assert time.monotonic() < deadline, f"the topic {topic} could not be created"
                time.sleep(0.2)
        work = [self.produce, self.transfers.produce, *self.histories.clients()]
        work += [run for group in self.groups for run in (group.follow, group.watch)]
        self.threads = [threading.Thread(target=self.work, args=(run,), daemon=True) for run in work]
        for thread in self.threads:
            thread.start()
        seconds = self.answers()
        for group in self.groups:
            group.reads_nearby()
        return told(seconds)

    def work(self, run):
        try:
            run(self.stopping)
        except Exception as error:
            self.broken.append(f"{run.__qualname__}: {error!r}")
            raise

    def produce(self, stopping):
        from confluent_kafka import Producer
        # A thread of librdkafka that has five requests in flight, each for one partition, does not rest while it has more to send.
        # So a producer has few partitions, and batches that are as old as what an object waits for.
        producers = [Producer({
            "bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True, "linger.ms": 150,
            "message.timeout.ms": 300_000, "reconnect.backoff.max.ms": 500, "retry.backoff.max.ms": 500, "log_level": 0,
            # A broker that is paused holds its requests for so long.
            "socket.timeout.ms": 6000,
        }) for _ in range(PRODUCERS)]

        def answered(partition, number):
            def note(error, _):
                with self.lock:
                    self.in_flight[partition] -= 1
                    if error is None:
                        self.acknowledged[partition].append(number)
                        now = time.monotonic()
                        waited = now - self.last_answer.get(partition, now)
                        self.longest[partition] = max(self.longest.get(partition, 0), waited)
                        self.last_answer[partition] = now
                    else:
                        self.failed.append(f"{partition}: {number}: {error}")
            return note

        number = 0
        while not stopping.is_set():
            number += 1
            for partition in range(PARTITIONS):
                # One that does not answer holds up no other.
                if self.in_flight[partition] >= IN_FLIGHT_MAX:
                    continue
                with self.lock:
                    self.in_flight[partition] += 1
                producer = producers[partition % PRODUCERS]
                producer.produce(TOPIC, str(number), partition=partition, on_delivery=answered(partition, number))
            for producer in producers:
                producer.poll(0)
            time.sleep(0.01)
        assert all(producer.flush(120) == 0 for producer in producers)

    def answers(self, since=None, within=ANSWER_SECONDS_MAX):
        """Waits until every partition has answered to something after `since`: the seconds that the last one took."""
        since = since or time.monotonic()
        deadline = since + within
        while True:
            with self.lock:
                late = [p for p in range(PARTITIONS) if self.last_answer.get(p, 0) <= since]
                assert not self.failed, f"{len(self.failed)} records were refused: {self.failed[:3]}"
            if not late:
                return time.monotonic() - since
            assert time.monotonic() < deadline, f"partitions {late} do not answer any more"
            time.sleep(0.02)

    def flows(self):
        """Waits until every partition has answered to something from now on, and its consumers have that."""
        seconds = self.answers()
        with self.lock:
            newest = {partition: self.acknowledged[partition][-1] for partition in range(PARTITIONS)}
        begun = time.monotonic()
        for group in self.groups:
            if group.topic == TOPIC:
                group.reaches(newest, begun + ANSWER_SECONDS_MAX)
        return f"{told(seconds)}, and {time.monotonic() - begun:.1f} s later consumers have that"

    def goes_on(self):
        """Waits until partitions answer, a transaction is committed, and every group has committed offsets."""
        assert not self.broken, f"a part of the load ended: {self.broken}"
        since = time.monotonic()
        self.answers(since)
        self.transfers.goes_on(since, ANSWER_SECONDS_MAX)
        # A client may have to give its producer up first.
        self.histories.goes_on(since, 2 * ANSWER_SECONDS_MAX)
        for group in self.groups:
            group.goes_on(since, ANSWER_SECONDS_MAX)

    def gap_of(self, event):
        """Does `event` until all partitions answer again: the longest time without an answer that one of them had."""
        return f"the longest gap is {max(self.gaps_of(event).values()):.2f} s"

    def gaps_of(self, event):
        """The same for each partition, in seconds."""
        with self.lock:
            self.longest = {}
        event()
        self.answers()
        with self.lock:
            return dict(self.longest)

    def settle(self):
        # A short run may have seen one kind of end only.
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while not (self.transfers.has_all_outcomes() and self.histories.has_all_outcomes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.stopping.set()
        for thread in self.threads:
            thread.join(150)
            assert not thread.is_alive(), "the load does not end"
        assert not self.broken, f"a part of the load ended: {self.broken}"
        assert not self.failed, f"{len(self.failed)} records were refused: {self.failed[:3]}"
        found = read(self.cluster, TOPIC, PARTITIONS)
        total = check(found, self.acknowledged)
        transferred = read(self.cluster, self.transfers.topic, self.transfers.partitions, "read_committed")
        outcome = self.transfers.check(transferred)
        history = self.histories.check(read(self.cluster, self.histories.topic, self.histories.partitions, "read_committed"))
        for group in self.groups:
            group.check(found if group.topic == TOPIC else transferred)
        return f"{total} records acknowledged and read, {outcome}; {history}; {len(self.groups)} groups{self.errors}"

    def end(self):
        self.stopping.set()

    def explain(self, directory):
        """Writes down what helps to see why something did not go on."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import AdminClient, OffsetSpec
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        asked = {f"group {group.name}": admin.describe_consumer_groups([group.name])[group.name] for group in self.groups}
        topics = admin.list_topics(timeout=10).topics.values()
        ends = {TopicPartition(topic.topic, partition): OffsetSpec.latest() for topic in topics for partition in topic.partitions}
        for isolation in IsolationLevel:
            asked.update((f"{at.topic}-{at.partition} {isolation.name}", answer)
                         for at, answer in admin.list_offsets(ends, isolation_level=isolation).items())
        with open(directory / "explained.txt", "w") as out:
            for what, answer in asked.items():
                try:
                    print(what, vars(answer.result(20)), file=out)
                except Exception as error:
                    print(what, repr(error), file=out)
        (directory / "threads.txt").write_text(threads())
        with open(directory / "stacks.txt", "w") as out:
            faulthandler.dump_traceback(out)
        with open(directory / "histories.txt", "w") as out:
            now = time.monotonic()
            for operation in self.histories.operations[-200:]:
                print(f"{operation.began - now:.1f} s: {vars(operation)}", file=out)
            print(self.errors, *self.errors.noted[-100:], sep="\n", file=out)
        with open(directory / "transactions.txt", "w") as out:
            subprocess.run([place.MAINSTEM, "transaction", "list", "--bootstrap", self.cluster.bootstrap.split(",")[0]], stdout=out,
                           stderr=subprocess.STDOUT, timeout=30, check=False)
        # A call that a server does not answer ends after a minute.
        time.sleep(70)
        for group in self.groups:
            self.logs.write(f"group-{group.name}", directory / f"group-{group.name}.log")
            (directory / f"group-{group.name}-errors.log").write_text("\n".join(group.met))


class Group:
    """A consumer group with one member, and whoever looks at its committed offsets: they never go back."""

    def __init__(self, cluster, errors, name, topic, partitions, options, saw=lambda message: None, rack=None):
        """Its member is in the rack of the broker `rack`."""
        self.cluster, self.errors, self.name, self.topic, self.partitions = cluster, errors, name, topic, partitions
        self.options, self.saw = options, saw
        # Where its member should read what has copies, and the brokers that it reads from and that do not lead.
        self.rack = rack if rack and cluster.by_rack and topic not in cluster.diskless else None
        self.nearby = set()
        if self.rack:
            self.options = {**options, "client.rack": f"rack-{rack}", "statistics.interval.ms": 1000, "stats_cb": self.note_brokers}
        self.committed, self.went_back, self.last_commit = {}, [], 0
        # What its member does, and since when, and the errors that it met.
        self.doing, self.met = ("begins", time.monotonic()), collections.deque(maxlen=3000)
        # The highest number of each partition that its member has.
        self.consumed = collections.Counter()

    def follow(self, stopping):
        from confluent_kafka import Consumer, KafkaException
        consumer = Consumer({
            "bootstrap.servers": self.cluster.bootstrap, "group.id": self.name, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "reconnect.backoff.max.ms": 500, "debug": "cgrp,protocol",
            "client.id": f"group-{self.name}", **self.options,
        })
        consumer.subscribe([self.topic])
        while not stopping.is_set():
            came, self.doing = False, ("consumes", time.monotonic())
            for message in consumer.consume(2000, 0.5):
                if message.error() is not None:
                    self.note(message.error())
                    continue
                came = True
                partition = message.partition()
                self.consumed[partition] = max(self.consumed[partition], int(message.value()))
                self.saw(message)
            if came:
                self.doing = "commits", time.monotonic()
                try:
                    consumer.commit(asynchronous=False)
                    self.last_commit = time.monotonic()
                except KafkaException as error:
                    # The group has another generation, or its coordinator moves.
                    self.note(error.args[0], REPEATED)
        consumer.close()

    def note_brokers(self, statistics):
        partitions = json.loads(statistics)["topics"].get(self.topic, {"partitions": {}})["partitions"].values()
        self.nearby.update(of["broker"] for of in partitions if of["broker"] not in (-1, of["leader"]))

    def reads_nearby(self):
        deadline = time.monotonic() + 30
        while self.rack and self.rack not in self.nearby:
            assert time.monotonic() < deadline, f"the group {self.name} does not read from broker {self.rack}"
            time.sleep(0.1)

    def note(self, error, handled=()):
        self.met.append(f"{stamp()} {error}")
        self.errors.note(f"group {self.name}", error, handled)

    def watch(self, stopping):
        from confluent_kafka import Consumer, KafkaException, TopicPartition
        looker = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": self.name, "log_level": 0,
                           "reconnect.backoff.max.ms": 500})
        partitions = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        while not stopping.is_set():
            try:
                self.look(looker.committed(partitions, 5))
            except KafkaException as error:
                self.note(error.args[0], REPEATED)
            time.sleep(0.1)
        looker.close()

    def look(self, committed):
        for found in committed:
            if found.error is not None:
                self.note(found.error, REPEATED)
                continue
            # Below 0: nothing is committed.
            before = self.committed.get(found.partition, found.offset)
            if found.offset < before:
                self.went_back.append((found.partition, before, found.offset))
            if found.offset >= 0:
                self.committed[found.partition] = found.offset

    def reaches(self, numbers, deadline):
        """Waits until its member has these numbers of the partitions, or higher ones."""
        while late := [partition for partition, number in numbers.items() if self.consumed[partition] < number]:
            assert time.monotonic() < deadline, f"the group {self.name} gets nothing any more of partitions {late}"
            time.sleep(0.02)

    def goes_on(self, since, within):
        while self.last_commit <= since:
            what, begun = self.doing
            assert time.monotonic() < since + within, (
                f"the group {self.name} does not commit any more; its member {what} since {time.monotonic() - begun:.1f} s")
            time.sleep(0.02)

    def check(self, found):
        assert not self.went_back, f"group {self.name}: committed offsets went back: {self.went_back[:3]}"
        # One more for the marker of a transaction.
        behind = [p for p in range(self.partitions) if self.committed.get(p, 0) > found[p][-1][0] + 2]
        assert not behind, f"group {self.name}: committed offsets lie behind the end: {behind}"
        assert len(self.committed) == self.partitions, f"the group {self.name} did not commit"


def read(cluster, topic, partitions, isolation="read_uncommitted"):
    """Every partition from its beginning to its end: (offset, number) of each record."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "log_level": 0,
                       "enable.partition.eof": True, "auto.offset.reset": "earliest", "isolation.level": isolation})
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found, ended = collections.defaultdict(list), set()
    deadline = time.monotonic() + 120
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{topic}: only {sorted(ended)} could be read to their end"
        for message in reader.consume(5000, 1):
            if message.error() is None:
                found[message.partition()].append((message.offset(), int(message.value())))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    reader.close()
    return found


def told(seconds):
    return f"all partitions answer after {seconds:.1f} s"


def check(found, acknowledged):
    """That each partition has every acknowledged record once, in the order in which they were sent."""
    total = 0
    for partition in range(PARTITIONS):
        numbers = [number for _, number in found[partition]]
        offsets = [offset for offset, _ in found[partition]]
        assert offsets == list(range(len(offsets))), f"partition {partition} has holes"
        wrong = [(a, b) for a, b in zip(numbers, numbers[1:]) if b <= a]
        assert not wrong, f"partition {partition}: {len(wrong)} records are doubled or out of order: {wrong[:3]}"
        lost = sorted(set(acknowledged[partition]) - set(numbers))
        assert not lost, f"partition {partition}: {len(lost)} acknowledged records are lost: {lost[:5]}"
        total += len(acknowledged[partition])
    assert total, "nothing was acknowledged"
    return total


def selftest():
    def of(*numbers):
        return {partition: list(enumerate(numbers)) for partition in range(PARTITIONS)}

    acknowledged = {partition: [1, 3] for partition in range(PARTITIONS)}
    assert check(of(1, 2, 3), acknowledged) == 2 * PARTITIONS
    for what, found in {
        "lost": of(1, 2), "doubled": of(1, 2, 2, 3), "out of order": of(1, 3, 2),
        "holes": {partition: [(0, 1), (2, 3)] for partition in range(PARTITIONS)},
    }.items():
        try:
            check(found, acknowledged)
        except AssertionError as error:
            assert what in str(error), f"{what}: {error}"
            continue
        raise AssertionError(f"not found: {what}")
