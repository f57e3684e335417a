//! A result: the OpenMessaging Benchmark's JSON, field for field, and beside it what it has no field for.
//!
//! OMB's `TestResult` holds one value per sample for each rate and each latency, and aggregates over the whole test.
//! Latencies of publishing and end to end are milliseconds there, the publish delay microseconds; ours keep the
//! microsecond as decimals. Everything of our own is below the one key `bench`, which OMB's chart script never reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// One test as measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestResult {
    /// The workload's name.
    pub workload: String,
    /// The driver's name.
    pub driver: String,
    /// Bytes of a record's value.
    pub message_size: u64,
    /// Topics.
    pub topics: u32,
    /// Partitions of each topic.
    pub partitions: u32,
    /// Producers of each topic.
    pub producers_per_topic: u32,
    /// Consumers of each group.
    pub consumers_per_topic: u32,
    /// Messages a second, a value per sample.
    pub publish_rate: Vec<f64>,
    /// Failed messages a second, a value per sample.
    pub publish_error_rate: Vec<f64>,
    /// Messages a second over all groups, a value per sample.
    pub consume_rate: Vec<f64>,
    /// Messages published and not yet consumed, over all groups, a value per sample.
    pub backlog: Vec<u64>,
    /// From the scheduled time to the acknowledgement.
    pub publish_latency: LatencySeries,
    /// From the scheduled time to being handed to the client.
    pub publish_delay: LatencySeries,
    /// From the scheduled time to being received by a consumer.
    pub end_to_end_latency: LatencySeries,
    /// What OMB has no field for.
    pub bench: Bench,
}

/// A latency over the samples of a test, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencySeries {
    /// A value per sample.
    pub samples: Vec<LatencySummary>,
    /// Over the whole test.
    pub aggregated: LatencySummary,
    /// Over the whole test: percentile (0 to 100) and the latency at it, rising.
    pub quantiles: Vec<(f64, f64)>,
}

/// The mean and some percentiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// The mean.
    pub avg: f64,
    /// At the percentiles of [`PERCENTILES`].
    pub at: [f64; PERCENTILES.len()],
    /// The largest.
    pub max: f64,
}

/// OMB's percentiles, with the suffixes that its fields have.
pub const PERCENTILES: [(f64, &str); 6] = [
    (50.0, "50pct"),
    (75.0, "75pct"),
    (95.0, "95pct"),
    (99.0, "99pct"),
    (99.9, "999pct"),
    (99.99, "9999pct"),
];

/// What belongs to a result and has no field in OMB's JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bench {
    /// Of `mainstem-bench`.
    pub version: String,
    /// `native` or `librdkafka`.
    pub engine: String,
    /// Which server it was, for results that stand side by side: "mainstem", "kafka", "kafka-durable".
    pub contender: String,
    /// Of a comparison, from 1; 0 outside of one.
    pub round: u32,
    /// Messages that the server had deleted in the end; unknown where it did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_messages: Option<u64>,
    /// What an acknowledgement promised, in words: for example "on the device before the answer".
    pub durability: String,
    /// The server's version and what was set for it, as far as it was said.
    pub setup: BTreeMap<String, String>,
    /// RFC 3339, UTC.
    pub begin_time: String,
    /// Between two samples of a series.
    pub sample_seconds: f64,
    /// Length of the measured part, warm-up not counted.
    pub seconds: f64,
    /// Messages a second asked for, over all producers; 0 when the highest sustainable was looked for.
    pub producer_rate: f64,
    /// What was found, when it was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustainable_rate: Option<f64>,
    /// Groups of consumers.
    pub groups: u32,
    /// In the measured part.
    pub published_messages: u64,
    /// In the measured part: bytes of values.
    pub published_bytes: u64,
    /// In the measured part, over all groups.
    pub consumed_messages: u64,
    /// In the measured part, over all groups: bytes of values.
    pub consumed_bytes: u64,
    /// Over the whole run.
    pub publish_errors: u64,
    /// Whether every acknowledged message was received, once, in order and undamaged, by every group.
    pub verified: bool,
    /// CPU-seconds (user and system) of the load generator itself in the measured part.
    pub load_cpu_seconds: f64,
    /// The share (0 to 1) of the machine's processors that a hypervisor withheld although they had work (`steal` in
    /// `/proc/stat`), a value per sample; empty where the system does not say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stolen: Vec<f64>,
    /// Of a workload with a backlog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogResult>,
    /// Settings of the clients that decide about batches and durability.
    pub client: BTreeMap<String, String>,
    /// The machine.
    pub environment: Environment,
    /// The server process, where it could be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerUsage>,
    /// The device below the server's data, where it could be observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceUsage>,
}

/// How a backlog was built and drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BacklogResult {
    /// Messages that waited when consumers resumed, over all groups.
    pub messages: u64,
    /// From pausing to resuming.
    pub build_seconds: f64,
    /// From resuming to the level that counts as drained.
    pub drain_seconds: f64,
    /// Messages consumed a second while it was drained, over all groups.
    pub drain_rate: f64,
}

/// The machine that a test ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Environment {
    /// Processors that the system shows.
    pub cpus: u32,
    /// As the processor names itself.
    pub cpu_model: String,
    /// Of the machine.
    pub memory_bytes: u64,
    /// Name and release.
    pub kernel: String,
    /// Below the server's data, where it is known: type of the file system and name of the device.
    pub filesystem: String,
    /// Processors given to the server, as a list ("0" or "0-3"); empty when not pinned.
    pub server_cpus: String,
    /// Processors given to the load generator.
    pub load_cpus: String,
}

/// What the server process used in the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerUsage {
    /// User and system.
    pub cpu_seconds: f64,
    /// The largest resident set since the server started (`VmHWM`).
    pub peak_memory_bytes: u64,
}

/// What the device did in the measured part (`/proc/diskstats`), whoever asked it to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceUsage {
    /// As in `/proc/diskstats`.
    pub name: String,
    /// Writes completed.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Reads completed.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
}

/// Why a file is not a result.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// Not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A field of OMB's is not there or of another type.
    #[error("the field {0} is missing or not of its type; is it a result of OMB?")]
    Field(String),
}

/// Milliseconds or microseconds, as OMB has them.
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
            // What was whole before it was divided is whole again: to the nanosecond.
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

    /// At one of the [`PERCENTILES`].
    pub fn percentile(&self, percentile: f64) -> Option<f64> {
        PERCENTILES.iter().position(|(at, _)| *at == percentile).map(|at| self.at[at])
    }
}

impl TestResult {
    fn latencies(&self) -> [&LatencySeries; 3] {
        [&self.publish_latency, &self.publish_delay, &self.end_to_end_latency]
    }

    /// OMB's JSON with our own part.
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

    /// Reads a result of ours or of OMB itself.
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
            // OMB's own: it samples every 10 s.
            None => result.bench.sample_seconds = 10.0,
        }
        Ok(result)
    }

    /// What the server is called in tables and charts.
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
