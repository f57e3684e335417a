//! The settings of Apache Kafka's brokers that have no meaning here, and what a file of such settings (`server.properties`) means.
//!
//! Kafka 4.4 knows these names (`AbstractKafkaConfig`), and files that people bring have them: of its controllers, of replication between
//! brokers, of threads, of plug-ins. They are named once in the log, so that nobody relies on them.

use client::properties::Property;

use crate::config_file::Entry;

/// Names of Kafka that change nothing here.
const WITHOUT_MEANING: &[&str] = &[
    "add.partitions.to.txn.retry.backoff.max.ms",
    "add.partitions.to.txn.retry.backoff.ms",
    "alter.config.policy.class.name",
    "alter.log.dirs.replication.quota.window.num",
    "alter.log.dirs.replication.quota.window.size.seconds",
    "auto.leader.rebalance.enable",
    "background.threads",
    "broker.heartbeat.interval.ms",
    "client.quota.callback.class",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "config.providers",
    "controlled.shutdown.enable",
    "controller.listener.names",
    "controller.performance.always.log.threshold.ms",
    "controller.performance.sample.period.ms",
    "controller.quorum.append.linger.ms",
    "controller.quorum.auto.join.enable",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.election.backoff.max.ms",
    "controller.quorum.election.timeout.ms",
    "controller.quorum.fetch.max.bytes",
    "controller.quorum.fetch.snapshot.max.bytes",
    "controller.quorum.fetch.timeout.ms",
    "controller.quorum.request.timeout.ms",
    "controller.quorum.retry.backoff.ms",
    "controller.quorum.voters",
    "controller.socket.timeout.ms",
    "cordoned.log.dirs",
    "create.topic.policy.class.name",
    "delegation.token.expiry.check.interval.ms",
    "delegation.token.expiry.time.ms",
    "delegation.token.max.lifetime.ms",
    "delegation.token.secret.key",
    "delete.records.purgatory.purge.interval.requests",
    "delete.topic.enable",
    "early.start.listeners",
    "fetch.purgatory.purge.interval.requests",
    "follower.fetch.last.tiered.offset.enable",
    "group.consumer.assignment.interval.ms",
    "group.consumer.assignors",
    "group.consumer.max.assignment.interval.ms",
    "group.consumer.migration.policy",
    "group.consumer.min.assignment.interval.ms",
    "group.consumer.regex.refresh.interval.ms",
    "group.coordinator.append.linger.ms",
    "group.coordinator.background.threads",
    "group.coordinator.cached.buffer.max.bytes",
    "group.coordinator.rebalance.protocols",
    "group.coordinator.threads",
    "group.share.assignment.interval.ms",
    "group.share.assignors",
    "group.share.delivery.count.limit",
    "group.share.heartbeat.interval.ms",
    "group.share.initialize.retry.interval.ms",
    "group.share.max.assignment.interval.ms",
    "group.share.max.delivery.count.limit",
    "group.share.max.heartbeat.interval.ms",
    "group.share.max.partition.max.record.locks",
    "group.share.max.record.lock.duration.ms",
    "group.share.max.session.timeout.ms",
    "group.share.max.share.sessions",
    "group.share.max.size",
    "group.share.min.assignment.interval.ms",
    "group.share.min.delivery.count.limit",
    "group.share.min.heartbeat.interval.ms",
    "group.share.min.partition.max.record.locks",
    "group.share.min.record.lock.duration.ms",
    "group.share.min.session.timeout.ms",
    "group.share.partition.max.record.locks",
    "group.share.persister.class.name",
    "group.share.record.lock.duration.ms",
    "group.share.session.timeout.ms",
    "group.streams.assignment.interval.ms",
    "group.streams.heartbeat.interval.ms",
    "group.streams.initial.rebalance.delay.ms",
    "group.streams.max.assignment.interval.ms",
    "group.streams.max.heartbeat.interval.ms",
    "group.streams.max.session.timeout.ms",
    "group.streams.max.size",
    "group.streams.max.standby.replicas",
    "group.streams.min.assignment.interval.ms",
    "group.streams.min.heartbeat.interval.ms",
    "group.streams.min.session.timeout.ms",
    "group.streams.num.standby.replicas",
    "group.streams.session.timeout.ms",
    "initial.broker.registration.timeout.ms",
    "internal.metadata.delete.delay.millis",
    "internal.metadata.log.segment.bytes",
    "internal.metadata.max.batch.size.in.bytes",
    "kafka.metrics.polling.interval.secs",
    "kafka.metrics.reporters",
    "leader.imbalance.check.interval.seconds",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.threads",
    "log.dir.failure.timeout.ms",
    "log.flush.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.scheduler.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
    "log.index.interval.bytes",
    "log.index.size.max.bytes",
    "log.initial.task.delay.ms",
    "log.preallocate",
    "log.roll.jitter.hours",
    "log.roll.jitter.ms",
    "log.segment.delete.delay.ms",
    "max.request.partition.size.limit",
    "metadata.log.max.record.bytes.between.snapshots",
    "metadata.log.max.snapshot.interval.ms",
    "metadata.log.segment.bytes",
    "metadata.log.segment.ms",
    "metadata.max.idle.interval.ms",
    "metadata.max.retention.bytes",
    "metadata.max.retention.ms",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.alter.log.dirs.threads",
    "num.replica.fetchers",
    "offsets.commit.timeout.ms",
    "offsets.load.buffer.size",
    "offsets.topic.compression.codec",
    "offsets.topic.replication.factor",
    "offsets.topic.segment.bytes",
    "principal.builder.class",
    "process.roles",
    "producer.id.expiration.check.interval.ms",
    "producer.purgatory.purge.interval.requests",
    "queued.max.requests",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "remote.log.index.file.cache.total.size.bytes",
    "remote.log.index.file.cache.ttl.ms",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.copy.quota.window.num",
    "remote.log.manager.copy.quota.window.size.seconds",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.fetch.max.bytes.per.second",
    "remote.log.manager.fetch.quota.window.num",
    "remote.log.manager.fetch.quota.window.size.seconds",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.manager.task.interval.ms",
    "remote.log.manager.task.retry.backoff.max.ms",
    "remote.log.manager.task.retry.backoff.ms",
    "remote.log.manager.task.retry.jitter",
    "remote.log.manager.thread.pool.size",
    "remote.log.metadata.custom.metadata.max.bytes",
    "remote.log.metadata.manager.class.name",
    "remote.log.metadata.manager.class.path",
    "remote.log.metadata.manager.impl.prefix",
    "remote.log.metadata.manager.listener.name",
    "remote.log.reader.max.pending.tasks",
    "remote.log.reader.threads",
    "remote.log.storage.manager.class.name",
    "remote.log.storage.manager.class.path",
    "remote.log.storage.manager.impl.prefix",
    "remote.log.storage.system.enable",
    "replica.fetch.backoff.ms",
    "replica.fetch.max.bytes",
    "replica.fetch.response.max.bytes",
    "replica.high.watermark.checkpoint.interval.ms",
    "replica.socket.receive.buffer.bytes",
    "replica.socket.timeout.ms",
    "replication.quota.window.num",
    "replication.quota.window.size.seconds",
    "request.timeout.ms",
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.principal.to.local.rules",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.mechanism.controller.protocol",
    "sasl.mechanism.inter.broker.protocol",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.template.file",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.server.callback.handler.class",
    "security.inter.broker.protocol",
    "security.providers",
    "server.max.startup.time.ms",
    "share.coordinator.append.linger.ms",
    "share.coordinator.cached.buffer.max.bytes",
    "share.coordinator.cold.partition.snapshot.interval.ms",
    "share.coordinator.load.buffer.size",
    "share.coordinator.snapshot.update.records.per.snapshot",
    "share.coordinator.state.topic.compression.codec",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.num.partitions",
    "share.coordinator.state.topic.prune.interval.ms",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.segment.bytes",
    "share.coordinator.threads",
    "share.coordinator.write.timeout.ms",
    "share.fetch.purgatory.purge.interval.requests",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
    "socket.listen.backlog.size",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "ssl.allow.dn.changes",
    "ssl.allow.san.changes",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.keystore.password",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.password",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    "transaction.partition.verification.enable",
    "transaction.remove.expired.transaction.cleanup.interval.ms",
    "transaction.state.log.load.buffer.size",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
    "transaction.state.log.segment.bytes",
    "transaction.two.phase.commit.enable",
    "unclean.leader.election.enable",
    "unclean.leader.election.interval.ms",
    "unstable.api.versions.enable",
    "unstable.feature.versions.enable",
];

