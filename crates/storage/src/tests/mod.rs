//! Tests of the whole log on a simulated disk, driven step by step from one thread.

mod copies;
mod crash;
mod epochs;
mod fuzz;
mod long;
mod manifests;
mod replicated;
mod restore;
mod rewrite;
mod space;
mod states;
pub(crate) mod support;
mod takeover;
mod tier;
mod tools;
mod traps;
