//! `mainstem broker`: list, config, alter; and `mainstem log-dirs`.

use anyhow::bail;
use client::check;
use serde_json::json;
use wire::Text;
use wire::messages::DescribeLogDirsRequest;
use wire::messages::describe_log_dirs_request::DescribableLogDirTopic;
use wire::messages::describe_log_dirs_response::DescribeLogDirsResult;

use super::cluster::Cluster;
use super::{Table, configs, connect, show};
use crate::arguments::{Bootstrap, BrokerVerb, LogDirsArguments, Output};

/// Runs the command against a server.
pub fn broker(bootstrap: &Bootstrap, verb: BrokerVerb) -> anyhow::Result<()> {
    let (mut cluster, output) = (connect(bootstrap)?, bootstrap.shown.output);
    match verb {
        BrokerVerb::List => {
            let mut table = Table::new(&["BROKER", "ADDRESS", ""]);
            for id in cluster.brokers() {
                let note = if cluster.controller_id() == id { "controller" } else { "" };
                table.row([id.to_string(), cluster.address_of(id).to_owned(), note.into()]);
            }
            show(output, || table.to_text(), || table.to_json())
        }
        BrokerVerb::Config { id, all } => {
            let name = id.map_or(String::new(), |id| id.to_string());
            let table = configs::describe(of(&mut cluster, id)?, configs::Kind::Broker, &name, all)?;
            show(output, || table.to_text(), || table.to_json())
        }
        BrokerVerb::Alter { id, configs } => {
            let name = id.map_or(String::new(), |id| id.to_string());
            configs::alter(of(&mut cluster, id)?, configs::Kind::Broker, &name, configs)?;
            let what = id.map_or("all brokers".to_owned(), |id| format!("broker {id}"));
            show(output, || format!("changed {what}\n"), || json!({"changed": what}))
        }
    }
}

/// The broker, or any of them for what is set for all.
fn of(cluster: &mut Cluster, id: Option<i32>) -> anyhow::Result<&mut super::peer::Peer> {
    let Some(id) = id else { return Ok(cluster.controller()?) };
    known(cluster, id)?;
    Ok(cluster.node(id)?)
}

fn known(cluster: &Cluster, id: i32) -> anyhow::Result<()> {
    let ids = cluster.brokers();
    if !ids.contains(&id) {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        bail!("there is no broker {id}: there are {}", ids.join(", "));
    }
    Ok(())
}

/// `mainstem log-dirs`: the log directories of brokers, or the partitions of topics in them.
pub fn log_dirs(bootstrap: &Bootstrap, asked: &LogDirsArguments) -> anyhow::Result<()> {
    let (mut cluster, output) = (connect(bootstrap)?, bootstrap.shown.output);
    let brokers = if asked.brokers.is_empty() { cluster.brokers() } else { asked.brokers.clone() };
    let topics = match asked.topics.as_slice() {
        [] => None,
        names => Some(
            names.iter().map(|name| partitions(&mut cluster, name)).collect::<anyhow::Result<Vec<_>>>()?,
        ),
    };
    let mut found = Vec::new();
    for broker in brokers {
        known(&cluster, broker)?;
        let answer = cluster.node(broker)?.call(&DescribeLogDirsRequest { topics: topics.clone() })?;
        check(answer.error_code, None)?;
        found.extend(answer.results.into_iter().map(|directory| (broker, directory)));
    }
    shown(&found, topics.is_some(), output)
}

fn partitions(cluster: &mut Cluster, name: &str) -> anyhow::Result<DescribableLogDirTopic> {
    let partitions = cluster.topic_as_it_is(name)?.partitions.iter().map(|of| of.index).collect();
    Ok(DescribableLogDirTopic { topic: Text::copied(name), partitions })
}

fn shown(found: &[(i32, DescribeLogDirsResult)], by_partition: bool, output: Output) -> anyhow::Result<()> {
    let mut directories = Table::new(&["BROKER", "DIRECTORY", "PARTITIONS", "BYTES", "DISK", "FREE", ""]);
    let mut sizes = Table::new(&["TOPIC", "PARTITION", "BROKER", "BYTES", "DIRECTORY"]);
    // A server that does not know says -1.
    let or_dash = |bytes: i64| if bytes < 0 { "-".to_owned() } else { bytes.to_string() };
    for (broker, directory) in found {
        let partitions: Vec<_> = directory
            .topics
            .iter()
            .flat_map(|topic| topic.partitions.iter().map(move |partition| (&topic.name, partition)))
            .collect();
        let note =
            check(directory.error_code, None).map_or_else(|error| error.to_string(), |()| String::new());
        directories.row([
            broker.to_string(),
            directory.log_dir.to_string(),
            partitions.len().to_string(),
            partitions.iter().map(|(_, of)| of.partition_size).sum::<i64>().to_string(),
            or_dash(directory.total_bytes),
            or_dash(directory.usable_bytes),
            note,
        ]);
        for (topic, of) in partitions {
            sizes.row([
                topic.to_string(),
                of.partition_index.to_string(),
                broker.to_string(),
                of.partition_size.to_string(),
                directory.log_dir.to_string(),
            ]);
        }
    }
    let table = if by_partition { sizes } else { directories };
    show(output, || table.to_text(), || table.to_json())
}
