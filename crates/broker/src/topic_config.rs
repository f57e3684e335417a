//! The settings of a topic: Kafka's names, types and defaults, and which of them Mainstem acts on.
//!
//! Overrides are kept as the text that the client sent; [`TopicConfig`] is what they mean together with the broker's
//! defaults. Settings that have no meaning for one shared log are accepted, checked and shown, since tools set them.

use std::collections::BTreeMap;

use model::TimestampType;

use crate::config::{Config, Kind};

/// One setting of a resource's table.
#[derive(Debug)]
pub struct ResourceSetting {
    /// Kafka's name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The broker's setting that gives the default, if there is one, else the default itself.
    pub default: DefaultFrom,
    /// The words allowed, if only some are.
    pub words: &'static [&'static str],
    /// What it is for.
    pub doc: &'static str,
}

/// Where a default comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultFrom {
    /// The broker setting of this name.
    Broker(&'static str),
    /// This text.
    Fixed(&'static str),
}

/// A row of a table.
pub const fn setting(
    name: &'static str,
    kind: Kind,
    default: DefaultFrom,
    words: &'static [&'static str],
    doc: &'static str,
) -> ResourceSetting {
    ResourceSetting { name, kind, default, words, doc }
}

use DefaultFrom::{Broker, Fixed};
use Kind::{Boolean, Double, Int, List, Long, String as Word};

const NO_EFFECT: &str =
    "Accepted for Kafka's tools; all partitions share one log, which has settings of its own.";

/// All settings of a topic, by name.
pub const TOPIC_SETTINGS: &[ResourceSetting] = &[
    setting(
        "cleanup.policy",
        List,
        Broker("log.cleanup.policy"),
        &["delete", "compact"],
        "What happens to old records: delete, compact, or both.",
    ),
    setting(
        "compression.type",
        Word,
        Fixed("producer"),
        &["producer"],
        "Batches are kept as the producer compressed them.",
    ),
    setting(
        "delete.retention.ms",
        Long,
        Broker("log.cleaner.delete.retention.ms"),
        &[],
        "How long a tombstone stays in a compacted topic, in milliseconds.",
    ),
    setting("file.delete.delay.ms", Long, Fixed("60000"), &[], NO_EFFECT),
    setting("flush.messages", Long, Broker("log.flush.interval.messages"), &[], NO_EFFECT),
    setting("flush.ms", Long, Fixed("9223372036854775807"), &[], NO_EFFECT),
    setting("index.interval.bytes", Int, Fixed("4096"), &[], NO_EFFECT),
    setting(
        "max.compaction.lag.ms",
        Long,
        Broker("log.cleaner.max.compaction.lag.ms"),
        &[],
        "After so many milliseconds a record is due for compaction.",
    ),
    setting(
        "max.message.bytes",
        Int,
        Broker("message.max.bytes"),
        &[],
        "Largest batch of records, in bytes.",
    ),
    setting(
        "message.timestamp.after.max.ms",
        Long,
        Fixed("3600000"),
        &[],
        "How far a record's timestamp may lie in the future, in milliseconds.",
    ),
    setting(
        "message.timestamp.before.max.ms",
        Long,
        Fixed("9223372036854775807"),
        &[],
        "How far a batch's timestamps may lie in the past, in milliseconds.",
    ),
    setting(
        "message.timestamp.type",
        Word,
        Fixed("CreateTime"),
        &["CreateTime", "LogAppendTime"],
        "Whether the producer or the server sets timestamps.",
    ),
    setting(
        "min.cleanable.dirty.ratio",
        Double,
        Broker("log.cleaner.min.cleanable.ratio"),
        &[],
        "Share of a compacted topic that must be new before it is compacted.",
    ),
    setting(
        "min.compaction.lag.ms",
        Long,
        Broker("log.cleaner.min.compaction.lag.ms"),
        &[],
        "For so many milliseconds a record is not compacted.",
    ),
    setting(
        "min.insync.replicas",
        Int,
        Fixed("1"),
        &[],
        "There is one copy, and it is synced before acks=all is answered.",
    ),
    setting("preallocate", Boolean, Fixed("false"), &[], NO_EFFECT),
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
    ),
    setting(
        "segment.bytes",
        Int,
        Fixed("1073741824"),
        &[],
        "So many new bytes of a compacted topic's partition are due for compaction; partitions share the log's segments.",
    ),
    setting("segment.index.bytes", Int, Fixed("10485760"), &[], NO_EFFECT),
    setting("segment.jitter.ms", Long, Fixed("0"), &[], NO_EFFECT),
    setting(
        "segment.ms",
        Long,
        Fixed("604800000"),
        &[],
        "New records of a compacted topic are due for compaction when the oldest is so many milliseconds old.",
    ),
    setting("unclean.leader.election.enable", Boolean, Fixed("false"), &[], NO_EFFECT),
];

