//! The real binary: its start, its output, its stop, and the small commands against it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use testing::process::{LONG, Program, outcome, text};
use testing::server::{Server, small};
use wire::messages::ConsumerGroupHeartbeatRequest;
use wire::{ApiKey, Text, frame};

use super::terminal::on_terminal;

const MAINSTEM: Program = Program::new(env!("CARGO_BIN_EXE_mainstem"));

fn mainstem(arguments: &[&str]) -> Command {
    MAINSTEM.command(arguments)
}

fn start(directory: &Path, more: &[&str]) -> Server {
    let mut command = small(MAINSTEM, directory);
    command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    command.args(["--set", "group.initial.rebalance.delay.ms=0"]).args(more);
    Server::start(MAINSTEM, command)
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn it_says_when_it_is_ready_and_ends_on_sigterm() {
    let parent = TempDir::new().unwrap();
    let directory = parent.path().join("data");
    let server = start(&directory, &["--set", "ready.message=Server started\nby a script"]);
    let expected = format!(
        "mainstem is ready on {} (data {}, admin {})",
        server.address,
        directory.display(),
        server.admin
    );
    assert_eq!(server.ready, expected);
    assert_eq!([server.next_line(), server.next_line()], ["Server started", "by a script"]);
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(server.ask("/healthz").starts_with("HTTP/1.1 200 "));
    assert!(server.ask("/readyz").starts_with("HTTP/1.1 200 "));
    let metrics = server.ask("/metrics");
    for name in ["process_resident_memory_bytes ", "mainstem_connections_open 0", "mainstem_build_info{"] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "{name} in {metrics}");
    }
    let (_, body) = metrics.split_once("\r\n\r\n").unwrap();
    let series = body.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < 300, "an empty server shows {series} series: {body}");
    // An idle client does not delay the stop.
    let mut idle = TcpStream::connect(&server.address).unwrap();
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(idle.read(&mut [0]).unwrap_or(0), 0);
}

