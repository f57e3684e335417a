//! What clients have sent to a topic and got from it, since the server started.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted. Kafka has a meter for each, for every topic and for all of them (`BrokerTopicMetrics`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Bytes of appended batches, compressed as they came.
    BytesIn,
    /// Records in these batches.
    MessagesIn,
    /// Bytes of records in answers to consumers.
    BytesOut,
    /// Bytes of batches that were refused as too large.
    BytesRejected,
    /// Partitions in produce requests.
    ProduceRequests,
    /// Those that were refused.
    FailedProduceRequests,
    /// Partitions that fetches looked at.
    FetchRequests,
    /// Those that were refused.
    FailedFetchRequests,
}

impl Count {
    /// All of them, in the order of their places in a [`Traffic`].
    pub const ALL: [Count; 8] = [
        Count::BytesIn,
        Count::MessagesIn,
        Count::BytesOut,
        Count::BytesRejected,
        Count::ProduceRequests,
        Count::FailedProduceRequests,
        Count::FetchRequests,
        Count::FailedFetchRequests,
    ];
}

/// The counts of a topic, or of all topics together.
#[derive(Debug, Default)]
pub struct Traffic {
    counts: [AtomicU64; Count::ALL.len()],
    all: Option<Arc<Traffic>>,
}

impl Traffic {
    /// The counts of a new topic. What is added to them is also added to `all`, which outlives the topic.
    pub fn within(all: &Arc<Traffic>) -> Arc<Traffic> {
        Arc::new(Traffic { counts: Default::default(), all: Some(all.clone()) })
    }

    /// Adds to a count.
    pub fn add(&self, what: Count, number: u64) {
        self.counts[what as usize].fetch_add(number, Ordering::Relaxed);
        if let Some(all) = &self.all {
            all.add(what, number);
        }
    }

    /// The value of a count.
    pub fn get(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_topic_counts_is_counted_for_all_as_well() {
        let all = Arc::new(Traffic::default());
        let topics = [Traffic::within(&all), Traffic::within(&all)];
        for (number, what) in (1..).zip(Count::ALL) {
            topics[0].add(what, number);
            topics[1].add(what, 10);
            assert_eq!((topics[0].get(what), topics[1].get(what), all.get(what)), (number, 10, number + 10));
        }
    }
}
