//! The settings of a topic: Kafka's names, types and defaults, and the settings that Mainstem acts on.
//!
//! Overrides are stored as the text that the client sent. [`TopicConfig`] combines them with the broker's defaults.
//! Settings without a meaning for one shared log are accepted, checked and shown, because tools set them.

use std::collections::BTreeMap;

use model::TimestampType;
use storage::Level;

use crate::config::resource_setting::{DefaultFrom, ResourceSetting, setting};
use crate::config::{Config, Kind};
use crate::settings::accepted::{MIN_INSYNC, accepted};

use DefaultFrom::{Broker, Fixed, OfCluster};
use Kind::{Boolean, Double, Int, List, Long, String as Word};

const NO_EFFECT: &str =
    "Accepted for Kafka's tools; all partitions share one log, which has settings of its own.";
const NOT_RECOMPRESSED: &str =
    "Accepted for Kafka's tools; batches are kept as the producer compressed them.";
const ONE_COPY: &str =
    "Accepted for Kafka's tools; there is one copy of each partition, so nothing is throttled.";
/// A local retention that is the same as that of all records.
const AS_RETENTION: i64 = -2;
/// As in Kafka, a setting that is accepted and not shown. It replaces `segment.bytes` where that would be too large.
const INTERNAL_SEGMENT_BYTES: &str = "internal.segment.bytes";

/// The name in KIP-1150, which no release of Kafka has. Shown only where it is set.
pub const DISKLESS: &str = "diskless.enable";

