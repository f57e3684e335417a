//! Settings that clients have changed: of the broker, of groups, of client-metrics subscriptions. The metadata stores
//! them. Settings of topics are stored with the topics.
//!
//! Values are stored as the text that was sent, and are checked before. A setting that a later version does not know is
//! skipped.

use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use storage::Tuning;
use wire::ErrorCode;

use crate::config::resource_setting::Overrides;
use crate::config::{Config, Setting};
use crate::failure::Failure;
use crate::image::{Delta, Image, Metadata, Observer, Record, Update};
use crate::settings::accepted::{
    MIN_INSYNC, accepted_setting, check_accepted, check_threads, is_of_one_broker,
};
use crate::settings::listener::{
    ListenerConfigs, check_listeners, lacks_listener, listener_setting, of_listeners,
};
use crate::settings::topic::{in_sync_min, wrong_local_retention};

/// Bound of the groups with settings of their own, and of the brokers. They are held in memory, and clients choose the
/// names.
const RESOURCES_MAX: usize = 10_000;
/// Bound of the client-metrics subscriptions.
const SUBSCRIPTIONS_MAX: usize = 200;
/// Bounds in bytes of a resource's name, and of all its settings.
const NAME_BYTES_MAX: usize = 1024;
const VALUES_BYTES_MAX: usize = 64 * 1024;

/// The broker's settings that take effect at run time. In Kafka they are dynamic too.
const DYNAMIC: [&str; 24] = [
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleanup.policy",
    "log.flush.interval.messages",
    "log.local.retention.bytes",
    "log.local.retention.ms",
    "log.message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.type",
    "log.retention.bytes",
    "log.retention.ms",
    "log.roll.ms",
    "log.segment.bytes",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "message.max.bytes",
    "producer.id.expiration.ms",
];

/// Whether the broker's setting `name` takes effect at run time.
pub fn is_dynamic(name: &str) -> bool {
    DYNAMIC.contains(&name)
}

/// The kinds of resources, besides topics, that have settings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ResourceKind {
    /// A broker by its id, or all brokers under the empty name.
    Broker,
    /// A consumer group.
    Group,
    /// A subscription of client metrics (KIP-714).
    ClientMetrics,
}

impl ResourceKind {
    /// The prefix of the names of these resources in the metadata.
    fn prefix(self) -> &'static str {
        match self {
            ResourceKind::Broker => "brokers/",
            ResourceKind::Group => "groups/",
            ResourceKind::ClientMetrics => "client-metrics/",
        }
    }

    /// Whether settings of such a resource have changed.
    pub fn is_in(self, delta: &Delta) -> bool {
        delta.configs.iter().any(|name| name.starts_with(self.prefix()))
    }

    /// The name in the metadata of a resource's settings.
    fn stored(self, name: &str) -> String {
        format!("{}{name}", self.prefix())
    }
}

/// The settings of all resources.
#[derive(Debug)]
pub struct ResourceConfigs {
    metadata: Arc<Metadata>,
    start: Arc<Config>,
    /// The broker's settings in force, computed from the image.
    now: RwLock<Arc<Config>>,
    /// What open logs know of them.
    tuning: Arc<Tuning>,
    /// The listeners that take settings of their own, once they are there.
    listeners: OnceLock<Arc<dyn ListenerConfigs>>,
    /// Held while settings are put in force, so that the newest come last.
    applying: Mutex<()>,
}

impl ResourceConfigs {
    /// Applies the settings in the metadata to the settings that the broker was started with.
    pub fn new(metadata: Arc<Metadata>, start: Arc<Config>) -> Arc<ResourceConfigs> {
        let now = RwLock::new(start.clone());
        let (tuning, listeners) = (Arc::default(), OnceLock::new());
        let configs =
            Arc::new(ResourceConfigs { metadata, start, now, tuning, listeners, applying: Mutex::default() });
        configs.apply_and_log();
        let observer = Arc::downgrade(&configs);
        configs.metadata.observe(observer);
        configs
    }

    /// The settings of one resource. Empty if none are set.
    pub fn of(&self, kind: ResourceKind, name: &str) -> Arc<Overrides> {
        self.metadata.image().configs.get(&kind.stored(name)).cloned().unwrap_or_default()
    }

    /// The names of all resources of a kind that have settings.
    pub fn names(&self, kind: ResourceKind) -> Vec<String> {
        let image = self.metadata.image();
        image.configs.below(kind.prefix()).map(|(name, _)| name.to_owned()).collect()
    }

