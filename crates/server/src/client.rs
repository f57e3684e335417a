//! A small blocking Kafka client for the commands: connections, versions, metadata, coordinators.
//!
//! It asks one thing at a time. Answers come from a server that may be any Kafka: nothing is believed of them beyond
//! what their bytes back.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use bytes::Bytes;
pub use security::Security;
use security::{LogIn, Stream};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::metadata_response::{MetadataResponseBroker, MetadataResponseTopic};
use wire::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, ApiVersionsRequest,
    ApiVersionsResponse, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse,
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteGroupsRequest, DeleteGroupsResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    DescribeConfigsRequest, DescribeConfigsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, FetchRequest, FetchResponse,
    FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest, HeartbeatResponse,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse, ListOffsetsRequest,
    ListOffsetsResponse, MetadataRequest, MetadataResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse, ProduceRequest, ProduceResponse, SaslAuthenticateRequest,
    SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse, SyncGroupRequest,
    SyncGroupResponse,
};
use wire::{ApiKey, DecodeError, EncodeError, ErrorCode, Message, Reader, Text, frame};

mod security;

const CLIENT_ID: &str = "mainstem-cli";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than a server makes us wait on purpose: the join of a group may take its rebalance time-out.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// Larger answers are not believed.
const ANSWER_BYTES_MAX: usize = 512 * 1024 * 1024;
/// What may pass by itself (a coordinator that loads, a topic that is being made) is asked again for so long.
pub const RETRY_FOR: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Why a command cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to {address}: {error}")]
    Connect { address: String, error: io::Error },
    #[error("lost the connection to {address}: {error}")]
    Lost { address: String, error: io::Error },
    #[error("{address} did not answer in {} s", ANSWER_TIMEOUT.as_secs())]
    Silent { address: String },
    #[error("{address} answered what cannot be read: {error}")]
    Garbled { address: String, error: DecodeError },
    #[error("{address} answered out of order; is it a Kafka server?")]
    OutOfOrder { address: String },
    #[error("the request cannot be written in the server's version: {0}")]
    Encode(#[from] EncodeError),
    #[error(
        "{address} speaks {api} in versions {} to {}, needed is one of {} to {}",
        theirs.0, theirs.1, ours.start(), ours.end()
    )]
    Version { address: String, api: &'static str, theirs: (i16, i16), ours: RangeInclusive<i16> },
    #[error("{address} does not know {api}")]
    UnknownApi { address: String, api: &'static str },
    #[error("{address} refused the log-in: {why}")]
    LogIn { address: String, why: String },
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

/// An error that the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaError {
    pub code: i16,
    pub message: Option<String>,
}

impl std::error::Error for KafkaError {}

impl fmt::Display for KafkaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.known(), &self.message) {
            (Some(known), None) => write!(f, "{}: {}", known.name(), known.message()),
            (Some(known), Some(message)) => write!(f, "{}: {message}", known.name()),
            (None, Some(message)) => write!(f, "error {}: {message}", self.code),
            (None, None) => write!(f, "error {}", self.code),
        }
    }
}

impl KafkaError {
    pub fn known(&self) -> Option<ErrorCode> {
        ErrorCode::from_code(self.code)
    }

    pub fn is_retriable(&self) -> bool {
        self.known().is_some_and(ErrorCode::is_retriable)
    }
}

impl ClientError {
    /// The server's error code, if it is one.
    pub fn code(&self) -> Option<ErrorCode> {
        if let ClientError::Kafka(error) = self { error.known() } else { None }
    }
}

/// The error that `code` stands for, unless it stands for none.
pub fn check(code: i16, message: Option<&Text>) -> Result<(), KafkaError> {
    if code == ErrorCode::None.code() {
        return Ok(());
    }
    let message = message.filter(|message| !message.is_empty()).map(ToString::to_string);
    Err(KafkaError { code, message })
}

/// A request, its answer, and the versions whose fields the commands use.
pub trait Request: Message {
    type Answer: Message;
    const API: ApiKey;
    const OURS: RangeInclusive<i16>;
}

