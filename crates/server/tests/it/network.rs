//! The real binary on a network: several listeners, TLS, what others must not reach, and the settings that it refuses.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tempfile::TempDir;
use testing::certificates::{Authority, Files, Identity};
use testing::process::{LONG, Program};
use testing::server::{Server, small};
use wire::messages::{MetadataRequest, MetadataResponse};
use wire::{ApiKey, Bytes, Message, Reader, Text, frame};

const METADATA_VERSION: i16 = 9;

type Stream = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

const MAINSTEM: Program = Program::new(env!("CARGO_BIN_EXE_mainstem"));

fn start(directory: &Path, settings: &[&str]) -> Server {
    let mut command = small(MAINSTEM, directory);
    if !settings.iter().any(|setting| setting.starts_with("admin.listen")) {
        command.args(["--admin-listen", "127.0.0.1:0"]);
    }
    for setting in settings {
        command.args(["--set", setting]);
    }
    Server::start(MAINSTEM, command)
}

/// The exit code and the message of a server that does not start.
fn refusal(directory: &Path, settings: &[&str]) -> (Option<i32>, String) {
    let mut command = MAINSTEM.command(&["--data-dir", directory.to_str().unwrap()]);
    if !settings.iter().any(|setting| setting.starts_with("admin.listen")) {
        command.args(["--admin-listen", ""]);
    }
    for setting in settings {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty());
    let errors = String::from_utf8(output.stderr).unwrap();
    let last = errors.lines().last().unwrap_or_default().to_owned();
    (output.status.code(), last)
}

#[test]
fn a_file_is_checked_as_a_start_checks_it() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("server.properties");
    let check = |text: &str| {
        fs::write(&path, text).unwrap();
        MAINSTEM.run(&["config", "--check", path.to_str().unwrap()], "")
    };
    let open = "process.roles=broker\nlisteners=PLAINTEXT://:29092\n";
    let (code, _, errors) = check(open);
    assert!(code == Some(2) && errors.contains("can be reached from other machines"), "{errors}");
    let (code, said, errors) = check(&format!("{open}allow.insecure.listeners=true\n"));
    assert!(code == Some(0) && said.ends_with("the file can be used\n"), "{errors}");
    let (code, _, errors) = check("listeners=SSL://127.0.0.1:0\nssl.keystore.location=/none.pem\n");
    assert!(code == Some(2) && errors.contains("/none.pem"), "{errors}");
}

/// The host and port in the answer to Metadata.
fn told(mut stream: impl Read + Write) -> (String, i32) {
    let request = MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() };
    let client = Text::from_static("test");
    let bytes =
        frame::encode_request(ApiKey::Metadata, METADATA_VERSION, 1, Some(&client), &request).unwrap();
    stream.write_all(&bytes.to_bytes()).unwrap();
    stream.flush().unwrap();
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    let mut answer = vec![0; usize::try_from(u32::from_be_bytes(size)).unwrap()];
    stream.read_exact(&mut answer).unwrap();
    // Skip the correlation id and the tagged fields of the header.
    let mut reader = Reader::new(Bytes::from(answer).slice(5..));
    let response = MetadataResponse::decode(&mut reader, METADATA_VERSION).unwrap();
    (response.brokers[0].host.to_string(), response.brokers[0].port)
}

/// A key store for `localhost` and its authority, as PEM files.
fn keys(directory: &Path) -> (String, String) {
    let files = Files::make(directory, "one");
    (files.store.display().to_string(), files.authority.display().to_string())
}

/// A TLS connection. The client uses the server's key store as its own.
fn secured(address: &str, store: &str, authorities: &str) -> Stream {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authorities).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(store).unwrap()];
    let key = PrivateKeyDer::from_pem_file(store).unwrap();
    connect(address, trusting(roots).with_client_auth_cert(chain, key).unwrap())
}

/// A TLS connection of a client that shows no certificate.
fn unidentified(address: &str, authority: &Authority) -> Stream {
    connect(address, trusting(authority.roots()).with_no_client_auth())
}

fn trusting(roots: rustls::RootCertStore) -> rustls::ConfigBuilder<rustls::ClientConfig, WantsClientCert> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    config.unwrap().with_root_certificates(roots)
}

