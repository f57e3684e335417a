//! The compared servers. Each is started on free ports of this machine with a fresh data directory.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::kafka;

/// Time within which a server must be ready.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Contender {
    /// Ours.
    Mainstem,
    /// Apache Kafka with its defaults.
    Kafka,
    /// Apache Kafka that flushes before it answers.
    KafkaDurable,
    /// Ours over TLS, with a certificate made for the comparison.
    MainstemTls,
    /// Apache Kafka with its defaults, over TLS.
    KafkaTls,
    /// Three brokers of ours, on an etcd of one member and a directory for the object store.
    #[value(name = "mainstem-3")]
    Mainstem3,
    /// The same, with TLS between the brokers.
    #[value(name = "mainstem-3-tls")]
    Mainstem3Tls,
    /// Three brokers of Apache Kafka, which are the controllers, too.
    #[value(name = "kafka-3")]
    Kafka3,
    /// The same, which flush before they answer.
    #[value(name = "kafka-3-durable")]
    Kafka3Durable,
}

/// How the servers are brought up.
#[derive(Args, Clone, Debug)]
pub struct ContenderArguments {
    /// The program `mainstem` [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub mainstem: Option<PathBuf>,
    /// Configuration file (TOML) for mainstem
    #[arg(long, value_name = "FILE")]
    pub mainstem_config: Option<PathBuf>,
    /// Where the servers' data lives while they run, hence on which disk [default: in the output directory]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Keep the servers' data when they have stopped
    #[arg(long)]
    pub keep_data: bool,
    /// Version of Apache Kafka, fetched from Maven Central
    #[arg(long, value_name = "VERSION", default_value = kafka::VERSION)]
    pub kafka_version: String,
    /// The JVM's flags about Kafka's heap
    #[arg(long, value_name = "FLAGS", default_value = "-Xms3g -Xmx3g", allow_hyphen_values = true)]
    pub kafka_heap: String,
    /// A server setting for every contender, by Kafka's name; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub server_config: Vec<(String, String)>,
    /// A server setting for Kafka; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub kafka_config: Vec<(String, String)>,
}

/// The parameters for one start of a server.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The arguments of the command line.
    pub arguments: &'a ContenderArguments,
    /// The parent of the server's data directory.
    pub data_parent: &'a Path,
    /// The directory for the server's log and configuration.
    pub work_dir: &'a Path,
    /// The processors, as for `taskset -c`; empty for all.
    pub cpus: &'a str,
    /// Time within which the server must be ready.
    pub timeout: Duration,
}

impl Contender {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Mainstem => "mainstem",
            Contender::Kafka => "kafka",
            Contender::KafkaDurable => "kafka-durable",
            Contender::MainstemTls => "mainstem-tls",
            Contender::KafkaTls => "kafka-tls",
            Contender::Mainstem3 => "mainstem-3",
            Contender::Mainstem3Tls => "mainstem-3-tls",
            Contender::Kafka3 => "kafka-3",
            Contender::Kafka3Durable => "kafka-3-durable",
        }
    }

    /// The location of a record when its acknowledgement is sent, for producers with these `acks`.
    pub fn durability(self, acks: i16, arguments: &ContenderArguments) -> &'static str {
        let flushes = |(name, _): &(String, String)| name.starts_with("log.flush");
        match self {
            _ if acks == 0 => "anywhere: nothing is acknowledged (acks=0)",
            Contender::Mainstem | Contender::MainstemTls if acks == 1 => {
                "written to the device and not synced before the answer (acks=1)"
            }
            Contender::Mainstem | Contender::MainstemTls => "on the device before the answer",
            Contender::Mainstem3 | Contender::Mainstem3Tls if acks == 1 => {
                "written by one broker and not synced before the answer (acks=1)"
            }
            Contender::Mainstem3 | Contender::Mainstem3Tls => {
                "in the memory of its leader, and on the devices of two other brokers before the answer"
            }
            _ if arguments.server_config.iter().chain(&arguments.kafka_config).any(flushes) => {
                "in the page cache before the answer, or flushed as its log.flush settings say"
            }
            Contender::Kafka | Contender::KafkaTls => "in the page cache before the answer (Kafka's default)",
            Contender::KafkaDurable => "flushed to the device before the answer (flush.messages=1)",
            Contender::Kafka3 if acks == 1 => "in the page cache of one broker before the answer (acks=1)",
            Contender::Kafka3 => {
                "in the page caches of the brokers in sync before the answer (Kafka's default)"
            }
            Contender::Kafka3Durable if acks == 1 => "flushed by one broker before the answer (acks=1)",
            Contender::Kafka3Durable => {
                "flushed to the devices of the brokers in sync before the answer (flush.messages=1)"
            }
        }
    }

    /// Whether these are three brokers.
    pub fn is_cluster(self) -> bool {
        matches!(
            self,
            Contender::Mainstem3 | Contender::Mainstem3Tls | Contender::Kafka3 | Contender::Kafka3Durable
        )
    }

    /// Whether the server's clients use TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Contender::MainstemTls | Contender::KafkaTls)
    }
}

impl Launch<'_> {
    /// When the server must be ready.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }
}

/// Parses an argument KEY=VALUE.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err("it must be KEY=VALUE".into()),
    }
}

/// Kafka's settings: the contender's flush setting first, then the requested ones, which take precedence.
pub fn kafka_config(contender: Contender, arguments: &ContenderArguments) -> Vec<(String, String)> {
    let flush = ("log.flush.interval.messages".to_owned(), "1".to_owned());
    let flushes = matches!(contender, Contender::KafkaDurable | Contender::Kafka3Durable);
    let flush = flushes.then_some(flush);
    flush.iter().chain(&arguments.server_config).chain(&arguments.kafka_config).cloned().collect()
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        contenders: ContenderArguments,
    }

    /// The arguments in a command line.
    pub fn arguments(line: &[&str]) -> ContenderArguments {
        Line::try_parse_from([&["compare"], line].concat()).unwrap().contenders
    }

    #[test]
    fn what_an_acknowledgement_means_depends_on_acks_and_settings() {
        let of = |contender: Contender, acks, line: &[&str]| contender.durability(acks, &arguments(line));
        assert_eq!(of(Contender::Mainstem, -1, &[]), "on the device before the answer");
        assert!(of(Contender::MainstemTls, 1, &[]).contains("not synced"));
        assert!(of(Contender::Kafka, 1, &[]).contains("Kafka's default"));
        for contender in [Contender::Kafka, Contender::KafkaDurable] {
            assert!(
                of(contender, -1, &["--kafka-config", "log.flush.interval.ms=5"]).contains("settings say")
            );
            assert!(of(contender, 0, &[]).contains("nothing is acknowledged"));
        }
    }

    #[test]
    fn durable_kafka_flushes_unless_told_otherwise() {
        let line = ["--kafka-config", "a=b=c", "--server-config", "d=e", "--kafka-heap", "-Xmx1g"];
        let arguments = arguments(&line);
        assert_eq!(arguments.kafka_heap, "-Xmx1g");
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let durable = kafka_config(Contender::KafkaDurable, &arguments);
        assert_eq!(durable, [pair("log.flush.interval.messages", "1"), pair("d", "e"), pair("a", "b=c")]);
        assert_eq!(kafka_config(Contender::Kafka, &arguments), durable[1..]);
    }
}
