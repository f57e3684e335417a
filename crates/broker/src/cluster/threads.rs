//! The threads of a host, and the time in which they wait.

use std::fmt::Debug;
use std::io;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;

/// Each waits for the store most of the time, and holds one object's footer, or some of them a part of a manifest.
const RESTORE_THREADS: usize = 32;

/// Tells threads that something is new.
#[derive(Debug, Default)]
pub struct Signal {
    count: Mutex<u64>,
    new: Condvar,
}

impl Signal {
    /// How often there was something new.
    pub fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Something is new.
    pub fn notify(&self) {
        *self.count.lock() += 1;
        self.new.notify_all();
    }
}

/// Threads and their time. A simulation has its own.
pub trait Threads: Debug + Send + Sync {
    /// Does `work` on a thread of its own, where tasks may be begun.
    ///
    /// # Errors
    /// The system has no other thread.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Waits. Called by threads of [`Threads::spawn`], and by others that may block.
    fn sleep(&self, time: Duration);

    /// Waits until there is something new since `seen`, for at most `time`. Called as [`Threads::sleep`].
    fn wait(&self, signal: &Signal, seen: u64, time: Duration);

    /// The time since some moment. It never goes back.
    fn now(&self) -> Duration;

    /// The number of threads with which one of them restores a log.
    fn of_a_restore(&self) -> usize;
}

/// Threads of the system.
#[derive(Debug)]
pub struct SystemThreads {
    /// Coordinators load their partitions in tasks.
    runtime: Handle,
    began: Instant,
}

impl SystemThreads {
    pub fn new(runtime: Handle) -> SystemThreads {
        SystemThreads { runtime, began: Instant::now() }
    }
}

impl Threads for SystemThreads {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let runtime = self.runtime.clone();
        let run = move || {
            let _runtime = runtime.enter();
            work();
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn wait(&self, signal: &Signal, seen: u64, time: Duration) {
        let mut count = signal.count.lock();
        if *count == seen {
            signal.new.wait_for(&mut count, time);
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn of_a_restore(&self) -> usize {
        RESTORE_THREADS
    }
}
