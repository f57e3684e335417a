"""What the differential test asks: scripts of requests, the same for both servers.

A request's fields have kmsg's names. Every script makes what it needs under names of its own, and waits for nothing but
answers.
"""

import base64
import struct
import sys
import time

sys.path.insert(0, str(__import__("pathlib").Path(__file__).resolve().parents[2] / "hostile"))

import wire  # noqa: E402

SETTINGS = ["group.initial.rebalance.delay.ms=0", "auto.create.topics.enable=false", "num.partitions=1"]
(PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC,
 DESCRIBE_GROUPS) = (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15)
CREATE, DELETE, DELETE_RECORDS, INIT_PRODUCER, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_COMMIT = (
    19, 20, 21, 22, 24, 25, 26, 28)
DESCRIBE_CONFIGS, ALTER_CONFIGS, CREATE_PARTITIONS, DELETE_GROUPS, ELECT, INCREMENTAL, REASSIGN, LIST_REASSIGN = (
    32, 33, 37, 42, 43, 44, 45, 46)
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
DESCRIBE_QUORUM, UPDATE_FEATURES, UNREGISTER = 55, 57, 64
OFFSET_DELETE, DESCRIBE_PRODUCERS, DESCRIBE_TXNS, LIST_TXNS, DESCRIBE_PARTITIONS = 47, 61, 65, 66, 75
LIST_GROUPS, CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 16, 68, 69
DESCRIBE_QUOTAS, ALTER_QUOTAS, GET_SUBSCRIPTIONS, PUSH_TELEMETRY, LIST_RESOURCES = 48, 49, 71, 72, 74
# Kinds of resources with settings, and operations on a setting.
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, UNSET, APPEND, SUBTRACT = 0, 1, 2, 3
# Seconds, for a change of settings.
SETTLING = 0.3
TRANSACTIONAL = 0x10


def create(peer, topic, partitions=1, configs=(), label="create", note=False):
    body = {"Topics": [{"Topic": topic, "NumPartitions": partitions, "ReplicationFactor": 1,
                        "Configs": [{"Name": name, "Value": value} for name, value in configs]}],
            "TimeoutMillis": 10_000}
    answer = peer.ask(label, CREATE, 7, body, note)
    if answer["Topics"][0]["ErrorCode"] == 0:
        served(peer, topic, partitions)
    return answer


def served(peer, topic, partitions):
    """They are there; Kafka's controller answers before its broker has made them."""
    for partition in range(partitions):
        for _ in range(100 if peer.late else 1):
            answer = peer.ask("", LIST_OFFSETS, 7, {"ReplicaID": -1, "Topics": [{"Topic": topic, "Partitions": [
                {"Partition": partition, "CurrentLeaderEpoch": -1, "Timestamp": -1}]}]}, note=False)
            if not any(codes(answer)):
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"partition {partition} of {topic} is not there: {answer}")


def settle(peer):
    """Until a change of settings is in force."""
    if peer.late:
        time.sleep(SETTLING)


def produce(peer, label, topic, batch, version=11, partition=0, transactional_id=None, acks=-1):
    data = None if batch is None else base64.b64encode(batch).decode()
    body = {"TransactionID": transactional_id, "Acks": acks, "TimeoutMillis": 10_000,
            "Topics": [{"Topic": topic, "Partitions": [{"Partition": partition, "Records": data}]}]}
    return peer.ask(label, PRODUCE, version, body)


def batch(values, **fields):
    return wire.batch(values, timestamp=int(time.time() * 1000), **fields)


def fetch(peer, label, topic, offset, isolation=0, version=12, partition=0):
    body = {"ReplicaID": -1, "MaxWaitMillis": 0, "MinBytes": 1, "MaxBytes": 1 << 20, "IsolationLevel": isolation,
            "SessionID": 0, "SessionEpoch": -1,
            "Topics": [{"Topic": topic, "Partitions": [{
                "Partition": partition, "CurrentLeaderEpoch": -1, "FetchOffset": offset, "LastFetchedEpoch": -1,
                "LogStartOffset": -1, "PartitionMaxBytes": 1 << 20,
                # kmsg's default, which it does not give to parts of arrays.
                "HighWatermark": (1 << 63) - 1}]}]}
    answer = peer.ask(label, FETCH, version, body, note=False)
    for of in answer["Topics"]:
        for partition in of["Partitions"]:
            # The batches differ in their times and leader epochs; their number and offsets do not.
            partition["RecordBatches"] = offsets_of(base64.b64decode(partition["RecordBatches"] or ""))
    peer.answers.append((label, peer.named(answer)))


def offsets_of(data):
    found = []
    while len(data) >= 61:
        length = int.from_bytes(data[8:12], "big") + 12
        found.append([int.from_bytes(data[0:8], "big"), int.from_bytes(data[57:61], "big"), data[22] & 0x30])
        data = data[length:]
    return found


def offsets(peer, label, topic, timestamp, isolation=0, version=7, partition=0):
    body = {"ReplicaID": -1, "IsolationLevel": isolation, "Topics": [{"Topic": topic, "Partitions": [
        {"Partition": partition, "CurrentLeaderEpoch": -1, "Timestamp": timestamp}]}]}
    return peer.ask(label, LIST_OFFSETS, version, body)


def coordinator(peer, key, kind):
    """Until the coordinator is there: internal topics are made on first use."""
    for _ in range(100):
        answer = peer.ask("", FIND_COORDINATOR, 4, {"CoordinatorType": kind, "CoordinatorKeys": [key]}, note=False)
        if answer["Coordinators"][0]["ErrorCode"] == 0:
            return
        time.sleep(0.1)


