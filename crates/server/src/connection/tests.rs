//! Tests of the connection loop over real sockets, with a handler that the first byte of a frame controls.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use broker::{Origin, Principal};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use wire::Chunks;

use super::*;
use crate::admission::{Admission, ListenerBounds, Rules};
use crate::connection_metrics::{Counters, Reason};
use crate::listener::{Bounds, Shared, bind, listen, run};
use crate::lobby::Lobby;
use crate::turns::Turns;

/// Far longer than anything in these tests takes, and far shorter than the time-out of CI.
pub const LONG: Duration = Duration::from_secs(20);

/// `e`: echo. `w`: echo once the gate opens, as a Fetch does. `l`: answer 256 KiB. `n`: no answer. `b`: begin only once
/// the gate opens, then echo. `m`: echo, and mute the connection for a while. `d`: the same for a long time, once the
/// gate opens. `r`: refuse. `p`: panic. `i`: answer the principal's name. `a`: echo, and authenticate the client. `f`:
/// fail the authentication, with a delayed answer.
struct Fake {
    gate: Arc<Semaphore>,
    begun: Arc<AtomicUsize>,
    muted_until: Arc<Mutex<Option<Instant>>>,
    principal: Principal,
    known: bool,
    refused: Option<Refused>,
}

/// Time for which an `m` mutes its connection.
const MUTED: Duration = Duration::from_millis(300);
/// Delay of the answer to an `f`.
pub const FAILED: Duration = Duration::from_millis(100);
/// Bound in bytes of a request before an `a`.
pub const UNKNOWN_BYTES_MAX: usize = 100_000;

pub fn framed(body: &[u8]) -> Bytes {
    let size = i32::try_from(body.len()).unwrap().to_be_bytes();
    Bytes::from([&size, body].concat())
}

impl Handler for Fake {
    async fn begin(&mut self, frame: Bytes) -> Result<Option<Answer>, Refused> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let gate = self.gate.clone();
        let answer: Answer = match frame[0] {
            b'e' => Box::pin(async move { Ok(Chunks { parts: vec![framed(&frame)] }) }),
            b'w' | 0 => Box::pin(async move {
                gate.acquire().await.unwrap().forget();
                Ok(Chunks { parts: vec![framed(&frame)] })
            }),
            b'm' => {
                *self.muted_until.lock().unwrap() = Some(Instant::now() + MUTED);
                Box::pin(async move { Ok(Chunks { parts: vec![framed(&frame)] }) })
            }
            b'd' => {
                let muted_until = self.muted_until.clone();
                Box::pin(async move {
                    gate.acquire().await.unwrap().forget();
                    *muted_until.lock().unwrap() = Some(Instant::now() + LONG);
                    Ok(Chunks { parts: vec![framed(&frame)] })
                })
            }
            b'l' => Box::pin(async { Ok(Chunks { parts: vec![framed(&[7; 256 * 1024])] }) }),
            b'b' => {
                gate.acquire().await.unwrap().forget();
                Box::pin(async move { Ok(Chunks { parts: vec![framed(&frame)] }) })
            }
            b'n' => return Ok(None),
            b'r' => return Err(Refused("as asked".into())),
            b'p' => panic!("as asked"),
            b'i' => {
                let name = self.principal.name.to_string();
                Box::pin(async move { Ok(Chunks { parts: vec![framed(name.as_bytes())] }) })
            }
            b'a' => {
                self.known = true;
                Box::pin(async move { Ok(Chunks { parts: vec![framed(&frame)] }) })
            }
            b'f' => {
                self.refused = Some(Refused("as asked".into()));
                Box::pin(async move {
                    tokio::time::sleep(FAILED).await;
                    Ok(Chunks { parts: vec![framed(&frame)] })
                })
            }
            other => unreachable!("{other}"),
        };
        Ok(Some(answer))
    }

    fn muted_until(&self) -> Option<Instant> {
        *self.muted_until.lock().unwrap()
    }

    fn authenticated(&self) -> bool {
        self.known
    }

    fn frame_bytes_max(&self) -> usize {
        UNKNOWN_BYTES_MAX
    }

    fn refused(&mut self) -> Option<Refused> {
        self.refused.take()
    }
}

