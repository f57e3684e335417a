"""The aiokafka program of the clients matrix, on its releases 0.8 and later."""

import asyncio
import contextlib
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from lines import decoded, encoded, serve

try:
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
except ImportError:  # Before 0.9 it took them from kafka-python.
    from kafka.admin import ConfigResource, ConfigResourceType

bootstrap = sys.argv[1]
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)


def in_loop(operation):
    return lambda **arguments: loop.run_until_complete(operation(**arguments))


@contextlib.asynccontextmanager
async def started(client):
    await client.start()
    try:
        yield client
    finally:
        await (client.close if hasattr(client, "close") else client.stop)()


def administration():
    return started(AIOKafkaAdminClient(bootstrap_servers=bootstrap))


async def offers():
    operations = ["cluster", "create_topic", "topics", "delete_topic", "set_config", "replace_configs", "configs",
                  "produce", "idempotent", "transact", "transact_offsets", "read", "read_committed", "consume",
                  "committed", "offset_at", "groups", "group_state"]
    if hasattr(AIOKafkaAdminClient, "delete_records"):
        operations.append("delete_records")
    return {"operations": operations, "codecs": ["none", "gzip", "snappy", "lz4", "zstd"],
            "lacks": ["cluster id", "neither key nor value"]}


# The cluster and its topics


async def cluster():
    async with administration() as admin:
        found = await admin.describe_cluster()
    return {"controller": found["controller_id"], "brokers": [
        {"id": b["node_id"], "address": f"{b['host']}:{b['port']}"} for b in found["brokers"]]}


def refuse(answer):
    """The administration hands over the answer with its errors in it."""
    for name, code, *_ in getattr(answer, "topic_errors", None) or getattr(answer, "topic_error_codes", ()):
        if code:
            raise RuntimeError(f"error {code} for {name}")


async def create_topic(topic, partitions, configs):
    async with administration() as admin:
        refuse(await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)]))


async def topics():
    async with administration() as admin:
        return await admin.list_topics()


async def delete_topic(topic):
    async with administration() as admin:
        refuse(await admin.delete_topics([topic]))


async def replace_configs(topic, name, value):
    async with administration() as admin:
        (answer,) = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})])
    for code, message, *_ in answer.resources:
        if code:
            raise RuntimeError(f"error {code}: {message}")


async def configs(topic):
    async with administration() as admin:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((code, message, _, _, entries),) = answer.resources
    if code:
        raise RuntimeError(f"error {code}: {message}")
    return {entry[0]: entry[1] for entry in entries}


# Records


async def produce(topic, records, codec, idempotent):
    async with started(AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, enable_idempotence=idempotent,
                                        compression_type=None if codec == "none" else codec)) as producer:
        return await send(producer, topic, records)


async def send(producer, topic, records):
    sent = [
        await producer.send(topic, key=decoded(record["key"]), value=decoded(record["value"]),
                            partition=record["partition"], timestamp_ms=record["timestamp"],
                            headers=[(name, decoded(value)) for name, value in record["headers"]])
        for record in records
    ]
    await producer.flush()
    return [[place.partition, place.offset] for place in await asyncio.gather(*sent)]


async def transact(topic, records, transaction, commit, group=None, offset=None):
    async with started(AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transaction)) as producer:
        await producer.begin_transaction()
        places = await send(producer, topic, records)
        if offset is not None:
            await producer.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, group)
        await (producer.commit_transaction if commit else producer.abort_transaction)()
        return places


def consumer(*topics, group=None, committed=False):
    return started(AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False,
                                    auto_offset_reset="earliest", fetch_max_wait_ms=250,
                                    isolation_level="read_committed" if committed else "read_uncommitted"))


async def read(topic, ends, committed):
    partitions = {TopicPartition(topic, int(p)): end for p, end in ends.items()}
    records = []
    async with consumer(committed=committed) as reader:
        reader.assign(list(partitions))
        while any([await reader.position(p) < end for p, end in partitions.items()]):
            for found in (await reader.getmany(timeout_ms=250)).values():
                records += [described(record) for record in found]
    return records


async def consume(group, topic, count):
    records, reached = [], {}
    async with consumer(topic, group=group) as reader:
        while len(records) < count:
            record = await reader.getone()
            records.append(described(record))
            reached[TopicPartition(topic, record.partition)] = record.offset + 1
        await reader.commit(reached)
    return records


def described(record):
    return {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp,
            "key": encoded(record.key), "value": encoded(record.value),
            "headers": [[name, encoded(value)] for name, value in record.headers]}


async def offset_at(topic, partition, at):
    place = TopicPartition(topic, partition)
    async with consumer() as reader:
        if isinstance(at, str):
            return (await (reader.beginning_offsets if at == "earliest" else reader.end_offsets)([place]))[place]
        found = (await reader.offsets_for_times({place: at}))[place]
    return -1 if found is None else found.offset


async def delete_records(topic, partition, offset):
    from aiokafka.admin import RecordsToDelete
    place = TopicPartition(topic, partition)
    async with administration() as admin:
        return (await admin.delete_records({place: RecordsToDelete(before_offset=offset)}))[place]


# Groups


async def committed(group, topic):
    async with administration() as admin:
        found = await admin.list_consumer_group_offsets(group)
    return {str(place.partition): about.offset for place, about in found.items() if place.topic == topic}


async def groups():
    async with administration() as admin:
        return [name for name, *_ in await admin.list_consumer_groups()]


async def group_state(group):
    async with administration() as admin:
        (answer,) = await admin.describe_consumer_groups([group])
    ((code, _, state, *_),) = answer.groups
    if code:
        raise RuntimeError(f"error {code} for {group}")
    return state


serve({operation.__name__: in_loop(operation) for operation in (
    offers, cluster, create_topic, topics, delete_topic, replace_configs, configs, produce, transact, read, consume,
    offset_at, delete_records, committed, groups, group_state)} | {"set_config": in_loop(replace_configs)})
