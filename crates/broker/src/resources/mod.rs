//! Limits on the threads and the memory of work.

pub mod blocking;
pub mod memory;
pub mod oldest;
pub mod seldom;
pub mod turns;
pub mod walks;
