//! Writes answers to a socket, in the order of their requests.
//!
//! Only the answer at the head is awaited. When it is ready, the answers behind it that are ready too are sent with it,
//! so that pipelined small answers cost one system call.
//!
//! Invariants:
//! - Dropping the future around [`Outbound::poll_step`] loses nothing.
//! - A request's share of the budget is held until its answer has been written.
//! - A client that reads as fast as it can does not keep the thread from other connections.

use std::collections::VecDeque;
use std::future::Future;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use broker::{Answer, Refused};
use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use crate::budget::Share;
use crate::closing::Closing;

/// More answers are gathered for one write only below this size.
const GATHER_BYTES: usize = 64 * 1024;
/// Parts in one system call: 4 KiB of stack. The kernel accepts 1024.
const SLICES_MAX: usize = 256;
/// Bytes written before other connections get the thread. A client that drains a backlog takes megabytes as fast as
/// they are copied, and producers on the same thread would wait milliseconds. The value is not much less than producers
/// send in one of their turns, because consumers would otherwise fall behind at full load (docs/benchmarks/log.md).
const TURN_BYTES: usize = 1024 * 1024;

/// The answer to one request.
struct Pending {
    answer: Answer,
    share: Share,
    /// Whether the request may wait for other clients.
    waits: bool,
}

/// The answers that a connection still has to send.
#[derive(Default)]
pub struct Outbound {
    queue: VecDeque<Pending>,
    parts: VecDeque<Bytes>,
    /// Whether the writer may still hold bytes that it accepted.
    unflushed: bool,
    /// Held until `parts` are written.
    shares: Vec<Share>,
    /// Bytes held by all requests whose answers are not written yet.
    held_bytes: usize,
    /// The number of requests in `queue` that may wait for other clients.
    waiting: usize,
    /// The time since which the client has accepted nothing.
    stalled_from: Option<Instant>,
    refused: Option<Refused>,
}

impl Outbound {
    /// Queues the answer to a request that holds `share`. `waits` says whether the request may wait for other clients.
    pub fn push(&mut self, answer: Answer, share: Share, waits: bool) {
        self.held_bytes += share.bytes();
        self.waiting += usize::from(waits);
        self.queue.push_back(Pending { answer, share, waits });
    }

    /// Whether a queued request may wait for other clients.
    pub fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// The number of requests whose answers are not written yet.
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

    /// The time since which the client has accepted nothing of the answer being written.
    pub fn stalled_from(&self) -> Option<Instant> {
        self.stalled_from
    }

    /// Waits for answers and writes them. Ready when something was written or when writing begins to stall.
    pub fn poll_step<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
    ) -> Poll<Result<(), Closing>> {
        let gathered = !self.is_writing() && self.gather(cx);
        let mut moved = gathered;
        let mut turn = 0;
        while self.is_writing() {
            if turn >= TURN_BYTES {
                // The first poll of `yield_now` makes the runtime wake this task after it has looked at all sockets.
                return pin!(tokio::task::yield_now()).poll(cx).map(Ok);
            }
            let polled = if self.parts.is_empty() {
                Pin::new(&mut *writer).poll_flush(cx).map_ok(|()| {
                    self.unflushed = false;
                    0
                })
            } else {
                self.poll_write(cx, writer, TURN_BYTES - turn)
            };
            match polled {
                Poll::Ready(Ok(written)) => {
                    turn += written;
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

    /// Takes the ready answers from the head of the queue.
    fn gather(&mut self, cx: &mut Context<'_>) -> bool {
        let mut bytes = 0;
        let mut moved = false;
        while bytes < GATHER_BYTES && self.refused.is_none() {
            let Some(pending) = self.queue.front_mut() else { break };
            let Poll::Ready(result) = pending.answer.as_mut().poll(cx) else { break };
            let Pending { share, waits, .. } = self.queue.pop_front().expect("it has a front");
            self.waiting -= usize::from(waits);
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
                    for pending in self.queue.drain(..) {
                        self.held_bytes -= pending.share.bytes();
                    }
                    self.waiting = 0;
                }
            }
        }
        moved
    }

    /// Writes at most `bytes_max` bytes. Ready with the number of bytes written.
    fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
        bytes_max: usize,
    ) -> Poll<std::io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (mut count, mut room) = (0, bytes_max);
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            if room == 0 {
                break;
            }
            *slice = IoSlice::new(&part[..part.len().min(room)]);
            room -= slice.len();
            count += 1;
        }
        let written = match Pin::new(writer).poll_write_vectored(cx, &slices[..count]) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        self.unflushed = true;
        let mut rest = written;
        while rest > 0 {
            let part = self.parts.front_mut().expect("no more was written than there is");
            let here = rest.min(part.len());
            part.advance(here);
            rest -= here;
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
        Poll::Ready(Ok(written))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use wire::Chunks;

    use super::*;

    /// Accepts at most this many bytes at once, and nothing every other time.
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
            outbound.push(answer(parts), Share::default(), false);
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
        outbound.push(Box::pin(std::future::pending()), Share::default(), false);
        outbound.push(answer(vec![Bytes::from_static(b"x")]), Share::default(), false);
        assert!(step(&mut outbound, &mut writer).is_pending());
        assert_eq!((writer.calls, outbound.len()), (0, 2));
        let mut outbound = Outbound::default();
        for _ in 0..10 {
            outbound.push(answer(vec![Bytes::from_static(b"ab")]), Share::default(), false);
        }
        assert!(step(&mut outbound, &mut writer).is_ready());
        assert_eq!((writer.calls, writer.taken.len(), outbound.len()), (1, 20, 0));
    }

    #[test]
    fn who_takes_all_at_once_leaves_others_a_turn() {
        /// Accepts all bytes.
        struct Wide(usize);

        impl AsyncWrite for Wide {
            fn poll_write(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<std::io::Result<usize>> {
                self.0 += bytes.len();
                Poll::Ready(Ok(bytes.len()))
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
                Poll::Ready(Ok(()))
            }
        }

        struct Woken(AtomicUsize);

        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        const BYTES: usize = 3 * TURN_BYTES + 1;
        let mut outbound = Outbound::default();
        outbound.push(answer(vec![Bytes::from(vec![0; BYTES])]), Share::default(), false);
        let woken = Arc::new(Woken(AtomicUsize::new(0)));
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        let mut writer = Wide(0);
        for turn in 1..=3 {
            assert!(outbound.poll_step(&mut cx, &mut writer).is_pending());
            assert_eq!((writer.0, woken.0.load(Ordering::Relaxed)), (turn * TURN_BYTES, turn));
        }
        assert!(outbound.poll_step(&mut cx, &mut writer).is_ready());
        assert_eq!((writer.0, outbound.len()), (BYTES, 0));
    }

    #[test]
    fn what_comes_before_a_refusal_is_still_sent() {
        let mut outbound = Outbound::default();
        let mut writer = Narrow { taken: Vec::new(), at_once: usize::MAX, refuse: true, calls: 0 };
        outbound.push(answer(vec![Bytes::from_static(b"ok")]), Share::default(), false);
        outbound.push(Box::pin(async { Err(Refused("no".into())) }), Share::default(), false);
        outbound.push(answer(vec![Bytes::from_static(b"never")]), Share::default(), false);
        assert!(matches!(step(&mut outbound, &mut writer), Poll::Ready(Err(Closing::Refused(_)))));
        assert_eq!(writer.taken, b"ok");
    }
}
