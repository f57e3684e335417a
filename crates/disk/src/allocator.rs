//! Limits the memory that the C library's allocator holds.
//!
//! glibc makes up to eight arenas for each core, and each arena keeps memory that was freed in it. A request that needs
//! much memory for a moment would leave that memory behind in each arena that its threads used. With other C libraries
//! this module does nothing.

#![allow(unsafe_code)]

/// Arenas for each core, and at least. glibc gives arenas to threads in turn. With four, the log's writer often shared one
/// with the thread that serves the connections: 6% more CPU for requests of one record.
const ARENAS_PER_CORE: usize = 4;
const ARENAS_MIN: usize = 8;

/// Bounds the number of arenas, unless `MALLOC_ARENA_MAX` in the environment sets another. Call this before any thread
/// is started.
pub fn bound_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arenas = i32::try_from((cores * ARENAS_PER_CORE).max(ARENAS_MIN)).unwrap_or(i32::MAX);
        // SAFETY: `mallopt` takes two numbers, and there is no other thread yet.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
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
