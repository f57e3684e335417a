//! The real binary on several real directories. One directory is moved away from a killed server, and comes back.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;
use testing::process::{LONG, Program};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::{self as m, MetadataRequest, MetadataResponse};
use wire::records::BatchBuilder;
use wire::{ApiKey, Bytes, ErrorCode, Message, Reader, Text, frame};

const TOPICS: [&str; 6] = ["t0", "t1", "t2", "t3", "t4", "t5"];

struct Host {
    parent: TempDir,
}

const MAINSTEM: Program = Program::new(env!("CARGO_BIN_EXE_mainstem"));

struct Server(testing::server::Server);

impl Host {
    fn path(&self, name: &str) -> PathBuf {
        self.parent.path().join(name)
    }

    fn command(&self, log_dirs: &[&str]) -> Command {
        let listed: Vec<String> = log_dirs.iter().map(|dir| self.path(dir).display().to_string()).collect();
        let data_dir = self.path("meta").display().to_string();
        let mut command = MAINSTEM.command(&[
            "--data-dir",
            &data_dir,
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
        ]);
        command.args(["--set", "log.segment.bytes=67108864", "--set", "log.reserve.bytes=0"]);
        command.args(["--set", &format!("log.dirs={}", listed.join(","))]);
        command
    }

    fn start(&self, log_dirs: &[&str]) -> Server {
        Server(testing::server::Server::start(MAINSTEM, self.command(log_dirs)))
    }

    /// The exit code and standard error of a server that does not start.
    fn refusal(&self, log_dirs: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.command(log_dirs).output().unwrap();
        let shown = format!("{}/", self.parent.path().display());
        (status.code(), String::from_utf8_lossy(&stderr).replace(&shown, ""))
    }
}

impl Server {
    /// Kills the server like `kill -9`.
    fn kill(self) {
        self.0.kill();
    }

    /// Runs a command of the binary. Returns whether it succeeded, and its output.
    fn run(&self, arguments: &str) -> (bool, String) {
        let (code, output, _) = self.0.try_run(arguments, "");
        (code == Some(0), output)
    }

    fn call<Q: Message, A: Message>(&self, version: i16, request: &Q) -> A {
        let api_key = ApiKey::from_i16(Q::KEY.unwrap()).unwrap();
        let bytes = frame::encode_request(api_key, version, 5, None, request).unwrap().to_bytes();
        let mut stream = TcpStream::connect(&self.0.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&bytes).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
        stream.read_exact(&mut answer).unwrap();
        let mut reader = Reader::new(Bytes::from(answer));
        frame::decode_response_header(&mut reader, api_key, version).unwrap();
        A::decode(&mut reader, version).unwrap()
    }

    /// Produces a record. Returns the error code and the offset.
    fn produce(&self, topic: &'static str, value: &str) -> (i16, i64) {
        let mut batch = BatchBuilder::new(model::Compression::None);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let now = model::Timestamp(i64::try_from(now.as_millis()).unwrap());
        batch.push(now, None, Some(value.as_bytes()));
        let records = Some(batch.finish().into());
        let data = m::produce_request::PartitionProduceData { index: 0, records };
        let topic = m::produce_request::TopicProduceData {
            name: Text::from_static(topic),
            partition_data: vec![data],
            ..Default::default()
        };
        let request =
            m::ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], transactional_id: None };
        let answer: m::ProduceResponse = self.call(12, &request);
        let partition = &answer.responses[0].partition_responses[0];
        (partition.error_code, partition.base_offset)
    }

    /// The topics whose only partition has no leader.
    fn offline(&self) -> Vec<&'static str> {
        let of = |topic: &&'static str| {
            let name = Some(Text::from_static(topic));
            let topics = Some(vec![MetadataRequestTopic { name, ..Default::default() }]);
            let answer: MetadataResponse = self.call(12, &MetadataRequest { topics, ..Default::default() });
            let partition = &answer.topics[0].partitions[0];
            assert_eq!(partition.error_code == 0, partition.leader_id == 1);
            if partition.error_code != 0 {
                assert_eq!(partition.error_code, ErrorCode::LeaderNotAvailable.code());
                assert_eq!((partition.leader_id, &partition.offline_replicas[..]), (-1, &[1][..]));
            }
            partition.error_code != 0
        };
        TOPICS.into_iter().filter(of).collect()
    }

    fn consume(&self, topic: &str) -> String {
        let (done, output) = self.run(&format!("consume {topic} --exit-at-end"));
        assert!(done, "{topic} is read");
        output
    }
}

