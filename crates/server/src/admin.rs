//! Metrics and health over HTTP, for Prometheus and for the supervisor that restarts the server.
//!
//! `/metrics` returns the text format that is asked for (`exposition`). `/healthz` returns 503 once the log accepts no more appends.
//! `/readyz` returns 503 until clients can connect, and again while the server stops. No request changes anything. If a
//! token is set (`admin.token`), `/metrics` requires it.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use ring::{hmac, rand};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::exposition::Format;
use crate::process::ProcessCollector;

/// Bound of the open connections. Scrapers and probes are few; further connections wait.
const CONNECTIONS_MAX: usize = 64;
/// An idle connection is closed after this time. Otherwise a few idle ones would shut out the others.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Every connection is closed after this time. A client that never reads its answers has no other time-out.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Failure = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The state of the server as the admin listener sees it.
pub struct Admin {
    registry: Mutex<Registry>,
    token: Option<Token>,
    ready: AtomicBool,
    failure: OnceLock<Failure>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl Admin {
    /// Creates the state of a server that is about to start. An empty token means no token.
    pub fn new(token: &str) -> Admin {
        let mut registry = Registry::default();
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("mainstem_build", "The version of mainstem that runs", build);
        registry.register_collector(Box::new(ProcessCollector));
        let token = (!token.is_empty()).then(|| Token::new(token));
        Admin {
            registry: Mutex::new(registry),
            token,
            ready: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// Adds metrics.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets the check of health: `failure` returns the reason why the server is not healthy, if it is not. Only the
    /// first call counts.
    pub fn watch(&self, failure: impl Fn() -> Option<String> + Send + Sync + 'static) {
        let _ = self.failure.set(Box::new(failure));
    }

    /// Sets whether clients can connect.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
        if method != Method::GET && method != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n");
        }
        let failure = || self.failure.get().and_then(|failure| failure());
        match path {
            "/metrics" if !self.token.as_ref().is_none_or(|token| token.is_in(headers)) => {
                let mut refusal = text(StatusCode::UNAUTHORIZED, "metrics need the token (admin.token)\n");
                let scheme = "Bearer".parse().expect("it is a header value");
                refusal.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                refusal
            }
            "/metrics" => self.metrics(Format::asked_for(headers)),
            "/healthz" => match failure() {
                None => text(StatusCode::OK, "ok\n"),
                Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
            },
            "/readyz" if self.ready.load(Ordering::Acquire) => text(StatusCode::OK, "ready\n"),
            "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready: starting or stopping\n"),
            _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n"),
        }
    }

    /// All metrics in OpenMetrics.
    pub fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        Format::OpenMetrics.write(&self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn metrics(&self, format: Format) -> Response<Full<Bytes>> {
        let written = format.write(&self.registry.lock().unwrap_or_else(PoisonError::into_inner));
        let mut response = match written {
            Ok(body) => text(StatusCode::OK, body),
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        };
        let kind = format.content_type().parse().expect("it is a header value");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// The token that a request for metrics must carry.
struct Token {
    /// A random key of this process. The time of comparing two tags made with it reveals nothing about the token.
    key: hmac::Key,
    sum: hmac::Tag,
}

impl Token {
    fn new(token: &str) -> Token {
        let random = rand::SystemRandom::new();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &random).expect("the system has random numbers");
        Token { sum: hmac::sign(&key, token.as_bytes()), key }
    }

    fn is_in(&self, headers: &HeaderMap) -> bool {
        let said = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, said)) = said.and_then(|value| value.split_once(' ')) else { return false };
        scheme.eq_ignore_ascii_case("Bearer")
            && hmac::verify(&self.key, said.trim().as_bytes(), self.sum.as_ref()).is_ok()
    }
}

async fn respond(admin: Arc<Admin>, request: Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
    let has_many_lines = request.uri().path() == "/metrics";
    let answer = move || admin.answer(request.method(), request.uri().path(), request.headers());
    if !has_many_lines {
        return answer();
    }
    // It goes over all partitions and groups.
    let answered = tokio::task::spawn_blocking(answer).await;
    answered.unwrap_or_else(|error| text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, "text/plain; charset=utf-8".parse().expect("it is a header value"));
    response
}

