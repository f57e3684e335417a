//! Requests to the admin listener of a server, and `mainstem health`, the health check of containers.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail};

use serde_json::json;

use super::show;
use crate::arguments::Output;

/// The variable with the token of the admin listener.
pub const TOKEN: &str = "MAINSTEM_ADMIN_TOKEN";
/// Bound of each wait for a server that does not answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read at most.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What the server answered.
#[derive(Debug)]
pub struct Answer {
    /// The status code and its reason.
    status: String,
    pub body: String,
}

impl Answer {
    pub fn is_ok(&self) -> bool {
        self.status.starts_with("200 ")
    }
}

/// Asks for a path.
pub fn get(address: &str, path: &str) -> anyhow::Result<Answer> {
    let resolved = address.to_socket_addrs()?.next().context("the name has no address")?;
    let mut stream = TcpStream::connect_timeout(&resolved, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{token}\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("that is no HTTP server")?;
    let status =
        head.lines().next().and_then(|line| line.split_once(' ')).context("that is no HTTP server")?.1;
    Ok(Answer { status: status.to_owned(), body: body.to_owned() })
}

/// The metrics of a server, as text.
pub fn metrics(address: &str) -> anyhow::Result<String> {
    let answer = get(address, "/metrics")?;
    match &*answer.status {
        _ if answer.is_ok() => Ok(answer.body),
        status if status.starts_with("401 ") => bail!("they need a token: set {TOKEN}"),
        status => bail!("the answer is {status}"),
    }
}

/// Fails if clients cannot connect to the server, or its logs take no records.
pub fn health(address: &str, output: Output) -> anyhow::Result<()> {
    for path in ["/readyz", "/healthz"] {
        let answer = get(address, path).with_context(|| format!("{address} does not answer"))?;
        if !answer.is_ok() {
            let problem = answer.body.trim();
            show(output, String::new, || json!({"healthy": false, "problem": problem}))?;
            bail!("{problem}");
        }
    }
    show(output, || "healthy\n".into(), || json!({"healthy": true}))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers each connection with the next of these answers.
    fn server(answers: &'static [&'static str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn a_server_is_healthy_if_it_is_ready_and_well() {
        const OK: &str = "HTTP/1.1 200 OK\r\n\r\nok\n";
        const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\n\r\nthe disk is full\n";
        health(&server(&[OK, OK]), Output::Text).unwrap();
        assert_eq!(health(&server(&[OK, FULL]), Output::Json).unwrap_err().to_string(), "the disk is full");
        assert_eq!(health(&server(&[FULL]), Output::Text).unwrap_err().to_string(), "the disk is full");
        let gone = server(&[]);
        assert!(health(&gone, Output::Text).unwrap_err().to_string().ends_with(" does not answer"));
        assert!(
            metrics(&server(&["HTTP/1.1 401 Unauthorized\r\n\r\n"])).unwrap_err().to_string().contains(TOKEN)
        );
        assert_eq!(metrics(&server(&["HTTP/1.1 200 OK\r\n\r\na 1\n"])).unwrap(), "a 1\n");
    }
}