class Producer:
    def __init__(self, peer, transactional_id, label=None, timeout=60_000, version=5, attempts=100):
        self.peer, self.id = peer, transactional_id
        coordinator(peer, transactional_id, 1)
        for _ in range(attempts):
            answer = peer.ask("", INIT_PRODUCER, version, {
                "TransactionalID": transactional_id, "TransactionTimeoutMillis": timeout, "ProducerID": -1,
                "ProducerEpoch": -1}, note=False)
            # While Kafka ends what the last instance left.
            if answer["ErrorCode"] != 51:
                break
            time.sleep(0.1)
        if label:
            peer.answers.append((label, peer.named(answer)))
        self.pid, self.epoch, self.sequences = answer["ProducerID"], answer["ProducerEpoch"], {}

    def batch(self, topic, values, **fields):
        sequence = self.sequences.get(topic, 0)
        return batch(values, **{"attributes": TRANSACTIONAL, "producer": self.pid, "epoch": self.epoch,
                                "sequence": sequence, **fields})

    def send(self, label, topic, values, version=11, **fields):
        answer = produce(self.peer, label, topic, self.batch(topic, values, **fields), version,
                         transactional_id=self.id)
        if answer["Topics"][0]["Partitions"][0]["ErrorCode"] == 0:
            self.sequences[topic] = self.sequences.get(topic, 0) + len(values)

    def add(self, label, topic, partitions=(0,), version=3, **changed):
        body = {"TransactionalID": self.id, "ProducerID": self.pid, "ProducerEpoch": self.epoch,
                "Topics": [{"Topic": topic, "Partitions": list(partitions)}], **changed}
        return self.settled(label, ADD_PARTITIONS, version, body)

    def end(self, label, commit, version=4, **changed):
        body = {"TransactionalID": self.id, "ProducerID": self.pid, "ProducerEpoch": self.epoch, "Commit": commit,
                **changed}
        answer = self.settled(label, END, version, body)
        if version >= 5 and answer["ErrorCode"] == 0:
            self.pid, self.epoch, self.sequences = answer["ProducerID"], answer["ProducerEpoch"], {}
        # Until the markers are written: an answer of Kafka does not wait for them.
        for _ in range(100):
            described = self.peer.ask("", DESCRIBE_TXNS, 0, {"TransactionalIDs": [self.id]}, note=False)
            if not described["TransactionStates"][0]["State"].startswith("Prepare"):
                break
            time.sleep(0.05)
        return answer

    def settled(self, label, key, version, body):
        """Kafka says CONCURRENT_TRANSACTIONS while the last transaction is being completed."""
        for _ in range(100):
            answer = self.peer.ask("", key, version, body, note=False)
            if 51 not in codes(answer):
                break
            time.sleep(0.05)
        self.peer.answers.append((label, self.peer.named(answer)))
        return answer


def codes(value):
    if isinstance(value, dict):
        return [code for key, item in value.items()
                for code in ([item] if key == "ErrorCode" else codes(item))]
    return [code for item in value for code in codes(item)] if isinstance(value, list) else []


def topics(peer):
    create(peer, "made", 2, [("retention.ms", "1000000")], "create", True)
    create(peer, "made", 2, (), "again", True)
    create(peer, "bad name!", 1, (), "bad name", True)
    create(peer, "odd", 0, (), "no partitions", True)
    create(peer, "odd", 1, [("no.such", "1")], "unknown config", True)
    create(peer, "odd", 1, [("retention.ms", "soon")], "bad config", True)
    for label, body in {
        "metadata of it": {"Topics": [{"Topic": "made"}]},
        "metadata of another": {"Topics": [{"Topic": "nowhere"}]},
        "metadata of a bad name": {"Topics": [{"Topic": "bad name!"}]},
    }.items():
        peer.ask(label, METADATA, 12, {"AllowAutoTopicCreation": False, **body})
    for label, count, assignment in (("grow", 3, None), ("shrink", 1, None), ("same", 3, None)):
        peer.ask(label, CREATE_PARTITIONS, 3, {"Topics": [{"Topic": "made", "Count": count, "Assignment": assignment}],
                                               "TimeoutMillis": 10_000})
    served(peer, "made", 3)
    peer.ask("grow nothing", CREATE_PARTITIONS, 3, {"Topics": [{"Topic": "nowhere", "Count": 3}],
                                                    "TimeoutMillis": 10_000})
    peer.ask("describe partitions", DESCRIBE_PARTITIONS, 0, {
        "Topics": [{"Topic": "made"}, {"Topic": "nowhere"}], "ResponsePartitionLimit": 2})
    for kind in (0, 1, 7):
        peer.ask(f"elect {kind}", ELECT, 2, {"ElectionType": kind, "TimeoutMillis": 1000, "Topics": [
            {"Topic": "made", "Partitions": [0, 9]}, {"Topic": "nowhere", "Partitions": [0]}]})
    # There is no other topic yet: the first script has to be this one.
    peer.ask("elect all", ELECT, 2, {"ElectionType": 0, "TimeoutMillis": 1000, "Topics": None})
    for label, replicas in (("to itself", [1]), ("to another", [2]), ("twice", [1, 1]), ("to none", []),
                            ("cancel", None)):
        peer.ask(f"reassign {label}", REASSIGN, 0, {"TimeoutMillis": 1000, "Topics": [{"Topic": "made", "Partitions": [
            {"Partition": 0, "Replicas": replicas}]}]})
    peer.ask("reassign nothing", REASSIGN, 0, {"TimeoutMillis": 1000, "Topics": [
        {"Topic": "nowhere", "Partitions": [{"Partition": 0, "Replicas": [1]}]}]})
    peer.ask("reassignments", LIST_REASSIGN, 0, {"TimeoutMillis": 1000, "Topics": None})
    for label, topic, partition, offset in (("empty", "made", 0, 0), ("beyond", "made", 0, 5), ("all", "made", 0, -1),
                                            ("no partition", "made", 9, 0), ("no topic", "nowhere", 0, 0)):
        peer.ask(f"delete records {label}", DELETE_RECORDS, 2, {"TimeoutMillis": 5000, "Topics": [
            {"Topic": topic, "Partitions": [{"Partition": partition, "Offset": offset}]}]})
    for name in ("made", "nowhere"):
        peer.ask(f"delete {name}", DELETE, 6, {"Topics": [{"Topic": name}], "TimeoutMillis": 10_000})


def configs(peer):
    create(peer, "set", 1, [("retention.ms", "5")])
    # Operations: 0 set, 1 delete, 2 append, 3 subtract.
    for label, name, operation, value in (
        ("set", "retention.ms", 0, "6"), ("unknown", "no.such", 0, "1"), ("bad", "retention.ms", 0, "x"),
        ("null", "retention.ms", 0, None), ("append to a number", "retention.ms", 2, "7"),
        ("append", "cleanup.policy", 2, "compact"), ("subtract", "cleanup.policy", 3, "delete"),
        ("delete", "retention.ms", 1, None),
    ):
        peer.ask(label, INCREMENTAL, 1, {"Resources": [{"ResourceType": 2, "ResourceName": "set", "Configs": [
            {"Name": name, "Op": operation, "Value": value}]}]})
    for label, kind, name in (("no topic", 2, "nowhere"), ("other node", 4, "99"), ("odd kind", 7, "x")):
        peer.ask(f"describe {label}", DESCRIBE_CONFIGS, 4, {"Resources": [
            {"ResourceType": kind, "ResourceName": name, "ConfigNames": ["retention.ms"]}]})
    peer.ask("describe", DESCRIBE_CONFIGS, 4, {"IncludeSynonyms": True, "Resources": [
        {"ResourceType": 2, "ResourceName": "set",
         "ConfigNames": ["retention.ms", "cleanup.policy", "max.message.bytes", "compression.type"]}]})
    peer.ask("replace", ALTER_CONFIGS, 2, {"Resources": [{"ResourceType": 2, "ResourceName": "set", "Configs": [
        {"Name": "retention.bytes", "Value": "8"}]}]})
    settle(peer)
    peer.ask("describe what is left", DESCRIBE_CONFIGS, 4, {"Resources": [
        {"ResourceType": 2, "ResourceName": "set", "ConfigNames": ["retention.bytes", "cleanup.policy"]}]})


