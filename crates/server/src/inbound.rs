//! Frames from a connection: a 4-byte size, then that many bytes.
//!
//! Small frames are cut from a buffer that one system call fills, so that many of them cost one call. A frame larger
//! than the buffer gets separate memory, which grows as its bytes arrive, and is read straight into it.
//!
//! Invariants:
//! - All state is here and none is in the futures: dropping [`Inbound::next`] at any point loses nothing.
//! - Memory for a frame is covered by its share of the [`Budget`] before it is allocated.
//! - Between frames there is no buffer. Those of all connections of a thread are used again: an allocation of this size for
//!   every read would cost more than the read of a small request does.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::ready;
use std::time::Instant;

use bytes::Bytes;

use crate::budget::{Budget, Part, SMALL_FRAME_BYTES, Share, waits};
use crate::closing::Closing;
use crate::transport::Source;

/// Bytes of the buffer from which small frames are cut.
const BUFFER_BYTES: usize = SMALL_FRAME_BYTES;
/// Size of a frame's first memory, which costs nothing of the budget, because a claimed size is only a claim. A
/// connection that has sent large frames before gets more at once.
const FIRST_STEP_BYTES: usize = SMALL_FRAME_BYTES;
const TRUSTED_STEP_BYTES_MAX: usize = 1024 * 1024;
/// Bytes that must arrive for a frame to count as making progress. Otherwise a client could hold its memory with an
/// occasional byte.
const PROGRESS_BYTES: usize = 16 * 1024;
const SIZE_BYTES: usize = 4;
/// The most buffers that a thread keeps while no connection needs them.
const SPARE_BUFFERS_MAX: usize = 4;

