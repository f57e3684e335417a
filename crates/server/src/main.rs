//! The `mainstem` binary: the server, and small commands to use and measure it.
//!
//! This crate contains everything around the broker: arguments, configuration, listeners, admin HTTP, signals. The
//! broker crate interprets Kafka's requests.

mod admin;
mod admission;
mod arguments;
mod bench;
mod bucket;
mod budget;
mod closing;
mod cluster;
mod cluster_store;
mod commands;
mod config_file;
mod connection;
mod connection_metrics;
mod doctor;
mod exposition;
mod http;
mod inbound;
mod listener;
mod listener_collector;
mod listener_configs;
mod lobby;
mod log_dirs;
mod network;
mod otlp;
mod outbound;
mod principal_mapping;
mod process;
mod remote;
mod sasl;
mod serve;
mod settings;
mod tls;
mod transport;
mod turns;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command, ConfigArguments, Output, ServerArguments};
use settings::{Settings, SettingsError};

/// The exit code for an invalid configuration, equal to that for invalid arguments.
const EXIT_CONFIGURATION: u8 = 2;

fn main() -> ExitCode {
    commands::complete::if_asked();
    let arguments = Arguments::parse();
    match arguments.command {
        None => serve(&arguments.server),
        Some(Command::Serve(server)) => serve(&server),
        Some(Command::Config(ConfigArguments { check: Some(file), shown, .. })) => check(&file, shown.output),
        Some(Command::Config(asked)) => match Settings::load(&asked.server, std::env::vars()) {
            Ok(settings) => ended(commands::show(
                asked.shown.output,
                || settings.to_toml(!asked.diff),
                || settings.to_json(!asked.diff),
            )),
            Err(error) => refused(&error),
        },
        Some(Command::Doctor { server, shown }) => ended(doctor::run(&server, shown.output)),
        Some(Command::Generate { what }) => ended(commands::generate(&what)),
        Some(Command::Health { admin, shown }) => ended(commands::health(&admin, shown.output)),
        Some(Command::Topic { bootstrap, verb }) => ended(commands::topic(&bootstrap, verb)),
        Some(Command::Group { bootstrap, verb }) => ended(commands::group(&bootstrap, verb)),
        Some(Command::User { bootstrap, data_dir, verb }) => {
            ended(commands::user(&bootstrap, data_dir.as_deref(), verb))
        }
        Some(Command::Acl { bootstrap, verb }) => ended(commands::acl(&bootstrap, verb)),
        Some(Command::Quota { bootstrap, verb }) => ended(commands::quota(&bootstrap, verb)),
        Some(Command::Transaction { bootstrap, verb }) => ended(commands::transaction(&bootstrap, verb)),
        Some(Command::Broker { bootstrap, verb }) => ended(commands::broker(&bootstrap, verb)),
        Some(Command::LogDirs { bootstrap, asked }) => ended(commands::log_dirs(&bootstrap, &asked)),
        Some(Command::Produce(arguments)) => ended(commands::produce(&arguments)),
        Some(Command::Consume(arguments)) => ended(commands::consume(&arguments)),
        // For `log`, a failure is 2, because 1 means damage.
        Some(Command::Log { shown, verb }) => match commands::log(verb, shown.output) {
            Ok(code) => code,
            Err(error) => failed(error, ExitCode::from(EXIT_CONFIGURATION)),
        },
        Some(Command::Cluster { arguments, verb }) => ended(commands::cluster(&arguments, verb)),
        Some(Command::Storage { shown, verb }) => ended(commands::storage(&verb, shown.output)),
        Some(Command::Restore(arguments)) => match commands::restore(&arguments) {
            Ok(code) => code,
            Err(error) => failed(error, ExitCode::from(EXIT_CONFIGURATION)),
        },
        Some(Command::BenchStore(arguments)) => ended(bench::run(&arguments)),
        Some(Command::Version { shown }) => {
            let version = env!("CARGO_PKG_VERSION");
            ended(commands::show(
                shown.output,
                || format!("mainstem {version}\n"),
                || serde_json::json!({ "version": version }),
            ))
        }
    }
}

fn serve(arguments: &ServerArguments) -> ExitCode {
    disk::allocator::bound();
    let exported = match otlp::Settings::load(std::env::vars()) {
        Ok(exported) => exported,
        Err(error) => return refused(&told(&error)),
    };
    match Settings::load(arguments, std::env::vars()) {
        Ok(settings) => match serve::run(settings, exported) {
            // Some settings can be checked only once an address is known.
            Err(error) if error.downcast_ref::<SettingsError>().is_some() => refused(&error),
            result => ended(result),
        },
        Err(error) => refused(&error),
    }
}

/// Prints what is wrong with a configuration file.
fn check(file: &Path, output: Output) -> ExitCode {
    let (errors, without_meaning) = Settings::check_file(file, std::env::vars());
    let mut errors: Vec<anyhow::Error> = errors.into_iter().map(anyhow::Error::from).collect();
    if errors.is_empty() {
        errors.extend(check_listeners(file).err());
    }
    let errors: Vec<String> = errors.iter().map(told).collect();
    for error in &errors {
        eprintln!("mainstem: {error}");
    }
    let text = || {
        let mut text = String::new();
        if !without_meaning.is_empty() {
            text = format!("no meaning here: {}\n", without_meaning.join(", "));
        }
        if errors.is_empty() {
            text.push_str("the file can be used\n");
        }
        text
    };
    let printed = ended(commands::show(
        output,
        text,
        || serde_json::json!({"errors": errors, "no_meaning": without_meaning}),
    ));
    if errors.is_empty() { printed } else { ExitCode::from(EXIT_CONFIGURATION) }
}

/// What only a server that starts with the file would find, and the environment may allow: listeners that others can reach, and keys.
fn check_listeners(file: &Path) -> anyhow::Result<()> {
    let arguments = ServerArguments { config: Some(file.to_owned()), ..ServerArguments::default() };
    network::check(&Settings::load(&arguments, std::env::vars())?)
}

fn refused(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("mainstem: {error}");
    ExitCode::from(EXIT_CONFIGURATION)
}

fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error, ExitCode::FAILURE),
    }
}

/// Reports an error and returns the exit code. A reader that closes the pipe (`mainstem consume t | head`) is no error.
fn failed(error: anyhow::Error, code: ExitCode) -> ExitCode {
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<commands::OutputError>().is_some_and(commands::OutputError::is_broken_pipe)
    };
    if error.chain().any(broken_pipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("mainstem: {}", told(&error));
    if error.chain().any(is_misuse) { ExitCode::from(EXIT_CONFIGURATION) } else { code }
}

/// Whether arguments, settings or a file of settings are wrong.
fn is_misuse(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<SettingsError>() || cause.is::<client::SecurityError>() || cause.is::<commands::Misuse>()
}

/// The error and its causes, without those that it tells itself.
fn told(error: &anyhow::Error) -> String {
    let mut told = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !told.contains(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = || anyhow!("the disk is gone");
        assert_eq!(told(&cause().context("cannot start")), "cannot start: the disk is gone");
        let says_it = cause().context("no log: the disk is gone").context("cannot start");
        assert_eq!(told(&says_it), "cannot start: no log: the disk is gone");
    }
}
