//! A workload file in the form of the OpenMessaging Benchmark.
//!
//! Extensions of OMB: durations in seconds (`testDurationSeconds`, `warmupDurationSeconds`), a list of rates
//! (`producerRates`), and fractions where OMB takes whole numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::yaml;

/// The choice of keys (OMB's `KeyDistributorType`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum KeyDistributor {
    /// No key: the producer fills the batch of one partition after the other.
    #[default]
    NoKey,
    /// The keys of a pool in turn.
    KeyRoundRobin,
    /// A key of the pool, chosen by the nanoseconds of the clock.
    RandomNano,
}

/// The workload. OMB's documentation describes each field.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    #[serde(default)]
    pub name: String,
    pub topics: u32,
    pub partitions_per_topic: u32,
    #[serde(default)]
    pub key_distributor: KeyDistributor,
    pub message_size: usize,
    #[serde(default)]
    pub payload_file: Option<PathBuf>,
    #[serde(default)]
    pub use_randomized_payloads: bool,
    #[serde(default)]
    pub random_bytes_ratio: f64,
    #[serde(default)]
    pub randomized_payload_pool_size: usize,
    pub subscriptions_per_topic: u32,
    pub consumer_per_subscription: u32,
    pub producers_per_topic: u32,
    /// Messages per second over all producers. 0 searches for the highest sustainable rate.
    #[serde(default)]
    pub producer_rate: f64,
    /// One test for each rate, instead of `producer_rate`.
    #[serde(default)]
    pub producer_rates: Vec<f64>,
    #[serde(default, rename = "consumerBacklogSizeGB")]
    pub consumer_backlog_size_gb: f64,
    #[serde(default = "whole")]
    pub backlog_drain_ratio: f64,
    #[serde(default)]
    pub test_duration_minutes: f64,
    #[serde(default)]
    pub test_duration_seconds: Option<f64>,
    #[serde(default = "whole")]
    pub warmup_duration_minutes: f64,
    #[serde(default)]
    pub warmup_duration_seconds: Option<f64>,
    /// Topic settings for this workload, in addition to the driver's.
    #[serde(default)]
    pub topic_config: BTreeMap<String, Value>,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
    /// The base of relative paths in the file.
    #[serde(skip)]
    directory: PathBuf,
}

/// The default value 1, for serde.
fn whole() -> f64 {
    1.0
}

impl Workload {
    pub fn read(path: &Path) -> anyhow::Result<Workload> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("the workload {} cannot be read", path.display()))?;
        let mut workload =
            Workload::parse(&text).with_context(|| format!("the workload {}", path.display()))?;
        if workload.name.is_empty() {
            workload.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        }
        workload.directory = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(workload)
    }

    fn parse(text: &str) -> anyhow::Result<Workload> {
        let workload: Workload = yaml::from_str(text)?;
        workload.check()?;
        Ok(workload)
    }

    fn check(&self) -> anyhow::Result<()> {
        let positive = [
            ("topics", self.topics),
            ("partitionsPerTopic", self.partitions_per_topic),
            ("producersPerTopic", self.producers_per_topic),
        ];
        for (name, value) in positive {
            if value == 0 {
                bail!("{name} is to be 1 at least");
            }
        }
        if self.message_size == 0 {
            bail!("messageSize is to be 1 at least");
        }
        let rates = self.rates();
        if rates.iter().any(|rate| !rate.is_finite() || *rate < 0.0) {
            bail!("a producer rate is to be 0 (find the highest) or more");
        }
        if self.consumer_backlog_size_gb > 0.0 && rates.contains(&0.0) {
            bail!("a backlog needs a producer rate: it cannot be built while the highest rate is looked for");
        }
        if self.consumer_backlog_size_gb > 0.0 && self.groups() == 0 {
            bail!("a backlog needs consumers: set subscriptionsPerTopic and consumerPerSubscription");
        }
        if !(0.0..=1.0).contains(&self.backlog_drain_ratio) || !(0.0..=1.0).contains(&self.random_bytes_ratio)
        {
            bail!("backlogDrainRatio and randomBytesRatio lie between 0 and 1");
        }
        if self.use_randomized_payloads && self.randomized_payload_pool_size == 0 {
            bail!("useRandomizedPayloads needs a randomizedPayloadPoolSize of 1 at least");
        }
        if self.test_duration() == Duration::ZERO {
            bail!("set testDurationMinutes or testDurationSeconds");
        }
        Ok(())
    }

    /// The rates of the tests, in order.
    pub fn rates(&self) -> Vec<f64> {
        if self.producer_rates.is_empty() { vec![self.producer_rate] } else { self.producer_rates.clone() }
    }

    /// The number of consumer groups of each topic.
    pub fn groups(&self) -> u32 {
        if self.consumer_per_subscription == 0 { 0 } else { self.subscriptions_per_topic }
    }

    pub fn test_duration(&self) -> Duration {
        duration(self.test_duration_seconds, self.test_duration_minutes)
    }

    pub fn warmup_duration(&self) -> Duration {
        duration(self.warmup_duration_seconds, self.warmup_duration_minutes)
    }

    /// The settings of the topics.
    pub fn topic_properties(&self) -> impl Iterator<Item = (String, String)> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.topic_config.iter().map(move |(name, value)| (name.clone(), text(value)))
    }

    /// Keys that are ignored.
    pub fn ignored(&self) -> Vec<&str> {
        self.unknown.keys().map(String::as_str).collect()
    }

    /// The values that producers choose from, each of `message_size` bytes.
    pub fn payloads(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        if self.use_randomized_payloads {
            // As in OMB: random bytes, then zeros, so that compression finds a known share.
            #[allow(clippy::cast_possible_truncation, reason = "a share of the message's size")]
            let random_bytes = (self.message_size as f64 * self.random_bytes_ratio) as usize;
            let mut random = fastrand::Rng::with_seed(0x006d_6169_6e73_7465);
            let payload = |_| {
                let mut payload = vec![0; self.message_size];
                random.fill(&mut payload[..random_bytes]);
                payload
            };
            return Ok((0..self.randomized_payload_pool_size).map(payload).collect());
        }
        let Some(file) = &self.payload_file else { return Ok(vec![vec![0; self.message_size]]) };
        let near = self.directory.join(file);
        let path = if file.exists() { file } else { &near };
        let payload = std::fs::read(path)
            .with_context(|| format!("the payload file {} cannot be read", file.display()))?;
        if payload.len() != self.message_size {
            bail!(
                "payload file {} has {} bytes, messageSize says {}",
                file.display(),
                payload.len(),
                self.message_size
            );
        }
        Ok(vec![payload])
    }
}

