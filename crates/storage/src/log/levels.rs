//! Where the records of a stream are kept, and when they are visible.

use std::sync::Arc;

use model::Timestamp;

use super::Log;
use crate::outgoing::BlockSink;
use crate::request::{Admission, AdmitError};
use crate::segment;
use crate::stream::{Level, Stream};

impl Log {
    /// Gives a stream a level. Where its records wait, this comes before the first append, replay or read after opening.
    pub fn set_level(&self, stream: &Arc<Stream>, level: Level) {
        match level {
            Level::Diskless => self.set_diskless(stream),
            Level::Replicated => self.set_replicated(stream),
            Level::Tiered | Level::Local => self.set_tiered(stream, level == Level::Tiered),
        }
    }

    /// Sends the records of a stream to the object store from now on, also those that it has, or stops that. What is
    /// stored stays. Does nothing without an object store, or to a stream whose records wait.
    pub fn set_tiered(&self, stream: &Arc<Stream>, tiered: bool) {
        let level = if tiered { Level::Tiered } else { Level::Local };
        if self.shared.tier.bucket.is_some() && stream.level() != level && !stream.level().waits() {
            stream.set_level(level);
            self.shared.store_later(stream);
        }
    }

    /// Makes a stream a leading one, and tiered if it is not diskless: objects never have a record of another stream
    /// without the records of the leading streams that come before it in the log. Of all leading streams together, objects
    /// have a prefix of the log. Call this after opening.
    pub fn set_leading(&self, stream: &Arc<Stream>) {
        self.shared.tier.lead(stream);
        self.set_tiered(stream, true);
    }

    /// Makes a stream diskless: its records are visible only once they are in the object store. Call this before the
    /// first append or read after opening; a stream stays diskless. Without an object store, nothing more becomes
    /// visible.
    pub fn set_diskless(&self, stream: &Arc<Stream>) {
        self.hold_back(stream, Level::Diskless);
    }

    /// Hands all blocks with entries to `sink` from now on. Call this once, before the first append.
    pub fn copy_to(&self, sink: Arc<dyn BlockSink>) {
        self.shared.outgoing.begin(sink);
    }

    /// Makes a stream replicated: its records are visible only once the copy set has them, or the object store. Call this
    /// before the first append, replay or read after opening; a stream stays replicated.
    pub fn set_replicated(&self, stream: &Arc<Stream>) {
        self.shared.outgoing.want();
        self.hold_back(stream, Level::Replicated);
    }

    /// Whether the log has, or had, a replicated stream since it was opened.
    pub fn wants_copies(&self) -> bool {
        self.shared.outgoing.is_wanted()
    }

    /// Whether records of replicated streams go to the object store as early as those of diskless ones: while the copy set does
    /// not answer for them.
    pub fn store_soon(&self, soon: bool) {
        self.shared.tier.set_soon(soon);
    }

    /// The number of the next block that goes to the copy set.
    pub fn sent_blocks(&self) -> u64 {
        self.shared.outgoing.sent_and_stored().0
    }

    /// Whether the object store has all of the blocks that went to the copy set, also what was deleted meanwhile: the next owner
    /// needs no copies. Of a log that ended, that is all.
    pub fn is_stored(&self) -> bool {
        let (sent, stored) = self.shared.outgoing.sent_and_stored();
        stored >= sent
    }

    /// Gives a stream a level at which only what is stored is visible at first.
    fn hold_back(&self, stream: &Arc<Stream>, level: Level) {
        if stream.level() == level {
            return;
        }
        {
            let mut state = stream.lock();
            stream.set_level(level);
            let stored = state.stored_to().unwrap_or_default();
            state.committed = stored.clamp(state.start, state.synced);
        }
        self.shared.store_later(stream);
    }

    /// All of the copy set have synced the blocks below `number`. Of blocks that were not sent yet this says nothing.
    pub fn copied(&self, number: u64) {
        self.shared.outgoing.copied(number, &*self.shared.listener);
    }

    /// Like [`Log::admit`], for a batch of `stream`. Fails if the object store takes no more of a diskless stream, or the copy
    /// set of a replicated one.
    pub fn admit_to(&self, stream: &Stream, bytes: usize) -> Result<Admission, AdmitError> {
        match stream.level() {
            Level::Diskless => self.shared.tier.check_diskless()?,
            Level::Replicated => self.shared.outgoing.check()?,
            Level::Local | Level::Tiered => {}
        }
        self.admit(bytes)
    }

    /// Drops local copies of stored records: those older than `oldest`, and the oldest beyond `bytes_max` of local
    /// records (`local.retention.ms`, `local.retention.bytes`). Whole segments of a stream go, never the newest one.
    pub fn retain_locally(&self, stream: &Stream, oldest: Option<Timestamp>, bytes_max: Option<u64>) {
        let to = stream.lock().kept_locally_from(oldest, bytes_max);
        segment::evict(stream, to, &self.shared.segments);
        self.shared.wake_preparer();
    }

    /// Deletes the records of a stream that are in the object store alone, and gives up the stored copies of the others.
    /// Several calls are needed: the copies go only after the deletion is durable.
    pub fn forget_stored(&self, stream: &Arc<Stream>) {
        stream.set_level(Level::Local);
        let (start, local_start, stored) = {
            let state = stream.lock();
            (state.start, state.local_start(), state.stored_to())
        };
        if stored.is_none() {
            return;
        }
        if start < local_start {
            return self.trim(stream, local_start, None);
        }
        segment::forget_stored(stream, &self.shared.segments);
    }
}