fn connect(address: &str, config: rustls::ClientConfig) -> Stream {
    let name = ServerName::try_from("localhost").unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    rustls::StreamOwned::new(client, TcpStream::connect(address).unwrap())
}

#[test]
fn each_listener_tells_its_own_address_and_has_its_own_bounds() {
    let parent = TempDir::new().unwrap();
    let (store, authorities) = keys(parent.path());
    let server = start(
        &parent.path().join("data"),
        &[
            // On all addresses, which is safe with client certificates.
            "listeners=SSL://0.0.0.0:0,INSIDE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "listener.security.protocol.map=INSIDE:PLAINTEXT",
            "advertised.listeners=SSL://broker.example.com:9093,INSIDE://inside:9",
            "listener.name.inside.socket.request.max.bytes=1024",
            "ssl.client.auth=required",
            &format!("ssl.keystore.location={store}"),
            &format!("ssl.truststore.location={authorities}"),
        ],
    );
    let (inside, plain) = (server.address_of("INSIDE"), server.address_of("PLAINTEXT"));
    assert_eq!(told(TcpStream::connect(&inside).unwrap()), ("inside".into(), 9));
    let (host, port) = plain.rsplit_once(':').unwrap();
    assert_eq!(told(TcpStream::connect(&plain).unwrap()), (host.into(), port.parse().unwrap()));
    let ssl = server.address_of("SSL").replace("0.0.0.0", "127.0.0.1");
    assert_eq!(told(secured(&ssl, &store, &authorities)), ("broker.example.com".into(), 9093));
    for (address, closed) in [(&inside, true), (&plain, false)] {
        let mut stream = TcpStream::connect(address).unwrap();
        // Only a missing answer takes the whole time.
        stream.set_read_timeout(Some(if closed { LONG } else { Duration::from_millis(300) })).unwrap();
        stream.write_all(&2000i32.to_be_bytes()).unwrap();
        assert_eq!(stream.read(&mut [0]).is_ok_and(|count| count == 0), closed, "{address}");
    }
    let metrics = server.ask("/metrics");
    assert!(metrics.contains("\nmainstem_tls_handshakes_failed_total 0\n"), "{metrics}");
    assert!(metrics.contains("\nmainstem_connections_unauthenticated 0\n"), "{metrics}");
}

