"""What the differential test asks about the settings of brokers: each that Kafka lets a client change, at the ends of what it
takes and beyond, for this broker and for all; those that it does not; and how they are described.

Changes are only asked for (validate only).
"""

from .scripts import (
    APPEND, BROKER, CLIENT_METRICS, DESCRIBE_CONFIGS, GROUP, LOGGER, SET, SUBTRACT, TOPIC, UNSET, create, describe)
from .scripts_topics import INT, LONG, SHORT, by_name, change
from .scripts_values import probe

NODE = "1"
# What Kafka lets change while it runs. Numbers: their least and their greatest value.
NUMERIC = {
    "background.threads": (1, INT), "compression.gzip.level": (-1, 9, 0), "compression.lz4.level": (1, 17),
    "compression.zstd.level": (-131072, 22), "follower.replication.throttled.rate": (0, LONG),
    "group.consumer.assignment.interval.ms": (0, INT), "group.coordinator.cached.buffer.max.bytes": (524288, INT),
    "group.share.assignment.interval.ms": (0, INT), "group.streams.assignment.interval.ms": (0, INT),
    "leader.replication.throttled.rate": (0, LONG), "log.cleaner.backoff.ms": (0, LONG), "log.cleaner.dedupe.buffer.size": (
        1 << 20, LONG, 1, 0, -1), "log.cleaner.delete.retention.ms": (0, LONG), "log.cleaner.io.buffer.size": (0, INT),
    "log.cleaner.max.compaction.lag.ms": (1, LONG), "log.cleaner.min.compaction.lag.ms": (0, LONG), "log.cleaner.threads": (
        0, INT, 1, 2, 3), "log.flush.interval.messages": (1, LONG), "log.flush.interval.ms": (0, LONG),
    "log.index.interval.bytes": (0, INT), "log.index.size.max.bytes": (4, INT), "log.local.retention.bytes": (-2, LONG, -1),
    "log.local.retention.ms": (-2, LONG, -1), "log.message.timestamp.after.max.ms": (0, LONG),
    "log.message.timestamp.before.max.ms": (0, LONG), "log.retention.bytes": (-1, LONG, -2), "log.retention.ms": (-1,
        LONG, 0, -2),
    "log.roll.jitter.ms": (0, LONG), "log.roll.ms": (1, LONG), "log.segment.bytes": (1 << 20, INT, 14),
    "log.segment.delete.delay.ms": (
        0, LONG), "max.connection.creation.rate": (0, INT), "max.connections": (0, INT, 1), "max.connections.per.ip": (0,
        INT),
    "message.max.bytes": (0, INT), "min.insync.replicas": (1, INT, 2), "num.io.threads": (1, INT, 4, 8, 16, 17),
    "num.network.threads": (1, INT, 2, 6, 7), "num.recovery.threads.per.data.dir": (1, INT, 2, 4, 5),
    "num.replica.fetchers": (
        1, INT, 2, 3), "producer.id.expiration.ms": (1, INT), "remote.fetch.max.wait.ms": (1, INT),
    "remote.list.offsets.request.timeout.ms": (1, LONG), "remote.log.index.file.cache.total.size.bytes": (1, LONG),
    "remote.log.manager.copier.thread.pool.size": (1, INT), "remote.log.manager.copy.max.bytes.per.second": (1, LONG),
    "remote.log.manager.expiration.thread.pool.size": (1, INT), "remote.log.manager.fetch.max.bytes.per.second": (1, LONG),
    "remote.log.manager.follower.thread.pool.size": (1, INT), "remote.log.reader.threads": (1, INT),
    "replica.alter.log.dirs.io.max.bytes.per.second": (0, LONG), "sasl.kerberos.min.time.before.relogin": (0, LONG),
    "sasl.login.refresh.buffer.seconds": (0, SHORT), "sasl.login.refresh.min.period.seconds": (0, SHORT),
    "share.coordinator.cached.buffer.max.bytes": (524288, INT),
}
WORDS = {
    "compression.type": ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer", "none", "GZIP"),
    "log.cleanup.policy": ("delete", "compact", "delete,compact", "compact,compact", ",", "none"),
    "log.message.timestamp.type": ("CreateTime", "LogAppendTime", "other"),
    "log.cleaner.io.buffer.load.factor": ("0.9", "0", "-1", "2", "NaN"), "log.cleaner.io.max.bytes.per.second": ("0",
        "-1", "1.5", "NaN"),
    "log.cleaner.min.cleanable.ratio": ("0", "1", "-0.1", "1.1"),
    "max.connections.per.ip.overrides": ("127.0.0.1:5", "127.0.0.1:5,127.0.0.2:6", "nowhere.invalid:5", "127.0.0.1",
        "127.0.0.1:x"),
    "sasl.kerberos.ticket.renew.jitter": ("0.1", "-1", "2"), "sasl.kerberos.ticket.renew.window.factor": ("0.1", "-1", "2"),
    "sasl.login.refresh.window.factor": ("0.1", "-1", "2"), "sasl.login.refresh.window.jitter": ("0.1", "-1", "2"),
    "sasl.kerberos.principal.to.local.rules": ("DEFAULT", "RULE:[1:$1]", "what"),
    "sasl.kerberos.kinit.cmd": ("/usr/bin/kinit",),
    "sasl.kerberos.service.name": ("kafka",), "sasl.enabled.mechanisms": ("PLAIN", "PLAIN,PLAIN", "what"),
    "sasl.mechanism.inter.broker.protocol": ("PLAIN",), "sasl.jaas.config": ("what",),
    "principal.builder.class": ("no.such.Class",),
    "metric.reporters": ("no.such.Class",), "config.providers": ("file",), "cordoned.log.dirs": ("*", "/nowhere"),
    "listeners": ("PLAINTEXT://:1", "what"), "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT", "what"),
    "ssl.client.auth": ("none", "required", "what"), "ssl.enabled.protocols": ("TLSv1.3", "what"),
    "ssl.keystore.type": ("PEM",),
    "ssl.keystore.location": ("/nowhere",), "ssl.keystore.password": ("secret",), "ssl.truststore.location": ("/nowhere",),
    "ssl.cipher.suites": ("what",), "ssl.endpoint.identification.algorithm": ("https",), "ssl.protocol": ("TLS",),
    **dict.fromkeys(("follower.fetch.last.tiered.offset.enable", "log.preallocate",
        "transaction.partition.verification.enable",
                     "unclean.leader.election.enable"), ("true", "FALSE", "yes")),
}
# What only one listener has.
LISTENERS = {f"listener.name.{name}": values for name, values in {
    "plaintext.ssl.keystore.location": ("/nowhere",), "plaintext.ssl.client.auth": ("none", "what"),
    "plaintext.max.connections": ("5", "x", "-1"), "plaintext.max.connection.creation.rate": ("5", "x"),
    "plaintext.num.network.threads": ("2", "0"), "plaintext.connections.max.reauth.ms": ("5", "x"),
    "plaintext.plain.sasl.jaas.config": (
        "what",), "plaintext.sasl.enabled.mechanisms": ("PLAIN",), "plaintext.node.id": ("1",), "plaintext.no.such": ("1",),
    "nowhere.max.connections": ("5",), ".max.connections": ("5",), "plaintext.message.max.bytes": ("5",),
    "plaintext.log.retention.ms": ("5",)}.items()}
