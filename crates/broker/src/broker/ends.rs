//! The ends of partitions that other brokers lead, for the metrics about groups: whoever coordinates a group knows what it has
//! committed, and the leaders know what there is. They are asked while somebody looks at the metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use model::StreamId;
use parking_lot::Mutex;
use wire::Text;
use wire::messages as m;
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};

use super::Broker;
use crate::groups::Group;

/// The leaders are asked so often, ...
pub(super) const ASKED_EVERY_MS: i64 = 5000;
/// ... for so long after the last look at the metrics.
const LOOKED_AT_MS: i64 = 300_000;
/// The first version of ListOffsets that all versions of this server have, and that has what is needed.
const LIST_OFFSETS: i16 = 5;
/// The timestamp that asks for the end.
const LATEST: i64 = -1;

/// The ends that leaders have told.
#[derive(Debug)]
pub struct Ends {
    told: Mutex<HashMap<StreamId, i64>>,
    /// When the metrics were looked at last.
    looked_at_ms: AtomicI64,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends { told: Mutex::default(), looked_at_ms: AtomicI64::new(i64::MIN) }
    }
}

impl Ends {
    /// The end of each partition that is known, for whoever looks at the metrics.
    pub fn look(&self, now_ms: i64) -> HashMap<StreamId, i64> {
        self.looked_at_ms.store(now_ms, Ordering::Relaxed);
        self.told.lock().clone()
    }
}

impl Broker {
    /// Asks the leaders of partitions for the ends of those that groups here have committed offsets of. Blocks.
    pub(super) fn ask_for_ends(self: &Arc<Self>) {
        let looked_at_ms = self.ends.looked_at_ms.load(Ordering::Relaxed);
        let is_wanted = self.now_ms() < looked_at_ms.saturating_add(LOOKED_AT_MS);
        let told = if is_wanted { self.ends_elsewhere() } else { HashMap::new() };
        *self.ends.told.lock() = told;
    }

    fn ends_elsewhere(&self) -> HashMap<StreamId, i64> {
        let mut wanted = BTreeMap::<i32, BTreeMap<Arc<str>, BTreeMap<i32, StreamId>>>::new();
        // More are not shown either.
        let mut left = usize::try_from(self.config.metrics_series_max).unwrap_or(0);
        for entry in self.coordinator.all() {
            entry.with(|group: &Group| {
                for (key, _) in group.offsets() {
                    let topic = self.topics.find(&key.topic);
                    let Some(partition) = topic.and_then(|topic| topic.partition(key.partition)) else {
                        continue;
                    };
                    let leader = partition.leader().node;
                    if leader == self.config.node_id || leader < 0 || left == 0 {
                        continue;
                    }
                    let of_leader = wanted.entry(leader).or_default();
                    let of_leader = of_leader.entry(Arc::<str>::clone(&key.topic)).or_default();
                    if of_leader.insert(key.partition, partition.stream_id).is_none() {
                        left -= 1;
                    }
                }
            });
        }
        let mut told = HashMap::new();
        for (leader, topics) in wanted {
            let asked = |partition_index: &i32| ListOffsetsPartition {
                partition_index: *partition_index,
                timestamp: LATEST,
                ..ListOffsetsPartition::default()
            };
            let of_topic = |(name, partitions): (&Arc<str>, &BTreeMap<i32, StreamId>)| ListOffsetsTopic {
                name: Text::copied(name),
                partitions: partitions.keys().map(asked).collect(),
            };
            let request = m::ListOffsetsRequest {
                replica_id: -1,
                topics: topics.iter().map(of_topic).collect(),
                ..m::ListOffsetsRequest::default()
            };
            let answer = self.peers.ask_blocking(leader, LIST_OFFSETS, &request);
            let answer: m::ListOffsetsResponse = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::debug!(broker = leader, %error, "another broker did not say where partitions end");
                    continue;
                }
            };
            for topic in &answer.topics {
                let Some(asked) = topics.get(&*topic.name) else { continue };
                let well = topic.partitions.iter().filter(|of| of.error_code == 0);
                told.extend(well.filter_map(|of| Some((*asked.get(&of.partition_index)?, of.offset))));
            }
        }
        told
    }
}
