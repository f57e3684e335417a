//! The records of `__consumer_offsets`, byte for byte as Kafka writes them, so that its tools can read the topic.
//!
//! Integers are big-endian. `string` is an i16 length and UTF-8 (-1: null), `bytes` an i32 length and the bytes.
//! ```text
//! offset key    v0-1  i16 version, string group, string topic, i32 partition
//! offset value  v0    i16 version, i64 offset, string metadata, i64 commit time
//!               v1    as v0, then i64 expire time                                    written if the client set one
//!               v2    as v0
//!               v3    i64 offset, i32 leader epoch, string metadata, i64 commit time written otherwise
//!               v4    as v3, compact strings, tagged fields
//! group key     v2    i16 version, string group
//! group value   v0-4  i16 version, string protocol type, i32 generation, string? protocol, string? leader,
//!                     i64 state time (v2+), i32 count, members                       v3 is written
//! member        v0-4  string id, string? instance id (v3+), string client id, string client host,
//!                     i32 rebalance timeout (v1+), i32 session timeout, bytes subscription, bytes assignment
//! ```
//! v4 is flexible: lengths are unsigned varints, one more than the length (0: null), and each structure ends in tagged
//! fields, which are skipped. A record without value is a tombstone. Keys of other versions belong to newer kinds of
//! groups.
//!
//! Decoding trusts nothing: every length is checked against the bytes that remain before anything is allocated.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};

use super::offsets::{CommittedOffset, OffsetKey};

const OFFSET_KEY_VERSION: i16 = 1;
const GROUP_KEY_VERSION: i16 = 2;
const VALUE_VERSION: i16 = 3;
const VALUE_VERSION_MAX: i16 = 4;
const EXPIRING_OFFSET_VERSION: i16 = 1;
const FLEXIBLE_SINCE: i16 = 4;
/// A flexible member takes at least its lengths and timeouts: 1 + 1 + 1 + 1 + 4 + 4 + 1 + 1 + 1 bytes.
const MEMBER_BYTES_MIN: usize = 15;

/// The reason why a record cannot be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record ends too early, or one of its lengths is wrong.
    #[error("the record is cut short or a length in it is wrong")]
    Truncated,
    /// A string is not UTF-8.
    #[error("the record holds a string that is not utf-8")]
    NotUtf8,
    /// The value has a version that this code does not know.
    #[error("the record's value has the unknown version {0}")]
    UnknownVersion(i16),
    /// The record contradicts itself.
    #[error("the record contradicts itself")]
    Inconsistent,
    /// A string is longer than 32767 bytes, the limit of the format.
    #[error("a string or a byte array is too long for the record")]
    TooLong,
}

/// A group as its record stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// The protocol type. Empty if the group never had members.
    pub protocol_type: String,
    /// Its generation.
    pub generation: i32,
    /// The chosen protocol. Present if the group has members.
    pub protocol: Option<String>,
    /// The leader's member id. Present if the group has members.
    pub leader: Option<String>,
    /// Time of entry into the current state, in milliseconds since the Unix epoch; v2+.
    pub state_timestamp_ms: Option<i64>,
    /// Its members.
    pub members: Vec<MemberSnapshot>,
}

/// A member as the group's record stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSnapshot {
    /// Its member id.
    pub member_id: String,
    /// Its `group.instance.id`; v3+.
    pub instance_id: Option<String>,
    /// Its client id.
    pub client_id: String,
    /// The client's address.
    pub client_host: String,
    /// In milliseconds. A record before v1 has none; the session timeout stands in.
    pub rebalance_timeout_ms: i32,
    /// In milliseconds.
    pub session_timeout_ms: i32,
    /// The member's metadata for the chosen protocol.
    pub subscription: Bytes,
    /// The assignment from the leader.
    pub assignment: Bytes,
}

