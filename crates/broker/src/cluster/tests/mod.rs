//! Simulated clusters: the rules of ownership alone, and all of it.

mod members;
mod simulation;
