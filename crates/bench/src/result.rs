//! A result: the fields of the OpenMessaging Benchmark's JSON, and further data that OMB has no field for.
//!
//! OMB's `TestResult` holds one value per sample for each rate and each latency, and aggregates over the whole test.
//! There, publish and end-to-end latencies are in milliseconds and the publish delay is in microseconds. Mainstem's
//! results keep the microseconds as decimals. All further data is below the key `bench`, which OMB's chart script never
//! reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The measurement of one test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestResult {
    /// The workload's name.
    pub workload: String,
    /// The driver's name.
    pub driver: String,
    /// Bytes of a record's value.
    pub message_size: u64,
    /// Number of topics.
    pub topics: u32,
    /// Number of partitions of each topic.
    pub partitions: u32,
    /// Number of producers of each topic.
    pub producers_per_topic: u32,
    /// Number of consumers of each group.
    pub consumers_per_topic: u32,
    /// Messages per second, a value per sample.
    pub publish_rate: Vec<f64>,
    /// Failed messages per second, a value per sample.
    pub publish_error_rate: Vec<f64>,
    /// Messages per second over all groups, a value per sample.
    pub consume_rate: Vec<f64>,
    /// Messages published and not yet consumed, over all groups, a value per sample.
    pub backlog: Vec<u64>,
    /// From the scheduled time to the acknowledgement.
    pub publish_latency: LatencySeries,
    /// From the scheduled time to the handover to the client.
    pub publish_delay: LatencySeries,
    /// From the scheduled time to the receipt by a consumer.
    pub end_to_end_latency: LatencySeries,
    /// Data without a field in OMB.
    pub bench: Bench,
}

/// A latency over the samples of a test, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencySeries {
    /// A value per sample.
    pub samples: Vec<LatencySummary>,
    /// The summary over the whole test.
    pub aggregated: LatencySummary,
    /// Percentiles (0 to 100) and their latencies over the whole test, rising.
    pub quantiles: Vec<(f64, f64)>,
}

/// The mean and some percentiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// The mean.
    pub avg: f64,
    /// The values at the percentiles in [`PERCENTILES`].
    pub at: [f64; PERCENTILES.len()],
    /// The largest.
    pub max: f64,
}

/// OMB's percentiles, with the suffixes of its fields.
pub const PERCENTILES: [(f64, &str); 6] = [
    (50.0, "50pct"),
    (75.0, "75pct"),
    (95.0, "95pct"),
    (99.0, "99pct"),
    (99.9, "999pct"),
    (99.99, "9999pct"),
];

/// Data of a result without a field in OMB's JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bench {
    /// The version of `mainstem-bench`.
    pub version: String,
    /// `native` or `librdkafka`.
    pub engine: String,
    /// The server's name, for results that are compared: "mainstem", "kafka", "kafka-durable".
    pub contender: String,
    /// The round of a comparison, from 1; 0 outside of a comparison.
    pub round: u32,
    /// Messages that the server had deleted by the end. `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_messages: Option<u64>,
    /// The promise of an acknowledgement, in words: for example "on the device before the answer".
    pub durability: String,
    /// The server's version and settings, as far as they are known.
    pub setup: BTreeMap<String, String>,
    /// Start of the test, in RFC 3339, UTC.
    pub begin_time: String,
    /// Seconds between two samples of a series.
    pub sample_seconds: f64,
    /// Length of the measured part in seconds, without the warm-up.
    pub seconds: f64,
    /// Requested messages per second over all producers; 0 for a search of the highest sustainable rate.
    pub producer_rate: f64,
    /// The highest sustainable rate, if it was searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustainable_rate: Option<f64>,
    /// Number of consumer groups.
    pub groups: u32,
    /// Messages published in the measured part.
    pub published_messages: u64,
    /// Bytes of values published in the measured part.
    pub published_bytes: u64,
    /// Bytes of the batches in which they were published, as the client sent them. `None` if the engine does not know them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_batch_bytes: Option<u64>,
    /// Messages consumed in the measured part, over all groups.
    pub consumed_messages: u64,
    /// Bytes of values consumed in the measured part, over all groups.
    pub consumed_bytes: u64,
    /// Publish errors over the whole run.
    pub publish_errors: u64,
    /// Whether every group received every acknowledged message once, in order and undamaged.
    pub verified: bool,
    /// CPU-seconds (user and system) of the load generator in the measured part.
    pub load_cpu_seconds: f64,
    /// The share (0 to 1) of the machine's processor time that a hypervisor withheld although there was work (`steal`
    /// in `/proc/stat`), a value per sample. Empty if the system does not report it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stolen: Vec<f64>,
    /// The backlog of a workload that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogResult>,
    /// Settings of the clients that affect batches and durability.
    pub client: BTreeMap<String, String>,
    /// Seconds of the measured part after which a process of the server was killed. `None` if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed_after: Option<f64>,
    /// The machine.
    pub environment: Environment,
    /// The server's process, if it could be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerUsage>,
    /// The device below the server's data, if it could be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceUsage>,
}

