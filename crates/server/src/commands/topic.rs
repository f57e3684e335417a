//! `mainstem topic`: create, list, describe, delete, alter, add-partitions, empty.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, bail};
use client::{check, delete_topics};
use serde_json::{Value, json};
use wire::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use wire::messages::create_partitions_request::CreatePartitionsTopic;
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use wire::messages::{
    AlterPartitionReassignmentsRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest,
    DeleteTopicsRequest,
};
use wire::{ErrorCode, Text};

use super::cluster::{Cluster, EARLIEST, LATEST, Partition, Topic, by_leader};
use super::{Table, configs, connect, show};
use crate::arguments::{Bootstrap, Output, Place, TopicCreation, TopicShown, TopicVerb};

/// Time-out of a change. The server answers with an error if the change takes longer.
const TIMEOUT_MS: i32 = 30_000;
/// Stands for the server's default (KIP-464).
const DEFAULT_COUNT: i32 = -1;
const DEFAULT_FACTOR: i16 = -1;

/// Runs the command against a server.
pub fn topic(bootstrap: &Bootstrap, verb: TopicVerb) -> anyhow::Result<()> {
    let (mut cluster, output) = (connect(bootstrap)?, bootstrap.shown.output);
    match verb {
        TopicVerb::Create(asked) => create(&mut cluster, asked, output),
        TopicVerb::List => list(&mut cluster, output),
        TopicVerb::Describe { names, only } => describe(&mut cluster, &names, only, output),
        TopicVerb::Delete { names, if_exists } => {
            let gone = delete(&mut cluster, &names, if_exists)?;
            let text = || gone.iter().map(|name| format!("deleted {name}\n")).collect();
            show(output, text, || json!({"deleted": gone}))
        }
        TopicVerb::Alter { names, configs, partitions, replicas } => {
            let mut change = |name: &str| {
                if let Some(total) = partitions {
                    add_partitions(&mut cluster, name, total)?;
                }
                if !configs.is_empty() {
                    configs::alter(cluster.controller()?, configs::Kind::Topic, name, configs.clone())?;
                }
                if !replicas.is_empty() {
                    reassign(&mut cluster, name, &replicas)?;
                }
                anyhow::Ok(())
            };
            for (number, name) in names.iter().enumerate() {
                let changed = if number == 0 { "none".to_owned() } else { names[..number].join(", ") };
                change(name).with_context(|| format!("{name} (changed: {changed})"))?;
            }
            let text = || names.iter().map(|name| format!("changed {name}\n")).collect();
            show(output, text, || json!({"changed": names}))
        }
        TopicVerb::AddPartitions { name, total } => {
            add_partitions(&mut cluster, &name, total)?;
            let said = || format!("{name} has {total} partitions\n");
            show(output, said, || json!({"changed": name, "partitions": total}))
        }
        TopicVerb::Empty { name, partitions, before, dry_run } => {
            empty(&mut cluster, &name, &partitions, (before, dry_run), output)
        }
    }
}

fn create(cluster: &mut Cluster, asked: TopicCreation, output: Output) -> anyhow::Result<()> {
    let TopicCreation { name, partitions, replication_factor, configs, if_not_exists, dry_run } = asked;
    let config = |(name, value): (String, String)| CreatableTopicConfig {
        name: Text::from(name),
        value: Some(Text::from(value)),
    };
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: Text::copied(&name),
            num_partitions: partitions.unwrap_or(DEFAULT_COUNT),
            replication_factor: replication_factor.unwrap_or(DEFAULT_FACTOR),
            assignments: Vec::new(),
            configs: configs.into_iter().map(config).collect(),
        }],
        timeout_ms: TIMEOUT_MS,
        validate_only: dry_run,
    };
    let answer = cluster.controller()?.call(&request)?;
    for result in &answer.topics {
        if if_not_exists && result.error_code == ErrorCode::TopicAlreadyExists.code() {
            return show(output, || format!("{name} is there\n"), || json!({"created": null, "topic": name}));
        }
        check(result.error_code, result.error_message.as_ref())?;
    }
    // Where the server says it.
    let count = answer.topics.first().map(|result| result.num_partitions).filter(|count| *count > 0);
    let plural = if count == Some(1) { "" } else { "s" };
    let with = count.map_or(String::new(), |count| format!(" with {count} partition{plural}"));
    let done = if dry_run { "nothing is changed; this could be created: " } else { "created " };
    show(
        output,
        || format!("{done}{name}{with}\n"),
        || match dry_run {
            true => json!({"created": null, "topic": name, "partitions": count}),
            false => json!({"created": name, "partitions": count}),
        },
    )
}

fn list(cluster: &mut Cluster, output: Output) -> anyhow::Result<()> {
    let mut table = Table::new(&["TOPIC", "PARTITIONS", ""]);
    for topic in cluster.topics()? {
        let note = if topic.is_internal { "internal" } else { "" };
        table.row([topic.name, topic.partitions.len().to_string(), note.into()]);
    }
    show(output, || table.to_text(), || table.to_json())
}

