//! A server of ours: its program, its command, and what it says when it is ready.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use crate::child;
use crate::contender::{ContenderArguments, Launch};

/// The program.
pub fn program(arguments: &ContenderArguments) -> anyhow::Result<PathBuf> {
    let program = match &arguments.mainstem {
        // A name without a directory would be searched for on the PATH.
        Some(program) => std::path::absolute(program)?,
        None => std::env::current_exe()?.with_file_name("mainstem"),
    };
    if !program.is_file() {
        bail!("there is no {}: build it, or say with --mainstem where it is", program.display());
    }
    Ok(program)
}

/// The command of a server of ours, without its listeners.
pub fn command(launch: &Launch<'_>, data_dir: &Path) -> anyhow::Result<Command> {
    let mut command = child::command(&program(launch.arguments)?, launch.cpus)?;
    command.args(["serve", "--admin-listen", "", "--data-dir"]).arg(data_dir);
    // The server takes every such variable for a setting, but those of tests and builds are none.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MAINSTEM_"))
    {
        command.env_remove(name);
    }
    if let Some(config) = &launch.arguments.mainstem_config {
        command.arg("--config").arg(config);
    }
    for (key, value) in &launch.arguments.server_config {
        command.arg("--set").arg(format!("{key}={value}"));
    }
    Ok(command)
}

/// The address in the line that mainstem prints when it is ready: `mainstem is ready on 127.0.0.1:36311 (data ...)`.
pub fn address(log: &str) -> Option<&str> {
    let (_, rest) = log.split_once("mainstem is ready on ")?;
    // The blank behind the address shows that the address is complete. A comma is before that of the next listener.
    let (address, _) = rest.split_once(' ')?;
    let address = address.trim_end_matches(',');
    // The address of a listener with an unusual name begins with that name.
    Some(address.split_once("://").map_or(address, |(_, address)| address))
}

/// The version in the log line about readiness: JSON, as it is not for a terminal, or text, where a setting says so.
fn version(log: &str) -> Option<&str> {
    let after = |name| log.split_once(name).map(|(_, rest)| rest);
    let rest = after("\"version\":\"").or_else(|| after(" version=\""))?;
    rest.split_once('"').map(|(version, _)| version)
}

/// For the record: the version in the log, the name of the configuration file, and settings.
pub fn setup(arguments: &ContenderArguments, log: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let log = fs::read(log)?;
    let log = String::from_utf8_lossy(&log);
    let version = version(&log).map(|version| ("version".into(), version.into()));
    let file = arguments.mainstem_config.as_ref().and_then(|file| file.file_name());
    let file = file.map(|file| ("configuration file".into(), file.to_string_lossy().into_owned()));
    Ok(version.into_iter().chain(file).chain(arguments.server_config.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_says_the_address() {
        let log = "INFO x\nmainstem is ready on 127.0.0.1:36311 (data /d, admin off)\n";
        assert_eq!(address(log), Some("127.0.0.1:36311"));
        let two = "mainstem is ready on PLAINTEXT://127.0.0.1:36311, INTERNAL://127.0.0.1:4 (data /d)\n";
        assert_eq!(address(two), Some("127.0.0.1:36311"));
        assert_eq!(address("mainstem is ready on 127.0.0.1:36"), None);
    }

    #[test]
    fn the_ready_line_says_the_version() {
        let log = "INFO mainstem::serve: ready address=\"127.0.0.1:36311\" millis=20 version=\"0.1.0\"\nmainstem is";
        assert_eq!(version(log), Some("0.1.0"));
        let log =
            r#"{"level":"INFO","message":"ready","millis":18,"version":"0.1.0","target":"mainstem::serve"}"#;
        assert_eq!(version(log), Some("0.1.0"));
        assert_eq!(version("mainstem is ready on 127.0.0.1:36"), None);
    }
}
