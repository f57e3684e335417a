//! IncrementalAlterConfigs (KIP-339) and AlterConfigs: changes of the settings of topics, of the broker (KIP-226), of
//! groups (KIP-848) and of client-metrics subscriptions (KIP-714). All changes of a resource apply, or none.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse, IncrementalAlterConfigsResponse,
};
use wire::messages::{self as m, IncrementalAlterConfigsRequest};
use wire::{ErrorCode, Text};

use crate::api::admin_configs::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use crate::broker::Broker;
use crate::caller::Caller;
use crate::config::Kind;
use crate::config::resource_setting::Overrides;
use crate::failure::Failure;
use crate::request::Request;
use crate::security::{Operation, audit};
use crate::settings::group::check_group_configs;
use crate::settings::listener::{is_secret, of_listeners};
use crate::settings::resource::{ResourceKind, check_broker_configs, check_local_retention};
use crate::settings::topic::{conflict, keep_diskless, topic_setting, wrong_change};
use crate::telemetry::subscription::Subscription;
use crate::topics::check_name;

/// Values of `config_operation`.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Bound in bytes of a value. It is held in memory, and lists are searched word by word.
const VALUE_BYTES_MAX: usize = 8 * 1024;

/// The message for a resource that is named twice.
const TWICE: &str = "Each resource must appear at most once.";

fn refused(why: impl Into<Text>) -> Failure {
    Failure::because(ErrorCode::InvalidRequest, why)
}

/// Answers IncrementalAlterConfigs.
pub async fn alter(
    Request { broker, caller, body: request, .. }: Request<IncrementalAlterConfigsRequest>,
) -> IncrementalAlterConfigsResponse {
    let twice = named_twice(&request.resources);
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let failure = match twice.contains(&key(&resource)) {
            true => Some(refused(TWICE)),
            false => alter_one(&broker, &caller, &resource, request.validate_only, false).await.err(),
        };
        responses.push(AlterConfigsResourceResponse {
            error_code: failure.as_ref().map_or(0, |failure| failure.code.code()),
            error_message: failure.map(|failure| failure.text()),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        });
    }
    IncrementalAlterConfigsResponse { responses, ..IncrementalAlterConfigsResponse::default() }
}

/// Answers AlterConfigs, the older API. Settings that the request leaves out return to their defaults.
pub async fn replace(
    Request { broker, caller, body: request, .. }: Request<m::AlterConfigsRequest>,
) -> m::AlterConfigsResponse {
    let set = |config: m::alter_configs_request::AlterableConfig| AlterableConfig {
        name: config.name,
        config_operation: SET,
        value: config.value,
    };
    let resources = request.resources.into_iter().map(|old| AlterConfigsResource {
        resource_type: old.resource_type,
        resource_name: old.resource_name,
        configs: old.configs.into_iter().map(set).collect(),
    });
    let resources: Vec<AlterConfigsResource> = resources.collect();
    let twice = named_twice(&resources);
    let mut responses = Vec::with_capacity(resources.len());
    for resource in resources {
        let failure = match twice.contains(&key(&resource)) {
            true => Some(refused(TWICE)),
            false => alter_one(&broker, &caller, &resource, request.validate_only, true).await.err(),
        };
        responses.push(m::alter_configs_response::AlterConfigsResourceResponse {
            error_code: failure.as_ref().map_or(0, |failure| failure.code.code()),
            error_message: failure.map(|failure| failure.text()),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        });
    }
    m::AlterConfigsResponse { responses, ..m::AlterConfigsResponse::default() }
}

fn key(resource: &AlterConfigsResource) -> (i8, Text) {
    let name = &resource.resource_name;
    // The id of a broker may be spelled in several ways.
    let id = name.parse::<i32>().ok().filter(|_| resource.resource_type == BROKER);
    (resource.resource_type, id.map_or_else(|| name.clone(), |id| id.to_string().into()))
}

