//! `mainstem group`: list, describe, delete, reset.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use client::{KafkaError, SessionError, check};
use wire::messages::describe_groups_response::DescribedGroupMember;
use wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use wire::messages::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest,
    OffsetFetchRequest, consumer_group_describe_response,
};
use wire::{ErrorCode, Text};

use super::cluster::Cluster;
use super::peer::ClientError;
use super::{Table, connect, member, print};
use crate::arguments::{Bootstrap, GroupVerb, Place};

/// Runs the command against a server.
pub fn group(bootstrap: &Bootstrap, verb: GroupVerb) -> anyhow::Result<()> {
    let mut cluster = connect(bootstrap)?;
    match verb {
        GroupVerb::List => list(&mut cluster),
        GroupVerb::Describe { name } => describe(&mut cluster, &name),
        GroupVerb::Delete { name } => delete(&mut cluster, &name),
        GroupVerb::Reset { name, topic, to } => reset(&mut cluster, &name, &topic, to),
    }
}

fn list(cluster: &mut Cluster) -> anyhow::Result<()> {
    let answer = cluster.any()?.call(&ListGroupsRequest::default())?;
    check(answer.error_code, None)?;
    let mut groups: Vec<_> = answer.groups.iter().collect();
    groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
    let mut table = Table::new(&["GROUP", "STATE", "TYPE", "PROTOCOL"]);
    for group in groups {
        let or_dash = |text: &Text| if text.is_empty() { "-".to_owned() } else { text.to_string() };
        table.row([
            group.group_id.to_string(),
            or_dash(&group.group_state),
            or_dash(&group.group_type),
            or_dash(&group.protocol_type),
        ]);
    }
    print(&table.to_text())
}

/// One group, of either protocol.
struct Described {
    /// `Dead` for a group that the server does not know.
    state: String,
    assignor: String,
    members: Vec<Member>,
}

struct Member {
    id: String,
    client: String,
    host: String,
    /// Partitions by topic.
    assigned: BTreeMap<String, Vec<i32>>,
}

const DEAD: &str = "Dead";

fn described(cluster: &mut Cluster, name: &str) -> anyhow::Result<Described> {
    let request =
        DescribeGroupsRequest { groups: vec![Text::copied(name)], ..DescribeGroupsRequest::default() };
    let answer = cluster.ask_coordinator(name, &request, |answer| {
        answer.groups.iter().try_for_each(|group| check(group.error_code, group.error_message.as_ref()))
    })?;
    let group = answer.groups.into_iter().next().unwrap_or_default();
    if group.group_state.as_str() == DEAD {
        return described_consumer(cluster, name);
    }
    let member = |found: &DescribedGroupMember| Member {
        id: found.member_id.to_string(),
        client: found.client_id.to_string(),
        host: found.client_host.to_string(),
        assigned: member::assignment(found.member_assignment.clone())
            .unwrap_or_default()
            .into_iter()
            .collect(),
    };
    Ok(Described {
        state: group.group_state.to_string(),
        assignor: group.protocol_data.to_string(),
        members: group.members.iter().map(member).collect(),
    })
}

/// Describes a group of the KIP-848 protocol, which has a request of its own.
fn described_consumer(cluster: &mut Cluster, name: &str) -> anyhow::Result<Described> {
    let dead = || Described { state: DEAD.to_owned(), assignor: String::new(), members: Vec::new() };
    let request = ConsumerGroupDescribeRequest {
        group_ids: vec![Text::copied(name)],
        ..ConsumerGroupDescribeRequest::default()
    };
    let answer = cluster.ask_coordinator(name, &request, |answer| {
        answer.groups.iter().try_for_each(|group| match group.error_code {
            code if code == ErrorCode::GroupIdNotFound.code() => Ok(()),
            code => check(code, group.error_message.as_ref()),
        })
    });
    let answer = match answer {
        // The server is older than this API.
        Err(ClientError::Session {
            error: SessionError::UnknownApi { .. } | SessionError::Version { .. },
            ..
        }) => return Ok(dead()),
        answer => answer?,
    };
    let Some(group) = answer.groups.into_iter().find(|group| group.error_code == 0) else {
        return Ok(dead());
    };
    let assigned = |of: &consumer_group_describe_response::TopicPartitions| {
        (of.topic_name.to_string(), of.partitions.clone())
    };
    let member = |found: &consumer_group_describe_response::Member| Member {
        id: found.member_id.to_string(),
        client: found.client_id.to_string(),
        host: found.client_host.to_string(),
        assigned: found.assignment.topic_partitions.iter().map(assigned).collect(),
    };
    Ok(Described {
        state: group.group_state.to_string(),
        assignor: group.assignor_name.to_string(),
        members: group.members.iter().map(member).collect(),
    })
}

/// Committed offsets by topic and partition.
fn committed(cluster: &mut Cluster, name: &str) -> anyhow::Result<BTreeMap<String, BTreeMap<i32, i64>>> {
    let request = OffsetFetchRequest {
        groups: vec![OffsetFetchRequestGroup {
            group_id: Text::copied(name),
            topics: None,
            ..OffsetFetchRequestGroup::default()
        }],
        ..OffsetFetchRequest::default()
    };
    let answer = cluster.ask_coordinator(name, &request, |answer| {
        answer.groups.iter().try_for_each(|group| check(group.error_code, None))
    })?;
    let mut offsets: BTreeMap<String, BTreeMap<i32, i64>> = BTreeMap::new();
    for topic in answer.groups.iter().flat_map(|group| &group.topics) {
        for partition in &topic.partitions {
            check(partition.error_code, None)?;
            if partition.committed_offset >= 0 {
                let of_topic = offsets.entry(topic.name.to_string()).or_default();
                of_topic.insert(partition.partition_index, partition.committed_offset);
            }
        }
    }
    Ok(offsets)
}

