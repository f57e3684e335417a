//! The metrics of listeners. Some of them are read at the time of a scrape.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::connection_metrics::Counters;
use crate::listener::Shared;

/// Adds the metrics of all listeners to `registry`.
pub fn register(shared: &Arc<Shared>, registry: &mut Registry) {
    let Counters { open, by_listener, accepted, rejected, handshakes_failed, authentications_expired } =
        shared.counters.clone();
    registry.register("mainstem_connections_open", "Client connections that are open", open);
    registry.register(
        "mainstem_listener_connections",
        "Client connections that are open, by listener",
        by_listener,
    );
    registry.register("mainstem_connections_accepted", "Client connections taken in", accepted);
    let help = "Client connections closed because there were too many, by what there were too many of";
    registry.register("mainstem_connections_rejected", help, rejected);
    registry.register("mainstem_tls_handshakes_failed", "TLS handshakes that failed", handshakes_failed);
    let help = "Connections closed since they did not authenticate within sasl.authentication.timeout.ms";
    registry.register("mainstem_authentications_expired", help, authentications_expired);
    registry.register_collector(Box::new(Held(shared.clone())));
}

/// Reads the held memory at the time of a scrape, instead of counting it for each request.
#[derive(Debug)]
struct Held(Arc<Shared>);

impl Collector for Held {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauges = [
            (
                "mainstem_request_bytes_held",
                "Memory that requests hold, of 13/8 of queued.max.request.bytes",
                self.0.budget.held_bytes(),
            ),
            (
                "mainstem_connections_unauthenticated",
                "Connections whose clients have not shown yet who they are",
                self.0.lobby.len(),
            ),
        ];
        for (name, help, value) in gauges {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            ConstGauge::new(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?)?;
        }
        Ok(())
    }
}
