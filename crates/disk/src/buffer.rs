//! Memory that the device can read from and write to directly: aligned to [`SECTOR`], zeroed once, reused.
//!
//! A [`FillBuffer`] is filled from the front. The filled part is shared as [`Bytes`] while the rest is still being
//! filled, so that one copy of a batch serves the write to disk and every tail fetch. This module does no I/O. It does
//! not bound the number of buffers in use; its caller does.
//!
//! Invariants:
//! - Bytes below `filled` are never written again while the region lives; bytes at or above it are reachable only
//!   through the one `FillBuffer`. So no exclusive and shared access ever overlap.
//! - All memory is initialised: zeroed when allocated, and holding older contents when reused.
//! - A region returns to its pool only after its `FillBuffer` and every `Bytes` of it are gone.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::SECTOR;

/// Memory of at least this size is mapped by itself. The kernel gets it back at once when it is dropped. An allocator
/// keeps free memory between pieces that are still in use.
const MAPPED_BYTES_MIN: usize = 128 * 1024;
const _: () = assert!(SECTOR == 4096, "a page, which mappings are aligned to, is no less on any machine");

/// One allocation, aligned to [`SECTOR`] and a whole number of sectors long.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: `Memory` owns its allocation and has no thread affinity; it hands out no references by itself.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` gives access only to a raw pointer; whoever dereferences it argues for itself.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates at least `bytes`, rounded up to whole sectors, and at least one sector.
    fn zeroed(bytes: usize) -> Self {
        let capacity = bytes.max(1).next_multiple_of(SECTOR);
        let start = if capacity >= MAPPED_BYTES_MIN { map(capacity) } else { allocate(capacity) };
        let Some(start) = start else { handle_alloc_error(Self::layout(capacity)) };
        Self { start, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, SECTOR).expect("a buffer's size fits the address space")
    }
}

fn allocate(capacity: usize) -> Option<NonNull<u8>> {
    // SAFETY: the layout's size is not zero.
    NonNull::new(unsafe { alloc_zeroed(Memory::layout(capacity)) })
}

fn map(capacity: usize) -> Option<NonNull<u8>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping wherever the kernel likes: it overlaps nothing, begins at a page, and is zeroed.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), capacity, access, kind, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.capacity < MAPPED_BYTES_MIN {
            // SAFETY: allocated in `allocate` with the same layout, and freed only here.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
            return;
        }
        // SAFETY: mapped in `map` with this length, and unmapped only here. It fails only where the process has as many mappings as
        // it may and this one cannot be cut out of a larger one; then it stays.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), self.capacity) };
    }
}

/// Memory that belongs to a pool.
struct Region {
    /// `None` only while being dropped.
    memory: Option<Memory>,
    pool: Arc<Shelf>,
}

impl Region {
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("a region keeps its memory until it is dropped")
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.put_back(memory);
        }
    }
}

/// The state that all handles and regions of one pool share.
struct Shelf {
    buffer_bytes: usize,
    keep: usize,
    free: Mutex<Vec<Memory>>,
    bytes_out: AtomicUsize,
}

impl Shelf {
    fn put_back(&self, memory: Memory) {
        self.bytes_out.fetch_sub(memory.capacity, Ordering::Relaxed);
        if memory.capacity != self.buffer_bytes {
            return;
        }
        let mut free = self.free.lock();
        if free.len() < self.keep {
            free.push(memory);
        }
    }
}

/// A cheap handle to a pool of write buffers of one size.
#[derive(Clone)]
pub struct BufferPool {
    shelf: Arc<Shelf>,
}

/// How much memory a [`BufferPool`] holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes of buffers that are being filled or whose contents are still shared.
    pub out_bytes: usize,
    /// Bytes kept for the next buffers.
    pub pooled_bytes: usize,
}

impl BufferPool {
    /// A pool of buffers of `buffer_bytes` (rounded up to [`SECTOR`]) that keeps at most `keep` unused ones.
    pub fn new(buffer_bytes: usize, keep: usize) -> Self {
        Self {
            shelf: Arc::new(Shelf {
                buffer_bytes: buffer_bytes.max(1).next_multiple_of(SECTOR),
                keep,
                free: Mutex::new(Vec::with_capacity(keep)),
                bytes_out: AtomicUsize::new(0),
            }),
        }
    }

