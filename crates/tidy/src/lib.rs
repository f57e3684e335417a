//! Tests that check the repository about itself: `cargo test -p mainstem-tidy`.
//!
//! Each rule is a function from text to a list of violations, shown at its file's tail to find a made-up one;
//! [`repository`] reads the files and asks every rule. Only files are read and `cargo metadata` is run: nothing is
//! built, changed or fetched. Outside of tests this crate is empty.
//!
//! | file | rules |
//! |---|---|
//! | `layers` | who may depend on whom, against the table in `ARCHITECTURE.md` |
//! | `rooms` | which modules of a crate import from which: no circles, and down only where `ARCHITECTURE.md` has a table |
//! | `licences` | where dependencies come from, and what their licences allow, against `deny.toml` |
//! | `manifests` | dependencies are named once, used, and explained |
//! | `source` | what a Rust file looks like: `//!` first, its size, where `unsafe` may stand |
//! | `text` | what no file may hold: unfinished work, paths of a machine, hosts that are not public |
//! | `documents` | links resolve, decisions are numbered and listed, named make targets exist |

#[cfg(test)]
mod documents;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod licences;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod repository;
#[cfg(test)]
mod rooms;
#[cfg(test)]
mod source;
#[cfg(test)]
mod text;
