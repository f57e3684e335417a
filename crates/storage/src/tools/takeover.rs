//! Takes a log with epochs over, whose owner may still run ([`crate::epochs`]). Afterwards the objects of all
//! earlier epochs are known for ever, and a restore makes a local log of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use objects::{Bucket, BucketError, Listed, Put, list_all, patiently};

use super::gather::Pause;
use crate::epochs::{Epoch, Epochs, Holds, Owned, SEAL_BYTES, Seal, Seals, Step, Walk};
use crate::format::STORED;
use crate::segment::fetch::{Expected, fetch};
use crate::segment::object::{claim_key, epoch_prefix, log_prefix, object_epoch, object_number};

/// Why a log cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// The object store failed. The same attempt may go on later.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// Another attempt has the epoch, or a later one.
    #[error("epoch {0} of the log has another owner")]
    Fenced(u32),
    /// An object that has to say where its epoch ends says something else.
    #[error("{0}: {1}")]
    Damaged(String, String),
}

/// An attempt to take a log over.
#[derive(Debug)]
pub struct TakeOver {
    bucket: Arc<dyn Bucket>,
    seal: Seal,
    claimed: bool,
    walk: Walk,
    /// Requests at the same time.
    threads: usize,
}

impl TakeOver {
    /// Takes the log `log_id` over in `epoch`. Epochs begin at 1. Each attempt needs an epoch of its own, also one of the
    /// same process: a request of the attempt before may land at any time.
    pub fn new(bucket: Arc<dyn Bucket>, log_id: u128, epoch: u32) -> TakeOver {
        let seal = Seal { log_id, epoch, owner: fastrand::u64(1..) };
        TakeOver { bucket, seal, claimed: false, walk: Walk::new(seal), threads: 1 }
    }

