//! The byte stream of a connection: a plain socket here, TLS over a socket in [`crate::tls`].
//!
//! Both halves belong to one task. The abstraction costs nothing for a plain socket, whose halves are tokio's own.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// The reading half.
pub trait Source: Send {
    /// Ready when a read may find data. It may still find none.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads at most `room` bytes to the end of `into`, which has that capacity. `room` is greater than 0. Returns 0 at
    /// the end of the stream. Pending leaves `into` unchanged.
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>, room: usize)
    -> Poll<io::Result<usize>>;
}

/// A stream of bytes in both directions.
pub trait Transport: Send {
    type Source<'a>: Source
    where
        Self: 'a;
    /// The writing half. Accepted bytes have left the process only after a flush.
    type Sink<'a>: AsyncWrite + Unpin + Send
    where
        Self: 'a;

    fn split(&mut self) -> (Self::Source<'_>, Self::Sink<'_>);

    /// Tells the other side that no more data will come, as far as that is possible without waiting.
    fn close(&mut self);
}

impl Source for ReadHalf<'_> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.as_ref().poll_read_ready(cx)
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        let mut limited = into.limit(room);
        // The future keeps no state between two polls.
        let read = pin!(self.read_buf(&mut limited));
        read.poll(cx)
    }
}

impl Transport for TcpStream {
    type Source<'a> = ReadHalf<'a>;
    type Sink<'a> = WriteHalf<'a>;

    fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        TcpStream::split(self)
    }

    /// Dropping the socket closes it.
    fn close(&mut self) {}
}
