//! The commands for what a server allows, limits and holds: ACLs, quotas, transactions, brokers, log directories, topics in full; the
//! doctor, and completions.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use testing::process::Program;
use testing::server::{Server, small};
use wire::messages as m;
use wire::records::BatchBuilder;
use wire::{ApiKey, Message, Reader, Text, frame};

const MAINSTEM: Program = Program::new(env!("CARGO_BIN_EXE_mainstem"));

fn start(directory: &Path, settings: &[&str]) -> Server {
    let mut command = small(MAINSTEM, directory);
    command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    Server::start(MAINSTEM, command)
}

fn json_of(server: &Server, arguments: &str) -> Value {
    serde_json::from_str(&server.run(&format!("{} --output json", arguments.trim_end()), "")).unwrap()
}

/// The error of a command that fails.
fn error_of(server: &Server, arguments: &str) -> String {
    let (code, _, errors) = server.try_run(arguments, "");
    assert_eq!(code, Some(1), "{arguments}: {errors}");
    errors
}

#[test]
fn acls_are_added_found_and_deleted() {
    let parent = TempDir::new().unwrap();
    let class = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let server = start(parent.path(), &[class, "super.users=User:ANONYMOUS"]);
    let added = json_of(
        &server,
        "acl add --principal User:p --producer --topic orders --topic bills --transactional-id tx",
    );
    assert_eq!(added["added"].as_array().unwrap().len(), 8);
    server.run("acl add --principal User:c --consumer --prefixed --topic or --group readers", "");
    server.run("acl add --principal User:x --operation all --cluster --deny --host 10.0.0.1", "");
    let count = |filter: &str| json_of(&server, &format!("acl list {filter}")).as_array().unwrap().len();
    assert_eq!(count(""), 12);
    assert_eq!(count("--principal User:p --name orders"), 3);
    // What counts for a name: the literal ACLs and those of a beginning of it.
    assert_eq!(count("--resource-type topic --name orders --pattern match"), 5);
    assert_eq!(count("--resource-type topic --pattern prefixed"), 2);
    let denied = json_of(&server, "acl list --permission deny");
    assert_eq!(
        denied,
        json!([{
            "principal": "User:x", "host": "10.0.0.1", "permission": "deny", "operation": "all", "resource": "cluster",
            "name": "kafka-cluster", "pattern": "literal",
        }])
    );
    assert!(error_of(&server, "acl delete").contains("--all deletes every one"));
    assert_eq!(json_of(&server, "acl delete --principal User:p --dry-run").as_array().unwrap().len(), 8);
    assert_eq!(count(""), 12);
    assert_eq!(json_of(&server, "acl delete --principal User:p").as_array().unwrap().len(), 8);
    assert_eq!(count(""), 4);
    server.run("acl delete --all", "");
    assert_eq!(server.run("acl list", "").lines().count(), 1);
    server.stop();
    let server = start(&parent.path().join("open"), &[]);
    assert!(error_of(&server, "acl list").contains("SECURITY_DISABLED"));
    server.stop();
}

#[test]
fn quotas_are_for_names_and_for_everybody_else() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    server.run("quota alter --user a --quota producer_byte_rate=1000 --quota consumer_byte_rate=2e3", "");
    server.run("quota alter --default-user --client-id c --quota request_percentage=12.5", "");
    server.run("quota alter --ip 10.0.0.1 --quota connection_creation_rate=7", "");
    let row = |user: &str, client: &str, ip: &str, quota: &str, limit: Value| json!({"user": user, "client_id": client, "ip": ip, "quota": quota, "limit": limit});
    let of_a = [
        row("a", "-", "-", "consumer_byte_rate", 2000.into()),
        row("a", "-", "-", "producer_byte_rate", 1000.into()),
    ];
    assert_eq!(json_of(&server, "quota list --user a"), json!(of_a));
    let default = row("<default>", "c", "-", "request_percentage", 12.5.into());
    assert_eq!(json_of(&server, "quota list --default-user"), json!([default]));
    assert_eq!(json_of(&server, "quota list").as_array().unwrap().len(), 4);
    server.run("quota alter --user a --quota consumer_byte_rate=", "");
    assert_eq!(json_of(&server, "quota list --user a"), json!(of_a[1..]));
    server.run("quota delete --user a", "");
    assert_eq!(json_of(&server, "quota list --user a"), json!([]));
    assert!(error_of(&server, "quota delete --user a").contains("user a has no quotas"));
    assert!(error_of(&server, "quota alter --user a --quota nothing=5").contains("nothing"));
    assert!(error_of(&server, "quota alter --quota producer_byte_rate=5").contains("say whom it is for"));
    server.stop();
}

