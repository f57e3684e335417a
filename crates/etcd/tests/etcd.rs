//! A store on a real etcd on bad days: answers that are lost, an etcd that is killed, log-ins, TLS. The rules of all stores
//! are in `crates/meta/tests/conformance.rs`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::etcd::{Etcd, OpenEtcdError, Settings, Tls};
use meta::{Change, Compare, MetaError, Store};
use testing::certificates::Authority;
use testing::etcd::{Etcd as Process, LossyProxy};
use testing::process::LONG;
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn at(endpoint: &str) -> Settings {
    Settings { endpoints: vec![endpoint.to_owned()], ..Settings::default() }
}

/// The number under a key, and its revision.
fn number(store: &dyn Store, key: &str) -> (u64, Option<u64>) {
    let found = store.find(key).unwrap();
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    (found.as_ref().map_or(0, |value| number(&value.bytes)), found.map(|value| value.revision))
}

/// Adds one to the number under a key. Returns the commits that were refused.
fn add_one(store: &dyn Store, key: &str) -> Result<u64, MetaError> {
    let mut refused = 0;
    loop {
        let (now, revision) = number(store, key);
        let compare = Compare { key: key.into(), revision };
        match store.commit(&[compare], &[Change::put(key, (now + 1).to_be_bytes())]) {
            Ok(_) => return Ok(refused),
            Err(MetaError::Conflict { .. }) => refused += 1,
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn a_commit_is_made_once_though_its_answer_is_lost() {
    if !Process::is_installed() {
        return;
    }
    const EACH: u64 = 100;
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let process = Process::start(directory.path().join("etcd"));
    let proxies: Vec<LossyProxy> = (0..2).map(|seed| LossyProxy::start(process.address(), seed)).collect();
    let endpoints = proxies.iter().map(|proxy| format!("http://{}", proxy.address)).collect();
    let settings = Settings { endpoints, ..Settings::default() };
    let store = Etcd::open(&settings, "/lossy/", runtime.handle().clone()).unwrap();
    let mut watch = store.watch("", store.list("").unwrap().revision);
    proxies.iter().for_each(|proxy| proxy.lose(60));
    thread::scope(|scope| {
        for name in ["own", "shared", "shared"] {
            let store = &store;
            // Nobody else changes "own". So no commit of it may be refused: that would be one that was made before.
            scope.spawn(move || {
                for _ in 0..EACH {
                    let refused = add_one(store, name).unwrap();
                    assert!(refused == 0 || name == "shared", "a commit was made twice");
                }
            });
        }
    });
    let lost: u32 = proxies.iter().map(LossyProxy::closed).sum();
    assert!(lost > 50, "{lost} answers were lost");
    assert_eq!((number(&store, "own").0, number(&store, "shared").0), (EACH, 2 * EACH));
    proxies.iter().for_each(|proxy| proxy.lose(0));
    // The watch has told each change once, across all connections.
    let end = store.commit(&[], &[Change::delete("own")]).unwrap();
    let mut own = Vec::new();
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LONG);
        let Ok(events) = watch.next(LONG) else { continue };
        own.extend(events.changes.into_iter().filter(|event| event.key == "own"));
        if events.revision >= end {
            break;
        }
    }
    let told: Vec<u64> = own
        .iter()
        .filter_map(|event| event.bytes.as_ref())
        .map(|bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
        .collect();
    assert_eq!(told, (1..=EACH).collect::<Vec<_>>());
}

#[test]
fn a_member_that_hangs_costs_no_lease_and_no_news() {
    if !Process::is_installed() {
        return;
    }
    const TTL: Duration = Duration::from_secs(3);
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let process = Process::start(directory.path().join("etcd"));
    let proxies: Vec<LossyProxy> = (0..3).map(|seed| LossyProxy::start(process.address(), seed)).collect();
    let endpoints = proxies.iter().map(|proxy| format!("http://{}", proxy.address)).collect();
    let settings = Settings { endpoints, ..Settings::default() };
    let store = Etcd::open(&settings, "/hangs/", runtime.handle().clone()).unwrap();
    let lease = store.grant(TTL).unwrap();
    let mut revision = store.commit(&[], &[Change::put_leased("alive", "x", lease)]).unwrap();
    let mut watch = store.watch("", revision);
    // Each of them hangs once, while several requests are on their way to it.
    for hung in &proxies {
        hung.hang(true);
        let begun = Instant::now();
        let committed = thread::scope(|scope| {
            let commit = |n: u32| store.commit(&[], &[Change::put(format!("n/{n}"), "x")]).unwrap();
            let requests: Vec<_> = (0..3).map(|n| scope.spawn(move || commit(n))).collect();
            store.keep_alive(lease).unwrap();
            requests.into_iter().map(|request| request.join().unwrap()).max().unwrap()
        });
        let late = begun.elapsed();
        assert!(late < TTL - Duration::from_secs(1), "an answer after {late:?}");
        while revision < committed {
            revision = watch.next(TTL).unwrap().revision;
            assert!(begun.elapsed() < TTL, "news up to {revision}, not {committed}");
        }
        hung.hang(false);
        store.keep_alive(lease).unwrap();
    }
    assert!(store.find("alive").unwrap().is_some());
}

#[test]
fn an_etcd_that_is_killed_loses_no_commit_and_is_found_again() {
    if !Process::is_installed() {
        return;
    }
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut process = Process::start(directory.path().join("etcd"));
    let store = Etcd::open(&at(&process.endpoint), "/killed/", runtime.handle().clone()).unwrap();
    let lease = store.grant(Duration::from_secs(60)).unwrap();
    store.commit(&[], &[Change::put_leased("here", "x", lease)]).unwrap();
    let (made, unclear, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                match add_one(&store, "n") {
                    Ok(0) => made.fetch_add(1, Ordering::SeqCst),
                    Ok(_) => panic!("a commit was made twice"),
                    Err(_) => unclear.fetch_add(1, Ordering::SeqCst),
                };
            }
        });
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(500));
            process.kill();
            thread::sleep(Duration::from_millis(200));
            process.start_again();
        }
        let before = made.load(Ordering::SeqCst);
        let begun = Instant::now();
        while made.load(Ordering::SeqCst) == before {
            assert!(begun.elapsed() < LONG, "no commit after the last start");
            thread::sleep(Duration::from_millis(10));
        }
        done.store(true, Ordering::SeqCst);
    });
    let (made, unclear) = (made.into_inner(), unclear.into_inner());
    let found = number(&store, "n").0;
    assert!((made..=made + unclear).contains(&found), "{found} of {made} commits, {unclear} unclear");
    store.keep_alive(lease).unwrap();
    assert!(store.find("here").unwrap().is_some(), "the lease is still held");
    // etcd away: an error within bounds, and no hanging.
    process.kill();
    let begun = Instant::now();
    assert!(matches!(store.find("n"), Err(MetaError::Store(_))));
    assert!(matches!(store.commit(&[], &[Change::delete("n")]), Err(MetaError::Store(_))));
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[test]
fn a_user_logs_in_and_again_after_etcd_has_forgotten_it() {
    if !Process::is_installed() {
        return;
    }
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut process = Process::start(directory.path().join("etcd"));
    for (path, body) in [
        ("/v3/auth/user/add", r#"{"name":"root","password":"secret"}"#),
        ("/v3/auth/role/add", r#"{"name":"root"}"#),
        ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("/v3/auth/enable", "{}"),
    ] {
        let answer = process.post(path, body).unwrap();
        assert!(answer.contains("header"), "{path}: {answer}");
    }
    let open = |user: Option<(&str, &str)>| {
        let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        let settings = Settings { user, ..at(&process.endpoint) };
        Etcd::open(&settings, "/users/", runtime.handle().clone()).unwrap()
    };
    let refused = |user| {
        let error = open(user).find("a").unwrap_err();
        assert!(matches!(error, MetaError::Store(_)), "{error}");
        error.to_string()
    };
    assert!(refused(None).contains("user name is empty"), "{}", refused(None));
    assert!(refused(Some(("root", "wrong"))).contains("authentication failed"));
    let store = open(Some(("root", "secret")));
    store.commit(&[], &[Change::put("a", "1")]).unwrap();
    process.kill();
    process.start_again();
    // The token was in etcd's memory.
    store.commit(&[], &[Change::put("a", "2")]).unwrap();
    assert_eq!(store.find("a").unwrap().unwrap().bytes, b"2");
}

#[test]
fn both_sides_prove_who_they_are_by_tls() {
    if !Process::is_installed() {
        return;
    }
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let (server, client) = (authority.sign("server"), authority.sign("client"));
    let (ca, other) = (file("ca", &authority.certificate), file("other", &other.certificate));
    let (certificate, key) = (file("server", &server.certificate), file("server.key", &server.key));
    let [certificate, key, authority] = [&certificate, &key, &ca].map(|path| path.to_str().unwrap());
    let process = Process::start_tls(directory.path().join("etcd"), certificate, key, authority);
    let own = (file("client", &client.certificate), file("client.key", &client.key));
    let open =
        |tls| Etcd::open(&Settings { tls, ..at(&process.endpoint) }, "/tls/", runtime.handle().clone());
    let store = open(Tls { ca: Some(ca.clone()), client: Some(own.clone()) }).unwrap();
    let begun = Instant::now();
    while let Err(error) = store.commit(&[], &[Change::put("a", "1")]) {
        assert!(begun.elapsed() < LONG, "{error}");
    }
    for tls in [Tls { ca: Some(ca.clone()), client: None }, Tls { ca: Some(other), client: Some(own) }] {
        assert!(open(tls.clone()).unwrap().find("a").is_err(), "{tls:?}");
    }
    let missing = open(Tls { ca: Some(directory.path().join("none")), client: None });
    assert!(matches!(missing, Err(OpenEtcdError::File(..))));
    let nowhere = Etcd::open(&at("etcd:2379"), "/tls/", runtime.handle().clone());
    assert!(matches!(nowhere, Err(OpenEtcdError::Endpoint(_))));
}