fn named_twice(resources: &[AlterConfigsResource]) -> HashSet<(i8, Text)> {
    twice(resources.iter().map(key))
}

/// The items that occur more than once.
pub fn twice<T: Hash + Eq + Clone>(items: impl Iterator<Item = T>) -> HashSet<T> {
    let mut seen = HashSet::new();
    items.filter(|item| !seen.insert(item.clone())).collect()
}

async fn alter_one(
    broker: &Arc<Broker>,
    caller: &Caller,
    resource: &AlterConfigsResource,
    validate_only: bool,
    replace: bool,
) -> Result<(), Failure> {
    let name = resource.resource_name.as_str();
    match resource.resource_type {
        TOPIC => broker.authorizer.topic(caller, Operation::AlterConfigs, name)?,
        GROUP => broker.authorizer.group(caller, Operation::AlterConfigs, name)?,
        _ => broker.authorizer.cluster(caller, Operation::AlterConfigs)?,
    }
    alter_allowed(broker, resource, validate_only, replace).await?;
    if !validate_only {
        let changes: Vec<String> = resource.configs.iter().map(shown).collect();
        let what = match (resource.resource_type, replace) {
            (TOPIC, false) => "changed settings of topic",
            (TOPIC, true) => "replaced settings of topic",
            (GROUP, _) => "changed settings of group",
            (CLIENT_METRICS, _) => "changed the client-metrics subscription",
            (_, false) => "changed settings of broker",
            (_, true) => "replaced settings of broker",
        };
        audit::changed(&caller.origin, what, name, &changes.join(", "));
    }
    Ok(())
}

/// A change in the form of the audit log: the operation and the setting, without secrets.
fn shown(config: &AlterableConfig) -> String {
    let value = config.value.as_ref().map(Text::as_str).unwrap_or_default();
    let value = if is_secret(&config.name) { "[hidden]" } else { value };
    match config.config_operation {
        SET => format!("{} = {value:?}", config.name),
        DELETE => format!("{} deleted", config.name),
        APPEND => format!("{} += {value:?}", config.name),
        _ => format!("{} -= {value:?}", config.name),
    }
}

async fn alter_allowed(
    broker: &Arc<Broker>,
    resource: &AlterConfigsResource,
    validate_only: bool,
    replace: bool,
) -> Result<(), Failure> {
    if !twice(resource.configs.iter().map(|config| &config.name)).is_empty() {
        return Err(refused("Error due to duplicate config keys"));
    }
    let null = |config: &&AlterableConfig| config.config_operation != DELETE && config.value.is_none();
    let nulls: Vec<&str> = resource.configs.iter().filter(null).map(|config| config.name.as_str()).collect();
    if !nulls.is_empty() {
        return Err(refused(format!("Null value not supported for : {}", nulls.join(", "))));
    }
    // Certificates take more. All values of a resource are bounded as well.
    let most = |name: &str| if is_secret(name) { VALUE_BYTES_MAX * 4 } else { VALUE_BYTES_MAX };
    let long = |config: &AlterableConfig| config.value.as_ref().is_some_and(|v| v.len() > most(&config.name));
    if resource.configs.iter().any(long) {
        return Err(refused(format!("a setting's value may have {VALUE_BYTES_MAX} bytes at most")));
    }
    let mut name = resource.resource_name.to_string();
    let kind = match resource.resource_type {
        TOPIC => return alter_topic(broker, resource, validate_only, replace).await,
        BROKER_LOGGER if !replace => return alter_logger(broker, &name, &resource.configs),
        BROKER => {
            let node = broker.placement.local();
            if !name.is_empty() && node_of(&name)? != node {
                return Err(refused(format!("Unexpected broker id, expected {node}, but received {name}")));
            }
            // The id may be spelled in several ways; the name has one form.
            name = if name.is_empty() { name } else { node.to_string() };
            ResourceKind::Broker
        }
        GROUP if name.is_empty() => return Err(refused("Default group resources are not allowed.")),
        GROUP => ResourceKind::Group,
        CLIENT_METRICS => ResourceKind::ClientMetrics,
        other => return Err(refused(format!("Unknown resource type {other}"))),
    };
    let changes = resource.configs.clone();
    let change = move |broker: &Arc<Broker>| {
        let changed = |old: &Overrides| -> Result<Overrides, Failure> {
            let overrides = changed(broker, kind_of(kind), old, &changes, replace)?;
            check(broker, kind, &name, &overrides)?;
            Ok(overrides)
        };
        let overrides = changed(&broker.configs.of(kind, &name))?;
        if kind == ResourceKind::Broker {
            // The files that these name are read outside of the lock of changes.
            broker.configs.check_listeners(&name, &overrides)?;
        }
        if validate_only {
            return Ok(());
        }
        let checked = of_listeners(&overrides);
        broker.configs.change(kind, &name, |old| {
            let overrides = changed(old)?;
            match of_listeners(&overrides) == checked {
                true => Ok(overrides),
                false => Err(refused("the settings of a listener have changed meanwhile: try again")),
            }
        })
    };
    broker.blocking(change).await
}