# What stays as it was at the start.
FIXED = [
    "advertised.listeners", "auto.create.topics.enable", "auto.leader.rebalance.enable", "broker.id", "broker.rack",
    "connections.max.idle.ms",
    "controller.quota.window.num", "default.replication.factor", "delete.topic.enable", "fetch.max.bytes",
    "group.consumer.heartbeat.interval.ms", "group.consumer.max.size", "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms", "group.max.session.timeout.ms", "group.max.size", "group.min.session.timeout.ms",
    "log.cleaner.enable",
    "log.dirs", "log.flush.scheduler.interval.ms", "log.retention.check.interval.ms", "log.retention.hours",
    "log.retention.minutes",
    "log.roll.hours", "max.incremental.fetch.session.cache.slots", "node.id", "num.partitions", "offset.metadata.max.bytes",
    "offsets.retention.check.interval.ms", "offsets.retention.minutes", "offsets.topic.num.partitions", "process.roles",
    "queued.max.request.bytes", "quota.window.num", "replica.lag.time.max.ms", "socket.request.max.bytes",
    "telemetry.max.bytes",
    "transaction.max.timeout.ms", "transaction.state.log.num.partitions", "transactional.id.expiration.ms"]
UNKNOWN = ["", "no.such", "retention.ms", "Message.max.bytes", " message.max.bytes", "super.users",
    "log.message.format.version"]
