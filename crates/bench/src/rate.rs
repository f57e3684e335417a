//! Searches for the highest rate that a server sustains, as OMB's `RateController` does: the rate rises while no
//! backlog grows, and otherwise falls back to the achieved rate.
//!
//! One rule differs from OMB, because that rule measured the search and not the server. OMB subtracts the backlog from
//! the achieved rate. A fast server has a large backlog after three seconds of overload, and so was sent back to one
//! message per second and needed a minute to recover. Here no server falls below half of its last sustained rate,
//! unless the backlog does not shrink.

use std::time::Duration;

/// The first rate, in messages per second.
pub const FIRST_RATE: f64 = 10_000.0;
/// Interval between two steps.
pub const CONTROL_PERIOD: Duration = Duration::from_secs(3);

/// Bound of the messages that may wait, to be published or to be received, at a sustainable rate.
const BACKLOG_MAX: f64 = 1_000.0;
const RAMP_MIN: f64 = 0.01;
const RAMP_MAX: f64 = 1.0;

/// The state between two steps.
#[derive(Clone, Debug)]
pub struct RateController {
    ramp: f64,
    published: u64,
    received: u64,
    /// The highest rate without a backlog.
    sustained: f64,
    /// The last sustained rate. It is halved each time that the backlog does not shrink.
    base: f64,
    /// The backlog in messages, if there was one.
    waited: Option<f64>,
}

impl RateController {
    /// Begins with this number of messages already published, and received (by one group).
    pub fn new(published: u64, received: u64) -> RateController {
        RateController { ramp: RAMP_MAX, published, received, sustained: 0.0, base: 0.0, waited: None }
    }

    /// The next rate, after a `period` at `rate`. The totals are the current ones.
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
        // Where OMB can reach 0 and stay there, one message per second is enough to rise again.
        (achieved.min(expected - waiting) / seconds).max(self.base / 2.0).max(1.0)
    }

    /// Forgets the sustained rate.
    pub fn forget_sustained(&mut self) {
        self.sustained = 0.0;
    }

    /// The highest rate without a backlog in a period, if there was one. A server may take more for a period than it
    /// can sustain.
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
        // 10,000 messages were due, 6,000 were sent.
        assert_eq!(controller.next_rate(10_000.0, SECOND, 6_000, 6_000), 6_000.0);
        // From there the rate doubles.
        assert_eq!(controller.next_rate(6_000.0, SECOND, 12_000, 12_000), 12_000.0);
        let mut controller = RateController::new(0, 0);
        // Consumers lag by 5,000: 3,000 were received, and 10,000 - 5,000 is the other bound.
        assert_eq!(controller.next_rate(10_000.0, SECOND, 10_000, 3_000), 3_000.0);
        assert_eq!(controller.sustained(), None);
        assert_eq!(controller.next_rate(3_000.0, SECOND, 11_000, 3_000), 1.0);
    }

    #[test]
    fn what_waits_is_received_at_half_of_what_was_sustained() {
        let mut controller = RateController::new(0, 0);
        assert_eq!(controller.next_rate(100_000.0, SECOND, 100_000, 100_000), 200_000.0);
        // The backlog is much larger than the messages received.
        assert_eq!(controller.next_rate(200_000.0, SECOND, 300_000, 110_000), 50_000.0);
        assert_eq!(controller.next_rate(50_000.0, SECOND, 350_000, 250_000), 50_000.0);
        assert_eq!(controller.next_rate(50_000.0, SECOND, 400_000, 399_500), 100_000.0);
        assert_eq!(controller.next_rate(100_000.0, SECOND, 500_000, 500_000), 200_000.0);
        // The server sustains less than before, and the backlog grows.
        assert_eq!(controller.next_rate(200_000.0, SECOND, 700_000, 520_000), 50_000.0);
        assert_eq!(controller.next_rate(50_000.0, SECOND, 750_000, 540_000), 25_000.0);
        assert_eq!(controller.next_rate(25_000.0, SECOND, 775_000, 560_000), 12_500.0);
        assert_eq!(controller.sustained(), Some(100_000.0));
        controller.forget_sustained();
        controller.next_rate(12_500.0, SECOND, 787_500, 787_500);
        assert_eq!(controller.sustained(), Some(12_500.0));
    }

    /// The limits are those of servers as fast as Mainstem and as Kafka. A backlog makes the server slower.
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
