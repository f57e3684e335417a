//! Segments: the files of a log, and which of them are prepared, active, sealed or free to recycle.
//!
//! The life of a file:
//! - Prepared: the preparer makes or recycles the file and gives it the next sequence number.
//! - Active: the writer fills it and ends it with a footer.
//! - Sealed: the footer is synced, and then the trailer is written.
//! - Dead: no stream has live records in it, and it is not the newest sealed one. The preparer gets it back.
//!
//! The cleaner makes segments of its own, which are sealed from the beginning.

pub(crate) mod build;
pub(crate) mod fetch;
pub(crate) mod footer;
pub(crate) mod manifest;
mod name;
pub(crate) mod object;
mod release;
mod whole;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use disk::{AlignedBuffer, File};
use parking_lot::Mutex;

pub(crate) use self::name::{
    CLEANING, PREPARING, REMOVING, STORING, file_name, is_cleaned, is_stored, is_written, sequence_of,
    stored_sequence_of,
};
pub(crate) use self::release::{delete, deleted, evict, forget_stored, trim};
pub(crate) use self::whole::{encode_list, read_list, write_file};
use crate::format::{
    CLEANED, DIRECTORY_ROW_BYTES, DirectoryRow, SECTOR, SEGMENT_HEADER_BYTES, STORED, SegmentHeader,
    TRAILER_BYTES, Trailer, index,
};
use crate::index::BatchIndex;

/// One segment file of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    pub sequence: u32,
    pub generation: u64,
    pub file: Arc<dyn File>,
    /// Bytes of the file.
    pub length: u32,
    /// Extents with live records in this segment; meaningful once it is sealed.
    live: AtomicU32,
    /// Bytes of the batches of these extents.
    live_bytes: AtomicU64,
    /// The cleaner could not read the segment, and leaves it alone until then, in nanoseconds of the log's clock.
    avoided_until: AtomicU64,
    /// Set when the trailer is durable.
    sealed: AtomicBool,
    /// The place of its directory, once it has a footer.
    footer: Mutex<Option<Footer>>,
}

/// How to read a footer.
#[derive(Clone, Debug)]
pub(crate) struct Footer {
    pub trailer: Trailer,
    /// The footer's payload and its position while it may not be on disk yet.
    pub payload: Option<(u32, Bytes)>,
}

impl Segment {
    pub fn new(sequence: u32, generation: u64, file: Arc<dyn File>) -> Segment {
        let length = u32::try_from(file.length()).expect("open and the preparer bound segments to 4 GiB");
        Segment {
            sequence,
            generation,
            file,
            length,
            live: AtomicU32::new(0),
            live_bytes: AtomicU64::new(0),
            avoided_until: AtomicU64::new(0),
            sealed: AtomicBool::new(false),
            footer: Mutex::new(None),
        }
    }

    /// The name of its file.
    pub fn name(&self) -> String {
        file_name(self.sequence)
    }

    /// First position of a block.
    pub fn data_start() -> u32 {
        u32::try_from(SEGMENT_HEADER_BYTES).expect("a small constant")
    }

    /// The last possible end of the blocks; the trailer follows.
    pub fn data_end(&self) -> u32 {
        self.length - u32::try_from(TRAILER_BYTES).expect("a small constant")
    }

    /// Records that the footer block was submitted; reads use the copy in memory until [`Segment::seal`].
    pub fn set_footer(&self, trailer: Trailer, payload: Option<(u32, Bytes)>) {
        *self.footer.lock() = Some(Footer { trailer, payload });
    }

    /// Sets the number of extents with live records in this segment, and the bytes of their batches.
    pub fn set_live(&self, live: u32, bytes: u64) {
        self.live_bytes.store(bytes, Ordering::Release);
        self.live.store(live, Ordering::Release);
    }

    /// Records that the trailer is durable.
    pub fn seal(&self) {
        if let Some(footer) = self.footer.lock().as_mut() {
            footer.payload = None;
        }
        self.sealed.store(true, Ordering::Release);
    }

    /// Records that the trailer is durable while its footer is still read from memory.
    pub fn mark_sealed(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    pub fn footer(&self) -> Option<Footer> {
        self.footer.lock().clone()
    }

    /// Records that one extent of `bytes` is no longer live in this segment.
    pub fn release(&self, bytes: u32) {
        self.release_part(bytes);
        let before = self.live.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "an extent is released once");
    }

    /// Records that `bytes` of an extent are no longer live, while the rest is.
    pub fn release_part(&self, bytes: u32) {
        let before = self.live_bytes.fetch_sub(u64::from(bytes), Ordering::AcqRel);
        assert!(before >= u64::from(bytes), "no more is released than was live");
    }

