//! Tests of the gate with all mechanisms, before a substitute that echoes: every way to pass, and every way to be
//! refused.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ::sasl::scram::{Client, Credential, Hash, random_salt};
use ::sasl::testing::Provider;
use broker::{Answer, Principal, Refused};
use bytes::Bytes;
use serde_json::{Value, json};
use wire::messages as m;
use wire::{ApiKey, Chunks, ErrorCode, Message, Reader, Text, frame};

use super::gate::Inner;
use super::report::Outcome;
use super::*;
use crate::connection::Handler;
use crate::settings::OauthSettings;

mod fuzz;
mod keys;
mod login;
mod renewal;

/// Far longer than anything in these tests takes.
const LONG: Duration = Duration::from_secs(20);
const SHA256: &str = "SCRAM-SHA-256";
const FAILED: i16 = ErrorCode::SaslAuthenticationFailed.code();
const ILLEGAL: i16 = ErrorCode::IllegalSaslState.code();

/// The connection behind the gate. It echoes, and records the principal and the API of each request.
#[derive(Debug)]
struct Echo {
    principal: Principal,
    seen: Arc<Mutex<Vec<(i16, String)>>>,
}

impl Handler for Echo {
    async fn begin(&mut self, frame: Bytes) -> Result<Option<Answer>, Refused> {
        let api = i16::from_be_bytes([frame[0], frame[1]]);
        self.seen.lock().unwrap().push((api, self.principal.name.to_string()));
        Ok(Some(Box::pin(async move { Ok(Chunks { parts: vec![frame] }) })))
    }
}

impl Inner for Echo {
    fn authenticated_as(&mut self, principal: Principal) {
        self.principal = principal;
    }
}

fn settings(mechanisms: &[&str]) -> SaslSettings {
    SaslSettings {
        mechanisms: mechanisms.iter().map(|name| (*name).to_owned()).collect(),
        request_bytes_max: 1000,
        reauthentication: None,
        failure_delay: Duration::from_millis(20),
        oauth: OauthSettings {
            jwks_url: String::new(),
            jwks_refresh: LONG,
            jwks_retry_backoff: Duration::from_millis(10),
            jwks_retry_backoff_max: Duration::from_millis(50),
            audiences: Vec::new(),
            issuer: None,
            scope_claim: "scope".into(),
            subject_claim: "sub".into(),
            clock_skew: Duration::from_secs(30),
        },
    }
}

/// Users: alice has both credentials, bob has one. Both have the password `secret`.
fn users(directory: &Path) -> Arc<Users> {
    let users = Users::of_directory(directory).unwrap();
    let put = |name: &str, hash| {
        let iterations = NonZeroU32::new(16).unwrap();
        let credential = Credential::new(hash, "secret", random_salt().unwrap(), iterations);
        (name.to_owned(), hash, Some(credential))
    };
    let all = vec![put("alice", Hash::Sha256), put("alice", Hash::Sha512), put("bob", Hash::Sha512)];
    users.change(|_| ((), all.clone())).unwrap();
    Arc::new(users)
}

/// A listener with its users and a provider of tokens.
struct Place {
    sasl: Arc<Sasl>,
    provider: Provider,
    _directory: tempfile::TempDir,
}

impl Place {
    async fn new(change: impl FnOnce(&mut SaslSettings)) -> Place {
        let directory = tempfile::tempdir().unwrap();
        let provider = Provider::new(false);
        let file = directory.path().join("keys.json");
        std::fs::write(&file, provider.document("one")).unwrap();
        let mut settings = settings(&["PLAIN", SHA256, "SCRAM-SHA-512", "OAUTHBEARER"]);
        settings.oauth.jwks_url = format!("file://{}", file.display());
        change(&mut settings);
        let users = users(directory.path());
        let log_in = LogIn::prepare(&settings).await.unwrap();
        let sasl = Sasl::new(log_in, users, Hashing::default(), Report::default());
        Place { sasl, provider, _directory: directory }
    }

    fn connect(&self) -> Peer {
        let seen = Arc::default();
        let echo = Echo { principal: Principal::anonymous(), seen: Arc::clone(&seen) };
        let gate = Gate::new(self.sasl.clone(), echo, "127.0.0.1:5".parse().unwrap());
        Peer { gate, seen }
    }

    /// A token that expires after this many seconds.
    fn token(&self, user: &str, seconds: i64) -> String {
        let now = now_ms() / 1000;
        self.signed(&json!({"sub": user, "iat": now, "exp": now + seconds}))
    }

