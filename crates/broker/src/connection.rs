//! One client connection as the broker sees it: frames in, answers out, in the order of the requests.

mod call;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wire::frame;
use wire::messages as m;
use wire::{ApiKey, Chunks, Reader};

use self::call::{Call, Muted, Producing, timed};
use crate::api;
use crate::broker::Broker;
use crate::caller::{Caller, Origin, Principal};
use crate::quotas::Quota;
use crate::telemetry::subscription::ClientLabels;

/// The first version of ApiVersions whose clients say what library they are, and what those are called that do not.
const SOFTWARE_FROM_VERSION: i16 = 3;
const UNKNOWN_SOFTWARE: &str = "unknown";

/// The answer to one request, still to be awaited. Answers are awaited and sent one after the other, in the order of
/// the requests.
pub type Answer = Pin<Box<dyn Future<Output = Result<Chunks, Refused>> + Send>>;

/// Why a connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// One client connection.
#[derive(Debug)]
pub struct Connection {
    broker: Arc<Broker>,
    origin: Arc<Origin>,
    /// Name and version of its library, once it has told them (KIP-511).
    software: OnceLock<(String, String)>,
    muted: Arc<Muted>,
}

impl Connection {
    pub(crate) fn new(broker: Arc<Broker>, origin: Origin) -> Connection {
        Connection { broker, origin: Arc::new(origin), software: OnceLock::new(), muted: Arc::default() }
    }

    /// The client has authenticated: from its next request on it is this principal.
    pub fn authenticated(&mut self, principal: Principal) {
        self.origin = Arc::new(Origin { principal, ..Origin::clone(&self.origin) });
    }

    /// Until when no further request may be read: the client was told to wait so long.
    pub fn muted_until(&self) -> Option<Instant> {
        self.muted.until()
    }

