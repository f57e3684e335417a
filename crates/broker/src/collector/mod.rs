//! Metrics that are read from the broker's state when a scraper asks for them.

mod arrivals;
mod topics;

use std::sync::{Arc, Weak};

use objects::{CountedBucket, RequestKind};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use storage::Statistics;

use self::arrivals::Arrivals;
use crate::broker::Broker;
use crate::cluster::replicas::Replicas;
use crate::image::Image;
use crate::metrics::RequestObserver;
use crate::topics::Topic;

impl Broker {
    /// Lets `observer` hear of every answered request from now on. Only the first observer does.
    pub fn observe_requests(&self, observer: Arc<dyn RequestObserver>) {
        let _ = self.metrics.observer.set(observer);
    }

    /// Adds all metrics of the broker to `registry`.
    pub fn register_metrics(self: &Arc<Self>, registry: &mut Registry) {
        self.metrics.register(registry);
        registry.register_collector(Box::new(BrokerCollector {
            broker: Arc::downgrade(self),
            arrivals: Mutex::default(),
        }));
    }
}

/// Collects the values at the time of a scrape.
#[derive(Debug)]
struct BrokerCollector {
    broker: Weak<Broker>,
    arrivals: Mutex<Arrivals>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DirLabel {
    dir: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LogDirectoryLabel {
    logdirectory: String,
}

fn count(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Collector for BrokerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(broker) = self.broker.upgrade() else { return Ok(()) };
        let topics = broker.topics.all();
        let partitions = topics.iter().map(|topic| topic.partitions().len()).sum::<usize>();
        let lost = |topic: &Arc<Topic>| topic.partitions().iter().filter(|p| p.is_lost()).count();
        let offline = broker.logs.lost().len() + broker.failed_logs().len();
        let image = broker.metadata.image();
        let local = broker.placement.local();
        let owned = || image.owners.iter().filter(|(_, owner)| owner.broker == local);
        let is_closed = |log: &str| log.parse().map_or(true, |id| broker.logs.find(id).is_err());
        let closed = owned().filter(|(log, _)| is_closed(log));
        let gauges = [
            (
                "kafka_controller_kafkacontroller_activecontrollercount",
                "1 if this broker is the controller",
                i64::from(broker.placement.controller() == local),
            ),
            (
                "kafka_controller_kafkacontroller_activebrokercount",
                "Brokers that are alive",
                // A server in no cluster has no record of itself.
                count(image.brokers.iter().count().max(1)),
            ),
            (
                "mainstem_cluster_logs_owned",
                "Logs of a cluster that this broker owns",
                count(owned().count()),
            ),
            (
                "mainstem_cluster_logs_closed",
                "Logs of a cluster that this broker owns and has not open: their partitions have no leader",
                count(closed.count()),
            ),
            ("kafka_server_replicamanager_partitioncount", "Partitions", count(partitions)),
            ("kafka_controller_kafkacontroller_globaltopiccount", "Topics", count(topics.len())),
            (
                "kafka_server_fetchsessioncache_numincrementalfetchsessions",
                "Fetch sessions",
                count(broker.sessions.count()),
            ),
            (
                "kafka_log_logmanager_offlinelogdirectorycount",
                "Log directories that could not be used or have failed since",
                count(offline),
            ),
            (
                "kafka_server_replicamanager_offlinereplicacount",
                "Partitions whose log directory could not be used",
                topics.iter().map(|topic| count(lost(topic))).sum(),
            ),
        ];
        encode_gauges(&gauges, &mut encoder)?;
        encode_roles(&broker, &image, &mut encoder)?;
        encode_replicas(&broker, &topics, &mut encoder)?;
        encode_logs(&broker, &mut encoder)?;
        encode_store(&broker, &mut encoder)?;
        encode_telemetry(&broker, &mut encoder)?;
        topics::encode(&broker, &topics, &self.arrivals, &mut encoder)
    }
}

fn encode_gauges(
    gauges: &[(&str, &str, i64)],
    encoder: &mut DescriptorEncoder,
) -> Result<(), std::fmt::Error> {
    for (name, help, value) in gauges {
        let gauge = ConstGauge::new(*value);
        let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        gauge.encode(metric)?;
    }
    Ok(())
}

/// The replicas of the partitions that this broker leads.
fn encode_replicas(
    broker: &Broker,
    topics: &[Arc<Topic>],
    encoder: &mut DescriptorEncoder,
) -> Result<(), std::fmt::Error> {
    let (mut leads, mut missing, mut too_few, mut just_enough) = (0, 0, 0, 0);
    for topic in topics {
        let (replicas, min) = (broker.replicas_of(topic), topic.config().in_sync_min);
        for partition in topic.partitions().iter() {
            if partition.leader().node != broker.placement.local() {
                continue;
            }
            let Replicas { all, in_sync, .. } = replicas.of(partition);
            leads += 1;
            missing += i64::from(in_sync.len() < all.len());
            too_few += i64::from(in_sync.len() < min);
            just_enough += i64::from(in_sync.len() == min);
        }
    }
    let gauges = [
        ("kafka_server_replicamanager_leadercount", "Partitions that this broker leads", leads),
        (
            "kafka_server_replicamanager_underreplicatedpartitions",
            "Of the partitions that this broker leads, those with fewer replicas in sync than they have",
            missing,
        ),
        (
            "kafka_server_replicamanager_underminisrpartitioncount",
            "Of the partitions that this broker leads, those with fewer replicas in sync than min.insync.replicas: acks=all is \
             refused",
            too_few,
        ),
        (
            "kafka_server_replicamanager_atminisrpartitioncount",
            "Of the partitions that this broker leads, those with as many replicas in sync as min.insync.replicas",
            just_enough,
        ),
    ];
    encode_gauges(&gauges, encoder)
}

/// What the broker is in its cluster, if there is one.
fn encode_roles(
    broker: &Broker,
    image: &Image,
    encoder: &mut DescriptorEncoder,
) -> Result<(), std::fmt::Error> {
    let Some(roles) = broker.roles() else { return Ok(()) };
    let drained = image.drains.get(&broker.placement.local().to_string()).is_some();
    let gauges = [
        (
            "mainstem_cluster_lease_held",
            "1 if this broker has renewed its lease in time: the others take it for alive",
            i64::from(roles.has_lease),
        ),
        (
            "mainstem_cluster_leaving",
            "1 if this broker gives its logs away, since it is about to end or its disk takes none",
            i64::from(roles.leaves),
        ),
        (
            "mainstem_cluster_store_away",
            "1 if the object store does not answer this broker, which gives its logs away",
            i64::from(roles.lacks_store),
        ),
        ("mainstem_cluster_drained", "1 if this broker is drained", i64::from(drained)),
        (
            "mainstem_cluster_stands_by",
            "Logs of other brokers that this broker can take over at once",
            count(roles.stands_by_for),
        ),
    ];
    encode_gauges(&gauges, encoder)
}

/// The directory of the copies of other brokers' logs, as labels have it.
const COPIES: &str = "copies";
/// Labels that every client metric has. An attribute with one of these names is left out.
const OWN_LABELS: [&str; 3] = ["client_instance_id", "client_id", "metric"];

/// The last values that clients pushed (KIP-714), as one family. The metric's name is a label, because clients choose
/// it.
fn encode_telemetry(broker: &Broker, encoder: &mut DescriptorEncoder) -> Result<(), std::fmt::Error> {
    let zero = ConstGauge::new(0f64);
    let help = "Metrics that clients pushed, as they were last";
    let mut family = encoder.encode_descriptor("mainstem_client_metric", help, None, zero.metric_type())?;
    let clients = broker.telemetry.show(|instance, client, series, value| {
        let own = OWN_LABELS.map(str::to_owned).into_iter();
        let values = [instance, client, &series.name].map(|value| plain(value, '_'));
        let attribute = |(key, value): &(String, String)| (label_name(key), value.clone());
        let mut labels: Vec<(String, String)> = own.zip(values).collect();
        for (key, value) in series.attributes.iter().map(attribute) {
            if labels.iter().all(|(other, _)| *other != key) {
                labels.push((key, value));
            }
        }
        ConstGauge::new(value).encode(family.encode_family(&labels)?)
    })?;
    let name = "kafka_server_client_metrics_instances";
    let gauge = ConstGauge::new(count(clients));
    let help = "Clients that are asked for their metrics";
    let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(metric)
}

/// `text` with characters replaced that a label value would have to quote.
fn plain(text: &str, instead: char) -> String {
    text.chars().map(|c| if c.is_control() || matches!(c, '"' | '\\') { instead } else { c }).collect()
}

/// `text` as a valid label name.
fn label_name(text: &str) -> String {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name } else { format!("attribute_{name}") }
}