fn kind_of(kind: ResourceKind) -> i8 {
    match kind {
        ResourceKind::Broker => BROKER,
        ResourceKind::Group => GROUP,
        ResourceKind::ClientMetrics => CLIENT_METRICS,
    }
}

/// Checks the settings of a resource as a whole.
fn check(broker: &Broker, kind: ResourceKind, name: &str, overrides: &Overrides) -> Result<(), Failure> {
    match kind {
        ResourceKind::Broker => {
            check_broker_configs(overrides, &broker.configs.set_by_clients(), name.is_empty())?;
            let whole = broker.configs.with(name, overrides);
            if let Some(problem) = whole.connections_problem() {
                let why = format!("requirement failed: {problem}");
                return Err(Failure::because(ErrorCode::InvalidRequest, why));
            }
            check_local_retention(&whole)
        }
        ResourceKind::Group => check_group_configs(overrides, &broker.configs.now()),
        ResourceKind::ClientMetrics => Subscription::new(name, overrides).map(drop),
    }
}

async fn alter_topic(
    broker: &Arc<Broker>,
    resource: &AlterConfigsResource,
    validate_only: bool,
    replace: bool,
) -> Result<(), Failure> {
    let name = resource.resource_name.to_string();
    if name.is_empty() {
        return Err(refused("Default topic resources are not allowed."));
    }
    check_name(&name)?;
    let missing = || format!("The topic '{name}' does not exist.");
    let topic = broker.topics.find(&name);
    let topic = topic.ok_or_else(|| Failure::because(ErrorCode::UnknownTopicOrPartition, missing()))?;
    let changes = resource.configs.clone();
    let change = move |broker: &Arc<Broker>, old: &Overrides| -> Result<Overrides, Failure> {
        let mut overrides = changed(broker, TOPIC, old, &changes, replace)?;
        let in_cluster = broker.logs.are_moving();
        // Tools also remove what they do not know.
        if replace || in_cluster {
            keep_diskless(old, &mut overrides);
        }
        let invalid = |why: String| Failure::because(ErrorCode::InvalidConfig, why);
        for (name, value) in &overrides {
            let setting = topic_setting(name);
            let setting = setting.ok_or_else(|| invalid(format!("Unknown topic config name: {name}")))?;
            if let Some(problem) = setting.problem(value) {
                return Err(invalid(problem));
            }
        }
        let config = broker.configs.now();
        let wrong = wrong_change(old, &overrides, &config, in_cluster).map(str::to_owned);
        match conflict(&overrides, &config).or(wrong) {
            Some(why) => Err(invalid(why)),
            None => Ok(overrides),
        }
    };
    if validate_only {
        return change(broker, &topic.record().configs).map(drop);
    }
    // The new value is computed under the lock of changes, so that two concurrent changes do not undo each other.
    broker.blocking(move |broker| broker.topics.configure(&name, |old| change(broker, old))).await
}

