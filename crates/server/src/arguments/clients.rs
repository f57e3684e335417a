//! The arguments of the commands that are ordinary clients: topics, groups, users, records.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use regex::Regex;
use sasl::scram::Hash;
use x509_cert::der::DateTime;

use super::key_value;

/// Where the client commands find a server.
#[derive(Args, Clone, Debug)]
pub struct Bootstrap {
    /// The server to ask.
    #[arg(
        long = "bootstrap",
        alias = "bootstrap-server",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9092",
        global = true
    )]
    pub address: String,
    /// A properties file as for Kafka's tools: security.protocol, ssl.*, sasl.*.
    #[arg(long, value_name = "FILE", global = true)]
    pub command_config: Option<PathBuf>,
    #[command(flatten)]
    pub shown: Shown,
}

/// How a command prints what it found or did.
#[derive(Args, Clone, Copy, Debug)]
pub struct Shown {
    /// How what is found or done is printed.
    #[arg(long, value_enum, default_value = "text", global = true)]
    pub output: Output,
}

/// The form of what a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    /// One JSON value.
    Json,
}

#[derive(Debug, Subcommand)]
pub enum TopicVerb {
    /// Create a topic.
    Create(TopicCreation),
    /// List all topics.
    List,
    /// Show the partitions, offsets and configs of topics.
    Describe {
        /// Which topics [default: all].
        names: Vec<String>,
        /// Only partitions of these topics that lack copies or a leader, or only topics with configs of their own.
        #[arg(long, value_enum)]
        only: Option<TopicShown>,
    },
    /// Delete topics and all their records.
    Delete {
        #[arg(required = true)]
        names: Vec<String>,
        /// A topic that is not there is no error.
        #[arg(long)]
        if_exists: bool,
    },
    /// Change configs, add partitions, move partitions to other brokers.
    #[command(group = ArgGroup::new("change").required(true).multiple(true).args(["configs", "partitions", "replicas"]))]
    Alter {
        #[arg(required = true)]
        names: Vec<String>,
        /// A topic config; an empty value returns it to its default; may be repeated.
        #[arg(long = "config", value_name = "KEY=VALUE", value_parser = key_value)]
        configs: Vec<(String, String)>,
        /// Number of partitions that each shall have.
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
        partitions: Option<i32>,
        /// The brokers that a partition shall be on, the leader first; none cancels a move that is going on; may be repeated.
        #[arg(long, value_name = "PARTITION=BROKER,BROKER", value_parser = partition_replicas)]
        replicas: Vec<(i32, Vec<i32>)>,
    },
    /// Grow a topic to a number of partitions.
    AddPartitions {
        name: String,
        /// Number of partitions that it shall have.
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
        total: i32,
    },
    /// Delete the records of a topic and keep the topic.
    Empty {
        name: String,
        /// Only this partition; may be repeated.
        #[arg(long = "partition", value_parser = clap::value_parser!(i32).range(0..))]
        partitions: Vec<i32>,
        /// Only records before this place: an offset, @MILLISECONDS since 1970, a date and time such as 2026-01-31T23:59:00, or a time ago such as -2h.
        #[arg(long, allow_hyphen_values = true)]
        before: Option<Place>,
        /// Only print what would be deleted.
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args, Debug)]
pub struct TopicCreation {
    pub name: String,
    /// Number of partitions [default: the server's num.partitions].
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    pub partitions: Option<i32>,
    /// Copies of each partition [default: the server's default.replication.factor].
    #[arg(long, value_parser = clap::value_parser!(i16).range(1..))]
    pub replication_factor: Option<i16>,
    /// A topic config; may be repeated.
    #[arg(long = "config", value_name = "KEY=VALUE", value_parser = key_value)]
    pub configs: Vec<(String, String)>,
    /// A topic that is there already is no error.
    #[arg(long)]
    pub if_not_exists: bool,
    /// Only ask the server whether it could be created.
    #[arg(long)]
    pub dry_run: bool,
}

