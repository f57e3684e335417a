//! The queue for real disks: one io_uring, one system call per wait.
//!
//! A started operation is only noted. It reaches the kernel at the next [`Queue::wait`], which submits and waits in one
//! `io_uring_enter`. Files are not registered and buffers are not pinned: with few large writes, neither brings a
//! measurable gain.
//!
//! Invariants:
//! - The memory and the file of an operation live in `operations` until its completion has been taken from the ring;
//!   where the kernel can no longer be asked, they are leaked rather than freed.
//! - An operation has at most one entry in the submission queue, and the waker one, so `depth + 1` entries suffice.
//! - The ring belongs to the thread that first waits on the queue: completions run there and nowhere else.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use io_uring::{IoUring, opcode, squeue, types};

use crate::file::DirectoryFile;
use crate::{File, Finished, Queue, SECTOR, Waker};

/// The key of the read that waits for a wake-up. The keys of operations are indexes into `operations`.
const WAKE_KEY: u64 = u64::MAX;

/// The number of repetitions of an operation or system call that the kernel answers with "again". It is large enough
/// for a shortage of memory to pass, and finite.
const AGAIN_MAX: u32 = 1000;

pub(crate) struct UringQueue {
    ring: IoUring,
    /// A ring whose completions run only in its owner is made disabled, so that the first thread that waits becomes its
    /// owner.
    enabled: bool,
    depth: usize,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    waker: Arc<EventWaker>,
    wake_armed: bool,
}

struct Operation {
    token: u64,
    file: Arc<dyn File>,
    kind: OperationKind,
    again: u32,
}

enum OperationKind {
    Write { position: u64, data: Bytes, done: usize, durable: bool },
    Sync,
}

impl Operation {
    fn entry(&self) -> squeue::Entry {
        let descriptor = types::Fd(DirectoryFile::of(&self.file).descriptor());
        match &self.kind {
            OperationKind::Write { position, data, done, durable } => {
                let rest = &data[*done..];
                let length = u32::try_from(rest.len()).expect("a write is below 4 GiB");
                opcode::Write::new(descriptor, rest.as_ptr(), length)
                    .offset(position + *done as u64)
                    .rw_flags(if *durable { libc::RWF_DSYNC } else { 0 })
                    .build()
            }
            OperationKind::Sync if !DirectoryFile::of(&self.file).is_synced() => opcode::Nop::new().build(),
            OperationKind::Sync => opcode::Fsync::new(descriptor).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    /// Takes a completion's result: the outcome, or `None` when the operation has to be submitted again.
    fn advance(&mut self, result: i32) -> Option<io::Result<()>> {
        let Ok(written) = usize::try_from(result) else {
            let error = io::Error::from_raw_os_error(-result);
            let again = matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN));
            self.again += 1;
            return if again && self.again < AGAIN_MAX { None } else { Some(Err(error)) };
        };
        let OperationKind::Write { position, data, done, .. } = &mut self.kind else { return Some(Ok(())) };
        *done += written;
        if *done == data.len() {
            DirectoryFile::of(&self.file).note_written(*position + data.len() as u64);
            Some(Ok(()))
        } else if written == 0 || !done.is_multiple_of(SECTOR) {
            Some(Err(io::ErrorKind::WriteZero.into()))
        } else {
            None
        }
    }
}

