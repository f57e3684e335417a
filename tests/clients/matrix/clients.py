"""The clients of the matrix: each a release of a library, and the program that speaks for it.

A release stands here, and where its ecosystem has a file for pins, in that: python/*.txt, javascript/package.json,
go/*/*.mod, rust/Cargo.toml. `short` marks the representative ones of `run --short`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    library: str
    version: str
    family: str  # how it is brought and started: see setup.py
    variant: str  # which of the family's environments, builds or programs
    short: bool = False

    @property
    def name(self):
        return f"{self.library} {self.version}"


# 3.6.1 is what the OpenMessaging Benchmark brings; of the others, the newest patch.
JAVA = ("2.1.1", "2.8.2", "3.0.2", "3.3.2", "3.5.2", "3.6.1", "3.6.2", "3.7.2", "3.8.1", "3.9.2", "4.0.2", "4.1.2", "4.4.0")
JAVA_SHORT = ("2.1.1", "2.8.2", "3.3.2", "3.6.2", "4.4.0")

CLIENTS = (
    *(Client("kafka-clients", version, "java", version, version in JAVA_SHORT) for version in JAVA),
    Client("confluent-kafka", "2.0.2", "python", "confluent-old", True),
    Client("confluent-kafka", "2.16.1", "python", "confluent-new", True),
    Client("kafka-python", "1.4.7", "python", "kafka-python-old", True),
    Client("kafka-python", "2.0.2", "python", "kafka-python-2.0"),
    Client("kafka-python", "3.0.12", "python", "kafka-python-new", True),
    Client("aiokafka", "0.8.0", "python", "aiokafka-old"),
    Client("aiokafka", "0.14.0", "python", "aiokafka-new"),
    Client("kafkajs", "2.2.4", "javascript", "kafkajs", True),
    Client("@platformatic/kafka", "1.35.0", "javascript", "platformatic"),
    Client("sarama", "1.38.1", "go", "sarama-old", True),
    Client("sarama", "1.61.1", "go", "sarama-new", True),
    Client("franz-go", "1.0.0", "go", "franz-old", True),
    Client("franz-go", "1.22.3", "go", "franz-new"),
    Client("kafka-go", "0.4.0", "go", "kafkago-old"),
    Client("kafka-go", "0.4.51", "go", "kafkago-new", True),
    Client("rskafka", "0.6.0", "rust", "rskafka"),
)