# What both have.
COMMON = [
    "authorizer.class.name", "auto.create.topics.enable", "connections.max.idle.ms", "controller.quota.window.num",
    "controller.quota.window.size.seconds", "fetch.max.bytes", "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.heartbeat.interval.ms", "group.consumer.max.session.timeout.ms", "group.consumer.max.size",
    "group.consumer.min.heartbeat.interval.ms", "group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms", "group.max.session.timeout.ms", "group.max.size", "group.min.session.timeout.ms",
    "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "log.cleaner.delete.retention.ms", "log.cleaner.enable",
    "log.cleaner.io.max.bytes.per.second", "log.cleaner.max.compaction.lag.ms", "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms", "log.cleanup.policy", "log.flush.interval.messages", "log.retention.bytes",
    "log.retention.check.interval.ms", "log.retention.ms", "log.segment.bytes", "max.connections",
    "max.incremental.fetch.session.cache.slots", "message.max.bytes", "min.insync.replicas", "node.id", "num.partitions",
    "offset.metadata.max.bytes", "offsets.retention.check.interval.ms", "offsets.retention.minutes",
    "offsets.topic.num.partitions",
    "producer.id.expiration.ms", "queued.max.request.bytes", "quota.window.num", "quota.window.size.seconds",
    "socket.request.max.bytes", "telemetry.max.bytes", "transaction.max.timeout.ms", "transaction.state.log.num.partitions",
    "transactional.id.expiration.ms"]


def values():
    for name, (least, most, *others) in NUMERIC.items():
        yield from ((name, str(value)) for value in (least, least - 1, most, most + 1, *others))
        yield from ((name, value) for value in ("", "x", "1.5", " 5 "))
    for name, words in (WORDS | LISTENERS).items():
        yield from ((name, value) for value in (*words, ""))


def broker_settings(peer):
    for broker in (NODE, ""):
        whose = "own" if broker else "all"
        for name, value in values():
            change(peer, f"{whose} {name}={value!r}", BROKER, broker, (name, SET, value))
        for name in FIXED:
            change(peer, f"{whose} {name}", BROKER, broker, (name, SET, "1"))
            change(peer, f"{whose} {name} unset", BROKER, broker, (name, UNSET, None))
        for name in UNKNOWN:
            change(peer, f"{whose} unknown {name!r}", BROKER, broker, (name, SET, "1"))
            change(peer, f"{whose} unknown {name!r} unset", BROKER, broker, (name, UNSET, None))
        for name in ("log.cleanup.policy", "metric.reporters", "compression.type", "log.cleaner.threads",
            "sasl.enabled.mechanisms"):
            for operation in (APPEND, SUBTRACT):
                for value in ("compact", "delete", "", ",", "what"):
                    change(peer, f"{whose} {name} {operation} {value!r}", BROKER, broker, (name, operation, value))
        change(peer, f"{whose} min above max lag", BROKER, broker, ("log.cleaner.min.compaction.lag.ms", SET, "5"), (
            "log.cleaner.max.compaction.lag.ms", SET, "4"))
        change(peer, f"{whose} a good one and a fixed one", BROKER, broker, ("message.max.bytes", SET, "5"), ("node.id",
            SET, "1"))
    for name in ("0", "01", "+1", "1 ", "-1", "2147483648", "1.0"):
        change(peer, f"settings of {name!r}", BROKER, name, ("message.max.bytes", SET, "5"))
        change(peer, f"levels of {name!r}", LOGGER, name, ("root", SET, "INFO"))
        describe(peer, f"describe {name!r}", BROKER, name, "message.max.bytes")
        describe(peer, f"describe the levels of {name!r}", LOGGER, name, "no.such")
    for level in ("INFO", "info", "", "LOUD", "ALL"):
        change(peer, f"no logger, {level!r}", LOGGER, NODE, ("no.such", SET, level))
    for operation in (UNSET, APPEND, SUBTRACT):
        change(peer, f"no logger, operation {operation}", LOGGER, NODE, ("no.such", operation, "INFO"))
    describe(peer, "", BROKER, NODE, *COMMON)
    by_name(peer, "describe")


