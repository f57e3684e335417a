//! A log without threads: its caller does their work in steps. A simulation of several logs, of which each does its steps
//! in an order that a seed decides, is the same each time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use disk::Disk;
use objects::Bucket;

use crate::copies::Copies;
use crate::copies::held::BATCH_PART;
use crate::log::{Log, Parts, assemble};
use crate::options::{Clock, Options};
use crate::preparer::Preparer;
use crate::recovery::OpenError;
use crate::request::{Listener, NoListener};
use crate::shared::Shared;
use crate::uploader::Uploader;
use crate::writer::{Patience, Writer};

/// A put that was begun, for any thread.
pub type Put = Box<dyn FnOnce() + Send>;

/// The work of a log's threads, without the cleaner and the merger.
pub struct Steps {
    shared: Arc<Shared>,
    writer: Writer,
    preparer: Preparer,
    uploader: Uploader,
    begun: Receiver<Put>,
}

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").field("next", &self.uploader.next()).finish_non_exhaustive()
    }
}

impl Log {
    /// Opens a log like [`Log::open_tiered`], without threads. Blocks during recovery.
    pub fn open_stepped(
        disk: Arc<dyn Disk>,
        bucket: Option<Arc<dyn Bucket>>,
        options: Options,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<(Log, Steps), OpenError> {
        let Parts { log, writer, preparer, mut uploader, .. } =
            assemble(disk, bucket, options, clock, listener)?;
        let (shared, (sender, begun)) = (log.shared.clone(), channel());
        uploader.set_threads(sender);
        Ok((log, Steps { shared, writer, preparer, uploader, begun }))
    }
}

impl Copies {
    /// Opens copies like [`Copies::open`], without threads.
    pub fn open_stepped(
        disk: Arc<dyn Disk>,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<(Copies, Steps), OpenError> {
        let options = Options { batch_part: BATCH_PART, ..options };
        let (log, steps) = Log::open_stepped(disk.clone(), None, options, clock, Arc::new(NoListener))?;
        Ok((Copies::of(log, disk)?, steps))
    }
}

impl Steps {
    /// Writes what was appended, and completes what is synced. Returns false once the log is closed and all is written.
    pub fn write(&mut self) -> bool {
        let goes_on = self.writer.turn(Patience::None);
        if !goes_on {
            // [`Log::close`] did not wait for the writer.
            self.shared.end();
        }
        goes_on
    }

    /// Prepares segments. Returns whether there was anything to do. Does nothing once the log is closed, whose directory may be
    /// used by another one.
    pub fn prepare(&mut self) -> bool {
        !self.shared.preparer_stops() && self.preparer.turn()
    }

    /// Begins a put if there is enough to store, and looks at those that have ended. Does nothing once the log is closed.
    pub fn upload(&mut self) {
        if self.uploader.rest(Duration::ZERO) {
            self.uploader.turn();
        }
    }

    /// The puts that were begun since the last call. Each of them may be done at any time, or never.
    pub fn puts(&self) -> Vec<Put> {
        self.begun.try_iter().collect()
    }

    /// Deletes objects of which nothing is needed any more, and with `orphans` those that are not of the log. Does nothing once
    /// the log is closed.
    pub fn collect(&mut self, orphans: bool) {
        if self.uploader.rest(Duration::ZERO) {
            // What fails is tried again by a later call.
            let _ = if orphans { self.uploader.delete_orphans() } else { self.uploader.collect() };
        }
    }
}
