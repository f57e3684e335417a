//! What a shell completes: commands, options, and the names of topics and groups, which a server is asked for.

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use clap::{Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use client::Security;

use super::cluster::Cluster;
use super::group;
use super::peer::Patience;
use crate::arguments::{Arguments, Shell};

/// The variable by which a shell asks for completions.
const VARIABLE: &str = "_MAINSTEM_COMPLETE";
const NAME: &str = "mainstem";
/// Somebody waits for the answer after a key.
const PATIENCE: Patience = Patience { connect: Duration::from_millis(500), answer: Duration::from_secs(2) };

/// Answers a shell that asks for completions and ends the process; returns at once if this is no such question.
pub fn if_asked() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Prints what a shell has to be told.
pub fn register(shell: Shell, into: &mut dyn Write) -> std::io::Result<()> {
    let shell: &dyn EnvCompleter = match shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    shell.write_registration(VARIABLE, NAME, NAME, NAME, into)
}

/// The command line, with the names that a server knows.
fn command() -> Command {
    with_names(Arguments::command(), "")
}

/// Arguments that are called `topic` or `group` stand for names, and so does the `name` of the commands about these.
fn with_names(command: Command, parent: &str) -> Command {
    let is_topic =
        |id: &str| matches!(id, "topic" | "topics") || (parent == "topic" && matches!(id, "name" | "names"));
    let is_group = |id: &str| matches!(id, "group" | "groups") || (parent == "group" && id == "name");
    let creates = command.get_name() == "create";
    let name = command.get_name().to_owned();
    command
        .mut_args(|arg| match arg.get_id().as_str() {
            id if is_topic(id) && !creates => arg.add(ArgValueCandidates::new(topics)),
            id if is_group(id) => arg.add(ArgValueCandidates::new(groups)),
            _ => arg,
        })
        .mut_subcommands(|below| with_names(below, &name))
}

fn topics() -> Vec<CompletionCandidate> {
    named(|cluster| Ok(cluster.topics()?.into_iter().map(|topic| topic.name).collect()))
}

fn groups() -> Vec<CompletionCandidate> {
    named(|cluster| Ok(group::names(cluster)?))
}

/// The names that a server gives. None if it cannot be asked: a shell has no place for an error.
fn named(names: impl FnOnce(&mut Cluster) -> anyhow::Result<Vec<String>>) -> Vec<CompletionCandidate> {
    let (address, config) = server(std::env::args_os());
    let asked = || {
        let security = Security::load(config.as_deref().map(std::path::Path::new))?;
        names(&mut Cluster::connect_within(&address, security, PATIENCE)?)
    };
    asked().unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

/// The options `--bootstrap` and `--command-config` of the line that is being written.
fn server(line: impl Iterator<Item = OsString>) -> (String, Option<String>) {
    let words: Vec<String> = line.map(|word| word.to_string_lossy().into_owned()).collect();
    let option = |name: &str| {
        words.iter().enumerate().rev().find_map(|(at, word)| match word.strip_prefix(name) {
            Some("") => words.get(at + 1).filter(|value| !value.is_empty()).cloned(),
            Some(value) => value.strip_prefix('=').map(ToOwned::to_owned),
            None => None,
        })
    };
    (option("--bootstrap").unwrap_or("127.0.0.1:9092".into()), option("--command-config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_the_line_is_asked() {
        let of = |line: &str| server(line.split(' ').map(OsString::from));
        assert_eq!(of("mainstem -- mainstem topic describe"), ("127.0.0.1:9092".into(), None));
        let (address, config) = of("mainstem -- mainstem topic --bootstrap h:1 --command-config=f describe");
        assert_eq!((address.as_str(), config.as_deref()), ("h:1", Some("f")));
    }

    #[test]
    fn names_are_completed_where_names_are_meant() {
        let has = |path: &[&str], id: &str| {
            let mut at = command();
            for name in path {
                at = at.find_subcommand(name).unwrap().clone();
            }
            let found = at.get_arguments().find(|arg| arg.get_id() == id).unwrap();
            found.get::<ArgValueCandidates>().is_some()
        };
        assert!(has(&["topic", "describe"], "names") && has(&["topic", "alter"], "names"));
        assert!(has(&["consume"], "topic") && has(&["consume"], "group") && has(&["group", "reset"], "name"));
        assert!(has(&["log", "dump"], "topic") && has(&["acl", "add"], "topics"));
        assert!(!has(&["topic", "create"], "name") && !has(&["user", "create"], "name"));
    }

    #[test]
    fn every_shell_is_told_how_to_ask() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            register(shell, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains(VARIABLE) && text.contains(NAME), "{text}");
        }
    }
}
