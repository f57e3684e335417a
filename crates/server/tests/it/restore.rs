//! The real binary with a directory as its bucket: the data directory is lost, restored by the command, and served again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use testing::process::{LONG, Program};
use testing::server::{Server, small};

use super::terminal::on_terminal;

const MAINSTEM: Program = Program::new(env!("CARGO_BIN_EXE_mainstem"));

/// A bucket and the directories of servers.
struct Place {
    parent: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { parent: TempDir::new().unwrap() };
        fs::create_dir(place.at("bucket")).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.parent.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    fn command(&self, data: &str) -> Command {
        let mut command = small(MAINSTEM, &self.at(data));
        command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
        for setting in [
            format!("object.store={}", self.text("bucket")),
            // What one command produces goes into one object.
            "object.store.upload.interval.ms=300".to_owned(),
            "object.store.metadata.snapshot.interval.ms=50".to_owned(),
            "log.retention.check.interval.ms=20".to_owned(),
        ] {
            command.args(["--set", &setting]);
        }
        command
    }

    fn start(&self, data: &str) -> Server {
        Server::start(MAINSTEM, self.command(data))
    }

    /// Runs a command without a server. Returns its exit code and everything that it printed.
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let (code, output, errors) = MAINSTEM.run(arguments, "");
        (code.unwrap(), format!("{output}{errors}"))
    }

    fn on_bucket(&self, verb: &[&str]) -> (i32, String) {
        let bucket = self.text("bucket");
        self.run(&[verb, &["--from", &bucket]].concat())
    }

    /// What a command that succeeds prints for programs.
    fn json_of(&self, verb: &[&str]) -> Value {
        let bucket = self.text("bucket");
        let (code, output, errors) =
            MAINSTEM.run(&[verb, &["--from", &bucket, "--output", "json"]].concat(), "");
        assert_eq!(code, Some(0), "{output}{errors}");
        serde_json::from_str(&output).unwrap()
    }

    fn restore(&self, into: &str) -> (i32, String) {
        self.on_bucket(&["restore", "--data-dir", &self.text(into)])
    }

    /// Waits until the objects have so many records of the only topic.
    fn until_stored(&self, end: i64) {
        let deadline = Instant::now() + LONG;
        loop {
            let bucket = self.text("bucket");
            let (_, text, _) = MAINSTEM.run(&["log", "inspect", "--json", "--from", &bucket], "");
            let shown: Value = serde_json::from_str(&text).unwrap_or_default();
            let streams = shown["logs"][0]["streams"].as_array().cloned().unwrap_or_default();
            if streams.iter().any(|stream| stream["topic"] == "t" && stream["stored_to"] == end) {
                return;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The files of the objects of the only log.
    fn objects(&self) -> Vec<PathBuf> {
        let only = |folder: &Path| fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        let log = only(&self.at("bucket/logs"));
        let mut objects: Vec<PathBuf> =
            fs::read_dir(log).unwrap().map(|object| object.unwrap().path()).collect();
        objects.sort_unstable();
        objects
    }
}

fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|number| format!("line {number}\n")).collect()
}

const CREATE: &str = "topic create t --config remote.storage.enable=true --config retention.ms=-1";

#[test]
fn a_lost_data_directory_comes_back() {
    let place = Place::new();
    let server = place.start("old");
    server.run(CREATE, "");
    server.run("produce t", &lines(0..500));
    place.until_stored(500);
    let (code, status) = place.on_bucket(&["storage", "status", "--metrics", &server.admin]);
    assert_eq!(code, 0, "{status}");
    for part in ["metadata snapshots", "requests in the ", "GB stored, as now", "  sum: "] {
        assert!(status.contains(part), "{part} in {status}");
    }
    server.stop();
    fs::remove_dir_all(place.at("old")).unwrap();

    let (code, said) = place.restore("new");
    assert_eq!(code, 0, "{said}");
    for part in
        ["1 topics with 1 partitions", "500 records in ", "everything that the snapshot knows came back"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!place.at("new/restoring").exists());
    let (bucket, watched) = (place.text("bucket"), place.text("watched"));
    let restore = MAINSTEM.command(&["restore", "--from", &bucket, "--data-dir", &watched]);
    let (shown, _) = on_terminal(restore);
    assert!(shown.contains("mainstem: restoring ["), "{shown:?}");
    // The directory is not empty any more.
    let (code, said) = place.restore("new");
    assert!(code == 2 && said.contains("is not empty"), "{said}");
    let server = place.start("new");
    assert_eq!(server.run("consume t --exit-at-end", ""), lines(0..500));
    server.run("produce t", &lines(500..600));
    place.until_stored(600);
    assert_eq!(server.run("consume t --exit-at-end", ""), lines(0..600));
    server.stop();
    let (code, said) = place.on_bucket(&["log", "verify"]);
    assert!(code == 0 && said.contains("no damage"), "{said}");
    let (code, said) = place.on_bucket(&["log", "inspect"]);
    assert!(code == 0 && said.contains("t-0"), "{said}");
    let found = place.json_of(&["log", "verify"]);
    assert!(found["errors"] == 0 && found["logs"][0]["checked"]["batches"] != 0, "{found}");
    assert_eq!(place.json_of(&["log", "inspect"])["logs"][0]["streams"][0]["topic"], "t");
    let found = place.json_of(&["storage", "status"]);
    assert!(found["objects"].as_array().unwrap().iter().any(|row| row["what"] == "all"), "{found}");
    assert_eq!(found["month"]["costs"][0]["unit"], "GB stored");
    let found = place.json_of(&["restore", "--data-dir", &place.text("third")]);
    assert_eq!(
        (&found["records"], &found["complete"], &found["topics"]),
        (&json!(600), &json!(true), &json!(1))
    );
}