    /// Begins a request: `frame` is everything after the 4-byte size. What must happen in the order of the requests
    /// happens here; the rest happens while the answer is awaited. `None`: there is no answer (`acks=0`).
    pub async fn begin(&mut self, frame: Bytes) -> Result<Option<Answer>, Refused> {
        let request_bytes = frame.len();
        let mut reader = Reader::new(frame);
        let header = frame::decode_request_header(&mut reader)
            .map_err(|error| Refused(format!("a request header cannot be decoded: {error}")))?;
        let (api_key, version) = (header.api_key, header.version);
        let begun = Instant::now();
        let client_id = header.client_id.clone().unwrap_or_default();
        let caller = Caller { origin: self.origin.clone(), client_id };
        let spent = self.broker.quotas.enabled(Quota::Request).then_some(Duration::ZERO);
        let (broker, muted) = (self.broker.clone(), self.muted.clone());
        let mut call = Call { header, reader, request_bytes, begun, spent, caller, muted, broker };
        if api_key == ApiKey::ApiVersions && !api::is_served(api_key, version) {
            // A client learns from a version 0 answer what it may ask.
            call.header.version = 0;
            let answer = api::api_versions::unsupported();
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
        let version = call.header.version;
        let caller = call.caller.clone();
        let mut work = pin!(api::produce::begin(&self.broker, &caller, request, version));
        let begun = poll_fn(|context| timed(&mut call.spent, || work.as_mut().poll(context))).await;
        if acks != 0 {
            return Ok(Some(Box::pin(Producing { call, begun })));
        }
        call.count(0);
        match begun.first_error() {
            // As in Kafka: who asks for no answer learns of an error by a closed connection.
            Some(code) => Err(Refused(format!("a produce request with acks=0 failed with error {code}"))),
            None => {
                // As in Kafka: who is not answered is held to the bytes only.
                call.spent = None;
                call.charge(0);
                Ok(None)
            }
        }
    }

    fn answer(&self, mut call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let version = call.header.version;
        let caller = call.caller.clone();
        Ok(match call.header.api_key {
            ApiKey::Fetch => {
                let request: m::FetchRequest = call.decode()?;
                call.later(api::fetch::answer(broker, caller, request, version))
            }
            ApiKey::ListOffsets => {
                let request: m::ListOffsetsRequest = call.decode()?;
                call.later(api::list_offsets::answer(broker, caller, request, version))
            }
            ApiKey::DeleteRecords => {
                let request: m::DeleteRecordsRequest = call.decode()?;
                call.carried_through(api::delete_records::answer(broker, caller, request))
            }
            ApiKey::OffsetForLeaderEpoch => {
                let request: m::OffsetForLeaderEpochRequest = call.decode()?;
                call.later(
                    async move { api::list_offsets::offset_for_leader_epoch(&broker, &caller, request) },
                )
            }
            ApiKey::Metadata => {
                let request: m::MetadataRequest = call.decode()?;
                call.later(api::metadata::answer(broker, caller, request, version))
            }
            ApiKey::DescribeCluster => {
                let request: m::DescribeClusterRequest = call.decode()?;
                call.later(async move { api::metadata::describe_cluster(&broker, &caller, &request) })
            }
            ApiKey::ApiVersions => {
                let request: m::ApiVersionsRequest = call.decode()?;
                if version >= SOFTWARE_FROM_VERSION {
                    let (name, version) = (&request.client_software_name, &request.client_software_version);
                    self.software.get_or_init(|| (name.to_string(), version.to_string()));
                }
                call.ready(api::api_versions::answer(&broker, &request, version))
            }
            ApiKey::InitProducerId => {
                let request: m::InitProducerIdRequest = call.decode()?;
                call.later(api::init_producer_id::answer(broker, caller, request, version))
            }
            ApiKey::CreateTopics => {
                let request: m::CreateTopicsRequest = call.decode()?;
                call.carried_through(api::admin_topics::create(broker, caller, request, version))
            }
            ApiKey::DeleteTopics => {
                let request: m::DeleteTopicsRequest = call.decode()?;
                call.carried_through(api::admin_topics::delete(broker, caller, request, version))
            }
            ApiKey::CreatePartitions => {
                let request: m::CreatePartitionsRequest = call.decode()?;
                call.carried_through(api::admin_topics::create_partitions(broker, caller, request, version))
            }
            ApiKey::DescribeConfigs => {
                let request: m::DescribeConfigsRequest = call.decode()?;
                call.later(async move {
                    let describe =
                        move |broker: &Arc<Broker>| api::admin_configs::describe(broker, &caller, &request);
                    broker.blocking(describe).await
                })
            }
            ApiKey::IncrementalAlterConfigs => {
                let request: m::IncrementalAlterConfigsRequest = call.decode()?;
                call.carried_through(api::alter_configs::alter(broker, caller, request))
            }
            _ => return self.answer_transaction(call),
        })
    }

    fn answer_transaction(&self, mut call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let caller = call.caller.clone();
        let version = call.header.version;
        Ok(match call.header.api_key {
            ApiKey::AddPartitionsToTxn => {
                let request: m::AddPartitionsToTxnRequest = call.decode()?;
                call.later(api::transactions::add_partitions(broker, caller, request, version))
            }
            ApiKey::AddOffsetsToTxn => {
                let request: m::AddOffsetsToTxnRequest = call.decode()?;
                call.later(api::transactions::add_offsets(broker, caller, request, version))
            }
            ApiKey::EndTxn => {
                let request: m::EndTxnRequest = call.decode()?;
                call.later(api::transactions::end(broker, caller, request, version))
            }
            ApiKey::TxnOffsetCommit => {
                let request: m::TxnOffsetCommitRequest = call.decode()?;
                call.later(api::transactions::commit_offsets(broker, caller, request, version))
            }
            ApiKey::WriteTxnMarkers => {
                let request: m::WriteTxnMarkersRequest = call.decode()?;
                call.carried_through(api::transactions::write_markers(broker, caller, request))
            }
            ApiKey::DescribeProducers => {
                let request: m::DescribeProducersRequest = call.decode()?;
                call.later(async move { api::transactions::describe_producers(&broker, &caller, request) })
            }
            ApiKey::DescribeTransactions => {
                let request: m::DescribeTransactionsRequest = call.decode()?;
                call.later(async move { api::transactions::describe(&broker, &caller, request) })
            }
            ApiKey::ListTransactions => {
                let request: m::ListTransactionsRequest = call.decode()?;
                call.later(async move { api::transactions::list(&broker, &caller, &request) })
            }
            _ => return self.answer_admin(call),
        })
    }

    /// What the client is known by in telemetry (KIP-714).
    fn labels(&self, caller: &Caller) -> ClientLabels {
        let unknown = || (UNKNOWN_SOFTWARE.to_owned(), UNKNOWN_SOFTWARE.to_owned());
        let (software_name, software_version) = self.software.get().cloned().unwrap_or_else(unknown);
        ClientLabels {
            instance_id: String::new(),
            id: caller.client_id.to_string(),
            software_name,
            software_version,
            source_address: self.origin.host().to_string(),
            source_port: self.origin.peer.port().to_string(),
        }
    }

    fn answer_admin(&self, mut call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let caller = call.caller.clone();
        let version = call.header.version;
        Ok(match call.header.api_key {
            ApiKey::GetTelemetrySubscriptions => {
                let request: m::GetTelemetrySubscriptionsRequest = call.decode()?;
                let labels = self.labels(&caller);
                call.later(async move { api::client_telemetry::get(&broker, labels, &request) })
            }
            ApiKey::PushTelemetry => {
                let request: m::PushTelemetryRequest = call.decode()?;
                let labels = self.labels(&caller);
                call.later(api::client_telemetry::push(broker, labels, request))
            }
            ApiKey::DescribeClientQuotas => {
                let request: m::DescribeClientQuotasRequest = call.decode()?;
                call.for_cluster(
                    request,
                    |request| async move { api::client_quotas::describe(&broker, &request) },
                )
            }
            ApiKey::AlterClientQuotas => {
                let request: m::AlterClientQuotasRequest = call.decode()?;
                call.for_cluster(request, |request| api::client_quotas::alter(broker, caller, request))
            }
            ApiKey::SaslHandshake => {
                let _: m::SaslHandshakeRequest = call.decode()?;
                call.ready(api::sasl::handshake())
            }
            ApiKey::SaslAuthenticate => {
                let _: m::SaslAuthenticateRequest = call.decode()?;
                call.ready(api::sasl::authenticate())
            }
            ApiKey::DescribeUserScramCredentials => {
                let request: m::DescribeUserScramCredentialsRequest = call.decode()?;
                call.for_cluster(request, |request| async move {
                    api::user_credentials::describe(&broker, &request)
                })
            }
            ApiKey::AlterUserScramCredentials => {
                let request: m::AlterUserScramCredentialsRequest = call.decode()?;
                call.for_cluster(request, |request| api::user_credentials::alter(broker, caller, request))
            }
            ApiKey::AlterConfigs => {
                let request: m::AlterConfigsRequest = call.decode()?;
                call.carried_through(api::alter_configs::replace(broker, caller, request))
            }
            ApiKey::DescribeQuorum => {
                let request: m::DescribeQuorumRequest = call.decode()?;
                call.for_cluster(request, |request| async move {
                    let describe = move |broker: &Arc<Broker>| {
                        api::admin_cluster::describe_quorum(broker, &caller, &request)
                    };
                    broker.blocking(describe).await
                })
            }
            ApiKey::UpdateFeatures => {
                let request: m::UpdateFeaturesRequest = call.decode()?;
                call.for_cluster(request, move |request| async move {
                    api::admin_cluster::update_features(&broker, &request, version)
                })
            }
            ApiKey::UnregisterBroker => {
                let request: m::UnregisterBrokerRequest = call.decode()?;
                call.for_cluster(request, |request| async move {
                    api::admin_cluster::unregister_broker(&broker, &request)
                })
            }
            ApiKey::ListConfigResources => {
                let request: m::ListConfigResourcesRequest = call.decode()?;
                call.for_cluster(request, move |request| async move {
                    api::admin_configs::list_resources(&broker, &request, version)
                })
            }
            ApiKey::DescribeAcls => {
                let request: m::DescribeAclsRequest = call.decode()?;
                call.for_cluster(request, |request| async move { api::acls::describe(&broker, &request) })
            }
            ApiKey::CreateAcls => {
                let request: m::CreateAclsRequest = call.decode()?;
                call.for_cluster(request, |request| api::acls::create(broker, caller, request))
            }
            ApiKey::DeleteAcls => {
                let request: m::DeleteAclsRequest = call.decode()?;
                call.for_cluster(request, |request| api::acls::delete(broker, caller, request))
            }
            ApiKey::AlterReplicaLogDirs => {
                let request: m::AlterReplicaLogDirsRequest = call.decode()?;
                call.for_cluster(request, |request| async move {
                    api::admin_replicas::alter_replica_log_dirs(&broker, &request)
                })
            }
            ApiKey::DescribeLogDirs => {
                let request: m::DescribeLogDirsRequest = call.decode()?;
                call.for_cluster(request, |request| async move {
                    broker.blocking(|broker| api::admin_replicas::describe_log_dirs(broker, request)).await
                })
            }
            ApiKey::ElectLeaders => {
                let request: m::ElectLeadersRequest = call.decode()?;
                call.for_cluster(request, |request| async move {
                    api::admin_replicas::elect_leaders(&broker, &request)
                })
            }
            ApiKey::AlterPartitionReassignments => {
                let request: m::AlterPartitionReassignmentsRequest = call.decode()?;
                call.for_cluster(request, |request| async move {
                    api::admin_replicas::alter_reassignments(&broker, request)
                })
            }
            ApiKey::ListPartitionReassignments => {
                let request: m::ListPartitionReassignmentsRequest = call.decode()?;
                call.for_cluster(request, |_| async move { api::admin_replicas::list_reassignments() })
            }
            ApiKey::DescribeTopicPartitions => {
                let request: m::DescribeTopicPartitionsRequest = call.decode()?;
                call.later(async move {
                    api::admin_replicas::describe_topic_partitions(&broker, &caller, request)
                })
            }
            _ => return self.answer_group(call),
        })
    }

    fn answer_group(&self, mut call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let caller = call.caller.clone();
        let version = call.header.version;
        Ok(match call.header.api_key {
            ApiKey::FindCoordinator => {
                let request: m::FindCoordinatorRequest = call.decode()?;
                call.later(api::offsets::find_coordinator(broker, caller, request, version))
            }
            ApiKey::JoinGroup => {
                let request: m::JoinGroupRequest = call.decode()?;
                call.later(api::group_membership::join(broker, caller, request, version))
            }
            ApiKey::SyncGroup => {
                let request: m::SyncGroupRequest = call.decode()?;
                call.later(api::group_membership::sync(broker, caller, request))
            }
            ApiKey::Heartbeat => {
                let request: m::HeartbeatRequest = call.decode()?;
                call.later(async move { api::group_membership::heartbeat(&broker, &caller, &request) })
            }
            ApiKey::LeaveGroup => {
                let request: m::LeaveGroupRequest = call.decode()?;
                call.later(async move { api::group_membership::leave(&broker, &caller, &request, version) })
            }
            ApiKey::OffsetCommit => {
                let request: m::OffsetCommitRequest = call.decode()?;
                call.later(api::offsets::commit(broker, caller, request, version))
            }
            ApiKey::OffsetFetch => {
                let request: m::OffsetFetchRequest = call.decode()?;
                call.later(async move { api::offsets::fetch(&broker, &caller, request, version) })
            }
            ApiKey::OffsetDelete => {
                let request: m::OffsetDeleteRequest = call.decode()?;
                call.carried_through(api::offsets::delete(broker, caller, request))
            }
            ApiKey::ConsumerGroupHeartbeat => {
                let request: m::ConsumerGroupHeartbeatRequest = call.decode()?;
                call.later(api::consumer_groups::heartbeat(broker, caller, request, version))
            }
            ApiKey::ConsumerGroupDescribe => {
                let request: m::ConsumerGroupDescribeRequest = call.decode()?;
                call.later(async move { api::consumer_groups::describe(&broker, &caller, &request, version) })
            }
            ApiKey::DescribeGroups => {
                let request: m::DescribeGroupsRequest = call.decode()?;
                call.later(async move { api::admin_groups::describe(&broker, &caller, &request, version) })
            }
            ApiKey::ListGroups => {
                let request: m::ListGroupsRequest = call.decode()?;
                call.later(async move { api::admin_groups::list(&broker, &caller, &request) })
            }
            ApiKey::DeleteGroups => {
                let request: m::DeleteGroupsRequest = call.decode()?;
                call.carried_through(api::admin_groups::delete(broker, caller, request))
            }
            other => return Err(Refused(format!("{} is not supported", other.name()))),
        })
    }
}
