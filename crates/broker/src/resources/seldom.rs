//! Work that is done at most once in a time, whoever asks for it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Says yes once in a time.
#[derive(Debug)]
pub struct Seldom {
    every: Duration,
    last: Mutex<Option<Instant>>,
}

impl Seldom {
    /// Says yes once in `every`.
    pub const fn every(every: Duration) -> Seldom {
        Seldom { every, last: Mutex::new(None) }
    }

    /// Whether the last yes is long enough ago. If it is, this is a yes.
    pub fn is_due(&self) -> bool {
        let (now, mut last) = (Instant::now(), self.last.lock());
        let due = last.is_none_or(|last| now.duration_since(last) >= self.every);
        if due {
            *last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_once_in_a_time() {
        let seldom = Seldom::every(Duration::from_secs(3600));
        assert!(seldom.is_due() && !seldom.is_due() && !seldom.is_due());
        let often = Seldom::every(Duration::ZERO);
        assert!(often.is_due() && often.is_due());
    }
}
