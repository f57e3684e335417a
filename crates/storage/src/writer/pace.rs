//! The rule by which a block waits for the appends of more callers (group commit).
//!
//! With no write in flight, a block is written at once. With many independent callers, almost every append would then
//! be a write and a round of completions of its own, padded to a sector. So a block waits for a short time while more
//! appends are expected from callers that do not wait for this block yet.
//!
//! A caller that waits for a completion sends nothing. Callers that are all waiting must therefore never wait for each
//! other: a single caller, or all callers of a closed loop, are served at once (like PostgreSQL's `commit_siblings`).

use std::collections::HashMap;
use std::time::Duration;

use crate::request::Enough;

/// A block is submitted at most this long after the block before it.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// Waiting is worth it for the appends of at least so many more callers within that time, or for at least so many
/// bytes.
const CALLERS_MIN: u64 = 1;
const BYTES_MIN: u64 = 64 * 1024;
/// A block of so many bytes does not wait.
const BYTES_ENOUGH: usize = 512 * 1024;
/// The appends of a caller are counted over windows of this length.
const WINDOW: Duration = Duration::from_millis(16);

/// The appends of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    /// The blocks in which a caller took part, summed over the callers.
    parts: u64,
    bytes: u64,
}

impl Came {
    fn add(&mut self, other: Came) {
        self.parts += other.parts;
        self.bytes += other.bytes;
    }
}

/// The history of one caller.
#[derive(Clone, Copy, Debug, Default)]
struct Caller {
    /// In this window.
    now: Came,
    /// In the window before.
    before: Came,
    /// The last block in which it took part.
    block: u64,
}

/// The history of all callers.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    callers: HashMap<u64, Caller>,
    window_began: u64,
    /// The sum of `before` over all callers.
    before: Came,
    /// The share of it that belongs to callers that wait for the open block.
    waiting: Came,
    /// The number of the open block; the first is 1.
    block: u64,
    entries: usize,
    last_entries: usize,
    last_submitted: u64,
    /// The open block has an append without a known caller.
    stranger: bool,
}

/// What a block waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    /// At most for this time.
    pub time: Duration,
    /// Until these appends or bytes have come.
    pub enough: Enough,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a short time")
}

impl Pace {
    pub fn new() -> Pace {
        Pace { block: 1, ..Pace::default() }
    }

    /// Records an append of `bytes` in the open block at `now`, in nanoseconds; `caller` is set if it is known.
    pub fn append(&mut self, caller: Option<u64>, bytes: usize, now: u64) {
        self.entries += 1;
        let Some(caller) = caller else {
            self.stranger = true;
            return;
        };
        if now.saturating_sub(self.window_began) >= nanos(WINDOW) {
            self.next_window(now);
        }
        let caller = self.callers.entry(caller).or_default();
        caller.now.bytes += bytes as u64;
        if caller.block != self.block {
            caller.block = self.block;
            caller.now.parts += 1;
            self.waiting.add(caller.before);
        }
    }

    fn next_window(&mut self, now: u64) {
        // No append came for a whole window, so the history is too old.
        let stale = now - self.window_began >= 2 * nanos(WINDOW);
        (self.before, self.waiting) = (Came::default(), Came::default());
        let block = self.block;
        self.callers.retain(|_, caller| {
            caller.before = if stale { Came::default() } else { caller.now };
            caller.now = Came::default();
            self.before.add(caller.before);
            if caller.block == block {
                self.waiting.add(caller.before);
            }
            caller.before.parts > 0 || caller.block == block
        });
        self.window_began = now;
    }

    /// The open block was submitted.
    pub fn submitted(&mut self, now: u64) {
        self.block += 1;
        self.last_entries = std::mem::take(&mut self.entries);
        (self.last_submitted, self.waiting, self.stranger) = (now, Came::default(), false);
    }

