//! The gate before a broker's connection: no request passes before the client is authenticated.
//!
//! It follows Kafka's `SaslServerAuthenticator`, its order and its messages: one ApiVersions, one SaslHandshake, then
//! tokens. Each token comes in a SaslAuthenticate or, after a handshake of version 0, as a whole frame. Later the
//! client logs in again before its session ends (KIP-368), as the same user and with the same mechanism.
//!
//! Invariants:
//! - Before the log-in, only ApiVersions reaches the connection behind the gate.
//! - A log-in is complete before `begin` returns. The next request of the connection belongs to the new principal, and
//!   earlier requests belong to the old one, whenever they are answered.
//! - After a failure no more requests are accepted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Answer, Principal, Refused};
use bytes::Bytes;
use sasl::{Failure, Mechanism};
use wire::frame::{self, RequestHeader};
use wire::messages as m;
use wire::{ApiKey, Chunks, ErrorCode, Message, Reader, Text};

use super::exchange::{Exchange, Step};
use super::report::{LoggedIn, Outcome};
use super::{Sasl, now_ms};
use crate::connection::Handler;

/// Minimum time between two log-ins of a connection, as in Kafka.
const REAUTHENTICATION_INTERVAL: Duration = Duration::from_secs(1);
/// The metrics label if no mechanism is known.
const NO_MECHANISM: &str = "none";

/// The connection behind the gate.
pub trait Inner: Handler {
    /// Sets the principal of all later requests.
    fn authenticated_as(&mut self, principal: Principal);
}

impl Inner for broker::Connection {
    fn authenticated_as(&mut self, principal: Principal) {
        self.authenticated(principal);
    }
}

/// A connection whose client has to log in.
#[derive(Debug)]
pub struct Gate<H> {
    sasl: Arc<Sasl>,
    inner: H,
    peer: SocketAddr,
    stage: Stage,
    /// Present once the client has logged in.
    session: Option<Session>,
    refused: Option<Refused>,
}

#[derive(Debug)]
enum Stage {
    /// Waits for SaslHandshake, and for ApiVersions unless it was already answered.
    Greeting {
        versions_known: bool,
    },
    /// Waits for a token. `framed`: the token comes in a SaslAuthenticate.
    Exchange {
        exchange: Box<Exchange>,
        mechanism: Mechanism,
        framed: bool,
    },
    /// The client asks for another mechanism than that of its log-in. Its next message fails.
    WrongMechanism(Mechanism),
    /// The client is authenticated.
    Open,
    Closed,
}

#[derive(Debug)]
struct Session {
    mechanism: Mechanism,
    user: String,
    /// The time by which the client must have logged in again.
    expires: Option<Instant>,
    /// The time at which it last began to.
    renewed: Option<Instant>,
    /// In the metrics.
    _counted: LoggedIn,
}

type Begun = Result<Option<Answer>, Refused>;

impl<H: Inner> Gate<H> {
    /// Creates a gate before `inner`, for a client at `peer`.
    pub fn new(sasl: Arc<Sasl>, inner: H, peer: SocketAddr) -> Gate<H> {
        let stage = Stage::Greeting { versions_known: false };
        Gate { sasl, inner, peer, stage, session: None, refused: None }
    }

    /// Handles a request of an authenticated client.
    async fn request(&mut self, frame: Bytes) -> Begun {
        let Some(session) = self.session.as_mut().filter(|session| session.expires.is_some()) else {
            return self.inner.begin(frame).await;
        };
        let handshake = ApiKey::SaslHandshake.code().to_be_bytes();
        let renewable = session.renewed.is_none_or(|last| last.elapsed() >= REAUTHENTICATION_INTERVAL);
        if frame.starts_with(&handshake) && renewable {
            session.renewed = Some(Instant::now());
            self.stage = Stage::Closed;
            let (header, reader) = read_header(frame)?;
            return self.handshake(header, reader);
        }
        if session.expires.is_some_and(|expires| Instant::now() > expires) {
            self.sasl.report.count(session.mechanism.name(), Outcome::Expired);
            self.stage = Stage::Closed;
            return Err(Refused("its session has ended, and it did not log in again".into()));
        }
        self.inner.begin(frame).await
    }

