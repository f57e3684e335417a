//! The settings of a topic: Kafka's names, types and defaults, and which of them Mainstem acts on.
//!
//! Overrides are kept as the text that the client sent; [`TopicConfig`] is what they mean together with the broker's
//! defaults. Settings that have no meaning for one shared log are accepted, checked and shown, since tools set them.

use std::collections::BTreeMap;

use model::TimestampType;

use crate::accepted_settings::accepted_setting;
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
    /// The least and the greatest number allowed.
    pub bounds: (i64, i64),
    /// What it is for.
    pub doc: &'static str,
}

/// Where a default comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultFrom {
    /// The broker setting of this name.
    Broker(&'static str),
    /// The setting of this name that brokers only accept.
    Accepted(&'static str),
    /// This text.
    Fixed(&'static str),
    /// This text, which new clusters have as the setting of all brokers (KIP-966).
    OfCluster(&'static str),
}

/// A row of a table.
pub const fn setting(
    name: &'static str,
    kind: Kind,
    default: DefaultFrom,
    words: &'static [&'static str],
    doc: &'static str,
) -> ResourceSetting {
    ResourceSetting { name, kind, default, words, bounds: (i64::MIN, i64::MAX), doc }
}

impl ResourceSetting {
    /// The row with a least number.
    pub const fn at_least(self, least: i64) -> ResourceSetting {
        self.between(least, i64::MAX)
    }

    /// The row with a least and a greatest number.
    pub const fn between(mut self, least: i64, most: i64) -> ResourceSetting {
        self.bounds = (least, most);
        self
    }
}

use DefaultFrom::{Accepted, Broker, Fixed, OfCluster};
use Kind::{Boolean, Double, Int, List, Long, String as Word};

const NO_EFFECT: &str =
    "Accepted for Kafka's tools; all partitions share one log, which has settings of its own.";
const NOT_RECOMPRESSED: &str =
    "Accepted for Kafka's tools; batches are kept as the producer compressed them.";
const ONE_COPY: &str =
    "Accepted for Kafka's tools; there is one copy of each partition, so nothing is throttled.";
const NO_TIERS: &str = "Accepted for Kafka's tools; all records are on the local disk.";
/// A setting that may be given and is not shown, as in Kafka: it stands for `segment.bytes` where that would be too large.
const INTERNAL_SEGMENT_BYTES: &str = "internal.segment.bytes";

/// All settings of a topic, by name.
pub const TOPIC_SETTINGS: &[ResourceSetting] = &[
    setting(
        "cleanup.policy",
        List,
        Broker("log.cleanup.policy"),
        &["compact", "delete"],
        "What happens to old records: delete, compact, or both.",
    ),
    setting("compression.gzip.level", Int, Accepted("compression.gzip.level"), &[], NOT_RECOMPRESSED).between(1, 9),
    setting("compression.lz4.level", Int, Accepted("compression.lz4.level"), &[], NOT_RECOMPRESSED).between(1, 17),
    setting(
        "compression.type",
        Word,
        Accepted("compression.type"),
        &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"],
        NOT_RECOMPRESSED,
    ),
    setting("compression.zstd.level", Int, Accepted("compression.zstd.level"), &[], NOT_RECOMPRESSED).between(-131_072, 22),
    setting(
        "delete.retention.ms",
        Long,
        Broker("log.cleaner.delete.retention.ms"),
        &[],
        "How long a tombstone stays in a compacted topic, in milliseconds.",
    )
    .at_least(0),
    setting("file.delete.delay.ms", Long, Accepted("log.segment.delete.delay.ms"), &[], NO_EFFECT).at_least(0),
    setting("flush.messages", Long, Broker("log.flush.interval.messages"), &[], NO_EFFECT).at_least(1),
    setting("flush.ms", Long, Fixed("9223372036854775807"), &[], NO_EFFECT).at_least(0),
    setting("follower.replication.throttled.replicas", List, Fixed(""), &[], ONE_COPY),
    setting("index.interval.bytes", Int, Accepted("log.index.interval.bytes"), &[], NO_EFFECT).at_least(0),
    setting("leader.replication.throttled.replicas", List, Fixed(""), &[], ONE_COPY),
    setting("local.retention.bytes", Long, Accepted("log.local.retention.bytes"), &[], NO_TIERS).at_least(-2),
    setting("local.retention.ms", Long, Accepted("log.local.retention.ms"), &[], NO_TIERS).at_least(-2),
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
        "min.insync.replicas",
        Int,
        OfCluster("1"),
        &[],
        "There is one copy, and it is synced before acks=all is answered.",
    )
    .at_least(1),
    setting("preallocate", Boolean, Accepted("log.preallocate"), &[], NO_EFFECT),
    setting("remote.log.copy.disable", Boolean, Fixed("false"), &[], NO_TIERS),
    setting("remote.log.delete.on.disable", Boolean, Fixed("false"), &[], NO_TIERS),
    setting("remote.storage.enable", Boolean, Fixed("false"), &[], NO_TIERS),
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
        Fixed("1073741824"),
        &[],
        "So many new bytes of a compacted topic's partition are due for compaction; partitions share the log's segments.",
    )
    .at_least(1_048_576),
    setting("segment.index.bytes", Int, Accepted("log.index.size.max.bytes"), &[], NO_EFFECT).at_least(4),
    setting("segment.jitter.ms", Long, Fixed("0"), &[], NO_EFFECT).at_least(0),
    setting(
        "segment.ms",
        Long,
        Broker("log.roll.ms"),
        &[],
        "New records of a compacted topic are due for compaction when the oldest is so many milliseconds old.",
    )
    .at_least(1),
    setting("unclean.leader.election.enable", Boolean, Accepted("unclean.leader.election.enable"), &[], NO_EFFECT),
];

