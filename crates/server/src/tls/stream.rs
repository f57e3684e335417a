//! A connection after the handshake: TLS records in and out.
//!
//! Incoming data is read in large pieces, decrypted record by record, and passed to the reader without another buffer.
//! Outgoing data is taken in its parts, encrypted record by record, and sent in as few system calls as its size allows.
//!
//! Invariants:
//! - Pending loses nothing: all data that was read or accepted is in the session.
//! - Encrypted data that waits is bounded by [`INCOMING_BYTES`] on the way in and [`OUTGOING_BYTES`] on the way out.
//! - An end of the socket is an end of the stream, with or without close_notify. Frames carry their size, so a
//!   truncation is detected.

use std::io::{self, BufRead, IoSlice, Write};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use rustls::server::ServerConnection;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use crate::transport::{Source, Transport};

/// Bytes per read of the socket: four of the largest records.
const INCOMING_BYTES: usize = 64 * 1024;
/// Bound in bytes of encrypted data that waits for the socket.
const OUTGOING_BYTES: usize = 128 * 1024;

/// A socket with TLS.
pub struct TlsStream {
    tcp: TcpStream,
    /// Used by one task, so the lock is never contended.
    session: Mutex<Session>,
}

struct Session {
    tls: ServerConnection,
    /// Bytes from the socket. The first `taken` of them were passed to `tls`.
    incoming: Vec<u8>,
    taken: usize,
    /// Whether the socket has ended, or the other side has sent close_notify.
    ended: bool,
}

/// Reads from a [`TlsStream`].
pub struct TlsSource<'a> {
    tcp: ReadHalf<'a>,
    session: &'a Mutex<Session>,
}

/// Writes to a [`TlsStream`].
pub struct TlsSink<'a> {
    tcp: WriteHalf<'a>,
    session: &'a Mutex<Session>,
}

fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TlsStream {
    /// Creates the stream of a session whose handshake is complete.
    pub fn new(tcp: TcpStream, mut tls: ServerConnection) -> TlsStream {
        tls.set_buffer_limit(Some(OUTGOING_BYTES));
        let session = Session { tls, incoming: Vec::new(), taken: 0, ended: false };
        TlsStream { tcp, session: Mutex::new(session) }
    }
}

impl Transport for TlsStream {
    type Source<'a> = TlsSource<'a>;
    type Sink<'a> = TlsSink<'a>;

    fn split(&mut self) -> (TlsSource<'_>, TlsSink<'_>) {
        let (reader, writer) = self.tcp.split();
        (TlsSource { tcp: reader, session: &self.session }, TlsSink { tcp: writer, session: &self.session })
    }

    fn close(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
        session.tls.send_close_notify();
        write_now(&self.tcp, &mut session.tls);
    }
}

impl Session {
    /// Moves at most `room` decrypted bytes to the end of `into`, from data that has already arrived.
    fn read(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        let mut moved = 0;
        loop {
            moved += read_plain(&mut self.tls, into, room - moved)?;
            if moved == room || self.taken == self.incoming.len() {
                return Ok(moved);
            }
            let mut rest = &self.incoming[self.taken..];
            let count = self.tls.read_tls(&mut rest)?;
            self.taken += count;
            if count == 0 {
                // Data after a close_notify is ignored.
                self.ended = true;
                self.taken = self.incoming.len();
            }
            if self.taken == self.incoming.len() {
                (self.incoming, self.taken) = (Vec::new(), 0);
            }
            self.tls
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

/// Moves at most `room` decrypted bytes to the end of `into`.
pub(super) fn read_plain(tls: &mut ServerConnection, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
    let mut moved = 0;
    while moved < room {
        let mut reader = tls.reader();
        let chunk = match reader.fill_buf() {
            Ok(chunk) => chunk,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::UnexpectedEof) =>
            {
                break;
            }
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            break;
        }
        let count = chunk.len().min(room - moved);
        into.extend_from_slice(&chunk[..count]);
        reader.consume(count);
        moved += count;
    }
    Ok(moved)
}

/// The body of the fuzz target: decrypts `records`, which may be any bytes.
#[cfg(test)]
pub(super) fn read_records(tls: ServerConnection, records: Vec<u8>, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut session = Session { tls, incoming: records, taken: 0, ended: false };
    session.read(into, usize::MAX)
}

impl Source for TlsSource<'_> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = lock(self.session);
        if session.taken < session.incoming.len() || session.ended || has_plain(&mut session.tls) {
            return Poll::Ready(Ok(()));
        }
        self.tcp.as_ref().poll_read_ready(cx)
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        let mut session = lock(self.session);
        loop {
            let moved = session.read(into, room);
            if session.tls.wants_write() {
                // An alert, or an answer to new keys. What does not fit now is sent with the next answer.
                write_now(self.tcp.as_ref(), &mut session.tls);
            }
            let moved = moved?;
            if moved > 0 || session.ended {
                return Poll::Ready(Ok(moved));
            }
            // The buffer is allocated only when there is something to read.
            ready!(self.tcp.poll_ready(cx))?;
            let mut incoming = Vec::with_capacity(INCOMING_BYTES);
            match ready!(self.tcp.poll_read(cx, &mut incoming, INCOMING_BYTES))? {
                0 => session.ended = true,
                _ => session.incoming = incoming,
            }
        }
    }
}

impl AsyncWrite for TlsSink<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let mut session = lock(self.session);
        loop {
            let taken = session.tls.writer().write_vectored(slices)?;
            let sent = poll_send(&mut self.tcp, cx, &mut session.tls);
            if taken == 0 {
                ready!(sent)?;
                continue;
            }
            return match sent {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
            };
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = lock(self.session);
        poll_send(&mut self.tcp, cx, &mut session.tls)
    }

    /// [`Transport::close`] sends the close_notify.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

/// Sends the encrypted data. Ready once all of it has left.
fn poll_send(
    tcp: &mut WriteHalf<'_>,
    cx: &mut Context<'_>,
    tls: &mut ServerConnection,
) -> Poll<io::Result<()>> {
    while tls.wants_write() {
        match tls.write_tls(&mut Polled { tcp: &mut *tcp, cx: &mut *cx }) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
    Poll::Ready(Ok(()))
}

/// Sends as much as possible without waiting. The next use of the socket reports errors.
pub(super) fn write_now(tcp: &TcpStream, tls: &mut ServerConnection) {
    while tls.wants_write() && tls.write_tls(&mut Tried(tcp)).is_ok_and(|count| count > 0) {}
}

/// A socket whose operations return Pending when they would block.
struct Polled<'a, 'b, 'c> {
    tcp: &'a mut WriteHalf<'b>,
    cx: &'a mut Context<'c>,
}

impl Write for Polled<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match Pin::new(&mut *self.tcp).poll_write_vectored(self.cx, slices) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket whose operations fail when they would block.
struct Tried<'a>(&'a TcpStream);

impl Write for Tried<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn has_plain(tls: &mut ServerConnection) -> bool {
    tls.reader().fill_buf().is_ok_and(|chunk| !chunk.is_empty())
}
