//! `mainstem group`: list, describe, delete, reset, export.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, bail};
use client::{KafkaError, SessionError, check};
use serde_json::json;
use wire::messages::describe_groups_response::DescribedGroupMember;
use wire::messages::list_groups_response::ListedGroup;
use wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use wire::messages::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest,
    OffsetFetchRequest, consumer_group_describe_response,
};
use wire::{ErrorCode, Text};

use super::cluster::{Cluster, EARLIEST, LATEST, retried};
use super::member::Positions;
use super::peer::ClientError;
use super::{Table, connect, member, show};
use crate::arguments::{Bootstrap, GroupVerb, OffsetReset, Output, Place};

/// Runs the command against a server.
pub fn group(bootstrap: &Bootstrap, verb: GroupVerb) -> anyhow::Result<()> {
    let (mut cluster, output) = (connect(bootstrap)?, bootstrap.shown.output);
    match verb {
        GroupVerb::List => list(&mut cluster, output),
        GroupVerb::Describe { name } => describe(&mut cluster, &name, output),
        GroupVerb::Delete { name } => {
            delete(&mut cluster, &name)?;
            show(output, || format!("deleted {name}\n"), || json!({"deleted": name}))
        }
        GroupVerb::Reset(asked) => reset(&mut cluster, &asked, output),
        GroupVerb::Export { name } => export(&mut cluster, &name, output),
    }
}

/// All groups: each broker knows those that it coordinates.
fn listed(cluster: &mut Cluster) -> Result<Vec<ListedGroup>, ClientError> {
    let mut groups = Vec::new();
    for broker in cluster.brokers() {
        let answer = retried(|| {
            let answer = cluster.node(broker)?.call(&ListGroupsRequest::default())?;
            check(answer.error_code, None)?;
            Ok(answer)
        })?;
        groups.extend(answer.groups);
    }
    groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
    groups.dedup_by(|a, b| a.group_id == b.group_id);
    Ok(groups)
}

/// The names of all groups.
pub fn names(cluster: &mut Cluster) -> Result<Vec<String>, ClientError> {
    Ok(listed(cluster)?.iter().map(|group| group.group_id.to_string()).collect())
}