/// Sends a request of this version and returns its answer.
fn ask<Q: Message, A: Message>(server: &Server, api: ApiKey, version: i16, request: &Q) -> A {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let frame = frame::encode_request(api, version, 1, None, request).unwrap().to_bytes();
    stream.write_all(&frame).unwrap();
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(size).try_into().unwrap()];
    stream.read_exact(&mut answer).unwrap();
    let mut reader = Reader::new(answer.into());
    frame::decode_response_header(&mut reader, api, version).unwrap();
    A::decode(&mut reader, version).unwrap()
}

/// Opens a transaction of `id` with a record in partition 0 of `topic`. Returns the producer's id and epoch.
fn open_transaction(server: &Server, id: &'static str, topic: &'static str) -> (i64, i16) {
    let request = m::InitProducerIdRequest {
        transactional_id: Some(Text::from_static(id)),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
        ..m::InitProducerIdRequest::default()
    };
    let given: m::InitProducerIdResponse = loop {
        let answer: m::InitProducerIdResponse = ask(server, ApiKey::InitProducerId, 4, &request);
        // The coordinator loads, or still ends the transaction before.
        if !matches!(answer.error_code, 14..=16 | 51) {
            break answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert_eq!(given.error_code, 0);
    let mut batch = BatchBuilder::new(model::Compression::None)
        .producer(given.producer_id, given.producer_epoch, 0)
        .transactional();
    batch.push(model::Timestamp(1_700_000_000_000), None, Some(b"open"));
    let produce = m::ProduceRequest {
        transactional_id: Some(Text::from_static(id)),
        acks: -1,
        timeout_ms: 10_000,
        topic_data: vec![m::produce_request::TopicProduceData {
            name: Text::from_static(topic),
            partition_data: vec![m::produce_request::PartitionProduceData {
                index: 0,
                records: Some(batch.finish().into()),
            }],
            ..Default::default()
        }],
    };
    // Of this version on the partition joins the transaction by itself (KIP-890).
    let answer: m::ProduceResponse = ask(server, ApiKey::Produce, 12, &produce);
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    (given.producer_id, given.producer_epoch)
}

#[test]
fn transactions_are_shown_and_aborted() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    server.run("topic create t --partitions 1", "");
    let (producer, epoch) = open_transaction(&server, "tx", "t");
    let listed = json_of(&server, "transaction list --state Ongoing");
    let row = json!({"transactional_id": "tx", "coordinator": 1, "producer": producer, "state": "Ongoing"});
    assert_eq!(listed, json!([row]));
    assert_eq!(json_of(&server, "transaction list --ids y.*"), json!([]));
    assert_eq!(json_of(&server, "transaction list --open-for 3600"), json!([]));
    assert!(error_of(&server, "transaction list --state Never").contains("there is no state Never"));
    let described = json_of(&server, "transaction describe tx");
    assert_eq!((&described["state"], &described["epoch"]), (&"Ongoing".into(), &epoch.into()));
    assert_eq!(described["partitions"], json!([{"topic": "t", "partition": 0}]));
    let producers = json_of(&server, "transaction producers --topic t --partition 0");
    assert_eq!(
        (&producers[0]["producer"], &producers[0]["open_since_offset"]),
        (&producer.into(), &0.into())
    );
    // Its coordinator knows it.
    assert_eq!(json_of(&server, "transaction find-hanging --open-for 0"), json!([]));
    server.run("transaction abort tx", "");
    let state = || json_of(&server, "transaction describe tx")["state"].as_str().unwrap().to_owned();
    while state() != "CompleteAbort" && state() != "Empty" {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(error_of(&server, "transaction abort tx").contains("tx has no open transaction"));
    assert!(error_of(&server, "transaction abort never").contains("TRANSACTIONAL_ID_NOT_FOUND"));
    // Another one is ended in its partition alone, as one that hangs.
    let (producer, _) = open_transaction(&server, "ty", "t");
    let open = || json_of(&server, "transaction producers --topic t --partition 0");
    let start = open().as_array().unwrap().iter().find(|row| row["producer"] == producer).unwrap()["open_since_offset"]
        .as_i64()
        .unwrap();
    let wrong = format!("transaction abort --topic t --partition 0 --start-offset {}", start + 1);
    assert!(error_of(&server, &wrong).contains("no transaction in t-0 begins at offset"));
    server.run(&format!("transaction abort --topic t --partition 0 --start-offset {start}"), "");
    assert!(open().as_array().unwrap().iter().all(|row| row["open_since_offset"].is_null()), "{}", open());
    server.stop();
}

#[test]
fn brokers_and_their_directories_are_shown_and_changed() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &["num.partitions=3"]);
    assert_eq!(
        json_of(&server, "broker list"),
        json!([{"broker": 1, "address": server.address, "note": "controller"}])
    );
    let value = |arguments: &str, name: &str| {
        let rows = json_of(&server, arguments);
        rows.as_array().unwrap().iter().find(|row| row["config"] == name).cloned()
    };
    let given = value("broker config 1", "num.partitions").unwrap();
    assert_eq!((&given["value"], &given["note"]), (&"3".into(), &"set at the start".into()));
    assert_eq!(value("broker config 1", "message.max.bytes"), None);
    assert!(value("broker config 1 --all", "message.max.bytes").is_some());
    server.run("broker alter --config message.max.bytes=5000", "");
    let of_all = value("broker config 1", "message.max.bytes").unwrap();
    assert_eq!((&of_all["value"], &of_all["note"]), (&"5000".into(), &"set for all brokers".into()));
    assert!(value("broker config", "message.max.bytes").is_some());
    server.run("broker alter 1 --config message.max.bytes=6000", "");
    assert_eq!(value("broker config 1", "message.max.bytes").unwrap()["value"], "6000");
    server.run("broker alter 1 --config message.max.bytes=", "");
    assert_eq!(value("broker config 1", "message.max.bytes").unwrap()["value"], "5000");
    assert!(error_of(&server, "broker config 7").contains("there is no broker 7: there are 1"));

    server.run("topic create t --partitions 2", "");
    server.run("produce t --partition 1", "a record\n");
    let directories = json_of(&server, "log-dirs");
    let directory = &directories[0];
    assert_eq!((&directory["broker"], &directory["partitions"]), (&1.into(), &2.into()));
    assert!(
        directory["bytes"].as_i64().unwrap() > 60 && directory["free"].as_i64().unwrap() > 0,
        "{directory}"
    );
    let sizes = json_of(&server, "log-dirs --topic t");
    assert_eq!((&sizes[0]["bytes"], sizes.as_array().unwrap().len()), (&0.into(), 2));
    assert_eq!(sizes[1]["bytes"], directory["bytes"]);
    server.stop();
}