/// Rules without bounds.
pub fn rules() -> Rules {
    rules_of(broker::Config { connections_max: i32::MAX, ..broker::Config::default() })
}

/// Rules with the bounds of these settings.
pub fn rules_of(config: broker::Config) -> Rules {
    let config = Arc::new(config);
    Rules {
        now: Box::new(move || config.clone()),
        window: broker::Window { samples: 11, sample_ms: 1000 },
        quota: Box::new(|_| None),
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub bounds: Arc<Bounds>,
    pub gate: Arc<Semaphore>,
    pub begun: Arc<AtomicUsize>,
    pub stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

impl Server {
    pub async fn start(change: impl FnOnce(&mut Bounds)) -> Server {
        let limits = Limits {
            request_bytes_max: 1 << 20,
            in_flight_max: 8,
            in_flight_bytes_max: usize::MAX,
            idle: LONG,
            frame_stall: LONG,
            held_stall: LONG,
            write_stall: LONG,
            drain: Duration::from_millis(300),
            authentication: LONG,
            failed_authentication_delay: Duration::ZERO,
        };
        let budget = Arc::new(Budget::new(64 << 20));
        let shared = Shared {
            budget: budget.clone(),
            lobby: Arc::new(Lobby::default()),
            admission: Arc::new(Admission::new(rules())),
            handshakes: Turns::default(),
            counters: Counters::default(),
        };
        let mut bounds = Bounds {
            listener: Arc::new(broker::Listener { name: "TEST".into(), advertised: None }),
            connections: Arc::new(ListenerBounds::new(None, None)),
            limits,
            budget,
            tls: None,
            has_sasl: false,
            shared: Arc::new(shared),
        };
        change(&mut bounds);
        let (bounds, gate, begun) =
            (Arc::new(bounds), Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let socket: TcpListener = listen(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, told) = watch::channel(false);
        let made = (gate.clone(), begun.clone());
        let connect = move |origin: Origin| Fake {
            gate: made.0.clone(),
            begun: made.1.clone(),
            muted_until: Arc::default(),
            principal: origin.principal,
            known: false,
            refused: None,
        };
        let running = tokio::spawn(run(socket, bounds.clone(), connect, told));
        Server { address, bounds, gate, begun, stop, running }
    }

    pub async fn client(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    pub async fn begun(&self, count: usize) {
        until(|| self.begun.load(Ordering::SeqCst) >= count).await;
    }

    pub fn held_bytes(&self) -> usize {
        self.bounds.budget.held_bytes()
    }
}

pub async fn until(mut condition: impl FnMut() -> bool) {
    let all = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LONG, all).await.expect("it becomes true");
}

pub struct Client(pub TcpStream);

impl Client {
    pub async fn send(&mut self, body: &[u8]) {
        self.0.write_all(&framed(body)).await.unwrap();
    }

    /// The next answer. `None` if the server closed the connection.
    pub async fn receive(&mut self) -> Option<BytesMut> {
        let read = async {
            let size = self.0.read_u32().await.ok()?;
            let mut body = BytesMut::zeroed(usize::try_from(size).unwrap());
            self.0.read_exact(&mut body).await.ok()?;
            Some(body)
        };
        timeout(LONG, read).await.expect("the server answers or closes")
    }
}

#[tokio::test]
async fn answers_come_in_the_order_of_requests_whatever_their_size_and_cut() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let mut random = 1u64;
    let mut stream = Vec::new();
    let mut bodies = Vec::new();
    for number in 0..300u32 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = match random >> 61 {
            0 => usize::try_from(random >> 40 & 0x3_ffff).unwrap(),
            1 => 16 * 1024 - 8 + usize::try_from(random >> 40 & 15).unwrap(),
            _ => usize::try_from(random >> 40 & 0xff).unwrap(),
        };
        let kind = if random >> 32 & 3 == 0 { b'n' } else { b'e' };
        let body: Vec<u8> =
            std::iter::once(kind).chain((0..size).map(|at| number.to_be_bytes()[at % 4])).collect();
        stream.extend_from_slice(&framed(&body));
        bodies.push(body);
    }
    let (mut reader, mut writer) = client.0.split();
    let send = async {
        let mut rest = &stream[..];
        let mut cut = 1;
        while !rest.is_empty() {
            cut = (cut * 7 + 3) % 50_021;
            let (now, later) = rest.split_at(cut.min(rest.len()));
            writer.write_all(now).await.unwrap();
            rest = later;
            tokio::task::yield_now().await;
        }
    };
    let receive = async {
        for body in bodies.iter().filter(|body| body[0] == b'e') {
            let size = usize::try_from(reader.read_u32().await.unwrap()).unwrap();
            let mut answer = vec![0; size];
            reader.read_exact(&mut answer).await.unwrap();
            assert!(answer == *body, "answers in order");
        }
    };
    timeout(LONG, async { tokio::join!(send, receive) }).await.unwrap();
    until(|| server.held_bytes() == 0).await;
}

#[tokio::test]
async fn a_slow_head_holds_answers_back_and_too_many_in_flight_stop_the_reading() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    client.send(b"w0").await;
    for _ in 0..20 {
        client.send(b"e1").await;
    }
    server.begun(8).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(server.begun.load(Ordering::SeqCst), 8, "as many as may be in flight");
    assert_eq!(server.held_bytes(), 8 * 1024, "each holds its share");
    let mut other = server.client().await;
    other.send(b"e").await;
    assert_eq!(other.receive().await.unwrap(), &b"e"[..], "other connections go on");
    server.gate.add_permits(1);
    assert_eq!(client.receive().await.unwrap(), &b"w0"[..]);
    for _ in 0..20 {
        assert_eq!(client.receive().await.unwrap(), &b"e1"[..]);
    }
    until(|| server.held_bytes() == 0).await;
}

