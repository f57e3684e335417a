"""The Python worker of tests/image: the module for Kafka of Testcontainers, unchanged, with an image of ours in the place of theirs.

    library.py zookeeper|kraft IMAGE RECORDS

It starts a container, sends RECORDS records, reads them back and prints a line for each that it read, below a line with the seconds of
the start. It judges nothing: libraries.py compares.
"""

import sys
import time

from confluent_kafka import Consumer, Producer
from testcontainers.kafka import KafkaContainer

TOPIC = "records"
READ_SECONDS = 30


def main():
    kind, image, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    container = KafkaContainer(image)
    if kind == "kraft":
        container.with_kraft()
    begin = time.monotonic()
    with container as kafka:
        print(f"started {time.monotonic() - begin:.1f}", flush=True)
        bootstrap = kafka.get_bootstrap_server()
        send(bootstrap, records)
        read(bootstrap, records)


def send(bootstrap, records):
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(records):
        producer.produce(TOPIC, key=f"key {number}", value=f"record {number}")
    left = producer.flush(READ_SECONDS)
    if left:
        raise TimeoutError(f"{left} records are not acknowledged")


def read(bootstrap, records):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + READ_SECONDS
    found = 0
    while found < records and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            print(message.value().decode())
            found += 1
    consumer.close()


if __name__ == "__main__":
    main()