    /// The broker's settings in force.
    pub fn now(&self) -> Arc<Config> {
        self.now.read().clone()
    }

    /// What of them concerns open logs.
    pub fn tuning(&self) -> Arc<Tuning> {
        self.tuning.clone()
    }

    /// From now on, `listeners` take the settings that clients have set and set later. Once only. The error says what of them cannot
    /// be used.
    pub fn apply_to_listeners(&self, listeners: Arc<dyn ListenerConfigs>) -> Result<(), String> {
        let first = self.listeners.set(listeners).is_ok();
        debug_assert!(first, "the listeners are there already");
        self.apply_to_broker()
    }

    /// Checks the settings of listeners if those of the resource `name` become `new`. Reads files, so that nothing should be locked.
    pub fn check_listeners(&self, name: &str, new: &Overrides) -> Result<(), Failure> {
        let [own, all] = self.of_broker();
        let (own_then, all_then) = if name.is_empty() { (&*own, new) } else { (new, &*all) };
        let listeners = self.listeners.get().map(|listeners| &**listeners);
        check_listeners(listeners, &merged(&own, &all), &merged(own_then, all_then))
    }

    /// The settings of this broker, and those for all brokers.
    pub fn of_broker(&self) -> [Arc<Overrides>; 2] {
        let own = self.of(ResourceKind::Broker, &self.start.node_id.to_string());
        [own, self.of(ResourceKind::Broker, "")]
    }

    /// The broker's settings that clients have set. Settings of this broker take precedence over those for all brokers.
    pub fn set_by_clients(&self) -> Overrides {
        let [own, all] = self.of_broker();
        merged(&own, &all)
    }

    /// `min.insync.replicas` of topics that do not say: what a client has set for all brokers, or what the broker was started with.
    pub fn in_sync_min(&self) -> usize {
        let of_all = self.of(ResourceKind::Broker, "");
        let set = of_all.get(MIN_INSYNC).and_then(|value| value.trim().parse().ok());
        in_sync_min(set.unwrap_or(self.start.in_sync_min.into()), &self.start)
    }

    /// Replaces the settings of one resource by the result of `change`. Durable on return. Blocks.
    pub fn change(
        &self,
        kind: ResourceKind,
        name: &str,
        change: impl Fn(&Overrides) -> Result<Overrides, Failure>,
    ) -> Result<(), Failure> {
        let stored = kind.stored(name);
        self.metadata.update(|image| {
            let old = image.configs.get(&stored);
            let overrides = change(&old.cloned().unwrap_or_default())?;
            if overrides.is_empty() {
                return Ok(Update::new(vec![Overrides::delete(&stored)], ()));
            }
            check_bounds(image, kind, name, &overrides)?;
            Ok(Update::new(vec![overrides.put(&stored)], ()))
        })
    }

    /// Computes the broker's settings in force. Settings of this broker take precedence over those for all brokers, and
    /// those over the settings of the start.
    fn apply_to_broker(&self) -> Result<(), String> {
        let _applying = self.applying.lock();
        let [own, all] = self.of_broker();
        let now = Arc::new(self.combined(&own, &all));
        self.tuning.set_producer_expiry_ms(now.producer_expiry_ms.into());
        self.tuning.set_cleaner_bytes_per_second(now.cleaner_bytes_per_second.bytes());
        *self.now.write() = now;
        self.listeners.get().map_or(Ok(()), |listeners| listeners.apply(&of_listeners(&merged(&own, &all))))
    }

    fn apply_and_log(&self) {
        if let Err(problem) = self.apply_to_broker() {
            tracing::error!(problem, "settings of a listener that clients have set are passed over");
        }
    }

    /// The broker's settings, if the resource `name` had `overrides`. The empty name stands for all brokers.
    pub fn with(&self, name: &str, overrides: &Overrides) -> Config {
        let [own, all] = self.of_broker();
        match name.is_empty() {
            true => self.combined(&own, overrides),
            false => self.combined(overrides, &all),
        }
    }

    fn combined(&self, own: &Overrides, all: &Overrides) -> Config {
        let mut config = Config::clone(&self.start);
        for (name, value) in all.iter().chain(own.iter()).filter(|(name, _)| is_dynamic(name)) {
            if let Err(error) = config.set(name, value) {
                tracing::error!(%error, "a stored setting of the broker is passed over");
            }
        }
        config
    }
}

