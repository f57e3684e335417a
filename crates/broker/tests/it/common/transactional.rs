//! A transactional producer as clients are one, and what consumers read of its records.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use broker::{Broker, Connection};
use model::{Compression, Timestamp};
use wire::messages as m;
use wire::records::{BatchBuilder, records};
use wire::{Bytes, Text};

use super::{call, connect, fetch_of, fetch_request};

const NONE: i16 = 0;
/// Versions of clients that announce their partitions, and of those that do not.
pub const V1: Version = Version { produce: 11, end: 4, commit: 4 };
pub const V2: Version = Version { produce: 12, end: 5, commit: 5 };

#[derive(Clone, Copy, Debug)]
pub struct Version {
    pub produce: i16,
    pub end: i16,
    pub commit: i16,
}

/// A transactional producer, with its own connection.
pub struct Producer {
    pub connection: Connection,
    pub version: Version,
    pub transactional_id: &'static str,
    pub id: i64,
    pub epoch: i16,
    /// The next sequence in each partition.
    pub sequences: BTreeMap<i32, i32>,
}

impl Producer {
    pub async fn new(broker: &Arc<Broker>, transactional_id: &'static str, version: Version) -> Producer {
        let connection = connect(broker);
        let mut producer =
            Producer { connection, version, transactional_id, id: -1, epoch: -1, sequences: BTreeMap::new() };
        assert_eq!(producer.initialize(60_000).await, NONE);
        producer
    }

    pub async fn initialize(&mut self, timeout_ms: i32) -> i16 {
        let request = m::InitProducerIdRequest {
            transactional_id: Some(Text::from_static(self.transactional_id)),
            transaction_timeout_ms: timeout_ms,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        };
        let answer: m::InitProducerIdResponse = call(&mut self.connection, 5, &request).await;
        (self.id, self.epoch) = (answer.producer_id, answer.producer_epoch);
        self.sequences.clear();
        answer.error_code
    }

