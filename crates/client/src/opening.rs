//! The first requests of a connection: ApiVersions, then SASL if the client has credentials.
//!
//! ```text
//! client  ApiVersions 3 ->          ApiVersions 0 ->          SaslHandshake ->     SaslAuthenticate ->  (again)
//! server            <- unsupported            <- versions                <- fine                 <- message
//! ```
//!
//! One request is in flight at a time. A server without version 3 of ApiVersions responds in version 0.

use wire::messages::{
    ApiVersionsRequest, ApiVersionsResponse, SaslAuthenticateRequest, SaslAuthenticateResponse,
    SaslHandshakeRequest, SaslHandshakeResponse,
};
use wire::{ApiKey, Bytes, Chunks, ErrorCode, Message, Reader, Text};

use crate::error::{SessionError, check};
use crate::log_in::{Exchange, LogIn, LogInError, Next};
use crate::session::{Awaited, Session, Software};

/// The first version to try of ApiVersions (KIP-511), and the version of every server.
const VERSIONS_FIRST: i16 = 3;
const VERSIONS_LAST: i16 = 0;

/// A connection that is not open yet. It waits for a response.
#[derive(Debug)]
pub struct Opening {
    session: Session,
    software: Software,
    log_in: Option<LogIn>,
    /// Present while a SaslAuthenticate response is awaited.
    exchange: Option<Exchange>,
}

/// The next step after a response.
#[derive(Debug)]
pub enum Progress {
    /// Send this frame, then give the response to the opening.
    Ask(Box<Opening>, Chunks),
    /// The connection is open.
    Open(Session),
}

impl Opening {
    /// Starts an opening. Returns its first frame too.
    ///
    /// # Errors
    /// [`SessionError::Encode`].
    pub fn new(software: Software, log_in: Option<LogIn>) -> Result<(Opening, Chunks), SessionError> {
        let session = Session::new(software.name);
        let mut opening = Opening { session, software, log_in, exchange: None };
        let frame = opening.ask_versions(VERSIONS_FIRST)?;
        Ok((opening, frame))
    }

    fn ask_versions(&mut self, version: i16) -> Result<Chunks, SessionError> {
        let request = ApiVersionsRequest {
            client_software_name: Text::from_static(self.software.name),
            client_software_version: Text::from_static(self.software.version),
            ..ApiVersionsRequest::default()
        };
        self.session.ask_in(ApiKey::ApiVersions, version, &request)
    }

    /// Takes the response to the last frame, without its size.
    ///
    /// # Errors
    /// [`SessionError::Answer`] if the response has an error code. [`SessionError::LogIn`] if the log-in fails.
    /// [`SessionError::UnknownApi`] and [`SessionError::Version`] if the server has no SASL. [`SessionError::Garbled`] and
    /// [`SessionError::OutOfOrder`] if the server does not speak Kafka's protocol.
    pub fn receive(mut self, frame: Bytes) -> Result<Progress, SessionError> {
        let (mut reader, asked) = self.session.take(frame)?;
        match asked.api {
            ApiKey::ApiVersions => self.take_versions(&mut reader, asked),
            ApiKey::SaslHandshake => {
                let answer = SaslHandshakeResponse::decode(&mut reader, asked.version)?;
                self.take_handshake(&answer)
            }
            _ => {
                let answer = SaslAuthenticateResponse::decode(&mut reader, asked.version)?;
                self.take_message(&answer)
            }
        }
    }

    fn take_versions(mut self, reader: &mut Reader, asked: Awaited) -> Result<Progress, SessionError> {
        let body = reader.take(reader.remaining())?;
        let refused = body.starts_with(&ErrorCode::UnsupportedVersion.code().to_be_bytes());
        if refused && asked.version > VERSIONS_LAST {
            let frame = self.ask_versions(VERSIONS_LAST)?;
            return Ok(Progress::Ask(Box::new(self), frame));
        }
        let answer = ApiVersionsResponse::decode(&mut Reader::new(body), asked.version)?;
        check(answer.error_code, None).map_err(|error| SessionError::Answer { api: "ApiVersions", error })?;
        let versions = answer.api_keys.iter().map(|api| (api.api_key, (api.min_version, api.max_version)));
        self.session.set_versions(versions);
        let Some(log_in) = &self.log_in else { return Ok(Progress::Open(self.session)) };
        let mechanism = Text::from_static(log_in.mechanism().name());
        let frame = self.session.ask(&SaslHandshakeRequest { mechanism })?;
        Ok(Progress::Ask(Box::new(self), frame))
    }

