//! Limits the memory that the C library's allocator holds.
//!
//! glibc makes up to eight arenas for each core, and each arena keeps memory that was freed in it. A request that needs
//! much memory for a moment would leave that memory behind in each arena that its threads used. Large blocks can be
//! mapped outside of the arenas, and such a block is gone when it is freed. But glibc raises the bound for them to the
//! largest block that was ever freed, up to 32 MiB, and from then on large blocks lie in the arenas too. A fixed bound
//! prevents that. With other C libraries this module does nothing.

#![allow(unsafe_code)]

/// Arenas for each core, and at least. glibc gives arenas to threads in turn. With four, the log's writer often shared one
/// with the thread that serves the connections: 6% more CPU for requests of one record.
const ARENAS_PER_CORE: usize = 4;
const ARENAS_MIN: usize = 8;

/// Blocks of this size are mapped outside of the arenas. Frames of records are mostly smaller: mapping costs a page fault
/// for each 4 KiB.
const MAPPED_BYTES: i32 = 4 * 1024 * 1024;
/// Free memory at the end of an arena from which on it is given back: twice the bound above, as glibc does.
const TRIMMED_BYTES: i32 = 2 * MAPPED_BYTES;

/// Bounds the number of arenas and what stays in them, unless the environment sets other bounds (`MALLOC_ARENA_MAX`,
/// `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`). Call this before any thread is started.
pub fn bound() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arenas = i32::try_from((cores * ARENAS_PER_CORE).max(ARENAS_MIN)).unwrap_or(i32::MAX);
        for (variable, bound, value) in [
            ("MALLOC_ARENA_MAX", libc::M_ARENA_MAX, arenas),
            ("MALLOC_MMAP_THRESHOLD_", libc::M_MMAP_THRESHOLD, MAPPED_BYTES),
            ("MALLOC_TRIM_THRESHOLD_", libc::M_TRIM_THRESHOLD, TRIMMED_BYTES),
        ] {
            if std::env::var_os(variable).is_none() {
                // SAFETY: `mallopt` takes two numbers, and there is no other thread yet.
                unsafe { libc::mallopt(bound, value) };
            }
        }
    }
}

/// Gives the free pages of all arenas back to the system. Takes milliseconds if there are many.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes a number and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
