//! [`Text`]: a string that shares the frame it was read from.
//!
//! Invariant: the bytes are valid UTF-8. This is checked when a `Text` is made, and the bytes never change after that.
//! The crate has no `unsafe`, so [`Text::as_str`] checks them once more. For the short names of the protocol that costs
//! nanoseconds.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;

/// A refcounted UTF-8 string; cloning it copies no bytes.
///
/// A `Text` read from a frame keeps the whole frame alive. State that outlives a request must use [`Text::detached`].
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(Bytes);

impl Text {
    /// The empty string.
    pub const EMPTY: Text = Text(Bytes::new());

    /// A string that lives as long as the program.
    pub const fn from_static(text: &'static str) -> Text {
        Text(Bytes::from_static(text.as_bytes()))
    }

    /// A copy of any string.
    pub fn copied(text: &str) -> Text {
        Text(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// Takes `bytes` without copying them. Fails if they are not UTF-8.
    pub fn from_utf8(bytes: Bytes) -> Result<Text, std::str::Utf8Error> {
        std::str::from_utf8(&bytes)?;
        Ok(Text(bytes))
    }

    /// The string.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a Text is checked where it is made")
    }

    /// Its bytes, shared.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Its bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first bytes of the string, at most `bytes_max`, without a copy and without a part of a character.
    pub fn front(&self, bytes_max: usize) -> Text {
        Text(self.0.slice(..self.as_str().floor_char_boundary(bytes_max)))
    }

    /// A copy that does not share the frame, and so does not keep it alive.
    pub fn detached(&self) -> Text {
        Text(Bytes::copy_from_slice(&self.0))
    }
}

impl Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

// As `str` hashes, which `Borrow<str>` promises; byte order is already `str`'s order.
impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Text {
        Text::from_static(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(Bytes::from(text.into_bytes()))
    }
}

impl From<Text> for String {
    fn from(text: Text) -> String {
        text.as_str().to_owned()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    #[test]
    fn it_is_found_by_str_in_both_kinds_of_map() {
        let name = Text::from(String::from("orders"));
        let hashed = HashMap::from([(name.clone(), 1)]);
        let sorted = BTreeMap::from([(name.clone(), 2)]);
        assert_eq!((hashed.get("orders"), sorted.get("orders")), (Some(&1), Some(&2)));
        assert_eq!(
            (name.to_string(), format!("{name:?}"), name.len()),
            ("orders".into(), "\"orders\"".into(), 6)
        );
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused() {
        assert!(Text::from_utf8(Bytes::from_static(b"a\xffb")).is_err());
        assert_eq!(Text::from_utf8(Bytes::from_static("é".as_bytes())).unwrap(), "é");
    }
}
