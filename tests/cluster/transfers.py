"""A transactional producer: each transaction writes one number to every partition, and is committed or aborted."""

import time

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
# Of the transactions, so many are aborted on purpose.
ABORTED_SHARE = 0.25
CALL_SECONDS, PATIENCE_SECONDS = 10, 120


class Transfers:
    topic, partitions = "transfers", 6

    def __init__(self, cluster, rng, errors):
        self.cluster, self.rng, self.errors = cluster, rng, errors
        # How the transaction of each number ended.
        self.outcomes = {}
        # What a group with read_committed has seen, as (partition, number).
        self.seen = set()
        self.last_commit, self.instances = 0, 0

    def saw(self, message):
        self.seen.add((message.partition(), int(message.value())))

    def goes_on(self, since, within):
        while self.last_commit <= since:
            assert time.monotonic() < since + within, "no transaction is committed any more"
            time.sleep(0.02)

    def has_all_outcomes(self):
        return {COMMITTED, ABORTED} <= set(self.outcomes.copy().values())

    def produce(self, stopping):
        from confluent_kafka import KafkaException
        number, producer = 0, None
        while not stopping.is_set():
            try:
                producer = producer or self.instance()
                number += 1
                self.outcomes[number] = UNKNOWN
                self.outcomes[number] = self.transact(producer, number)
                if self.outcomes[number] == COMMITTED:
                    self.last_commit = time.monotonic()
            except KafkaException as error:
                self.errors.note("transfers", error.args[0])
                # The next instance ends what this one left open.
                producer = None
        # Nothing stays open: readers of what is committed reach the end.
        self.instance()

    def instance(self):
        from confluent_kafka import Producer
        self.instances += 1
        producer = Producer({
            "bootstrap.servers": self.cluster.bootstrap, "transactional.id": "transfers", "transaction.timeout.ms": 60_000,
            "reconnect.backoff.max.ms": 500, "retry.backoff.max.ms": 500, "socket.timeout.ms": 6000, "log_level": 0,
        })
        patiently(lambda: producer.init_transactions(CALL_SECONDS))
        return producer

    def transact(self, producer, number):
        """The outcome. A transaction that fails is unknown until it is aborted."""
        from confluent_kafka import KafkaException
        producer.begin_transaction()
        for partition in range(self.partitions):
            producer.produce(self.topic, str(number), partition=partition)
        if self.rng.random() >= ABORTED_SHARE:
            try:
                patiently(lambda: producer.commit_transaction(CALL_SECONDS))
                return COMMITTED
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self.errors.note("transfers", error.args[0])
        abort(producer)
        return ABORTED

    def check(self, found):
        """`found` is what read_committed gives, as (offset, number) by partition."""
        return check(found, self.outcomes, self.seen, self.partitions)


def abort(producer):
    """Aborts a transaction whose records have all arrived, and fails if some have not. An abort drops a record whose request has
    timed out, and librdkafka 2.16 gives its sequence number to the next one. If the broker has the first, it takes the next
    for a repetition, and acknowledges what it does not write: here as with Apache Kafka 4.3.1."""
    from confluent_kafka import KafkaError, KafkaException
    if producer.flush(CALL_SECONDS):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    patiently(lambda: producer.abort_transaction(CALL_SECONDS))


def patiently(call):
    """Repeats a call as librdkafka asks for."""
    from confluent_kafka import KafkaException
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def check(found, outcomes, seen, partitions):
    """That each partition has each committed number once and in order, no aborted one, and the same of the unknown ones."""
    there = [[number for _, number in found[partition]] for partition in range(partitions)]
    for partition, numbers in enumerate(there):
        wrong = [(a, b) for a, b in zip(numbers, numbers[1:]) if b <= a]
        assert not wrong, f"partition {partition}: {len(wrong)} transactions are doubled or out of order: {wrong[:3]}"
    whole = set(there[0])
    torn = sorted(set().union(*there) - set.intersection(*map(set, there)))
    assert not torn, f"{len(torn)} transactions are torn: {torn[:5]}"
    lost = [number for number, outcome in outcomes.items() if outcome == COMMITTED and number not in whole]
    assert not lost, f"{len(lost)} committed transactions are lost: {lost[:5]}"
    aborted = [number for number in whole if outcomes.get(number) not in (COMMITTED, UNKNOWN)]
    assert not aborted, f"{len(aborted)} aborted transactions are read: {aborted[:5]}"
    early = sorted(number for _, number in seen if number not in whole)
    assert not early, f"{len(early)} numbers were read before they were aborted: {early[:5]}"
    ended = list(outcomes.values())
    assert COMMITTED in ended and ABORTED in ended, "no transaction was committed, or none aborted"
    return f"{ended.count(COMMITTED)} transactions committed, {ended.count(ABORTED)} aborted, {ended.count(UNKNOWN)} unknown"


def selftest():
    def of(*numbers):
        return list(enumerate(numbers))

    outcomes = {1: COMMITTED, 2: ABORTED, 3: UNKNOWN, 4: COMMITTED, 5: UNKNOWN}
    check([of(1, 3, 4), of(1, 3, 4)], outcomes, {(0, 1), (1, 3)}, 2)
    for what, found, seen in [
        ("lost", [of(1), of(1)], ()), ("torn", [of(1, 3, 4), of(1, 4)], ()), ("doubled", [of(1, 1, 4), of(1, 4)], ()),
        ("out of order", [of(1, 4), of(4, 1)], ()), ("aborted", [of(1, 2, 4), of(1, 2, 4)], ()),
        ("before they were aborted", [of(1, 4), of(1, 4)], {(1, 2)}),
    ]:
        try:
            check(found, outcomes, seen, 2)
        except AssertionError as error:
            assert what in str(error), f"{what}: {error}"
            continue
        raise AssertionError(f"not found: {what}")
