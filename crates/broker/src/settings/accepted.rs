//! Dynamic settings of Kafka's brokers without a meaning here: settings of threads, of replication, of remote storage,
//! of Kerberos. Tools set them. They are checked as in Kafka, stored and shown, and change nothing.
//!
//! Settings that have a meaning here and take effect only at a start are not among them. A change of such a setting is
//! refused.

use crate::config::Kind::{Boolean, Double, Int, Long, Short, String as Word};
use crate::config::resource_setting::DefaultFrom::{Fixed, OfCluster};
use crate::config::resource_setting::{DefaultFrom, Overrides, ResourceSetting, setting};
use crate::failure::Failure;
use wire::ErrorCode;

const THREADS: &str = "Accepted for Kafka's tools; there are as many threads as the machine has use for.";
const COPIES: &str = "Accepted for Kafka's tools; replication here has no such setting.";
const MIN_INSYNC_DOC: &str = "With fewer replicas in sync, acks=all is refused, in topics that do not say.";
const TIERS: &str = "Accepted for Kafka's tools; all records are on the local disk.";
const LOG: &str = "Accepted for Kafka's tools; all partitions share one log, which has settings of its own.";
const CODECS: &str = "Accepted for Kafka's tools; batches are kept as the producer compressed them.";
const KERBEROS: &str = "Accepted for Kafka's tools; there is no Kerberos.";
const LOG_IN: &str = "Accepted for Kafka's tools; the server logs in nowhere.";
const GROUPS: &str = "Accepted for Kafka's tools; groups need no such bound.";
const ANY: &[&str] = &[];
/// With leader election by ELR (KIP-966), Kafka keeps this setting for all brokers.
pub const MIN_INSYNC: &str = "min.insync.replicas";
const LEAST_CACHED_BYTES: i64 = 524_288;

const fn number(name: &'static str, default: &'static str, least: i64, doc: &'static str) -> ResourceSetting {
    setting(name, Int, Fixed(default), ANY, doc).between(least, i32::MAX as i64)
}

const fn long(name: &'static str, default: &'static str, least: i64, doc: &'static str) -> ResourceSetting {
    setting(name, Long, Fixed(default), ANY, doc).at_least(least)
}

const fn share(name: &'static str, default: &'static str, doc: &'static str) -> ResourceSetting {
    setting(name, Double, Fixed(default), ANY, doc)
}

const fn switch(name: &'static str, default: &'static str, doc: &'static str) -> ResourceSetting {
    setting(name, Boolean, Fixed(default), &[], doc)
}