def alter(peer, label, kind, name, *changes, validate=False):
    """Changes settings: (name, operation, value) each. Kafka's brokers hear of it a moment after the answer."""
    peer.ask(label, INCREMENTAL, 1, {"ValidateOnly": validate, "Resources": [
        {"ResourceType": kind, "ResourceName": name, "Configs": [
            {"Name": key, "Op": operation, "Value": value} for key, operation, value in changes]}]})
    settle(peer)


def replace(peer, label, kind, name, *settings):
    peer.ask(label, ALTER_CONFIGS, 2, {"Resources": [{"ResourceType": kind, "ResourceName": name, "Configs": [
        {"Name": key, "Value": value} for key, value in settings]}]})
    settle(peer)


def describe(peer, label, kind, name, *settings):
    peer.ask(label, DESCRIBE_CONFIGS, 4, {"IncludeSynonyms": True, "Resources": [
        {"ResourceType": kind, "ResourceName": name, "ConfigNames": list(settings) or None}]})


def broker_configs(peer):
    create(peer, "inherits", 1)
    largest, policy, fixed = "message.max.bytes", "log.cleanup.policy", "socket.request.max.bytes"
    for label, name, *changes in (
        ("read-only", "1", ("node.id", SET, "2")),
        ("read-only, two", "1", ("node.id", SET, "2"), (fixed, SET, "1")),
        ("read-only for all", "", ("node.id", SET, "2")),
        ("not a number", "1", (largest, SET, "x")),
        ("too small", "1", (largest, SET, "-1")),
        ("too large a share", "1", ("log.cleaner.min.cleanable.ratio", SET, "1.5")),
        ("too small a lag", "1", ("log.cleaner.max.compaction.lag.ms", SET, "0")),
        ("null", "1", (largest, SET, None)),
        ("append to a number", "1", (largest, APPEND, "7")),
        ("subtract from a number", "1", (largest, SUBTRACT, "7")),
        ("odd operation", "1", (largest, 9, "7")),
        ("odd policy", "1", (policy, SET, "shrink")),
        ("twice", "1", (largest, SET, "2000000"), (largest, SET, "2000001")),
        ("another broker", "99", (largest, SET, "7")),
        ("no broker", "one", (largest, SET, "7")),
        ("append", "1", (policy, APPEND, "compact")),
        ("subtract", "1", (policy, SUBTRACT, "compact")),
        ("subtract again", "1", (policy, SUBTRACT, "compact")),
        ("delete", "1", (policy, UNSET, None)),
        ("delete what nobody set", "1", ("no.such", UNSET, None)),
    ):
        alter(peer, label, BROKER, name, *changes)
    alter(peer, "only asked", BROKER, "1", (largest, SET, "2000000"), validate=True)
    describe(peer, "describe what was only asked", BROKER, "1", largest)
    alter(peer, "for all", BROKER, "", (largest, SET, "3000000"))
    describe(peer, "describe for all", BROKER, "1", largest)
    alter(peer, "own", BROKER, "1", (largest, SET, "2000000"))
    describe(peer, "describe own", BROKER, "1", largest, "group.consumer.max.size")
    describe(peer, "describe all brokers", BROKER, "", largest, "group.consumer.max.size")
    describe(peer, "describe the topic", TOPIC, "inherits", "max.message.bytes")
    produce(peer, "larger than the default", "inherits", batch([bytes(1_500_000)]))
    produce(peer, "too large", "inherits", batch([bytes(2_500_000)]))
    replace(peer, "replace", BROKER, "1", ("log.retention.bytes", "8000000"))
    describe(peer, "describe what is left", BROKER, "1", largest, "log.retention.bytes")
    replace(peer, "replace by nothing", BROKER, "1")
    alter(peer, "delete for all", BROKER, "", (largest, UNSET, None))
    describe(peer, "describe the default", BROKER, "1", largest)
    describe(peer, "describe no broker", BROKER, "one")
    describe(peer, "describe another broker", BROKER, "99")
    for label, name, *changes in (
        ("set no logger", "1", ("no.logger", SET, "INFO")),
        ("set another broker's logger", "2", ("root", SET, "INFO")),
        ("set nobody's logger", "", ("root", SET, "INFO")),
    ):
        alter(peer, label, LOGGER, name, *changes)
    replace(peer, "replace a logger", LOGGER, "1", ("root", "INFO"))
    describe(peer, "describe nobody's loggers", LOGGER, "")
    describe(peer, "describe another broker's loggers", LOGGER, "99")
    alter(peer, "odd kind", 7, "1", ("root", SET, "INFO"))
    peer.ask("list odd kinds", LIST_RESOURCES, 1, {"ResourceTypes": [7]})
    peer.ask("list brokers", LIST_RESOURCES, 1, {"ResourceTypes": [BROKER]})


def group_configs(peer):
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    for label, *changes in (
        ("too short", (session, SET, "1")), ("too long", (session, SET, "70000")),
        ("no number", (session, SET, "x")), ("not even one", (session, SET, "0")),
        ("too often", (heartbeat, SET, "1")), ("too rarely", (heartbeat, SET, "20000")),
        ("unknown", ("no.such", SET, "1")), ("null", (session, SET, None)), ("append", (session, APPEND, "5")),
        ("one good, one bad", (session, SET, "50000"), (heartbeat, SET, "1")),
        ("both", (session, SET, "50000"), (heartbeat, SET, "6000")),
    ):
        alter(peer, label, GROUP, "settings", *changes)
    describe(peer, "describe", GROUP, "settings", session, heartbeat, "no.such")
    alter(peer, "delete", GROUP, "settings", (session, UNSET, None))
    describe(peer, "describe what is left", GROUP, "settings", session, heartbeat)
    alter(peer, "no name", GROUP, "", (session, SET, "50000"))
    describe(peer, "describe no name", GROUP, "")
    describe(peer, "describe another", GROUP, "never", session)
    peer.ask("list", LIST_RESOURCES, 1, {"ResourceTypes": [GROUP]})
    replace(peer, "replace", GROUP, "settings", (session, "55000"))
    describe(peer, "describe what replaced", GROUP, "settings", session, heartbeat)
    replace(peer, "replace by nothing", GROUP, "settings")
    peer.ask("list nothing", LIST_RESOURCES, 1, {"ResourceTypes": [GROUP]})
    same = {"ResourceType": GROUP, "ResourceName": "settings", "Configs": []}
    peer.ask("the same twice", INCREMENTAL, 1, {"Resources": [same, same]})


