//! A driver file in the form of the OpenMessaging Benchmark's Kafka driver: blocks of Java properties for the clients.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use client::properties::{Properties, parse};
use serde::Deserialize;
use serde_json::Value;

use crate::yaml;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    name: String,
    #[serde(default)]
    driver_class: String,
    #[serde(default = "one")]
    replication_factor: i16,
    #[serde(default)]
    topic_config: String,
    #[serde(default)]
    common_config: String,
    #[serde(default)]
    producer_config: String,
    #[serde(default)]
    consumer_config: String,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

/// The default value 1, for serde.
fn one() -> i16 {
    1
}

/// The servers, and the settings of their clients.
#[derive(Clone, Debug)]
pub struct Driver {
    pub name: String,
    pub replication_factor: i16,
    pub topic: Properties,
    /// Properties of every client: servers, security.
    pub common: Properties,
    /// The producers' properties, including the common ones.
    pub producer: Properties,
    /// The consumers' properties, including the common ones.
    pub consumer: Properties,
    /// Keys of the file that are ignored.
    pub ignored: Vec<String>,
}

impl Driver {
    pub fn read(path: &Path) -> anyhow::Result<Driver> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("the driver file {} cannot be read", path.display()))?;
        let mut driver =
            Driver::parse(&text).with_context(|| format!("the driver file {}", path.display()))?;
        if driver.name.is_empty() {
            driver.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        }
        Ok(driver)
    }

    pub fn parse(text: &str) -> anyhow::Result<Driver> {
        let file: File = yaml::from_str(text)?;
        if !file.driver_class.is_empty() && !file.driver_class.to_lowercase().contains("kafka") {
            bail!(
                "the driver class {} is not Kafka's; only Kafka's protocol is spoken here",
                file.driver_class
            );
        }
        let common = parse(&file.common_config);
        let with_common = |block: &str| {
            let mut all = common.clone();
            all.extend(parse(block));
            all
        };
        let servers = common.get("bootstrap.servers").map_or("", String::as_str);
        if servers.trim().is_empty() {
            bail!("commonConfig is to name the servers: bootstrap.servers=HOST:PORT");
        }
        Ok(Driver {
            name: file.name,
            replication_factor: file.replication_factor,
            topic: parse(&file.topic_config),
            producer: with_common(&file.producer_config),
            consumer: with_common(&file.consumer_config),
            common,
            ignored: file.unknown.into_keys().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omb_drivers_are_read() {
        let text = "
name: Kafka
driverClass: io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver

# Kafka client-specific configuration
replicationFactor: 3
reset: true

topicConfig: |
  min.insync.replicas=2

commonConfig: |
  bootstrap.servers=localhost:9092

producerConfig: |
  acks=all
  linger.ms=1
  batch.size=1048576

consumerConfig: |
  auto.offset.reset=earliest
  enable.auto.commit=false
";
        let driver = Driver::parse(text).unwrap();
        assert_eq!((driver.name.as_str(), driver.replication_factor), ("Kafka", 3));
        assert_eq!(driver.topic["min.insync.replicas"], "2");
        assert_eq!(driver.producer["batch.size"], "1048576");
        assert_eq!(driver.producer["bootstrap.servers"], "localhost:9092");
        assert_eq!(driver.consumer["enable.auto.commit"], "false");
        assert_eq!(driver.ignored, ["reset"]);
    }

    #[test]
    fn other_servers_and_no_servers_are_refused() {
        let error = |text: &str| Driver::parse(text).unwrap_err().to_string();
        assert!(error("driverClass: x.PulsarBenchmarkDriver").contains("only Kafka's protocol"));
        assert!(error("replicationFactor: 1").contains("bootstrap.servers"));
    }
}