thread_local! {
    /// Empty buffers of [`BUFFER_BYTES`].
    static SPARE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take_buffer() -> Vec<u8> {
    SPARE_BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

fn give_back(mut buffer: Vec<u8>) {
    SPARE_BUFFERS.with_borrow_mut(|spare| {
        if buffer.capacity() > 0 && spare.len() < SPARE_BUFFERS_MAX {
            buffer.clear();
            spare.push(buffer);
        }
    });
}

/// The result of [`Inbound::next`].
#[derive(Debug)]
pub enum Read {
    Frame(Arrived),
    /// A frame has begun but is not complete. [`Inbound::stalled_from`] has changed. Call again.
    Waiting,
    /// The client sends no more data.
    End,
}

/// A whole frame.
#[derive(Debug)]
pub struct Arrived {
    pub bytes: Bytes,
    pub share: Share,
    /// Whether the request may wait for other clients.
    pub waits: bool,
}

/// Bytes that were read from a connection and not handed on yet.
#[derive(Debug)]
pub struct Inbound {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that were handed on.
    taken: usize,
    frame: Option<Partial>,
    frame_bytes_max: usize,
    step_bytes: usize,
    /// The time since which the rest of a frame is missing.
    stalled_from: Option<Instant>,
    /// Bytes received since then.
    progress_bytes: usize,
}

#[derive(Debug)]
struct Partial {
    size: usize,
    bytes: Vec<u8>,
    share: Share,
    /// The part of the budget that the share comes from, once it holds something.
    part: Part,
}

impl Inbound {
    /// Accepts frames of at most this many bytes.
    pub fn new(frame_bytes_max: usize) -> Inbound {
        Inbound {
            buffer: Vec::new(),
            taken: 0,
            frame: None,
            frame_bytes_max,
            step_bytes: FIRST_STEP_BYTES,
            stalled_from: None,
            progress_bytes: 0,
        }
    }

    /// Sets the bound in bytes of later frames.
    pub fn bound_frames(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// Whether the frame in progress holds memory of the budget.
    pub fn holds_budget(&self) -> bool {
        self.frame.as_ref().is_some_and(|frame| frame.bytes.capacity() > SMALL_FRAME_BYTES)
    }

    /// The time since which the rest of a frame is missing, if one is.
    pub fn stalled_from(&self) -> Option<Instant> {
        self.stalled_from
    }

    /// Restarts the stall timer after a pause by the server.
    pub fn resume(&mut self) {
        if self.stalled_from.is_some() {
            self.stalled_from = Some(Instant::now());
        }
    }

    /// Reads the next frame. `behind` says whether it stands behind a request that waits. Cancellation-safe.
    pub async fn next<S: Source>(
        &mut self,
        reader: &mut S,
        budget: &Budget,
        behind: bool,
    ) -> Result<Read, Closing> {
        loop {
            if self.frame.is_none() && !self.begin()? {
                let owed = !self.unread().is_empty();
                if owed && self.starts_to_stall() {
                    return Ok(Read::Waiting);
                }
                let received = self.fill(reader).await?;
                match received {
                    0 if owed => return Err(Closing::Truncated),
                    0 => return Ok(Read::End),
                    received => self.received(received),
                }
                continue;
            }
            self.grow(budget, behind).await;
            self.move_unread();
            let frame = self.frame.as_mut().expect("a frame has begun");
            let missing = frame.size - frame.bytes.len();
            if missing == 0 {
                let waits = waits(&frame.bytes).unwrap_or(false);
                if frame.size <= SMALL_FRAME_BYTES {
                    budget.take_small(&mut frame.share, waits, behind, frame.size).await;
                }
                return Ok(self.finish(waits));
            }
            if frame.bytes.len() == frame.bytes.capacity() {
                continue;
            }
            if self.starts_to_stall() {
                return Ok(Read::Waiting);
            }
            // The end of a frame is read together with the bytes behind it.
            let received = if missing < BUFFER_BYTES {
                self.fill(reader).await?
            } else {
                self.fill_frame(reader).await?
            };
            if received == 0 {
                return Err(Closing::Truncated);
            }
            self.received(received);
        }
    }

    fn unread(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Begins a frame if its size has arrived.
    fn begin(&mut self) -> Result<bool, Closing> {
        let Some(prefix) = self.unread().first_chunk::<SIZE_BYTES>() else { return Ok(false) };
        let claimed = i32::from_be_bytes(*prefix);
        match usize::try_from(claimed) {
            Ok(size) if size > 0 && size <= self.frame_bytes_max => {
                self.taken += SIZE_BYTES;
                self.frame =
                    Some(Partial { size, bytes: Vec::new(), share: Share::default(), part: Part::Control });
                Ok(true)
            }
            _ => Err(Closing::Size { claimed, max: self.frame_bytes_max, hint: hint(*prefix) }),
        }
    }

    /// Makes room in the frame once all of its memory is used.
    async fn grow(&mut self, budget: &Budget, behind: bool) {
        let Some(frame) = &mut self.frame else { return };
        let held = frame.bytes.len();
        if held < frame.bytes.capacity() || held == frame.size {
            return;
        }
        let known = if held == 0 { &self.buffer[self.taken..] } else { &frame.bytes };
        let step = match waits(known) {
            None => FIRST_STEP_BYTES,
            Some(_) if held == 0 => self.step_bytes,
            Some(_) => held * 2,
        };
        let step = step.min(frame.size);
        // While the server does not read, the client is not stalling.
        let stalled_from = self.stalled_from.take();
        if step > SMALL_FRAME_BYTES {
            if frame.share.is_empty() {
                frame.part = Part::of(known, frame.size, behind);
            }
            budget.grow(&mut frame.share, frame.part, step).await;
        }
        // A frame that begins to hold memory of the budget has a shorter time limit from now on.
        let begins_to_hold = step > SMALL_FRAME_BYTES && held <= SMALL_FRAME_BYTES;
        self.stalled_from = stalled_from.filter(|_| !begins_to_hold).map(|_| Instant::now());
        frame.bytes.reserve_exact(step - held);
    }

    fn move_unread(&mut self) {
        let Some(frame) = &mut self.frame else { return };
        let room = frame.bytes.capacity().min(frame.size) - frame.bytes.len();
        let count = room.min(self.buffer.len() - self.taken);
        frame.bytes.extend_from_slice(&self.buffer[self.taken..self.taken + count]);
        self.taken += count;
        self.free_if_empty();
    }

    fn finish(&mut self, waits: bool) -> Read {
        let frame = self.frame.take().expect("a frame has begun");
        self.stalled_from = None;
        self.step_bytes = frame.size.clamp(FIRST_STEP_BYTES, TRUSTED_STEP_BYTES_MAX);
        Read::Frame(Arrived { bytes: Bytes::from(frame.bytes), share: frame.share, waits })
    }

    fn free_if_empty(&mut self) {
        if self.taken == self.buffer.len() {
            give_back(std::mem::take(&mut self.buffer));
            self.taken = 0;
        }
    }

    /// Whether the client begins to stall only now.
    fn starts_to_stall(&mut self) -> bool {
        let starts = self.stalled_from.is_none();
        if starts {
            self.stalled_from = Some(Instant::now());
            self.progress_bytes = 0;
        }
        starts
    }

    fn received(&mut self, count: usize) {
        self.progress_bytes += count;
        if self.stalled_from.is_some() && self.progress_bytes >= PROGRESS_BYTES {
            self.stalled_from = Some(Instant::now());
            self.progress_bytes = 0;
        }
    }

    /// Reads into the buffer. Returns 0 at the end of the stream.
    async fn fill<S: Source>(&mut self, reader: &mut S) -> Result<usize, Closing> {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        let result = poll_fn(|cx| {
            // The buffer is allocated only when there is something to read.
            ready!(reader.poll_ready(cx))?;
            if self.buffer.capacity() == 0 {
                self.buffer = take_buffer();
            }
            let room = BUFFER_BYTES - self.buffer.len();
            let polled = reader.poll_read(cx, &mut self.buffer, room);
            if polled.is_pending() && self.buffer.is_empty() {
                give_back(std::mem::take(&mut self.buffer));
            }
            polled
        });
        let count = result.await.map_err(Closing::Socket)?;
        self.free_if_empty();
        Ok(count)
    }

    /// Reads straight into the frame. Returns 0 at the end of the stream.
    async fn fill_frame<S: Source>(&mut self, reader: &mut S) -> Result<usize, Closing> {
        let frame = self.frame.as_mut().expect("a frame has begun");
        let room = frame.bytes.capacity().min(frame.size) - frame.bytes.len();
        poll_fn(|cx| reader.poll_read(cx, &mut frame.bytes, room)).await.map_err(Closing::Socket)
    }
}

/// A hint for first bytes that are not a valid size.
fn hint(prefix: [u8; SIZE_BYTES]) -> &'static str {
    match &prefix {
        [0x16, 0x03, ..] => "; it looks like TLS, but this listener is plain text",
        b"GET " | b"HEAD" | b"POST" | b"PUT " | b"OPTI" | b"DELE" | b"PRI " => {
            "; it looks like HTTP, but this listener speaks Kafka's protocol (metrics are at admin.listen)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::task::{Context, Poll};

    use super::*;

    /// Returns its input in pieces, and sometimes pretends to have none.
    struct Pieces<'a> {
        rest: &'a [u8],
        random: fastrand::Rng,
    }

    impl Source for Pieces<'_> {
        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.random.u8(0..4) > 0 {
                return Poll::Ready(Ok(()));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }

        fn poll_read(
            &mut self,
            cx: &mut Context<'_>,
            into: &mut Vec<u8>,
            room: usize,
        ) -> Poll<io::Result<usize>> {
            assert!(room > 0 && into.capacity() - into.len() >= room, "there is room for what is read");
            ready!(self.poll_ready(cx))?;
            let count = self.random.usize(1..=room).min(self.rest.len());
            into.extend_from_slice(&self.rest[..count]);
            self.rest = &self.rest[count..];
            Poll::Ready(Ok(count))
        }
    }

    /// Sends frames, then random bytes. The frames arrive as sent, and no memory is held for bytes that were not sent.
    #[tokio::test]
    async fn fuzz_inbound() {
        const FRAME_BYTES_MAX: usize = 200_000;
        for mut random in testing::fuzz::Rounds::random(2) {
            let mut sent = Vec::new();
            let bodies: Vec<Vec<u8>> = (0..random.usize(0..6))
                .map(|_| {
                    let most = *random.choice(&[10, 20_000, FRAME_BYTES_MAX]).expect("not empty");
                    vec![random.u8(..); random.usize(1..=most)]
                })
                .collect();
            for body in &bodies {
                sent.extend(i32::try_from(body.len()).expect("it is small").to_be_bytes());
                sent.extend(body);
            }
            sent.extend((0..random.usize(0..12)).map(|_| random.u8(..)));
            let budget = Budget::new(1 << 20);
            let mut source = Pieces { rest: &sent, random: random.fork() };
            let mut inbound = Inbound::new(FRAME_BYTES_MAX);
            let mut frames = 0;
            loop {
                let received = sent.len() - source.rest.len();
                let held = inbound.buffer.capacity()
                    + inbound.frame.as_ref().map_or(0, |frame| frame.bytes.capacity());
                assert!(
                    held <= BUFFER_BYTES + FIRST_STEP_BYTES.max(TRUSTED_STEP_BYTES_MAX.min(2 * received))
                );
                match inbound.next(&mut source, &budget, false).await {
                    Ok(Read::Frame(Arrived { bytes: frame, .. })) if frames < bodies.len() => {
                        assert!(frame == bodies[frames], "frames come whole and in order");
                        frames += 1;
                    }
                    // A frame that happens to be in the random bytes.
                    Ok(Read::Frame(..) | Read::Waiting) => {}
                    Ok(Read::End) | Err(Closing::Truncated | Closing::Size { .. }) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            assert_eq!(frames, bodies.len());
            drop(inbound);
            assert_eq!(budget.held_bytes(), 0);
        }
    }
}
