//! The bodies of the fuzz targets: each takes any bytes and must return. `cargo fuzz` calls them from /fuzz. The tests
//! call them for a few seconds with mutated and random inputs.
//!
//! Built only for tests and with the feature `fuzzing`.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use disk::{AlignedBuffer, Disk, File, SimDisk};
use model::batch::{HEADER_BYTES, LENGTH_PREFIX_BYTES, seal_crc, verify_crc};
use model::{BatchHeader, Offset, StreamId, Timestamp};

use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, DirectoryRow, EntryHeader, Lsn, SECTOR, SegmentHeader, Trailer, index,
    seeded_crc,
};
use crate::index::BatchIndex;
use crate::log::{Parts, assemble};
use crate::options::{Clock, Options};
use crate::reader::ReadRequest;
use crate::request::{Append, Durability, NoListener};
use crate::segment::{Segment, sequence_of};
use crate::stream::Producers;
use crate::writer::Patience;

/// Parses `data` as a record batch and checks its CRC.
pub fn batch_header(data: &[u8]) {
    if let Ok(header) = BatchHeader::parse(data) {
        assert!((HEADER_BYTES..=data.len()).contains(&header.total_bytes));
        assert!(header.offset_count() >= 1 && i64::from(header.count) <= header.offset_count());
        let mut sealed = data[..header.total_bytes].to_vec();
        let valid = verify_crc(data, &header).is_ok();
        seal_crc(&mut sealed);
        assert_eq!(valid, sealed == data[..header.total_bytes], "sealing changes nothing but a wrong crc");
    }
}

/// Hands `data` to every decoder of a footer's contents.
pub fn decoders(data: &[u8]) {
    if let Some(batches) = BatchIndex::decode(data) {
        let mut last = None;
        for place in batches.from_offset(Offset(i64::MIN)).take(10_000) {
            last = Some(place);
        }
        let _ = batches.first_at_or_after(Offset(0), last.map_or(Timestamp(0), |place| place.max_timestamp));
        let _ = (
            batches.with_max_timestamp(Offset(0)),
            batches.last_cut(|bytes, _| bytes < 1000),
            batches.max_timestamp(),
        );
        let mut stored = Vec::new();
        batches.encode(&mut stored);
        assert_eq!(stored, data[..stored.len()], "the stored form has one reading");
    }
    if let Some(producers) = Producers::decode(&mut &*data) {
        let mut stored = Vec::new();
        producers.encode(&mut stored);
        assert_eq!(Producers::decode(&mut &stored[..]), Some(producers));
    }
    let _ = crate::segment::footer::decode_table(data);
    let _ = DirectoryRow::decode(data);
    let _ = (SegmentHeader::decode(data), BlockHeader::decode(data, 1, Lsn(0)), EntryHeader::decode(data, 1));
    if data.len() >= 60 {
        let mut sector = data.to_vec();
        sector[..8].copy_from_slice(b"MSfooter");
        let crc = seeded_crc(1, &sector[..56]);
        sector[56..60].copy_from_slice(&crc.to_le_bytes());
        if let Some(trailer) = Trailer::decode(&sector, 1, 1 << 20) {
            assert_eq!(trailer.encode(1)[..44], sector[..44]);
            let _ = crate::segment::footer::decode_directory(data, &trailer, 1);
        }
    }
}

struct StillClock;

impl Clock for StillClock {
    fn now_ms(&self) -> i64 {
        0
    }
    fn nanos(&self) -> u64 {
        0
    }
}

/// A log of a few segments after a clean stop.
struct Image {
    files: Vec<(String, Vec<u8>)>,
    /// Every batch by stream and base offset.
    written: BTreeMap<(u64, i64), Bytes>,
    ends: BTreeMap<u64, i64>,
    /// The blocks that vouch for earlier ones: segment, position, and the position up to which they vouch.
    vouchers: Vec<(u32, usize, Lsn)>,
}

fn options() -> Options {
    Options {
        segment_bytes: 1 << 20,
        tail_cache_bytes: 1,
        region_cache_bytes: 1 << 20,
        reserve_bytes: 0,
        ..Options::default()
    }
}

fn open(disk: &SimDisk) -> Option<Parts> {
    assemble(Arc::new(disk.clone()), None, options(), Arc::new(StillClock), Arc::new(NoListener)).ok()
}

fn work(parts: &mut Parts) {
    for _ in 0..20 {
        while parts.preparer.turn() {}
        parts.writer.turn(Patience::None);
    }
}

fn build() -> Image {
    let disk = SimDisk::new(1);
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut written, mut ends) = (BTreeMap::new(), BTreeMap::<u64, i64>::new());
    for session in 0..3 {
        let mut parts = open(&disk).expect("an undamaged log opens");
        for _ in 0..36 {
            let (stream, body) = (rng.u64(0..4), if rng.u8(..) < 60 { 60_000 } else { rng.usize(0..3000) });
            let end = ends.entry(stream).or_default();
            let mut bytes = vec![0u8; HEADER_BYTES + body];
            rng.fill(&mut bytes[HEADER_BYTES..]);
            bytes[0..8].copy_from_slice(&end.to_be_bytes());
            let length = i32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).expect("a small batch");
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
            bytes[16] = 2;
            bytes[43..51].copy_from_slice(&5i64.to_be_bytes());
            bytes[57..61].copy_from_slice(&1i32.to_be_bytes());
            seal_crc(&mut bytes);
            let batch = Bytes::from(bytes);
            let append = Append {
                stream: parts.log.stream(StreamId(stream)),
                base_offset: Offset(*end),
                header: BatchHeader::parse(&batch).expect("it was just made"),
                batch: batch.clone(),
                append_time: None,
                leader_epoch: 0,
                durability: Durability::Synced,
                done: None,
                admission: parts.log.admit(batch.len()).expect("the disk is large"),
            };
            parts.log.append(append);
            written.insert((stream, *end), batch);
            *end += 1;
            work(&mut parts);
        }
        if session < 2 {
            parts.log.ask_to_stop();
            work(&mut parts);
        }
    }
    // Open the log two more times: the barriers vouch for everything.
    for _ in 0..2 {
        open(&disk).expect("an undamaged log opens");
    }
    let mut names = disk.list().expect("a simulated disk lists its files");
    names.sort();
    let files: Vec<(String, Vec<u8>)> =
        names.into_iter().map(|name| (name.clone(), contents(&disk, &name))).collect();
    let vouchers = files.iter().flat_map(|(name, bytes)| blocks(name, bytes)).collect();
    Image { files, written, ends, vouchers }
}