/// The table's row for `name`.
pub fn topic_setting(name: &str) -> Option<&'static ResourceSetting> {
    TOPIC_SETTINGS.iter().find(|setting| setting.name == name)
}

impl ResourceSetting {
    /// Why `value` cannot be a value of this setting, if it cannot; in Kafka's words where it has some.
    pub fn problem(&self, value: &str) -> Option<String> {
        let invalid =
            |why: &str| Some(format!("Invalid value {value} for configuration {}: {why}", self.name));
        if let Some(why) = self.kind.problem(value) {
            return invalid(why);
        }
        let number = value.trim().parse::<i64>();
        match self.kind {
            Kind::Double if !(0.0..=1.0).contains(&value.trim().parse::<f64>().unwrap_or(-1.0)) => {
                invalid("Value must be between 0 and 1")
            }
            Kind::Int | Kind::Long => {
                let least = if self.name.starts_with("retention.") {
                    -1
                } else {
                    i64::from(self.name == "min.insync.replicas" || self.name.starts_with("consumer."))
                };
                let small = number.is_ok_and(|number| number < least);
                if small { invalid(&format!("Value must be at least {least}")) } else { None }
            }
            Kind::String | Kind::List if !self.words.is_empty() => {
                let bad = |word: &str| !self.words.contains(&word.trim());
                let words: Vec<&str> =
                    if self.kind == Kind::List { value.split(',').collect() } else { vec![value] };
                words.into_iter().any(bad).then(|| {
                    format!(
                        "Invalid value {value} for configuration {}: must be one of: {}",
                        self.name,
                        self.words.join(", ")
                    )
                })
            }
            _ => None,
        }
    }

    /// The value that holds where the topic has none of its own.
    pub fn default_value(&self, config: &Config) -> String {
        match self.default {
            Fixed(text) => text.to_owned(),
            Broker(name) => config.value(name).expect("the table names broker settings that exist"),
        }
    }
}

/// A topic's settings as the broker uses them.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// Records older than this are deleted; `None` keeps them, as do topics that are compacted only.
    pub retention_ms: Option<i64>,
    /// Whether records may be deleted before their key's newest: not in topics that are compacted only.
    pub deletes: bool,
    /// Oldest records beyond this size are deleted.
    pub retention_bytes: Option<u64>,
    /// How it is compacted, if it is.
    pub compaction: Option<CompactionConfig>,
    /// `segment.bytes`.
    pub segment_bytes: u64,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// Largest batch, in bytes.
    pub message_bytes_max: usize,
    /// Who sets timestamps.
    pub timestamp_type: TimestampType,
    /// How far timestamps may lie in the past, in milliseconds.
    pub timestamp_before_max_ms: i64,
    /// How far timestamps may lie in the future, in milliseconds.
    pub timestamp_after_max_ms: i64,
}

/// How a topic is compacted.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionConfig {
    /// Share of it that must be new.
    pub min_dirty_ratio: f64,
    /// How long records are left alone, in milliseconds.
    pub min_lag_ms: i64,
    /// When records are due whatever their share, in milliseconds.
    pub max_lag_ms: i64,
    /// How long tombstones stay, in milliseconds.
    pub delete_retention_ms: i64,
}

impl TopicConfig {
    /// What `overrides`, each of which was checked, mean on top of the broker's defaults.
    pub fn new(overrides: &BTreeMap<String, String>, config: &Config) -> TopicConfig {
        let text = |name: &str| {
            let setting = topic_setting(name).expect("only names of the table are asked for");
            overrides.get(name).cloned().unwrap_or_else(|| setting.default_value(config))
        };
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
        TopicConfig {
            retention_ms: Some(number("retention.ms")).filter(|ms| deletes && *ms >= 0),
            deletes,
            compaction: compacts.then(compaction),
            segment_bytes: u64::try_from(number("segment.bytes")).unwrap_or(0),
            segment_ms: number("segment.ms"),
            retention_bytes: u64::try_from(number("retention.bytes")).ok().filter(|_| deletes),
            message_bytes_max: usize::try_from(number("max.message.bytes")).unwrap_or(0),
            timestamp_type: match text("message.timestamp.type").as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: number("message.timestamp.after.max.ms"),
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
