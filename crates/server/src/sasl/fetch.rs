//! Fetches one document over HTTP: of bounded size, in bounded time, from an untrusted server.
//!
//! Redirects are not followed: the keys that check all tokens must come from the configured location.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Time-out for the whole fetch, from the name's resolution to the last byte.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The document at `url`, of at most `bytes_max` bytes.
pub async fn get(url: &Uri, bytes_max: usize) -> anyhow::Result<Vec<u8>> {
    let got = tokio::time::timeout(TIMEOUT, ask(url, bytes_max)).await;
    got.unwrap_or_else(|_| Err(anyhow!("there was no whole answer in {} s", TIMEOUT.as_secs())))
}

async fn ask(url: &Uri, bytes_max: usize) -> anyhow::Result<Vec<u8>> {
    let host = url.host().context("the URL names no host")?;
    let secure = url.scheme_str() == Some("https");
    let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let bare = host.trim_matches(['[', ']']);
    let stream = TcpStream::connect((bare, port)).await.context("it cannot be reached")?;
    if !secure {
        return talk(stream, url, host, bytes_max).await;
    }
    let name = ServerName::try_from(bare.to_owned()).context("its name is none for TLS")?;
    let connector = tokio_rustls::TlsConnector::from(trust()?);
    let stream = connector.connect(name, stream).await.context("TLS failed")?;
    talk(stream, url, host, bytes_max).await
}

/// TLS with the authorities that the system trusts. `SSL_CERT_FILE` and `SSL_CERT_DIR` replace them.
fn trust() -> anyhow::Result<Arc<rustls::ClientConfig>> {
    static CONFIG: LazyLock<Result<Arc<rustls::ClientConfig>, String>> = LazyLock::new(|| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
    });
    CONFIG.clone().map_err(anyhow::Error::msg)
}

async fn talk<T>(stream: T, url: &Uri, host: &str, bytes_max: usize) -> anyhow::Result<Vec<u8>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the sender. Its errors show up there.
    tokio::spawn(async move { drop(connection.await) });
    let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(HOST, authority)
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("mainstem/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    if answer.status() != StatusCode::OK {
        let hint = if answer.status().is_redirection() { "; name the place that it points to" } else { "" };
        bail!("it answers {}{hint}", answer.status());
    }
    let body = Limited::new(answer.into_body(), bytes_max).collect().await;
    let body = body.map_err(|error| anyhow!("the answer cannot be read to its end: {error}"))?;
    Ok(body.to_bytes().to_vec())
}