fn duration(seconds: Option<f64>, minutes: f64) -> Duration {
    let seconds = seconds.unwrap_or(minutes * 60.0);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OMB: &str = "
name: 1 topic / 16 partitions / 1kb

topics: 1
partitionsPerTopic: 16
keyDistributor: \"KEY_ROUND_ROBIN\"
messageSize: 1024
useRandomizedPayloads: true
randomBytesRatio: 0.5
randomizedPayloadPoolSize: 3

subscriptionsPerTopic: 2
consumerPerSubscription: 1
producersPerTopic: 4
producerRate: 50000
consumerBacklogSizeGB: 0
testDurationMinutes: 15
flavour: mild
";

    #[test]
    fn omb_workloads_are_read() {
        let workload = Workload::parse(OMB).unwrap();
        assert_eq!(
            (workload.partitions_per_topic, workload.key_distributor),
            (16, KeyDistributor::KeyRoundRobin)
        );
        assert_eq!(workload.rates(), [50_000.0]);
        assert_eq!(workload.test_duration(), Duration::from_secs(900));
        assert_eq!(workload.warmup_duration(), Duration::from_secs(60));
        assert_eq!(workload.ignored(), ["flavour"]);
        let payloads = workload.payloads().unwrap();
        assert_eq!(payloads.len(), 3);
        assert!(
            payloads
                .iter()
                .all(|payload| payload.len() == 1024 && payload[512..].iter().all(|byte| *byte == 0))
        );
        assert!(payloads[0][..512] != payloads[1][..512]);
    }

    #[test]
    fn seconds_and_steps_are_ours() {
        let more = "testDurationSeconds: 2.5\nwarmupDurationSeconds: 0\nproducerRates: [10, 20]\n";
        let workload = Workload::parse(&format!("{OMB}{more}")).unwrap();
        assert_eq!(workload.test_duration(), Duration::from_millis(2500));
        assert_eq!(workload.warmup_duration(), Duration::ZERO);
        assert_eq!(workload.rates(), [10.0, 20.0]);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let error = |text: &str| Workload::parse(text).unwrap_err().to_string();
        assert!(error(&OMB.replace("topics: 1", "topics: 0")).contains("topics"));
        assert!(error(&OMB.replace("topics: 1\n", "")).contains("topics"));
        assert!(error(&OMB.replace("50000", "-1")).contains("rate"));
        assert!(error(&OMB.replace("50000", "0").replace("SizeGB: 0", "SizeGB: 1")).contains("backlog"));
        assert!(error("topics: [").contains("line"), "{}", error("topics: ["));
        let large = error(&OMB.replace("messageSize: 1024", "messageSize: large"));
        assert!(large.starts_with("messageSize: ") && large.contains("large"), "{large}");
        let distributor = error(&OMB.replace("KEY_ROUND_ROBIN", "BY_TASTE"));
        assert!(distributor.starts_with("keyDistributor: "), "{distributor}");
        assert_eq!(error(&OMB.replace("topics: 1\n", "")), "missing field `topics`");
    }
}
