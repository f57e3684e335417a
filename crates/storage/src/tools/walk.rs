//! A walk over a segment that trusts nothing: it reports every valid block and entry, and every place where a valid one
//! should be and is not.
//!
//! A walk is not the scan of recovery ([`crate::recovery::scan`]), which ends at the first invalid block and at a
//! failed read. The walk goes on behind both. Everything must exist that a later block or a trailer says was synced, so
//! an invalid block below that position is damage. Behind the damage, the walk searches the next valid block at every
//! sector, and inside the damage it searches batches at every byte. That is safe for two reasons: all CRCs are seeded
//! with the generation, and nothing stale can lie below a synced position.

use disk::SECTOR;
use model::BatchHeader;

use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, ENTRY_HEADER_BYTES, EntryHeader, EntryKind, index, length32,
};
use crate::index::BatchPlace;
use crate::recovery::scan::{Found, Scanner, entry_at, place_of};
use crate::segment::Segment;

/// The steps of a walk, in the order of the file.
pub(crate) enum Step<'a> {
    /// A block whose CRCs hold, before its entries.
    Block(BlockHeader),
    /// An entry whose own CRC holds; its body is not checked.
    Entry(Found<'a>),
    /// The footer block, the last one.
    Footer { position: u32, payload: &'a [u8] },
    /// Bytes that were synced once and are not valid. Entries found in them come after this step. `entries` is the
    /// number of entries that should be there, if the header of the block is valid.
    Damage { from: u32, to: u32, what: &'static str, entries: Option<u32> },
}

/// The end of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked {
    /// The position behind the last block that counts.
    pub end: u32,
    /// The highest epoch of all blocks.
    pub epoch: u64,
    /// Whether the last block was a footer.
    pub footer: bool,
}

/// Walks over the blocks of `segment` up to `stop`. Everything below `vouched` was synced once. Above it, the first
/// invalid block is the end. Blocks with a lower epoch than an earlier block are stale.
pub(crate) fn walk(
    segment: &Segment,
    mut epoch: u64,
    vouched: u32,
    stop: u32,
    each: &mut dyn FnMut(Step),
) -> Walked {
    let mut scanner = Scanner::careful(segment);
    let mut position = Segment::data_start();
    let stop = stop.min(segment.data_end());
    while position < stop {
        // Unreadable bytes count as damaged.
        let header = scanner.header(position).ok().flatten().filter(|header| header.epoch >= epoch);
        let whole = header.is_some() && matches!(scanner.block(position), Ok(Some(_)));
        let Some(header) = header.filter(|_| whole) else {
            if position >= vouched {
                break;
            }
            let to = next_block(&mut scanner, position, epoch, vouched.min(stop));
            let what = match (header, scanner.header(position)) {
                (Some(_), _) => "the entries of a block do not match its crc",
                (None, Err(_)) => "a block cannot be read",
                (None, Ok(_)) => "there is no valid block header",
            };
            let alone = header.filter(|header| to == position + length32(header.total_bytes()));
            let entries = alone.map(|header| header.entries);
            each(Step::Damage { from: position, to, what, entries });
            rescue(&mut scanner, segment.generation, position + length32(BLOCK_HEADER_BYTES), to, each);
            position = to;
            continue;
        };
        epoch = header.epoch;
        let end = position + length32(header.total_bytes());
        let Ok(Some((_, payload))) = scanner.block(position) else {
            unreachable!("the block was just found to be valid, and it is in memory")
        };
        if header.kind == BlockKind::Footer {
            each(Step::Footer { position, payload });
            return Walked { end, epoch, footer: true };
        }
        each(Step::Block(header));
        let payload_position = position + length32(BLOCK_HEADER_BYTES);
        let mut at = 0;
        for _ in 0..header.entries {
            let Some(found) = entry_at(payload, at, payload_position, segment.generation) else {
                let from = payload_position + length32(at);
                let what = "an entry of a valid block contradicts itself";
                each(Step::Damage { from, to: payload_position + header.length, what, entries: None });
                break;
            };
            at += ENTRY_HEADER_BYTES + found.body.len();
            each(Step::Entry(found));
        }
        position = end;
    }
    Walked { end: position, epoch, footer: false }
}

/// The next position behind `position` at which a valid block begins; at most `to`.
fn next_block(scanner: &mut Scanner, position: u32, epoch: u64, to: u32) -> u32 {
    let mut at = position + length32(SECTOR);
    while at < to {
        if let Ok(Some(header)) = scanner.header(at)
            && header.epoch >= epoch
        {
            return at;
        }
        at += length32(SECTOR);
    }
    to
}

/// Finds entries in the damaged bytes `from..to`, where an entry should begin: consecutive ones, and behind a gap
/// batches that match their own CRC.
fn rescue(scanner: &mut Scanner, generation: u64, from: u32, to: u32, each: &mut dyn FnMut(Step)) {
    let (mut at, mut chained) = (from, true);
    while u64::from(at) + ENTRY_HEADER_BYTES as u64 <= u64::from(to) {
        let head = match scanner.bytes(at, ENTRY_HEADER_BYTES) {
            // The kind and the zeros behind it rule out nearly every position.
            Ok(bytes) if matches!(bytes.get(32..36), Some([1..=4, 0, 0, 0])) => {
                EntryHeader::decode(bytes, generation)
            }
            Ok(_) => None,
            Err(_) => {
                // Continue with the next sector, which may be readable.
                at = (at / length32(SECTOR) + 1) * length32(SECTOR);
                chained = false;
                continue;
            }
        };
        let end = head.map(|entry| u64::from(at) + ENTRY_HEADER_BYTES as u64 + u64::from(entry.length));
        if let (Some(entry), Some(end)) = (head, end.filter(|end| *end <= u64::from(to)))
            && let Ok(body) = scanner.bytes(at + length32(ENTRY_HEADER_BYTES), index(entry.length))
        {
            let found = Found { entry, position: at, body };
            if chained || checked_batch(&found).is_ok() {
                each(Step::Entry(found));
                at = u32::try_from(end).expect("it is at most `to`");
                chained = true;
                continue;
            }
        }
        at += 1;
        chained = false;
    }
}

/// The batch in an entry, after every possible check.
pub(crate) fn checked_batch(found: &Found) -> Result<(BatchPlace, BatchHeader), &'static str> {
    if found.entry.kind != EntryKind::Batch {
        return Err("it is no batch");
    }
    let (place, header) = place_of(found).ok_or("a batch contradicts its entry")?;
    if header.total_bytes != found.body.len() {
        return Err("a batch has another length than its entry says");
    }
    model::batch::verify_crc(found.body, &header).map_err(|_| "a batch does not match its crc")?;
    Ok((place, header))
}
