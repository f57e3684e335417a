"""What the differential test asks of two servers with ACLs: how the rights are kept, and how each request is refused.

Nobody has to log in: the privileged client comes from one address of the loopback network, the other from another, and
ACLs are for hosts. Kafka's own broker speaks to its controller from the first.
"""

from .scripts import (
    ADD_OFFSETS, ADD_PARTITIONS, ALTER_CONFIGS, ALTER_QUOTAS, CONSUMER_DESCRIBE, CONSUMER_HEARTBEAT, CREATE, CREATE_ACLS,
    CREATE_PARTITIONS, DELETE, DELETE_ACLS, DELETE_GROUPS, DELETE_RECORDS, DESCRIBE_ACLS, DESCRIBE_CONFIGS, DESCRIBE_GROUPS,
    DESCRIBE_PARTITIONS, DESCRIBE_PRODUCERS, DESCRIBE_QUORUM, DESCRIBE_QUOTAS, DESCRIBE_TXNS, ELECT, END, FETCH,
    FIND_COORDINATOR, HEARTBEAT, INCREMENTAL, INIT_PRODUCER, JOIN, LEAVE, LIST_GROUPS, LIST_OFFSETS, LIST_REASSIGN,
    LIST_RESOURCES, LIST_TXNS, METADATA, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, PRODUCE, REASSIGN, SYNC, TXN_COMMIT,
    UNREGISTER, UPDATE_FEATURES, batch, coordinator, create, settle)
from .scripts import base64, time

AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS = [AUTHORIZER, "allow.everyone.if.no.acl.found=true", "group.initial.rebalance.delay.ms=0",
            "auto.create.topics.enable=false", "num.partitions=1"]
OUTSIDER = "127.0.0.2"
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
ALL, READ, WRITE, CREATING, DELETING, ALTER, DESCRIBE = 2, 3, 4, 5, 6, 7, 8
DENY, ALLOW = 2, 3
EPOCHS, LOG_DIRS, MOVE, DESCRIBE_USERS, ALTER_USERS, CLUSTER_OF, MARKERS = 23, 35, 34, 50, 51, 60, 27


def acl(resource, name, operation, host="*", pattern=LITERAL, principal="User:*", permission=ALLOW):
    return {"ResourceType": resource, "ResourceName": name, "ResourcePatternType": pattern, "Principal": principal,
            "Host": host, "Operation": operation, "PermissionType": permission}


def wanted(resource=ANY, name=None, pattern=ANY, principal=None, host=None, operation=ANY, permission=ANY):
    return {"ResourceType": resource, "ResourceName": name, "ResourcePatternType": pattern, "Principal": principal,
            "Host": host, "Operation": operation, "PermissionType": permission}


def put(peer, *acls, label=""):
    answer = peer.ask(label, CREATE_ACLS, 3, {"Creations": list(acls)}, note=bool(label))
    settle(peer)
    return answer


def insiders(peer):
    """From here on only who comes from the first address may do anything."""
    inside = {"host": "127.0.0.1"}
    put(peer, acl(TOPIC, "*", ALL, **inside), acl(GROUP, "*", ALL, **inside), acl(TRANSACTIONAL_ID, "*", ALL, **inside),
        acl(CLUSTER, "kafka-cluster", ALL, **inside))


def keeping(peer):
    insiders(peer)
    put(peer, acl(TOPIC, "a", READ, principal="User:x"), acl(TOPIC, "a", READ, principal="User:x"),
        acl(TOPIC, "ab", WRITE, pattern=PREFIXED, principal="User:y", permission=DENY), label="two, one of them twice")
    put(peer, acl(TOPIC, "a", READ, principal="User:x"), label="one that is there")
    put(peer, acl(TOPIC, "", READ), acl(CLUSTER, "other", ALTER), acl(TOPIC, "good", READ, principal="User:z"),
        label="two that cannot be, and one that can")
    for label, filter in {
        "all of topics": wanted(TOPIC), "by name": wanted(TOPIC, "a"), "literal": wanted(TOPIC, "a", LITERAL),
        "what applies": wanted(TOPIC, "abc", MATCH), "prefixed": wanted(ANY, None, PREFIXED),
        "of one": wanted(principal="User:x"), "from there": wanted(host="127.0.0.1"), "denials": wanted(permission=DENY),
        "to write": wanted(operation=WRITE), "none": wanted(GROUP, "nothing"),
    }.items():
        peer.ask(f"list {label}", DESCRIBE_ACLS, 3, filter)
        peer.ask(f"list {label} 1", DESCRIBE_ACLS, 1, {**filter, "ResourcePatternType": filter["ResourcePatternType"]})
    peer.ask("remove", DELETE_ACLS, 3, {"Filters": [
        wanted(TOPIC, "a", LITERAL), wanted(TOPIC, "abc", MATCH, principal="User:y"), wanted(GROUP, "nothing")]})
    settle(peer)
    peer.ask("what is left", DESCRIBE_ACLS, 3, wanted(TOPIC))