#[tokio::test]
async fn one_connection_holds_so_many_bytes_and_no_more() {
    let server = Server::start(|bounds| bounds.limits.in_flight_bytes_max = 64 * 1024).await;
    let mut client = server.client().await;
    client.send(b"w0").await;
    let large = [b"e".as_slice(), &vec![1; 40 * 1024]].concat();
    for _ in 0..4 {
        client.send(&large).await;
    }
    server.begun(3).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(server.begun.load(Ordering::SeqCst), 3, "the second large one reaches the bound");
    server.gate.add_permits(1);
    assert_eq!(client.receive().await.unwrap(), &b"w0"[..]);
    for _ in 0..4 {
        assert!(client.receive().await.unwrap() == large);
    }
    until(|| server.held_bytes() == 0).await;
}

#[tokio::test]
async fn a_client_over_its_quota_is_answered_at_once_and_read_again_in_time() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    let begun = Instant::now();
    client.send(b"m0").await;
    client.send(b"e1").await;
    client.send(b"e2").await;
    assert_eq!(client.receive().await.unwrap(), &b"m0"[..]);
    assert!(begun.elapsed() < MUTED, "the answer does not wait");
    tokio::time::sleep(MUTED / 3).await;
    assert_eq!(server.begun.load(Ordering::SeqCst), 1, "what was sent is not begun");
    assert_eq!(client.receive().await.unwrap(), &b"e1"[..]);
    assert!(begun.elapsed() >= MUTED);
    assert_eq!(client.receive().await.unwrap(), &b"e2"[..]);
    // A stopping server does not wait for the muted connection either.
    client.send(b"m3").await;
    assert_eq!(client.receive().await.unwrap(), &b"m3"[..]);
    let begun = Instant::now();
    server.stop.send(true).unwrap();
    assert!(client.receive().await.is_none());
    assert!(begun.elapsed() < MUTED);
}

