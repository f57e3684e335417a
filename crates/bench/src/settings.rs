//! The client properties that the native engine uses, with the defaults of Kafka's Java client 4.x.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use client::Properties;
use model::Compression;

/// Reads properties and tracks the unused ones.
struct Reading<'a> {
    properties: &'a Properties,
    used: BTreeSet<&'static str>,
}

impl<'a> Reading<'a> {
    fn text(&mut self, name: &'static str) -> Option<&'a str> {
        self.used.insert(name);
        self.properties.get(name).map(String::as_str)
    }

    fn number<T: FromStr>(&mut self, name: &'static str, default: T) -> anyhow::Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        match self.text(name) {
            None => Ok(default),
            Some(text) => {
                text.trim().parse().with_context(|| format!("{name}={text} is not a number of its kind"))
            }
        }
    }

    fn millis(&mut self, name: &'static str, default: u64) -> anyhow::Result<Duration> {
        Ok(Duration::from_millis(self.number(name, default)?))
    }

    /// Names of properties that were not read.
    fn unused(&self) -> Vec<String> {
        self.properties.keys().filter(|name| !self.used.contains(name.as_str())).cloned().collect()
    }
}

/// The batching and sending of a producer.
#[derive(Clone, Debug)]
pub struct ProducerSettings {
    pub acks: i16,
    pub linger: Duration,
    pub batch_bytes: usize,
    pub in_flight_max: usize,
    pub compression: Compression,
    pub idempotent: bool,
    pub request_bytes_max: usize,
    pub buffer_bytes: usize,
    pub request_timeout: Duration,
    pub delivery_timeout: Duration,
}

/// The fetching of a consumer.
#[derive(Clone, Debug)]
pub struct ConsumerSettings {
    pub min_bytes: i32,
    pub wait_max: Duration,
    pub bytes_max: i32,
    pub partition_bytes_max: i32,
}

/// Client properties without a meaning for an engine that verifies everything it receives: the engine does what they
/// ask for anyway, or they concern Java.
const UNDERSTOOD: [&str; 14] = [
    "bootstrap.servers",
    "client.id",
    "auto.offset.reset",
    "enable.auto.commit",
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
    "default.api.timeout.ms",
    "retries",
    "check.crcs",
    "group.id",
    "max.poll.records",
    "max.block.ms",
];

/// The names in `properties` that neither `used` nor the security settings read.
fn ignored(reading: &Reading<'_>) -> Vec<String> {
    let known = |name: &String| {
        UNDERSTOOD.contains(&name.as_str())
            || ["security.", "ssl.", "sasl."].iter().any(|prefix| name.starts_with(prefix))
    };
    reading.unused().into_iter().filter(|name| !known(name)).collect()
}

impl ProducerSettings {
    /// The settings, and the names of ignored properties.
    pub fn of(properties: &Properties) -> anyhow::Result<(ProducerSettings, Vec<String>)> {
        let mut reading = Reading { properties, used: BTreeSet::new() };
        let acks = match reading.text("acks").unwrap_or("all") {
            "all" | "-1" => -1,
            "1" => 1,
            "0" => 0,
            other => bail!("acks={other}: it is all, 1 or 0"),
        };
        let compression = match reading.text("compression.type").unwrap_or("none") {
            "none" => Compression::None,
            "gzip" => Compression::Gzip,
            "snappy" => Compression::Snappy,
            "lz4" => Compression::Lz4,
            "zstd" => Compression::Zstd,
            other => bail!("compression.type={other}: it is none, gzip, snappy, lz4 or zstd"),
        };
        let in_flight_max = reading.number("max.in.flight.requests.per.connection", 5)?;
        if in_flight_max == 0 {
            bail!("max.in.flight.requests.per.connection is to be 1 at least");
        }
        let idempotent = match reading.text("enable.idempotence") {
            Some("true") if acks != -1 || in_flight_max > 5 => {
                bail!("enable.idempotence=true needs acks=all and at most 5 requests in flight")
            }
            Some("true") => true,
            Some("false") => false,
            Some(other) => bail!("enable.idempotence={other}: it is true or false"),
            None => acks == -1 && in_flight_max <= 5,
        };
        let settings = ProducerSettings {
            acks,
            linger: reading.millis("linger.ms", 5)?,
            batch_bytes: reading.number("batch.size", 16_384)?,
            in_flight_max,
            compression,
            idempotent,
            request_bytes_max: reading.number("max.request.size", 1_048_576)?,
            buffer_bytes: reading.number("buffer.memory", 33_554_432)?,
            request_timeout: reading.millis("request.timeout.ms", 30_000)?,
            delivery_timeout: reading.millis("delivery.timeout.ms", 120_000)?,
        };
        Ok((settings, ignored(&reading)))
    }
}

impl ConsumerSettings {
    /// The settings, and the names of ignored properties.
    pub fn of(properties: &Properties) -> anyhow::Result<(ConsumerSettings, Vec<String>)> {
        let mut reading = Reading { properties, used: BTreeSet::new() };
        let settings = ConsumerSettings {
            min_bytes: reading.number("fetch.min.bytes", 1)?,
            wait_max: reading.millis("fetch.max.wait.ms", 500)?,
            bytes_max: reading.number("fetch.max.bytes", 52_428_800)?,
            partition_bytes_max: reading.number("max.partition.fetch.bytes", 1_048_576)?,
        };
        Ok((settings, ignored(&reading)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Properties {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_defaults_are_the_java_clients() {
        let (settings, _) = ProducerSettings::of(&Properties::new()).unwrap();
        assert_eq!((settings.acks, settings.idempotent, settings.in_flight_max), (-1, true, 5));
        assert_eq!((settings.batch_bytes, settings.linger), (16_384, Duration::from_millis(5)));
        let (settings, _) = ConsumerSettings::of(&Properties::new()).unwrap();
        assert_eq!((settings.min_bytes, settings.partition_bytes_max), (1, 1_048_576));
    }

    #[test]
    fn what_has_no_meaning_is_named_and_what_is_wrong_refused() {
        let properties =
            of(&[("acks", "1"), ("linger.ms", "0"), ("interceptor.classes", "x"), ("retries", "3")]);
        let (settings, ignored) = ProducerSettings::of(&properties).unwrap();
        assert_eq!((settings.acks, settings.idempotent, settings.linger), (1, false, Duration::ZERO));
        assert_eq!(ignored, ["interceptor.classes"]);
        let error = |pairs: &[(&str, &str)]| ProducerSettings::of(&of(pairs)).unwrap_err().to_string();
        assert!(error(&[("acks", "2")]).contains("acks=2"));
        assert!(error(&[("batch.size", "many")]).contains("batch.size=many"));
        assert!(error(&[("enable.idempotence", "true"), ("acks", "1")]).contains("acks=all"));
    }
}
