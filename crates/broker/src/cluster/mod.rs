//! The brokers of a cluster, as one of them: it is alive as long as it keeps its lease, it may be the controller, and
//! it owns logs. What ownership moves in is a log ([0026](../../../../docs/decisions/0026-logs-move.md)).
//!
//! Invariants:
//! - Each epoch of a log belongs to one process for ever: every change of an owner compares the record that it replaces.
//! - The lease says only who seems alive. That a former owner does no harm is up to the log's epochs and seals.

pub mod admin;
pub mod copies;
mod copy_set;
mod copying;
mod faults;
pub mod host;
pub mod ownership;
mod prefetched;
pub mod reassign;
pub mod replicas;
pub mod run;
#[cfg(test)]
mod tests;
pub mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meta::{Change, Compare, LeaseId, MetaError, Store};
use parking_lot::Mutex;
use uuid::Uuid;

use self::ownership::{Duty, Process, changes, duty, others_take, owned, successors};
use crate::image::records::{BrokerRecord, ControllerRecord, OwnerRecord, Rest};
use crate::image::{Image, Metadata, Record, Update};

/// An owner that is not about to end waits so long until the broker that is to get a log is ready.
const READY_WITHIN: Duration = Duration::from_secs(330);
/// A broker stands by for so many logs: those of two others. In a large cluster most would choose the same one.
const STANDS_BY_MAX: usize = 4;
/// A broker whose lease has ended keeps its logs for so long: etcd 3.4 and 3.5 may end leases that are renewed, when a member
/// that was the leader goes on after it stood still (etcd's issue 15247). The broker hears of it at once, and is alive again.
const LOST_FOR: Duration = Duration::from_millis(300);
/// Changes of owners in one commit. etcd allows 128 operations.
const CHANGES_MAX: usize = 50;

/// Why a broker is no member of the cluster.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The metadata store failed. The member goes on, and tries again.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// Another process is alive under the id of this broker.
    #[error("another process is alive as broker {0}")]
    Duplicate(i32),
}

/// The logs that a process has open, or takes over at the moment.
pub trait Holder {
    /// The logs that are held.
    fn logs(&self) -> BTreeSet<String>;

    /// The epoch in which a log is held. `None` after an attempt that failed, as soon as another one may begin, and after
    /// it was closed.
    fn held(&self, log: &str) -> Option<u32>;

    /// Begins to fetch what taking the log over will need, while its owner goes on, whose epoch is `epoch`. Returns whether that
    /// is done.
    fn prepare(&mut self, log: &str, epoch: u32) -> bool;

    /// Begins to fetch what taking over a log will need if its owner dies, or what is new of that since the last call. `epoch`
    /// is that of the owner.
    fn stand_by(&mut self, log: &str, epoch: u32);

    /// Begins to take a log over.
    fn take_over(&mut self, log: &str, epoch: u32);

    /// Whether the log was closed in this epoch, and the object store has all of it.
    fn is_stored(&self, log: &str, epoch: u32) -> bool;

    /// Whether the object store has not answered for a while.
    fn lacks_store(&self) -> bool;

    /// Whether little of the disk is free.
    fn is_low_on_space(&self) -> bool;

    /// Begins to close a log, which goes on by itself. With `orderly` everything that it has is stored first. Returns
    /// whether it is closed.
    fn close(&mut self, log: &str, orderly: bool) -> bool;
}

/// The time since some moment.
pub type Clock = dyn Fn() -> Duration + Send + Sync;

/// One broker of a cluster.
pub struct Member {
    metadata: Arc<Metadata>,
    process: Process,
    record: Mutex<BrokerRecord>,
    /// How long the broker counts as alive after its last sign of life.
    ttl: Duration,
    lease: Mutex<Option<LeaseId>>,
    /// Held while the lease is renewed, which takes long where etcd does not answer.
    renewing: Mutex<()>,
    /// When the lease was granted or renewed last, by `clock`.
    renewed: Mutex<Option<Duration>>,
    clock: Box<Clock>,
    /// Whether the broker has brought its logs, in this process or an earlier one.
    brought: Mutex<bool>,
    /// Since when each log of this process waits for the broker that is to get it.
    promised: Mutex<BTreeMap<String, (i32, Instant)>>,
    /// Since when brokers that own logs are not alive, as the controller sees it.
    lost: Mutex<BTreeMap<i32, Duration>>,
    /// The last epoch of each log in which this process has tried to take it over.
    tried: Mutex<BTreeMap<String, u32>>,
    /// The logs that this broker gets if their owners die, with their epochs, as of a revision of the image.
    stands_by: Mutex<(u64, Vec<(String, u32)>)>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("process", &self.process)
            .field("lease", &*self.lease.lock())
            .finish_non_exhaustive()
    }
}