/// The statistics of each log, by its directory.
fn encode_logs(broker: &Broker, encoder: &mut DescriptorEncoder) -> Result<(), std::fmt::Error> {
    type Value = fn(&Statistics) -> usize;
    let gauges: [(&str, &str, Value); 7] = [
        ("mainstem_log_segments", "Segments that hold part of the log", |of| of.segments),
        ("mainstem_log_prepared_segments", "Segments prepared ahead", |of| of.prepared_segments),
        ("mainstem_log_streams", "Streams in the log", |of| of.streams),
        ("mainstem_log_unstored_bytes", "Bytes of records that wait for the object store", |of| {
            usize::try_from(of.unstored_bytes).unwrap_or(usize::MAX)
        }),
        ("mainstem_log_tail_cache_bytes", "Bytes in the tail cache", |of| of.tail_bytes),
        ("mainstem_log_read_cache_bytes", "Bytes in the cache of regions read back", |of| of.region_bytes),
        ("mainstem_log_index_cache_bytes", "Bytes in the cache of sealed indexes", |of| of.index_bytes),
    ];
    type Count = fn(&Statistics) -> u64;
    let counters: [(&str, &str, Count); 9] = [
        ("mainstem_log_tail_cache_hits", "Batches read from the tail cache", |of| of.tail_hits),
        ("mainstem_log_cold_reads", "Reads that the caches could not answer", |of| of.cold_reads),
        ("mainstem_log_read_cache_hits", "Look-ups that found all regions cached", |of| of.region_hits),
        ("mainstem_log_read_cache_misses", "Regions that were read from disk", |of| of.region_misses),
        ("mainstem_log_cleaner_read_bytes", "Bytes that the cleaner and compaction read", |of| {
            of.cleaner_read_bytes
        }),
        ("mainstem_log_cleaner_written_bytes", "Bytes that they wrote", |of| of.cleaner_written_bytes),
        (
            "kafka_server_brokertopicmetrics_remotecopyrequests",
            "Objects that were put into the object store",
            |of| of.objects_stored,
        ),
        ("kafka_server_brokertopicmetrics_remotecopybytes", "Bytes of these objects", |of| {
            of.object_bytes_stored
        }),
        ("kafka_server_brokertopicmetrics_remotedeleterequests", "Objects that were deleted", |of| {
            of.objects_deleted
        }),
    ];
    let logs: Vec<(DirLabel, Statistics, bool)> = broker
        .logs
        .all()
        .iter()
        .map(|log| (DirLabel { dir: log.path.clone() }, log.log.statistics(), log.log.stopped().is_some()))
        .collect();
    let (gauge, counter) = (ConstGauge::new(0i64).metric_type(), ConstCounter::new(0u64).metric_type());
    for (name, help, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, gauge)?;
        for (dir, statistics, _) in &logs {
            ConstGauge::new(count(value(statistics))).encode(family.encode_family(dir)?)?;
        }
    }
    for (name, help, value) in counters {
        let mut family = encoder.encode_descriptor(name, help, None, counter)?;
        for (dir, statistics, _) in &logs {
            ConstCounter::new(value(statistics)).encode(family.encode_family(dir)?)?;
        }
    }
    let copies = broker.copies.as_ref().map(|copies| (DirLabel { dir: COPIES.to_owned() }, copies));
    let help = "1 when the log has stopped and takes no more appends";
    let mut family = encoder.encode_descriptor("mainstem_log_stopped", help, None, gauge)?;
    let stopped = logs.iter().map(|(dir, _, stopped)| (dir, *stopped));
    for (dir, stopped) in stopped.chain(copies.iter().map(|(dir, copies)| (dir, copies.stopped().is_some())))
    {
        ConstGauge::new(i64::from(stopped)).encode(family.encode_family(dir)?)?;
    }
    let help = "1 while appends are refused since the disk is full";
    let mut family = encoder.encode_descriptor("mainstem_log_full", help, None, gauge)?;
    for log in broker.logs.all().iter() {
        let label = DirLabel { dir: log.path.clone() };
        ConstGauge::new(i64::from(log.log.is_full())).encode(family.encode_family(&label)?)?;
    }
    if let Some((dir, copies)) = &copies {
        ConstGauge::new(i64::from(copies.is_full())).encode(family.encode_family(dir)?)?;
    }
    let (name, help) = ("kafka_log_logmanager_logdirectoryoffline", "1 when a log directory is offline");
    let mut family = encoder.encode_descriptor(name, help, None, gauge)?;
    let logs = broker.logs.all();
    let open = logs.iter().map(|log| (&log.path, log.failure().is_some()));
    for (path, offline) in open.chain(broker.logs.lost().iter().map(|lost| (&lost.path, true))) {
        let label = LogDirectoryLabel { logdirectory: path.clone() };
        ConstGauge::new(i64::from(offline)).encode(family.encode_family(&label)?)?;
    }
    Ok(())
}

