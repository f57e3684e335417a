//! A data directory and the objects of an earlier build stay readable.
//!
//! `fixtures/log-v1.bin` and `log-v2.bin` hold the non-zero sectors of every file: name length u8, name, file length
//! u64, sector count u32, then for each sector its number u32 and its 4096 bytes; integers are little-endian.
//! `objects-v2.bin` holds the objects of a log in the same form. Only a new format version should need new fixtures, as
//! new files beside the old ones. This command writes them:
//!
//! ```text
//! cargo test -p mainstem-storage --test fixture -- --ignored
//! ```

#![allow(clippy::unwrap_used, reason = "clippy knows tests by their attribute, not by their directory")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use bytes::Bytes;
use disk::{AlignedBuffer, Disk, SECTOR, SimDisk};
use model::batch::{HEADER_BYTES, LENGTH_PREFIX_BYTES, seal_crc};
use model::{BatchHeader, Offset, StreamId, Timestamp};
use objects::{Bucket, Put, SimBucket};
use storage::epochs::Epochs;
use storage::restore::{Asking, KnownBounds, Restore, restore};
use storage::{
    Append, AppendError, Bounds, Compaction, Completion, Durability, Log, NoListener, Options, ReadRequest,
    Rewriter, Rewritten, SystemClock, Tuning,
};

const SECONDS: i64 = 1_700_000_000_000;

fn path(what: &str, version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{what}-v{version}.bin"))
}

/// The files of a fixture.
fn unpacked(what: &str, version: u32) -> Vec<(String, Vec<u8>)> {
    let stored = std::fs::read(path(what, version)).unwrap();
    let mut rest = &stored[..];
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at(count);
        rest = left;
        (taken, left.is_empty())
    };
    let number = |bytes: &[u8]| {
        usize::try_from(bytes.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte))).unwrap()
    };
    let mut files = Vec::new();
    loop {
        let name_bytes = number(take(1).0);
        let name = String::from_utf8(take(name_bytes).0.to_vec()).unwrap();
        let mut content = vec![0; number(take(8).0)];
        let (count, mut done) = take(4);
        for _ in 0..number(count) {
            let at = number(take(4).0) * SECTOR;
            let (bytes, last) = take(SECTOR);
            content[at..at + SECTOR].copy_from_slice(bytes);
            done = last;
        }
        files.push((name, content));
        if done {
            return files;
        }
    }
}

/// Writes a fixture.
fn pack(what: &str, files: &[(String, Vec<u8>)]) {
    let mut out = Vec::new();
    for (name, content) in files {
        let full: Vec<(usize, &[u8])> = content
            .chunks(SECTOR)
            .enumerate()
            .filter(|(_, sector)| sector.iter().any(|byte| *byte != 0))
            .collect();
        out.push(u8::try_from(name.len()).unwrap());
        out.extend(name.bytes());
        out.extend((content.len() as u64).to_le_bytes());
        out.extend(u32::try_from(full.len()).unwrap().to_le_bytes());
        for (number, sector) in full {
            out.extend(u32::try_from(number).unwrap().to_le_bytes());
            out.extend(sector);
        }
    }
    let path = path(what, storage::format::FORMAT_VERSION);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, out).unwrap();
}

fn options() -> Options {
    // The fixture grows old, but its producer must not expire.
    let tuning = Tuning::default();
    tuning.set_producer_expiry_ms(i64::MAX / 2);
    Options {
        segment_bytes: 1 << 20,
        object_bytes: 256 << 10,
        upload_interval_ms: 500,
        diskless_interval_ms: 500,
        reserve_bytes: 0,
        log_id: 0xfeed,
        tuning: Arc::new(tuning),
        ..Options::default()
    }
}

fn open(disk: &SimDisk, bucket: Option<Arc<dyn Bucket>>) -> Log {
    let (clock, listener) = (Arc::new(SystemClock::default()), Arc::new(NoListener));
    Log::open_tiered(Arc::new(disk.clone()), bucket, options(), clock, listener).unwrap()
}