#[test]
fn topics_are_made_emptied_and_deleted() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    assert!(server.run("topic create a --partitions 2 --dry-run", "").starts_with("nothing is changed"));
    assert_eq!(json_of(&server, "topic list"), json!([]));
    server.run("topic create a --partitions 2 --replication-factor 1", "");
    assert_eq!(server.run("topic create a --if-not-exists", ""), "a is there\n");
    assert!(error_of(&server, "topic create a").contains("TOPIC_ALREADY_EXISTS"));
    server.run("topic create b --partitions 1", "");
    server.run("topic alter b --partitions 3 --config retention.ms=1000", "");
    let described = json_of(&server, "topic describe a b");
    assert_eq!(described[1]["partitions"].as_array().unwrap().len(), 3);
    assert_eq!(described[0]["id"].as_str().unwrap().len(), 22);
    assert_eq!(json_of(&server, "topic describe").as_array().unwrap().len(), 2);
    assert_eq!(json_of(&server, "topic describe a")["topic"], "a");
    for only in ["under-replicated", "under-min-isr", "unavailable"] {
        assert_eq!(json_of(&server, &format!("topic describe --only {only}")), json!([]));
    }
    let at_least = json_of(&server, "topic describe --only at-min-isr");
    assert_eq!(at_least.as_array().unwrap().len(), 5, "each partition has one copy: {at_least}");
    let own = json_of(&server, "topic describe --only overridden");
    assert_eq!((own.as_array().unwrap().len(), &own[0]["topic"]), (1, &json!("b")));
    let changed = json_of(&server, "topic alter a b --config max.message.bytes=2000000");
    assert_eq!(changed, json!({"changed": ["a", "b"]}));
    assert_eq!(json_of(&server, "topic describe --only overridden").as_array().unwrap().len(), 2);
    // The brokers that a partition is on already.
    server.run("topic alter a --replicas 0=1 --replicas 1=1", "");
    assert!(error_of(&server, "topic alter a --replicas 0=7").contains("INVALID_REPLICA_ASSIGNMENT"));
    assert!(error_of(&server, "topic alter a --replicas 0=").contains("NO_REASSIGNMENT_IN_PROGRESS"));
    for (arguments, why) in [("--replicas x=1", "PARTITION=BROKER,BROKER"), ("", "required")] {
        let (code, _, errors) = server.try_run(format!("topic alter a {arguments}").trim_end(), "");
        assert!(code == Some(2) && errors.contains(why), "{errors}");
    }

    for partition in 0..2 {
        for time in [1000, 2000, 3000] {
            server.run(&format!("produce a --partition {partition} --timestamp {time}"), "x\n");
        }
    }
    let empty = |arguments: &str| -> Vec<(i64, i64, i64)> {
        let rows = json_of(&server, &format!("topic empty a {arguments}"));
        let number = |row: &Value, name: &str| row[name].as_i64().unwrap();
        let row = |row: &Value| (number(row, "before"), number(row, "start"), number(row, "records"));
        rows.as_array().unwrap().iter().map(row).collect()
    };
    assert_eq!(empty("--before @2000 --dry-run"), [(0, 1, 1), (0, 1, 1)]);
    assert_eq!(empty("--before @2000 --partition 1"), [(0, 1, 1)]);
    assert_eq!(empty("--before 2"), [(0, 2, 2), (1, 2, 1)]);
    assert_eq!(server.run("consume a --exit-at-end --template %p/%o\\n", ""), "0/2\n1/2\n");
    assert_eq!(empty(""), [(2, 3, 1), (2, 3, 1)]);
    assert_eq!(server.run("consume a --exit-at-end", ""), "");

    assert!(
        error_of(&server, "topic delete a none").contains("none (deleted: a): UNKNOWN_TOPIC_OR_PARTITION")
    );
    assert_eq!(json_of(&server, "topic delete b none --if-exists"), json!({"deleted": ["b"]}));
    server.stop();
}