/// The partitions that `topic describe --only` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopicShown {
    /// Fewer copies in sync than copies.
    UnderReplicated,
    /// Fewer copies in sync than min.insync.replicas.
    UnderMinIsr,
    /// As many copies in sync as min.insync.replicas: with one less, acks=all is refused.
    AtMinIsr,
    /// No leader.
    Unavailable,
    /// Topics with configs of their own.
    Overridden,
}

fn partition_replicas(text: &str) -> Result<(i32, Vec<i32>), String> {
    let wrong = || "it must be PARTITION=BROKER,BROKER".to_owned();
    let number = |text: &str| text.trim().parse().ok().filter(|number| *number >= 0).ok_or_else(wrong);
    let (partition, brokers) = text.split_once('=').ok_or_else(wrong)?;
    let brokers = brokers.split(',').filter(|_| !brokers.trim().is_empty());
    Ok((number(partition)?, brokers.map(number).collect::<Result<_, _>>()?))
}

#[derive(Debug, Subcommand)]
pub enum GroupVerb {
    /// List all groups.
    List,
    /// Show a group's members, offsets and lag.
    Describe { name: String },
    /// Delete an empty group and its committed offsets.
    Delete { name: String },
    /// Set the committed offsets of a group that has no members.
    Reset(OffsetReset),
    /// Print the committed offsets as `reset --file` takes them: TOPIC,PARTITION,OFFSET.
    Export { name: String },
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["topics", "all_topics", "file"]))]
#[command(group = ArgGroup::new("where").required(true).args(["to", "by", "file"]))]
pub struct OffsetReset {
    pub name: String,
    /// A topic whose offsets are set; may be repeated.
    #[arg(long = "topic")]
    pub topics: Vec<String>,
    /// All topics of which the group has committed offsets.
    #[arg(long)]
    pub all_topics: bool,
    /// earliest, latest, an offset, @MILLISECONDS since 1970, a date and time such as 2026-01-31T23:59:00, or a time ago such as -2h.
    #[arg(long, allow_hyphen_values = true)]
    pub to: Option<Place>,
    /// Move what is committed by so many records, back if it is negative.
    #[arg(long, allow_hyphen_values = true)]
    pub by: Option<i64>,
    /// Take the offsets from lines TOPIC,PARTITION,OFFSET, as kafka-consumer-groups.sh --export writes them.
    #[arg(long, value_name = "FILE", conflicts_with = "partitions")]
    pub file: Option<PathBuf>,
    /// Only this partition; may be repeated.
    #[arg(long = "partition", value_parser = clap::value_parser!(i32).range(0..))]
    pub partitions: Vec<i32>,
    /// Only print what would be set.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum UserVerb {
    /// Create a user, or give it another password. It is read from --password-file or else from MAINSTEM_PASSWORD.
    Create {
        name: String,
        /// How it may log in, beside PLAIN; may be repeated [default: both].
        #[arg(long = "mechanism", value_enum)]
        mechanisms: Vec<MechanismChoice>,
        /// How often the password is hashed, for every guess of whoever steals the metadata [default: 8192].
        #[arg(long, value_parser = clap::value_parser!(u32).range(4096..=16384))]
        iterations: Option<u32>,
        /// A file with the password; - for standard input.
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// List all users.
    List,
    /// Delete a user.
    Delete {
        name: String,
        /// Only for this mechanism; may be repeated [default: both].
        #[arg(long = "mechanism", value_enum)]
        mechanisms: Vec<MechanismChoice>,
    },
}

/// A mechanism for which something is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MechanismChoice {
    #[value(name = "SCRAM-SHA-256")]
    ScramSha256,
    #[value(name = "SCRAM-SHA-512")]
    ScramSha512,
}

impl MechanismChoice {
    pub fn hash(self) -> Hash {
        match self {
            MechanismChoice::ScramSha256 => Hash::Sha256,
            MechanismChoice::ScramSha512 => Hash::Sha512,
        }
    }
}

/// The compression of the batches that `produce` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

