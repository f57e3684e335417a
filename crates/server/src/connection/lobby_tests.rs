//! Tests of connections that must authenticate first, and of the bounds on the number and the rate of connections.

use std::net::IpAddr;
use std::sync::Arc;

use super::tests::{FAILED, LONG, Server, UNKNOWN_BYTES_MAX, framed, rules, rules_of, until};
use super::*;
use crate::admission::{Admission, Rules};
use crate::connection_metrics::Reason;
use crate::listener::{Bounds, Shared};
use crate::lobby::Lobby;
use tokio::io::AsyncWriteExt;

fn share(bounds: &mut Bounds, change: impl FnOnce(&mut Shared)) {
    change(Arc::get_mut(&mut bounds.shared).unwrap());
}

fn admit(bounds: &mut Bounds, rules: Rules) {
    share(bounds, |shared| shared.admission = Arc::new(Admission::new(rules)));
}

#[tokio::test]
async fn before_authentication_little_is_taken_and_after_it_as_much_as_ever() {
    let server = Server::start(|bounds| bounds.has_sasl = true).await;
    let mut client = server.client().await;
    client.send(b"w0").await;
    client.send(b"e1").await;
    server.begun(1).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(server.begun.load(std::sync::atomic::Ordering::SeqCst), 1, "one request at a time");
    assert_eq!(server.held_bytes(), 0, "memory is the lobby's");
    assert_eq!(server.bounds.shared.lobby.budget.held_bytes(), 1024);
    server.gate.add_permits(1);
    assert_eq!(client.receive().await.unwrap(), &b"w0"[..]);
    assert_eq!(client.receive().await.unwrap(), &b"e1"[..]);
    let mut other = server.client().await;
    other.0.write_all(&framed(&[b'e'; UNKNOWN_BYTES_MAX + 1])).await.unwrap();
    assert_eq!(other.receive().await, None, "no large request");
    client.send(b"a").await;
    assert_eq!(client.receive().await.unwrap(), &b"a"[..]);
    until(|| server.bounds.shared.lobby.len() == 0).await;
    client.send(&[b'e'; UNKNOWN_BYTES_MAX + 1]).await;
    assert_eq!(client.receive().await.unwrap().len(), UNKNOWN_BYTES_MAX + 1);
    client.send(b"w").await;
    client.send(b"e").await;
    server.begun(6).await;
    assert_eq!(server.held_bytes(), 2 * 1024);
}

#[tokio::test]
async fn who_does_not_authenticate_in_time_is_closed() {
    let server = Server::start(|bounds| {
        bounds.has_sasl = true;
        bounds.limits.authentication = Duration::from_millis(200);
    })
    .await;
    let (mut silent, mut busy, mut known) =
        (server.client().await, server.client().await, server.client().await);
    known.send(b"a").await;
    assert!(known.receive().await.is_some());
    let begun = Instant::now();
    // Requests do not extend the time limit.
    let flood = async {
        while begun.elapsed() < LONG {
            busy.send(b"e").await;
            if busy.receive().await.is_none() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    flood.await;
    assert_eq!(silent.receive().await, None);
    assert!(begun.elapsed() < LONG);
    until(|| server.bounds.shared.counters.authentications_expired.get() == 2).await;
    known.send(b"e").await;
    assert_eq!(known.receive().await.unwrap(), &b"e"[..]);
}

#[tokio::test]
async fn who_fails_to_authenticate_waits_and_is_closed() {
    let server = Server::start(|bounds| {
        bounds.has_sasl = true;
        bounds.limits.failed_authentication_delay = FAILED;
    })
    .await;
    for body in [&b"f"[..], b"r"] {
        let mut client = server.client().await;
        let begun = Instant::now();
        client.send(body).await;
        client.send(b"e").await;
        if body == b"f" {
            assert_eq!(client.receive().await.unwrap(), &b"f"[..]);
        }
        assert_eq!(client.receive().await, None);
        assert!(begun.elapsed() >= FAILED, "{:?}", begun.elapsed());
    }
    assert_eq!(server.begun.load(std::sync::atomic::Ordering::SeqCst), 2, "nothing more is read");
    until(|| server.bounds.shared.counters.open.get() == 0).await;
}

#[tokio::test]
async fn the_one_that_is_unknown_for_longest_makes_room() {
    let server = Server::start(|bounds| {
        bounds.has_sasl = true;
        share(bounds, |shared| shared.lobby = Arc::new(Lobby::new(2)));
    })
    .await;
    let (mut oldest, mut next) = (server.client().await, server.client().await);
    for client in [&mut oldest, &mut next] {
        client.send(b"e").await;
        assert!(client.receive().await.is_some());
    }
    let mut third = server.client().await;
    assert_eq!(oldest.receive().await, None);
    for client in [&mut next, &mut third] {
        client.send(b"a").await;
        assert!(client.receive().await.is_some());
    }
    assert_eq!(server.bounds.shared.counters.rejected(Reason::Crowded), 1);
}

#[tokio::test]
async fn an_address_has_so_many_connections_and_no_more() {
    let config = broker::Config { connections_per_address_max: 2, ..broker::Config::default() };
    let server = Server::start(|bounds| admit(bounds, rules_of(config))).await;
    let mut clients = [server.client().await, server.client().await];
    for client in &mut clients {
        client.send(b"e").await;
        assert!(client.receive().await.is_some());
    }
    assert_eq!(server.client().await.receive().await, None);
    assert_eq!(server.bounds.shared.counters.rejected(Reason::MaxConnectionsPerIp), 1);
    drop(clients);
    until(|| server.bounds.shared.counters.open.get() == 0).await;
    let mut client = server.client().await;
    client.send(b"e").await;
    assert!(client.receive().await.is_some());
}

#[tokio::test]
async fn an_address_over_its_quota_is_kept_waiting_and_others_are_not() {
    const WAIT: Duration = Duration::from_millis(300);
    let over = |address: IpAddr| (address == IpAddr::from([127, 0, 0, 1])).then_some(WAIT);
    let server = Server::start(|bounds| admit(bounds, Rules { quota: Box::new(over), ..rules() })).await;
    let begun = Instant::now();
    let mut refused = [server.client().await, server.client().await];
    // A connection from another address of this machine.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = super::tests::Client(socket.connect(server.address).await.unwrap());
    other.send(b"e").await;
    assert!(other.receive().await.is_some());
    assert!(begun.elapsed() < WAIT);
    for client in &mut refused {
        assert_eq!(client.receive().await, None);
    }
    assert!(begun.elapsed() >= WAIT);
    assert_eq!(server.bounds.shared.counters.rejected(Reason::ConnectionCreationRate), 2);
    assert_eq!(server.bounds.shared.counters.accepted.get(), 1);
}

#[tokio::test]
async fn past_its_rate_the_server_takes_nobody_for_a_while() {
    let window = broker::Window { samples: 2, sample_ms: 200 };
    let config = broker::Config { connection_rate_max: 10, ..broker::Config::default() };
    let server = Server::start(|bounds| admit(bounds, Rules { window, ..rules_of(config) })).await;
    let begun = Instant::now();
    let mut answered = Vec::new();
    for _ in 0..6 {
        let mut client = server.client().await;
        client.send(b"e").await;
        assert!(client.receive().await.is_some());
        answered.push(begun.elapsed());
    }
    // Two connections in 200 ms are 10 per second. The third is accepted too, and then the server stops accepting.
    assert!(answered[5] >= Duration::from_millis(200), "{answered:?}");
}
