//! The replicas of partitions, as clients are told of them, and whether there are enough.

use std::collections::BTreeSet;
use std::sync::Arc;

use storage::Durability;
use uuid::Uuid;
use wire::ErrorCode;

use super::Broker;
use crate::cluster::replicas::{ByLog, Replicas, others};
use crate::config::resource_setting::Overrides;
use crate::image::records::TopicRecord;
use crate::partition::Partition;
use crate::partition::log::PartitionLog;
use crate::settings::topic::{DISKLESS, TopicConfig};
use crate::topics::Topic;

/// The replicas of the partitions of a topic, at one moment.
pub(crate) struct TopicReplicas {
    /// Those of each log, and the topic's record. `None` for a topic without copies.
    of_logs: Option<(Arc<ByLog>, Arc<TopicRecord>)>,
}

impl TopicReplicas {
    /// The replicas of a partition: its leader alone, if the topic has no copies. A partition that is lost is offline.
    pub fn of(&self, partition: &Partition) -> Replicas {
        let leader = partition.leader().node;
        let at = usize::try_from(partition.index).unwrap_or(usize::MAX);
        let copied = self.of_logs.as_ref().and_then(|(all, record)| {
            let assigned = record.assigned.get(&partition.index).map_or(&[][..], Vec::as_slice);
            Some(all.get(record.logs.get(at)?)?.of_partition(leader, assigned))
        });
        let mut replicas = copied.unwrap_or_else(|| Replicas::alone(leader));
        if partition.is_lost() {
            replicas.offline = vec![leader];
        }
        replicas
    }

    /// Whether so many replicas of each partition are in sync, or all that are alive, if those are fewer. Looks at each log once.
    pub fn are_in_sync(&self, min: usize) -> bool {
        let Some((all, record)) = &self.of_logs else { return true };
        let logs: BTreeSet<&Uuid> = record.logs.iter().collect();
        let mut of_logs = logs.into_iter().filter_map(|log| all.get(log));
        of_logs.all(|of| of.in_sync.len() >= min.min(of.all.len() - of.offline.len()))
    }
}

impl Broker {
    /// The replicas of the partitions of a topic.
    pub(crate) fn replicas_of(&self, topic: &Topic) -> TopicReplicas {
        let logs = || (self.replicas.at(&self.metadata.image()), topic.record());
        TopicReplicas { of_logs: topic.config().is_replicated().then(logs) }
    }

    /// The number of replicas that a new topic of a cluster has, with these settings.
    pub(crate) fn replicas_of_new(&self, overrides: &Overrides) -> usize {
        let diskless = overrides
            .get(DISKLESS)
            .map_or(self.config.diskless_default, |value| value.trim().eq_ignore_ascii_case("true"));
        let brokers = usize::try_from(self.placement.count()).unwrap_or(1);
        if diskless { 1 } else { brokers.min(others(&self.config) + 1) }
    }

    /// The number of brokers whose copies of a log count, its owner among them.
    pub(crate) fn in_sync(&self, log: Uuid) -> usize {
        self.replicas.at(&self.metadata.image()).get(&log).map_or(1, |replicas| replicas.in_sync.len())
    }
}

/// What an `acks=all` needs of a log: so many replicas in sync.
pub(crate) struct InSync {
    broker: Arc<Broker>,
    log: Uuid,
    min: usize,
}

impl InSync {
    /// What a batch for `log` needs, if that is anything: its topic has copies and `min.insync.replicas`.
    ///
    /// # Errors
    /// Too few replicas are in sync.
    pub fn needed(
        broker: &Arc<Broker>,
        config: &TopicConfig,
        log: &dyn PartitionLog,
        durability: Option<Durability>,
    ) -> Result<Option<InSync>, ErrorCode> {
        if durability != Some(Durability::Synced) || config.in_sync_min <= 1 {
            return Ok(None);
        }
        let needed = InSync { broker: broker.clone(), log: log.log_id(), min: config.in_sync_min };
        if needed.is_met() { Ok(Some(needed)) } else { Err(ErrorCode::NotEnoughReplicas) }
    }

    /// Whether there are enough.
    pub fn is_met(&self) -> bool {
        self.broker.in_sync(self.log) >= self.min
    }
}
