"""Clients that append and poll in transactions, the history of what they saw, and its checker.

After Jepsen's workload for Kafka (append, poll). Each operation of a client is a transaction of a few appends to some keys and a
few polls of all keys, with read_committed. A key is a partition. Every number is appended once. At the end all keys are read whole.
"""

import collections
import dataclasses
import graphlib
import math
import random
import threading
import time

from transfers import ABORTED, CALL_SECONDS, COMMITTED, UNKNOWN, abort, patiently

TOPIC, KEYS, CLIENTS = "histories", 3, 4
APPENDS_SHARE, FLUSHED_SHARE = 0.6, 0.5
# The shares of the transactions that are aborted on purpose, of the operations behind which a client polls from somewhere else, and
# of these places those far back.
ABORTED_SHARE, AGAIN_SHARE, OLD_SHARE = 0.2, 0.05, 0.25
# Of the consumers, those that name a rack to read in.
NEARBY_SHARE = 0.5
STEPS_MAX, POLLED_MAX, POLL_SECONDS, REST_SECONDS, BACK_MAX = 4, 200, 0.1, 0.05, 200


@dataclasses.dataclass
class Operation:
    """`placed` has the offset of each number whose delivery was reported, or why it failed. `polled` has (key, offset, number,
    time), in the order of the polls. The first operation of a session says in `places` from
    where each key is polled. Before `committing`, nobody may read what was appended."""
    client: int
    began: float
    session: int
    places: dict = None
    committing: float = math.inf
    ended: float = math.inf
    outcome: str = ABORTED
    appended: list = dataclasses.field(default_factory=list)
    polled: list = dataclasses.field(default_factory=list)
    placed: dict = dataclasses.field(default_factory=dict)


class Histories:
    topic, partitions = TOPIC, KEYS

    def __init__(self, cluster, seed, errors):
        self.cluster, self.seed, self.errors = cluster, seed, errors
        self.lock = threading.Lock()
        self.operations, self.number, self.last_commits = [], 0, [0] * CLIENTS
        self.newest = [0] * KEYS
        # Where brokers said that they do not have what somebody had read before.
        self.refused = []

    def clients(self):
        """What runs, each on a thread."""
        def run(client):
            def client_of_histories(stopping):
                self.run(client, random.Random(f"{self.seed} {client}"), stopping)
            return client_of_histories
        return [run(client) for client in range(CLIENTS)]

    def run(self, client, rng, stopping):
        from confluent_kafka import KafkaException
        producer, consumer, session, places = None, None, 0, None
        while not stopping.is_set():
            try:
                producer = producer or self.producer(client)
                if consumer is None:
                    consumer, places = self.consumer(rng)
                    session += 1
                operation, places = Operation(client, time.monotonic(), session, places), None
                with self.lock:
                    self.operations.append(operation)
                try:
                    self.operate(operation, rng, producer, consumer)
                finally:
                    operation.ended = time.monotonic()
                if operation.outcome == COMMITTED and operation.appended:
                    self.last_commits[client] = operation.ended
            except KafkaException as error:
                self.errors.note("histories", error.args[0])
                # The next instance ends what this one left open.
                producer = None
            if consumer is not None and rng.random() < AGAIN_SHARE:
                consumer.close()
                consumer = None
            time.sleep(REST_SECONDS)
        if consumer is not None:
            consumer.close()
        # Nothing stays open: readers of what is committed reach the end.
        self.producer(client)

    def operate(self, operation, rng, producer, consumer):
        from confluent_kafka import KafkaException
        appends = [rng.random() < APPENDS_SHARE for _ in range(rng.randint(1, STEPS_MAX))]
        if any(appends):
            producer.begin_transaction()
        for append in appends:
            if append:
                key = rng.randrange(KEYS)
                with self.lock:
                    self.number += 1
                    number = self.number
                operation.appended.append((key, number))
                producer.produce(TOPIC, str(number), partition=key, on_delivery=report_to(operation, number))
                if rng.random() < FLUSHED_SHARE:
                    producer.flush(CALL_SECONDS)
            else:
                self.poll(operation, consumer)
        if not any(appends):
            operation.outcome = COMMITTED
            return
        if rng.random() >= ABORTED_SHARE:
            operation.committing, operation.outcome = time.monotonic(), UNKNOWN
            try:
                patiently(lambda: producer.commit_transaction(CALL_SECONDS))
                operation.outcome = COMMITTED
                return
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self.errors.note("histories", error.args[0])
        abort(producer)
        operation.outcome = ABORTED

    def poll(self, operation, consumer):
        for message in consumer.consume(POLLED_MAX, POLL_SECONDS):
            if message.error() is not None:
                self.errors.note("histories, a poll", message.error())
                if message.error().name() == "_AUTO_OFFSET_RESET":
                    self.refused.append(f"{time.strftime('%X')}: key {message.partition()}: {message.error().str()}")
                continue
            key, offset = message.partition(), message.offset()
            operation.polled.append((key, offset, int(message.value()), time.monotonic()))
            with self.lock:
                self.newest[key] = max(self.newest[key], offset)

    def producer(self, client):
        from confluent_kafka import Producer
        producer = Producer({
            "bootstrap.servers": self.cluster.bootstrap, "transactional.id": f"{TOPIC}-{client}",
            "transaction.timeout.ms": 60_000, "reconnect.backoff.max.ms": 500, "retry.backoff.max.ms": 500,
            "socket.timeout.ms": 6000, "log_level": 0,
        })
        patiently(lambda: producer.init_transactions(CALL_SECONDS))
        return producer

    def consumer(self, rng):
        """Polls each key from somewhere near the newest number that anybody has polled, or before. Returns also from where."""
        from confluent_kafka import Consumer, TopicPartition
        nearby = {"client.rack": f"rack-{rng.randint(1, 3)}"} if self.cluster.by_rack and rng.random() < NEARBY_SHARE else {}
        consumer = Consumer({
            **nearby, "bootstrap.servers": self.cluster.bootstrap, "group.id": TOPIC, "enable.auto.commit": False, "log_level": 0,
            "auto.offset.reset": "error", "isolation.level": "read_committed", "reconnect.backoff.max.ms": 500,
        })
        with self.lock:
            newest = list(self.newest)
        old = rng.random() < OLD_SHARE
        places = {key: rng.randrange(end + 1) if old else max(0, end - rng.randrange(BACK_MAX)) for key, end in enumerate(newest)}
        consumer.assign([TopicPartition(TOPIC, key, offset) for key, offset in places.items()])
        return consumer, places

    def goes_on(self, since, within):
        while late := [client for client, last in enumerate(self.last_commits) if last <= since]:
            assert time.monotonic() < since + within, f"the clients {late} of the histories do not commit any more"
            time.sleep(0.02)

    def has_all_outcomes(self):
        return {COMMITTED, ABORTED} <= {operation.outcome for operation in self.operations.copy()}

    def check(self, found):
        """`found` is what read_committed gives, as (offset, number) by key."""
        assert not self.refused, f"offsets were refused up to which others had read before: {self.refused}"
        return check(self.operations, found, CLIENTS)