/// Every metric of a server is in the table of the page, and every metric in the table is in the source.
#[test]
fn the_documents_name_all_metrics() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/metrics.md")).unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<String>>();
    let told: BTreeMap<String, Vec<String>> = page
        .lines()
        // The page also has a table of labels, with fewer columns.
        .filter(|line| line.starts_with("| `") && cells(line).len() == 6)
        .map(|line| (cells(line)[1].trim_matches('`').to_owned(), cells(line)[2..5].to_vec()))
        .collect();
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    server.run("topic create t", "");
    server.run("produce t", "hello\n");
    server.run("consume t --group g --count 1", "");
    let shown = server.ask_with("/metrics", "Accept: application/openmetrics-text\r\n");
    let mut count = 0;
    let mut name = "";
    for line in shown.lines() {
        if let Some((of, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            (name, count) = (of, count + 1);
            let row = told.get(name).unwrap_or_else(|| panic!("{name} is not in docs/metrics.md: {help}"));
            assert_eq!(row[2], help.trim_end_matches('.'), "{name}");
        } else if let Some((of, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert_eq!(told[of][0], kind, "{of}");
        } else if let Some((_, labels)) = line.split_once('{') {
            for label in labels.split(',').filter_map(|label| Some(label.split_once("=\"")?.0)) {
                assert!(label == "le" || told[name][1].contains(&format!("`{label}`")), "{name} has {label}");
            }
        }
    }
    assert!(count > 30, "{shown}");
    let sources = [
        "crates/broker/src/metrics.rs",
        "crates/broker/src/collector/mod.rs",
        "crates/broker/src/collector/topics.rs",
        "crates/server/src/listener_collector.rs",
        "crates/server/src/admin.rs",
        "crates/server/src/process.rs",
        "crates/server/src/sasl/report.rs",
    ];
    let sources: String = sources.iter().map(|path| fs::read_to_string(root.join(path)).unwrap()).collect();
    for name in told.keys() {
        assert!(sources.contains(&format!("\"{name}\"")), "{name} is in docs/metrics.md and nowhere else");
    }
    server.stop();
}

#[test]
fn two_servers_cannot_share_a_directory_or_a_port() {
    let parent = TempDir::new().unwrap();
    let directory = parent.path().join("data");
    let server = start(&directory, &[]);
    let shown = directory.display().to_string();
    let second = mainstem(&["--data-dir", &shown, "--listen", "127.0.0.1:0", "--admin-listen", ""]).output();
    let pid = server.process_id();
    assert_eq!(
        outcome(&second.unwrap()),
        (
            Some(1),
            String::new(),
            format!("mainstem: the data directory {shown} is in use by another mainstem (pid {pid})\n")
        )
    );
    let other = parent.path().join("other").display().to_string();
    let second =
        mainstem(&["--data-dir", &other, "--listen", &server.address, "--admin-listen", ""]).output();
    let message =
        format!("mainstem: cannot listen on {}: another process listens there already\n", server.address);
    assert_eq!(outcome(&second.unwrap()), (Some(1), String::new(), message));
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let arguments = ["--data-dir", &other, "--listen", "127.0.0.1:0", "--admin-listen", &taken];
    let (code, _, errors) = outcome(&mainstem(&arguments).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(errors.contains("admin.listen") && errors.contains(&taken), "{errors}");
    server.stop();
}

#[test]
fn a_bad_configuration_is_one_clear_message_and_code_2() {
    let parent = TempDir::new().unwrap();
    let file = parent.path().join("m.toml");
    fs::write(&file, "node.id = 1\nnum.partitons = 3\n").unwrap();
    let shown = file.display().to_string();
    let message = format!(
        "mainstem: num.partitons = 3 ({shown}:2): there is no such setting, did you mean num.partitions?\n"
    );
    for arguments in
        [&["--config", &shown][..], &["serve", "--config", &shown], &["config", "--config", &shown]]
    {
        let output = mainstem(arguments).output().unwrap();
        assert_eq!(outcome(&output), (Some(2), String::new(), message.clone()));
    }
    let output = mainstem(&[]).env("MAINSTEM_NUM_PARTITIONS", "many").output().unwrap();
    let message = "mainstem: num.partitions = many (environment variable MAINSTEM_NUM_PARTITIONS): invalid digit found in string\n";
    assert_eq!(outcome(&output), (Some(2), String::new(), message.into()));
    assert_eq!(mainstem(&["--set", "nothing"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn what_config_prints_can_be_given_back() {
    let parent = TempDir::new().unwrap();
    let (code, printed, errors) =
        outcome(&mainstem(&["config", "--set", "num.partitions=7"]).output().unwrap());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(printed.contains("\n# default: 1\nnum.partitions = 7\n"), "{printed}");
    // A default that depends on the machine is commented out.
    assert!(printed.contains("\n# log.tail.cache.bytes = "), "{printed}");
    let file = parent.path().join("m.toml");
    fs::write(&file, &printed).unwrap();
    let (_, again, _) = outcome(&mainstem(&["config", "--config", file.to_str().unwrap()]).output().unwrap());
    assert_eq!(again, printed);
    let (code, version, _) = outcome(&mainstem(&["version"]).output().unwrap());
    assert_eq!((code, version), (Some(0), format!("mainstem {}\n", env!("CARGO_PKG_VERSION"))));
    let version = json_of(&["version", "--output", "json"]).1;
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
    let set = ["--set", "num.partitions=7", "--set", "broker.rack=r"];
    let (_, shown) = json_of(&[&["config", "--diff", "--output", "json"], &set[..]].concat());
    assert_eq!(shown, json!({"num.partitions": 7, "broker.rack": "r"}));
    let (code, checked) = json_of(&["config", "--output", "json", "--check", file.to_str().unwrap()]);
    assert_eq!((code, checked), (Some(0), json!({"errors": [], "no_meaning": []})));
    fs::write(&file, "no.partitions = 1\n").unwrap();
    let (code, checked) = json_of(&["config", "--output", "json", "--check", file.to_str().unwrap()]);
    assert!(code == Some(2) && checked["errors"][0].as_str().unwrap().contains("no.partitions"), "{checked}");
}

/// The exit code and the JSON of a command.
fn json_of(arguments: &[&str]) -> (Option<i32>, Value) {
    let output = mainstem(arguments).output().unwrap();
    let shown = serde_json::from_slice(&output.stdout);
    (output.status.code(), shown.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout))))
}

#[test]
fn records_go_in_and_come_out_also_after_a_restart() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    assert_eq!(server.run("topic create orders --partitions 3", ""), "created orders with 3 partitions\n");
    let (code, _, errors) = server.try_run("topic create orders", "");
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("mainstem: TOPIC_ALREADY_EXISTS: "), "{errors}");
    let mut expected = Vec::new();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let lines: Vec<String> = (0..500).map(|number| format!("{codec} {number}")).collect();
        server.run(&format!("produce orders --compression {codec}"), &(lines.join("\n") + "\n"));
        expected.extend(lines);
    }
    server.run("produce orders --key-separator : --acks 1", "a:1\nb:2\na:3\n");
    expected.extend(["1".into(), "2".into(), "3".into()]);
    expected.sort();
    server.stop();

    let server = start(parent.path(), &[]);
    assert_eq!(sorted(&server.run("consume orders --exit-at-end", "")), expected);
    let keyed = server.run("consume orders --exit-at-end --format json", "");
    let of_a: Vec<&str> = keyed.lines().filter(|line| line.contains(r#""key":"a""#)).collect();
    assert_eq!(of_a.len(), 2);
    assert!(of_a[0].contains(r#""value":"1""#) && of_a[1].contains(r#""value":"3""#), "{of_a:?}");
    assert_eq!(server.run("consume orders --from latest --exit-at-end", ""), "");
    assert_eq!(server.run("consume orders --count 4", "").lines().count(), 4);
    let (code, _, errors) = server.try_run("consume nothing", "");
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("mainstem: UNKNOWN_TOPIC_OR_PARTITION: "), "{errors}");
    server.stop();
}

#[test]
fn a_group_goes_on_where_it_stopped_and_shows_its_lag() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    server.run("topic create orders --partitions 2", "");
    let lines: String = (0..100).map(|number| format!("{number:03}\n")).collect();
    server.run("produce orders --partition 1", &lines);
    let first = server.run("consume orders --group readers --count 40", "");
    assert_eq!(first, lines[..160]);
    let described = server.run("group describe readers", "");
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let row = described
        .lines()
        .map(cells)
        .find(|row| row.first().is_some_and(|name| name == "orders") && row[1] == "1");
    assert_eq!(row.unwrap()[2..5], ["40", "100", "60"], "{described}");
    assert_eq!(server.run("consume orders --group readers --exit-at-end", ""), lines[160..]);
    server.run("group reset readers --topic orders --to 90", "");
    assert_eq!(server.run("consume orders --group readers --exit-at-end", ""), lines[360..]);
    assert!(server.run("group list", "").contains("readers"));
    server.run("group delete readers", "");
    let (code, _, errors) = server.try_run("group describe readers", "");
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("mainstem: GROUP_ID_NOT_FOUND: "), "{errors}");
    server.stop();
}

#[test]
fn a_group_of_the_newer_protocol_is_described_and_not_reset_while_it_is_read() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    server.run("topic create orders --partitions 2", "");
    server.run("produce orders --partition 1", "a\nb\n");
    let join = ConsumerGroupHeartbeatRequest {
        group_id: Text::from_static("readers"),
        member_id: Text::from_static("somebody"),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec![Text::from_static("orders")]),
        topic_partitions: Some(Vec::new()),
        ..ConsumerGroupHeartbeatRequest::default()
    };
    let client = Text::from_static("a-client");
    let frame = frame::encode_request(ApiKey::ConsumerGroupHeartbeat, 1, 7, Some(&client), &join).unwrap();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(&frame.to_bytes()).unwrap();
    // The answer comes when the group is in the log.
    stream.read_exact(&mut [0; 8]).unwrap();
    let described = server.run("group describe readers", "");
    assert!(described.starts_with("readers: Stable, assignor uniform\n"), "{described}");
    let rows: Vec<Vec<&str>> = described.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.contains(&vec!["somebody", "a-client", "/127.0.0.1", "2"]), "{described}");
    assert!(rows.contains(&vec!["orders", "1", "-", "2", "-", "somebody"]), "{described}");
    let (code, _, errors) = server.try_run("group reset readers --topic orders --to earliest", "");
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("mainstem: NON_EMPTY_GROUP: stop its 1 members first"), "{errors}");
    server.stop();
}

