//! The rules that every store must follow, whatever keeps its data. The model is etcd, which follows them too.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use meta::{
    Change, Clock, Compare, Embedded, Event, Events, LeaseId, Memory, MetaError, Store, Value, Watch,
    WatchError,
};
use testing::etcd::Etcd;

/// Longer than any step of these tests.
const LONG: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;

/// A store under test.
struct Subject {
    name: &'static str,
    store: Arc<dyn Store>,
    time_ms: Arc<AtomicU64>,
    etcd: Option<Etcd>,
    _directory: tempfile::TempDir,
}

impl Subject {
    /// Lets time pass for the leases.
    fn advance(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap();
        self.time_ms.fetch_add(ms, Ordering::SeqCst);
        if self.etcd.is_some() {
            thread::sleep(time);
        }
    }

    /// Forgets the changes before `revision`, where the store does not do that by itself.
    fn forget(&self, revision: u64) {
        let Some(etcd) = &self.etcd else { return };
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        let answer = etcd.post("/v3/kv/compaction", &body).unwrap();
        assert!(answer.contains("header"), "{answer}");
    }

    fn commit(&self, changes: &[Change]) -> u64 {
        self.store.commit(&[], changes).unwrap()
    }

    fn find(&self, key: &str) -> Option<Value> {
        self.store.find(key).unwrap()
    }
}

/// Runs `rule` on a new store of each kind.
fn each(mut rule: impl FnMut(&Subject)) {
    let embedded = |path: &std::path::Path, clock| {
        Arc::new(Embedded::open_with_clock(&path.join("meta"), clock).unwrap())
    };
    type Open<'a> = &'a dyn Fn(&std::path::Path, Clock) -> Arc<dyn Store>;
    let kinds: [(&'static str, Open); 2] = [
        ("memory", &|_, clock| Arc::new(Memory::with_clock(clock))),
        ("embedded", &|path, clock| embedded(path, clock)),
    ];
    for (name, open) in kinds {
        let (directory, time_ms) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(1000)));
        let now = time_ms.clone();
        let clock: Clock = Arc::new(move || Duration::from_millis(now.load(Ordering::SeqCst)));
        let store = open(directory.path(), clock);
        rule(&Subject { name, store, time_ms, etcd: None, _directory: directory });
    }
}

/// The same, and on etcd, if it is installed.
fn each_and_etcd(mut rule: impl FnMut(&Subject)) {
    each(&mut rule);
    if !Etcd::is_installed() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(directory.path().join("etcd"));
    let settings = etcd::Settings { endpoints: vec![etcd.endpoint.clone()], ..etcd::Settings::default() };
    let store = etcd::Etcd::open(&settings, "/mainstem/test/", runtime.handle().clone()).unwrap();
    let (store, time_ms) = (Arc::new(store), Arc::new(AtomicU64::new(0)));
    rule(&Subject { name: "etcd", store, time_ms, etcd: Some(etcd), _directory: directory });
}

fn put(key: &str, bytes: &[u8]) -> Change {
    Change::put(key, bytes)
}

fn told(key: &str, revision: u64, bytes: Option<&[u8]>) -> Event {
    Event { key: key.into(), revision, bytes: bytes.map(Vec::from) }
}

/// What a watch reports without waiting.
fn now(watch: &mut Box<dyn Watch>) -> Vec<Event> {
    watch.next(NOW).unwrap().changes
}

/// What a watch reports up to the commit `revision`.
fn next(watch: &mut Box<dyn Watch>, revision: u64) -> Vec<Event> {
    let mut changes = Vec::new();
    loop {
        let events = watch.next(LONG).unwrap();
        assert!(events.revision <= revision, "{events:?} after {revision}");
        changes.extend(events.changes);
        if events.revision == revision {
            return changes;
        }
    }
}

#[test]
fn a_commit_is_made_as_a_whole_or_not_at_all() {
    each_and_etcd(|subject| {
        let store = &subject.store;
        let before = store.list("").unwrap();
        assert!(before.entries.is_empty() && (subject.etcd.is_some() || before.revision == 0));
        let first = store.commit(&[Compare::absent("a")], &[put("a", b"1"), put("b", b"")]).unwrap();
        assert!(first > before.revision);
        let value = |bytes: &[u8], revision| Some(Value { revision, bytes: bytes.into() });
        assert_eq!((subject.find("a"), subject.find("b")), (value(b"1", first), value(b"", first)));
        let refused = store.commit(&[Compare::absent("c"), Compare::absent("a")], &[put("c", b"")]);
        assert!(matches!(refused, Err(MetaError::Conflict { key }) if key == "a"), "{}", subject.name);
        assert_eq!(subject.find("c"), None);
        let same = Compare { key: "a".into(), revision: Some(first) };
        let second =
            store.commit(std::slice::from_ref(&same), &[put("a", b"2"), Change::delete("b")]).unwrap();
        assert!(second > first);
        assert_eq!((subject.find("a"), subject.find("b")), (value(b"2", second), None));
        assert!(matches!(store.commit(&[same], &[put("a", b"3")]), Err(MetaError::Conflict { .. })));
        let gone = Compare { key: "b".into(), revision: Some(first) };
        assert!(matches!(store.commit(&[gone], &[put("a", b"3")]), Err(MetaError::Conflict { .. })));
        assert_eq!(subject.find("a"), value(b"2", second));
        // A key that is written again has the revision of that commit.
        let third = store.commit(&[Compare::absent("b")], &[put("b", b"")]).unwrap();
        assert_eq!(subject.find("b"), value(b"", third));
    });
}

