//! A driver file, as the OpenMessaging Benchmark's Kafka driver has them: blocks of Java properties for the clients.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::yaml;

/// Settings by their name, as Kafka's clients call them.
pub type Properties = BTreeMap<String, String>;

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

/// Serde's way of saying that something is 1 unless it is given.
fn one() -> i16 {
    1
}

/// Which servers, and how their clients are set.
#[derive(Clone, Debug)]
pub struct Driver {
    pub name: String,
    pub replication_factor: i16,
    pub topic: Properties,
    /// For every client: servers, security.
    pub common: Properties,
    /// With the common ones.
    pub producer: Properties,
    /// With the common ones.
    pub consumer: Properties,
    /// Keys of the file that mean nothing here.
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
        let common = properties(&file.common_config);
        let with_common = |block: &str| {
            let mut all = common.clone();
            all.extend(properties(block));
            all
        };
        let servers = common.get("bootstrap.servers").map_or("", String::as_str);
        if servers.trim().is_empty() {
            bail!("commonConfig is to name the servers: bootstrap.servers=HOST:PORT");
        }
        Ok(Driver {
            name: file.name,
            replication_factor: file.replication_factor,
            topic: properties(&file.topic_config),
            producer: with_common(&file.producer_config),
            consumer: with_common(&file.consumer_config),
            common,
            ignored: file.unknown.into_keys().collect(),
        })
    }
}

/// Java's properties: `key=value`, `key: value` or `key value`, comments with `#` or `!`, lines continued by a backslash.
fn properties(text: &str) -> Properties {
    let mut all = Properties::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut line = line.trim().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while line.ends_with('\\') {
            line.pop();
            line.push_str(lines.next().unwrap_or("").trim_start());
        }
        let end = line.find(['=', ':', ' ', '\t']).unwrap_or(line.len());
        let (key, rest) = line.split_at(end);
        let rest = rest.trim_start();
        let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
        all.insert(key.to_owned(), value.to_owned());
    }
    all
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
    fn properties_are_javas() {
        let all =
            properties("a=1\n# no\n b : 2 \nc 3\nd=x=\\\n   y\ne\n!no\nsasl.jaas.config=M required u=\"v\";");
        let expected = [
            ("a", "1"),
            ("b", "2"),
            ("c", "3"),
            ("d", "x=y"),
            ("e", ""),
            ("sasl.jaas.config", "M required u=\"v\";"),
        ];
        assert_eq!(all, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn other_servers_and_no_servers_are_refused() {
        let error = |text: &str| Driver::parse(text).unwrap_err().to_string();
        assert!(error("driverClass: x.PulsarBenchmarkDriver").contains("only Kafka's protocol"));
        assert!(error("replicationFactor: 1").contains("bootstrap.servers"));
    }
}