/// The accepted settings, by name. Those without a default are shown only if they are set.
pub const ACCEPTED_SETTINGS: &[ResourceSetting] = &[
    number("background.threads", "10", 1, THREADS),
    number("compression.gzip.level", "-1", 1, CODECS).between(1, 9),
    number("compression.lz4.level", "9", 1, CODECS).between(1, 17),
    setting(
        "compression.type",
        Word,
        Fixed("producer"),
        &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"],
        CODECS,
    ),
    number("compression.zstd.level", "3", -131_072, CODECS).between(-131_072, 22),
    switch("follower.fetch.last.tiered.offset.enable", "false", TIERS),
    long("follower.replication.throttled.rate", "9223372036854775807", 0, COPIES),
    number("group.consumer.assignment.interval.ms", "1000", 0, GROUPS),
    number("group.coordinator.cached.buffer.max.bytes", "1048588", LEAST_CACHED_BYTES, GROUPS),
    number("group.share.assignment.interval.ms", "1000", 0, GROUPS),
    number("group.streams.assignment.interval.ms", "1000", 0, GROUPS),
    long("leader.replication.throttled.rate", "9223372036854775807", 0, COPIES),
    share("log.cleaner.io.buffer.load.factor", "0.9", LOG),
    number("log.cleaner.io.buffer.size", "524288", 0, LOG),
    number("log.cleaner.threads", "1", 0, THREADS),
    long("log.flush.interval.ms", "", i64::MIN, LOG),
    number("log.index.interval.bytes", "4096", 0, LOG),
    number("log.index.size.max.bytes", "10485760", 4, LOG),
    switch("log.preallocate", "false", LOG),
    long("log.roll.jitter.ms", "", 0, LOG),
    long("log.segment.delete.delay.ms", "60000", 0, LOG),
    setting(MIN_INSYNC, Int, OfCluster("1"), ANY, MIN_INSYNC_DOC).at_least(1),
    number("num.io.threads", "8", 1, THREADS),
    number("num.network.threads", "3", 1, THREADS),
    number("num.recovery.threads.per.data.dir", "2", 1, THREADS),
    number("num.replica.fetchers", "1", 1, THREADS),
    number("remote.fetch.max.wait.ms", "500", 1, TIERS),
    long("remote.list.offsets.request.timeout.ms", "30000", 1, TIERS),
    long("remote.log.index.file.cache.total.size.bytes", "1073741824", 1, TIERS),
    number("remote.log.manager.copier.thread.pool.size", "10", 1, TIERS),
    long("remote.log.manager.copy.max.bytes.per.second", "9223372036854775807", 1, TIERS),
    number("remote.log.manager.expiration.thread.pool.size", "10", 1, TIERS),
    long("remote.log.manager.fetch.max.bytes.per.second", "9223372036854775807", 1, TIERS),
    number("remote.log.manager.follower.thread.pool.size", "2", 1, TIERS),
    number("remote.log.reader.threads", "10", 1, TIERS),
    long("replica.alter.log.dirs.io.max.bytes.per.second", "9223372036854775807", 0, COPIES),
    setting("sasl.kerberos.kinit.cmd", Word, Fixed("/usr/bin/kinit"), ANY, KERBEROS),
    long("sasl.kerberos.min.time.before.relogin", "60000", i64::MIN, KERBEROS),
    setting("sasl.kerberos.principal.to.local.rules", Word, Fixed("DEFAULT"), ANY, KERBEROS),
    setting("sasl.kerberos.service.name", Word, Fixed(""), ANY, KERBEROS),
    share("sasl.kerberos.ticket.renew.jitter", "0.05", KERBEROS),
    share("sasl.kerberos.ticket.renew.window.factor", "0.8", KERBEROS),
    setting("sasl.login.refresh.buffer.seconds", Short, Fixed("300"), ANY, LOG_IN),
    setting("sasl.login.refresh.min.period.seconds", Short, Fixed("60"), ANY, LOG_IN),
    share("sasl.login.refresh.window.factor", "0.8", LOG_IN),
    share("sasl.login.refresh.window.jitter", "0.05", LOG_IN),
    number("share.coordinator.cached.buffer.max.bytes", "1048588", LEAST_CACHED_BYTES, GROUPS),
    switch("transaction.partition.verification.enable", "true", COPIES),
    switch("unclean.leader.election.enable", "false", COPIES),
];

/// The settings for which Kafka refuses large steps.
const THREAD_COUNTS: [&str; 10] = [
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
];

/// The row of the table for `name`.
pub fn accepted_setting(name: &str) -> Option<&'static ResourceSetting> {
    ACCEPTED_SETTINGS.iter().find(|setting| setting.name == name)
}

/// What is wrong with a value of a setting that brokers only accept.
pub fn accepted_problem(name: &str, value: &str) -> Option<String> {
    accepted_setting(name)?.problem(value)
}

/// A default that is the default of the accepted setting `name`. For tables: panics if the table has no such row.
pub const fn accepted(name: &'static str) -> DefaultFrom {
    let mut at = 0;
    while at < ACCEPTED_SETTINGS.len() {
        let row = &ACCEPTED_SETTINGS[at];
        if same(row.name, name)
            && let Fixed(text) | OfCluster(text) = row.default
        {
            return DefaultFrom::Accepted(name, text);
        }
        at += 1;
    }
    panic!("the table has no row of this name with a default of its own")
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    a.len() == b.len() && at == a.len()
}

