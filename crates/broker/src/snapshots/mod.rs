//! Metadata snapshots in the object store, and the restore of a lost data directory from them.
//!
//! A snapshot has every entry of the metadata and the bounds of every stream at one moment. It is an immutable object
//! beside the objects of the logs, with a number that rises. [`writer`] writes them, [`restore`] reads the newest.
//!
//! ```text
//! key          | metadata/CLUSTER/NNNNNNNNNN |
//! object       | magic "MAINMETA" | version u32 | payload crc u32 | payload bytes u64 | zero u32 | crc of these u32 | payload |
//! payload      | cluster id | taken ms i64 | revision u64 | entries u32 | entry… | logs u32 | log… |
//! entry        | key | value |
//! log          | id u128 | path | streams u32 | stream… |
//! stream       | id u64 | start i64 | next i64 | stored i64, or -1 |
//! cluster id, key, value, path | bytes u32 | bytes… |
//! ```

pub mod restore;
pub mod writer;

use std::fmt::Write as _;
use std::time::Duration;

use model::{Offset, StreamId, crc32c};
use objects::{Bucket, BucketError, list_all, patiently};
use storage::restore::KnownBounds;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"MAINMETA";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
/// The keys of all snapshots begin so.
const PREFIX: &str = "metadata/";
/// Bytes of a snapshot that are read at once.
const READ_BYTES: u64 = 8 * 1024 * 1024;

/// The metadata and the bounds of all streams at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The cluster's id.
    pub cluster_id: String,
    /// When it was taken, in milliseconds since the Unix epoch.
    pub taken_ms: i64,
    /// The revision of the metadata.
    pub revision: u64,
    /// All entries of the metadata, in the order of their keys.
    pub entries: Vec<(String, Vec<u8>)>,
    /// The open logs.
    pub logs: Vec<LogBounds>,
}

/// The bounds of the streams of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// The log's id.
    pub id: Uuid,
    /// Its directory.
    pub path: String,
    /// Its streams, by id.
    pub streams: Vec<(StreamId, KnownBounds)>,
}

/// Why an object is no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It does not match its checksums, or contradicts itself.
    #[error("it is damaged")]
    Damaged,
    /// Another version of this program wrote it.
    #[error("its format version is {0}, this version reads {VERSION}")]
    Version(u32),
}

impl Snapshot {
    /// The bytes of the object.
    ///
    /// # Panics
    /// If a part has 4 GiB or more.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        put_bytes(&mut payload, self.cluster_id.as_bytes());
        payload.extend(self.taken_ms.to_le_bytes());
        payload.extend(self.revision.to_le_bytes());
        put_count(&mut payload, self.entries.len());
        for (key, value) in &self.entries {
            put_bytes(&mut payload, key.as_bytes());
            put_bytes(&mut payload, value);
        }
        put_count(&mut payload, self.logs.len());
        for log in &self.logs {
            payload.extend(log.id.as_u128().to_le_bytes());
            put_bytes(&mut payload, log.path.as_bytes());
            put_count(&mut payload, log.streams.len());
            for (id, bounds) in &log.streams {
                payload.extend(id.0.to_le_bytes());
                let stored = bounds.stored.map_or(-1, |stored| stored.0);
                for offset in [bounds.start.0, bounds.next.0, stored] {
                    payload.extend(offset.to_le_bytes());
                }
            }
        }
        let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(crc32c(&payload).to_le_bytes());
        out.extend((payload.len() as u64).to_le_bytes());
        out.extend([0; 4]);
        let crc = crc32c(&out);
        out.extend(crc.to_le_bytes());
        out.extend(payload);
        out
    }

    /// Reads the bytes of an object.
    pub fn decode(bytes: &[u8]) -> Result<Snapshot, DecodeError> {
        let (head, payload) = bytes.split_at_checked(HEADER_BYTES).ok_or(DecodeError::Damaged)?;
        let (covered, crc) = head.split_at(HEADER_BYTES - 4);
        if !head.starts_with(MAGIC) || crc != crc32c(covered).to_le_bytes() {
            return Err(DecodeError::Damaged);
        }
        let mut fields = Fields(&head[MAGIC.len()..]);
        let (version, payload_crc) = (fields.u32(), fields.u32());
        if version != Some(VERSION) {
            return Err(DecodeError::Version(version.unwrap_or_default()));
        }
        if fields.u64() != Some(payload.len() as u64) || payload_crc != Some(crc32c(payload)) {
            return Err(DecodeError::Damaged);
        }
        let mut rest = Fields(payload);
        let snapshot = rest.snapshot().filter(|_| rest.0.is_empty());
        snapshot.ok_or(DecodeError::Damaged)
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend(u32::try_from(count).expect("memory bounds all parts far below that").to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend(bytes);
}

/// Bytes from the front of which fields are taken.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn offset(&mut self) -> Option<Offset> {
        Some(Offset(self.u64()?.cast_signed()))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let bytes = self.u32()?;
        self.take(usize::try_from(bytes).ok()?)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn snapshot(&mut self) -> Option<Snapshot> {
        let (cluster_id, taken_ms, revision) = (self.text()?, self.u64()?.cast_signed(), self.u64()?);
        let mut entries = Vec::new();
        for _ in 0..self.u32()? {
            entries.push((self.text()?, self.bytes()?.to_vec()));
        }
        let mut logs = Vec::new();
        for _ in 0..self.u32()? {
            logs.push(self.log()?);
        }
        Some(Snapshot { cluster_id, taken_ms, revision, entries, logs })
    }

    fn log(&mut self) -> Option<LogBounds> {
        let id = u128::from_le_bytes(self.take(16)?.try_into().ok()?);
        let path = self.text()?;
        let mut streams = Vec::new();
        for _ in 0..self.u32()? {
            let (id, start, next, stored) = (self.u64()?, self.offset()?, self.offset()?, self.offset()?);
            let stored = (stored.0 >= 0).then_some(stored);
            streams.push((StreamId(id), KnownBounds { start, next, stored }));
        }
        Some(LogBounds { id: Uuid::from_u128(id), path, streams })
    }
}

