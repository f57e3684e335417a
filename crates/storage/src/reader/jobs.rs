//! Jobs: reads that may block, done by a few threads with no other work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use super::Reader;
use super::request::{ReadDone, ReadError, ReadRequest};

/// Work for a thread that may block.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The loop of a reader's thread.
#[derive(Clone)]
pub(crate) struct Jobs(Arc<Mutex<Receiver<Job>>>);

/// A queue of jobs: the sender for [`Reader::set_threads`], and the loop that does the jobs.
pub(crate) fn jobs() -> (Sender<Job>, Jobs) {
    let (sender, receiver) = channel();
    (sender, Jobs(Arc::new(Mutex::new(receiver))))
}

impl Jobs {
    /// Does jobs one after the other until the log is closed.
    pub fn work(&self) {
        loop {
            let job = self.0.lock().recv();
            let Ok(job) = job else { return };
            job();
        }
    }
}

impl Reader {
    /// From now on the receiver behind `threads` does the jobs. `None`: the log is closed.
    pub fn set_threads(&self, threads: Option<Sender<Job>>) {
        *self.threads.lock() = threads;
    }

    /// Like [`Reader::set_threads`], for reads from the object store.
    pub fn set_object_threads(&self, threads: Option<Sender<Job>>) {
        *self.object_threads.lock() = threads;
    }

    /// The threads for a read that may ask the object store, or for any other read.
    fn threads_for(&self, from_store: bool) -> Option<Sender<Job>> {
        let store = self.object_threads.lock().clone().filter(|_| from_store);
        store.or_else(|| self.threads.lock().clone())
    }

    /// See [`crate::Log::read_later`].
    pub fn read_later(&self, requests: Vec<ReadRequest>, bytes_max: usize, done: Box<dyn ReadDone>) {
        self.shared.cold_reads.fetch_add(1, Ordering::Relaxed);
        let from_store = requests.iter().any(|request| request.stream.lock().is_only_stored(request.from));
        let Some(sender) = self.threads_for(from_store) else {
            return done.done(requests.iter().map(|_| Err(ReadError::Closed)).collect());
        };
        let reader = self.without_threads();
        if from_store {
            reader.set_object_threads(Some(sender.clone()));
        }
        let job: Job = Box::new(move || {
            if !done.waits() {
                return;
            }
            let mut bytes = 0;
            let read = |mut request: ReadRequest| {
                request.bytes_max = request.bytes_max.min(bytes_max - bytes.min(bytes_max));
                request.at_least_one &= bytes == 0;
                if from_store && reader.shared.queue.is_stopping() {
                    // Closing the log waits for at most one read from the store.
                    return Err(ReadError::Closed);
                }
                let result = reader.read_stretch(&request);
                if let Ok(batches) = &result {
                    bytes += batches.bytes;
                    if let Some(next) = batches.next.filter(|_| batches.from_objects) {
                        reader.read_from_objects(&request.stream, request.from, next);
                    }
                }
                result
            };
            done.done(requests.into_iter().map(read).collect());
            if reader.shared.regions.begin_ahead() {
                reader.read_ahead();
            }
        });
        if sender.send(job).is_err() {
            tracing::error!("the readers of the log are gone, which is a bug");
        }
    }

    /// Makes a thread of the log read ahead for scanning readers, if little is read ahead of them.
    pub fn keep_ahead(&self) {
        if self.shared.regions.begin_ahead() {
            let reader = self.without_threads();
            self.spawn(move || reader.read_ahead());
        }
    }

    /// Reads what scanning readers will ask for next. An error here comes again to the reader that needs the region.
    fn read_ahead(&self) {
        let shared = &self.shared;
        while !shared.cleaner_stops()
            && let Some((sequence, region)) = shared.regions.next_ahead()
            && let Some(segment) = shared.segments.find(sequence)
            && let Ok(true) = shared.regions.read_ahead(&segment, region, self.stable_end(&segment))
        {}
        shared.regions.end_ahead();
    }

    /// Runs `job` on a thread of the log. If the log is closed, drops it without a call.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.spawn_for(false, job);
    }

    fn spawn_for(&self, from_store: bool, job: impl FnOnce() + Send + 'static) {
        if let Some(sender) = self.threads_for(from_store) {
            // A closed channel means a closed log. The caller sees that the channel of its result is dropped.
            let _ = sender.send(Box::new(job));
        }
    }

    /// Another reader of the same log, without threads.
    fn without_threads(&self) -> Reader {
        Reader::new(self.shared.clone())
    }
}
