//! The records of `__transaction_state`, as Kafka writes them (TransactionLogKey, TransactionLogValue).
//!
//! ```text
//! key           | version i16, 0 | transactional id string |
//! value, v1     | version i16 | producer id i64 | epoch i16 | timeout ms i32 | status i8 | partitions | updated i64 |
//!               | started i64 | tags: 0 previous producer id i64, 1 next producer id i64, 2 client's version i16 |
//! partitions    | nullable compact array of: topic compact string, compact array of i32, no tags |
//! value, v0     the same without tags, and with lengths of 32 and 16 bits
//! ```

use std::collections::BTreeSet;

use wire::{Bytes, DecodeError, EncodeError, Reader, Tags, Text, Writer};

use super::state::{Status, Transaction};

const KEY_VERSION: i16 = 0;
const VALUE_VERSION: i16 = 1;
const PREVIOUS_PRODUCER_ID: u32 = 0;
const NEXT_PRODUCER_ID: u32 = 1;
const CLIENT_VERSION: u32 = 2;

/// Encodes the key of a transactional id's record.
pub fn encode_key(transactional_id: &str) -> Result<Bytes, EncodeError> {
    let mut out = Writer::new();
    out.i16(KEY_VERSION);
    out.text(&Text::from(transactional_id.to_owned()), false)?;
    Ok(out.finish().to_bytes())
}

/// Decodes the transactional id of a record's key. Returns `None` for a key of another kind.
pub fn decode_key(bytes: Bytes) -> Result<Option<String>, DecodeError> {
    let mut key = Reader::new(bytes);
    if key.i16()? != KEY_VERSION {
        return Ok(None);
    }
    key.text(false).map(|id| Some(id.to_string()))
}

/// Encodes the value of a transactional id's record.
pub fn encode_value(of: &Transaction) -> Result<Bytes, EncodeError> {
    let mut out = Writer::new();
    out.i16(VALUE_VERSION);
    out.i64(of.producer_id);
    out.i16(of.epoch);
    out.i32(of.timeout_ms);
    out.i8(of.status.code());
    let mut topics: Vec<(&str, Vec<i32>)> = Vec::new();
    for (topic, index) in &of.partitions {
        match topics.last_mut().filter(|(last, _)| last == topic) {
            Some((_, indexes)) => indexes.push(*index),
            None => topics.push((topic, vec![*index])),
        }
    }
    if of.status == Status::Empty {
        // As in Kafka, the array is null.
        out.unsigned_varint(0);
    } else {
        out.unsigned_varint(compact(topics.len()));
        for (topic, indexes) in topics {
            out.text(&Text::from(topic.to_owned()), true)?;
            out.unsigned_varint(compact(indexes.len()));
            indexes.into_iter().for_each(|index| out.i32(index));
            out.no_tags();
        }
    }
    out.i64(of.updated_ms);
    out.i64(of.start_ms);
    let mut tags = Tags::default();
    let id = |id: i64| {
        move |out: &mut Writer| {
            out.i64(id);
            Ok(())
        }
    };
    if of.previous_producer_id != -1 {
        tags.put(PREVIOUS_PRODUCER_ID, id(of.previous_producer_id))?;
    }
    if of.next_producer_id != -1 {
        tags.put(NEXT_PRODUCER_ID, id(of.next_producer_id))?;
    }
    if of.client_version != 0 {
        tags.put(CLIENT_VERSION, |out| {
            out.i16(of.client_version);
            Ok(())
        })?;
    }
    out.tags(tags);
    Ok(out.finish().to_bytes())
}

/// The stored length of a compact array: one more than the length, because 0 is null.
fn compact(length: usize) -> u32 {
    u32::try_from(length + 1).unwrap_or(u32::MAX)
}

/// Decodes the state in a record's value. Returns `None` for an unknown version or status.
pub fn decode_value(bytes: Bytes) -> Result<Option<Transaction>, DecodeError> {
    let mut value = Reader::new(bytes);
    let version = value.i16()?;
    if !(0..=VALUE_VERSION).contains(&version) {
        return Ok(None);
    }
    let flexible = version >= 1;
    let producer_id = value.i64()?;
    let mut of = Transaction::new(producer_id, 0, 0);
    of.epoch = value.i16()?;
    of.timeout_ms = value.i32()?;
    let Some(status) = Status::from_code(value.i8()?) else { return Ok(None) };
    of.status = status;
    of.partitions = partitions(&mut value, flexible)?;
    of.updated_ms = value.i64()?;
    of.start_ms = value.i64()?;
    if flexible {
        value.tags(|value, tag| {
            match tag {
                PREVIOUS_PRODUCER_ID => of.previous_producer_id = value.i64()?,
                NEXT_PRODUCER_ID => of.next_producer_id = value.i64()?,
                CLIENT_VERSION => of.client_version = value.i16()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
    }
    Ok(Some(of))
}

fn partitions(value: &mut Reader, flexible: bool) -> Result<BTreeSet<(String, i32)>, DecodeError> {
    // A null array has length -1, or 0 in the compact form, where other lengths are stored plus one.
    let length = |value: &mut Reader| match flexible {
        true => value.unsigned_varint().map(|length| i64::from(length) - 1),
        false => value.i32().map(i64::from),
    };
    let mut partitions = BTreeSet::new();
    for _ in 0..length(value)? {
        let topic = value.text(flexible)?;
        for _ in 0..length(value)? {
            partitions.insert((topic.to_string(), value.i32()?));
        }
        if flexible {
            value.skip_tags()?;
        }
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ongoing() -> Transaction {
        let mut of = Transaction::new(5, 60_000, 7);
        of.epoch = 3;
        of.status = Status::Ongoing;
        of.partitions = [("a".to_owned(), 1), ("a".to_owned(), 2), ("b".to_owned(), 0)].into();
        of.start_ms = 6;
        of
    }

    #[test]
    fn records_are_as_kafka_writes_them_and_are_read_back() {
        assert_eq!(&encode_key("id").unwrap()[..], b"\0\0\0\x02id");
        assert_eq!(decode_key(encode_key("id").unwrap()), Ok(Some("id".to_owned())));
        assert_eq!(decode_key(Bytes::from_static(b"\0\x09")), Ok(None));
        let mut of = ongoing();
        let expected = b"\0\x01\0\0\0\0\0\0\0\x05\0\x03\0\0\xea\x60\x01\
            \x03\x02a\x03\0\0\0\x01\0\0\0\x02\0\x02b\x02\0\0\0\0\0\
            \0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x06\0";
        assert_eq!(encode_value(&of).unwrap(), &expected[..]);
        assert_eq!(decode_value(encode_value(&of).unwrap()), Ok(Some(of.clone())));
        of.previous_producer_id = 4;
        of.next_producer_id = 6;
        of.client_version = 2;
        assert_eq!(decode_value(encode_value(&of).unwrap()), Ok(Some(of.clone())));
        of.status = Status::Empty;
        of.partitions.clear();
        let stored = encode_value(&of).unwrap();
        assert_eq!(decode_value(stored.clone()), Ok(Some(of)));
        for cut in 0..stored.len() {
            assert!(decode_value(stored.slice(..cut)).is_err());
        }
    }

    #[test]
    fn the_first_version_is_read() {
        let stored = b"\0\0\0\0\0\0\0\0\0\x05\0\x03\0\0\xea\x60\x01\
            \0\0\0\x02\0\x01a\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\x01b\0\0\0\x01\0\0\0\0\
            \0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x06";
        assert_eq!(decode_value(Bytes::from_static(stored)), Ok(Some(ongoing())));
    }
}