impl GroupSnapshot {
    /// Checks the properties that a group relies on.
    pub(super) fn validate(&self) -> Result<(), RecordError> {
        let ids: BTreeSet<_> = self.members.iter().map(|m| &m.member_id).collect();
        let instances: Vec<_> = self.members.iter().filter_map(|m| m.instance_id.as_ref()).collect();
        let unique_instances = instances.iter().collect::<BTreeSet<_>>().len() == instances.len();
        let led = self.leader.as_ref().is_some_and(|leader| ids.contains(leader)) && self.protocol.is_some();
        let unique = ids.len() == self.members.len() && unique_instances;
        let typed = !self.protocol_type.is_empty();
        if self.generation < 0 || !unique || !(self.members.is_empty() || (led && typed)) {
            return Err(RecordError::Inconsistent);
        }
        Ok(())
    }
}

/// A record of `__consumer_offsets`. Without a value it is a tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupRecord {
    /// A committed offset.
    Offset {
        /// The group that committed it.
        group: String,
        /// The partition of the offset.
        key: OffsetKey,
        /// The offset.
        value: Option<CommittedOffset>,
    },
    /// A group.
    Group {
        /// Its id.
        group: String,
        /// The group.
        value: Option<GroupSnapshot>,
    },
    /// A key of a newer kind of group.
    Unknown {
        /// The key's version, which identifies its kind.
        version: i16,
    },
}

/// Encodes the key of an offset's record.
///
/// # Errors
/// [`RecordError::TooLong`].
pub fn encode_offset_key(group: &str, key: &OffsetKey) -> Result<Bytes, RecordError> {
    let mut out = BytesMut::with_capacity(10 + group.len() + key.topic.len());
    out.put_i16(OFFSET_KEY_VERSION);
    put_string(&mut out, Some(group))?;
    put_string(&mut out, Some(&key.topic))?;
    out.put_i32(key.partition);
    Ok(out.freeze())
}

/// Encodes the value of an offset's record.
///
/// # Errors
/// [`RecordError::TooLong`].
pub fn encode_offset(value: &CommittedOffset) -> Result<Bytes, RecordError> {
    let mut out = BytesMut::with_capacity(24 + value.metadata.len());
    let version = if value.expire_timestamp_ms.is_some() { EXPIRING_OFFSET_VERSION } else { VALUE_VERSION };
    out.put_i16(version);
    out.put_i64(value.offset);
    if version == VALUE_VERSION {
        out.put_i32(value.leader_epoch);
    }
    put_string(&mut out, Some(&value.metadata))?;
    out.put_i64(value.commit_timestamp_ms);
    if let Some(at) = value.expire_timestamp_ms {
        out.put_i64(at);
    }
    Ok(out.freeze())
}

/// Encodes the key of a group's record.
///
/// # Errors
/// [`RecordError::TooLong`].
pub fn encode_group_key(group: &str) -> Result<Bytes, RecordError> {
    let mut out = BytesMut::with_capacity(4 + group.len());
    out.put_i16(GROUP_KEY_VERSION);
    put_string(&mut out, Some(group))?;
    Ok(out.freeze())
}

/// Encodes the value of a group's record.
///
/// # Errors
/// [`RecordError::TooLong`].
pub fn encode_group(value: &GroupSnapshot) -> Result<Bytes, RecordError> {
    let mut out = BytesMut::new();
    out.put_i16(VALUE_VERSION);
    put_string(&mut out, Some(&value.protocol_type))?;
    out.put_i32(value.generation);
    put_string(&mut out, value.protocol.as_deref())?;
    put_string(&mut out, value.leader.as_deref())?;
    out.put_i64(value.state_timestamp_ms.unwrap_or(-1));
    out.put_i32(i32::try_from(value.members.len()).map_err(|_| RecordError::TooLong)?);
    for member in &value.members {
        put_string(&mut out, Some(&member.member_id))?;
        put_string(&mut out, member.instance_id.as_deref())?;
        put_string(&mut out, Some(&member.client_id))?;
        put_string(&mut out, Some(&member.client_host))?;
        out.put_i32(member.rebalance_timeout_ms);
        out.put_i32(member.session_timeout_ms);
        put_bytes(&mut out, &member.subscription)?;
        put_bytes(&mut out, &member.assignment)?;
    }
    Ok(out.freeze())
}

