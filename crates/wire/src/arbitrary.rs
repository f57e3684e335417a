//! Pseudo-random messages for the tests. The generated structs fill only the fields of the given version, and set null
//! only where it is allowed, so that a message encoded at that version decodes to an equal one.

use bytes::Bytes;
use uuid::Uuid;

use crate::{Message, Records, Text};

/// A stream of pseudo-random values (SplitMix64), the same for the same seed.
pub struct Source {
    state: u64,
    /// The depth of nested arrays at the current value. Deeper arrays are shorter.
    depth: u64,
}

impl Source {
    pub fn new(seed: u64) -> Source {
        Source { state: seed, depth: 0 }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    pub fn any<T: Arbitrary>(&mut self, version: i16) -> T {
        T::arbitrary(self, version)
    }

    pub fn option<T: Arbitrary>(&mut self, version: i16, nullable: bool) -> Option<T> {
        if nullable && self.below(4) == 0 { None } else { Some(self.any(version)) }
    }
}

/// A type with random values.
pub trait Arbitrary: Sized {
    /// A value that `version` can carry.
    fn arbitrary(source: &mut Source, version: i16) -> Self;
}

macro_rules! arbitrary_integers {
    ($($type:ty)*) => {$(
        impl Arbitrary for $type {
            fn arbitrary(source: &mut Source, _: i16) -> Self {
                match source.below(8) {
                    0 => <$type>::MIN,
                    1 => <$type>::MAX,
                    2 => 0,
                    _ => {
                        let bytes = source.next().to_le_bytes();
                        <$type>::from_le_bytes(*bytes.first_chunk().unwrap())
                    }
                }
            }
        }
    )*};
}

arbitrary_integers!(i8 i16 u16 i32 u32 i64);

impl Arbitrary for bool {
    fn arbitrary(source: &mut Source, _: i16) -> bool {
        source.below(2) == 0
    }
}

impl Arbitrary for f64 {
    fn arbitrary(source: &mut Source, version: i16) -> f64 {
        f64::from(i32::arbitrary(source, version)) / 8.0
    }
}

impl Arbitrary for Uuid {
    fn arbitrary(source: &mut Source, _: i16) -> Uuid {
        Uuid::from_u64_pair(source.next(), source.next())
    }
}

impl Arbitrary for Text {
    fn arbitrary(source: &mut Source, _: i16) -> Text {
        // A compact length needs a second byte from about 127 bytes on.
        let len = if source.below(8) == 0 { 100 + source.below(60) } else { source.below(12) };
        let mut text = String::new();
        for _ in 0..len {
            text.push(match source.below(8) {
                0 => 'é',
                1 => '水',
                2 => '🌊',
                3 => '-',
                _ => 'a',
            });
        }
        Text::from(text)
    }
}

impl Arbitrary for Bytes {
    fn arbitrary(source: &mut Source, _: i16) -> Bytes {
        let len = if source.below(8) == 0 { 4000 + source.below(200) } else { source.below(40) };
        Bytes::from(source.bytes(len))
    }
}

impl Arbitrary for Records {
    fn arbitrary(source: &mut Source, version: i16) -> Records {
        let mut records = Records::new();
        (0..source.below(4)).for_each(|_| records.push(source.any(version)));
        records
    }
}

impl<T: Arbitrary> Arbitrary for Vec<T> {
    fn arbitrary(source: &mut Source, version: i16) -> Vec<T> {
        source.depth += 1;
        let len = source.below(5_u64.saturating_sub(source.depth).max(2));
        let elements = (0..len).map(|_| source.any(version)).collect();
        source.depth -= 1;
        elements
    }
}

/// [`crate::messages::each`] calls it for every message type.
pub trait Visitor {
    /// Called once for each.
    fn visit<M: Message + Arbitrary + Clone + PartialEq + Default + std::fmt::Debug>(&mut self);
}
