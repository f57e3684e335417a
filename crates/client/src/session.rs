//! A connection to one server after its opening: versions, correlation ids, the order of the responses.

use std::collections::{HashMap, VecDeque};

use wire::{ApiKey, Bytes, Chunks, Message, Reader, Text, frame};

use crate::error::SessionError;
use crate::request::Request;

/// The name and version of the client's program: `client.id` of every request, and fields of ApiVersions (KIP-511).
#[derive(Clone, Copy, Debug)]
pub struct Software {
    /// Kafka refuses a name with other characters than letters, digits, dots and hyphens.
    pub name: &'static str,
    /// The same characters are allowed.
    pub version: &'static str,
}

/// Decodes the size of a frame from its first four bytes.
///
/// # Errors
/// [`SessionError::OutOfOrder`] if the size is negative or above `bytes_max`: no Kafka server sends such a frame.
pub fn frame_bytes(size: [u8; 4], bytes_max: usize) -> Result<usize, SessionError> {
    let size = usize::try_from(i32::from_be_bytes(size)).ok();
    size.filter(|size| *size <= bytes_max).ok_or(SessionError::OutOfOrder)
}

/// `host:port`, with brackets around an IPv6 address.
pub fn address(host: &str, port: i32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A request that waits for its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    correlation_id: i32,
    pub api: ApiKey,
    pub version: i16,
}

/// The protocol state of an open connection.
#[derive(Debug)]
pub struct Session {
    client_id: Text,
    /// The server's lowest and highest version of each API.
    versions: HashMap<i16, (i16, i16)>,
    next_id: i32,
    /// In the order of sending. Kafka responds in this order.
    awaited: VecDeque<Awaited>,
}

impl Session {
    pub(crate) fn new(client_id: &'static str) -> Session {
        let client_id = Text::from_static(client_id);
        Session { client_id, versions: HashMap::new(), next_id: 0, awaited: VecDeque::new() }
    }

    pub(crate) fn set_versions(&mut self, versions: impl Iterator<Item = (i16, (i16, i16))>) {
        self.versions = versions.collect();
    }

    /// The highest common version of a request.
    ///
    /// # Errors
    /// [`SessionError::UnknownApi`] and [`SessionError::Version`].
    pub fn version<Q: Request>(&self) -> Result<i16, SessionError> {
        let (api, ours) = (Q::API.name(), Q::OURS);
        let &theirs = self.versions.get(&Q::API.code()).ok_or(SessionError::UnknownApi { api })?;
        let version = theirs.1.min(*ours.end());
        if version < theirs.0 || version < *ours.start() {
            return Err(SessionError::Version { api, theirs, ours });
        }
        Ok(version)
    }

    /// Encodes a request. [`Session::answer`] takes the response.
    ///
    /// # Errors
    /// Those of [`Session::version`], and [`SessionError::Encode`].
    pub fn ask<Q: Request>(&mut self, request: &Q) -> Result<Chunks, SessionError> {
        self.ask_in(Q::API, self.version::<Q>()?, request)
    }

    pub(crate) fn ask_in<M: Message>(
        &mut self,
        api: ApiKey,
        version: i16,
        request: &M,
    ) -> Result<Chunks, SessionError> {
        let (correlation_id, frame) = self.encode(api, version, request)?;
        self.awaited.push_back(Awaited { correlation_id, api, version });
        Ok(frame)
    }

    /// Encodes a request without a response: a produce with `acks=0`.
    ///
    /// # Errors
    /// As [`Session::ask`].
    pub fn tell<Q: Request>(&mut self, request: &Q) -> Result<Chunks, SessionError> {
        Ok(self.encode(Q::API, self.version::<Q>()?, request)?.1)
    }

    /// Returns the correlation id and the frame.
    fn encode<M: Message>(
        &mut self,
        api: ApiKey,
        version: i16,
        request: &M,
    ) -> Result<(i32, Chunks), SessionError> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        Ok((id, frame::encode_request(api, version, id, Some(&self.client_id), request)?))
    }

    /// Decodes the response to the oldest request that waits for one. `frame` is without its size. The caller makes sure that
    /// the request was of type `Q`.
    ///
    /// # Errors
    /// [`SessionError::OutOfOrder`] if the correlation id is another one or no request waits. [`SessionError::Garbled`].
    pub fn answer<Q: Request>(&mut self, frame: Bytes) -> Result<Q::Answer, SessionError> {
        let (mut reader, asked) = self.take(frame)?;
        assert_eq!(asked.api, Q::API, "the oldest request without an answer is of this API");
        Ok(Q::Answer::decode(&mut reader, asked.version)?)
    }

    /// Reads the header of a response. Returns the reader at the message, and the request.
    pub(crate) fn take(&mut self, frame: Bytes) -> Result<(Reader, Awaited), SessionError> {
        let asked = self.awaited.pop_front().ok_or(SessionError::OutOfOrder)?;
        let mut reader = Reader::new(frame);
        let id = frame::decode_response_header(&mut reader, asked.api, asked.version)?;
        // A response to another request must not count for this one.
        if id != asked.correlation_id {
            return Err(SessionError::OutOfOrder);
        }
        Ok((reader, asked))
    }
}

