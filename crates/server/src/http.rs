//! One HTTP request to another server: over TLS where the URL says so, with an answer of bounded size.
//!
//! Redirects are not followed. The caller bounds the time.

use std::sync::{Arc, LazyLock};

use anyhow::{Context, anyhow};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Sends a request to the server of its URI. An answer with more than `bytes_max` bytes is an error.
pub async fn send(request: Request<Bytes>, bytes_max: usize) -> anyhow::Result<Response<Bytes>> {
    let uri = request.uri();
    let host = uri.host().context("the URL names no host")?;
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let bare = host.trim_matches(['[', ']']).to_owned();
    let stream = TcpStream::connect((bare.as_str(), port)).await.context("it cannot be reached")?;
    if !secure {
        return talk(stream, request, bytes_max).await;
    }
    let name = ServerName::try_from(bare).context("its name is none for TLS")?;
    let connector = tokio_rustls::TlsConnector::from(trust()?);
    let stream = connector.connect(name, stream).await.context("TLS failed")?;
    talk(stream, request, bytes_max).await
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

async fn talk<T>(stream: T, request: Request<Bytes>, bytes_max: usize) -> anyhow::Result<Response<Bytes>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the sender. Its errors show up there.
    tokio::spawn(async move { drop(connection.await) });
    let (mut head, body) = request.into_parts();
    let authority = head.uri.authority().context("the URL names no host")?;
    // Without what may stand before an @.
    let host = authority.as_str().rsplit('@').next().unwrap_or_default();
    head.headers.insert(HOST, HeaderValue::from_str(host)?);
    let agent = HeaderValue::from_static(concat!("mainstem/", env!("CARGO_PKG_VERSION")));
    head.headers.entry(USER_AGENT).or_insert(agent);
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse::<Uri>()?;
    let answer = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, bytes_max).collect().await;
    let body = body.map_err(|error| anyhow!("the answer cannot be read to its end: {error}"))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
