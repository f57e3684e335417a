//! Counters of connections.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::closing::Closing;

/// The reason why a connection was not accepted, or not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Reason {
    MaxConnections,
    MaxConnectionsPerIp,
    ConnectionCreationRate,
    /// Too many connections were not authenticated.
    Crowded,
}

/// The label of a rejection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Rejected {
    reason: Reason,
}

/// The label of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfListener {
    listener: String,
}

/// The counters of all listeners.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub open: Gauge,
    pub(crate) by_listener: Family<OfListener, Gauge>,
    pub accepted: Counter,
    pub(crate) rejected: Family<Rejected, Counter>,
    pub handshakes_failed: Counter,
    pub authentications_expired: Counter,
}

impl Counters {
    /// Counts an accepted connection. It counts as open until the returned value is dropped, even by a panic.
    pub fn opened(&self, listener: &str) -> Open {
        let of_listener =
            self.by_listener.get_or_create(&OfListener { listener: listener.to_owned() }).clone();
        self.accepted.inc();
        let both = [self.open.clone(), of_listener];
        for gauge in &both {
            gauge.inc();
        }
        Open(both)
    }

    pub fn reject(&self, reason: Reason) {
        self.rejected.get_or_create(&Rejected { reason }).inc();
    }

    /// The number of connections rejected for `reason`.
    #[cfg(test)]
    pub fn rejected(&self, reason: Reason) -> u64 {
        self.rejected.get_or_create(&Rejected { reason }).get()
    }

    /// Counts the ends of connections that are worth a metric.
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
pub struct Open([Gauge; 2]);

impl Drop for Open {
    fn drop(&mut self) {
        for gauge in &self.0 {
            gauge.dec();
        }
    }
}
