"""The confluent-kafka worker of the compatibility suite: librdkafka through its Python client,
driven by one JSON request a line on standard input, answered by one JSON line on standard output.

It knows no test case and judges nothing. What the operations are and what they answer is written
down once, in suite/worker.py. Requests are served each on a thread of its own, so that a group can
rebalance while a producer runs.
"""

import base64
import json
import sys
import threading
import time

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
    TIMESTAMP_NOT_AVAILABLE,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

bootstrap = sys.argv[1]
admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "compat-confluent-admin"})
members = {}

REQUEST_SECONDS = 15
REBALANCING = (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)


def settle(futures):
    """The result of the one future in what an admin call returned."""
    (future,) = futures.values()
    return future.result(REQUEST_SECONDS)


# Topics and the cluster


def cluster():
    found = admin.describe_cluster(request_timeout=REQUEST_SECONDS).result(REQUEST_SECONDS)
    return {
        "cluster_id": found.cluster_id,
        "controller": found.controller.id,
        "brokers": [{"id": n.id, "address": f"{n.host}:{n.port}"} for n in found.nodes],
    }


def create_topic(topic, partitions, configs=None):
    settle(admin.create_topics([NewTopic(topic, partitions, 1, config=configs or {})]))


def topics():
    return list(admin.list_topics(timeout=REQUEST_SECONDS).topics)


def describe_topic(topic):
    found = admin.list_topics(topic, timeout=REQUEST_SECONDS).topics[topic]
    if found.error:
        raise KafkaException(found.error)
    return [
        {"partition": p.id, "leader": p.leader, "replicas": len(p.replicas), "isr": len(p.isrs)}
        for p in sorted(found.partitions.values(), key=lambda p: p.id)
    ]


def create_partitions(topic, total):
    settle(admin.create_partitions([NewPartitions(topic, total)]))


def delete_topic(topic):
    settle(admin.delete_topics([topic]))


def set_config(topic, set=None, unset=None):
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (set or {}).items()
    ] + [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
        for name in unset or []
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    settle(admin.incremental_alter_configs([resource]))


def configs(topic):
    found = settle(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]))
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: {"value": e.value, "own": e.source == own} for name, e in found.items()}


# Records


def produce(topic, records, codec="none", acks="all", idempotent=False, linger_ms=5, pause_ms=0):
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "compat-confluent-producer",
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": idempotent,
            "linger.ms": linger_ms,
            "message.max.bytes": 8 << 20,
            "delivery.timeout.ms": 30_000,
            "request.timeout.ms": 10_000,
        }
    )
    places = [None] * len(records)
    errors = []

    def delivered(index):
        def report(error, message):
            if error:
                errors.append(error)
            else:
                offset = message.offset()
                places[index] = [message.partition(), -1 if offset is None or offset < 0 else offset]

        return report

    for index, record in enumerate(records):
        more = {name: record[name] for name in ("partition", "timestamp") if record.get(name) is not None}
        producer.produce(
            topic,
            key=decoded(record["key"]),
            value=decoded(record["value"]),
            headers=[(name, decoded(value)) for name, value in record["headers"]],
            on_delivery=delivered(index),
            **more,
        )
        producer.poll(0)
        if pause_ms and index % 20 == 19:
            time.sleep(pause_ms / 1000)
    producer.flush(30)
    if errors:
        raise KafkaException(errors[0])
    if None in places:
        raise TimeoutError(f"{places.count(None)} records without a delivery report")
    return places


def settings(group, client_id, **more):
    return {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "group.id": group,
        "group.protocol": "classic",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 250,
        **more,
    }


def read(topic, ends, passes):
    consumer = Consumer(settings("compat-unused", "compat-confluent-consumer"))
    result = []
    for index, starts in enumerate(passes):
        begin = [TopicPartition(topic, int(p), offset) for p, offset in starts.items()]
        if index == 0:
            consumer.assign(begin)
        else:
            for position in begin:
                consumer.seek(position)
        left = {p: ends[p] - offset for p, offset in starts.items() if ends[p] > offset}
        records = []
        while left:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            records.append(described(message))
            partition = str(message.partition())
            if partition in left and message.offset() >= ends[partition] - 1:
                del left[partition]
        result.append(records)
    consumer.close()
    return result


def described(message):
    kind, timestamp = message.timestamp()
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        "key": encoded(message.key()),
        "value": encoded(message.value()),
        "headers": [[name, encoded(value)] for name, value in message.headers() or []],
    }


def list_offsets(topic, partitions, at):
    named = {
        "earliest": OffsetSpec.earliest,
        "latest": OffsetSpec.latest,
        "max_timestamp": OffsetSpec.max_timestamp,
    }
    spec = named[at]() if at in named else OffsetSpec.for_timestamp(at)
    futures = admin.list_offsets(
        {TopicPartition(topic, p): spec for p in partitions},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=REQUEST_SECONDS,
    )
    found = {p.partition: f.result(REQUEST_SECONDS) for p, f in futures.items()}
    return {str(p): [f.offset, f.timestamp] for p, f in found.items()}