/// What the lines of `produce` are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Input {
    Lines,
    Json,
}

/// How many copies must have a record before it counts as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Acks {
    All,
    #[value(name = "1")]
    One,
    #[value(name = "0")]
    None,
}

#[derive(Args, Debug)]
pub struct ProduceArguments {
    pub topic: String,
    #[command(flatten)]
    pub bootstrap: Bootstrap,
    /// What lines are: text, or JSON as `consume --format json` prints it.
    #[arg(long, value_enum, default_value = "lines")]
    pub input: Input,
    /// Splits each line into key and value.
    #[arg(long, value_name = "TEXT")]
    pub key_separator: Option<String>,
    /// The key of records whose line has none.
    #[arg(long, value_name = "TEXT", conflicts_with = "key_separator")]
    pub key: Option<String>,
    /// A key or value of a line that is this text is null: a record that deletes, in a compacted topic.
    #[arg(long, value_name = "TEXT")]
    pub null: Option<String>,
    /// A header of all records; may be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_value)]
    pub headers: Vec<(String, String)>,
    /// The time of records whose line has none, in milliseconds since 1970 [default: now].
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub timestamp: Option<i64>,
    /// Send the lines of this file in place of standard input.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Send this file as the value of one record, and read no lines; may be repeated.
    #[arg(long = "value-file", value_name = "FILE", conflicts_with = "file")]
    pub value_files: Vec<PathBuf>,
    /// Send everything to this partition.
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: Option<i32>,
    #[arg(long, value_enum, default_value = "none")]
    pub compression: Codec,
    #[arg(long, value_enum, default_value = "all")]
    pub acks: Acks,
}

/// How `consume` prints a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Value,
    KeyValue,
    Json,
    /// The value in hexadecimal.
    Hex,
}

#[derive(Args, Debug)]
pub struct ConsumeArguments {
    #[arg(required_unless_present = "pattern")]
    pub topic: Option<String>,
    #[command(flatten)]
    pub bootstrap: Bootstrap,
    /// Read all topics whose whole name this regular expression fits, also those that are created meanwhile.
    #[arg(long, value_name = "REGEX", conflicts_with_all = ["topic", "partitions"])]
    pub pattern: Option<String>,
    /// Read as a member of this group and commit what was printed.
    #[arg(long)]
    pub group: Option<String>,
    /// Where to begin (with a group: where nothing is committed): earliest, latest, an offset, @MILLISECONDS since 1970, a date and time such as 2026-01-31T23:59:00, or a time ago
    /// such as -90s, -15m, -2h, -7d.
    #[arg(long, default_value = "earliest", allow_hyphen_values = true)]
    pub from: Place,
    /// Where to stop, which is not read: an offset, or a time as for --from.
    #[arg(long, allow_hyphen_values = true, conflicts_with_all = ["group", "exit_at_end"])]
    pub to: Option<Place>,
    /// Read only this partition; may be repeated.
    #[arg(long = "partition", conflicts_with = "group", value_parser = clap::value_parser!(i32).range(0..))]
    pub partitions: Vec<i32>,
    /// Stop after so many records.
    #[arg(long)]
    pub count: Option<u64>,
    /// Stop at what was the end of each partition when reading began.
    #[arg(long)]
    pub exit_at_end: bool,
    #[arg(long, value_enum, default_value = "value")]
    pub format: Format,
    /// Print this of each record and nothing else: %t topic, %p partition, %o offset, %T timestamp, %k key, %K its bytes, %s value, %S its
    /// bytes, %h headers, %% a percent sign; \n, \t, \r and \\.
    #[arg(long, value_name = "TEXT", conflicts_with = "format")]
    pub template: Option<String>,
}