    /// The capacity in bytes of the buffers that [`BufferPool::take`] gives.
    pub fn buffer_bytes(&self) -> usize {
        self.shelf.buffer_bytes
    }

    /// A buffer of the pool's size. Its contents before it is filled are unspecified.
    pub fn take(&self) -> FillBuffer {
        let pooled = self.shelf.free.lock().pop();
        self.lend(pooled.unwrap_or_else(|| Memory::zeroed(self.shelf.buffer_bytes)))
    }

    /// A buffer of at least `bytes`: from the pool if its buffers are large enough, otherwise a separate one (rounded
    /// up to [`SECTOR`]) that is freed after use.
    pub fn take_at_least(&self, bytes: usize) -> FillBuffer {
        if bytes <= self.shelf.buffer_bytes { self.take() } else { self.lend(Memory::zeroed(bytes)) }
    }

    /// Bytes of buffers that are being filled or whose contents are still shared.
    pub fn out_bytes(&self) -> usize {
        self.shelf.bytes_out.load(Ordering::Relaxed)
    }

    /// The pool's memory now.
    pub fn usage(&self) -> PoolUsage {
        PoolUsage {
            out_bytes: self.out_bytes(),
            pooled_bytes: self.shelf.free.lock().len() * self.shelf.buffer_bytes,
        }
    }

    fn lend(&self, memory: Memory) -> FillBuffer {
        self.shelf.bytes_out.fetch_add(memory.capacity, Ordering::Relaxed);
        FillBuffer { region: Arc::new(Region { memory: Some(memory), pool: self.shelf.clone() }), filled: 0 }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("buffer_bytes", &self.shelf.buffer_bytes)
            .field("usage", &self.usage())
            .finish()
    }
}

/// A region filled from the front, whose filled part can already be shared.
pub struct FillBuffer {
    region: Arc<Region>,
    filled: usize,
}

impl FillBuffer {
    /// All bytes of the buffer.
    pub fn capacity(&self) -> usize {
        self.region.memory().capacity
    }

    /// Bytes frozen so far.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that can still be filled.
    pub fn remaining(&self) -> usize {
        self.capacity() - self.filled
    }

    /// The part that is not yet frozen. It holds the contents of an earlier use.
    pub fn unfilled(&mut self) -> &mut [u8] {
        let memory = self.region.memory();
        let remaining = memory.capacity - self.filled;
        // SAFETY: `filled..capacity` is inside the allocation and initialised. Every `Frozen` lies below `filled`, and
        // `&mut self` excludes other access through this buffer, which is the only other way in.
        unsafe { std::slice::from_raw_parts_mut(memory.start.as_ptr().add(self.filled), remaining) }
    }

    /// Shares the next `bytes` of the unfilled part as they are now. Panics past the end.
    pub fn freeze(&mut self, bytes: usize) -> Bytes {
        assert!(bytes <= self.remaining(), "{bytes} bytes frozen of {} that remain", self.remaining());
        if bytes == 0 {
            return Bytes::new();
        }
        let start = self.filled;
        self.filled += bytes;
        Bytes::from_owner(Frozen { region: self.region.clone(), start, length: bytes })
    }
}

impl fmt::Debug for FillBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FillBuffer")
            .field("capacity", &self.capacity())
            .field("filled", &self.filled)
            .finish()
    }
}

/// A part of a region that will never change again.
struct Frozen {
    region: Arc<Region>,
    start: usize,
    length: usize,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `start..start + length` was below `filled` when this was made, so it is inside the allocation,
        // initialised, and outside everything that `FillBuffer::unfilled` hands out since.
        unsafe {
            std::slice::from_raw_parts(self.region.memory().start.as_ptr().add(self.start), self.length)
        }
    }
}

/// Aligned memory with one owner, for reads.
pub struct AlignedBuffer {
    memory: Memory,
    length: usize,
}