/// Whether the setting can be set only for one broker and not for all (Kafka's `PerBrokerConfigs`).
pub fn is_of_one_broker(name: &str) -> bool {
    name.starts_with("sasl.")
}

fn invalid(why: String) -> Result<(), Failure> {
    Err(Failure::because(ErrorCode::InvalidRequest, why))
}

/// Checks the accepted settings among `overrides`.
pub fn check_accepted(overrides: &Overrides) -> Result<(), Failure> {
    for setting in ACCEPTED_SETTINGS {
        let Some(value) = overrides.get(setting.name) else { continue };
        if let Some(problem) = setting.problem(value) {
            return invalid(problem);
        }
    }
    Ok(())
}

/// Checks changes of numbers of threads against `now`, the settings in force (Kafka's `DynamicThreadPool`).
pub fn check_threads(overrides: &Overrides, now: &Overrides) -> Result<(), Failure> {
    for name in THREAD_COUNTS {
        let Some(wanted) = overrides.get(name).and_then(|value| value.trim().parse::<i64>().ok()) else {
            continue;
        };
        let default = || accepted_setting(name)?.fixed_default()?.parse().ok();
        let current = now.get(name).and_then(|value| value.trim().parse::<i64>().ok()).or_else(default);
        let Some(current) = current else { continue };
        let failed = format!("Dynamic thread count update validation failed for {name}={wanted}");
        match wanted {
            wanted if wanted == current => {}
            ..1 => return invalid(format!("{failed}, value should be at least 1")),
            _ if wanted < current / 2 => {
                return invalid(format!(
                    "{failed}, value should be at least half the current value {current}"
                ));
            }
            _ if wanted > current * 2 => {
                let why = "value should not be greater than double the current value";
                return invalid(format!("{failed}, {why} {current}"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(pairs: &[(&str, &str)], now: &[(&str, &str)]) -> Option<String> {
        let of =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let checked = check_accepted(&of(pairs)).and_then(|()| check_threads(&of(pairs), &of(now)));
        checked.err().and_then(|failure| failure.message).map(String::from)
    }

    #[test]
    fn the_table_is_in_order_and_its_defaults_are_valid() {
        assert!(ACCEPTED_SETTINGS.is_sorted_by_key(|setting| setting.name));
        for setting in ACCEPTED_SETTINGS {
            let default = setting.fixed_default().unwrap();
            assert!(default.is_empty() || setting.problem(default).is_none(), "{}", setting.name);
        }
        assert!(THREAD_COUNTS.iter().all(|name| accepted_setting(name).is_some()));
    }

    #[test]
    fn threads_change_by_a_factor_of_two_at_most() {
        assert_eq!(problem(&[("num.io.threads", "16")], &[]), None);
        let failed = "Dynamic thread count update validation failed for num.io.threads=";
        let why = |rest: &str| Some(format!("{failed}{rest}"));
        assert_eq!(
            problem(&[("num.io.threads", "17")], &[]),
            why("17, value should not be greater than double the current value 8")
        );
        assert_eq!(problem(&[("num.io.threads", "17")], &[("num.io.threads", "16")]), None);
        assert_eq!(
            problem(&[("num.io.threads", "3")], &[]),
            why("3, value should be at least half the current value 8")
        );
    }

    #[test]
    fn values_are_checked_as_those_of_topics() {
        let invalid = "Invalid value 10 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1";
        assert_eq!(problem(&[("compression.gzip.level", "10")], &[]).unwrap(), invalid);
        assert_eq!(
            problem(
                &[("sasl.kerberos.service.name", "kafka"), ("unclean.leader.election.enable", "FALSE")],
                &[]
            ),
            None
        );
    }
}
