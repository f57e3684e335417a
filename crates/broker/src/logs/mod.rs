//! The logs, one in each log directory, and the state of logs that are unavailable.
//!
//! A log is identified by the id in its segments, wherever its directory is. The metadata stores the log id of each
//! partition, and the directory in which each log was last seen. A partition is therefore found again after its
//! directory has moved. A missing directory never makes a partition look empty: no new log is begun where a log with
//! partitions was last seen.

mod open_log;
mod start;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use uuid::Uuid;

use self::open_log::segment_bytes;
pub use self::open_log::{OpenLog, Opening, Streams};
pub use self::start::{FIRST_LOG_KEY, LOG_PREFIX, LogDirectory, LogsError, path_record};
use crate::config::Config;

/// A missing log, or a directory that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log directory {path} is offline: {why}")]
pub struct Lost {
    /// The directory, or the one in which the log was last seen.
    pub path: String,
    /// The problem with it.
    pub why: String,
}

/// Why a partition's log is not open here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It is lost.
    Lost(Arc<Lost>),
    /// Another broker of the cluster owns it, or this one has not taken it over yet.
    Elsewhere,
}

/// The number of partitions in a log, and the bytes they are expected to add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The number of partitions.
    pub partitions: usize,
    /// Bytes still to come if each partition fills at least one segment.
    pub promised_bytes: u64,
}

/// All logs.
#[derive(Debug)]
pub struct Logs {
    open: RwLock<Arc<[Arc<OpenLog>]>>,
    /// Listed directories that cannot be used.
    lost: Vec<Arc<Lost>>,
    /// Missing logs that hold partitions. The nil id stands for the first log while its id is unknown.
    gone: HashMap<Uuid, Arc<Lost>>,
    first: Option<Uuid>,
    /// Whether logs move between brokers.
    moving: bool,
    /// Logs of this broker have other owners, and the metadata here does not show that.
    outdated: AtomicBool,
    segment_bytes: u64,
}

impl Logs {
    /// The logs of a broker in a cluster. None is open yet: a broker opens those that it owns, while it runs.
    pub fn moving(config: &Config) -> Logs {
        Logs {
            open: RwLock::new(Arc::new([])),
            lost: Vec::new(),
            gone: HashMap::new(),
            first: None,
            moving: true,
            outdated: AtomicBool::new(false),
            segment_bytes: segment_bytes(config),
        }
    }

    /// Whether logs move between the brokers of a cluster.
    pub fn are_moving(&self) -> bool {
        self.moving
    }

    /// Notes whether logs of this broker have other owners of which it does not hear.
    pub fn set_outdated(&self, outdated: bool) {
        self.outdated.store(outdated, Ordering::Release);
    }

