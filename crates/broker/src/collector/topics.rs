//! The metrics of topics, partitions and groups, under the names that Kafka's JMX exporter and kafka_exporter give them.
//!
//! Clients choose how many of these there are, so their series have a bound together. Beyond it they are left out: the topics first
//! in the order of their names, then groups, then partitions, and how many were left out is a metric itself.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Error;
use std::sync::Arc;

use model::StreamId;
use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::arrivals::Arrivals;
use super::count;
use crate::broker::Broker;
use crate::cluster::replicas::Replicas;
use crate::groups::Group;
use crate::partition::log::LogBounds;
use crate::partition::traffic::{Count, Traffic};
use crate::topics::Topic;

/// What is counted for each topic. The series with an empty topic is of all topics, also of those that are gone.
const COUNTS: [(Count, &str, &str); Count::ALL.len()] = [
    (
        Count::BytesIn,
        "kafka_server_brokertopicmetrics_bytesin",
        "Bytes of records that were appended, compressed as they came",
    ),
    (Count::MessagesIn, "kafka_server_brokertopicmetrics_messagesin", "Records that were appended"),
    (Count::BytesOut, "kafka_server_brokertopicmetrics_bytesout", "Bytes of records that consumers got"),
    (
        Count::BytesRejected,
        "kafka_server_brokertopicmetrics_bytesrejected",
        "Bytes of batches that were refused as too large",
    ),
    (
        Count::ProduceRequests,
        "kafka_server_brokertopicmetrics_totalproducerequests",
        "Partitions in produce requests",
    ),
    (
        Count::FailedProduceRequests,
        "kafka_server_brokertopicmetrics_failedproducerequests",
        "Partitions in produce requests that were refused, but for errors that clients are expected to meet",
    ),
    (
        Count::FetchRequests,
        "kafka_server_brokertopicmetrics_totalfetchrequests",
        "Partitions that fetches looked at",
    ),
    (
        Count::FailedFetchRequests,
        "kafka_server_brokertopicmetrics_failedfetchrequests",
        "Partitions that fetches looked at in vain, but for errors that clients are expected to meet",
    ),
];
/// The series of a topic, of a partition and of a group's partition.
const TOPIC_SERIES: usize = COUNTS.len() + 1;
const PARTITION_SERIES: usize = 9;
const COMMITTED_SERIES: usize = 3;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TopicLabel {
    topic: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PartitionLabel {
    topic: String,
    partition: i32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupLabel {
    consumergroup: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CommittedLabel {
    consumergroup: String,
    topic: String,
    partition: i32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// The series that may still be shown.
struct Room {
    left: usize,
    dropped: usize,
}

impl Room {
    /// Takes the first rows that fit.
    fn take<T>(&mut self, mut rows: Vec<T>, series_each: usize) -> Vec<T> {
        let fit = rows.len().min(self.left / series_each);
        self.dropped += (rows.len() - fit) * series_each;
        self.left -= fit * series_each;
        rows.truncate(fit);
        rows
    }
}

/// What is shown of a partition.
struct Shown {
    bounds: LogBounds,
    leader: i32,
    replicas: usize,
    in_sync: usize,
}

/// An offset that a group has committed.
struct Committed {
    label: CommittedLabel,
    stream: StreamId,
    offset: i64,
    /// `None` while the end of the partition is not known, which another broker leads.
    lag: Option<i64>,
}

/// Shows all of them.
pub fn encode(
    broker: &Arc<Broker>,
    topics: &[Arc<Topic>],
    arrivals: &Mutex<Arrivals>,
    encoder: &mut DescriptorEncoder,
) -> Result<(), Error> {
    let mut room = Room { left: usize::try_from(broker.config.metrics_series_max).unwrap_or(0), dropped: 0 };
    super::encode_gauges(
        &[("kafka_brokers", "Brokers of the cluster", i64::from(broker.placement.count()))],
        encoder,
    )?;
    let shown = room.take(topics.iter().collect(), TOPIC_SERIES);
    encode_counts(&broker.topics.traffic, &shown, encoder)?;
    encode_groups(broker, arrivals, &mut room, encoder)?;
    encode_partitions(broker, topics, &mut room, encoder)?;
    let dropped = [(
        "mainstem_metrics_series_dropped",
        "Series of topics, groups and partitions that are left out because of metrics.series.max",
        count(room.dropped),
    )];
    super::encode_gauges(&dropped, encoder)
}

fn encode_counts(
    all: &Traffic,
    topics: &[&Arc<Topic>],
    encoder: &mut DescriptorEncoder,
) -> Result<(), Error> {
    for (what, name, help) in COUNTS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let all = (String::new(), all);
        for (topic, traffic) in
            [all].into_iter().chain(topics.iter().map(|topic| (topic.name.to_string(), &*topic.traffic)))
        {
            ConstCounter::new(traffic.get(what)).encode(family.encode_family(&TopicLabel { topic })?)?;
        }
    }
    let help = "Partitions of the topic";
    let mut family = encoder.encode_descriptor("kafka_topic_partitions", help, None, MetricType::Gauge)?;
    for topic in topics {
        let label = TopicLabel { topic: topic.name.to_string() };
        ConstGauge::new(count(topic.partitions().len())).encode(family.encode_family(&label)?)?;
    }
    Ok(())
}

/// The partitions whose logs are here.
fn encode_partitions(
    broker: &Broker,
    topics: &[Arc<Topic>],
    room: &mut Room,
    encoder: &mut DescriptorEncoder,
) -> Result<(), Error> {
    let mut rows = Vec::new();
    for topic in topics {
        let replicas = broker.replicas_of(topic);
        for partition in topic.partitions().iter() {
            let Ok(log) = partition.log() else { continue };
            let Replicas { all, in_sync, .. } = replicas.of(partition);
            let (bounds, leader) = (log.bounds(), partition.leader().node);
            let label = PartitionLabel { topic: topic.name.to_string(), partition: partition.index };
            rows.push((label, Shown { bounds, leader, replicas: all.len(), in_sync: in_sync.len() }));
        }
    }
    let rows = room.take(rows, PARTITION_SERIES);
    type Value = fn(&Shown) -> i64;
    let gauges: [(&str, &str, Value); PARTITION_SERIES] = [
        ("kafka_log_log_size", "Bytes of the partition's batches", |of| {
            i64::try_from(of.bounds.bytes).unwrap_or(i64::MAX)
        }),
        ("kafka_log_log_logstartoffset", "The first offset of the partition", |of| of.bounds.start.0),
        ("kafka_log_log_logendoffset", "The offset behind the partition's last record", |of| {
            of.bounds.synced.0
        }),
        ("kafka_topic_partition_oldest_offset", "The first offset of the partition", |of| of.bounds.start.0),
        (
            "kafka_topic_partition_current_offset",
            "The offset behind the last record that consumers can see",
            |of| of.bounds.visible.0,
        ),
        ("kafka_topic_partition_leader", "The broker that leads the partition", |of| of.leader.into()),
        ("kafka_topic_partition_replicas", "Replicas of the partition", |of| count(of.replicas)),
        ("kafka_topic_partition_in_sync_replica", "Replicas of the partition in sync", |of| {
            count(of.in_sync)
        }),
        (
            "kafka_topic_partition_under_replicated_partition",
            "1 if fewer replicas are in sync than the partition has",
            |of| i64::from(of.in_sync < of.replicas),
        ),
    ];
    for (name, help, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (label, shown) in &rows {
            ConstGauge::new(value(shown)).encode(family.encode_family(label)?)?;
        }
    }
    Ok(())
}

fn encode_groups(
    broker: &Arc<Broker>,
    arrivals: &Mutex<Arrivals>,
    room: &mut Room,
    encoder: &mut DescriptorEncoder,
) -> Result<(), Error> {
    let (mut committed, mut members) = (Vec::new(), Vec::new());
    let (mut ends, mut states) = (HashMap::new(), BTreeMap::<&str, i64>::new());
    let elsewhere = broker.ends.look(broker.now_ms());
    for entry in broker.coordinator.all() {
        entry.with(|group: &Group| {
            *states.entry(group.state().name()).or_default() += 1;
            members.push((GroupLabel { consumergroup: entry.id().to_owned() }, group.members()));
            for (key, offset) in group.offsets() {
                let topic = broker.topics.find(&key.topic);
                let Some(partition) = topic.and_then(|topic| topic.partition(key.partition)) else {
                    continue;
                };
                let end = match partition.log() {
                    Ok(log) => Some(log.bounds().visible.0),
                    Err(_) => elsewhere.get(&partition.stream_id).copied(),
                };
                ends.insert(partition.stream_id, end);
                let label = CommittedLabel {
                    consumergroup: entry.id().to_owned(),
                    topic: key.topic.to_string(),
                    partition: key.partition,
                };
                let lag = end.map(|end| (end - offset.offset).max(0));
                committed.push(Committed { label, stream: partition.stream_id, offset: offset.offset, lag });
            }
        });
    }
    let members = room.take(members, 1);
    let committed = room.take(committed, COMMITTED_SERIES);
    let now_ms = broker.now_ms();
    let mut arrivals = arrivals.lock();
    arrivals.note(&ends, now_ms);
    let help = "The offset that the group has committed";
    let mut family =
        encoder.encode_descriptor("kafka_consumergroup_current_offset", help, None, MetricType::Gauge)?;
    for of in &committed {
        ConstGauge::new(of.offset).encode(family.encode_family(&of.label)?)?;
    }
    let help = "Records that the group has not committed yet";
    let mut family = encoder.encode_descriptor("kafka_consumergroup_lag", help, None, MetricType::Gauge)?;
    for (of, lag) in committed.iter().filter_map(|of| Some((of, of.lag?))) {
        ConstGauge::new(lag).encode(family.encode_family(&of.label)?)?;
    }
    let help = "Seconds since the first record arrived that the group has not committed yet, to the scrape";
    let mut family =
        encoder.encode_descriptor("kafka_consumergroup_lag_seconds", help, None, MetricType::Gauge)?;
    for of in committed.iter().filter(|of| of.lag.is_some()) {
        let seconds = arrivals.age_ms(of.stream, of.offset, now_ms) as f64 / 1000.0;
        ConstGauge::new(seconds).encode(family.encode_family(&of.label)?)?;
    }
    let help = "Members of the group";
    let mut family =
        encoder.encode_descriptor("kafka_consumergroup_members", help, None, MetricType::Gauge)?;
    for (label, members) in members {
        ConstGauge::new(count(members)).encode(family.encode_family(&label)?)?;
    }
    let name = "kafka_coordinator_group_groupcount";
    let mut family = encoder.encode_descriptor(name, "Groups by state", None, MetricType::Gauge)?;
    for (state, groups) in states {
        ConstGauge::new(groups).encode(family.encode_family(&StateLabel { state })?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_do_not_fit_are_counted() {
        let mut room = Room { left: 10, dropped: 0 };
        assert_eq!(room.take(vec![1, 2], 4), [1, 2]);
        assert_eq!(room.take(vec![3, 4, 5], 2), [3]);
        assert_eq!(room.take(vec![6], 1), Vec::<i32>::new());
        assert_eq!((room.left, room.dropped), (0, 5));
    }
}