def report_to(operation, number):
    def report(error, message):
        operation.placed[number] = error.name() if error else message.offset()
    return report


def check(operations, found, clients):
    """That read_committed allows this history, and that everything that was committed is there."""
    writer = {number: (operation, key) for operation in operations for key, number in operation.appended}
    offset_of = {}
    for key in range(KEYS):
        offsets = [offset for offset, _ in found[key]]
        assert offsets == sorted(set(offsets)), f"key {key}: its offsets do not rise"
        for offset, number in found[key]:
            assert number in writer and writer[number][1] == key, f"key {key} has {number}, which nobody appended there"
            assert number not in offset_of, f"{number} is doubled"
            offset_of[number] = offset
    for operation in operations:
        there = [number for _, number in operation.appended if number in offset_of]
        if operation.outcome == COMMITTED:
            lost = {number: operation.placed.get(number) for _, number in operation.appended if number not in offset_of}
            assert not lost, f"numbers of a committed transaction are lost, which were reported at these offsets: {lost}"
        wrong = {number: (placed, offset_of.get(number)) for number, placed in operation.placed.items()
                 if isinstance(placed, int) and offset_of.get(number, placed) != placed}
        assert not wrong, f"numbers are at other offsets than was reported: {wrong}"
        assert operation.outcome != ABORTED or not there, f"an aborted transaction is read: {there}"
        assert len(there) in (0, len(operation.appended)), f"a transaction is torn: {operation.appended}, of which {there}"
    check_places(found, writer)
    check_cycles(operations, writer)
    check_polls(operations, found, writer, offset_of)
    ended = collections.Counter(operation.outcome for operation in operations)
    assert ended[COMMITTED] and ended[ABORTED], "no operation was committed, or none aborted"
    polled = collections.Counter((operation.client, key) for operation in operations for key, *_ in operation.polled)
    missing = [(client, key) for client in range(clients) for key in range(KEYS) if not polled[client, key]]
    assert not missing, f"these clients have polled nothing of these keys: {missing}"
    return f"{dict(ended)} operations on histories, {polled.total()} numbers polled"


def check_places(found, writer):
    """That a record lies behind those of all transactions that had been committed before its own began."""
    for key in range(KEYS):
        newest, last = -math.inf, {}
        for _, number in found[key]:
            operation = writer[number][0]
            assert operation.outcome != COMMITTED or newest <= operation.ended, f"key {key}: {number} lies behind later ones"
            newest = max(newest, operation.began)
            # A client sends one record after the other.
            assert last.get(operation.client, 0) < number, f"key {key}: {number} is out of order"
            last[operation.client] = number


def check_cycles(operations, writer):
    """That no transaction read of another one that, perhaps through others, had read of it (Adya's G1c, of reads alone). Kafka allows
    cycles that the order of appends to keys is part of: what two open transactions append to two keys may lie in either order in each."""
    read_of = {id(operation): {id(writer[number][0]) for _, _, number, _ in operation.polled if number in writer} - {id(operation)}
               for operation in operations}
    try:
        graphlib.TopologicalSorter(read_of).prepare()
    except graphlib.CycleError as error:
        appended = {id(operation): operation.appended for operation in operations}
        cycle = [appended[operation] for operation in error.args[1]]
        raise AssertionError(f"a cycle of transactions that read of each other: {cycle}") from error