/// The building and draining of a backlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BacklogResult {
    /// Messages that waited when the consumers resumed, over all groups.
    pub messages: u64,
    /// Seconds from the pause to the resumption.
    pub build_seconds: f64,
    /// Seconds from the resumption to the level that counts as drained.
    pub drain_seconds: f64,
    /// Messages consumed per second while the backlog drained, over all groups.
    pub drain_rate: f64,
}

/// The machine of a test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Environment {
    /// Number of processors that the system reports.
    pub cpus: u32,
    /// The name of the processor.
    pub cpu_model: String,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Type of the file system and name of the device below the server's data, if known.
    pub filesystem: String,
    /// Processors of the server, as a list ("0" or "0-3"). Empty if it was not pinned.
    pub server_cpus: String,
    /// Processors of the load generator.
    pub load_cpus: String,
}

/// The use of resources by the server's processes in the measured part, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerUsage {
    /// CPU-seconds, user and system.
    pub cpu_seconds: f64,
    /// The largest resident set in bytes since the start of the server (`VmHWM`).
    pub peak_memory_bytes: u64,
    /// Bytes that the processes of a cluster sent to each other. `None` for one process, or if it could not be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between_bytes: Option<u64>,
}

/// The work of the device in the measured part (`/proc/diskstats`), by all processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceUsage {
    /// The name in `/proc/diskstats`.
    pub name: String,
    /// Number of completed writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Number of completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
}

/// The reason why a file is not a result.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// The file is not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A field of OMB is missing or has another type.
    #[error("the field {0} is missing or not of its type; is it a result of OMB?")]
    Field(String),
}

/// The unit of a latency in OMB's JSON.
#[derive(Clone, Copy)]
enum Unit {
    Millis,
    Micros,
}

impl Unit {
    fn of_micros(self, micros: f64) -> f64 {
        match self {
            Unit::Millis => micros / 1000.0,
            Unit::Micros => micros,
        }
    }

    fn to_micros(self, value: f64) -> f64 {
        match self {
            // A value that was whole before the division becomes whole again: to the nanosecond.
            Unit::Millis => (value * 1e6).round() / 1e3,
            Unit::Micros => value,
        }
    }
}

/// The prefixes of OMB's latency fields: for series, for aggregates, and the unit.
const LATENCIES: [(&str, &str, Unit); 3] = [
    ("publishLatency", "aggregatedPublishLatency", Unit::Millis),
    ("publishDelayLatency", "aggregatedPublishDelayLatency", Unit::Micros),
    ("endToEndLatency", "aggregatedEndToEndLatency", Unit::Millis),
];

impl LatencySummary {
    fn values(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let percentiles = PERCENTILES.iter().zip(self.at).map(|((_, suffix), value)| (*suffix, value));
        std::iter::once(("Avg", self.avg)).chain(percentiles).chain([("Max", self.max)])
    }

