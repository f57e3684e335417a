//! The broker's metrics. They have Kafka's names in the spelling of its JMX exporter. Metrics that Kafka does not have
//! begin with `mainstem_`.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use wire::{ApiKey, ErrorCode};

use crate::caller::Origin;

/// The API of a request.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ApiLabel {
    request: String,
}

/// An error code in the answers of an API.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ErrorLabel {
    request: &'static str,
    error: String,
}

/// Counts the errors in the answers of one API.
#[derive(Clone, Debug)]
pub struct Errors {
    request: &'static str,
    counts: Family<ErrorLabel, Counter>,
}

impl Errors {
    /// Counts an error code of a partition, or does nothing if it is 0.
    pub fn count(&self, code: i16) {
        if code != 0 {
            let error =
                ErrorCode::from_code(code).map_or_else(|| code.to_string(), |code| code.name().to_owned());
            self.counts.get_or_create(&ErrorLabel { request: self.request, error }).inc();
        }
    }
}

/// The counters of one API.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    /// Number of requests.
    pub requests: Counter,
    /// Bytes of requests.
    pub bytes_in: Counter,
    /// Bytes of answers.
    pub bytes_out: Counter,
    /// Seconds from the complete request to the complete answer, including waits.
    pub seconds: Histogram,
}

type SecondsFamily = Family<ApiLabel, Histogram, fn() -> Histogram>;

/// An answered request, as observers hear of it.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRequest<'a> {
    /// Kafka's name of the API.
    pub api: &'static str,
    /// The version of the request.
    pub version: i16,
    /// The client id of the request.
    pub client_id: &'a str,
    /// Who sent it, from where to where.
    pub origin: &'a Origin,
    /// From the whole request to its answer.
    pub took: Duration,
    /// Bytes of the request.
    pub bytes_in: usize,
    /// Bytes of the answer, 0 for one that is not sent.
    pub bytes_out: usize,
}

/// Hears of every answered request, on the thread that answers it.
pub trait RequestObserver: Debug + Send + Sync {
    /// A request was answered. Must not block.
    fn answered(&self, request: &AnsweredRequest<'_>);
}

/// The metrics that are counted as events happen.
#[derive(Debug)]
pub struct Metrics {
    /// Whoever else hears of answered requests.
    pub observer: OnceLock<Arc<dyn RequestObserver>>,
    requests: Family<ApiLabel, Counter>,
    bytes_in: Family<ApiLabel, Counter>,
    bytes_out: Family<ApiLabel, Counter>,
    seconds: SecondsFamily,
    errors: Family<ErrorLabel, Counter>,
    throttled: Family<ApiLabel, Counter<f64, AtomicU64>>,
    /// The metrics of each API that was requested, by API key.
    by_api: [OnceLock<ApiMetrics>; ApiKey::COUNT],
    /// Bytes on disk of each group commit.
    pub commit_bytes: Histogram,
    /// Number of entries of each group commit.
    pub commit_entries: Histogram,
    /// Seconds from the submission of a group commit until it is synced.
    pub commit_seconds: Histogram,
    /// The same for the copies of other brokers' logs. An owner has far more commits, which need not wait for its disk.
    pub copies_commit_seconds: Histogram,
    /// How often a copy set became smaller.
    pub isr_shrinks: Counter,
    /// How often a copy set became larger.
    pub isr_expands: Counter,
    /// How often a log was opened with copies that may have lost what they had synced.
    pub unproven_copies: Counter,
    /// Bytes of records that consumers got from the copies of logs on this broker's disk.
    pub read_from_copies: Counter,
}

fn seconds_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_05, 2.0, 20))
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            observer: OnceLock::new(),
            requests: Family::default(),
            bytes_in: Family::default(),
            bytes_out: Family::default(),
            seconds: Family::new_with_constructor(seconds_histogram),
            errors: Family::default(),
            throttled: Family::default(),
            by_api: [const { OnceLock::new() }; ApiKey::COUNT],
            commit_bytes: Histogram::new(exponential_buckets(4096.0, 2.0, 10)),
            commit_entries: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            commit_seconds: seconds_histogram(),
            copies_commit_seconds: seconds_histogram(),
            isr_shrinks: Counter::default(),
            isr_expands: Counter::default(),
            unproven_copies: Counter::default(),
            read_from_copies: Counter::default(),
        }
    }
}

