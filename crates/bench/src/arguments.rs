//! The arguments of `mainstem-bench run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::contender::key_value;

/// The client that generates the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Our own, made not to be the bottleneck.
    #[default]
    Native,
    /// The C library below most clients.
    #[cfg(feature = "librdkafka")]
    Librdkafka,
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Engine::Native => "native",
            #[cfg(feature = "librdkafka")]
            Engine::Librdkafka => "librdkafka",
        }
    }
}

/// Arguments of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArguments {
    /// Driver files of the OpenMessaging Benchmark (Kafka's): which servers, and their clients' settings
    #[arg(short, long = "driver", required = true, value_name = "DRIVER.yaml")]
    pub drivers: Vec<PathBuf>,
    /// Workload files of the OpenMessaging Benchmark
    #[arg(required = true, value_name = "WORKLOAD.yaml")]
    pub workloads: Vec<PathBuf>,
    /// Where the result goes: a file, or a directory for one file each [default: a file each, here]
    #[arg(short, long, value_name = "OUT.json")]
    pub output: Option<PathBuf>,
    /// The client that makes the load
    #[arg(long, value_enum, default_value_t)]
    pub engine: Engine,
    /// Threads of producers, and as many of consumers, of the native engine [default: a quarter of the processors each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Seconds between samples [default: 1 for tests up to five minutes, else 10 as OMB]
    #[arg(long, value_name = "SECONDS")]
    pub sample_seconds: Option<f64>,
    /// Leave the topics of the tests on the server
    #[arg(long)]
    pub keep_topics: bool,
    /// What the server is called in reports
    #[arg(long, value_name = "NAME", default_value = "")]
    pub contender: String,
    /// Of a comparison, from 1
    #[arg(long, value_name = "N", default_value_t)]
    pub round: u32,
    /// What the server promises by an acknowledgement, in words, for reports
    #[arg(long, value_name = "WORDS", default_value = "")]
    pub durability: String,
    /// The server's version or one of its settings, for the record; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub server_setup: Vec<(String, String)>,
    /// The server's process, when it runs here: its CPU time and memory are measured; may be repeated for a cluster
    #[arg(long, value_name = "PID")]
    pub server_pid: Vec<u32>,
    /// A process of the server that is killed (SIGKILL) in the measured part; its cluster goes on without it
    #[arg(long, value_name = "PID", requires = "kill_after")]
    pub kill_pid: Option<u32>,
    /// Seconds of the measured part before that
    #[arg(long, value_name = "SECONDS", requires = "kill_pid")]
    pub kill_after: Option<f64>,
    /// The server's data, when it is here: its device is measured
    #[arg(long, value_name = "DIR")]
    pub server_data_dir: Option<PathBuf>,
    /// Processors that the server was given, for the record
    #[arg(long, value_name = "LIST", default_value = "")]
    pub server_cpus: String,
    /// Processors that this program was given, for the record
    #[arg(long, value_name = "LIST", default_value = "")]
    pub load_cpus: String,
}