#[test]
fn a_listing_is_sorted_and_has_the_keys_below_a_prefix() {
    each_and_etcd(|subject| {
        subject.commit(&[
            put("a/2", b""),
            put("a/10", b""),
            put("a", b""),
            put("b/1", b""),
            put("a/\u{e4}", b""),
        ]);
        let last = subject.commit(&[put("a/1", b"")]);
        let keys = |prefix: &str| {
            let listing = subject.store.list(prefix).unwrap();
            assert_eq!(listing.revision, last);
            listing.entries.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(keys("a/"), ["a/1", "a/10", "a/2", "a/\u{e4}"]);
        assert_eq!(keys("").len(), 6);
        assert_eq!(keys("a/10"), ["a/10"]);
        assert!(keys("c").is_empty());
    });
}

#[test]
fn a_commit_that_changes_nothing_is_none() {
    each_and_etcd(|subject| {
        let last = subject.commit(&[put("a", b"")]);
        let unchanged = |revision: u64| {
            // etcd counts such a commit, and a watch reaches it.
            assert!(revision == last || subject.etcd.is_some() && revision > last, "{}", subject.name);
        };
        unchanged(subject.commit(&[Change::delete("b")]));
        unchanged(subject.store.commit(&[Compare::absent("b")], &[]).unwrap());
        assert!(subject.store.commit(&[Compare::absent("a")], &[]).is_err());
        let mut watch = subject.store.watch("", last);
        assert_eq!(now(&mut watch), []);
        // Writing the same bytes again is a change.
        let again = subject.commit(&[put("a", b""), Change::delete("b")]);
        assert!(again > last);
        assert_eq!(next(&mut watch, again), [told("a", again, Some(b""))]);
    });
}

#[test]
fn a_watch_tells_every_change_once_and_in_order() {
    each_and_etcd(|subject| {
        let first = subject.commit(&[put("a/1", b"x")]);
        let (mut all, mut some) = (subject.store.watch("", first), subject.store.watch("a/", first));
        let second = subject.commit(&[put("b", b"y"), put("a/2", b"z")]);
        let third = subject.commit(&[Change::delete("a/1")]);
        let changes =
            vec![told("b", second, Some(b"y")), told("a/2", second, Some(b"z")), told("a/1", third, None)];
        assert_eq!(next(&mut some, third), changes[1..]);
        let mut heard = next(&mut all, third);
        heard.sort_by_key(|event| (event.revision, event.key != "b"));
        assert_eq!(heard, changes);
        assert_eq!(now(&mut all), []);
        // A watch that begins later reports the changes after its revision.
        assert_eq!(next(&mut subject.store.watch("", second), third), [told("a/1", third, None)]);
    });
}

#[test]
fn a_watch_is_woken_by_a_commit() {
    each_and_etcd(|subject| {
        let store = subject.store.clone();
        let mut watch = store.watch("a", 0);
        thread::scope(|scope| {
            let heard = scope.spawn(move || watch.next(LONG).unwrap());
            let revision = subject.commit(&[put("a", b"")]);
            assert_eq!(heard.join().unwrap().changes, [told("a", revision, Some(b""))]);
        });
    });
}

#[test]
fn a_watch_that_is_far_behind_must_list_again() {
    each_and_etcd(|subject| {
        let first = subject.commit(&[put("first", b"")]);
        let mut watch = subject.store.watch("", first);
        let large = vec![7; 1024 * 1024];
        for number in 0..20 {
            subject.commit(&[put(&format!("large/{number}"), &large)]);
        }
        if subject.etcd.is_none() {
            assert!(matches!(watch.next(NOW), Err(WatchError::Compacted(after)) if after == first));
        }
        subject.forget(subject.store.list("").unwrap().revision);
        let late = subject.store.watch("", first).next(LONG);
        assert!(matches!(late, Err(WatchError::Compacted(after)) if after == first), "{late:?}");
        let listing = subject.store.list("").unwrap();
        assert_eq!(listing.entries.len(), 21);
        let mut watch = subject.store.watch("", listing.revision);
        let last = subject.commit(&[put("last", b"")]);
        assert_eq!(next(&mut watch, last), [told("last", last, Some(b""))]);
        let future = subject.store.watch("", last + 1000).next(LONG);
        assert!(matches!(future, Err(WatchError::Compacted(_))), "{future:?}");
    });
}

#[test]
fn the_keys_of_a_lease_go_in_one_commit_when_it_ends() {
    each_and_etcd(|subject| {
        let store = &subject.store;
        let lease = store.grant(Duration::from_secs(3)).unwrap();
        let put_leased = |key: &str, lease| Change::put_leased(key, "x", lease);
        subject.commit(&[put_leased("a", lease), put_leased("b", lease), put("c", b"x")]);
        // A key that was put again without a lease, or was removed, no longer belongs to the lease.
        subject.commit(&[put_leased("d", lease), put_leased("e", lease)]);
        let last = subject.commit(&[put("d", b"x"), Change::delete("e")]);
        let mut watch = store.watch("", last);
        for _ in 0..3 {
            subject.advance(Duration::from_secs(2));
            store.keep_alive(lease).unwrap();
        }
        assert!(subject.find("a").is_some());
        subject.advance(Duration::from_secs(4));
        let Events { revision, changes: mut heard } = watch.next(LONG).unwrap();
        heard.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(heard, [told("a", revision, None), told("b", revision, None)]);
        let keys: Vec<_> = store.list("").unwrap().entries.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["c", "d"]);
        assert!(matches!(store.keep_alive(lease), Err(MetaError::NoLease(of)) if of == lease));
        let refused = store.commit(&[], &[put("f", b""), put_leased("a", lease)]);
        assert!(matches!(refused, Err(MetaError::NoLease(of)) if of == lease));
        assert_eq!(subject.find("f"), None, "nothing of the commit was made");
    });
}