/// Not in the table, since it is not shown.
static INTERNAL_SEGMENT: ResourceSetting = setting(INTERNAL_SEGMENT_BYTES, Int, Fixed(""), &[], NO_EFFECT);

/// The table's row for `name`.
pub fn topic_setting(name: &str) -> Option<&'static ResourceSetting> {
    let hidden = (name == INTERNAL_SEGMENT_BYTES).then_some(&INTERNAL_SEGMENT);
    TOPIC_SETTINGS.iter().find(|setting| setting.name == name).or(hidden)
}

/// Why the settings of a topic do not go together, if they do not; each was checked. As Kafka's
/// `LogConfig.validateTopicLogConfigValues`.
pub fn conflict(overrides: &BTreeMap<String, String>, config: &Config) -> Option<String> {
    let number = |name: &str| value_of(overrides, config, name).trim().parse::<i64>().ok();
    let (least, most) = (number("min.compaction.lag.ms")?, number("max.compaction.lag.ms")?);
    if least > most {
        return Some(format!(
            "conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        ));
    }
    let tiered = value_of(overrides, config, "remote.storage.enable").trim().eq_ignore_ascii_case("true");
    tiered.then(|| {
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
            .to_owned()
    })
}

fn value_of(overrides: &BTreeMap<String, String>, config: &Config, name: &str) -> String {
    let setting = topic_setting(name).expect("only names of the table are asked for");
    overrides.get(name).cloned().unwrap_or_else(|| setting.default_value(config))
}

impl ResourceSetting {
    /// Why `value` cannot be a value of this setting, if it cannot; in Kafka's words where it has some.
    pub fn problem(&self, value: &str) -> Option<String> {
        let invalid =
            |why: &str| Some(format!("Invalid value {value} for configuration {}: {why}", self.name));
        if let Some(why) = self.kind.problem(value) {
            return invalid(why);
        }
        let (least, most) = self.bounds;
        match self.kind {
            Kind::Double => match value.trim().parse::<f64>().unwrap_or(f64::NAN) {
                share if share < least as f64 => invalid(&format!("Value must be at least {least}")),
                share if share > most as f64 => invalid(&format!("Value must be no more than {most}")),
                _ => None,
            },
            Kind::Short | Kind::Int | Kind::Long => {
                let number = value.trim().parse::<i64>().ok()?;
                // As Kafka: the number as it was read.
                let beyond = |why: String| {
                    Some(format!("Invalid value {number} for configuration {}: {why}", self.name))
                };
                let of_level = self.fixed_default() == Some("-1");
                match number {
                    // What a level is by default lies outside the levels.
                    -1 if of_level => None,
                    _ if of_level && !(least..=most).contains(&number) => {
                        beyond(format!("Value must be between {least} and {most} or equal to -1"))
                    }
                    _ if number < least => beyond(format!("Value must be at least {least}")),
                    _ if number > most => beyond(format!("Value must be no more than {most}")),
                    _ => None,
                }
            }
            Kind::String if !self.words.is_empty() && !self.words.contains(&value.trim()) => {
                invalid(&format!("String must be one of: {}", self.words.join(", ")))
            }
            Kind::List => self.problem_of_list(value),
            _ => None,
        }
    }

    fn problem_of_list(&self, value: &str) -> Option<String> {
        let of = |word: &str, why: String| {
            Some(format!("Invalid value {word} for configuration {}: {why}", self.name))
        };
        let value = value.trim();
        if value.is_empty() {
            return None;
        }
        let mut words = value.split(',').map(str::trim);
        if self.name.ends_with(".throttled.replicas") {
            let pair = |word: &str| {
                word.split_once(':')
                    .is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
            };
            // As Java splits: what is empty at the end is no word.
            let mut words =
                value.trim_end_matches(|c: char| c == ',' || c.is_whitespace()).split(',').map(str::trim);
            let fits = value == "*" || words.all(pair);
            let why = "must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...";
            return if fits { None } else { of(value, why.to_owned()) };
        }
        if self.words.is_empty() {
            return None;
        }
        if words.clone().any(str::is_empty) {
            return Some(format!("Configuration '{}' values must not be empty.", self.name));
        }
        let wrong = words.find(|word| !self.words.contains(word))?;
        of(wrong, format!("String must be one of: {}", self.words.join(", ")))
    }

    /// The default, where that is a text.
    pub fn fixed_default(&self) -> Option<&'static str> {
        match self.default {
            Fixed(text) | OfCluster(text) => Some(text),
            Accepted(name) => accepted_setting(name)?.fixed_default(),
            Broker(_) => None,
        }
    }

    /// The value that holds where the topic has none of its own.
    pub fn default_value(&self, config: &Config) -> String {
        match self.default {
            Fixed(_) | OfCluster(_) | Accepted(_) => self.fixed_default().unwrap_or_default().to_owned(),
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