fn contents(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name).expect("it was listed");
    let mut bytes = vec![0; usize::try_from(file.length()).expect("a small file")];
    file.read_at(0, &mut bytes).expect("the simulated disk has no faults");
    bytes
}

fn blocks(name: &str, bytes: &[u8]) -> Vec<(u32, usize, Lsn)> {
    let (Some(sequence), Ok(header)) = (sequence_of(name), SegmentHeader::decode(bytes)) else {
        return Vec::new();
    };
    let (mut at, mut found) = (Segment::data_start(), Vec::new());
    while let Some(block) =
        BlockHeader::decode(&bytes[index(at)..], header.generation, Lsn::new(sequence, at))
    {
        found.push((sequence, index(at), block.synced));
        at += crate::format::length32(block.total_bytes());
    }
    found
}

/// Changes the files of an image according to `data`: eight bytes for each change.
fn damage(files: &mut [(String, Vec<u8>)], data: &[u8]) {
    for change in data.chunks_exact(8).take(8) {
        let file = usize::from(change[1]) % files.len();
        let length = files[file].1.len();
        let mut at = index(u32::from_le_bytes([change[2], change[3], change[4], 0])) % length;
        if change[0] & 0x10 != 0 {
            at = at / SECTOR * SECTOR;
        }
        let span = usize::from(u16::from_le_bytes([change[5], change[6]]));
        let end = (at + span + 1).min(length);
        let bytes = &mut files[file].1;
        match change[0] & 7 {
            0 | 1 => bytes[at] ^= 1 << (change[7] & 7),
            2 => bytes[at..end].fill(change[7]),
            3 => bytes[at..].fill(0),
            4 => {
                let other = files[usize::from(change[7]) % files.len()].1.clone();
                let until = end.min(other.len());
                files[file].1[at..until].copy_from_slice(&other[at..until]);
            }
            5 => {
                let from = usize::from(change[7]) * SECTOR % length;
                let until = (from + (end - at)).min(length);
                bytes.copy_within(from..until, at.min(length - (until - from)));
            }
            _ => bytes[at..end].iter_mut().for_each(|byte| *byte ^= change[7]),
        }
    }
}

fn restore(files: &[(String, Vec<u8>)]) -> SimDisk {
    let disk = SimDisk::new(2);
    for (name, bytes) in files {
        let file: Arc<dyn File> = disk.create(name, bytes.len() as u64).expect("the disk is empty");
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        file.write_at(0, &buffer).expect("the simulated disk has no faults");
    }
    disk
}

/// Opens a damaged log. Opening must refuse the log, or the log must serve each written batch unchanged or return an
/// error. It may take the damage for the end of the log only when nothing intact vouches for the missing data.
pub fn recovery(data: &[u8]) {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    let image = IMAGE.get_or_init(build);
    let mut files = image.files.clone();
    damage(&mut files, data);
    let disk = restore(&files);
    let Some(mut parts) = open(&disk) else { return };
    let mut complete = true;
    for (id, end) in &image.ends {
        let stream = parts.log.stream(StreamId(*id));
        let bounds = stream.bounds();
        assert!(bounds.committed.0 <= *end, "records that were never written");
        complete &= bounds.committed.0 == *end && bounds.start == Offset(0);
        let mut from = bounds.start;
        while from < bounds.committed {
            let stream = stream.clone();
            let request =
                ReadRequest { stream, from, until: Offset(i64::MAX), bytes_max: 1 << 20, at_least_one: true };
            let Ok(batches) = parts.log.read_blocking(&request) else { break };
            let (got, mut at) = (batches.chunks.concat(), 0);
            assert!(!got.is_empty(), "committed records are neither served nor refused");
            while at < got.len() {
                let want = &image.written[&(*id, from.0)];
                assert!(got[at..].starts_with(want), "stream {id} at {from} is not what was written");
                at += want.len();
                from = from + 1;
            }
            assert_eq!(batches.next, Some(from));
        }
    }
    if !complete {
        let end = parts.log.recovery().end;
        for (sequence, at, synced) in &image.vouchers {
            let name = crate::segment::file_name(*sequence);
            let of = |files: &[(String, Vec<u8>)]| {
                let (_, bytes) = files.iter().find(|(other, _)| *other == name).expect("no file is removed");
                bytes[*at..at + BLOCK_HEADER_BYTES].to_vec()
            };
            assert!(
                *synced <= end || of(&files) != of(&image.files),
                "damage was taken for the end, at {end}"
            );
        }
    }
    work(&mut parts);
}
