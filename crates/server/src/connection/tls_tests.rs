//! Tests of the connection loop over TLS, with a rustls client.

use std::io::ErrorKind;
use std::sync::Arc;

use bytes::BytesMut;
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;
use testing::certificates::{Authority, Identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tests::{LONG, Server, framed, until};
use super::*;
use crate::listener::{Bounds, Tls};
use crate::principal_mapping::MappingRules;
use crate::settings::ClientAuthentication;
use crate::tls::tests::{client_config, key_store, ssl_settings};
use crate::tls::{HANDSHAKE_BYTES_MAX, Keys};

/// A server with TLS, and the keys for its clients.
struct Secured {
    server: Server,
    authority: Authority,
    keys: Arc<Keys>,
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl Secured {
    async fn start(authentication: ClientAuthentication, change: impl FnOnce(&mut Bounds)) -> Secured {
        let authority = Authority::new("ca");
        let (directory, path) = key_store(&authority.sign("server"));
        let asks = authentication != ClientAuthentication::None;
        let mut settings = ssl_settings(&path, asks.then_some(&authority));
        settings.client_authentication = authentication;
        let keys = Arc::new(Keys::load("TEST", &settings).unwrap());
        let rules = MappingRules::parse("RULE:^CN=boss,.*$/boss/,DEFAULT").unwrap();
        let tls = Tls { keys: keys.clone(), rules };
        let server = Server::start(|bounds| {
            bounds.tls = Some(tls);
            change(bounds);
        })
        .await;
        Secured { server, authority, keys, path, _directory: directory }
    }

    async fn plain() -> Secured {
        Secured::start(ClientAuthentication::None, |_| {}).await
    }

    async fn connect(&self, config: rustls::ClientConfig) -> std::io::Result<Client> {
        self.connect_with(Arc::new(config)).await
    }

    async fn connect_with(&self, config: Arc<rustls::ClientConfig>) -> std::io::Result<Client> {
        let tcp = TcpStream::connect(self.server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        timeout(LONG, TlsConnector::from(config).connect(name, tcp)).await.unwrap().map(Client)
    }

    async fn client(&self) -> Client {
        self.connect(client_config(&self.authority, None)).await.unwrap()
    }

    fn handshakes_failed(&self) -> u64 {
        self.server.bounds.shared.counters.handshakes_failed.get()
    }

    async fn all_gone(&self) {
        until(|| self.server.bounds.shared.counters.open.get() == 0).await;
        until(|| self.server.held_bytes() == 0).await;
        assert_eq!(self.server.bounds.shared.lobby.len(), 0);
    }
}

#[derive(Debug)]
struct Client(TlsStream<TcpStream>);

impl Client {
    async fn send(&mut self, body: &[u8]) {
        self.0.write_all(&framed(body)).await.unwrap();
        self.0.flush().await.unwrap();
    }

    async fn receive(&mut self) -> std::io::Result<BytesMut> {
        let read = async {
            let size = self.0.read_u32().await?;
            let mut body = BytesMut::zeroed(usize::try_from(size).unwrap());
            self.0.read_exact(&mut body).await?;
            Ok(body)
        };
        timeout(LONG, read).await.expect("the server answers or closes")
    }

    async fn name(&mut self) -> String {
        self.send(b"i").await;
        String::from_utf8(self.receive().await.unwrap().to_vec()).unwrap()
    }
}

#[tokio::test]
async fn answers_come_in_order_whatever_their_size_and_cut_in_both_versions() {
    let secured = Secured::plain().await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = config.with_root_certificates(secured.authority.roots()).with_no_client_auth();
        let client = secured.connect(config).await.unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        let bodies: Vec<Vec<u8>> = (0..200)
            .map(|number: u8| {
                let size = match random.u8(0..8) {
                    0 => random.usize(0..400_000),
                    1 => 16 * 1024 - 8 + random.usize(0..16),
                    _ => random.usize(0..256),
                };
                std::iter::once(b'e').chain((0..size).map(|at| number ^ at.to_le_bytes()[0])).collect()
            })
            .collect();
        let stream: Vec<u8> = bodies.iter().flat_map(|body| framed(body)).collect();
        let (mut reader, mut writer) = tokio::io::split(client.0);
        let send = async {
            let mut rest = &stream[..];
            let mut cut = 1;
            while !rest.is_empty() {
                cut = (cut * 7 + 3) % 70_021;
                let (now, later) = rest.split_at(cut.min(rest.len()));
                writer.write_all(now).await.unwrap();
                writer.flush().await.unwrap();
                rest = later;
            }
        };
        let receive = async {
            for body in &bodies {
                let size = usize::try_from(reader.read_u32().await.unwrap()).unwrap();
                let mut answer = vec![0; size];
                reader.read_exact(&mut answer).await.unwrap();
                assert!(answer == *body, "answers in order");
            }
        };
        timeout(LONG * 3, async { tokio::join!(send, receive) }).await.unwrap();
        until(|| secured.server.held_bytes() == 0).await;
    }
}

#[tokio::test]
async fn a_client_is_who_its_certificate_says() {
    let secured = Secured::start(ClientAuthentication::Required, |_| {}).await;
    let with = |identity: &Identity| client_config(&secured.authority, Some(identity));
    let mut ops = secured.connect(with(&secured.authority.sign("ops"))).await.unwrap();
    assert_eq!(ops.name().await, "CN=ops,O=Test");
    let mut boss = secured.connect(with(&secured.authority.sign("boss"))).await.unwrap();
    assert_eq!(boss.name().await, "boss");
    // With TLS 1.3, a client learns only by reading that its certificate was refused.
    let other = Authority::new("other");
    let forged = other.sign("ops");
    let mut refused = secured.connect(with(&forged)).await.unwrap();
    assert!(refused.receive().await.unwrap_err().to_string().contains("UnknownCA"));
    let mut nobody = secured.client().await;
    assert!(nobody.receive().await.unwrap_err().to_string().contains("CertificateRequired"));
    until(|| secured.handshakes_failed() == 2).await;
    drop((ops, boss, refused, nobody));
    secured.all_gone().await;
}

#[tokio::test]
async fn without_a_certificate_a_client_is_anonymous_where_that_may_be() {
    let secured = Secured::start(ClientAuthentication::Requested, |_| {}).await;
    assert_eq!(secured.client().await.name().await, "ANONYMOUS");
    let identity = secured.authority.sign("ops");
    let mut ops = secured.connect(client_config(&secured.authority, Some(&identity))).await.unwrap();
    assert_eq!(ops.name().await, "CN=ops,O=Test");
    let forged = Authority::new("other").sign("ops");
    let mut refused = secured.connect(client_config(&secured.authority, Some(&forged))).await.unwrap();
    assert!(refused.receive().await.is_err(), "a certificate that is not trusted is no certificate at all");
}

#[tokio::test]
async fn a_certificate_that_fits_no_rule_ends_the_connection() {
    let rules = MappingRules::parse("RULE:^CN=ops,.*$/ops/").unwrap();
    let change = |bounds: &mut Bounds| bounds.tls.as_mut().unwrap().rules = rules;
    let secured = Secured::start(ClientAuthentication::Required, change).await;
    let with = |name: &str| client_config(&secured.authority, Some(&secured.authority.sign(name)));
    assert_eq!(secured.connect(with("ops")).await.unwrap().name().await, "ops");
    assert!(secured.connect(with("other")).await.unwrap().receive().await.is_err());
    until(|| secured.handshakes_failed() == 1).await;
}

#[tokio::test]
async fn sessions_are_resumed_with_the_same_principal_until_the_keys_change() {
    let secured = Secured::start(ClientAuthentication::Required, |_| {}).await;
    let identity = secured.authority.sign("ops");
    let config = Arc::new(client_config(&secured.authority, Some(&identity)));
    let mut kinds = Vec::new();
    for round in 0..3 {
        if round == 2 {
            std::fs::write(&secured.path, secured.authority.sign("next").pem()).unwrap();
            assert_eq!(secured.keys.reload(), Ok(true));
        }
        let mut client = secured.connect_with(config.clone()).await.unwrap();
        assert_eq!(client.name().await, "CN=ops,O=Test");
        kinds.push(client.0.get_ref().1.handshake_kind().unwrap());
    }
    assert_eq!(kinds, [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Full]);
}

#[tokio::test]
async fn new_keys_are_for_new_connections_and_open_ones_go_on() {
    let secured = Secured::plain().await;
    tokio::spawn(secured.keys.clone().watch());
    let certificate = |client: &Client| client.0.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let mut old = secured.client().await;
    let next = secured.authority.sign("next");
    // First a broken file, which changes nothing.
    std::fs::write(&secured.path, &next.key).unwrap();
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(certificate(&secured.client().await), certificate(&old));
    std::fs::write(&secured.path, next.pem()).unwrap();
    let begun = Instant::now();
    loop {
        let mut client = secured.client().await;
        client.send(b"e").await;
        assert!(client.receive().await.is_ok());
        if certificate(&client) == next.der().0[0].to_vec() {
            break;
        }
        assert!(begun.elapsed() < LONG, "it is taken");
    }
    old.send(b"e").await;
    assert_eq!(old.receive().await.unwrap(), &b"e"[..]);
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_or_holds_too_much_is_closed() {
    let short = |bounds: &mut Bounds| bounds.limits.authentication = Duration::from_millis(300);
    let secured = Secured::start(ClientAuthentication::None, short).await;
    let mut clients = [secured.server.client().await, secured.server.client().await];
    // Half a record.
    clients[1].0.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    for client in &mut clients {
        assert_eq!(client.receive().await, None);
    }
    assert_eq!(secured.server.bounds.shared.counters.authentications_expired.get(), 2);
    let mut known = secured.client().await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    known.send(b"e").await;
    assert!(known.receive().await.is_ok(), "the limit is one on handshakes");

    let secured = Secured::plain().await;
    let mut client = secured.server.client().await;
    // A ClientHello that claims 60,000 bytes, in records of 4096.
    let mut hello = vec![1, 0, 0xea, 0x60];
    hello.resize(60_000, 0);
    let sent = async {
        for part in hello.chunks(4096) {
            let length = u16::try_from(part.len()).unwrap().to_be_bytes();
            let record = [&[22, 3, 1, length[0], length[1]], part].concat();
            if client.0.write_all(&record).await.is_err() {
                break;
            }
        }
    };
    timeout(LONG, sent).await.unwrap();
    assert_eq!(client.receive().await, None);
    assert!(hello.len() > HANDSHAKE_BYTES_MAX);
    until(|| secured.handshakes_failed() == 1).await;
    secured.all_gone().await;
}

#[tokio::test]
async fn what_is_not_tls_is_closed() {
    let secured = Secured::plain().await;
    for bytes in [&framed(b"eeeeeeee")[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let mut client = secured.server.client().await;
        client.0.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // The answer is at most an alert.
        let read = timeout(LONG, client.0.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.len() < 16, "{read:?} {answer:?}");
    }
    until(|| secured.handshakes_failed() == 2).await;
    secured.all_gone().await;
}

#[tokio::test]
async fn an_end_without_a_farewell_in_the_middle_of_a_frame_is_no_frame() {
    let secured = Secured::plain().await;
    for farewell in [false, true] {
        let mut client = secured.client().await;
        client.send(b"e").await;
        assert!(client.receive().await.is_ok());
        let begun = secured.server.begun.load(std::sync::atomic::Ordering::SeqCst);
        let frame = framed(&[b'e'; 50_000]);
        client.0.write_all(&frame[..40_000]).await.unwrap();
        client.0.flush().await.unwrap();
        until(|| secured.server.held_bytes() > 0).await;
        if farewell {
            client.0.shutdown().await.unwrap();
        }
        drop(client);
        secured.all_gone().await;
        assert_eq!(secured.server.begun.load(std::sync::atomic::Ordering::SeqCst), begun);
    }
}

#[tokio::test]
async fn the_server_says_farewell_after_what_was_asked_before() {
    let secured = Secured::plain().await;
    let mut client = secured.client().await;
    client.send(b"e").await;
    client.send(b"r").await;
    assert_eq!(client.receive().await.unwrap(), &b"e"[..]);
    let mut rest = Vec::new();
    // Without the close_notify this would be an error.
    assert_eq!(timeout(LONG, client.0.read_to_end(&mut rest)).await.unwrap().unwrap(), 0);
    // A client that sends a close_notify still gets its answers.
    let mut client = secured.client().await;
    client.send(b"w").await;
    secured.server.begun(3).await;
    client.0.shutdown().await.unwrap();
    secured.server.gate.add_permits(1);
    assert_eq!(client.receive().await.unwrap(), &b"w"[..]);
    assert_eq!(client.receive().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_client_that_never_reads_is_not_served_on_and_ended() {
    let short = |bounds: &mut Bounds| bounds.limits.write_stall = Duration::from_millis(300);
    let secured = Secured::start(ClientAuthentication::None, short).await;
    let mut client = secured.client().await;
    let flood =
        async { while client.0.write_all(&framed(b"l")).await.is_ok() && client.0.flush().await.is_ok() {} };
    timeout(LONG, flood).await.expect("it is cut off");
    let begun = secured.server.begun.load(std::sync::atomic::Ordering::SeqCst);
    assert!(begun < 100, "{begun} answers of 256 KiB were begun");
    secured.all_gone().await;
}

#[tokio::test]
async fn new_keys_of_the_session_are_taken_in_the_middle_of_it() {
    let secured = Secured::plain().await;
    let mut client = secured.client().await;
    for _ in 0..20 {
        client.0.get_mut().1.refresh_traffic_keys().unwrap();
        client.send(&[b'e'; 20_000]).await;
        assert_eq!(client.receive().await.unwrap().len(), 20_000);
    }
}

#[tokio::test]
async fn a_changed_byte_ends_the_connection() {
    let secured = Secured::plain().await;
    let mut client = secured.client().await;
    client.send(b"e").await;
    assert!(client.receive().await.is_ok());
    // A record that was not encrypted with the session's keys.
    let forged = [&[23, 3, 3, 0, 32][..], &[9; 32]].concat();
    client.0.get_mut().0.write_all(&forged).await.unwrap();
    assert!(client.receive().await.unwrap_err().to_string().contains("BadRecordMac"));
    secured.all_gone().await;
}

/// Measures megabytes per second into the server and out of it, in plain text and with TLS: `cargo test … throughput --
/// --ignored --nocapture`. Client and server share the processors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput() {
    const FRAMES: usize = 1000;
    let secured = Secured::plain().await;
    let plain = Server::start(|_| {}).await;
    for round in 0..3 {
        let tcp = TcpStream::connect(plain.address).await.unwrap();
        let (into, out) = rates(tcp, FRAMES).await;
        println!("{round} plain: {into:.0} MB/s in, {out:.0} MB/s out");
        let (into, out) = rates(secured.client().await.0, FRAMES).await;
        println!("{round} TLS:   {into:.0} MB/s in, {out:.0} MB/s out");
    }
}

async fn rates<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    mut stream: S,
    frames: usize,
) -> (f64, f64) {
    let frame = framed(&[b'n'; 1_000_000]);
    let begun = Instant::now();
    for _ in 0..frames {
        stream.write_all(&frame).await.unwrap();
    }
    stream.write_all(&framed(b"e")).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = vec![0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    let into = frames as f64 / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut answer = vec![0; 256 * 1024 + 4];
    for _ in 0..frames / 4 {
        for _ in 0..8 {
            stream.write_all(&framed(b"l")).await.unwrap();
        }
        stream.flush().await.unwrap();
        for _ in 0..8 {
            stream.read_exact(&mut answer).await.unwrap();
        }
    }
    let bytes = answer.len() * (frames / 4) * 8;
    (into, bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
}