/// The keys of all snapshots of a cluster begin so. Keys of objects have no capital letters, so the id is written in
/// hexadecimal digits.
fn prefix_of(cluster_id: &str) -> String {
    let mut prefix = PREFIX.to_owned();
    for byte in cluster_id.bytes() {
        write!(prefix, "{byte:02x}").expect("a text takes everything");
    }
    prefix.push('/');
    prefix
}

fn key_of(cluster_id: &str, number: u32) -> String {
    format!("{}{number:010}", prefix_of(cluster_id))
}

/// The number of the snapshot with this key.
fn number_of(key: &str) -> Option<u32> {
    let (_, digits) = key.rsplit_once('/')?;
    (digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}

/// The id of the cluster whose snapshot has this key.
fn cluster_of(key: &str) -> Option<String> {
    let (digits, _) = key.strip_prefix(PREFIX)?.split_once('/')?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

/// A snapshot in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its key.
    pub key: String,
    /// Its cluster.
    pub cluster_id: String,
    /// Its number: later snapshots have higher ones.
    pub number: u32,
    /// Bytes of the object.
    pub bytes: u64,
}

/// All snapshots in a bucket, by cluster and number. `wait` is as in [`patiently`].
pub fn all(
    bucket: &dyn Bucket,
    wait: impl FnMut(Duration, &BucketError) -> bool,
) -> Result<Vec<Stored>, BucketError> {
    let mut found = Vec::new();
    for object in list_all(bucket, PREFIX, "", wait)? {
        if let (Some(cluster_id), Some(number)) = (cluster_of(&object.key), number_of(&object.key)) {
            found.push(Stored { key: object.key, cluster_id, number, bytes: object.bytes });
        }
    }
    Ok(found)
}

/// Reads a snapshot. `Err` within says why it is none.
pub fn read(
    bucket: &dyn Bucket,
    stored: &Stored,
    mut wait: impl FnMut(Duration, &BucketError) -> bool,
) -> Result<Result<Snapshot, DecodeError>, BucketError> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < stored.bytes {
        let from = bytes.len() as u64;
        let until = (from + READ_BYTES).min(stored.bytes);
        let part = patiently(|| bucket.get(&stored.key, from..until), &mut wait)?;
        if part.is_empty() {
            break;
        }
        bytes.extend_from_slice(&part);
    }
    let decoded = Snapshot::decode(&bytes);
    Ok(decoded.and_then(|found| match found.cluster_id == stored.cluster_id {
        true => Ok(found),
        false => Err(DecodeError::Damaged),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Snapshot {
        let bounds = |start, next, stored: Option<i64>| KnownBounds {
            start: Offset(start),
            next: Offset(next),
            stored: stored.map(Offset),
        };
        let streams = vec![(StreamId(0), bounds(0, 0, None)), (StreamId(7), bounds(3, 90, Some(80)))];
        Snapshot {
            cluster_id: "AbC-_x".into(),
            taken_ms: 1_700_000_000_123,
            revision: 17,
            entries: vec![("cluster_id".into(), b"AbC-_x".to_vec()), ("topics/t".into(), vec![0, 255])],
            logs: vec![LogBounds { id: Uuid::from_u128(1 << 100), path: "/d".into(), streams }],
        }
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written_or_not_at_all() {
        let snapshot = sample();
        let bytes = snapshot.encode();
        assert_eq!(Snapshot::decode(&bytes), Ok(snapshot));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Snapshot::decode(&damaged).is_err(), "bit 0 of byte {at}");
            assert!(Snapshot::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let mut newer = bytes[..HEADER_BYTES].to_vec();
        newer[8] = 2;
        let crc = crc32c(&newer[..28]);
        newer[28..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Snapshot::decode(&newer), Err(DecodeError::Version(2)));
    }

    #[test]
    fn keys_name_cluster_and_number() {
        let key = key_of("AbC-_x", 17);
        assert_eq!(key, "metadata/4162432d5f78/0000000017");
        assert_eq!((cluster_of(&key).as_deref(), number_of(&key)), (Some("AbC-_x"), Some(17)));
        assert_eq!(cluster_of("metadata/4/0000000001"), None);
        assert_eq!(number_of("metadata/41/1"), None);
    }
}
