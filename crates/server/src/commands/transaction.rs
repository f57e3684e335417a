//! `mainstem transaction`: list, describe, producers, find-hanging, abort.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use client::{Coordinated, check};
use serde_json::json;
use wire::Text;
use wire::messages::describe_producers_request::TopicRequest;
use wire::messages::describe_producers_response::ProducerState;
use wire::messages::describe_transactions_response::TransactionState;
use wire::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use wire::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, InitProducerIdRequest, ListTransactionsRequest,
    WriteTxnMarkersRequest,
};

use super::cluster::{Cluster, Partition, by_leader, retried};
use super::{Table, connect, show};
use crate::arguments::{Bootstrap, Output, TransactionVerb, now_ms};

/// A filter of ListTransactions that takes all durations.
const ANY_DURATION: i64 = -1;
/// The state of an open transaction.
const ONGOING: &str = "Ongoing";
/// The time-out of the producer that fences another one. It begins no transaction.
const FENCE_TIMEOUT_MS: i32 = 1000;

/// Runs the command against a server.
pub fn transaction(bootstrap: &Bootstrap, verb: TransactionVerb) -> anyhow::Result<()> {
    let (mut cluster, output) = (connect(bootstrap)?, bootstrap.shown.output);
    match verb {
        TransactionVerb::List { states, producer_ids, open_for, ids } => {
            let asked = ListTransactionsRequest {
                state_filters: states.into_iter().map(Text::from).collect(),
                producer_id_filters: producer_ids,
                duration_filter: open_for.map_or(ANY_DURATION, |seconds| i64::from(seconds) * 1000),
                transactional_id_pattern: ids.map(Text::from),
            };
            let mut table = Table::new(&["TRANSACTIONAL ID", "COORDINATOR", "PRODUCER", "STATE"]);
            for (id, found) in list(&mut cluster, &asked)? {
                table.row([id, found.coordinator.to_string(), found.producer.to_string(), found.state]);
            }
            show(output, || table.to_text(), || table.to_json())
        }
        TransactionVerb::Describe { id } => describe(&mut cluster, &id, output),
        TransactionVerb::Producers { topic, partition } => {
            let mut table =
                Table::new(&["PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST RECORD AT", "OPEN SINCE OFFSET"]);
            for of in producers(&mut cluster, &topic, Some(partition))?.remove(&partition).unwrap_or_default()
            {
                table.row([
                    of.producer_id.to_string(),
                    of.producer_epoch.to_string(),
                    of.last_sequence.to_string(),
                    of.last_timestamp.to_string(),
                    or_dash(of.current_txn_start_offset),
                ]);
            }
            show(output, || table.to_text(), || table.to_json())
        }
        TransactionVerb::FindHanging { topic, open_for } => {
            find_hanging(&mut cluster, topic, open_for, output)
        }
        TransactionVerb::Abort { id: Some(id), .. } => {
            fence(&mut cluster, &id)?;
            show(output, || format!("aborted the transaction of {id}\n"), || json!({"aborted": id}))
        }
        TransactionVerb::Abort { topic, partition, start_offset, .. } => {
            let topic = topic.context("--topic is missing")?;
            let (partition, start) =
                partition.zip(start_offset).context("--partition or --start-offset is missing")?;
            let producer = abort_hanging(&mut cluster, &topic, partition, start)?;
            let said = || format!("aborted the transaction of producer {producer} in {topic}-{partition}\n");
            show(output, said, || json!({"topic": topic, "partition": partition, "producer": producer}))
        }
    }
}

fn or_dash(offset: i64) -> String {
    if offset < 0 { "-".into() } else { offset.to_string() }
}

/// What a coordinator knows of a transactional id.
struct Listed {
    coordinator: i32,
    producer: i64,
    state: String,
}

