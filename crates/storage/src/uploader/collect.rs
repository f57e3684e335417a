//! Deletes objects of which nothing is live any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{UploadError, Uploaded, Uploader};
use crate::format::STORED;
use crate::segment::file_name;
use crate::segment::object::{object_key, object_number, object_prefix};

/// Objects that one request lists.
const LISTED: usize = 1000;

impl Uploader {
    /// Deletes the objects that are dead for longer than the grace, and that nobody reads. The local file goes first: it
    /// says that the object has the records. After a crash between the two, the object is an orphan.
    pub fn collect(&mut self) -> Result<(), UploadError> {
        let shared = self.shared.clone();
        // Objects that are dead here may be alive for the server that writes them now.
        let Some(bucket) = shared.tier.bucket.clone().filter(|_| !self.fenced) else { return Ok(()) };
        let (now, grace) = (shared.clock.nanos(), shared.options.object_grace_ms.saturating_mul(1_000_000));
        let dead = shared.segments.dead_stored();
        self.dead.retain(|sequence, _| dead.iter().any(|segment| segment.sequence == *sequence));
        for segment in dead {
            let sequence = segment.sequence;
            let since = *self.dead.entry(sequence).or_insert(now);
            // One reference is the map's, one is ours.
            if now.saturating_sub(since) < grace || Arc::strong_count(&segment) > 2 {
                continue;
            }
            shared.disk.remove(&file_name(sequence)).map_err(UploadError::Local)?;
            shared.segments.remove(sequence);
            self.dead.remove(&sequence);
            self.doomed.push(sequence);
        }
        while let Some(sequence) = self.doomed.last() {
            bucket.delete(&object_key(shared.options.log_id, *sequence))?;
            self.doomed.pop();
            shared.tier.counters.deleted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Deletes objects that no segment names: a put that landed after its object had been deleted. An object with the
    /// next number was put before a crash, and is taken over.
    ///
    /// Returns why another server writes this log's objects, if it turns out that one does.
    pub fn delete_orphans(&mut self) -> Result<Option<String>, UploadError> {
        let shared = self.shared.clone();
        let Some(bucket) = shared.tier.bucket.clone().filter(|_| !self.fenced) else { return Ok(None) };
        let prefix = object_prefix(shared.options.log_id);
        let mut after = String::new();
        loop {
            let listed = bucket.list(&prefix, &after, LISTED)?;
            let Some(last) = listed.last() else { return Ok(None) };
            after.clone_from(&last.key);
            for object in listed {
                let Some(number) = object_number(&object.key) else { continue };
                let sequence = STORED | number;
                if sequence < self.next && shared.segments.find(sequence).is_none() {
                    tracing::info!(key = object.key, "an object that no record needs is deleted");
                    bucket.delete(&object.key)?;
                } else if sequence == self.next
                    && !self.is_putting()
                    && let Uploaded::Fenced(why) = self.adopt(&*bucket, None)?
                {
                    return Ok(Some(why));
                }
            }
        }
    }
}
