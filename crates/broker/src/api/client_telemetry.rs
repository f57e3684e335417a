//! GetTelemetrySubscriptions and PushTelemetry (KIP-714): the metrics that clients are asked for, and the values that
//! they push.

use wire::Text;
use wire::messages as m;

use crate::request::Request;
use crate::telemetry::codecs;
use crate::telemetry::subscription::ClientLabels;

/// Answers GetTelemetrySubscriptions.
pub async fn get(
    request: Request<m::GetTelemetrySubscriptionsRequest>,
) -> m::GetTelemetrySubscriptionsResponse {
    let labels = labels_of(&request);
    let Request { broker, body: request, .. } = &request;
    let default = m::GetTelemetrySubscriptionsResponse::default();
    match broker.telemetry.get(request.client_instance_id, labels) {
        Ok(asked) => m::GetTelemetrySubscriptionsResponse {
            client_instance_id: asked.instance_id,
            subscription_id: asked.subscription_id,
            accepted_compression_types: codecs(),
            push_interval_ms: asked.interval_ms,
            telemetry_max_bytes: broker.telemetry.bytes_max(),
            delta_temporality: true,
            requested_metrics: asked.metrics.iter().cloned().map(Text::from).collect(),
            ..default
        },
        Err(error) => m::GetTelemetrySubscriptionsResponse { error_code: error.code(), ..default },
    }
}

/// Answers PushTelemetry.
pub async fn push(request: Request<m::PushTelemetryRequest>) -> m::PushTelemetryResponse {
    let labels = labels_of(&request);
    let Request { broker, body: request, .. } = request;
    // Decompressing and decoding take too long for a thread that serves other connections.
    let pushed = broker.blocking(move |broker| broker.telemetry.push(&request, labels)).await;
    let error_code = pushed.err().map_or(0, |error| error.code());
    m::PushTelemetryResponse { error_code, ..m::PushTelemetryResponse::default() }
}

/// The labels that identify the client.
fn labels_of<Q>(request: &Request<Q>) -> ClientLabels {
    let (software_name, software_version) = request.connection.software.told();
    let origin = &request.caller.origin;
    ClientLabels {
        instance_id: String::new(),
        id: request.caller.client_id.to_string(),
        software_name,
        software_version,
        source_address: origin.host().to_string(),
        source_port: origin.peer.port().to_string(),
    }
}