/// All settings of a topic, by name.
pub const TOPIC_SETTINGS: &[ResourceSetting] = &[
    setting(
        "cleanup.policy",
        List,
        Broker("log.cleanup.policy"),
        &["compact", "delete"],
        "What happens to old records: delete, compact, or both.",
    ),
    setting("compression.gzip.level", Int, accepted("compression.gzip.level"), &[], NOT_RECOMPRESSED).between(1, 9),
    setting("compression.lz4.level", Int, accepted("compression.lz4.level"), &[], NOT_RECOMPRESSED).between(1, 17),
    setting(
        "compression.type",
        Word,
        accepted("compression.type"),
        &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"],
        NOT_RECOMPRESSED,
    ),
    setting("compression.zstd.level", Int, accepted("compression.zstd.level"), &[], NOT_RECOMPRESSED).between(-131_072, 22),
    setting(
        "delete.retention.ms",
        Long,
        Broker("log.cleaner.delete.retention.ms"),
        &[],
        "How long a tombstone stays in a compacted topic, in milliseconds.",
    )
    .at_least(0),
    setting(
        DISKLESS,
        Boolean,
        Fixed("false"),
        &[],
        "Records are acknowledged and visible once they are in the object store. Set when a topic is created.",
    ),
    setting("file.delete.delay.ms", Long, accepted("log.segment.delete.delay.ms"), &[], NO_EFFECT).at_least(0),
    setting("flush.messages", Long, Broker("log.flush.interval.messages"), &[], NO_EFFECT).at_least(1),
    setting("flush.ms", Long, Fixed("9223372036854775807"), &[], NO_EFFECT).at_least(0),
    setting("follower.replication.throttled.replicas", List, Fixed(""), &[], ONE_COPY),
    setting("index.interval.bytes", Int, accepted("log.index.interval.bytes"), &[], NO_EFFECT).at_least(0),
    setting("leader.replication.throttled.replicas", List, Fixed(""), &[], ONE_COPY),
    setting(
        "local.retention.bytes",
        Long,
        Broker("log.local.retention.bytes"),
        &[],
        "With remote.storage.enable, bytes of a partition that stay on the local disk; -2 is as retention.bytes.",
    )
    .at_least(-2),
    setting(
        "local.retention.ms",
        Long,
        Broker("log.local.retention.ms"),
        &[],
        "With remote.storage.enable, milliseconds for which records stay on the local disk; -2 is as retention.ms.",
    )
    .at_least(-2),
    setting(
        "max.compaction.lag.ms",
        Long,
        Broker("log.cleaner.max.compaction.lag.ms"),
        &[],
        "After so many milliseconds a record is due for compaction.",
    )
    .at_least(1),
    setting(
        "max.message.bytes",
        Int,
        Broker("message.max.bytes"),
        &[],
        "Largest batch of records, in bytes.",
    )
    .at_least(0),
    setting(
        "message.timestamp.after.max.ms",
        Long,
        Broker("log.message.timestamp.after.max.ms"),
        &[],
        "How far a record's timestamp may lie in the future, in milliseconds.",
    )
    .at_least(0),
    setting(
        "message.timestamp.before.max.ms",
        Long,
        Broker("log.message.timestamp.before.max.ms"),
        &[],
        "How far a batch's timestamps may lie in the past, in milliseconds.",
    )
    .at_least(0),
    setting(
        "message.timestamp.type",
        Word,
        Broker("log.message.timestamp.type"),
        &["CreateTime", "LogAppendTime"],
        "Whether the producer or the server sets timestamps.",
    ),
    setting(
        "min.cleanable.dirty.ratio",
        Double,
        Broker("log.cleaner.min.cleanable.ratio"),
        &[],
        "Share of a compacted topic that must be new before it is compacted.",
    )
    .between(0, 1),
    setting(
        "min.compaction.lag.ms",
        Long,
        Broker("log.cleaner.min.compaction.lag.ms"),
        &[],
        "For so many milliseconds a record is not compacted.",
    )
    .at_least(0),
    setting(
        MIN_INSYNC,
        Int,
        OfCluster("1"),
        &[],
        "With fewer replicas in sync, acks=all is refused. Of a topic with one copy, it is synced before acks=all is answered.",
    )
    .at_least(1),
    setting("preallocate", Boolean, accepted("log.preallocate"), &[], NO_EFFECT),
    setting(
        "remote.log.copy.disable",
        Boolean,
        Fixed("false"),
        &[],
        "No more records go to the object store; those in it stay until their retention ends.",
    ),
    setting(
        "remote.log.delete.on.disable",
        Boolean,
        Fixed("false"),
        &[],
        "Records that are in the object store alone are deleted when remote.storage.enable becomes false.",
    ),
    setting(
        "remote.storage.enable",
        Boolean,
        Fixed("false"),
        &[],
        "Records go to the object store, too, and may leave the local disk.",
    ),
    setting(
        "retention.bytes",
        Long,
        Broker("log.retention.bytes"),
        &[],
        "The oldest records of a partition are deleted beyond this size in bytes; -1 for no limit.",
    ),
    setting(
        "retention.ms",
        Long,
        Broker("log.retention.ms"),
        &[],
        "Records older than this many milliseconds are deleted; -1 keeps them.",
    )
    .at_least(-1),
    setting(
        "segment.bytes",
        Int,
        Broker("log.segment.bytes"),
        &[],
        "So many new bytes of a compacted topic's partition are due for compaction; partitions share the log's segments.",
    )
    .at_least(1_048_576),
    setting("segment.index.bytes", Int, accepted("log.index.size.max.bytes"), &[], NO_EFFECT).at_least(4),
    setting("segment.jitter.ms", Long, Fixed("0"), &[], NO_EFFECT).at_least(0),
    setting(
        "segment.ms",
        Long,
        Broker("log.roll.ms"),
        &[],
        "New records of a compacted topic are due for compaction when the oldest is so many milliseconds old.",
    )
    .at_least(1),
    setting("unclean.leader.election.enable", Boolean, accepted("unclean.leader.election.enable"), &[], NO_EFFECT),
];

/// Not in the table, because it is not shown.
static INTERNAL_SEGMENT: ResourceSetting = setting(INTERNAL_SEGMENT_BYTES, Int, Fixed(""), &[], NO_EFFECT);

/// The row of the table for `name`.
pub fn topic_setting(name: &str) -> Option<&'static ResourceSetting> {
    let hidden = (name == INTERNAL_SEGMENT_BYTES).then_some(&INTERNAL_SEGMENT);
    TOPIC_SETTINGS.iter().find(|setting| setting.name == name).or(hidden)
}

