//! The server as a process: start, requests to its admin listener, commands against it, stop, kill.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::process::{LONG, Outcome, Program, signal, wait_within};

/// A running server. Dropping it kills the process.
#[derive(Debug)]
pub struct Server {
    program: Program,
    child: Child,
    lines: Receiver<String>,
    /// The line that the server prints when it is ready.
    pub ready: String,
    /// The address of its listener: `host:port`. With several listeners `NAME://host:port` of each.
    pub address: String,
    /// The `host:port` of the admin listener.
    pub admin: String,
}

/// A call of the server with this data directory and small files, so that many tests fit on a small disk. The test adds the
/// listeners.
pub fn small(program: Program, directory: &Path) -> Command {
    let directory = directory.to_str().expect("directories of tests are UTF-8");
    let mut command = program.command(&["--data-dir", directory]);
    command.args(["--set", "log.segment.bytes=16777216", "--set", "log.reserve.bytes=0"]);
    // Whoever reads the output of a test that failed is a person.
    command.args(["--set", "log.format=text"]);
    command
}

impl Server {
    /// Starts a server by `command`, a call of `program`, and waits until it is ready. The server needs an admin listener.
    pub fn start(program: Program, mut command: Command) -> Server {
        let mut child = command.stderr(Stdio::inherit()).spawn().expect("cargo built the program");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)))
        });
        let ready = lines.recv_timeout(LONG).expect("a line when it is ready");
        let between = |from: &str, to: &str| {
            let rest = ready.split_once(from).and_then(|(_, rest)| rest.split_once(to));
            rest.unwrap_or_else(|| panic!("no {from} and {to} in {ready}")).0.to_owned()
        };
        let (address, admin) = (between("ready on ", " (data"), between("admin ", ")"));
        Server { program, child, lines, ready, address, admin }
    }

    /// The address of one of several listeners.
    pub fn address_of(&self, name: &str) -> String {
        let found = self.address.split(", ").find_map(|part| part.strip_prefix(&format!("{name}://")));
        found.unwrap_or_else(|| panic!("{name} in {}", self.address)).to_owned()
    }

    /// The next line that it prints, below that of a server that is ready.
    pub fn next_line(&self) -> String {
        self.lines.recv_timeout(LONG).expect("another line")
    }

    /// The id of its process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// The response of the admin listener, with its headers.
    pub fn ask(&self, path: &str) -> String {
        self.ask_with(path, "")
    }

    /// The same with headers in the request. Each header ends with a line break.
    pub fn ask_with(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).expect("the admin listener listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")
            .expect("it takes a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers in UTF-8");
        answer
    }

    /// Runs a command of the program against this server, with this input.
    pub fn try_run(&self, arguments: &str, input: &str) -> Outcome {
        let arguments: Vec<&str> = arguments.split(' ').chain(["--bootstrap", &self.address]).collect();
        self.program.run(&arguments, input)
    }

    /// The same for a command that has to succeed. Returns its standard output.
    pub fn run(&self, arguments: &str, input: &str) -> String {
        let (code, output, errors) = self.try_run(arguments, input);
        assert_eq!(code, Some(0), "{arguments}: {errors}");
        output
    }

    /// Stops the server with SIGTERM. Its exit code has to be 0.
    pub fn stop(mut self) {
        signal(&self.child, "-TERM");
        let status = wait_within(&mut self.child, LONG).expect("it stops");
        assert_eq!(status.code(), Some(0));
    }

    /// Kills the server with SIGKILL.
    pub fn kill(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