    /// Handles a request of a client that has not begun to log in.
    async fn greet(&mut self, frame: Bytes, versions_known: bool) -> Begun {
        let (header, reader) = read_header(frame.clone())?;
        match header.api_key {
            ApiKey::ApiVersions if !versions_known => {
                // After an answer that only lists the supported versions, the client may ask again.
                let versions_known = ApiKey::ApiVersions.valid_versions().contains(&header.version);
                self.stage = Stage::Greeting { versions_known };
                self.inner.begin(frame).await
            }
            ApiKey::SaslHandshake => self.handshake(header, reader),
            other => Err(Refused(format!("{} came before the client had logged in", other.name()))),
        }
    }

    fn handshake(&mut self, header: RequestHeader, mut reader: Reader) -> Begun {
        let request: m::SaslHandshakeRequest = decode(&header, &mut reader)?;
        let names = self.sasl.log_in.mechanisms.iter().map(|mechanism| Text::from_static(mechanism.name()));
        let mut answer = m::SaslHandshakeResponse { error_code: 0, mechanisms: names.collect() };
        let wanted = Mechanism::from_name(&request.mechanism);
        let Some(mechanism) = wanted.filter(|mechanism| self.sasl.log_in.mechanisms.contains(mechanism))
        else {
            answer.error_code = ErrorCode::UnsupportedSaslMechanism.code();
            let why = format!("Unsupported SASL mechanism {}", request.mechanism);
            let answer = encode(&header, &answer)?;
            self.fail(NO_MECHANISM, None, &why);
            return Ok(Some(self.late(answer)));
        };
        let answer = encode(&header, &answer)?;
        self.stage = match &self.session {
            Some(session) if session.mechanism != mechanism => Stage::WrongMechanism(mechanism),
            _ => Stage::Exchange {
                exchange: Box::new(Exchange::new(mechanism)),
                mechanism,
                framed: header.version > 0,
            },
        };
        Ok(Some(ready(answer)))
    }

    /// Handles a token in a SaslAuthenticate.
    async fn authenticate(
        &mut self,
        mut exchange: Box<Exchange>,
        mechanism: Mechanism,
        frame: Bytes,
    ) -> Begun {
        let (header, mut reader) = read_header(frame)?;
        if header.api_key != ApiKey::SaslAuthenticate {
            return self.out_of_turn(&header, mechanism);
        }
        let request: m::SaslAuthenticateRequest = decode(&header, &mut reader)?;
        let answer = match exchange.step(&self.sasl, request.auth_bytes).await {
            Ok(Step::Challenge(auth_bytes)) => {
                self.stage = Stage::Exchange { exchange, mechanism, framed: true };
                m::SaslAuthenticateResponse { auth_bytes: auth_bytes.into(), ..Default::default() }
            }
            Ok(Step::Done { answer, user, expires_ms }) => match self.open(mechanism, &user, expires_ms) {
                Ok(session_lifetime_ms) => m::SaslAuthenticateResponse {
                    auth_bytes: answer.into(),
                    session_lifetime_ms,
                    ..Default::default()
                },
                Err(failure) => return self.refuse(&header, mechanism, &exchange, &failure),
            },
            Err(failure) => return self.refuse(&header, mechanism, &exchange, &failure),
        };
        Ok(Some(ready(encode(&header, &answer)?)))
    }