#[test]
fn topics_are_listed_changed_and_deleted() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    server.run("topic create orders --config retention.ms=60000", "");
    server.run("topic add-partitions orders --total 4", "");
    server.run("topic alter orders --config retention.ms=70000 --config max.message.bytes=5000", "");
    let described = server.run("topic describe orders", "");
    let row = |name: &str| {
        described.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().skip(1)
    };
    assert_eq!(row("retention.ms").collect::<Vec<_>>(), ["70000", "set"]);
    assert_eq!(row("max.message.bytes").collect::<Vec<_>>(), ["5000", "set"]);
    let (code, _, errors) = server.try_run("produce orders", &"x".repeat(6000));
    assert_eq!(code, Some(1));
    assert!(errors.contains("MESSAGE_TOO_LARGE"), "{errors}");
    server.run("topic alter orders --config retention.ms=", "");
    let described = server.run("topic describe orders", "");
    assert!(
        described.lines().any(|line| line.split_whitespace().eq(["retention.ms", "604800000"])),
        "{described}"
    );
    let listed = server.run("topic list", "");
    assert!(listed.lines().any(|line| line.split_whitespace().eq(["orders", "4"])), "{listed}");
    server.run("topic delete orders", "");
    assert!(!server.run("topic list", "").contains("orders"));
    server.stop();
}