def client_metrics_configs(peer):
    interval, clients, metrics = "interval.ms", "match", "metrics"
    for label, *changes in (
        ("too often", (interval, SET, "99")), ("too rarely", (interval, SET, "3600001")),
        ("no number", (interval, SET, "x")), ("unknown", ("no.such", SET, "1")),
        ("odd selector", (clients, SET, "planet=b")), ("bad pattern", (clients, SET, "client_id=[")),
        ("two equal signs", (clients, SET, "client_id=a=b")), ("no pattern", (clients, SET, "client_id")),
        ("a comma in it", (clients, SET, "client_id=a{1,2}")), ("an empty word", (metrics, SET, "a,,b")),
        ("append", (metrics, APPEND, "x.y")), ("subtract", (metrics, SUBTRACT, "x.y")),
        ("append to a number", (interval, APPEND, "5")), ("null", (metrics, SET, None)),
        ("good", (interval, SET, "200"), (clients, SET, "client_id = nobody"), (metrics, SET, "*,a")),
    ):
        alter(peer, label, CLIENT_METRICS, "subscription", *changes)
    describe(peer, "describe", CLIENT_METRICS, "subscription")
    describe(peer, "describe one", CLIENT_METRICS, "subscription", metrics, "no.such")
    alter(peer, "no name", CLIENT_METRICS, "", (interval, SET, "100"))
    describe(peer, "describe no name", CLIENT_METRICS, "")
    describe(peer, "describe another", CLIENT_METRICS, "never")
    peer.ask("list", LIST_RESOURCES, 0, {})
    peer.ask("list, newer", LIST_RESOURCES, 1, {"ResourceTypes": [CLIENT_METRICS]})
    replace(peer, "replace", CLIENT_METRICS, "subscription", (interval, "300"))
    describe(peer, "describe what is left", CLIENT_METRICS, "subscription")
    replace(peer, "replace by nothing", CLIENT_METRICS, "subscription")
    peer.ask("list nothing", LIST_RESOURCES, 0, {})


def quotas(peer):
    produced, fetched, share, changes, connections = (
        "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
        "connection_creation_rate")

    def entry(entity, ops):
        return {"Entity": [{"Type": part, "Name": name} for part, name in entity],
                "Ops": [{"Key": key, "Value": value or 0, "Remove": value is None} for key, value in ops]}

    def change(label, *entries, validate=False):
        peer.ask(label, ALTER_QUOTAS, 1, {"ValidateOnly": validate, "Entries": [entry(*one) for one in entries]})
        settle(peer)

    def show(label, *components, strict=False, version=1):
        peer.ask(label, DESCRIBE_QUOTAS, version, {"Strict": strict, "Components": [
            {"EntityType": part, "MatchType": kind, "Match": name} for part, kind, name in components]})

    user, ip = [("user", "u")], [("ip", "1.2.3.4")]
    show("nothing")
    for label, entity, ops in (
        ("set", user, [(produced, 1024)]), ("set another", user, [(share, 0.5)]),
        ("a fraction of a byte", user, [(produced, 1024.5)]), ("zero", user, [(produced, 0.0000)]),
        ("negative", user, [(produced, -1)]), ("too large", user, [(produced, 1e300)]),
        ("a little too large", user, [(produced, 9.3e18)]), ("unknown", user, [("no_such", 1)]),
        ("an address's for a user", user, [(connections, 1)]), ("a user's for an address", ip, [(produced, 5)]),
        ("twice", user, [(produced, 1), (produced, 2)]), ("the last of two users", [("user", "x"), ("user", "v")],
                                                          [(produced, 1)]),
        ("nobody", [], [(produced, 1)]), ("no name", [("user", "")], [(produced, 1)]),
        ("an odd part", [("planet", "u")], [(produced, 1)]),
        ("an address", ip, [(connections, 5)]), ("a fraction of a connection", ip, [(connections, 5.5)]),
        ("too many connections", ip, [(connections, 3e9)]), ("no address", [("ip", "nowhere.invalid")],
                                                             [(connections, 5)]),
        ("all addresses", [("ip", None)], [(connections, 7)]), ("no name of an address", [("ip", "")],
                                                                [(connections, 7)]),
        ("all users", [("user", None)], [(produced, 1000)]), ("a client", [("client-id", "c")], [(fetched, 1)]),
        ("all clients", [("client-id", None)], [(fetched, 1 << 40), (changes, 2.5)]),
        ("a client of a user", [("user", "u"), ("client-id", "c")], [(produced, 9)]),
        ("a client of all users", [("client-id", "c"), ("user", None)], [(produced, 9)]),
        ("remove what is unknown", user, [("no_such", None)]), ("remove what is not set", user, [(fetched, None)]),
        ("change nothing", user, []), ("one good, one bad", user, [(fetched, 7), ("no_such", 1)]),
    ):
        change(label, (entity, ops))
    change("only asked", ([("user", "w")], [(produced, 5)]), validate=True)
    change("the same entity twice", ([("user", "t")], [(produced, 5)]), ([("user", "t")], [(produced, 6)]),
           ([("user", "")], [(produced, 6)]))
    for label, *components in (
        ("everything",), ("one user", ("user", 0, "u")), ("the default user", ("user", 1, None)),
        ("any user", ("user", 2, None)), ("any client of any user", ("user", 2, None), ("client-id", 2, None)),
        ("any address", ("ip", 2, None)), ("address and user", ("ip", 2, None), ("user", 2, None)),
        ("a name that is none", ("user", 0, None)), ("a name for the default", ("user", 1, "x")),
        ("a name for any", ("user", 2, "x")), ("an odd match", ("user", 7, None)), ("an odd part", ("planet", 2, None)),
        ("no part", ("", 2, None)), ("a part twice", ("user", 0, "u"), ("user", 2, None)),
    ):
        show(f"show {label}", *components)
        show(f"show {label}, no more", *components, strict=True)
    show("show everything, older", version=0)
    # Ours is the default user's, of a burst that takes longer than the window to pay for.
    create(peer, "paid", 1)
    answer = produce(peer, "pay", "paid", batch([bytes(200_000)]))
    peer.answers.append(("about 190 seconds", 180_000 < answer["ThrottleMillis"] < 200_000))
    for entity, ops in (
        (user, [(produced, None), (share, None)]), ([("user", "v")], [(produced, None)]), (ip, [(connections, None)]),
        ([("ip", None)], [(connections, None)]), ([("user", None)], [(produced, None)]),
        ([("client-id", "c")], [(fetched, None)]), ([("client-id", None)], [(fetched, None), (changes, None)]),
        ([("user", "u"), ("client-id", "c")], [(produced, None)]),
        ([("user", None), ("client-id", "c")], [(produced, None)]), ([("user", "t")], [(produced, None)]),
    ):
        change("remove", (entity, ops))
    show("nothing is left")
    answer = produce(peer, "pay nothing", "paid", batch([bytes(200_000)]))
    peer.answers.append(("no wait", answer["ThrottleMillis"]))


