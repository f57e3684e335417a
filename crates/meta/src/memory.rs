//! A store in memory, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::local::{self, Clock, Engine, Local};
use crate::{Change, Compare, Listing, MetaError, Value};

/// A store in memory. It ends with the process.
pub type Memory = Local<Table>;

impl Memory {
    /// Leases end by `clock`.
    pub fn with_clock(clock: Clock) -> Memory {
        Local::new(Table::default(), clock).expect("memory does not fail")
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::with_clock(local::clock())
    }
}

/// The values.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Table(Mutex<Contents>);

#[derive(Debug, Default)]
struct Contents {
    revision: u64,
    values: BTreeMap<String, Value>,
    leased: BTreeSet<String>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for Table {
    fn find(&self, key: &str) -> Result<Option<Value>, MetaError> {
        Ok(self.lock().values.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        let contents = self.lock();
        let below = contents.values.range(prefix.to_owned()..);
        let below = below.take_while(|(key, _)| key.starts_with(prefix));
        let entries = below.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(Listing { revision: contents.revision, entries })
    }

    fn revision(&self) -> Result<u64, MetaError> {
        Ok(self.lock().revision)
    }

    fn commit(&self, revision: u64, compares: &[Compare], changes: &[Change]) -> Result<(), MetaError> {
        let mut contents = self.lock();
        for Compare { key, revision } in compares {
            if contents.values.get(key).map(|value| value.revision) != *revision {
                return Err(MetaError::Conflict { key: key.clone() });
            }
        }
        for change in changes.iter().cloned() {
            match change {
                Change::Put { key, bytes, lease } => {
                    contents.leased.remove(&key);
                    contents.leased.extend(lease.map(|_| key.clone()));
                    contents.values.insert(key, Value { revision, bytes });
                }
                Change::Delete { key } => {
                    contents.leased.remove(&key);
                    contents.values.remove(&key);
                }
            }
        }
        contents.revision = revision;
        Ok(())
    }

    fn leased(&self) -> Result<Vec<String>, MetaError> {
        Ok(self.lock().leased.iter().cloned().collect())
    }
}
