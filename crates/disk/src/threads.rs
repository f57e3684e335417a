//! The queue for systems that refuse io_uring: threads that make blocking calls.
//!
//! With O_DIRECT there are as many threads as operations overlap, and a write reaches the device by one call (`pwritev2` with
//! `RWF_DSYNC`). With the page cache there is one thread, so that writes and syncs are done in the order in which they were started.
//! A thread is made when an operation finds all others busy, and then stays.
//!
//! Handing a call to a thread and its outcome back takes two switches between threads, more than the call itself takes of a processor.
//! So an owner that waits for a single small write makes the call itself, and hears of wakers only after it. The writer of a log starts
//! nothing else meanwhile, but for more than 128 KiB of new appends, and for those that come while a trailer is written.
//!
//! Invariants:
//! - Every started operation is finished before the queue is gone.
//! - The memory of an operation is free before its outcome can be taken.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::file::DirectoryFile;
use crate::{File, Finished, Queue, Waker};

/// More calls at a time bring a device nothing: blocks are large, and four of them are written at a time.
const THREADS_MAX: usize = 8;
/// Writes of more bytes go to a thread, so that the owner prepares the next one meanwhile: it comes soon.
const OWN_BYTES_MAX: usize = 128 * 1024;

pub(crate) struct ThreadQueue {
    depth: usize,
    threads_max: usize,
    in_flight: usize,
    /// What was started since the last wait.
    started: VecDeque<Job>,
    todo: Arc<Todo>,
    mailbox: Arc<Mailbox>,
    threads: Vec<JoinHandle<()>>,
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

/// What the owner has started and no thread has taken.
#[derive(Default)]
struct Todo {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Threads that wait for a job, woken or not.
    idle: usize,
    closed: bool,
}

/// The threads and the wakers leave their news for the owner here.
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

impl ThreadQueue {
    /// A queue whose operations overlap.
    pub(crate) fn overlapping(depth: usize) -> io::Result<Self> {
        Self::new(depth, depth.min(THREADS_MAX))
    }

    /// A queue whose operations are done one after the other.
    pub(crate) fn in_order(depth: usize) -> io::Result<Self> {
        Self::new(depth, 1)
    }

    fn new(depth: usize, threads_max: usize) -> io::Result<Self> {
        assert!(depth > 0, "a queue holds at least one operation");
        let mut queue = Self {
            depth,
            threads_max,
            in_flight: 0,
            started: VecDeque::new(),
            todo: Arc::default(),
            mailbox: Arc::default(),
            threads: Vec::new(),
        };
        queue.add_thread()?;
        Ok(queue)
    }

    fn add_thread(&mut self) -> io::Result<()> {
        let (todo, mailbox) = (self.todo.clone(), self.mailbox.clone());
        let name = format!("disk-{}", self.threads.len());
        let thread = std::thread::Builder::new().name(name).spawn(move || work(&todo, &mailbox))?;
        self.threads.push(thread);
        Ok(())
    }

    fn start(&mut self, token: u64, file: &Arc<dyn File>, kind: JobKind) {
        assert!(self.in_flight < self.depth, "more than {} operations in flight", self.depth);
        self.in_flight += 1;
        self.started.push_back(Job { token, file: file.clone(), kind });
    }

    /// The only operation, if the owner may as well do it itself.
    fn take_own(&mut self) -> Option<Job> {
        let small =
            |job: &Job| matches!(&job.kind, JobKind::Write { data, .. } if data.len() <= OWN_BYTES_MAX);
        if self.in_flight == 1 && self.started.front().is_some_and(small) {
            self.started.pop_front()
        } else {
            None
        }
    }

    fn hand_all_over(&mut self) {
        while let Some(job) = self.started.pop_front() {
            self.hand_over(job);
        }
    }

    fn hand_over(&mut self, job: Job) {
        let mut jobs = self.todo.jobs.lock();
        jobs.waiting.push_back(job);
        let all_busy = jobs.waiting.len() > jobs.idle;
        drop(jobs);
        self.todo.changed.notify_one();
        if all_busy
            && self.threads.len() < self.threads_max
            && let Err(error) = self.add_thread()
        {
            // The threads that are there do it, one operation after the other.
            self.threads_max = self.threads.len();
            tracing::warn!(%error, threads = self.threads_max, "a disk queue gets no more threads");
        }
    }
}

impl Queue for ThreadQueue {
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
        if block
            && timeout.is_none()
            && !self.mailbox.post.lock().woken
            && let Some(job) = self.take_own()
        {
            finished.push(job.run());
            self.in_flight -= 1;
            // Whoever was woken meanwhile is awake.
            self.mailbox.post.lock().woken = false;
            return Ok(());
        }
        self.hand_all_over();
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

impl Drop for ThreadQueue {
    fn drop(&mut self) {
        self.hand_all_over();
        self.todo.jobs.lock().closed = true;
        self.todo.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of a disk queue panicked");
            }
        }
    }
}