#[cfg(test)]
mod tests {
    use wire::messages::{
        FetchRequest, HeartbeatRequest, HeartbeatResponse, MetadataRequest, ProduceRequest,
    };

    use super::*;

    fn session(versions: &[(ApiKey, i16, i16)]) -> Session {
        let mut session = Session::new("test");
        session.set_versions(versions.iter().map(|(api, lowest, highest)| (api.code(), (*lowest, *highest))));
        session
    }

    /// A response with this correlation id, without its size.
    fn answer(id: i32, error_code: i16) -> Bytes {
        let response = HeartbeatResponse { error_code, ..HeartbeatResponse::default() };
        frame::encode_response(id, ApiKey::Heartbeat, 4, &response).unwrap().to_bytes().slice(4..)
    }

    #[test]
    fn the_highest_version_of_both_is_taken() {
        let session = session(&[
            (ApiKey::Metadata, 0, 100),
            (ApiKey::Fetch, 0, 6),
            (ApiKey::Produce, 0, 2),
            (ApiKey::Heartbeat, 5, 6),
        ]);
        assert_eq!(session.version::<MetadataRequest>().unwrap(), *MetadataRequest::OURS.end());
        assert_eq!(session.version::<FetchRequest>().unwrap(), 6);
        let error = session.version::<ProduceRequest>().unwrap_err().to_string();
        assert_eq!(error, "speaks Produce in versions 0 to 2, needed is one of 3 to 12");
        let error = session.version::<HeartbeatRequest>().unwrap_err().to_string();
        assert_eq!(error, "speaks Heartbeat in versions 5 to 6, needed is one of 0 to 4");
        let error = Session::new("test").version::<FetchRequest>().unwrap_err().to_string();
        assert_eq!(error, "does not know Fetch");
    }

    #[test]
    fn answers_come_in_the_order_of_the_requests() {
        let mut session = session(&[(ApiKey::Heartbeat, 0, 4), (ApiKey::Produce, 3, 9)]);
        session.ask(&HeartbeatRequest::default()).unwrap();
        // Takes a correlation id, although no response comes.
        session.tell(&ProduceRequest::default()).unwrap();
        session.ask(&HeartbeatRequest::default()).unwrap();
        session.ask(&HeartbeatRequest::default()).unwrap();
        assert_eq!(session.answer::<HeartbeatRequest>(answer(0, 7)).unwrap().error_code, 7);
        assert_eq!(session.answer::<HeartbeatRequest>(answer(2, 8)).unwrap().error_code, 8);
        let error = session.answer::<HeartbeatRequest>(answer(4, 0)).unwrap_err();
        assert!(matches!(error, SessionError::OutOfOrder), "{error}");
        let error = session.answer::<HeartbeatRequest>(answer(4, 0)).unwrap_err();
        assert!(matches!(error, SessionError::OutOfOrder), "nothing was asked");
    }

    #[test]
    fn bytes_that_are_no_answer_are_an_error() {
        let mut session = session(&[(ApiKey::Heartbeat, 0, 4)]);
        for frame in [Bytes::new(), Bytes::from_static(&[0, 0, 0, 1]), answer(2, 0).slice(..8)] {
            session.ask(&HeartbeatRequest::default()).unwrap();
            let error = session.answer::<HeartbeatRequest>(frame).unwrap_err();
            assert!(matches!(error, SessionError::Garbled(_)), "{error}");
        }
    }

    #[test]
    fn sizes_that_no_server_sends_are_not_believed() {
        assert_eq!(frame_bytes(7i32.to_be_bytes(), 7).unwrap(), 7);
        assert!(frame_bytes(8i32.to_be_bytes(), 7).is_err() && frame_bytes([0xff; 4], usize::MAX).is_err());
    }

    #[test]
    fn addresses_of_ipv6_have_brackets() {
        assert_eq!((address("h", 1).as_str(), address("::1", 2).as_str()), ("h:1", "[::1]:2"));
    }
}
