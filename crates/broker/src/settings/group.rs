//! Settings of a single consumer group (KIP-848), within the bounds of the broker's settings.

use crate::config::resource_setting::DefaultFrom::Broker;
use crate::config::resource_setting::{Overrides, ResourceSetting, setting};
use crate::config::{Config, Kind};
use crate::failure::Failure;
use wire::ErrorCode;

const SESSION_TIMEOUT: &str = "consumer.session.timeout.ms";
const HEARTBEAT_INTERVAL: &str = "consumer.heartbeat.interval.ms";

/// All settings of a group, by name.
pub const GROUP_SETTINGS: &[ResourceSetting] = &[
    setting(
        HEARTBEAT_INTERVAL,
        Kind::Int,
        Broker("group.consumer.heartbeat.interval.ms"),
        &[],
        "How often a member of the group sends a heartbeat, in milliseconds.",
    )
    .at_least(1),
    setting(
        SESSION_TIMEOUT,
        Kind::Int,
        Broker("group.consumer.session.timeout.ms"),
        &[],
        "How long a member of the group may be silent, in milliseconds.",
    )
    .at_least(1),
];

/// A group's settings in the form that its coordinator uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConsumerGroupConfig {
    /// Time in milliseconds after which a silent member is expelled.
    pub session_timeout_ms: i32,
    /// Interval between two heartbeats of a member, in milliseconds.
    pub heartbeat_interval_ms: i32,
}

impl ConsumerGroupConfig {
    /// Applies `overrides` to the broker's settings. Each override was checked when it was set. A restart may have
    /// changed the bounds, and the current bounds apply.
    pub fn new(overrides: &Overrides, config: &Config) -> ConsumerGroupConfig {
        let own = |name: &str, (min, max): (i32, i32)| {
            let value: i32 = overrides.get(name)?.trim().parse().ok()?;
            Some(value.min(max).max(min))
        };
        let [session, heartbeat] = bounds(config);
        ConsumerGroupConfig {
            session_timeout_ms: own(SESSION_TIMEOUT, session).unwrap_or(config.consumer_session_timeout_ms),
            heartbeat_interval_ms: own(HEARTBEAT_INTERVAL, heartbeat)
                .unwrap_or(config.consumer_heartbeat_interval_ms),
        }
    }
}

/// The smallest and the largest session time-out and heartbeat interval.
fn bounds(config: &Config) -> [(i32, i32); 2] {
    [
        (config.consumer_session_timeout_ms_min, config.consumer_session_timeout_ms_max),
        (config.consumer_heartbeat_interval_ms_min, config.consumer_heartbeat_interval_ms_max),
    ]
}

/// Checks `overrides` of a group as a whole.
pub fn check_group_configs(overrides: &Overrides, config: &Config) -> Result<(), Failure> {
    let invalid = |why: String| Failure::because(ErrorCode::InvalidConfig, why);
    for (name, value) in overrides {
        let setting = GROUP_SETTINGS.iter().find(|setting| setting.name == name);
        let setting = setting.ok_or_else(|| invalid(format!("Unknown group config name: {name}")))?;
        if let Some(problem) = setting.problem(value) {
            return Err(invalid(problem));
        }
    }
    let of = |setting: &'static str| {
        let own = overrides.get(setting).and_then(|value| value.trim().parse::<i32>().ok());
        own.map(|value| (setting, value))
    };
    for ((name, value), (min, max)) in [of(SESSION_TIMEOUT), of(HEARTBEAT_INTERVAL)]
        .into_iter()
        .zip(bounds(config))
        .filter_map(|(own, bounds)| Some((own?, bounds)))
    {
        let kind = name.trim_start_matches("consumer.");
        if value < min {
            return Err(invalid(format!(
                "{name} must be greater than or equal to group.consumer.min.{kind}"
            )));
        }
        if value > max {
            return Err(invalid(format!("{name} must be less than or equal to group.consumer.max.{kind}")));
        }
    }
    let both = ConsumerGroupConfig::new(overrides, config);
    if both.session_timeout_ms <= both.heartbeat_interval_ms {
        return Err(invalid(format!("{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")));
    }
    Ok(())
}
