//! Kafka's wire protocol: frames and messages, bytes in, bytes out.
//!
//! The messages in `generated/` are written by `mainstem-wire-gen` from the JSON schemas that Kafka's own clients jar
//! carries; [`Reader`] and [`Writer`] are the primitives below them, [`frame`] the headers around them, [`records`]
//! the records inside a batch. Nothing here does I/O, keeps state or knows what a message means.
//!
//! Invariants:
//! - decoding never panics and never allocates for a claim that the bytes cannot back ([`reader`](Reader));
//! - record data is a slice of the frame when decoded, and goes into an encoded frame by reference.

mod chunks;
mod compression;
mod errors;
pub mod frame;
mod message;
#[path = "generated/mod.rs"]
pub mod messages;
pub mod reader;
pub mod records;
mod text;
mod walk;
mod writer;

#[cfg(test)]
mod arbitrary;
#[cfg(test)]
mod differential_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod message_tests;

pub use bytes::Bytes;
pub use chunks::{Chunks, Records};
pub use compression::{DecompressError, Limits, compress, decompress};
pub use errors::ErrorCode;
pub use message::{Message, MessageInfo, Recoded, fuzz_decode};
pub use messages::ApiKey;
pub use reader::{DecodeError, Part, Reader};
pub use text::Text;
pub use uuid::Uuid;
pub use walk::{Keyed, VisitKeys, Walked, find, visit_keys, walk};
pub use writer::{EncodeError, SHARE_BYTES_MIN, Tags, Writer};
