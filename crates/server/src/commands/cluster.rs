//! The servers that the commands talk to: metadata, coordinators, leaders, and retries.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use client::{Coordinated, KafkaError, Request, Security, address, check, coordinator_of, find_coordinator};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::metadata_response::{MetadataResponseBroker, MetadataResponseTopic};
use wire::messages::{FindCoordinatorRequest, ListOffsetsRequest, MetadataRequest, MetadataResponse};
use wire::{ErrorCode, Text};

use super::peer::{ClientError, PATIENCE, Patience, Peer};
use crate::arguments::Place;

/// Time for which a request is retried after an error that may pass (a coordinator that loads, a topic that is being
/// created).
pub const RETRY_FOR: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Timestamps of ListOffsets that stand for the first offset and the end.
pub const EARLIEST: i64 = -2;
pub const LATEST: i64 = -1;

/// A topic as Metadata returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub name: String,
    /// As Kafka's tools print it: base64 without padding.
    pub id: String,
    pub is_internal: bool,
    /// Ordered by index.
    pub partitions: Vec<Partition>,
}

impl Topic {
    /// The partitions with these indexes, or all if there are none.
    pub fn chosen(self, indexes: &[i32]) -> anyhow::Result<Vec<Partition>> {
        let mut partitions = self.partitions;
        if let Some(unknown) = indexes.iter().find(|index| partitions.iter().all(|of| of.index != **index)) {
            anyhow::bail!("{} has no partition {unknown}: it has {}", self.name, partitions.len());
        }
        partitions.retain(|of| indexes.is_empty() || indexes.contains(&of.index));
        Ok(partitions)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub index: i32,
    pub leader: i32,
    pub leader_epoch: i32,
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
}

/// All servers that the first server knows.
#[derive(Debug)]
pub struct Cluster {
    bootstrap: String,
    security: Security,
    patience: Patience,
    addresses: HashMap<i32, String>,
    controller: i32,
    peers: HashMap<String, Peer>,
}

impl Cluster {
    /// Connects to the server at `bootstrap`.
    pub fn connect(bootstrap: &str, security: Security) -> Result<Cluster, ClientError> {
        Cluster::connect_within(bootstrap, security, PATIENCE)
    }

    /// As [`Cluster::connect`], with these time-outs.
    pub fn connect_within(
        bootstrap: &str,
        security: Security,
        patience: Patience,
    ) -> Result<Cluster, ClientError> {
        let peer = Peer::connect_within(bootstrap, &security, patience)?;
        let peers = HashMap::from([(bootstrap.to_owned(), peer)]);
        let (bootstrap, addresses) = (bootstrap.to_owned(), HashMap::new());
        let mut cluster = Cluster { bootstrap, security, patience, addresses, controller: -1, peers };
        cluster.metadata(Some(&[]), false)?;
        Ok(cluster)
    }

    /// The server at the bootstrap address.
    pub fn any(&mut self) -> Result<&mut Peer, ClientError> {
        self.at(self.bootstrap.clone())
    }

    /// The server with this id.
    pub fn node(&mut self, id: i32) -> Result<&mut Peer, ClientError> {
        self.at(self.address_of(id).to_owned())
    }

    /// The controller, which changes topics.
    pub fn controller(&mut self) -> Result<&mut Peer, ClientError> {
        self.node(self.controller)
    }

    fn at(&mut self, address: String) -> Result<&mut Peer, ClientError> {
        match self.peers.entry(address) {
            Entry::Occupied(peer) => Ok(peer.into_mut()),
            Entry::Vacant(place) => {
                let peer = Peer::connect_within(place.key(), &self.security, self.patience)?;
                Ok(place.insert(peer))
            }
        }
    }

    fn metadata(&mut self, names: Option<&[&str]>, create: bool) -> Result<MetadataResponse, ClientError> {
        let named =
            |name: &&str| MetadataRequestTopic { name: Some(Text::copied(name)), ..Default::default() };
        let request = MetadataRequest {
            topics: names.map(|names| names.iter().map(named).collect()),
            allow_auto_topic_creation: create,
            ..MetadataRequest::default()
        };
        let answer = self.any()?.call(&request)?;
        check(answer.error_code, None)?;
        let address = |broker: &MetadataResponseBroker| address(&broker.host, broker.port);
        self.addresses = answer.brokers.iter().map(|broker| (broker.node_id, address(broker))).collect();
        self.controller = answer.controller_id;
        Ok(answer)
    }