/// Asks every broker for the transactional ids that it coordinates.
fn list(cluster: &mut Cluster, asked: &ListTransactionsRequest) -> anyhow::Result<BTreeMap<String, Listed>> {
    let mut found = BTreeMap::new();
    for broker in cluster.brokers() {
        let answer = retried(|| {
            let answer = cluster.node(broker)?.call(asked)?;
            check(answer.error_code, None)?;
            Ok(answer)
        })?;
        if let Some(unknown) = answer.unknown_state_filters.first() {
            bail!("there is no state {unknown}");
        }
        for of in answer.transaction_states {
            let listed = Listed {
                coordinator: broker,
                producer: of.producer_id,
                state: of.transaction_state.to_string(),
            };
            found.insert(of.transactional_id.to_string(), listed);
        }
    }
    Ok(found)
}

fn described(cluster: &mut Cluster, id: &str) -> anyhow::Result<TransactionState> {
    let request = DescribeTransactionsRequest { transactional_ids: vec![Text::copied(id)] };
    let answer = cluster.ask_coordinator_of((Coordinated::TransactionalId, id), &request, |answer| {
        answer.transaction_states.iter().try_for_each(|state| check(state.error_code, None))
    })?;
    answer.transaction_states.into_iter().next().context("the server says nothing about it")
}

fn describe(cluster: &mut Cluster, id: &str, output: Output) -> anyhow::Result<()> {
    let found = described(cluster, id)?;
    let mut partitions = Table::new(&["TOPIC", "PARTITION"]);
    for topic in &found.topics {
        for index in &topic.partitions {
            partitions.row([topic.topic.to_string(), index.to_string()]);
        }
    }
    let text = || {
        let mut text = format!(
            "{id}: {}, producer {} epoch {}, time-out {} ms",
            found.transaction_state, found.producer_id, found.producer_epoch, found.transaction_timeout_ms
        );
        if found.transaction_start_time_ms >= 0 {
            text.push_str(&format!(
                ", open for {} s",
                (now_ms() - found.transaction_start_time_ms).max(0) / 1000
            ));
        }
        text.push('\n');
        if !partitions.is_empty() {
            text.push_str(&format!("\n{}", partitions.to_text()));
        }
        text
    };
    let json = || {
        json!({
            "transactional_id": id, "state": found.transaction_state.as_str(), "producer": found.producer_id,
            "epoch": found.producer_epoch, "timeout_ms": found.transaction_timeout_ms,
            "start_ms": (found.transaction_start_time_ms >= 0).then_some(found.transaction_start_time_ms),
            "partitions": partitions.to_json(),
        })
    };
    show(output, text, json)
}

/// The producers of a topic's partitions, of all or of one.
fn producers(
    cluster: &mut Cluster,
    topic: &str,
    only: Option<i32>,
) -> anyhow::Result<BTreeMap<i32, Vec<ProducerState>>> {
    let mut partitions: Vec<Partition> = cluster.topic(topic, false)?.partitions;
    let count = partitions.len();
    partitions.retain(|of| only.is_none_or(|only| only == of.index));
    if let (Some(unknown), true) = (only, partitions.is_empty()) {
        bail!("{topic} has no partition {unknown}: it has {count}");
    }
    let mut found = BTreeMap::new();
    for (leader, partition_indexes) in by_leader(&partitions) {
        let request = DescribeProducersRequest {
            topics: vec![TopicRequest { name: Text::copied(topic), partition_indexes }],
        };
        let answer = cluster.node(leader)?.call(&request)?;
        for of in answer.topics.into_iter().flat_map(|topic| topic.partitions) {
            check(of.error_code, of.error_message.as_ref())?;
            found.insert(of.partition_index, of.active_producers);
        }
    }
    Ok(found)
}

