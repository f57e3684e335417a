//! Tests that check the repository itself: `cargo test -p mainstem-tidy`.
//!
//! Each rule is a function from text to a list of violations. The tests at the file's tail show that it finds a made-up
//! violation. [`repository`] reads the files and applies every rule. The tests only read files and run `cargo
//! metadata`. They build, change and fetch nothing. Outside of tests this crate is empty.
//!
//! | file | rules |
//! |---|---|
//! | `layers` | dependencies between crates, compared with the table in `ARCHITECTURE.md` |
//! | `rooms` | imports between the modules of a crate: no circles, and only downwards where `ARCHITECTURE.md` has a table |
//! | `licences` | sources and licences of dependencies, compared with `deny.toml` |
//! | `manifests` | dependencies are named once, used, and explained |
//! | `source` | the form of a Rust file: `//!` first, its size, where `unsafe` is allowed |
//! | `text` | forbidden text in any file: unfinished work, paths of a machine, hosts that are not public |
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