impl Observer for ResourceConfigs {
    fn changed(&self, _image: &Arc<Image>, delta: &Delta) {
        if ResourceKind::Broker.is_in(delta) {
            self.apply_and_log();
        }
    }
}

/// The settings that are in force: those of this broker, then those for all brokers.
fn merged(own: &Overrides, all: &Overrides) -> Overrides {
    all.iter().chain(own).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn check_bounds(image: &Image, kind: ResourceKind, name: &str, overrides: &Overrides) -> Result<(), Failure> {
    let refused = |why: String| Err(Failure::because(ErrorCode::InvalidRequest, why));
    if name.len() > NAME_BYTES_MAX {
        return refused(format!("a resource's name may have {NAME_BYTES_MAX} bytes at most"));
    }
    if overrides.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > VALUES_BYTES_MAX {
        return refused(format!("a resource's settings may have {VALUES_BYTES_MAX} bytes at most"));
    }
    let most = match kind {
        // Each subscription is held ready for use, with its compiled patterns.
        ResourceKind::ClientMetrics => SUBSCRIPTIONS_MAX,
        ResourceKind::Broker | ResourceKind::Group => RESOURCES_MAX,
    };
    let is_new = image.configs.get(&kind.stored(name)).is_none();
    if is_new && image.configs.below(kind.prefix()).count() >= most {
        return refused(format!("{most} of this kind have settings already: delete some"));
    }
    Ok(())
}

/// Checks the local retention of a broker's settings as Kafka's `DynamicLogConfig` does. Kafka names the exception of the
/// part that is reconfigured as the value that is wrong.
pub fn check_local_retention(config: &Config) -> Result<(), Failure> {
    let ms = ("log.retention.ms", config.retention_ms);
    let bytes = ("log.retention.bytes", config.retention_bytes);
    let wrong =
        wrong_local_retention(("log.local.retention.ms", config.local_retention_ms), ms).or_else(|| {
            wrong_local_retention(("log.local.retention.bytes", config.local_retention_bytes), bytes)
        });
    let Some(why) = wrong else { return Ok(()) };
    let exception = format!("org.apache.kafka.common.config.ConfigException: {why}");
    let message = format!("Invalid value {exception} for configuration Invalid dynamic configuration");
    Err(Failure::because(ErrorCode::InvalidRequest, message))
}

/// Checks `overrides` of the broker's settings as a whole. `now` holds all settings by clients that are in force.
/// `of_all` says that the overrides are for all brokers.
pub fn check_broker_configs(overrides: &Overrides, now: &Overrides, of_all: bool) -> Result<(), Failure> {
    let invalid = |why: String| Failure::because(ErrorCode::InvalidRequest, why);
    let refused = |why: &str, unfit: &dyn Fn(&str) -> bool| {
        let names: Vec<&str> = overrides.keys().map(String::as_str).filter(|name| unfit(name)).collect();
        if names.is_empty() { Ok(()) } else { Err(invalid(format!("{why}: [{}]", names.join(", ")))) }
    };
    refused("Cannot update these configs dynamically", &|name| {
        let known = is_dynamic(name) || accepted_setting(name).is_some() || listener_setting(name).is_some();
        !known && !lacks_listener(name)
    })?;
    let why = "These security configs can be dynamically updated only per-listener using the listener prefix";
    refused(why, &lacks_listener)?;
    check_accepted(overrides)?;
    for (name, value) in overrides {
        if let Some(problem) = listener_setting(name).and_then(|setting| setting.problem(value)) {
            return Err(invalid(problem));
        }
    }
    if of_all {
        let why = "Cannot update these configs at default cluster level, broker id must be specified";
        let of_one = |name: &str| listener_setting(name).is_some_and(|setting| setting.is_of_one_broker());
        refused(why, &|name| is_of_one_broker(name) || of_one(name))?;
    }
    if !of_all && overrides.contains_key(MIN_INSYNC) {
        let why = "Broker-level min.insync.replicas cannot be altered while ELR is enabled.";
        return Err(Failure::because(ErrorCode::InvalidConfig, why));
    }
    check_threads(overrides, now)?;
    if overrides.get("log.retention.ms").is_some_and(|value| value.trim() == "0") {
        let why = "log.retention.ms must be unlimited (-1) or, greater than or equal to 1";
        return Err(invalid(format!("requirement failed: {why}")));
    }
    for setting in Config::default().settings() {
        let problem = |value: &String| Setting::problem(&setting, value);
        if let Some(problem) = overrides.get(setting.name).and_then(problem) {
            return Err(invalid(problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(pairs: &[(&str, &str)]) -> Overrides {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_brokers_own_settings_come_first_and_all_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("meta.redb");
        let mut start = Config::default();
        start.set("message.max.bytes", "1000").unwrap();
        let start = Arc::new(start);
        let open = || {
            let store = Arc::new(meta::Embedded::open(&path).unwrap());
            ResourceConfigs::new(Metadata::open(store).unwrap(), start.clone())
        };
        let configs = open();
        assert_eq!(configs.now().message_max_bytes, 1000);
        let set = |configs: &ResourceConfigs, name: &str, value: &str| {
            let value = overrides(&[("message.max.bytes", value)]);
            configs.change(ResourceKind::Broker, name, |_| Ok(value.clone())).unwrap();
            configs.now().message_max_bytes
        };
        assert_eq!(set(&configs, "", "3000"), 3000);
        assert_eq!(set(&configs, "1", "2000"), 2000);
        assert_eq!(set(&configs, "", "4000"), 2000);
        assert_eq!(set(&configs, "7", "9000"), 2000, "another broker's");
        drop(configs);
        let configs = open();
        assert_eq!(configs.now().message_max_bytes, 2000);
        configs.change(ResourceKind::Broker, "1", |_| Ok(Overrides::new())).unwrap();
        assert_eq!(configs.now().message_max_bytes, 4000);
    }

    #[test]
    fn what_clients_set_counts_more_than_the_start() {
        let metadata = Metadata::open(Arc::new(meta::Memory::default())).unwrap();
        let mut start = Config::default();
        start.set(MIN_INSYNC, "2").unwrap();
        let configs = ResourceConfigs::new(metadata, Arc::new(start));
        assert_eq!(configs.in_sync_min(), 2);
        let three = overrides(&[(MIN_INSYNC, "3")]);
        configs.change(ResourceKind::Broker, "", |_| Ok(three.clone())).unwrap();
        assert_eq!(configs.in_sync_min(), 3);
    }

    #[test]
    fn what_clients_may_store_is_bounded() {
        let metadata = Metadata::open(Arc::new(meta::Memory::default())).unwrap();
        let configs = ResourceConfigs::new(metadata, Arc::new(Config::default()));
        let set = |name: &str, value: String| {
            let value = overrides(&[("metrics", value.as_str())]);
            configs.change(ResourceKind::ClientMetrics, name, |_| Ok(value.clone()))
        };
        assert!(set("a", "x".repeat(60_000)).is_ok());
        assert!(set("a", "x".repeat(70_000)).is_err());
        assert!(set(&"n".repeat(2000), "x".into()).is_err());
        assert_eq!(configs.names(ResourceKind::ClientMetrics), ["a"]);
        assert_eq!(configs.of(ResourceKind::ClientMetrics, "a")["metrics"].len(), 60_000);
    }

    #[test]
    fn only_settings_that_take_effect_may_be_changed() {
        let problem = |pairs: &[(&str, &str)]| {
            check_broker_configs(&overrides(pairs), &Overrides::new(), false)
                .err()
                .map(|failure| failure.message.unwrap())
        };
        let all = Config::default().settings();
        assert!(DYNAMIC.iter().all(|name| all.iter().any(|setting| setting.name == *name)));
        assert_eq!(problem(&[("log.retention.ms", "5"), ("log.cleanup.policy", "compact")]), None);
        assert_eq!(
            problem(&[("socket.request.max.bytes", "1"), ("node.id", "2")]).unwrap(),
            "Cannot update these configs dynamically: [node.id, socket.request.max.bytes]"
        );
        for (name, value, why) in [
            ("message.max.bytes", "x", "Not a number of type INT"),
            ("log.retention.bytes", "-2", "Value must be at least -1"),
            ("log.cleaner.min.cleanable.ratio", "1.5", "Value must be no more than 1"),
            ("log.cleanup.policy", "shrink", "String must be one of: compact, delete"),
        ] {
            let expected = format!("Invalid value {value} for configuration {name}: {why}");
            assert_eq!(problem(&[(name, value)]), Some(expected.into()));
        }
    }
}