#[test]
fn a_lease_can_be_revoked_and_another_one_can_take_its_key() {
    each_and_etcd(|subject| {
        let store = &subject.store;
        let time = Duration::from_secs(4);
        let leases = [store.grant(time).unwrap(), store.grant(time).unwrap()];
        assert_ne!(leases[0], leases[1]);
        subject.commit(&[Change::put_leased("a", "1", leases[0]), Change::put_leased("b", "1", leases[0])]);
        subject.commit(&[Change::put_leased("a", "2", leases[1])]);
        store.revoke(leases[0]).unwrap();
        assert!(subject.find("b").is_none() && subject.find("a").is_some());
        assert!(matches!(store.revoke(leases[0]), Err(MetaError::NoLease(_))));
        assert!(matches!(store.revoke(LeaseId(0)), Err(MetaError::NoLease(_))));
        // A reader notices the end of a lease too. So does a put of an absent key.
        subject.advance(time);
        let begun = Instant::now();
        while let Err(error) = store.commit(&[Compare::absent("a")], &[put("a", b"3")]) {
            // etcd looks for leases that have expired every half second.
            assert!(subject.etcd.is_some() && begun.elapsed() < LONG, "{}: {error}", subject.name);
        }
    });
}

#[test]
fn of_those_who_compare_at_once_one_wins() {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    each_and_etcd(|subject| {
        let revisions = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        loop {
                            let found = subject.find("counter");
                            let count = found.as_ref().map_or(0, |value| value.bytes[0]) + 1;
                            let compare =
                                Compare { key: "counter".into(), revision: found.map(|it| it.revision) };
                            match subject.store.commit(&[compare], &[put("counter", &[count])]) {
                                Ok(revision) => break revisions.lock().unwrap().push(revision),
                                Err(MetaError::Conflict { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                });
            }
        });
        let mut revisions = revisions.into_inner().unwrap();
        revisions.sort_unstable();
        let counts: Vec<u8> = (1..=u8::try_from(THREADS * EACH).unwrap()).collect();
        assert_eq!(subject.find("counter").unwrap().bytes, counts[counts.len() - 1..]);
        let last = *revisions.last().unwrap();
        let heard = next(&mut subject.store.watch("counter", 0), last);
        assert_eq!(heard.iter().map(|event| event.revision).collect::<Vec<_>>(), revisions);
        assert_eq!(heard.iter().flat_map(|event| event.bytes.clone().unwrap()).collect::<Vec<_>>(), counts);
    });
}

/// The contents of a store, rebuilt from the events of a watch that began at the start.
fn replayed(events: &[Event]) -> BTreeMap<String, Value> {
    let mut state = BTreeMap::new();
    for Event { key, revision, bytes } in events.iter().cloned() {
        match bytes {
            Some(bytes) => drop(state.insert(key, Value { revision, bytes })),
            None => drop(state.remove(&key)),
        }
    }
    state
}

