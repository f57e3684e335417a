//! [`Writer`]: appends the protocol's primitive types to a frame in pieces.
//!
//! Invariants: small fields share one buffer. Record data, and byte fields of at least [`SHARE_BYTES_MIN`], are in the
//! frame by reference, at their place in that buffer, and are never copied.

use bytes::Bytes;
use uuid::Uuid;

use crate::reader::{Part, Reader, TEXT_BYTES_MAX};
use crate::{Chunks, DecodeError, Records, Text};

/// Upper bound of an error message. A message may quote a name from the client, and such a name may have the full
/// length of a string, so that no response could hold a sentence around it.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Pieces of at least this size go into the frame by reference. Below it, a copy is cheaper than one more entry in the
/// vectored write and one more reference count.
pub const SHARE_BYTES_MIN: usize = 4096;
/// Initial size of a frame's buffer: most responses fit.
const BUFFER_BYTES: usize = 256;

/// Why a message cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// A version that the message does not have.
    #[error("{message} has no version {version}")]
    UnsupportedVersion {
        /// The message's name in Kafka's schemas.
        message: &'static str,
        /// As asked for.
        version: i16,
    },
    /// A field has a value that this version cannot carry, and that must not be dropped silently.
    #[error("version {version} has no field {field}, but it is set")]
    Unsupported {
        /// Struct and field.
        field: &'static str,
        /// As asked for.
        version: i16,
    },
    /// A null where this version allows none.
    #[error("field {field} is null, which this version does not allow")]
    Null {
        /// Struct and field.
        field: &'static str,
    },
    /// A string, an array, a byte field or a frame that is longer than the protocol can express.
    #[error("{0} bytes or elements are more than the protocol can carry in one field")]
    TooLong(usize),
}

impl EncodeError {
    pub(crate) fn unsupported(field: &'static str, version: i16) -> Result<(), EncodeError> {
        Err(EncodeError::Unsupported { field, version })
    }
}

/// Builds one frame from front to back.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
    /// Pieces by reference. Each stands before the byte of `buffer` at its position. The positions never fall.
    shared: Vec<(usize, Bytes)>,
    shared_bytes: usize,
}

impl Writer {
    /// An empty frame; allocates nothing until something is written.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// An empty frame with room for its size at the front. [`Writer::finish_frame`] sets the size.
    pub fn new_frame() -> Writer {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        buffer.extend_from_slice(&[0; 4]);
        Writer { buffer, ..Writer::default() }
    }

    /// An empty frame that takes over `buffer`'s memory.
    pub(crate) fn reusing(mut buffer: Vec<u8>) -> Writer {
        buffer.clear();
        Writer { buffer, ..Writer::default() }
    }

    /// The bytes of a writer into which nothing was shared.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        debug_assert!(self.shared.is_empty());
        self.buffer
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.buffer.len() + self.shared_bytes
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The written bytes, in order.
    pub fn finish(self) -> Chunks {
        let buffer = Bytes::from(self.buffer);
        if self.shared.is_empty() {
            return Chunks { parts: if buffer.is_empty() { Vec::new() } else { vec![buffer] } };
        }
        let mut parts = Vec::with_capacity(2 * self.shared.len() + 1);
        let mut from = 0;
        for (to, piece) in self.shared {
            if to > from {
                parts.push(buffer.slice(from..to));
            }
            parts.push(piece);
            from = to;
        }
        if buffer.len() > from {
            parts.push(buffer.slice(from..));
        }
        Chunks { parts }
    }

    /// Like [`Writer::finish`], for a writer from [`Writer::new_frame`]: sets the size at the front.
    pub fn finish_frame(mut self) -> Result<Chunks, EncodeError> {
        let size = i32::try_from(self.len() - 4).map_err(|_| EncodeError::TooLong(self.len()))?;
        self.buffer[..4].copy_from_slice(&size.to_be_bytes());
        Ok(self.finish())
    }

