//! One client connection as the broker sees it: frames in, answers out, in the order of the requests.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use wire::frame::{self, RequestHeader};
use wire::messages as m;
use wire::{ApiKey, Chunks, Message, Reader};

use crate::api;
use crate::broker::Broker;

/// The answer to one request, still to be awaited. Answers are awaited and sent one after the other, in the order of
/// the requests.
pub type Answer = Pin<Box<dyn Future<Output = Result<Chunks, Refused>> + Send>>;

/// Why a connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Who sent a request.
#[derive(Clone, Debug)]
pub struct Client {
    /// As it calls itself.
    pub id: String,
    /// Its address, as Kafka shows it.
    pub host: String,
}

/// One client connection.
#[derive(Debug)]
pub struct Connection {
    broker: Arc<Broker>,
    peer: SocketAddr,
    local: SocketAddr,
}

/// One request on its way through.
struct Call {
    header: RequestHeader,
    reader: Reader,
    request_bytes: usize,
    begun: Instant,
    broker: Arc<Broker>,
}

impl Call {
    fn decode<M: Message>(&mut self) -> Result<M, Refused> {
        let (name, version) = (self.header.api_key.name(), self.header.version);
        // Bytes behind the message are let pass, as Kafka does: librdkafka's Metadata v13 has some.
        let decoded = M::decode(&mut self.reader, version);
        decoded.map_err(|error| {
            Refused(format!("a {name} request of version {version} cannot be decoded: {error}"))
        })
    }

    fn encode<M: Message>(&self, message: &M) -> Result<Chunks, Refused> {
        let RequestHeader { api_key, version, correlation_id, .. } = self.header;
        let encoded = frame::encode_response(correlation_id, api_key, version, message).map_err(|error| {
            let name = api_key.name();
            tracing::error!(api = name, version, %error, "an answer cannot be encoded, which is a bug");
            Refused(format!("the answer to a {name} request of version {version} cannot be encoded"))
        })?;
        if let Some(metrics) = self.broker.metrics.of(api_key) {
            metrics.requests.inc();
            metrics.bytes_in.inc_by(self.request_bytes as u64);
            metrics.bytes_out.inc_by(encoded.len() as u64);
            metrics.seconds.observe(self.begun.elapsed().as_secs_f64());
        }
        Ok(encoded)
    }

    /// An answer that depends on nothing that earlier requests may still change.
    fn ready<M: Message>(self, message: M) -> Answer {
        let encoded = self.encode(&message);
        Box::pin(std::future::ready(encoded))
    }

    /// An answer that is worked out when its turn comes: it sees what the requests before it did.
    fn later<M: Message + Send + Sync + 'static>(
        self,
        work: impl Future<Output = M> + Send + 'static,
    ) -> Answer {
        Box::pin(async move {
            let message = work.await;
            self.encode(&message)
        })
    }
}

impl Connection {
    pub(crate) fn new(broker: Arc<Broker>, peer: SocketAddr, local: SocketAddr) -> Connection {
        Connection { broker, peer, local }
    }

    /// Begins a request: `frame` is everything after the 4-byte size. What must happen in the order of the requests
    /// happens here; the rest happens while the answer is awaited. `None`: there is no answer (`acks=0`).
    pub async fn begin(&mut self, frame: Bytes) -> Result<Option<Answer>, Refused> {
        let request_bytes = frame.len();
        let mut reader = Reader::new(frame);
        let header = frame::decode_request_header(&mut reader)
            .map_err(|error| Refused(format!("a request header cannot be decoded: {error}")))?;
        let (api_key, version) = (header.api_key, header.version);
        let mut call =
            Call { header, reader, request_bytes, begun: Instant::now(), broker: self.broker.clone() };
        if api_key == ApiKey::ApiVersions && !api::is_served(api_key, version) {
            // A client learns from a version 0 answer what it may ask.
            call.header.version = 0;
            let answer = api::api_versions::answer(&self.broker, None);
            return Ok(Some(call.ready(answer)));
        }
        if !api::is_served(api_key, version) {
            return Err(Refused(format!("{} version {version} is not supported", api_key.name())));
        }
        if api_key == ApiKey::Produce {
            return self.produce(call).await;
        }
        self.answer(call).map(Some)
    }