/// The reason why the settings of a topic contradict each other, if they do. Each setting was checked before. As
/// Kafka's `LogConfig.validateTopicLogConfigValues`.
pub fn conflict(overrides: &BTreeMap<String, String>, config: &Config) -> Option<String> {
    let number = |name: &str| value_of(overrides, config, name).trim().parse::<i64>().ok();
    let (least, most) = (number("min.compaction.lag.ms")?, number("max.compaction.lag.ms")?);
    if least > most {
        return Some(format!(
            "conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        ));
    }
    let set = |name: &str| is_set(overrides, config, name);
    if set(DISKLESS) {
        if config.object_store.get().is_none() {
            return Some(
                "A diskless topic needs an object store, and the broker has none (object.store).".to_owned(),
            );
        }
        if set("remote.storage.enable") {
            return Some("A topic cannot have both diskless.enable and remote.storage.enable.".to_owned());
        }
    }
    if !set("remote.storage.enable") {
        return None;
    }
    if config.object_store.get().is_none() {
        return Some(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
                .to_owned(),
        );
    }
    if value_of(overrides, config, "cleanup.policy").contains("compact") {
        return Some(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list."
                .to_owned(),
        );
    }
    let copies = !set("remote.log.copy.disable");
    for unit in ["bytes", "ms"] {
        let (local_name, name) = (format!("local.retention.{unit}"), format!("retention.{unit}"));
        let (local, all) = (number(&local_name)?, number(&name)?);
        if !copies && local != AS_RETENTION && local != all {
            return Some(format!(
                "When `remote.log.copy.disable` is set to true, the `{local_name}` and `{name}` must be set to the \
                 identical value because there will be no more logs copied to the remote storage."
            ));
        }
        let wrong = wrong_local_retention((&local_name, local), (&name, all));
        if wrong.is_some() {
            return wrong;
        }
    }
    None
}

/// The reason why a local retention, a setting and its value, contradicts the one of all records.
pub fn wrong_local_retention((local_name, local): (&str, i64), (name, all): (&str, i64)) -> Option<String> {
    let invalid = |why: String| Some(format!("Invalid value {local} for configuration {local_name}: {why}"));
    match all {
        0.. if local == -1 => invalid(format!("Value must not be -1 as {name} value is set as {all}.")),
        0.. if local > all => invalid(format!("Value must not be more than {name} property value: {all}")),
        _ => None,
    }
}

/// Notes in the settings of a new topic of a cluster whether it is diskless or has copies. Topics of before copies had no such
/// note, and are diskless. So is a new one that does not say otherwise, unless `copies` says that all brokers keep copies.
///
/// # Errors
/// The settings say something that no topic of a cluster can be.
pub fn settle_level(
    overrides: &mut BTreeMap<String, String>,
    config: &Config,
    copies: bool,
) -> Result<(), &'static str> {
    if is_set(overrides, config, "remote.storage.enable") {
        return Err(
            "The topics of a cluster are in the object store anyway: remote.storage.enable can only be false.",
        );
    }
    let diskless = config.diskless_default || !copies;
    overrides.entry(DISKLESS.to_owned()).or_insert_with(|| diskless.to_string());
    Ok(())
}

/// `min.insync.replicas`, or the number of replicas if that is lower, as in Kafka since 4.0.
pub fn in_sync_min(min: i64, config: &Config) -> usize {
    usize::try_from(min.min(config.replication_factor.into())).unwrap_or(1)
}

/// Notes in the settings of a new topic whether it is diskless, if they do not say so: the server's default may change
/// later.
pub fn settle_diskless(overrides: &mut BTreeMap<String, String>, config: &Config) {
    let says = overrides.contains_key(DISKLESS) || is_set(overrides, config, "remote.storage.enable");
    if config.diskless_default && config.object_store.get().is_some() && !says {
        overrides.insert(DISKLESS.to_owned(), "true".to_owned());
    }
}

/// Keeps the setting that cannot be changed, where `after` replaces all settings and leaves it out: tools that replace
/// them do not know it.
pub fn keep_diskless(before: &BTreeMap<String, String>, after: &mut BTreeMap<String, String>) {
    if let Some(value) = before.get(DISKLESS) {
        after.entry(DISKLESS.to_owned()).or_insert_with(|| value.clone());
    }
}

/// The reason why the settings of a topic may not change from `before` to `after`, if there is one. As Kafka's
/// `LogConfig.validateTurningOffRemoteStorageWithDelete`.
pub fn wrong_change(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
    config: &Config,
    in_cluster: bool,
) -> Option<&'static str> {
    let diskless = |overrides: &BTreeMap<String, String>| match in_cluster {
        true => !has_copies(overrides),
        false => is_set(overrides, config, DISKLESS),
    };
    if diskless(before) != diskless(after) {
        return Some("diskless.enable can be set only when a topic is created.");
    }
    let turned_off =
        is_set(before, config, "remote.storage.enable") && !is_set(after, config, "remote.storage.enable");
    (turned_off && !is_set(after, config, "remote.log.delete.on.disable")).then_some(
        "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data and \
         turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable \
         remote storage and delete all remote data, please set \
         `remote.storage.enable=false,remote.log.delete.on.disable=true`.",
    )
}

