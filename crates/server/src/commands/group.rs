//! `mainstem group`: list, describe, delete, reset.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use wire::messages::describe_groups_response::DescribedGroup;
use wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use wire::messages::{DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest, OffsetFetchRequest};
use wire::{ErrorCode, Text};

use super::{Table, member, print};
use crate::arguments::{GroupVerb, Place};
use crate::client::{Cluster, KafkaError, check};

/// Runs the command against the server at `bootstrap`.
pub fn group(bootstrap: &str, verb: GroupVerb) -> anyhow::Result<()> {
    let mut cluster = Cluster::connect(bootstrap)?;
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

/// One group; a group that the server does not know has the state `Dead`.
fn described(cluster: &mut Cluster, name: &str) -> anyhow::Result<DescribedGroup> {
    let request =
        DescribeGroupsRequest { groups: vec![Text::copied(name)], ..DescribeGroupsRequest::default() };
    let answer = cluster.ask_coordinator(name, &request, |answer| {
        answer.groups.iter().try_for_each(|group| match group.error_code {
            code if code == ErrorCode::GroupIdNotFound.code() => Ok(()),
            code => check(code, group.error_message.as_ref()),
        })
    })?;
    let mut group = answer.groups.into_iter().next().unwrap_or_default();
    if group.error_code != 0 {
        group.group_state = Text::from_static("Dead");
    }
    Ok(group)
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
    if group.group_state == "Dead" && committed.is_empty() {
        bail!(KafkaError { code: ErrorCode::GroupIdNotFound.code(), message: None });
    }
    let mut owners: BTreeMap<(String, i32), String> = BTreeMap::new();
    let mut members = Table::new(&["MEMBER", "CLIENT", "HOST", "PARTITIONS"]);
    for found in &group.members {
        let assigned = member::assignment(found.member_assignment.clone()).unwrap_or_default();
        for (topic, partitions) in &assigned {
            for partition in partitions {
                owners.insert((topic.clone(), *partition), found.member_id.to_string());
            }
        }
        let count: usize = assigned.values().map(Vec::len).sum();
        members.row([
            found.member_id.to_string(),
            found.client_id.to_string(),
            found.client_host.to_string(),
            count.to_string(),
        ]);
    }
    let offsets = offsets(cluster, &committed, &owners)?;
    let mut text = format!("{name}: {}", group.group_state);
    if !group.protocol_data.is_empty() {
        text.push_str(&format!(", assignor {}", group.protocol_data));
    }
    text.push('\n');
    for table in [members, offsets].iter().filter(|table| !table.is_empty()) {
        text.push('\n');
        text.push_str(&table.to_text());
    }
    print(&text)
}

/// A row for each partition that has a committed offset or a reader.
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
        // The topic may be gone while its offsets are still there.
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
    if !group.members.is_empty() || !matches!(group.group_state.as_str(), "Empty" | "Dead") {
        let state = group.group_state.to_string();
        let message = format!("stop its {} members first, it is {state}", group.members.len());
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
