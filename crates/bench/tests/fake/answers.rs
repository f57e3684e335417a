//! Answers to all requests except Produce and Fetch.

use std::time::Duration;

use wire::frame::RequestHeader;
use wire::messages::api_versions_response::ApiVersion;
use wire::messages::create_topics_response::CreatableTopicResult;
use wire::messages::delete_topics_response::DeletableTopicResult;
use wire::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use wire::messages::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use wire::messages::{
    ApiVersionsResponse, CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest,
    DeleteTopicsResponse, FindCoordinatorResponse, InitProducerIdResponse, ListOffsetsRequest,
    ListOffsetsResponse, MetadataRequest, MetadataResponse, OffsetCommitRequest, OffsetCommitResponse,
};
use wire::{ApiKey, ErrorCode, Reader, Text};

use super::log::Log;
use super::{Reply, Shared, answer, decoded};

const NODE: i32 = 7;

/// The supported versions, enough for the test's client. The last ones name topics by name.
const VERSIONS: [(ApiKey, i16, i16); 10] = [
    (ApiKey::Produce, 3, 9),
    (ApiKey::Fetch, 7, 12),
    (ApiKey::ListOffsets, 1, 7),
    (ApiKey::Metadata, 4, 9),
    (ApiKey::OffsetCommit, 2, 8),
    (ApiKey::FindCoordinator, 0, 3),
    (ApiKey::ApiVersions, 0, 3),
    (ApiKey::CreateTopics, 4, 6),
    (ApiKey::DeleteTopics, 1, 5),
    (ApiKey::InitProducerId, 0, 4),
];

impl Shared {
    pub fn other(&self, header: &RequestHeader, reader: &mut Reader) -> Reply {
        let now = Duration::ZERO;
        Reply::Answer(match header.api_key {
            ApiKey::ApiVersions => return self.versions(header),
            ApiKey::Metadata => answer(header, &self.metadata(&decoded(reader, header)), now),
            ApiKey::CreateTopics => answer(header, &self.create_topics(&decoded(reader, header)), now),
            ApiKey::DeleteTopics => answer(header, &self.delete_topics(&decoded(reader, header)), now),
            ApiKey::ListOffsets => answer(header, &self.list_offsets(&decoded(reader, header)), now),
            ApiKey::InitProducerId => answer(header, &self.init_producer_id(), now),
            ApiKey::FindCoordinator => answer(header, &self.find_coordinator(), now),
            ApiKey::OffsetCommit => answer(header, &self.commit(&decoded(reader, header)), now),
            // A server closes the connection on an API that it did not advertise.
            _ => return Reply::Close,
        })
    }

    fn versions(&self, header: &RequestHeader) -> Reply {
        let version = |(api, min_version, max_version): (ApiKey, i16, i16)| ApiVersion {
            api_key: api.code(),
            min_version,
            max_version,
        };
        let mut message = ApiVersionsResponse {
            api_keys: VERSIONS.map(version).to_vec(),
            ..ApiVersionsResponse::default()
        };
        let newest = if self.faults.old { 0 } else { 3 };
        let mut header = header.clone();
        if header.version > newest {
            message.error_code = ErrorCode::UnsupportedVersion.code();
            header.version = 0;
        }
        Reply::Answer(answer(&header, &message, Duration::ZERO))
    }

    fn metadata(&self, request: &MetadataRequest) -> MetadataResponse {
        let state = self.state();
        let partition = |index: usize| MetadataResponsePartition {
            partition_index: i32::try_from(index).expect("few partitions"),
            leader_id: NODE,
            replica_nodes: vec![NODE],
            isr_nodes: vec![NODE],
            ..MetadataResponsePartition::default()
        };
        let topic = |name: &Text| {
            let partitions = state.topics.get(name.as_str()).map_or(0, Vec::len);
            let unknown = partitions == 0;
            MetadataResponseTopic {
                error_code: if unknown { ErrorCode::UnknownTopicOrPartition.code() } else { 0 },
                name: Some(name.clone()),
                partitions: (0..partitions).map(partition).collect(),
                ..MetadataResponseTopic::default()
            }
        };
        let names = request.topics.iter().flatten().filter_map(|topic| topic.name.as_ref());
        MetadataResponse {
            brokers: vec![MetadataResponseBroker {
                node_id: NODE,
                host: Text::copied(&self.address.ip().to_string()),
                port: i32::from(self.address.port()),
                ..MetadataResponseBroker::default()
            }],
            controller_id: NODE,
            topics: names.map(topic).collect(),
            ..MetadataResponse::default()
        }
    }

    fn create_topics(&self, request: &CreateTopicsRequest) -> CreateTopicsResponse {
        let mut state = self.state();
        let mut topics = Vec::new();
        for topic in &request.topics {
            let logs = (0..topic.num_partitions).map(|_| Log::default()).collect();
            state.topics.insert(topic.name.to_string(), logs);
            topics.push(CreatableTopicResult { name: topic.name.clone(), ..CreatableTopicResult::default() });
        }
        CreateTopicsResponse { topics, ..CreateTopicsResponse::default() }
    }

    fn delete_topics(&self, request: &DeleteTopicsRequest) -> DeleteTopicsResponse {
        self.state().removed.extend(request.topic_names.iter().map(ToString::to_string));
        let result = |name: &Text| DeletableTopicResult {
            name: Some(name.clone()),
            ..DeletableTopicResult::default()
        };
        DeleteTopicsResponse {
            responses: request.topic_names.iter().map(result).collect(),
            ..DeleteTopicsResponse::default()
        }
    }

    fn list_offsets(&self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        let state = self.state();
        let mut topics = Vec::new();
        for topic in &request.topics {
            let logs = &state.topics[topic.name.as_str()];
            let partition = |index: i32| ListOffsetsPartitionResponse {
                partition_index: index,
                offset: logs[usize::try_from(index).expect("it was in the metadata")].end,
                ..ListOffsetsPartitionResponse::default()
            };
            topics.push(ListOffsetsTopicResponse {
                name: topic.name.clone(),
                partitions: topic.partitions.iter().map(|one| partition(one.partition_index)).collect(),
            });
        }
        ListOffsetsResponse { topics, ..ListOffsetsResponse::default() }
    }

    fn init_producer_id(&self) -> InitProducerIdResponse {
        let mut state = self.state();
        state.producers += 1;
        InitProducerIdResponse {
            producer_id: 1000 + state.producers,
            producer_epoch: 0,
            ..InitProducerIdResponse::default()
        }
    }

    fn find_coordinator(&self) -> FindCoordinatorResponse {
        FindCoordinatorResponse {
            node_id: NODE,
            host: Text::copied(&self.address.ip().to_string()),
            port: i32::from(self.address.port()),
            ..FindCoordinatorResponse::default()
        }
    }

    fn commit(&self, request: &OffsetCommitRequest) -> OffsetCommitResponse {
        let mut state = self.state();
        let mut topics = Vec::new();
        for topic in &request.topics {
            let mut partitions = Vec::new();
            for partition in &topic.partitions {
                let place = (request.group_id.to_string(), topic.name.to_string(), partition.partition_index);
                state.commits.insert(place, partition.committed_offset);
                partitions.push(OffsetCommitResponsePartition {
                    partition_index: partition.partition_index,
                    error_code: 0,
                });
            }
            topics.push(OffsetCommitResponseTopic {
                name: topic.name.clone(),
                partitions,
                ..OffsetCommitResponseTopic::default()
            });
        }
        OffsetCommitResponse { topics, ..OffsetCommitResponse::default() }
    }
}
