#!/usr/bin/env python3
"""A consumer that commits what it has read, as its own process, until it is killed.

    committer.py BOOTSTRAP NOTES-FILE GROUP assigned|member

`assigned` takes all partitions by itself, `member` joins the group. Commits are synchronous, a few
partitions at a time. Each is noted before it is tried (t slot offset time) and when it is confirmed (c ...).
"""

import os
import random
import sys
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ledger import SLOTS

BATCH = 2000
COMMIT_SECONDS = 0.01


def main():
    bootstrap, path, group, how = sys.argv[1:]
    notes = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    rng = random.Random(group)
    consumer = Consumer({
        "bootstrap.servers": bootstrap,
        "client.id": group,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 20_000,
        "heartbeat.interval.ms": 500,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 50,
        "fetch.wait.max.ms": 50,
        "socket.timeout.ms": 5000,
        "metadata.recovery.strategy": "none",
        "log_level": 3,
    })
    slots = {place: slot for slot, place in enumerate(SLOTS)}
    if how == "assigned":
        consumer.assign([TopicPartition(*place, 0) for place in SLOTS])
    else:
        # What was read under the assignment before counts no more: it is read again from what is committed.
        consumer.subscribe(sorted({topic for topic, _ in SLOTS}), on_assign=lambda *_: positions.clear())
    positions = {}

    def note(kind, offsets):
        when = time.monotonic_ns()
        lines = [f"{kind} {slots[o.topic, o.partition]} {o.offset} {when}\n" for o in offsets]
        os.write(notes, "".join(lines).encode())

    while True:
        for message in consumer.consume(BATCH, 0.05):
            if message.error() is None:
                positions[message.topic(), message.partition()] = message.offset() + 1
        if not positions:
            continue
        chosen = rng.sample(sorted(positions), rng.randint(1, len(positions)))
        offsets = [TopicPartition(*place, positions.pop(place)) for place in chosen]
        note("t", offsets)
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            print(f"not committed: {error}", flush=True)
            for offset in offsets:
                positions.setdefault((offset.topic, offset.partition), offset.offset)
            time.sleep(COMMIT_SECONDS)
            continue
        note("c", [offset for offset in done if offset.error is None])
        time.sleep(COMMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
