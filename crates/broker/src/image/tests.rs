//! Tests: the image follows the store, and changes of two brokers are each made once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use meta::Memory;
use uuid::Uuid;

use super::*;

/// Records the calls it receives.
#[derive(Default)]
struct Heard(Mutex<Vec<(u64, Vec<String>)>>);

impl Observer for Heard {
    fn changed(&self, image: &Arc<Image>, delta: &Delta) {
        self.0.lock().push((image.revision, delta.topics.iter().cloned().collect()));
    }
}

fn topic(number: u128) -> TopicRecord {
    TopicRecord::new(Uuid::from_u128(number), BTreeMap::new())
}

fn create(metadata: &Metadata, name: &str, number: u128) -> Result<(), MetaError> {
    metadata.update(|_| Ok(Update::new(vec![topic(number).put(name)], ())))
}

fn names(image: &Image) -> Vec<(String, Uuid)> {
    image.topics.iter().map(|(name, record)| (name.to_owned(), record.id)).collect()
}

/// Two brokers with a common store.
fn two() -> (Arc<Memory>, [Arc<Metadata>; 2]) {
    let store = Arc::new(Memory::default());
    let open = || Metadata::open(store.clone()).unwrap();
    (store.clone(), [open(), open()])
}

#[test]
fn a_change_is_in_the_image_and_observed_before_it_returns() {
    let (_, [ours, _]) = two();
    let heard = Arc::new(Heard::default());
    let observer: Weak<dyn Observer> = Arc::downgrade(&(heard.clone() as Arc<dyn Observer>));
    ours.observe(observer);
    let before = ours.image();
    create(&ours, "a", 1).unwrap();
    let revision = ours.image().revision;
    assert_eq!(names(&ours.image()), [("a".to_owned(), Uuid::from_u128(1))]);
    assert_eq!(*heard.0.lock(), [(revision, vec!["a".to_owned()])]);
    assert!(before.topics.get("a").is_none(), "an image does not change");
    // An empty change commits nothing, and a refused change changes nothing.
    ours.update(|_| Ok::<_, MetaError>(Update::new(Vec::new(), ()))).unwrap();
    let refused = ours.update(|_| Err::<Update<()>, _>(MetaError::Conflict { key: "mine".into() }));
    assert!(matches!(refused, Err(MetaError::Conflict { key }) if key == "mine"));
    assert_eq!(ours.image().revision, revision);
}

#[test]
fn of_two_brokers_that_change_one_key_the_later_sees_what_the_earlier_did() {
    let (_, [ours, theirs]) = two();
    create(&ours, "a", 1).unwrap();
    let calls = AtomicUsize::new(0);
    let seen = theirs.update(|image| {
        calls.fetch_add(1, Ordering::Relaxed);
        let id = image.topics.get("a").map(|record| record.id);
        Ok::<_, MetaError>(Update::new(vec![topic(2).put("a")], id))
    });
    assert_eq!((seen.unwrap(), calls.into_inner()), (Some(Uuid::from_u128(1)), 2));
    assert_eq!(ours.image().topics.get("a").unwrap().id, Uuid::from_u128(1), "not told yet");
    ours.refresh().unwrap();
    assert_eq!(names(&ours.image()), names(&theirs.image()));
    // The caller's own conditions are checked too.
    let absent = |metadata: &Metadata| {
        metadata.update(|image| {
            let compares = vec![Compare::absent("counter")];
            if image.topics.get("b").is_some() {
                return Err(MetaError::Conflict { key: "seen".into() });
            }
            Ok(Update { compares, changes: vec![Change::put("counter", "1"), topic(3).put("b")], result: () })
        })
    };
    absent(&ours).unwrap();
    assert!(matches!(absent(&theirs), Err(MetaError::Conflict { key }) if key == "seen"));
}

#[test]
fn whoever_is_far_behind_reads_everything_anew() {
    let (store, [ours, theirs]) = two();
    create(&ours, "kept", 1).unwrap();
    create(&ours, "changed", 2).unwrap();
    create(&ours, "gone", 3).unwrap();
    theirs.refresh().unwrap();
    let heard = Arc::new(Heard::default());
    let observer: Weak<dyn Observer> = Arc::downgrade(&(heard.clone() as Arc<dyn Observer>));
    theirs.observe(observer);
    ours.update(|_| {
        let changes = vec![topic(4).put("changed"), TopicRecord::delete("gone"), topic(5).put("new")];
        Ok::<_, MetaError>(Update::new(changes, ()))
    })
    .unwrap();
    let large = vec![0; 1024 * 1024];
    (0..20).for_each(|number| drop(store.commit(&[], &[Change::put(format!("x/{number}"), large.clone())])));
    theirs.refresh().unwrap();
    ours.refresh().unwrap();
    assert_eq!(names(&theirs.image()), names(&ours.image()));
    assert_eq!(theirs.image().revision, ours.image().revision);
    let changed = ["changed", "gone", "new"].map(str::to_owned).to_vec();
    assert_eq!(*heard.0.lock(), [(theirs.image().revision, changed)]);
}

#[test]
fn a_store_that_went_back_is_not_followed() {
    let (_, [ours, _]) = two();
    create(&ours, "a", 1).unwrap();
    let earlier: Arc<dyn Store> = Arc::new(Memory::default());
    let ours = Metadata {
        store: earlier.clone(),
        image: RwLock::new(ours.image()),
        following: Mutex::new(Following {
            watch: earlier.watch("", ours.image().revision),
            observers: Vec::new(),
        }),
        update: Mutex::default(),
    };
    let error = ours.refresh().unwrap_err().to_string();
    assert!(error.contains("went back"), "{error}");
    assert!(ours.image().topics.get("a").is_some());
}