/// Batch number `n` of a stream: two records, mostly zeros, so that the fixture stays small.
fn batch(stream: u64, n: u32) -> Bytes {
    let mut bytes = vec![0u8; HEADER_BYTES + 48_000];
    for (at, byte) in bytes[HEADER_BYTES..HEADER_BYTES + 64].iter_mut().enumerate() {
        *byte = u8::try_from((stream * 31 + u64::from(n) * 7 + at as u64) % 251).unwrap();
    }
    bytes[0..8].copy_from_slice(&(i64::from(n) * 2).to_be_bytes());
    let length = i32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).unwrap();
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[12..16].copy_from_slice(&3i32.to_be_bytes());
    bytes[16] = 2;
    bytes[23..27].copy_from_slice(&1i32.to_be_bytes());
    let timestamp = SECONDS + i64::from(n) * 1000;
    bytes[27..35].copy_from_slice(&timestamp.to_be_bytes());
    bytes[35..43].copy_from_slice(&timestamp.to_be_bytes());
    bytes[43..51].copy_from_slice(&77i64.to_be_bytes());
    bytes[53..57].copy_from_slice(&(n * 2).to_be_bytes());
    bytes[57..61].copy_from_slice(&2i32.to_be_bytes());
    seal_crc(&mut bytes);
    Bytes::from(bytes)
}

const BATCHES: u32 = 20;
const TRIMMED_TO: Offset = Offset(11);

struct Sent(std::sync::mpsc::Sender<()>);

impl Completion for Sent {
    fn complete(&self, result: Result<(), AppendError>) {
        result.unwrap();
        self.0.send(()).unwrap();
    }
}

/// The log of format version 2 has a cleaned segment: compaction dropped the odd ones of these batches of stream 1.
const COMPACTED: u32 = 15;

struct DropOdd;

impl Rewriter for DropOdd {
    fn rewrite(&mut self, header: &BatchHeader, _: &Bytes) -> Result<Rewritten, String> {
        let odd = header.base_offset.0 / 2 % 2 == 1;
        Ok(if odd { Rewritten::Drop } else { Rewritten::Keep })
    }
}

#[test]
fn a_directory_of_format_version_1_is_read() {
    check(1);
}

#[test]
fn a_directory_of_format_version_2_is_read() {
    check(2);
}

fn check(version: u32) {
    let compacted = if version > 1 { COMPACTED } else { 0 };
    let disk = SimDisk::new(1);
    for (name, content) in unpacked("log", version) {
        let file = disk.create(&name, content.len() as u64).unwrap();
        for (at, bytes) in
            content.chunks(SECTOR).enumerate().filter(|(_, bytes)| bytes.iter().any(|b| *b != 0))
        {
            let mut sector = AlignedBuffer::zeroed(SECTOR);
            sector.copy_from_slice(bytes);
            file.write_at((at * SECTOR) as u64, &sector).unwrap();
        }
    }

    let log = open(&disk, None);
    assert!(
        log.recovery().sealed_segments > 0 && log.recovery().scanned_segments > 0,
        "{:?}",
        log.recovery()
    );
    assert_eq!(log.recovery().cleaned_segments > 0, compacted > 0);
    let mut streams: Vec<u64> = log.streams().iter().map(|stream| stream.id().0).collect();
    streams.sort_unstable();
    assert_eq!(streams, [1, 2], "stream 3 was deleted");
    check_records(&log, compacted);
    log.close();
}

/// Stream 1 has all batches, but for the odd ones below `compacted`, and stream 2 those from [`TRIMMED_TO`] on.
fn check_records(log: &Log, compacted: u32) {
    for id in [1, 2] {
        let stream = log.stream(StreamId(id));
        let start = if id == 2 { TRIMMED_TO } else { Offset(0) };
        let committed = Offset(i64::from(BATCHES) * 2);
        assert!(
            matches!(stream.bounds(), Bounds { start: s, committed: c, .. } if s == start && c == committed)
        );
        let mut from = start;
        while from < committed {
            let stream = stream.clone();
            let until = Offset(i64::MAX);
            let request = ReadRequest { stream, from, until, bytes_max: 200_000, at_least_one: true };
            let batches = log.read_blocking(&request).unwrap();
            let first = u32::try_from(from.0 / 2).unwrap();
            let last = u32::try_from(batches.next.unwrap().0 / 2).unwrap();
            let left = |n: &u32| id != 1 || *n >= compacted || n.is_multiple_of(2);
            let want: Vec<u8> = (first..last).filter(left).flat_map(|n| batch(id, n)).collect();
            assert!(batches.chunks.concat() == want, "stream {id} from {from}");
            from = batches.next.unwrap();
        }
        let found = log.first_at_or_after(&stream, Timestamp(SECONDS + 15_500)).unwrap().unwrap();
        assert_eq!((found.base_offset, found.max_timestamp), (Offset(32), Timestamp(SECONDS + 16_000)));
        let producers = stream.producers();
        let sequences: Vec<i32> =
            producers.find(77).unwrap().batches.iter().map(|batch| batch.base_sequence).collect();
        assert_eq!(sequences, [30, 32, 34, 36, 38]);
    }
}