#[test]
fn damage_in_the_bucket_is_named_and_an_unfinished_restore_is_no_data_directory() {
    let place = Place::new();
    let server = place.start("old");
    server.run(CREATE, "");
    for hundred in 0..3 {
        server.run("produce t", &lines(hundred * 100..hundred * 100 + 100));
        place.until_stored(i64::from(hundred) * 100 + 100);
    }
    server.stop();
    let objects = place.objects();
    assert!(objects.len() >= 3, "{objects:?}");
    // One object in the middle gets a damaged footer, another one a damaged record.
    let whole = fs::read(&objects[1]).unwrap();
    let mut damaged = whole.clone();
    let footer = damaged.len() - 2 * 4096 + 100;
    damaged[footer] ^= 1;
    fs::write(&objects[1], &damaged).unwrap();
    let (code, said) = place.restore("new");
    let name = objects[1].file_name().unwrap().to_str().unwrap();
    assert!(code == 2 && said.contains(name) && said.contains("t-0 offsets 0 to 199"), "{said}");
    // A server does not take it for a data directory.
    let refused = place.command("new").output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && errors.contains("restore that is not finished"), "{errors}");
    let (code, said) = place.run(&["user", "list", "--data-dir", &place.text("new")]);
    assert!(code != 0 && said.contains("restore that is not finished"), "{said}");
    // The same command goes on once the object is whole again.
    fs::write(&objects[1], &whole).unwrap();
    let (code, said) = place.restore("new");
    assert_eq!(code, 0, "{said}");
    let server = place.start("new");
    assert_eq!(server.run("consume t --exit-at-end", ""), lines(0..300));
    server.stop();

    let mut damaged = whole.clone();
    damaged[4096 + 200] ^= 1;
    fs::write(&objects[1], &damaged).unwrap();
    let (code, said) = place.on_bucket(&["log", "verify"]);
    assert!(code == 1 && said.contains(name) && said.contains("t-0 offsets 100"), "{said}");
    // A restore does not read records, so it does not see that.
    assert_eq!(place.restore("another").0, 0);
    fs::remove_file(&objects[1]).unwrap();
    let (code, said) = place.on_bucket(&["log", "verify"]);
    assert!(code == 1 && said.contains("no object has these records"), "{said}");
    let (code, said) = place.on_bucket(&["restore", "--accept-loss", "--data-dir", &place.text("part")]);
    assert!(code == 1 && said.contains("cannot be reached"), "{said}");
    let server = place.start("part");
    assert_eq!(server.run("consume t --exit-at-end", ""), lines(200..300));
    server.stop();
}

#[test]
fn a_restore_that_is_killed_goes_on() {
    let place = Place::new();
    let server = place.start("old");
    server.run(CREATE, "");
    for hundred in 0..3 {
        server.run("produce t", &lines(hundred * 100..hundred * 100 + 100));
        place.until_stored(i64::from(hundred) * 100 + 100);
    }
    server.stop();
    let (bucket, new) = (place.text("bucket"), place.text("new"));
    let mut killed = 0;
    // Longer and longer, until one comes to its end.
    for delay in (0..5000).step_by(2).map(Duration::from_millis) {
        let arguments = ["restore", "--from", &bucket, "--data-dir", &new];
        let mut child = MAINSTEM.command(&arguments).spawn().unwrap();
        std::thread::sleep(delay);
        let _ = child.kill();
        child.wait().unwrap();
        if place.at("new/restoring").exists() {
            killed += 1;
        } else if place.at("new/meta.redb").exists() {
            break;
        }
    }
    assert!(killed > 0, "no restore was killed in the middle");
    let server = place.start("new");
    assert_eq!(server.run("consume t --exit-at-end", ""), lines(0..300));
    server.stop();
}

#[test]
fn what_cannot_be_restored_is_refused_in_words() {
    let place = Place::new();
    let (code, said) = place.restore("new");
    assert!(code == 2 && said.contains("no metadata snapshot"), "{said}");
    assert!(!place.at("new").exists());
    let (code, said) =
        place.run(&["restore", "--from", &place.text("none"), "--data-dir", &place.text("new")]);
    assert!(code == 2 && said.contains("there is no bucket"), "{said}");
    assert!(!place.at("none").exists());
    let server = place.start("old");
    server.stop();
    let (code, said) =
        place.on_bucket(&["restore", "--data-dir", &place.text("new"), "--cluster-id", "another"]);
    assert!(code == 2 && said.contains("another"), "{said}");
    let dirs = format!("{},{}", place.text("a"), place.text("b"));
    let (code, said) = place.on_bucket(&["restore", "--data-dir", &place.text("new"), "--log-dirs", &dirs]);
    assert!(code == 2 && said.contains("the cluster has 1 logs"), "{said}");
    let (code, said) = place.on_bucket(&["log", "verify"]);
    assert!(code == 0 && said.contains("no damage"), "{said}");
}
