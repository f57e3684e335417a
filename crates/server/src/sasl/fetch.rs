//! Fetches one document over HTTP: of bounded size, in bounded time, from an untrusted server.
//!
//! Redirects are not followed: the keys that check all tokens must come from the configured location.

use std::time::Duration;

use anyhow::{anyhow, bail};
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Request, StatusCode, Uri};

use crate::http;

/// Time-out for the whole fetch, from the name's resolution to the last byte.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The document at `url`, of at most `bytes_max` bytes.
pub async fn get(url: &Uri, bytes_max: usize) -> anyhow::Result<Vec<u8>> {
    let got = tokio::time::timeout(TIMEOUT, ask(url, bytes_max)).await;
    got.unwrap_or_else(|_| Err(anyhow!("there was no whole answer in {} s", TIMEOUT.as_secs())))
}

async fn ask(url: &Uri, bytes_max: usize) -> anyhow::Result<Vec<u8>> {
    let request = Request::get(url).header(ACCEPT, "application/json").body(Bytes::new())?;
    let answer = http::send(request, bytes_max).await?;
    if answer.status() != StatusCode::OK {
        let hint = if answer.status().is_redirection() { "; name the place that it points to" } else { "" };
        bail!("it answers {}{hint}", answer.status());
    }
    Ok(answer.into_body().to_vec())
}
