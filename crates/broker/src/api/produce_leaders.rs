//! Produce requests for partitions that are about to have another leader: they wait a moment, so that the answer says who leads.

use std::sync::Arc;
use std::time::Instant;

use wire::ErrorCode;
use wire::messages::ProduceRequest;

use crate::broker::Broker;
use crate::partition::moving::PASSING;
use crate::topics::Topic;

/// How long one request may wait. On a standalone server it does not.
pub struct Patience {
    until: Option<Instant>,
    /// Bytes of its records.
    bytes: usize,
}

impl Patience {
    pub fn new(broker: &Broker, request: &ProduceRequest) -> Patience {
        if !broker.topics.may_move() {
            return Patience { until: None, bytes: 0 };
        }
        let parts = request.topic_data.iter().flat_map(|topic| &topic.partition_data);
        let bytes = parts.filter_map(|part| part.records.as_ref()).map(|records| records.len()).sum();
        Patience { until: Some(Instant::now() + PASSING), bytes }
    }

    /// Waits for all partitions of `request`, before anything is asked on its behalf. `topics` are those of its parts.
    pub async fn begin(
        &self,
        broker: &Broker,
        request: &ProduceRequest,
        topics: &[Result<Arc<Topic>, ErrorCode>],
    ) {
        if self.until.is_none() {
            return;
        }
        let mut passing = Vec::new();
        for (topic, data) in topics.iter().zip(&request.topic_data) {
            let Ok(topic) = topic else { continue };
            let passes = |index: &i32| broker.topics.passes(topic, *index).is_some();
            let indexes = data.partition_data.iter().map(|part| part.index).filter(passes);
            passing.extend(indexes.map(|index| (topic.clone(), index)));
        }
        self.settle(broker, &passing).await;
    }

    /// Waits for `passing`.
    pub async fn settle(&self, broker: &Broker, passing: &[(Arc<Topic>, i32)]) {
        if let Some(until) = self.until.filter(|_| !passing.is_empty()) {
            Box::pin(broker.topics.settle(passing, self.bytes, until)).await;
        }
    }
}