    /// Bytes of live batches, without footer, headers and padding.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Acquire)
    }

    /// Records that the data cannot be read, so that nothing tries to move it before then.
    pub fn avoid_until(&self, nanos: u64) {
        self.avoided_until.fetch_max(nanos, Ordering::AcqRel);
    }

    /// Like [`Segment::avoid_until`], for damage, which does not pass.
    pub fn avoid_for_good(&self) {
        self.avoid_until(u64::MAX);
    }

    pub fn is_avoided(&self, now_nanos: u64) -> bool {
        now_nanos < self.avoided_until.load(Ordering::Acquire)
    }

    pub fn live(&self) -> u32 {
        self.live.load(Ordering::Acquire)
    }

    /// Reads `length` bytes at `position` from the file; neither has to be aligned.
    pub fn read(&self, position: u32, length: usize) -> std::io::Result<Bytes> {
        let from = index(position) / SECTOR * SECTOR;
        let to = (index(position) + length).div_ceil(SECTOR) * SECTOR;
        let mut buffer = AlignedBuffer::zeroed(to - from);
        self.file.read_at(from as u64, &mut buffer)?;
        let skip = index(position) - from;
        Ok(buffer.into_bytes().slice(skip..skip + length))
    }

    /// A part of the footer; nothing if it is not in the footer.
    fn read_footer(&self, footer: &Footer, position: u32, length: usize) -> std::io::Result<Bytes> {
        match &footer.payload {
            Some((at, payload)) => {
                let from = position.checked_sub(*at).map(index);
                let inside = from.filter(|from| from + length <= payload.len());
                Ok(inside.map_or(Bytes::new(), |from| payload.slice(from..from + length)))
            }
            None => self.read(position, length),
        }
    }

    /// Loads the directory. Returns `None` if the footer is damaged.
    pub fn load_directory(&self) -> std::io::Result<Option<Vec<DirectoryRow>>> {
        let Some(footer) = self.footer() else { return Ok(None) };
        let trailer = &footer.trailer;
        let length = index(trailer.rows) * DIRECTORY_ROW_BYTES;
        let bytes = self.read_footer(&footer, trailer.directory_position, length)?;
        Ok(footer::decode_directory(&bytes, trailer, self.generation))
    }

    /// Loads the batch index in row `row` of the directory. Returns `None` if the footer is damaged.
    pub fn load_index(&self, row: u32) -> std::io::Result<Option<BatchIndex>> {
        let Some(footer) = self.footer() else { return Ok(None) };
        let fetch = |position: u32, length: usize| self.read_footer(&footer, position, length);
        if row >= footer.trailer.rows {
            return Ok(None);
        }
        let row_at =
            footer.trailer.directory_position + row * u32::try_from(DIRECTORY_ROW_BYTES).expect("64");
        let Some(row) = DirectoryRow::decode(&fetch(row_at, DIRECTORY_ROW_BYTES)?) else { return Ok(None) };
        let end = u64::from(row.index_position) + u64::from(row.index_length);
        if end > u64::from(self.length) {
            return Ok(None);
        }
        let bytes = fetch(row.index_position, index(row.index_length))?;
        if crate::format::seeded_crc(self.generation, &bytes) != row.index_crc {
            return Ok(None);
        }
        Ok(BatchIndex::decode(&bytes))
    }
}

/// All segments that hold part of the log, by sequence number.
#[derive(Debug, Default)]
pub(crate) struct Segments(Mutex<BTreeMap<u32, Arc<Segment>>>);

impl Segments {
    pub fn insert(&self, segment: Arc<Segment>) {
        self.0.lock().insert(segment.sequence, segment);
    }

    pub fn find(&self, sequence: u32) -> Option<Arc<Segment>> {
        self.0.lock().get(&sequence).cloned()
    }

    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// All segments in the order of their sequence numbers: first those of the writer, then those of the cleaner.
    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.0.lock().values().cloned().collect()
    }

    /// Takes out the segments without live data. The newest sealed one stays, because the next recovery starts from its
    /// stream table.
    pub fn take_dead(&self) -> Vec<Arc<Segment>> {
        let mut segments = self.0.lock();
        let written = segments.range(..STORED).rev().map(|(_, segment)| segment);
        let newest = written.filter(|segment| segment.is_sealed()).map(|segment| segment.sequence).next();
        let dead = |segment: &Arc<Segment>| {
            let needed =
                !is_cleaned(segment.sequence) && newest.is_none_or(|newest| segment.sequence >= newest);
            segment.is_sealed() && segment.live() == 0 && !needed && !is_stored(segment.sequence)
        };
        let sequences: Vec<u32> = segments.values().filter(|s| dead(s)).map(|s| s.sequence).collect();
        sequences.into_iter().filter_map(|sequence| segments.remove(&sequence)).collect()
    }

    /// The segments in the object store without live data. The newest one stays, because its number says where the next
    /// one continues.
    pub fn dead_stored(&self) -> Vec<Arc<Segment>> {
        let segments = self.0.lock();
        let stored: Vec<_> = segments.range(STORED..CLEANED).map(|(_, segment)| segment).collect();
        let older = stored.split_last().map_or(&[][..], |(_, older)| older);
        older.iter().filter(|segment| segment.live() == 0).map(|segment| (*segment).clone()).collect()
    }

    /// All segments in the object store.
    pub fn all_stored(&self) -> Vec<Arc<Segment>> {
        self.0.lock().range(STORED..CLEANED).map(|(_, segment)| segment.clone()).collect()
    }

    /// The segment in the object store with the highest number.
    pub fn newest_stored(&self) -> Option<Arc<Segment>> {
        let segments = self.0.lock();
        segments.range(STORED..CLEANED).next_back().map(|(_, segment)| segment.clone())
    }

    /// The segments in the object store with live data.
    pub fn live_stored(&self) -> Vec<Arc<Segment>> {
        let segments = self.0.lock();
        let stored = segments.range(STORED..CLEANED).map(|(_, segment)| segment);
        stored.filter(|segment| segment.live() > 0).cloned().collect()
    }

    /// Takes out a segment.
    pub fn remove(&self, sequence: u32) {
        self.0.lock().remove(&sequence);
    }
}

/// Makes a segment's header durable.
pub(crate) fn write_header(file: &dyn File, header: &SegmentHeader) -> std::io::Result<()> {
    let mut sector = AlignedBuffer::zeroed(SEGMENT_HEADER_BYTES);
    sector.copy_from_slice(&header.encode());
    file.write_at(0, &sector)?;
    file.sync()
}
