//! The queue for systems that refuse O_DIRECT or io_uring: one thread that writes and syncs, in the order of the calls.
//!
//! It does not reorder, batch or overlap operations, so its depth brings no speed. Its purpose is to work everywhere.
//!
//! Invariants:
//! - The channel to the worker holds `depth` operations, so starting one never blocks.
//! - Every started operation is finished before the queue is gone.

#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::file::DirectoryFile;
use crate::{File, Finished, Queue, Waker};

pub(crate) struct PlainQueue {
    depth: usize,
    in_flight: usize,
    /// `None` only while being dropped.
    jobs: Option<SyncSender<Job>>,
    worker: Option<JoinHandle<()>>,
    mailbox: Arc<Mailbox>,
}

struct Job {
    token: u64,
    file: Arc<dyn File>,
    kind: JobKind,
}

enum JobKind {
    Write { position: u64, data: Bytes, durable: bool },
    Sync,
}

/// The worker and the wakers leave their news for the owner here.
#[derive(Default)]
struct Mailbox {
    post: Mutex<Post>,
    changed: Condvar,
}

#[derive(Default)]
struct Post {
    finished: Vec<Finished>,
    woken: bool,
}

impl PlainQueue {
    pub(crate) fn new(depth: usize) -> io::Result<Self> {
        assert!(depth > 0, "a queue holds at least one operation");
        let (sender, receiver) = sync_channel(depth);
        let mailbox = Arc::new(Mailbox::default());
        let worker = std::thread::Builder::new().name("disk-plain".to_owned()).spawn({
            let mailbox = mailbox.clone();
            move || work(&receiver, &mailbox)
        })?;
        Ok(Self { depth, in_flight: 0, jobs: Some(sender), worker: Some(worker), mailbox })
    }

    fn start(&mut self, token: u64, file: &Arc<dyn File>, kind: JobKind) {
        assert!(self.in_flight < self.depth, "more than {} operations in flight", self.depth);
        self.in_flight += 1;
        let jobs = self.jobs.as_ref().expect("the channel is open until the queue is dropped");
        jobs.send(Job { token, file: file.clone(), kind }).expect("the worker ends only after the channel");
    }
}

impl Queue for PlainQueue {
    fn write(&mut self, token: u64, file: &Arc<dyn File>, position: u64, data: Bytes, durable: bool) {
        DirectoryFile::of(file).assert_writable(position, &data);
        self.start(token, file, JobKind::Write { position, data, durable });
    }

    fn sync(&mut self, token: u64, file: &Arc<dyn File>) {
        self.start(token, file, JobKind::Sync);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn wait(
        &mut self,
        block: bool,
        timeout: Option<Duration>,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut post = self.mailbox.post.lock();
        while block && post.finished.is_empty() && !post.woken {
            match deadline {
                None => self.mailbox.changed.wait(&mut post),
                Some(deadline) => {
                    if self.mailbox.changed.wait_until(&mut post, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        // A wait that does not block leaves the wake-up for the next one that does.
        post.woken &= !block;
        self.in_flight -= post.finished.len();
        finished.append(&mut post.finished);
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.mailbox.clone()
    }
}

impl Drop for PlainQueue {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(worker) = self.worker.take()
            && worker.join().is_err()
        {
            tracing::error!("the thread of a disk queue panicked");
        }
    }
}

impl Waker for Mailbox {
    fn wake(&self) {
        self.post.lock().woken = true;
        self.changed.notify_one();
    }
}

fn work(jobs: &Receiver<Job>, mailbox: &Mailbox) {
    for Job { token, file, kind } in jobs {
        let result = match kind {
            JobKind::Write { position, data, durable: false } => file.write_at(position, &data),
            JobKind::Write { position, data, durable: true } => write_durably(&file, position, &data),
            JobKind::Sync => file.sync(),
        };
        mailbox.post.lock().finished.push(Finished { token, result });
        mailbox.changed.notify_one();
    }
}

/// Set once the kernel or a file system has refused `RWF_DSYNC`. It saves the call that would fail.
static DSYNC_REFUSED: AtomicBool = AtomicBool::new(false);

fn write_durably(file: &Arc<dyn File>, position: u64, data: &[u8]) -> io::Result<()> {
    if !DirectoryFile::of(file).is_synced() {
        return file.write_at(position, data);
    }
    if !DSYNC_REFUSED.load(Ordering::Relaxed) {
        match write_with_dsync(DirectoryFile::of(file), position, data) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                DSYNC_REFUSED.store(true, Ordering::Relaxed);
            }
            result => return result,
        }
    }
    file.write_at(position, data)?;
    file.sync()
}

fn write_with_dsync(file: &DirectoryFile, position: u64, data: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        let rest = &data[done..];
        let part = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let offset = libc::off_t::try_from(position + done as u64).map_err(io::Error::other)?;
        // SAFETY: `part` describes `rest`, which outlives the call and is only read by it.
        let written =
            unsafe { libc::pwritev2(file.descriptor(), &raw const part, 1, offset, libc::RWF_DSYNC) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuffer, SECTOR};

    #[test]
    fn an_error_of_the_kernel_is_the_operations_outcome() {
        let path = tempfile::NamedTempFile::new().expect("a temporary file");
        let file = std::fs::File::open(path.path()).expect("it can be read");
        let file: Arc<dyn File> = Arc::new(DirectoryFile::new(file, path.path().to_owned(), 4096, false));
        let mut queue = PlainQueue::new(2).expect("a thread");
        for durable in [true, false] {
            queue.write(1, &file, 0, AlignedBuffer::zeroed(SECTOR).into_bytes(), durable);
        }
        let mut finished = Vec::new();
        while queue.in_flight() > 0 {
            queue.wait(true, None, &mut finished).expect("the queue itself works");
        }
        let errors = finished.iter().filter_map(|finished| finished.result.as_ref().err()?.raw_os_error());
        assert!(errors.eq([libc::EBADF, libc::EBADF]));
    }
}
