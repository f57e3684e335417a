//! The topics of a test: creation, look-up, removal.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use client::{Properties, Security, address, delete_topics, error_name};
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::{CreateTopicsRequest, DeleteTopicsRequest, ListOffsetsRequest, MetadataRequest};
use wire::{ErrorCode, Text};

use crate::native::connection::{Receiver, Sender, call, connect};

/// Time-out for topics. A server takes some time to create a topic with thousands of partitions.
const TOPICS_TIMEOUT: Duration = Duration::from_secs(120);
/// The timestamps for the end and the beginning of a partition.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const LEADERS_PAUSE: Duration = Duration::from_millis(50);

/// The location of the topics' partitions.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The addresses of the servers.
    pub servers: Vec<String>,
    /// The leader of each topic and partition, as an index into `servers`.
    pub leaders: Vec<Vec<usize>>,
}

pub struct Admin {
    sender: Sender,
    receiver: Receiver,
}

impl Admin {
    /// Connects to the first server of the list that answers.
    pub async fn connect(bootstrap: &str, security: &Security) -> anyhow::Result<Admin> {
        let mut last = None;
        for address in bootstrap.split(',').map(str::trim).filter(|address| !address.is_empty()) {
            match connect(address, security).await {
                Ok((sender, receiver)) => return Ok(Admin { sender, receiver }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(|| anyhow::anyhow!("bootstrap.servers names no server"), Into::into))
    }

    /// The number of servers.
    pub async fn servers(&mut self) -> anyhow::Result<usize> {
        let request = MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() };
        Ok(call(&self.sender, &mut self.receiver, &request).await?.brokers.len())
    }

    pub async fn create_topics(
        &mut self,
        names: &[String],
        partitions: u32,
        replication_factor: i16,
        configs: &Properties,
    ) -> anyhow::Result<()> {
        let config = |(name, value): (&String, &String)| CreatableTopicConfig {
            name: Text::copied(name),
            value: Some(Text::copied(value)),
        };
        let topic = |name: &String| CreatableTopic {
            name: Text::copied(name),
            num_partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
            replication_factor,
            configs: configs.iter().map(config).collect(),
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest {
            topics: names.iter().map(topic).collect(),
            timeout_ms: millis(TOPICS_TIMEOUT),
            ..CreateTopicsRequest::default()
        };
        let answer = call(&self.sender, &mut self.receiver, &request).await?;
        for topic in answer.topics {
            if topic.error_code != 0 {
                let message = topic.error_message.map_or_else(String::new, |message| format!(": {message}"));
                bail!("the topic {} cannot be made: {}{message}", topic.name, error_name(topic.error_code));
            }
        }
        Ok(())
    }

    /// Waits until every partition has a leader.
    pub async fn layout(&mut self, names: &[String], partitions: usize) -> anyhow::Result<Layout> {
        let until = Instant::now() + TOPICS_TIMEOUT;
        loop {
            let named =
                |name: &String| MetadataRequestTopic { name: Some(Text::copied(name)), ..Default::default() };
            let request = MetadataRequest {
                topics: Some(names.iter().map(named).collect()),
                ..MetadataRequest::default()
            };
            let answer = call(&self.sender, &mut self.receiver, &request).await?;
            let mut servers = Vec::new();
            let mut index = HashMap::new();
            for broker in &answer.brokers {
                index.insert(broker.node_id, servers.len());
                servers.push(address(&broker.host, broker.port));
            }
            let mut found: HashMap<String, Vec<Option<usize>>> = HashMap::new();
            for topic in answer.topics {
                let Some(name) = topic.name else { continue };
                let leaders = found.entry(name.to_string()).or_default();
                leaders.resize(partitions, None);
                for partition in topic.partitions {
                    let place =
                        usize::try_from(partition.partition_index).ok().and_then(|at| leaders.get_mut(at));
                    if let Some(place) = place.filter(|_| partition.error_code == 0) {
                        *place = index.get(&partition.leader_id).copied();
                    }
                }
            }
            let leaders: Option<Vec<Vec<usize>>> =
                names.iter().map(|name| found.get(name)?.iter().copied().collect()).collect();
            if let Some(leaders) = leaders {
                return Ok(Layout { servers, leaders });
            }
            if Instant::now() > until {
                bail!("not every partition got a leader within {} s", TOPICS_TIMEOUT.as_secs());
            }
            tokio::time::sleep(LEADERS_PAUSE).await;
        }
    }

    pub async fn delete_topics(&mut self, names: &[String]) -> anyhow::Result<()> {
        let version = self.sender.version::<DeleteTopicsRequest>()?;
        let request = delete_topics(version, names.iter().map(String::as_str), millis(TOPICS_TIMEOUT));
        let answer = call(&self.sender, &mut self.receiver, &request).await.context("removing the topics")?;
        match answer.responses.iter().find(|topic| topic.error_code != 0) {
            None => Ok(()),
            Some(topic) => bail!("a topic cannot be removed: {}", error_name(topic.error_code)),
        }
    }
}

/// Waits until the leaders serve their partitions. A server may name itself as leader slightly before. If it then
/// refused a batch with the next one already behind it, an idempotent producer would have a gap that it cannot close.
pub async fn wait_until_served(layout: &Layout, names: &[String], security: &Security) -> anyhow::Result<()> {
    let until = Instant::now() + TOPICS_TIMEOUT;
    for (address, request) in offset_requests(layout, names, LATEST) {
        let (sender, mut receiver) = connect(address, security).await?;
        loop {
            let answer = call(&sender, &mut receiver, &request).await?;
            let mut codes =
                answer.topics.iter().flat_map(|topic| &topic.partitions).map(|one| one.error_code);
            let Some(code) = codes.find(|code| *code != 0) else { break };
            let passes = ErrorCode::from_code(code).is_some_and(ErrorCode::is_retriable);
            if !passes || Instant::now() > until {
                bail!("{address} does not serve its partitions: {}", error_name(code));
            }
            tokio::time::sleep(LEADERS_PAUSE).await;
        }
        sender.close();
    }
    Ok(())
}

/// The sum of the first offsets of all partitions.
pub async fn first_offsets(layout: &Layout, names: &[String], security: &Security) -> anyhow::Result<u64> {
    let mut sum = 0;
    for (address, request) in offset_requests(layout, names, EARLIEST) {
        let (sender, mut receiver) = connect(address, security).await?;
        let answer = call(&sender, &mut receiver, &request).await?;
        for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
            if partition.error_code != 0 {
                bail!("{address} does not say what it has: {}", error_name(partition.error_code));
            }
            sum += u64::try_from(partition.offset).context("an offset below 0")?;
        }
        sender.close();
    }
    Ok(sum)
}

/// The request for each server that leads some of the partitions.
fn offset_requests<'a>(
    layout: &'a Layout,
    names: &'a [String],
    timestamp: i64,
) -> impl Iterator<Item = (&'a String, ListOffsetsRequest)> {
    layout.servers.iter().enumerate().filter_map(move |(server, address)| {
        let of_topic = |(name, leaders): (&String, &Vec<usize>)| {
            let ours = leaders.iter().enumerate().filter(|(_, leader)| **leader == server);
            let partition = |(index, _): (usize, &usize)| ListOffsetsPartition {
                partition_index: i32::try_from(index).unwrap_or(i32::MAX),
                current_leader_epoch: -1,
                timestamp,
            };
            ListOffsetsTopic { name: Text::copied(name), partitions: ours.map(partition).collect() }
        };
        let topics: Vec<ListOffsetsTopic> = names.iter().zip(&layout.leaders).map(of_topic).collect();
        let any = topics.iter().any(|topic| !topic.partitions.is_empty());
        any.then(|| (address, ListOffsetsRequest { replica_id: -1, topics, ..ListOffsetsRequest::default() }))
    })
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
