//! The broker's settings. A setting that Kafka has too carries Kafka's name.
//!
//! One table holds everything about each setting: name, type, default, bounds and description. `mainstem config` prints
//! the table, [`Config::set`] parses and checks values with it, and DescribeConfigs answers from it.

mod classes;
pub mod resource_setting;
mod values;

use std::fmt::Display;
use std::str::FromStr;

use model::TimestampType;

pub use self::classes::{AuthorizerClass, ReplicaSelector};
pub use self::values::{ByteRate, CleanupPolicy, ConnectionsPerAddress, OptionalText, SuperUsers};
use crate::resources::memory::tail_cache_bytes_default;

/// The reason why a setting is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The setting does not exist.
    #[error("there is no setting {name}{}", did_you_mean(.suggestion))]
    Unknown {
        /// The name as given.
        name: String,
        /// The setting with the most similar name.
        suggestion: Option<String>,
    },
    /// The value has another type than the setting, or is out of bounds.
    #[error("{name} = {value}: {problem}")]
    Invalid {
        /// The setting.
        name: String,
        /// The value as given.
        value: String,
        /// The problem with the value.
        problem: String,
    },
}

fn did_you_mean(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|name| format!(", did you mean {name}?")).unwrap_or_default()
}

/// The type of a setting, with its code in DescribeConfigs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// Any text, or one of a few words.
    String,
    /// A 16-bit integer.
    Short,
    /// A 32-bit integer.
    Int,
    /// A 64-bit integer.
    Long,
    /// A floating-point number.
    Double,
    /// Words separated by commas.
    List,
    /// A text that nobody is shown.
    Password,
}

impl Kind {
    /// The type's code in DescribeConfigs (KIP-569).
    pub fn code(self) -> i8 {
        match self {
            Kind::Boolean => 1,
            Kind::String => 2,
            Kind::Int => 3,
            Kind::Short => 4,
            Kind::Long => 5,
            Kind::Double => 6,
            Kind::List => 7,
            Kind::Password => 9,
        }
    }

    /// The reason why `value` is not of this type, in Kafka's words. `None` if it is.
    pub fn problem(self, value: &str) -> Option<&'static str> {
        let value = value.trim();
        let (fits, why) = match self {
            Kind::Boolean => (
                ["true", "false"].iter().any(|word| value.eq_ignore_ascii_case(word)),
                "Expected value to be either true or false",
            ),
            Kind::Short => (value.parse::<i16>().is_ok(), "Not a number of type SHORT"),
            Kind::Int => (value.parse::<i32>().is_ok(), "Not a number of type INT"),
            Kind::Long => (value.parse::<i64>().is_ok(), "Not a number of type LONG"),
            // Infinity and NaN, which Rust parses, are refused.
            Kind::Double => (value.parse::<f64>().is_ok_and(f64::is_finite), "Not a number of type DOUBLE"),
            Kind::String | Kind::List | Kind::Password => (true, ""),
        };
        (!fits).then_some(why)
    }
}

/// The types of the table's fields.
trait Typed {
    const KIND: Kind;
}

impl Typed for bool {
    const KIND: Kind = Kind::Boolean;
}

impl Typed for i32 {
    const KIND: Kind = Kind::Int;
}

impl Typed for i64 {
    const KIND: Kind = Kind::Long;
}

impl Typed for f64 {
    const KIND: Kind = Kind::Double;
}

impl Typed for ByteRate {
    const KIND: Kind = Kind::Double;
}

impl Typed for ConnectionsPerAddress {
    const KIND: Kind = Kind::String;
}

impl Typed for CleanupPolicy {
    const KIND: Kind = Kind::List;
}

impl Typed for TimestampType {
    const KIND: Kind = Kind::String;
}

impl Typed for AuthorizerClass {
    const KIND: Kind = Kind::String;
}

impl Typed for ReplicaSelector {
    const KIND: Kind = Kind::String;
}

impl Typed for SuperUsers {
    const KIND: Kind = Kind::String;
}

impl Typed for OptionalText {
    const KIND: Kind = Kind::String;
}

/// One setting of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Kafka's name.
    pub name: &'static str,
    /// The default, as text.
    pub default: String,
    /// The value in force, as text.
    pub value: String,
    /// The description.
    pub doc: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The smallest and the largest value, as text.
    pub bounds: (String, String),
    /// Whether the default depends on the machine.
    pub of_machine: bool,
}