    fn refuse(
        &mut self,
        header: &RequestHeader,
        mechanism: Mechanism,
        exchange: &Exchange,
        failure: &Failure,
    ) -> Begun {
        let told = match failure {
            Failure::Told(why) => why.clone(),
            Failure::Untold(_) => format!(
                "Authentication failed during {} due to invalid credentials with SASL mechanism {}",
                if self.session.is_some() { "re-authentication" } else { "authentication" },
                mechanism.name()
            ),
        };
        let answer = m::SaslAuthenticateResponse {
            error_code: ErrorCode::SaslAuthenticationFailed.code(),
            error_message: Some(Text::from(told)),
            ..Default::default()
        };
        let answer = encode(header, &answer)?;
        self.fail(mechanism.name(), exchange.user.as_deref(), &failure.to_string());
        Ok(Some(self.late(answer)))
    }

    /// Handles a token that fills a whole frame, as old clients send it. Failures are not answered.
    async fn raw_token(&mut self, mut exchange: Box<Exchange>, mechanism: Mechanism, frame: Bytes) -> Begun {
        let token = match exchange.step(&self.sasl, frame).await {
            Ok(Step::Challenge(token)) => {
                self.stage = Stage::Exchange { exchange, mechanism, framed: false };
                token
            }
            Ok(Step::Done { answer, user, expires_ms }) => match self.open(mechanism, &user, expires_ms) {
                Ok(_) => answer,
                Err(failure) => {
                    return self.end(mechanism, exchange.user.as_deref(), &failure.to_string());
                }
            },
            Err(failure) => return self.end(mechanism, exchange.user.as_deref(), &failure.to_string()),
        };
        let size = i32::try_from(token.len()).unwrap_or(i32::MAX).to_be_bytes();
        Ok(Some(ready(Chunks { parts: vec![Bytes::from([&size, token.as_slice()].concat())] })))
    }

    /// Handles another request where a token is expected. Requests that belong to a log-in are answered.
    fn out_of_turn(&mut self, header: &RequestHeader, mechanism: Mechanism) -> Begun {
        let error_code = ErrorCode::IllegalSaslState.code();
        let answer = match header.api_key {
            ApiKey::SaslHandshake => {
                encode(header, &m::SaslHandshakeResponse { error_code, ..Default::default() }).ok()
            }
            ApiKey::ApiVersions => {
                encode(header, &m::ApiVersionsResponse { error_code, ..Default::default() }).ok()
            }
            _ => None,
        };
        let why = format!("{} came in place of a token", header.api_key.name());
        match answer {
            Some(answer) => {
                self.fail(mechanism.name(), None, &why);
                Ok(Some(self.late(answer)))
            }
            None => self.end(mechanism, None, &why),
        }
    }

    /// Opens the session of `user`. Returns its length in milliseconds, or 0 for an unlimited session.
    fn open(&mut self, mechanism: Mechanism, user: &str, expires_ms: Option<i64>) -> Result<i64, Failure> {
        if let Some(before) = self.session.as_ref().filter(|before| before.user != user) {
            return Err(Failure::Told(format!(
                "Cannot change principals during re-authentication from User.{}: User.{user}",
                before.user
            )));
        }
        let before = self.session.take();
        let most = self
            .sasl
            .log_in
            .settings
            .reauthentication
            .map(|most| i64::try_from(most.as_millis()).unwrap_or(i64::MAX));
        let left = expires_ms.map(|expires_ms| expires_ms.saturating_sub(now_ms()));
        let lifetime_ms = most.into_iter().chain(left).min().map(|ms| ms.max(0));
        let lifetime = lifetime_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
        let outcome = if before.is_some() { Outcome::Reauthentication } else { Outcome::Success };
        self.sasl.report.count(mechanism.name(), outcome);
        self.session = Some(Session {
            mechanism,
            user: user.to_owned(),
            // A time beyond the range of the clock never comes.
            expires: lifetime.and_then(|lifetime| Instant::now().checked_add(lifetime)),
            renewed: before.and_then(|before| before.renewed),
            _counted: self.sasl.report.opened(mechanism.name()),
        });
        self.stage = Stage::Open;
        self.inner.authenticated_as(Principal::user(user));
        Ok(lifetime_ms.unwrap_or(0))
    }