    /// One byte, 0 or 1.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.buffer.push(u8::from(value));
    }

    /// One byte.
    #[inline]
    pub fn i8(&mut self, value: i8) {
        self.buffer.push(value.cast_unsigned());
    }

    /// Two bytes, big-endian like all that follow.
    #[inline]
    pub fn i16(&mut self, value: i16) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self, value: u16) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    /// Four bytes.
    #[inline]
    pub fn i32(&mut self, value: i32) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    /// Eight bytes.
    #[inline]
    pub fn i64(&mut self, value: i64) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    /// Eight bytes.
    #[inline]
    pub fn f64(&mut self, value: f64) {
        self.buffer.extend_from_slice(&value.to_be_bytes());
    }

    /// Sixteen bytes.
    #[inline]
    pub fn uuid(&mut self, value: Uuid) {
        self.buffer.extend_from_slice(value.as_bytes());
    }

    /// An unsigned LEB128 integer.
    #[inline]
    pub fn unsigned_varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.buffer.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.buffer.push((value & 0x7f) as u8);
    }

    /// A zigzag LEB128 integer.
    #[inline]
    pub fn varint(&mut self, value: i32) {
        self.unsigned_varint(((value << 1) ^ (value >> 31)).cast_unsigned());
    }

    /// A zigzag LEB128 integer.
    #[inline]
    pub fn varlong(&mut self, value: i64) {
        let mut value = ((value << 1) ^ (value >> 63)).cast_unsigned();
        while value >= 0x80 {
            self.buffer.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.buffer.push((value & 0x7f) as u8);
    }

    /// Appends bytes unchanged, as a copy.
    #[inline]
    pub fn slice(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Appends bytes unchanged, by reference from [`SHARE_BYTES_MIN`] on.
    pub fn share(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARE_BYTES_MIN {
            self.buffer.extend_from_slice(bytes);
        } else {
            self.shared.push((self.buffer.len(), bytes.clone()));
            self.shared_bytes += bytes.len();
        }
    }

    /// The length of an array or a byte field; `None` is null.
    #[inline]
    fn length(&mut self, length: Option<usize>, flexible: bool) -> Result<(), EncodeError> {
        let length = match length {
            Some(length) => i32::try_from(length).map_err(|_| EncodeError::TooLong(length))?,
            None => -1,
        };
        if flexible {
            self.unsigned_varint(length.cast_unsigned().wrapping_add(1));
        } else {
            self.i32(length);
        }
        Ok(())
    }

    /// A string.
    pub fn text(&mut self, text: &Text, flexible: bool) -> Result<(), EncodeError> {
        let bytes = text.as_bytes();
        let length = i16::try_from(bytes.len()).map_err(|_| EncodeError::TooLong(bytes.len()))?;
        debug_assert!(bytes.len() <= TEXT_BYTES_MAX);
        if flexible {
            self.unsigned_varint(u32::from(length.cast_unsigned()) + 1);
        } else {
            self.i16(length);
        }
        self.slice(bytes);
        Ok(())
    }

    /// A string or, when `nullable`, null. At most [`MESSAGE_BYTES_MAX`] bytes of an error message are written.
    pub fn nullable_text(
        &mut self,
        text: &Option<Text>,
        flexible: bool,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match text {
            Some(text) if text.len() > MESSAGE_BYTES_MAX && field.ends_with("ErrorMessage") => {
                return self.text(&text.front(MESSAGE_BYTES_MAX), flexible);
            }
            Some(text) => return self.text(text, flexible),
            None if !nullable => return Err(EncodeError::Null { field }),
            None if flexible => self.unsigned_varint(0),
            None => self.i16(-1),
        }
        Ok(())
    }

    /// Bytes.
    pub fn bytes(&mut self, bytes: &Bytes, flexible: bool) -> Result<(), EncodeError> {
        self.length(Some(bytes.len()), flexible)?;
        self.share(bytes);
        Ok(())
    }

    /// Bytes or, when `nullable`, null.
    pub fn nullable_bytes(
        &mut self,
        bytes: &Option<Bytes>,
        flexible: bool,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match bytes {
            Some(bytes) => self.bytes(bytes, flexible),
            None if nullable => self.length(None, flexible),
            None => Err(EncodeError::Null { field }),
        }
    }

    /// Record batches or, when `nullable`, null.
    pub fn records(
        &mut self,
        records: &Option<Records>,
        flexible: bool,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match records {
            Some(records) => {
                self.length(Some(records.len()), flexible)?;
                records.chunks().for_each(|piece| self.share(piece));
                Ok(())
            }
            None if nullable => self.length(None, flexible),
            None => Err(EncodeError::Null { field }),
        }
    }

    /// An array.
    pub fn array<T: Part>(
        &mut self,
        elements: &[T],
        version: i16,
        flexible: bool,
    ) -> Result<(), EncodeError> {
        self.length(Some(elements.len()), flexible)?;
        for element in elements {
            element.write(self, version, flexible)?;
        }
        Ok(())
    }

    /// An array or, when `nullable`, null.
    pub fn nullable_array<T: Part>(
        &mut self,
        elements: &Option<Vec<T>>,
        version: i16,
        flexible: bool,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match elements {
            Some(elements) => self.array(elements, version, flexible),
            None if nullable => self.length(None, flexible),
            None => Err(EncodeError::Null { field }),
        }
    }

    /// A struct behind the byte that tells it from null; where this version is not `nullable` there is no byte.
    pub fn nullable<T: Part>(
        &mut self,
        value: &Option<T>,
        version: i16,
        flexible: bool,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => {
                if nullable {
                    self.i8(1);
                }
                value.write(self, version, flexible)
            }
            None if nullable => {
                self.i8(-1);
                Ok(())
            }
            None => Err(EncodeError::Null { field }),
        }
    }

    /// The tagged fields at the end of a struct (KIP-482).
    pub fn tags(&mut self, tags: Tags) {
        self.unsigned_varint(tags.count);
        self.append(tags.fields);
    }

    /// The tagged fields of a struct that has none.
    #[inline]
    pub fn no_tags(&mut self) {
        self.buffer.push(0);
    }

    fn append(&mut self, other: Writer) {
        let at = self.buffer.len();
        self.buffer.extend_from_slice(&other.buffer);
        self.shared.extend(other.shared.into_iter().map(|(position, piece)| (at + position, piece)));
        self.shared_bytes += other.shared_bytes;
    }
}

