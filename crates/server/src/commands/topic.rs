//! `mainstem topic`: create, list, describe, delete, alter, add-partitions.

use client::{check, delete_topics};
use serde_json::json;
use wire::Text;
use wire::messages::create_partitions_request::CreatePartitionsTopic;
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use wire::messages::describe_configs_request::DescribeConfigsResource;
use wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
};

use super::cluster::{Cluster, EARLIEST, LATEST};
use super::{Table, connect, show};
use crate::arguments::{Bootstrap, Output, TopicVerb};

/// Time-out of a change. The server answers with an error if the change takes longer.
const TIMEOUT_MS: i32 = 30_000;
/// Stands for the server's default (KIP-464).
const DEFAULT_COUNT: i32 = -1;
/// Resource type in the messages about configs.
const RESOURCE_TOPIC: i8 = 2;
/// Source of a config value: set on the topic itself.
const SOURCE_TOPIC: i8 = 1;

/// Runs the command against a server.
pub fn topic(bootstrap: &Bootstrap, verb: TopicVerb) -> anyhow::Result<()> {
    let (mut cluster, output) = (connect(bootstrap)?, bootstrap.output);
    match verb {
        TopicVerb::Create { name, partitions, configs } => {
            let count = create(&mut cluster, &name, partitions, configs)?;
            let plural = if count == Some(1) { "" } else { "s" };
            let with = count.map_or(String::new(), |count| format!(" with {count} partition{plural}"));
            show(
                output,
                || format!("created {name}{with}\n"),
                || json!({"created": name, "partitions": count}),
            )
        }
        TopicVerb::List => list(&mut cluster, output),
        TopicVerb::Describe { name } => describe(&mut cluster, &name, output),
        TopicVerb::Delete { name } => {
            delete(&mut cluster, &name)?;
            show(output, || format!("deleted {name}\n"), || json!({"deleted": name}))
        }
        TopicVerb::Alter { name, configs } => {
            alter(&mut cluster, &name, configs)?;
            show(output, || format!("changed {name}\n"), || json!({"changed": name}))
        }
        TopicVerb::AddPartitions { name, total } => {
            add_partitions(&mut cluster, &name, total)?;
            let said = || format!("{name} has {total} partitions\n");
            show(output, said, || json!({"changed": name, "partitions": total}))
        }
    }
}

/// Returns the number of partitions, where the server says it.
fn create(
    cluster: &mut Cluster,
    name: &str,
    partitions: Option<i32>,
    configs: Vec<(String, String)>,
) -> anyhow::Result<Option<i32>> {
    let config = |(name, value): (String, String)| CreatableTopicConfig {
        name: Text::from(name),
        value: Some(Text::from(value)),
    };
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: Text::copied(name),
            num_partitions: partitions.unwrap_or(DEFAULT_COUNT),
            replication_factor: -1,
            assignments: Vec::new(),
            configs: configs.into_iter().map(config).collect(),
        }],
        timeout_ms: TIMEOUT_MS,
        validate_only: false,
    };
    let answer = cluster.controller()?.call(&request)?;
    for result in &answer.topics {
        check(result.error_code, result.error_message.as_ref())?;
    }
    Ok(answer.topics.first().map(|result| result.num_partitions).filter(|count| *count > 0))
}

fn list(cluster: &mut Cluster, output: Output) -> anyhow::Result<()> {
    let mut table = Table::new(&["TOPIC", "PARTITIONS", ""]);
    for topic in cluster.topics()? {
        let note = if topic.is_internal { "internal" } else { "" };
        table.row([topic.name, topic.partitions.len().to_string(), note.into()]);
    }
    show(output, || table.to_text(), || table.to_json())
}

fn describe(cluster: &mut Cluster, name: &str, output: Output) -> anyhow::Result<()> {
    let topic = cluster.topic_as_it_is(name)?;
    let led: Vec<_> = topic.partitions.iter().filter(|partition| partition.leader >= 0).cloned().collect();
    let start = cluster.list_offsets(name, &led, EARLIEST)?;
    let end = cluster.list_offsets(name, &led, LATEST)?;
    let mut table = Table::new(&["PARTITION", "LEADER", "REPLICAS", "IN SYNC", "START", "END", "RECORDS"]);
    let ids = |ids: &[i32]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    for partition in &topic.partitions {
        let at = |offsets: &std::collections::HashMap<i32, i64>| offsets.get(&partition.index).copied();
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
    let request = DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: RESOURCE_TOPIC,
            resource_name: Text::copied(name),
            configuration_keys: None,
        }],
        ..DescribeConfigsRequest::default()
    };
    let answer = cluster.any()?.call(&request)?;
    let mut configs = Table::new(&["CONFIG", "VALUE", ""]);
    for result in &answer.results {
        check(result.error_code, result.error_message.as_ref())?;
        let mut all: Vec<_> = result.configs.iter().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        for config in all {
            let value = config.value.as_ref().map(ToString::to_string).unwrap_or_default();
            let note = if config.config_source == SOURCE_TOPIC { "set" } else { "" };
            configs.row([config.name.to_string(), value, note.into()]);
        }
    }
    show(
        output,
        || format!("{name}\n\n{}\n{}", table.to_text(), configs.to_text()),
        || json!({"topic": name, "partitions": table.to_json(), "configs": configs.to_json()}),
    )
}

fn delete(cluster: &mut Cluster, name: &str) -> anyhow::Result<()> {
    let controller = cluster.controller()?;
    let version = controller.version::<DeleteTopicsRequest>()?;
    for result in &controller.call(&delete_topics(version, [name], TIMEOUT_MS))?.responses {
        check(result.error_code, result.error_message.as_ref())?;
    }
    Ok(())
}

fn alter(cluster: &mut Cluster, name: &str, configs: Vec<(String, String)>) -> anyhow::Result<()> {
    const SET: i8 = 0;
    const DELETE: i8 = 1;
    let change = |(name, value): (String, String)| AlterableConfig {
        name: Text::from(name),
        config_operation: if value.is_empty() { DELETE } else { SET },
        value: if value.is_empty() { None } else { Some(Text::from(value)) },
    };
    let request = IncrementalAlterConfigsRequest {
        resources: vec![AlterConfigsResource {
            resource_type: RESOURCE_TOPIC,
            resource_name: Text::copied(name),
            configs: configs.into_iter().map(change).collect(),
        }],
        validate_only: false,
    };
    for result in &cluster.controller()?.call(&request)?.responses {
        check(result.error_code, result.error_message.as_ref())?;
    }
    Ok(())
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