    fn take_handshake(self, answer: &SaslHandshakeResponse) -> Result<Progress, SessionError> {
        let log_in = self.log_in.as_ref().expect("a handshake is only asked for by a log-in");
        if answer.error_code == ErrorCode::UnsupportedSaslMechanism.code() {
            let offered: Vec<&str> = answer.mechanisms.iter().map(Text::as_str).collect();
            let wanted = log_in.mechanism().name();
            return Err(SessionError::LogIn(format!("it takes {}, not {wanted}", offered.join(", "))));
        }
        check(answer.error_code, None)
            .map_err(|error| SessionError::Answer { api: "SaslHandshake", error })?;
        let (exchange, first) = log_in.begin().map_err(refused)?;
        self.authenticate(exchange, first)
    }

    fn take_message(mut self, answer: &SaslAuthenticateResponse) -> Result<Progress, SessionError> {
        check(answer.error_code, answer.error_message.as_ref())
            .map_err(|error| SessionError::LogIn(error.to_string()))?;
        let exchange = self.exchange.take().expect("a message is only sent by an exchange");
        let message = String::from_utf8_lossy(&answer.auth_bytes);
        match exchange.receive(&message).map_err(refused)? {
            Next::Send(exchange, message) => self.authenticate(exchange, message),
            Next::Done => Ok(Progress::Open(self.session)),
        }
    }

    fn authenticate(mut self, exchange: Exchange, message: String) -> Result<Progress, SessionError> {
        self.exchange = Some(exchange);
        let frame = self.session.ask(&SaslAuthenticateRequest { auth_bytes: Bytes::from(message) })?;
        Ok(Progress::Ask(Box::new(self), frame))
    }
}

