//! Restores a log whose disk is lost from its objects.
//!
//! A restored log has the local file of each object, and one sealed segment without records. Its stream table says where
//! each stream starts and ends, and which producers it remembers. Opening the log finds everything else in the objects.
//!
//! Invariants:
//! - The segment gets its name last, so a directory is no log before everything else in it is durable. A restore that
//!   was cut short is run again, and keeps the local files that it finds whole.
//! - Nothing is written to the bucket.
//! - A number or a generation that the lost server may have used is not used again: numbers go on behind the highest
//!   object, generations a long way behind it.
//! - Opening must accept the log with the same bounds. That is tried before the segment gets its name, or the caller looks after
//!   opening.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use disk::{AlignedBuffer, Disk};
use model::{Offset, StreamId};
use objects::{BucketError, Listed, list_all};

use super::finding::{Finding, Hit, Severity};
pub use super::gather::{Asking, Pause};
use super::gather::{Numbered, Outcome, gather, objects_of, several};
use super::holdings::{Held, Holdings};
pub use super::holdings::{KnownBounds, RestoredStream};
pub use super::stored::stored_batches;
use super::unwritten::Unwritten;
pub use crate::epochs::Epochs;
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, Lsn, SECTOR, STORED, SegmentHeader, length32, sectors,
    seeded_crc,
};
use crate::log::Log;
use crate::recovery::{OpenError, recover};
use crate::segment::fetch::{Described, Expected, describe};
use crate::segment::footer;
use crate::segment::manifest::{ManifestKey, decode, manifest_prefix};
use crate::segment::object::{ObjectKeys, Places};
use crate::segment::{PREPARING, STORING, file_name, sequence_of, stored_sequence_of};
use crate::stream::{Bounds, Stream};

/// The sequence number of the restored log's first segment. A log may begin with any number behind the first: the
/// segments before are dead.
const FIRST_SEQUENCE: u32 = 2;
/// The generations of the restored log begin so far behind those of its objects. A log uses one for each segment.
const GENERATIONS_APART: u64 = 1 << 32;

/// What to restore.
pub struct Restore<'a> {
    /// How to ask for the log's objects.
    pub asking: Asking<'a>,
    /// The log's id.
    pub log_id: u128,
    /// The epochs of the log, whose earlier ones are sealed. Empty for a log without epochs.
    pub epochs: Epochs,
    /// The streams that are wanted. What is known of each at the time of the metadata snapshot, if the log was open then.
    pub streams: &'a HashMap<StreamId, Option<KnownBounds>>,
    /// The caller opens the log at once, and then asks [`RestoredLog::is_in`]. Otherwise opening is tried here.
    pub opens: bool,
    /// Goes on where an object is damaged or missing, without the records that cannot be reached then.
    pub accept_loss: bool,
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
}

impl std::fmt::Debug for Restore<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restore").field("log_id", &self.log_id).finish_non_exhaustive()
    }
}