/// Whether a topic of a cluster has copies on several brokers: it says so.
fn has_copies(overrides: &BTreeMap<String, String>) -> bool {
    overrides.get(DISKLESS).is_some_and(|value| value.trim().eq_ignore_ascii_case("false"))
}

fn is_set(overrides: &BTreeMap<String, String>, config: &Config, name: &str) -> bool {
    value_of(overrides, config, name).trim().eq_ignore_ascii_case("true")
}

fn value_of(overrides: &BTreeMap<String, String>, config: &Config, name: &str) -> String {
    let setting = topic_setting(name).expect("only names of the table are asked for");
    overrides.get(name).cloned().unwrap_or_else(|| setting.default_value(config))
}

/// A topic's settings in the form that the broker uses.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// Records older than this many milliseconds are deleted. `None` keeps them, as for topics that are only compacted.
    pub retention_ms: Option<i64>,
    /// Whether old records may be deleted whatever their key (`cleanup.policy` contains `delete`).
    pub deletes: bool,
    /// The oldest records beyond this size in bytes are deleted.
    pub retention_bytes: Option<u64>,
    /// The parameters of compaction. `None` if the topic is not compacted.
    pub compaction: Option<CompactionConfig>,
    /// `segment.bytes`.
    pub segment_bytes: u64,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// Largest batch, in bytes.
    pub message_bytes_max: usize,
    /// Whether the producer or the server sets timestamps.
    pub timestamp_type: TimestampType,
    /// How far timestamps may lie in the past, in milliseconds.
    pub timestamp_before_max_ms: i64,
    /// How far timestamps may lie in the future, in milliseconds.
    pub timestamp_after_max_ms: i64,
    /// The part that the object store has in the topic. `None` if it has none.
    pub tiering: Option<Tiering>,
    /// With fewer replicas in sync, `acks=all` is refused (`min.insync.replicas`). 1 for a topic without copies.
    pub in_sync_min: usize,
}

/// How a topic uses the object store.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiering {
    /// Whether new records go there, and when they are visible.
    pub level: Level,
    /// Local copies older than this many milliseconds are dropped, once they are stored.
    pub local_retention_ms: Option<i64>,
    /// The oldest local copies beyond this size in bytes are dropped, once they are stored.
    pub local_retention_bytes: Option<u64>,
}

/// The parameters of compaction.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionConfig {
    /// Smallest share of new data that makes a partition due.
    pub min_dirty_ratio: f64,
    /// Age in milliseconds before which records are not compacted.
    pub min_lag_ms: i64,
    /// Age in milliseconds at which records are due, whatever their share.
    pub max_lag_ms: i64,
    /// Time in milliseconds for which tombstones stay.
    pub delete_retention_ms: i64,
}

impl TopicConfig {
    /// Applies `overrides` to the broker's defaults. Each override was checked before.
    pub fn new(overrides: &BTreeMap<String, String>, config: &Config) -> TopicConfig {
        let level = if is_set(overrides, config, DISKLESS) {
            Some(Level::Diskless)
        } else if is_set(overrides, config, "remote.storage.enable") {
            let copies = !is_set(overrides, config, "remote.log.copy.disable");
            Some(if copies { Level::Tiered } else { Level::Local })
        } else {
            None
        };
        TopicConfig::at(level, overrides, config)
    }

    /// The same for a topic of a cluster, where no record is on one disk only.
    pub fn in_cluster(overrides: &BTreeMap<String, String>, config: &Config) -> TopicConfig {
        let level = if has_copies(overrides) { Level::Replicated } else { Level::Diskless };
        TopicConfig::at(Some(level), overrides, config)
    }

