//! Threads and memory for decompressing and decoding records, so that the threads that serve connections are not held
//! up.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use wire::Limits;
use wire::records::{DecompressError, RecordError, RecordIter, records};

use crate::resources::blocking::blocking;

/// Bytes that a codec may hold for a batch that needs no exclusive memory. More than compressors use by default (zstd
/// has a window of 8 MiB at level 19).
pub const HELD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Permits to walk the records of large or compressed batches: one for each core, and one for batches whose codec holds
/// much memory (about 128 MiB at worst), so that such batches wait only for each other.
#[derive(Debug)]
pub struct Walks {
    ordinary: Semaphore,
    large: Semaphore,
    /// Held by the thread whose codec holds much memory, for a request or for compaction.
    memory: Mutex<()>,
}

impl Default for Walks {
    fn default() -> Walks {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Walks { ordinary: Semaphore::new(cores), large: Semaphore::new(1), memory: Mutex::new(()) }
    }
}

/// Whether the records need more than [`HELD_BYTES_MAX`].
fn is_large(error: &RecordError) -> bool {
    matches!(
        error,
        RecordError::Decompress(DecompressError::Window { .. } | DecompressError::TooLarge { .. })
    )
}

impl Walks {
    /// Runs `work` on a thread that may block. Its records decompress to at most `decompressed` bytes. If its codec
    /// must hold more than [`HELD_BYTES_MAX`], `work` runs a second time, alone.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        decompressed: usize,
        work: impl Fn(Limits) -> Result<T, RecordError> + Send + Sync + 'static,
    ) -> Result<T, RecordError> {
        let work = Arc::new(work);
        let first = {
            let _permit = self.ordinary.acquire().await.expect("the semaphore is never closed");
            let work = work.clone();
            blocking(move || work(Limits { decompressed, held: HELD_BYTES_MAX })).await
        };
        match first {
            Err(RecordError::Decompress(DecompressError::Window { .. })) => {}
            done => return done,
        }
        // At most one request waits for compaction, so that it blocks no more than one thread.
        let _permit = self.large.acquire().await.expect("the semaphore is never closed");
        let walks = self.clone();
        blocking(move || {
            let _memory = walks.memory.lock();
            work(Limits { decompressed, held: usize::MAX })
        })
        .await
    }

    /// As [`Walks::run`], on the caller's thread, which must be allowed to block.
    pub fn run_blocking<T>(
        &self,
        decompressed: usize,
        mut work: impl FnMut(Limits) -> Result<T, RecordError>,
    ) -> Result<T, RecordError> {
        match work(Limits { decompressed, held: HELD_BYTES_MAX }) {
            Err(RecordError::Decompress(DecompressError::Window { .. })) => {
                let _memory = self.memory.lock();
                work(Limits { decompressed, held: usize::MAX })
            }
            done => done,
        }
    }

    /// The records of `batch`, decompressed to at most `decompressed` bytes, and a guard to hold while the records are
    /// in use. Blocks.
    pub fn records(
        &self,
        batch: &Bytes,
        decompressed: usize,
    ) -> Result<(RecordIter, Option<MutexGuard<'_, ()>>), RecordError> {
        match records(batch, HELD_BYTES_MAX.min(decompressed)) {
            Err(error) if is_large(&error) => {
                let memory = self.memory.lock();
                Ok((records(batch, decompressed)?.1, Some(memory)))
            }
            all => Ok((all?.1, None)),
        }
    }
}
