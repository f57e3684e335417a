//! ApiVersions: the APIs, versions and features that this server supports.

use wire::messages::ApiVersionsRequest;
use wire::messages::api_versions_response::{
    ApiVersion, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};
use wire::{ApiKey, ErrorCode, Text};

use crate::broker::Broker;
use crate::request::Request;
use crate::request::call::api::Api;

/// Features that clients look for (KIP-584), with their levels. `group.version` 1: groups of the consumer protocol
/// (KIP-848). `transaction.version` 2: a producer need not announce its partitions, and gets a new epoch with every
/// transaction (KIP-890).
pub const FEATURES: [(&str, i16); 2] = [("group.version", 1), ("transaction.version", 2)];

/// The first version in which clients name their library (KIP-511).
pub const SOFTWARE_FROM_VERSION: i16 = 3;
/// From this version on, clients accept a feature whose lowest level is 0. Java clients from 2.8 to 3.8 fail on an
/// answer that contains one (KAFKA-17011).
const FEATURES_FROM_ZERO_FROM_VERSION: i16 = 4;

/// Answers a request of an unknown version with an answer of version 0. As in Kafka, it lists only ApiVersions itself.
pub fn unsupported(own: &Api) -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: vec![versions_of(own)],
        ..ApiVersionsResponse::default()
    }
}

fn versions_of(api: &Api) -> ApiVersion {
    let versions = api.advertised();
    ApiVersion { api_key: api.key.code(), min_version: *versions.start(), max_version: *versions.end() }
}

/// Whether the API is for clients that push their metrics, which not every server wants.
fn is_telemetry(key: ApiKey) -> bool {
    matches!(key, ApiKey::GetTelemetrySubscriptions | ApiKey::PushTelemetry)
}

/// Answers ApiVersions. `served` holds the rows of the APIs to name.
pub async fn answer(request: Request<ApiVersionsRequest>, served: &'static [Api]) -> ApiVersionsResponse {
    let version = request.version;
    let Request { broker, connection, body: request, .. } = &request;
    if version >= SOFTWARE_FROM_VERSION {
        connection.software.tell(&request.client_software_name, &request.client_software_version);
    }
    if version >= SOFTWARE_FROM_VERSION
        && ![&request.client_software_name, &request.client_software_version]
            .into_iter()
            .all(|word| is_word(word))
    {
        return ApiVersionsResponse {
            error_code: ErrorCode::InvalidRequest.code(),
            ..ApiVersionsResponse::default()
        };
    }
    let error = match is_meant_for(broker, request) {
        true => ErrorCode::None,
        false => ErrorCode::RebootstrapRequired,
    };
    let feature = |(name, max): &(&'static str, i16)| SupportedFeatureKey {
        name: Text::from_static(name),
        min_version: 0,
        max_version: *max,
    };
    let taken =
        |feature: &SupportedFeatureKey| feature.min_version > 0 || version >= FEATURES_FROM_ZERO_FROM_VERSION;
    let finalized = |(name, level): &(&'static str, i16)| FinalizedFeatureKey {
        name: Text::from_static(name),
        max_version_level: *level,
        min_version_level: *level,
    };
    ApiVersionsResponse {
        error_code: error.code(),
        api_keys: served
            .iter()
            .filter(|api| !is_telemetry(api.key) || broker.config.telemetry)
            .map(versions_of)
            .collect(),
        supported_features: FEATURES.iter().map(feature).filter(taken).collect(),
        finalized_features_epoch: 0,
        finalized_features: FEATURES.iter().map(finalized).collect(),
        ..ApiVersionsResponse::default()
    }
}

/// Whether `text` is a valid name or version of a library (KIP-511): `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`.
fn is_word(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inside)
}

/// Whether the client wants this server. A client that names another cluster or node has reached the wrong one
/// (KIP-1242).
fn is_meant_for(broker: &Broker, request: &ApiVersionsRequest) -> bool {
    let Some(cluster_id) = &request.cluster_id else { return true };
    request.node_id < 0
        || (cluster_id.as_str() == broker.cluster_id.as_str() && request.node_id == broker.placement.local())
}