/// Decodes a record. A value of `None` is a tombstone.
///
/// # Errors
/// [`RecordError`] if the bytes are not such a record.
pub fn decode_record(key: &[u8], value: Option<&[u8]>) -> Result<GroupRecord, RecordError> {
    let mut key = Reader::new(key);
    match key.i16()? {
        0 | OFFSET_KEY_VERSION => {
            let group = key.string()?;
            let key = OffsetKey { topic: key.string()?.into(), partition: key.i32()? };
            let value = value.map(decode_offset).transpose()?;
            Ok(GroupRecord::Offset { group, key, value })
        }
        GROUP_KEY_VERSION => {
            let group = key.string()?;
            let value = value.map(decode_group).transpose()?;
            Ok(GroupRecord::Group { group, value })
        }
        version => Ok(GroupRecord::Unknown { version }),
    }
}

fn decode_offset(bytes: &[u8]) -> Result<CommittedOffset, RecordError> {
    let (mut reader, version) = Reader::versioned(bytes)?;
    let offset = reader.i64()?;
    let leader_epoch = if version >= 3 { reader.i32()? } else { -1 };
    let metadata = reader.string()?;
    let commit_timestamp_ms = reader.i64()?;
    let expire_timestamp_ms = if version == EXPIRING_OFFSET_VERSION { Some(reader.i64()?) } else { None };
    reader.skip_tags()?;
    let expire_timestamp_ms = expire_timestamp_ms.filter(|at| *at != -1);
    Ok(CommittedOffset { offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms })
}

fn decode_group(bytes: &[u8]) -> Result<GroupSnapshot, RecordError> {
    let (mut reader, version) = Reader::versioned(bytes)?;
    let protocol_type = reader.string()?;
    let generation = reader.i32()?;
    let protocol = reader.nullable_string()?;
    let leader = reader.nullable_string()?;
    let state_timestamp_ms = if version >= 2 { Some(reader.i64()?).filter(|at| *at != -1) } else { None };
    let count = reader.count(MEMBER_BYTES_MIN)?;
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        members.push(decode_member(&mut reader, version)?);
    }
    reader.skip_tags()?;
    Ok(GroupSnapshot { protocol_type, generation, protocol, leader, state_timestamp_ms, members })
}

fn decode_member(reader: &mut Reader<'_>, version: i16) -> Result<MemberSnapshot, RecordError> {
    let member_id = reader.string()?;
    let instance_id = if version >= 3 { reader.nullable_string()? } else { None };
    let client_id = reader.string()?;
    let client_host = reader.string()?;
    let rebalance_timeout_ms = if version >= 1 { reader.i32()? } else { -1 };
    let session_timeout_ms = reader.i32()?;
    let rebalance_timeout_ms =
        if rebalance_timeout_ms == -1 { session_timeout_ms } else { rebalance_timeout_ms };
    let subscription = Bytes::copy_from_slice(reader.bytes()?);
    let assignment = Bytes::copy_from_slice(reader.bytes()?);
    reader.skip_tags()?;
    Ok(MemberSnapshot {
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    })
}

/// The topics that a consumer subscribes to, from its metadata: i16 version, i32 count, the topics as strings. All
/// versions begin with these fields.
///
/// # Errors
/// [`RecordError`] if the bytes have another form.
pub fn subscribed_topics(metadata: &[u8]) -> Result<BTreeSet<String>, RecordError> {
    let mut reader = Reader::new(metadata);
    let _version = reader.i16()?;
    let count = reader.count(2)?;
    (0..count).map(|_| reader.string()).collect()
}

fn put_string(out: &mut BytesMut, string: Option<&str>) -> Result<(), RecordError> {
    let Some(string) = string else {
        out.put_i16(-1);
        return Ok(());
    };
    out.put_i16(i16::try_from(string.len()).map_err(|_| RecordError::TooLong)?);
    out.put_slice(string.as_bytes());
    Ok(())
}

fn put_bytes(out: &mut BytesMut, bytes: &[u8]) -> Result<(), RecordError> {
    out.put_i32(i32::try_from(bytes.len()).map_err(|_| RecordError::TooLong)?);
    out.put_slice(bytes);
    Ok(())
}

/// Reads values from the front of untrusted bytes.
struct Reader<'a> {
    rest: &'a [u8],
    flexible: bool,
}