/// A place in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Earliest,
    Latest,
    Offset(i64),
    /// The first record of this time or later, in milliseconds since the Unix epoch; the end if there is none.
    Time(i64),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let wrong = || {
            "it must be earliest, latest, an offset, @MILLISECONDS, a date and time in UTC such as 2026-01-31T23:59:00, or a time ago such \
             as -90s, -15m, -2h, -7d"
        };
        match (text, text.parse::<i64>()) {
            ("earliest", _) => Ok(Place::Earliest),
            ("latest", _) => Ok(Place::Latest),
            (_, Ok(offset)) if offset >= 0 => Ok(Place::Offset(offset)),
            _ => match (text.strip_prefix('@'), text.strip_prefix('-')) {
                (Some(millis), _) => millis.parse().ok().filter(|ms| *ms >= 0).map(Place::Time),
                (_, Some(ago)) => ago_ms(ago).map(|ago| Place::Time(now_ms().saturating_sub(ago).max(0))),
                _ => date_ms(text).map(Place::Time),
            }
            .ok_or_else(|| wrong().to_owned()),
        }
    }
}

/// Milliseconds in a number with a unit.
fn ago_ms(text: &str) -> Option<i64> {
    let unit_ms = match text.bytes().last()? {
        b's' => 1000,
        b'm' => 60_000,
        b'h' => 3_600_000,
        b'd' => 86_400_000,
        _ => return None,
    };
    text[..text.len() - 1].parse::<u32>().ok().map(|number| i64::from(number) * unit_ms)
}

/// Milliseconds since the Unix epoch of a date and time as ISO 8601 has it, and Kafka's tools: `2026-01-31T23:59:00.000`. In UTC, unless
/// an offset follows.
fn date_ms(text: &str) -> Option<i64> {
    const SHAPE: &str =
        r"^(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{3}))?)?(?:Z|([+-]\d\d):?(\d\d))?)?$";
    let parts = Regex::new(SHAPE).ok()?.captures(text)?;
    let number = |at: usize| parts.get(at).map_or(Some(0), |part| part.as_str().parse::<i64>().ok());
    let small = |at: usize| number(at).and_then(|number| u8::try_from(number).ok());
    let year = u16::try_from(number(1)?).ok()?;
    let time = DateTime::new(year, small(2)?, small(3)?, small(4)?, small(5)?, small(6)?).ok()?;
    let ms = i64::try_from(time.unix_duration().as_millis()).ok()? + number(7)?;
    let east = parts.get(8).is_none_or(|hours| hours.as_str().starts_with('+'));
    let ahead_ms = number(8)?.abs() * 3_600_000 + number(9)? * 60_000;
    Some(if east { ms - ahead_ms } else { ms + ahead_ms }).filter(|ms| *ms >= 0)
}

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A name and a value, both as they are.
fn name_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_end_an_offset_or_a_time() {
        for (text, place) in [
            ("earliest", Place::Earliest),
            ("latest", Place::Latest),
            ("17", Place::Offset(17)),
            ("@1700000000000", Place::Time(1_700_000_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(place));
        }
        for (text, ago) in [("-90s", 90_000), ("-15m", 900_000), ("-2h", 7_200_000), ("-7d", 604_800_000)] {
            let Ok(Place::Time(time)) = text.parse() else { panic!("{text} is no time") };
            assert!((0..60_000).contains(&(now_ms() - ago - time)), "{text}");
        }
        for (text, ms) in [
            ("2023-11-14T22:13:20.123", 1_700_000_000_123),
            ("2023-11-14T22:13:20Z", 1_700_000_000_000),
            ("2023-11-14T23:43:20+01:30", 1_700_000_000_000),
            ("2023-11-14T20:13-0200", 1_699_999_980_000),
            ("2024-02-29", 1_709_164_800_000),
            ("1970-01-01", 0),
        ] {
            assert_eq!(text.parse::<Place>(), Ok(Place::Time(ms)), "{text}");
        }
        let dates = [
            "2023-02-29",
            "2023-13-01",
            "2023-11-14T24:00",
            "1969-12-31",
            "2023-11-14 22:13",
            "1970-01-01T00:00+01:00",
        ];
        for text in ["", "-", "-1", "-1y", "-xs", "@", "@-1", "never"].iter().chain(&dates) {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
