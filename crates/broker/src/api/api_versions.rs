//! ApiVersions: what this server speaks.

use wire::messages::ApiVersionsRequest;
use wire::messages::api_versions_response::{ApiVersion, ApiVersionsResponse};
use wire::{ApiKey, ErrorCode};

use crate::broker::Broker;

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
    ApiVersionsResponse { error_code: error.code(), api_keys, ..ApiVersionsResponse::default() }
}

/// A client that names another cluster or node reached the wrong server (KIP-1242).
fn is_meant_for(broker: &Broker, request: &ApiVersionsRequest) -> bool {
    let Some(cluster_id) = &request.cluster_id else { return true };
    request.node_id < 0
        || (cluster_id.as_str() == broker.cluster_id.as_str() && request.node_id == broker.config.node_id)
}
