//! A connection of the native engine: frames out, frames in, in order.
//!
//! [`client::Session`] implements the protocol. This file adds the socket, TLS and the queue. Sending never waits:
//! frames go into a queue that a task of the connection writes. The sender bounds its length by bounding the requests
//! in flight. Receiving reads one frame at a time into memory that is reused once nothing of the last frame is kept.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use client::{
    Opening, Progress, Request, Security, Session, SessionError, Software, frame_bytes, server_name,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use wire::{Bytes, Chunks, EncodeError};

const SOFTWARE: Software = Software { name: "mainstem-bench", version: env!("CARGO_PKG_VERSION") };
/// Time-out for opening a connection, including all exchanges before the first request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out for an answer outside of the load. It is longer than the time that a server gets to create topics.
const CALL_TIMEOUT: Duration = Duration::from_secs(130);
/// Larger answers are refused.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// The reason why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("cannot connect to {address}: {error}")]
    Connect { address: String, error: io::Error },
    #[error("lost the connection to {address}: {error}")]
    Lost { address: String, error: io::Error },
    #[error("{address} {error}")]
    Session { address: String, error: SessionError },
    #[error("a request cannot be written: {0}")]
    Encode(EncodeError),
}

impl ConnectionError {
    fn of(address: &str, error: SessionError) -> ConnectionError {
        match error {
            SessionError::Encode(error) => ConnectionError::Encode(error),
            error => ConnectionError::Session { address: address.to_owned(), error },
        }
    }
}

type Input = Box<dyn AsyncRead + Unpin>;
type Output = Box<dyn AsyncWrite + Unpin>;

/// The sending half. Clones share the connection.
#[derive(Clone)]
pub struct Sender {
    connection: Rc<Connection>,
}

/// The state shared by both halves and the writing task.
struct Connection {
    address: Box<str>,
    session: RefCell<Session>,
    queue: Queue,
}

impl Connection {
    fn failed(&self, error: SessionError) -> ConnectionError {
        ConnectionError::of(&self.address, error)
    }
}

#[derive(Default)]
struct Queue {
    frames: RefCell<VecDeque<Chunks>>,
    news: Notify,
    closed: Cell<bool>,
}

impl Queue {
    /// Takes the oldest frames, up to the number of parts in one system call, but at least one frame if there is any.
    fn take_some(&self) -> Vec<Chunks> {
        /// Linux accepts 1024, but some systems accept fewer.
        const PARTS_MAX: usize = 256;
        let mut frames = self.frames.borrow_mut();
        let mut parts = 0;
        let fit = |frame: &&Chunks| {
            parts += frame.parts.len();
            parts <= PARTS_MAX
        };
        let count = frames.iter().take_while(fit).count().max(1).min(frames.len());
        frames.drain(..count).collect()
    }
}

/// The receiving half.
pub struct Receiver {
    incoming: Incoming,
    connection: Rc<Connection>,
}

/// Connects, with TLS and a log-in if the settings require them, and asks for the versions that the server supports.
/// Must be called inside a `LocalSet`.
pub async fn connect(address: &str, security: &Security) -> Result<(Sender, Receiver), ConnectionError> {
    let failed = |error| ConnectionError::Connect { address: address.into(), error };
    let introduced = tokio::time::timeout(CONNECT_TIMEOUT, introduce(address, security)).await;
    introduced.unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))
}

async fn introduce(address: &str, security: &Security) -> Result<(Sender, Receiver), ConnectionError> {
    let failed = |error| ConnectionError::Connect { address: address.into(), error };
    let lost = |error| ConnectionError::Lost { address: address.into(), error };
    let of_session = |error| ConnectionError::of(address, error);
    let (input, mut output) = open(address, security).await.map_err(failed)?;
    let mut incoming = Incoming { input, buffer: BytesMut::new() };
    let (mut opening, mut frame) = Opening::new(SOFTWARE, security.log_in.clone()).map_err(of_session)?;
    let session = loop {
        write_parts(frame.parts.iter(), &mut output).await.map_err(lost)?;
        output.flush().await.map_err(lost)?;
        let answer = incoming.frame(address).await?;
        match opening.receive(answer).map_err(of_session)? {
            Progress::Ask(next, more) => (opening, frame) = (*next, more),
            Progress::Open(session) => break session,
        }
    };
    let connection = Rc::new(Connection {
        address: address.into(),
        session: RefCell::new(session),
        queue: Queue::default(),
    });
    let writing = connection.clone();
    tokio::task::spawn_local(async move {
        // The receiver learns of the failure by the end of the connection.
        let _ = write_frames(&writing.queue, &mut output).await;
        let _ = output.shutdown().await;
    });
    Ok((Sender { connection: connection.clone() }, Receiver { incoming, connection }))
}

