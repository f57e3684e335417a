//! Requests and answers of etcd's API, version 3, in the JSON form of its gateway: bytes are base64, numbers of 64 bits
//! are strings, and fields with their default are left out of answers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Int(pub i64);

impl Int {
    /// The number as a revision, which is never negative.
    pub fn revision(self) -> u64 {
        self.0.unsigned_abs()
    }

    /// A revision as a number.
    pub fn of_revision(revision: u64) -> Int {
        Int(i64::try_from(revision).unwrap_or(i64::MAX))
    }
}

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Int, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map(Int).map_err(serde::de::Error::custom)
    }
}

/// A byte string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        Bytes(text.into_bytes())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Bytes).map_err(serde::de::Error::custom)
    }
}

/// The end of the range of all keys with a prefix: the first key behind them.
pub fn prefix_end(prefix: &Bytes) -> Bytes {
    let mut end = prefix.0.clone();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Bytes(end);
        }
    }
    // All keys from the prefix on.
    Bytes(vec![0])
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    pub revision: Int,
}

/// An answer of which nothing is read.
#[derive(Debug, Deserialize)]
pub struct Absent {}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct KeyValue {
    pub key: Bytes,
    pub mod_revision: Int,
    pub value: Bytes,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct RangeRequest {
    pub key: Bytes,
    pub range_end: Bytes,
    pub limit: Int,
    /// Zero asks for the newest.
    pub revision: Int,
    pub keys_only: bool,
}

impl RangeRequest {
    /// The request for one key.
    pub fn of(key: Bytes) -> RangeRequest {
        RangeRequest { key, ..RangeRequest::default() }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeResponse {
    pub header: Header,
    pub kvs: Vec<KeyValue>,
    pub more: bool,
}

/// A condition of a transaction.
#[derive(Clone, Debug, Serialize)]
pub struct Condition {
    pub key: Bytes,
    pub target: &'static str,
    pub result: &'static str,
    pub mod_revision: Int,
}

impl Condition {
    /// `key` has this revision. Without one, it does not exist: then its revision is zero for etcd.
    pub fn new(key: Bytes, revision: Option<u64>) -> Condition {
        let mod_revision = Int::of_revision(revision.unwrap_or(0));
        Condition { key, target: "MOD", result: "EQUAL", mod_revision }
    }
}

/// An operation of a transaction.
#[derive(Clone, Debug, Serialize)]
pub enum Operation {
    #[serde(rename = "request_put")]
    Put { key: Bytes, value: Bytes, lease: Int },
    #[serde(rename = "request_delete_range")]
    Delete { key: Bytes },
    #[serde(rename = "request_range")]
    Range(RangeRequest),
}

#[derive(Clone, Debug, Serialize)]
pub struct TxnRequest {
    pub compare: Vec<Condition>,
    pub success: Vec<Operation>,
    pub failure: Vec<Operation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TxnResponse {
    pub header: Header,
    pub succeeded: bool,
    pub responses: Vec<Answer>,
}

/// The answer to an operation. Only those to ranges are looked at.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Answer {
    pub response_range: RangeResponse,
}

#[derive(Clone, Debug, Serialize)]
pub struct GrantRequest {
    #[serde(rename = "TTL")]
    pub ttl: Int,
}

#[derive(Clone, Debug, Serialize)]
pub struct LeaseRequest {
    #[serde(rename = "ID")]
    pub id: Int,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseAnswer {
    #[serde(rename = "ID")]
    pub id: Int,
    /// Seconds.
    #[serde(rename = "TTL")]
    pub ttl: Int,
}

#[derive(Clone, Debug, Serialize)]
pub struct LogInRequest {
    pub name: String,
    pub password: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LogInAnswer {
    pub token: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct WatchRequest {
    pub create_request: WatchCreate,
}

#[derive(Clone, Debug, Serialize)]
pub struct WatchCreate {
    pub key: Bytes,
    pub range_end: Bytes,
    pub start_revision: Int,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchAnswer {
    pub header: Header,
    pub created: bool,
    pub canceled: bool,
    /// Set where the changes from the start of the watch on are no longer known.
    pub compact_revision: Int,
    pub cancel_reason: String,
    pub events: Vec<WatchEvent>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchEvent {
    /// `PUT`, which is left out, or `DELETE`.
    #[serde(rename = "type")]
    pub kind: String,
    pub kv: KeyValue,
}

/// One message of an answer that is a stream.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streamed<T> {
    Result(T),
    Error(Failure),
}

/// What the gateway answers in place of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// A status of gRPC. Streams name it otherwise.
    #[serde(alias = "grpc_code")]
    pub code: i32,
    pub message: String,
    /// The message again, in older versions the only one.
    pub error: String,
}

impl Failure {
    /// The message, under whichever name it came.
    pub fn text(&self) -> &str {
        if self.message.is_empty() { &self.error } else { &self.message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_prefix_ends_behind_its_last_key() {
        let end = |prefix: &[u8]| prefix_end(&Bytes(prefix.to_vec())).0;
        assert_eq!(end(b"a/"), b"a0");
        assert_eq!(end(b"a\xff"), b"b");
        assert_eq!(end(b"\xff\xff"), b"\0");
        assert_eq!(end(b""), b"\0");
    }

    #[test]
    fn numbers_are_strings_and_bytes_are_base64() {
        let request = TxnRequest {
            compare: vec![Condition::new(Bytes(b"a".to_vec()), Some(5))],
            success: vec![Operation::Put {
                key: Bytes(b"a".to_vec()),
                value: Bytes(vec![0, 255]),
                lease: Int(i64::MAX),
            }],
            failure: vec![],
        };
        assert_eq!(
            serde_json::to_string(&request).unwrap(),
            r#"{"compare":[{"key":"YQ==","target":"MOD","result":"EQUAL","mod_revision":"5"}],"success":[{"request_put":{"key":"YQ==","value":"AP8=","lease":"9223372036854775807"}}],"failure":[]}"#
        );
        let answer: TxnResponse = serde_json::from_str(
            r#"{"header":{"cluster_id":"1","revision":"7"},"responses":[{"response_range":{"kvs":[{"key":"YQ==","mod_revision":"6"}]}},{"response_put":{}}]}"#,
        )
        .unwrap();
        let found = &answer.responses[0].response_range.kvs[0];
        assert_eq!((answer.header.revision, answer.succeeded), (Int(7), false));
        assert_eq!((found.key.0.as_slice(), found.mod_revision, found.value.0.len()), (&b"a"[..], Int(6), 0));
    }

    #[test]
    fn failures_are_read_in_both_forms() {
        let read = |text: &str| serde_json::from_str::<Failure>(text).unwrap();
        let plain = read(r#"{"error":"no lease","message":"no lease","code":5}"#);
        let streamed =
            read(r#"{"grpc_code":5,"http_code":404,"message":"no lease","http_status":"Not Found"}"#);
        assert_eq!((plain.code, plain.text()), (streamed.code, streamed.text()));
        assert_eq!(read(r#"{"error":"old"}"#).text(), "old");
    }
}