#[tokio::test]
async fn a_frame_that_was_begun_is_finished_though_the_connection_is_muted() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    client.send(b"d").await;
    let large = framed(&[b'e'; 100 * 1024]);
    client.0.write_all(&large[..50 * 1024]).await.unwrap();
    until(|| server.held_bytes() > 0).await;
    server.gate.add_permits(1);
    assert_eq!(client.receive().await.unwrap(), &b"d"[..]);
    // The rest of the frame is read, because it holds memory that others may wait for.
    client.0.write_all(&large[50 * 1024..]).await.unwrap();
    assert_eq!(client.receive().await.unwrap().len(), 100 * 1024);
    until(|| server.held_bytes() == 0).await;
    client.send(b"e").await;
    assert!(timeout(MUTED, client.receive()).await.is_err(), "and nothing more is read");
}

#[tokio::test]
async fn answers_are_sent_while_the_next_request_waits_to_begin() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    client.send(b"w").await;
    client.send(b"b").await;
    server.begun(2).await;
    server.gate.add_permits(1);
    // Whichever of the two takes the permit, the other one is next.
    server.gate.add_permits(1);
    assert_eq!(client.receive().await.unwrap(), &b"w"[..]);
    assert_eq!(client.receive().await.unwrap(), &b"b"[..]);
}