impl Metrics {
    /// The metrics of `api_key`. They are exported from the first call on.
    pub fn of(&self, api_key: ApiKey) -> &ApiMetrics {
        self.by_api[api_key.index()].get_or_init(|| {
            let label = ApiLabel { request: api_key.name().to_owned() };
            ApiMetrics {
                requests: self.requests.get_or_create(&label).clone(),
                bytes_in: self.bytes_in.get_or_create(&label).clone(),
                bytes_out: self.bytes_out.get_or_create(&label).clone(),
                seconds: self.seconds.get_or_create(&label).clone(),
            }
        })
    }

    /// The counts of the errors that answers of `api_key` name for partitions.
    pub fn errors(&self, api_key: ApiKey) -> Errors {
        Errors { request: api_key.name(), counts: self.errors.clone() }
    }

    /// Counts that a client was told to wait, by a quota.
    pub fn throttle(&self, api_key: ApiKey, ms: i32) {
        let label = ApiLabel { request: api_key.name().to_owned() };
        self.throttled.get_or_create(&label).inc_by(f64::from(ms) / 1000.0);
    }

    /// Adds all metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("kafka_network_requestmetrics_requests", "Requests", self.requests.clone());
        registry.register(
            "kafka_network_requestmetrics_requestbytes",
            "Bytes of requests",
            self.bytes_in.clone(),
        );
        registry.register(
            "kafka_network_requestmetrics_responsebytes",
            "Bytes of answers",
            self.bytes_out.clone(),
        );
        registry.register(
            "kafka_network_requestmetrics_totaltime_seconds",
            "Seconds from the whole request to its answer, waiting included",
            self.seconds.clone(),
        );
        registry.register(
            "kafka_network_requestmetrics_errors",
            "Partitions in answers of Produce and Fetch that were refused, by error",
            self.errors.clone(),
        );
        registry.register(
            "kafka_network_requestmetrics_throttletime_seconds",
            "Seconds for which clients were told to wait, by quotas",
            self.throttled.clone(),
        );
        registry.register(
            "kafka_server_replicamanager_isrshrinks",
            "How often the copy set of a log of this broker became smaller",
            self.isr_shrinks.clone(),
        );
        registry.register(
            "kafka_server_replicamanager_isrexpands",
            "How often the copy set of a log of this broker became larger",
            self.isr_expands.clone(),
        );
        registry.register(
            "mainstem_cluster_copies_unproven",
            "How often a log was opened with copies whose brokers had all started anew since, while others were away: what their disks lost \
             though they had synced it is lost",
            self.unproven_copies.clone(),
        );
        registry.register(
            "mainstem_copies_fetched_bytes",
            "Bytes of records that consumers of this broker's rack got from the copies on its disk",
            self.read_from_copies.clone(),
        );
        registry.register(
            "mainstem_log_commit_bytes",
            "Bytes on disk of one group commit",
            self.commit_bytes.clone(),
        );
        registry.register(
            "mainstem_log_commit_entries",
            "Entries of one group commit",
            self.commit_entries.clone(),
        );
        registry.register(
            "kafka_log_logflushstats_logflush_seconds",
            "Seconds from a group commit's submission to its being synced",
            self.commit_seconds.clone(),
        );
        registry.register(
            "mainstem_cluster_copies_logflush_seconds",
            "Seconds from the submission of a group commit with copies of other brokers' logs to its being synced",
            self.copies_commit_seconds.clone(),
        );
    }
}
