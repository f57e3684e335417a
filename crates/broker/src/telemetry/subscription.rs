//! The settings of `client-metrics` (KIP-714): the clients that a subscription selects, their metrics, and the
//! interval.

use regex::{Regex, RegexBuilder};
use wire::ErrorCode;

use crate::config::Kind;
use crate::config::resource_setting::DefaultFrom::Fixed;
use crate::config::resource_setting::{Overrides, ResourceSetting, setting};
use crate::failure::Failure;

const INTERVAL: &str = "interval.ms";
const MATCH: &str = "match";
const METRICS: &str = "metrics";
/// Selects every metric.
pub const ALL_METRICS: &str = "*";
/// Default interval between two pushes of a client, in milliseconds.
pub const INTERVAL_MS_DEFAULT: i32 = 300_000;
/// Bounds of `interval.ms` (KIP-714).
const INTERVAL_MS: std::ops::RangeInclusive<i32> = 100..=3_600_000;
/// Bound in bytes of a compiled pattern. Clients choose the patterns, and they are held in memory.
const PATTERN_BYTES_MAX: usize = 64 * 1024;
/// Bound of the patterns of one subscription.
const PATTERNS_MAX: usize = 20;
/// Bound in bytes of a client's labels that are compared and kept.
const LABEL_BYTES_MAX: usize = 255;

/// All settings of a subscription, by name.
pub const SUBSCRIPTION_SETTINGS: &[ResourceSetting] = &[
    setting(INTERVAL, Kind::Int, Fixed("300000"), &[], "Milliseconds between two pushes of a client."),
    setting(
        MATCH,
        Kind::List,
        Fixed(""),
        &[],
        "Which clients are meant: SELECTOR=PATTERN, all of which must fit; all clients where there is none.",
    ),
    setting(METRICS, Kind::List, Fixed(""), &[], "Prefixes of the metrics that are asked for; * for all."),
];

/// The labels that identify a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLabels {
    /// The client instance id, as text.
    pub instance_id: String,
    /// The client id.
    pub id: String,
    /// The name of the client's library (KIP-511).
    pub software_name: String,
    /// The version of the client's library.
    pub software_version: String,
    /// The client's address.
    pub source_address: String,
    /// The client's port.
    pub source_port: String,
}

impl ClientLabels {
    /// The labels, cut to their bounds, because clients choose their length.
    pub fn cut(mut self) -> ClientLabels {
        for label in [&mut self.id, &mut self.software_name, &mut self.software_version] {
            label.truncate(label.floor_char_boundary(LABEL_BYTES_MAX));
            label.shrink_to_fit();
        }
        self
    }

    /// The label that the selector `name` of a pattern refers to.
    fn of(&self, name: &str) -> Option<&str> {
        Some(match name {
            "client_instance_id" => &self.instance_id,
            "client_id" => &self.id,
            "client_software_name" => &self.software_name,
            "client_software_version" => &self.software_version,
            "client_source_address" => &self.source_address,
            "client_source_port" => &self.source_port,
            _ => return None,
        })
    }
}

/// A subscription in the form that the broker uses.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Prefixes of metric names.
    pub metrics: Vec<String>,
    /// Interval between two pushes, in milliseconds.
    pub interval_ms: i32,
    patterns: Vec<(String, Regex)>,
}

