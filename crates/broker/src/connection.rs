//! One client connection as the broker sees it: frames in, answers out, in the order of the requests.

mod call;
pub(crate) mod turns;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Context;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wire::frame;
use wire::messages as m;
use wire::{ApiKey, Chunks, Reader};

pub use self::call::WAITING;
use self::call::{Call, Muted, Producing, timed};
use crate::api;
use crate::broker::Broker;
use crate::caller::{Caller, Origin, Principal};
use crate::quotas::Quota;
use crate::telemetry::subscription::ClientLabels;

/// What libraries are called that do not say what they are.
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
        let mut call =
            Call { header, reader, request_bytes, begun, spent, caller, turn: None, muted, broker };
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
        let request: m::ProduceRequest = call.decode().await?;
        let acks = request.acks;
        let version = call.header.version;
        let caller = call.caller.clone();
        let mut work = pin!(api::produce::begin(&self.broker, &caller, request, version));
        let large = call.is_large();
        let mut poll = |context: &mut Context<'_>| turns::beside(large, || work.as_mut().poll(context));
        let begun = poll_fn(|context| timed(&mut call.spent, || poll(context))).await;
        if acks != 0 {
            return Ok(Some(Box::pin(Producing { call, begun, answered: None })));
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
            ApiKey::Fetch => call
                .later(move |request: m::FetchRequest| api::fetch::answer(broker, caller, request, version)),
            ApiKey::ListOffsets => call.later(move |request: m::ListOffsetsRequest| {
                api::list_offsets::answer(broker, caller, request, version)
            }),
            ApiKey::DeleteRecords => call.carried_through(move |request: m::DeleteRecordsRequest| {
                api::delete_records::answer(broker, caller, request)
            }),
            ApiKey::OffsetForLeaderEpoch => {
                call.later(move |request: m::OffsetForLeaderEpochRequest| async move {
                    api::list_offsets::offset_for_leader_epoch(&broker, &caller, request)
                })
            }
            ApiKey::Metadata => call.later(move |request: m::MetadataRequest| {
                api::metadata::answer(broker, caller, request, version)
            }),
            ApiKey::DescribeCluster => call.later(move |request: m::DescribeClusterRequest| async move {
                api::metadata::describe_cluster(&broker, &caller, &request)
            }),
            ApiKey::ApiVersions => {
                let request: m::ApiVersionsRequest = call.decode_at_once()?;
                if version >= api::api_versions::SOFTWARE_FROM_VERSION {
                    let (name, version) = (&request.client_software_name, &request.client_software_version);
                    self.software.get_or_init(|| (name.to_string(), version.to_string()));
                }
                call.ready(api::api_versions::answer(&broker, &request, version))
            }
            ApiKey::InitProducerId => call.later(move |request: m::InitProducerIdRequest| {
                api::init_producer_id::answer(broker, caller, request, version)
            }),
            ApiKey::CreateTopics => call.carried_through(move |request: m::CreateTopicsRequest| {
                api::admin_topics::create(broker, caller, request, version)
            }),
            ApiKey::DeleteTopics => call.carried_through(move |request: m::DeleteTopicsRequest| {
                api::admin_topics::delete(broker, caller, request, version)
            }),
            ApiKey::CreatePartitions => call.carried_through(move |request: m::CreatePartitionsRequest| {
                api::admin_topics::create_partitions(broker, caller, request, version)
            }),
            ApiKey::DescribeConfigs => call.later(move |request: m::DescribeConfigsRequest| async move {
                let describe =
                    move |broker: &Arc<Broker>| api::admin_configs::describe(broker, &caller, &request);
                broker.blocking(describe).await
            }),
            ApiKey::IncrementalAlterConfigs => {
                call.carried_through(move |request: m::IncrementalAlterConfigsRequest| {
                    api::alter_configs::alter(broker, caller, request)
                })
            }
            _ => return self.answer_transaction(call),
        })
    }

    fn answer_transaction(&self, call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let caller = call.caller.clone();
        let version = call.header.version;
        Ok(match call.header.api_key {
            ApiKey::AddPartitionsToTxn => call.later(move |request: m::AddPartitionsToTxnRequest| {
                api::transactions::add_partitions(broker, caller, request, version)
            }),
            ApiKey::AddOffsetsToTxn => call.later(move |request: m::AddOffsetsToTxnRequest| {
                api::transactions::add_offsets(broker, caller, request, version)
            }),
            ApiKey::EndTxn => call.later(move |request: m::EndTxnRequest| {
                api::transactions::end(broker, caller, request, version)
            }),
            ApiKey::TxnOffsetCommit => call.later(move |request: m::TxnOffsetCommitRequest| {
                api::transactions::commit_offsets(broker, caller, request, version)
            }),
            ApiKey::WriteTxnMarkers => call.carried_through(move |request: m::WriteTxnMarkersRequest| {
                api::transaction_markers::write_markers(broker, caller, request)
            }),
            ApiKey::DescribeProducers => call.later(move |request: m::DescribeProducersRequest| async move {
                api::transactions::describe_producers(&broker, &caller, request)
            }),
            ApiKey::DescribeTransactions => {
                call.later(move |request: m::DescribeTransactionsRequest| async move {
                    api::transactions::describe(&broker, &caller, request)
                })
            }
            ApiKey::ListTransactions => call.later(move |request: m::ListTransactionsRequest| async move {
                api::transactions::list(&broker, &caller, &request)
            }),
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
                let labels = self.labels(&caller);
                call.later(move |request: m::GetTelemetrySubscriptionsRequest| async move {
                    api::client_telemetry::get(&broker, labels, &request)
                })
            }
            ApiKey::PushTelemetry => {
                let labels = self.labels(&caller);
                call.later(move |request: m::PushTelemetryRequest| {
                    api::client_telemetry::push(broker, labels, request)
                })
            }
            ApiKey::DescribeClientQuotas => {
                call.for_cluster(move |request: m::DescribeClientQuotasRequest| async move {
                    api::client_quotas::describe(&broker, &request)
                })
            }
            ApiKey::AlterClientQuotas => call.for_cluster(move |request: m::AlterClientQuotasRequest| {
                api::client_quotas::alter(broker, caller, request)
            }),
            ApiKey::SaslHandshake => {
                let _: m::SaslHandshakeRequest = call.decode_at_once()?;
                call.ready(api::sasl::handshake())
            }
            ApiKey::SaslAuthenticate => {
                let _: m::SaslAuthenticateRequest = call.decode_at_once()?;
                call.ready(api::sasl::authenticate())
            }
            ApiKey::DescribeUserScramCredentials => {
                call.for_cluster(move |request: m::DescribeUserScramCredentialsRequest| async move {
                    api::user_credentials::describe(&broker, &request)
                })
            }
            ApiKey::AlterUserScramCredentials => {
                call.for_cluster(move |request: m::AlterUserScramCredentialsRequest| {
                    api::user_credentials::alter(broker, caller, request)
                })
            }
            ApiKey::AlterConfigs => call.carried_through(move |request: m::AlterConfigsRequest| {
                api::alter_configs::replace(broker, caller, request)
            }),
            ApiKey::DescribeQuorum => call.for_cluster(move |request: m::DescribeQuorumRequest| async move {
                let describe = move |broker: &Arc<Broker>| {
                    api::admin_cluster::describe_quorum(broker, &caller, &request)
                };
                broker.blocking(describe).await
            }),
            ApiKey::UpdateFeatures => call.for_cluster(move |request: m::UpdateFeaturesRequest| async move {
                api::admin_cluster::update_features(&broker, &request, version)
            }),
            ApiKey::UnregisterBroker => {
                call.for_cluster(move |request: m::UnregisterBrokerRequest| async move {
                    api::admin_cluster::unregister_broker(&broker, &request)
                })
            }
            ApiKey::ListConfigResources => {
                call.for_cluster(move |request: m::ListConfigResourcesRequest| async move {
                    api::admin_configs::list_resources(&broker, &request, version)
                })
            }
            ApiKey::DescribeAcls => call.for_cluster(move |request: m::DescribeAclsRequest| async move {
                api::acls::describe(&broker, &request)
            }),
            ApiKey::CreateAcls => call
                .for_cluster(move |request: m::CreateAclsRequest| api::acls::create(broker, caller, request)),
            ApiKey::DeleteAcls => call
                .for_cluster(move |request: m::DeleteAclsRequest| api::acls::delete(broker, caller, request)),
            ApiKey::AlterReplicaLogDirs => {
                call.for_cluster(move |request: m::AlterReplicaLogDirsRequest| async move {
                    api::admin_replicas::alter_replica_log_dirs(&broker, &request)
                })
            }
            ApiKey::DescribeLogDirs => {
                call.for_cluster(move |request: m::DescribeLogDirsRequest| async move {
                    broker.blocking(|broker| api::admin_replicas::describe_log_dirs(broker, request)).await
                })
            }
            ApiKey::ElectLeaders => call.for_cluster(move |request: m::ElectLeadersRequest| async move {
                api::admin_replicas::elect_leaders(&broker, &request, version)
            }),
            ApiKey::AlterPartitionReassignments => {
                call.for_cluster(move |request: m::AlterPartitionReassignmentsRequest| async move {
                    api::admin_replicas::alter_reassignments(&broker, request)
                })
            }
            ApiKey::ListPartitionReassignments => {
                call.for_cluster(move |_: m::ListPartitionReassignmentsRequest| async move {
                    api::admin_replicas::list_reassignments()
                })
            }
            ApiKey::DescribeTopicPartitions => {
                call.later(move |request: m::DescribeTopicPartitionsRequest| async move {
                    api::admin_replicas::describe_topic_partitions(&broker, &caller, request)
                })
            }
            _ => return self.answer_group(call),
        })
    }

    fn answer_group(&self, call: Call) -> Result<Answer, Refused> {
        let broker = self.broker.clone();
        let caller = call.caller.clone();
        let version = call.header.version;
        Ok(match call.header.api_key {
            ApiKey::FindCoordinator => call.later(move |request: m::FindCoordinatorRequest| {
                api::offsets::find_coordinator(broker, caller, request, version)
            }),
            ApiKey::JoinGroup => call.later(move |request: m::JoinGroupRequest| {
                api::group_membership::join(broker, caller, request, version)
            }),
            ApiKey::SyncGroup => call.later(move |request: m::SyncGroupRequest| {
                api::group_membership::sync(broker, caller, request, version)
            }),
            ApiKey::Heartbeat => call.later(move |request: m::HeartbeatRequest| async move {
                api::group_membership::heartbeat(&broker, &caller, &request)
            }),
            ApiKey::LeaveGroup => call.later(move |request: m::LeaveGroupRequest| async move {
                api::group_membership::leave(&broker, &caller, &request, version)
            }),
            ApiKey::OffsetCommit => call.later(move |request: m::OffsetCommitRequest| {
                api::offsets::commit(broker, caller, request, version)
            }),
            ApiKey::OffsetFetch => call.later(move |request: m::OffsetFetchRequest| async move {
                api::offsets::fetch(&broker, &caller, request, version)
            }),
            ApiKey::OffsetDelete => call.carried_through(move |request: m::OffsetDeleteRequest| {
                api::offsets::delete(broker, caller, request)
            }),
            ApiKey::ConsumerGroupHeartbeat => call.later(move |request: m::ConsumerGroupHeartbeatRequest| {
                api::consumer_groups::heartbeat(broker, caller, request, version)
            }),
            ApiKey::ConsumerGroupDescribe => {
                call.later(move |request: m::ConsumerGroupDescribeRequest| async move {
                    api::consumer_groups::describe(&broker, &caller, &request, version)
                })
            }
            ApiKey::DescribeGroups => call.later(move |request: m::DescribeGroupsRequest| async move {
                api::admin_groups::describe(&broker, &caller, &request, version)
            }),
            ApiKey::ListGroups => call.later(move |request: m::ListGroupsRequest| async move {
                api::admin_groups::list(&broker, &caller, &request)
            }),
            ApiKey::DeleteGroups => call.carried_through(move |request: m::DeleteGroupsRequest| {
                api::admin_groups::delete(broker, caller, request)
            }),
            other => return Err(Refused(format!("{} is not supported", other.name()))),
        })
    }
}
