//! A blocking connection from a command to one server, with one request at a time.
//!
//! [`client::Session`] implements the protocol. This file adds the socket, TLS and the time-outs.

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use client::{
    KafkaError, Opening, Progress, Request, Security, Session, SessionError, Software, frame_bytes,
    server_name,
};
use rustls::{ClientConnection, StreamOwned};
use wire::{Bytes, Chunks, EncodeError, ErrorCode};

const SOFTWARE: Software = Software { name: "mainstem-cli", version: env!("CARGO_PKG_VERSION") };
/// The time-outs of most commands. Longer than any intended wait by the server: a join may take the group's rebalance time-out.
pub const PATIENCE: Patience = Patience { connect: Duration::from_secs(10), answer: Duration::from_secs(90) };
/// Larger answers are refused.
const ANSWER_BYTES_MAX: usize = 512 * 1024 * 1024;

/// The time-outs of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the connection.
    pub connect: Duration,
    /// For each answer.
    pub answer: Duration,
}

/// The reason why a command cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to {address}: {error}")]
    Connect { address: String, error: io::Error },
    #[error("lost the connection to {address}: {error}")]
    Lost { address: String, error: io::Error },
    #[error("{address} did not answer in {seconds} s")]
    Silent { address: String, seconds: u64 },
    #[error("{address} {error}")]
    Session { address: String, error: SessionError },
    #[error("the request cannot be written in the server's version: {0}")]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

impl ClientError {
    /// The error of a session with `address`.
    pub fn of(address: &str, error: SessionError) -> ClientError {
        match error {
            SessionError::Encode(error) => ClientError::Encode(error),
            SessionError::Answer { error, .. } => ClientError::Kafka(error),
            error => ClientError::Session { address: address.to_owned(), error },
        }
    }

    /// The server's error code, if the error is from Kafka's protocol.
    pub fn code(&self) -> Option<ErrorCode> {
        if let ClientError::Kafka(error) = self { error.known() } else { None }
    }
}

/// A connection to one server, after the handshake.
#[derive(Debug)]
pub struct Peer {
    channel: Channel,
    session: Session,
}

impl Peer {
    /// Connects, asks for the versions that the server supports, and logs in if the settings require it.
    pub fn connect_within(
        address: &str,
        security: &Security,
        patience: Patience,
    ) -> Result<Peer, ClientError> {
        let mut channel = Channel::connect(address, security, patience)?;
        let failed = |error| ClientError::of(address, error);
        let (mut opening, mut frame) = Opening::new(SOFTWARE, security.log_in.clone()).map_err(failed)?;
        loop {
            channel.send(&frame)?;
            match opening.receive(channel.receive()?).map_err(failed)? {
                Progress::Ask(next, more) => (opening, frame) = (*next, more),
                Progress::Open(session) => return Ok(Peer { channel, session }),
            }
        }
    }

    /// The highest version of a request that both sides support.
    pub fn version<Q: Request>(&self) -> Result<i16, ClientError> {
        self.session.version::<Q>().map_err(|error| self.failed(error))
    }

    /// Sends a request and waits for its answer.
    pub fn call<Q: Request>(&mut self, request: &Q) -> Result<Q::Answer, ClientError> {
        let frame = self.session.ask(request).map_err(|error| self.failed(error))?;
        self.channel.send(&frame)?;
        let answer = self.channel.receive()?;
        self.session.answer::<Q>(answer).map_err(|error| self.failed(error))
    }

    /// Sends a frame with a request, and returns the frame of the answer without its size.
    pub fn exchange(&mut self, request: &Chunks) -> Result<Bytes, ClientError> {
        self.channel.send(request)?;
        self.channel.receive()
    }

    /// Sends a request without an answer (`acks=0`).
    pub fn tell<Q: Request>(&mut self, request: &Q) -> Result<(), ClientError> {
        let frame = self.session.tell(request).map_err(|error| self.failed(error))?;
        self.channel.send(&frame)
    }

    fn failed(&self, error: SessionError) -> ClientError {
        ClientError::of(&self.channel.address, error)
    }
}

/// A socket, encrypted or not.
#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// `address` is `host:port`. The certificate must be valid for the host.
    fn new(stream: TcpStream, address: &str, security: &Security) -> io::Result<Stream> {
        let Some(config) = &security.tls else { return Ok(Stream::Plain(stream)) };
        let name = server_name(address).map_err(io::Error::other)?;
        let session = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, stream))))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(buffer),
            Stream::Tls(stream) => stream.write(buffer),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write_vectored(parts),
            Stream::Tls(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// Whole frames over a socket.
#[derive(Debug)]
struct Channel {
    address: String,
    patience: Patience,
    stream: Stream,
}

impl Channel {
    fn connect(address: &str, security: &Security, patience: Patience) -> Result<Channel, ClientError> {
        let failed = |error| ClientError::Connect { address: address.into(), error };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in address.to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&candidate, patience.connect) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(failed)?;
                    stream.set_read_timeout(Some(patience.answer)).map_err(failed)?;
                    stream.set_write_timeout(Some(patience.answer)).map_err(failed)?;
                    let stream = Stream::new(stream, address, security).map_err(failed)?;
                    return Ok(Channel { address: address.into(), patience, stream });
                }
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    fn send(&mut self, frame: &Chunks) -> Result<(), ClientError> {
        let mut parts: Vec<IoSlice<'_>> = frame.parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut parts[..];
        while !left.is_empty() {
            match self.stream.write_vectored(left) {
                Ok(0) => return Err(self.lost(io::ErrorKind::WriteZero.into())),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error)),
            }
        }
        self.stream.flush().map_err(|error| self.lost(error))
    }

    /// Receives the next frame, without its size.
    fn receive(&mut self) -> Result<Bytes, ClientError> {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).map_err(|error| self.lost(error))?;
        let size =
            frame_bytes(size, ANSWER_BYTES_MAX).map_err(|error| ClientError::of(&self.address, error))?;
        let mut bytes = Vec::new();
        // The buffer grows with the received bytes, not with the claimed size.
        let read =
            (&mut self.stream).take(size as u64).read_to_end(&mut bytes).map_err(|error| self.lost(error))?;
        if read < size {
            return Err(self.lost(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Bytes::from(bytes))
    }

    /// Gives the connection up. What was sent and has not arrived is taken back: the system would deliver it minutes later, once
    /// the network is well again. A marker that ends a transaction would then end a later one of the same producer.
    fn lost(&self, error: io::Error) -> ClientError {
        let address = self.address.clone();
        if let Err(error) =
            rustix::net::sockopt::set_socket_linger(self.stream.socket(), Some(Duration::ZERO))
        {
            tracing::warn!(address, %error, "a request that was given up may still arrive");
        }
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::Silent { address, seconds: self.patience.answer.as_secs() }
            }
            io::ErrorKind::UnexpectedEof => {
                ClientError::Lost { address, error: io::Error::other("the server closed it") }
            }
            _ => ClientError::Lost { address, error },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_was_sent_to_a_server_that_does_not_answer_is_taken_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let patience = Patience { connect: Duration::from_secs(2), answer: Duration::from_millis(50) };
        let mut channel = Channel::connect(&address, &Security::default(), patience).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        channel.send(&Chunks { parts: vec![Bytes::from_static(&[7; 4])] }).unwrap();
        assert!(matches!(channel.receive(), Err(ClientError::Silent { .. })));
        drop(channel);
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // A connection that is closed in an orderly way would end after the four bytes.
        let mut read = Vec::new();
        let error = server.read_to_end(&mut read).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
