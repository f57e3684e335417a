//! Requests to the JSON gateway of etcd, at any of its endpoints.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use meta::LeaseId;
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Certificate, Client, Identity, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch::{Receiver, Sender};

use crate::api::{
    Failure, GrantRequest, Int, LeaseAnswer, LeaseRequest, LogInAnswer, LogInRequest, Streamed,
};

/// Time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for one attempt of a request. etcd itself gives a proposal up after some seven seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for the first attempts: a member that hangs, or that waits for a leader which does, must not cost a broker its lease.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause before and between the probes of a connection without traffic: a watch notices a machine that is gone.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Time for a read, with all its attempts.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// The pause between attempts, once each endpoint was tried.
pub const PAUSE: Duration = Duration::from_millis(100);
/// Bound of an answer, and of a message of a stream.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The statuses of gRPC that this code tells apart.
mod status {
    pub const UNAUTHENTICATED: i32 = 16;
    pub const NOT_FOUND: i32 = 5;
    pub const OUT_OF_RANGE: i32 = 11;
    /// Nobody knows whether the request took effect: cancelled, unknown, deadline exceeded, aborted, internal,
    /// unavailable, data loss. With "resource exhausted" it did not, and may be repeated as well.
    pub const UNCLEAR: [i32; 8] = [1, 2, 4, 8, 10, 13, 14, 15];
}

/// How etcd is reached.
#[derive(Clone, Default)]
pub struct Settings {
    /// `http://HOST:PORT` or `https://HOST:PORT`, of one or more members.
    pub endpoints: Vec<String>,
    /// Name and password of a user.
    pub user: Option<(String, String)>,
    /// For `https`.
    pub tls: Tls,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

/// Files in PEM form. Without a file for the authorities, those of the system count.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Certificates of the authorities that etcd's certificate is signed by.
    pub ca: Option<PathBuf>,
    /// Certificate and private key of this client.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Why etcd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenEtcdError {
    /// There is no endpoint.
    #[error("no endpoint of etcd is named")]
    NoEndpoint,
    /// Not an address.
    #[error("{0:?} is no endpoint of etcd: it is http://HOST:PORT or https://HOST:PORT")]
    Endpoint(String),
    /// A file cannot be read.
    #[error("{0} cannot be read: {1}")]
    File(PathBuf, std::io::Error),
    /// A certificate or a key is wrong.
    #[error("etcd's client cannot be made: {0}")]
    Client(String),
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// etcd refused it. It had no effect.
    #[error("etcd: {} (status {})", .0.text(), .0.code)]
    Refused(Failure),
    /// It had no effect, or it has one, or it still may get one.
    #[error("etcd did not answer: {0}")]
    Unclear(String),
}

impl CallError {
    /// Whether the request named a lease that does not exist.
    pub fn is_no_lease(&self) -> bool {
        matches!(self, CallError::Refused(Failure { code: status::NOT_FOUND, .. }))
    }

    /// Whether the request asked for a revision that etcd has forgotten.
    pub fn is_compacted(&self) -> bool {
        matches!(self, CallError::Refused(Failure { code: status::OUT_OF_RANGE, .. }))
    }
}

struct Shared {
    client: Client,
    endpoints: Vec<Url>,
    /// The endpoint that is asked. Watches follow it.
    current: Sender<usize>,
    user: Option<LogInRequest>,
    /// Of the user, once logged in.
    token: Mutex<Option<HeaderValue>>,
}

/// A client of the gateway. Clones share it.
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

