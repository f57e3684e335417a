//! What a broker of a cluster does all the time: it keeps its lease on one thread, and follows the metadata and does its
//! duties on another.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meta::MetaError;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::host::Host;
use super::reassign::Moves;
use super::{Member, MemberError};
use crate::image::records::{BrokerRecord, broker_id};
use crate::image::{Delta, Image, Metadata, Observer};
use crate::placement::{Known, Placement};

/// Logs that a broker is the home of. With two, both of two survivors get one of them.
const LOGS_OF_A_BROKER: usize = 2;
/// A sign of life is given so often within the time after which a broker counts as dead.
const SIGNS: u32 = 3;
/// Longest wait for a change of the metadata before the duties are looked at again: attempts that failed are due again
/// without any change.
const LOOK: Duration = Duration::from_millis(200);
/// The same while a log is opened or closed.
const BUSY_LOOK: Duration = Duration::from_millis(10);
/// A broker that is about to end waits so long until others have its logs.
const GIVE_AWAY_WITHIN: Duration = Duration::from_secs(10);
/// The exit code after a bug: that of an internal error (sysexits.h).
const EXIT_OF_A_BUG: i32 = 70;
/// Step of a wait that may be cut short.
const STEP: Duration = Duration::from_millis(20);

/// What a broker is in its cluster at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    /// Its lease was renewed in time: etcd answers it.
    pub has_lease: bool,
    /// It gives its logs away.
    pub leaves: bool,
    /// The object store does not answer it.
    pub lacks_store: bool,
    /// The logs of others for which it is ready.
    pub stands_by_for: usize,
}

/// The threads of a broker in a cluster.
#[derive(Debug)]
pub struct Running {
    member: Arc<Member>,
    host: Host,
    /// Set once [`Running::stop`] was called.
    stopped: AtomicBool,
    lease: Mutex<Option<Worker>>,
    duties: Mutex<Option<Worker>>,
    /// Keeps the observer.
    _view: Arc<View>,
}

/// A thread that runs until it is told to stop.
#[derive(Debug)]
struct Worker {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Set once a thread of the cluster has ended in a bug.
type Broken = Arc<AtomicBool>;

impl Worker {
    fn start(
        name: &str,
        broken: &Broken,
        run: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> std::io::Result<Worker> {
        let stopping = Arc::new(AtomicBool::new(false));
        let (seen, broken) = (stopping.clone(), broken.clone());
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| run(&seen))).is_err() {
                tracing::error!("a thread of the cluster ended in a bug");
                broken.store(true, Ordering::Release);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Worker { stopping, thread })
    }

    fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        // Its panics are caught.
        let _ = self.thread.join();
    }
}

/// Tells the placement which brokers there are.
#[derive(Debug)]
struct View {
    placement: Arc<Placement>,
}

impl View {
    fn follow(&self, image: &Image) {
        let broker = |(name, record): (&str, &Arc<BrokerRecord>)| {
            let known = Known { listeners: record.listeners.clone(), rack: record.rack.clone() };
            Some((broker_id(name).ok()?, known))
        };
        let mut others: BTreeMap<i32, _> = image.brokers.iter().filter_map(broker).collect();
        others.remove(&self.placement.local());
        self.placement.set_others(others);
        self.placement.set_controller(image.controller.get("").map(|controller| controller.broker));
    }
}

impl Observer for View {
    fn changed(&self, image: &Arc<Image>, delta: &Delta) {
        if !delta.brokers.is_empty() || !delta.controller.is_empty() {
            self.follow(image);
        }
    }
}

/// Logs a failure once, until there is none or another one.
#[derive(Default)]
struct Said(Option<String>);

impl Said {
    fn say(&mut self, outcome: Result<(), MemberError>) {
        let now = outcome.err().map(|error| error.to_string());
        if let Some(error) = &now
            && self.0 != now
        {
            tracing::warn!(error, "the cluster's metadata cannot be used now");
        }
        self.0 = now;
    }
}