fn names(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_lost_directory_takes_only_its_topics_down_and_comes_back_whole() {
    let host = Host { parent: TempDir::new().unwrap() };
    let all = ["d1", "d2", "d3"];
    let server = host.start(&all);
    for topic in TOPICS {
        assert!(server.run(&format!("topic create {topic}")).0);
        assert_eq!(server.produce(topic, "before"), (0, 0));
    }
    assert!(!names(&host.path("meta")).iter().any(|name| name.ends_with(".log")), "the logs are elsewhere");
    server.kill();

    fs::rename(host.path("d2"), host.path("away")).unwrap();
    let server = host.start(&all);
    let offline = server.offline();
    assert_eq!(offline.len(), 2, "six topics are spread over three directories: {offline:?}");
    let storage = ErrorCode::KafkaStorageError.code();
    for topic in TOPICS {
        if offline.contains(&topic) {
            assert_eq!(server.produce(topic, "while"), (storage, -1));
        } else {
            assert_eq!(server.produce(topic, "while"), (0, 1));
            assert_eq!(server.consume(topic), "before\nwhile\n");
        }
    }
    let (done, listed) = server.run("topic list");
    assert!(done && TOPICS.iter().all(|topic| listed.contains(topic)), "{listed}");
    let (done, described) = server.run(&format!("topic describe {}", offline[0]));
    let row = |line: &str| line.split_whitespace().eq(["0", "-1", "1", "1", "?", "?", "?"]);
    assert!(done && described.lines().any(row), "{described}");
    assert!(server.0.ask("/metrics").contains("\nkafka_log_logmanager_offlinelogdirectorycount 1\n"));
    assert!(server.0.ask("/healthz").starts_with("HTTP/1.1 200 "));
    assert!(!host.path("d2").exists(), "it is not made anew");
    server.kill();

    // An empty directory, like a mount point without its mount.
    fs::create_dir(host.path("d2")).unwrap();
    let server = host.start(&all);
    assert_eq!(server.offline(), offline);
    server.kill();
    assert!(names(&host.path("d2")).iter().all(|name| name == "lock"), "no log was begun there");

    fs::remove_dir_all(host.path("d2")).unwrap();
    fs::rename(host.path("away"), host.path("d2")).unwrap();
    let server = host.start(&all);
    assert_eq!(server.offline(), [""; 0]);
    for topic in TOPICS {
        let expected = if offline.contains(&topic) { "before\n" } else { "before\nwhile\n" };
        assert_eq!(server.consume(topic), expected);
        assert_eq!(server.produce(topic, "after").0, 0);
    }
    server.kill();

    let (code, errors) = host.refusal(&["d1", "d2", "./d1"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("log.dirs names the same directory twice: d1 and ./d1"), "{errors}");
    let (code, errors) = host.refusal(&["d1", "d1/in"]);
    assert_eq!((code, errors.contains("log.dirs: d1/in lies inside of d1")), (Some(1), true), "{errors}");
    fs::create_dir(host.path("gone")).unwrap();
    all.iter().for_each(|dir| fs::rename(host.path(dir), host.path("gone").join(dir)).unwrap());
    let (code, errors) = host.refusal(&all);
    assert_eq!(code, Some(1));
    assert!(errors.contains("no log directory can be used: d1: it does not exist, but "), "{errors}");
}

#[test]
fn a_data_directory_grows_by_more_and_two_servers_do_not_share_one() {
    let host = Host { parent: TempDir::new().unwrap() };
    // As before log.dirs existed: everything is in the data directory.
    let server = host.start(&["meta"]);
    assert!(server.run("topic create t0").0);
    assert_eq!(server.produce("t0", "old"), (0, 0));
    server.kill();
    let server = host.start(&["meta", "more"]);
    assert!(server.run("topic create t1").0);
    assert_eq!((server.produce("t0", "new"), server.produce("t1", "new")), ((0, 1), (0, 0)));
    assert_eq!(server.consume("t0"), "old\nnew\n");
    let pid = server.0.process_id();
    let other = Host { parent: TempDir::new().unwrap() };
    let more = host.path("more").display().to_string();
    let (code, errors) = other.refusal(&[&more]);
    assert_eq!(code, Some(1));
    let expected = format!("the log directory {more} is in use by another mainstem (pid {pid})");
    assert!(errors.contains(&expected), "{errors}");
    server.kill();
}

/// A damaged directory among several is replaced by the data salvaged from it.
#[test]
fn what_is_salvaged_of_one_directory_takes_its_place() {
    let host = Host { parent: TempDir::new().unwrap() };
    let server = host.start(&["a", "b"]);
    for topic in TOPICS {
        assert!(server.run(&format!("topic create {topic} --partitions 1")).0);
        assert_eq!(server.produce(topic, "one"), (0, 0));
    }
    // The log's id must also be in another segment.
    let begun = std::time::Instant::now();
    while !host.path("b").join("0000000002.log").exists() {
        assert!(begun.elapsed() < LONG, "a second segment is prepared");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.kill();
    // The header of the segment is lost, but the records are not.
    let file = host.path("b").join("0000000001.log");
    let mut bytes = fs::read(&file).unwrap();
    bytes[20..40].fill(9);
    fs::write(&file, bytes).unwrap();
    let server = host.start(&["a", "b"]);
    assert!(!server.offline().is_empty());
    server.kill();
    let [b, new, meta] = ["b", "new", "meta"].map(|name| host.path(name).display().to_string());
    let salvage = |more: &[&str]| {
        let all = [&["log", "salvage", "--data-dir", &b, "--into", &new], more].concat();
        MAINSTEM.command(&all).output().unwrap()
    };
    assert_eq!(salvage(&[]).status.code(), Some(2), "it needs the topics");
    // Metadata of another server, which has none: what is salvaged would be refused beside it.
    let other = Host { parent: TempDir::new().unwrap() };
    other.start(&["a"]).kill();
    let without = salvage(&["--metadata", &other.path("meta").display().to_string()]);
    let errors = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.code() == Some(2) && errors.contains("knows no topic"), "{errors}");
    let done = salvage(&["--metadata", &meta]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(0), "{said}");
    fs::remove_dir_all(host.path("b")).unwrap();
    let server = host.start(&["a", "new"]);
    assert_eq!(server.offline(), [""; 0]);
    for topic in TOPICS {
        assert_eq!(server.consume(topic), "one\n");
        assert_eq!(server.produce(topic, "two"), (0, 1));
    }
}