/// Serves requests until the future is dropped.
pub async fn run(listener: TcpListener, admin: Arc<Admin>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "an admin connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let admin = admin.clone();
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let admin = admin.clone();
                async move { Ok::<_, Infallible>(respond(admin, request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an admin connection ended"),
                Err(_) => tracing::debug!("an admin connection had its time"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    struct Asked {
        admin: Arc<Admin>,
        address: std::net::SocketAddr,
    }

    impl Asked {
        async fn start() -> Asked {
            Asked::with_token("").await
        }

        async fn with_token(token: &str) -> Asked {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let admin = Arc::new(Admin::new(token));
            tokio::spawn(run(listener, admin.clone()));
            Asked { admin, address }
        }

        async fn ask(&self, line: &str) -> (String, String) {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            (head.lines().next().unwrap().strip_prefix("HTTP/1.1 ").unwrap().into(), body.into())
        }
    }

    #[tokio::test]
    async fn health_and_readiness_follow_the_server() {
        let asked = Asked::start().await;
        let (ok, down) = ("200 OK", "503 Service Unavailable");
        assert_eq!(asked.ask("GET /healthz").await, (ok.into(), "ok\n".into()));
        assert_eq!(asked.ask("GET /readyz").await.0, down);
        let failed = Arc::new(AtomicBool::new(false));
        let seen = failed.clone();
        asked.admin.watch(move || seen.load(Ordering::SeqCst).then(|| "a write failed".into()));
        asked.admin.set_ready(true);
        assert_eq!(asked.ask("GET /readyz").await, (ok.into(), "ready\n".into()));
        assert_eq!(asked.ask("GET /healthz").await.0, ok);
        failed.store(true, Ordering::SeqCst);
        assert_eq!(asked.ask("GET /healthz").await, (down.into(), "a write failed\n".into()));
        assert_eq!(asked.ask("GET /nothing").await.0, "404 Not Found");
        assert_eq!(asked.ask("POST /metrics").await.0, "405 Method Not Allowed");
        assert_eq!(asked.ask("HEAD /healthz").await.1, "");
    }

    #[tokio::test]
    async fn metrics_are_for_those_who_know_the_token() {
        let asked = Asked::with_token("s3cret").await;
        let refused = "401 Unauthorized";
        for header in [
            "",
            "\r\nAuthorization: Bearer s3cre",
            "\r\nAuthorization: Basic s3cret",
            "\r\nAuthorization: s3cret",
        ] {
            let (status, body) = asked.ask(&format!("GET /metrics HTTP/1.1{header}\r\nX: ")).await;
            assert_eq!((status.as_str(), body.contains("mainstem_build")), (refused, false), "{header}");
        }
        let (status, body) = asked.ask("GET /metrics HTTP/1.1\r\nAuthorization: Bearer s3cret\r\nX: ").await;
        assert!(status == "200 OK" && body.contains("mainstem_build"));
        assert_eq!(asked.ask("GET /healthz").await.0, "200 OK");
        asked.admin.set_ready(true);
        assert_eq!(asked.ask("GET /readyz").await.0, "200 OK");
    }

    #[tokio::test]
    async fn metrics_are_those_of_the_process_and_those_registered() {
        let asked = Asked::start().await;
        let counter: Counter = Counter::default();
        counter.inc_by(42);
        asked.admin.register(|registry| registry.register("things", "Things counted", counter));
        let (status, body) = asked.ask("GET /metrics").await;
        assert_eq!(status, "200 OK");
        assert!(body.contains("# TYPE things_total counter\n"), "{body}");
        let newer = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\nX: ";
        let (status, body) = asked.ask(newer).await;
        assert_eq!(status, "200 OK");
        for start in [
            "things_total 42",
            concat!("mainstem_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "process_start_time_seconds ",
        ] {
            assert!(body.lines().any(|line| line.starts_with(start)), "{start} in {body}");
        }
        assert!(body.ends_with("# EOF\n"));
    }
}
