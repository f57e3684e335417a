//! [`Reader`]: takes the protocol's primitive types off the front of an untrusted frame.
//!
//! Invariants, for any input:
//! - nothing panics, and nothing is read past the end of the frame or of the tagged field being read;
//! - a length is compared with the bytes that remain, and with Kafka's own caps, before anything is allocated for it;
//! - all memory for array elements comes out of one budget per frame, so the cost of a frame is bounded by its length;
//! - strings and byte fields are slices of the frame: they allocate nothing.

use bytes::Bytes;
use uuid::Uuid;

use crate::{Records, Text};

/// Elements of one array: Kafka 4.4 refuses more when decoding.
pub const ARRAY_ELEMENTS_MAX: usize = 1_000_000;
/// Tagged fields of one struct: Kafka 4.4 refuses more when decoding.
pub const TAGGED_FIELDS_MAX: u32 = 10_000;
/// Bytes of a string, in either encoding: the older one has a 16-bit length, and Kafka holds the compact one to it.
pub const TEXT_BYTES_MAX: usize = i16::MAX as usize;
/// Element memory allowed to any frame, however short, so that the budget never matters for small requests.
pub const BUDGET_BYTES_MIN: usize = 1 << 20;
/// Element memory allowed per byte of frame. No element type takes more memory than this times the fewest bytes of its
/// encoding (asserted at compile time). A frame that holds the elements it claims is therefore not refused below
/// [`BUDGET_BYTES_MAX`]. Only repeated claims for the same bytes, in arrays within arrays, run out of budget.
pub const BUDGET_PER_FRAME_BYTE: usize = 64;
/// Element memory allowed to any frame, however long: enough for [`ARRAY_ELEMENTS_MAX`] elements in all its arrays
/// together.
pub const BUDGET_BYTES_MAX: usize = ARRAY_ELEMENTS_MAX * ELEMENT_BYTES_MIN;
/// The minimum that an element takes from the budget, however small it is itself: its handler allocates more for it.
pub const ELEMENT_BYTES_MIN: usize = 64;

/// Why a frame cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends before its claimed contents.
    #[error("the frame is cut short: {need} bytes needed, {have} remain")]
    Truncated {
        /// Bytes needed.
        need: usize,
        /// Bytes that remain.
        have: usize,
    },
    /// A length that is negative without meaning null, or longer than its type allows.
    #[error("a field claims the impossible length {0}")]
    Length(i64),
    /// More elements or tagged fields than Kafka allows.
    #[error("{count} elements in one array or tag section, at most {cap} are allowed")]
    Caps {
        /// As claimed.
        count: usize,
        /// [`ARRAY_ELEMENTS_MAX`] or [`TAGGED_FIELDS_MAX`].
        cap: usize,
    },
    /// Arrays that claim more memory than the frame's length can justify.
    #[error("the arrays of the frame claim {need} more bytes of memory, {left} of its budget are left")]
    Budget {
        /// Bytes of memory for the array at hand.
        need: usize,
        /// Bytes left of the frame's budget.
        left: usize,
    },
    /// A string that is not UTF-8.
    #[error("a string is not valid utf-8")]
    Utf8,
    /// A variable-length integer of more bits than its type has.
    #[error("a variable-length integer overflows")]
    Varint,
    /// A null where this version allows none.
    #[error("a field is null that this version does not allow to be null")]
    Null,
    /// A tagged field whose value takes fewer bytes than its size says.
    #[error("tagged field {tag} leaves {left} bytes of its size unread")]
    TagSize {
        /// Which tagged field.
        tag: u32,
        /// Bytes it leaves unread.
        left: usize,
    },
    /// Bytes after the end of the message.
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
    /// A version that the message does not have.
    #[error("{message} has no version {version}")]
    UnsupportedVersion {
        /// The message's name in Kafka's schemas.
        message: &'static str,
        /// As claimed.
        version: i16,
    },
    /// A request with an API key that this crate does not know. The error has the fields to log it or to answer it.
    #[error("api key {key} (version {version}, correlation id {correlation_id}) is unknown")]
    UnknownApiKey {
        /// As claimed.
        key: i16,
        /// As claimed.
        version: i16,
        /// As claimed.
        correlation_id: i32,
    },
}

/// A type that can be an array element or a field: the generated structs and the primitive types.
pub trait Part: Sized {
    /// Fewest bytes of its encoding in any version; at least 1.
    const LEAST_BYTES: usize;
    /// Fewest bytes of its encoding in this version; at least 1.
    fn min_bytes(version: i16, flexible: bool) -> usize;
    /// Reads a value. After an error the position of the reader is undefined.
    fn read(reader: &mut Reader, version: i16, flexible: bool) -> Result<Self, DecodeError>;
    /// Appends a value.
    fn write(
        &self,
        writer: &mut crate::Writer,
        version: i16,
        flexible: bool,
    ) -> Result<(), crate::EncodeError>;
}

