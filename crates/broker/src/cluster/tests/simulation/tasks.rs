//! The threads of a simulated process. One of them runs at a time, and nothing runs beside it: it goes on when it is its
//! turn, and until it asks the object store or waits.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{resume_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::cluster::threads::{Signal, Threads};

/// A thread that waits for something new looks so often whether there is any.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

thread_local! {
    static THIS: RefCell<Option<This>> = const { RefCell::new(None) };
    /// The code under test catches panics. Those that end a killed task call no hook.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Notes panics of tasks from now on.
fn note_panics() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            PANICKED.set(true);
            before(panic);
        }));
    });
}

/// A task, as its own thread has it.
struct This {
    resumed: Receiver<()>,
    pauses: Sender<Duration>,
}

/// Lets others go on for `time`, if the caller is a task.
pub fn pause(time: Duration) {
    THIS.with_borrow(|this| {
        let Some(this) = this else { return };
        if this.pauses.send(time).is_err() || this.resumed.recv().is_err() {
            // The process was killed. No hook is called.
            resume_unwind(Box::new("killed"));
        }
    });
}

/// Does something in which nobody else goes on.
pub fn without_pauses<T>(work: impl FnOnce() -> T) -> T {
    let this = THIS.take();
    let done = work();
    THIS.set(this);
    done
}

struct Task {
    /// Dropped to end the task where it stands.
    resume: Option<Sender<()>>,
    pauses: Receiver<Duration>,
    thread: Option<JoinHandle<()>>,
    goes_on_at: Duration,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.resume = None;
        if let Some(thread) = self.thread.take() {
            // The unwinding is how it ends.
            let _ = thread.join();
        }
    }
}

/// The threads of a process.
#[derive(Debug)]
pub struct Tasks {
    now_ms: Arc<AtomicU64>,
    runtime: Handle,
    rng: Mutex<fastrand::Rng>,
    waiting: Mutex<Vec<Task>>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("goes_on_at", &self.goes_on_at).finish_non_exhaustive()
    }
}

impl Tasks {
    pub fn new(now_ms: Arc<AtomicU64>, runtime: Handle, rng: fastrand::Rng) -> Tasks {
        note_panics();
        Tasks { now_ms, runtime, rng: Mutex::new(rng), waiting: Mutex::default() }
    }

    /// Lets one of the threads that do not wait go on. Returns false if there is none.
    pub fn step(&self, rng: &mut fastrand::Rng) -> bool {
        let now = self.now();
        let due: Vec<usize> = {
            let waiting = self.waiting.lock();
            (0..waiting.len()).filter(|at| waiting[*at].goes_on_at <= now).collect()
        };
        let Some(at) = rng.choice(&due) else { return false };
        let mut task = self.waiting.lock().swap_remove(*at);
        let resumed = task.resume.as_ref().is_some_and(|resume| resume.send(()).is_ok());
        match task.pauses.recv() {
            Ok(time) if resumed => {
                task.goes_on_at = now + time;
                self.waiting.lock().push(task);
            }
            _ => {
                let ended = task.thread.take().map_or(Ok(()), JoinHandle::join);
                ended.unwrap_or_else(|problem| resume_unwind(problem));
            }
        }
        true
    }

    /// Ends all threads where they stand.
    pub fn kill(&self) {
        let all = std::mem::take(&mut *self.waiting.lock());
        drop(all);
    }
}

impl Threads for Tasks {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let (resume, resumed) = channel();
        let (paused, pauses) = channel();
        let (runtime, seed) = (self.runtime.clone(), self.rng.lock().u64(..));
        let run = move || {
            if resumed.recv().is_err() {
                return;
            }
            fastrand::seed(seed);
            THIS.set(Some(This { resumed, pauses: paused }));
            let _runtime = runtime.enter();
            work();
            assert!(!PANICKED.get(), "a thread of a broker panicked");
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run).unwrap();
        let goes_on_at = self.now();
        self.waiting.lock().push(Task { resume: Some(resume), pauses, thread: Some(thread), goes_on_at });
        Ok(())
    }

    fn sleep(&self, time: Duration) {
        pause(time);
    }

    fn wait(&self, signal: &Signal, seen: u64, time: Duration) {
        pause(if signal.count() == seen { time.min(LOOKS_EVERY) } else { Duration::ZERO });
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms.load(Ordering::Relaxed))
    }

    fn of_a_restore(&self) -> usize {
        1
    }
}