impl AlignedBuffer {
    /// `length` zero bytes, starting at a multiple of [`SECTOR`].
    pub fn zeroed(length: usize) -> Self {
        Self { memory: Memory::zeroed(length), length }
    }

    /// The same memory, shared and immutable.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is at least `length` initialised bytes, and `&self` excludes `deref_mut`.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer").field("length", &self.length).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_part_is_shared_while_the_rest_is_filled() {
        let pool = BufferPool::new(4 * SECTOR, 1);
        let mut buffer = pool.take();
        buffer.unfilled()[..SECTOR].fill(1);
        let first = buffer.freeze(SECTOR);
        let reader = std::thread::spawn({
            let first = first.clone();
            move || (0..10).all(|_| first.iter().all(|byte| *byte == 1))
        });
        for sector in 2..=4u8 {
            buffer.unfilled()[..SECTOR].fill(sector);
            let part = buffer.freeze(SECTOR);
            assert_eq!(part.as_ptr() as usize % SECTOR, 0);
            assert!(part.iter().all(|byte| *byte == sector));
        }
        assert!(reader.join().unwrap());
        assert_eq!((buffer.filled(), buffer.remaining()), (4 * SECTOR, 0));
        assert!(buffer.unfilled().is_empty());
        assert!(buffer.freeze(0).is_empty());
        assert!(first.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn region_returns_to_the_pool_after_its_last_slice() {
        let pool = BufferPool::new(SECTOR + 1, 1);
        assert_eq!(pool.buffer_bytes(), 2 * SECTOR);
        let mut buffer = pool.take();
        let address = buffer.unfilled().as_ptr() as usize;
        buffer.unfilled()[7] = 9;
        let slice = buffer.freeze(SECTOR).slice(5..9);
        drop(buffer);
        assert_eq!(pool.usage(), PoolUsage { out_bytes: 2 * SECTOR, pooled_bytes: 0 });
        assert_eq!(&slice[..], &[0, 0, 9, 0]);
        drop(slice);
        assert_eq!(pool.usage(), PoolUsage { out_bytes: 0, pooled_bytes: 2 * SECTOR });
        let mut again = pool.take();
        assert_eq!(again.unfilled().as_ptr() as usize, address);
        assert_eq!(again.unfilled()[7], 9);
        drop(pool.take());
        drop(again);
        assert_eq!(pool.usage().pooled_bytes, 2 * SECTOR, "no more than `keep` are kept");
    }

    #[test]
    fn larger_buffers_are_not_pooled() {
        let pool = BufferPool::new(SECTOR, 4);
        let mut large = pool.take_at_least(3 * SECTOR - 1);
        assert_eq!(large.capacity(), 3 * SECTOR);
        assert_eq!(large.unfilled().as_ptr() as usize % SECTOR, 0);
        assert_eq!(pool.take_at_least(5).capacity(), SECTOR);
        drop(large);
        assert_eq!(pool.usage(), PoolUsage { out_bytes: 0, pooled_bytes: SECTOR });
    }

    #[test]
    #[should_panic(expected = "bytes frozen")]
    fn freezing_past_the_end_panics() {
        BufferPool::new(SECTOR, 0).take().freeze(SECTOR + 1);
    }

    #[test]
    fn slices_outlive_the_pool() {
        let pool = BufferPool::new(SECTOR, 2);
        let mut buffer = pool.take();
        buffer.unfilled()[0] = 3;
        let slice = buffer.freeze(1);
        drop((pool, buffer));
        assert_eq!(slice[0], 3);
    }

    #[test]
    fn aligned_buffer_is_aligned_and_zeroed() {
        let mut buffer = AlignedBuffer::zeroed(10);
        assert_eq!(&buffer[..], &[0; 10]);
        buffer[9] = 1;
        let bytes = buffer.into_bytes();
        assert_eq!(bytes.as_ptr() as usize % SECTOR, 0);
        assert_eq!(bytes[9], 1);
        assert!(AlignedBuffer::zeroed(0).is_empty());
    }
}