fn describe(
    cluster: &mut Cluster,
    names: &[String],
    only: Option<TopicShown>,
    output: Output,
) -> anyhow::Result<()> {
    let mut topics = match names {
        [] => cluster.topics()?,
        names => names.iter().map(|name| cluster.topic_as_it_is(name)).collect::<Result<_, _>>()?,
    };
    match only {
        None => {}
        Some(TopicShown::Overridden) => {
            let all: Vec<&str> = topics.iter().map(|topic| topic.name.as_str()).collect();
            let overridden = configs::overridden(cluster.any()?, &all)?;
            topics.retain(|topic| overridden.contains(&topic.name));
        }
        Some(only) => return describe_partitions(cluster, &topics, only, output),
    }
    let (mut text, mut json) = (Vec::new(), Vec::new());
    for topic in &topics {
        let (table, configs) = described(cluster, topic)?;
        let id = &topic.id;
        text.push(format!("{}  {id}\n\n{}\n{}", topic.name, table.to_text(), configs.to_text()));
        json.push(json!({
            "topic": topic.name, "id": id, "internal": topic.is_internal, "partitions": table.to_json(),
            "configs": configs.to_json(),
        }));
    }
    let one = names.len() == 1 && only.is_none();
    let json = || if one { json.pop().unwrap_or_default() } else { Value::from(json.split_off(0)) };
    let text = || if text.is_empty() && only.is_some() { "no topic\n".into() } else { text.join("\n") };
    show(output, text, json)
}

/// The partitions of a topic and its settings.
fn described(cluster: &mut Cluster, topic: &Topic) -> anyhow::Result<(Table, Table)> {
    let name = &topic.name;
    let led: Vec<_> = topic.partitions.iter().filter(|partition| partition.leader >= 0).cloned().collect();
    let start = cluster.list_offsets(name, &led, EARLIEST)?;
    let end = cluster.list_offsets(name, &led, LATEST)?;
    let mut table = Table::new(&["PARTITION", "LEADER", "REPLICAS", "IN SYNC", "START", "END", "RECORDS"]);
    for partition in &topic.partitions {
        let at = |offsets: &HashMap<i32, i64>| offsets.get(&partition.index).copied();
        let (start, end) = (at(&start), at(&end));
        // The offsets of a partition without a leader are unknown.
        let shown = |offset: Option<i64>| offset.map_or("?".to_owned(), |offset| offset.to_string());
        table.row([
            partition.index.to_string(),
            partition.leader.to_string(),
            ids(&partition.replicas),
            ids(&partition.in_sync),
            shown(start),
            shown(end),
            shown(start.zip(end).map(|(start, end)| end - start)),
        ]);
    }
    let configs = configs::describe(cluster.any()?, configs::Kind::Topic, name, true)?;
    Ok((table, configs))
}

