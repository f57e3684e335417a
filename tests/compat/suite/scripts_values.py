"""What the differential test asks with values that requests seldom have: every field at the ends of what it takes, beyond
them, and at what stands for something else, in every version. These are the requests about records and topics.
"""

import copy
import socket
import struct

from .scripts import (
    ALTER_CONFIGS, CREATE, CREATE_PARTITIONS, DELETE, DELETE_RECORDS, DESCRIBE_PARTITIONS, DESCRIBE_PRODUCERS,
    DESCRIBE_QUORUM,
    ELECT, FETCH, LIST_OFFSETS, LIST_REASSIGN, METADATA, PRODUCE, REASSIGN, UNREGISTER, UPDATE_FEATURES, base64, batch,
    create,
    offsets_of, produce, wire)

API_VERSIONS, EPOCHS, LOG_DIRS, MOVE, CLUSTER_OF, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 23, 35, 34, 60, 17, 36
SHORT, INT, LONG = (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1
NOBODY, SOME_ID = [0] * 16, [7] * 16
PARTITION = "Topics.0.Partitions.0."


def varied(base, changes):
    """`base` with other values, each by its path: "Topics.0.Partitions.0.Offset"."""
    body = copy.deepcopy(base)
    for path, value in changes.items():
        *way, last = path.split(".")
        at = body
        for part in way:
            at = at[int(part) if part.isdigit() else part]
        at[last] = copy.deepcopy(value)
    return body


def probe(peer, name, key, versions, base, fields=None, others=None, tidy=None):
    """Asks in each version with `base`, with every value of every field, and with `others`: label -> values by path.
    `tidy` takes out of an answer what no two servers have in common."""
    cases = {"": {}, **{f"{path.rpartition('.')[2]}={short(value)}": {path: value}
                        for path, values in (fields or {}).items() for value in values}, **(others or {})}
    connection = 0
    for version in versions:
        for label, changes in cases.items():
            answer = peer.ask("", key, version, varied(base, changes), note=None, connection=f"probe {name} {connection}")
            if answer is None:
                connection += 1
            elif tidy:
                tidy(answer)
            peer.answers.append((f"{name} {version} {label}", "closed" if answer is None else peer.named(answer)))


def short(value):
    text = repr(value)
    return text if len(text) < 100 else f"{text[:12]}... ({len(text)})"


def topic_id(peer, topic):
    answer = peer.ask("", METADATA, 12, {"Topics": [{"Topic": topic}]}, note=False)
    return answer["Topics"][0]["TopicID"]


def twice(base, path):
    """The same element of a list twice."""
    at = base
    for part in path.split("."):
        at = at[int(part) if part.isdigit() else part]
    return {path: [at[0], at[0]]}


def fetches(peer):
    create(peer, "fetched", 1)
    produce(peer, "fill", "fetched", batch([b"a", b"b"]))
    produce(peer, "fill", "fetched", batch([b"c"]))
    base = {"ReplicaID": -1, "ReplicaState": {"ID": -1, "Epoch": -1}, "MaxWaitMillis": 0, "MinBytes": 1, "MaxBytes": 1 << 20,
            "IsolationLevel": 0, "SessionID": 0, "SessionEpoch": -1, "Topics": [{
                "Topic": "fetched", "TopicID": topic_id(peer, "fetched"), "Partitions": [{
                    "Partition": 0, "CurrentLeaderEpoch": -1, "FetchOffset": 0, "LastFetchedEpoch": -1, "LogStartOffset": -1,
                    "PartitionMaxBytes": 1 << 20, "HighWatermark": LONG}]}]}

    def tidy(answer):
        answer["SessionID"] = answer["SessionID"] > 0
        for of in answer["Topics"] or []:
            for partition in of["Partitions"] or []:
                partition["RecordBatches"] = offsets_of(base64.b64decode(partition["RecordBatches"] or ""))

    fields = {
        "MaxWaitMillis": (-1, -1 << 31), "MinBytes": (-1, 0, INT), "MaxBytes": (-1, 0, 1, INT), "IsolationLevel": (1, 2,
            -1, 127),
        PARTITION + "PartitionMaxBytes": (-1, 0, 1, INT, -1 << 31), PARTITION + "FetchOffset": (-1, -2, 3, 4, LONG,
            -1 - LONG),
        PARTITION + "CurrentLeaderEpoch": (-2, 0, 1, 1000), PARTITION + "LastFetchedEpoch": (-2, 0, 1, 1000),
        PARTITION + "LogStartOffset": (-2, 0, 100), PARTITION + "Partition": (-1, 1, INT), "Topics.0.Topic": ("",
            "nowhere", "bad!"),
        "Topics.0.TopicID": (NOBODY, SOME_ID), "Rack": ("", "r")}
    sessions = {f"session {number}, {epoch}": {"SessionID": number, "SessionEpoch": epoch}
                for number in (0, 5, -1) for epoch in (0, -1, 1, -2, INT)}
    others = {
        **sessions, "no topics": {"Topics": []}, "no topics of a new session": {"Topics": [], "SessionEpoch": 0},
        "no partitions": {"Topics.0.Partitions": []}, "a topic twice": twice(base, "Topics"),
        "a partition twice": twice(base, "Topics.0.Partitions"),
        "forget what is not in it": {"SessionEpoch": 0, "ForgottenTopics": [
            {"Topic": "nowhere", "TopicID": SOME_ID, "Partitions": [0]}]}}
    probe(peer, "fetch", FETCH, range(4, 19), base, fields, others, tidy)
    probe(peer, "fetch as", FETCH, (4, 9, 12, 14), base, {"ReplicaID": (-2, -3, -10, 0, 1, 2, INT)}, {}, tidy)
    probe(peer, "fetch as", FETCH, (15, 18), base, {"ReplicaState.ID": (-2, -3, -10, 0, 1, 2, INT)}, {
        "replica 2 of an epoch": {"ReplicaState": {"ID": 2, "Epoch": 5}}}, tidy)
    probe(peer, "fetch knowing", FETCH, (18,), base, {PARTITION + "HighWatermark": (-1, 0, 3)}, {}, tidy)

    def in_session(label, epoch, **changed):
        """On one connection, in the session that the first of them made."""
        answer = peer.ask("", FETCH, 17, {**base, "SessionID": session, "SessionEpoch": epoch, **changed}, False, "session")
        tidy(answer)
        peer.answers.append((label, peer.named(answer)))

    session = peer.ask("", FETCH, 17, {**base, "SessionEpoch": 0}, False, "session")["SessionID"]
    for label, epoch, changed in (
        ("in the session", 1, {"Topics": []}), ("an epoch twice", 1, {"Topics": []}), ("a gap", 5, {"Topics": []}),
        ("next", 2, {"Topics": []}),
        ("forget nothing there", 3, {"ForgottenTopics": [{"TopicID": SOME_ID, "Partitions": [0]}], "Topics": []}),
        ("forget it", 4, {"ForgottenTopics": [{"TopicID": base["Topics"][0]["TopicID"], "Partitions": [0]}], "Topics": []}),
        ("nothing left", 5, {"Topics": []}), ("close it", -1, {"Topics": []}), ("after its end", 6, {"Topics": []}),
    ):
        in_session(label, epoch, **changed)


def listings(peer):
    create(peer, "listed", 1)
    produce(peer, "fill", "listed", batch([b"a", b"b"]))
    base = {"ReplicaID": -1, "IsolationLevel": 0, "TimeoutMillis": 1000, "Topics": [{"Topic": "listed", "Partitions": [
        {"Partition": 0, "CurrentLeaderEpoch": -1, "Timestamp": -1}]}]}

    def tidy(answer):
        for of in answer["Topics"] or []:
            for partition in of["Partitions"] or []:
                partition["Timestamp"] = partition["Timestamp"] >= 0

    fields = {
        "ReplicaID": (-2, -3, 0, 1, 2), "IsolationLevel": (1, 2, -1, 127), "TimeoutMillis": (-1, 0, INT),
        PARTITION + "Timestamp": (-2, -3, -4, -5, -6, -7, -8, -9, -1 - LONG, 0, 1, LONG),
        PARTITION + "CurrentLeaderEpoch": (-2, 0, 1, 1000), PARTITION + "Partition": (-1, 1, INT),
        "Topics.0.Topic": ("", "nowhere", "bad!")}
    others = {"no topics": {"Topics": []}, "no partitions": {"Topics.0.Partitions": []}, "a topic twice": twice(base,
        "Topics"),
              "a partition twice": twice(base, "Topics.0.Partitions"),
              "time and isolation": {PARTITION + "Timestamp": -3, "IsolationLevel": 1}}
    probe(peer, "list", LIST_OFFSETS, range(1, 12), base, fields, others, tidy)
    epochs = {"ReplicaID": -1, "Topics": [{"Topic": "listed", "Partitions": [
        {"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}]}]}
    fields = {
        "ReplicaID": (-2, -3, 0, 1, 2), PARTITION + "CurrentLeaderEpoch": (-2, 0, 1, 1000),
        PARTITION + "LeaderEpoch": (-1, -2, 1, 1000, INT, -1 << 31), PARTITION + "Partition": (-1, 1),
        "Topics.0.Topic": ("", "nowhere")}
    others = {"no topics": {"Topics": []}, "no partitions": {"Topics.0.Partitions": []}, "a topic twice": twice(epochs,
        "Topics"),
              "a partition twice": twice(epochs, "Topics.0.Partitions")}
    probe(peer, "epoch", EPOCHS, range(2, 5), epochs, fields, others)


def produces(peer):
    create(peer, "produced", 1)
    data = base64.b64encode(batch([b"a"])).decode()
    base = {"TransactionID": None, "Acks": -1, "TimeoutMillis": 1000, "Topics": [{
        "Topic": "produced", "TopicID": topic_id(peer, "produced"), "Partitions": [{"Partition": 0, "Records": data}]}]}
    fields = {
        "Acks": (1, 2, -2, 127, SHORT, -SHORT), "TimeoutMillis": (-1, 0, INT, -1 << 31), "TransactionID": ("", "id"),
        PARTITION + "Partition": (-1, 1, INT), "Topics.0.Topic": ("", "nowhere", "bad!"),
        "Topics.0.TopicID": (NOBODY, SOME_ID)}
    two = base64.b64encode(batch([b"a"]) + batch([b"b"])).decode()
    cut = base64.b64encode(batch([b"a"])[:-1]).decode()
    others = {
        "no topics": {"Topics": []}, "no partitions": {"Topics.0.Partitions": []}, "a topic twice": twice(base, "Topics"),
        "a partition twice": twice(base, "Topics.0.Partitions"), "no bytes": {PARTITION + "Records": ""},
        "one byte": {PARTITION + "Records": "AA=="},
        "two batches": {PARTITION + "Records": two}, "a batch cut short": {PARTITION + "Records": cut},
        "no topics and bad acks": {"Topics": [], "Acks": 5}}

    def tidy(answer):
        for of in answer["Topics"] or []:
            for partition in of["Partitions"] or []:
                partition["BaseOffset"] = partition["BaseOffset"] >= 0

    probe(peer, "produce", PRODUCE, range(3, 14), base, fields, others, tidy)
    for version in range(3):
        peer.ask(f"produce {version}", PRODUCE, version, base)
    acks_0 = {"good": {0: batch([b"z"])}, "null": {0: None}, "empty": {0: b""}, "no partition": {9: batch([b"z"])},
              "garbage": {0: b"garbage"}}
    for label, batches in acks_0.items():
        topic = "produced"
        frames = wire.produce(topic, batches, 0, 3).frame() + wire.api_versions(0).frame()
        peer.answers.append((f"acks=0, {label}, then another", answered(peer, frames)))
    frames = wire.produce("nowhere", {0: batch([b"z"])}, 0, 3).frame() + wire.api_versions(0).frame()
    peer.answers.append(("acks=0, nowhere, then another", answered(peer, frames)))


def answered(peer, frames, read=lambda body: True):
    """What the one answer to these frames says; or that there is none."""
    host, _, port = peer.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=2) as connection:
        connection.sendall(frames)
        data = b""
        while len(data) < 8 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            try:
                more = connection.recv(1 << 16)
            except TimeoutError:
                return "nothing"
            if not more:
                return "closed"
            data += more
    return read(data[8:])


def metadata(peer):
    create(peer, "meta", 2)
    own = topic_id(peer, "meta")
    base = {"Topics": [{"Topic": "meta", "TopicID": NOBODY}], "AllowAutoTopicCreation": False}

    def tidy(answer):
        # Other scripts' topics say nothing new.
        answer["Topics"] = [of for of in answer["Topics"] or [] if of["Topic"] in (None, "", "meta", "nowhere", "bad!", ".")]
        answer["Topics"].sort(key=lambda of: (of["Topic"] or "", of["ErrorCode"]))

    named = {"Topics.0.Topic": ("nowhere", "", "bad!", ".", "x" * 250)}
    by_id = {
        "by its id": {"Topics": [{"Topic": None, "TopicID": own}]}, "by no id": {"Topics": [{"Topic": None,
            "TopicID": NOBODY}]},
        "by another id": {"Topics": [{"Topic": None, "TopicID": SOME_ID}]},
        "by id and name": {"Topics": [{"Topic": "meta", "TopicID": own}]},
        "by another name": {"Topics": [{"Topic": "nowhere", "TopicID": own}]},
        "by name and by id": {"Topics": [{"Topic": "meta", "TopicID": NOBODY}, {"Topic": None, "TopicID": own}]}}
    others = {
        "all": {"Topics": None}, "none": {"Topics": []}, "twice": twice(base, "Topics"),
        "with auto-creation": {"Topics": [{"Topic": "nowhere"}], "AllowAutoTopicCreation": True},
        "a bad name with auto-creation": {"Topics": [{"Topic": "bad!"}], "AllowAutoTopicCreation": True},
        "rights": {"IncludeClusterAuthorizedOperations": True, "IncludeTopicAuthorizedOperations": True},
        "rights to nothing": {"Topics": [{"Topic": "nowhere"}], "IncludeTopicAuthorizedOperations": True}}
    probe(peer, "metadata", METADATA, range(14), base, named, others, tidy)
    probe(peer, "metadata", METADATA, range(10, 14), base, {}, by_id, tidy)
    body = {"Topics": [{"Topic": "meta"}], "ResponsePartitionLimit": 10}
    cursors = {f"cursor {topic!r} {partition}": {"Cursor": {"Topic": topic, "Partition": partition}}
               for topic in ("meta", "", "a", "z", "nowhere") for partition in (-1, 0, 1, 2, INT)}
    probe(peer, "describe", DESCRIBE_PARTITIONS, (0,), body, {"ResponsePartitionLimit": (-1, 0, 1, 2, INT), **named}, {
        **cursors, "twice": twice(body, "Topics"),
        "two": {"Topics": [{"Topic": "nowhere"}, {"Topic": "meta"}], "ResponsePartitionLimit": 1}})
    asked = {"IncludeClusterAuthorizedOperations": False, "EndpointType": 1}
    probe(peer, "cluster", CLUSTER_OF, range(3), asked, {
        "IncludeClusterAuthorizedOperations": (True,), "EndpointType": (0, 2, 3, -1, 127), "IncludeFencedBrokers": (True,)})
    for version in (5, 6, 127, SHORT, -1):
        request = wire.Request(API_VERSIONS, version, version >= 3).text("a").text("1").tags()

        def listed(body):
            error, keys = wire.versions_listed(body)
            return error, sorted(keys)
        # A version that one of them has says nothing.
        if version > 5:
            peer.answers.append((f"versions {version}", answered(peer, request.frame(), listed)))
    for name in ("", "a b", "-a", "a-", ".a", "a" * 300, "ä", "a\n", None):
        for version in (3, 4):
            request = wire.Request(API_VERSIONS, version, True).text(name).text("1").tags()
            peer.answers.append((f"versions {version} for software {str(name)[:9]!r}", answered(
                peer, request.frame(), lambda body: struct.unpack_from(">h", body)[0])))
            request = wire.Request(API_VERSIONS, version, True).text("a").text(name).tags()
            peer.answers.append((f"versions {version} for a version {str(name)[:9]!r}", answered(
                peer, request.frame(), lambda body: struct.unpack_from(">h", body)[0])))


def deletions(peer):
    create(peer, "deleted", 1)
    produce(peer, "fill", "deleted", batch([b"a", b"b"]))
    base = {"TimeoutMillis": 5000, "Topics": [{"Topic": "deleted", "Partitions": [{"Partition": 0, "Offset": 0}]}]}
    others = {"no topics": {"Topics": []}, "no partitions": {"Topics.0.Partitions": []}, "a topic twice": twice(base,
        "Topics"),
              "a partition twice": twice(base, "Topics.0.Partitions")}
    fields = {"TimeoutMillis": (0, -1, -1 << 31, INT), PARTITION + "Offset": (-2, -1 - LONG, LONG, 3, 2, 0, -1),
              PARTITION + "Partition": (-1, 1), "Topics.0.Topic": ("", "nowhere")}
    probe(peer, "delete records", DELETE_RECORDS, range(3), base, fields, others)
    body = {"Topics": [{"Topic": "deleted", "Partitions": [0]}]}
    probe(peer, "producers", DESCRIBE_PRODUCERS, (0,), body, {"Topics.0.Topic": ("", "nowhere"), "Topics.0.Partitions": (
        [], [-1], [1], [0, 0])}, {"no topics": {"Topics": []}, "a topic twice": twice(body, "Topics")})
    own = topic_id(peer, "deleted")
    body = {"TopicNames": ["nowhere"], "Topics": [{"Topic": "nowhere", "TopicID": NOBODY}], "TimeoutMillis": 1000}
    probe(peer, "delete topics", DELETE, range(1, 7), body, {"TimeoutMillis": (0, -1, INT)}, {
        **{f"{name!r}": {"TopicNames": [name], "Topics": [{"Topic": name}]}
           for name in ("", ".", "bad!", "__cluster_metadata", "x" * 250)},
        "none": {"TopicNames": [], "Topics": []}, "twice": {"TopicNames": ["nowhere"] * 2,
            "Topics": [{"Topic": "nowhere"}] * 2}})
    probe(peer, "delete topics by id", DELETE, (6,), body, {}, {
        "no id": {"Topics": [{"Topic": None, "TopicID": NOBODY}]}, "another": {"Topics": [{"Topic": None,
            "TopicID": SOME_ID}]},
        "id and name": {"Topics": [{"Topic": "deleted", "TopicID": own}]},
        "twice": {"Topics": [{"Topic": None, "TopicID": own}, {"Topic": None, "TopicID": own}]},
        "by both": {"Topics": [{"Topic": "deleted", "TopicID": NOBODY}, {"Topic": None, "TopicID": own}]}})
    # Nothing is done for whom nobody waits.
    for timeout in (0, -1):
        topic = {"Topic": f"hasty{timeout}", "NumPartitions": 1, "ReplicationFactor": 1}
        for version in (2, 7):
            answer = peer.ask("", CREATE, version, {"Topics": [topic], "TimeoutMillis": timeout}, note=False)
            peer.answers.append((f"create {version} within {timeout}", answer["Topics"][0]["ErrorCode"]))
        peer.ask(f"what was made within {timeout}", METADATA, 12, {"Topics": [{"Topic": topic["Topic"]}]})
        peer.ask(f"grow within {timeout}", CREATE_PARTITIONS, 3, {
            "Topics": [{"Topic": "deleted", "Count": 2}], "TimeoutMillis": timeout})
        peer.ask(f"what grew within {timeout}", METADATA, 12, {"Topics": [{"Topic": "deleted"}]})
        peer.ask(f"delete within {timeout}", DELETE, 6, {"Topics": [{"Topic": "deleted"}], "TimeoutMillis": timeout})
        peer.ask(f"what is left within {timeout}", METADATA, 12, {"Topics": [{"Topic": "deleted"}]})


def replicas(peer):
    create(peer, "moved", 1)
    topics = [{"Topic": "moved", "Partitions": [0]}]
    base = {"ElectionType": 0, "TimeoutMillis": 1000, "Topics": topics}
    probe(peer, "elect", ELECT, range(3), base, {
        "TimeoutMillis": (0, -1), "ElectionType": (1, 2, -1, 127), "Topics.0.Topic": ("", "nowhere"), "Topics.0.Partitions": (
            [], [-1], [0, 0])}, {"none": {"Topics": []}, "twice": twice(base, "Topics")})
    base = {"TimeoutMillis": 1000, "AllowReplicationFactorChange": True, "Topics": [{"Topic": "moved", "Partitions": [
        {"Partition": 0, "Replicas": [1]}]}]}
    probe(peer, "reassign", REASSIGN, (0, 1), base, {
        "TimeoutMillis": (0, -1), PARTITION + "Partition": (-1, 1), "Topics.0.Topic": ("", "nowhere"),
        PARTITION + "Replicas": ([-1], [1, 2], [0]), "AllowReplicationFactorChange": (False,)},
        {"none": {"Topics": []}, "no partitions": {"Topics.0.Partitions": []}, "twice": twice(base, "Topics"),
         "a partition twice": twice(base, "Topics.0.Partitions")})
    base = {"TimeoutMillis": 1000, "Topics": topics}
    probe(peer, "reassignments", LIST_REASSIGN, (0,), base, {
        "TimeoutMillis": (0, -1), "Topics": (None, []), "Topics.0.Topic": ("", "nowhere"), "Topics.0.Partitions": ([], [-1])})
    updates = {"TimeoutMillis": 1000, "ValidateOnly": True, "FeatureUpdates": [
        {"Feature": "transaction.version", "MaxVersionLevel": 2, "UpgradeType": 1, "AllowDowngrade": False}]}
    probe(peer, "features", UPDATE_FEATURES, range(3), updates, {
        "TimeoutMillis": (0, -1), "FeatureUpdates.0.UpgradeType": (0, 2, 3, 4, -1, 127),
        "FeatureUpdates.0.MaxVersionLevel": (0, -1, 1, 3), "FeatureUpdates.0.Feature": ("", "metadata.version",
            "kraft.version"),
        "ValidateOnly": (False,)}, {
            "none": {"FeatureUpdates": []}, "twice": twice(updates, "FeatureUpdates"),
            "lower, allowed": {"FeatureUpdates.0.MaxVersionLevel": 1, "FeatureUpdates.0.AllowDowngrade": True,
                               "FeatureUpdates.0.UpgradeType": 2}})

    def tidy(answer):
        for of in answer["Dirs"] or []:
            of["Dir"] = bool(of["Dir"])
            of["TotalBytes"], of["UsableBytes"] = of["TotalBytes"] > 0, of["UsableBytes"] > 0
            of["Topics"] = [topic for topic in of["Topics"] or [] if topic["Topic"] in ("moved", "nowhere", "")]

    probe(peer, "directories", LOG_DIRS, range(1, 6), {"Topics": topics}, {
        "Topics": (None, []), "Topics.0.Topic": ("", "nowhere"), "Topics.0.Partitions": ([], [-1], [0, 0])}, {
            "twice": twice({"Topics": topics}, "Topics")}, tidy)
    moves = {"Dirs": [{"Dir": "/nowhere", "Topics": topics}]}
    probe(peer, "move", MOVE, range(1, 3), moves, {
        "Dirs.0.Dir": ("", "relative", "/"), "Dirs.0.Topics": ([],), "Dirs": ([],), "Dirs.0.Topics.0.Topic": ("", "nowhere"),
        "Dirs.0.Topics.0.Partitions": ([], [-1], [0, 0])})
    probe(peer, "unregister", UNREGISTER, (0,), {"BrokerID": 7}, {"BrokerID": (-1, 0, INT, -1 << 31)})
    # Kafka closes the connection of whoever asks for another topic in an older version.
    probe(peer, "quorum", DESCRIBE_QUORUM, (2,), {"Topics": [{"Topic": "moved", "Partitions": [{"Partition": 0}]}]}, {
        "Topics": ([],), "Topics.0.Partitions": ([], [{"Partition": 1}]), "Topics.0.Topic": ("", "__cluster_metadata2")})
    for mechanism in ("", "PLAIN", "nothing"):
        for version in (0, 1):
            peer.ask(f"handshake {version} {mechanism!r}", SASL_HANDSHAKE, version, {"Mechanism": mechanism})
    for version in range(3):
        peer.ask(f"authenticate {version}", SASL_AUTHENTICATE, version, {"SASLAuthBytes": ""})
    # The same resource twice Kafka does not answer at all.
    old = {"ValidateOnly": True, "Resources": [{"ResourceType": 2, "ResourceName": "moved", "Configs": [
        {"Name": "retention.ms", "Value": "1"}]}]}
    probe(peer, "replace", ALTER_CONFIGS, range(3), old, {
        "Resources": ([],), "Resources.0.ResourceType": (0, 1, 3, 8, -1, 127), "Resources.0.ResourceName": ("", "nowhere",
            "bad!"),
        "Resources.0.Configs": ([], [{"Name": "", "Value": "1"}], [{"Name": "no.such", "Value": "1"}], [
            {"Name": "retention.ms", "Value": None}], [{"Name": "retention.ms", "Value": "1"}] * 2, [
                {"Name": "segment.ms", "Value": "0"}], [{"Name": "flush.messages", "Value": "0"}])}, {
            "a broker": {"Resources": [{"ResourceType": 4, "ResourceName": "1", "Configs": [
                {"Name": "node.id", "Value": "1"}]}]}, "no broker": {"Resources": [{"ResourceType": 4, "ResourceName": "",
                "Configs": []}]}})


SCRIPTS = {"values of fetch": fetches, "values of offsets": listings, "values of produce": produces,
    "values of metadata": metadata,
           "values of deletions": deletions, "values of replicas": replicas}