#[test]
fn what_cannot_be_read_is_an_error_at_the_start_and_passed_over_later() {
    let (store, [ours, _]) = two();
    create(&ours, "a", 1).unwrap();
    store.commit(&[], &[Change::put("topics/a", "{"), topic(2).put("b")]).unwrap();
    ours.refresh().unwrap();
    let expected = [("a".to_owned(), Uuid::from_u128(1)), ("b".to_owned(), Uuid::from_u128(2))];
    assert_eq!(names(&ours.image()), expected);
    let error = Metadata::open(store).unwrap_err();
    assert!(matches!(error, MetaError::Unreadable { key, .. } if key == "topics/a"));
}

/// A store that takes few changes in a commit.
#[derive(Debug)]
struct Narrow(Memory);

impl Store for Narrow {
    fn find(&self, key: &str) -> Result<Option<meta::Value>, MetaError> {
        self.0.find(key)
    }

    fn list(&self, prefix: &str) -> Result<meta::Listing, MetaError> {
        self.0.list(prefix)
    }

    fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError> {
        assert!(compares.len() <= 11 && changes.len() <= 10, "{} changes", changes.len());
        self.0.commit(compares, changes)
    }

    fn changes_max(&self) -> usize {
        10
    }

    fn watch(&self, prefix: &str, after: u64) -> Box<dyn meta::Watch> {
        self.0.watch(prefix, after)
    }

    fn grant(&self, ttl: Duration) -> Result<meta::LeaseId, MetaError> {
        self.0.grant(ttl)
    }

    fn keep_alive(&self, lease: meta::LeaseId) -> Result<(), MetaError> {
        self.0.keep_alive(lease)
    }

    fn revoke(&self, lease: meta::LeaseId) -> Result<(), MetaError> {
        self.0.revoke(lease)
    }
}

#[test]
fn changes_that_are_too_many_for_a_commit_are_made_in_parts() {
    let metadata = Metadata::open(Arc::new(Narrow(Memory::default()))).unwrap();
    for count in [0, 9, 10, 11, 25] {
        let mut asked = 0;
        let added: Result<usize, MetaError> = metadata.update_in_parts(|image| {
            asked += 1;
            let before = image.topics.iter().count();
            let puts = (0..count).map(|n| topic(n).put(&n.to_string())).collect();
            Ok(Update::new(puts, before))
        });
        assert_eq!(
            (added.unwrap(), metadata.image().topics.iter().count()),
            (0, usize::try_from(count).unwrap())
        );
        assert_eq!(asked, count.div_ceil(10).max(1));
        let gone: Result<usize, MetaError> = metadata.update_in_parts(|image| {
            let deletions: Vec<Change> =
                image.topics.iter().map(|(name, _)| TopicRecord::delete(name)).collect();
            let count = deletions.len();
            Ok(Update::new(deletions, count))
        });
        assert_eq!(
            (gone.unwrap(), metadata.image().topics.iter().count()),
            (usize::try_from(count).unwrap(), 0)
        );
    }
}

#[test]
fn brokers_that_change_topics_at_once_end_with_the_same_image() {
    for seed in 0..20 {
        let (store, brokers) = two();
        thread::scope(|scope| {
            for (number, metadata) in brokers.iter().enumerate() {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed * 2 + number as u64);
                    for _ in 0..100 {
                        let (name, id) = (random.u8(0..5).to_string(), random.u128(..));
                        let done: Result<(), MetaError> = metadata.update(|image| {
                            let change = match image.topics.get(&name) {
                                Some(_) => TopicRecord::delete(&name),
                                None => topic(id).put(&name),
                            };
                            // Every change also increments this counter, as for the ids of streams.
                            let count = metadata.store().find("count")?;
                            let next = count.as_ref().map_or(0, |value| value.bytes[0]).wrapping_add(1);
                            let revision = count.map(|value| value.revision);
                            let compares = vec![Compare { key: "count".into(), revision }];
                            let changes = vec![Change::put("count", [next]), change];
                            Ok(Update { compares, changes, result: () })
                        });
                        done.unwrap();
                    }
                });
            }
        });
        brokers.iter().for_each(|metadata| metadata.refresh().unwrap());
        let [ours, theirs] = brokers.each_ref().map(|metadata| metadata.image());
        let stored = Image::load(&*store).unwrap();
        assert_eq!(names(&ours), names(&theirs), "seed {seed}");
        assert_eq!(names(&ours), names(&stored), "seed {seed}");
        assert_eq!((ours.revision, theirs.revision), (stored.revision, stored.revision));
        assert_eq!(store.find("count").unwrap().unwrap().bytes, [200], "every change was made once");
    }
}

#[test]
fn fields_of_a_newer_version_stay() {
    let topic = br#"{"id":"00000000-0000-0000-0000-000000000001","streams":[7,8],"moves":{"1":{"stream":9,
        "log":"00000000-0000-0000-0000-000000000002","epoch":3,"new":[1,2]}},"configs":{},"new":{"a":null}}"#;
    let mut record = TopicRecord::parse("a", topic).unwrap();
    record.moves.get_mut(&1).unwrap().ready = true;
    let again: serde_json::Value = serde_json::from_slice(&record.encode()).unwrap();
    assert_eq!(again["new"], serde_json::json!({ "a": null }));
    assert_eq!((&again["moves"]["1"]["new"], &again["moves"]["1"]["ready"]), (&[1, 2].into(), &true.into()));
    // Nothing is added where nothing is new.
    let plain = String::from_utf8(TopicRecord::new(Uuid::nil(), BTreeMap::new()).encode()).unwrap();
    assert!(!plain.contains("rest"), "{plain}");
}