#[test]
fn clients_that_speak_something_else_do_it_no_harm() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &["--set", "socket.request.max.bytes=100000"]);
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0, 0, 0, 8, 255, 255, 255, 255, 0, 0, 0, 1],
        &[255; 400],
    ] {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // The connection is closed, either after an answer or by a reset.
        let _ = stream.read_to_end(&mut answer);
    }
    server.run("topic create still.well", "");
    assert!(server.ask("/healthz").starts_with("HTTP/1.1 200 "));
    server.stop();
}

/// Runs a `log` command on a directory. Returns the exit code and standard output.
fn log_command(verb: &str, directory: &Path, more: &[&str]) -> (Option<i32>, String) {
    let output =
        mainstem(&["log", verb, "--data-dir", directory.to_str().unwrap()]).args(more).output().unwrap();
    (output.status.code(), text(&output.stdout))
}

#[test]
fn long_work_shows_its_progress_on_a_terminal() {
    let parent = TempDir::new().unwrap();
    let (directory, input) = (parent.path().join("data"), parent.path().join("lines"));
    let data_dir = directory.to_str().unwrap();
    fs::write(&input, "a line of some length\n".repeat(100_000)).unwrap();
    let server = start(&directory, &[]);
    let file = input.to_str().unwrap();
    let sending = ["produce", "lines", "--file", file, "--bootstrap", &server.address];
    server.run("topic create lines --partitions 1", "");
    let (shown, _) = on_terminal(mainstem(&sending));
    assert!(shown.contains("mainstem: sending [") && shown.contains(" of 2.10 MiB"), "{shown:?}");
    // Nobody watches.
    let quiet = mainstem(&sending).output().unwrap();
    assert_eq!((quiet.status.code(), text(&quiet.stderr)), (Some(0), String::new()));
    server.stop();
    let (shown, said) = on_terminal(mainstem(&["log", "verify", "--data-dir", data_dir]));
    assert!(
        shown.contains("mainstem: verifying [") && said.ends_with("no damage; 0 notes\n"),
        "{shown:?} {said}"
    );
    let into = parent.path().join("new");
    let salvage = ["log", "salvage", "--data-dir", data_dir, "--into", into.to_str().unwrap()];
    let (shown, said) = on_terminal(mainstem(&salvage));
    assert!(shown.contains("mainstem: reading [") && shown.contains("mainstem: copying ["), "{shown:?}");
    assert!(shown.ends_with("\u{1b}[2K") && said.ends_with("nothing was dropped\n"), "{shown:?} {said}");
}

