//! The command line. Arguments are parsed once into checked values; each command defines their meaning.

mod administration;
mod clients;

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use self::administration::{
    AclAddition, AclFilter, AclVerb, BrokerVerb, LogDirsArguments, OperationChoice, PatternChoice,
    PermissionChoice, QuotaEntity, QuotaVerb, ResourceChoice, TransactionVerb,
};
pub use self::clients::{
    Acks, Bootstrap, Codec, ConsumeArguments, Format, GroupVerb, Input, MechanismChoice, OffsetReset, Output,
    Place, ProduceArguments, Shown, TopicCreation, TopicShown, TopicVerb, UserVerb, now_ms,
};

/// An event-streaming server that speaks the Kafka protocol.
#[derive(Debug, Parser)]
#[command(name = "mainstem", version, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(flatten)]
    pub server: ServerArguments,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server (the default).
    Serve(ServerArguments),
    /// Print every setting with its value as a configuration file, or check a file.
    Config(ConfigArguments),
    /// Ask a server whether clients can connect and its logs take records: exit code 0, or 1 and the reason.
    Health {
        /// The server's admin.listen.
        #[arg(
            long,
            value_name = "HOST:PORT",
            default_value = "127.0.0.1:9644",
            env = "MAINSTEM_ADMIN_LISTEN"
        )]
        admin: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Look at what a server needs from this machine, measure its disk, and say what to do: exit code 1 if something is bad.
    Doctor {
        #[command(flatten)]
        server: ServerArguments,
        #[command(flatten)]
        shown: Shown,
    },
    /// Dashboards, alert rules, manual pages and completions.
    Generate {
        #[command(subcommand)]
        what: Generated,
    },
    /// Create, list, describe, change and delete topics.
    Topic {
        #[command(flatten)]
        bootstrap: Bootstrap,
        #[command(subcommand)]
        verb: TopicVerb,
    },
    /// List, describe, reset and delete consumer groups.
    Group {
        #[command(flatten)]
        bootstrap: Bootstrap,
        #[command(subcommand)]
        verb: GroupVerb,
    },
    /// Create, list and delete users with passwords.
    User {
        #[command(flatten)]
        bootstrap: Bootstrap,
        /// The data directory of a server that does not run, in place of a server.
        #[arg(
            id = "stopped",
            long = "data-dir",
            value_name = "DIR",
            global = true,
            conflicts_with = "address"
        )]
        data_dir: Option<PathBuf>,
        #[command(subcommand)]
        verb: UserVerb,
    },
    /// List, add and delete ACLs.
    Acl {
        #[command(flatten)]
        bootstrap: Bootstrap,
        #[command(subcommand)]
        verb: AclVerb,
    },
    /// List, change and delete quotas of users, client ids and addresses.
    Quota {
        #[command(flatten)]
        bootstrap: Bootstrap,
        #[command(subcommand)]
        verb: QuotaVerb,
    },
    /// List and describe transactions, and abort those that hang.
    Transaction {
        #[command(flatten)]
        bootstrap: Bootstrap,
        #[command(subcommand)]
        verb: TransactionVerb,
    },
    /// List brokers, show and change their settings.
    Broker {
        #[command(flatten)]
        bootstrap: Bootstrap,
        #[command(subcommand)]
        verb: BrokerVerb,
    },
    /// Show the log directories of brokers, or the sizes of partitions in them.
    LogDirs {
        #[command(flatten)]
        bootstrap: Bootstrap,
        #[command(flatten)]
        asked: LogDirsArguments,
    },
    /// Send the lines of standard input as records.
    Produce(ProduceArguments),
    /// Print the records of a topic.
    Consume(ConsumeArguments),
    /// Look into a data directory or a bucket without a server, and save what is left of a damaged directory.
    Log {
        #[command(flatten)]
        shown: Shown,
        #[command(subcommand)]
        verb: LogVerb,
    },
    /// Look at what the server keeps in an object store.
    Storage {
        #[command(flatten)]
        shown: Shown,
        #[command(subcommand)]
        verb: StorageVerb,
    },
    /// Look at a cluster, drain brokers and move logs, by way of etcd.
    Cluster {
        #[command(flatten)]
        arguments: ClusterArguments,
        #[command(subcommand)]
        verb: ClusterVerb,
    },
    /// Make a new data directory of what is in a bucket, in place of one that was lost.
    Restore(RestoreArguments),
    /// Measure the log on a directory, without network and protocol.
    BenchStore(BenchStoreArguments),
    /// Print the version.
    Version {
        #[command(flatten)]
        shown: Shown,
    },
}