impl<'a> Reader<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest, flexible: false }
    }

    /// Reads a value that begins with its version.
    fn versioned(bytes: &'a [u8]) -> Result<(Self, i16), RecordError> {
        let mut reader = Self::new(bytes);
        let version = reader.i16()?;
        if !(0..=VALUE_VERSION_MAX).contains(&version) {
            return Err(RecordError::UnknownVersion(version));
        }
        reader.flexible = version >= FLEXIBLE_SINCE;
        Ok((reader, version))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], RecordError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(RecordError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        self.take(N)?.try_into().map_err(|_| RecordError::Truncated)
    }

    fn i16(&mut self) -> Result<i16, RecordError> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, RecordError> {
        self.array().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, RecordError> {
        self.array().map(i64::from_be_bytes)
    }

    fn unsigned_varint(&mut self) -> Result<usize, RecordError> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            let bits = u32::from(byte & 0x7f);
            if bits > u32::MAX >> shift {
                return Err(RecordError::Truncated);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return usize::try_from(value).map_err(|_| RecordError::Truncated);
            }
        }
        Err(RecordError::Truncated)
    }

    /// Reads a nullable length in the encoding of the version. `fixed` reads the length if it is not a varint.
    fn length(
        &mut self,
        fixed: impl Fn(&mut Self) -> Result<i32, RecordError>,
    ) -> Result<Option<usize>, RecordError> {
        if self.flexible {
            return Ok(self.unsigned_varint()?.checked_sub(1));
        }
        match fixed(self)? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| RecordError::Truncated),
        }
    }

    fn nullable_string(&mut self) -> Result<Option<String>, RecordError> {
        let Some(length) = self.length(|reader| reader.i16().map(i32::from))? else { return Ok(None) };
        let bytes = self.take(length)?;
        let string = std::str::from_utf8(bytes).map_err(|_| RecordError::NotUtf8)?;
        Ok(Some(string.to_owned()))
    }

    fn string(&mut self) -> Result<String, RecordError> {
        self.nullable_string()?.ok_or(RecordError::Truncated)
    }

    fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let length = self.length(Self::i32)?.ok_or(RecordError::Truncated)?;
        self.take(length)
    }

    /// Reads the length of an array whose elements take at least `element_bytes_min` bytes each.
    fn count(&mut self, element_bytes_min: usize) -> Result<usize, RecordError> {
        let count = self.length(Self::i32)?.ok_or(RecordError::Truncated)?;
        if count > self.rest.len() / element_bytes_min {
            return Err(RecordError::Truncated);
        }
        Ok(count)
    }

    fn skip_tags(&mut self) -> Result<(), RecordError> {
        if !self.flexible {
            return Ok(());
        }
        for _ in 0..self.unsigned_varint()? {
            let _tag = self.unsigned_varint()?;
            let length = self.unsigned_varint()?;
            self.take(length)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(expire_timestamp_ms: Option<i64>, leader_epoch: i32) -> CommittedOffset {
        let metadata = "me".to_owned();
        CommittedOffset { offset: 7, leader_epoch, metadata, commit_timestamp_ms: 256, expire_timestamp_ms }
    }

    fn snapshot() -> GroupSnapshot {
        GroupSnapshot {
            protocol_type: "consumer".to_owned(),
            generation: 3,
            protocol: Some("range".to_owned()),
            leader: Some("m".to_owned()),
            state_timestamp_ms: Some(9),
            members: vec![MemberSnapshot {
                member_id: "m".to_owned(),
                instance_id: Some("i".to_owned()),
                client_id: "c".to_owned(),
                client_host: "/h".to_owned(),
                rebalance_timeout_ms: 5,
                session_timeout_ms: 6,
                subscription: Bytes::from_static(b"ab"),
                assignment: Bytes::from_static(b"c"),
            }],
        }
    }

    /// Encoded as drawn at the head of the file, with the lengths before the strings.
    const OFFSET_KEY: &[u8] = b"\0\x01\0\x01g\0\x01t\0\0\0\x02";
    const GROUP_V3: &[u8] = b"\0\x03\0\x08consumer\0\0\0\x03\0\x05range\0\x01m\0\0\0\0\0\0\0\x09\0\0\0\x01\
        \0\x01m\0\x01i\0\x01c\0\x02/h\0\0\0\x05\0\0\0\x06\0\0\0\x02ab\0\0\0\x01c";
    const GROUP_V4: &[u8] = b"\0\x04\x09consumer\0\0\0\x03\x06range\x02m\0\0\0\0\0\0\0\x09\x02\
        \x02m\x02i\x02c\x03/h\0\0\0\x05\0\0\0\x06\x03ab\x02c\0\x01\x05\x02xy";

    #[test]
    fn writes_what_kafka_writes() {
        let key = OffsetKey { topic: "t".into(), partition: 2 };
        assert_eq!(encode_offset_key("g", &key).unwrap(), OFFSET_KEY);
        assert_eq!(encode_group_key("g").unwrap(), &b"\0\x02\0\x01g"[..]);
        let v3 = b"\0\x03\0\0\0\0\0\0\0\x07\0\0\0\x05\0\x02me\0\0\0\0\0\0\x01\0";
        assert_eq!(encode_offset(&offset(None, 5)).unwrap(), &v3[..]);
        let v1 = b"\0\x01\0\0\0\0\0\0\0\x07\0\x02me\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0";
        assert_eq!(encode_offset(&offset(Some(512), 5)).unwrap(), &v1[..]);
        assert_eq!(encode_group(&snapshot()).unwrap(), GROUP_V3);
        let long = "x".repeat(32_768);
        assert_eq!(encode_group_key(&long), Err(RecordError::TooLong));
    }

    #[test]
    fn reads_every_version() {
        let read = |value: &[u8]| match decode_record(OFFSET_KEY, Some(value)).unwrap() {
            GroupRecord::Offset { group, key, value: Some(value) } => {
                assert_eq!((group.as_str(), &*key.topic, key.partition), ("g", "t", 2));
                value
            }
            other => panic!("{other:?}"),
        };
        let v0 = b"\0\0\0\0\0\0\0\0\0\x07\0\x02me\0\0\0\0\0\0\x01\0";
        assert_eq!(read(v0), offset(None, -1));
        let mut v2 = *v0;
        v2[1] = 2;
        assert_eq!(read(&v2), offset(None, -1));
        assert_eq!(read(&encode_offset(&offset(Some(512), -1)).unwrap()), offset(Some(512), -1));
        assert_eq!(read(&encode_offset(&offset(None, 5)).unwrap()), offset(None, 5));
        // Tag 0, 16 bytes: the topic id, since Kafka 4.2.
        let v4 = b"\0\x04\0\0\0\0\0\0\0\x07\0\0\0\x05\x03me\0\0\0\0\0\0\x01\0\x01\0\x100123456789abcdef";
        assert_eq!(read(v4), offset(None, 5));

        let read = |value: &[u8]| match decode_record(b"\0\x02\0\x01g", Some(value)).unwrap() {
            GroupRecord::Group { group, value: Some(value) } if group == "g" => value,
            other => panic!("{other:?}"),
        };
        assert_eq!(read(GROUP_V3), snapshot());
        assert_eq!(read(GROUP_V4), snapshot());
        let mut older = snapshot();
        older.members[0].instance_id = None;
        let v2 = b"\0\x02\0\x08consumer\0\0\0\x03\0\x05range\0\x01m\0\0\0\0\0\0\0\x09\0\0\0\x01\
            \0\x01m\0\x01c\0\x02/h\0\0\0\x05\0\0\0\x06\0\0\0\x02ab\0\0\0\x01c";
        assert_eq!(read(v2), older);
        older.state_timestamp_ms = None;
        let v1 = b"\0\x01\0\x08consumer\0\0\0\x03\0\x05range\0\x01m\0\0\0\x01\
            \0\x01m\0\x01c\0\x02/h\0\0\0\x05\0\0\0\x06\0\0\0\x02ab\0\0\0\x01c";
        assert_eq!(read(v1), older);
        older.members[0].rebalance_timeout_ms = 6;
        let v0 = b"\0\0\0\x08consumer\0\0\0\x03\0\x05range\0\x01m\0\0\0\x01\
            \0\x01m\0\x01c\0\x02/h\0\0\0\x06\0\0\0\x02ab\0\0\0\x01c";
        assert_eq!(read(v0), older);
    }

    #[test]
    fn reads_tombstones_and_passes_over_strangers() {
        let key = OffsetKey { topic: "t".into(), partition: 2 };
        let tombstone = GroupRecord::Offset { group: "g".to_owned(), key, value: None };
        assert_eq!(decode_record(OFFSET_KEY, None), Ok(tombstone));
        let tombstone = GroupRecord::Group { group: "g".to_owned(), value: None };
        assert_eq!(decode_record(b"\0\x02\0\x01g", None), Ok(tombstone));
        assert_eq!(decode_record(b"\0\x03whatever", Some(b"")), Ok(GroupRecord::Unknown { version: 3 }));
    }

    #[test]
    fn refuses_what_is_not_a_record() {
        let group = b"\0\x02\0\x01g";
        for end in 0..GROUP_V3.len() {
            assert_eq!(
                decode_record(group, Some(&GROUP_V3[..end])),
                Err(RecordError::Truncated),
                "{end} bytes"
            );
        }
        for end in 0..GROUP_V4.len() {
            assert_eq!(
                decode_record(group, Some(&GROUP_V4[..end])),
                Err(RecordError::Truncated),
                "{end} bytes"
            );
        }
        assert_eq!(decode_record(group, Some(b"\0\x05")), Err(RecordError::UnknownVersion(5)));
        assert_eq!(decode_record(b"\0\x02\0\x01\xff", None), Err(RecordError::NotUtf8));
        // A count of 2^31 - 1 members, without any member.
        let boast = b"\0\0\0\0\0\0\0\x03\xff\xff\xff\xff\x7f\xff\xff\xff";
        assert_eq!(decode_record(group, Some(boast)), Err(RecordError::Truncated));
        assert_eq!(subscribed_topics(b"\0\0\x7f\xff\xff\xff"), Err(RecordError::Truncated));
    }

    #[test]
    fn damaged_records_never_panic() {
        let mut rng = fastrand::Rng::with_seed(1);
        let samples = [GROUP_V3, GROUP_V4, OFFSET_KEY];
        for _ in 0..100_000 {
            let mut bytes = samples[rng.usize(..samples.len())].to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)];
            }
            let decoded = decode_record(b"\0\x02\0\x01g", Some(&bytes));
            if let Ok(GroupRecord::Group { value: Some(value), .. }) = decoded {
                // A decoded snapshot can be encoded and decoded again without a change.
                let again = encode_group(&value).unwrap();
                let read = decode_record(b"\0\x02\0\x01g", Some(&again)).unwrap();
                assert_eq!(read, GroupRecord::Group { group: "g".to_owned(), value: Some(value) });
            }
            let _ = decode_record(OFFSET_KEY, Some(&bytes));
            let _ = decode_record(&bytes, None);
            let _ = subscribed_topics(&bytes);
        }
    }

    #[test]
    fn subscription_of_any_version_names_topics() {
        let v1 = b"\0\x01\0\0\0\x02\0\x01t\0\x01u\xff\xff\xff\xff\0\0\0\0";
        let topics: Vec<_> = subscribed_topics(v1).unwrap().into_iter().collect();
        assert_eq!(topics, ["t", "u"]);
        assert_eq!(subscribed_topics(b"x"), Err(RecordError::Truncated));
    }

    #[test]
    fn snapshot_has_to_agree_with_itself() {
        assert_eq!(snapshot().validate(), Ok(()));
        let broken: [fn(&mut GroupSnapshot); 6] = [
            |s| s.leader = Some("stranger".to_owned()),
            |s| s.leader = None,
            |s| s.protocol = None,
            |s| s.protocol_type.clear(),
            |s| s.generation = -1,
            |s| s.members.push(s.members[0].clone()),
        ];
        for breaks in broken {
            let mut snapshot = snapshot();
            breaks(&mut snapshot);
            assert_eq!(snapshot.validate(), Err(RecordError::Inconsistent), "{snapshot:?}");
        }
    }
}
