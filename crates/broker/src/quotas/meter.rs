//! The recent use of a quota by a client: a rate over a sliding window of samples (KIP-13), or a token bucket
//! (KIP-599). Pure: the caller passes in the time, in milliseconds of a clock that never goes back.

use std::collections::VecDeque;

/// The parameters of a rate: `quota.window.num` samples of `quota.window.size.seconds` each.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The number of samples kept, including the current one; at least 1.
    pub samples: i64,
    /// The length of one sample in milliseconds.
    pub sample_ms: i64,
}

impl Window {
    /// The length in seconds of all samples without the current one.
    pub fn full_seconds(&self) -> f64 {
        float((self.samples - 1).max(1) * self.sample_ms) / 1000.0
    }

    fn span_ms(&self) -> i64 {
        self.samples * self.sample_ms
    }
}

fn float(value: i64) -> f64 {
    // Times and their differences are far below 2^53.
    value as f64
}

/// A rate: samples with their start times, oldest first.
#[derive(Debug, Default)]
pub struct Rate {
    samples: VecDeque<(i64, f64)>,
}

impl Rate {
    /// Adds `value` to the use. A negative value takes back earlier use.
    pub fn record(&mut self, window: Window, value: f64, now_ms: i64) {
        self.forget(window, now_ms);
        match self.samples.back_mut() {
            Some((begin, sum)) if now_ms - *begin < window.sample_ms => *sum += value,
            _ => self.samples.push_back((now_ms, value)),
        }
    }

    /// Milliseconds until the rate has fallen to `limit` per second, if nothing more is used; 0 if it already has.
    ///
    /// With the observed rate O over a window W, and the allowed rate T: O W / (W + X) = T gives X = W (O - T) / T.
    pub fn throttle_ms(&mut self, window: Window, limit: f64, now_ms: i64) -> i64 {
        self.forget(window, now_ms);
        let over_ms = self.span_ms(window, now_ms);
        let rate = self.samples.iter().map(|(_, sum)| sum).sum::<f64>() * 1000.0 / over_ms;
        if rate > limit { rounded((rate - limit) / limit * over_ms) } else { 0 }
    }

    /// The time span of the rate: from the oldest sample until now, but at least all full samples. The minimum keeps
    /// the first bytes of a returning client from counting as a burst.
    fn span_ms(&self, window: Window, now_ms: i64) -> f64 {
        let since_ms = self.samples.front().map_or(0, |(begin, _)| now_ms - begin);
        let missing = (window.samples - 1 - since_ms / window.sample_ms).max(0);
        float((since_ms + missing * window.sample_ms).max(window.sample_ms))
    }

    fn forget(&mut self, window: Window, now_ms: i64) {
        while self.samples.front().is_some_and(|(begin, _)| now_ms - begin >= window.span_ms()) {
            self.samples.pop_front();
        }
    }
}

/// A token bucket. It fills at the quota's rate, up to the allowance of a whole window.
#[derive(Debug, Default)]
pub struct Bucket {
    tokens: f64,
    /// Time of the last fill. `None` if the bucket is full.
    filled_ms: Option<i64>,
}

impl Bucket {
    /// Takes tokens. The bucket may go into debt.
    pub fn take(&mut self, window: Window, limit: f64, tokens: f64, now_ms: i64) {
        self.fill(window, limit, now_ms);
        self.tokens -= tokens;
    }

    /// Milliseconds until the bucket is out of debt; 0 if it has no debt.
    pub fn throttle_ms(&mut self, window: Window, limit: f64, now_ms: i64) -> i64 {
        self.fill(window, limit, now_ms);
        if self.tokens < 0.0 { rounded(-self.tokens / limit * 1000.0) } else { 0 }
    }

    fn fill(&mut self, window: Window, limit: f64, now_ms: i64) {
        let full = limit * float(window.span_ms()) / 1000.0;
        self.tokens = match self.filled_ms {
            Some(filled_ms) => (self.tokens + limit * float(now_ms - filled_ms) / 1000.0).min(full),
            None => full,
        };
        self.filled_ms = Some(now_ms);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "`as` keeps to the bounds of an i64")]
fn rounded(value: f64) -> i64 {
    value.round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { samples: 11, sample_ms: 1000 };

    #[test]
    fn a_burst_is_spread_over_the_window_and_forgotten_after_it() {
        let mut rate = Rate::default();
        rate.record(WINDOW, 10_000.0, 500);
        assert_eq!(rate.throttle_ms(WINDOW, 1000.0, 500), 0);
        rate.record(WINDOW, 10_000.0, 600);
        // 20000 bytes in a window of 10100 ms are 1980 per second. 9900 ms later they are 1000 per second.
        let throttle = rate.throttle_ms(WINDOW, 1000.0, 600);
        assert_eq!(throttle, 20_000 - 10_100);
        rate.record(WINDOW, -10_000.0, 600);
        assert_eq!(rate.throttle_ms(WINDOW, 1000.0, 600), 0);
        rate.record(WINDOW, 10_000.0, 600);
        assert!(rate.throttle_ms(WINDOW, 1000.0, 11_499) > 0);
        assert_eq!(rate.throttle_ms(WINDOW, 1000.0, 11_500), 0);
    }

    #[test]
    fn a_steady_rate_below_the_limit_is_never_throttled_and_one_above_it_is_held_to_it() {
        let used_with = |step: f64| {
            let (mut rate, mut now, mut used, mut throttled) = (Rate::default(), 0, 0.0, 0);
            while now < 60_000 {
                rate.record(WINDOW, step, now);
                used += step;
                let wait = rate.throttle_ms(WINDOW, 1000.0, now);
                throttled += wait;
                now += 100 + wait;
            }
            (used, throttled)
        };
        assert_eq!(used_with(99.0), (59_400.0, 0));
        let (used, throttled) = used_with(500.0);
        // One burst of a window beyond the rate is allowed.
        assert!((60_000.0..=72_000.0).contains(&used) && throttled > 0, "{used} {throttled}");
    }

    #[test]
    fn a_bucket_lets_a_windows_worth_through_and_pays_its_debt() {
        let mut bucket = Bucket::default();
        bucket.take(WINDOW, 2.0, 22.0, 0);
        assert_eq!(bucket.throttle_ms(WINDOW, 2.0, 0), 0);
        bucket.take(WINDOW, 2.0, 4.0, 0);
        assert_eq!(bucket.throttle_ms(WINDOW, 2.0, 0), 2000);
        assert_eq!(bucket.throttle_ms(WINDOW, 2.0, 1500), 500);
        assert_eq!(bucket.throttle_ms(WINDOW, 2.0, 2000), 0);
        bucket.take(WINDOW, 2.0, 23.0, 1_000_000);
        assert_eq!(bucket.throttle_ms(WINDOW, 2.0, 1_000_000), 500, "it is never more than full");
    }
}
