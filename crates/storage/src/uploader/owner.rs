//! Whose objects these are. A copy of a data directory may be opened elsewhere, and would put objects for the same log.
//!
//! Each opening of a log that puts objects draws a random number, its *owner*. The number stands in the epoch of all its
//! objects, in a local file with the earlier owners of this log, and in an object of its own: the claim
//! `owners/LOG/NNNNNNNNNN`, numbered and put if absent. An object with another owner than those of the local file is
//! another server's. An opening whose claim is not the newest one deletes nothing any more.

use std::io;

use bytes::Bytes;
use disk::Disk;
use objects::{Bucket, Put};

use super::UploadError;
use crate::epochs::Owned;
use crate::format::SECTOR;
use crate::segment::object::{claim_key, claim_prefix};
use crate::segment::{encode_list, read_list, write_file};
use crate::shared::Shared;

/// The local file with the owners of a log, a list of u64 in one sector.
const FILE: &str = "owners";
const OWNERS_MAX: usize = (SECTOR - 8) / 8;
/// Claims that one request lists.
const LISTED: usize = 1000;

/// The owners of a log so far.
#[derive(Default)]
pub(super) struct Owners {
    /// Those of the local file; the last one is this opening's.
    known: Vec<u64>,
    /// The key of this opening's claim.
    claim: Option<String>,
}

impl Owners {
    /// Those of a log with epochs. The owner has claimed its epoch before.
    pub fn of(owned: &Owned, log_id: u128) -> Owners {
        let claim = owned.epochs.newest().map(|newest| claim_key(log_id, newest.epoch));
        Owners { known: vec![owned.owner], claim }
    }

    /// The owner of this opening. Draws and claims it at the first call.
    pub fn current(&mut self, shared: &Shared, bucket: &dyn Bucket) -> Result<u64, UploadError> {
        if self.known.is_empty() {
            let mut known = read(&*shared.disk).map_err(UploadError::Local)?;
            known.push(fastrand::u64(1..));
            known.drain(..known.len().saturating_sub(OWNERS_MAX));
            write_file(&*shared.disk, FILE, &encode(&known)).map_err(UploadError::Local)?;
            self.known = known;
        }
        let owner = self.known[self.known.len() - 1];
        if self.claim.is_none() {
            self.claim = Some(claim(shared.options.log_id, owner, bucket)?);
        }
        Ok(owner)
    }

    /// Whether this log put an object of `owner`.
    pub fn has(&self, owner: u64) -> bool {
        self.known.contains(&owner)
    }

    /// Whether nobody has claimed the log since. Deletes older claims.
    pub fn is_newest(&self, log_id: u128, bucket: &dyn Bucket) -> Result<bool, UploadError> {
        let Some(claim) = &self.claim else { return Ok(false) };
        Ok(bucket.list(&claim_prefix(log_id), claim, 1)?.is_empty())
    }
}

/// Puts the next claim of a log; returns its key. Earlier claims are deleted.
fn claim(log_id: u128, owner: u64, bucket: &dyn Bucket) -> Result<String, UploadError> {
    let (prefix, mut earlier) = (claim_prefix(log_id), Vec::new());
    let mut after = String::new();
    loop {
        let listed = bucket.list(&prefix, &after, LISTED)?;
        let Some(last) = listed.last() else { break };
        after.clone_from(&last.key);
        earlier.extend(listed.into_iter().map(|object| object.key));
    }
    let number = |key: &str| key.strip_prefix(&prefix)?.parse::<u32>().ok();
    let mut next = earlier.last().and_then(|key| number(key)).map_or(1, |last| last.saturating_add(1));
    if let Some(last) = earlier.last()
        && bucket.get(last, 0..8)?[..] == owner.to_le_bytes()
    {
        // An earlier attempt has landed.
        return Ok(last.clone());
    }
    let body = Bytes::copy_from_slice(&owner.to_le_bytes());
    let key = loop {
        let key = claim_key(log_id, next);
        match bucket.put_if_absent(&key, std::slice::from_ref(&body))? {
            Put::Stored => break key,
            Put::Exists if bucket.get(&key, 0..8)?[..] == body[..] => break key,
            Put::Exists => next = next.saturating_add(1),
        }
    };
    for key in earlier {
        bucket.delete(&key)?;
    }
    Ok(key)
}

fn encode(owners: &[u64]) -> Vec<u8> {
    encode_list(owners.iter().map(|owner| owner.to_le_bytes()))
}

/// The owners in the local file. None if there is no file.
fn read(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    Ok(read_list(disk, FILE)?.into_iter().map(u64::from_le_bytes).collect())
}

#[cfg(test)]
mod tests {
    use disk::SimDisk;

    use super::*;

    #[test]
    fn owners_are_read_back_and_damage_is_seen() {
        let disk = SimDisk::new(1);
        assert_eq!(read(&disk).unwrap(), Vec::<u64>::new());
        let owners: Vec<u64> = (1..=OWNERS_MAX as u64).collect();
        write_file(&disk, FILE, &encode(&owners)).unwrap();
        assert_eq!(read(&disk).unwrap(), owners);
        let mut bytes = encode(&[1, 2, 3]);
        bytes[10] ^= 1;
        write_file(&disk, FILE, &bytes).unwrap();
        assert_eq!(read(&disk).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
