//! `mainstem-bench`: the OpenMessaging Benchmark's experiments against any server with Kafka's protocol.
//!
//! It sees a server only through the protocol. If the server runs on the same machine, it also reads the kernel's data
//! about the server's process and device.

mod arguments;
mod certificate;
mod child;
mod clock;
mod clusters;
mod compare;
mod comparison;
mod contender;
mod device_limit;
mod driver;
mod driver_template;
mod interrupt;
mod kafka;
mod keys;
mod ledger;
#[cfg(feature = "librdkafka")]
mod librdkafka;
mod mainstem;
mod measurement;
mod native;
mod pacer;
mod phase;
mod plan;
mod progress;
mod rate;
mod report;
mod result;
mod run;
mod running;
mod servers;
mod settings;
mod stats;
mod timestamp;
mod traffic;
mod usage;
mod workload;
mod yaml;

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
    Run(arguments::RunArguments),
    /// Run workloads on servers that it starts, side by side, and print the ratios
    Compare(compare::CompareArguments),
    /// Draw results as one page
    Report(report::ReportArguments),
    /// Fetch Apache Kafka, unless it is there, and print the directory of its jars
    FetchKafka(kafka::FetchArguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments).map(|written| {
            written.iter().for_each(|path| println!("{}", path.display()));
        }),
        Command::Compare(arguments) => compare(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::FetchKafka(arguments) => {
            kafka::fetch_only(&arguments).map(|jars| println!("{}", jars.display()))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstem-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Compares, and draws the results even if a run failed.
fn compare(arguments: &compare::CompareArguments) -> anyhow::Result<()> {
    let compared = compare::run(arguments)?;
    if !compared.files.is_empty() {
        let output = compared.output_dir.join("report.html");
        let title = "Comparison".into();
        let results = compared.files.clone();
        report::run(&report::ReportArguments {
            results,
            output: output.clone(),
            images: None,
            title,
            note: None,
        })?;
        eprintln!("the report is {}", output.display());
    }
    compared.verdict()
}
