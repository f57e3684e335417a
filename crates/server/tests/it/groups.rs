//! `mainstem consume` as several members of one group.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use testing::process::{LONG, Program, signal, text};
use testing::server::{Server, small};

const MAINSTEM: Program = Program::new(env!("CARGO_BIN_EXE_mainstem"));

/// A server, and a group that reads from it.
struct Place {
    server: Server,
    produced: Vec<String>,
}

impl Place {
    fn start(parent: &TempDir) -> Place {
        let mut command = small(MAINSTEM, parent.path());
        command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
        command.args(["--set", "group.initial.rebalance.delay.ms=0"]);
        Place { server: Server::start(MAINSTEM, command), produced: Vec::new() }
    }

    fn reader(&self, arguments: &str) -> Child {
        let mut command = MAINSTEM.command(&["consume", "--bootstrap", &self.server.address, "--group", "g"]);
        command.args(arguments.split(' ')).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Sends some records to a partition.
    fn produce(&mut self, topic: &str, partition: i32) {
        let first = self.produced.len();
        let lines: Vec<String> =
            (first..first + 5).map(|number| format!("{topic} {partition} {number}")).collect();
        let arguments = format!("produce {topic} --partition {partition}");
        self.server.run(&arguments, &format!("{}\n", lines.join("\n")));
        self.produced.extend(lines);
    }

    /// The rows of the group's offsets.
    fn offsets(&self) -> Vec<Value> {
        let (code, described, _) = self.server.try_run("group describe g --output json", "");
        let described: Value =
            if code == Some(0) { serde_json::from_str(&described).unwrap() } else { Value::Null };
        described["offsets"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until members own the partitions of these topics, all of which are read to their end.
    fn until_read(&self, topics: &[(&str, usize)]) {
        let deadline = Instant::now() + LONG;
        let is_read = |row: &&Value| row["member"] != "-" && row["lag"] == 0;
        loop {
            let offsets = self.offsets();
            let count =
                |topic: &str| offsets.iter().filter(is_read).filter(|row| row["topic"] == topic).count();
            if topics.iter().all(|(topic, partitions)| count(topic) == *partitions) {
                return;
            }
            assert!(Instant::now() < deadline, "{topics:?} are not read: {offsets:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn members_with_patterns_follow_topics_that_come_grow_and_go() {
    let parent = TempDir::new().unwrap();
    let mut place = Place::start(&parent);
    for (topic, partitions) in [("p-1", 2), ("p-2", 1), ("q", 1)] {
        place.server.run(&format!("topic create {topic} --partitions {partitions}"), "");
        place.produce(topic, 0);
    }
    // Whoever of them leads has to see what the others read.
    let mut readers = vec![place.reader("--pattern p-.*"), place.reader("--pattern p-.*"), place.reader("q")];
    place.until_read(&[("p-1", 2), ("p-2", 1), ("q", 1)]);
    place.server.run("topic create p-3 --partitions 1", "");
    place.produce("p-3", 0);
    place.server.run("topic alter p-2 --partitions 2", "");
    place.produce("p-2", 1);
    place.server.run("topic alter q --partitions 3", "");
    place.produce("q", 2);
    place.until_read(&[("p-1", 2), ("p-2", 2), ("p-3", 1), ("q", 3)]);
    place.server.run("topic delete p-1", "");
    place.produce("p-2", 0);
    place.produce("q", 0);
    place.until_read(&[("p-2", 2), ("p-3", 1), ("q", 3)]);
    // One that leaves commits what it printed.
    let mut printed = ended(readers.remove(0));
    place.produce("p-2", 0);
    place.produce("p-3", 0);
    place.until_read(&[("p-2", 2), ("p-3", 1), ("q", 3)]);
    printed.extend(readers.into_iter().flat_map(ended));
    printed.sort_unstable();
    place.produced.sort_unstable();
    assert_eq!(printed, place.produced);
    place.server.stop();
}

#[test]
fn a_place_that_was_found_is_kept() {
    let parent = TempDir::new().unwrap();
    let mut place = Place::start(&parent);
    place.server.run("topic create t --partitions 1", "");
    place.produce("t", 0);
    place.produced.clear();
    let first = place.reader("t --from latest");
    place.until_read(&[("t", 1)]);
    assert_eq!(ended(first), [""; 0]);
    // Nobody reads, and the place is known.
    place.produce("t", 0);
    let second = place.reader("t --from latest");
    place.until_read(&[("t", 1)]);
    assert_eq!(ended(second), place.produced);
    place.server.stop();
}

/// Ends a reader. Returns the lines that it printed.
fn ended(reader: Child) -> Vec<String> {
    signal(&reader, "-TERM");
    let done = reader.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(0));
    text(&done.stdout).lines().map(ToOwned::to_owned).collect()
}