    pub async fn add(&mut self, topic: &'static str, partition: i32) -> i16 {
        let topic = m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
            name: Text::from_static(topic),
            partitions: vec![partition],
        };
        let request = m::AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: Text::from_static(self.transactional_id),
            v3_and_below_producer_id: self.id,
            v3_and_below_producer_epoch: self.epoch,
            v3_and_below_topics: vec![topic],
            ..Default::default()
        };
        let answer: m::AddPartitionsToTxnResponse = call(&mut self.connection, 3, &request).await;
        answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    }

    /// Sends without announcing the partition.
    pub async fn send_alone(&mut self, topic: &'static str, partition: i32, values: &[&str]) -> i16 {
        let batch = self.batch(partition, values);
        let data = m::produce_request::PartitionProduceData { index: partition, records: Some(batch.into()) };
        let topic = m::produce_request::TopicProduceData {
            name: Text::from_static(topic),
            partition_data: vec![data],
            ..Default::default()
        };
        let request = m::ProduceRequest {
            acks: -1,
            timeout_ms: 5000,
            topic_data: vec![topic],
            transactional_id: Some(Text::from_static(self.transactional_id)),
        };
        let answer: m::ProduceResponse = call(&mut self.connection, self.version.produce, &request).await;
        let error = answer.responses[0].partition_responses[0].error_code;
        if error == NONE {
            *self.sequences.entry(partition).or_default() += i32::try_from(values.len()).unwrap();
        }
        error
    }

    pub fn batch(&self, partition: i32, values: &[&str]) -> Bytes {
        let sequence = self.sequences.get(&partition).copied().unwrap_or(0);
        let mut builder =
            BatchBuilder::new(Compression::None).producer(self.id, self.epoch, sequence).transactional();
        for value in values {
            builder.push(Timestamp(now_ms()), Some(b"key"), Some(value.as_bytes()));
        }
        builder.finish()
    }

    pub async fn send(&mut self, topic: &'static str, partition: i32, values: &[&str]) -> i16 {
        if self.version.produce < V2.produce {
            let added = self.add(topic, partition).await;
            if added != NONE {
                return added;
            }
        }
        self.send_alone(topic, partition, values).await
    }

    pub async fn end(&mut self, committed: bool) -> i16 {
        let request = m::EndTxnRequest {
            transactional_id: Text::from_static(self.transactional_id),
            producer_id: self.id,
            producer_epoch: self.epoch,
            committed,
        };
        let answer: m::EndTxnResponse = call(&mut self.connection, self.version.end, &request).await;
        if answer.error_code == NONE && self.version.end >= V2.end {
            assert_eq!((answer.producer_id, answer.producer_epoch), (self.id, self.epoch + 1));
            self.epoch = answer.producer_epoch;
            self.sequences.clear();
        }
        answer.error_code
    }

    pub async fn commit_offset(&mut self, group: &'static str, topic: &'static str, offset: i64) -> i16 {
        if self.version.commit < V2.commit {
            let added = self.add_offsets(group).await;
            if added != NONE {
                return added;
            }
        }
        self.commit_alone(group, topic, offset).await
    }

    /// Announces a group.
    pub async fn add_offsets(&mut self, group: &'static str) -> i16 {
        let request = m::AddOffsetsToTxnRequest {
            transactional_id: Text::from_static(self.transactional_id),
            producer_id: self.id,
            producer_epoch: self.epoch,
            group_id: Text::from_static(group),
        };
        let answer: m::AddOffsetsToTxnResponse = call(&mut self.connection, 4, &request).await;
        answer.error_code
    }

    /// Commits an offset without announcing the group.
    pub async fn commit_alone(&mut self, group: &'static str, topic: &'static str, offset: i64) -> i16 {
        self.commit_all(group, topic, 1, offset).await
    }

    /// The same for so many partitions.
    pub async fn commit_all(
        &mut self,
        group: &'static str,
        topic: &'static str,
        partitions: i32,
        offset: i64,
    ) -> i16 {
        let partition = |partition_index| m::txn_offset_commit_request::TxnOffsetCommitRequestPartition {
            partition_index,
            committed_offset: offset,
            ..Default::default()
        };
        let request = m::TxnOffsetCommitRequest {
            transactional_id: Text::from_static(self.transactional_id),
            group_id: Text::from_static(group),
            producer_id: self.id,
            producer_epoch: self.epoch,
            generation_id_or_member_epoch: -1,
            topics: vec![m::txn_offset_commit_request::TxnOffsetCommitRequestTopic {
                name: Text::from_static(topic),
                partitions: (0..partitions).map(partition).collect(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: m::TxnOffsetCommitResponse =
            call(&mut self.connection, self.version.commit, &request).await;
        answer.topics[0].partitions[0].error_code
    }
}

pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// What a consumer has of a partition.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub values: Vec<String>,
    pub last_stable_offset: i64,
    pub high_watermark: i64,
}

/// Reads a partition from `offset` to its end as clients do: those who read committed drop what was aborted.
pub async fn read(
    connection: &mut Connection,
    topic: &'static str,
    partition: i32,
    offset: i64,
    committed: bool,
) -> Seen {
    let mut at = offset;
    let mut values = Vec::new();
    loop {
        let mut request = fetch_request((0, -1), 0, vec![fetch_of(topic, partition, at)]);
        request.isolation_level = i8::from(committed);
        let answer: m::FetchResponse = call(connection, 12, &request).await;
        let data = &answer.responses[0].partitions[0];
        assert_eq!(data.error_code, NONE);
        let mut aborted: Vec<_> = data.aborted_transactions.clone().unwrap_or_default();
        aborted.sort_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
        let mut aborting = HashSet::new();
        let mut bytes = data.records.as_ref().unwrap().to_bytes();
        let before = at;
        while !bytes.is_empty() {
            let (header, all) = records(&bytes, 1 << 20).unwrap();
            bytes = bytes.slice(header.total_bytes..);
            at = header.next_offset().0;
            while let Some(next) = aborted.pop_if(|next| next.first_offset < header.next_offset().0) {
                aborting.insert(next.producer_id);
            }
            if header.is_control() {
                aborting.remove(&header.producer_id);
            } else if !header.is_transactional() || !aborting.contains(&header.producer_id) {
                values.extend(all.map(|r| String::from_utf8(r.unwrap().value.unwrap().to_vec()).unwrap()));
            }
        }
        if at == before {
            let (last_stable_offset, high_watermark) = (data.last_stable_offset, data.high_watermark);
            return Seen { values, last_stable_offset, high_watermark };
        }
    }
}
