//! Tests of the whole log on a simulated disk, driven step by step from one thread.

mod crash;
mod support;