fn list(cluster: &mut Cluster, output: Output) -> anyhow::Result<()> {
    let mut table = Table::new(&["GROUP", "STATE", "TYPE", "PROTOCOL"]);
    for group in listed(cluster)? {
        let or_dash = |text: &Text| if text.is_empty() { "-".to_owned() } else { text.to_string() };
        table.row([
            group.group_id.to_string(),
            or_dash(&group.group_state),
            or_dash(&group.group_type),
            or_dash(&group.protocol_type),
        ]);
    }
    show(output, || table.to_text(), || table.to_json())
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
pub fn committed(cluster: &mut Cluster, name: &str) -> anyhow::Result<Positions> {
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
    let mut offsets = Positions::new();
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

fn describe(cluster: &mut Cluster, name: &str, output: Output) -> anyhow::Result<()> {
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
    let text = || {
        let mut text = format!("{name}: {}", group.state);
        if !group.assignor.is_empty() {
            text.push_str(&format!(", assignor {}", group.assignor));
        }
        text.push('\n');
        for table in [&members, &offsets].into_iter().filter(|table| !table.is_empty()) {
            text.push('\n');
            text.push_str(&table.to_text());
        }
        text
    };
    let json = || {
        json!({
            "group": name, "state": group.state, "assignor": group.assignor,
            "members": members.to_json(), "offsets": offsets.to_json(),
        })
    };
    show(output, text, json)
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
            Ok(found) => cluster.list_offsets(topic, &found.partitions, LATEST)?,
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
    Ok(())
}

/// Where committed offsets go.
enum Change {
    To(Place),
    /// Where nothing is committed, nothing changes.
    By(i64),
}

fn reset(cluster: &mut Cluster, asked: &OffsetReset, output: Output) -> anyhow::Result<()> {
    let name = asked.name.as_str();
    let group = described(cluster, name)?;
    if !group.members.is_empty() || !matches!(group.state.as_str(), "Empty" | DEAD) {
        let message = format!("stop its {} members first, it is {}", group.members.len(), group.state);
        bail!(KafkaError { code: ErrorCode::NonEmptyGroup.code(), message: Some(message) });
    }
    let before = committed(cluster, name)?;
    let wanted = match &asked.file {
        Some(file) => read_offsets(file)?,
        None => {
            let change = asked.to.map_or(Change::By(asked.by.unwrap_or(0)), Change::To);
            let topics =
                if asked.all_topics { before.keys().cloned().collect() } else { asked.topics.clone() };
            let mut wanted = BTreeMap::new();
            for topic in topics {
                let partitions = cluster.topic(&topic, false)?.chosen(&asked.partitions)?;
                let of_topic = match change {
                    Change::To(place) => cluster.places(&topic, &partitions, place)?,
                    Change::By(by) => {
                        let chosen = |index: &i32| partitions.iter().any(|of| of.index == *index);
                        let committed = before.get(&topic).into_iter().flatten();
                        let moved = committed.filter(|(index, _)| chosen(index));
                        moved.map(|(index, offset)| (*index, offset.saturating_add(by))).collect()
                    }
                };
                wanted.insert(topic, of_topic);
            }
            wanted
        }
    };
    let mut positions = Positions::new();
    for (topic, offsets) in wanted {
        let offsets = within_log(cluster, &topic, &offsets)?;
        positions.insert(topic, offsets);
    }
    if !asked.dry_run {
        member::commit(cluster, name, (-1, Text::EMPTY), &positions)?;
    }
    let mut table = Table::new(&["TOPIC", "PARTITION", "BEFORE", "COMMITTED"]);
    for (topic, offsets) in &positions {
        for (index, offset) in offsets {
            let before = before.get(topic).and_then(|offsets| offsets.get(index));
            let before = before.map_or("-".to_owned(), ToString::to_string);
            table.row([topic.clone(), index.to_string(), before, offset.to_string()]);
        }
    }
    let said = || {
        let note = if asked.dry_run { "nothing is changed; this would be committed\n\n" } else { "" };
        format!("{note}{}", table.to_text())
    };
    show(output, said, || table.to_json())
}

/// Offsets outside of what a partition holds become its start or its end.
fn within_log(
    cluster: &mut Cluster,
    topic: &str,
    offsets: &BTreeMap<i32, i64>,
) -> anyhow::Result<BTreeMap<i32, i64>> {
    let indexes: Vec<i32> = offsets.keys().copied().collect();
    if indexes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let partitions = cluster.topic(topic, false)?.chosen(&indexes)?;
    let starts = cluster.list_offsets(topic, &partitions, EARLIEST)?;
    let ends = cluster.list_offsets(topic, &partitions, LATEST)?;
    let within = |(index, offset): (&i32, &i64)| {
        let start = starts.get(index).copied().unwrap_or(0);
        let end = ends.get(index).copied().unwrap_or(start);
        (*index, (*offset).clamp(start, end))
    };
    Ok(offsets.iter().map(within).collect())
}

/// Offsets by topic and partition, from lines `topic,partition,offset` as `kafka-consumer-groups.sh --export` writes them.
fn read_offsets(file: &Path) -> anyhow::Result<BTreeMap<String, BTreeMap<i32, i64>>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut offsets: BTreeMap<String, BTreeMap<i32, i64>> = BTreeMap::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (at, line) in lines {
        let parts: Vec<&str> = line.split(',').map(|part| part.trim().trim_matches('"')).collect();
        let parsed = match parts[..] {
            [topic, partition, offset] => {
                partition.parse().ok().zip(offset.parse().ok()).map(|of| (topic, of))
            }
            _ => None,
        };
        let (topic, (partition, offset)): (_, (i32, i64)) = parsed.with_context(|| {
            format!("{} line {}: it must be TOPIC,PARTITION,OFFSET", file.display(), at + 1)
        })?;
        if offsets.entry(topic.to_owned()).or_default().insert(partition, offset).is_some() {
            bail!("{} line {}: {topic},{partition} is there twice", file.display(), at + 1);
        }
    }
    Ok(offsets)
}

/// The committed offsets as `reset --file` reads them.
fn export(cluster: &mut Cluster, name: &str, output: Output) -> anyhow::Result<()> {
    let committed = committed(cluster, name)?;
    let rows = || {
        committed
            .iter()
            .flat_map(|(topic, offsets)| offsets.iter().map(move |(index, offset)| (topic, index, offset)))
    };
    let text = || rows().map(|(topic, index, offset)| format!("{topic},{index},{offset}\n")).collect();
    let json = || {
        rows()
            .map(|(topic, index, offset)| json!({"topic": topic, "partition": index, "committed": offset}))
            .collect()
    };
    show(output, text, json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_kafkas_tool_writes_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("offsets");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read_offsets(&file).map_err(|error| error.to_string())
        };
        let offsets = read("a,0,5\n\n\"b\",1,7\na,1,0\n").unwrap();
        assert_eq!(offsets["a"], BTreeMap::from([(0, 5), (1, 0)]));
        assert_eq!(offsets["b"], BTreeMap::from([(1, 7)]));
        for wrong in ["a,0", "a,x,5", "a,0,5,6", "g,a,0,5"] {
            assert!(read(wrong).unwrap_err().contains("line 1: it must be"), "{wrong}");
        }
        assert!(read("a,0,5\na,0,6").unwrap_err().contains("line 2: a,0 is there twice"));
    }
}