/// Answers a change of log levels. Log levels are chosen at the start, so none can be set while the server runs.
fn alter_logger(broker: &Broker, name: &str, configs: &[AlterableConfig]) -> Result<(), Failure> {
    let node = broker.placement.local();
    if node_of(name)? != node {
        return Err(refused(format!("Unexpected node id. Expected {node}, but received {name}")));
    }
    match configs.first() {
        Some(config) if matches!(config.config_operation, APPEND | SUBTRACT) => {
            let what = if config.config_operation == APPEND { "APPEND" } else { "SUBTRACT" };
            Err(refused(format!("{what} operation is not allowed for the BROKER_LOGGER resource")))
        }
        Some(config) => {
            let why = format!("Logger {} does not exist!", config.name);
            Err(Failure::because(ErrorCode::InvalidConfig, why))
        }
        None => Ok(()),
    }
}

/// The id of the broker whose settings are meant.
fn node_of(name: &str) -> Result<i32, Failure> {
    name.parse().map_err(|_| refused(format!("Node id must be an integer, but it is: {name}")))
}

/// The settings that result from applying `changes` to the settings `old` of a resource.
fn changed(
    broker: &Broker,
    resource_type: i8,
    old: &Overrides,
    changes: &[AlterableConfig],
    replace: bool,
) -> Result<Overrides, Failure> {
    let mut overrides = if replace { Overrides::new() } else { old.clone() };
    for config in changes {
        let name = config.name.as_str();
        let value = config.value.as_ref().map(Text::as_str).unwrap_or_default();
        match config.config_operation {
            SET => drop(overrides.insert(name.to_owned(), value.to_owned())),
            DELETE => drop(overrides.remove(name)),
            operation @ (APPEND | SUBTRACT) => {
                let default = default_list(broker, resource_type, name)
                    .ok_or_else(|| not_a_list(resource_type, operation, name))?;
                let now = overrides.get(name).unwrap_or(&default);
                // As in Java's split, empty words at the end are dropped, unless the whole value is empty.
                let mut named: Vec<&str> = value.split(',').collect();
                while !value.is_empty() && named.last().is_some_and(|word| word.is_empty()) {
                    named.pop();
                }
                let mut words: Vec<&str> =
                    now.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
                for word in named.into_iter().map(str::trim) {
                    let at = words.iter().position(|other| *other == word);
                    match (operation, at) {
                        (APPEND, None) => words.push(word),
                        (SUBTRACT, Some(at)) => drop(words.remove(at)),
                        _ => {}
                    }
                }
                let words = words.join(",");
                overrides.insert(name.to_owned(), words);
            }
            other => return Err(refused(format!("Unknown operations type {other}"))),
        }
    }
    Ok(overrides)
}

/// The default value of a list. `None` for a setting that is not a list. As in Kafka, the lists of a subscription can
/// only be replaced as a whole.
fn default_list(broker: &Broker, resource_type: i8, name: &str) -> Option<String> {
    let now = broker.configs.now();
    match resource_type {
        TOPIC => {
            topic_setting(name).filter(|s| s.kind == Kind::List).map(|setting| setting.default_value(&now))
        }
        BROKER => {
            now.settings().into_iter().find(|s| s.name == name && s.kind == Kind::List).map(|s| s.value)
        }
        _ => None,
    }
}

fn not_a_list(resource_type: i8, operation: i8, name: &str) -> Failure {
    let why = match (resource_type, operation) {
        (BROKER, APPEND) => format!("Config value append is not allowed for config key: {name}"),
        (BROKER, _) => format!("Config value subtract is not allowed for config key: {name}"),
        (_, APPEND) => format!("Can't APPEND to key {name} because its type is not LIST."),
        _ => format!("Can't SUBTRACT to key {name} because its type is not LIST."),
    };
    Failure::because(ErrorCode::InvalidConfig, why)
}