fn describe(cluster: &mut Cluster, name: &str) -> anyhow::Result<()> {
    let group = described(cluster, name)?;
    let committed = committed(cluster, name)?;
    if group.state == DEAD && committed.is_empty() {
        bail!(KafkaError { code: ErrorCode::GroupIdNotFound.code(), message: None });
    }
    let mut owners: BTreeMap<(String, i32), String> = BTreeMap::new();
    let mut members = Table::new(&["MEMBER", "CLIENT", "HOST", "PARTITIONS"]);
    for found in &group.members {
        for (topic, partitions) in &found.assigned {
            for partition in partitions {
                owners.insert((topic.clone(), *partition), found.id.clone());
            }
        }
        let count: usize = found.assigned.values().map(Vec::len).sum();
        members.row([found.id.clone(), found.client.clone(), found.host.clone(), count.to_string()]);
    }
    let offsets = offsets(cluster, &committed, &owners)?;
    let mut text = format!("{name}: {}", group.state);
    if !group.assignor.is_empty() {
        text.push_str(&format!(", assignor {}", group.assignor));
    }
    text.push('\n');
    for table in [members, offsets].iter().filter(|table| !table.is_empty()) {
        text.push('\n');
        text.push_str(&table.to_text());
    }
    print(&text)
}

/// Prints a row for each partition that has a committed offset or a reader.
fn offsets(
    cluster: &mut Cluster,
    committed: &BTreeMap<String, BTreeMap<i32, i64>>,
    owners: &BTreeMap<(String, i32), String>,
) -> anyhow::Result<Table> {
    let mut rows: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
    for (topic, offsets) in committed {
        rows.entry(topic).or_default().extend(offsets.keys());
    }
    for (topic, partition) in owners.keys() {
        rows.entry(topic).or_default().insert(*partition);
    }
    let mut table = Table::new(&["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]);
    for (topic, partitions) in rows {
        // A deleted topic may still have committed offsets.
        let ends = match cluster.topic(topic, false) {
            Ok(found) => cluster.list_offsets(topic, &found.partitions, -1)?,
            Err(error) if error.code() == Some(ErrorCode::UnknownTopicOrPartition) => Default::default(),
            Err(error) => return Err(error.into()),
        };
        let or_dash = |number: Option<i64>| number.map_or("-".to_owned(), |number| number.to_string());
        for partition in partitions {
            let at = committed.get(topic).and_then(|offsets| offsets.get(&partition)).copied();
            let end = ends.get(&partition).copied();
            table.row([
                topic.to_owned(),
                partition.to_string(),
                or_dash(at),
                or_dash(end),
                or_dash(at.zip(end).map(|(at, end)| (end - at).max(0))),
                owners.get(&(topic.to_owned(), partition)).cloned().unwrap_or("-".into()),
            ]);
        }
    }
    Ok(table)
}

fn delete(cluster: &mut Cluster, name: &str) -> anyhow::Result<()> {
    let request = DeleteGroupsRequest { groups_names: vec![Text::copied(name)] };
    cluster.ask_coordinator(name, &request, |answer| {
        answer.results.iter().try_for_each(|result| check(result.error_code, result.error_message.as_ref()))
    })?;
    print(&format!("deleted {name}\n"))
}

fn reset(cluster: &mut Cluster, name: &str, topic: &str, to: Place) -> anyhow::Result<()> {
    let group = described(cluster, name)?;
    if !group.members.is_empty() || !matches!(group.state.as_str(), "Empty" | DEAD) {
        let message = format!("stop its {} members first, it is {}", group.members.len(), group.state);
        bail!(KafkaError { code: ErrorCode::NonEmptyGroup.code(), message: Some(message) });
    }
    let found = cluster.topic(topic, false)?;
    let starts = cluster.list_offsets(topic, &found.partitions, -2)?;
    let ends = cluster.list_offsets(topic, &found.partitions, -1)?;
    let mut positions = BTreeMap::new();
    for partition in &found.partitions {
        let start = starts.get(&partition.index).copied().unwrap_or(0);
        let end = ends.get(&partition.index).copied().unwrap_or(start);
        let offset = match to {
            Place::Earliest => start,
            Place::Latest => end,
            Place::Offset(offset) => offset.clamp(start, end),
        };
        positions.insert(partition.index, offset);
    }
    member::commit(cluster, name, topic, (-1, Text::EMPTY), &positions)?;
    let mut table = Table::new(&["TOPIC", "PARTITION", "COMMITTED"]);
    for (partition, offset) in &positions {
        table.row([topic.to_owned(), partition.to_string(), offset.to_string()]);
    }
    print(&table.to_text())
}

/// The committed offsets of one topic, for a member that begins to read.
pub fn committed_of_topic(
    cluster: &mut Cluster,
    group: &str,
    topic: &str,
) -> anyhow::Result<BTreeMap<i32, i64>> {
    Ok(committed(cluster, group)?.remove(topic).unwrap_or_default())
}