fn refused(error: LogInError) -> SessionError {
    SessionError::LogIn(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use sasl::scram::{Credential, First, Hash, Waiting};
    use wire::frame;
    use wire::messages::MetadataRequest;
    use wire::messages::api_versions_response::ApiVersion;

    use super::*;

    const SOFTWARE: Software = Software { name: "test", version: "1" };

    /// The server's side of an opening.
    struct Server {
        /// The newest version of ApiVersions.
        newest: i16,
        mechanisms: Vec<&'static str>,
        password: &'static str,
        waiting: Option<Waiting>,
        asked: Vec<(ApiKey, i16)>,
    }

    impl Server {
        fn new(mechanisms: &[&'static str]) -> Server {
            Server {
                newest: 4,
                mechanisms: mechanisms.to_vec(),
                password: "pencil",
                waiting: None,
                asked: Vec::new(),
            }
        }

        fn answer(&mut self, request: &Chunks) -> Bytes {
            let mut reader = Reader::new(request.to_bytes().slice(4..));
            let header = frame::decode_request_header(&mut reader).unwrap();
            assert_eq!(header.client_id.as_ref().map(Text::as_str), Some("test"));
            let (api, version, id) = (header.api_key, header.version, header.correlation_id);
            self.asked.push((api, version));
            let frame = match api {
                ApiKey::ApiVersions => {
                    let known = version <= self.newest;
                    let error = if known { ErrorCode::None } else { ErrorCode::UnsupportedVersion };
                    let one = |api: ApiKey, max_version| ApiVersion {
                        api_key: api.code(),
                        min_version: 0,
                        max_version,
                    };
                    let answer = ApiVersionsResponse {
                        error_code: error.code(),
                        api_keys: vec![
                            one(ApiKey::Metadata, 9),
                            one(ApiKey::SaslHandshake, 1),
                            one(ApiKey::SaslAuthenticate, 2),
                        ],
                        ..ApiVersionsResponse::default()
                    };
                    frame::encode_response(id, api, if known { version } else { 0 }, &answer)
                }
                ApiKey::SaslHandshake => {
                    let request = SaslHandshakeRequest::decode(&mut reader, version).unwrap();
                    let known = self.mechanisms.contains(&request.mechanism.as_str());
                    let error = if known { ErrorCode::None } else { ErrorCode::UnsupportedSaslMechanism };
                    let mechanisms = self.mechanisms.iter().map(|name| Text::from_static(name)).collect();
                    let answer = SaslHandshakeResponse { error_code: error.code(), mechanisms };
                    frame::encode_response(id, api, version, &answer)
                }
                _ => {
                    let request = SaslAuthenticateRequest::decode(&mut reader, version).unwrap();
                    let answer = self.message(&request.auth_bytes);
                    frame::encode_response(id, api, version, &answer)
                }
            };
            frame.unwrap().to_bytes().slice(4..)
        }

        fn message(&mut self, message: &[u8]) -> SaslAuthenticateResponse {
            let said = match self.waiting.take() {
                Some(waiting) => waiting.finish(message).map(|(answer, _)| answer).ok(),
                None => {
                    let stored =
                        Credential::new(Hash::Sha256, self.password, b"salt".to_vec(), NonZeroU32::MIN);
                    let first = First::parse(message).unwrap();
                    let (challenge, waiting) =
                        first.challenge(Hash::Sha256, Some(Arc::new(stored)), "server").unwrap();
                    self.waiting = Some(waiting);
                    Some(challenge)
                }
            };
            let error_code =
                if said.is_some() { ErrorCode::None } else { ErrorCode::SaslAuthenticationFailed }.code();
            let auth_bytes = Bytes::from(said.unwrap_or_default());
            SaslAuthenticateResponse { error_code, auth_bytes, ..SaslAuthenticateResponse::default() }
        }
    }

    fn open(server: &mut Server, log_in: Option<LogIn>) -> Result<Session, SessionError> {
        let (mut opening, mut frame) = Opening::new(SOFTWARE, log_in)?;
        loop {
            match opening.receive(server.answer(&frame))? {
                Progress::Ask(next, more) => (opening, frame) = (*next, more),
                Progress::Open(session) => return Ok(session),
            }
        }
    }

    fn alice(password: &str) -> Option<LogIn> {
        Some(LogIn::Scram { hash: Hash::Sha256, user: "alice".into(), password: password.into() })
    }

    #[test]
    fn versions_are_asked_for_once_or_twice() {
        let mut server = Server::new(&[]);
        let session = open(&mut server, None).unwrap();
        assert_eq!(server.asked, [(ApiKey::ApiVersions, 3)]);
        assert_eq!(session.version::<MetadataRequest>().unwrap(), 9);
        let mut old = Server { newest: 0, ..Server::new(&[]) };
        let mut session = open(&mut old, None).unwrap();
        assert_eq!(old.asked, [(ApiKey::ApiVersions, 3), (ApiKey::ApiVersions, 0)]);
        // The session goes on where the opening ended.
        let frame = session.ask(&MetadataRequest::default()).unwrap().to_bytes();
        let header = frame::decode_request_header(&mut Reader::new(frame.slice(4..))).unwrap();
        assert_eq!((header.version, header.correlation_id), (9, 2));
    }

    #[test]
    fn a_user_logs_in() {
        let mut server = Server::new(&["PLAIN", "SCRAM-SHA-256"]);
        open(&mut server, alice("pencil")).unwrap();
        let (sasl, message) = ((ApiKey::SaslHandshake, 1), (ApiKey::SaslAuthenticate, 2));
        assert_eq!(server.asked, [(ApiKey::ApiVersions, 3), sasl, message, message]);
    }

    #[test]
    fn what_the_server_refuses_is_said() {
        let mut server = Server::new(&["PLAIN", "OAUTHBEARER"]);
        let error = open(&mut server, alice("pencil")).unwrap_err().to_string();
        assert_eq!(error, "refused the log-in: it takes PLAIN, OAUTHBEARER, not SCRAM-SHA-256");
        let mut server = Server::new(&["SCRAM-SHA-256"]);
        let error = open(&mut server, alice("guess")).unwrap_err().to_string();
        assert!(error.starts_with("refused the log-in: SASL_AUTHENTICATION_FAILED: "), "{error}");
        let mut server = Server { newest: -1, ..Server::new(&[]) };
        let error = open(&mut server, None).unwrap_err().to_string();
        assert!(error.starts_with("answered ApiVersions with UNSUPPORTED_VERSION: "), "{error}");
    }

    #[test]
    fn an_answer_may_be_any_bytes() {
        let mut rest = (1u32..).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]);
        for length in 0..200 {
            let (opening, _) = Opening::new(SOFTWARE, alice("x")).unwrap();
            // The correlation id is right, so that the test reaches the rest.
            let frame: Vec<u8> = [0; 4].into_iter().chain(rest.by_ref().take(length)).collect();
            if let Ok(Progress::Open(session)) = opening.receive(frame.into()) {
                panic!("{session:?} without a log-in");
            }
        }
    }
}
