//! `mainstem-bench`: the OpenMessaging Benchmark's experiments against any server that speaks Kafka's protocol.

use clap::Parser;

mod child;
mod compare;
mod comparison;
mod contender;
mod device_limit;
mod driver_template;
mod interrupt;
mod kafka;
mod result;
mod timestamp;
mod usage;

#[derive(Parser)]
#[command(name = "mainstem-bench", version)]
enum Command {
    /// Compare servers side by side on this machine
    Compare(compare::CompareArguments),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Compare(arguments) => {
            let compared = compare::run(&arguments)?;
            // HERE: the report is made of `compared.files`, before the verdict.
            compared.verdict()
        }
    }
}
