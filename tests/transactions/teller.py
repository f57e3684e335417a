"""A client that transfers money between accounts in transactions, until it is told to stop or killed.

    teller.py BOOTSTRAP NAME JOURNAL direct|orders

A transfer is two records in two partitions, in one transaction. `direct` makes up its own and aborts every fifth;
`orders` does what the topic `orders` says and commits the offsets it read in the same transaction. The journal says of
each transfer that it was begun, and how it ended as far as the client was told, or that the client hung.
"""

import json
import os
import random
import signal
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer

PARTITIONS = 4
STOP = []
OFFSETS_SECONDS_MAX = 20


def main():
    bootstrap, name, path, kind = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: STOP.append(True))
    with open(path, "a", buffering=1) as journal:
        try:
            Teller(bootstrap, name, journal).run(kind)
        except KafkaException as error:
            # Whoever is asked to begin again will find out what became of it.
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            return 3
    return 0


class Teller:
    def __init__(self, bootstrap, name, journal):
        self.bootstrap, self.name, self.journal = bootstrap, name, journal
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0,
            "transaction.timeout.ms": 8000, "reconnect.backoff.max.ms": 300,
        })
        retried(lambda: self.producer.init_transactions(20))

    def run(self, kind):
        if kind == "direct":
            # Names are never given twice, whatever is killed.
            for number in range(10**9):
                if STOP:
                    return
                self.transfer(f"{self.name}-{time.time_ns()}-{number}", aborted=number % 5 == 4)
            return
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": "tellers", "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "isolation.level": "read_committed", "session.timeout.ms": 6000,
            "reconnect.backoff.max.ms": 300,
        })
        consumer.subscribe(["orders"])
        while not STOP:
            message = consumer.poll(0.5)
            if message is None or message.error():
                continue
            self.transfer(message.value().decode(), consumer=consumer)
        consumer.close()

    def transfer(self, transfer, aborted=False, consumer=None):
        amount, (debit, credit) = random.randrange(1, 100), random.sample(range(PARTITIONS), 2)
        self.journal.write(f"begun {transfer}\n")
        self.producer.begin_transaction()
        for partition, change in ((debit, -amount), (credit, amount)):
            value = json.dumps({"transfer": transfer, "change": change})
            self.producer.produce("accounts", value, partition=partition)
        if consumer is not None:
            positions = consumer.position(consumer.assignment())
            positions = [position for position in positions if position.offset >= 0]
            retried(lambda: self.send_offsets(transfer, positions, consumer.consumer_group_metadata()))
        if aborted:
            # What was not sent yet would be dropped by the client itself, and there would be nothing to abort.
            assert self.producer.flush(90) == 0, "the batches were not acknowledged"
            retried(lambda: self.producer.abort_transaction(20))
            self.journal.write(f"aborted {transfer}\n")
        else:
            retried(lambda: self.producer.commit_transaction(20))
            self.journal.write(f"committed {transfer}\n")

    def send_offsets(self, transfer, positions, group):
        """Commits offsets in the transaction. Ends the process if the client hangs: librdkafka waits for a coordinator
        that was away, sends nothing to it when it is back, and forgets its own timeout (its issues 5456 and 5511)."""
        def end():
            self.journal.write(f"hung {transfer}\n")
            os._exit(3)

        timer = threading.Timer(OFFSETS_SECONDS_MAX + 10, end)
        timer.start()
        try:
            self.producer.send_offsets_to_transaction(positions, group, OFFSETS_SECONDS_MAX)
        finally:
            timer.cancel()


def retried(step):
    """Does a step again as long as the client says that this is all it takes."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return step()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


if __name__ == "__main__":
    sys.exit(main())