/// Names of settings that Kafka had before version 4, which many files still have.
const GONE: &[&str] = &[
    "broker.id.generation.enable",
    "control.plane.listener.name",
    "delegation.token.master.key",
    "inter.broker.listener.protocol",
    "inter.broker.protocol.version",
    "log.message.downconversion.enable",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "offsets.commit.required.acks",
    "reserved.broker.max.id",
];
/// Settings of ZooKeeper's time, and of distributions of Kafka.
const GONE_BELOW: &[&str] = &["confluent.", "password.encoder.", "zookeeper."];

/// What a file of Kafka's means here.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// The settings to apply, in this order.
    pub settings: Vec<Entry>,
    /// What has no meaning here.
    pub without_meaning: Vec<Entry>,
}

/// Whether Kafka has, or had, a setting of this name that means nothing here.
pub fn is_without_meaning(name: &str) -> bool {
    WITHOUT_MEANING.binary_search(&name).is_ok()
        || GONE.contains(&name)
        || GONE_BELOW.iter().any(|prefix| name.starts_with(prefix))
}

/// Translates the lines of a `server.properties`:
/// - A longer unit of a time counts only without the shorter one (`log.retention.hours` without `log.retention.ms`).
/// - `broker.id` counts only without `node.id`.
/// - The metadata lies where Kafka's does: in `metadata.log.dir`, or the first of `log.dirs`.
/// - The listeners of controllers are left out, since there are none.
///
/// A name that Kafka does not have either is left for the caller to refuse.
pub fn translate(properties: Vec<Property>) -> Translated {
    let mut translated = Translated::default();
    // As in Java, the last line of a name counts.
    let last = |name: &str| properties.iter().rfind(|of| of.key == name);
    let has = |name: &str| last(name).is_some();
    let controllers: Vec<String> = last("controller.listener.names")
        .map_or_else(Vec::new, |of| parts(&of.value).map(str::to_uppercase).collect());
    for property in &properties {
        let Property { key, value, line } = property;
        if last(key).is_some_and(|last| last.line != *line) {
            continue;
        }
        let entry = |name: &str, value: String| Entry { name: name.to_owned(), value, line: *line };
        let mut apply = |name: &str, value: String| translated.settings.push(entry(name, value));
        match key.as_str() {
            "log.retention.hours" if !has("log.retention.minutes") && !has("log.retention.ms") => {
                apply("log.retention.ms", in_millis(value, 3_600_000));
            }
            "log.retention.minutes" if !has("log.retention.ms") => {
                apply("log.retention.ms", in_millis(value, 60_000))
            }
            "log.roll.hours" if !has("log.roll.ms") => apply("log.roll.ms", in_millis(value, 3_600_000)),
            "broker.id" if !has("node.id") => apply("node.id", value.clone()),
            "log.retention.hours" | "log.retention.minutes" | "log.roll.hours" | "broker.id" => {
                translated.without_meaning.push(entry(key, value.clone()));
            }
            "metadata.log.dir" => apply("data.dir", value.clone()),
            "log.dirs" | "log.dir" => {
                let rules = key == "log.dirs" || !has("log.dirs");
                if rules
                    && !has("metadata.log.dir")
                    && !has("data.dir")
                    && let Some(first) = parts(value).next()
                {
                    apply("data.dir", first.to_owned());
                }
                apply(key, value.clone());
            }
            "listeners" | "advertised.listeners" => {
                let kept = parts(value).filter(|part| {
                    let name = part.split("://").next().unwrap_or(part).trim().to_uppercase();
                    !controllers.contains(&name)
                });
                apply(key, kept.collect::<Vec<_>>().join(","));
            }
            name if is_without_meaning(name) => translated.without_meaning.push(entry(name, value.clone())),
            name => apply(name, value.clone()),
        }
    }
    translated
}

