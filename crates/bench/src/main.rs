//! `mainstem-bench`: the OpenMessaging Benchmark's experiments against any server that speaks Kafka's protocol.
//!
//! It sees a server by its protocol only, and, where the server runs on the same machine, by what the kernel says about
//! its process and its device.

mod clock;
mod driver;
mod keys;
mod ledger;
#[cfg(feature = "librdkafka")]
mod librdkafka;
mod native;
mod phase;
mod plan;
mod rate;
mod result;
mod run;
mod security;
mod settings;
mod stats;
mod timestamp;
mod usage;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The OpenMessaging Benchmark's experiments against any server that speaks Kafka's protocol
#[derive(Debug, Parser)]
#[command(name = "mainstem-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run workloads on servers and write OMB's JSON
    Run(run::RunArguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments).map(|written| {
            written.iter().for_each(|path| println!("{}", path.display()));
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstem-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