impl Subscription {
    /// Checks and parses the settings `overrides` of the subscription `name`.
    pub fn new(name: &str, overrides: &Overrides) -> Result<Subscription, Failure> {
        let refused = |why: String| Failure::because(ErrorCode::InvalidRequest, why);
        if name.is_empty() {
            return Err(refused("Subscription name can't be empty".into()));
        }
        let known = |name: &str| SUBSCRIPTION_SETTINGS.iter().any(|setting| setting.name == name);
        if let Some(unknown) = overrides.keys().find(|name| !known(name)) {
            return Err(refused(format!("Unknown client metrics configuration: {unknown}")));
        }
        let metrics = list(overrides, METRICS)?;
        let patterns = list(overrides, MATCH)?;
        let interval_ms = match overrides.get(INTERVAL) {
            None => INTERVAL_MS_DEFAULT,
            Some(text) => {
                let why =
                    format!("Invalid value {text} for configuration {INTERVAL}: Not a number of type INT");
                text.trim().parse().map_err(|_| Failure::because(ErrorCode::InvalidConfig, why))?
            }
        };
        if !INTERVAL_MS.contains(&interval_ms) {
            let why = format!(
                "Invalid value {interval_ms} for {INTERVAL}, interval must be between 100 and 3600000 (1 hour)"
            );
            return Err(refused(why));
        }
        if patterns.len() > PATTERNS_MAX {
            return Err(refused(format!("A subscription may have {PATTERNS_MAX} patterns at most")));
        }
        let patterns = patterns.iter().map(|text| pattern(text)).collect::<Result<_, _>>()?;
        Ok(Subscription { metrics, interval_ms, patterns })
    }

    /// Whether the subscription selects this client.
    pub fn matches(&self, client: &ClientLabels) -> bool {
        let fits =
            |(name, pattern): &(String, Regex)| client.of(name).is_some_and(|text| pattern.is_match(text));
        self.patterns.iter().all(fits)
    }
}

fn list(overrides: &Overrides, name: &str) -> Result<Vec<String>, Failure> {
    let text = overrides.get(name).map_or("", |text| text.trim());
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
    match words.iter().any(String::is_empty) {
        true if text.is_empty() => Ok(Vec::new()),
        true => {
            let why = format!("Configuration '{name}' values must not be empty.");
            Err(Failure::because(ErrorCode::InvalidConfig, why))
        }
        false => Ok(words),
    }
}

/// Parses a selector and its pattern. The pattern must match the whole label.
fn pattern(text: &str) -> Result<(String, Regex), Failure> {
    let illegal =
        || Failure::because(ErrorCode::InvalidConfig, format!("Illegal client matching pattern: {text}"));
    let (name, pattern) = text.split_once('=').filter(|(_, rest)| !rest.contains('=')).ok_or_else(illegal)?;
    let (name, pattern) = (name.trim(), pattern.trim());
    if pattern.is_empty() || ClientLabels::default().of(name).is_none() {
        return Err(illegal());
    }
    let mut whole = RegexBuilder::new(&format!("^(?:{pattern})$"));
    let whole = whole.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX).build();
    Ok((name.to_owned(), whole.map_err(|_| illegal())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(pairs: &[(&str, &str)]) -> Result<Subscription, String> {
        let overrides = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Subscription::new("s", &overrides).map_err(|failure| failure.text().to_string())
    }

    #[test]
    fn settings_are_parsed_and_checked() {
        let plain = parsed(&[]).unwrap();
        assert_eq!((plain.metrics.len(), plain.interval_ms), (0, INTERVAL_MS_DEFAULT));
        assert_eq!(parsed(&[("metrics", "a.b, *")]).unwrap().metrics, ["a.b", "*"]);
        for (name, value) in [
            ("interval.ms", "99"),
            ("interval.ms", "soon"),
            ("metrics", "a,,b"),
            ("match", "client_id"),
            ("match", "client_id=["),
            ("match", "client_id=a=b"),
            ("match", "planet=a"),
            ("match", "client_id=(((a{99}){99}){99})"),
            ("other", "1"),
        ] {
            assert!(parsed(&[(name, value)]).is_err(), "{name} {value}");
        }
    }

    #[test]
    fn a_pattern_fits_the_whole_and_all_must_fit() {
        let client = ClientLabels {
            id: "app-7".into(),
            software_name: "librdkafka".into(),
            ..ClientLabels::default()
        };
        let fits = |patterns: &str| parsed(&[("match", patterns)]).unwrap().matches(&client);
        assert!(
            fits("") && fits("client_id=app-.*") && fits(" client_id = app-7 ,client_software_name=lib.*")
        );
        assert!(!fits("client_id=app") && !fits("client_id=app-.*,client_software_name=java"));
        assert!(!fits("client_id=x|app"));
    }
}
