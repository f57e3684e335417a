//! An open file of a real directory, and its blocking operations; both engines share it.
//!
//! This module starts no asynchronous operation and does not know how the queues work.
//!
//! Invariants:
//! - A file opened with O_DIRECT is read and written only through memory aligned to [`SECTOR`]: other memory goes
//!   through a bounce buffer.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use crate::writeback::{Writeback, Written};
use crate::{AlignedBuffer, File, SECTOR, read_parts_at};

/// Upper bound of the extra memory of one unaligned operation. It is large enough that the copy costs more than the
/// call.
const BOUNCE_BYTES_MAX: usize = 1 << 20;

pub(crate) struct DirectoryFile {
    file: Arc<fs::File>,
    path: PathBuf,
    length: u64,
    direct: bool,
    /// Of a scratch file.
    written: Option<Arc<Written>>,
}

impl DirectoryFile {
    pub(crate) fn new(file: fs::File, path: PathBuf, length: u64, direct: bool) -> Self {
        Self { file: Arc::new(file), path, length, direct, written: None }
    }

    /// The same file. Syncs do nothing, and writes are handed to the device by `writeback`.
    pub(crate) fn without_sync(self, writeback: &Writeback) -> Self {
        let written = Some(writeback.watch(&self.file));
        Self { written, ..self }
    }

    /// Whether writes and syncs have to reach the device.
    pub(crate) fn is_synced(&self) -> bool {
        self.written.is_none()
    }

    /// The file behind a handle that a queue received. Panics on a file of another kind of disk.
    pub(crate) fn of(file: &Arc<dyn File>) -> &Self {
        file.as_any().downcast_ref().expect("a queue is given files of its own disk")
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Asserts the conditions of every write to a queue.
    pub(crate) fn assert_writable(&self, position: u64, data: &[u8]) {
        assert!((data.as_ptr() as usize).is_multiple_of(SECTOR), "the data of a write is aligned");
        self.assert_inside(position, data.len());
    }

    /// Notes that everything up to `end` was written.
    pub(crate) fn note_written(&self, end: u64) {
        if let Some(written) = &self.written {
            written.note(end);
        }
    }

    fn assert_inside(&self, position: u64, length: usize) {
        assert_aligned(position, length);
        assert!(length > 0, "a write has bytes");
        assert!(position + length as u64 <= self.length, "a write ends inside {self:?}");
    }

    fn needs_bounce(&self, memory: *const u8) -> bool {
        self.direct && !(memory as usize).is_multiple_of(SECTOR)
    }

    /// Reads with one system call, and returns the number of bytes read.
    fn read_once(&self, position: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = libc::c_int::try_from(into.len()).map_err(io::Error::other)?;
        let at = libc::off_t::try_from(position).map_err(io::Error::other)?;
        // SAFETY: `IoSliceMut` is an `iovec` by its documentation, and each names memory that is borrowed exclusively until
        // the call is over; `count` is how many there are.
        let read =
            unsafe { libc::preadv(self.descriptor(), into.as_mut_ptr().cast::<libc::iovec>(), count, at) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

impl File for DirectoryFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        assert_aligned(position, into.len());
        if !self.needs_bounce(into.as_ptr()) {
            return self.file.read_exact_at(into, position);
        }
        let mut bounce = AlignedBuffer::zeroed(into.len().min(BOUNCE_BYTES_MAX));
        let mut position = position;
        for part in into.chunks_mut(BOUNCE_BYTES_MAX) {
            self.file.read_exact_at(&mut bounce[..part.len()], position)?;
            part.copy_from_slice(&bounce[..part.len()]);
            position += part.len() as u64;
        }
        Ok(())
    }

    fn read_vectored_at(&self, position: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let bytes: usize = into.iter().map(|part| part.len()).sum();
        let direct = !into.iter().any(|part| self.needs_bounce(part.as_ptr()));
        if direct && self.read_once(position, into).is_ok_and(|read| read == bytes) {
            return Ok(());
        }
        // The call read only some bytes, or none. Read everything part by part; that ends with the error, if there is
        // one.
        read_parts_at(self, position, into)
    }

    fn write_at(&self, position: u64, from: &[u8]) -> io::Result<()> {
        self.assert_inside(position, from.len());
        let end = position + from.len() as u64;
        if !self.needs_bounce(from.as_ptr()) {
            self.file.write_all_at(from, position)?;
            self.note_written(end);
            return Ok(());
        }
        let mut bounce = AlignedBuffer::zeroed(from.len().min(BOUNCE_BYTES_MAX));
        let mut position = position;
        for part in from.chunks(BOUNCE_BYTES_MAX) {
            bounce[..part.len()].copy_from_slice(part);
            self.file.write_all_at(&bounce[..part.len()], position)?;
            position += part.len() as u64;
        }
        self.note_written(end);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.is_synced() { self.file.sync_data() } else { Ok(()) }
    }

    fn is_allocated(&self) -> bool {
        // The count is in units of 512 bytes, whatever the block size of the file system.
        self.file.metadata().is_ok_and(|metadata| metadata.blocks() * 512 >= self.length)
    }

    fn wants_zeros(&self) -> bool {
        self.is_synced()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for DirectoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryFile").field("opened_as", &self.path).field("length", &self.length).finish()
    }
}

fn assert_aligned(position: u64, length: usize) {
    assert!(position.is_multiple_of(SECTOR as u64), "position {position} is not a multiple of a sector");
    assert!(length.is_multiple_of(SECTOR), "length {length} is not a multiple of a sector");
}
