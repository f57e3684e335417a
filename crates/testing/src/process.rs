//! Programs as processes: calls, outcomes, signals.

use std::io::Write;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A time-out far above the duration of anything in a test.
pub const LONG: Duration = Duration::from_secs(30);

/// The outcome of a call: exit code, standard output, standard error.
pub type Outcome = (Option<i32>, String, String);

/// A program built by cargo.
#[derive(Clone, Copy, Debug)]
pub struct Program(&'static str);

impl Program {
    /// `path` is `env!("CARGO_BIN_EXE_NAME")`. Cargo sets that variable only for tests of the program's own crate.
    pub const fn new(path: &'static str) -> Program {
        Program(path)
    }

    /// A call with these arguments, an empty environment, no input, and pipes for the output.
    pub fn command(self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.0);
        command.args(arguments).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Calls the program with this input and waits for its end.
    pub fn run(self, arguments: &[&str], input: &str) -> Outcome {
        let mut child =
            self.command(arguments).stdin(Stdio::piped()).spawn().expect("cargo built the program");
        let mut pipe = child.stdin.take().expect("its input is a pipe");
        let input = input.to_owned();
        // Fails if the program ended without reading its input.
        let writer = thread::spawn(move || drop(pipe.write_all(input.as_bytes())));
        let output = child.wait_with_output().expect("it is a child");
        writer.join().expect("writing does not panic");
        outcome(&output)
    }
}

/// The outcome as texts.
pub fn outcome(output: &Output) -> Outcome {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The output of a program as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for the end of a process. Kills the process if it does not end in time, and returns no status then.
pub fn wait_within(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + time;
    loop {
        if let Some(status) = child.try_wait().expect("it is a child") {
            return Some(status);
        }
        if Instant::now() >= until {
            child.kill().expect("it is a child");
            child.wait().expect("it is a child");
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal (`-TERM`, `-HUP`) to a process.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(sent.expect("there is kill").success(), "{name} is sent");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_is_told_apart() {
        let program = Program::new("/bin/sh");
        let said = program.run(&["-c", "cat; echo no >&2; exit 3"], "given\n");
        assert_eq!(said, (Some(3), "given\n".into(), "no\n".into()));
        assert_eq!(program.run(&["-c", "echo $HOME"], "").1, "\n", "the environment is empty");
    }

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let program = Program::new("/bin/sh");
        let mut child = program.command(&["-c", "exit 2"]).spawn().unwrap();
        assert_eq!(wait_within(&mut child, LONG).and_then(|status| status.code()), Some(2));
        let mut child = program.command(&["-c", "exec /bin/sleep 60"]).spawn().unwrap();
        assert_eq!(wait_within(&mut child, Duration::from_millis(20)), None);
        let mut child = program.command(&["-c", "exec /bin/sleep 60"]).spawn().unwrap();
        signal(&child, "-TERM");
        assert_eq!(wait_within(&mut child, LONG).and_then(|status| status.code()), None);
    }
}