def records(peer):
    create(peer, "log", 1)
    create(peer, "compacted", 1, [("cleanup.policy", "compact")])
    produce(peer, "one", "log", batch([b"a", b"b"]))
    produce(peer, "none", "log", None)
    produce(peer, "no topic", "nowhere", batch([b"a"]))
    produce(peer, "no partition", "log", batch([b"a"]), partition=7)
    produce(peer, "bad acks", "log", batch([b"a"]), acks=2)
    produce(peer, "bad crc", "log", batch([b"a"], crc=1))
    produce(peer, "bad magic", "log", batch([b"a"], magic=1))
    produce(peer, "bad count", "log", batch([b"a"], count=5))
    produce(peer, "control", "log", batch([b"a"], attributes=0x20))
    produce(peer, "without a key", "compacted", batch([b"a"]))
    produce(peer, "from the future", "log", wire.batch([b"a"], timestamp=int(time.time() * 1000) + 10**9))
    produce(peer, "too large", "log", batch([bytes(1_100_000)]))
    for label, offset in (("all", 0), ("the last", 1), ("the end", 2), ("beyond", 3), ("before", -1)):
        fetch(peer, f"fetch {label}", "log", offset)
    fetch(peer, "fetch from no topic", "nowhere", 0)
    fetch(peer, "fetch from no partition", "log", 0, partition=7)
    for label, timestamp in (("latest", -1), ("earliest", -2), ("largest", -3), ("local", -4), ("tiered", -5),
                             ("odd", -9), ("from 0", 0), ("from later", 1 << 60)):
        answer = offsets(peer, f"offsets {label}", "log", timestamp, version=9)
        assert answer is not None
        # The record's time.
        peer.answers[-1][1]["Topics"][0]["Partitions"][0]["Timestamp"] = \
            answer["Topics"][0]["Partitions"][0]["Timestamp"] >= 0


def idempotent(peer):
    create(peer, "sequences", 1)
    answer = peer.ask("an id", INIT_PRODUCER, 5, {"TransactionalID": None, "TransactionTimeoutMillis": 0,
                                                  "ProducerID": -1, "ProducerEpoch": -1})
    pid = answer["ProducerID"]
    for label, epoch, sequence, count in (
        ("first", 0, 0, 2), ("again", 0, 0, 2), ("gap", 0, 5, 1), ("part of it again", 0, 1, 1), ("next", 0, 2, 1),
        ("new epoch, odd start", 1, 3, 1), ("new epoch", 1, 0, 1), ("old epoch", 0, 3, 1), ("no sequence", 1, -1, 1),
    ):
        produce(peer, label, "sequences", batch([b"v"] * count, producer=pid, epoch=epoch, sequence=sequence))
    produce(peer, "unknown producer, odd start", "sequences", batch([b"v"], producer=777_777, epoch=0, sequence=9))
    for label, body in {
        "an empty id": {"TransactionalID": "", "TransactionTimeoutMillis": 1000},
        "no timeout": {"TransactionalID": "x", "TransactionTimeoutMillis": 0},
        "too long a timeout": {"TransactionalID": "x", "TransactionTimeoutMillis": 10**9},
    }.items():
        coordinator(peer, "x", 1)
        peer.ask(label, INIT_PRODUCER, 5, {"ProducerID": -1, "ProducerEpoch": -1, **body})


def transactions(peer):
    """The first version of the protocol: partitions are announced."""
    create(peer, "txn", 1)
    one = Producer(peer, "v1", "initialize")
    one.end("commit nothing", True)
    one.end("abort nothing", False)
    one.send("without announcing", "txn", [b"a"])
    one.send("without announcing, older", "txn", [b"a"], version=9)
    one.add("add no topic", "nowhere")
    one.add("add some", "txn", (0, 7))
    one.add("add with another id", "txn", ProducerID=999_999)
    one.add("add with another epoch", "txn", ProducerEpoch=one.epoch + 3)
    one.add("add", "txn")
    one.add("add again", "txn")
    one.send("send", "txn", [b"a", b"b"])
    fetch(peer, "uncommitted while open", "txn", 0)
    fetch(peer, "committed while open", "txn", 0, 1)
    offsets(peer, "latest stable", "txn", -1, 1)
    produce(peer, "outside of it", "txn", batch([b"n"], producer=one.pid, epoch=one.epoch, sequence=2))
    one.end("end with another id", True, ProducerID=999_999)
    one.end("end with another epoch", True, ProducerEpoch=one.epoch + 3)
    one.end("commit", True)
    one.end("commit again", True)
    one.end("abort what was committed", False)
    fetch(peer, "committed", "txn", 0, 1)
    one.add("add for an abort", "txn")
    one.send("send", "txn", [b"c"])
    one.end("abort", False)
    one.end("abort again", False)
    one.end("commit what was aborted", True)
    one.send("send behind the end", "txn", [b"late"])
    fetch(peer, "committed, with an aborted one", "txn", 0, 1)
    fetch(peer, "committed, from the aborted one", "txn", 3, 1)
    offsets(peer, "latest", "txn", -1)
    one.add("add and leave open", "txn")
    one.send("send", "txn", [b"d"])
    two = Producer(peer, "v1", "initialize again")
    one.send("send of a zombie", "txn", [b"z"])
    one.add("add of a zombie", "txn")
    one.add("add of a zombie, older", "txn", version=1)
    one.end("end of a zombie", True)
    one.end("end of a zombie, older", True, version=1)
    two.add("add of the new one", "txn")
    two.send("send of the new one", "txn", [b"e"])
    two.end("commit of the new one", True)
    fetch(peer, "all that is committed", "txn", 0, 1)
    peer.ask("describe", DESCRIBE_TXNS, 0, {"TransactionalIDs": ["nobody", ""]})
    described = peer.ask("", DESCRIBE_TXNS, 0, {"TransactionalIDs": ["v1"]}, note=False)
    described["TransactionStates"][0]["StartTimestamp"] = described["TransactionStates"][0]["StartTimestamp"] > 0
    peer.answers.append(("describe it", peer.named(described)))
    peer.ask("list", LIST_TXNS, 1, {"StateFilters": ["CompleteCommit", "Asleep"], "ProducerIDFilters": [],
                                    "DurationFilterMillis": -1})


