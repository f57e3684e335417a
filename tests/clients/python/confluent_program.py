"""The confluent-kafka program of the clients matrix: librdkafka through its Python client."""

import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from lines import decoded, encoded, serve

SECONDS = 20
bootstrap = sys.argv[1]
admin = AdminClient({"bootstrap.servers": bootstrap})


def only(futures):
    (future,) = futures.values()
    return future.result(SECONDS)


def offers():
    operations = ["cluster", "create_topic", "topics", "delete_topic", "replace_configs", "set_config", "configs",
                  "produce", "idempotent", "transact", "transact_offsets", "read", "read_committed", "consume",
                  "committed", "offset_at", "groups", "group_state"]
    operations += [name for name, method in (("delete_records", "delete_records"), ("admin_offset_at", "list_offsets"),
                                             ("delete_group", "delete_consumer_groups")) if hasattr(admin, method)]
    return {"operations": operations, "codecs": ["none", "gzip", "snappy", "lz4", "zstd"], "lacks": []}


def cluster():
    if hasattr(admin, "describe_cluster"):
        found = admin.describe_cluster(request_timeout=SECONDS).result(SECONDS)
        nodes, cluster_id, controller = found.nodes, found.cluster_id, found.controller.id
    else:
        found = admin.list_topics(timeout=SECONDS)
        nodes, cluster_id, controller = found.brokers.values(), found.cluster_id, found.controller_id
    return {"cluster_id": cluster_id, "controller": controller,
            "brokers": [{"id": n.id, "address": f"{n.host}:{n.port}"} for n in nodes]}


def create_topic(topic, partitions, configs):
    only(admin.create_topics([NewTopic(topic, partitions, 1, config=configs)]))


def topics():
    return list(admin.list_topics(timeout=SECONDS).topics)


def delete_topic(topic):
    only(admin.delete_topics([topic]))


def set_config(topic, name, value):
    if not hasattr(admin, "incremental_alter_configs"):
        return replace_configs(topic, name, value)
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    only(admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=[change])]))


def replace_configs(topic, name, value):
    only(admin.alter_configs([ConfigResource("topic", topic, set_config={name: value})]))


def configs(topic):
    return {name: entry.value for name, entry in only(admin.describe_configs([ConfigResource("topic", topic)])).items()}


def produce(topic, records, codec, idempotent):
    return send(Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "acks": "all",
                          "enable.idempotence": idempotent, "linger.ms": 5,
                          "max.in.flight": 1}), topic, records)


def send(producer, topic, records):
    places, errors = [None] * len(records), []

    def delivered(index):
        def report(error, message):
            if error:
                errors.append(error)
            else:
                places[index] = [message.partition(), message.offset()]

        return report

    for index, record in enumerate(records):
        producer.produce(topic, key=decoded(record["key"]), value=decoded(record["value"]),
                         partition=record["partition"], timestamp=record["timestamp"], on_delivery=delivered(index),
                         headers=[(name, decoded(value)) for name, value in record["headers"]])
    producer.flush(SECONDS)
    if errors:
        raise KafkaException(errors[0])
    return places


def transact(topic, records, transaction, commit, group=None, offset=None):
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transaction})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    places = send(producer, topic, records)
    if offset is not None:
        consumer = Consumer(settings(group))
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(),
                                             SECONDS)
        consumer.close()
    (producer.commit_transaction if commit else producer.abort_transaction)(SECONDS)
    return places


def settings(group, committed=False):
    return {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False,
            "enable.auto.offset.store": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 250,
            "session.timeout.ms": 6000,
            "isolation.level": "read_committed" if committed else "read_uncommitted"}


def read(topic, ends, committed):
    consumer = Consumer(settings("unused", committed))
    consumer.assign([TopicPartition(topic, int(p), 0) for p in ends])
    left, records = dict(ends), []
    while left:
        message = checked(consumer.poll(0.25))
        if message is not None:
            records.append(described(message))
            if message.offset() + 1 >= ends[str(message.partition())]:
                left.pop(str(message.partition()), None)
    consumer.close()
    return records


def consume(group, topic, count):
    consumer = Consumer(settings(group))
    consumer.subscribe([topic])
    records, reached = [], {}
    while len(records) < count:
        message = checked(consumer.poll(0.25))
        if message is not None:
            records.append(described(message))
            reached[message.partition()] = message.offset() + 1
    consumer.commit(offsets=[TopicPartition(topic, p, offset) for p, offset in reached.items()], asynchronous=False)
    consumer.close()
    return records


def checked(message):
    if message is not None and message.error():
        raise KafkaException(message.error())
    return message


def described(message):
    return {"partition": message.partition(), "offset": message.offset(), "timestamp": message.timestamp()[1],
            "key": encoded(message.key()), "value": encoded(message.value()),
            "headers": [[name, encoded(value)] for name, value in message.headers() or []]}


def committed(group, topic):
    consumer = Consumer(settings(group))
    partitions = admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    found = consumer.committed([TopicPartition(topic, p) for p in partitions], SECONDS)
    consumer.close()
    return {str(p.partition): p.offset for p in found if p.offset >= 0}


def offset_at(topic, partition, at):
    consumer = Consumer(settings("unused"))
    try:
        if isinstance(at, str):
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)[at == "latest"]
        (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, at)], SECONDS)
        return found.offset
    finally:
        consumer.close()


def admin_offset_at(topic, partition, at):
    from confluent_kafka.admin import OffsetSpec
    spec = getattr(OffsetSpec, at)() if isinstance(at, str) else OffsetSpec.for_timestamp(at)
    return only(admin.list_offsets({TopicPartition(topic, partition): spec})).offset


def delete_records(topic, partition, offset):
    return only(admin.delete_records([TopicPartition(topic, partition, offset)])).low_watermark


def groups():
    if hasattr(admin, "list_consumer_groups"):
        return [group.group_id for group in admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS).valid]
    return [group.id for group in admin.list_groups(timeout=SECONDS)]


def group_state(group):
    if hasattr(admin, "describe_consumer_groups"):
        return only(admin.describe_consumer_groups([group], request_timeout=SECONDS)).state.name
    (found,) = admin.list_groups(group, timeout=SECONDS)
    return found.state


def delete_group(group):
    only(admin.delete_consumer_groups([group], request_timeout=SECONDS))


serve(globals())
