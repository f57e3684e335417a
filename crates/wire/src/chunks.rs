//! Bytes in several pieces: [`Records`] inside a message, [`Chunks`] for a whole frame on its way out.
//!
//! Pieces are shared, never copied, so that record data goes from the log's buffers to a vectored write untouched.

use bytes::Bytes;

/// The value of a `records` field: record batches in one or more pieces, in order.
///
/// Two values are equal if their bytes are, however they are split into pieces.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// The first piece; empty when there are no records.
    pub first: Bytes,
    /// The pieces after it.
    pub rest: Vec<Bytes>,
}

impl Records {
    /// No records (not the same as a null field).
    pub const fn new() -> Records {
        Records { first: Bytes::new(), rest: Vec::new() }
    }

    /// Appends a piece, without copying it.
    pub fn push(&mut self, piece: Bytes) {
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = piece;
        } else if !piece.is_empty() {
            self.rest.push(piece);
        }
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.chunks().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.chunks().all(Bytes::is_empty)
    }

    /// The pieces in order.
    pub fn chunks(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// All bytes as one slice; copies only when there are several pieces.
    pub fn to_bytes(&self) -> Bytes {
        if self.rest.is_empty() { self.first.clone() } else { join(self.chunks(), self.len()) }
    }
}

impl From<Bytes> for Records {
    fn from(first: Bytes) -> Records {
        Records { first, rest: Vec::new() }
    }
}

impl PartialEq for Records {
    fn eq(&self, other: &Records) -> bool {
        if self.rest.is_empty() && other.rest.is_empty() {
            return self.first == other.first;
        }
        self.len() == other.len() && self.to_bytes() == other.to_bytes()
    }
}

impl Eq for Records {}

/// An encoded frame in pieces, ready for a vectored write.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    /// The pieces in order; none is empty.
    pub parts: Vec<Bytes>,
}

impl Chunks {
    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// All bytes as one slice; copies only when there are several pieces.
    pub fn to_bytes(&self) -> Bytes {
        match self.parts.as_slice() {
            [] => Bytes::new(),
            [only] => only.clone(),
            parts => join(parts.iter(), self.len()),
        }
    }
}

fn join<'a>(pieces: impl Iterator<Item = &'a Bytes>, total_bytes: usize) -> Bytes {
    let mut all = Vec::with_capacity(total_bytes);
    pieces.for_each(|piece| all.extend_from_slice(piece));
    Bytes::from(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_equal_by_their_bytes() {
        let mut pieces = Records::new();
        pieces.push(Bytes::from_static(b"ab"));
        pieces.push(Bytes::new());
        pieces.push(Bytes::from_static(b"cd"));
        assert_eq!((pieces.len(), pieces.rest.len(), pieces.is_empty()), (4, 1, false));
        assert_eq!(pieces, Records::from(Bytes::from_static(b"abcd")));
        assert_ne!(pieces, Records::from(Bytes::from_static(b"abce")));
        assert_eq!(pieces.to_bytes(), "abcd");
        assert!(Records::new().is_empty());
    }
}