/// A transaction is hanging if it is open in a partition, and the coordinator of its producer knows nothing of it there (KIP-664).
fn find_hanging(
    cluster: &mut Cluster,
    topic: Option<String>,
    open_for: u32,
    output: Output,
) -> anyhow::Result<()> {
    let topics = match topic {
        Some(topic) => vec![topic],
        None => cluster.topics()?.into_iter().map(|topic| topic.name).collect(),
    };
    let before_ms = now_ms() - i64::from(open_for) * 1000;
    let mut open = Vec::new();
    for topic in topics {
        for (partition, found) in producers(cluster, &topic, None)? {
            let old = found
                .into_iter()
                .filter(|of| of.current_txn_start_offset >= 0 && of.last_timestamp <= before_ms);
            open.extend(old.map(|of| (topic.clone(), partition, of)));
        }
    }
    let known = if open.is_empty() {
        BTreeSet::new()
    } else {
        known(cluster, open.iter().map(|(.., of)| of.producer_id))?
    };
    let mut table =
        Table::new(&["TOPIC", "PARTITION", "PRODUCER", "EPOCH", "OPEN SINCE OFFSET", "LAST RECORD AT"]);
    for (topic, partition, of) in open {
        if known.contains(&(of.producer_id, topic.clone(), partition)) {
            continue;
        }
        table.row([
            topic,
            partition.to_string(),
            of.producer_id.to_string(),
            of.producer_epoch.to_string(),
            of.current_txn_start_offset.to_string(),
            of.last_timestamp.to_string(),
        ]);
    }
    let text = || if table.is_empty() { "no transaction is hanging\n".into() } else { table.to_text() };
    show(output, text, || table.to_json())
}

/// The partitions that coordinators know to be in a transaction of these producers.
fn known(
    cluster: &mut Cluster,
    producers: impl Iterator<Item = i64>,
) -> anyhow::Result<BTreeSet<(i64, String, i32)>> {
    let producers: BTreeSet<i64> = producers.collect();
    let asked = ListTransactionsRequest {
        producer_id_filters: producers.into_iter().collect(),
        duration_filter: ANY_DURATION,
        ..ListTransactionsRequest::default()
    };
    let mut known = BTreeSet::new();
    for id in list(cluster, &asked)?.into_keys() {
        let found = described(cluster, &id)?;
        for topic in found.topics {
            let of_topic =
                topic.partitions.into_iter().map(|index| (found.producer_id, topic.topic.to_string(), index));
            known.extend(of_topic);
        }
    }
    Ok(known)
}

/// Ends the open transaction of an id by fencing its producer, as `Admin.fenceProducers` does.
fn fence(cluster: &mut Cluster, id: &str) -> anyhow::Result<()> {
    let state = described(cluster, id)?.transaction_state;
    if state.as_str() != ONGOING {
        bail!("{id} has no open transaction: it is {state}");
    }
    let request = InitProducerIdRequest {
        transactional_id: Some(Text::copied(id)),
        transaction_timeout_ms: FENCE_TIMEOUT_MS,
        producer_id: -1,
        producer_epoch: -1,
        ..InitProducerIdRequest::default()
    };
    cluster.ask_coordinator_of((Coordinated::TransactionalId, id), &request, |answer| {
        check(answer.error_code, None)
    })?;
    Ok(())
}

/// Ends a transaction in one partition by a marker of its own, for one that no coordinator will end. Returns the producer.
fn abort_hanging(cluster: &mut Cluster, topic: &str, partition: i32, start: i64) -> anyhow::Result<i64> {
    let found = producers(cluster, topic, Some(partition))?.remove(&partition).unwrap_or_default();
    let open = found.iter().find(|of| of.current_txn_start_offset == start);
    let open =
        open.with_context(|| format!("no transaction in {topic}-{partition} begins at offset {start}"))?;
    let producer_epoch = i16::try_from(open.producer_epoch).context("the server's epoch is none")?;
    let request = WriteTxnMarkersRequest {
        markers: vec![WritableTxnMarker {
            producer_id: open.producer_id,
            producer_epoch,
            transaction_result: false,
            topics: vec![WritableTxnMarkerTopic {
                name: Text::copied(topic),
                partition_indexes: vec![partition],
            }],
            // A coordinator that wrote nothing yet has none.
            coordinator_epoch: open.coordinator_epoch.max(0),
            ..WritableTxnMarker::default()
        }],
    };
    let leader = cluster.topic(topic, false)?.partitions.into_iter().find(|of| of.index == partition);
    let leader = leader.context("the partition is gone")?.leader;
    let answer = cluster.node(leader)?.call(&request)?;
    for of in answer.markers.iter().flat_map(|marker| &marker.topics).flat_map(|topic| &topic.partitions) {
        check(of.error_code, None)?;
    }
    Ok(open.producer_id)
}