#[test]
fn several_topics_are_read_by_a_pattern() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    for topic in ["orders-eu", "orders-us", "bills"] {
        server.run(&format!("topic create {topic} --partitions 2"), "");
        server.run(&format!("produce {topic} --partition 1"), &format!("{topic} 1\n{topic} 2\n"));
    }
    let read = |arguments: &str| {
        let text = server.run(&format!("consume --pattern {arguments}"), "");
        let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(read("orders-.* --exit-at-end"), ["orders-eu 1", "orders-eu 2", "orders-us 1", "orders-us 2"]);
    assert_eq!(read("orders --exit-at-end"), [""; 0]);
    assert_eq!(read(".* --count 3").len(), 3);
    // The same as a member of a group.
    assert_eq!(read("orders-.* --group g --count 3").len(), 3);
    assert_eq!(read("orders-.* --group g --exit-at-end").len(), 1);
    assert_eq!(read("orders-.* --group g --exit-at-end"), [""; 0]);
    // One that is created while it is read.
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_mainstem"))
        .args(["consume", "--pattern", "later-.*", "--count", "1", "--bootstrap", &server.address])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    server.run("topic create later-1 --partitions 1", "");
    server.run("produce later-1", "found\n");
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), child.wait().unwrap().code()), ("found\n", Some(0)));
    let (code, _, errors) = server.try_run("consume --pattern (", "");
    assert!(code == Some(2) && errors.contains("( is no regular expression"), "{errors}");
    // What a command finds wrong in its arguments is told apart from what failed.
    for arguments in ["consume bills --template %z", "topic list --command-config /none"] {
        let (code, _, errors) = server.try_run(arguments, "");
        assert_eq!(code, Some(2), "{arguments}: {errors}");
    }
    let (code, _, errors) = MAINSTEM.run(&["generate", "grafana", "none"], "");
    assert!(code == Some(2) && errors.contains("there is no dashboard none"), "{errors}");
    assert_eq!(server.run("consume bills --from -2h --to -1h", ""), "");
    let sent = server.run("produce bills --output json", "a\nb\n");
    assert_eq!(sent, "{\"records\":2,\"topic\":\"bills\"}\n");
    server.stop();
}

