//! Segments in the object store. The object has the whole segment. A local file repeats its header and its footer, so
//! that opening the log and looking up a batch need no request to the store.
//!
//! ```text
//! object      | header sector | blocks … | footer block | trailer sector |
//! local file  | header sector |          | footer block | trailer sector |
//! ```

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use disk::{AlignedBuffer, Disk, File};
use objects::{Bucket, BucketError, patiently};
use parking_lot::Mutex;

use super::Segment;
use crate::epochs::Epochs;
use crate::format::{DirectoryRow, SECTOR, STORED, SegmentHeader};
use crate::stream::{SealedExtent, clamp_timestamp};

/// A read from a store that does not answer is tried again for so long, and so often.
const READ_PATIENCE: Duration = Duration::from_secs(2);
const READ_ATTEMPTS: u32 = 8;

/// The keys of the objects of a log.
#[derive(Clone, Debug)]
pub(crate) struct ObjectKeys {
    log_id: u128,
    /// Empty for a log without epochs.
    epochs: Epochs,
}

impl ObjectKeys {
    pub fn new(log_id: u128, epochs: Epochs) -> ObjectKeys {
        ObjectKeys { log_id, epochs }
    }

    /// The key of the object with the segment `sequence`.
    pub fn key(&self, sequence: u32) -> String {
        let number = sequence & !STORED;
        match self.epochs.of(number) {
            Some(epoch) => format!("{}{number:010}", epoch_prefix(self.log_id, epoch)),
            None => format!("{}{number:010}", self.prefix()),
        }
    }

    /// All keys of the log begin so.
    pub fn prefix(&self) -> String {
        log_prefix(self.log_id)
    }

    /// The sequence number of the object under `key`. `None` if it is no object of the log.
    pub fn sequence_of(&self, key: &str) -> Option<u32> {
        let number = object_number(key)?;
        (self.key(STORED | number) == key && !self.epochs.is_seal(number)).then_some(STORED | number)
    }
}

/// All claims of a log begin so.
pub(crate) fn claim_prefix(log_id: u128) -> String {
    format!("owners/{log_id:032x}/")
}

/// The key of a claim: that of an epoch, of a log with epochs.
pub(crate) fn claim_key(log_id: u128, number: u32) -> String {
    format!("{}{number:010}", claim_prefix(log_id))
}

/// The keys of all objects of a log begin so.
pub(crate) fn log_prefix(log_id: u128) -> String {
    format!("logs/{log_id:032x}/")
}

/// The keys of all objects of an epoch begin so.
pub(crate) fn epoch_prefix(log_id: u128, epoch: u32) -> String {
    format!("{}{epoch:010}/", log_prefix(log_id))
}

/// The epoch of an object of a log with epochs, by its key.
pub(crate) fn object_epoch(key: &str) -> Option<u32> {
    key.rsplit('/').nth(1)?.parse().ok()
}

/// The number of an object, by its key.
pub(crate) fn object_number(key: &str) -> Option<u32> {
    let digits = key.rsplit_once('/')?.1;
    digits.parse().ok().filter(|number| *number < STORED)
}

/// The extent of a directory's row.
pub(crate) fn stored_extent(row: &DirectoryRow, segment: &Segment, at: u32) -> SealedExtent {
    SealedExtent {
        base_offset: row.base_offset,
        segment: segment.sequence,
        row: at,
        bytes: u32::try_from(row.bytes).unwrap_or(u32::MAX),
        max_timestamp_s: clamp_timestamp(row.max_timestamp),
    }
}

/// The segment's object as its file.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    object: Option<(Arc<dyn Bucket>, String)>,
    local: Local,
    local_length: u64,
    length: u64,
    /// The bytes of the local file, while the log is opened.
    kept: Mutex<Option<AlignedBuffer>>,
}

/// Where the segments in the object store are: their local files, and their objects.
#[derive(Debug)]
pub(crate) struct Places {
    pub disk: Arc<dyn Disk>,
    pub bucket: Arc<dyn Bucket>,
    /// The epochs of the log; empty for a log without.
    pub epochs: Epochs,
}

/// The local file of a segment in the object store.
#[derive(Debug)]
pub(crate) enum Local {
    /// An open file, for tools.
    Open(Arc<dyn File>),
    /// A file that is opened for each read: there may be more objects than a process may open files.
    Named(Arc<dyn Disk>, String),
}

impl ObjectFile {
    /// The file of a segment with this header, whose header and footer are in `local`, a file of `local_length` bytes. The
    /// object is under `key` of the bucket. Without a bucket, nothing else can be read.
    pub fn new(
        object: Option<(Arc<dyn Bucket>, String)>,
        header: &SegmentHeader,
        local: Local,
        local_length: u64,
    ) -> ObjectFile {
        ObjectFile { object, local, local_length, length: header.length, kept: Mutex::default() }
    }

    /// Keeps the bytes of the local file, or forgets them. Opening a log reads each local file once.
    pub fn keep(&self, bytes: Option<AlignedBuffer>) {
        *self.kept.lock() = bytes;
    }

    /// Where the footer begins, in the object.
    fn footer_position(&self) -> u64 {
        (self.length + SECTOR as u64).saturating_sub(self.local_length)
    }

    fn read_local(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        if let Some(kept) = &*self.kept.lock() {
            let from = usize::try_from(position).unwrap_or(usize::MAX);
            let there = kept.get(from..).and_then(|kept| kept.get(..into.len()));
            into.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
            return Ok(());
        }
        match &self.local {
            Local::Open(file) => file.read_at(position, into),
            Local::Named(disk, name) => disk.open(name)?.read_at(position, into),
        }
    }

    fn get(&self, range: Range<u64>) -> io::Result<Bytes> {
        let Some((bucket, key)) = &self.object else {
            let why = "the records are in an object store, and the server has no bucket";
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        };
        let begun = Instant::now();
        let mut attempts = 0;
        let got = patiently(
            || bucket.get(key, range.clone()),
            |pause, _| {
                attempts += 1;
                let goes_on = attempts < READ_ATTEMPTS && begun.elapsed() + pause < READ_PATIENCE;
                if goes_on && cfg!(not(any(test, feature = "stepped"))) {
                    std::thread::sleep(pause);
                }
                goes_on
            },
        );
        got.map_err(|error| {
            let kind = match &error {
                BucketError::NotFound(_) => io::ErrorKind::NotFound,
                BucketError::Unclear(_) => io::ErrorKind::TimedOut,
                BucketError::Refused(_) => io::ErrorKind::PermissionDenied,
            };
            io::Error::new(kind, error)
        })
    }
}

impl File for ObjectFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        let end = position + into.len() as u64;
        let footer = self.footer_position();
        let in_object = usize::try_from(end.min(footer).saturating_sub(position)).unwrap_or(usize::MAX);
        let (object, local) = into.split_at_mut(in_object);
        if !local.is_empty() {
            self.read_local(position.max(footer) - footer + SECTOR as u64, local)?;
        }
        if !object.is_empty() {
            let bytes = self.get(position..position + object.len() as u64)?;
            if bytes.len() != object.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            object.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn read_vectored_at(&self, position: u64, into: &mut [io::IoSliceMut<'_>]) -> io::Result<()> {
        // One request for all parts.
        let total = into.iter().map(|part| part.len()).sum();
        let mut bytes = vec![0; total];
        self.read_at(position, &mut bytes)?;
        let mut rest = &bytes[..];
        for part in into {
            let (head, tail) = rest.split_at(part.len());
            part.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_allocated(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
