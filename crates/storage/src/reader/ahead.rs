//! Fetching ahead: the runs that a reader of objects will ask for next are fetched at the same time, by several threads.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use model::Offset;

use super::jobs::Job;
use super::{Reader, run_of};
use crate::segment::{Segment, is_stored};
use crate::shared::Shared;
use crate::stream::Stream;

/// Runs that are fetched ahead of one reader.
const RUNS: usize = 16;
/// Bytes that are fetched ahead of one reader: this part of the cache (1 / PART).
const PART: usize = 8;

impl Reader {
    /// Notes that the records of `stream` in `from..next` were read from objects. If the reader goes on where the last
    /// one ended, fetches what follows.
    pub(super) fn read_from_objects(&self, stream: &Arc<Stream>, from: Offset, next: Offset) {
        let Some(threads) = self.object_threads.lock().clone() else { return };
        if !stream.lock().begin_ahead(from, next) {
            return;
        }
        let (shared, stream, sender) = (self.shared.clone(), stream.clone(), threads.clone());
        let job: Job = Box::new(move || {
            fetch_ahead(&shared, &stream, next, &sender);
            stream.lock().end_ahead();
        });
        // A closed channel means a closed log.
        drop(threads.send(job));
    }
}

/// Has the runs from `from` on fetched. An error comes again to the reader that needs the run.
fn fetch_ahead(shared: &Arc<Shared>, stream: &Arc<Stream>, from: Offset, threads: &Sender<Job>) {
    let (mut at, mut bytes) = (from, 0);
    for _ in 0..RUNS {
        if bytes >= shared.runs.bytes_max() / PART || shared.cleaner_stops() {
            return;
        }
        let found = stream.lock().sealed_at(at);
        let Some((extent, end)) = found.filter(|(extent, _)| is_stored(extent.segment)) else { return };
        let Some(segment) = shared.segments.find(extent.segment) else { return };
        let Ok(index) = shared.index_of(&segment, extent.row) else { return };
        let first = index.from_offset(at).next().filter(|place| place.base_offset < end);
        let Some((first, run)) = first.map(|first| (first, run_of(&index, &first, end))) else {
            // Compaction has removed the rest of the extent.
            at = end;
            continue;
        };
        bytes += crate::format::index(run.end - first.position);
        at = run.next;
        if !shared.runs.covers(&segment, first.position) {
            let (shared, until) = (shared.clone(), run.end);
            let job: Job = Box::new(move || fetch(&shared, &segment, first.position, until));
            drop(threads.send(job));
        }
    }
}

fn fetch(shared: &Shared, segment: &Segment, from: u32, until: u32) {
    if !shared.cleaner_stops() {
        drop(shared.runs.read(segment, from..from + 1, from..until));
    }
}
