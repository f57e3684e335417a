//! What a connection reads from and writes to: a plain socket here, TLS over one in [`crate::tls`].
//!
//! Both halves belong to one task. A socket costs nothing more than without this file: its halves are tokio's own.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// Where bytes come from.
pub trait Source: Send {
    /// Ready when a read may find something. It may find nothing all the same.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads at most `room` bytes, which is more than none, to the end of `into`, which has that capacity; 0 at the end.
    /// Pending leaves `into` as it was.
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>, room: usize)
    -> Poll<io::Result<usize>>;
}

/// A stream of bytes both ways.
pub trait Transport: Send {
    type Source<'a>: Source
    where
        Self: 'a;
    /// Bytes that it took have left the process only after a flush.
    type Sink<'a>: AsyncWrite + Unpin + Send
    where
        Self: 'a;

    fn split(&mut self) -> (Self::Source<'_>, Self::Sink<'_>);

    /// Tells the other side that no more will come, as far as that is possible without waiting.
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
        // The future keeps nothing between two polls.
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

    /// Dropping the socket does it.
    fn close(&mut self) {}
}