impl UringQueue {
    pub(crate) fn new(depth: usize) -> io::Result<Self> {
        assert!(depth > 0, "a queue holds at least one operation");
        let entries = u32::try_from(depth + 1).map_err(io::Error::other)?;
        let (ring, enabled) = build_ring(entries)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring has no timeouts on waits",
            ));
        }
        Ok(Self {
            ring,
            enabled,
            depth,
            operations: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waker: Arc::new(EventWaker::new()?),
            wake_armed: false,
        })
    }

    fn start(&mut self, token: u64, file: &Arc<dyn File>, kind: OperationKind) {
        let Some(place) = self.free.pop() else { panic!("more than {} operations in flight", self.depth) };
        let operation = Operation { token, file: file.clone(), kind, again: 0 };
        let entry = operation.entry();
        self.operations[place] = Some(operation);
        self.push(entry, place as u64);
    }

    fn push(&mut self, entry: squeue::Entry, key: u64) {
        let entry = entry.user_data(key);
        // SAFETY: what the entry points to lives until its completion is taken: data and file in `operations`, the
        // waker's number in `self.waker`; `drop` waits for both, or leaks them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each operation and one for the waker");
    }

    fn arm_waker(&mut self) {
        if !self.wake_armed {
            self.wake_armed = true;
            let event = types::Fd(self.waker.event.as_raw_fd());
            self.push(opcode::Read::new(event, self.waker.drained.as_ptr().cast(), 8).build(), WAKE_KEY);
        }
    }

    fn enable(&mut self) -> io::Result<()> {
        if !self.enabled {
            self.ring.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        Ok(())
    }

    /// Takes all completions that are in the ring, without a system call.
    fn reap(&mut self, finished: &mut Vec<Finished>) {
        loop {
            let Some(completion) = self.ring.completion().next() else { return };
            if completion.user_data() == WAKE_KEY {
                self.wake_armed = false;
                continue;
            }
            let place = usize::try_from(completion.user_data()).expect("an index");
            let operation = self.operations[place].as_mut().expect("a completion belongs to an operation");
            match operation.advance(completion.result()) {
                None => {
                    let entry = operation.entry();
                    self.push(entry, completion.user_data());
                }
                Some(result) => {
                    finished.push(Finished { token: operation.token, result });
                    self.operations[place] = None;
                    self.free.push(place);
                }
            }
        }
    }

    /// Hands the started operations to the kernel and lets it run completions, without waiting for any.
    fn submit(&mut self) -> io::Result<()> {
        let submission = self.ring.submission();
        let needed = !submission.is_empty() || submission.taskrun();
        drop(submission);
        if needed { self.enter(0, None).map(|_| ()) } else { Ok(()) }
    }

    /// One system call: submits, and waits for `want` completions or until `timeout`. Returns whether the kernel asked
    /// to try again for lack of resources.
    fn enter(&self, want: usize, timeout: Option<Duration>) -> io::Result<bool> {
        let submitter = self.ring.submitter();
        let entered = match timeout {
            None => submitter.submit_and_wait(want),
            Some(timeout) => {
                let timeout = types::Timespec::from(timeout);
                submitter.submit_with_args(want, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        match entered {
            Ok(_) => Ok(false),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ETIME) => Ok(false),
                Some(libc::EAGAIN | libc::EBUSY) => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// Sleeps until `finished` has grown past `before`, the waker is called or the deadline has passed.
    fn sleep(
        &mut self,
        deadline: Option<Instant>,
        before: usize,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        let mut again = 0;
        loop {
            self.arm_waker();
            let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let entered = if self.waker.fall_asleep() { self.enter(1, timeout) } else { self.enter(0, None) };
            self.waker.stay_awake();
            again = if entered? { again + 1 } else { 0 };
            if again > AGAIN_MAX {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            if again > 0 {
                std::thread::yield_now();
            }
            self.reap(finished);
            let late = timeout.is_some_and(|timeout| timeout.is_zero());
            if finished.len() > before || self.waker.is_woken() || late {
                return Ok(());
            }
        }
    }

    /// Waits until the kernel holds no reference to our memory.
    fn drain(&mut self) -> io::Result<()> {
        let mut finished = Vec::new();
        while self.in_flight() > 0 {
            self.wait(true, None, &mut finished)?;
        }
        while self.wake_armed {
            self.waker.signal();
            self.enter(1, None)?;
            self.reap(&mut finished);
        }
        Ok(())
    }
}

impl Queue for UringQueue {
    fn write(&mut self, token: u64, file: &Arc<dyn File>, position: u64, data: Bytes, durable: bool) {
        DirectoryFile::of(file).assert_writable(position, &data);
        let durable = durable && DirectoryFile::of(file).is_synced();
        self.start(token, file, OperationKind::Write { position, data, done: 0, durable });
    }

    fn sync(&mut self, token: u64, file: &Arc<dyn File>) {
        self.start(token, file, OperationKind::Sync);
    }

    fn in_flight(&self) -> usize {
        self.depth - self.free.len()
    }

    fn wait(
        &mut self,
        block: bool,
        timeout: Option<Duration>,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        self.enable()?;
        let before = finished.len();
        self.reap(finished);
        if block && finished.len() == before && !self.waker.is_woken() {
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            self.sleep(deadline, before, finished)?;
        } else {
            self.submit()?;
            self.reap(finished);
        }
        // A wait that does not block leaves the wake-up for the next one that does.
        if block {
            self.waker.forget();
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.waker.clone()
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if let Err(error) = self.drain() {
            tracing::error!(%error, "a disk queue could not finish its operations; their memory is never freed");
            std::mem::forget(std::mem::take(&mut self.operations));
            std::mem::forget(self.waker.clone());
        }
    }
}

/// Wakes the owner with a system call, and only if the owner sleeps.
///
/// The owner sets `sleeping` and then looks at `woken`; a waker sets `woken` and then looks at `sleeping`. All four are
/// sequentially consistent, so at least one of them sees the other: either the owner does not go to sleep, or the waker
/// signals the event, which ends the sleep even when it comes first. A signal that arrives after the owner woke up by
/// itself only ends a later sleep early, which then looks at `woken` and sleeps on.
struct EventWaker {
    event: OwnedFd,
    woken: AtomicBool,
    sleeping: AtomicBool,
    /// The ring writes the event's count here. Nothing reads it.
    drained: AtomicU64,
}

impl EventWaker {
    fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        Ok(Self {
            event,
            woken: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            drained: AtomicU64::new(0),
        })
    }

    /// Announces that the owner is about to sleep. Returns `false` if it must not, because it has been woken.
    fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        !self.woken.load(Ordering::SeqCst)
    }

    fn stay_awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// Ends a wake-up by returning from the wait. From here on the owner sees everything that the waker did before.
    fn forget(&self) {
        self.woken.swap(false, Ordering::SeqCst);
    }

    fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the descriptor is open and `one` outlives the call. It fails only for a count of 2^64 - 1, at which
        // the event is signalled anyway, or on an interruption before the count is changed, which is retried.
        while unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

impl Waker for EventWaker {
    fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.signal();
        }
    }
}

/// The best ring that the kernel makes, and whether it is enabled already.
fn build_ring(entries: u32) -> io::Result<(IoUring, bool)> {
    // Since 6.1: completions wait for the owner instead of interrupting it.
    let deferred = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_r_disabled()
        .build(entries);
    if let Ok(ring) = deferred {
        return Ok((ring, false));
    }
    // Since 5.19: completions do not interrupt the owner.
    if let Ok(ring) = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries) {
        return Ok((ring, true));
    }
    Ok((IoUring::new(entries)?, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuffer;

    /// A file that the kernel refuses to write.
    fn read_only_file() -> Arc<dyn File> {
        let path = tempfile::NamedTempFile::new().expect("a temporary file");
        let file = std::fs::File::open(path.path()).expect("it can be read");
        Arc::new(DirectoryFile::new(file, path.path().to_owned(), 1 << 20, false))
    }

    fn write_of(sectors: usize) -> Operation {
        let data = AlignedBuffer::zeroed(sectors * SECTOR).into_bytes();
        let kind = OperationKind::Write { position: 0, data, done: 0, durable: true };
        Operation { token: 1, file: read_only_file(), kind, again: 0 }
    }

    #[test]
    fn a_short_write_goes_on_where_it_stopped() {
        let mut write = write_of(3);
        assert!(write.advance(4096).is_none());
        assert!(matches!(write.kind, OperationKind::Write { done: 4096, .. }));
        assert!(write.advance(8192).is_some_and(|result| result.is_ok()));
        for stuck in [0, 100] {
            let error = write_of(1).advance(stuck).expect("an outcome").expect_err("a short write");
            assert_eq!(error.kind(), io::ErrorKind::WriteZero);
        }
    }

    #[test]
    fn an_interrupted_operation_is_repeated_but_not_forever() {
        let mut write = write_of(1);
        assert!((1..AGAIN_MAX).all(|_| write.advance(-libc::EAGAIN).is_none()));
        assert!(write.advance(-libc::EINTR).is_some_and(|result| result.is_err()));
        let error = write_of(1).advance(-libc::EIO).expect("an outcome").expect_err("an error");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn an_error_of_the_kernel_is_the_operations_outcome() {
        let Ok(mut queue) = UringQueue::new(2) else { return };
        let file = read_only_file();
        queue.write(1, &file, 0, AlignedBuffer::zeroed(SECTOR).into_bytes(), true);
        queue.sync(2, &file);
        let mut finished = Vec::new();
        while queue.in_flight() > 0 {
            queue.wait(true, None, &mut finished).expect("the queue itself works");
        }
        finished.sort_by_key(|finished| finished.token);
        let error = finished[0].result.as_ref().expect_err("the file is read-only");
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        assert!(finished[1].result.is_ok());
    }

    #[test]
    fn a_ring_without_newer_features_works_too() {
        let Ok(mut queue) = UringQueue::new(2) else { return };
        queue.ring = IoUring::new(4).expect("a ring");
        queue.enabled = true;
        let waker = queue.waker();
        waker.wake();
        queue.wait(true, None, &mut Vec::new()).expect("woken before");
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            waker.wake();
        });
        queue.wait(true, None, &mut Vec::new()).expect("woken while asleep");
        thread.join().expect("the waker returns");
        queue.sync(2, &read_only_file());
        let mut finished = Vec::new();
        while finished.is_empty() {
            queue.wait(true, None, &mut finished).expect("the queue itself works");
        }
        assert_eq!(finished[0].token, 2);
    }
}