macro_rules! requests {
    ($($api:ident $request:ident $answer:ident $ours:expr;)*) => {
        $(impl Request for $request {
            type Answer = $answer;
            const API: ApiKey = ApiKey::$api;
            const OURS: RangeInclusive<i16> = $ours;
        })*
    };
}

// Where an upper bound is below Kafka's newest version, the next one names topics by id.
requests! {
    Metadata MetadataRequest MetadataResponse 4..=12;
    CreateTopics CreateTopicsRequest CreateTopicsResponse 4..=7;
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse 6..=6;
    CreatePartitions CreatePartitionsRequest CreatePartitionsResponse 0..=3;
    DescribeConfigs DescribeConfigsRequest DescribeConfigsResponse 1..=4;
    IncrementalAlterConfigs IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse 0..=1;
    ListOffsets ListOffsetsRequest ListOffsetsResponse 1..=8;
    Produce ProduceRequest ProduceResponse 3..=12;
    Fetch FetchRequest FetchResponse 4..=12;
    FindCoordinator FindCoordinatorRequest FindCoordinatorResponse 4..=6;
    ListGroups ListGroupsRequest ListGroupsResponse 0..=5;
    ConsumerGroupDescribe ConsumerGroupDescribeRequest ConsumerGroupDescribeResponse 0..=1;
    DescribeGroups DescribeGroupsRequest DescribeGroupsResponse 0..=5;
    DeleteGroups DeleteGroupsRequest DeleteGroupsResponse 0..=2;
    OffsetFetch OffsetFetchRequest OffsetFetchResponse 8..=9;
    OffsetCommit OffsetCommitRequest OffsetCommitResponse 2..=9;
    JoinGroup JoinGroupRequest JoinGroupResponse 2..=9;
    SyncGroup SyncGroupRequest SyncGroupResponse 0..=5;
    Heartbeat HeartbeatRequest HeartbeatResponse 0..=4;
    LeaveGroup LeaveGroupRequest LeaveGroupResponse 3..=5;
    SaslHandshake SaslHandshakeRequest SaslHandshakeResponse 1..=1;
    SaslAuthenticate SaslAuthenticateRequest SaslAuthenticateResponse 0..=2;
    DescribeUserScramCredentials DescribeUserScramCredentialsRequest DescribeUserScramCredentialsResponse 0..=0;
    AlterUserScramCredentials AlterUserScramCredentialsRequest AlterUserScramCredentialsResponse 0..=0;
}

/// A connection to one server.
#[derive(Debug)]
pub struct Peer {
    address: String,
    stream: Stream,
    versions: HashMap<i16, (i16, i16)>,
    correlation_id: i32,
}

impl Peer {
    /// Connects, asks which versions the server speaks, and logs in where that is wanted.
    pub fn connect(address: &str, security: &Security) -> Result<Peer, ClientError> {
        let failed = |error| ClientError::Connect { address: address.into(), error };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in address.to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&candidate, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(failed)?;
                    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
                    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
                    let stream = security.wrap(stream, address).map_err(failed)?;
                    let mut peer =
                        Peer { address: address.into(), stream, versions: HashMap::new(), correlation_id: 0 };
                    peer.ask_versions()?;
                    if let Some(log_in) = &security.log_in {
                        peer.log_in(log_in)?;
                    }
                    return Ok(peer);
                }
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    fn ask_versions(&mut self) -> Result<(), ClientError> {
        let request = ApiVersionsRequest {
            client_software_name: Text::from_static(CLIENT_ID),
            client_software_version: Text::from_static(env!("CARGO_PKG_VERSION")),
            ..ApiVersionsRequest::default()
        };
        // A server that does not know version 3 answers that with version 0.
        for version in [3, 0] {
            self.send(ApiKey::ApiVersions, version, &request)?;
            let mut reader = self.receive(ApiKey::ApiVersions, version)?;
            let body = reader.take(reader.remaining()).map_err(|error| self.garbled(error))?;
            let refused = body.starts_with(&ErrorCode::UnsupportedVersion.code().to_be_bytes());
            if refused && version > 0 {
                continue;
            }
            let answer = ApiVersionsResponse::decode(&mut Reader::new(body), version)
                .map_err(|error| self.garbled(error))?;
            check(answer.error_code, None)?;
            let versions =
                answer.api_keys.iter().map(|api| (api.api_key, (api.min_version, api.max_version)));
            self.versions = versions.collect();
            break;
        }
        Ok(())
    }