def check_polls(operations, found, writer, offset_of):
    """That each client saw what is there at the end, one after the other, and nothing before it was committed."""
    following, places, last = {}, {}, {}
    for key in range(KEYS):
        numbers = [number for _, number in found[key]]
        following.update(zip(numbers, numbers[1:]))
    for operation in operations:
        if operation.places is not None:
            places[operation.client, operation.session] = operation.places
        for key, offset, number, when in operation.polled:
            assert number in writer and writer[number][1] == key, f"{number} was read of key {key}, where nobody appended it"
            assert number in offset_of, f"{number} was read, and is not there in the end: it was aborted, or is lost"
            assert offset_of[number] == offset, f"{number} was read at offset {offset}, and is at {offset_of[number]} in the end"
            assert when >= writer[number][0].committing, f"{number} was read before its transaction was committed"
            session = operation.client, operation.session
            if (session, key) in last:
                expected = following.get(last[session, key])
            else:
                begin = places[session][key]
                expected = next((number for offset, number in found[key] if offset >= begin), None)
            assert number == expected, f"key {key}: {number} was read, and not {expected}, which comes before"
            last[session, key] = number


def selftest():
    def history(change=lambda *_: None):
        """Client 0 appends 1 and 2, aborts 3, and appends 4; client 1 polls, and appends 5, and 6 with 7."""
        operations = [
            Operation(0, 0, 1, {0: 0, 1: 0, 2: 0}, 1, 2, COMMITTED, [(0, 1), (1, 2)]),
            Operation(0, 2, 1, None, math.inf, 3, ABORTED, [(0, 3)]),
            Operation(1, 3, 1, {0: 0, 1: 0, 2: 0}, 5, 6, COMMITTED, [(0, 5)], [(0, 0, 1, 4), (1, 0, 2, 4)]),
            Operation(0, 4, 2, {0: 0, 1: 0, 2: 2}, 7, 8, COMMITTED, [(0, 4)], [(0, 0, 1, 5), (1, 0, 2, 5)]),
            Operation(1, 9, 1, None, 11, 12, UNKNOWN, [(1, 6), (2, 7)], [(0, 4, 5, 10), (0, 6, 4, 10)]),
            Operation(1, 13, 1, None, polled=[(1, 2, 6, 14), (2, 3, 7, 14)], outcome=COMMITTED),
            Operation(0, 13, 2, None, polled=[(2, 3, 7, 14)], outcome=COMMITTED),
        ]
        found = {0: [(0, 1), (4, 5), (6, 4)], 1: [(0, 2), (2, 6)], 2: [(3, 7)]}
        change(operations, found)
        return operations, found, 2

    check(*history())

    def planted(what, change):
        try:
            check(*history(change))
        except AssertionError as error:
            assert what in str(error), f"{what}: {error}"
            return
        raise AssertionError(f"not found: {what}")

    planted("a cycle", lambda operations, _: (
        operations[2].polled.append((0, 6, 4, 8)), operations[3].polled.append((0, 4, 5, 6))))
    planted("other offsets", lambda operations, _: operations[0].placed.update({1: 3}))
    planted("are lost", lambda _, found: found[1].pop(0))
    planted("torn", lambda _, found: found[2].pop())
    planted("doubled", lambda _, found: found[0].append((8, 4)))
    planted("do not rise", lambda _, found: found[0].insert(2, (4, 4)))
    planted("nobody appended there", lambda _, found: found[2].append((8, 99)))
    planted("where nobody appended it", lambda operations, _: operations[3].polled.append((2, 0, 1, 6)))
    planted("aborted transaction is read", lambda _, found: found[0].append((8, 3)))
    planted("lies behind later ones", lambda _, found: found.update({0: [(0, 5), (4, 1), (6, 4)]}))
    planted("out of order", lambda operations, found: (
        operations[3].appended.insert(0, (0, 8)), found[0].insert(2, (5, 8))))
    planted("not there in the end", lambda operations, _: operations[4].polled.append((0, 7, 3, 10)))
    planted("at 0 in the end", lambda operations, _: operations[3].polled.__setitem__(0, (0, 9, 1, 5)))
    planted("before its transaction", lambda operations, _: operations[4].polled.__setitem__(1, (0, 6, 4, 6.5)))
    # 5 is skipped, then also at the beginning of a session; 4 is read twice.
    planted("4 was read, and not 5", lambda operations, _: operations[4].polled.pop(0))
    planted("4 was read, and not 1", lambda operations, _: operations[3].polled.__setitem__(0, (0, 6, 4, 7)))
    planted("4 was read, and not None", lambda operations, _: operations[4].polled.append((0, 6, 4, 10)))
    planted("have polled nothing", lambda operations, _: operations[6].polled.pop())