impl Running {
    /// Starts the threads.
    pub fn start(
        metadata: &Arc<Metadata>,
        placement: &Arc<Placement>,
        member: Member,
        host: Host,
        moves: Moves,
    ) -> std::io::Result<Running> {
        let view = Arc::new(View { placement: placement.clone() });
        metadata.observe(Arc::downgrade(&view) as Weak<dyn Observer>);
        view.follow(&metadata.image());
        let member = Arc::new(member);
        let broken = Broken::default();
        let lease = {
            let (member, broken_seen) = (member.clone(), broken.clone());
            let interval = member.ttl / SIGNS;
            let mut said = Said::default();
            Worker::start("lease", &broken, move |stopping| {
                while !stopping.load(Ordering::Acquire) {
                    end_if(&broken_seen, &member);
                    let outcome = member.keep_alive();
                    // A lease that is lost is asked for again soon.
                    let wait = if outcome.is_ok() { interval } else { interval.min(LOOK) };
                    said.say(outcome);
                    rest(wait, stopping);
                }
            })?
        };
        let duties = {
            let (member, metadata, mut host) = (member.clone(), metadata.clone(), host.clone());
            let broken_seen = broken.clone();
            let mut said = Said::default();
            let runtime = Handle::current();
            Worker::start("cluster", &broken, move |stopping| {
                // Coordinators load partitions that have moved here in tasks.
                let _runtime = runtime.enter();
                while !stopping.load(Ordering::Acquire) {
                    // What is opened or closed has no change of the metadata to tell of its end.
                    broken_seen.fetch_or(host.is_broken(), Ordering::AcqRel);
                    end_if(&broken_seen, &member);
                    let patience = if host.is_busy() { BUSY_LOOK } else { LOOK };
                    let outcome = metadata.wait(patience).and_then(|()| {
                        member.bring_logs(LOGS_OF_A_BROKER)?;
                        duties(&member, &mut host)
                    });
                    moves.turn();
                    let failed = outcome.is_err();
                    said.say(outcome.map_err(MemberError::from));
                    if failed {
                        rest(LOOK, stopping);
                    }
                }
            })?
        };
        let (lease, duties) = (Mutex::new(Some(lease)), Mutex::new(Some(duties)));
        let stopped = AtomicBool::new(false);
        Ok(Running { member, host, stopped, lease, duties, _view: view })
    }

    /// Whether the lease was renewed in time.
    pub fn has_lease(&self) -> bool {
        self.member.has_lease()
    }

    /// What this broker is in the cluster.
    pub fn roles(&self) -> Roles {
        Roles {
            has_lease: self.member.has_lease(),
            leaves: self.member.is_leaving(),
            lacks_store: self.member.lacks_store(),
            stands_by_for: self.host.stands_by_for(),
        }
    }

    /// Ends the threads, as if the process had been killed. For tests.
    pub fn halt(&self) {
        let (duties, lease) = (self.duties.lock().take(), self.lease.lock().take());
        [duties, lease].into_iter().flatten().for_each(Worker::stop);
    }

    /// Gives all logs to other brokers, closes those that nobody takes, and leaves the cluster. Blocks.
    pub fn stop(&self) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.member.announce_leaving() {
            Ok(_) => {
                let until = Instant::now() + GIVE_AWAY_WITHIN;
                while self.member.gives_away() && Instant::now() < until {
                    std::thread::sleep(STEP);
                }
            }
            Err(error) => tracing::warn!(%error, "the logs cannot be given away before they are closed"),
        }
        let duties = self.duties.lock().take();
        if let Some(duties) = duties {
            duties.stop();
        }
        // The lease goes on until then: nobody has to take the logs over by force.
        self.host.clone().close_all();
        let lease = self.lease.lock().take();
        if let Some(lease) = lease {
            lease.stop();
        }
        if let Err(error) = self.member.leave() {
            tracing::warn!(%error, "the broker counts as alive until its lease is over");
        }
    }
}

/// Ends the process after a bug in a thread of the cluster: others take its logs at once, and whoever watches the process starts
/// it again.
fn end_if(broken: &Broken, member: &Member) {
    if broken.load(Ordering::Acquire) {
        let left = member.leave();
        tracing::error!(?left, "the server ends after a bug: others take its logs");
        std::process::exit(EXIT_OF_A_BUG);
    }
}

/// One round of what a broker does for the cluster, besides its signs of life. Blocks.
pub fn duties(member: &Member, host: &mut Host) -> Result<(), MetaError> {
    // Before anybody is asked who may not answer.
    if !member.has_lease() {
        host.prove_ownership();
        host.close_fenced();
    } else {
        host.note_hears();
    }
    // What fails is tried again with the next sign of life.
    drop(member.rejoin());
    member.control()?;
    if host.is_unfit() && !member.is_leaving() && member.announce_leaving()? {
        tracing::error!(
            "the disk of this broker takes no log, or is full: other brokers get them until it is started again"
        );
    }
    host.tidy();
    member.serve(host)
}

/// Waits, unless the broker stops.
fn rest(wait: Duration, stopping: &AtomicBool) {
    let until = Instant::now() + wait;
    while Instant::now() < until && !stopping.load(Ordering::Acquire) {
        std::thread::sleep(STEP.min(wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_in_a_bug_is_noticed() {
        let broken = Broken::default();
        let well =
            Worker::start("well", &broken, |stopping| while !stopping.load(Ordering::Acquire) {}).unwrap();
        let ill = Worker::start("ill", &broken, |_| panic!("a bug")).unwrap();
        while !broken.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        well.stop();
        ill.stop();
    }
}