impl Waker for Mailbox {
    fn wake(&self) {
        self.post.lock().woken = true;
        self.changed.notify_one();
    }
}

impl Todo {
    /// The next job; `None` when there is none and will be none.
    fn take(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        jobs.idle += 1;
        while jobs.waiting.is_empty() && !jobs.closed {
            self.changed.wait(&mut jobs);
        }
        jobs.idle -= 1;
        jobs.waiting.pop_front()
    }
}

fn work(todo: &Todo, mailbox: &Mailbox) {
    while let Some(job) = todo.take() {
        let finished = job.run();
        mailbox.post.lock().finished.push(finished);
        mailbox.changed.notify_one();
    }
}

impl Job {
    fn run(self) -> Finished {
        let Job { token, file, kind } = self;
        let result = match kind {
            JobKind::Write { position, data, durable: false } => file.write_at(position, &data),
            JobKind::Write { position, data, durable: true } => write_durably(&file, position, &data),
            JobKind::Sync => file.sync(),
        };
        Finished { token, result }
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

    fn read_only_file() -> Arc<dyn File> {
        let path = tempfile::NamedTempFile::new().expect("a temporary file");
        let file = std::fs::File::open(path.path()).expect("it can be read");
        Arc::new(DirectoryFile::new(file, path.path().to_owned(), 1 << 20, false))
    }

    #[test]
    fn an_error_of_the_kernel_is_the_operations_outcome() {
        let file = read_only_file();
        let mut queue = ThreadQueue::in_order(2).expect("a thread");
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

    #[test]
    fn an_operation_that_finds_all_threads_busy_gets_one_more() {
        let file = read_only_file();
        let mut queue = ThreadQueue::overlapping(3).expect("a thread");
        let mailbox = queue.mailbox.clone();
        // No thread can report before this is let go, so that each is busy with its first operation.
        let post = mailbox.post.lock();
        for token in 0..3 {
            queue.sync(token, &file);
        }
        queue.hand_all_over();
        while !queue.todo.jobs.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(queue.threads.len(), 3);
        drop(post);
        let mut finished = Vec::new();
        while queue.in_flight() > 0 {
            queue.wait(true, None, &mut finished).expect("the queue itself works");
        }
        assert_eq!(finished.len(), 3);
    }

    #[test]
    fn whoever_waits_for_one_small_write_makes_it() {
        let file = read_only_file();
        let mut queue = ThreadQueue::overlapping(3).expect("a thread");
        let mut finished = Vec::new();
        // Without a thread that could take it.
        queue.todo.jobs.lock().closed = true;
        while let Some(thread) = queue.threads.pop() {
            queue.todo.changed.notify_all();
            thread.join().expect("it ends");
        }
        queue.threads_max = 0;
        queue.write(1, &file, 0, AlignedBuffer::zeroed(OWN_BYTES_MAX).into_bytes(), true);
        queue.waker().wake();
        queue.wait(false, None, &mut finished).expect("the queue itself works");
        assert!(finished.is_empty() && queue.todo.jobs.lock().waiting.pop_front().is_some());
        queue.in_flight = 0;
        // The wake-up is still due.
        queue.wait(true, None, &mut finished).expect("the queue itself works");
        queue.write(2, &file, 0, AlignedBuffer::zeroed(OWN_BYTES_MAX).into_bytes(), true);
        queue.wait(true, None, &mut finished).expect("the queue itself works");
        assert!(finished.iter().map(|finished| finished.token).eq([2]));
        // A larger one is for a thread, as are two.
        for (writes, bytes) in [(1, OWN_BYTES_MAX + SECTOR), (2, SECTOR)] {
            for token in 0..writes {
                queue.write(token, &file, 0, AlignedBuffer::zeroed(bytes).into_bytes(), true);
            }
            queue.waker().wake();
            queue.wait(true, None, &mut finished).expect("the queue itself works");
            assert_eq!(queue.todo.jobs.lock().waiting.drain(..).count() as u64, writes);
            queue.in_flight = 0;
        }
    }

    #[test]
    fn operations_in_order_have_one_thread() {
        let file = read_only_file();
        let mut queue = ThreadQueue::in_order(8).expect("a thread");
        let mut finished = Vec::new();
        for token in 0..8 {
            queue.sync(token, &file);
        }
        while queue.in_flight() > 0 {
            queue.wait(true, None, &mut finished).expect("the queue itself works");
        }
        assert_eq!(queue.threads.len(), 1);
        assert!(finished.iter().map(|finished| finished.token).eq(0..8));
    }
}