#[test]
fn random_commits_end_alike_in_every_store_and_in_its_watches() {
    for seed in 0..20 {
        let mut ends = Vec::new();
        each(|subject| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut watch = subject.store.watch("", 0);
            let (mut heard, mut outcomes, mut leases) = (Vec::new(), Vec::new(), Vec::new());
            for step in 0..100 {
                let mut keys: Vec<String> =
                    (0..random.usize(1..4)).map(|_| random.u8(0..8).to_string()).collect();
                keys.sort_unstable();
                keys.dedup();
                match random.u8(0..8) {
                    0 => leases.push(subject.store.grant(Duration::from_secs(random.u64(1..10))).unwrap()),
                    1 => subject.advance(Duration::from_millis(random.u64(0..3000))),
                    2 if !leases.is_empty() => {
                        let lease = leases[random.usize(..leases.len())];
                        outcomes.push(subject.store.keep_alive(lease).is_ok().into());
                    }
                    3 => heard.extend(now(&mut watch)),
                    _ => {
                        let lease = leases.last().copied().filter(|_| random.bool());
                        let changes = keys.iter().map(|key| match random.bool() {
                            true => Change::Put { key: key.clone(), bytes: vec![step], lease },
                            false => Change::delete(key),
                        });
                        let changes: Vec<_> = changes.collect();
                        let compare = match random.u8(0..3) {
                            0 => Some(Compare::absent(random.u8(0..8).to_string())),
                            _ => None,
                        };
                        let done = subject.store.commit(compare.as_slice(), &changes);
                        outcomes.push(done.unwrap_or(0));
                    }
                }
            }
            let listing = subject.store.list("").unwrap();
            heard.extend(now(&mut watch));
            let entries: BTreeMap<_, _> = listing.entries.iter().cloned().collect();
            assert_eq!(replayed(&heard), entries, "{} with seed {seed}", subject.name);
            ends.push((outcomes, listing));
        });
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
    }
}

/// Commits without leases, since the time of those is etcd's own.
#[test]
fn random_commits_end_in_etcd_as_in_memory() {
    let mut ends = Vec::new();
    each_and_etcd(|subject| {
        let mut random = fastrand::Rng::with_seed(7);
        let mut watch = subject.store.watch("", subject.store.list("").unwrap().revision);
        let (mut outcomes, mut last) = (Vec::new(), 0);
        for step in 0..300_u16 {
            let mut keys: Vec<String> =
                (0..random.usize(1..4)).map(|_| random.u8(0..8).to_string()).collect();
            keys.sort_unstable();
            keys.dedup();
            let changes: Vec<Change> = keys
                .iter()
                .map(|key| match random.bool() {
                    true => Change::put(key, step.to_be_bytes()),
                    false => Change::delete(key),
                })
                .collect();
            let compared = random.u8(0..8).to_string();
            let revision = subject.find(&compared).map(|found| found.revision).filter(|_| random.bool());
            let done = subject.store.commit(&[Compare { key: compared, revision }], &changes);
            outcomes.push(done.is_ok());
            last = done.unwrap_or(last);
        }
        let listing = subject.store.list("").unwrap();
        // The last commit changes something, so that every watch reaches it.
        let end = subject.commit(&[put("end", b"")]);
        let heard: Vec<Event> =
            next(&mut watch, end).into_iter().filter(|event| event.key != "end").collect();
        let entries: BTreeMap<_, _> = listing.entries.into_iter().collect();
        assert_eq!(replayed(&heard), entries, "{}", subject.name);
        let contents: Vec<_> = entries.into_iter().map(|(key, value)| (key, value.bytes)).collect();
        ends.push((outcomes, contents));
    });
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]));
    let made = ends[0].0.iter().filter(|made| **made).count();
    assert!((50..250).contains(&made), "{made} of 300 commits were made");
}

#[test]
fn what_a_file_holds_comes_back_without_the_leases_of_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("meta");
    let store = Embedded::open(&file).unwrap();
    let lease = store.grant(LONG).unwrap();
    store.commit(&[], &[put("a", b"1"), Change::put_leased("b", "2", lease)]).unwrap();
    let last = store.commit(&[], &[Change::put_leased("c", "3", lease)]).unwrap();
    store.commit(&[], &[put("c", b"4")]).unwrap();
    drop(store);
    let store = Embedded::open(&file).unwrap();
    let listing = store.list("").unwrap();
    let entries: Vec<_> =
        listing.entries.iter().map(|(key, value)| (key.as_str(), &value.bytes[..])).collect();
    assert_eq!(entries, [("a", &b"1"[..]), ("c", b"4")]);
    assert!(listing.revision > last);
    let mut watch: Box<dyn Watch> = store.watch("", listing.revision);
    assert_eq!(now(&mut watch), []);
    assert!(matches!(store.watch("", last).next(NOW), Err(WatchError::Compacted(_))));
}
