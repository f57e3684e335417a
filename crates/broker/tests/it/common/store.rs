//! A broker with an object store: a directory as the bucket, which can be held.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::{Broker, Config, Connection, LogDirectory};
use bytes::Bytes;
use disk::{Engine, open_directory};
use model::{Compression, Timestamp};
use objects::{Bucket, BucketError, DirectoryBucket, Listed, Put};
use wire::messages as m;
use wire::records::{BatchBuilder, records};

use super::{call, fetch_of, fetch_request, produce};

/// A bucket that does not answer while it is held.
#[derive(Debug)]
struct Gate {
    bucket: DirectoryBucket,
    held: Arc<AtomicBool>,
}

impl Gate {
    fn pass(&self) -> Result<(), BucketError> {
        if self.held.load(Ordering::SeqCst) { Err(BucketError::Unclear("it is held".into())) } else { Ok(()) }
    }
}

impl Bucket for Gate {
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError> {
        self.pass()?;
        self.bucket.put_if_absent(key, body)
    }

    fn get(&self, key: &str, range: std::ops::Range<u64>) -> Result<Bytes, BucketError> {
        self.pass()?;
        self.bucket.get(key, range)
    }

    fn length(&self, key: &str) -> Result<u64, BucketError> {
        self.pass()?;
        self.bucket.length(key)
    }

    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError> {
        self.pass()?;
        self.bucket.list(prefix, after, most)
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        self.pass()?;
        self.bucket.delete(key)
    }
}

pub struct Machine {
    pub home: tempfile::TempDir,
    held: Arc<AtomicBool>,
}

impl Machine {
    pub fn new() -> Machine {
        Machine { home: tempfile::tempdir().unwrap(), held: Arc::default() }
    }

    pub fn bucket(&self) -> std::path::PathBuf {
        self.home.path().join("bucket")
    }

    /// Whether the bucket answers from now on.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
    }

    pub fn open(&self) -> Arc<Broker> {
        self.open_with(&[])
    }

    pub fn open_with(&self, settings: &[(&str, &str)]) -> Arc<Broker> {
        let (data, bucket) = (self.home.path().join("data"), self.bucket());
        std::fs::create_dir_all(&data).unwrap();
        let mut config = Config::default();
        for (name, value) in [
            ("log.segment.bytes", "1048576"),
            ("log.reserve.bytes", "0"),
            ("log.retention.check.interval.ms", "10"),
            ("object.store", bucket.to_str().unwrap()),
            ("object.store.object.bytes", "262144"),
            ("object.store.upload.interval.ms", "20"),
            ("object.store.delete.delay.ms", "0"),
        ] {
            config.set(name, value).unwrap();
        }
        for (name, value) in settings {
            config.set(name, value).unwrap();
        }
        let path = data.clone();
        let open = move |_| Ok(Arc::new(open_directory(&path, Engine::Plain)?) as Arc<dyn disk::Disk>);
        let logs = vec![LogDirectory::new("only", open)];
        let (bucket, held) = (DirectoryBucket::open(bucket).unwrap(), self.held.clone());
        let bucket: Arc<dyn Bucket> = Arc::new(Gate { bucket, held });
        Broker::open_with_bucket(config, logs, &data, Some(bucket)).unwrap()
    }

    pub fn objects(&self) -> usize {
        let count = |folder: &Path| std::fs::read_dir(folder).map_or(0, Iterator::count);
        let logs = std::fs::read_dir(self.bucket().join("logs"));
        logs.map_or(0, |logs| logs.map(|log| count(&log.unwrap().path())).sum())
    }
}

pub fn value(number: i64) -> Vec<u8> {
    let seed = u64::try_from(number).unwrap();
    let mut value = vec![0; 1000];
    fastrand::Rng::with_seed(seed).fill(&mut value);
    value
}

/// Appends records with the numbers `numbers`, 20 in a batch.
pub async fn fill(connection: &mut Connection, topic: &'static str, numbers: std::ops::Range<i64>) {
    let numbers: Vec<i64> = numbers.collect();
    for chunk in numbers.chunks(20) {
        let mut batch = BatchBuilder::new(Compression::None);
        chunk.iter().for_each(|number| {
            batch.push(Timestamp(1_700_000_000_000 + number), None, Some(&value(*number)))
        });
        let (error, base, _) = produce(connection, topic, 0, -1, batch.finish()).await;
        assert_eq!((error, base), (0, chunk[0]));
    }
}

/// Fetches everything from `from` on, and checks it.
pub async fn read_back(connection: &mut Connection, topic: &'static str, from: i64, end: i64) {
    let mut at = from;
    while at < end {
        let request = fetch_request((0, -1), 1000, vec![fetch_of(topic, 0, at)]);
        let answer: m::FetchResponse = call(connection, 12, &request).await;
        let partition = &answer.responses[0].partitions[0];
        assert_eq!(partition.error_code, 0, "at {at}");
        let mut bytes: Bytes = partition.records.as_ref().unwrap().to_bytes();
        assert!(!bytes.is_empty(), "nothing at {at} of {end}");
        while !bytes.is_empty() {
            let (header, all) = records(&bytes, 1 << 20).unwrap();
            bytes = bytes.slice(header.total_bytes..);
            for (record, number) in all.zip(header.base_offset.0..) {
                if number >= at {
                    assert_eq!(record.unwrap().value.as_deref(), Some(&value(number)[..]), "record {number}");
                    at = number + 1;
                }
            }
        }
    }
}