/// Why a log was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The object store cannot be asked.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The directory has a log already.
    #[error("there is a log in the new directory already")]
    Exists,
    /// The directory cannot be written.
    #[error("{0}: {1}")]
    Local(String, #[source] io::Error),
    /// Objects are damaged or missing.
    #[error("objects are damaged or missing")]
    Damaged(Vec<Finding>),
    /// Opening would refuse the restored log.
    #[error("the restored log cannot be opened: {0}")]
    Open(#[from] OpenError),
    /// Opening would find other bounds. That is a bug, or objects that no restore knows.
    #[error("the restored log does not hold what its objects say: {0}")]
    Differs(String),
}

/// A restored log.
#[derive(Debug, Default)]
pub struct RestoredLog {
    /// Objects.
    pub objects: usize,
    /// Bytes of these objects.
    pub object_bytes: u64,
    /// The wanted streams.
    pub streams: HashMap<StreamId, RestoredStream>,
    /// Streams that are in objects, and not wanted.
    pub others: HashMap<StreamId, RestoredStream>,
    /// Damaged and missing objects, and what else is worth knowing.
    pub findings: Vec<Finding>,
    /// The highest stream in any object.
    pub last_stream: Option<StreamId>,
    /// The highest producer that any object remembers.
    pub last_producer: Option<i64>,
}

/// What the objects say.
#[derive(Default)]
struct Sum {
    holdings: Holdings,
    objects: usize,
    bytes: u64,
    findings: Vec<Finding>,
    /// Damaged objects, with their lengths.
    damaged: Vec<(u32, u64)>,
}

/// Restores the log of `restore` into `target`. Blocks.
///
/// The directory must be empty, or hold what an earlier call for the same log left.
pub fn restore(target: &Arc<dyn Disk>, restore: &Restore) -> Result<RestoredLog, RestoreError> {
    prepare(target)?;
    let keys = ObjectKeys::new(restore.log_id, restore.epochs.clone());
    let objects = objects_of(&restore.asking, &keys, "")?;
    remove_strangers(target, &objects)?;
    let sealed = restore.epochs.newest().is_some();
    let holdings = match sealed {
        // All objects before a seal count.
        true => Holdings::sealed(),
        false => Holdings::new(objects.iter().map(|(sequence, _)| *sequence)),
    };
    let mut sum = Sum { holdings, ..Sum::default() };
    unpack(target, &restore.asking, (restore.log_id, &restore.epochs), &objects, &|| true)?;
    take_in(target, restore, &objects, &mut sum)?;
    let uncounted = sum.holdings.settle();
    let found = resolve(restore, &mut sum);
    if !restore.accept_loss && sum.findings.iter().any(|finding| finding.severity == Severity::Error) {
        return Err(RestoreError::Damaged(sum.findings));
    }
    let generation = sum.holdings.generation.max(1 + u64::try_from(restore.log_id >> 65).unwrap_or(u64::MAX));
    let mut generation = generation.saturating_add(GENERATIONS_APART);
    for (sequence, object) in objects.iter().filter(|(sequence, _)| uncounted.contains(sequence)) {
        // Other records get its offsets from now on. The server deletes the object before it puts another one.
        write_local(target, *sequence, &bare(*sequence, generation, object.bytes, restore, Vec::new()))?;
        generation += 1;
    }
    if let Some((sequence, _)) = objects.last()
        && !uncounted.contains(sequence)
        && let Some((_, length)) = sum.damaged.iter().find(|(damaged, _)| damaged == sequence)
    {
        // The number is used, so the next object must not get it.
        write_local(target, *sequence, &bare(*sequence, generation, *length, restore, Vec::new()))?;
        generation += 1;
    }
    write_first(target, restore, generation, &found, &sum)?;
    if !sealed
        && let last = objects.last().map(|(_, object)| object.key.as_str())
        && let Some((_, first)) = objects_of(&restore.asking, &keys, last.unwrap_or_default())?.first()
    {
        let what = "objects appeared during the restore: another server still writes this log, and must be stopped \
                    before a server starts on the restored one";
        sum.findings.push(Finding::new(Severity::Warning, &first.key, 0, 0, what));
    }
    Ok(sum.end(found))
}

/// What [`prefetch`] has fetched.
#[derive(Debug)]
pub struct Fetched {
    /// The number of objects.
    pub objects: usize,
    /// The last key that was there. `None` if something could not be fetched.
    pub last: Option<String>,
}

/// Fetches into `target` what a restore of the log will need, of the objects behind the key `after` that are there now. The owner
/// of the log may go on. The restore then fetches only the objects that were put since. Blocks.
///
/// Ends early, without an error, when `goes_on` says so or the store fails: the restore fetches the rest. With an empty `after`
/// also removes what is there of objects that are no more.
///
/// `epochs` are those of the log so far: the local file of an object has no epoch, and objects outside the chain of epochs
/// have the numbers of others. [`keep_prefetched`] has to be asked before the restore.
pub fn prefetch(
    target: &Arc<dyn Disk>,
    asking: &Asking,
    log_id: u128,
    (epochs, after): (Epochs, &str),
    goes_on: &dyn Fn() -> bool,
) -> Result<Fetched, RestoreError> {
    prepare(target)?;
    let objects = objects_of(asking, &ObjectKeys::new(log_id, epochs.clone()), after)?;
    if after.is_empty() {
        remove_strangers(target, &objects)?;
    }
    let unpacked = unpack(target, asking, (log_id, &epochs), &objects, goes_on)?;
    let known = |expected| whole_local(target, expected);
    let (mut fetched, mut complete) = (unpacked, true);
    let ended = gather(asking, log_id, &objects, &known, |at, outcome| {
        if !goes_on() {
            return Err(None);
        }
        match outcome {
            Outcome::Whole(_, Some(bytes)) => {
                write_local(target, objects[at].0, &bytes).map_err(Some)?;
                fetched += 1;
            }
            Outcome::Failed(_) => complete = false,
            // The restore says what is wrong.
            Outcome::Whole(_, None) | Outcome::Damaged(_) | Outcome::Gone => {}
        }
        Ok(())
    });
    let last = objects.last().map_or(after, |(_, object)| &object.key);
    match ended {
        Err(Some(error)) => Err(error),
        Ok(()) if complete => Ok(Fetched { objects: fetched, last: Some(last.to_owned()) }),
        Ok(()) | Err(None) => Ok(Fetched { objects: fetched, last: None }),
    }
}

/// Removes the local files that [`prefetch`] fetched along `along` and that do not belong to the log as it was taken over:
/// objects of the last epoch that lie behind its seal. Returns false if `taken` does not go on where `along` ended; then
/// nothing in `target` is of use.
pub fn keep_prefetched(target: &Arc<dyn Disk>, along: &Epochs, taken: &Epochs) -> Result<bool, RestoreError> {
    let known = along.all().len();
    let Some(next) = taken.all().get(known).filter(|_| taken.all().starts_with(along.all())) else {
        return Ok(false);
    };
    for name in target.list().map_err(local("listing the new directory"))? {
        if stored_sequence_of(&name).is_some_and(|sequence| sequence & !STORED >= next.first - 1) {
            target.remove(&name).map_err(local(format!("removing {name}")))?;
        }
    }
    Ok(true)
}

/// Leaves in `target` only what [`prefetch`] would fetch along the epochs of the log that was open there. For a log that was
/// closed after its owner gave it away.
pub fn keep_closed(target: &dyn Disk) -> io::Result<()> {
    for name in target.list()? {
        if stored_sequence_of(&name).is_none() {
            target.remove(&name)?;
        }
    }
    Ok(())
}

/// Takes back the last step of a restore, so that it may be run again. Only for a directory in which no server has
/// opened the log since.
pub fn take_back(target: &dyn Disk) -> io::Result<()> {
    match target.remove(&file_name(FIRST_SEQUENCE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes what an earlier restore may have left unfinished.
fn prepare(target: &Arc<dyn Disk>) -> Result<(), RestoreError> {
    let names = target.list().map_err(local("listing the new directory"))?;
    if names.iter().any(|name| sequence_of(name).is_some()) {
        return Err(RestoreError::Exists);
    }
    for worthless in [PREPARING, STORING] {
        if names.iter().any(|name| name == worthless) {
            target.remove(worthless).map_err(local(format!("removing {worthless}")))?;
        }
    }
    Ok(())
}

/// Removes the local files of objects that are no more, which an earlier restore has left.
fn remove_strangers(target: &Arc<dyn Disk>, objects: &[Numbered]) -> Result<(), RestoreError> {
    for name in target.list().map_err(local("listing the new directory"))? {
        let Some(sequence) = stored_sequence_of(&name) else { continue };
        if objects.binary_search_by_key(&sequence, |(sequence, _)| *sequence).is_err() {
            target.remove(&name).map_err(local(format!("removing {name}")))?;
        }
    }
    Ok(())
}

fn local(doing: impl Into<String>) -> impl FnOnce(io::Error) -> RestoreError {
    let doing = doing.into();
    move |error| RestoreError::Local(doing, error)
}

/// The local file of an object, if an earlier restore has written it.
fn whole_local(target: &Arc<dyn Disk>, expected: Expected) -> Option<Described> {
    let file = target.open(&file_name(expected.sequence)).ok()?;
    let mut bytes = AlignedBuffer::zeroed(usize::try_from(file.length()).ok()?);
    file.read_at(0, &mut bytes).ok()?;
    // A file without rows stands for a damaged object. Perhaps the object is whole by now.
    describe(expected, &bytes).ok().filter(|described| !described.rows.is_empty())
}

/// With so many objects that are not known, manifests are looked for. For fewer, the list of these would cost more.
const UNKNOWN_MIN: usize = if cfg!(test) { 3 } else { 64 };
/// Parts of manifests that are read at the same time: each is in memory as a whole.
const MANIFESTS_AT_ONCE: usize = 8;

/// Writes the local files that manifests have of `objects`, but for those that are there, while `goes_on` says so. Returns how
/// many.
///
/// Whatever is wrong with a manifest, the objects themselves are asked later.
fn unpack(
    target: &Arc<dyn Disk>,
    asking: &Asking,
    (log_id, epochs): (u128, &Epochs),
    objects: &[Numbered],
    goes_on: &dyn Fn() -> bool,
) -> Result<usize, RestoreError> {
    let there: HashSet<u32> = {
        let names = target.list().map_err(local("listing the new directory"))?;
        names.iter().filter_map(|name| stored_sequence_of(name)).collect()
    };
    let unknown: Vec<&Numbered> = objects.iter().filter(|(of, _)| !there.contains(of)).collect();
    if unknown.len() < UNKNOWN_MIN || !goes_on() {
        return Ok(0);
    }
    let Ok(mut manifests) = list_all(&**asking.bucket, &manifest_prefix(log_id), "", asking.pause) else {
        return Ok(0);
    };
    manifests.retain(|manifest| {
        let numbers = ManifestKey::parse(&manifest.key).map(|key| key.stretch.numbers());
        numbers.is_some_and(|numbers| {
            let from = unknown.partition_point(|(sequence, _)| sequence & !STORED < numbers.start);
            unknown.get(from).is_some_and(|(sequence, _)| sequence & !STORED < numbers.end)
        })
    });
    let bucket = &**asking.bucket;
    // Once: a store that is slow may have the objects themselves sooner.
    let read = |manifest: &Listed| decode(log_id, &bucket.get(&manifest.key, 0..manifest.bytes).ok()?);
    let (mut written, mut done) = (0, vec![false; unknown.len()]);
    let ended = several(asking.threads.min(MANIFESTS_AT_ONCE), &manifests, &read, |_, entries| {
        if !goes_on() {
            return Err(None);
        }
        for entry in entries.into_iter().flatten() {
            let sequence = STORED | entry.number;
            let Ok(at) = unknown.binary_search_by_key(&sequence, |(of, _)| *of) else { continue };
            if done[at] {
                continue;
            }
            let object = &unknown[at].1;
            let expected = Expected { log_id, sequence, length: object.bytes };
            // Of the objects with a number, that of this epoch is in the log.
            let same = entry.length == object.bytes && entry.epoch == epochs.of(entry.number).unwrap_or(0);
            if same && describe(expected, &entry.local).is_ok_and(|described| !described.rows.is_empty()) {
                write_local(target, sequence, &entry.local).map_err(Some)?;
                done[at] = true;
                written += 1;
                (asking.progress)(objects.len() - unknown.len() + written, objects.len());
            }
        }
        Ok(())
    });
    match ended {
        Err(Some(error)) => Err(error),
        Ok(()) | Err(None) => Ok(written),
    }
}

/// Writes the local files of the objects, and adds up what they say.
fn take_in(
    target: &Arc<dyn Disk>,
    restore: &Restore,
    objects: &[Numbered],
    sum: &mut Sum,
) -> Result<(), RestoreError> {
    let known = |expected| whole_local(target, expected);
    gather(&restore.asking, restore.log_id, objects, &known, |at, outcome| {
        let (sequence, object) = &objects[at];
        match outcome {
            Outcome::Whole(described, bytes) => {
                if let Some(bytes) = bytes {
                    write_local(target, *sequence, &bytes)?;
                }
                sum.holdings.add(*sequence, described);
                sum.objects += 1;
                sum.bytes += object.bytes;
            }
            Outcome::Damaged(what) => {
                sum.damaged.push((*sequence, object.bytes));
                let what = format!("{what}; which records it has is not known");
                sum.findings.push(Finding::new(Severity::Error, &object.key, 0, object.bytes, what));
            }
            Outcome::Gone => {
                let what =
                    "it was deleted during the restore: is the server that writes this log still running?";
                sum.findings.push(Finding::new(Severity::Warning, &object.key, 0, 0, what));
            }
            Outcome::Failed(error) => return Err(error.into()),
        }
        Ok(())
    })
}

/// Writes a file and syncs it.
fn write(target: &Arc<dyn Disk>, name: &str, bytes: &[u8]) -> Result<(), RestoreError> {
    let written = || {
        let mut aligned = AlignedBuffer::zeroed(bytes.len());
        aligned.copy_from_slice(bytes);
        let file = target.create(name, bytes.len() as u64)?;
        file.write_at(0, &aligned)?;
        file.sync()
    };
    written().map_err(local(format!("writing {name}")))
}

fn rename(target: &Arc<dyn Disk>, from: &str, to: &str) -> Result<(), RestoreError> {
    target.rename(from, to).map_err(local(format!("renaming {from} to {to}")))
}

fn write_local(target: &Arc<dyn Disk>, sequence: u32, bytes: &[u8]) -> Result<(), RestoreError> {
    write(target, STORING, bytes)?;
    rename(target, STORING, &file_name(sequence))
}

/// The bytes of a segment without records: header, footer and trailer. `length` is that of the object, of which these
/// bytes are the local file.
fn bare(sequence: u32, generation: u64, length: u64, restore: &Restore, table: Vec<u8>) -> Vec<u8> {
    let table = if table.is_empty() { footer::encode_table(&mut Vec::new(), 0, 0).0 } else { table };
    // The payload has no position in it but those that follow from the footer's.
    let payload_bytes = table.len() + footer::TRAILER_COPY_BYTES;
    let block = sectors(BLOCK_HEADER_BYTES + payload_bytes);
    let local_length = (block + 2 * SECTOR) as u64;
    let length = length.next_multiple_of(SECTOR as u64).max(local_length);
    let footer_position = length + SECTOR as u64 - local_length;
    let footer_position = length32(usize::try_from(footer_position).unwrap_or(usize::MAX));
    let epoch = restore.now_ms.max(1).unsigned_abs();
    let payload_position = footer_position + length32(BLOCK_HEADER_BYTES);
    let built = footer::build(sequence, generation, epoch, footer_position, payload_position, &[], table);
    let mut bytes = SegmentHeader { sequence, generation, length, log_id: restore.log_id }.encode();
    bytes.resize(SECTOR + BLOCK_HEADER_BYTES, 0);
    bytes.extend_from_slice(&built.payload);
    bytes.resize(SECTOR + block, 0);
    let header = BlockHeader {
        kind: BlockKind::Footer,
        epoch,
        lsn: Lsn::new(sequence, footer_position),
        synced: Lsn::default(),
        length: length32(built.payload.len()),
        entries: 0,
        payload_crc: seeded_crc(generation, &built.payload),
    };
    header.encode(generation, &mut bytes[SECTOR..]);
    bytes.extend_from_slice(&built.trailer.encode(generation));
    bytes
}

/// Writes the first segment of the restored log, and gives it its name once opening accepts it, if that is tried.
fn write_first(
    target: &Arc<dyn Disk>,
    restore: &Restore,
    generation: u64,
    found: &HashMap<StreamId, RestoredStream>,
    sum: &Sum,
) -> Result<(), RestoreError> {
    let restored = |(id, stream): (&StreamId, &RestoredStream)| {
        let producers = sum.holdings.streams.get(id).map(Held::producers).unwrap_or_default();
        Arc::new(Stream::restored(*id, stream.start, stream.next, producers))
    };
    let mut streams: Vec<Arc<Stream>> = found.iter().map(restored).collect();
    let (table, _) = footer::encode_table(&mut streams, i64::MIN, usize::MAX / 2);
    let bytes = bare(FIRST_SEQUENCE, generation, 0, restore, table);
    write(target, PREPARING, &bytes)?;
    if !restore.opens {
        try_opening(target, restore, found)?;
    }
    rename(target, PREPARING, &file_name(FIRST_SEQUENCE))
}

/// Tries whether opening accepts the log, and finds the streams as they were restored.
fn try_opening(
    target: &Arc<dyn Disk>,
    restore: &Restore,
    found: &HashMap<StreamId, RestoredStream>,
) -> Result<(), RestoreError> {
    let places = Places {
        disk: target.clone(),
        bucket: restore.asking.bucket.clone(),
        epochs: restore.epochs.clone(),
    };
    let tried = Unwritten::renamed(&**target, PREPARING, file_name(FIRST_SEQUENCE));
    let recovered = recover(&tried, Some(&places), restore.now_ms)?;
    found.iter().try_for_each(|(id, stream)| {
        let bounds = recovered.streams.get(id).map(|stream| stream.bounds());
        compare(*id, stream, bounds)
    })
}

/// Whether a log has a stream as it was restored.
fn compare(id: StreamId, stream: &RestoredStream, bounds: Option<Bounds>) -> Result<(), RestoreError> {
    let bounds = match bounds {
        Some(bounds) => bounds,
        None if stream.next == Offset::ZERO => return Ok(()),
        None => return Err(RestoreError::Differs(format!("{id} is not in it"))),
    };
    let stored = bounds.stored.unwrap_or(bounds.start);
    if (bounds.start, bounds.committed, stored) == (stream.start, stream.next, stream.next) {
        return Ok(());
    }
    Err(RestoreError::Differs(format!(
        "{id} goes from {} to {} and is stored up to {stored}, it should go from {} to {}",
        bounds.start, bounds.committed, stream.start, stream.next
    )))
}

impl RestoredLog {
    /// Whether `log`, which was just opened, has the streams as they were restored. Nothing was appended since.
    pub fn is_in(&self, log: &Log) -> Result<(), RestoreError> {
        let opened: HashMap<StreamId, Bounds> =
            log.streams().iter().map(|stream| (stream.id(), stream.bounds())).collect();
        self.streams.iter().try_for_each(|(id, stream)| compare(*id, stream, opened.get(id).copied()))
    }
}

impl Sum {
    fn end(self, streams: HashMap<StreamId, RestoredStream>) -> RestoredLog {
        let held = &self.holdings.streams;
        let unwanted = held.iter().filter(|(id, _)| !streams.contains_key(*id));
        RestoredLog {
            objects: self.objects,
            object_bytes: self.bytes,
            others: unwanted.map(|(id, held)| (*id, held.resolve(None, |_, _| {}))).collect(),
            last_stream: held.keys().max().copied(),
            last_producer: self.holdings.last_producer(),
            findings: self.findings,
            streams,
        }
    }
}

/// The bounds of the wanted streams: the newest records without a gap. Notes what is lost.
fn resolve(restore: &Restore, sum: &mut Sum) -> HashMap<StreamId, RestoredStream> {
    let mut found = HashMap::new();
    let nothing = Held::default();
    let mut hits = Vec::new();
    for (id, known) in restore.streams {
        let held = sum.holdings.streams.get(id).unwrap_or(&nothing);
        let stream = held.resolve(*known, |from, to| {
            hits.push(Hit { stream: *id, from, to, batches: None });
        });
        found.insert(*id, stream);
    }
    if !hits.is_empty() {
        hits.sort_unstable_by_key(|hit| (hit.stream, hit.from));
        let what =
            "objects between others are damaged or missing: these records, and older ones, cannot be reached";
        let prefix = ObjectKeys::new(restore.log_id, restore.epochs.clone()).prefix();
        let finding = Finding { hits, ..Finding::new(Severity::Error, &prefix, 0, 0, what) };
        sum.findings.push(finding);
    }
    sum.findings.sort_by(|a, b| a.file.cmp(&b.file));
    found
}
