//! AlterPartitionReassignments and ListPartitionReassignments (KIP-455). A reassignment moves a partition to the first of the
//! brokers that are named. The copies are those of the log there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wire::messages as m;
use wire::messages::alter_partition_reassignments_request::ReassignablePartition;
use wire::messages::alter_partition_reassignments_response as apr;
use wire::messages::list_partition_reassignments_response as lpr;
use wire::{ErrorCode, Text};

use super::admin_replicas::{NAMED_MAX, shown};
use crate::broker::Broker;
use crate::failure::Failure;
use crate::request::Request;
use crate::security::audit;
use crate::topics::Topic;

/// Answers AlterPartitionReassignments. The moves go on afterwards.
pub async fn alter_reassignments(
    Request { ref broker, ref caller, body: request, .. }: Request<m::AlterPartitionReassignmentsRequest>,
) -> m::AlterPartitionReassignmentsResponse {
    if request.timeout_ms <= 0 {
        return m::AlterPartitionReassignmentsResponse {
            error_code: ErrorCode::RequestTimedOut.code(),
            error_message: None,
            ..m::AlterPartitionReassignmentsResponse::default()
        };
    }
    let too_many = request.topics.iter().any(|topic| topic.partitions.len() > NAMED_MAX);
    let mut responses = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let found = broker.topics.find(&topic.name);
        let checked: Vec<Result<Wanted, Failure>> = topic
            .partitions
            .iter()
            .map(|asked| check(broker, &topic.name, found.as_deref(), asked, too_many))
            .collect();
        let outcomes = match found {
            Some(found) => {
                let outcomes = alter(broker, &found, checked).await;
                let moved = outcomes.iter().zip(&topic.partitions).filter(|(outcome, _)| outcome.is_ok());
                for (_, ReassignablePartition { partition_index, replicas, .. }) in moved {
                    let details = format!("partition {partition_index}, to {replicas:?}");
                    audit::changed(&caller.origin, "reassigned a partition of topic", &topic.name, &details);
                }
                outcomes
            }
            None => checked.into_iter().map(|checked| checked.map(drop)).collect(),
        };
        let partition = |(asked, outcome): (&ReassignablePartition, Result<(), Failure>)| {
            let failed = outcome.err();
            apr::ReassignablePartitionResponse {
                partition_index: asked.partition_index,
                error_code: failed.as_ref().map_or(ErrorCode::None, |failure| failure.code).code(),
                error_message: failed.and_then(|failure| failure.message),
            }
        };
        responses.push(apr::ReassignableTopicResponse {
            partitions: topic.partitions.iter().zip(outcomes).map(partition).collect(),
            name: topic.name,
        });
    }
    m::AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        error_message: None,
        responses,
        ..m::AlterPartitionReassignmentsResponse::default()
    }
}

/// A partition, and the brokers that are named for it: it moves to the first one. Without brokers, its move is given up.
type Wanted = (i32, Option<Vec<i32>>);

/// Checks what is asked of a partition.
fn check(
    broker: &Broker,
    name: &Text,
    found: Option<&Topic>,
    asked: &ReassignablePartition,
    too_many: bool,
) -> Result<Wanted, Failure> {
    let index = asked.partition_index;
    let unknown = |what: String| Err(Failure::because(ErrorCode::UnknownTopicOrPartition, what));
    let Some(found) = found else {
        if too_many {
            return Err(ErrorCode::UnknownTopicOrPartition.into());
        }
        return unknown(format!("Unable to find a topic named {}.", shown(name)));
    };
    let Some(partition) = found.partition(index) else {
        return unknown(format!("Unable to find partition {name}:{index}."));
    };
    let led_by = partition.leader().node;
    let invalid = |why: String| Err(Failure::because(ErrorCode::InvalidReplicaAssignment, why));
    let Some(replicas) = asked.replicas.as_deref() else { return Ok((index, None)) };
    let Some((first, others)) = replicas.split_first() else {
        return invalid("The manual partition assignment includes an empty replica list.".into());
    };
    if let Some(other) = replicas.iter().find(|replica| !broker.placement.has(**replica)) {
        return invalid(format!(
            "The manual partition assignment includes broker {other}, but no such broker is registered."
        ));
    }
    if !broker.logs.are_moving() && (*first != led_by || others.iter().any(|other| other != first)) {
        return invalid("Partitions cannot be moved to other brokers by this request.".into());
    }
    let mut sorted = replicas.to_vec();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return invalid(format!(
            "The manual partition assignment includes the broker {} more than once.",
            twice[0]
        ));
    }
    Ok((index, Some(replicas.to_vec())))
}

/// Makes the changes that are possible, in one commit.
async fn alter(
    broker: &Arc<Broker>,
    topic: &Arc<Topic>,
    checked: Vec<Result<Wanted, Failure>>,
) -> Vec<Result<(), Failure>> {
    if !broker.logs.are_moving() {
        let stays = |(_, to): Wanted| to.map(drop).ok_or(ErrorCode::NoReassignmentInProgress.into());
        return checked.into_iter().map(|checked| checked.and_then(stays)).collect();
    }
    let wanted: Vec<Wanted> = checked.iter().filter_map(|checked| checked.as_ref().ok().cloned()).collect();
    let found = topic.clone();
    let altered = broker.blocking(move |broker| broker.topics.alter_moves(&found, &wanted)).await;
    let mut altered = match altered {
        Ok(outcomes) => Ok(outcomes.into_iter()),
        Err(error) => Err(Failure::from(error)),
    };
    let outcome = |checked: Result<Wanted, Failure>| {
        checked?;
        match &mut altered {
            Ok(outcomes) => outcomes.next().expect("there is one for each").map_err(Failure::from),
            Err(failure) => Err(failure.clone()),
        }
    };
    checked.into_iter().map(outcome).collect()
}

/// Answers ListPartitionReassignments.
pub async fn list_reassignments(
    Request { broker, body: request, .. }: Request<m::ListPartitionReassignmentsRequest>,
) -> m::ListPartitionReassignmentsResponse {
    let asked: Option<BTreeMap<Text, BTreeSet<i32>>> = request.topics.map(|topics| {
        let indexes = |topic: m::list_partition_reassignments_request::ListPartitionReassignmentsTopics| {
            (topic.name, topic.partition_indexes.into_iter().collect())
        };
        topics.into_iter().map(indexes).collect()
    });
    let mut topics: BTreeMap<Text, Vec<lpr::OngoingPartitionReassignment>> = BTreeMap::new();
    for moving in broker.topics.moves() {
        let name = &moving.topic.name;
        let wanted = asked
            .as_ref()
            .is_none_or(|asked| asked.get(name).is_some_and(|indexes| indexes.contains(&moving.index)));
        let Some((from, to)) = broker.topics.between(&moving).filter(|_| wanted) else { continue };
        topics.entry(name.clone()).or_default().push(lpr::OngoingPartitionReassignment {
            partition_index: moving.index,
            replicas: vec![to, from],
            adding_replicas: vec![to],
            removing_replicas: vec![from],
        });
    }
    let topic = |(name, partitions)| lpr::OngoingTopicReassignment { name, partitions };
    m::ListPartitionReassignmentsResponse {
        error_message: None,
        topics: topics.into_iter().map(topic).collect(),
        ..m::ListPartitionReassignmentsResponse::default()
    }
}
