//! The check of a store before it is used: whether it keeps the one promise on which everything rests.

use std::sync::Barrier;
use std::time::Duration;

use bytes::Bytes;

use crate::{Bucket, BucketError, Put, patiently};

/// Requests that race for one key.
const RACERS: usize = 8;
const ROUNDS: usize = 3;
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// The probe's objects stand here, and are deleted at its end.
const PREFIX: &str = "probe/";

/// Objects of earlier probes that one probe looks at, and the age in milliseconds from which on it deletes them.
const LISTED: usize = 1000;
const LEFT_MS: i64 = 3_600_000;

/// The result of a probe that failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Not exactly one of the racing requests won, or the object is not the winner's.
    #[error(
        "the object store cannot be used: {won} of {RACERS} racing requests to create one object succeeded, and the object \
         is that of request {kept}; the store needs conditional writes (If-None-Match)"
    )]
    Races {
        /// The number of requests that succeeded.
        won: usize,
        /// The request whose object was found, or -1.
        kept: i64,
    },
    /// The store could not be asked.
    #[error(transparent)]
    Bucket(#[from] BucketError),
}

/// Lets requests race to create one object: exactly one may win. `name` makes the keys of this probe its own; `now_ms` is
/// the time in milliseconds since the Unix epoch.
pub fn probe(bucket: &dyn Bucket, name: &str, now_ms: i64) -> Result<(), ProbeError> {
    for round in 0..ROUNDS {
        let key = format!("{PREFIX}{name}/{round}");
        let outcome = race(bucket, &key);
        if let Err(ProbeError::Bucket(BucketError::Unclear(_))) = outcome {
            // A store that does not answer does not delete either. Whatever landed is left to a later probe.
            return outcome;
        }
        patiently(|| bucket.delete(&key), pause)?;
        outcome?;
    }
    // A put may land after its probe has ended.
    for left in bucket.list(PREFIX, "", LISTED)? {
        if left.stored_ms < now_ms.saturating_sub(LEFT_MS) {
            bucket.delete(&left.key)?;
        }
    }
    Ok(())
}

/// What a racer was told, and whether one of its requests had no clear outcome before.
type Told = Result<(Put, bool), BucketError>;

fn race(bucket: &dyn Bucket, key: &str) -> Result<(), ProbeError> {
    let start = Barrier::new(RACERS);
    let told: Vec<Told> = std::thread::scope(|scope| {
        let racer = |number: usize| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                put(bucket, key, number)
            })
        };
        let racers: Vec<_> = (0..RACERS).map(racer).collect();
        let joined = racers.into_iter().map(|racer| racer.join());
        joined.map(|told| told.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let told = told.into_iter().collect::<Result<Vec<(Put, bool)>, BucketError>>()?;
    let found = patiently(|| bucket.get(key, 0..64), pause)?;
    let winners: Vec<usize> = (0..RACERS).filter(|number| told[*number].0 == Put::Stored).collect();
    let kept = (0..RACERS).find(|number| found == body(*number));
    match (&winners[..], kept) {
        ([winner], Some(kept)) if *winner == kept => Ok(()),
        // The winner's own request had landed before its answer was lost.
        ([], Some(kept)) if told[kept].1 => Ok(()),
        _ => Err(ProbeError::Races { won: winners.len(), kept: kept.map_or(-1, |kept| kept as i64) }),
    }
}

fn put(bucket: &dyn Bucket, key: &str, number: usize) -> Told {
    let mut unclear = false;
    let put = patiently(
        || bucket.put_if_absent(key, &[body(number)]),
        |time, error| {
            unclear = true;
            pause(time, error)
        },
    )?;
    Ok((put, unclear))
}

/// Waits between two attempts, but gives up once the pauses are long: an operator waits for the probe.
fn pause(time: Duration, _: &BucketError) -> bool {
    std::thread::sleep(time.min(PAUSE_MAX));
    time < PAUSE_MAX
}

fn body(number: usize) -> Bytes {
    Bytes::from(format!("probe {number}"))
}
