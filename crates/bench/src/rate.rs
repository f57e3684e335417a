//! Looking for the highest rate that a server sustains, as OMB's `RateController` does: up while nothing piles up, else
//! back to what was achieved.

use std::time::Duration;

/// The first rate tried, in messages a second.
pub const FIRST_RATE: f64 = 10_000.0;
/// Between two looks.
pub const CONTROL_PERIOD: Duration = Duration::from_secs(3);

/// Messages that may wait to be published, or to be received, at a sustainable rate.
const BACKLOG_MAX: f64 = 1_000.0;
const RAMP_MIN: f64 = 0.01;
const RAMP_MAX: f64 = 1.0;

/// Its state between two looks.
#[derive(Clone, Debug)]
pub struct RateController {
    ramp: f64,
    published: u64,
    received: u64,
    /// The highest rate that left no backlog.
    sustained: f64,
}

impl RateController {
    /// Begins when so many messages were published and received (by one group) already.
    pub fn new(published: u64, received: u64) -> RateController {
        RateController { ramp: RAMP_MAX, published, received, sustained: 0.0 }
    }

    /// The rate to go on with, after a `period` at `rate`; the totals are those of now.
    pub fn next_rate(&mut self, rate: f64, period: Duration, published: u64, received: u64) -> f64 {
        let seconds = period.as_secs_f64();
        let expected = rate * seconds;
        let published_now = (published - self.published) as f64;
        let received_now = (received - self.received) as f64;
        (self.published, self.received) = (published, received);
        let receive_backlog = published.saturating_sub(received) as f64;
        if receive_backlog > BACKLOG_MAX {
            return self.back(received_now, expected - receive_backlog, seconds);
        }
        let publish_backlog = expected - published_now;
        if publish_backlog > BACKLOG_MAX {
            return self.back(published_now, expected - publish_backlog, seconds);
        }
        self.sustained = self.sustained.max(rate);
        self.ramp = (self.ramp * 2.0).min(RAMP_MAX);
        rate + rate * self.ramp
    }

    fn back(&mut self, achieved: f64, expected: f64, seconds: f64) -> f64 {
        self.ramp = (self.ramp / 2.0).max(RAMP_MIN);
        // Where OMB can reach 0 and stay there, one message a second still finds its way up again.
        (achieved.min(expected) / seconds).max(1.0)
    }

    /// The highest rate that left no backlog.
    pub fn sustained(&self) -> f64 {
        self.sustained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_doubles_while_nothing_waits() {
        let mut controller = RateController::new(0, 0);
        assert_eq!(controller.next_rate(10_000.0, SECOND, 10_000, 10_000), 20_000.0);
        assert_eq!(controller.next_rate(20_000.0, SECOND, 30_000, 29_500), 40_000.0);
        assert_eq!(controller.sustained(), 20_000.0);
    }

    #[test]
    fn it_falls_back_to_what_was_achieved() {
        let mut controller = RateController::new(0, 0);
        // 10,000 were due, 6,000 got out.
        assert_eq!(controller.next_rate(10_000.0, SECOND, 6_000, 6_000), 6_000.0);
        // And rises by halves from there.
        assert_eq!(controller.next_rate(6_000.0, SECOND, 12_000, 12_000), 12_000.0);
        let mut controller = RateController::new(0, 0);
        // Consumers lag by 5,000: 3,000 were received, 10,000 - 5,000 is the other bound.
        assert_eq!(controller.next_rate(10_000.0, SECOND, 10_000, 3_000), 3_000.0);
        assert_eq!(controller.sustained(), 0.0);
        assert_eq!(controller.next_rate(3_000.0, SECOND, 11_000, 3_000), 1.0);
    }
}