# Groups


def commit(group, topic, offsets):
    consumer = Consumer(settings(group, "compat-confluent-consumer"))
    wanted = [TopicPartition(topic, int(p), o, metadata=m) for p, (o, m) in offsets.items()]
    for done in consumer.commit(offsets=wanted, asynchronous=False):
        if done.error:
            raise KafkaException(done.error)
    consumer.close()


def committed(group):
    found = settle(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    return {
        str(p.partition): [p.offset, p.metadata or ""]
        for p in found.topic_partitions
        if p.offset >= 0
    }


def groups():
    found = admin.list_consumer_groups(request_timeout=REQUEST_SECONDS).result(REQUEST_SECONDS)
    if found.errors:
        raise found.errors[0]
    return [g.group_id for g in found.valid]


def describe_group(group):
    found = settle(admin.describe_consumer_groups([group], request_timeout=REQUEST_SECONDS))
    return {
        "state": {"STABLE": "Stable", "EMPTY": "Empty", "DEAD": "Dead"}.get(
            found.state.name, found.state.name
        ),
        "assignor": found.partition_assignor,
        "members": [
            {
                "client_id": m.client_id,
                "instance_id": m.group_instance_id,
                "partitions": sorted(p.partition for p in m.assignment.topic_partitions),
            }
            for m in found.members
        ],
    }


def delete_group(group):
    settle(admin.delete_consumer_groups([group], request_timeout=REQUEST_SECONDS))


class Member(threading.Thread):
    """One group member. It commits after each batch and before it gives a partition up."""

    def __init__(self, configuration, topic):
        super().__init__(daemon=True)
        self.consumer = Consumer(configuration)
        self.topic = topic
        self.records = []
        self.assigned = set()
        self.rebalances = 0
        self.error = None
        self.leaving = False

    def run(self):
        try:
            self.consumer.subscribe(
                [self.topic], on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost
            )
            uncommitted = 0
            while not self.leaving:
                message = self.consumer.poll(0.2 if uncommitted == 0 else 0)
                if message is not None:
                    if message.error():
                        raise KafkaException(message.error())
                    self.records.append(described(message))
                    uncommitted += 1
                if uncommitted and (message is None or uncommitted >= 100):
                    try:
                        self.commit_reached(self.consumer.assignment())
                        uncommitted = 0
                    except KafkaException as error:
                        # While a rebalance is under way the next round makes up for it, or on_revoke.
                        if error.args[0].code() not in REBALANCING:
                            raise
        except Exception as error:
            self.error = repr(error)
        try:
            self.consumer.close()
        except Exception as error:
            self.error = f"close: {error!r}"

    def commit_reached(self, partitions):
        reached = [p for p in self.consumer.position(partitions) if p.offset >= 0]
        if reached:
            self.consumer.commit(offsets=reached, asynchronous=False)

    def on_assign(self, consumer, partitions):
        self.rebalances += 1
        self.assigned.update(p.partition for p in partitions)

    def on_revoke(self, consumer, partitions):
        self.commit_reached(partitions)
        self.assigned.difference_update(p.partition for p in partitions)

    def on_lost(self, consumer, partitions):
        self.error = f"partitions lost: {partitions}"

    def state(self):
        return {
            "assigned": sorted(self.assigned),
            "count": len(self.records),
            "rebalances": self.rebalances,
            "error": self.error,
        }


def join(member, group, topic, assignor, instance_id=None):
    if assignor.startswith("remote "):
        more = {"group.protocol": "consumer", "group.remote.assignor": assignor.removeprefix("remote ")}
    else:
        more = {
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": assignor,
        }
    if instance_id:
        more["group.instance.id"] = instance_id
    members[member] = Member(settings(group, member, **more), topic)
    members[member].start()


def member_states():
    return {name: member.state() for name, member in members.items()}


def leave(member):
    left = members.pop(member)
    left.leaving = True
    left.join()
    return {**left.state(), "records": left.records}


# JSON


def decoded(text):
    return None if text is None else base64.b64decode(text)


def encoded(data):
    if isinstance(data, str):
        data = data.encode()
    return None if data is None else base64.b64encode(data).decode()


OPERATIONS = {
    operation.__name__: operation
    for operation in (
        cluster, create_topic, topics, describe_topic, create_partitions, delete_topic, set_config,
        configs, produce, read, list_offsets, commit, committed, groups, describe_group, delete_group,
        join, leave,
    )
} | {"members": member_states}

output = threading.Lock()


def serve(request):
    identity, operation = request.pop("id"), request.pop("op")
    try:
        if operation not in OPERATIONS:
            raise NotImplementedError(f"no such operation: {operation}")
        answer = {"id": identity, "result": OPERATIONS[operation](**request)}
    except KafkaException as error:
        answer = {"id": identity, "error": error.args[0].str(), "code": error.args[0].code()}
    except Exception as error:
        answer = {"id": identity, "error": repr(error), "code": -1}
    with output:
        print(json.dumps(answer), flush=True)


for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