/// Gathers the tagged fields that are set. Allocates nothing if none is set.
#[derive(Debug, Default)]
pub struct Tags {
    count: u32,
    fields: Writer,
}

impl Tags {
    /// Adds the field `tag`. Tags must be added in rising order. `value` writes the field as if it were not tagged.
    pub fn put(
        &mut self,
        tag: u32,
        value: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut writer = Writer::new();
        value(&mut writer)?;
        self.count += 1;
        self.fields.unsigned_varint(tag);
        self.fields
            .unsigned_varint(u32::try_from(writer.len()).map_err(|_| EncodeError::TooLong(writer.len()))?);
        self.fields.append(writer);
        Ok(())
    }
}

macro_rules! fixed_part {
    ($($type:ty, $name:ident, $bytes:literal;)*) => {$(
        impl Part for $type {
            const LEAST_BYTES: usize = $bytes;
            fn min_bytes(_: i16, _: bool) -> usize {
                $bytes
            }
            fn read(reader: &mut Reader, _: i16, _: bool) -> Result<Self, DecodeError> {
                reader.$name()
            }
            fn write(&self, writer: &mut Writer, _: i16, _: bool) -> Result<(), EncodeError> {
                writer.$name(*self);
                Ok(())
            }
        }
    )*};
}

fixed_part! {
    bool, bool, 1;
    i8, i8, 1;
    i16, i16, 2;
    u16, u16, 2;
    i32, i32, 4;
    u32, u32, 4;
    i64, i64, 8;
    f64, f64, 8;
    Uuid, uuid, 16;
}

impl Part for Text {
    const LEAST_BYTES: usize = 1;
    fn min_bytes(_: i16, flexible: bool) -> usize {
        if flexible { 1 } else { 2 }
    }
    fn read(reader: &mut Reader, _: i16, flexible: bool) -> Result<Self, DecodeError> {
        reader.text(flexible)
    }
    fn write(&self, writer: &mut Writer, _: i16, flexible: bool) -> Result<(), EncodeError> {
        writer.text(self, flexible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pieces_are_shared_and_keep_their_place() {
        let large = Bytes::from(vec![7; SHARE_BYTES_MIN]);
        let small = Bytes::from_static(b"small");
        let mut writer = Writer::new_frame();
        writer.i16(1);
        writer.share(&large);
        writer.share(&small);
        let mut tags = Tags::default();
        tags.put(3, |writer| writer.bytes(&large, true)).unwrap();
        writer.tags(tags);
        let frame = writer.finish_frame().unwrap();
        assert_eq!(frame.parts.len(), 4);
        assert_eq!((frame.parts[1].as_ptr(), frame.parts[3].as_ptr()), (large.as_ptr(), large.as_ptr()));
        let size = i32::try_from(frame.len() - 4).unwrap().to_be_bytes();
        let expected =
            [&size[..], b"\x00\x01", &large, b"small", b"\x01\x03\x82\x20\x81\x20", &large].concat();
        assert_eq!(frame.to_bytes(), expected);
    }

    #[test]
    fn a_message_that_quotes_too_much_is_cut_and_nothing_else_is() {
        let long = Some(Text::from("ä".repeat(20_000)));
        let mut writer = Writer::new();
        assert!(writer.nullable_text(&long, false, true, "Answer.Name").is_err());
        writer.nullable_text(&long, false, true, "Answer.ErrorMessage").unwrap();
        let mut reader = Reader::new(writer.finish().to_bytes());
        assert_eq!(reader.text(false).unwrap().as_str(), "ä".repeat(MESSAGE_BYTES_MAX / 2));
    }

    #[test]
    fn varints_come_back() {
        let values = [0, 1, -1, 63, 64, -65, i32::MAX, i32::MIN];
        let mut writer = Writer::new();
        for value in values {
            writer.varint(value);
            writer.varlong(i64::from(value) * 4_294_967_296);
            writer.unsigned_varint(value.cast_unsigned());
        }
        let mut reader = Reader::new(writer.finish().to_bytes());
        for value in values {
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.varlong(), Ok(i64::from(value) * 4_294_967_296));
            assert_eq!(reader.unsigned_varint(), Ok(value.cast_unsigned()));
        }
        reader.expect_end().unwrap();
    }
}