def requests(topic, group, transactional_id):
    """A request of every API about these: (label, key, version, body)."""
    records = base64.b64encode(batch([b"v"])).decode()
    partition = {"Topic": topic, "Partitions": [0]}
    produced = [{"Topic": topic, "Partitions": [{"Partition": 0, "Records": records}]}]
    fetched = [{"Topic": topic, "Partitions": [{
        "Partition": 0, "CurrentLeaderEpoch": -1, "FetchOffset": 0, "LastFetchedEpoch": -1, "LogStartOffset": -1,
        "PartitionMaxBytes": 1 << 20, "HighWatermark": (1 << 63) - 1}]}]
    committed = [{"Topic": topic, "Partitions": [{"Partition": 0, "Offset": 1, "LeaderEpoch": -1}]}]
    topic_resource = {"ResourceType": 2, "ResourceName": topic}
    acls = {"Creations": [acl(TOPIC, "never", READ)]}
    return [
        ("produce", PRODUCE, 11, {"Acks": -1, "TimeoutMillis": 1000, "Topics": produced}),
        ("produce long ago", PRODUCE, 7, {"Acks": -1, "TimeoutMillis": 1000, "Topics": produced}),
        ("fetch", FETCH, 12, {"ReplicaID": -1, "MaxWaitMillis": 0, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionEpoch": -1,
                              "Topics": fetched}),
        ("list offsets", LIST_OFFSETS, 7, {"ReplicaID": -1, "Topics": [
            {"Topic": topic, "Partitions": [{"Partition": 0, "CurrentLeaderEpoch": -1, "Timestamp": -1}]}]}),
        ("metadata", METADATA, 12, {"Topics": [{"Topic": topic}], "IncludeTopicAuthorizedOperations": True}),
        ("metadata long ago", METADATA, 1, {"Topics": [{"Topic": topic}]}),
        ("metadata of all", METADATA, 12, {"Topics": None, "AllowAutoTopicCreation": False}),
        ("metadata of nothing there", METADATA, 12, {"Topics": [{"Topic": "nothing"}], "AllowAutoTopicCreation": True}),
        ("partitions", DESCRIBE_PARTITIONS, 0, {"Topics": [{"Topic": topic}], "ResponsePartitionLimit": 10}),
        ("partitions of all", DESCRIBE_PARTITIONS, 0, {"Topics": [], "ResponsePartitionLimit": 10}),
        ("epochs", EPOCHS, 4, {"ReplicaID": -1, "Topics": [{"Topic": topic, "Partitions": [
            {"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}]}]}),
        ("delete records", DELETE_RECORDS, 2, {"TimeoutMillis": 1000, "Topics": [
            {"Topic": topic, "Partitions": [{"Partition": 0, "Offset": 0}]}]}),
        ("coordinator of a group", FIND_COORDINATOR, 4, {"CoordinatorType": 0, "CoordinatorKeys": [group]}),
        ("coordinator of a group long ago", FIND_COORDINATOR, 2, {"CoordinatorType": 0, "CoordinatorKey": group}),
        ("coordinator of a transactional id", FIND_COORDINATOR, 4, {
            "CoordinatorType": 1, "CoordinatorKeys": [transactional_id]}),
        ("commit", OFFSET_COMMIT, 8, {"Group": group, "Generation": -1, "Topics": committed}),
        ("committed", OFFSET_FETCH, 8, {"Groups": [{"Group": group, "Topics": [partition]}]}),
        ("committed to all", OFFSET_FETCH, 8, {"Groups": [{"Group": group, "Topics": None}]}),
        ("committed long ago", OFFSET_FETCH, 5, {"Group": group, "Topics": [partition]}),
        ("committed very long ago", OFFSET_FETCH, 1, {"Group": group, "Topics": [partition]}),
        ("join", JOIN, 9, {"Group": group, "SessionTimeoutMillis": 10_000, "RebalanceTimeoutMillis": 10_000,
                           "ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": ""}]}),
        ("join long ago", JOIN, 5, {"Group": group, "SessionTimeoutMillis": 10_000, "RebalanceTimeoutMillis": 10_000,
                                    "ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": ""}]}),
        ("sync", SYNC, 5, {"Group": group, "Generation": 1, "MemberID": "m", "ProtocolType": "consumer", "Protocol": "range"}),
        ("heartbeat", HEARTBEAT, 4, {"Group": group, "Generation": 1, "MemberID": "m"}),
        ("leave", LEAVE, 5, {"Group": group, "Members": [{"MemberID": "m"}]}),
        ("leave long ago", LEAVE, 1, {"Group": group, "MemberID": "m"}),
        ("consumer heartbeat", CONSUMER_HEARTBEAT, 1, {
            "Group": group, "MemberID": "m", "RebalanceTimeoutMillis": 10_000, "SubscribedTopicNames": [topic], "Topics": []}),
        ("describe consumer group", CONSUMER_DESCRIBE, 1, {"Groups": [group], "IncludeAuthorizedOperations": True}),
        ("describe group", DESCRIBE_GROUPS, 5, {"Groups": [group], "IncludeAuthorizedOperations": True}),
        ("list groups", LIST_GROUPS, 5, {}),
        ("delete offsets", OFFSET_DELETE, 0, {"Group": group, "Topics": [
            {"Topic": topic, "Partitions": [{"Partition": 0}]}]}),
        ("delete group", DELETE_GROUPS, 2, {"Groups": [group]}),
        ("producer id", INIT_PRODUCER, 4, {"TransactionalID": None, "TransactionTimeoutMillis": 1000}),
        ("producer id of a transactional id", INIT_PRODUCER, 4, {
            "TransactionalID": transactional_id, "TransactionTimeoutMillis": 1000, "ProducerID": -1, "ProducerEpoch": -1}),
        ("add partitions", ADD_PARTITIONS, 3, {
            "TransactionalID": transactional_id, "ProducerID": 1, "Topics": [partition]}),
        ("add partitions as a server", ADD_PARTITIONS, 5, {"Transactions": [
            {"TransactionalID": transactional_id, "ProducerID": 1, "VerifyOnly": True, "Topics": [partition]}]}),
        ("add offsets", ADD_OFFSETS, 4, {"TransactionalID": transactional_id, "ProducerID": 1, "Group": group}),
        ("end", END, 4, {"TransactionalID": transactional_id, "ProducerID": 1, "Commit": True}),
        ("commit in it", TXN_COMMIT, 4, {"TransactionalID": transactional_id, "Group": group, "ProducerID": 1,
                                         "Generation": -1, "Topics": committed}),
        ("markers", MARKERS, 1, {"Markers": [
            {"ProducerID": 1, "ProducerEpoch": 0, "Committed": False, "Topics": [partition]}]}),
        ("producers", DESCRIBE_PRODUCERS, 0, {"Topics": [partition]}),
        ("describe transaction", DESCRIBE_TXNS, 0, {"TransactionalIDs": [transactional_id]}),
        ("list transactions", LIST_TXNS, 1, {}),
        ("create", CREATE, 7, {"TimeoutMillis": 1000, "Topics": [
            {"Topic": "never", "NumPartitions": 1, "ReplicationFactor": 1}]}),
        ("delete", DELETE, 6, {"TimeoutMillis": 1000, "Topics": [{"Topic": topic}]}),
        ("delete nothing there", DELETE, 6, {"TimeoutMillis": 1000, "Topics": [{"Topic": "nothing"}]}),
        ("grow", CREATE_PARTITIONS, 3, {"TimeoutMillis": 1000, "Topics": [{"Topic": topic, "Count": 3}]}),
        ("configs", DESCRIBE_CONFIGS, 4, {"Resources": [
            {**topic_resource, "ConfigNames": ["retention.ms"]},
            {"ResourceType": 4, "ResourceName": "1", "ConfigNames": ["message.max.bytes"]},
            {"ResourceType": 32, "ResourceName": group, "ConfigNames": ["consumer.session.timeout.ms"]},
            {"ResourceType": 16, "ResourceName": "s", "ConfigNames": []}]}),
        ("alter configs", INCREMENTAL, 1, {"Resources": [
            {**topic_resource, "Configs": [{"Name": "retention.ms", "Op": 0, "Value": "77777"}]},
            {"ResourceType": 4, "ResourceName": "1", "Configs": [{"Name": "message.max.bytes", "Op": 0, "Value": "7777"}]},
            {"ResourceType": 32, "ResourceName": group, "Configs": [
                {"Name": "consumer.session.timeout.ms", "Op": 0, "Value": "50000"}]}]}),
        ("replace configs", ALTER_CONFIGS, 2, {"Resources": [{**topic_resource, "Configs": []}]}),
        ("list acls", DESCRIBE_ACLS, 3, wanted()), ("create acls", CREATE_ACLS, 3, acls),
        ("delete acls", DELETE_ACLS, 3, {"Filters": [wanted(GROUP, "nothing"), wanted(GROUP, "no")]}),
        ("elect", ELECT, 2, {"TimeoutMillis": 1000, "Topics": [partition]}),
        ("reassign", REASSIGN, 0, {"TimeoutMillis": 1000, "Topics": [
            {"Topic": topic, "Partitions": [{"Partition": 0, "Replicas": [1]}]}]}),
        ("list reassignments", LIST_REASSIGN, 0, {"TimeoutMillis": 1000, "Topics": None}),
        ("log dirs", LOG_DIRS, 4, {"Topics": None}),
        ("move", MOVE, 2, {"Dirs": [{"Dir": "/nowhere", "Topics": [partition]}]}),
        ("quotas", DESCRIBE_QUOTAS, 1, {"Components": []}),
        ("alter quotas", ALTER_QUOTAS, 1, {"Entries": [
            {"Entity": [{"Type": "user", "Name": "a"}], "Ops": [{"Key": "producer_byte_rate", "Value": 1}]}]}),
        ("users", DESCRIBE_USERS, 0, {"Users": None}),
        ("alter users", ALTER_USERS, 0, {"Deletions": [{"Name": "a", "Mechanism": 1}], "Upsertions": []}),
        ("resources", LIST_RESOURCES, 1, {"ResourceTypes": []}),
        ("quorum", DESCRIBE_QUORUM, 2, {"Topics": [{"Topic": "__cluster_metadata", "Partitions": [{"Partition": 0}]}]}),
        ("features", UPDATE_FEATURES, 2, {"TimeoutMillis": 1000, "FeatureUpdates": []}),
        ("unregister", UNREGISTER, 0, {"BrokerID": 7}),
        ("cluster", CLUSTER_OF, 1, {"IncludeClusterAuthorizedOperations": True, "EndpointType": 1}),
    ]


def prepared(peer, name):
    insiders(peer)
    create(peer, name)
    for kind in (0, 1):
        coordinator(peer, name, kind)
    for _ in range(100):
        answer = peer.ask("", OFFSET_COMMIT, 8, {"Group": name, "Generation": -1, "Topics": [
            {"Topic": name, "Partitions": [{"Partition": 0, "Offset": 1, "LeaderEpoch": -1}]}]}, note=False)
        if answer["Topics"][0]["Partitions"][0]["ErrorCode"] == 0:
            break
        time.sleep(0.1)
    return requests(name, name, name)


def without_rights(peer):
    for label, key, version, body in prepared(peer, "closed"):
        peer.ask(label, key, version, body, source=OUTSIDER)


def with_some(peer):
    """What one right of the outsider's opens, and what it does not."""
    asked = {label: rest for label, *rest in prepared(peer, "ajar")}

    def ask(right, *labels):
        for label in labels:
            peer.ask(f"{right}: {label}", *asked[label], source=OUTSIDER)

    put(peer, acl(TOPIC, "aja", DESCRIBE, OUTSIDER, PREFIXED))
    ask("describe", "metadata", "metadata of all", "partitions of all", "list offsets", "fetch", "delete", "committed to all")
    put(peer, acl(TOPIC, "ajar", READ, OUTSIDER))
    ask("read", "fetch", "produce", "producers", "epochs", "commit")
    put(peer, acl(GROUP, "ajar", DESCRIBE, OUTSIDER))
    ask("describe group", "committed", "committed to all", "list groups", "describe group", "commit", "join")
    put(peer, acl(GROUP, "ajar", READ, OUTSIDER))
    ask("read group", "commit", "heartbeat", "delete offsets", "delete group")
    put(peer, acl(TOPIC, "nothing", DESCRIBE, OUTSIDER))
    ask("describe what is not there", "metadata of nothing there", "delete nothing there")
    put(peer, acl(CLUSTER, "kafka-cluster", DESCRIBE, OUTSIDER))
    ask("describe the cluster", "cluster", "list groups", "features", "users")
    put(peer, acl(TOPIC, "ajar", READ, OUTSIDER, permission=DENY))
    ask("denied", "fetch", "metadata", "producers", "commit")
    put(peer, acl(TOPIC, "ajar", ALL, OUTSIDER))
    ask("denied, all allowed", "fetch", "metadata", "producers", "configs", "delete records")


SCRIPTS = {"keeping ACLs": keeping, "no rights": without_rights, "some rights": with_some}
