"""Topics through confluent-kafka, a client library that shares nothing with the tools under test: made, filled, read
whole; and what groups have committed. Needs the Python of the set-up's environment."""

import dataclasses

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from . import report

ANSWER_SECONDS = 20
END = -191  # the end of a partition, librdkafka's own code
UNKNOWN_GROUP = 69
NO_COORDINATOR_YET = (14, 15, 16)


@dataclasses.dataclass(frozen=True)
class Record:
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple = ()
    timestamp: int = 0
    offset: int = -1


class Topics:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.admin = AdminClient(self._settings())

    def _settings(self, **more):
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **more}

    def create(self, *names, partitions):
        """Makes them, and before that removes what an earlier run left under a name that a tool has of its own."""
        self.remove(*names)
        for name in names:
            report.until(lambda: self._create(name, partitions), f"topic {name}")

    def remove(self, *names):
        """Removes those that are there."""
        there = [name for name in names if name in self.names()]
        if there:
            for done in self.admin.delete_topics(there).values():
                done.result(ANSWER_SECONDS)
            report.until(lambda: not self.names() & set(there), f"topics {there} to go")

    def _create(self, name, partitions):
        try:
            self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(ANSWER_SECONDS)
        except KafkaException as error:
            # One that is being removed is there for a moment yet.
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return False
            raise
        return True

    def names(self):
        return set(self.admin.list_topics(timeout=ANSWER_SECONDS).topics)

    def send(self, topic, records, **settings):
        """Sends records; those without a timestamp get the time."""
        producer, failed = Producer(self._settings(**{"acks": "all", "linger.ms": 20, **settings})), []
        for record in records:
            producer.produce(topic, record.value, record.key, record.partition, timestamp=record.timestamp,
                             headers=list(record.headers), on_delivery=lambda error, _: error and failed.append(error))
            producer.poll(0)
        left = producer.flush(ANSWER_SECONDS)
        assert not failed and not left, f"{topic}: {left} records not sent, {failed[:1]}"

    def read(self, topic, committed=True):
        """All records of a topic as it is, by partition in order; without `committed`, also those of transactions that
        were aborted or are open."""
        consumer = Consumer(self._settings(**{
            "group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }))
        partitions = consumer.list_topics(topic, ANSWER_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found, ended = {partition: [] for partition in partitions}, set()
        while len(ended) < len(partitions):
            for message in consumer.consume(1000, 0.2):
                if message.error():
                    assert message.error().code() == END, f"{topic}: {message.error()}"
                    ended.add(message.partition())
                    continue
                ended.discard(message.partition())
                found[message.partition()].append(Record(
                    message.partition(), message.key(), message.value(), tuple(message.headers() or ()),
                    message.timestamp()[1], message.offset(),
                ))
        consumer.close()
        return found

    def ends(self, topic):
        """The end of each partition."""
        consumer = Consumer(self._settings(**{"group.id": "none"}))
        partitions = consumer.list_topics(topic, ANSWER_SECONDS).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), ANSWER_SECONDS)[1] for p in partitions}
        consumer.close()
        return ends

    def commit(self, group, topic, offsets):
        consumer = Consumer(self._settings(**{"group.id": group, "enable.auto.commit": False}))
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]

        def done():
            try:
                return consumer.commit(offsets=places, asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in NO_COORDINATOR_YET:
                    raise
                return None

        report.until(done, f"the commit of {group}")
        consumer.close()

    def committed(self, group, topic):
        """{partition: offset} of what a group has committed for a topic."""
        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        try:
            answer = asked[group].result(ANSWER_SECONDS).topic_partitions
        except KafkaException as error:
            if error.args[0].code() != UNKNOWN_GROUP:
                raise
            return {}
        return {found.partition: found.offset for found in answer if found.topic == topic and found.offset >= 0}