impl Gateway {
    pub fn new(settings: &Settings) -> Result<Gateway, OpenEtcdError> {
        // The library asks the process for its TLS. Whoever installed one before is right, too.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let wrong = |error: reqwest::Error| OpenEtcdError::Client(error.to_string());
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|error| OpenEtcdError::File(path.clone(), error));
        // No timeout for a whole request here: a watch has no end.
        let mut client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(3);
        if let Some(ca) = &settings.tls.ca {
            let certificates = Certificate::from_pem_bundle(&read(ca)?).map_err(wrong)?;
            client = client.tls_certs_only(certificates);
        }
        if let Some((certificate, key)) = &settings.tls.client {
            let both = [read(certificate)?, read(key)?].concat();
            client = client.identity(Identity::from_pem(&both).map_err(wrong)?);
        }
        let endpoint = |text: &String| {
            let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
            url.ok_or_else(|| OpenEtcdError::Endpoint(text.clone()))
        };
        let endpoints: Vec<Url> = settings.endpoints.iter().map(endpoint).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(OpenEtcdError::NoEndpoint);
        }
        let user = settings.user.clone().map(|(name, password)| LogInRequest { name, password });
        let client = client.build().map_err(wrong)?;
        let (current, token) = (Sender::new(0), Mutex::new(None));
        Ok(Gateway(Arc::new(Shared { client, endpoints, current, user, token })))
    }

    /// The endpoint that is asked, and its changes.
    pub fn current(&self) -> Receiver<usize> {
        self.0.current.subscribe()
    }

    /// Time for an attempt after so many. Once each endpoint was tried, they get more of it.
    fn timeout(&self, attempts: usize) -> Duration {
        let rounds = u32::try_from(attempts / self.endpoints()).unwrap_or(u32::MAX);
        SHORT_TIMEOUT.saturating_mul(2_u32.saturating_pow(rounds)).min(REQUEST_TIMEOUT)
    }

    pub fn endpoints(&self) -> usize {
        self.0.endpoints.len()
    }

    /// Makes one attempt of a request that may change something, after so many `attempts`.
    pub async fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
        attempts: usize,
    ) -> Result<A, CallError> {
        let asked = *self.0.current.borrow();
        let answer = async {
            let mut response = self.send(asked, path, request).await?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(unclear)? {
                if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                    return Err(CallError::Unclear(format!(
                        "the answer is longer than {ANSWER_BYTES_MAX} bytes"
                    )));
                }
                body.extend_from_slice(&chunk);
            }
            serde_json::from_slice(&body).map_err(unclear)
        };
        let answer = within(self.timeout(attempts), answer).await;
        if let Err(CallError::Unclear(_)) = answer {
            self.try_another(asked);
        }
        answer
    }

    /// Makes a request that may be repeated, until the outcome is clear or the patience ends.
    pub async fn read<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
    ) -> Result<A, CallError> {
        self.patiently(async |attempts| self.call(path, request, attempts).await).await
    }

    /// Like [`Gateway::read`], for an answer that is a stream. Reads its first message.
    pub async fn read_first<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
    ) -> Result<A, CallError> {
        let first = async |attempts| match self.call(path, request, attempts).await? {
            Streamed::Result(answer) => Ok(answer),
            Streamed::Error(failure) => Err(refused(failure)),
        };
        self.patiently(first).await
    }

    async fn patiently<A>(
        &self,
        mut attempt: impl AsyncFnMut(usize) -> Result<A, CallError>,
    ) -> Result<A, CallError> {
        let until = tokio::time::Instant::now() + READ_PATIENCE;
        let mut attempts = 0;
        loop {
            match attempt(attempts).await {
                Err(CallError::Unclear(_)) if tokio::time::Instant::now() < until => {
                    attempts += 1;
                    self.pause(attempts).await;
                }
                done => return done,
            }
        }
    }

    /// Pauses after so many attempts: not before each endpoint was tried.
    pub async fn pause(&self, attempts: usize) {
        if attempts.is_multiple_of(self.endpoints()) {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Begins a lease. One of a request without an answer ends by itself.
    pub async fn grant(&self, ttl: Duration) -> Result<LeaseId, CallError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let request = GrantRequest { ttl: Int(i64::try_from(seconds.max(1)).unwrap_or(i64::MAX)) };
        let granted: LeaseAnswer = self.read("/v3/lease/grant", &request).await?;
        Ok(LeaseId(granted.id.0))
    }

    /// Whether a lease is held by somebody.
    pub async fn has_lease(&self, lease: LeaseId) -> Result<bool, CallError> {
        let request = LeaseRequest { id: Int(lease.0) };
        match self.read::<_, LeaseAnswer>("/v3/lease/timetolive", &request).await {
            // etcd answers for leases that it does not have, with -1.
            Ok(answer) => Ok(answer.ttl.0 > 0),
            Err(error) if error.is_no_lease() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a request to an endpoint; returns the answer from its body on. Logs in first, where that is needed.
    pub async fn send<Q: Serialize>(
        &self,
        to: usize,
        path: &str,
        request: &Q,
    ) -> Result<Response, CallError> {
        let body = serde_json::to_vec(request).expect("requests can be written as JSON");
        let token = self.0.token.lock().clone();
        let token = match (token, &self.0.user) {
            (None, Some(user)) => Some(self.log_in(to, user).await?),
            (token, _) => token,
        };
        match self.post(to, path, body.clone(), token).await {
            // The token has expired, or etcd was started again. The request had no effect.
            Err(CallError::Refused(failure)) if is_old_token(&failure) && self.0.user.is_some() => {
                let user = self.0.user.as_ref().expect("it was just seen");
                let token = self.log_in(to, user).await?;
                self.post(to, path, body, Some(token)).await
            }
            sent => sent,
        }
    }

    async fn log_in(&self, to: usize, user: &LogInRequest) -> Result<HeaderValue, CallError> {
        let body = serde_json::to_vec(user).expect("requests can be written as JSON");
        let response = self.post(to, "/v3/auth/authenticate", body, None).await?;
        let answer: LogInAnswer =
            serde_json::from_slice(&response.bytes().await.map_err(unclear)?).map_err(unclear)?;
        let mut token = HeaderValue::from_str(&answer.token).map_err(unclear)?;
        token.set_sensitive(true);
        *self.0.token.lock() = Some(token.clone());
        Ok(token)
    }

    async fn post(
        &self,
        to: usize,
        path: &str,
        body: Vec<u8>,
        token: Option<HeaderValue>,
    ) -> Result<Response, CallError> {
        let url = self.0.endpoints[to].join(path).map_err(unclear)?;
        let request = self.0.client.post(url).header(CONTENT_TYPE, "application/json").body(body);
        // A member that has lost its leader ends a watch in place of staying silent.
        let mut request = request.header("Grpc-Metadata-hasleader", "true");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let response = request.send().await.map_err(unclear)?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let (status, body) = (response.status(), response.bytes().await.map_err(unclear)?);
        match serde_json::from_slice::<Failure>(&body) {
            Ok(failure) => Err(refused(failure)),
            Err(_) => Err(CallError::Unclear(format!("HTTP status {status}"))),
        }
    }

    /// Goes on with the next endpoint after a request to `asked` without a clear outcome. Several requests may have been on
    /// their way to it.
    pub fn try_another(&self, asked: usize) {
        self.0.current.send_if_modified(|current| {
            let same = *current == asked;
            if same {
                *current = (asked + 1) % self.endpoints();
            }
            same && self.endpoints() > 1
        });
    }
}

/// The error of a request that etcd has answered with a failure.
pub fn refused(failure: Failure) -> CallError {
    match status::UNCLEAR.contains(&failure.code) {
        true => CallError::Unclear(failure.text().to_owned()),
        false => CallError::Refused(failure),
    }
}

fn is_old_token(failure: &Failure) -> bool {
    failure.code == status::UNAUTHENTICATED || failure.text().contains("invalid auth token")
}

/// The error of a request without an answer, with what caused it: the library's own words name no cause.
pub fn unclear(error: impl std::error::Error) -> CallError {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    CallError::Unclear(text)
}

async fn within<A>(
    time: Duration,
    request: impl Future<Output = Result<A, CallError>>,
) -> Result<A, CallError> {
    let late = |_| Err(CallError::Unclear(format!("no answer within {} s", time.as_secs())));
    tokio::time::timeout(time, request).await.unwrap_or_else(late)
}