/// Settings whose default depends on the machine.
const OF_MACHINE: [&str; 1] = ["log.tail.cache.bytes"];

impl Setting {
    /// The reason why `value` is not valid for this setting, in the words that Kafka's clients know. `None` if it is
    /// valid.
    pub fn problem(&self, value: &str) -> Option<String> {
        let error = Config::default().set(self.name, value).err()?;
        let (min, max) = &self.bounds;
        let below = value.trim().parse::<f64>().ok() < min.parse().ok();
        let why = match self.kind.problem(value) {
            Some(why) => why.to_owned(),
            None if self.kind == Kind::List => "String must be one of: compact, delete".to_owned(),
            None if self.kind == Kind::String && min == max => match error {
                ConfigError::Invalid { problem, .. } => problem,
                error => error.to_string(),
            },
            None if self.kind == Kind::String => format!("String must be one of: {min}, {max}"),
            None if below => format!("Value must be at least {min}"),
            None => format!("Value must be no more than {max}"),
        };
        Some(format!("Invalid value {value} for configuration {}: {why}", self.name))
    }
}

impl Config {
    /// What is wrong with bounds of connections that are valid one by one (Kafka's `KafkaConfig`).
    pub fn connections_problem(&self) -> Option<&'static str> {
        let nobody = self.connections_per_address_max == 0 && self.connections_per_address.is_empty();
        nobody.then_some(
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
        )
    }
}

fn parse<T: FromStr + PartialOrd + Display>(name: &str, value: &str, min: T, max: T) -> Result<T, ConfigError>
where
    T::Err: Display,
{
    let invalid = |problem: String| ConfigError::Invalid { name: name.into(), value: value.into(), problem };
    let parsed: T = value.trim().parse().map_err(|error: T::Err| invalid(error.to_string()))?;
    if parsed < min || parsed > max {
        return Err(invalid(format!("it must be from {min} to {max}")));
    }
    Ok(parsed)
}

fn text<T: Display>(value: T) -> String {
    value.to_string()
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr, $name:literal, $min:expr, $max:expr;)+) => {
        /// The broker's settings.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl Default for Config {
            fn default() -> Config {
                Config { $($field: $default,)+ }
            }
        }

        impl Config {
            /// Sets `name` from text.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
                match name {
                    $($name => self.$field = parse(name, value, $min, $max)?,)+
                    _ => {
                        let names = [$($name),+];
                        return Err(ConfigError::Unknown { name: name.into(), suggestion: most_similar(name, &names) });
                    }
                }
                Ok(())
            }

            /// The value of `name` as text.
            pub fn value(&self, name: &str) -> Option<String> {
                match name {
                    $($name => Some(self.$field.to_string()),)+
                    _ => None,
                }
            }

            /// All settings, in the order of the table.
            pub fn settings(&self) -> Vec<Setting> {
                let defaults = Config::default();
                vec![$(Setting {
                    name: $name,
                    default: defaults.$field.to_string(),
                    value: self.$field.to_string(),
                    doc: concat!($($doc, "\n"),+).trim_ascii(),
                    kind: <$type as Typed>::KIND,
                    bounds: (text::<$type>($min), text::<$type>($max)),
                    of_machine: OF_MACHINE.contains(&$name),
                },)+]
            }
        }
    };
}

