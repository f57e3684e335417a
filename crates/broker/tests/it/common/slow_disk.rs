//! A disk whose queues take longer for every write while a test says so.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use disk::{Disk, File, Finished, Queue, Waker};

/// A disk whose queues tell of finished writes so many milliseconds late.
#[derive(Debug)]
pub struct SlowDisk {
    pub inner: Arc<dyn Disk>,
    pub late_ms: Arc<AtomicU64>,
}

impl Disk for SlowDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn create(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        self.inner.create(name, length)
    }

    fn shorten(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        self.inner.shorten(name, length)
    }

    fn lengthen(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        self.inner.lengthen(name, length)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.inner.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }

    fn capacity_bytes(&self) -> io::Result<u64> {
        self.inner.capacity_bytes()
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(SlowQueue { inner: self.inner.queue(depth)?, late_ms: self.late_ms.clone() }))
    }
}

struct SlowQueue {
    inner: Box<dyn Queue>,
    late_ms: Arc<AtomicU64>,
}

impl Queue for SlowQueue {
    fn write(&mut self, token: u64, file: &Arc<dyn File>, position: u64, data: Bytes, durable: bool) {
        self.inner.write(token, file, position, data, durable);
    }

    fn sync(&mut self, token: u64, file: &Arc<dyn File>) {
        self.inner.sync(token, file);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn wait(
        &mut self,
        block: bool,
        timeout: Option<Duration>,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        let before = finished.len();
        self.inner.wait(block, timeout, finished)?;
        if finished.len() > before {
            std::thread::sleep(Duration::from_millis(self.late_ms.load(Ordering::Relaxed)));
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }
}
