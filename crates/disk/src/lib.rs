//! The disk seam: everything that Mainstem asks of a storage device, behind three small traits.
//!
//! This is the only crate with `unsafe` code, and the only one that knows io_uring, O_DIRECT or the `fsync` family. For
//! that reason the settings of the C library's allocator are here, too ([`allocator`]). The crate knows nothing of
//! logs, segments or Kafka.
//!
//! Invariants:
//! - Every position, length and buffer handed to [`File`] and [`Queue`] is a multiple of [`SECTOR`].
//! - A write is durable only when it completed with `durable: true`, or when a sync that was submitted after the
//!   write's completion completed.
//! - A file changes its length only by [`Disk::shorten`] and [`Disk::lengthen`].

#![deny(unsafe_op_in_unsafe_fn)]

pub mod allocator;
pub mod buffer;
pub mod directory;
mod file;
pub mod sim;
mod threads;
mod uring;
mod writeback;

use std::fmt::Debug;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use bytes::Bytes;

pub use buffer::{AlignedBuffer, BufferPool, FillBuffer};
pub use directory::{
    DirectoryDisk, DirectoryLock, Engine, lock_directory, open_directory, read_directory, scratch_directory,
    share_directory,
};
pub use sim::SimDisk;

/// Alignment in bytes of every position, length and buffer. A torn write tears at multiples of it.
pub const SECTOR: usize = 4096;

/// One directory of files on one device.
pub trait Disk: Send + Sync + Debug {
    /// The names of all regular files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file of `length` bytes with its blocks allocated, reading as zeros; fails with `AlreadyExists` or
    /// `StorageFull`. Its name is durable only after the next [`Disk::rename`] or [`Disk::remove`] in this directory.
    fn create(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>>;

    /// Cuts a file off at `length` bytes, which is at most its length, and opens it anew. Older handles must not be
    /// used any more. The new length is durable after the next [`File::sync`] of the new handle.
    fn shorten(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>>;

    /// Makes a file longer, with blocks like those of [`Disk::create`], and opens it anew. Otherwise like
    /// [`Disk::shorten`].
    fn lengthen(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Renames atomically, replacing `to` if it exists; durable on return.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; durable on return.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Bytes that new files may still take.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Bytes of the file system, taken or free.
    fn capacity_bytes(&self) -> io::Result<u64>;

    /// A queue for one thread, with at most `depth` operations in flight.
    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>>;
}

/// An open file. The blocking operations are for recovery, preparation and cold reads, never for the write path.
pub trait File: Send + Sync + Debug {
    /// Length in bytes.
    fn length(&self) -> u64;

    /// Fills `into` from `position`; `UnexpectedEof` past the end of the file.
    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()>;

    /// Like [`File::read_at`], into one part after the other. Each part is a multiple of [`SECTOR`] long.
    fn read_vectored_at(&self, position: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        read_parts_at(self, position, into)
    }

    /// Writes all of `from` at `position`.
    fn write_at(&self, position: u64, from: &[u8]) -> io::Result<()>;

    /// Makes all completed writes durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;

    /// Whether writes within the file's length cannot run out of space. False if the file system could not reserve the
    /// blocks; then a write needs new space where nothing was written before.
    fn is_allocated(&self) -> bool;

    /// Whether blocks that were never written are slow to write and sync, so that zeros should be there first. Not where nothing is
    /// synced.
    fn wants_zeros(&self) -> bool {
        true
    }

    /// Lets the queue of the same disk recognize its own files.
    fn as_any(&self) -> &dyn std::any::Any;
}

fn read_parts_at<F: File + ?Sized>(file: &F, position: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
    let mut position = position;
    for part in into {
        file.read_at(position, part)?;
        position += part.len() as u64;
    }
    Ok(())
}

/// Asynchronous writes and syncs of one owner thread. Another thread may make the queue, but the first thread that
/// waits on it owns it. A started operation may begin only at the next [`Queue::wait`], blocking or not. Dropping a
/// queue finishes the operations in flight.
pub trait Queue: Send {
    /// Starts a write; `durable` asks that its completion implies durability (`RWF_DSYNC`). `data` is aligned.
    /// Panics when `depth` operations are already in flight: the owner keeps count.
    fn write(&mut self, token: u64, file: &Arc<dyn File>, position: u64, data: Bytes, durable: bool);

    /// Starts an `fdatasync` that covers every write completed before this call.
    fn sync(&mut self, token: u64, file: &Arc<dyn File>);

    /// Operations started and not yet reported by [`Queue::wait`].
    fn in_flight(&self) -> usize;

    /// Moves finished operations into `finished`. With `block`, returns only after at least one has finished or the
    /// waker was called since the last `wait`; `timeout` bounds the blocking. An `Err` is a failure of the queue
    /// itself, not of one operation.
    fn wait(
        &mut self,
        block: bool,
        timeout: Option<std::time::Duration>,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()>;

    /// A handle with which any thread ends a blocking [`Queue::wait`]. A queue may finish one operation first.
    fn waker(&self) -> Arc<dyn Waker>;
}

/// Wakes the owner of a [`Queue`]; cheap when the owner is not blocked.
pub trait Waker: Send + Sync {
    /// Makes the current or next blocking [`Queue::wait`] return; waits that do not block leave the wake-up pending.
    fn wake(&self);
}

/// The outcome of one operation of a [`Queue`].
#[derive(Debug)]
pub struct Finished {
    /// The token that was given when the operation was started.
    pub token: u64,
    /// A short write counts as an error (`WriteZero`).
    pub result: io::Result<()>,
}
