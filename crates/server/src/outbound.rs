//! Answers to a socket, in the order of their requests.
//!
//! Only the answer at the head is awaited. When it is there, those behind it that are ready as well go out with it, so
//! that pipelined small answers cost one system call.
//!
//! Invariants:
//! - Dropping the future around [`Outbound::poll_step`] loses nothing.
//! - A request's share of the budget is held until its answer has been written.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use broker::{Answer, Refused};
use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use crate::budget::Share;
use crate::connection::Closing;

/// More answers are gathered for one write only below this.
const GATHER_BYTES: usize = 64 * 1024;
/// Parts handed to one system call: 4 KiB of stack; the kernel takes 1024.
const SLICES_MAX: usize = 256;

/// What a connection still has to send.
#[derive(Default)]
pub struct Outbound {
    queue: VecDeque<(Answer, Share)>,
    parts: VecDeque<Bytes>,
    /// Whether the writer may hold some of what it took.
    unflushed: bool,
    /// Held until `parts` are written.
    shares: Vec<Share>,
    /// What all requests hold whose answers are not written yet.
    held_bytes: usize,
    /// Since when the client has taken nothing.
    stalled_from: Option<Instant>,
    refused: Option<Refused>,
}

impl Outbound {
    /// Queues the answer to a request that holds `share`.
    pub fn push(&mut self, answer: Answer, share: Share) {
        self.held_bytes += share.bytes();
        self.queue.push_back((answer, share));
    }

    /// Requests whose answers are not written yet.
    pub fn len(&self) -> usize {
        self.queue.len() + self.shares.len()
    }

    /// Bytes that these requests hold of the budget.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.refused.is_none()
    }

    /// Whether an answer is partly written.
    pub fn is_writing(&self) -> bool {
        !self.parts.is_empty() || self.unflushed
    }

    /// Since when the client has taken nothing of what is being written.
    pub fn stalled_from(&self) -> Option<Instant> {
        self.stalled_from
    }

    /// Waits for answers and writes; ready whenever something was written or writing has begun to stall.
    pub fn poll_step<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
    ) -> Poll<Result<(), Closing>> {
        let gathered = !self.is_writing() && self.gather(cx);
        let mut moved = gathered;
        while self.is_writing() {
            let polled = if self.parts.is_empty() {
                Pin::new(&mut *writer).poll_flush(cx).map_ok(|()| self.unflushed = false)
            } else {
                self.poll_write(cx, writer)
            };
            match polled {
                Poll::Ready(Ok(())) => {
                    moved = true;
                    self.stalled_from = None;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Closing::Socket(error))),
                Poll::Pending => {
                    let starts = self.stalled_from.is_none();
                    if starts {
                        self.stalled_from = Some(Instant::now());
                    }
                    return if moved || starts { Poll::Ready(Ok(())) } else { Poll::Pending };
                }
            }
        }
        for share in self.shares.drain(..) {
            self.held_bytes -= share.bytes();
        }
        if let Some(refused) = self.refused.take() {
            return Poll::Ready(Err(Closing::Refused(refused)));
        }
        if moved { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Takes the answers that are ready at the head of the queue.
    fn gather(&mut self, cx: &mut Context<'_>) -> bool {
        let mut bytes = 0;
        let mut moved = false;
        while bytes < GATHER_BYTES && self.refused.is_none() {
            let Some((answer, _)) = self.queue.front_mut() else { break };
            let Poll::Ready(result) = answer.as_mut().poll(cx) else { break };
            let (_, share) = self.queue.pop_front().expect("it has a front");
            moved = true;
            match result {
                Ok(chunks) => {
                    bytes += chunks.len();
                    self.parts.extend(chunks.parts.into_iter().filter(|part| !part.is_empty()));
                    self.shares.push(share);
                }
                Err(refused) => {
                    self.refused = Some(refused);
                    self.held_bytes -= share.bytes();
                    for (_, share) in self.queue.drain(..) {
                        self.held_bytes -= share.bytes();
                    }
                }
            }
        }
        moved
    }

    fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
    ) -> Poll<std::io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        let mut written = match Pin::new(writer).poll_write_vectored(cx, &slices[..count]) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        self.unflushed = true;
        while written > 0 {
            let part = self.parts.front_mut().expect("no more was written than there is");
            let here = written.min(part.len());
            part.advance(here);
            written -= here;
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use wire::Chunks;

    use super::*;

    /// Takes at most so many bytes at once, and nothing every other time.
    struct Narrow {
        taken: Vec<u8>,
        at_once: usize,
        refuse: bool,
        calls: usize,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<std::io::Result<usize>> {
            self.calls += 1;
            self.refuse = !self.refuse;
            if self.refuse {
                return Poll::Pending;
            }
            let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let count = all.len().min(self.at_once);
            self.taken.extend(&all[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn answer(parts: Vec<Bytes>) -> Answer {
        Box::pin(async { Ok(Chunks { parts }) })
    }

    fn step(outbound: &mut Outbound, writer: &mut Narrow) -> Poll<Result<(), Closing>> {
        outbound.poll_step(&mut Context::from_waker(std::task::Waker::noop()), writer)
    }

    #[test]
    fn partial_writes_of_many_parts_keep_every_byte() {
        let mut outbound = Outbound::default();
        let mut expected = Vec::new();
        for number in 0..5u8 {
            let parts: Vec<Bytes> = (0..300).map(|size| Bytes::from(vec![number; size % 17])).collect();
            parts.iter().for_each(|part| expected.extend_from_slice(part));
            outbound.push(answer(parts), Share::default());
        }
        let mut writer = Narrow { taken: Vec::new(), at_once: 101, refuse: false, calls: 0 };
        assert_eq!(outbound.len(), 5);
        while !outbound.is_empty() {
            let _ = step(&mut outbound, &mut writer);
        }
        assert_eq!(writer.taken, expected);
        assert!(outbound.stalled_from().is_none());
    }

    #[test]
    fn ready_answers_go_out_together_and_a_slow_head_holds_them_back() {
        let mut outbound = Outbound::default();
        let mut writer = Narrow { taken: Vec::new(), at_once: usize::MAX, refuse: true, calls: 0 };
        outbound.push(Box::pin(std::future::pending()), Share::default());
        outbound.push(answer(vec![Bytes::from_static(b"x")]), Share::default());
        assert!(step(&mut outbound, &mut writer).is_pending());
        assert_eq!((writer.calls, outbound.len()), (0, 2));
        let mut outbound = Outbound::default();
        for _ in 0..10 {
            outbound.push(answer(vec![Bytes::from_static(b"ab")]), Share::default());
        }
        assert!(step(&mut outbound, &mut writer).is_ready());
        assert_eq!((writer.calls, writer.taken.len(), outbound.len()), (1, 20, 0));
    }

    #[test]
    fn what_comes_before_a_refusal_is_still_sent() {
        let mut outbound = Outbound::default();
        let mut writer = Narrow { taken: Vec::new(), at_once: usize::MAX, refuse: true, calls: 0 };
        outbound.push(answer(vec![Bytes::from_static(b"ok")]), Share::default());
        outbound.push(Box::pin(async { Err(Refused("no".into())) }), Share::default());
        outbound.push(answer(vec![Bytes::from_static(b"never")]), Share::default());
        assert!(matches!(step(&mut outbound, &mut writer), Poll::Ready(Err(Closing::Refused(_)))));
        assert_eq!(writer.taken, b"ok");
    }
}
