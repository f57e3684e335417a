//! Topic names: Kafka's rules for them, and the topics by name.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use wire::Text;

use super::{Topic, TopicError};

/// Maximum length of a topic name.
pub const TOPIC_NAME_MAX: usize = 249;

/// Topics by name.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// All topics.
    pub topics: HashMap<Text, Arc<Topic>>,
    /// Names with a period or an underscore, sorted by metric name. In a metric name, the two are the same.
    by_metric: BTreeSet<(String, Text)>,
}

impl Names {
    /// Adds a topic.
    pub fn insert(&mut self, topic: Arc<Topic>) {
        self.by_metric.extend(metric_of(&topic.name).map(|metric| (metric, topic.name.clone())));
        self.topics.insert(topic.name.clone(), topic);
    }

    /// Removes a topic.
    pub fn remove(&mut self, name: &Text) {
        self.topics.remove(name);
        if let Some(metric) = metric_of(name) {
            self.by_metric.remove(&(metric, name.clone()));
        }
    }

    /// An existing topic whose metrics would have the same name.
    pub fn collision(&self, name: &str) -> Option<&Text> {
        let metric = metric_of(name)?;
        let first = self.by_metric.range((metric.clone(), Text::default())..).next();
        first.filter(|(other, _)| *other == metric).map(|(_, name)| name)
    }
}

/// The metric name of a topic, if it differs from the topic name or may equal that of another topic.
fn metric_of(name: &str) -> Option<String> {
    name.contains(['.', '_']).then(|| name.replace('.', "_"))
}

/// Checks Kafka's rules for topic names.
pub fn check_name(name: &str) -> Result<(), TopicError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let problem = if name.is_empty() {
        "the empty string is not allowed".to_owned()
    } else if name == "." || name == ".." {
        format!("'{name}' is not allowed")
    } else if name.len() > TOPIC_NAME_MAX {
        format!("the length of '{name}' is longer than the max allowed length {TOPIC_NAME_MAX}")
    } else if !name.chars().all(legal) {
        format!("'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'")
    } else {
        return Ok(());
    };
    Err(TopicError::Name(format!("Topic name is invalid: {problem}")))
}

#[cfg(test)]
mod tests {
    use parking_lot::RwLock;
    use uuid::Uuid;

    use super::*;
    use crate::config::resource_setting::Overrides;
    use crate::image::records::TopicRecord;
    use crate::settings::topic::TopicConfig;

    #[test]
    fn names_whose_metrics_are_the_same_collide() {
        let topic = |name: &str| {
            Arc::new(Topic {
                name: Text::copied(name),
                id: Uuid::new_v4(),
                partitions: RwLock::new(Arc::new([])),
                record: RwLock::new(Arc::new(TopicRecord::new(Uuid::new_v4(), Overrides::new()))),
                config: RwLock::new(Arc::new(TopicConfig::new(&Overrides::new(), &crate::Config::default()))),
                traffic: Arc::default(),
            })
        };
        let mut names = Names::default();
        for name in ["a.b", "plain", "x_", "x_y.z", "x-y"] {
            names.insert(topic(name));
        }
        for (name, other) in [
            ("a_b", Some("a.b")),
            ("x.y_z", Some("x_y.z")),
            ("x.", Some("x_")),
            ("plain", None),
            ("x_y", None),
        ] {
            assert_eq!(names.collision(name).map(Text::as_str), other, "{name}");
        }
        names.remove(&Text::from_static("a.b"));
        assert_eq!((names.collision("a_b"), names.topics.len()), (None, 4));
    }
}
