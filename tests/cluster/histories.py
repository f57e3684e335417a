"""Clients that append and poll in transactions, the history of what they saw, and its checker.

After Jepsen's workload for Kafka (append, poll): each operation of a client is a transaction of a few appends to some keys and a few
polls of all keys, with read_committed. A key is a partition. Every number is appended once. At the end all keys are read whole.
"""

import collections
import dataclasses
import threading
import time

from transfers import ABORTED, CALL_SECONDS, COMMITTED, UNKNOWN, patiently

TOPIC, KEYS, CLIENTS = "histories", 3, 4
# Of the operations with appends, so many are aborted on purpose; after so many a client begins somewhere else to poll.
ABORTED_SHARE, AGAIN_SHARE = 0.2, 0.03
STEPS_MAX, POLLED_MAX, POLL_SECONDS, REST_SECONDS = 4, 200, 0.1, 0.05


@dataclasses.dataclass
class Operation:
    """`polled` has (key, offset, number), in the order of the polls; `session` changes when the client polls from anywhere else."""
    client: int
    began: float
    ended: float = 0
    outcome: str = UNKNOWN
    session: int = 0
    appended: list = dataclasses.field(default_factory=list)
    polled: list = dataclasses.field(default_factory=list)


class Histories:
    topic, partitions = TOPIC, KEYS

    def __init__(self, cluster, rng):
        self.cluster, self.rng = cluster, rng
        self.lock = threading.Lock()
        self.operations, self.number, self.last_commits = [], 0, [0] * CLIENTS

    def clients(self):
        """What runs, each on a thread."""
        def run(client):
            def work(stopping):
                self.run(client, stopping)
            return work
        return [run(client) for client in range(CLIENTS)]

    def run(self, client, stopping):
        from confluent_kafka import KafkaException
        producer, consumer, session = None, None, 0
        while not stopping.is_set():
            try:
                producer = producer or self.producer(client)
                if consumer is None:
                    consumer, session = self.consumer(), session + 1
                operation = Operation(client, time.monotonic(), session=session)
                with self.lock:
                    self.operations.append(operation)
                try:
                    self.operate(operation, producer, consumer)
                finally:
                    operation.ended = time.monotonic()
                if operation.outcome == COMMITTED:
                    self.last_commits[client] = time.monotonic()
            except KafkaException:
                # The next instance ends what this one left open.
                producer = None
            if consumer is not None and self.rng.random() < AGAIN_SHARE:
                consumer.close()
                consumer = None
            time.sleep(REST_SECONDS)
        if consumer is not None:
            consumer.close()
        # Nothing stays open: readers of what is committed reach the end.
        self.producer(client)

    def operate(self, operation, producer, consumer):
        from confluent_kafka import KafkaException
        appends = [self.rng.random() < 0.6 for _ in range(self.rng.randint(1, STEPS_MAX))]
        if any(appends):
            producer.begin_transaction()
        for append in appends:
            if append:
                with self.lock:
                    self.number += 1
                    key, number = self.rng.randrange(KEYS), self.number
                operation.appended.append((key, number))
                producer.produce(TOPIC, str(number), partition=key)
            else:
                for message in consumer.consume(POLLED_MAX, POLL_SECONDS):
                    if message.error() is None:
                        operation.polled.append((message.partition(), message.offset(), int(message.value())))
        if not any(appends):
            operation.outcome = COMMITTED
            return
        if self.rng.random() >= ABORTED_SHARE:
            try:
                patiently(lambda: producer.commit_transaction(CALL_SECONDS))
                operation.outcome = COMMITTED
                return
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
        patiently(lambda: producer.abort_transaction(CALL_SECONDS))
        operation.outcome = ABORTED

    def producer(self, client):
        from confluent_kafka import Producer
        producer = Producer({
            "bootstrap.servers": self.cluster.bootstrap, "transactional.id": f"{TOPIC}-{client}", "transaction.timeout.ms": 60_000,
            "reconnect.backoff.max.ms": 500, "retry.backoff.max.ms": 500, "socket.timeout.ms": 6000, "log_level": 0,
        })
        patiently(lambda: producer.init_transactions(CALL_SECONDS))
        return producer

    def consumer(self):
        """Begins near the newest number that anybody has polled of each key, or before."""
        from confluent_kafka import Consumer, TopicPartition
        consumer = Consumer({
            "bootstrap.servers": self.cluster.bootstrap, "group.id": TOPIC, "enable.auto.commit": False, "log_level": 0,
            "auto.offset.reset": "earliest", "isolation.level": "read_committed", "reconnect.backoff.max.ms": 500,
        })
        with self.lock:
            newest = collections.Counter()
            for operation in self.operations[-500:]:
                for key, offset, _ in operation.polled:
                    newest[key] = max(newest[key], offset)
        consumer.assign([TopicPartition(TOPIC, key, max(0, newest[key] - self.rng.randrange(200))) for key in range(KEYS)])
        return consumer

    def goes_on(self, since, within):
        while min(self.last_commits) <= since:
            assert time.monotonic() < since + within, "a client does not commit any more"
            time.sleep(0.02)

    def check(self, found):
        """`found` is what read_committed gives, as (offset, number) by key."""
        return check(self.operations, found)


