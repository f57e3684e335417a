//! TLS on a listener's sockets: the handshake, and the client's identity from its certificate.
//!
//! `keys.rs` loads the server's keys, `stream.rs` reads and writes encrypted data, `subject.rs` and
//! `principal_mapping.rs` derive the names of clients. rustls implements TLS, with the ciphers of ring.
//!
//! Invariants:
//! - A handshake reads no more than [`HANDSHAKE_BYTES_MAX`] from an unauthenticated client.
//! - There is no early data (0-RTT): recorded data cannot be replayed.
//! - A certificate whose subject cannot be read or fits no rule ends the connection. It never becomes ANONYMOUS.

mod keys;
mod stream;
mod subject;
#[cfg(test)]
pub mod tests;

use std::io;

use broker::Principal;
use rustls::server::ServerConnection;
use rustls::{AlertDescription, InvalidMessage};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

pub use keys::Keys;
pub use stream::TlsStream;
use subject::Holder;

use crate::principal_mapping::MappingRules;

/// Enough for a chain of certificates, and equal to Java's bound on handshake messages.
pub const HANDSHAKE_BYTES_MAX: usize = 32 * 1024;
const READ_BYTES: usize = 4096;

/// The reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the client closed it")]
    Closed,
    #[error("the TLS handshake failed: {error}{hint}")]
    Tls { error: rustls::Error, hint: &'static str },
    #[error("the TLS handshake has more than {HANDSHAKE_BYTES_MAX} bytes")]
    TooLong,
    #[error("the client's certificate: {0}")]
    Certificate(String),
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Does the handshake and derives the client's identity. Dropping the future closes the connection.
pub async fn accept(
    mut tcp: TcpStream,
    keys: &Keys,
    rules: &MappingRules,
) -> Result<(TlsStream, Principal), HandshakeError> {
    let failed = |error| HandshakeError::Tls { error, hint: "" };
    let mut tls = ServerConnection::new(keys.config()).map_err(failed)?;
    let mut received = 0;
    loop {
        let mut outgoing = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut outgoing)?;
        }
        if !outgoing.is_empty() {
            tcp.write_all(&outgoing).await?;
        }
        if !tls.is_handshaking() {
            break;
        }
        tcp.readable().await?;
        if let Err(error) = read_some(&tcp, &mut tls, &mut received) {
            // The alert tells the client its mistake, if the client still listens.
            stream::write_now(&tcp, &mut tls);
            return Err(error);
        }
    }
    let principal = match tls.peer_certificates().and_then(|chain| chain.first()) {
        None => Principal::anonymous(),
        Some(certificate) => {
            let subject = Holder::of(certificate).map_err(HandshakeError::Certificate)?.subject;
            let name = rules.name(&subject).ok_or_else(|| {
                HandshakeError::Certificate(format!("no rule of ssl.principal.mapping.rules fits {subject}"))
            })?;
            Principal::user(&name)
        }
    };
    Ok((TlsStream::new(tcp, tls), principal))
}

/// Reads the data that has arrived, if any.
fn read_some(
    tcp: &TcpStream,
    tls: &mut ServerConnection,
    received: &mut usize,
) -> Result<(), HandshakeError> {
    let mut buffer = [0; READ_BYTES];
    let count = match tcp.try_read(&mut buffer) {
        Ok(0) => return Err(HandshakeError::Closed),
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let first = *received == 0;
    *received += count;
    if *received > HANDSHAKE_BYTES_MAX {
        return Err(HandshakeError::TooLong);
    }
    take(tls, &buffer[..count]).map_err(|error| match error {
        HandshakeError::Tls { error, .. } => HandshakeError::Tls { hint: hint(&error, first), error },
        other => other,
    })
}

/// Passes received data to TLS.
fn take(tls: &mut ServerConnection, mut bytes: &[u8]) -> Result<(), HandshakeError> {
    while !bytes.is_empty() {
        if tls.read_tls(&mut bytes)? == 0 {
            // After a close_notify, further data is ignored.
            return Ok(());
        }
        tls.process_new_packets().map_err(|error| HandshakeError::Tls { error, hint: "" })?;
    }
    Ok(())
}

/// A hint for a common mistake.
fn hint(error: &rustls::Error, first: bool) -> &'static str {
    match error {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) if first => {
            "; it looks like plain text, but this listener speaks TLS (security.protocol of the client)"
        }
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown,
        ) => "; the client does not trust the server's certificate",
        rustls::Error::NoCertificatesPresented => "; ssl.client.auth is required here",
        _ => "",
    }
}

/// The body of the fuzz target: any bytes from a client lead to an error or to nothing, and hold little memory.
#[cfg(test)]
fn fuzz_handshake(keys: &Keys, data: &[u8]) {
    let mut tls = ServerConnection::new(keys.config()).expect("the configuration is one");
    for part in data[..data.len().min(HANDSHAKE_BYTES_MAX)].chunks(READ_BYTES) {
        if take(&mut tls, part).is_err() {
            break;
        }
    }
    assert!(tls.is_handshaking(), "nobody is let in without the end of a handshake");
    let mut answer = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut answer).expect("memory takes everything");
    }
    assert!(answer.len() <= HANDSHAKE_BYTES_MAX);
}
