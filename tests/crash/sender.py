#!/usr/bin/env python3
"""A producer as its own process: sends until SIGTERM, then waits for what is in flight and ends.

    sender.py BOOTSTRAP NOTES-DIRECTORY SENDER PROFILE SEED

acks=all and idempotent unless the profile says otherwise; what it sent and what was acknowledged goes to its notes
(ledger.py). A record that fails for good is printed and makes the exit code 1: the server came back in time, so there
is no reason to.
"""

import functools
import random
import signal
import sys
import time
from pathlib import Path

from confluent_kafka import Producer

from ledger import SLOTS, SenderNotes, value_of

# The rate keeps the whole run's data below what can be read back in the time there is.
PROFILES = {
    "small": {"payload": (0, 300), "run": 60, "rate": 6000, "linger.ms": 1, "compression.type": "none"},
    "large": {"payload": (1000, 120_000), "run": 3, "rate": 60, "linger.ms": 15, "compression.type": "lz4"},
    "mixed": {"payload": (10, 4000), "run": 20, "rate": 1500, "linger.ms": 5},
    # What was acknowledged is with the device, and outlives the server. It sends nothing again, which might be there twice.
    "hurried": {"payload": (10, 4000), "run": 20, "rate": 1500, "linger.ms": 5, "acks": "1", "enable.idempotence": False,
                "retries": 0},
    # Only where no connection breaks: what it sends again would be there twice.
    "plain": {"payload": (10, 2000), "run": 15, "rate": 1500, "linger.ms": 2, "enable.idempotence": False},
}
CODECS = ("zstd", "gzip", "snappy", "lz4", "none")
POOL_BYTES = 1 << 20
FLUSH_SECONDS = 30
PAUSE_SECONDS = 0.005


def configuration(bootstrap, sender, profile):
    return {
        "bootstrap.servers": bootstrap,
        "client.id": f"sender-{sender}",
        "enable.idempotence": profile.get("enable.idempotence", True),
        # A second try must not overtake: without idempotence nothing else keeps the order.
        "max.in.flight": 5 if profile.get("enable.idempotence", True) else 1,
        "acks": profile.get("acks", "all"),
        "retries": profile.get("retries", 2**31 - 1),
        "linger.ms": profile["linger.ms"],
        "compression.type": profile.get("compression.type", CODECS[sender % len(CODECS)]),
        "message.timeout.ms": 120_000,
        "queue.buffering.max.messages": 20_000,
        "queue.buffering.max.kbytes": 32_768,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 50,
        # It forgets a broker that is gone, and comes back to it only after many seconds (KIP-899).
        "metadata.recovery.strategy": "none",
        "log_level": 3,
    }


def main():
    bootstrap, directory, sender, profile, seed = sys.argv[1:]
    sender, profile, rng = int(sender), PROFILES[profile], random.Random(f"{seed} {sender}")
    pool = rng.randbytes(POOL_BYTES // 2).hex().encode()
    notes = SenderNotes(Path(directory), sender)
    producer = Producer(configuration(bootstrap, sender, profile))
    failed, stopping = [], []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))

    def delivered(slot, sequence, error, message):
        if error is None:
            notes.acknowledge(slot, sequence, message.offset())
        else:
            failed.append(f"record {sequence} for {SLOTS[slot]}: {error}")

    begin, count = time.monotonic(), 0
    while not stopping and not failed:
        slot = rng.randrange(len(SLOTS))
        topic, partition = SLOTS[slot]
        for _ in range(rng.randrange(1, 2 * profile["run"])):
            payload_bytes = rng.randint(*profile["payload"])
            at = rng.randrange(POOL_BYTES - payload_bytes)
            sequence = notes.sent[slot]
            value = value_of(sender, slot, sequence, pool[at:at + payload_bytes])
            notes.sent[slot] = sequence + 1
            while not stopping:
                try:
                    on_delivery = functools.partial(delivered, slot, sequence)
                    producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
                    count += 1
                    break
                except BufferError:
                    producer.poll(0.02)
                    notes.write()
        producer.poll(0)
        notes.write()
        while count > (time.monotonic() - begin) * profile["rate"] and not stopping:
            producer.poll(PAUSE_SECONDS)
            notes.write()
    left = producer.flush(FLUSH_SECONDS)
    notes.write()
    for line in failed[:5]:
        print(line, flush=True)
    if left:
        print(f"{left} records were not settled after {FLUSH_SECONDS} s", flush=True)
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
