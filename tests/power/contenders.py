"""The servers whose power is cut. Each keeps its data on the disk and its log beside it."""

import subprocess

from confluent_kafka import KafkaException

from suite import place
from suite.kafka import KafkaProcess
from suite.ports import free_address
from suite.report import until
from suite.server import Server

# Rounds are shorter than the three seconds that a new group waits for more members.
GROUPS_AT_ONCE = "group.initial.rebalance.delay.ms=0"
# Short ones, so that cuts meet the change from one to the next, and what is prepared ahead.
SEGMENTS = "log.segment.bytes=33554432"
# Kafka's controller keeps a broker that comes back waiting until the session from before the cut is over.
SESSION = [("broker.session.timeout.ms", 3000), ("broker.heartbeat.interval.ms", 500)]
# Every message is flushed before it is answered; offsets that are committed are messages too.
FLUSH = ("log.flush.interval.messages", 1)


class Mainstem(Server):
    name = "mainstem"

    def __init__(self, directory):
        super().__init__(None, directory, free_address(), [GROUPS_AT_ONCE, SEGMENTS])

    def __enter__(self):
        """Started only when the disk is ready."""
        return self

    def end(self):
        """SIGKILL, if it runs."""
        self.__exit__()

    def prepare(self):
        """A server of ours takes an empty disk as it is."""

    def settle(self, load):
        """It is ready when it says so."""


class Kafka:
    """Apache Kafka as it comes, but for what one node forces; `settings` are pairs."""

    def __init__(self, name, directory, settings=()):
        self.name, self.settings = name, settings
        self.directory, self.data = directory / name, directory / "data" / "kafka"
        self.directory.mkdir()
        self.bootstrap, self.controller = free_address(), free_address()
        self.broker = KafkaProcess(jars(), self.directory, self.properties())

    def properties(self):
        clients, controller = f"PLAINTEXT://{self.bootstrap}", f"CONTROLLER://{self.controller}"
        key, _, value = GROUPS_AT_ONCE.partition("=")
        return [
            ("process.roles", "broker,controller"), ("node.id", 1), ("controller.listener.names", "CONTROLLER"),
            ("controller.quorum.bootstrap.servers", self.controller), ("listeners", f"{clients},{controller}"),
            ("advertised.listeners", clients), ("log.dirs", self.data),
            ("offsets.topic.replication.factor", 1), (key, value), *SESSION, *self.settings,
        ]

    def prepare(self):
        self.broker.format()

    def start(self):
        return self.broker.start()

    def settle(self, load):
        """It says that it is started and goes on to find out what it leads."""

        def answers():
            try:
                load.group_ends()
                return all(load.committed(group) is not None for group in load.groups)
            except (KafkaException, AssertionError):
                return False

        until(answers, "Kafka to lead its partitions")

    def kill(self):
        self.broker.kill()

    def end(self):
        """SIGKILL, if it runs."""
        self.broker.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def jars():
    """Where Kafka's jars are, fetched at the first time."""
    fetched = subprocess.run([place.MAINSTEM_BENCH, "fetch-kafka"], stdout=subprocess.PIPE, text=True, check=True)
    return fetched.stdout.strip()


CONTENDERS = {
    "mainstem": Mainstem,
    "kafka": lambda directory: Kafka("kafka", directory),
    "kafka-durable": lambda directory: Kafka("kafka-durable", directory, [FLUSH]),
}