/// The parts of a list separated by commas.
fn parts(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// A time in milliseconds. -1 stays, and so does what is no number, which is refused by its name.
fn in_millis(value: &str, unit_ms: i64) -> String {
    match value.parse::<i64>() {
        Ok(number) if number >= 0 => number.saturating_mul(unit_ms).to_string(),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Translated {
        translate(client::properties::lines(text))
    }

    fn settings(text: &str) -> Vec<(String, String)> {
        of(text).settings.into_iter().map(|given| (given.name, given.value)).collect()
    }

    #[test]
    fn the_names_are_in_order() {
        assert!(WITHOUT_MEANING.is_sorted());
        assert!(is_without_meaning("process.roles") && !is_without_meaning("num.partitions"));
        assert!(
            is_without_meaning("confluent.support.metrics.enable") && is_without_meaning("zookeeper.connect")
        );
        assert!(!is_without_meaning("min.insync.replicas"));
    }

    #[test]
    fn a_file_as_kafka_ships_it_is_understood() {
        let text = "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n\
                    listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\n\
                    advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n\
                    log.dirs=/tmp/a,/tmp/b\nlog.retention.hours=168\nnum.partitions = 3\n";
        let expected = [
            ("node.id", "1"),
            ("listeners", "PLAINTEXT://:9092"),
            ("advertised.listeners", "PLAINTEXT://localhost:9092"),
            ("data.dir", "/tmp/a"),
            ("log.dirs", "/tmp/a,/tmp/b"),
            ("log.retention.ms", "604800000"),
            ("num.partitions", "3"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings(text), expected);
        let ignored = ["process.roles", "controller.quorum.bootstrap.servers", "controller.listener.names"];
        let without: Vec<String> = of(text).without_meaning.into_iter().map(|given| given.name).collect();
        assert_eq!(without, ignored);
        assert_eq!(of(text).settings[0].line, 2);
    }

    #[test]
    fn of_two_names_for_one_thing_the_one_counts_that_counts_in_kafka() {
        let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        for text in
            ["log.retention.hours=1\nlog.retention.ms=5", "log.retention.ms=5\nlog.retention.minutes=1"]
        {
            assert_eq!(settings(text), pair("log.retention.ms", "5"));
        }
        assert_eq!(
            settings("log.retention.hours=1\nlog.retention.minutes=1"),
            pair("log.retention.ms", "60000")
        );
        assert_eq!(settings("log.retention.hours=-1"), pair("log.retention.ms", "-1"));
        assert_eq!(settings("log.roll.hours=x"), pair("log.roll.ms", "x"));
        assert_eq!(settings("broker.id=7"), pair("node.id", "7"));
        assert_eq!(settings("broker.id=7\nnode.id=8"), pair("node.id", "8"));
        assert_eq!(settings("num.partitions=7\nnum.partitions=8"), pair("num.partitions", "8"));
        let places = settings("log.dir=/a\nlog.dirs=/b\nmetadata.log.dir=/m");
        let expected = [("log.dir", "/a"), ("log.dirs", "/b"), ("data.dir", "/m")];
        assert_eq!(places, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
