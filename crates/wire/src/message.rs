//! [`Message`]: the operations of every generated top-level message, and a table of all of them for tests and fuzzing.

use std::ops::RangeInclusive;

use bytes::Bytes;

use crate::{Chunks, DecodeError, EncodeError, Reader, Writer, frame, messages};

/// A top-level message of the protocol.
pub trait Message: Sized {
    /// Its name in Kafka's schemas.
    const NAME: &'static str;
    /// Its API key. Headers, and data that is stored in records, have none.
    const KEY: Option<i16>;
    /// The versions in the schema.
    const VERSIONS: RangeInclusive<i16>;

    /// Reads a message from `reader`, and leaves `reader` at the byte after it. The caller may pass any version: a
    /// version that the message does not have is an error.
    fn decode(reader: &mut Reader, version: i16) -> Result<Self, DecodeError>;

    /// Appends the message to `writer`. A field that this version lacks must have its default value, unless the schema
    /// calls it ignorable. After an error `writer` holds a part of the message.
    fn encode(&self, writer: &mut Writer, version: i16) -> Result<(), EncodeError>;

    /// How long the client must wait before its next request, in milliseconds, where the message says so (KIP-219).
    fn throttle_time_ms(&mut self) -> Option<&mut i32> {
        None
    }

    /// The message alone, without size or header.
    fn to_chunks(&self, version: i16) -> Result<Chunks, EncodeError> {
        let mut writer = Writer::new();
        self.encode(&mut writer, version)?;
        Ok(writer.finish())
    }
}

/// One message type, for code that iterates over all of them.
#[derive(Clone, Copy, Debug)]
pub struct MessageInfo {
    /// [`Message::NAME`].
    pub name: &'static str,
    /// [`Message::KEY`].
    pub key: Option<i16>,
    /// Whether it is a request rather than a response or something else.
    pub is_request: bool,
    /// First of [`Message::VERSIONS`].
    pub version_min: i16,
    /// Last of [`Message::VERSIONS`].
    pub version_max: i16,
    /// Decodes one and encodes it again at the same version.
    pub recode: fn(&mut Reader, i16) -> Result<Recoded, DecodeError>,
}

/// A message encoded again, or why it cannot be.
pub type Recoded = Result<Chunks, EncodeError>;

impl MessageInfo {
    pub(crate) const fn of<M: Message>(is_request: bool) -> MessageInfo {
        MessageInfo {
            name: M::NAME,
            key: M::KEY,
            is_request,
            version_min: *M::VERSIONS.start(),
            version_max: *M::VERSIONS.end(),
            recode: |reader, version| Ok(M::decode(reader, version)?.to_chunks(version)),
        }
    }
}

/// Decodes `bytes` like a server decodes a frame: first the header, then the message that the header names. This is the
/// entry point for fuzzing. A decoded request must encode again, and come to the same bytes when it is decoded once
/// more.
pub fn fuzz_decode(bytes: &[u8]) {
    let mut reader = Reader::new(Bytes::copy_from_slice(bytes));
    let Ok(header) = frame::decode_request_header(&mut reader) else { return };
    let key = Some(header.api_key as i16);
    for info in messages::MESSAGES.iter().filter(|info| info.key == key) {
        let body = Bytes::copy_from_slice(&bytes[reader.position()..]);
        let Ok(encoded) = (info.recode)(&mut Reader::new(body), header.version) else { continue };
        let encoded = encoded.expect("what was decoded at a version can be encoded at it").to_bytes();
        let again = (info.recode)(&mut Reader::new(encoded.clone()), header.version)
            .expect("what was encoded can be decoded")
            .expect("and encoded again");
        assert_eq!(again.to_bytes(), encoded, "{} v{}", info.name, header.version);
    }
}
