//! `mainstem-bench`: the OpenMessaging Benchmark's experiments against any server that speaks Kafka's protocol.

mod report;
mod result;

use clap::{Parser, Subcommand};

/// Runs the OpenMessaging Benchmark's experiments against servers that speak Kafka's protocol.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Draws results side by side, as one page of HTML that needs no network.
    Report(report::ReportArguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Report(arguments) => report::run(&arguments),
    }
}
