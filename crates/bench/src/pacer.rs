//! When a producer's messages are due: at even distances, whatever becomes of them.

use crate::clock::Nanos;

/// The schedule of one producer among all that share a rate.
#[derive(Debug)]
pub struct Pacer {
    producers: f64,
    number: f64,
    /// When the next message is due, in nanoseconds with their fraction.
    next: f64,
    step: f64,
    rate_changes: u64,
}

impl Pacer {
    /// Of the producer with this number among `producers`. Nothing is due before the first rate.
    pub fn new(producers: usize, number: usize) -> Pacer {
        Pacer {
            producers: producers as f64,
            number: number as f64,
            next: f64::INFINITY,
            step: f64::INFINITY,
            rate_changes: 0,
        }
    }

    /// Follows the rate over all producers, in messages a second, and how often it was changed. A new rate begins a new
    /// schedule: what was due at the old one and not sent is not owed any more.
    pub fn follow(&mut self, (rate, changes): (f64, u64), now: Nanos) {
        if changes == self.rate_changes {
            return;
        }
        self.rate_changes = changes;
        self.step = if rate > 0.0 { 1e9 * self.producers / rate } else { f64::INFINITY };
        // Producers take turns, as they would at one common clock.
        self.next = now as f64 + self.step * (self.number / self.producers);
    }

    /// Nothing is due any more.
    pub fn end(&mut self) {
        self.next = f64::INFINITY;
    }

    /// When the next message is due; far away when none is.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, as is meant")]
    pub fn next(&self) -> Nanos {
        self.next as Nanos
    }

    /// When the next message was due, if that is not after `now`.
    pub fn due(&self, now: Nanos) -> Option<Nanos> {
        (self.next <= now as f64).then(|| self.next())
    }

    /// The next message was taken up.
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
        // 4 producers share 1000 a second: one each 4 ms, this one a quarter of that after the first.
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
