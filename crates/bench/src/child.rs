//! Child processes that end with this process.
//!
//! A child is started through `setpriv --pdeathsig` of util-linux. The kernel then sends it SIGTERM when this process
//! ends, for whatever reason. The signal is sent when the *thread* that started the child ends, so children are started
//! on a thread that lives as long as they do. The process id of the child is that of the program: `setpriv` and
//! `taskset` exec it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt;

/// Interval at which a child is checked.
pub const POLL: Duration = Duration::from_millis(20);
/// Time that a child gets to stop by itself.
pub const STOP_GRACE: Duration = Duration::from_secs(30);
/// Lines of a log in an error message: enough to show the cause of an exception below its stack.
const LOG_LINES: usize = 20;

/// A command for `program` on the processors `cpus` (a list as for `taskset -c`; empty for all).
pub fn command(program: &Path, cpus: &str) -> anyhow::Result<Command> {
    let mut words: Vec<&OsStr> = Vec::new();
    if on_path("setpriv").is_some() {
        words.extend(["setpriv", "--pdeathsig", "TERM", "--"].map(OsStr::new));
    }
    if !cpus.is_empty() {
        if on_path("taskset").is_none() {
            bail!(
                "pinning to processors needs taskset: install util-linux, or leave --server-cpus and --load-cpus out"
            );
        }
        words.extend(["taskset", "-c", cpus].map(OsStr::new));
    }
    words.push(program.as_os_str());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    Ok(command)
}

/// The first file with this name in the directories of `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Waits for the end of the child. If a stop is requested in the meantime, stops the child and fails.
pub fn wait(child: &mut Child) -> anyhow::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().context("the child cannot be waited for")? {
            interrupt::check()?;
            return Ok(status);
        }
        if interrupt::requested() {
            stop(child, STOP_GRACE);
        }
        thread::sleep(POLL);
    }
}

/// Sends SIGTERM, and SIGKILL if the child has not ended after `grace`.
pub fn stop(child: &mut Child, grace: Duration) {
    let deadline = Instant::now() + grace;
    if matches!(child.try_wait(), Ok(None)) {
        // The child may have ended since. Its id is not reused before the wait.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
    }
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        thread::sleep(POLL);
    }
}

/// The path of a log and its last lines, for the end of an error message.
pub fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    if last.is_empty() {
        return format!("its log {} is empty", log.display());
    }
    format!("its log {} ends with:\n  {}", log.display(), last.join("\n  "))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn shell(script: &str) -> Child {
        command(Path::new("sh"), "").unwrap().args(["-c", script]).spawn().unwrap()
    }

    #[test]
    fn a_child_is_waited_for() {
        assert_eq!(wait(&mut shell("exit 7")).unwrap().code(), Some(7));
    }

    #[test]
    fn a_child_is_stopped_by_sigterm() {
        let mut child = shell("exec sleep 1000");
        stop(&mut child, STOP_GRACE);
        assert_eq!(child.wait().unwrap().signal(), Some(15));
    }

    #[test]
    fn a_child_that_does_not_listen_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let deaf = directory.path().join("deaf");
        let mut child = shell(&format!("trap '' TERM; touch {}; exec sleep 1000", deaf.display()));
        while !deaf.exists() {
            thread::sleep(POLL);
        }
        stop(&mut child, Duration::from_millis(50));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_log_is_quoted_from_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        assert_eq!(last_lines(&log), format!("its log {} is empty", log.display()));
        fs::write(&log, (1..=30).map(|line| format!("line {line}\n")).collect::<String>()).unwrap();
        let quoted = last_lines(&log);
        assert!(quoted.contains(":\n  line 11\n") && quoted.ends_with("\n  line 30"), "{quoted}");
        assert!(!quoted.contains("line 10\n"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn children_are_pinned() {
        if on_path("taskset").is_none() {
            return;
        }
        let output = command(Path::new("grep"), "0")
            .unwrap()
            .args(["Cpus_allowed_list", "/proc/self/status"])
            .output();
        assert_eq!(output.unwrap().stdout, b"Cpus_allowed_list:\t0\n");
    }
}