#[tokio::test]
async fn sizes_out_of_bounds_close_the_connection_after_what_was_asked_before() {
    let server = Server::start(|_| {}).await;
    for size in [0, -1, i32::MIN, (1 << 20) + 1, i32::MAX] {
        let mut client = server.client().await;
        client.send(b"e").await;
        client.0.write_all(&size.to_be_bytes()).await.unwrap();
        assert_eq!(client.receive().await.unwrap(), &b"e"[..]);
        assert_eq!(client.receive().await, None, "{size}");
    }
    for bytes in [&b"\x16\x03\x01\x02"[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut client = server.client().await;
        client.0.write_all(bytes).await.unwrap();
        assert_eq!(client.receive().await, None);
    }
    until(|| server.bounds.shared.counters.open.get() == 0).await;
}

#[tokio::test]
async fn a_refusal_and_a_panic_end_one_connection_only() {
    let server = Server::start(|_| {}).await;
    let mut other = server.client().await;
    for body in [b"r", b"p"] {
        let mut client = server.client().await;
        client.send(b"e").await;
        assert_eq!(client.receive().await.unwrap(), &b"e"[..]);
        client.send(body).await;
        assert_eq!(client.receive().await, None);
    }
    other.send(b"e").await;
    assert_eq!(other.receive().await.unwrap(), &b"e"[..]);
    until(|| server.bounds.shared.counters.open.get() == 1).await;
    assert_eq!(server.held_bytes(), 0);
}

#[tokio::test]
async fn a_frame_costs_memory_only_as_it_comes_and_stalls_are_ended() {
    let server = Server::start(|bounds| bounds.limits.held_stall = Duration::from_millis(150)).await;
    let mut client = server.client().await;
    client.0.write_all(&(1i32 << 20).to_be_bytes()).await.unwrap();
    client.0.write_all(&[b'e'; 1000]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(server.held_bytes(), 0, "a claim costs nothing");
    client.0.write_all(&[b'e'; 20_000]).await.unwrap();
    until(|| server.held_bytes() > 0).await;
    assert_eq!(server.held_bytes(), 32 * 1024);
    assert_eq!(client.receive().await, None, "a stalled frame is not waited for");
    until(|| server.held_bytes() == 0).await;
    // A slow frame that makes progress is waited for.
    let mut client = server.client().await;
    let frame = framed(&[b'e'; 400_000]);
    for part in frame.chunks(40_000) {
        client.0.write_all(part).await.unwrap();
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    assert_eq!(client.receive().await.unwrap().len(), 400_000);
}

#[tokio::test]
async fn half_a_size_or_half_a_small_frame_is_not_waited_for() {
    let server = Server::start(|bounds| bounds.limits.frame_stall = Duration::from_millis(150)).await;
    for begun in [&[0, 0][..], &[0, 0, 1, 0, b'e'][..]] {
        let mut client = server.client().await;
        client.0.write_all(begun).await.unwrap();
        assert_eq!(client.receive().await, None);
    }
}

#[tokio::test]
async fn a_client_that_only_drips_is_a_stall() {
    let server = Server::start(|bounds| bounds.limits.frame_stall = Duration::from_millis(200)).await;
    let mut client = server.client().await;
    client.0.write_all(&100_000i32.to_be_bytes()).await.unwrap();
    let drip = async {
        while client.0.write_all(&[1]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, drip).await.expect("it is cut off");
}

#[tokio::test]
async fn frames_larger_than_the_budget_pass_one_after_the_other() {
    let server = Server::start(|bounds| bounds.budget = Arc::new(Budget::new(200 * 1024))).await;
    let mut tasks = Vec::new();
    for number in 0..12u8 {
        let mut client = server.client().await;
        tasks.push(tokio::spawn(async move {
            let mut body = vec![number; 700_000];
            body[0] = b'e';
            let frame = framed(&body);
            let (mut reader, mut writer) = client.0.split();
            let receive = async {
                let mut answer = vec![0; 700_004];
                reader.read_exact(&mut answer).await.unwrap();
                answer
            };
            let (_, answer) = tokio::join!(writer.write_all(&frame), receive);
            assert!(answer == frame);
        }));
    }
    for task in tasks {
        timeout(LONG, task).await.expect("nobody waits for ever").unwrap();
    }
    until(|| server.held_bytes() == 0).await;
}

/// Requests behind a waiting request wait with it, for as long as the client likes.
#[tokio::test]
async fn requests_that_wait_hold_nothing_that_others_need() {
    let server = Server::start(|bounds| bounds.budget = Arc::new(Budget::new(256 * 1024))).await;
    let fetch = |bytes: usize| [&[0, 1][..], &vec![0; bytes - 2]].concat();
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = server.client().await;
        client.send(&fetch(100)).await;
        clients.push(client);
    }
    server.begun(8).await;
    let mut patient = Vec::new();
    for client in clients {
        let (mut reader, mut writer) = client.0.into_split();
        let sent = tokio::spawn(async move {
            for size in [16_000, 300_000, 16_000, 16_000] {
                writer.write_all(&framed(&vec![b'e'; size])).await.unwrap();
            }
            writer
        });
        let answered = tokio::spawn(async move {
            for size in [100, 16_000, 300_000, 16_000, 16_000] {
                let mut answer = vec![0; 4 + size];
                reader.read_exact(&mut answer).await.unwrap();
            }
        });
        patient.push((sent, answered));
    }
    for _ in 0..2 {
        let (mut reader, mut writer) = server.client().await.0.into_split();
        let body = fetch(250_000);
        let sent = tokio::spawn(async move {
            writer.write_all(&framed(&body)).await.unwrap();
            writer
        });
        let answered = tokio::spawn(async move {
            reader.read_exact(&mut vec![0; 250_004]).await.unwrap();
        });
        patient.push((sent, answered));
    }
    // Wait until they hold everything that they can get.
    let mut before = 0;
    while before != server.held_bytes() || before == 0 {
        before = server.held_bytes();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut client = server.client().await;
    for size in [16_000, 200_000, 10] {
        let body = vec![b'e'; size];
        client.send(&body).await;
        assert!(client.receive().await.unwrap() == body, "{size}");
    }
    // They do not block the fetches of other clients either.
    let begun = server.begun.load(Ordering::SeqCst);
    let mut client = server.client().await;
    client.send(&fetch(100)).await;
    server.begun(begun + 1).await;
    server.gate.add_permits(11);
    assert!(client.receive().await.unwrap() == fetch(100));
    for (sent, answered) in patient {
        drop(timeout(LONG, sent).await.expect("all is taken").unwrap());
        timeout(LONG, answered).await.expect("all is answered").unwrap();
    }
    until(|| server.held_bytes() == 0).await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_not_served_on_and_ended() {
    let server = Server::start(|bounds| bounds.limits.write_stall = Duration::from_millis(300)).await;
    let mut client = server.client().await;
    let flood = async { while client.0.write_all(&framed(b"l")).await.is_ok() {} };
    timeout(LONG, flood).await.expect("it is cut off");
    let begun = server.begun.load(Ordering::SeqCst);
    assert!(begun < 100, "{begun} answers of 256 KiB were begun");
    until(|| server.held_bytes() == 0).await;
}

#[tokio::test]
async fn idle_connections_are_many_and_end() {
    crate::process::raise_open_files().unwrap();
    let server = Server::start(|bounds| bounds.limits.idle = Duration::from_secs(4)).await;
    let mut clients = Vec::new();
    for _ in 0..2000 {
        clients.push(server.client().await);
    }
    until(|| server.bounds.shared.counters.open.get() == 2000).await;
    assert_eq!(server.held_bytes(), 0);
    for client in clients.iter_mut().step_by(200) {
        client.send(b"e").await;
        assert_eq!(client.receive().await.unwrap(), &b"e"[..]);
    }
    until(|| server.bounds.shared.counters.open.get() == 0).await;
}

#[tokio::test]
async fn one_that_waits_for_an_answer_is_not_idle() {
    let server = Server::start(|bounds| bounds.limits.idle = Duration::from_millis(100)).await;
    let mut client = server.client().await;
    client.send(b"w").await;
    server.begun(1).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    server.gate.add_permits(1);
    assert_eq!(client.receive().await.unwrap(), &b"w"[..]);
    assert_eq!(client.receive().await, None);
}

#[tokio::test]
async fn past_the_bound_new_connections_are_closed_at_once() {
    let server = Server::start(|bounds| bounds.connections.set(Some(2), None)).await;
    let mut clients = [server.client().await, server.client().await];
    for client in &mut clients {
        client.send(b"e").await;
        assert!(client.receive().await.is_some());
    }
    assert_eq!(server.client().await.receive().await, None);
    until(|| server.bounds.shared.counters.rejected(Reason::MaxConnections) == 1).await;
    drop(clients);
    until(|| server.bounds.shared.counters.open.get() == 0).await;
    let mut client = server.client().await;
    client.send(b"e").await;
    assert!(client.receive().await.is_some());
    assert_eq!(server.bounds.shared.counters.accepted.get(), 3);
}

#[tokio::test]
async fn stopping_answers_what_is_in_flight_and_waits_no_longer_than_it_may() {
    let server = Server::start(|bounds| bounds.limits.drain = Duration::from_secs(3)).await;
    let (mut idle, mut busy) = (server.client().await, server.client().await);
    idle.send(b"e").await;
    assert!(idle.receive().await.is_some());
    busy.send(b"w1").await;
    busy.send(b"e2").await;
    server.begun(3).await;
    server.stop.send(true).unwrap();
    assert_eq!(idle.receive().await, None);
    server.gate.add_permits(1);
    assert_eq!(busy.receive().await.unwrap(), &b"w1"[..]);
    assert_eq!(busy.receive().await.unwrap(), &b"e2"[..]);
    assert_eq!(busy.receive().await, None);
    timeout(LONG, server.running).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());

    let server = Server::start(|_| {}).await;
    let (mut late, mut lost) = (server.client().await, server.client().await);
    late.send(b"w").await;
    lost.send(b"b").await;
    server.begun(2).await;
    server.stop.send(true).unwrap();
    assert_eq!((late.receive().await, lost.receive().await), (None, None));
    timeout(LONG, server.running).await.unwrap().unwrap();
    assert_eq!(server.bounds.shared.counters.open.get(), 0);
}

#[tokio::test]
async fn a_client_that_ends_its_side_still_gets_its_answers() {
    let server = Server::start(|_| {}).await;
    let mut client = server.client().await;
    client.send(b"w").await;
    client.send(b"e").await;
    client.0.shutdown().await.unwrap();
    server.begun(2).await;
    server.gate.add_permits(1);
    let answers = HashMap::from([(0, client.receive().await), (1, client.receive().await)]);
    assert_eq!(answers[&0].as_deref(), Some(&b"w"[..]));
    assert_eq!(answers[&1].as_deref(), Some(&b"e"[..]));
    assert_eq!(client.receive().await, None);
}