def bumping(peer):
    """The second version (KIP-890): the epoch is bumped with every transaction."""
    create(peer, "bump", 1)
    one = Producer(peer, "v2")
    one.end("commit nothing", True, version=5)
    one.end("abort nothing", False, version=5)
    one.send("send", "bump", [b"a"], version=12)
    before = one.pid, one.epoch
    one.end("commit", True, version=5)
    after = one.pid, one.epoch
    one.end("commit again", True, version=5, ProducerID=before[0], ProducerEpoch=before[1])
    one.end("abort what was committed", False, version=5, ProducerID=before[0], ProducerEpoch=before[1])
    one.pid, one.epoch = after
    one.send("with the epoch before", "bump", [b"b"], version=12, epoch=before[1])
    one.send("a gap after the bump", "bump", [b"b"], version=12, sequence=4)
    one.send("next", "bump", [b"b"], version=12)
    one.end("abort", False, version=5)
    one.end("commit nothing after an abort", True, version=5)
    fetch(peer, "committed", "bump", 0, 1)
    offsets(peer, "latest", "bump", -1, 1)
    short = Producer(peer, "short", timeout=1)
    short.send("send what is open too long", "bump", [b"c"], version=12)
    for _ in range(300):
        described = peer.ask("", DESCRIBE_TXNS, 0, {"TransactionalIDs": ["short"]}, note=False)
        if described["TransactionStates"][0]["State"] == "CompleteAbort":
            break
        time.sleep(0.1)
    short.end("commit after the timeout", True, version=5)
    short.send("send after the timeout", "bump", [b"d"], version=12)


def group_offsets(peer):
    create(peer, "read", 1)
    coordinator(peer, "g", 0)
    one = Producer(peer, "offsets")

    def add(label, group="g", **changed):
        body = {"TransactionalID": one.id, "ProducerID": one.pid, "ProducerEpoch": one.epoch, "Group": group, **changed}
        one.settled(label, ADD_OFFSETS, 4, body)

    def commit(label, offset, topic="read", partition=0, version=3, **changed):
        body = {"TransactionalID": one.id, "Group": "g", "ProducerID": one.pid, "ProducerEpoch": one.epoch,
                "Generation": -1, "MemberID": "", "Topics": [{"Topic": topic, "Partitions": [
                    {"Partition": partition, "Offset": offset, "LeaderEpoch": -1, "Metadata": ""}]}], **changed}
        one.settled(label, TXN_COMMIT, version, body)

    def committed(label, stable, group="g"):
        peer.ask(label, OFFSET_FETCH, 8, {"RequireStable": stable, "Groups": [
            {"Group": group, "Topics": [{"Topic": "read", "Partitions": [0]}]}]})

    committed("before", True)
    commit("not announced", 5)
    add("add no group", "")
    add("add with another id", ProducerID=999_999)
    add("add")
    commit("commit", 5)
    commit("commit of a member", 5, Generation=3, MemberID="m")
    commit("commit for another topic", 5, topic="nowhere")
    commit("commit of another epoch", 5, ProducerEpoch=one.epoch + 1)
    committed("while open", False)
    committed("stable while open", True)
    one.end("end", True)
    committed("after", True)
    add("add for an abort")
    commit("commit what is aborted", 9)
    one.end("abort", False)
    committed("after the abort", True)
    for label, body in {
        "offset delete": {"Group": "g", "Topics": [{"Topic": "read", "Partitions": [{"Partition": 0}]}]},
        "offset delete of no group": {"Group": "none", "Topics": []},
    }.items():
        peer.ask(label, OFFSET_DELETE, 0, body)
    committed("after the deletion", True)
    peer.ask("delete groups", DELETE_GROUPS, 2, {"Groups": ["g", "none"]})
    peer.ask("describe groups", DESCRIBE_GROUPS, 5, {"Groups": ["none"]})


