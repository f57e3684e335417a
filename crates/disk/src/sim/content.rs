//! The bytes of one simulated file: the bytes that readers see, the bytes on the medium, and the writes in between.
//!
//! This module knows nothing of names, queues or faults. Its caller hands in the random numbers.
//!
//! Invariants:
//! - `visible` is every completed write in the order of completion; `durable` is what a power cut cannot take.
//! - A newer durable write is never undone by an older unsynced one, neither by a sync nor by a power cut: every
//!   durable sector remembers the sequence number of the write it came from.
//! - Sectors that hold zeros take no memory in either map (but for durable ones that an older write could still undo).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::SECTOR;

const SECTOR_BYTES: u64 = SECTOR as u64;

/// One sector's bytes; `None` is all zeros.
type Sector = Option<Arc<[u8]>>;

#[derive(Clone)]
struct DurableSector {
    bytes: Sector,
    sequence: u64,
}

/// A write that has completed, or is about to be torn, and may not be on the medium.
#[derive(Clone)]
struct Unsynced {
    sequence: u64,
    first: u64,
    sectors: Vec<Sector>,
    /// A sync or the write itself failed. No later sync covers the write, though it may have reached the medium.
    abandoned: bool,
}

#[derive(Clone, Default)]
pub(super) struct Content {
    visible: HashMap<u64, Arc<[u8]>>,
    durable: HashMap<u64, DurableSector>,
    unsynced: Vec<Unsynced>,
}

impl Content {
    /// Fills `into` with the bytes of completed writes at `position`.
    pub fn read(&self, position: u64, into: &mut [u8]) {
        for (sector, part) in (position / SECTOR_BYTES..).zip(into.chunks_mut(SECTOR)) {
            match self.visible.get(&sector) {
                Some(bytes) => part.copy_from_slice(bytes),
                None => part.fill(0),
            }
        }
    }

    /// Completes a write. Sequence numbers must grow from call to call.
    pub fn write(&mut self, sequence: u64, position: u64, data: &[u8], durable: bool) {
        let write = Unsynced::new(sequence, position, data);
        self.show(&write);
        if durable { self.persist(write) } else { self.unsynced.push(write) }
    }

    /// Completes a write with an error. Any of its sectors may be visible, and durable later by accident.
    pub fn fail_write(&mut self, sequence: u64, position: u64, data: &[u8], rng: &mut fastrand::Rng) {
        for (place, part) in data.chunks(SECTOR).enumerate() {
            if rng.bool() {
                let mut write = Unsynced::new(sequence, position + (place * SECTOR) as u64, part);
                write.abandoned = true;
                self.show(&write);
                self.unsynced.push(write);
            }
        }
    }

    /// Makes the writes below `sequence` durable.
    pub fn sync(&mut self, sequence: u64) {
        let covered = |write: &mut Unsynced| write.sequence < sequence && !write.abandoned;
        let writes: Vec<Unsynced> = self.unsynced.extract_if(.., covered).collect();
        for write in writes {
            self.persist(write);
        }
    }

    /// A failed sync. As on Linux, the writes that it covered are no longer dirty, so no later sync covers them.
    pub fn fail_sync(&mut self, sequence: u64) {
        for write in self.unsynced.iter_mut().filter(|write| write.sequence < sequence) {
            write.abandoned = true;
        }
    }

    /// The file after a power cut, with `in_flight` writes (position and data) under way.
    pub fn after_power_cut(
        &self,
        in_flight: &[(u64, &[u8])],
        tear_bytes: usize,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let mut left = Self { durable: self.durable.clone(), ..Self::default() };
        for write in &self.unsynced {
            left.tear(write, tear_bytes, rng);
        }
        let mut caught: Vec<_> =
            in_flight.iter().map(|(position, data)| Unsynced::new(u64::MAX, *position, data)).collect();
        rng.shuffle(&mut caught);
        for write in &caught {
            left.tear(write, tear_bytes, rng);
        }
        left.durable.retain(|_, sector| sector.bytes.is_some());
        for (number, sector) in &mut left.durable {
            sector.sequence = 0;
            left.visible.extend(sector.bytes.clone().map(|bytes| (*number, bytes)));
        }
        left
    }

    /// Changes the bytes of `range` without the file system, on the medium and in what readers see.
    pub fn corrupt(&mut self, range: Range<u64>, mut change: impl FnMut(u64, u8) -> u8) {
        for position in range {
            let sector = position / SECTOR_BYTES;
            let within = usize::try_from(position % SECTOR_BYTES).expect("below a sector");
            let old_durable =
                self.durable.get(&sector).cloned().unwrap_or(DurableSector { bytes: None, sequence: 0 });
            let old = bytes_of(&old_durable.bytes)[within];
            let new = change(position, old);
            let edited = with_byte(bytes_of(&old_durable.bytes), within, new);
            self.durable.insert(sector, DurableSector { bytes: Some(edited), ..old_durable });
            let shown = self.visible.get(&sector).map_or(&ZEROS[..], |bytes| bytes);
            // The same difference is applied, so that flipping a bit flips it in both.
            let edited = with_byte(shown, within, shown[within] ^ old ^ new);
            self.visible.insert(sector, edited);
        }
    }