    async fn produce(&self, mut call: Call) -> Result<Option<Answer>, Refused> {
        let request: m::ProduceRequest = call.decode()?;
        let acks = request.acks;
        let begun = api::produce::begin(&self.broker, request, call.header.version).await;
        if acks != 0 {
            return Ok(Some(call.later(begun.answer(self.broker.clone()))));
        }
        match begun.first_error() {
            // As in Kafka: who asks for no answer learns of an error by a closed connection.
            Some(code) => Err(Refused(format!("a produce request with acks=0 failed with error {code}"))),
            None => Ok(None),
        }
    }

    fn answer(&self, mut call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let version = call.header.version;
        let endpoint = || self.broker.endpoint(self.local);
        Ok(match call.header.api_key {
            ApiKey::Fetch => {
                let request: m::FetchRequest = call.decode()?;
                call.later(api::fetch::answer(broker, request, version))
            }
            ApiKey::ListOffsets => {
                let request: m::ListOffsetsRequest = call.decode()?;
                call.later(api::list_offsets::answer(broker, request, version))
            }
            ApiKey::DeleteRecords => {
                let request: m::DeleteRecordsRequest = call.decode()?;
                call.later(api::delete_records::answer(broker, request))
            }
            ApiKey::OffsetForLeaderEpoch => {
                let request: m::OffsetForLeaderEpochRequest = call.decode()?;
                call.later(async move { api::list_offsets::offset_for_leader_epoch(&broker, request) })
            }
            ApiKey::Metadata => {
                let request: m::MetadataRequest = call.decode()?;
                call.later(api::metadata::answer(broker, endpoint(), request, version))
            }
            ApiKey::DescribeCluster => {
                let request: m::DescribeClusterRequest = call.decode()?;
                let endpoint = endpoint();
                call.later(async move { api::metadata::describe_cluster(&broker, endpoint, &request) })
            }
            ApiKey::ApiVersions => {
                let request: m::ApiVersionsRequest = call.decode()?;
                call.ready(api::api_versions::answer(&broker, Some(&request)))
            }
            ApiKey::InitProducerId => {
                let request: m::InitProducerIdRequest = call.decode()?;
                call.later(api::init_producer_id::answer(broker, request, version))
            }
            ApiKey::CreateTopics => {
                let request: m::CreateTopicsRequest = call.decode()?;
                call.later(api::admin_topics::create(broker, request))
            }
            ApiKey::DeleteTopics => {
                let request: m::DeleteTopicsRequest = call.decode()?;
                call.later(api::admin_topics::delete(broker, request, version))
            }
            ApiKey::CreatePartitions => {
                let request: m::CreatePartitionsRequest = call.decode()?;
                call.later(api::admin_topics::create_partitions(broker, request))
            }
            ApiKey::DescribeConfigs => {
                let request: m::DescribeConfigsRequest = call.decode()?;
                call.later(async move { api::admin_configs::describe(&broker, &request) })
            }
            ApiKey::IncrementalAlterConfigs => {
                let request: m::IncrementalAlterConfigsRequest = call.decode()?;
                call.later(api::admin_configs::alter(broker, request))
            }
            _ => return self.answer_transaction(call),
        })
    }

    fn answer_transaction(&self, mut call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let version = call.header.version;
        Ok(match call.header.api_key {
            ApiKey::AddPartitionsToTxn => {
                let request: m::AddPartitionsToTxnRequest = call.decode()?;
                call.later(api::transactions::add_partitions(broker, request, version))
            }
            ApiKey::AddOffsetsToTxn => {
                let request: m::AddOffsetsToTxnRequest = call.decode()?;
                call.later(api::transactions::add_offsets(broker, request, version))
            }
            ApiKey::EndTxn => {
                let request: m::EndTxnRequest = call.decode()?;
                call.later(api::transactions::end(broker, request, version))
            }
            ApiKey::TxnOffsetCommit => {
                let request: m::TxnOffsetCommitRequest = call.decode()?;
                call.later(api::transactions::commit_offsets(broker, request, version))
            }
            ApiKey::WriteTxnMarkers => {
                let request: m::WriteTxnMarkersRequest = call.decode()?;
                call.later(api::transactions::write_markers(broker, request))
            }
            ApiKey::DescribeProducers => {
                let request: m::DescribeProducersRequest = call.decode()?;
                call.later(async move { api::transactions::describe_producers(&broker, request) })
            }
            ApiKey::DescribeTransactions => {
                let request: m::DescribeTransactionsRequest = call.decode()?;
                call.later(async move { api::transactions::describe(&broker, request) })
            }
            ApiKey::ListTransactions => {
                let request: m::ListTransactionsRequest = call.decode()?;
                call.later(async move { api::transactions::list(&broker, &request) })
            }
            _ => return self.answer_admin(call),
        })
    }

