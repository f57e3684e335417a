//! Jobs: reads that may block, done by a few threads that do nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use super::Reader;
use super::request::{ReadDone, ReadError, ReadRequest};

/// Something to do on a thread that may block.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What the threads of the readers do.
#[derive(Clone)]
pub(crate) struct Jobs(Arc<Mutex<Receiver<Job>>>);

/// A queue of jobs: who does them, and what [`Reader::set_threads`] takes.
pub(crate) fn jobs() -> (Sender<Job>, Jobs) {
    let (sender, receiver) = channel();
    (sender, Jobs(Arc::new(Mutex::new(receiver))))
}

impl Jobs {
    /// Does one job after the other until the log is closed.
    pub fn work(&self) {
        loop {
            let job = self.0.lock().recv();
            let Ok(job) = job else { return };
            job();
        }
    }
}

impl Reader {
    /// From now on jobs are done by who receives from `threads`; without, the log is closed.
    pub fn set_threads(&self, threads: Option<Sender<Job>>) {
        *self.threads.lock() = threads;
    }

    /// See [`crate::Log::read_later`].
    pub fn read_later(&self, requests: Vec<ReadRequest>, bytes_max: usize, done: Box<dyn ReadDone>) {
        self.shared.cold_reads.fetch_add(1, Ordering::Relaxed);
        let Some(sender) = self.threads.lock().clone() else {
            return done.done(requests.iter().map(|_| Err(ReadError::Closed)).collect());
        };
        let reader = self.without_threads();
        let job: Job = Box::new(move || {
            if !done.waits() {
                return;
            }
            let mut bytes = 0;
            let read = |mut request: ReadRequest| {
                request.bytes_max = request.bytes_max.min(bytes_max - bytes.min(bytes_max));
                request.at_least_one &= bytes == 0;
                let result = reader.read_stretch(&request);
                bytes += result.as_ref().map_or(0, |batches| batches.bytes);
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

    /// Has a thread of the log read what those who scan it will ask for next, when little of that is there.
    pub fn keep_ahead(&self) {
        if self.shared.regions.begin_ahead() {
            let reader = self.without_threads();
            self.spawn(move || reader.read_ahead());
        }
    }

    /// Reads what those who scan the log will ask for next. What fails here fails again for those who need it.
    fn read_ahead(&self) {
        let shared = &self.shared;
        while !shared.cleaner_stops()
            && let Some((sequence, region)) = shared.regions.next_ahead()
            && let Some(segment) = shared.segments.find(sequence)
            && let Ok(true) = shared.regions.read_ahead(&segment, region, self.stable_end(&segment))
        {}
        shared.regions.end_ahead();
    }

    /// Runs `job` on a thread of the log; dropped without a call when the log is closed.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(sender) = self.threads.lock().as_ref() {
            // A closed channel means a closed log; the caller sees its answer channel dropped.
            let _ = sender.send(Box::new(job));
        }
    }

    /// Another reader of the same log, without threads.
    fn without_threads(&self) -> Reader {
        Reader::new(self.shared.clone())
    }
}