    /// What the open block of `bytes` should wait for at `now`. `None`: write it at once.
    pub fn wait(&self, bytes: usize, now: u64) -> Option<Wait> {
        if self.stranger || bytes >= BYTES_ENOUGH {
            return None;
        }
        let left = (self.last_submitted + nanos(GATHER_MAX)).checked_sub(now).filter(|left| *left > 0)?;
        let worth = |before: u64, waiting: u64, least| {
            (before - waiting) * nanos(GATHER_MAX) / nanos(WINDOW) >= least
        };
        let worth = worth(self.before.parts, self.waiting.parts, CALLERS_MIN)
            || worth(self.before.bytes, self.waiting.bytes, BYTES_MIN);
        worth.then(|| Wait {
            time: Duration::from_nanos(left),
            enough: Enough {
                appends: self.last_entries.saturating_sub(self.entries).max(1),
                bytes: BYTES_ENOUGH - bytes,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Each of `callers` appends once a millisecond for `ms` milliseconds, evenly spread, without waiting for
    /// completions. Returns the number of written blocks, when a block may be written at any time.
    fn open_loop(pace: &mut Pace, callers: u64, bytes: usize, from_ms: u64, ms: u64) -> usize {
        open_loop_every(pace, 1000, callers, bytes, from_ms, ms)
    }

    /// The same, with one append in `micros` microseconds for each caller.
    fn open_loop_every(
        pace: &mut Pace,
        micros: u64,
        callers: u64,
        bytes: usize,
        from_ms: u64,
        ms: u64,
    ) -> usize {
        let mut blocks = 0;
        let mut open = 0;
        for step in 0..ms * 1000 {
            let now = from_ms * MS + step * 1000;
            if step * callers % micros < callers {
                pace.append(Some(step * callers / micros % callers), bytes, now);
                open += bytes;
            }
            if open > 0 && pace.wait(open, now).is_none() {
                pace.submitted(now);
                (open, blocks) = (0, blocks + 1);
            }
        }
        blocks
    }

    #[test]
    fn many_callers_share_a_block_each_millisecond() {
        let mut pace = Pace::new();
        open_loop(&mut pace, 50, 1000, 0, 40);
        let blocks = open_loop(&mut pace, 50, 1000, 40, 100);
        assert!((100..=150).contains(&blocks), "{blocks} in 100 ms");
    }

    #[test]
    fn a_few_busy_callers_share_blocks() {
        let mut pace = Pace::new();
        open_loop(&mut pace, 4, 10_000, 0, 40);
        let blocks = open_loop(&mut pace, 4, 10_000, 40, 100);
        assert!((100..=200).contains(&blocks), "{blocks} in 100 ms");
    }

    #[test]
    fn a_few_callers_that_come_seldom_are_served_at_once() {
        let mut pace = Pace::new();
        open_loop_every(&mut pace, 5000, 4, 20_000, 0, 40);
        assert_eq!(open_loop_every(&mut pace, 5000, 4, 20_000, 40, 100), 80);
    }

    #[test]
    fn few_callers_with_much_share_blocks() {
        let mut pace = Pace::new();
        open_loop(&mut pace, 2, 200_000, 0, 40);
        let blocks = open_loop(&mut pace, 2, 200_000, 40, 100);
        assert!((100..=160).contains(&blocks), "{blocks} in 100 ms");
    }

    #[test]
    fn callers_that_all_wait_do_not_wait_for_each_other() {
        let mut pace = Pace::new();
        let mut now = 0;
        for round in 0..2000 {
            for caller in 0..16 {
                now += 2000;
                pace.append(Some(caller), 1000, now);
                // Only the first window has no history.
                if caller < 8 && round > 1000 {
                    assert!(pace.wait(4096, now).is_some(), "others come soon");
                }
            }
            assert_eq!(pace.wait(4096, now), None, "round {round}");
            pace.submitted(now);
            now += 100_000;
        }
    }

    #[test]
    fn a_caller_alone_is_served_at_once_whatever_others_did_before() {
        let mut pace = Pace::new();
        open_loop(&mut pace, 50, 1000, 0, 40);
        for append in 0..10 {
            let now = 80 * MS + append * MS / 10;
            pace.append(Some(7), 1000, now);
            assert_eq!(pace.wait(4096, now), None);
            pace.submitted(now);
        }
    }

    #[test]
    fn large_blocks_and_strangers_do_not_wait() {
        let mut pace = Pace::new();
        open_loop(&mut pace, 50, 1000, 0, 40);
        pace.append(Some(1), 1000, 40 * MS);
        pace.submitted(40 * MS);
        pace.append(Some(1), 1000, 40 * MS + 1000);
        assert!(pace.wait(4096, 40 * MS + 1000).is_some());
        assert_eq!(pace.wait(BYTES_ENOUGH, 40 * MS + 1000), None);
        assert_eq!(pace.wait(4096, 41 * MS), None, "it has waited");
        pace.append(None, 1000, 40 * MS + 2000);
        assert_eq!(pace.wait(4096, 40 * MS + 2000), None);
    }
}