def descriptions(peer):
    create(peer, "told", 1)
    base = {"IncludeSynonyms": False, "IncludeDocumentation": False, "Resources": [
        {"ResourceType": TOPIC, "ResourceName": "told", "ConfigNames": ["retention.bytes", "cleanup.policy"]}]}
    of = "Resources.0."

    def tidy(answer):
        for resource in answer["Resources"] or []:
            for config in resource["Configs"] or []:
                config["Documentation"] = bool(config["Documentation"])

    probe(peer, "describe", DESCRIBE_CONFIGS, range(1, 5), base, {
        "IncludeSynonyms": (True,), "IncludeDocumentation": (True,), "Resources": ([], base["Resources"] * 2),
        of + "ConfigNames": ([""], ["no.such"], ["retention.bytes"] * 2, ["Retention.bytes"]), of + "ResourceType": (0, 1,
            3, 5, -1, 127),
        of + "ResourceName": ("", ".", "bad!", "x" * 250, "nowhere", "__cluster_metadata")}, {
            **{f"{kind} of no name": {"Resources": [{"ResourceType": kind, "ResourceName": "", "ConfigNames": ["no.such"]}]}
               for kind in (BROKER, LOGGER, CLIENT_METRICS, GROUP)}}, tidy)
    describe(peer, "", GROUP, "told-group", "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
    by_name(peer, "describe a group")
    for name, (least, most) in {"consumer.session.timeout.ms": (45_000, 60_000), "consumer.heartbeat.interval.ms": (5000,
        15_000)}.items():
        for value in (least, least - 1, most, most + 1, "", "x", "1.5", f" {least} ", f"0{least}", f"{least}L", 0, -1,
            1 << 31):
            change(peer, f"group {name}={value!r}", GROUP, "told-group", (name, SET, str(value)))
    for name in ("share.session.timeout.ms", "share.auto.offset.reset", "streams.session.timeout.ms", "", "no.such"):
        change(peer, f"group {name}", GROUP, "told-group", (name, UNSET, None))
    for name in ("", " ", "g g", "ü", "n" * 1000):
        change(peer, f"settings of group {name[:9]!r}", GROUP, name, ("consumer.session.timeout.ms", SET, "50000"))
        change(peer, f"settings of subscription {name[:9]!r}", CLIENT_METRICS, name, ("interval.ms", SET, "1000"))
    for value in ("100", "99", "3600000", "3600001", "", "x", " 100 ", "+100"):
        change(peer, f"subscription interval.ms={value!r}", CLIENT_METRICS, "told", ("interval.ms", SET, value))
    for value in ("", "*", "a", "a,a", "a,", ",", " a , b ", "a b"):
        change(peer, f"subscription metrics={value!r}", CLIENT_METRICS, "told", ("metrics", SET, value))
    for value in ("", "client_id=a", "client_id=", "client_id", "=a", "client_id=a,client_id=b", "client_source_port=x",
        "client_instance_id=a",
                  "client_software_name=a", "client_software_version=1", "client_source_address=1", "CLIENT_ID=a",
                  "client_id=a*b,", "client_id=(",
                  "x=a", " client_id = a "):
        change(peer, f"subscription match={value!r}", CLIENT_METRICS, "told", ("match", SET, value))


SCRIPTS = {"broker settings": broker_settings, "descriptions of settings": descriptions}
