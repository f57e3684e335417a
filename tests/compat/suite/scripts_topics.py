"""What the differential test asks about the settings of topics: every one, at the ends of what it takes and beyond.

Everything is only asked for (validate only), so that no value changes what the next one meets.
"""

from .scripts import (
    APPEND, CREATE, CREATE_PARTITIONS, INCREMENTAL, SET, SUBTRACT, TOPIC, UNSET, create, describe)

INT, LONG, SHORT = (1 << 31) - 1, (1 << 63) - 1, (1 << 15) - 1
# How a number can be written, and how not.
NUMBERS = ["", " ", "x", "1.5", "0x10", "1e3", "1_000", "1,000", "--1", "+", "-"]
SPELLED = ["+{0}", " {0} ", "0{0}", "{0}L", "{0}.0", "\t{0}\n", "{0},"]
FRACTIONS = ["NaN", "Infinity", "-Infinity", "0.5d", "0.5f", "5e-1", ".5", "1.", "0x1p-1", "", "x", " 0.5 ", "-0", "1e400",
             "inf", "nan", "infinity", "+0.5", "0,5", "1e-400"]
BOOLEANS = ["true", "false", "TRUE", "False", " true ", "yes", "1", "0", "", "t"]
# Numbers: their least and their greatest value, and others worth a try.
NUMERIC = {
    "compression.gzip.level": (-1, 9, 0, 1), "compression.lz4.level": (1, 17), "compression.zstd.level": (-131072, 22, 0),
    "delete.retention.ms": (0, LONG), "file.delete.delay.ms": (0, LONG), "flush.messages": (1, LONG), "flush.ms": (0, LONG),
    "index.interval.bytes": (0, INT), "local.retention.bytes": (-2, LONG, -1), "local.retention.ms": (-2, LONG, -1),
    "max.compaction.lag.ms": (1, LONG), "max.message.bytes": (0, INT), "message.timestamp.after.max.ms": (0, LONG),
    "message.timestamp.before.max.ms": (0, LONG), "min.compaction.lag.ms": (0, LONG), "min.insync.replicas": (1, INT, 2),
    "retention.bytes": (-1 - LONG, LONG, -1, -2, 0), "retention.ms": (-1, LONG, 0, -2), "segment.bytes": (1 << 20, INT,
        13, 14),
    "segment.index.bytes": (4, INT), "segment.jitter.ms": (0, LONG), "segment.ms": (1, LONG),
    "internal.segment.bytes": (0, INT),
}
WORDS = {
    "cleanup.policy": ["delete", "compact", "compact,delete", "delete,compact", " compact , delete ", "compact,compact",
                       "delete,delete,compact", "", ",", "compact,", ",compact", "COMPACT", "none", "compact,none",
                       "[compact]",
                       "compact delete", " "],
    "compression.type": ["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer", "none", "GZIP", "", " lz4 ", "lz4,zstd",
                         "zstd:3", "brotli"],
    "message.timestamp.type": ["CreateTime", "LogAppendTime", "createtime", "", " CreateTime ", "NoTimestampType"],
    "leader.replication.throttled.replicas": ["", "*", "0:1", "0:1,1:1", "0:1, 1:2", "0:1,0:1", "*,0:1", "0", "0:", ":1",
        "a:b",
                                              "-1:1", "0:1:2", "0:1,", " * ", " 0:1 ", "none", "0-1"],
    "follower.replication.throttled.replicas": ["", "*", "0:1", "0", "0:1,0:1", "x"],
}
FLAGS = ["preallocate", "unclean.leader.election.enable", "remote.log.copy.disable", "remote.log.delete.on.disable",
         "remote.storage.enable"]
SHARES = {"min.cleanable.dirty.ratio": ["0", "1", "0.0", "1.0", "-0.1", "1.1", "2", *FRACTIONS]}
# Names that no topic's setting has, here or any more.
UNKNOWN = ["", "no.such", "Retention.ms", " retention.ms", "retention.ms ", "message.format.version",
           "message.downconversion.enable", "log.retention.ms", "max.decompressed.message.bytes", "remote.copy.lag.ms",
           "remote.copy.lag.bytes", "errors.deadletterqueue.group.enable"]