    fn log_in(&mut self, log_in: &LogIn) -> Result<(), ClientError> {
        let wanted = log_in.mechanism().name();
        let answer = self.call(&SaslHandshakeRequest { mechanism: Text::from_static(wanted) })?;
        let refused = |address: &str, why| ClientError::LogIn { address: address.to_owned(), why };
        if answer.error_code == ErrorCode::UnsupportedSaslMechanism.code() {
            let offered: Vec<&str> = answer.mechanisms.iter().map(Text::as_str).collect();
            let why = format!("it takes {}, not {wanted}", offered.join(", "));
            return Err(refused(&self.address, why));
        }
        check(answer.error_code, None)?;
        let ended = log_in.run(|message| {
            let answer = self.call(&SaslAuthenticateRequest { auth_bytes: Bytes::from(message) })?;
            match check(answer.error_code, answer.error_message.as_ref()) {
                Ok(()) => Ok(String::from_utf8_lossy(&answer.auth_bytes).into_owned()),
                Err(error) => Err(refused(&self.address, error.to_string())),
            }
        })?;
        ended.map_err(|why| refused(&self.address, why))
    }

    /// The highest version of a request that both speak.
    pub fn version<Q: Request>(&self) -> Result<i16, ClientError> {
        let (address, api, ours) = (self.address.clone(), Q::API.name(), Q::OURS);
        let Some(&theirs) = self.versions.get(&Q::API.code()) else {
            return Err(ClientError::UnknownApi { address, api });
        };
        let version = theirs.1.min(*ours.end());
        if version < theirs.0 || version < *ours.start() {
            return Err(ClientError::Version { address, api, theirs, ours });
        }
        Ok(version)
    }

    /// Asks, and waits for the answer.
    pub fn call<Q: Request>(&mut self, request: &Q) -> Result<Q::Answer, ClientError> {
        let version = self.version::<Q>()?;
        self.send(Q::API, version, request)?;
        let mut reader = self.receive(Q::API, version)?;
        Q::Answer::decode(&mut reader, version).map_err(|error| self.garbled(error))
    }

    /// Sends what is not answered (`acks=0`).
    pub fn tell<Q: Request>(&mut self, request: &Q) -> Result<(), ClientError> {
        let version = self.version::<Q>()?;
        self.send(Q::API, version, request)
    }

    fn send<M: Message>(&mut self, api: ApiKey, version: i16, request: &M) -> Result<(), ClientError> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let client = Text::from_static(CLIENT_ID);
        let chunks = frame::encode_request(api, version, self.correlation_id, Some(&client), request)?;
        for part in &chunks.parts {
            self.stream.write_all(part).map_err(|error| self.lost(error))?;
        }
        self.stream.flush().map_err(|error| self.lost(error))?;
        Ok(())
    }

    /// The next answer, read up to its message.
    fn receive(&mut self, api: ApiKey, version: i16) -> Result<Reader, ClientError> {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).map_err(|error| self.lost(error))?;
        let size = usize::try_from(i32::from_be_bytes(size)).unwrap_or(usize::MAX);
        if size > ANSWER_BYTES_MAX {
            return Err(ClientError::OutOfOrder { address: self.address.clone() });
        }
        let mut bytes = Vec::new();
        // Grows with what comes, not with what is claimed.
        let read =
            (&mut self.stream).take(size as u64).read_to_end(&mut bytes).map_err(|error| self.lost(error))?;
        if read < size {
            return Err(self.lost(io::ErrorKind::UnexpectedEof.into()));
        }
        let mut reader = Reader::new(Bytes::from(bytes));
        let correlation_id =
            frame::decode_response_header(&mut reader, api, version).map_err(|error| self.garbled(error))?;
        if correlation_id != self.correlation_id {
            return Err(ClientError::OutOfOrder { address: self.address.clone() });
        }
        Ok(reader)
    }

    fn lost(&self, error: io::Error) -> ClientError {
        let address = self.address.clone();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Silent { address },
            io::ErrorKind::UnexpectedEof => {
                ClientError::Lost { address, error: io::Error::other("the server closed it") }
            }
            _ => ClientError::Lost { address, error },
        }
    }

    fn garbled(&self, error: DecodeError) -> ClientError {
        ClientError::Garbled { address: self.address.clone(), error }
    }
}