impl Member {
    /// A broker that is not alive yet. `record` says who it is.
    pub fn new(
        metadata: Arc<Metadata>,
        broker: i32,
        record: BrokerRecord,
        ttl: Duration,
        clock: Box<Clock>,
    ) -> Member {
        let process = Process { broker, incarnation: record.incarnation };
        let record = Mutex::new(record);
        Member {
            metadata,
            process,
            record,
            ttl,
            lease: Mutex::default(),
            renewing: Mutex::default(),
            renewed: Mutex::default(),
            clock,
            brought: Mutex::default(),
            promised: Mutex::default(),
            lost: Mutex::default(),
            tried: Mutex::default(),
            stands_by: Mutex::default(),
        }
    }

    fn name(&self) -> String {
        self.process.broker.to_string()
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.metadata.store()
    }

    /// Gives a sign of life, and joins if the broker does not count as alive. A process that takes the place of one that
    /// was killed is a duplicate until the lease of that one is over. Blocks.
    pub fn keep_alive(&self) -> Result<(), MemberError> {
        let _one = self.renewing.lock();
        let begun = (self.clock)();
        self.renew()?;
        *self.renewed.lock() = Some(begun);
        Ok(())
    }

    fn renew(&self) -> Result<(), MemberError> {
        let held = *self.lease.lock();
        if let Some(lease) = held {
            match self.store().keep_alive(lease) {
                Ok(()) => return Ok(()),
                Err(MetaError::NoLease(_)) => *self.lease.lock() = None,
                Err(error) => return Err(error.into()),
            }
        }
        let lease = self.store().grant(self.ttl)?;
        let key = BrokerRecord::key(&self.name());
        let record = self.record.lock().encode();
        let put = Change::put_leased(key.clone(), record, lease);
        match self.store().commit(&[Compare::absent(key.clone())], &[put]) {
            Ok(_) => {
                *self.lease.lock() = Some(lease);
                tracing::info!(broker = self.process.broker, "joined the cluster");
                Ok(())
            }
            Err(MetaError::Conflict { .. }) => {
                // An earlier attempt of this process may have the key, with a lease that is lost and ends by itself.
                let there = self.store().find(&key)?;
                let there = there.and_then(|there| BrokerRecord::parse(&self.name(), &there.bytes).ok());
                let own = there.is_none_or(|there| there.incarnation == self.process.incarnation);
                let _ = self.store().revoke(lease);
                match own {
                    true => Err(MetaError::Conflict { key }.into()),
                    false => Err(MemberError::Duplicate(self.process.broker)),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Says that the broker is about to end, so that others take its logs while it still serves them. Returns whether that is
    /// known now, or will be as soon as the broker joins. Otherwise it may be said again. Blocks.
    pub fn announce_leaving(&self) -> Result<bool, MetaError> {
        self.announce(|record| &mut record.leaving, true)
    }

    /// Says whether the object store does not answer this broker, if the others do not know it. Blocks.
    fn announce_store(&self, away: bool) -> Result<(), MetaError> {
        if !self.announce_news(|record| &mut record.without_store, away)? {
            return Ok(());
        }
        match away {
            true => tracing::error!(
                "the object store does not answer this broker: others get its logs until it does; check the network \
                 and the credentials"
            ),
            false => tracing::info!("the object store answers this broker again"),
        }
        Ok(())
    }

    /// Says whether little of the disk is free, if the others do not know it. Blocks.
    fn announce_space(&self, low: bool) -> Result<(), MetaError> {
        if !self.announce_news(|record| &mut record.low_on_space, low)? {
            return Ok(());
        }
        match low {
            true => tracing::warn!(
                "little of this broker's disk is free: others get new partitions, logs and copies first; delete topics, \
                 shorten their retention or add space"
            ),
            false => tracing::info!("there is space on this broker's disk again"),
        }
        Ok(())
    }

    /// Says `value`, if the others do not know it. Returns whether it was said.
    fn announce_news(
        &self,
        field: fn(&mut BrokerRecord) -> &mut bool,
        value: bool,
    ) -> Result<bool, MetaError> {
        let image = self.metadata.image();
        let ours = image.brokers.get(&self.name());
        let there = ours.filter(|ours| ours.incarnation == self.process.incarnation);
        // The outcome of an earlier commit may be unknown.
        let known = there
            .map_or_else(|| *field(&mut self.record.lock()), |there| *field(&mut BrokerRecord::clone(there)));
        Ok(known != value && self.announce(field, value)?)
    }

    fn announce(&self, field: fn(&mut BrokerRecord) -> &mut bool, value: bool) -> Result<bool, MetaError> {
        let before = std::mem::replace(field(&mut self.record.lock()), value);
        // Signs of life go on meanwhile.
        let Some(lease) = *self.lease.lock() else { return Ok(true) };
        let announced = self.metadata.update(|image| {
            let ours = image.brokers.get(&self.name());
            // The image may not show yet that it has joined.
            let alive = ours.is_some_and(|it| it.incarnation == self.process.incarnation);
            let record = self.record.lock().encode();
            let put = Change::put_leased(BrokerRecord::key(&self.name()), record, lease);
            Ok(Update::new(if alive { vec![put] } else { Vec::new() }, alive))
        });
        if !matches!(announced, Ok(true)) {
            *field(&mut self.record.lock()) = before;
        }
        announced
    }

    /// Whether the lease was renewed in time.
    pub fn has_lease(&self) -> bool {
        self.renewed.lock().is_some_and(|at| (self.clock)() < at + self.ttl)
    }

    /// Whether the object store does not answer the broker.
    pub fn lacks_store(&self) -> bool {
        self.record.lock().without_store
    }

    /// Whether the broker gives its logs away.
    pub fn is_leaving(&self) -> bool {
        self.record.lock().leaving
    }

    /// Whether this process owns a log that another broker could take.
    pub fn gives_away(&self) -> bool {
        let image = self.metadata.image();
        let ours = |owner: &OwnerRecord| owner.broker == self.process.broker;
        image.owners.iter().any(|(_, owner)| ours(owner)) && others_take(&image, self.process.broker)
    }

    /// Ends the broker's life now, so that others take its logs without waiting for the lease. Blocks.
    pub fn leave(&self) -> Result<(), MetaError> {
        let lease = self.lease.lock().take();
        match lease.map_or(Ok(()), |lease| self.store().revoke(lease)) {
            Err(MetaError::NoLease(_)) => Ok(()),
            left => left,
        }
    }

    /// Whether this process is the controller, as the image shows it.
    pub fn is_controller(&self, image: &Image) -> bool {
        let record = image.controller.get("");
        record
            .is_some_and(|it| it.broker == self.process.broker && it.incarnation == self.process.incarnation)
    }

    /// Joins again if the image shows that the lease has ended. Blocks.
    pub fn rejoin(&self) -> Result<(), MemberError> {
        let gone = self.metadata.image().brokers.get(&self.name()).is_none();
        if gone && self.lease.lock().is_some() { self.keep_alive() } else { Ok(()) }
    }

    /// The brokers whose lease has ended just now.
    fn lost_lately(&self, image: &Image) -> BTreeSet<i32> {
        let (mut lost, now) = (self.lost.lock(), (self.clock)());
        let is_lost = |broker: &i32| image.brokers.get(&broker.to_string()).is_none();
        let owners = image.owners.iter().map(|(_, owner)| owner.broker).filter(is_lost);
        let owners: BTreeSet<i32> = owners.collect();
        lost.retain(|broker, _| owners.contains(broker));
        owners.into_iter().filter(|broker| now < *lost.entry(*broker).or_insert(now) + LOST_FOR).collect()
    }

    /// Becomes the controller if there is none, and acts as the controller if it is this one. Blocks.
    pub fn control(&self) -> Result<(), MetaError> {
        let Some(lease) = *self.lease.lock() else { return Ok(()) };
        let image = self.metadata.image();
        if image.controller.get("").is_none() {
            let Process { broker, incarnation } = self.process;
            let record = ControllerRecord { broker, incarnation };
            let key = ControllerRecord::key("");
            let put = Change::put_leased(key.clone(), record.encode(), lease);
            return match self.store().commit(&[Compare::absent(key)], &[put]) {
                // Another broker was faster, or the lease is over.
                Ok(_) | Err(MetaError::Conflict { .. } | MetaError::NoLease(_)) => self.metadata.refresh(),
                Err(error) => Err(error),
            };
        }
        self.metadata.update(|image| {
            if !self.is_controller(image) {
                self.lost.lock().clear();
                return Ok(Update::new(Vec::new(), ()));
            }
            let mut compares = vec![compare::<ControllerRecord>(image, "")];
            let mut all = Vec::new();
            let lately = self.lost_lately(image);
            for (log, owner) in changes(image, &lately).into_iter().take(CHANGES_MAX) {
                // An owner that is alive again by now keeps its log.
                let old = image.owners.get(&log).map_or(owner.broker, |old| old.broker);
                let of_old = compare::<BrokerRecord>(image, &old.to_string());
                if !compares.contains(&of_old) {
                    compares.push(of_old);
                }
                all.push(owner.put(&log));
            }
            Ok(Update { compares, changes: all, result: () })
        })
    }

    /// Makes this process the owner of a new log, whose home is its broker. Blocks.
    #[cfg(test)]
    pub fn add_log(&self, log: &str) -> Result<(), MetaError> {
        self.add_logs(&[log.to_owned()])
    }

    fn add_logs(&self, logs: &[String]) -> Result<(), MetaError> {
        let Process { broker, incarnation } = self.process;
        let (home, rest) = (broker, Rest::new());
        let (set, set_epoch) = Default::default();
        let record = OwnerRecord {
            home,
            broker,
            incarnation,
            epoch: 1,
            next: None,
            ready: None,
            set,
            set_epoch,
            rest,
        };
        self.metadata.update(|image| match logs.iter().find(|log| image.owners.get(log).is_some()) {
            None => Ok(Update::new(logs.iter().map(|log| record.put(log)).collect(), ())),
            Some(log) => Err(MetaError::Conflict { key: OwnerRecord::key(log) }),
        })
    }

    /// Makes this broker the home of `wanted` new logs, all in one commit, if it is alive and was the home of none when this
    /// process joined. Later its logs may be moved away. Blocks.
    pub fn bring_logs(&self, wanted: usize) -> Result<(), MetaError> {
        let mut brought = self.brought.lock();
        if *brought || self.lease.lock().is_none() {
            return Ok(());
        }
        let home = |image: &Image| image.owners.iter().any(|(_, owner)| owner.home == self.process.broker);
        // The outcome of an earlier attempt may be unknown.
        if !home(&self.metadata.image()) {
            self.add_logs(&(0..wanted).map(|_| Uuid::new_v4().to_string()).collect::<Vec<_>>())?;
        }
        *brought = true;
        Ok(())
    }

    /// Takes over, closes and hands over logs as the image says. Blocks.
    pub fn serve(&self, holder: &mut dyn Holder) -> Result<(), MetaError> {
        self.announce_store(holder.lacks_store())?;
        if let Err(error) = self.announce_space(holder.is_low_on_space()) {
            tracing::debug!(%error, "what is free on the disk is not known to others");
        }
        let image = self.metadata.image();
        let mut logs = holder.logs();
        logs.extend(image.owners.iter().map(|(log, _)| log.to_owned()));
        // One log must not keep the others from being closed.
        let served: Vec<_> = logs.iter().map(|log| self.serve_log(&image, log, holder)).collect();
        let mut stands_by = self.stands_by.lock();
        if stands_by.0 != image.revision {
            *stands_by = (image.revision, self.inheritance(&image));
        }
        for (log, epoch) in &stands_by.1 {
            // It may have the log open, and not know yet that it has lost it.
            if holder.held(log).is_none() {
                holder.stand_by(log, *epoch);
            }
        }
        served.into_iter().collect()
    }

    /// The same for one log.
    fn serve_log(&self, image: &Image, log: &str, holder: &mut dyn Holder) -> Result<(), MetaError> {
        let held = holder.held(log);
        let ready = duty(image, log, self.process, held.is_some());
        let overdue = || self.overdue(image, log).map(Duty::HandOver);
        match ready.map(|duty| if let Duty::Serve(_) = duty { overdue().unwrap_or(duty) } else { duty }) {
            Some(Duty::Prepare(epoch)) if holder.prepare(log, epoch) => self.note_ready(log)?,
            None | Some(Duty::Prepare(_)) => {}
            Some(Duty::Leave) => drop(holder.close(log, false)),
            Some(Duty::Claim) => self.pass_on(log, self.process, holder)?,
            Some(Duty::HandOver(to)) => {
                // Without the store, closing may take as long as its requests.
                let closed = held.is_none() || holder.close(log, true) || holder.lacks_store();
                if closed {
                    self.pass_on(log, to, holder)?;
                }
            }
            Some(Duty::Serve(epoch)) => match held {
                Some(held) if held == epoch => {}
                Some(_) => drop(holder.close(log, false)),
                // Each attempt to take a log over needs an epoch of its own.
                None if self.tried.lock().get(log) == Some(&epoch) => {
                    self.pass_on(log, self.process, holder)?
                }
                None => {
                    self.tried.lock().insert(log.to_owned(), epoch);
                    holder.take_over(log, epoch);
                }
            },
        }
        Ok(())
    }

    /// The logs of others that this process gets if their owners die, with their epochs.
    fn inheritance(&self, image: &Image) -> Vec<(String, u32)> {
        let Process { broker, incarnation } = self.process;
        let current = image.brokers.get(&self.name()).is_some_and(|ours| ours.incarnation == incarnation);
        let others = |log: &str| image.owners.get(log).filter(|owner| owner.broker != broker).cloned();
        let all = successors(image).into_iter().filter(|(_, to)| current && *to == broker);
        all.filter_map(|(log, _)| others(&log).map(|owner| (log, owner.epoch))).take(STANDS_BY_MAX).collect()
    }

    /// The process that was to get this log long ago and is not ready: an older program does not say so.
    fn overdue(&self, image: &Image, log: &str) -> Option<Process> {
        let mut promised = self.promised.lock();
        let Some(next) = image.owners.get(log).and_then(|owner| owner.next) else {
            promised.remove(log);
            return None;
        };
        let (of, since) = promised.entry(log.to_owned()).or_insert_with(|| (next, Instant::now()));
        if *of != next {
            (*of, *since) = (next, Instant::now());
        }
        let incarnation = image.brokers.get(&next.to_string())?.incarnation;
        (since.elapsed() > READY_WITHIN).then_some(Process { broker: next, incarnation })
    }

    /// Tells the owner of a log that this process is ready to get it.
    fn note_ready(&self, log: &str) -> Result<(), MetaError> {
        self.metadata.update(|image| {
            let waits = |owner: &&Arc<OwnerRecord>| {
                owner.next == Some(self.process.broker) && owner.ready != Some(self.process.incarnation)
            };
            let owner = image.owners.get(log).filter(waits);
            let ready = Some(self.process.incarnation);
            let changes = owner.map(|owner| OwnerRecord { ready, ..OwnerRecord::clone(owner) }.put(log));
            Ok(Update::new(changes.into_iter().collect(), ()))
        })
    }

    /// Makes `to` the owner of a log in the next epoch, if this process may do that.
    fn pass_on(&self, log: &str, to: Process, holder: &dyn Holder) -> Result<(), MetaError> {
        self.metadata.update(|image| {
            let ours = image.brokers.get(&self.name());
            let alive = ours.is_some_and(|it| it.incarnation == self.process.incarnation);
            let Process { broker, incarnation } = to;
            let runs = image.brokers.get(&broker.to_string()).is_some_and(|it| it.incarnation == incarnation);
            let may = |owner: &&Arc<OwnerRecord>| {
                let wanted = broker == self.process.broker || owner.next == Some(broker);
                owner.broker == self.process.broker && alive && runs && wanted
            };
            let Some(owner) = image.owners.get(log).filter(may) else {
                return Ok(Update::new(Vec::new(), ()));
            };
            let mut compares = vec![compare::<BrokerRecord>(image, &self.name())];
            if broker != self.process.broker {
                compares.push(compare::<BrokerRecord>(image, &broker.to_string()));
            }
            let mut record = owned(owner, to);
            if holder.is_stored(log, owner.epoch) {
                // Nobody has to look for copies.
                record.set.clear();
            }
            Ok(Update { compares, changes: vec![record.put(log)], result: () })
        })
    }
}

/// The condition that an entry is as the image shows it.
fn compare<T: Record>(image: &Image, name: &str) -> Compare {
    let key = T::key(name);
    Compare { revision: image.revision_of(&key), key }
}
