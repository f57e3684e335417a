//! Counters of connections.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::connection::Closing;
use crate::listener::Shared;

/// Why a connection was not taken in, or not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Reason {
    MaxConnections,
    MaxConnectionsPerIp,
    ConnectionCreationRate,
    /// Too many were not authenticated.
    Crowded,
}

/// The label of a rejection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Rejected {
    reason: Reason,
}

/// All of them, over all listeners.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub open: Gauge,
    pub accepted: Counter,
    rejected: Family<Rejected, Counter>,
    pub handshakes_failed: Counter,
    pub authentications_expired: Counter,
}

impl Counters {
    /// A connection that was taken in, counted as open until this is dropped, panics included.
    pub fn opened(&self) -> Open {
        self.accepted.inc();
        self.open.inc();
        Open(self.open.clone())
    }

    pub fn reject(&self, reason: Reason) {
        self.rejected.get_or_create(&Rejected { reason }).inc();
    }

    /// How many were rejected for `reason`.
    #[cfg(test)]
    pub fn rejected(&self, reason: Reason) -> u64 {
        self.rejected.get_or_create(&Rejected { reason }).get()
    }

    /// Counts an end that somebody may want to know the number of.
    pub fn closed(&self, closing: &Closing) {
        match closing {
            Closing::NotAuthenticated => drop(self.authentications_expired.inc()),
            Closing::Crowded => self.reject(Reason::Crowded),
            _ => {}
        }
    }
}

/// See [`Counters::opened`].
#[derive(Debug)]
pub struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Adds the metrics of all listeners to `registry`.
pub fn register(shared: &Arc<Shared>, registry: &mut Registry) {
    let Counters { open, accepted, rejected, handshakes_failed, authentications_expired } =
        shared.counters.clone();
    registry.register("mainstem_connections_open", "Client connections that are open", open);
    registry.register("mainstem_connections_accepted", "Client connections taken in", accepted);
    let help = "Client connections closed because there were too many, by what there were too many of";
    registry.register("mainstem_connections_rejected", help, rejected);
    registry.register("mainstem_tls_handshakes_failed", "TLS handshakes that failed", handshakes_failed);
    let help = "Connections closed since they did not authenticate within sasl.authentication.timeout.ms";
    registry.register("mainstem_authentications_expired", help, authentications_expired);
    registry.register_collector(Box::new(Held(shared.clone())));
}

/// Read when it is asked for, instead of counting at each request.
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