/// What the server is told; everything else is a setting.
#[derive(Args, Clone, Debug, Default)]
pub struct ServerArguments {
    /// Configuration file (TOML); `mainstem config` prints one.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the metadata is kept and, without log.dirs, the log (data.dir) [default: ./data].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Where clients connect (listen) [default: 127.0.0.1:9092].
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Where metrics and health are served, empty for nowhere (admin.listen) [default: 127.0.0.1:9644].
    #[arg(long, value_name = "HOST:PORT")]
    pub admin_listen: Option<String>,
    /// Any setting; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub settings: Vec<(String, String)>,
}

/// The data directory to look at, or a bucket in its place.
#[derive(Args, Clone, Debug)]
pub struct LogPlace {
    #[command(flatten)]
    pub directory: Directory,
    /// A bucket, as in object.store, in place of a data directory: the objects of all logs in it.
    #[arg(long, value_name = "BUCKET", conflicts_with_all = ["data_dir", "metadata"])]
    pub from: Option<String>,
}

/// The data directory to look at.
#[derive(Args, Clone, Debug)]
pub struct Directory {
    /// The data directory.
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub data_dir: PathBuf,
    /// The directory with the metadata, where log.dirs keeps the log in another one [default: the data directory].
    #[arg(long, value_name = "DIR")]
    pub metadata: Option<PathBuf>,
}

impl Directory {
    /// The directory with the metadata.
    pub fn metadata(&self) -> &Path {
        self.metadata.as_deref().unwrap_or(&self.data_dir)
    }
}

#[derive(Debug, Subcommand)]
pub enum LogVerb {
    /// Show segments and streams, or objects and streams; quick, also on a large log.
    Inspect {
        #[command(flatten)]
        place: LogPlace,
        /// The same as --output json.
        #[arg(long)]
        json: bool,
    },
    /// Check every byte, and name the place of any damage. Exits with 1 if there is any.
    Verify {
        #[command(flatten)]
        place: LogPlace,
    },
    /// Print every entry as it stands in the files, also what is superseded or deleted.
    Dump(DumpArguments),
    /// Make a new data directory of everything that is still valid, and say what was dropped.
    Salvage {
        #[command(flatten)]
        directory: Directory,
        /// Where to; new or empty.
        #[arg(long, value_name = "DIR")]
        into: PathBuf,
    },
}

#[derive(Args, Debug)]
pub struct DumpArguments {
    #[command(flatten)]
    pub directory: Directory,
    /// Only this stream, by its number.
    #[arg(long, value_name = "ID", conflicts_with = "topic")]
    pub stream: Option<u64>,
    /// Only this topic; with --partition.
    #[arg(long, requires = "partition")]
    pub topic: Option<String>,
    /// Which partition of the topic.
    #[arg(long, requires = "topic", value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: Option<i32>,
    /// Only entries with this offset or a higher one.
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub from: i64,
    /// Only this file.
    #[arg(long, value_name = "NAME")]
    pub segment: Option<String>,
    /// Also the records of each batch: offset, timestamp, key, value and headers.
    #[arg(long)]
    pub records: bool,
}

#[derive(Debug, Subcommand)]
pub enum StorageVerb {
    /// Show objects, bytes, dead bytes and requests, and estimate the bill of a month.
    Status(StatusArguments),
}

