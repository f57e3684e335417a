//! Has the kernel write what lies in its page cache for scratch files soon, and little by little.
//!
//! Left alone, the kernel writes the pages of a file once the oldest is half a minute old (`vm.dirty_expire_centisecs`), all of them
//! at once: for seconds nobody else gets the device. Nothing waits for these writes, and their errors do not matter.

#![allow(unsafe_code)]

use std::fs;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

/// How often written pages are handed to the device. What was written since the last time waits for the next: a page that is filled
/// little by little is not written twice.
const INTERVAL: Duration = Duration::from_millis(250);

/// The scratch files of a disk. Its thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Writeback {
    files: Mutex<Vec<Weak<Written>>>,
}

/// How far a file has been written.
#[derive(Debug)]
pub(crate) struct Written {
    file: Arc<fs::File>,
    /// The end of the furthest write that has ended.
    end: AtomicU64,
    /// Everything before it has been handed to the device.
    begun: AtomicU64,
    /// What `end` was the last time.
    seen: AtomicU64,
}

impl Writeback {
    /// Starts the thread. Without it, the kernel writes the pages later.
    pub fn start() -> Arc<Writeback> {
        let writeback = Arc::new(Writeback { files: Mutex::default() });
        let weak = Arc::downgrade(&writeback);
        let run = move || {
            while let Some(writeback) = weak.upgrade() {
                writeback.turn();
                drop(writeback);
                std::thread::sleep(INTERVAL);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("disk-writeback".into()).spawn(run) {
            tracing::warn!(%error, "a thread that writes pages of scratch files cannot be started");
        }
        writeback
    }

    /// Watches a file, which is written from its begin on.
    pub fn watch(&self, file: &Arc<fs::File>) -> Arc<Written> {
        let [end, begun, seen] = [const { AtomicU64::new(0) }; 3];
        let written = Arc::new(Written { file: file.clone(), end, begun, seen });
        self.files.lock().push(Arc::downgrade(&written));
        written
    }

    fn turn(&self) {
        let files: Vec<Arc<Written>> = {
            let mut files = self.files.lock();
            files.retain(|file| file.strong_count() > 0);
            files.iter().filter_map(Weak::upgrade).collect()
        };
        files.iter().for_each(|file| file.turn());
    }
}

impl Written {
    /// Notes that everything up to `end` was written.
    pub fn note(&self, end: u64) {
        self.end.fetch_max(end, Ordering::Relaxed);
    }

    fn turn(&self) {
        let seen = self.seen.swap(self.end.load(Ordering::Relaxed), Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        if seen <= begun {
            return;
        }
        let [from, length] = [begun, seen - begun].map(|bytes| libc::off64_t::try_from(bytes).unwrap_or(0));
        // SAFETY: the descriptor is open, and no memory is involved.
        unsafe { libc::sync_file_range(self.file.as_raw_fd(), from, length, libc::SYNC_FILE_RANGE_WRITE) };
        self.begun.store(seen, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_handed_over_one_turn_later_and_once() {
        let writeback = Writeback { files: Mutex::default() };
        let watch = || writeback.watch(&Arc::new(tempfile::tempfile().unwrap()));
        let (file, other) = (watch(), watch());
        let begun = || file.begun.load(Ordering::Relaxed);
        file.note(8192);
        file.note(4096);
        writeback.turn();
        assert_eq!(begun(), 0);
        file.note(12_288);
        writeback.turn();
        assert_eq!(begun(), 8192);
        writeback.turn();
        writeback.turn();
        assert_eq!((begun(), other.begun.load(Ordering::Relaxed)), (12_288, 0));
        drop(other);
        writeback.turn();
        assert_eq!(writeback.files.lock().len(), 1, "files that are closed are forgotten");
    }
}