    /// Whether the topic has copies on several brokers.
    pub fn is_replicated(&self) -> bool {
        self.tiering.as_ref().is_some_and(|tiering| tiering.level == Level::Replicated)
    }

    fn at(level: Option<Level>, overrides: &BTreeMap<String, String>, config: &Config) -> TopicConfig {
        let copied = level == Some(Level::Replicated);
        let text = |name: &str| value_of(overrides, config, name);
        let number =
            |name: &str| text(name).trim().parse::<i64>().expect("values are checked before they are stored");
        let policy = text("cleanup.policy");
        let has = |word: &str| policy.split(',').any(|other| other.trim() == word);
        let (deletes, compacts) = (has("delete"), has("compact"));
        let ratio = || text("min.cleanable.dirty.ratio").trim().parse().expect("values are checked");
        let compaction = || CompactionConfig {
            min_dirty_ratio: ratio(),
            min_lag_ms: number("min.compaction.lag.ms"),
            max_lag_ms: number("max.compaction.lag.ms"),
            delete_retention_ms: number("delete.retention.ms"),
        };
        let tiering = |level: Level| {
            let bytes = u64::try_from(number("local.retention.bytes")).ok();
            let ms = Some(number("local.retention.ms")).filter(|ms| *ms >= 0);
            // In front of the object store, the disk is only a buffer of a topic whose own settings say nothing else.
            let own = |name: &str| {
                overrides
                    .get(name)
                    .and_then(|value| value.trim().parse::<i64>().ok())
                    .is_some_and(|value| value >= 0)
            };
            let says = own("local.retention.bytes") || own("local.retention.ms");
            let buffer = level.waits() && !says;
            Tiering {
                level,
                local_retention_ms: ms,
                local_retention_bytes: if buffer { Some(0) } else { bytes },
            }
        };
        let segment_bytes = match overrides.contains_key(INTERNAL_SEGMENT_BYTES) {
            true => number(INTERNAL_SEGMENT_BYTES),
            false => number("segment.bytes"),
        };
        TopicConfig {
            retention_ms: Some(number("retention.ms")).filter(|ms| deletes && *ms >= 0),
            deletes,
            compaction: compacts.then(compaction),
            segment_bytes: u64::try_from(segment_bytes).unwrap_or(0),
            segment_ms: number("segment.ms"),
            retention_bytes: u64::try_from(number("retention.bytes")).ok().filter(|_| deletes),
            message_bytes_max: usize::try_from(number("max.message.bytes")).unwrap_or(0),
            timestamp_type: match text("message.timestamp.type").trim() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: number("message.timestamp.after.max.ms"),
            tiering: level.map(tiering),
            in_sync_min: if copied { in_sync_min(number(MIN_INSYNC), config) } else { 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_and_bad_values_are_named() {
        let config = Config::default();
        for setting in TOPIC_SETTINGS {
            assert_eq!(setting.problem(&setting.default_value(&config)), None, "{}", setting.name);
        }
        let problem = |name: &str, value: &str| topic_setting(name).unwrap().problem(value);
        assert!(problem("retention.ms", "soon").unwrap().contains("retention.ms"));
        assert!(problem("retention.ms", "-2").is_some() && problem("retention.ms", "-1").is_none());
        assert!(
            problem("cleanup.policy", "compact,delete").is_none()
                && problem("cleanup.policy", "shrink").is_some()
        );
        assert!(problem("min.cleanable.dirty.ratio", "1.5").is_some());
    }

    #[test]
    fn overrides_win_over_the_brokers_defaults() {
        let overrides =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let plain = TopicConfig::new(&BTreeMap::new(), &Config::default());
        assert_eq!((plain.retention_ms, plain.retention_bytes), (Some(604_800_000), None));
        let own = TopicConfig::new(
            &overrides(&[("retention.ms", "-1"), ("retention.bytes", "5")]),
            &Config::default(),
        );
        assert_eq!((own.retention_ms, own.retention_bytes), (None, Some(5)));
        let compact = TopicConfig::new(&overrides(&[("cleanup.policy", "compact")]), &Config::default());
        assert_eq!((compact.retention_ms, compact.deletes), (None, false));
        assert_eq!(compact.compaction.map(|rules| rules.min_dirty_ratio), Some(0.5));
        assert_eq!(plain.compaction, None);
    }
}