def groups(peer):
    """The classic protocol, with one member: nothing waits for another."""
    create(peer, "joined", 2)
    coordinator(peer, "group", 0)
    # Kafka reads what the members of a consumer group say: one topic, no data of the assignor's.
    subscription = b"\0\0" + struct.pack(">ih", 1, 6) + b"joined" + struct.pack(">i", -1)
    assignment = b"\0\0" + struct.pack(">ih", 1, 6) + b"joined" + struct.pack(">iiii", 2, 0, 1, -1)
    protocols = [{"Name": "range", "Metadata": base64.b64encode(subscription).decode()}]

    def join(label, member="", version=9, note=True, **changed):
        body = {"Group": "group", "SessionTimeoutMillis": 30_000, "RebalanceTimeoutMillis": 30_000, "MemberID": member,
                "InstanceID": None, "ProtocolType": "consumer", "Protocols": protocols, **changed}
        return peer.ask(label, JOIN, version, body, note)

    def sync(label, member, generation, version=5, **changed):
        body = {"Group": "group", "Generation": generation, "MemberID": member, "InstanceID": None,
                "ProtocolType": "consumer", "Protocol": "range", "GroupAssignment": [
                    {"MemberID": member, "MemberAssignment": base64.b64encode(assignment).decode()}], **changed}
        return peer.ask(label, SYNC, version, body)

    def heartbeat(label, member, generation, version=4, group="group"):
        peer.ask(label, HEARTBEAT, version, {"Group": group, "Generation": generation, "MemberID": member,
                                             "InstanceID": None})

    def commit(label, member, generation, version=8, topic="joined", group="group", metadata=""):
        peer.ask(label, OFFSET_COMMIT, version, {
            "Group": group, "Generation": generation, "MemberID": member, "InstanceID": None, "Topics": [
                {"Topic": topic, "Partitions": [{"Partition": 0, "Offset": 3, "LeaderEpoch": -1,
                                                 "Metadata": metadata}]}]})

    heartbeat("heartbeat of nobody", "nobody", 1)
    join("an empty group id", Group="")
    join("too short a session", SessionTimeoutMillis=1)
    join("an unknown member", "nobody")
    join("no protocols", Protocols=[])
    join("no protocol type", ProtocolType="")
    member = join("first, without an id")["MemberID"]
    joined = join("first", member)
    generation = joined["Generation"]
    heartbeat("heartbeat before the assignment", member, generation)
    sync("sync of another generation", member, generation + 1)
    sync("sync of nobody", "nobody", generation)
    sync("sync of another protocol", member, generation, Protocol="other")
    sync("sync", member, generation)
    sync("sync again", member, generation)
    heartbeat("heartbeat", member, generation)
    heartbeat("heartbeat of another generation", member, generation + 1)
    heartbeat("heartbeat of another member", "nobody", generation)
    heartbeat("heartbeat in another group", member, generation, group="other")
    join("another protocol type", ProtocolType="connect")
    join("another protocol", Protocols=[{**protocols[0], "Name": "sticky"}], version=3)
    commit("commit", member, generation)
    commit("commit of another generation", member, generation + 1)
    commit("commit of nobody", "nobody", generation)
    commit("commit without a member", "", -1)
    commit("commit for no topic", member, generation, topic="nowhere")
    commit("commit with long metadata", member, generation, metadata="m" * 5000)
    commit("commit without a group", "", -1, group="")
    commit("commit of a lone consumer", "", -1, group="lone")
    commit("commit of a member of no group", "m", 1, group="none yet")
    for label, body in {
        "offsets": {"Group": "group", "Topics": [{"Topic": "joined", "Partitions": [0, 1, 9]},
                                                 {"Topic": "nowhere", "Partitions": [0]}]},
        "all offsets": {"Group": "lone", "Topics": None},
        "offsets of no group": {"Group": "never", "Topics": [{"Topic": "joined", "Partitions": [0]}]},
    }.items():
        peer.ask(label, OFFSET_FETCH, 8, {"RequireStable": False, "Groups": [body]})
    described = peer.ask("", DESCRIBE_GROUPS, 5, {"Groups": ["group", "lone"]}, note=False)
    for group in described["Groups"]:
        for of in group["Members"] or []:
            of["ClientHost"] = of["ClientHost"][:1]
    peer.answers.append(("describe", peer.named(described)))
    peer.ask("delete while it has members", DELETE_GROUPS, 2, {"Groups": ["group"]})
    peer.ask("delete an offset that is read", OFFSET_DELETE, 0, {"Group": "group", "Topics": [
        {"Topic": "joined", "Partitions": [{"Partition": 0}]}]})
    peer.ask("leave", LEAVE, 5, {"Group": "group", "Members": [
        {"MemberID": "nobody"}, {"MemberID": member}, {"MemberID": "", "InstanceID": "nobody"}]})
    peer.ask("leave no group", LEAVE, 5, {"Group": "never", "Members": [{"MemberID": member}]})
    heartbeat("heartbeat after leaving", member, generation)
    peer.ask("delete", DELETE_GROUPS, 2, {"Groups": ["group", "lone"]})


