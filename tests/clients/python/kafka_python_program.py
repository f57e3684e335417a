"""The kafka-python program of the clients matrix, on its releases 1.4, 2 and 3. What a release lacks is not offered."""

import sys

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.structs import OffsetAndMetadata
from lines import decoded, encoded, serve

bootstrap = sys.argv[1]
release = tuple(int(part) for part in kafka.__version__.split(".")[:2])
# Each with its operations in place of those of release 2 where they are called otherwise.
three = release >= (3, 0)
admin = KafkaAdminClient(bootstrap_servers=bootstrap)


def offers():
    operations = ["create_topic", "topics", "delete_topic", "set_config", "replace_configs", "configs", "produce",
                  "read", "read_committed", "consume", "committed", "offset_at", "groups", "group_state"]
    if hasattr(admin, "describe_cluster"):
        operations.append("cluster")
    if three:
        operations += ["idempotent", "transact", "transact_offsets", "delete_records", "features", "admin_offset_at"]
    if hasattr(admin, "delete_consumer_groups") or three:
        operations.append("delete_group")
    codecs = ["none", "gzip", "snappy", "lz4"] + (["zstd"] if release >= (2, 0) else [])
    return {"operations": operations, "codecs": codecs, "lacks": ["null headers", "neither key nor value"]}


# The cluster and its topics


def cluster():
    found = admin.describe_cluster()
    return {"cluster_id": found["cluster_id"], "controller": found["controller_id"],
            "brokers": [{"id": b.get("node_id", b.get("broker_id")), "address": f"{b['host']}:{b['port']}"}
                        for b in found["brokers"]]}


def features():
    found = admin.describe_features()
    return {name: list(about["supported"]) for name, about in found.items() if "supported" in about}


def create_topic(topic, partitions, configs):
    admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])


def topics():
    if hasattr(admin, "list_topics"):
        return list(admin.list_topics())
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    found = list(consumer.topics())
    consumer.close()
    return found


def delete_topic(topic):
    admin.delete_topics([topic])


def resource(topic, settings):
    return ConfigResource(ConfigResourceType.TOPIC, topic, configs=settings)


def set_config(topic, name, value):
    if three:
        admin.alter_configs([resource(topic, {name: value})])
    else:
        replace_configs(topic, name, value)


def replace_configs(topic, name, value):
    if three:
        # Which sends along what is set already: the server is to reset it, so this says so of it.
        admin.reset_configs([resource(topic, {"cleanup.policy": None})])
        admin.alter_configs([resource(topic, {name: value})], incremental=False)
    else:
        refuse(admin.alter_configs([resource(topic, {name: value})]))


def refuse(answer):
    """Release 2 and earlier hand over the answer with its errors in it."""
    for code, message, *_ in answer.resources:
        if code:
            raise RuntimeError(f"error {code}: {message}")


def configs(topic):
    if three:
        found = admin.describe_configs([resource(topic, None)], config_filter="all")
        (settings,) = (named[topic] for named in found.values() if topic in named)
        return {name: about["value"] for name, about in settings.items()}
    answers = admin.describe_configs([resource(topic, None)])
    (answer,) = answers if isinstance(answers, list) else [answers]
    refuse(answer)
    ((_, _, _, _, entries),) = answer.resources
    return {entry[0]: entry[1] for entry in entries}


# Records


def produce(topic, records, codec, idempotent):
    more = {"enable_idempotence": idempotent} if three else {}
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, max_in_flight_requests_per_connection=1,
                             compression_type=None if codec == "none" else codec, **more)
    try:
        return send(producer, topic, records)
    finally:
        producer.close()


def send(producer, topic, records):
    futures = [
        producer.send(topic, key=decoded(record["key"]), value=decoded(record["value"]), partition=record["partition"],
                      timestamp_ms=record["timestamp"], headers=[(n, decoded(v)) for n, v in record["headers"]])
        for record in records
    ]
    producer.flush()
    found = [future.get(20) for future in futures]
    return [[one.partition, one.offset] for one in found]


def transact(topic, records, transaction, commit, group=None, offset=None):
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transaction)
    producer.init_transactions()
    producer.begin_transaction()
    places = send(producer, topic, records)
    if offset is not None:
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}, group)
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    producer.close()
    return places


def consumer(group=None, committed=False):
    more = {"isolation_level": "read_committed" if committed else "read_uncommitted"} if release >= (2, 1) else {}
    return KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, fetch_max_wait_ms=250,
                         auto_offset_reset="earliest", **more)


def read(topic, ends, committed):
    reader = consumer(committed=committed)
    partitions = {TopicPartition(topic, int(p)): end for p, end in ends.items()}
    reader.assign(list(partitions))
    records = []
    while any(reader.position(p) < end for p, end in partitions.items()):
        for found in reader.poll(250).values():
            records += [described(record) for record in found]
    reader.close()
    return records


def consume(group, topic, count):
    reader = consumer(group)
    # Release 3 can stay without its partitions for good if it joins before it knows the topic, with Apache Kafka too.
    reader.partitions_for_topic(topic)
    reader.subscribe([topic])
    records, reached = [], {}
    while len(records) < count:
        for partition, found in reader.poll(250, max_records=10).items():
            for record in found[:count - len(records)]:
                records.append(described(record))
                reached[partition] = offset_and_metadata(record.offset + 1)
    reader.commit(reached)
    reader.close()
    return records


def offset_and_metadata(offset):
    return OffsetAndMetadata(offset, "", *([-1] if "leader_epoch" in OffsetAndMetadata._fields else []))


def described(record):
    return {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp,
            "key": encoded(record.key), "value": encoded(record.value),
            "headers": [[name, encoded(value)] for name, value in record.headers]}


def offset_at(topic, partition, at):
    reader, place = consumer(), TopicPartition(topic, partition)
    try:
        if isinstance(at, str):
            return (reader.beginning_offsets if at == "earliest" else reader.end_offsets)([place])[place]
        found = reader.offsets_for_times({place: at})[place]
        return -1 if found is None else found.offset
    finally:
        reader.close()


def admin_offset_at(topic, partition, at):
    place = TopicPartition(topic, partition)
    from kafka.admin import OffsetSpec
    wanted = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}.get(at, at)
    return admin.list_partition_offsets({place: wanted})[place].offset


def delete_records(topic, partition, offset):
    place = TopicPartition(topic, partition)
    return admin.delete_records({place: offset})[place]["low_watermark"]


# Groups


def committed(group, topic):
    found = admin.list_group_offsets([group])[group] if three else admin.list_consumer_group_offsets(group)
    return {str(place.partition): about.offset for place, about in found.items() if place.topic == topic}


def groups():
    if three:
        return [one["group_id"] for one in admin.list_groups()]
    return [name for name, _ in admin.list_consumer_groups()]


def group_state(group):
    if three:
        return admin.describe_groups([group])[group]["group_state"]
    (found,) = admin.describe_consumer_groups([group])
    return found.state if hasattr(found, "state") else found[2]


def delete_group(group):
    if three:
        admin.delete_groups([group])
    else:
        ((_, error),) = admin.delete_consumer_groups([group])
        if error.errno:
            raise error


serve(globals())