def check(operations, found):
    """That the history is one that read_committed allows, with everything that was committed in it."""
    by, offset_of = {}, {}
    for operation in operations:
        for key, number in operation.appended:
            by[number] = (operation, key)
    for key in range(KEYS):
        for offset, number in found[key]:
            assert number in by and by[number][1] == key, f"key {key} has {number}, which nobody appended there"
            assert number not in offset_of, f"{number} is doubled"
            offset_of[number] = offset
    for operation in operations:
        there = [number for _, number in operation.appended if number in offset_of]
        if operation.outcome == COMMITTED:
            lost = [number for _, number in operation.appended if number not in offset_of]
            assert not lost, f"{len(lost)} numbers of a committed transaction are lost: {lost}"
        assert operation.outcome != ABORTED or not there, f"an aborted transaction is read: {there}"
        assert len(there) in (0, len(operation.appended)), f"a transaction is torn: {operation.appended}, of which {there}"
    # A client sends one transaction after the other.
    last = {}
    for number, offset in sorted(offset_of.items()):
        operation, key = by[number]
        before = last.get((operation.client, key), -1)
        assert before < offset, f"key {key}: {number} is out of order"
        last[operation.client, key] = offset
    check_polls(operations, found, by, offset_of)
    check_order(operations, by)
    ended = collections.Counter(operation.outcome for operation in operations)
    polled = sum(len(operation.polled) for operation in operations)
    assert ended[COMMITTED] and ended[ABORTED] and polled, "no operation was committed, none aborted, or nothing polled"
    return f"{len(operations)} operations on histories, {polled} numbers polled"


def check_polls(operations, found, by, offset_of):
    """That each client saw what is there at the end, one after the other."""
    following = {}
    for key in range(KEYS):
        numbers = [number for _, number in found[key]]
        following.update(zip(numbers, numbers[1:]))
    last = {}
    for operation in operations:
        for key, offset, number in operation.polled:
            assert number in by, f"{number} was read, which nobody appended"
            assert number in offset_of, f"{number} was read, and is not there at the end: it was aborted, or is lost"
            assert offset_of[number] == offset, f"{number} was read at offset {offset}, and is at {offset_of[number]} at the end"
            assert by[number][0] is not operation, f"{number} was read before its transaction was committed"
            before = last.get((operation.client, operation.session, key))
            if before is not None:
                expected = following.get(before)
                assert number == expected, f"key {key}: {number} was read behind {before}, and not {expected}"
            last[operation.client, operation.session, key] = number


def check_order(operations, by):
    """That the operations can be ordered: each behind those that it read from, and behind the earlier ones of its client."""
    places = {id(operation): place for place, operation in enumerate(operations)}
    behind, waits_for = collections.defaultdict(set), collections.Counter()
    last = {}
    for place, operation in enumerate(operations):
        before = {places[id(by[number][0])] for _, _, number in operation.polled}
        if operation.client in last:
            before.add(last[operation.client])
        last[operation.client] = place
        for other in before:
            if place not in behind[other]:
                behind[other].add(place)
                waits_for[place] += 1
    free = [place for place in range(len(operations)) if not waits_for[place]]
    done = 0
    while free:
        done += 1
        for place in behind[free.pop()]:
            waits_for[place] -= 1
            if not waits_for[place]:
                free.append(place)
    assert done == len(operations), f"{len(operations) - done} operations are in a cycle or behind one"


def selftest():
    def history(changed=None, found=None):
        """Client 0 appends 1 and 2, aborts 3, and appends 4; client 1 polls them, and appends 5 and 6."""
        def of(client, outcome, appended=(), polled=()):
            return Operation(client, 0, 1, outcome, 1, list(appended), list(polled))
        operations = [
            of(0, COMMITTED, [(0, 1), (1, 2)]),
            of(0, ABORTED, [(0, 3)]),
            of(1, COMMITTED, [(0, 5)], [(0, 0, 1), (1, 0, 2)]),
            of(0, COMMITTED, [(0, 4)], [(0, 0, 1)]),
            of(1, UNKNOWN, [(1, 6), (2, 7)], [(0, 4, 5), (0, 6, 4)]),
        ]
        operations[3].session = 2
        there = {0: [(0, 1), (4, 5), (6, 4)], 1: [(0, 2), (2, 6)], 2: [(0, 7)]}
        (changed or (lambda *_: None))(operations, there)
        return operations, there

    check(*history())

    def planted(what, change):
        try:
            check(*history(change))
        except AssertionError as error:
            assert what in str(error), f"{what}: {error}"
            return
        raise AssertionError(f"not found: {what}")

    def without(key, number):
        return lambda operations, there: there[key].remove(next(of for of in there[key] if of[1] == number))

    planted("lost", without(1, 2))
    planted("torn", without(2, 7))
    planted("doubled", lambda operations, there: there[0].append((8, 4)))
    planted("nobody appended there", lambda operations, there: there[2].append((8, 99)))
    planted("aborted transaction is read", lambda operations, there: there[0].append((8, 3)))
    planted("out of order", lambda operations, there: there.update({0: [(0, 4), (4, 5), (6, 1)]}))
    planted("not there at the end", lambda operations, there: operations[4].polled.append((0, 7, 3)))
    planted("at the end", lambda operations, there: operations[3].polled.__setitem__(0, (0, 9, 1)))
    planted("before its transaction", lambda operations, there: operations[3].polled.append((0, 6, 4)))
    # 5 is skipped.
    planted("was read behind", lambda operations, there: operations[4].polled.pop(0))
    # The same again.
    planted("was read behind", lambda operations, there: operations[4].polled.append((0, 6, 4)))
    planted("cycle", cycle)


def cycle(operations, there):
    """Two transactions that have read each other's numbers."""
    there[2] += [(1, 8), (2, 9)]
    operations += [
        Operation(2, 0, 1, COMMITTED, 1, [(2, 8)], [(2, 2, 9)]),
        Operation(3, 0, 1, COMMITTED, 1, [(2, 9)], [(2, 1, 8)]),
    ]