/// Waits until a listener shows a certificate of this authority.
fn until_shown(address: &str, authority: &Authority) {
    let until = Instant::now() + LONG;
    loop {
        let mut stream = unidentified(address, authority);
        match stream.conn.complete_io(&mut stream.sock) {
            Ok(_) => break,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn keys_and_bounds_of_one_listener_are_changed_while_the_server_runs() {
    let parent = TempDir::new().unwrap();
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let (one, two) = (first.sign("localhost"), second.sign("localhost"));
    let store_of = |identity: &Identity, name: &str| {
        let path = parent.path().join(name);
        fs::write(&path, identity.pem()).unwrap();
        path.display().to_string()
    };
    let (store, other) = (store_of(&one, "one.pem"), store_of(&two, "two.pem"));
    let settings = [
        "listeners=SSL://127.0.0.1:0,INLINE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map=INLINE:SSL",
        &format!("listener.name.ssl.ssl.keystore.location={store}"),
        &format!("listener.name.inline.ssl.keystore.key={}", one.key),
        &format!("listener.name.inline.ssl.keystore.certificate.chain={}", one.certificate),
        // Only a change of the setting is noticed in time.
        "ssl.reload.interval.ms=3600000",
    ];
    let data = parent.path().join("data");
    let broker = |server: &Server, arguments: &[&str]| {
        let bootstrap = server.address_of("PLAINTEXT");
        MAINSTEM.run(&[&["broker"], arguments, &["--bootstrap-server", &bootstrap]].concat(), "")
    };
    let change = |server: &Server, changes: &[String]| {
        let changes = changes.iter().flat_map(|change| ["--config", change]);
        let (code, _, errors) =
            broker(server, &[&["alter", "1"], changes.collect::<Vec<_>>().as_slice()].concat());
        if code == Some(0) { String::new() } else { errors }
    };
    let server = start(&data, &settings);
    let name = "listener.name.ssl.ssl.keystore.location";
    until_shown(&server.address_of("SSL"), &first);
    for (wrong, why) in [
        (format!("{name}=/nowhere.pem"), "/nowhere.pem: No such file"),
        ("listener.name.none.max.connections=1".into(), "there is no listener NONE"),
        (format!("ssl.keystore.location={other}"), "using the listener prefix: [ssl.keystore.location]"),
        ("listener.name.ssl.ssl.client.auth=none".into(), "Cannot update these configs dynamically"),
        (
            "listener.name.ssl.max.connections=-1".into(),
            "configuration max.connections: Value must be at least 0",
        ),
    ] {
        let error = change(&server, &[wrong]);
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(change(&server, &[format!("{name}={other}")]), "");
    until_shown(&server.address_of("SSL"), &second);
    server.stop();
    let server = start(&data, &settings);
    let mut stream = unidentified(&server.address_of("SSL"), &second);
    stream.conn.complete_io(&mut stream.sock).expect("the change holds from the first connection on");
    assert_eq!(change(&server, &[format!("{name}=")]), "");
    until_shown(&server.address_of("SSL"), &first);

    // The key itself, which nobody is shown.
    let prefix = "listener.name.inline.ssl.keystore";
    until_shown(&server.address_of("INLINE"), &first);
    let key = format!("{prefix}.key={}", two.key);
    let error = change(&server, std::slice::from_ref(&key));
    assert!(error.contains("do not go together") && !error.contains("PRIVATE KEY"), "{error}");
    assert_eq!(change(&server, &[key, format!("{prefix}.certificate.chain={}", two.certificate)]), "");
    until_shown(&server.address_of("INLINE"), &second);
    let (code, said, errors) = broker(&server, &["config", "1"]);
    assert!(code == Some(0) && said.contains(&format!("{prefix}.key")), "{said}{errors}");
    assert!(!said.contains("PRIVATE KEY") && !said.contains("CERTIFICATE"), "{said}");

    let held = TcpStream::connect(server.address_of("INLINE")).unwrap();
    assert_eq!(change(&server, &["listener.name.inline.max.connections=1".into()]), "");
    let mut refused = TcpStream::connect(server.address_of("INLINE")).unwrap();
    refused.set_read_timeout(Some(LONG)).unwrap();
    assert!(refused.read(&mut [0]).is_ok_and(|count| count == 0));
    assert_eq!(change(&server, &["listener.name.inline.max.connections=".into()]), "");
    until_shown(&server.address_of("INLINE"), &second);
    drop(held);

    // A file that is gone concerns its listener alone. With the keys of the start, that listener could let in whom it should not.
    assert_eq!(change(&server, &[format!("{name}={other}")]), "");
    fs::remove_file(&other).unwrap();
    assert_eq!(change(&server, &["log.retention.ms=5".into()]), "");
    let error = change(&server, &["listener.name.ssl.max.connections=9".into()]);
    assert!(error.contains("two.pem: No such file"), "{error}");
    server.stop();
    let (code, error) = refusal(&data, &settings);
    assert!(code == Some(1) && error.contains("a client has set") && error.contains("two.pem"), "{error}");
    let mut without = settings;
    without[0] = "listeners=INLINE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0";
    without[2] = "num.partitions=1";
    let server = start(&data, &without);
    until_shown(&server.address_of("INLINE"), &second);
    assert_eq!(change(&server, &[format!("{name}=")]), "", "of a listener that is no longer there");
}

#[test]
fn what_others_could_read_or_use_is_refused_unless_it_is_said_to_be_meant() {
    let parent = TempDir::new().unwrap();
    let data = parent.path().join("data");
    let (store, _) = keys(parent.path());
    let store = format!("ssl.keystore.location={store}");
    let (code, error) = refusal(&data, &["listen=0.0.0.0:0"]);
    let expected = "mainstem: listen = 0.0.0.0:0 (flag --set): the listener PLAINTEXT (PLAINTEXT) can be reached from other \
                    machines and neither encrypts nor authenticates: use SASL_SSL, or SSL with ssl.client.auth=required. On a \
                    network that nobody else can reach, set allow.insecure.listeners=true";
    assert_eq!((code, error.as_str()), (Some(2), expected));
    let (code, error) = refusal(&data, &["listeners=SSL://[::]:0", &store]);
    assert!(
        code == Some(2) && error.contains("does not authenticate its clients: set ssl.client.auth=required"),
        "{error}"
    );
    let (code, error) = refusal(&data, &["admin.listen=0.0.0.0:0", "listen=127.0.0.1:0"]);
    assert!(
        code == Some(2) && error.starts_with("mainstem: admin.listen = 0.0.0.0:0 (flag --set): "),
        "{error}"
    );
    assert!(error.contains("needs admin.token"), "{error}");
    let (code, error) =
        refusal(&data, &["listeners=SSL://127.0.0.1:0", "ssl.keystore.location=/nowhere/k.pem"]);
    assert!(
        code == Some(1) && error.contains("ssl.keystore.location = /nowhere/k.pem: No such file"),
        "{error}"
    );

    let open =
        ["listen=0.0.0.0:0", "allow.insecure.listeners=true", "admin.listen=0.0.0.0:0", "admin.token=s3cret"];
    let mut server = start(&data, &open);
    server.admin = server.admin.replace("0.0.0.0", "127.0.0.1");
    assert!(server.ask("/metrics").starts_with("HTTP/1.1 401 "));
    assert!(server.ask_with("/metrics", "Authorization: Bearer s3cret\r\n").starts_with("HTTP/1.1 200 "));
    assert!(server.ask("/readyz").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_data_directory_that_others_can_change_is_refused() {
    let parent = TempDir::new().unwrap();
    let data = parent.path().join("data");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    drop(start(&data, &["listen=127.0.0.1:0"]));
    assert_eq!((mode(&data), mode(&data.join("meta.redb"))), (0o700, 0o600));
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    let (code, error) = refusal(&data, &["listen=127.0.0.1:0"]);
    let shown = data.display();
    let expected = format!(
        "mainstem: the data directory {shown} can be written to by other users (mode 0777); `chmod 700 {shown}` shuts them out, \
         or name a directory in it that the server is to create, such as {shown}/mainstem"
    );
    assert_eq!((code, error), (Some(1), expected));
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
    let log = parent.path().join("log");
    fs::create_dir(&log).unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o770)).unwrap();
    let (code, error) = refusal(&data, &["listen=127.0.0.1:0", &format!("log.dirs={}", log.display())]);
    assert!(code == Some(1) && error.contains("the log directory") && error.contains("mode 0770"), "{error}");
}

/// The value of a metric without labels.
fn metric(server: &Server, name: &str) -> u64 {
    let shown = server.ask("/metrics");
    let value = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {shown}")).parse().unwrap()
}

/// Clients that take all file descriptors shut out neither probes nor those who are connected.
#[test]
fn clients_leave_file_descriptors_to_probes_and_to_the_log() {
    const KEPT_BACK: u64 = 64;
    let parent = TempDir::new().unwrap();
    let server = start(parent.path(), &[]);
    let first = TcpStream::connect(&server.address).unwrap();
    told(&first);
    let room = 40;
    let limit = Some(metric(&server, "process_open_fds") + room + KEPT_BACK);
    let process = Pid::from_raw(i32::try_from(server.process_id()).unwrap());
    prlimit(process, Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let idle: Vec<TcpStream> = (0..3 * room).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    // They are taken in one after the other, and some of them are all that there will be.
    let mut open = 0;
    while open < room - 5 {
        open = metric(&server, "mainstem_connections_open");
    }
    for _ in 0..5 {
        assert!(server.ask("/healthz").starts_with("HTTP/1.1 200 "));
        std::thread::sleep(Duration::from_millis(100));
    }
    open = metric(&server, "mainstem_connections_open");
    assert!(open < room + 10, "{open} connections");
    told(&first);
    drop(idle);
    server.run("topic create t", "");
    server.run("produce t", "a record\n");
    server.stop();
}