/// The requests to the object store, as a store charges for them.
fn encode_store(broker: &Broker, encoder: &mut DescriptorEncoder) -> Result<(), std::fmt::Error> {
    let counter = ConstCounter::new(0u64).metric_type();
    let (bucket, snapshots) = (broker.bucket.as_ref(), broker.snapshots.as_ref());
    type Count = fn(&CountedBucket, RequestKind) -> u64;
    let by_kind: [(&str, &str, Count); 2] = [
        ("mainstem_object_store_requests", "Requests to the object store", CountedBucket::requests),
        ("mainstem_object_store_requests_failed", "Requests that failed", CountedBucket::failed),
    ];
    for (name, help, of) in by_kind {
        let mut family = encoder.encode_descriptor(name, help, None, counter)?;
        for kind in RequestKind::ALL {
            let label = KindLabel { kind: kind.name().to_owned() };
            ConstCounter::new(bucket.map_or(0, |bucket| of(bucket, kind)))
                .encode(family.encode_family(&label)?)?;
        }
    }
    let counters = [
        (
            "mainstem_object_store_sent_bytes",
            "Bytes of objects sent",
            bucket.map_or(0, |bucket| bucket.put_bytes()),
        ),
        (
            "mainstem_object_store_received_bytes",
            "Bytes of objects received",
            bucket.map_or(0, |bucket| bucket.got_bytes()),
        ),
        (
            "mainstem_metadata_snapshots",
            "Metadata snapshots written to the object store",
            snapshots.map_or(0, |snapshots| snapshots.written()),
        ),
    ];
    for (name, help, value) in counters {
        let counter = ConstCounter::new(value);
        let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
        counter.encode(metric)?;
    }
    let taken_ms = snapshots.map_or(0, |snapshots| snapshots.taken_ms());
    let gauge = ConstGauge::new(taken_ms / 1000);
    let help =
        "When the newest metadata snapshot was taken, in seconds since the Unix epoch; 0 before the first";
    let name = "mainstem_metadata_snapshot_time_seconds";
    let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(metric)
}
