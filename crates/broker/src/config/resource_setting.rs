//! A setting of a topic, a group, a client-metrics subscription, or of a broker at run time: its type, bounds and
//! default.

use std::collections::BTreeMap;

use crate::config::{Config, Kind};

/// Settings by name, with the value as the client sent it.
pub type Overrides = BTreeMap<String, String>;

/// One row of a table of settings.
#[derive(Debug)]
pub struct ResourceSetting {
    /// Kafka's name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The source of the default: a setting of the broker, or a fixed text.
    pub default: DefaultFrom,
    /// The allowed words. Empty if every word is allowed.
    pub words: &'static [&'static str],
    /// The smallest and the largest allowed number.
    pub bounds: (i64, i64),
    /// The description.
    pub doc: &'static str,
}

/// The source of a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultFrom {
    /// The broker's setting of this name.
    Broker(&'static str),
    /// The setting of this name, which brokers only accept. Its default is the second text.
    Accepted(&'static str, &'static str),
    /// This text.
    Fixed(&'static str),
    /// This text, which new clusters set for all brokers (KIP-966).
    OfCluster(&'static str),
}

/// Creates a row of a table.
pub const fn setting(
    name: &'static str,
    kind: Kind,
    default: DefaultFrom,
    words: &'static [&'static str],
    doc: &'static str,
) -> ResourceSetting {
    ResourceSetting { name, kind, default, words, bounds: (i64::MIN, i64::MAX), doc }
}

impl ResourceSetting {
    /// The row with a smallest number.
    pub const fn at_least(self, least: i64) -> ResourceSetting {
        self.between(least, i64::MAX)
    }

    /// The row with a smallest and a largest number.
    pub const fn between(mut self, least: i64, most: i64) -> ResourceSetting {
        self.bounds = (least, most);
        self
    }
}

impl ResourceSetting {
    /// The reason why `value` is not valid for this setting, in Kafka's words where Kafka has a message. `None` if it
    /// is valid.
    pub fn problem(&self, value: &str) -> Option<String> {
        let invalid =
            |why: &str| Some(format!("Invalid value {value} for configuration {}: {why}", self.name));
        if let Some(why) = self.kind.problem(value) {
            return invalid(why);
        }
        let (least, most) = self.bounds;
        match self.kind {
            Kind::Double => match value.trim().parse::<f64>().unwrap_or(f64::NAN) {
                share if share < least as f64 => invalid(&format!("Value must be at least {least}")),
                share if share > most as f64 => invalid(&format!("Value must be no more than {most}")),
                _ => None,
            },
            Kind::Short | Kind::Int | Kind::Long => {
                let number = value.trim().parse::<i64>().ok()?;
                // As in Kafka, the message shows the parsed number.
                let beyond = |why: String| {
                    Some(format!("Invalid value {number} for configuration {}: {why}", self.name))
                };
                let of_level = self.fixed_default() == Some("-1");
                match number {
                    // The default of a compression level lies outside the range of levels.
                    -1 if of_level => None,
                    _ if of_level && !(least..=most).contains(&number) => {
                        beyond(format!("Value must be between {least} and {most} or equal to -1"))
                    }
                    _ if number < least => beyond(format!("Value must be at least {least}")),
                    _ if number > most => beyond(format!("Value must be no more than {most}")),
                    _ => None,
                }
            }
            Kind::String if !self.words.is_empty() && !self.words.contains(&value.trim()) => {
                invalid(&format!("String must be one of: {}", self.words.join(", ")))
            }
            Kind::List => self.problem_of_list(value),
            _ => None,
        }
    }

    fn problem_of_list(&self, value: &str) -> Option<String> {
        let of = |word: &str, why: String| {
            Some(format!("Invalid value {word} for configuration {}: {why}", self.name))
        };
        let value = value.trim();
        if value.is_empty() {
            return None;
        }
        let mut words = value.split(',').map(str::trim);
        if self.name.ends_with(".throttled.replicas") {
            let pair = |word: &str| {
                word.split_once(':')
                    .is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
            };
            // As in Java's split, empty words at the end are dropped.
            let mut words =
                value.trim_end_matches(|c: char| c == ',' || c.is_whitespace()).split(',').map(str::trim);
            let fits = value == "*" || words.all(pair);
            let why = "must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...";
            return if fits { None } else { of(value, why.to_owned()) };
        }
        if self.words.is_empty() {
            return None;
        }
        if words.clone().any(str::is_empty) {
            return Some(format!("Configuration '{}' values must not be empty.", self.name));
        }
        let wrong = words.find(|word| !self.words.contains(word))?;
        of(wrong, format!("String must be one of: {}", self.words.join(", ")))
    }

    /// The default, if it is a fixed text.
    pub fn fixed_default(&self) -> Option<&'static str> {
        match self.default {
            DefaultFrom::Fixed(text) | DefaultFrom::OfCluster(text) | DefaultFrom::Accepted(_, text) => {
                Some(text)
            }
            DefaultFrom::Broker(_) => None,
        }
    }

    /// The value for a resource that has none of its own.
    pub fn default_value(&self, config: &Config) -> String {
        match self.default {
            DefaultFrom::Fixed(text) | DefaultFrom::OfCluster(text) | DefaultFrom::Accepted(_, text) => {
                text.to_owned()
            }
            DefaultFrom::Broker(name) => {
                config.value(name).expect("the table names broker settings that exist")
            }
        }
    }
}
