//! Asks all objects of a log what they say of themselves, several at a time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use objects::{Bucket, BucketError, Listed, list_all, patiently};

use crate::epochs::SEAL_BYTES;
use crate::segment::fetch::{Described, Expected, fetch};
use crate::segment::object::ObjectKeys;

/// Waits before a request is repeated. Returns false to give up.
pub type Pause<'a> = dyn Fn(Duration, &BucketError) -> bool + Sync + 'a;

/// How to ask.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// The bucket.
    pub bucket: &'a Arc<dyn Bucket>,
    /// Requests at the same time.
    pub threads: usize,
    /// Waits before a request is repeated.
    pub pause: &'a Pause<'a>,
    /// Called with the number of objects so far, and of all.
    pub progress: &'a dyn Fn(usize, usize),
}

impl std::fmt::Debug for Asking<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking").field("bucket", self.bucket).finish_non_exhaustive()
    }
}

/// An object of a log, with its sequence number.
pub(crate) type Numbered = (u32, Listed);

/// What an object says.
pub(crate) enum Outcome {
    /// It is whole as far as it describes itself. The bytes of its local file, unless that was there.
    Whole(Described, Option<Vec<u8>>),
    /// What is wrong with it.
    Damaged(String),
    /// It was deleted since it was listed.
    Gone,
    Failed(BucketError),
}

/// The objects of a log behind the key `after`, in the order of their numbers.
pub(crate) fn objects_of(
    asking: &Asking,
    keys: &ObjectKeys,
    after: &str,
) -> Result<Vec<Numbered>, BucketError> {
    let listed = list_all(&**asking.bucket, &keys.prefix(), after, asking.pause)?;
    // A seal may also lie under the number of an object that was deleted.
    let objects = listed.into_iter().filter(|object| object.bytes != SEAL_BYTES as u64);
    let numbered = |object: Listed| Some((keys.sequence_of(&object.key)?, object));
    Ok(objects.filter_map(numbered).collect())
}

/// Asks `objects`, except those that `local` knows already. Hands out what they say, in any order: the place of the
/// object in `objects`, and the outcome. An error of `each` ends everything.
pub(crate) fn gather<E>(
    asking: &Asking,
    log_id: u128,
    objects: &[Numbered],
    local: &(dyn Fn(Expected) -> Option<Described> + Sync),
    mut each: impl FnMut(usize, Outcome) -> Result<(), E>,
) -> Result<(), E> {
    let (bucket, pause) = (&**asking.bucket, asking.pause);
    let ask = |(sequence, object): &Numbered| {
        let expected = Expected { log_id, sequence: *sequence, length: object.bytes };
        let get = |range: Range<u64>| patiently(|| bucket.get(&object.key, range.clone()), pause);
        match local(expected) {
            Some(described) => Outcome::Whole(described, None),
            None => match fetch(expected, get) {
                Ok(Ok((described, bytes))) => Outcome::Whole(described, Some(bytes)),
                Ok(Err(what)) => Outcome::Damaged(what),
                Err(BucketError::NotFound(_)) => Outcome::Gone,
                Err(error) => Outcome::Failed(error),
            },
        }
    };
    let mut done = 0;
    several(asking.threads, objects, &ask, |at, outcome| {
        each(at, outcome)?;
        done += 1;
        (asking.progress)(done, objects.len());
        Ok(())
    })
}

/// Does `work` with all `items` on up to `threads` threads. Hands out the results in any order, each with the place of its
/// item. An error of `each` ends everything.
pub(super) fn several<T: Sync, R: Send, E>(
    threads: usize,
    items: &[T],
    work: &(dyn Fn(&T) -> R + Sync),
    mut each: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // A worker waits with its result until the one before is taken: memory is bounded by the threads.
        let (sender, receiver) = sync_channel(0);
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    // After an error, nobody waits for the results.
                    if sender.send((at, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        receiver.into_iter().try_for_each(|(at, result)| each(at, result))
    })
}
