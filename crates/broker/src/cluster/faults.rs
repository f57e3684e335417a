//! What the logs of a broker show of its disk: whether other brokers should have them.

use std::time::Duration;

use parking_lot::Mutex;

/// A broker gives its logs away after so many faults, each within [`FORGOTTEN_AFTER`] of the one before.
const FAULTS_MAX: u32 = 5;
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Faults within this time are one: all logs of a disk stop at once.
const ONE_WITHIN: Duration = Duration::from_secs(1);
/// A broker gives its logs away after its disk has been full for so long.
const FULL_FOR: Duration = Duration::from_secs(10);
/// Free parts of a disk in percent: below the first it is low on space, from the second on it is not any more. Between them
/// nothing changes, so that copies do not go back and forth.
const LOW_BELOW: u64 = 10;
const NOT_LOW_FROM: u64 = 15;
/// A disk is low on space, or is not, for at least so long: where it is small, one segment is more than what lies between.
const SAME_FOR: Duration = Duration::from_secs(60);

/// The faults of one disk.
#[derive(Debug, Default)]
pub struct Faults(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: u32,
    last: Duration,
    too_many: bool,
    full_since: Option<Duration>,
    low_on_space: bool,
    /// Since when it is so, if it has ever changed.
    space_changed: Option<Duration>,
}

impl Faults {
    /// Notes that a log was not opened, or has stopped, for a reason that lies here.
    pub fn note(&self, now: Duration) {
        let mut state = self.0.lock();
        if state.count > 0 && now < state.last + ONE_WITHIN {
            return;
        }
        let again = now <= state.last + FORGOTTEN_AFTER;
        (state.count, state.last) = (if again { state.count + 1 } else { 1 }, now);
        state.too_many |= state.count >= FAULTS_MAX;
    }

    /// Notes whether the disk is full.
    pub fn note_full(&self, full: bool, now: Duration) {
        let mut state = self.0.lock();
        state.full_since = full.then(|| state.full_since.unwrap_or(now));
    }

    /// Notes how many bytes of a disk are free. Returns whether it is low on space.
    pub fn note_space(&self, free: u64, capacity: u64, now: Duration) -> bool {
        let below = |percent: u64| u128::from(free) * 100 < u128::from(capacity) * u128::from(percent);
        let mut state = self.0.lock();
        let low = below(if state.low_on_space { NOT_LOW_FROM } else { LOW_BELOW });
        if low != state.low_on_space && state.space_changed.is_none_or(|since| now >= since + SAME_FOR) {
            (state.low_on_space, state.space_changed) = (low, Some(now));
        }
        state.low_on_space
    }

    /// Whether other brokers should have the logs.
    pub fn are_too_many(&self, now: Duration) -> bool {
        let state = self.0.lock();
        state.too_many || state.full_since.is_some_and(|since| now >= since + FULL_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn faults_count_that_follow_each_other() {
        let faults = Faults::default();
        (0..10).for_each(|n| faults.note(at(100 * n)));
        assert!(!faults.are_too_many(at(1000)), "each has its own reason");
        (1..4).for_each(|n| faults.note(at(900 + 60 * n)));
        assert!(!faults.are_too_many(at(1080)));
        (0..5).for_each(|_| faults.note(at(1080)));
        assert!(!faults.are_too_many(at(1080)), "all logs of a disk stop at once");
        faults.note(at(1081));
        faults.note(at(4000));
        assert!(faults.are_too_many(at(5000)), "it stays so: the logs are elsewhere");
    }

    #[test]
    fn a_disk_is_low_on_space_until_there_is_clearly_more() {
        let faults = Faults::default();
        let low = |percent: u64, seconds: u64| faults.note_space(percent << 50, 100 << 50, at(seconds));
        assert!(!low(100, 1) && !low(10, 2) && low(9, 3) && low(0, 4) && low(14, 100) && !low(15, 101));
        assert!(
            !low(10, 102) && !low(5, 160) && low(5, 161) && low(50, 220) && !low(50, 221),
            "a minute each"
        );
        assert!(!faults.note_space(0, 0, at(1000)), "nothing is known of it");
    }

    #[test]
    fn a_disk_is_full_for_a_while_before_it_counts() {
        let faults = Faults::default();
        faults.note_full(true, at(5));
        faults.note_full(true, at(14));
        assert!(!faults.are_too_many(at(14)));
        faults.note_full(false, at(14));
        faults.note_full(true, at(15));
        assert!(!faults.are_too_many(at(24)) && faults.are_too_many(at(25)));
        faults.note_full(false, at(26));
        assert!(!faults.are_too_many(at(26)));
    }
}
