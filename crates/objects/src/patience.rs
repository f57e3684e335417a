//! Repeats of requests whose outcome is unclear: the same request, after longer and longer pauses.

use std::time::Duration;

use crate::BucketError;

/// The first pause, and the longest one.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(10);

/// The pauses between the attempts of one request. Each is random up to twice its middle, so that many requests that
/// failed together do not come back together.
#[derive(Debug)]
pub struct Patience {
    middle: Duration,
    random: fastrand::Rng,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { middle: FIRST, random: fastrand::Rng::new() }
    }
}

impl Patience {
    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.middle.mul_f64(2.0 * self.random.f64());
        self.middle = (self.middle * 2).min(LONGEST);
        pause
    }
}

/// Repeats `request` while its outcome is unclear. `wait` pauses, and returns false to give up.
///
/// # Errors
/// That of the last attempt: it is unclear only if `wait` gave up.
pub fn patiently<T>(
    mut request: impl FnMut() -> Result<T, BucketError>,
    mut wait: impl FnMut(Duration, &BucketError) -> bool,
) -> Result<T, BucketError> {
    let mut patience = Patience::default();
    loop {
        match request() {
            Err(error @ BucketError::Unclear(_)) => {
                if !wait(patience.pause(), &error) {
                    return Err(error);
                }
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let mut patience = Patience::default();
        let pauses: Vec<Duration> = (0..40).map(|_| patience.pause()).collect();
        assert!(pauses[0] <= 2 * FIRST && pauses.iter().all(|pause| *pause <= 2 * LONGEST));
        assert!(pauses[10..].iter().max() > pauses[..3].iter().max());
    }

    #[test]
    fn only_an_unclear_outcome_is_tried_again() {
        let unclear = || Err::<(), _>(BucketError::Unclear("no answer".into()));
        let mut waited = 0;
        let given_up = patiently(unclear, |_, _| {
            waited += 1;
            waited < 5
        });
        assert!(matches!(given_up, Err(BucketError::Unclear(_))) && waited == 5);
        let refused = || Err::<(), _>(BucketError::Refused("no right".into()));
        assert!(patiently(refused, |_, _| panic!("a refusal is final")).is_err());
    }
}