/// A topic as Metadata has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub name: String,
    pub is_internal: bool,
    /// In the order of their numbers.
    pub partitions: Vec<Partition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub index: i32,
    pub leader: i32,
    pub leader_epoch: i32,
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
}

/// All servers that the one given knows.
#[derive(Debug)]
pub struct Cluster {
    bootstrap: String,
    security: Security,
    addresses: HashMap<i32, String>,
    controller: i32,
    peers: HashMap<String, Peer>,
}

impl Cluster {
    /// Connects to the server at `bootstrap`.
    pub fn connect(bootstrap: &str, security: Security) -> Result<Cluster, ClientError> {
        let peers = HashMap::from([(bootstrap.to_owned(), Peer::connect(bootstrap, &security)?)]);
        let (bootstrap, addresses) = (bootstrap.to_owned(), HashMap::new());
        let mut cluster = Cluster { bootstrap, security, addresses, controller: -1, peers };
        cluster.metadata(Some(&[]), false)?;
        Ok(cluster)
    }

    /// The server given at first.
    pub fn any(&mut self) -> Result<&mut Peer, ClientError> {
        self.at(self.bootstrap.clone())
    }

    /// A server by its id.
    pub fn node(&mut self, id: i32) -> Result<&mut Peer, ClientError> {
        // A server that Metadata did not name is most likely the one we talk to.
        let address = self.addresses.get(&id).unwrap_or(&self.bootstrap).clone();
        self.at(address)
    }

    /// The server that changes topics.
    pub fn controller(&mut self) -> Result<&mut Peer, ClientError> {
        self.node(self.controller)
    }

