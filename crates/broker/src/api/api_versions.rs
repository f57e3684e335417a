//! ApiVersions: what this server speaks.

use wire::messages::ApiVersionsRequest;
use wire::messages::api_versions_response::{
    ApiVersion, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};
use wire::{ApiKey, ErrorCode, Text};

use crate::broker::Broker;

/// Features that clients look for (KIP-584), with their levels. `group.version` 1: groups of the consumer protocol
/// (KIP-848). `transaction.version` 2: a producer need not announce its
/// partitions, and gets a new epoch with every transaction (KIP-890).
pub const FEATURES: [(&str, i16); 2] = [("group.version", 1), ("transaction.version", 2)];

/// Answers ApiVersions; `request` is `None` when its version is not one that is known.
pub fn answer(broker: &Broker, request: Option<&ApiVersionsRequest>) -> ApiVersionsResponse {
    let error = match request {
        None => ErrorCode::UnsupportedVersion,
        Some(request) if !is_meant_for(broker, request) => ErrorCode::RebootstrapRequired,
        Some(_) => ErrorCode::None,
    };
    let api_keys = ApiKey::ALL
        .iter()
        .filter_map(|api_key| {
            let versions = super::advertised(*api_key)?;
            Some(ApiVersion {
                api_key: api_key.code(),
                min_version: *versions.start(),
                max_version: *versions.end(),
            })
        })
        .collect();
    let feature = |(name, max): &(&'static str, i16)| SupportedFeatureKey {
        name: Text::from_static(name),
        min_version: 0,
        max_version: *max,
    };
    let finalized = |(name, level): &(&'static str, i16)| FinalizedFeatureKey {
        name: Text::from_static(name),
        max_version_level: *level,
        min_version_level: *level,
    };
    ApiVersionsResponse {
        error_code: error.code(),
        api_keys,
        supported_features: FEATURES.iter().map(feature).collect(),
        finalized_features_epoch: 0,
        finalized_features: FEATURES.iter().map(finalized).collect(),
        ..ApiVersionsResponse::default()
    }
}

/// A client that names another cluster or node reached the wrong server (KIP-1242).
fn is_meant_for(broker: &Broker, request: &ApiVersionsRequest) -> bool {
    let Some(cluster_id) = &request.cluster_id else { return true };
    request.node_id < 0
        || (cluster_id.as_str() == broker.cluster_id.as_str() && request.node_id == broker.config.node_id)
}