/// Reads one frame from front to back. After an error its position is undefined.
#[derive(Clone, Debug)]
pub struct Reader {
    frame: Bytes,
    at: usize,
    /// End of the frame, or of the tagged field being read; at <= end <= frame.len().
    end: usize,
    /// Bytes of element memory the frame may still ask for.
    budget: usize,
}

impl Reader {
    /// Reads `frame`, which does not include its 4-byte size.
    pub fn new(frame: Bytes) -> Reader {
        let budget = frame.len().saturating_mul(BUDGET_PER_FRAME_BYTE);
        let budget = budget.clamp(BUDGET_BYTES_MIN, BUDGET_BYTES_MAX);
        Reader { at: 0, end: frame.len(), budget, frame }
    }

    /// A reader at the same place in the same frame, with at most `bytes` of element memory.
    pub fn limited(&self, bytes: usize) -> Reader {
        Reader { budget: self.budget.min(bytes), ..self.clone() }
    }

    /// Bytes of element memory that the frame may still ask for.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.end - self.at
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Skips the next `len` bytes.
    pub fn skip(&mut self, len: usize) -> Result<(), DecodeError> {
        self.span(len).map(|_| ())
    }

    /// An error when bytes remain.
    pub fn expect_end(&self) -> Result<(), DecodeError> {
        if self.remaining() == 0 { Ok(()) } else { Err(DecodeError::Trailing(self.remaining())) }
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.frame[self.at..self.end].first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(DecodeError::Truncated { need: N, have: self.remaining() }),
        }
    }

    /// Takes the next `len` bytes and returns their place in the frame.
    #[inline]
    fn span(&mut self, len: usize) -> Result<std::ops::Range<usize>, DecodeError> {
        if len > self.remaining() {
            return Err(DecodeError::Truncated { need: len, have: self.remaining() });
        }
        let from = self.at;
        self.at += len;
        Ok(from..self.at)
    }

    /// The next `len` bytes, shared with the frame.
    pub fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let span = self.span(len)?;
        Ok(self.frame.slice(span))
    }

    /// Any byte but 0 is true, as in Kafka.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.fixed::<1>()? != [0])
    }

    /// One byte.
    #[inline]
    pub fn i8(&mut self) -> Result<i8, DecodeError> {
        Ok(i8::from_be_bytes(self.fixed()?))
    }

    /// Two bytes, big-endian like all that follow.
    #[inline]
    pub fn i16(&mut self) -> Result<i16, DecodeError> {
        Ok(i16::from_be_bytes(self.fixed()?))
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.fixed()?))
    }

    /// Four bytes.
    #[inline]
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(self.fixed()?))
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.fixed()?))
    }

    /// Eight bytes.
    #[inline]
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.fixed()?))
    }

    /// Eight bytes.
    #[inline]
    pub fn f64(&mut self) -> Result<f64, DecodeError> {
        Ok(f64::from_be_bytes(self.fixed()?))
    }

    /// Sixteen bytes.
    #[inline]
    pub fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        Ok(Uuid::from_bytes(self.fixed()?))
    }

    /// An unsigned LEB128 integer of at most 32 bits.
    #[inline]
    pub fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.fixed()?;
            if shift == 28 && byte > 0x0f {
                break;
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Varint)
    }

    /// A zigzag LEB128 integer of at most 32 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<i32, DecodeError> {
        let value = self.unsigned_varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A zigzag LEB128 integer of at most 64 bits.
    #[inline]
    pub fn varlong(&mut self) -> Result<i64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.fixed()?;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(DecodeError::Varint)
    }

    /// A length that is stored plus one in compact form; `None` is null.
    #[inline]
    fn compact_length(&mut self) -> Result<Option<usize>, DecodeError> {
        Ok(self.unsigned_varint()?.checked_sub(1).map(|length| length as usize))
    }

    #[inline]
    fn text_length(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        if flexible { self.compact_length() } else { length_or_null(i64::from(self.i16()?)) }
    }

    #[inline]
    fn length(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        if flexible { self.compact_length() } else { length_or_null(i64::from(self.i32()?)) }
    }

    fn text_of(&mut self, len: usize) -> Result<Text, DecodeError> {
        if len > TEXT_BYTES_MAX {
            return Err(DecodeError::Length(i64::try_from(len).unwrap_or(i64::MAX)));
        }
        Text::from_utf8(self.take(len)?).map_err(|_| DecodeError::Utf8)
    }

    /// A string.
    pub fn text(&mut self, flexible: bool) -> Result<Text, DecodeError> {
        let len = self.text_length(flexible)?.ok_or(DecodeError::Null)?;
        self.text_of(len)
    }

    /// A string or, when `nullable`, null.
    pub fn nullable_text(&mut self, flexible: bool, nullable: bool) -> Result<Option<Text>, DecodeError> {
        match self.text_length(flexible)? {
            Some(len) => self.text_of(len).map(Some),
            None => null(nullable),
        }
    }

    /// Bytes, shared with the frame.
    pub fn bytes(&mut self, flexible: bool) -> Result<Bytes, DecodeError> {
        let len = self.length(flexible)?.ok_or(DecodeError::Null)?;
        self.take(len)
    }

    /// Bytes or, when `nullable`, null.
    pub fn nullable_bytes(&mut self, flexible: bool, nullable: bool) -> Result<Option<Bytes>, DecodeError> {
        match self.length(flexible)? {
            Some(len) => self.take(len).map(Some),
            None => null(nullable),
        }
    }

    /// Record batches or, when `nullable`, null; shared with the frame.
    pub fn records(&mut self, flexible: bool, nullable: bool) -> Result<Option<Records>, DecodeError> {
        Ok(self.nullable_bytes(flexible, nullable)?.map(Records::from))
    }

    /// An array.
    pub fn array<T: Part>(&mut self, version: i16, flexible: bool) -> Result<Vec<T>, DecodeError> {
        self.nullable_array(version, flexible, false)?.ok_or(DecodeError::Null)
    }

    /// An array or, when `nullable`, null.
    pub fn nullable_array<T: Part>(
        &mut self,
        version: i16,
        flexible: bool,
        nullable: bool,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        const {
            assert!(
                size_of::<T>() <= BUDGET_PER_FRAME_BYTE * T::LEAST_BYTES,
                "the budget could refuse honest frames"
            );
        }
        let Some(count) = self.length(flexible)? else { return null(nullable) };
        self.admit(count, T::min_bytes(version, flexible), size_of::<T>().max(ELEMENT_BYTES_MIN))?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(T::read(self, version, flexible)?);
        }
        Ok(Some(elements))
    }

    /// Checks the claim of `count` elements before they are allocated, and takes their memory from the budget.
    fn admit(&mut self, count: usize, element_bytes_min: usize, memory: usize) -> Result<(), DecodeError> {
        if count > ARRAY_ELEMENTS_MAX {
            return Err(DecodeError::Caps { count, cap: ARRAY_ELEMENTS_MAX });
        }
        let need = count * element_bytes_min;
        if need > self.remaining() {
            return Err(DecodeError::Truncated { need, have: self.remaining() });
        }
        let memory = count * memory;
        match self.budget.checked_sub(memory) {
            Some(left) => self.budget = left,
            None => return Err(DecodeError::Budget { need: memory, left: self.budget }),
        }
        Ok(())
    }

    /// A struct behind the byte that tells it from null (-1); where this version is not `nullable` there is no byte.
    pub fn nullable<T: Part>(
        &mut self,
        version: i16,
        flexible: bool,
        nullable: bool,
    ) -> Result<Option<T>, DecodeError> {
        if nullable && self.i8()? < 0 {
            return Ok(None);
        }
        T::read(self, version, flexible).map(Some)
    }

    /// Reads the tagged fields at the end of a struct (KIP-482). `field` reads the value of a known tag and returns
    /// false for other tags, which are skipped.
    pub fn tags(
        &mut self,
        mut field: impl FnMut(&mut Reader, u32) -> Result<bool, DecodeError>,
    ) -> Result<(), DecodeError> {
        for _ in 0..self.tag_count()? {
            let tag = self.unsigned_varint()?;
            let size = self.unsigned_varint()? as usize;
            if size > self.remaining() {
                return Err(DecodeError::Truncated { need: size, have: self.remaining() });
            }
            let outer_end = std::mem::replace(&mut self.end, self.at + size);
            if !field(self, tag)? {
                self.at = self.end;
            }
            if self.at != self.end {
                return Err(DecodeError::TagSize { tag, left: self.remaining() });
            }
            self.end = outer_end;
        }
        Ok(())
    }

    /// Reads the tagged fields of a struct without known tags.
    pub fn skip_tags(&mut self) -> Result<(), DecodeError> {
        for _ in 0..self.tag_count()? {
            self.unsigned_varint()?;
            let size = self.unsigned_varint()? as usize;
            self.span(size)?;
        }
        Ok(())
    }

    fn tag_count(&mut self) -> Result<u32, DecodeError> {
        let count = self.unsigned_varint()?;
        if count > TAGGED_FIELDS_MAX {
            return Err(DecodeError::Caps { count: count as usize, cap: TAGGED_FIELDS_MAX as usize });
        }
        Ok(count)
    }
}

