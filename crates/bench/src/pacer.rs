//! The schedule of a producer's messages: at regular intervals, regardless of their outcome.

use crate::clock::Nanos;

/// The schedule of one of the producers that share a rate.
#[derive(Debug)]
pub struct Pacer {
    producers: f64,
    number: f64,
    /// The due time of the next message, in nanoseconds with a fraction.
    next: f64,
    step: f64,
    rate_changes: u64,
}

impl Pacer {
    /// The schedule of the producer with this number among `producers`. Nothing is due before the first rate.
    pub fn new(producers: usize, number: usize) -> Pacer {
        Pacer {
            producers: producers as f64,
            number: number as f64,
            next: f64::INFINITY,
            step: f64::INFINITY,
            rate_changes: 0,
        }
    }

    /// Follows the rate over all producers, in messages per second, and the number of its changes. A new rate begins a
    /// new schedule: unsent messages of the old one are no longer due.
    pub fn follow(&mut self, (rate, changes): (f64, u64), now: Nanos) {
        if changes == self.rate_changes {
            return;
        }
        self.rate_changes = changes;
        self.step = if rate > 0.0 { 1e9 * self.producers / rate } else { f64::INFINITY };
        // Producers take turns, as with a common clock.
        self.next = now as f64 + self.step * (self.number / self.producers);
    }

    /// Ends the schedule: nothing is due any more.
    pub fn end(&mut self) {
        self.next = f64::INFINITY;
    }

    /// The due time of the next message. Far in the future if none is due.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, as is meant")]
    pub fn next(&self) -> Nanos {
        self.next as Nanos
    }

    /// The due time of the next message, if it is not after `now`.
    pub fn due(&self, now: Nanos) -> Option<Nanos> {
        (self.next <= now as f64).then(|| self.next())
    }

    /// Advances to the next message.
    pub fn advance(&mut self) {
        self.next += self.step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_due_and_producers_take_turns() {
        let mut pacer = Pacer::new(4, 1);
        assert_eq!((pacer.due(u64::MAX / 2), pacer.next()), (None, Nanos::MAX));
        // 4 producers share 1000 messages per second: one each per 4 ms. This one is a quarter of the interval behind
        // the first.
        pacer.follow((1000.0, 1), 10_000_000);
        assert_eq!((pacer.due(10_999_999), pacer.due(11_000_000)), (None, Some(11_000_000)));
        pacer.follow((5000.0, 1), 90_000_000);
        pacer.advance();
        assert_eq!(pacer.due(99_000_000), Some(15_000_000));
        pacer.follow((2000.0, 2), 50_000_000);
        assert_eq!(pacer.next(), 50_500_000);
        pacer.end();
        assert_eq!(pacer.due(u64::MAX / 2), None);
    }
}