#[test]
fn objects_of_format_version_2_are_read() {
    let store = SimBucket::new(1);
    for (key, content) in unpacked("objects", 2) {
        assert_eq!(store.put_if_absent(&key, &[content.into()]).unwrap(), Put::Stored);
    }
    let bucket: Arc<dyn Bucket> = Arc::new(store);
    let known = |id: u64| {
        let start = if id == 2 { TRIMMED_TO } else { Offset(0) };
        (StreamId(id), Some(KnownBounds { start, next: Offset(40), stored: Some(Offset(40)) }))
    };
    let streams = [known(1), known(2)].into();
    let disk = SimDisk::new(1);
    let target: Arc<dyn Disk> = Arc::new(disk.clone());
    let log_id = options().log_id;
    let asking = Asking { bucket: &bucket, threads: 1, pause: &|_, _| false, progress: &|_, _| {} };
    let restored = restore(
        &target,
        &Restore {
            asking,
            log_id,
            epochs: Epochs::default(),
            streams: &streams,
            opens: false,
            accept_loss: false,
            now_ms: SECONDS,
        },
    );
    let restored = restored.unwrap();
    assert!(restored.findings.is_empty() && restored.others.contains_key(&StreamId(3)), "{restored:?}");
    let log = open(&disk, Some(bucket));
    check_records(&log, COMPACTED);
    log.close();
}

/// Fills streams 1 to 3 of a log, trims the second, deletes the third and compacts the first.
fn fill(log: &Log, compact: impl FnOnce(Compaction)) {
    let (sender, receiver) = channel();
    let sent = || Some(Arc::new(Sent(sender.clone())) as Arc<dyn Completion>);
    for n in 0..BATCHES {
        for id in 1..=3 {
            let batch = batch(id, n);
            let admission = loop {
                if let Ok(admission) = log.admit(batch.len()) {
                    break admission;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            };
            let stream = log.stream(StreamId(id));
            log.append(Append {
                stream,
                base_offset: Offset(i64::from(n) * 2),
                header: BatchHeader::parse(&batch).unwrap(),
                batch,
                append_time: None,
                leader_epoch: 3,
                durability: Durability::Synced,
                done: sent(),
                admission,
            });
            receiver.recv().unwrap();
        }
    }
    log.trim(&log.stream(StreamId(2)), TRIMMED_TO, sent());
    log.delete(&log.stream(StreamId(3)), sent());
    receiver.recv().unwrap();
    receiver.recv().unwrap();
    let until = Offset(i64::from(COMPACTED) * 2);
    compact(Compaction { stream: log.stream(StreamId(1)), until, rewriter: Box::new(DropOdd) });
}

#[test]
#[ignore = "writes the fixture anew"]
fn regenerate_log() {
    let disk = SimDisk::new(1);
    let log = open(&disk, None);
    fill(&log, |job| assert_eq!(log.compact(&mut [job].into_iter()).unwrap().segments, 1));
    log.close();
    let mut names = disk.list().unwrap();
    names.sort();
    let content = |name: &String| {
        let file = disk.open(name).unwrap();
        let mut bytes = vec![0; usize::try_from(file.length()).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    };
    pack("log", &names.iter().map(|name| (name.clone(), content(name))).collect::<Vec<_>>());
}

/// Stream 1 is diskless, stream 2 is tiered.
#[test]
#[ignore = "writes the fixture anew"]
fn regenerate_objects() {
    let (disk, store) = (SimDisk::new(1), SimBucket::new(1));
    let log = open(&disk, Some(Arc::new(store.clone())));
    log.set_diskless(&log.stream(StreamId(1)));
    log.set_tiered(&log.stream(StreamId(2)), true);
    log.set_tiered(&log.stream(StreamId(3)), true);
    fill(&log, |job| {
        let end = Some(Offset(i64::from(BATCHES) * 2));
        while [1, 2].iter().any(|id| log.stream(StreamId(*id)).bounds().stored != end) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(log.compact_stored(&mut [job].into_iter()).unwrap().segments, 1);
    });
    log.close();
    let objects = store.keys().into_iter().filter(|key| key.starts_with("logs/"));
    pack(
        "objects",
        &objects.map(|key| (key.clone(), store.content(&key).unwrap().to_vec())).collect::<Vec<_>>(),
    );
}