#[test]
fn offsets_go_to_a_file_and_come_back() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &["group.initial.rebalance.delay.ms=0"]);
    for topic in ["a", "b"] {
        server.run(&format!("topic create {topic} --partitions 2"), "");
        server.run(&format!("produce {topic} --partition 1"), "1\n2\n3\n");
        server.run(&format!("consume {topic} --group g --exit-at-end"), "");
    }
    let exported = server.run("group export g", "");
    assert!(exported.contains("a,1,3\n") && exported.contains("b,1,3\n"), "{exported}");
    let file = parent.path().join("offsets");
    fs::write(&file, "a,1,2\nb,1,99\n").unwrap();
    let rows = json_of(&server, &format!("group reset g --file {}", file.display()));
    let row = |row: &Value| (row["topic"].clone(), row["before"].clone(), row["committed"].clone());
    let rows: Vec<_> = rows.as_array().unwrap().iter().map(row).collect();
    assert_eq!(rows, [("a".into(), 3.into(), 2.into()), ("b".into(), 3.into(), 3.into())]);
    let all = json_of(&server, "group reset g --all-topics --to earliest --partition 1");
    assert_eq!(all.as_array().unwrap().len(), 2);
    let exported = server.run("group export g", "");
    assert!(exported.contains("a,1,0\n") && exported.contains("b,1,0\n"), "{exported}");
    server.stop();
}

#[test]
fn the_doctor_measures_the_disk() {
    let parent = TempDir::new().unwrap();
    let directory = parent.path().join("data");
    let doctor =
        |data: &str, more: &[&str]| MAINSTEM.run(&[&["doctor", "--data-dir", data], more].concat(), "");
    let (_, text, _) = doctor(directory.to_str().unwrap(), &[]);
    for what in ["open files", "memory", "clock", "free space", "engine", "sync latency"] {
        assert!(text.contains(what), "{text}");
    }
    let (code, text, errors) = doctor("/proc/nowhere", &["--output", "json"]);
    let findings: Value = serde_json::from_str(&text).unwrap();
    let bad = findings.as_array().unwrap().iter().find(|finding| finding["state"] == "bad").unwrap();
    assert!(bad["found"].as_str().unwrap().contains("/proc/nowhere cannot be made"), "{bad}");
    assert!(code == Some(1) && errors.contains("cannot do without"), "{errors}");
}

#[test]
fn a_shell_completes_commands_and_names() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    server.run("topic create orders --partitions 1", "");
    let (code, script, _) = MAINSTEM.run(&["generate", "completions", "bash"], "");
    assert!(code == Some(0) && script.contains("_MAINSTEM_COMPLETE"), "{script}");
    let file = parent.path().join("completion.bash");
    fs::write(&file, script).unwrap();
    // What bash does when the key is pressed behind these words.
    let complete = |words: &str| {
        let program = Path::new(env!("CARGO_BIN_EXE_mainstem"));
        let script = format!(
            "source {}; COMP_WORDS=({words} ''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9; \
             {} mainstem '' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display(),
            "$(complete -p mainstem | sed -E 's/.*-F ([^ ]+).*/\\1/')",
        );
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let output =
            std::process::Command::new("bash").args(["-c", &script]).env("PATH", path).output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
    };
    let words = complete("mainstem topic");
    assert!(words.lines().any(|word| word == "describe") && words.contains("empty"), "{words}");
    let words = complete(&format!("mainstem topic --bootstrap {} describe", server.address));
    assert!(words.lines().any(|word| word == "orders"), "{words}");
    server.stop();
}