    /// The ids of all servers, in order.
    pub fn brokers(&self) -> Vec<i32> {
        let mut ids: Vec<i32> = self.addresses.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The id of the controller.
    pub fn controller_id(&self) -> i32 {
        self.controller
    }

    /// Where the server with this id is reached. One that Metadata does not list is most likely the bootstrap server.
    pub fn address_of(&self, id: i32) -> &str {
        self.addresses.get(&id).unwrap_or(&self.bootstrap)
    }

    /// All topics in their current state. An offline partition has the leader -1.
    pub fn topics(&mut self) -> Result<Vec<Topic>, ClientError> {
        let answer = self.metadata(None, false)?;
        let mut topics =
            answer.topics.into_iter().map(|answer| topic(answer, false)).collect::<Result<Vec<_>, _>>()?;
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// One topic. Every partition must have a leader. With `create`, the server creates a missing topic if it is set to
    /// do so.
    pub fn topic(&mut self, name: &str, create: bool) -> Result<Topic, ClientError> {
        self.topic_with(name, create, true)
    }

    /// One topic in its current state. An offline partition has the leader -1.
    pub fn topic_as_it_is(&mut self, name: &str) -> Result<Topic, ClientError> {
        self.topic_with(name, false, false)
    }

    fn topic_with(&mut self, name: &str, create: bool, leaders: bool) -> Result<Topic, ClientError> {
        retried(|| {
            let answer = self.metadata(Some(&[name]), create)?;
            let missing = KafkaError { code: ErrorCode::UnknownTopicOrPartition.code(), message: None };
            let found = topic(answer.topics.into_iter().next().ok_or(missing)?, leaders);
            match found {
                // Without `create`, a missing topic does not appear by itself.
                Err(error) if !create && error.known() == Some(ErrorCode::UnknownTopicOrPartition) => {
                    Err(Retry::Not(error.into()))
                }
                found => Ok(found?),
            }
        })
    }

    /// How many partitions each of these topics has, 0 where there is none.
    pub fn partition_counts<'a>(
        &mut self,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeMap<String, usize>, ClientError> {
        let names: Vec<&str> = names.map(String::as_str).collect();
        let answer = self.metadata(Some(&names), false)?;
        let mut counts: BTreeMap<String, usize> = names.iter().map(|name| ((*name).to_owned(), 0)).collect();
        for topic in answer.topics {
            let name = topic.name.map(String::from).unwrap_or_default();
            counts.entry(name).and_modify(|count| *count = topic.partitions.len());
        }
        Ok(counts)
    }

    /// The server that coordinates a group or a transactional id.
    pub fn coordinator(&mut self, of: Coordinated, key: &str) -> Result<i32, ClientError> {
        retried(|| {
            let any = self.any()?;
            let version = any.version::<FindCoordinatorRequest>()?;
            let answer = any.call(&find_coordinator(version, of, &Text::copied(key)))?;
            let found = coordinator_of(version, &answer)?;
            self.addresses.insert(found.node, found.address);
            Ok(found.node)
        })
    }

    /// Sends a request to the coordinator of `group`. Retries while the coordinator is not available.
    pub fn ask_coordinator<Q: Request>(
        &mut self,
        group: &str,
        request: &Q,
        error_of: impl Fn(&Q::Answer) -> Result<(), KafkaError>,
    ) -> Result<Q::Answer, ClientError> {
        self.ask_coordinator_of((Coordinated::Group, group), request, error_of)
    }

    /// As [`Cluster::ask_coordinator`], of a group or a transactional id.
    pub fn ask_coordinator_of<Q: Request>(
        &mut self,
        (of, key): (Coordinated, &str),
        request: &Q,
        error_of: impl Fn(&Q::Answer) -> Result<(), KafkaError>,
    ) -> Result<Q::Answer, ClientError> {
        retried(|| {
            let node = self.coordinator(of, key)?;
            let answer = self.node(node)?.call(request)?;
            error_of(&answer)?;
            Ok(answer)
        })
    }

    /// The offsets of partitions at `timestamp`: [`EARLIEST`], [`LATEST`], or that of the first record at or after it, -1 if there is
    /// none.
    pub fn list_offsets(
        &mut self,
        topic: &str,
        partitions: &[Partition],
        timestamp: i64,
    ) -> Result<HashMap<i32, i64>, ClientError> {
        let mut offsets = HashMap::new();
        for (leader, indexes) in by_leader(partitions) {
            let ask = |&partition_index: &i32| ListOffsetsPartition {
                partition_index,
                timestamp,
                ..ListOffsetsPartition::default()
            };
            let request = ListOffsetsRequest {
                replica_id: -1,
                topics: vec![ListOffsetsTopic {
                    name: Text::copied(topic),
                    partitions: indexes.iter().map(ask).collect(),
                }],
                ..ListOffsetsRequest::default()
            };
            let answer = retried(|| {
                let answer = self.node(leader)?.call(&request)?;
                for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
                    check(partition.error_code, None)?;
                }
                Ok(answer)
            })?;
            let all = answer.topics.iter().flat_map(|topic| &topic.partitions);
            offsets.extend(all.map(|partition| (partition.partition_index, partition.offset)));
        }
        Ok(offsets)
    }

    /// The offsets of partitions at a place. A time behind the last record is the end.
    pub fn places(
        &mut self,
        topic: &str,
        partitions: &[Partition],
        place: Place,
    ) -> Result<BTreeMap<i32, i64>, ClientError> {
        let timestamp = match place {
            Place::Offset(offset) => {
                return Ok(partitions.iter().map(|partition| (partition.index, offset)).collect());
            }
            Place::Earliest => EARLIEST,
            Place::Latest => LATEST,
            Place::Time(timestamp) => timestamp,
        };
        let found: BTreeMap<i32, i64> =
            self.list_offsets(topic, partitions, timestamp)?.into_iter().collect();
        if found.values().all(|offset| *offset >= 0) {
            return Ok(found);
        }
        let ends = self.list_offsets(topic, partitions, LATEST)?;
        let or_end = |(index, offset): (i32, i64)| match ends.get(&index) {
            Some(end) if offset < 0 => (index, *end),
            _ => (index, offset),
        };
        Ok(found.into_iter().map(or_end).collect())
    }
}

/// The partitions by the id of their leader.
pub fn by_leader(partitions: &[Partition]) -> HashMap<i32, Vec<i32>> {
    let mut leaders: HashMap<i32, Vec<i32>> = HashMap::new();
    for partition in partitions {
        leaders.entry(partition.leader).or_default().push(partition.index);
    }
    leaders
}

/// `leaders` says whether a partition without a leader is an error.
fn topic(answer: MetadataResponseTopic, leaders: bool) -> Result<Topic, KafkaError> {
    check(answer.error_code, None)?;
    let mut partitions = Vec::new();
    for partition in answer.partitions {
        // An unavailable replica is no error for a client.
        let offline = partition.error_code == ErrorCode::LeaderNotAvailable.code() && !leaders;
        if partition.error_code != ErrorCode::ReplicaNotAvailable.code() && !offline {
            check(partition.error_code, None)?;
        }
        partitions.push(Partition {
            index: partition.partition_index,
            leader: partition.leader_id,
            leader_epoch: partition.leader_epoch,
            replicas: partition.replica_nodes,
            in_sync: partition.isr_nodes,
        });
    }
    partitions.sort_by_key(|partition| partition.index);
    let name = answer.name.map(String::from).unwrap_or_default();
    let id = URL_SAFE_NO_PAD.encode(answer.topic_id.as_bytes());
    Ok(Topic { name, id, is_internal: answer.is_internal, partitions })
}

/// Whether a failed call is tried again.
pub enum Retry {
    /// The usual case: retry if the server's error may pass.
    Maybe(ClientError),
    Not(ClientError),
}

impl From<ClientError> for Retry {
    fn from(error: ClientError) -> Retry {
        Retry::Maybe(error)
    }
}

impl From<KafkaError> for Retry {
    fn from(error: KafkaError) -> Retry {
        Retry::Maybe(error.into())
    }
}

/// Repeats a call while the server answers with an error that may pass, for at most [`RETRY_FOR`].
pub fn retried<T>(mut call: impl FnMut() -> Result<T, Retry>) -> Result<T, ClientError> {
    let until = Instant::now() + RETRY_FOR;
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(Retry::Maybe(ClientError::Kafka(error)))
                if error.is_retriable() && Instant::now() < until =>
            {
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(Retry::Maybe(error) | Retry::Not(error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_and_the_rest_is_not() {
        let mut calls = 0;
        let result = retried(|| {
            calls += 1;
            if calls < 3 { Err(check(14, None).unwrap_err().into()) } else { Ok(calls) }
        });
        assert_eq!(result.unwrap(), 3);
        let mut calls = 0;
        let result: Result<(), _> = retried(|| {
            calls += 1;
            Err(check(36, None).unwrap_err().into())
        });
        assert_eq!((result.unwrap_err().code(), calls), (Some(ErrorCode::TopicAlreadyExists), 1));
    }
}
