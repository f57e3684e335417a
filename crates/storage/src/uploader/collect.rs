//! Deletes objects of which nothing is live any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::Offset;
use objects::{Bucket, list_all};

use super::{UploadError, Uploader};
use crate::epochs::SEAL_BYTES;
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, Lsn};
#[cfg(any(test, feature = "stepped"))]
use crate::options::Mutation;
use crate::segment::{Segment, file_name};

impl Uploader {
    /// Deletes the objects that are dead for longer than the grace, and that nobody reads. The local file goes first: it
    /// says that the object has the records. After a crash between the two, the object is an orphan.
    ///
    /// Returns why another server writes this log's objects, if it turns out that one does.
    pub fn collect(&mut self) -> Result<Option<Arc<str>>, UploadError> {
        let shared = self.shared.clone();
        let Some(bucket) = shared.tier.bucket.clone().filter(|_| !self.is_fenced()) else { return Ok(None) };
        let (now, grace) = (shared.clock.nanos(), shared.options.object_grace_ms.saturating_mul(1_000_000));
        let dead = shared.segments.dead_stored();
        self.dead.retain(|sequence, _| dead.iter().any(|segment| segment.sequence == *sequence));
        if self.counted == 0 {
            self.counted = shared.segments.newest_stored().map_or(0, |segment| counted_by(&segment));
        }
        let mut due = Vec::new();
        for segment in dead {
            let since = *self.dead.entry(segment.sequence).or_insert(now);
            // An object that nobody says to count is still needed as a link: a restore would take those behind it for
            // objects that were put without it.
            let linked = segment.sequence >= self.counted;
            #[cfg(any(test, feature = "stepped"))]
            let linked = linked && shared.options.mutation != Some(Mutation::DeletesLinks);
            // One reference is the map's, one is ours.
            if !linked && now.saturating_sub(since) >= grace && Arc::strong_count(&segment) <= 2 {
                due.push(segment.sequence);
            }
        }
        self.keep_recorders(&mut due);
        if due.is_empty() && self.doomed.is_empty() {
            return Ok(None);
        }
        // Objects that are dead here may be alive for a server that has claimed the log since.
        if let Some(why) = self.check_claim(&*bucket)? {
            return Ok(Some(why));
        }
        for sequence in due {
            shared.disk.remove(&file_name(sequence)).map_err(UploadError::Local)?;
            shared.segments.remove(sequence);
            self.dead.remove(&sequence);
            self.doomed.push(sequence);
        }
        while let Some(sequence) = self.doomed.last() {
            bucket.delete(&shared.object_key(*sequence))?;
            self.doomed.pop();
            shared.tier.counters.deleted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(None)
    }

    /// Takes those objects out of `due` that are still needed in a log whose owner changes: those that alone record the bounds
    /// of a stream, and those with records below a start that no object records, whose place would look like one of lost
    /// records. A later object records these bounds.
    fn keep_recorders(&self, due: &mut Vec<u32>) {
        let shared = &self.shared;
        if shared.options.owned.is_none() || due.is_empty() {
            return;
        }
        #[cfg(any(test, feature = "stepped"))]
        if shared.options.mutation == Some(Mutation::ForgetsBounds) {
            return;
        }
        let doomed: BTreeSet<u32> = due.iter().copied().collect();
        let (mut kept, mut needed, mut keeps_all) = (BTreeSet::new(), Vec::new(), false);
        for stream in shared.streams() {
            let state = stream.lock();
            if state.deleted || state.next == Offset::ZERO || !state.recorded.needs(|of| doomed.contains(&of))
            {
                continue;
            }
            keeps_all |= state.recorded.is_unknown();
            kept.extend(state.recorded.objects().into_iter().filter(|object| doomed.contains(object)));
            drop(state);
            needed.push(stream);
        }
        if keeps_all {
            // After an opening.
            kept.clone_from(&doomed);
        }
        // Those that are kept already need not be read.
        let undecided: Vec<u32> = doomed.difference(&kept).copied().collect();
        for sequence in &undecided {
            let segment = shared.segments.find(*sequence);
            let rows = segment.and_then(|segment| segment.load_directory().ok().flatten());
            let Some(rows) = rows else {
                kept.insert(*sequence);
                continue;
            };
            for row in rows {
                let Some(stream) = shared.find_stream(row.stream) else { continue };
                let state = stream.lock();
                if !state.deleted && state.recorded.start() < state.start.min(row.next_offset) {
                    drop(state);
                    kept.insert(*sequence);
                    needed.push(stream);
                }
            }
        }
        // An object that never had a record has nothing else to give free. The next object with records makes it needless.
        let has_records = |sequence: &u32| {
            let footer = shared.segments.find(*sequence).and_then(|segment| segment.footer());
            footer.is_some_and(|footer| footer.trailer.rows > 0)
        };
        let since = kept.iter().any(has_records).then(|| shared.clock.nanos());
        due.retain(|sequence| !kept.contains(sequence));
        shared.tier.record(needed, since);
    }

    /// Deletes the objects that a restore did not count: a crash had left them without those before them. Objects that are
    /// put from now on say that all before them count.
    pub(super) fn delete_uncounted(&mut self, bucket: &dyn Bucket) -> Result<(), UploadError> {
        if self.cleared {
            return Ok(());
        }
        let bare = |segment: &Arc<Segment>| segment.footer().is_some_and(|footer| footer.trailer.rows == 0);
        for segment in self.shared.segments.all_stored().iter().filter(|segment| bare(segment)) {
            bucket.delete(&self.shared.object_key(segment.sequence))?;
        }
        self.cleared = true;
        Ok(())
    }

    /// Fences this log if another server has claimed its objects.
    pub fn check_claim(&mut self, bucket: &dyn Bucket) -> Result<Option<Arc<str>>, UploadError> {
        self.owners.current(&self.shared, bucket)?;
        if self.owners.is_newest(self.shared.options.log_id, bucket)? {
            return Ok(None);
        }
        let why = "another server, which has a copy of this log, has claimed its objects".to_owned();
        Ok(Some(self.fence(why)))
    }

    /// Deletes objects that no segment names: a put that landed after its object had been deleted, or an object that was
    /// given up. An object with the next number was put before a crash, and is taken over if it continues the log.
    ///
    /// Returns why nothing more is stored, if it turns out that another server writes the objects of this log, or that
    /// some of them are gone.
    pub fn delete_orphans(&mut self) -> Result<Option<Arc<str>>, UploadError> {
        let shared = self.shared.clone();
        let Some(bucket) = shared.tier.bucket.clone().filter(|_| !self.is_fenced()) else { return Ok(None) };
        let mut missing: BTreeSet<u32> =
            shared.segments.live_stored().iter().map(|segment| segment.sequence).collect();
        let keys = shared.object_keys();
        let listed = list_all(&*bucket, &keys.prefix(), "", |_, _| false)?;
        let mut orphans = Vec::new();
        for object in listed {
            // Seals are left alone, and what a former owner stored behind its seal or in an epoch outside the chain.
            let is_seal = object.bytes == SEAL_BYTES as u64 && shared.options.owned.is_some();
            let Some(sequence) = keys.sequence_of(&object.key).filter(|_| !is_seal) else { continue };
            let key = object.key;
            let known = missing.remove(&sequence) || shared.segments.find(sequence).is_some();
            // What is on its way is settled by its put.
            let on_its_way = sequence >= self.next && (!self.pending.is_empty() || self.left.is_some());
            if !known && !on_its_way {
                orphans.push((sequence, key));
            }
        }
        // They may have died and been collected since.
        missing.retain(|sequence| shared.segments.find(*sequence).is_some_and(|segment| segment.live() > 0));
        if let Some(first) = missing.first() {
            let why = format!(
                "{} objects are gone from the object store, {} among them: is this an old copy of the data directory, or \
                 does the bucket delete objects by itself?",
                missing.len(),
                shared.object_key(*first)
            );
            return Ok(Some(self.fence(why)));
        }
        if orphans.is_empty() {
            return Ok(None);
        }
        if let Some(why) = self.check_claim(&*bucket)? {
            return Ok(Some(why));
        }
        // Those that were skipped go from the newest on: an object does not count as long as one that it was built behind is
        // there and does not count.
        let from_next = orphans.partition_point(|(sequence, _)| *sequence < self.next);
        orphans[..from_next].reverse();
        for (sequence, key) in orphans {
            if sequence >= self.next {
                let continues = match self.read_existing(&*bucket, sequence)? {
                    Ok(known) => self.continues(&known).map(|continues| (known, continues)),
                    Err(why) => Err(why),
                };
                match continues {
                    Ok((known, true)) if sequence == self.next => {
                        self.left = Some(known);
                        self.settle(&*bucket)?;
                        continue;
                    }
                    Ok(_) => {}
                    Err(why) => return Ok(Some(self.fence(why))),
                }
            }
            tracing::info!(key, "an object that no record needs is deleted");
            bucket.delete(&key)?;
        }
        Ok(None)
    }
}

/// The sequence number below which all objects count, as the object `segment` says; 0 if its footer cannot be read.
fn counted_by(segment: &Segment) -> u32 {
    let Some(footer) = segment.footer() else { return 0 };
    let position = footer.trailer.footer_position;
    let lsn = Lsn::new(segment.sequence, position);
    let read = segment.read(position, BLOCK_HEADER_BYTES).ok();
    let block = read.and_then(|bytes| BlockHeader::decode(&bytes, segment.generation, lsn));
    block.map_or(0, |block| block.synced.sequence())
}