    fn at(&mut self, address: String) -> Result<&mut Peer, ClientError> {
        match self.peers.entry(address) {
            std::collections::hash_map::Entry::Occupied(peer) => Ok(peer.into_mut()),
            std::collections::hash_map::Entry::Vacant(place) => {
                let peer = Peer::connect(place.key(), &self.security)?;
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
        let address = |broker: &MetadataResponseBroker| {
            if broker.host.contains(':') {
                format!("[{}]:{}", broker.host, broker.port)
            } else {
                format!("{}:{}", broker.host, broker.port)
            }
        };
        self.addresses = answer.brokers.iter().map(|broker| (broker.node_id, address(broker))).collect();
        self.controller = answer.controller_id;
        Ok(answer)
    }

    /// All topics.
    pub fn topics(&mut self) -> Result<Vec<Topic>, ClientError> {
        let answer = self.metadata(None, false)?;
        let mut topics =
            answer.topics.into_iter().map(|answer| topic(answer, false)).collect::<Result<Vec<_>, _>>()?;
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// One topic with a leader for each partition, created first if `create` and the server does that.
    pub fn topic(&mut self, name: &str, create: bool) -> Result<Topic, ClientError> {
        self.topic_with(name, create, true)
    }

    /// One topic as it is: an offline partition has the leader -1.
    pub fn topic_as_it_is(&mut self, name: &str) -> Result<Topic, ClientError> {
        self.topic_with(name, false, false)
    }

    fn topic_with(&mut self, name: &str, create: bool, leaders: bool) -> Result<Topic, ClientError> {
        retried(|| {
            let answer = self.metadata(Some(&[name]), create)?;
            let missing = KafkaError { code: ErrorCode::UnknownTopicOrPartition.code(), message: None };
            let found = topic(answer.topics.into_iter().next().ok_or(missing)?, leaders);
            match found {
                // Without creation it does not come by itself.
                Err(error) if !create && error.known() == Some(ErrorCode::UnknownTopicOrPartition) => {
                    Err(Retry::Not(error.into()))
                }
                found => Ok(found?),
            }
        })
    }

    /// The server that coordinates a group.
    pub fn coordinator(&mut self, group: &str) -> Result<i32, ClientError> {
        retried(|| {
            let request = FindCoordinatorRequest {
                coordinator_keys: vec![Text::copied(group)],
                ..FindCoordinatorRequest::default()
            };
            let answer = self.any()?.call(&request)?;
            let missing = KafkaError { code: ErrorCode::CoordinatorNotAvailable.code(), message: None };
            let found = answer.coordinators.first().ok_or(missing)?;
            check(found.error_code, found.error_message.as_ref())?;
            let address = if found.host.contains(':') {
                format!("[{}]:{}", found.host, found.port)
            } else {
                format!("{}:{}", found.host, found.port)
            };
            self.addresses.insert(found.node_id, address);
            Ok(found.node_id)
        })
    }

    /// Asks the coordinator of `group`, again while it says that it does not know yet.
    pub fn ask_coordinator<Q: Request>(
        &mut self,
        group: &str,
        request: &Q,
        error_of: impl Fn(&Q::Answer) -> Result<(), KafkaError>,
    ) -> Result<Q::Answer, ClientError> {
        retried(|| {
            let node = self.coordinator(group)?;
            let answer = self.node(node)?.call(request)?;
            error_of(&answer)?;
            Ok(answer)
        })
    }

    /// The offsets of partitions at `timestamp`: -2 the earliest, -1 the end, else the first not before it.
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
}

/// Partitions by the server that leads them.
pub fn by_leader(partitions: &[Partition]) -> HashMap<i32, Vec<i32>> {
    let mut leaders: HashMap<i32, Vec<i32>> = HashMap::new();
    for partition in partitions {
        leaders.entry(partition.leader).or_default().push(partition.index);
    }
    leaders
}

/// `leaders`: whether a partition without a leader is an error.
fn topic(answer: MetadataResponseTopic, leaders: bool) -> Result<Topic, KafkaError> {
    check(answer.error_code, None)?;
    let mut partitions = Vec::new();
    for partition in answer.partitions {
        // A replica that is down is no error for us.
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
    Ok(Topic { name, is_internal: answer.is_internal, partitions })
}

/// Whether to try again.
pub enum Retry {
    /// The usual case: if the server says that it may pass.
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

/// Calls again while the server answers with an error that may pass, for [`RETRY_FOR`] at most.
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
    fn errors_have_kafkas_names() {
        let error = check(36, None).unwrap_err();
        assert_eq!(error.to_string(), "TOPIC_ALREADY_EXISTS: Topic with this name already exists.");
        let error = check(37, Some(&Text::from_static("too many"))).unwrap_err();
        assert_eq!(error.to_string(), "INVALID_PARTITIONS: too many");
        assert_eq!(check(31_000, None).unwrap_err().to_string(), "error 31000");
        check(0, Some(&Text::from_static("fine"))).unwrap();
    }

    #[test]
    fn our_versions_are_ones_that_the_wire_has() {
        fn known<Q: Request>() {
            for (end, versions) in [(*Q::OURS.start(), Q::VERSIONS), (*Q::OURS.end(), Q::Answer::VERSIONS)] {
                assert!(versions.contains(&end), "{} {end}", Q::NAME);
            }
        }
        known::<MetadataRequest>();
        known::<CreateTopicsRequest>();
        known::<ProduceRequest>();
        known::<FetchRequest>();
        known::<JoinGroupRequest>();
        known::<LeaveGroupRequest>();
        known::<OffsetCommitRequest>();
        known::<OffsetFetchRequest>();
    }

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
