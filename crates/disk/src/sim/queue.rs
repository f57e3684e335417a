//! The queue of a simulated disk. Operations happen when the owner waits; the seed decides how many, and in which
//! order.
//!
//! The queue never sleeps while operations are in flight, so a simulation runs at the speed of its owner.
//!
//! Invariants:
//! - An operation takes effect at the moment it is reported, not before. Until then a crash may keep it, drop it or
//!   tear it.
//! - Dropping a queue finishes its operations in flight, like the real queues.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::{Operation, OperationKind, Shared, SimFile};
use crate::{File, Finished, Queue, SECTOR, Waker};

pub(super) struct SimQueue {
    shared: Arc<Shared>,
    depth: usize,
    rng: fastrand::Rng,
    /// Keys into the disk's operations in flight.
    mine: Vec<u64>,
    waker: Arc<SimWaker>,
}

#[derive(Default)]
struct SimWaker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl SimQueue {
    pub(super) fn new(shared: Arc<Shared>, depth: usize, rng: fastrand::Rng) -> Self {
        assert!(depth > 0, "a queue holds at least one operation");
        Self { shared, depth, rng, mine: Vec::with_capacity(depth), waker: Arc::default() }
    }

    fn start(&mut self, token: u64, file: &SimFile, kind: OperationKind) {
        assert!(self.mine.len() < self.depth, "more than {} operations in flight", self.depth);
        let mut state = self.shared.state.lock();
        let key = state.next_operation;
        state.next_operation += 1;
        state.in_flight.insert(key, Operation { token, inode: file.inode.clone(), kind });
        self.mine.push(key);
    }

    fn own<'a>(&self, file: &'a Arc<dyn File>) -> &'a SimFile {
        let file = file.as_any().downcast_ref::<SimFile>().expect("a file of a simulated disk");
        assert!(Arc::ptr_eq(&file.shared, &self.shared), "{file:?} belongs to another disk");
        file
    }

    fn finish(&mut self, count: usize, finished: &mut Vec<Finished>) {
        self.rng.shuffle(&mut self.mine);
        let mut state = self.shared.state.lock();
        let mut held = Vec::new();
        for key in self.mine.drain(self.mine.len() - count..) {
            let operation =
                state.in_flight.remove(&key).expect("this queue's operations stay until reported");
            let is_held = match operation.kind {
                OperationKind::Sync { .. } => state.holds_syncs,
                OperationKind::Write { durable, .. } => durable && state.holds_durable_writes,
            };
            if is_held {
                state.in_flight.insert(key, operation);
                held.push(key);
                continue;
            }
            let result = match &operation.kind {
                OperationKind::Write { position, data, durable } => {
                    state.finish_write(&operation.inode, *position, data, *durable)
                }
                OperationKind::Sync { below } => state.finish_sync(&operation.inode, *below),
            };
            finished.push(Finished { token: operation.token, result });
        }
        self.mine.append(&mut held);
    }
}

impl Queue for SimQueue {
    fn write(&mut self, token: u64, file: &Arc<dyn File>, position: u64, data: Bytes, durable: bool) {
        let file = self.own(file);
        file.assert_inside(position, data.len());
        assert!((data.as_ptr() as usize).is_multiple_of(SECTOR), "the data of a write is aligned");
        self.start(token, file, OperationKind::Write { position, data, durable });
    }

    fn sync(&mut self, token: u64, file: &Arc<dyn File>) {
        let file = self.own(file);
        let below = self.shared.state.lock().next_sequence;
        self.start(token, file, OperationKind::Sync { below });
    }

    fn in_flight(&self) -> usize {
        self.mine.len()
    }

    fn wait(
        &mut self,
        block: bool,
        timeout: Option<Duration>,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        if self.mine.is_empty() {
            if block {
                self.waker.sleep(timeout);
            }
            return Ok(());
        }
        let count = self.rng.usize(usize::from(block)..=self.mine.len());
        self.finish(count, finished);
        if block {
            *self.waker.woken.lock() = false;
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.waker.clone()
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        self.finish(self.mine.len(), &mut Vec::new());
    }
}

impl SimWaker {
    fn sleep(&self, timeout: Option<Duration>) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut woken = self.woken.lock();
        while !*woken {
            match deadline {
                None => self.changed.wait(&mut woken),
                Some(deadline) => {
                    if self.changed.wait_until(&mut woken, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        *woken = false;
    }
}

impl Waker for SimWaker {
    fn wake(&self) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }
}