# What only several settings together are wrong with.
TOGETHER = [
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
    {"min.compaction.lag.ms": "9223372036854775807"},
    {"min.compaction.lag.ms": "1", "max.compaction.lag.ms": "1", "cleanup.policy": "delete"},
    {"remote.storage.enable": "true", "cleanup.policy": "compact"},
    {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
    {"remote.storage.enable": "false", "remote.log.copy.disable": "true"},
    {"local.retention.ms": "10", "retention.ms": "5"},
    {"local.retention.ms": "-1", "retention.ms": "5"},
    {"local.retention.bytes": "10", "retention.bytes": "5"},
    {"local.retention.bytes": "-1", "retention.bytes": "5"},
    {"retention.ms": "1", "segment.ms": "2"},
    {"max.message.bytes": "2000000", "segment.bytes": "1048576"},
    {"segment.jitter.ms": "9", "segment.ms": "8"},
    {"no.such": "1", "retention.ms": "x"},
]


def values():
    """Every setting with every value: (name, value)."""
    for name, (least, most, *others) in NUMERIC.items():
        numbers = [least, least - 1, most, most + 1, *others]
        yield from ((name, str(value)) for value in numbers)
        yield from ((name, spelled.format(2 << 20)) for spelled in SPELLED)
        yield from ((name, value) for value in NUMBERS)
    for table in (WORDS, SHARES, dict.fromkeys(FLAGS, BOOLEANS)):
        for name, words in table.items():
            yield from ((name, value) for value in words)
    for name in (*NUMERIC, *WORDS, *FLAGS, *SHARES):
        yield name, None
    yield from ((name, "1") for name in UNKNOWN)


def said(of):
    """What an answer says about one topic or resource."""
    return {"ErrorCode": of["ErrorCode"], "ErrorMessage": of["ErrorMessage"]}


def creations(peer, topics, together=1):
    """Asks whether these could be made, so many in one request: label -> the topic's fields."""
    bodies = [(label, {"Topic": f"asked-{at}", "NumPartitions": 1, "ReplicationFactor": 1, **topics[label]})
              for at, label in enumerate(topics)]
    connection = 0
    for at in range(0, len(bodies), together):
        asked = bodies[at:at + together]
        answer = peer.ask("", CREATE, 7, {
            "Topics": [body for _, body in asked], "TimeoutMillis": 10_000, "ValidateOnly": True}, note=None,
                          connection=f"create {bodies[0][0]} {connection}")
        connection += answer is None
        of = {topic["Topic"]: said(topic) for topic in answer["Topics"]} if answer else {}
        peer.answers += ((label, of.get(body["Topic"], "closed")) for label, body in asked)


def configured(settings):
    return {"Configs": [{"Name": name, "Value": value} for name, value in settings.items()]}


def change(peer, label, kind, name, *changes):
    """Asks whether these settings could be changed: (name, operation, value) each."""
    answer = peer.ask("", INCREMENTAL, 1, {"ValidateOnly": True, "Resources": [
        {"ResourceType": kind, "ResourceName": name, "Configs": [
            {"Name": key, "Op": operation, "Value": value} for key, operation, value in changes]}]}, note=False,
            connection="change")
    peer.answers.append((label, said(answer["Resources"][0])))


def by_name(peer, label):
    """The last answer, which describes one resource: an entry for every setting, as one difference each is enough."""
    described = peer.answers.pop()[1]["Resources"][0]
    configs = {config.pop("Name"): config for config in described.pop("Configs")}
    for config in configs.values():
        del config["Documentation"]
    peer.answers += [(label, {**described, "Configs": configs})]


def topic_settings(peer):
    creations(peer, {f"create with {name}={value!r}": configured({name: value}) for name, value in values()}, 100)
    creations(peer, {f"create with {settings}": configured(settings) for settings in TOGETHER})
    creations(peer, {"create with one setting twice": {"Configs": [
        {"Name": "retention.ms", "Value": value} for value in ("1", "2")]}})
    create(peer, "values", 1)
    for name, value in values():
        change(peer, f"set {name}={value!r}", TOPIC, "values", (name, SET, value))
    for settings in TOGETHER:
        change(peer, f"set {settings}", TOPIC, "values", *((name, SET, value) for name, value in settings.items()))
    lists = ["cleanup.policy", "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"]
    for name in lists:
        for operation, word in ((APPEND, "append"), (SUBTRACT, "subtract")):
            for value in (*WORDS[name], None):
                change(peer, f"{word} {name}={value!r}", TOPIC, "values", (name, operation, value))
    for name in (*NUMERIC, *WORDS, *FLAGS, *SHARES, *UNKNOWN):
        change(peer, f"unset {name}", TOPIC, "values", (name, UNSET, None))
        change(peer, f"unset {name}=1", TOPIC, "values", (name, UNSET, "1"))
        if name not in lists:
            change(peer, f"append to {name}", TOPIC, "values", (name, APPEND, "1"))
    for operation in (-1, 4, 127):
        change(peer, f"operation {operation}", TOPIC, "values", ("retention.ms", operation, "1"))
    change(peer, "nothing", TOPIC, "values")
    change(peer, "one twice", TOPIC, "values", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    change(peer, "one set and unset", TOPIC, "values", ("retention.ms", SET, "1"), ("retention.ms", UNSET, None))
    for name in ("", ".", "bad name!", "nowhere", "__consumer_offsets", "__cluster_metadata", "x" * 250):
        change(peer, f"settings of topic {name[:20]!r}", TOPIC, name, ("retention.ms", SET, "1"))
    describe(peer, "", TOPIC, "values")
    by_name(peer, "describe")


NAMES = ["", ".", "..", "...", "a.b", "a_b", "-", "_", "a b", "a/b", "a\\b", "a:b", "a,b", "a*", "ä", "日本", "a\0b", "a\n",
    " a", "a ", "A",
         "x" * 249, "x" * 250, "x" * 32767, "ä" * 125, "__cluster_metadata", "__consumer_offsets", "__transaction_state",
         "__share_group_state",
         "__remote_log_metadata", "__CLUSTER_METADATA", "__cluster.metadata"]


def topic_names(peer):
    create(peer, "seen.before", 1)
    create(peer, "seen_twice", 1)
    names = [*NAMES, "seen.before", "seen_before", "seen.twice", "seen-before", "SEEN.before"]
    creations(peer, {f"create {name[:20]!r} of {len(name)}": {"Topic": name} for name in names})
    creations(peer, {"create a.b and": {"Topic": "same.time"}, "create a_b at once": {"Topic": "same_time"}}, 2)
    assigned = {"NumPartitions": -1, "ReplicationFactor": -1}
    creations(peer, {
        **{f"{count} partitions": {"NumPartitions": count} for count in (0, -1, -2, -1 << 31, 1, 10_000)},
        **{f"{count} replicas": {"ReplicationFactor": count} for count in (0, -1, -2, 1, 2, 32767, -32768)},
        "no partitions and two replicas": {"NumPartitions": 0, "ReplicationFactor": 2},
        **{f"{word} with an assignment": {**assigned, **one, "ReplicaAssignment": [{"Partition": 0, "Replicas": [1]}]}
           for word, one in (("one partition", {"NumPartitions": 1}), ("one replica", {"ReplicationFactor": 1}), ("none", {}),
                             ("zero partitions", {"NumPartitions": 0}))},
        **{f"assigned {replicas}": {**assigned, "ReplicaAssignment": [
            {"Partition": partition, "Replicas": to} for partition, to in replicas]}
           for replicas in ([(0, [])], [(0, [2])], [(0, [1, 1])], [(0, [1, 2])], [(0, [-1])], [(1, [1])], [(-1, [1])],
                            [(0, [1]), (0, [1])], [(0, [1]), (2, [1])], [(1, [1]), (0, [1])], [(0, [1]), (1, [])],
                            [(0, [1]), (1, [2])])},
        "a bad setting and no partitions": {"NumPartitions": 0, **configured({"no.such": "1"})},
        "a bad setting and too many replicas": {"ReplicationFactor": 2, **configured({"no.such": "1"})},
        "a bad name and a bad setting": {"Topic": "bad name!", **configured({"no.such": "1"})},
        "there is one and a bad setting": {"Topic": "seen.before", **configured({"no.such": "1"})},
        "there is one and no partitions": {"Topic": "seen.before", "NumPartitions": 0},
    })
    for first, last in ((9_999, 1), (9_999, -1), (9_999, 0), (9_998, 0), (9_997, 0)):
        creations(peer, {f"create {first} partitions, one and {last}: {place}": {"NumPartitions": count}
                         for place, count in (("first", first), ("second", 1), ("third", last))}, 3)
    for count, settings in ((9_999, {}), (9_999, {"retention.ms": "1"}), (10_000, {}), (10_001, {})):
        creations(peer, {f"create {count} partitions with {settings}": {"NumPartitions": count, **configured(settings)}})
    for version in range(2, 8):
        answer = peer.ask("", CREATE, version, {"TimeoutMillis": 10_000, "ValidateOnly": True, "Topics": [
            {"Topic": "defaults", "NumPartitions": -1, "ReplicationFactor": -1}]}, note=False)
        peer.answers.append((f"defaults {version}", said(answer["Topics"][0])))
    peer.ask("create nothing", CREATE, 7, {"Topics": [], "TimeoutMillis": 10_000})
    peer.ask("create the same twice", CREATE, 7, {"Topics": [
        {"Topic": "twice", "NumPartitions": 1, "ReplicationFactor": 1}] * 2, "TimeoutMillis": 10_000})
    for count in (-1, 0, 1, 2, 10_001, (1 << 31) - 1):
        peer.ask(f"grow to {count}", CREATE_PARTITIONS, 3, {"ValidateOnly": True, "TimeoutMillis": 10_000, "Topics": [
            {"Topic": "seen.before", "Count": count}]})
    for replicas in ([], [[1]], [[1], [1]], [[2]], [[]], [[1, 1]], [[-1]], [[1, 2]]):
        peer.ask(f"grow to two at {replicas}", CREATE_PARTITIONS, 3, {"ValidateOnly": True, "TimeoutMillis": 10_000,
            "Topics": [
            {"Topic": "seen.before", "Count": 2, "Assignment": [{"Replicas": to} for to in replicas]}]})
    for name in ("", "bad name!", "__consumer_offsets", "__cluster_metadata"):
        peer.ask(f"grow {name!r}", CREATE_PARTITIONS, 3, {"ValidateOnly": True, "TimeoutMillis": 10_000, "Topics": [
            {"Topic": name, "Count": 2}]})
    peer.ask("grow the same twice", CREATE_PARTITIONS, 3, {"TimeoutMillis": 10_000, "Topics": [
        {"Topic": "seen.before", "Count": 2}] * 2})


SCRIPTS = {"topic settings": topic_settings, "topic names": topic_names}