    fn answer_admin(&self, mut call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let version = call.header.version;
        Ok(match call.header.api_key {
            ApiKey::AlterConfigs => {
                let request: m::AlterConfigsRequest = call.decode()?;
                call.later(api::admin_configs::replace(broker, request))
            }
            ApiKey::ListConfigResources => {
                let request: m::ListConfigResourcesRequest = call.decode()?;
                call.later(async move { api::admin_configs::list_resources(&broker, &request, version) })
            }
            ApiKey::DescribeAcls => {
                let _: m::DescribeAclsRequest = call.decode()?;
                call.later(async move { api::acls::describe() })
            }
            ApiKey::CreateAcls => {
                let request: m::CreateAclsRequest = call.decode()?;
                call.later(async move { api::acls::create(&request) })
            }
            ApiKey::DeleteAcls => {
                let request: m::DeleteAclsRequest = call.decode()?;
                call.later(async move { api::acls::delete(&request) })
            }
            ApiKey::DescribeLogDirs => {
                let request: m::DescribeLogDirsRequest = call.decode()?;
                call.later(async move {
                    broker.blocking(|broker| api::admin_replicas::describe_log_dirs(broker, request)).await
                })
            }
            ApiKey::ElectLeaders => {
                let request: m::ElectLeadersRequest = call.decode()?;
                call.later(async move { api::admin_replicas::elect_leaders(&broker, &request) })
            }
            ApiKey::AlterPartitionReassignments => {
                let request: m::AlterPartitionReassignmentsRequest = call.decode()?;
                call.later(async move { api::admin_replicas::alter_reassignments(&broker, request) })
            }
            ApiKey::ListPartitionReassignments => {
                let _: m::ListPartitionReassignmentsRequest = call.decode()?;
                call.later(async move { api::admin_replicas::list_reassignments() })
            }
            ApiKey::DescribeTopicPartitions => {
                let request: m::DescribeTopicPartitionsRequest = call.decode()?;
                call.later(async move { api::admin_replicas::describe_topic_partitions(&broker, request) })
            }
            _ => return self.answer_group(call),
        })
    }

    fn answer_group(&self, mut call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let version = call.header.version;
        Ok(match call.header.api_key {
            ApiKey::FindCoordinator => {
                let request: m::FindCoordinatorRequest = call.decode()?;
                let endpoint = self.broker.endpoint(self.local);
                call.later(api::offsets::find_coordinator(broker, endpoint, request, version))
            }
            ApiKey::JoinGroup => {
                let request: m::JoinGroupRequest = call.decode()?;
                let id = call.header.client_id.as_ref().map(ToString::to_string).unwrap_or_default();
                let client = Client { id, host: format!("/{}", self.peer.ip().to_canonical()) };
                call.later(api::group_membership::join(broker, client, request, version))
            }
            ApiKey::SyncGroup => {
                let request: m::SyncGroupRequest = call.decode()?;
                call.later(api::group_membership::sync(broker, request))
            }
            ApiKey::Heartbeat => {
                let request: m::HeartbeatRequest = call.decode()?;
                call.later(async move { api::group_membership::heartbeat(&broker, &request) })
            }
            ApiKey::LeaveGroup => {
                let request: m::LeaveGroupRequest = call.decode()?;
                call.later(async move { api::group_membership::leave(&broker, &request, version) })
            }
            ApiKey::OffsetCommit => {
                let request: m::OffsetCommitRequest = call.decode()?;
                call.later(api::offsets::commit(broker, request, version))
            }
            ApiKey::OffsetFetch => {
                let request: m::OffsetFetchRequest = call.decode()?;
                call.later(async move { api::offsets::fetch(&broker, request, version) })
            }
            ApiKey::OffsetDelete => {
                let request: m::OffsetDeleteRequest = call.decode()?;
                call.later(api::offsets::delete(broker, request))
            }
            ApiKey::DescribeGroups => {
                let request: m::DescribeGroupsRequest = call.decode()?;
                call.later(async move { api::admin_groups::describe(&broker, &request, version) })
            }
            ApiKey::ListGroups => {
                let request: m::ListGroupsRequest = call.decode()?;
                call.later(async move { api::admin_groups::list(&broker, &request) })
            }
            ApiKey::DeleteGroups => {
                let request: m::DeleteGroupsRequest = call.decode()?;
                call.later(api::admin_groups::delete(broker, request))
            }
            other => return Err(Refused(format!("{} is not supported", other.name()))),
        })
    }
}