fn ids(ids: &[i32]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The partitions with too few copies, as `kafka-topics.sh` finds them.
fn describe_partitions(
    cluster: &mut Cluster,
    topics: &[Topic],
    only: TopicShown,
    output: Output,
) -> anyhow::Result<()> {
    let mut table = Table::new(&["TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC"]);
    for topic in topics {
        let least = match only {
            TopicShown::UnderMinIsr | TopicShown::AtMinIsr => min_in_sync(cluster, &topic.name)?,
            _ => 0,
        };
        let shown = |partition: &&Partition| match only {
            TopicShown::UnderReplicated => partition.in_sync.len() < partition.replicas.len(),
            TopicShown::Unavailable => partition.leader < 0,
            TopicShown::UnderMinIsr => partition.in_sync.len() < least,
            TopicShown::AtMinIsr => partition.in_sync.len() == least,
            TopicShown::Overridden => false,
        };
        for partition in topic.partitions.iter().filter(shown) {
            table.row([
                topic.name.clone(),
                partition.index.to_string(),
                partition.leader.to_string(),
                ids(&partition.replicas),
                ids(&partition.in_sync),
            ]);
        }
    }
    let text = || if table.is_empty() { "no partition\n".into() } else { table.to_text() };
    show(output, text, || table.to_json())
}

fn min_in_sync(cluster: &mut Cluster, name: &str) -> anyhow::Result<usize> {
    let value = configs::value(cluster.any()?, configs::Kind::Topic, name, "min.insync.replicas")?;
    Ok(value.and_then(|value| value.parse().ok()).unwrap_or(1))
}

/// Returns the topics that were there.
fn delete(cluster: &mut Cluster, names: &[String], if_exists: bool) -> anyhow::Result<Vec<String>> {
    let controller = cluster.controller()?;
    let version = controller.version::<DeleteTopicsRequest>()?;
    let request = delete_topics(version, names.iter().map(String::as_str), TIMEOUT_MS);
    let mut gone = Vec::new();
    let mut failed = Vec::new();
    for result in &controller.call(&request)?.responses {
        let name = result.name.as_ref().map(ToString::to_string).unwrap_or_default();
        match check(result.error_code, result.error_message.as_ref()) {
            Ok(()) => gone.push(name),
            Err(error) if if_exists && error.known() == Some(ErrorCode::UnknownTopicOrPartition) => {}
            Err(error) => failed.push((name, error)),
        }
    }
    match (failed.pop(), names) {
        (None, _) => Ok(gone),
        (Some((_, error)), [_]) => Err(error.into()),
        (Some((name, error)), _) => {
            let gone = if gone.is_empty() { "none".to_owned() } else { gone.join(", ") };
            Err(anyhow::Error::new(error).context(format!("{name} (deleted: {gone})")))
        }
    }
}

fn add_partitions(cluster: &mut Cluster, name: &str, total: i32) -> anyhow::Result<()> {
    let topic = CreatePartitionsTopic { name: Text::copied(name), count: total, assignments: None };
    let request =
        CreatePartitionsRequest { topics: vec![topic], timeout_ms: TIMEOUT_MS, validate_only: false };
    for result in &cluster.controller()?.call(&request)?.results {
        check(result.error_code, result.error_message.as_ref())?;
    }
    Ok(())
}

/// Gives partitions other brokers, or cancels that (AlterPartitionReassignments, KIP-455). The brokers copy the records afterwards.
fn reassign(cluster: &mut Cluster, name: &str, replicas: &[(i32, Vec<i32>)]) -> anyhow::Result<()> {
    let partition = |(index, brokers): &(i32, Vec<i32>)| ReassignablePartition {
        partition_index: *index,
        replicas: Some(brokers.clone()).filter(|brokers| !brokers.is_empty()),
    };
    let topic =
        ReassignableTopic { name: Text::copied(name), partitions: replicas.iter().map(partition).collect() };
    let request = AlterPartitionReassignmentsRequest {
        timeout_ms: TIMEOUT_MS,
        topics: vec![topic],
        ..AlterPartitionReassignmentsRequest::default()
    };
    let answer = cluster.controller()?.call(&request)?;
    check(answer.error_code, answer.error_message.as_ref())?;
    let mut failed = Vec::new();
    for of in answer.responses.iter().flat_map(|topic| &topic.partitions) {
        if let Err(error) = check(of.error_code, of.error_message.as_ref()) {
            failed.push(format!("partition {}: {error}", of.partition_index));
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

/// Deletes the records before a place, which is the end if none is given (DeleteRecords, KIP-107).
fn empty(
    cluster: &mut Cluster,
    name: &str,
    chosen: &[i32],
    (before, dry_run): (Option<Place>, bool),
    output: Output,
) -> anyhow::Result<()> {
    let partitions = cluster.topic(name, false)?.chosen(chosen)?;
    let starts = cluster.list_offsets(name, &partitions, EARLIEST)?;
    let ends = cluster.list_offsets(name, &partitions, LATEST)?;
    let places = cluster.places(name, &partitions, before.unwrap_or(Place::Latest))?;
    let mut wanted = BTreeMap::new();
    for (index, place) in places {
        let start = starts.get(&index).copied().unwrap_or(0);
        let end = ends.get(&index).copied().unwrap_or(start);
        wanted.insert(index, (start, place.clamp(start, end)));
    }
    if !dry_run {
        for (leader, indexes) in by_leader(&partitions) {
            delete_records(cluster, name, leader, &indexes, &wanted)?;
        }
    }
    let mut table = Table::new(&["TOPIC", "PARTITION", "BEFORE", "START", "RECORDS"]);
    for (index, (start, place)) in &wanted {
        let numbers = [i64::from(*index), *start, *place, place - start];
        table.row([name.to_owned()].into_iter().chain(numbers.map(|number| number.to_string())));
    }
    let note = if dry_run { "nothing is changed; these would be deleted\n\n" } else { "" };
    show(output, || format!("{note}{}", table.to_text()), || table.to_json())
}

fn delete_records(
    cluster: &mut Cluster,
    name: &str,
    leader: i32,
    indexes: &[i32],
    wanted: &BTreeMap<i32, (i64, i64)>,
) -> anyhow::Result<()> {
    let partition = |index: &i32| {
        let (_, offset) = wanted.get(index)?;
        Some(DeleteRecordsPartition { partition_index: *index, offset: *offset })
    };
    let request = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: Text::copied(name),
            partitions: indexes.iter().filter_map(partition).collect(),
        }],
        timeout_ms: TIMEOUT_MS,
    };
    for of in cluster.node(leader)?.call(&request)?.topics.iter().flat_map(|topic| &topic.partitions) {
        if let Err(error) = check(of.error_code, None) {
            bail!("partition {}: {error}", of.partition_index);
        }
    }
    Ok(())
}