    fn signed(&self, claims: &Value) -> String {
        self.provider.sign(&json!({"alg": "ES256", "kid": "one"}), claims)
    }

    fn counted(&self, mechanism: &'static str, outcome: Outcome) -> u64 {
        self.sasl.report.counted(mechanism, outcome)
    }
}

/// A client on its connection.
struct Peer {
    gate: Gate<Echo>,
    seen: Arc<Mutex<Vec<(i16, String)>>>,
}

impl Peer {
    /// Sends a frame and returns the whole answer.
    async fn frame(&mut self, frame: Bytes) -> Result<Bytes, Refused> {
        let begun = tokio::time::timeout(LONG, self.gate.begin(frame)).await.unwrap()?;
        let answer = tokio::time::timeout(LONG, begun.expect("there is an answer")).await.unwrap()?;
        Ok(answer.to_bytes())
    }

    async fn send<M: Message>(&mut self, version: i16, message: &M) -> Result<Bytes, Refused> {
        self.frame(request(version, message)).await
    }

    async fn call<M: Message, A: Message>(&mut self, version: i16, message: &M) -> Result<A, Refused> {
        let api_key = ApiKey::from_i16(M::KEY.unwrap()).unwrap();
        let answer = self.send(version, message).await?;
        let mut reader = Reader::new(answer.slice(4..));
        assert_eq!(frame::decode_response_header(&mut reader, api_key, version).unwrap(), 7);
        let message = A::decode(&mut reader, version).unwrap();
        reader.expect_end().unwrap();
        Ok(message)
    }

    async fn handshake(&mut self, mechanism: &str) -> i16 {
        let request = m::SaslHandshakeRequest { mechanism: Text::copied(mechanism) };
        let answer: m::SaslHandshakeResponse = self.call(1, &request).await.unwrap();
        answer.error_code
    }

    async fn token(&mut self, token: impl Into<Bytes>) -> Result<m::SaslAuthenticateResponse, Refused> {
        self.call(2, &m::SaslAuthenticateRequest { auth_bytes: token.into() }).await
    }

    /// The answer to a token: the error code, and its message or the challenge.
    async fn told(&mut self, token: impl Into<Bytes>) -> (i16, String) {
        let answer = self.token(token).await.unwrap();
        let challenge = String::from_utf8(answer.auth_bytes.to_vec()).unwrap();
        let message = answer.error_message.map(String::from).filter(|message| !message.is_empty());
        (answer.error_code, message.unwrap_or(challenge))
    }

    async fn plain(&mut self, user: &str, password: &str) -> (i16, String) {
        assert_eq!(self.handshake("PLAIN").await, 0);
        self.told(format!("\0{user}\0{password}")).await
    }

    async fn scram(&mut self, hash: Hash, user: &str, password: &str) -> (i16, String) {
        assert_eq!(self.handshake(hash.mechanism()).await, 0);
        let mut client = Client::new(hash, user, password, "nonce".into());
        let (error, challenge) = self.told(client.first()).await;
        if error != 0 {
            return (error, challenge);
        }
        let (error, last) = self.told(client.last(&challenge).unwrap()).await;
        if error == 0 {
            client.check(&last).unwrap();
        }
        (error, last)
    }

    /// The principal of the next request, if it passes.
    async fn is_heard_as(&mut self) -> Result<String, Refused> {
        self.send(12, &m::MetadataRequest::default()).await?;
        let seen = self.seen.lock().unwrap();
        let (api, name) = seen.last().unwrap().clone();
        assert_eq!(api, ApiKey::Metadata.code());
        Ok(name)
    }

    /// Checks that the gate accepts no more requests and that the connection must be closed.
    async fn is_out(&mut self) {
        assert!(self.gate.refused().is_some(), "it has to be closed");
        assert!(self.is_heard_as().await.is_err());
        assert!(self.frame(Bytes::from_static(b"x")).await.is_err());
    }
}

fn request<M: Message>(version: i16, message: &M) -> Bytes {
    let api_key = ApiKey::from_i16(M::KEY.unwrap()).unwrap();
    let client = Text::from_static("test");
    let frame = frame::encode_request(api_key, version, 7, Some(&client), message).unwrap();
    frame.to_bytes().slice(4..)
}

fn invalid(mechanism: &str) -> (i16, String) {
    let why = "Authentication failed during authentication due to invalid credentials with SASL mechanism";
    (FAILED, format!("{why} {mechanism}"))
}
