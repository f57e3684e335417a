//! The driver files that a comparison passes to its runs: the user's file or the default one, with the name and the
//! address of the current server. Other keys are passed on unchanged.

use serde_json::{Map, Value, json};

use crate::driver::Driver;
use crate::settings::ProducerSettings;

const BOOTSTRAP: &str = "bootstrap.servers";
/// Blocks of Java properties, in the order of OMB's drivers.
const BLOCKS: [&str; 4] = ["topicConfig", "commonConfig", "producerConfig", "consumerConfig"];

/// A driver file without a server.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverTemplate {
    keys: Map<String, Value>,
    /// `None` for the default driver, which gets the name of the server.
    name: Option<String>,
}

impl DriverTemplate {
    /// Parses the text of a driver file.
    pub fn parse(text: &str) -> anyhow::Result<DriverTemplate> {
        let keys: Map<String, Value> = serde_saphyr::from_str(text)?;
        for block in BLOCKS {
            if keys.get(block).is_some_and(|value| !value.is_string() && !value.is_null()) {
                anyhow::bail!("{block} must be a block of lines: `{block}: |`");
            }
        }
        let name = keys.get("name").and_then(Value::as_str).map(str::to_owned);
        Ok(DriverTemplate { keys, name })
    }

    /// The settings of OMB's driver for Kafka, with acknowledgements by all replicas.
    pub fn standard() -> DriverTemplate {
        let keys = [
            ("replicationFactor", json!(1)),
            ("producerConfig", json!("acks=all\nlinger.ms=1\nbatch.size=131072\n")),
            (
                "consumerConfig",
                json!(
                    "auto.offset.reset=earliest\nenable.auto.commit=false\nmax.partition.fetch.bytes=131072\n"
                ),
            ),
        ];
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        DriverTemplate { keys, name: None }
    }

    /// The same for a cluster of three brokers: three copies, of which two must be in sync.
    pub fn of_cluster(mut self) -> DriverTemplate {
        self.keys.insert("replicationFactor".into(), json!(3));
        self.keys.insert("topicConfig".into(), json!("min.insync.replicas=2\n"));
        self
    }

    /// The `acks` of the producers, as in the protocol.
    pub fn acks(&self) -> anyhow::Result<i16> {
        let driver = Driver::parse(&self.to_yaml("any", "any:1", &[]))?;
        Ok(ProducerSettings::of(&driver.producer)?.0.acks)
    }

    /// The YAML of the driver for a server. The name contains the server's, so that results stay apart in OMB's charts
    /// too. `properties` are the client settings besides the address.
    pub fn to_yaml(&self, contender: &str, bootstrap: &str, properties: &[(String, String)]) -> String {
        let name = self.name.as_ref().map_or(contender.to_owned(), |name| format!("{name}-{contender}"));
        let mut yaml = format!("name: {}\n", json!(name));
        for (key, value) in &self.keys {
            if key != "name" && !BLOCKS.contains(&key.as_str()) {
                // JSON is valid YAML.
                yaml.push_str(&format!("{}: {value}\n", json!(key)));
            }
        }
        for block in BLOCKS {
            let text = self.keys.get(block).and_then(Value::as_str).unwrap_or_default();
            let mut ours = Vec::new();
            if block == "commonConfig" {
                ours.push(format!("{BOOTSTRAP}={bootstrap}"));
                ours.extend(properties.iter().map(|(key, value)| format!("{key}={value}")));
            }
            let is_ours = |line: &str| {
                let key = key_of(line);
                key == BOOTSTRAP || properties.iter().any(|(own, _)| own == key)
            };
            let rest = text.lines().filter(|line| !is_ours(line)).map(str::to_owned);
            let lines: Vec<String> = ours.into_iter().chain(rest).collect();
            if lines.iter().all(|line| line.trim().is_empty()) {
                yaml.push_str(&format!("{block}: \"\"\n"));
                continue;
            }
            // The 2 sets the indentation of the block, whatever its first line begins with.
            yaml.push_str(&format!("\n{block}: |2\n"));
            lines.iter().for_each(|line| yaml.push_str(&format!("  {line}\n")));
        }
        yaml
    }
}

/// The key in a line of Java properties. A key ends at `=`, `:` or a blank.
fn key_of(line: &str) -> &str {
    let line = line.trim_start();
    line.split(|end: char| matches!(end, '=' | ':') || end.is_whitespace()).next().unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(yaml: &str) -> Value {
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[test]
    fn the_standard_driver_has_the_servers_name_and_address() {
        let driver = read(&DriverTemplate::standard().to_yaml("kafka", "127.0.0.1:5", &[]));
        assert_eq!(driver["name"], "kafka");
        assert_eq!(driver["replicationFactor"], 1);
        assert_eq!(driver["topicConfig"], "");
        assert_eq!(driver["commonConfig"], "bootstrap.servers=127.0.0.1:5\n");
        assert_eq!(driver["producerConfig"], "acks=all\nlinger.ms=1\nbatch.size=131072\n");
    }

    #[test]
    fn a_server_may_need_more_than_its_address() {
        let text = "name: x\ncommonConfig: |\n  security.protocol=SASL_SSL\n  client.id=x\n";
        let more = [("security.protocol".to_owned(), "SSL".to_owned())];
        let driver = read(&DriverTemplate::parse(text).unwrap().to_yaml("a", "b:1", &more));
        assert_eq!(driver["commonConfig"], "bootstrap.servers=b:1\nsecurity.protocol=SSL\nclient.id=x\n");
    }

    #[test]
    fn a_users_driver_keeps_all_but_the_address() {
        let text = "name: Mine\ndriverClass: io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver\n\
            replicationFactor: 3\nreset: true\ntopicConfig: |\n  min.insync.replicas=2\n\
            commonConfig: |\n  bootstrap.servers = a:1,b:2\n  client.id=x\n\
            producerConfig: |\n  acks=all\n  # because\n  linger.ms=1\n\
            consumerConfig: |\n  bootstrap.servers:c:3\n";
        let driver = read(&DriverTemplate::parse(text).unwrap().to_yaml("mainstem", "127.0.0.1:7", &[]));
        let expected = json!({
            "name": "Mine-mainstem",
            "driverClass": "io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver",
            "replicationFactor": 3,
            "reset": true,
            "topicConfig": "min.insync.replicas=2\n",
            "commonConfig": "bootstrap.servers=127.0.0.1:7\nclient.id=x\n",
            "producerConfig": "acks=all\n# because\nlinger.ms=1\n",
            "consumerConfig": "",
        });
        assert_eq!(driver, expected);
    }

    #[test]
    fn a_block_that_is_no_text_is_refused() {
        let error = DriverTemplate::parse("name: x\nproducerConfig:\n  acks: all\n").unwrap_err();
        assert!(error.to_string().contains("producerConfig must be a block of lines"), "{error}");
    }
}