#[inline]
fn length_or_null(length: i64) -> Result<Option<usize>, DecodeError> {
    match usize::try_from(length) {
        Ok(length) => Ok(Some(length)),
        Err(_) if length == -1 => Ok(None),
        Err(_) => Err(DecodeError::Length(length)),
    }
}

fn null<T>(nullable: bool) -> Result<Option<T>, DecodeError> {
    if nullable { Ok(None) } else { Err(DecodeError::Null) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &'static [u8]) -> Reader {
        Reader::new(Bytes::from_static(bytes))
    }

    #[test]
    fn varints_are_read_and_overflow_is_an_error() {
        assert_eq!(reader(b"\x00").unsigned_varint(), Ok(0));
        assert_eq!(reader(b"\xff\xff\xff\xff\x0f").unsigned_varint(), Ok(u32::MAX));
        assert_eq!(reader(b"\xff\xff\xff\xff\x1f").unsigned_varint(), Err(DecodeError::Varint));
        assert_eq!(reader(b"\x80\x80\x80\x80\x80\x00").unsigned_varint(), Err(DecodeError::Varint));
        assert_eq!(reader(b"\x80").unsigned_varint(), Err(DecodeError::Truncated { need: 1, have: 0 }));
        assert_eq!(reader(b"\xff\xff\xff\xff\x0f").varint(), Ok(i32::MIN));
        assert_eq!(reader(b"\x03").varint(), Ok(-2));
        assert_eq!(reader(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").varlong(), Ok(i64::MIN));
        assert_eq!(reader(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02").varlong(), Err(DecodeError::Varint));
    }

    #[test]
    fn claims_beyond_the_frame_are_refused_before_allocation() {
        assert_eq!(
            reader(b"\x00\x0f\x42\x41").array::<i32>(0, false),
            Err(DecodeError::Caps { count: 1_000_001, cap: ARRAY_ELEMENTS_MAX })
        );
        assert_eq!(
            reader(b"\x00\x00\x00\x02\x00\x00\x00\x01").array::<i32>(0, false),
            Err(DecodeError::Truncated { need: 8, have: 4 })
        );
        assert_eq!(reader(b"\xff\xff\xff\xfe").array::<i32>(0, false), Err(DecodeError::Length(-2)));
        assert_eq!(reader(b"\xff\xff\xff\xff").array::<i32>(0, false), Err(DecodeError::Null));
        assert_eq!(reader(b"\xff\xff\xff\xff").nullable_array::<i32>(0, false, true), Ok(None));
        assert_eq!(reader(b"\x00\x05ab").text(false), Err(DecodeError::Truncated { need: 5, have: 2 }));
        assert_eq!(reader(b"\x02\xff").text(true), Err(DecodeError::Utf8));
        assert_eq!(reader(b"\x81\x80\x02").text(true), Err(DecodeError::Length(32768)));
    }

    #[test]
    fn repeated_claims_for_the_same_bytes_exhaust_the_budget() {
        let mut reader = Reader::new(Bytes::from(vec![0u8; 40_000]));
        let claims = (0..10).map(|_| reader.admit(40_000, 1, 32)).collect::<Result<Vec<_>, _>>();
        assert_eq!(claims, Err(DecodeError::Budget { need: 1_280_000, left: 0 }));
    }

    #[test]
    fn unknown_tags_are_skipped_and_known_ones_must_fill_their_size() {
        let mut known = 0;
        let mut read = |bytes| {
            reader(bytes).tags(|reader, tag| {
                if tag == 1 {
                    known = reader.i16()?;
                }
                Ok(tag == 1)
            })
        };
        assert_eq!(read(b"\x02\x05\x03abc\x01\x02\x00\x09"), Ok(()));
        assert_eq!(read(b"\x01\x01\x03\x00\x09\x00"), Err(DecodeError::TagSize { tag: 1, left: 1 }));
        assert_eq!(read(b"\x01\x01\x01\x00\x09\x00"), Err(DecodeError::Truncated { need: 2, have: 1 }));
        assert_eq!(read(b"\x91\x4e"), Err(DecodeError::Caps { count: 10_001, cap: 10_000 }));
        assert_eq!(known, 9);
    }
}