    fn show(&mut self, write: &Unsynced) {
        for (sector, bytes) in (write.first..).zip(&write.sectors) {
            match bytes {
                Some(bytes) => self.visible.insert(sector, bytes.clone()),
                None => self.visible.remove(&sector),
            };
        }
    }

    fn persist(&mut self, write: Unsynced) {
        for (sector, bytes) in (write.first..).zip(write.sectors) {
            self.persist_sector(sector, bytes, write.sequence);
        }
    }

    fn persist_sector(&mut self, sector: u64, bytes: Sector, sequence: u64) {
        if self.durable.get(&sector).is_some_and(|old| old.sequence > sequence) {
            return;
        }
        if bytes.is_none() && self.unsynced.is_empty() {
            self.durable.remove(&sector);
        } else {
            self.durable.insert(sector, DurableSector { bytes, sequence });
        }
    }

    /// Decides which part of one write a power cut leaves: all, nothing, a prefix, or any subset of its sectors; below
    /// that any subset of the `tear_bytes` units of a sector.
    fn tear(&mut self, write: &Unsynced, tear_bytes: usize, rng: &mut fastrand::Rng) {
        let count = write.sectors.len();
        let prefix = match rng.u8(..4) {
            0 => Some(0),
            1 => Some(count),
            2 => Some(rng.usize(..=count)),
            _ => None,
        };
        for (place, bytes) in write.sectors.iter().enumerate() {
            let sector = write.first + place as u64;
            let at_the_tear = prefix.is_none() || prefix == Some(place);
            let kept = prefix.map_or_else(|| rng.bool(), |prefix| place < prefix);
            if tear_bytes < SECTOR && at_the_tear && !matches!(prefix, Some(0)) && rng.bool() {
                let old = self.durable.get(&sector).and_then(|old| old.bytes.clone());
                let mixed = mix(bytes_of(&old), bytes_of(bytes), tear_bytes, rng);
                self.persist_sector(sector, Some(mixed), write.sequence);
            } else if kept {
                self.persist_sector(sector, bytes.clone(), write.sequence);
            }
        }
    }
}

impl Unsynced {
    fn new(sequence: u64, position: u64, data: &[u8]) -> Self {
        let sectors =
            data.chunks(SECTOR).map(|bytes| (bytes != &ZEROS[..]).then(|| Arc::from(bytes))).collect();
        Self { sequence, first: position / SECTOR_BYTES, sectors, abandoned: false }
    }
}

static ZEROS: [u8; SECTOR] = [0; SECTOR];

fn bytes_of(sector: &Sector) -> &[u8] {
    sector.as_deref().unwrap_or(&ZEROS)
}

fn with_byte(bytes: &[u8], within: usize, value: u8) -> Arc<[u8]> {
    let mut bytes: Arc<[u8]> = Arc::from(bytes);
    Arc::make_mut(&mut bytes)[within] = value;
    bytes
}

fn mix(old: &[u8], new: &[u8], unit: usize, rng: &mut fastrand::Rng) -> Arc<[u8]> {
    let parts = old.chunks(unit).zip(new.chunks(unit));
    parts.flat_map(|(old, new)| if rng.bool() { new } else { old }).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte_at(content: &Content, sector: u64) -> u8 {
        let mut bytes = [0; SECTOR];
        content.read(sector * SECTOR_BYTES, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }

    #[test]
    fn an_older_unsynced_write_never_undoes_a_newer_durable_one() {
        for seed in 0..64 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut content = Content::default();
            content.write(1, 0, &[1; SECTOR], false);
            content.write(2, 0, &[(seed % 2) as u8 * 2; SECTOR], true);
            let after = content.after_power_cut(&[], SECTOR, &mut rng);
            assert_eq!(byte_at(&after, 0), (seed % 2) as u8 * 2);
            content.sync(3);
            let after = content.after_power_cut(&[], SECTOR, &mut rng);
            assert_eq!(byte_at(&after, 0), (seed % 2) as u8 * 2);
        }
    }

    #[test]
    fn zeros_take_no_memory() {
        let mut content = Content::default();
        let zeros = vec![0; 64 * SECTOR];
        for chunk in 0..64 {
            content.write(chunk, chunk * zeros.len() as u64, &zeros, chunk % 2 == 0);
        }
        content.sync(64);
        content.write(64, 0, &[1; SECTOR], true);
        content.write(65, 0, &[0; SECTOR], true);
        assert_eq!(content.visible.len(), 0);
        assert!(content.unsynced.is_empty());
        // Sectors that were written durably while an older write was still unsynced keep their sequence numbers.
        assert!(content.durable.len() <= 32 * 64);
        assert_eq!(content.after_power_cut(&[], SECTOR, &mut fastrand::Rng::with_seed(1)).durable.len(), 0);
    }

    #[test]
    fn a_sync_after_a_failed_one_does_not_cover_its_writes() {
        let mut lost = 0;
        for seed in 0..64 {
            let mut content = Content::default();
            content.write(1, 0, &[1; SECTOR], false);
            content.fail_sync(2);
            content.write(2, SECTOR_BYTES, &[2; SECTOR], false);
            content.sync(3);
            let after = content.after_power_cut(&[], SECTOR, &mut fastrand::Rng::with_seed(seed));
            assert_eq!(byte_at(&after, 1), 2);
            lost += u32::from(byte_at(&after, 0) == 0);
        }
        assert!(lost > 10);
    }
}