    fn set(&mut self, suffix: &str, value: f64) {
        match PERCENTILES.iter().position(|(_, name)| *name == suffix) {
            Some(at) => self.at[at] = value,
            None if suffix == "Avg" => self.avg = value,
            None => self.max = value,
        }
    }

    /// The value at one of the [`PERCENTILES`].
    pub fn percentile(&self, percentile: f64) -> Option<f64> {
        PERCENTILES.iter().position(|(at, _)| *at == percentile).map(|at| self.at[at])
    }
}

impl TestResult {
    fn latencies(&self) -> [&LatencySeries; 3] {
        [&self.publish_latency, &self.publish_delay, &self.end_to_end_latency]
    }

    /// OMB's JSON with the further data.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        let mut put = |name: String, value: Value| drop(map.insert(name, value));
        put("workload".into(), json!(self.workload));
        put("driver".into(), json!(self.driver));
        put("messageSize".into(), json!(self.message_size));
        put("topics".into(), json!(self.topics));
        put("partitions".into(), json!(self.partitions));
        put("producersPerTopic".into(), json!(self.producers_per_topic));
        put("consumersPerTopic".into(), json!(self.consumers_per_topic));
        put("publishRate".into(), json!(self.publish_rate));
        put("publishErrorRate".into(), json!(self.publish_error_rate));
        put("consumeRate".into(), json!(self.consume_rate));
        put("backlog".into(), json!(self.backlog));
        for ((series_name, aggregate_name, unit), series) in LATENCIES.into_iter().zip(self.latencies()) {
            for (at, (suffix, aggregated)) in series.aggregated.values().enumerate() {
                let of = |summary: &LatencySummary| {
                    summary.values().nth(at).map(|(_, value)| unit.of_micros(value))
                };
                let values: Vec<f64> = series.samples.iter().filter_map(of).collect();
                put(format!("{series_name}{suffix}"), json!(values));
                put(format!("{aggregate_name}{suffix}"), json!(unit.of_micros(aggregated)));
            }
            let quantile =
                |(percentile, micros): &(f64, f64)| (percentile.to_string(), json!(unit.of_micros(*micros)));
            let quantiles: Map<String, Value> = series.quantiles.iter().map(quantile).collect();
            put(format!("{aggregate_name}Quantiles"), Value::Object(quantiles));
        }
        put("bench".into(), json!(self.bench));
        Value::Object(map)
    }

    /// Reads a result of `mainstem-bench` or of OMB.
    pub fn from_json(text: &str) -> Result<TestResult, ResultError> {
        let value: Value = serde_json::from_str(text)?;
        let fields = Fields(value.as_object().ok_or(ResultError::Field("workload".into()))?);
        let mut result = TestResult {
            workload: fields.text("workload")?,
            driver: fields.text("driver")?,
            message_size: fields.count("messageSize").unwrap_or(0),
            topics: fields.small("topics"),
            partitions: fields.small("partitions"),
            producers_per_topic: fields.small("producersPerTopic"),
            consumers_per_topic: fields.small("consumersPerTopic"),
            publish_rate: fields.series("publishRate")?,
            publish_error_rate: fields.series("publishErrorRate").unwrap_or_default(),
            consume_rate: fields.series("consumeRate")?,
            backlog: fields.counts("backlog")?,
            ..TestResult::default()
        };
        let [publish, delay, end_to_end] = LATENCIES.map(|names| fields.latency(names));
        result.publish_latency = publish?;
        result.publish_delay = delay?;
        result.end_to_end_latency = end_to_end?;
        match value.get("bench") {
            Some(bench) => result.bench = serde_json::from_value(bench.clone())?,
            // OMB's own results have a sample every 10 s.
            None => result.bench.sample_seconds = 10.0,
        }
        Ok(result)
    }

    /// The server's name in tables and charts.
    pub fn label(&self) -> &str {
        if self.bench.contender.is_empty() { &self.driver } else { &self.bench.contender }
    }
}

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn find<T>(&self, name: &str, of: impl Fn(&Value) -> Option<T>) -> Result<T, ResultError> {
        self.0.get(name).and_then(of).ok_or_else(|| ResultError::Field(name.into()))
    }

    fn text(&self, name: &str) -> Result<String, ResultError> {
        self.find(name, |value| value.as_str().map(str::to_owned))
    }

    fn count(&self, name: &str) -> Result<u64, ResultError> {
        self.find(name, Value::as_u64)
    }

    fn small(&self, name: &str) -> u32 {
        self.count(name).ok().and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
    }

    fn series(&self, name: &str) -> Result<Vec<f64>, ResultError> {
        self.find(name, |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    fn counts(&self, name: &str) -> Result<Vec<u64>, ResultError> {
        self.find(name, |value| value.as_array()?.iter().map(Value::as_u64).collect())
    }

    fn latency(
        &self,
        (series_name, aggregate_name, unit): (&str, &str, Unit),
    ) -> Result<LatencySeries, ResultError> {
        let mut latency = LatencySeries::default();
        let suffixes: Vec<&str> = LatencySummary::default().values().map(|(suffix, _)| suffix).collect();
        for suffix in suffixes {
            let values = self.series(&format!("{series_name}{suffix}"))?;
            latency.samples.resize(values.len().max(latency.samples.len()), LatencySummary::default());
            for (summary, value) in latency.samples.iter_mut().zip(values) {
                summary.set(suffix, unit.to_micros(value));
            }
            let name = format!("{aggregate_name}{suffix}");
            latency.aggregated.set(suffix, unit.to_micros(self.find(&name, Value::as_f64)?));
        }
        let pair = |(percentile, value): (&String, &Value)| {
            Some((percentile.parse().ok()?, unit.to_micros(value.as_f64()?)))
        };
        let name = format!("{aggregate_name}Quantiles");
        latency.quantiles = self.find(&name, |value| value.as_object()?.iter().map(pair).collect())?;
        latency.quantiles.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(from: f64) -> LatencySeries {
        let summary = |from: f64| LatencySummary {
            avg: from,
            at: std::array::from_fn(|at| from + at as f64),
            max: from + 9.0,
        };
        LatencySeries {
            samples: vec![summary(from), summary(from + 100.0)],
            aggregated: summary(from + 50.0),
            quantiles: vec![(0.0, from), (50.0, from + 1.0), (99.9951, from + 2.0), (100.0, from + 3.0)],
        }
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let result = TestResult {
            workload: "w".into(),
            driver: "d".into(),
            message_size: 1024,
            topics: 1,
            partitions: 288,
            producers_per_topic: 4,
            consumers_per_topic: 4,
            publish_rate: vec![1.5, 2.0],
            publish_error_rate: vec![0.0, 0.0],
            consume_rate: vec![1.0, 2.0],
            backlog: vec![3, 0],
            publish_latency: series(1000.0),
            publish_delay: series(3.0),
            end_to_end_latency: series(2000.0),
            bench: Bench { contender: "mainstem".into(), sample_seconds: 1.0, ..Bench::default() },
        };
        let text = result.to_json().to_string();
        assert_eq!(TestResult::from_json(&text).unwrap(), result);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["publishLatency999pct"], json!([1.004, 1.104]));
        assert_eq!(value["publishDelayLatencyMax"], json!([12.0, 112.0]));
        assert_eq!(value["aggregatedEndToEndLatencyQuantiles"]["99.9951"], json!(2.002));
        assert_eq!(value["aggregatedPublishDelayLatencyAvg"], json!(53.0));
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        assert!(TestResult::from_json("nothing").is_err());
        let error = TestResult::from_json(r#"{"workload":"w","driver":"d"}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the field publishRate is missing or not of its type; is it a result of OMB?"
        );
    }
}
