//! The leases of a store in this process. They end with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Change, LeaseId, MetaError};

#[derive(Debug, Default)]
pub struct Leases {
    held: BTreeMap<LeaseId, Lease>,
    /// The lease of each key that has one.
    of_key: BTreeMap<String, LeaseId>,
    granted: i64,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    ends: Duration,
    keys: BTreeSet<String>,
}

impl Leases {
    pub fn grant(&mut self, ttl: Duration, now: Duration) -> LeaseId {
        self.granted += 1;
        let lease = LeaseId(self.granted);
        self.held.insert(lease, Lease { ttl, ends: now + ttl, keys: BTreeSet::new() });
        lease
    }

    pub fn keep_alive(&mut self, lease: LeaseId, now: Duration) -> Result<(), MetaError> {
        let held = self.held.get_mut(&lease).ok_or(MetaError::NoLease(lease))?;
        held.ends = now + held.ttl;
        Ok(())
    }

    /// Checks that the leases named in `changes` are held.
    pub fn check(&self, changes: &[Change]) -> Result<(), MetaError> {
        for change in changes {
            if let Change::Put { lease: Some(lease), .. } = change
                && !self.held.contains_key(lease)
            {
                return Err(MetaError::NoLease(*lease));
            }
        }
        Ok(())
    }

    /// Updates the leases after a commit.
    pub fn follow(&mut self, changes: &[Change]) {
        for change in changes {
            let key = change.key();
            if let Some(old) = self.of_key.remove(key)
                && let Some(old) = self.held.get_mut(&old)
            {
                old.keys.remove(key);
            }
            if let Change::Put { lease: Some(lease), .. } = change {
                self.of_key.insert(key.to_owned(), *lease);
                let held = self.held.get_mut(lease).expect("it was checked before the commit");
                held.keys.insert(key.to_owned());
            }
        }
    }

    /// The changes that remove the keys of a lease.
    pub fn removal(&self, lease: LeaseId) -> Result<Vec<Change>, MetaError> {
        let held = self.held.get(&lease).ok_or(MetaError::NoLease(lease))?;
        Ok(held.keys.iter().map(Change::delete).collect())
    }

    /// Ends a lease after its keys were removed.
    pub fn end(&mut self, lease: LeaseId) {
        self.held.remove(&lease);
    }

    /// A lease that has expired, if any.
    pub fn over(&self, now: Duration) -> Option<LeaseId> {
        self.held.iter().find(|(_, lease)| lease.ends <= now).map(|(id, _)| *id)
    }

    /// When the first lease expires.
    pub fn first_end(&self) -> Option<Duration> {
        self.held.values().map(|lease| lease.ends).min()
    }
}