    /// Whether what this broker knows of the cluster is outdated, so that it serves nobody.
    pub fn are_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire)
    }

    /// The open logs, in the order of log.dirs.
    pub fn all(&self) -> Arc<[Arc<OpenLog>]> {
        self.open.read().clone()
    }

    /// Adds a log that this broker has taken over.
    pub fn add(&self, log: Arc<OpenLog>) {
        let mut open = self.open.write();
        *open = open.iter().cloned().chain([log]).collect();
    }

    /// Takes a log out, which stays open for whoever still has it.
    pub fn remove(&self, id: Uuid) -> Option<Arc<OpenLog>> {
        let mut open = self.open.write();
        let removed = open.iter().find(|log| log.id == id).cloned();
        *open = open.iter().filter(|log| log.id != id).cloned().collect();
        removed
    }

    /// The directories of log.dirs that cannot be used.
    pub fn lost(&self) -> &[Arc<Lost>] {
        &self.lost
    }

    /// The log with this id. The nil id stands for the first log.
    pub fn find(&self, id: Uuid) -> Result<Arc<OpenLog>, Absent> {
        let id = if id.is_nil() { self.first.unwrap_or(id) } else { id };
        self.open.read().iter().find(|log| log.id == id).cloned().ok_or_else(|| {
            if self.moving {
                return Absent::Elsewhere;
            }
            let unheard =
                || Arc::new(Lost { path: "(unknown)".into(), why: "its log was never seen".into() });
            Absent::Lost(self.gone.get(&id).cloned().unwrap_or_else(unheard))
        })
    }

    /// Chooses logs for `count` new partitions: the log with the most free bytes after the promised ones, and among
    /// equals the log with the fewest partitions. `held` returns the content of each log, and is called only if there
    /// is a choice. Blocks.
    ///
    /// # Errors
    /// The reasons of all logs, if none takes a partition.
    pub fn place(
        &self,
        count: usize,
        held: impl FnOnce() -> HashMap<Uuid, Held>,
    ) -> Result<Vec<Uuid>, String> {
        let (mut taking, mut refusals) = (Vec::new(), Vec::new());
        for log in self.all().iter() {
            match log.free_bytes() {
                Ok(free) => taking.push((log.id, free)),
                Err(why) => refusals.push(format!("{}: {why}", log.path)),
            }
        }
        refusals.extend(self.lost.iter().map(|lost| format!("{}: {}", lost.path, lost.why)));
        let mut held = if taking.len() > 1 { held() } else { HashMap::new() };
        let mut placed = Vec::with_capacity(count);
        for _ in 0..count {
            let better = |(at, (id, free)): &(usize, &(Uuid, u64))| {
                let held = held.get(id).copied().unwrap_or_default();
                let left = i128::from(*free) - i128::from(held.promised_bytes);
                (left, std::cmp::Reverse(held.partitions), std::cmp::Reverse(*at))
            };
            let Some((_, (id, _))) = taking.iter().enumerate().max_by_key(better) else {
                return Err(refusals.join("; "));
            };
            let held = held.entry(*id).or_default();
            held.partitions += 1;
            held.promised_bytes += self.segment_bytes;
            placed.push(*id);
        }
        Ok(placed)
    }

    /// Bytes that a partition with records of `bytes` still adds to [`Held::promised_bytes`].
    pub fn promise(&self, bytes: u64) -> u64 {
        self.segment_bytes.saturating_sub(bytes)
    }

    /// Closes all logs. Blocks until all admitted appends are written.
    pub fn close(&self) {
        let all = self.all();
        std::thread::scope(|scope| {
            for log in all.iter() {
                scope.spawn(|| log.log.close());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use disk::sim::Fault;
    use disk::{Disk, SimDisk};
    use storage::AdmitError;

    use std::collections::BTreeMap;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// Opens logs in directories of these names and sizes, and returns them with their disks.
    fn open(sizes: &[(&'static str, u64)]) -> (Logs, Vec<SimDisk>) {
        let home = tempfile::tempdir().unwrap();
        let store = meta::Memory::default();
        let disks: Vec<SimDisk> = (0..).zip(sizes).map(|(seed, _)| SimDisk::new(seed)).collect();
        let directories = sizes.iter().zip(&disks).map(|((path, bytes), disk)| {
            disk.set_capacity(*bytes);
            let disk = disk.clone();
            LogDirectory::new(*path, move |_| Ok(Arc::new(disk.clone()) as Arc<dyn Disk>))
        });
        let opening = Opening::of(Config { reserve_bytes: 0, ..Config::default() });
        let logs = Logs::open(directories.collect(), &opening, &store, home.path(), &BTreeMap::new());
        (logs.unwrap(), disks)
    }

    /// The number of the `count` partitions that each log gets.
    fn spread(logs: &Logs, count: usize, held: &HashMap<Uuid, Held>) -> Result<Vec<usize>, String> {
        let placed = logs.place(count, || held.clone())?;
        Ok(logs.all().iter().map(|log| placed.iter().filter(|id| **id == log.id).count()).collect())
    }

    #[test]
    fn partitions_go_where_most_is_free_and_evenly_where_that_is_equal() {
        let none = HashMap::new();
        // The logs themselves use less than a GiB, which does not change the number of whole partitions.
        let (logs, _) = open(&[("a", 101 * GIB - 1), ("b", 51 * GIB - 1), ("c", 51 * GIB - 1)]);
        assert_eq!(spread(&logs, 45, &none).unwrap(), [45, 0, 0]);
        let spread_of_many = spread(&logs, 110, &none).unwrap();
        assert!(spread_of_many[0].abs_diff(70) <= 1, "{spread_of_many:?}");
        assert!(spread_of_many[1].abs_diff(spread_of_many[2]) <= 1, "{spread_of_many:?}");
        // Earlier partitions count too, as long as they have no records.
        let before = logs.place(45, HashMap::new).unwrap();
        let promised = Held { partitions: 45, promised_bytes: 45 * logs.promise(0) };
        let held = HashMap::from([(before[0], promised)]);
        let later = spread(&logs, 30, &held).unwrap();
        assert!(later.iter().all(|count| count.abs_diff(10) <= 4), "{later:?}");
        assert_eq!((logs.promise(GIB / 4), logs.promise(3 * GIB)), (3 * GIB / 4, 0));
        logs.close();
        // Beyond the free space, partitions are still spread evenly.
        let (logs, _) = open(&[("a", 2 * GIB), ("b", 2 * GIB)]);
        assert!(spread(&logs, 1001, &none).unwrap()[0].abs_diff(500) <= 1);
        logs.close();
    }

    #[test]
    fn a_stopped_or_full_log_takes_no_partition() {
        let none = HashMap::new();
        // The second log has room for its first segment and for no other.
        let (logs, disks) = open(&[("a", 100 * GIB), ("b", 24 << 20)]);
        assert_eq!(spread(&logs, 3, &none).unwrap(), [3, 0]);
        disks[0].fail_write_after(0, Fault::Forever);
        disks[0].fail_sync_after(0, Fault::Forever);
        let ill = &logs.all()[0];
        ill.log.delete(&ill.log.stream(model::StreamId(1)), None);
        while ill.failure().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(spread(&logs, 3, &none).unwrap(), [0, 3]);
        let full = &logs.all()[1];
        let mut admitted = Vec::new();
        loop {
            match full.log.admit(1 << 20) {
                Ok(admission) => admitted.push(admission),
                Err(AdmitError::Full) => break,
                Err(AdmitError::Busy) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        // Small appends still fit.
        admitted.extend(std::iter::from_fn(|| full.log.admit(1).ok()));
        assert!(full.log.is_full() && !ill.log.is_full());
        let error = spread(&logs, 1, &none).unwrap_err();
        assert!(error.starts_with("a: the log stopped taking appends: "), "{error}");
        assert!(error.ends_with("; b: the disk is full"), "{error}");
        drop(admitted);
        assert_eq!(spread(&logs, 1, &none).unwrap(), [0, 1]);
        logs.close();
    }
}