#[derive(Args, Debug)]
pub struct StatusArguments {
    /// The bucket, as in object.store; credentials come from the same variables.
    #[arg(long, value_name = "BUCKET")]
    pub from: String,
    /// The admin listener of the running server, for its requests; MAINSTEM_ADMIN_TOKEN is its admin.token, if it has one.
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,
    /// Price of a GB (10^9 bytes) for a month. This and the other defaults are examples: Amazon S3 Standard, us-east-1,
    /// in dollars, 2025.
    #[arg(long, value_name = "PRICE", default_value_t = 0.023)]
    pub storage_price: f64,
    /// Price of 1000 requests that put or list.
    #[arg(long, value_name = "PRICE", default_value_t = 0.005)]
    pub write_price: f64,
    /// Price of 1000 requests that read.
    #[arg(long, value_name = "PRICE", default_value_t = 0.0004)]
    pub read_price: f64,
    /// Price of a GB that leaves the store; 0 within its region.
    #[arg(long, value_name = "PRICE", default_value_t = 0.0)]
    pub transfer_price: f64,
}

/// What `mainstem generate` makes.
#[derive(Debug, Subcommand)]
pub enum Generated {
    /// Dashboards for Grafana: server, topics, groups and disk.
    Grafana {
        /// Print this one.
        name: Option<String>,
        /// Without a name: write all of them into this directory.
        #[arg(long, value_name = "DIR", default_value = ".")]
        into: PathBuf,
    },
    /// Print alert rules for Prometheus.
    PrometheusRules,
    /// Write the manual pages.
    Man {
        /// The directory for them.
        #[arg(long, value_name = "DIR", default_value = ".")]
        into: PathBuf,
    },
    /// Print what a shell needs to complete commands, options and the names of topics and groups.
    Completions {
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// A shell that can complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Args, Debug)]
pub struct ConfigArguments {
    /// Print only what is not as by default.
    #[arg(long)]
    pub diff: bool,
    /// Check a configuration file, TOML or a server.properties of Kafka's, and print nothing but what is wrong with it and what it
    /// has without a meaning here. The exit code is 2 if something is wrong.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["diff", "config"])]
    pub check: Option<PathBuf>,
    #[command(flatten)]
    pub shown: Shown,
    #[command(flatten)]
    pub server: ServerArguments,
}

/// Where the cluster is.
#[derive(Args, Debug)]
pub struct ClusterArguments {
    /// Members of its etcd, separated by commas (etcd.endpoints).
    #[arg(long, value_name = "URL,URL", global = true)]
    pub etcd: Option<String>,
    /// The configuration file of a broker, which says how etcd is reached.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub shown: Shown,
    /// Any setting of a broker, such as cluster.name; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value, global = true)]
    pub settings: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub enum ClusterVerb {
    /// Show the brokers and who owns which log.
    Status,
    /// Take all logs from a broker, and give it none until --undo.
    Drain {
        broker: i32,
        /// Let it own logs again.
        #[arg(long)]
        undo: bool,
        /// How long to wait until it owns nothing.
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        wait: u32,
    },
    /// After etcd was restored from a backup, before any broker is started: no id that was given out since is given out again.
    Restored,
    /// Open a log without the copies that it waits for, all of which are lost: what was acknowledged and is in no object is gone.
    AcceptLoss { log: String },
    /// Make a broker the home of a log, which moves there.
    Move {
        log: String,
        broker: i32,
        /// How long to wait until it is there.
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        wait: u32,
    },
}

#[derive(Args, Debug)]
pub struct RestoreArguments {
    /// The bucket, as in object.store; credentials come from the same variables.
    #[arg(long, value_name = "BUCKET")]
    pub from: String,
    /// Where the metadata goes and, without --log-dirs, the log; new or empty.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// A directory for each log, separated by commas, where the lost server had several.
    #[arg(long, value_name = "DIR,DIR", value_delimiter = ',')]
    pub log_dirs: Vec<PathBuf>,
    /// Which cluster, where the bucket has several.
    #[arg(long, value_name = "ID")]
    pub cluster_id: Option<String>,
    /// Go on where an object is damaged or missing, without the records that cannot be reached then.
    #[arg(long)]
    pub accept_loss: bool,
    #[command(flatten)]
    pub shown: Shown,
}

/// When an append counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityChoice {
    Synced,
    Written,
}

#[derive(Args, Debug)]
pub struct BenchStoreArguments {
    /// A directory on the disk to measure; a fresh one in it is used and removed afterwards.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Numbers of streams, one run each.
    #[arg(long, value_delimiter = ',', default_value = "1,100,2000", value_parser = clap::value_parser!(u32).range(1..))]
    pub streams: Vec<u32>,
    /// Bytes of records in each append.
    #[arg(long, default_value_t = 65536, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub append_bytes: u32,
    /// Appends in flight over all streams.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub depth: u32,
    /// Length of each run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// What is kept of the log: it is filled until it recycles its segments, and measured then; 0 to measure a young log.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub retention_bytes: u64,
    #[arg(long, value_enum, default_value = "synced")]
    pub durability: DurabilityChoice,
    /// How the directory is written to: auto, uring, direct or plain.
    #[arg(long, default_value = "auto")]
    pub engine: String,
    /// Also run fio on the same directory and compare.
    #[arg(long)]
    pub fio: bool,
    #[command(flatten)]
    pub shown: Shown,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err("it must be KEY=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    /// The server and the commands that make files are no commands that find or do something.
    #[test]
    fn every_command_can_print_json() {
        fn leaves(command: &clap::Command, path: String, found: &mut Vec<String>) {
            let mut below = command.get_subcommands().filter(|below| below.get_name() != "help").peekable();
            if below.peek().is_none() && command.get_arguments().all(|argument| argument.get_id() != "output")
            {
                found.push(path.clone());
            }
            below.for_each(|below| leaves(below, format!("{path} {}", below.get_name()), found));
        }
        let mut command = Arguments::command();
        command.build();
        let mut without = Vec::new();
        leaves(&command, String::new(), &mut without);
        let files =
            ["grafana", "prometheus-rules", "man", "completions"].map(|what| format!(" generate {what}"));
        assert_eq!(without, [vec![" serve".to_owned()], files.to_vec()].concat());
    }

    #[test]
    fn serve_is_what_is_done_without_a_command() {
        let arguments =
            Arguments::try_parse_from(["mainstem", "--data-dir", "x", "--set", "num.partitions = 3"])
                .unwrap();
        assert!(arguments.command.is_none());
        assert_eq!(arguments.server.data_dir.as_deref(), Some("x"));
        assert_eq!(arguments.server.settings, [("num.partitions".into(), "3".into())]);
        let arguments = Arguments::try_parse_from(["mainstem", "serve", "--listen", "[::1]:9092"]).unwrap();
        let Some(Command::Serve(server)) = arguments.command else { panic!("not serve") };
        assert_eq!(server.listen.as_deref(), Some("[::1]:9092"));
    }

    #[test]
    fn client_commands_are_parsed() {
        let line = "mainstem topic create orders --partitions 3 --config retention.ms=5 --bootstrap h:1";
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        let Some(Command::Topic { bootstrap, verb: TopicVerb::Create(asked) }) = arguments.command else {
            panic!("not topic create")
        };
        let TopicCreation { name, partitions, configs, .. } = asked;
        assert_eq!((bootstrap.address.as_str(), name.as_str(), partitions), ("h:1", "orders", Some(3)));
        assert_eq!(configs, [("retention.ms".into(), "5".into())]);
        let line = "mainstem group reset g --topic orders --to 17";
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        let Some(Command::Group { verb: GroupVerb::Reset(asked), .. }) = arguments.command else {
            panic!("not group reset")
        };
        assert_eq!(asked.to, Some(Place::Offset(17)));
        for line in [
            "mainstem consume t --from never",
            "mainstem consume t --group g --partition 1",
            "mainstem topic",
            "mainstem group reset g --topic t",
            "mainstem group reset g --to 5",
            "mainstem group reset g --topic t --to 5 --by 1",
            "mainstem group reset g --file f --all-topics",
            "mainstem topic alter t",
            "mainstem transaction abort",
            "mainstem transaction abort --topic t",
            "mainstem acl add --principal User:a --topic t",
            "mainstem acl add --principal User:a --consumer --topic t",
        ] {
            assert!(Arguments::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