#[test]
fn a_damaged_log_is_named_and_salvaged() {
    let parent = TempDir::new().unwrap();
    let (directory, into) = (parent.path().join("data"), parent.path().join("new"));
    let server = start(&directory, &[]);
    server.run("topic create letters --partitions 1", "");
    for line in ["one\n", "two\n", "three\n"] {
        server.run("produce letters", line);
    }
    server.run("consume letters --group g --exit-at-end", "");
    let (code, shown) = log_command("inspect", &directory, &[]);
    assert!(code == Some(0) && shown.contains("letters-0"), "{shown}");
    server.stop();
    let (code, verified) = log_command("verify", &directory, &[]);
    assert!(code == Some(0) && verified.contains("no damage"), "{verified}");
    let dump = |directory: &Path| {
        log_command("dump", directory, &["--topic", "letters", "--partition", "0", "--records"])
    };
    let (code, dumped) = dump(&directory);
    assert!(code == Some(0) && dumped.contains("\"two\""), "{dumped}");
    // Damages the second batch. Its line begins with the file and the position.
    let line = dumped.lines().filter(|line| !line.starts_with(' ')).nth(1).unwrap();
    let mut words = line.split(' ');
    let file = directory.join(words.next().unwrap());
    let position: usize = words.next().unwrap().parse().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[position + 60..position + 70].fill(7);
    fs::write(&file, &bytes).unwrap();

    let refused = mainstem(&["--data-dir", directory.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let refused = { refused }.args(["--admin-listen", ""]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("`mainstem log salvage`"), "{}", text(&refused.stderr));
    let (code, verified) = log_command("verify", &directory, &[]);
    assert!(code == Some(1) && verified.contains("letters-0 offsets 1 (1 batch)"), "{verified}");
    assert_eq!(dump(&directory).0, Some(1));
    let hit = json!([{"stream": 1, "topic": "letters", "partition": 0, "from": 1, "to": 2, "batches": 1}]);
    let as_json = |verb, more: &[&str]| {
        let data_dir = ["--data-dir", directory.to_str().unwrap(), "--output", "json"];
        json_of(&[&["log", verb], &data_dir[..], more].concat())
    };
    let (code, found) = as_json("verify", &[]);
    assert_eq!((code, &found["findings"][0]["hits"]), (Some(1), &hit), "{found}");
    assert!(found["refused"].is_string() && found["errors"] != json!(0), "{found}");
    let (code, found) = as_json("salvage", &["--into", parent.path().join("other").to_str().unwrap()]);
    assert_eq!((code, &found["dropped"][0]["hits"]), (Some(1), &hit), "{found}");
    assert_eq!((&found["dropped_offsets"], &found["dropped_exact"]), (&json!(1), &json!(true)), "{found}");
    assert_eq!(as_json("inspect", &[]).1["streams"][0]["topic"], "letters");
    let (_, dumped) = log_command(
        "dump",
        &directory,
        &["--topic", "letters", "--partition", "0", "--records", "--output", "json"],
    );
    let dumped: Vec<Value> = dumped.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let values: Vec<&Value> = dumped.iter().filter_map(|entry| entry.pointer("/records/0/value")).collect();
    assert_eq!(values, ["one", "three"], "{dumped:?}");
    assert!(dumped.iter().any(|entry| entry["damage"]["what"].is_string()), "{dumped:?}");
    let (code, salvaged) = log_command("salvage", &directory, &["--into", into.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{salvaged}");
    assert!(salvaged.contains("letters-0 offsets 1 (1 batch)"), "{salvaged}");
    assert!(salvaged.contains("dropped 1 offsets in 1 batches, at 1 places"), "{salvaged}");
    assert_eq!(fs::read(&file).unwrap(), bytes, "the source is not touched");

    assert_eq!(log_command("verify", &into, &[]).0, Some(0));
    let server = start(&into, &[]);
    assert_eq!(server.run("consume letters --exit-at-end", ""), "one\nthree\n");
    server.run("produce letters", "four\n");
    assert_eq!(server.run("consume letters --group g --exit-at-end", ""), "four\n");
    server.stop();
    assert_eq!(log_command("verify", &parent.path().join("none"), &[]).0, Some(2));
}

/// What the commands find is JSON for those who ask for that, and what one command prints another takes.
#[test]
fn records_keep_their_keys_headers_and_times_through_json() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    let json = |arguments: &str| -> serde_json::Value {
        serde_json::from_str(&server.run(&format!("{arguments} --output json"), "")).unwrap()
    };
    assert_eq!(json("topic create a --partitions 2"), serde_json::json!({"created": "a", "partitions": 2}));
    let dry = serde_json::json!({"created": null, "topic": "b", "partitions": 2});
    assert_eq!(json("topic create b --partitions 2 --dry-run"), dry);
    server.run("topic create b --partitions 2", "");
    let given = "--key-separator : --null NULL --header kind=old --timestamp 1700000000000 --partition 1";
    server.run(&format!("produce a {given}"), "k:v\nk:NULL\n");
    let file = parent.path().join("value");
    fs::write(&file, b"two\nlines\xff").unwrap();
    server.run(&format!("produce a --partition 0 --key whole --value-file {}", file.display()), "");
    let printed = server.run("consume a --exit-at-end --output json", "");
    server.run("produce b --input json", &printed);
    let again = server.run("consume b --exit-at-end --format json", "");
    assert_eq!(again, printed.replace("\"topic\":\"a\"", "\"topic\":\"b\""));
    assert!(again.contains(r#""value_hex":"74776f0a6c696e6573ff""#), "{again}");
    assert!(again.contains(r#""headers":[{"name":"kind","value":"old"}],"key":"k","offset":1"#), "{again}");
    let by_template =
        server.run("consume b --partition 1 --exit-at-end --template %p/%o_%T_%k=%s(%S)_%h\\n", "");
    assert_eq!(by_template, "1/0_1700000000000_k=v(1)_kind=old\n1/1_1700000000000_k=(-1)_kind=old\n");
    let (code, _, errors) = server.try_run("produce b --input json", "{\"valeu\":1}\n");
    assert!(code == Some(1) && errors.contains("line 1: there is no field valeu"), "{errors}");
    let partitions = &json("topic describe b")["partitions"];
    assert_eq!((&partitions[1]["end"], &partitions[1]["in_sync"]), (&2.into(), &serde_json::json!([1])));
    server.stop();
}

#[test]
fn offsets_are_set_by_time_by_shift_and_for_single_partitions() {
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    server.run("topic create t --partitions 2", "");
    for partition in 0..2 {
        for time in [1000, 2000, 3000] {
            server.run(&format!("produce t --partition {partition} --timestamp {time}"), "x\n");
        }
    }
    assert_eq!(server.run("consume t --partition 0 --from @2000 --to 2 --template %o", ""), "1");
    assert_eq!(server.run("consume t --partition 0 --from 1 --to @3000 --template %o", ""), "1");
    assert_eq!(server.run("consume t --partition 0 --from @1000 --to latest --template %o", ""), "012");
    let (code, _, errors) = server.try_run("consume t --partition 0 --from 9", "");
    assert!(
        code == Some(1) && errors.contains("partition 0 of t has no offset 9, it holds 0 to 3"),
        "{errors}"
    );
    let reset = |arguments: &str| -> Vec<(i64, serde_json::Value, i64)> {
        let text = server.run(&format!("group reset g --topic t {arguments} --output json"), "");
        let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
        let row = |row: &serde_json::Value| {
            (row["partition"].as_i64().unwrap(), row["before"].clone(), row["committed"].as_i64().unwrap())
        };
        rows.as_array().unwrap().iter().map(row).collect()
    };
    let none = serde_json::Value::Null;
    assert_eq!(reset("--to @2000 --dry-run"), [(0, none.clone(), 1), (1, none.clone(), 1)]);
    assert_eq!(reset("--to @2000 --partition 1"), [(1, none, 1)]);
    assert_eq!(reset("--by 1"), [(1, 1.into(), 2)]);
    assert_eq!(reset("--by -5"), [(1, 2.into(), 0)]);
    assert_eq!(reset("--to @9000"), [(0, serde_json::Value::Null, 3), (1, 0.into(), 3)]);
    assert_eq!(reset("--to -1h").len(), 2);
    server.stop();
}