    /// Makes up to `threads` requests at the same time.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> TakeOver {
        self.threads = threads.max(1);
        self
    }

    /// Goes on until the log is taken over. Repeats requests without a clear outcome while `pause` allows it. Blocks.
    pub fn finish(&mut self, pause: &Pause) -> Result<Owned, TakeOverError> {
        loop {
            if let Some(owned) = self.step(pause)? {
                return Ok(owned);
            }
        }
    }

    /// One step. Returns the right to put objects after the last one. After an error of the store the step may be
    /// repeated.
    pub fn step(&mut self, pause: &Pause) -> Result<Option<Owned>, TakeOverError> {
        if !self.claimed {
            let key = claim_key(self.seal.log_id, self.seal.epoch);
            let owner = self.seal.owner.to_le_bytes();
            self.claimed = match self.put(&key, &owner, pause)? {
                Put::Stored => true,
                Put::Exists => match self.get(&key, owner.len(), pause) {
                    Ok(there) if there[..] == owner => true,
                    Ok(_) => return Err(TakeOverError::Fenced(self.seal.epoch)),
                    // A request that is on its way was in conflict with this one.
                    Err(BucketError::NotFound(_)) => false,
                    Err(error) => return Err(error.into()),
                },
            };
            return Ok(None);
        }
        match self.walk.step() {
            Step::Seals => {
                let seals = self.seals(pause)?;
                self.walk.seals(seals);
                Ok(None)
            }
            Step::Look(epoch) => {
                match self.look(epoch, pause) {
                    Ok(holds) => self.walk.holds(&holds),
                    // It was deleted since it was listed, so there is a newer one.
                    Err(TakeOverError::Bucket(BucketError::NotFound(_))) => {}
                    Err(error) => return Err(error),
                }
                Ok(None)
            }
            Step::Seal(epoch, number) => {
                let key = format!("{}{number:010}", epoch_prefix(self.seal.log_id, epoch.epoch));
                self.put(&key, &self.seal.encode(), pause)?;
                self.walk.put();
                Ok(None)
            }
            Step::Owned(epochs) => Ok(Some(Owned { epochs, owner: self.seal.owner })),
            Step::Fenced(by) => Err(TakeOverError::Fenced(by.epoch)),
        }
    }

    /// The epochs of the log so far, while its owner goes on. A look that changes nothing.
    pub fn epochs(&self, pause: &Pause) -> Result<Epochs, TakeOverError> {
        Ok(Epochs::along(&self.seals(pause)?))
    }

    fn put(&self, key: &str, bytes: &[u8], pause: &Pause) -> Result<Put, BucketError> {
        let body = [Bytes::copy_from_slice(bytes)];
        patiently(|| self.bucket.put_if_absent(key, &body), pause)
    }

    fn get(&self, key: &str, bytes: usize, pause: &Pause) -> Result<Bytes, BucketError> {
        patiently(|| self.bucket.get(key, 0..bytes as u64), pause)
    }

    fn read_seal(&self, key: &str, pause: &Pause) -> Result<Seal, TakeOverError> {
        let bytes = self.get(key, SEAL_BYTES, pause)?;
        let seal = Seal::decode(&bytes).filter(|seal| seal.log_id == self.seal.log_id);
        seal.ok_or_else(|| TakeOverError::Damaged(key.to_owned(), "it is a damaged seal".into()))
    }

    /// The seals of all epochs, several requests at a time. Otherwise a walk would take longer with each change of the owner.
    fn seals(&self, pause: &Pause) -> Result<Seals, TakeOverError> {
        let mut found: BTreeMap<u32, (u32, String)> = BTreeMap::new();
        for object in list_all(&*self.bucket, &log_prefix(self.seal.log_id), "", pause)? {
            if object.bytes == SEAL_BYTES as u64
                && let (Some(epoch), Some(number)) = (object_epoch(&object.key), object_number(&object.key))
            {
                // Keys come in the order of their numbers.
                found.insert(epoch, (number, object.key));
            }
        }
        let found: Vec<(u32, (u32, String))> = found.into_iter().collect();
        let read = |(epoch, (number, key)): &(u32, (u32, String))| {
            Ok((*epoch, (*number, self.read_seal(key, pause)?)))
        };
        if self.threads == 1 {
            return found.iter().map(read).collect();
        }
        let each = found.len().div_ceil(self.threads).max(1);
        std::thread::scope(|scope| {
            let part = |part| scope.spawn(move || <[_]>::iter(part).map(read).collect::<Vec<_>>());
            let parts: Vec<_> = found.chunks(each).map(part).collect();
            let joined = parts.into_iter().flat_map(|part| match part.join() {
                Ok(read) => read,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.collect()
        })
    }

    /// What the store has of an epoch.
    fn look(&self, epoch: Epoch, pause: &Pause) -> Result<Holds, TakeOverError> {
        let prefix = epoch_prefix(self.seal.log_id, epoch.epoch);
        let mut holds = Holds::default();
        let mut last = None;
        for object in list_all(&*self.bucket, &prefix, "", pause)? {
            let Some(number) = object_number(&object.key) else { continue };
            if object.bytes == SEAL_BYTES as u64 {
                // Keys come in the order of their numbers.
                holds.seal = Some((number, self.read_seal(&object.key, pause)?));
                continue;
            }
            holds.numbers.push(number);
            last = Some((number, object));
        }
        if let Some((number, object)) = last.filter(|_| holds.seal.is_none()) {
            holds.counted = self.counted_by(number, &object, pause)?;
        }
        Ok(holds)
    }

    /// The number below which all objects count, as this one says.
    fn counted_by(&self, number: u32, object: &Listed, pause: &Pause) -> Result<u32, TakeOverError> {
        let expected = Expected { log_id: self.seal.log_id, sequence: STORED | number, length: object.bytes };
        let get =
            |range: std::ops::Range<u64>| patiently(|| self.bucket.get(&object.key, range.clone()), pause);
        match fetch(expected, get)? {
            Ok((described, _)) => Ok(described.counted & !STORED),
            // Without it nobody knows which gaps are objects that were deleted.
            Err(what) => Err(TakeOverError::Damaged(object.key.clone(), what)),
        }
    }
}