    /// Counts and logs a failed log-in. The gate accepts no more requests.
    fn fail(&mut self, mechanism: &'static str, user: Option<&str>, why: &str) -> Refused {
        let outcome =
            if self.session.is_some() { Outcome::ReauthenticationFailure } else { Outcome::Failure };
        self.sasl.report.failed(mechanism, outcome, self.peer, user, why);
        self.stage = Stage::Closed;
        let refused = Refused("the client failed to log in".into());
        self.refused = Some(refused.clone());
        refused
    }

    /// Delays the last answer, so that a client that guesses passwords has to wait for it.
    fn late(&self, answer: Chunks) -> Answer {
        let delay = self.sasl.log_in.settings.failure_delay;
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            Ok(answer)
        })
    }

    /// Ends without an answer. The connection waits before it is closed.
    fn end(&mut self, mechanism: Mechanism, user: Option<&str>, why: &str) -> Begun {
        Err(self.fail(mechanism.name(), user, why))
    }

    async fn take(&mut self, frame: Bytes) -> Begun {
        // Until the stage is set again, the gate is closed, whatever goes wrong.
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Open => {
                self.stage = Stage::Open;
                self.request(frame).await
            }
            Stage::Greeting { versions_known } => self.greet(frame, versions_known).await,
            Stage::Exchange { exchange, mechanism, framed: true } => {
                self.authenticate(exchange, mechanism, frame).await
            }
            Stage::Exchange { exchange, mechanism, framed: false } => {
                self.raw_token(exchange, mechanism, frame).await
            }
            Stage::WrongMechanism(wanted) => {
                let before = self.session.as_ref().map_or(NO_MECHANISM, |session| session.mechanism.name());
                let why = format!(
                    "SASL mechanism '{}' requested by client is not supported for re-authentication of mechanism '{before}'",
                    wanted.name()
                );
                self.end(wanted, None, &why)
            }
            Stage::Closed => unreachable!("nothing is taken any more"),
        }
    }
}

impl<H: Inner> Handler for Gate<H> {
    async fn begin(&mut self, frame: Bytes) -> Begun {
        if matches!(self.stage, Stage::Closed) {
            return Err(Refused("nothing more is taken from it".into()));
        }
        let begun = self.take(frame).await;
        match &begun {
            // A connection that fails before a log-in counts as a failed log-in.
            Err(Refused(why)) if self.session.is_none() && self.refused.is_none() => {
                let why = why.clone();
                self.fail(NO_MECHANISM, None, &why);
            }
            _ => {}
        }
        begun
    }

    fn muted_until(&self) -> Option<Instant> {
        self.inner.muted_until()
    }

    fn authenticated(&self) -> bool {
        self.session.is_some()
    }

    fn frame_bytes_max(&self) -> usize {
        self.sasl.log_in.settings.request_bytes_max
    }

    fn refused(&mut self) -> Option<Refused> {
        self.refused.take()
    }
}

fn read_header(frame: Bytes) -> Result<(RequestHeader, Reader), Refused> {
    let mut reader = Reader::new(frame);
    let header = frame::decode_request_header(&mut reader);
    let header = header.map_err(|error| Refused(format!("a request header cannot be decoded: {error}")))?;
    Ok((header, reader))
}

fn decode<M: Message>(header: &RequestHeader, reader: &mut Reader) -> Result<M, Refused> {
    let (name, version) = (header.api_key.name(), header.version);
    M::decode(reader, version)
        .map_err(|error| Refused(format!("a {name} request of version {version} cannot be decoded: {error}")))
}

fn encode<M: Message>(header: &RequestHeader, message: &M) -> Result<Chunks, Refused> {
    let RequestHeader { api_key, version, correlation_id, .. } = *header;
    frame::encode_response(correlation_id, api_key, version, message)
        .map_err(|error| Refused(format!("the answer to {} cannot be encoded: {error}", api_key.name())))
}

fn ready(answer: Chunks) -> Answer {
    Box::pin(std::future::ready(Ok(answer)))
}