async fn open(address: &str, security: &Security) -> io::Result<(Input, Output)> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let Some(config) = &security.tls else {
        let (input, output) = stream.into_split();
        return Ok((Box::new(input), Box::new(output)));
    };
    let name = server_name(address).map_err(io::Error::other)?;
    let stream = tokio_rustls::TlsConnector::from(config.clone()).connect(name, stream).await?;
    let (input, output) = tokio::io::split(stream);
    Ok((Box::new(input), Box::new(output)))
}

/// All queued frames are written together. With small requests, a system call for each would be the largest cost of a
/// connection.
async fn write_frames(queue: &Queue, output: &mut Output) -> io::Result<()> {
    loop {
        let frames = queue.take_some();
        if !frames.is_empty() {
            write_parts(frames.iter().flat_map(|frame| &frame.parts), output).await?;
        } else if queue.closed.get() {
            return Ok(());
        } else {
            output.flush().await?;
            queue.news.notified().await;
        }
    }
}

async fn write_parts(parts: impl Iterator<Item = &Bytes>, output: &mut Output) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let written = output.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// Sends a request and waits for the answer. No other request may be in flight.
pub async fn call<Q: Request>(
    sender: &Sender,
    receiver: &mut Receiver,
    request: &Q,
) -> Result<Q::Answer, ConnectionError> {
    sender.send(request)?;
    match tokio::time::timeout(CALL_TIMEOUT, receiver.receive::<Q>()).await {
        Ok(answer) => answer,
        Err(_) => {
            let address = sender.address().to_owned();
            Err(ConnectionError::Lost { address, error: io::ErrorKind::TimedOut.into() })
        }
    }
}

impl Sender {
    /// Queues a request in the highest version that both sides support.
    pub fn send<Q: Request>(&self, request: &Q) -> Result<(), ConnectionError> {
        let asked = self.connection.session.borrow_mut().ask(request);
        self.queue(asked)
    }

    /// As [`Sender::send`], for a request without an answer: produce without acknowledgements.
    pub fn send_unanswered<Q: Request>(&self, request: &Q) -> Result<(), ConnectionError> {
        let told = self.connection.session.borrow_mut().tell(request);
        self.queue(told)
    }

    fn queue(&self, frame: Result<Chunks, SessionError>) -> Result<(), ConnectionError> {
        let frame = frame.map_err(|error| self.connection.failed(error))?;
        self.connection.queue.frames.borrow_mut().push_back(frame);
        self.connection.queue.news.notify_one();
        Ok(())
    }

    /// The version of a request on this connection.
    pub fn version<Q: Request>(&self) -> Result<i16, ConnectionError> {
        self.connection.session.borrow().version::<Q>().map_err(|error| self.connection.failed(error))
    }

    /// The number of frames that are not written yet.
    pub fn queued(&self) -> usize {
        self.connection.queue.frames.borrow().len()
    }

    pub fn address(&self) -> &str {
        &self.connection.address
    }

    /// Closes the connection once everything queued is written.
    pub fn close(&self) {
        self.connection.queue.closed.set(true);
        self.connection.queue.news.notify_one();
    }
}

impl Receiver {
    /// The answer to the oldest request in flight, which must be a `Q`.
    pub async fn receive<Q: Request>(&mut self) -> Result<Q::Answer, ConnectionError> {
        let frame = self.incoming.frame(&self.connection.address).await?;
        let answer = self.connection.session.borrow_mut().answer::<Q>(frame);
        answer.map_err(|error| self.connection.failed(error))
    }
}

/// Frames from a socket.
struct Incoming {
    input: Input,
    buffer: BytesMut,
}

impl Incoming {
    /// The next frame, without its size. `address` is for errors.
    async fn frame(&mut self, address: &str) -> Result<Bytes, ConnectionError> {
        let lost = |error| ConnectionError::Lost { address: address.to_owned(), error };
        self.fill(4).await.map_err(lost)?;
        let size = self.buffer.split_to(4);
        let size = frame_bytes([size[0], size[1], size[2], size[3]], ANSWER_BYTES_MAX)
            .map_err(|error| ConnectionError::of(address, error))?;
        self.fill(size).await.map_err(lost)?;
        Ok(self.buffer.split_to(size).freeze())
    }

    async fn fill(&mut self, bytes: usize) -> io::Result<()> {
        const READ_BYTES: usize = 64 * 1024;
        while self.buffer.len() < bytes {
            // One reservation for the whole frame. Several would move the data that is already there.
            self.buffer.reserve((bytes - self.buffer.len()).max(READ_BYTES));
            if self.input.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::other("the server closed it"));
            }
        }
        Ok(())
    }
}
