//! The real binary with a listener that requires a log-in: the first user, the commands with every mechanism, and
//! refused clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sasl::testing::Provider;
use serde_json::json;
use tempfile::TempDir;
use testing::certificates::Files;
use testing::process::Program;
use testing::server::{Server, small};

const MAINSTEM: Program = Program::new(env!("CARGO_BIN_EXE_mainstem"));

/// Runs a command with this standard input. Returns whether it succeeded, and its output.
fn run(arguments: &[&str], input: &str) -> (bool, String) {
    let (code, output, errors) = MAINSTEM.run(arguments, input);
    if code == Some(0) { (true, output) } else { (false, errors) }
}

fn done(arguments: &[&str], input: &str) -> String {
    let (success, said) = run(arguments, input);
    assert!(success, "{arguments:?}: {said}");
    said
}

fn refused(arguments: &[&str]) -> String {
    let (success, said) = run(arguments, "");
    assert!(!success, "{arguments:?}: {said}");
    said
}

fn start(directory: &Path, settings: &[&str]) -> Server {
    let mut command = small(MAINSTEM, directory);
    command.args(["--admin-listen", "127.0.0.1:0"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    Server::start(MAINSTEM, command)
}

/// Runs a command against a server, with this file for its log-in.
fn ask(server: &Server, command: &str, config: Option<&Path>, input: &str) -> (bool, String) {
    let mut arguments: Vec<&str> = command.split(' ').collect();
    arguments.extend(["--bootstrap", &server.address]);
    if let Some(config) = config {
        arguments.extend(["--command-config", config.to_str().unwrap()]);
    }
    run(&arguments, input)
}

/// A properties file as for Java clients.
fn config(directory: &Path, mechanism: &str, user: &str, password: &str) -> PathBuf {
    let file = directory.join(format!("{mechanism}-{user}-{password}.properties"));
    let text = format!(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n\
         sasl.jaas.config=x.LoginModule required username=\"{user}\" password=\"{password}\";\n"
    );
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn the_first_user_is_made_without_a_server_and_makes_the_others() {
    let parent = TempDir::new().unwrap();
    let data = parent.path().join("data");
    let offline = |verb: &str| {
        let mut arguments: Vec<String> = verb.split(' ').map(str::to_owned).collect();
        arguments.extend(["--data-dir".to_owned(), data.display().to_string()]);
        arguments
    };
    let texts =
        |arguments: &Vec<String>| arguments.iter().map(String::as_str).collect::<Vec<_>>().join("\u{0}");
    let split = |joined: &str| joined.split('\u{0}').map(str::to_owned).collect::<Vec<_>>();
    let run_offline = |verb: &str, input: &str| {
        let all = split(&texts(&offline(verb)));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        run(&all, input)
    };
    let (_, why) = run_offline("user list", "");
    assert!(why.contains("there is no directory"), "{why}");
    let (success, why) = run_offline("user create admin", "");
    assert!(!success && why.contains("there is no password") && !data.exists(), "{why}");
    assert_eq!(
        run_offline("user create admin --password-file -", "topsecret\n"),
        (true, "admin can log in\n".into())
    );
    assert_eq!(
        run_offline("user list", "").1,
        "USER   MECHANISM      ITERATIONS\nadmin  SCRAM-SHA-256        8192\nadmin  SCRAM-SHA-512        8192\n"
    );

    let mechanisms = "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN";
    let server = start(&data, &["listeners=SASL_PLAINTEXT://127.0.0.1:0", mechanisms]);
    let (_, why) = run_offline("user list", "");
    assert!(why.contains("is in use by another mainstem") && why.contains("use --bootstrap"), "{why}");
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let file = config(parent.path(), mechanism, "admin", "topsecret");
        let (success, said) = ask(&server, "topic list", Some(&file), "");
        assert!(success, "{mechanism}: {said}");
        let file = config(parent.path(), mechanism, "admin", "guess");
        let (success, why) = ask(&server, "topic list", Some(&file), "");
        assert!(
            !success && why.contains("refused the log-in: SASL_AUTHENTICATION_FAILED"),
            "{mechanism}: {why}"
        );
    }
    let (success, why) = ask(&server, "topic list", None, "");
    assert!(!success && why.contains("closed"), "{why}");
    let token = parent.path().join("token");
    fs::write(&token, "abc").unwrap();
    let file = parent.path().join("token.properties");
    let text = format!(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=file://{}\n",
        token.display()
    );
    fs::write(&file, text).unwrap();
    let (_, why) = ask(&server, "topic list", Some(&file), "");
    assert!(why.contains("it takes SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, not OAUTHBEARER"), "{why}");

    let admin = config(parent.path(), "SCRAM-SHA-512", "admin", "topsecret");
    let create = "user create alice --mechanism SCRAM-SHA-256 --iterations 4096 --password-file -";
    assert_eq!(ask(&server, create, Some(&admin), "wonder land"), (true, "alice can log in\n".into()));
    let alice = config(parent.path(), "SCRAM-SHA-256", "alice", "wonder land");
    assert!(ask(&server, "topic create t", Some(&alice), "").0);
    assert!(ask(&server, "produce t", Some(&alice), "one\ntwo\n").0);
    assert_eq!(ask(&server, "consume t --exit-at-end", Some(&alice), "").1, "one\ntwo\n");
    // The user has another password from now on.
    assert!(ask(&server, create, Some(&admin), "mirror").0);
    assert!(!ask(&server, "topic list", Some(&alice), "").0);
    let alice = config(parent.path(), "PLAIN", "alice", "mirror");
    assert!(ask(&server, "topic list", Some(&alice), "").0);
    assert!(ask(&server, "user list", Some(&admin), "").1.contains("\nalice  SCRAM-SHA-256        4096\n"));
    let said = ask(&server, "user delete admin --mechanism SCRAM-SHA-512", Some(&admin), "");
    assert_eq!(said, (true, "admin can still log in\n".into()));
    assert_eq!(
        ask(&server, "user delete alice", Some(&alice), ""),
        (true, "alice can no longer log in\n".into())
    );
    assert!(!ask(&server, "topic list", Some(&alice), "").0);
    let admin = config(parent.path(), "SCRAM-SHA-256", "admin", "topsecret");
    let (_, why) = ask(&server, "user delete alice", Some(&admin), "");
    assert!(why.contains("there is no user alice"), "{why}");
    let metrics = server.ask("/metrics");
    for (mechanism, outcome) in [
        ("SCRAM-SHA-256", "success"),
        ("PLAIN", "failure"),
        ("SCRAM-SHA-512", "failure"),
        ("none", "failure"),
    ] {
        let line =
            format!("mainstem_authentications_total{{mechanism=\"{mechanism}\",outcome=\"{outcome}\"}} ");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    server.stop();

    assert_eq!(run_offline("user delete admin", "").1, "admin can no longer log in\n");
    assert_eq!(run_offline("user list", "").1, "USER  MECHANISM  ITERATIONS\n");
}

#[test]
fn passwords_come_from_the_environment_too_and_never_from_arguments() {
    let parent = TempDir::new().unwrap();
    let data = parent.path().join("data").display().to_string();
    let output = MAINSTEM
        .command(&["user", "create", "bob", "--data-dir", &data])
        .env("MAINSTEM_PASSWORD", "secret")
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(
        refused(&["user", "create", "bob", "secret", "--data-dir", &data]).contains("unexpected argument")
    );
    assert!(refused(&["user", "create", "bob", "--data-dir", &data, "--iterations", "100"]).contains("4096"));
    let file = parent.path().join("empty");
    fs::write(&file, "\n").unwrap();
    let file = file.display().to_string();
    let why = refused(&["user", "create", "bob", "--data-dir", &data, "--password-file", &file]);
    assert!(why.contains("the password is empty"), "{why}");
    assert!(done(&["user", "list", "--data-dir", &data], "").contains("bob"));
}

/// The certificate of a new authority, and a key with a certificate of this authority for `localhost`, as PEM files.
fn certificates(directory: &Path, name: &str) -> (String, String) {
    let files = Files::make(directory, name);
    (files.authority.display().to_string(), files.store.display().to_string())
}

/// A server refuses a log beside metadata that does not know it, so looking must not make some.
#[test]
fn looking_for_users_makes_no_metadata() {
    let parent = TempDir::new().unwrap();
    let data = parent.path().display().to_string();
    for arguments in
        [&["user", "list", "--data-dir", &data][..], &["user", "delete", "bob", "--data-dir", &data]]
    {
        assert!(refused(arguments).contains("there is no metadata"));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}

#[test]
fn commands_log_in_over_tls_with_a_password_or_a_token() {
    let parent = TempDir::new().unwrap();
    let data = parent.path().join("data");
    let made = ["user", "create", "alice", "--data-dir", data.to_str().unwrap(), "--password-file", "-"];
    done(&made, "secret");
    let (authority, store) = certificates(parent.path(), "one");
    let (stranger, _) = certificates(parent.path(), "two");
    let provider = Provider::new(false);
    let keys = parent.path().join("keys.json");
    fs::write(&keys, provider.document("one")).unwrap();
    let settings = [
        "listeners=SASL_SSL://localhost:0".to_owned(),
        format!("ssl.keystore.location={store}"),
        "sasl.enabled.mechanisms=SCRAM-SHA-256,OAUTHBEARER".to_owned(),
        format!("sasl.oauthbearer.jwks.endpoint.url=file://{}", keys.display()),
        "sasl.oauthbearer.expected.audience=mainstem".to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let mut server = start(&data, &settings);
    let port = server.address.rsplit_once(':').unwrap().1;
    server.address = format!("localhost:{port}");
    let file = |name: &str, authority: &str, rest: &str| {
        let file = parent.path().join(name);
        let tls = "security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location=";
        fs::write(&file, format!("{tls}{authority}\n{rest}")).unwrap();
        file
    };
    let scram =
        "sasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=x required username=\"alice\" password=\"secret\";\n";
    let good = file("good", &authority, scram);
    assert!(ask(&server, "topic create t", Some(&good), "").0);
    assert!(ask(&server, "produce t", Some(&good), "one\n").0);
    let (_, why) = ask(&server, "topic list", Some(&file("other", &stranger, scram)), "");
    assert!(why.contains("invalid peer certificate"), "{why}");

    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let token = |name: &str, audience: &str| {
        let claims = json!({"sub": "carol", "iat": now, "exp": now + 600, "aud": audience});
        let path = parent.path().join(name);
        fs::write(&path, provider.sign(&json!({"alg": "ES256", "kid": "one"}), &claims)).unwrap();
        let url = format!("sasl.oauthbearer.token.endpoint.url=file://{}", path.display());
        file(&format!("{name}.properties"), &authority, &format!("sasl.mechanism=OAUTHBEARER\n{url}\n"))
    };
    assert_eq!(ask(&server, "consume t --exit-at-end", Some(&token("a", "mainstem")), "").1, "one\n");
    let (success, why) = ask(&server, "topic list", Some(&token("b", "others")), "");
    assert!(!success && why.contains("invalid_token"), "{why}");
    server.stop();
}