def consumer_groups(peer):
    """The protocol of KIP-848: one member at a time gets partitions, for who gets which is each server's own."""
    create(peer, "new", 2)
    coordinator(peer, "kip848", 0)
    # The subscription of a member of the classic protocol that owns nothing.
    subscription = b"\0\1" + struct.pack(">ih", 1, 3) + b"new" + struct.pack(">ii", -1, 0)
    protocols = [{"Name": "range", "Metadata": base64.b64encode(subscription).decode()}]

    def beat(label, member="one", epoch=0, version=1, note=True, **changed):
        body = {"Group": "kip848", "MemberID": member, "MemberEpoch": epoch, "InstanceID": None, "RackID": None,
                "RebalanceTimeoutMillis": -1, "SubscribedTopicNames": None, "SubscribedTopicRegex": None,
                "ServerAssignor": None, "Topics": None, **changed}
        answer = peer.ask(label, CONSUMER_HEARTBEAT, version, body, note=False)
        # What the text of an expression's error says is the library's.
        if answer["ErrorCode"] == 128:
            answer["ErrorMessage"] = answer["ErrorMessage"].split(":")[0]
        if note:
            peer.answers.append((label, peer.named(answer)))
        return answer

    def join(label, member="one", version=1, note=True, **changed):
        return beat(label, member, 0, version, note, **{
            "RebalanceTimeoutMillis": 30_000, "SubscribedTopicNames": ["new"], "Topics": [], **changed})

    def describe(label, *groups, assigned=True):
        found = peer.ask("", CONSUMER_DESCRIBE, 1, {"Groups": list(groups)}, note=False)
        for group in found["Groups"]:
            for of in group["Members"] or []:
                of["ClientHost"] = of["ClientHost"][:1]
            if not assigned:
                del group["AssignmentEpoch"]
        peer.answers.append((label, peer.named(found)))

    def commit(label, member, epoch, version=9):
        peer.ask(label, OFFSET_COMMIT, version, {
            "Group": "kip848", "Generation": epoch, "MemberID": member, "InstanceID": None, "Topics": [
                {"Topic": "new", "Partitions": [{"Partition": 0, "Offset": 3, "LeaderEpoch": -1, "Metadata": ""}]}]})

    def fetch_offsets(label, member, epoch, group="kip848"):
        peer.ask(label, OFFSET_FETCH, 9, {"RequireStable": False, "Groups": [
            {"Group": group, "MemberID": member, "MemberEpoch": epoch,
             "Topics": [{"Topic": "new", "Partitions": [0]}]}]})

    beat("stay in no group", epoch=3)
    beat("leave no group", epoch=-1)
    join("an empty group id", Group="")
    join("an empty member id", member="")
    join("no subscription", SubscribedTopicNames=None)
    join("no rebalance timeout", RebalanceTimeoutMillis=-1)
    join("no partitions", Topics=None)
    join("an empty instance id", InstanceID="")
    join("an empty rack", RackID="")
    join("an unknown assignor", ServerAssignor="sticky")
    join("no regular expression", SubscribedTopicRegex="(")
    beat("no such epoch", epoch=-3)
    beat("leave for a while without an instance id", epoch=-2)
    join("join")
    join("join again")
    beat("stay", epoch=2)
    beat("a greater epoch", epoch=9)
    beat("a member nobody knows", "nobody", 1)
    beat("an instance nobody knows", "one", 2, InstanceID="nobody")
    beat("leave of a member nobody knows", "nobody", -1)
    describe("describe", "kip848", "none")
    commit("commit", "one", 2)
    commit("commit at another epoch", "one", 1)
    commit("commit of nobody", "nobody", 2)
    commit("commit from outside", "", -1)
    fetch_offsets("offsets", "one", 2)
    fetch_offsets("offsets at another epoch", "one", 1)
    fetch_offsets("offsets for nobody", "nobody", 1)
    fetch_offsets("offsets from outside", None, -1)
    fetch_offsets("offsets of no group", "one", 1, group="never")
    peer.ask("list", LIST_GROUPS, 5, {"TypesFilter": ["consumer"]})
    peer.ask("describe as a classic group", DESCRIBE_GROUPS, 6, {"Groups": ["kip848"]})
    peer.ask("classic heartbeat", HEARTBEAT, 4, {
        "Group": "kip848", "Generation": 1, "MemberID": "one", "InstanceID": None})
    peer.ask("delete while it has members", DELETE_GROUPS, 2, {"Groups": ["kip848"]})
    peer.ask("delete an offset that is read", OFFSET_DELETE, 0, {"Group": "kip848", "Topics": [
        {"Topic": "new", "Partitions": [{"Partition": 0}]}]})
    # How soon Kafka computes an assignment that follows another within a second is a matter of time (KIP-1263).
    join("", "two", note=False, InstanceID="i")
    join("the same instance", "three", InstanceID="i")
    beat("a fenced instance", "three", 2, InstanceID="i")
    beat("leave for a while", "two", -2, InstanceID="i")
    join("the instance is back", "three", note=False, InstanceID="i")
    beat("the old member of the instance", "two", 2, InstanceID="i")
    beat("leave", epoch=-1)
    beat("stay after leaving", epoch=2)
    join("joins once more", note=False)
    peer.ask("an administrator removes it", LEAVE, 5, {"Group": "kip848", "Members": [{"MemberID": "one"}]})
    beat("the last leaves", "three", -1, InstanceID="i")
    commit("commit when it is empty", "", -1)
    describe("describe when it is empty", "kip848", assigned=False)
    peer.ask("delete", DELETE_GROUPS, 2, {"Groups": ["kip848"]})

    # Between the protocols.
    classic = {"Group": "both", "SessionTimeoutMillis": 30_000, "RebalanceTimeoutMillis": 30_000, "MemberID": "",
               "InstanceID": None, "ProtocolType": "consumer", "Protocols": protocols}
    member = peer.ask("classic member", JOIN, 9, classic)["MemberID"]
    joined = peer.ask("classic member joins", JOIN, 9, {**classic, "MemberID": member})
    sync = {"Group": "both", "Generation": joined["Generation"], "MemberID": member, "InstanceID": None,
            "ProtocolType": "consumer", "Protocol": "range", "GroupAssignment": []}
    peer.ask("classic member syncs", SYNC, 5, sync)
    join("", "four", note=False, Group="both")
    peer.ask("classic member must join", HEARTBEAT, 4, {
        "Group": "both", "Generation": joined["Generation"], "MemberID": member, "InstanceID": None})
    peer.ask("another protocol than the group's", JOIN, 9, {
        **classic, "MemberID": member, "Protocols": [{**protocols[0], "Name": "other"}]}, note=False)
    joined = peer.ask("classic member joins again", JOIN, 9, {**classic, "MemberID": member})
    peer.ask("classic member syncs at the wrong generation", SYNC, 5, {**sync, "Generation": 77})
    peer.ask("classic member syncs for the wrong protocol", SYNC, 5, {
        **sync, "Generation": joined["Generation"], "Protocol": "other"})
    peer.ask("", SYNC, 5, {**sync, "Generation": joined["Generation"]}, note=False)
    beat("the last of the protocol leaves", "four", -1, Group="both")
    beat("stay in a classic group", "four", 2, Group="both")
    describe("describe a classic group", "both")
    peer.ask("classic member leaves", LEAVE, 5, {"Group": "both", "Members": [{"MemberID": member}]})
    peer.ask("list of both", LIST_GROUPS, 5, {})


def acls(peer):
    """Neither has an authorizer."""
    entry = {"ResourceType": 2, "ResourceName": "t", "ResourcePatternType": 3, "Principal": "User:a", "Host": "*",
             "Operation": 3, "PermissionType": 3}
    for version in range(1, 4):
        peer.ask(f"describe {version}", DESCRIBE_ACLS, version, {
            "ResourceType": 1, "ResourcePatternType": 1, "Operation": 1, "PermissionType": 1})
        peer.ask(f"create {version}", CREATE_ACLS, version, {"Creations": [entry] * 2})
        peer.ask(f"delete {version}", DELETE_ACLS, version, {"Filters": [entry] * 2})


def cluster(peer):
    """What tools ask of controllers, as far as one node can be asked."""
    def update(label, feature, level, version, upgrade=1):
        peer.ask(f"{label} {version}", UPDATE_FEATURES, version, {"TimeoutMillis": 1000, "ValidateOnly": False, "FeatureUpdates": [
            {"Feature": feature, "MaxVersionLevel": level, "UpgradeType": upgrade}]})

    for version in (1, 2):
        update("update a feature nobody knows", "no.feature", 1, version)
        update("update to what it is", "transaction.version", 2, version)
        update("update to a level there is not", "transaction.version", 77, version)
    peer.ask("unregister nobody", UNREGISTER, 0, {"BrokerID": 7})
    for version in (2,):  # Kafka closes the connection of whoever asks in an older one.
        peer.ask(f"quorum of another topic {version}", DESCRIBE_QUORUM, version, {"Topics": [
            {"Topic": "other", "Partitions": [{"Partition": 0}]}]})
        found = peer.ask("", DESCRIBE_QUORUM, version, {"Topics": [
            {"Topic": "__cluster_metadata", "Partitions": [{"Partition": 0}]}]}, note=False)
        partition = found["Topics"][0]["Partitions"][0]
        peer.answers.append((f"quorum {version}", [
            partition["ErrorCode"], partition["LeaderID"], len(partition["CurrentVoters"]), partition["Observers"],
            partition["HighWatermark"] > 0, partition["CurrentVoters"][0]["LogEndOffset"] > 0, len(found["Nodes"] or [])]))


ALL = {
    "topics": topics, "configs": configs, "broker configs": broker_configs, "group configs": group_configs,
    "client-metrics configs": client_metrics_configs, "quotas": quotas, "records": records, "idempotent producers": idempotent,
    "transactions": transactions, "transactions that bump": bumping, "offsets": group_offsets,
    "groups": groups, "consumer groups": consumer_groups, "acls": acls, "cluster": cluster,
}
