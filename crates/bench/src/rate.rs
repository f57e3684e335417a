//! Looking for the highest rate that a server sustains, as OMB's `RateController` does: up while nothing piles up, else
//! back to what was achieved.
//!
//! One thing is not as there, since it measured the search and not the server. What waits is subtracted from what was
//! achieved, so that a server that is fast, and has the more waiting after three seconds of too much, was sent back to one
//! message a second and needed a minute to come up again. Here no server is sent back further than to half of what it sustained
//! last, unless what waits does not become less.

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
    /// The last one.
    base: f64,
    /// Messages that waited, if any did.
    waited: Option<f64>,
}

impl RateController {
    /// Begins when so many messages were published and received (by one group) already.
    pub fn new(published: u64, received: u64) -> RateController {
        RateController { ramp: RAMP_MAX, published, received, sustained: 0.0, base: 0.0, waited: None }
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
            return self.back(received_now, expected, receive_backlog, seconds);
        }
        let publish_backlog = expected - published_now;
        if publish_backlog > BACKLOG_MAX {
            return self.back(published_now, expected, publish_backlog, seconds);
        }
        self.sustained = self.sustained.max(rate);
        (self.base, self.waited) = (rate, None);
        self.ramp = (self.ramp * 2.0).min(RAMP_MAX);
        rate + rate * self.ramp
    }

    fn back(&mut self, achieved: f64, expected: f64, waiting: f64, seconds: f64) -> f64 {
        match self.waited.replace(waiting) {
            None => self.ramp = (self.ramp / 2.0).max(RAMP_MIN),
            Some(before) if waiting >= before => self.base /= 2.0,
            Some(_) => {}
        }
        // Where OMB can reach 0 and stay there, one message a second still finds its way up again.
        (achieved.min(expected - waiting) / seconds).max(self.base / 2.0).max(1.0)
    }

    /// What was sustained until now does not count.
    pub fn forget_sustained(&mut self) {
        self.sustained = 0.0;
    }

    /// The highest rate that left no backlog in a period, if any did: a server may take more for so long than it takes for
    /// ever.
    pub fn sustained(&self) -> Option<f64> {
        (self.sustained > 0.0).then_some(self.sustained)
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
        assert_eq!(controller.sustained(), Some(20_000.0));
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
        assert_eq!(controller.sustained(), None);
        assert_eq!(controller.next_rate(3_000.0, SECOND, 11_000, 3_000), 1.0);
    }

    #[test]
    fn what_waits_is_received_at_half_of_what_was_sustained() {
        let mut controller = RateController::new(0, 0);
        assert_eq!(controller.next_rate(100_000.0, SECOND, 100_000, 100_000), 200_000.0);
        // Much more than was received waits.
        assert_eq!(controller.next_rate(200_000.0, SECOND, 300_000, 110_000), 50_000.0);
        assert_eq!(controller.next_rate(50_000.0, SECOND, 350_000, 250_000), 50_000.0);
        assert_eq!(controller.next_rate(50_000.0, SECOND, 400_000, 399_500), 100_000.0);
        assert_eq!(controller.next_rate(100_000.0, SECOND, 500_000, 500_000), 200_000.0);
        // It sustains less than it did: what waits becomes more.
        assert_eq!(controller.next_rate(200_000.0, SECOND, 700_000, 520_000), 50_000.0);
        assert_eq!(controller.next_rate(50_000.0, SECOND, 750_000, 540_000), 25_000.0);
        assert_eq!(controller.next_rate(25_000.0, SECOND, 775_000, 560_000), 12_500.0);
        assert_eq!(controller.sustained(), Some(100_000.0));
        controller.forget_sustained();
        controller.next_rate(12_500.0, SECOND, 787_500, 787_500);
        assert_eq!(controller.sustained(), Some(12_500.0));
    }

    /// As fast a server as ours is beside Kafka, where a backlog makes it slower.
    #[test]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "messages of some minutes")]
    fn it_stays_near_what_a_server_sustains() {
        for limit in [70_000.0, 900_000.0] {
            let (mut published, mut received, mut rate) = (0.0, 0.0, FIRST_RATE);
            let mut controller = RateController::new(0, 0);
            let mut all = Vec::new();
            for _ in 0..60 {
                let now: f64 = rate * 3.0;
                let takes = if published - received > 1e6 { limit / 2.0 } else { limit } * 3.0;
                published += now.min(takes * 1.5);
                received = f64::min(published, received + takes);
                all.push(now.min(takes * 1.5) / 3.0);
                rate = controller.next_rate(rate, CONTROL_PERIOD, published as u64, received as u64);
            }
            let later = all[20..].iter().sum::<f64>() / 40.0;
            assert!((limit * 0.5..limit * 1.01).contains(&later), "{later} of {limit}: {all:?}");
        }
    }
}