settings! {
    /// Id of this server in Metadata.
    node_id: i32 = 1, "node.id", 0, i32::MAX;
    /// Where the server is: a rack, a zone or the like. Metadata has it.
    rack: OptionalText = OptionalText::default(), "broker.rack", OptionalText::default(), OptionalText::default();
    /// Id of the cluster that a new data directory is of; empty for a random one. A directory of another cluster is refused.
    cluster_id: OptionalText = OptionalText::default(), "cluster.id", OptionalText::default(), OptionalText::default();
    /// Whether a topic is created when a client first asks for it.
    auto_create_topics: bool = true, "auto.create.topics.enable", false, true;
    /// Partitions of a new topic when the client does not say.
    num_partitions: i32 = 1, "num.partitions", 1, 100_000;
    /// Partitions that one topic may have.
    partitions_max: i32 = 100_000, "max.partitions.per.topic", 1, 1_000_000;
    /// Largest batch of records that a topic takes by default, in bytes.
    message_max_bytes: i32 = 1_048_588, "message.max.bytes", 0, 128 * 1024 * 1024;
    /// Largest request that is read, in bytes.
    request_max_bytes: i32 = 104_857_600, "socket.request.max.bytes", 1024, i32::MAX;
    /// Bytes of requests held in memory over all connections; beyond it sockets are not read. Besides, half of it is for small
    /// requests and for those that wait, as fetches do for data.
    requests_in_flight_bytes: i64 = 134_217_728, "queued.max.request.bytes", 1_048_576, i64::MAX;
    /// Requests of one connection that may wait for their answers; beyond it the socket is not read.
    requests_in_flight_per_connection: i32 = 100, "max.in.flight.requests.per.connection", 1, 10_000;
    /// Bytes of requests of one connection that may wait for their answers; beyond it the socket is not read. One request may be
    /// larger.
    requests_in_flight_bytes_per_connection: i32 = 67_108_864, "max.in.flight.request.bytes.per.connection", 1024, i32::MAX;
    /// Connections at most.
    connections_max: i32 = 20_000, "max.connections", 1, i32::MAX;
    /// Connections from one address at most, whatever the listener. In the file the name needs quotes, since the longer one beside
    /// max.connections is no TOML without.
    connections_per_address_max: i32 = i32::MAX, "max.connections.per.ip", 0, i32::MAX;
    /// The same for some addresses: 10.0.0.1:100,[::1]:200.
    connections_per_address: ConnectionsPerAddress = ConnectionsPerAddress::default(), "max.connections.per.ip.overrides", ConnectionsPerAddress::default(), ConnectionsPerAddress::default();
    /// Connections taken in a second at most, over all listeners; beyond it clients wait. For single addresses there is the quota
    /// connection_creation_rate.
    connection_rate_max: i32 = i32::MAX, "max.connection.creation.rate", 1, i32::MAX;
    /// A connection without a request for so long is closed, in milliseconds.
    connections_max_idle_ms: i64 = 600_000, "connections.max.idle.ms", 1000, i64::MAX;
    /// Most bytes of records in one answer to a fetch.
    fetch_max_bytes: i32 = 16_777_216, "fetch.max.bytes", 1024, i32::MAX;
    /// Fetch sessions kept (KIP-227).
    fetch_sessions_max: i32 = 1000, "max.incremental.fetch.session.cache.slots", 0, 1_000_000;
    /// Who sets the timestamps of records in a topic that does not say: the producer, or the server on append.
    timestamp_type: TimestampType = TimestampType::CreateTime, "log.message.timestamp.type", TimestampType::CreateTime, TimestampType::LogAppendTime;
    /// How far a record's timestamp may lie in the future, in milliseconds.
    timestamp_after_max_ms: i64 = 3_600_000, "log.message.timestamp.after.max.ms", 0, i64::MAX;
    /// How far a record's timestamp may lie in the past, in milliseconds.
    timestamp_before_max_ms: i64 = i64::MAX, "log.message.timestamp.before.max.ms", 0, i64::MAX;
    /// New records of a compacted topic are due for compaction when the oldest is so many milliseconds old.
    roll_ms: i64 = 604_800_000, "log.roll.ms", 1, i64::MAX;
    /// Records older than this are deleted, in milliseconds; -1 keeps them for ever.
    retention_ms: i64 = 604_800_000, "log.retention.ms", -1, i64::MAX;
    /// The oldest records of a partition are deleted beyond this size in bytes; -1 for no limit.
    retention_bytes: i64 = -1, "log.retention.bytes", -1, i64::MAX;
    /// The local copies of a tiered topic that does not say leave after so many milliseconds, once they are stored; -2 is
    /// as log.retention.ms.
    local_retention_ms: i64 = -2, "log.local.retention.ms", -2, i64::MAX;
    /// So many bytes of a partition of a tiered topic stay on the local disk, if it does not say; -2 is as
    /// log.retention.bytes.
    local_retention_bytes: i64 = -2, "log.local.retention.bytes", -2, i64::MAX;
    /// How often retention is applied, in milliseconds.
    retention_check_interval_ms: i64 = 30_000, "log.retention.check.interval.ms", 10, i64::MAX;
    /// What happens to old records of a topic that does not say: delete, compact, or both.
    cleanup_policy: CleanupPolicy = CleanupPolicy::Delete, "log.cleanup.policy", CleanupPolicy::Delete, CleanupPolicy::CompactAndDelete;
    /// Known for the sake of tools: every acknowledged record is on disk, whatever this says.
    flush_interval_messages: i64 = i64::MAX, "log.flush.interval.messages", 1, i64::MAX;
    /// Whether compaction runs.
    cleaner_enable: bool = true, "log.cleaner.enable", false, true;
    /// How often compaction looks for partitions with enough to compact, in milliseconds.
    cleaner_backoff_ms: i64 = 15_000, "log.cleaner.backoff.ms", 1, i64::MAX;
    /// Bytes of memory for the keys of one partition while it is compacted.
    cleaner_dedupe_bytes: i64 = 134_217_728, "log.cleaner.dedupe.buffer.size", 1_048_576, i64::MAX;
    /// Bytes a second that the cleaner and compaction read and write at most; 0, as the default, is no limit but that they yield to
    /// appends.
    cleaner_bytes_per_second: ByteRate = ByteRate::UNLIMITED, "log.cleaner.io.max.bytes.per.second", ByteRate(0.0), ByteRate::UNLIMITED;
    /// A segment is cleaned when little of it expired for so many milliseconds.
    cleaner_patience_ms: i64 = 120_000, "log.cleaner.patience.ms", 0, i64::MAX;
    /// Share of a compacted topic that must be new before it is compacted.
    cleaner_min_dirty_ratio: f64 = 0.5, "log.cleaner.min.cleanable.ratio", 0.0, 1.0;
    /// How long a tombstone stays in a compacted topic, in milliseconds.
    cleaner_delete_retention_ms: i64 = 86_400_000, "log.cleaner.delete.retention.ms", 0, i64::MAX;
    /// For so many milliseconds a record is not compacted.
    cleaner_min_lag_ms: i64 = 0, "log.cleaner.min.compaction.lag.ms", 0, i64::MAX;
    /// After so many milliseconds a record is due for compaction.
    cleaner_max_lag_ms: i64 = i64::MAX, "log.cleaner.max.compaction.lag.ms", 1, i64::MAX;
    /// Size of a full-grown segment of the log in bytes; all partitions share it.
    segment_bytes: i64 = 1_073_741_824, "log.segment.bytes", 1_048_576, 4_293_918_720;
    /// Bytes of the disk that are left free: before, appends are refused.
    reserve_bytes: i64 = 268_435_456, "log.reserve.bytes", 0, i64::MAX;
    /// Bytes of memory at most for the newest records, which is where consumers that keep up read from. By default a
    /// sixteenth of the memory that the server may use, from 128 MiB (or an eighth) to 1 GiB.
    tail_cache_bytes: i64 = tail_cache_bytes_default(), "log.tail.cache.bytes", 4_194_304, i64::MAX;
    /// How long records are kept in that memory, in milliseconds, beyond the newest 128 MiB.
    tail_cache_ms: i64 = 2000, "log.tail.cache.ms", 0, i64::MAX;
    /// Bytes of memory for records read back from disk.
    read_cache_bytes: i64 = 67_108_864, "log.read.cache.bytes", 4_194_304, i64::MAX;
    /// The bucket that keeps the records of tiered topics: s3://NAME/PREFIX, gs://NAME/PREFIX, az://NAME/PREFIX or the
    /// path of a directory; empty for none. Credentials come from the variables that the tools of each cloud read.
    object_store: OptionalText = OptionalText::default(), "object.store", OptionalText::default(), OptionalText::default();
    /// Bytes of records in one object.
    object_bytes: i32 = 33_554_432, "object.store.object.bytes", 65_536, 268_435_456;
    /// Records of tiered topics go to the object store after so many milliseconds at the latest.
    object_interval_ms: i64 = 10_000, "object.store.upload.interval.ms", 1, i64::MAX;
    /// Whether new topics are diskless, if they do not say (diskless.enable).
    diskless_default: bool = false, "log.diskless.enable", false, true;
    /// Brokers of a cluster with a copy of each log, its owner among them. They answer for all topics that are not diskless.
    replication_factor: i32 = 3, "default.replication.factor", 1, 15;
    /// With fewer replicas in sync, acks=all is refused, in topics of a cluster that do not say. What clients set for all brokers counts
    /// more.
    in_sync_min: i32 = 1, "min.insync.replicas", 1, i32::MAX;
    /// Whether consumers that name their rack read from a broker there (KIP-392).
    replica_selector: ReplicaSelector = ReplicaSelector::None, "replica.selector.class", ReplicaSelector::None, ReplicaSelector::ByRack;
    /// A broker that has lacked records of a log for so many milliseconds does not count any more as one with a copy.
    replica_lag_ms: i64 = 300, "replica.lag.time.max.ms", 50, i64::MAX;
    /// Blocks for a broker with a copy gather until there are so many bytes of them.
    replica_bytes_min: i32 = 1, "replica.fetch.min.bytes", 0, i32::MAX;
    /// They gather for so many milliseconds at most, and for a third of replica.lag.time.max.ms. acks=all is answered so much later.
    replica_wait_ms: i32 = 500, "replica.fetch.wait.max.ms", 0, i32::MAX;
    /// Records of diskless topics go to the object store after so many milliseconds, and are acknowledged then.
    diskless_interval_ms: i64 = 250, "object.store.diskless.interval.ms", 1, i64::MAX;
    /// So many bytes of records of diskless topics go to the object store without waiting any longer.
    diskless_bytes: i32 = 8_388_608, "object.store.diskless.object.bytes", 65_536, 268_435_456;
    /// Records of diskless topics are refused while so many bytes of them wait for the object store.
    diskless_backlog_bytes: i64 = 1_073_741_824, "object.store.diskless.backlog.bytes", 1_048_576, i64::MAX;
    /// Objects with few records are merged into objects of up to so many bytes.
    merged_bytes: i32 = 67_108_864, "object.store.merged.object.bytes", 65_536, 1_073_741_824;
    /// Requests to the object store a second; 0 for no bound.
    object_requests_per_second: i64 = 0, "object.store.requests.per.second", 0, i64::MAX;
    /// Bytes to and from the object store a second; 0 for no bound.
    object_bytes_per_second: i64 = 0, "object.store.bytes.per.second", 0, i64::MAX;
    /// An object is deleted so many milliseconds after the last of its records.
    object_delete_delay_ms: i64 = 60_000, "object.store.delete.delay.ms", 0, i64::MAX;
    /// How old the metadata snapshot in the object store may be, in milliseconds, while the metadata or the records change.
    object_snapshot_interval_ms: i64 = 60_000, "object.store.metadata.snapshot.interval.ms", 10, i64::MAX;
    /// Producers that did not write for so long are forgotten, in milliseconds.
    producer_expiry_ms: i32 = 86_400_000, "producer.id.expiration.ms", 1, i32::MAX;
    /// Partitions of __transaction_state.
    transactions_partitions: i32 = 50, "transaction.state.log.num.partitions", 1, 10_000;
    /// The longest time-out that a transactional producer may ask for, in milliseconds.
    transaction_timeout_ms_max: i32 = 900_000, "transaction.max.timeout.ms", 1, i32::MAX;
    /// A transactional id that was not used for so many milliseconds is forgotten.
    transactional_id_expiry_ms: i64 = 604_800_000, "transactional.id.expiration.ms", 1, i64::MAX;
    /// Partitions of __consumer_offsets.
    offsets_partitions: i32 = 50, "offsets.topic.num.partitions", 1, 10_000;
    /// Committed offsets of a group without members are kept for so many minutes.
    offsets_retention_minutes: i32 = 10_080, "offsets.retention.minutes", 1, i32::MAX;
    /// How often expired offsets are looked for, in milliseconds.
    offsets_check_interval_ms: i64 = 600_000, "offsets.retention.check.interval.ms", 1, i64::MAX;
    /// Bytes of metadata that a committed offset may carry.
    offset_metadata_max: i32 = 4096, "offset.metadata.max.bytes", 0, i32::MAX;
    /// How long an empty group waits for more members after the first, in milliseconds.
    group_initial_rebalance_delay_ms: i64 = 3000, "group.initial.rebalance.delay.ms", 0, i64::MAX;
    /// Shortest session time-out of a group member, in milliseconds.
    group_session_timeout_ms_min: i32 = 6000, "group.min.session.timeout.ms", 1, i32::MAX;
    /// Longest session time-out of a group member, in milliseconds.
    group_session_timeout_ms_max: i32 = 1_800_000, "group.max.session.timeout.ms", 1, i32::MAX;
    /// Members of one group at most.
    group_size_max: i32 = i32::MAX, "group.max.size", 1, i32::MAX;
    /// How long a member of a consumer group may be silent in the newer protocol (KIP-848), in milliseconds.
    consumer_session_timeout_ms: i32 = 45_000, "group.consumer.session.timeout.ms", 1, i32::MAX;
    /// How often a member of a consumer group sends a heartbeat in the newer protocol, in milliseconds.
    consumer_heartbeat_interval_ms: i32 = 5000, "group.consumer.heartbeat.interval.ms", 1, i32::MAX;
    /// Least session time-out that may be set for one group, in milliseconds.
    consumer_session_timeout_ms_min: i32 = 45_000, "group.consumer.min.session.timeout.ms", 1, i32::MAX;
    /// Greatest session time-out that may be set for one group, in milliseconds.
    consumer_session_timeout_ms_max: i32 = 60_000, "group.consumer.max.session.timeout.ms", 1, i32::MAX;
    /// Least heartbeat interval that may be set for one group, in milliseconds.
    consumer_heartbeat_interval_ms_min: i32 = 5000, "group.consumer.min.heartbeat.interval.ms", 1, i32::MAX;
    /// Greatest heartbeat interval that may be set for one group, in milliseconds.
    consumer_heartbeat_interval_ms_max: i32 = 15_000, "group.consumer.max.heartbeat.interval.ms", 1, i32::MAX;
    /// Members that a consumer group of the newer protocol may have.
    consumer_group_size_max: i32 = i32::MAX, "group.consumer.max.size", 1, i32::MAX;
    /// Samples that the rate of a client quota is taken over.
    quota_samples: i32 = 11, "quota.window.num", 1, 1000;
    /// What one of these samples spans, in seconds.
    quota_sample_seconds: i32 = 1, "quota.window.size.seconds", 1, 3600;
    /// The same for the quota of changes of topics.
    mutation_quota_samples: i32 = 11, "controller.quota.window.num", 1, 1000;
    /// And what one spans, in seconds.
    mutation_quota_sample_seconds: i32 = 1, "controller.quota.window.size.seconds", 1, 3600;
    /// What decides who may do what: empty for nothing, or Kafka's StandardAuthorizer for ACLs.
    authorizer: AuthorizerClass = AuthorizerClass::None, "authorizer.class.name", AuthorizerClass::None, AuthorizerClass::Standard;
    /// Principals that may do everything, separated by semicolons: User:admin;User:CN=ops,O=Example.
    super_users: SuperUsers = SuperUsers::default(), "super.users", SuperUsers::default(), SuperUsers::default();
    /// With ACLs: whether everybody may do everything to what no ACL speaks of.
    allow_everyone_if_no_acl: bool = false, "allow.everyone.if.no.acl.found", false, true;
    /// Bytes of metrics that a client may push at once (KIP-714).
    telemetry_max_bytes: i32 = 1_048_576, "telemetry.max.bytes", 1, i32::MAX;
    /// Whether clients are told that they can push their metrics (KIP-714). Off, as in a Kafka whose reporters take none: librdkafka
    /// logs a line at each start where a server takes metrics and has not asked for any.
    telemetry: bool = false, "client.telemetry.enable", false, true;
    /// Bound of the series in the metrics of topics, groups and partitions together.
    metrics_series_max: i32 = 10_000, "metrics.series.max", 0, i32::MAX;
}

/// The name with the smallest edit distance to `name`, if that distance is small.
fn most_similar(name: &str, names: &[&str]) -> Option<String> {
    let best = names.iter().map(|other| (distance(name, other), other)).min()?;
    (best.0 <= name.len().max(3) / 3).then(|| (*best.1).to_owned())
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed_checked_and_listed() {
        let mut config = Config::default();
        config.set("num.partitions", "7").unwrap();
        config.set("auto.create.topics.enable", "false").unwrap();
        assert_eq!((config.num_partitions, config.auto_create_topics), (7, false));
        let error = config.set("num.partitions", "0").unwrap_err().to_string();
        assert_eq!(error, "num.partitions = 0: it must be from 1 to 100000");
        let error = config.set("num.partitons", "1").unwrap_err().to_string();
        assert_eq!(error, "there is no setting num.partitons, did you mean num.partitions?");
        for setting in config.settings() {
            config.set(setting.name, &setting.default).unwrap();
            assert!(!setting.doc.is_empty());
        }
        assert_eq!(config, Config::default());
    }
}
