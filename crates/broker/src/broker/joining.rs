//! How a broker lives in a cluster, and leaves it.

use std::sync::Arc;

use objects::WatchedBucket;
use storage::copies::Copies;
use tokio::runtime::Handle;
use uuid::Uuid;

use super::{Broker, Membership, OpenError};
use crate::cluster::Member;
use crate::cluster::copies::PeerDisks;
use crate::cluster::host::{Host, Parts};
use crate::cluster::ownership::Process;
use crate::cluster::reassign::{Moves, PeerLeaders};
use crate::cluster::run::{Roles, Running};
use crate::cluster::threads::{SystemThreads, Threads};
use crate::image::records::BrokerRecord;
use crate::logs::Opening;

impl Broker {
    /// Begins to live in the cluster.
    pub(super) fn join(
        &self,
        membership: Membership,
        opening: Opening,
        bucket: Arc<WatchedBucket>,
        copies: Arc<Copies>,
    ) -> Result<(), OpenError> {
        let Membership { listeners, inter_broker: (listener, remote), session, directories, .. } = membership;
        self.peers.reach_others(&self.placement, listener, remote);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let rack = self.config.rack.get().map(str::to_owned);
        let record = BrokerRecord {
            incarnation: Uuid::new_v4(),
            listeners,
            rack,
            version,
            leaving: false,
            without_store: false,
            low_on_space: false,
            disk: Some(Uuid::from_u128(copies.disk_id())),
        };
        let process = Process { broker: self.config.node_id, incarnation: record.incarnation };
        let threads = Arc::new(SystemThreads::new(Handle::current()));
        let clock = threads.clone();
        let clock = Box::new(move || clock.now());
        let member = Member::new(self.metadata.clone(), self.config.node_id, record, session, clock);
        let moves = Moves {
            topics: self.topics.clone(),
            leaders: Arc::new(PeerLeaders {
                local: self.config.node_id,
                peers: self.peers.clone(),
                runtime: Handle::current(),
            }),
            local: self.config.node_id,
            threads: threads.clone(),
            clock: self.clock.clone(),
            busy: Arc::default(),
            sealed: Arc::default(),
            turns: Arc::default(),
        };
        let host = Host::new(Parts {
            logs: self.logs.clone(),
            topics: self.topics.clone(),
            peers: self.peers.clone(),
            opening,
            bucket,
            directories,
            threads,
            metadata: self.metadata.clone(),
            process,
            disks: Arc::new(PeerDisks {
                local: copies.clone(),
                metadata: self.metadata.clone(),
                peers: self.peers.clone(),
            }),
            copies,
        });
        let running = Running::start(&self.metadata, &self.placement, member, host, moves)?;
        *self.running.lock() = Some(Arc::new(running));
        Ok(())
    }

    /// Ends every sign of life and all duties in the cluster, and nothing else. For tests.
    #[doc(hidden)]
    pub fn halt(&self) {
        let running = self.running.lock().take();
        running.iter().for_each(|running| running.halt());
    }

    /// Gives all logs to other brokers of the cluster. Clients find those while this broker still answers. Does nothing
    /// without a cluster. Blocks.
    pub fn leave(&self) {
        let running = self.running.lock().clone();
        running.iter().for_each(|running| running.stop());
    }

    /// Whether no other broker can have taken this one's logs, because its lease was renewed in time. True without a cluster.
    pub(crate) fn has_lease(&self) -> bool {
        !self.logs.are_moving() || self.running.lock().as_ref().is_some_and(|running| running.has_lease())
    }

    /// What this broker is in its cluster. `None` without one.
    pub(crate) fn roles(&self) -> Option<Roles> {
        self.running.lock().clone().map(|running| running.roles())
    }
}
