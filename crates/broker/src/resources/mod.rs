//! The threads and the memory that work may take.

pub mod blocking;
pub mod memory;
pub mod oldest;
pub mod turns;
pub mod walks;
