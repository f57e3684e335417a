//! DescribeConfigs and IncrementalAlterConfigs (KIP-339): settings of topics, and of the broker to look at.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use wire::messages::describe_configs_request::DescribeConfigsResource;
use wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult, DescribeConfigsSynonym,
};
use wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse, IncrementalAlterConfigsResponse,
};
use wire::messages::{self as m, DescribeConfigsRequest, IncrementalAlterConfigsRequest};
use wire::{ErrorCode, Text};

use crate::broker::Broker;
use crate::failure::Failure;
use crate::topic_config::{DefaultFrom, Kind, TOPIC_SETTINGS, topic_setting};

/// Kinds of resources.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
/// `config_operation`: the value is replaced.
const SET: i8 = 0;
/// Where a value comes from.
const SOURCE_TOPIC: i8 = 1;
const SOURCE_STATIC_BROKER: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;

/// One setting as it is shown.
pub struct Described {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// The code of where the value comes from.
    pub source: i8,
    kind: Kind,
    doc: &'static str,
    synonyms: Vec<(String, String, i8)>,
}

/// The settings of a topic with these overrides; only those named in `keys`, if it is given.
pub fn described_topic_configs(
    broker: &Broker,
    overrides: &BTreeMap<String, String>,
    keys: Option<&[Text]>,
) -> Vec<Described> {
    let wanted = |name: &str| keys.is_none_or(|keys| keys.iter().any(|key| key.as_str() == name));
    let broker_settings = broker.config.settings();
    let describe = |setting: &'static crate::topic_config::TopicSetting| {
        let mut synonyms = Vec::new();
        if let Some(own) = overrides.get(setting.name) {
            synonyms.push((setting.name.to_owned(), own.clone(), SOURCE_TOPIC));
        }
        match setting.default {
            DefaultFrom::Fixed(text) => {
                synonyms.push((setting.name.to_owned(), text.to_owned(), SOURCE_DEFAULT))
            }
            DefaultFrom::Broker(name) => {
                let of_broker = broker_settings.iter().find(|other| other.name == name);
                let of_broker = of_broker.expect("the table names broker settings that exist");
                if of_broker.value != of_broker.default {
                    synonyms.push((name.to_owned(), of_broker.value.clone(), SOURCE_STATIC_BROKER));
                }
                synonyms.push((name.to_owned(), of_broker.default.clone(), SOURCE_DEFAULT));
            }
        }
        let (_, value, source) = synonyms[0].clone();
        Described { name: setting.name, value, source, kind: setting.kind, doc: setting.doc, synonyms }
    };
    TOPIC_SETTINGS.iter().filter(|setting| wanted(setting.name)).map(describe).collect()
}

fn described_broker_configs(broker: &Broker, keys: Option<&[Text]>) -> Vec<Described> {
    let wanted = |name: &str| keys.is_none_or(|keys| keys.iter().any(|key| key.as_str() == name));
    let settings = broker.config.settings().into_iter().filter(|setting| wanted(setting.name));
    let describe = |setting: crate::config::Setting| {
        let mut synonyms = Vec::new();
        if setting.value != setting.default {
            synonyms.push((setting.name.to_owned(), setting.value.clone(), SOURCE_STATIC_BROKER));
        }
        synonyms.push((setting.name.to_owned(), setting.default, SOURCE_DEFAULT));
        let source = synonyms[0].2;
        let kind = match setting.value.as_str() {
            "true" | "false" => Kind::Boolean,
            value if value.parse::<i64>().is_ok() => Kind::Long,
            _ => Kind::String,
        };
        Described { name: setting.name, value: setting.value, source, kind, doc: setting.doc, synonyms }
    };
    settings.map(describe).collect()
}

/// Answers DescribeConfigs.
pub fn describe(broker: &Broker, request: &DescribeConfigsRequest) -> DescribeConfigsResponse {
    // A resource that is named many times is described once: the answer stays in proportion.
    let mut named = HashSet::new();
    let resources = request.resources.iter().filter(|r| named.insert((r.resource_type, &r.resource_name)));
    let results = resources.map(|resource| describe_one(broker, request, resource)).collect();
    DescribeConfigsResponse { results, ..DescribeConfigsResponse::default() }
}

fn describe_one(
    broker: &Broker,
    request: &DescribeConfigsRequest,
    resource: &DescribeConfigsResource,
) -> DescribeConfigsResult {
    let keys = resource.configuration_keys.as_deref().filter(|keys| !keys.is_empty());
    let found = match resource.resource_type {
        TOPIC => match broker.topics.find(&resource.resource_name) {
            Some(topic) => Ok(described_topic_configs(broker, &topic.overrides(), keys)),
            None => Err(Failure::new(ErrorCode::UnknownTopicOrPartition)),
        },
        BROKER => {
            check_node(broker, &resource.resource_name).map(|()| described_broker_configs(broker, keys))
        }
        other => {
            Err(Failure::because(ErrorCode::InvalidRequest, format!("Unsupported resource type: {other}")))
        }
    };
    let shown = |described: Described| {
        let synonym = |(name, value, source): (String, String, i8)| DescribeConfigsSynonym {
            name: name.into(),
            value: Some(value.into()),
            source,
        };
        DescribeConfigsResourceResult {
            name: Text::from_static(described.name),
            value: Some(described.value.into()),
            read_only: resource.resource_type == BROKER,
            config_source: described.source,
            is_sensitive: false,
            synonyms: if request.include_synonyms {
                described.synonyms.into_iter().map(synonym).collect()
            } else {
                Vec::new()
            },
            config_type: described.kind.code(),
            documentation: request.include_documentation.then(|| Text::from_static(described.doc)),
        }
    };
    let mut result = DescribeConfigsResult {
        error_message: None,
        resource_type: resource.resource_type,
        resource_name: resource.resource_name.clone(),
        ..DescribeConfigsResult::default()
    };
    match found {
        Ok(described) => result.configs = described.into_iter().map(shown).collect(),
        Err(failure) => {
            result.error_code = failure.code.code();
            result.error_message = Some(failure.text());
        }
    }
    result
}

fn check_node(broker: &Broker, name: &str) -> Result<(), Failure> {
    // The empty name stands for the defaults of all brokers.
    if name.is_empty() || name.parse::<i32>() == Ok(broker.config.node_id) {
        return Ok(());
    }
    let why = format!(
        "Unexpected broker id, expected {} or empty string, but received {name}",
        broker.config.node_id
    );
    Err(Failure::because(ErrorCode::InvalidRequest, why))
}

/// Answers IncrementalAlterConfigs.
pub async fn alter(
    broker: Arc<Broker>,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let result = alter_one(&broker, &resource, request.validate_only, false).await;
        let failure = result.err();
        responses.push(AlterConfigsResourceResponse {
            error_code: failure.as_ref().map_or(0, |failure| failure.code.code()),
            error_message: failure.map(|failure| failure.text()),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        });
    }
    IncrementalAlterConfigsResponse { responses, ..IncrementalAlterConfigsResponse::default() }
}

/// Answers AlterConfigs, the older API: what is not named goes back to its default.
pub async fn replace(broker: Arc<Broker>, request: m::AlterConfigsRequest) -> m::AlterConfigsResponse {
    let mut responses = Vec::with_capacity(request.resources.len());
    for old in request.resources {
        let set = |config: m::alter_configs_request::AlterableConfig| AlterableConfig {
            name: config.name,
            config_operation: SET,
            value: config.value,
        };
        let resource = AlterConfigsResource {
            resource_type: old.resource_type,
            resource_name: old.resource_name,
            configs: old.configs.into_iter().map(set).collect(),
        };
        let failure = alter_one(&broker, &resource, request.validate_only, true).await.err();
        responses.push(m::alter_configs_response::AlterConfigsResourceResponse {
            error_code: failure.as_ref().map_or(0, |failure| failure.code.code()),
            error_message: failure.map(|failure| failure.text()),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        });
    }
    m::AlterConfigsResponse { responses, ..m::AlterConfigsResponse::default() }
}

/// Answers ListConfigResources (KIP-1142): what has settings. Version 0 asks for client metrics only.
pub fn list_resources(
    broker: &Broker,
    request: &m::ListConfigResourcesRequest,
    version: i16,
) -> m::ListConfigResourcesResponse {
    const BROKER_LOGGER: i8 = 8;
    const CLIENT_METRICS: i8 = 16;
    const GROUP: i8 = 32;
    const ALL: [i8; 5] = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];
    let types = match request.resource_types.as_slice() {
        _ if version == 0 => &[CLIENT_METRICS],
        [] => &ALL[..],
        types => types,
    };
    if types.iter().any(|kind| !ALL.contains(kind)) {
        return m::ListConfigResourcesResponse {
            error_code: ErrorCode::UnsupportedVersion.code(),
            ..m::ListConfigResourcesResponse::default()
        };
    }
    let mut config_resources = Vec::new();
    let mut add = |resource_type: i8, resource_name: Text| {
        let found = m::list_config_resources_response::ConfigResource { resource_name, resource_type };
        config_resources.push(found);
    };
    for kind in types {
        match *kind {
            TOPIC => broker.topics.all().iter().for_each(|topic| add(TOPIC, topic.name.clone())),
            BROKER | BROKER_LOGGER => add(*kind, Text::from(broker.config.node_id.to_string())),
            // Neither can be set here.
            _ => {}
        }
    }
    m::ListConfigResourcesResponse { config_resources, ..m::ListConfigResourcesResponse::default() }
}

async fn alter_one(
    broker: &Arc<Broker>,
    resource: &AlterConfigsResource,
    validate_only: bool,
    replace: bool,
) -> Result<(), Failure> {
    if resource.resource_type == BROKER {
        let why = "The broker's settings are changed in its configuration file.";
        return Err(Failure::because(ErrorCode::InvalidRequest, why));
    }
    if resource.resource_type != TOPIC {
        let why = format!("Unsupported resource type: {}", resource.resource_type);
        return Err(Failure::because(ErrorCode::InvalidRequest, why));
    }
    let topic = broker.topics.find(&resource.resource_name).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let mut overrides = if replace { BTreeMap::new() } else { topic.overrides() };
    for config in &resource.configs {
        apply(broker, &mut overrides, config)?;
    }
    if validate_only {
        return Ok(());
    }
    let name = resource.resource_name.to_string();
    Ok(broker.blocking(move |broker| broker.topics.configure(&name, overrides)).await?)
}

fn apply(
    broker: &Broker,
    overrides: &mut BTreeMap<String, String>,
    config: &AlterableConfig,
) -> Result<(), Failure> {
    const DELETE: i8 = 1;
    const APPEND: i8 = 2;
    const SUBTRACT: i8 = 3;
    let invalid = |why: String| Failure::because(ErrorCode::InvalidConfig, why);
    let name = config.name.as_str();
    let setting = topic_setting(name).ok_or_else(|| invalid(format!("Unknown topic config name: {name}")))?;
    if config.config_operation == DELETE {
        overrides.remove(name);
        return Ok(());
    }
    let Some(value) = &config.value else {
        return Err(Failure::because(
            ErrorCode::InvalidRequest,
            format!("Null value not supported for : {name}"),
        ));
    };
    let list = |overrides: &BTreeMap<String, String>| -> Vec<String> {
        let now = overrides.get(name).cloned().unwrap_or_else(|| setting.default_value(&broker.config));
        now.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
    };
    let words = value.split(',').map(|word| word.trim().to_owned());
    let new = match config.config_operation {
        SET => value.to_string(),
        APPEND | SUBTRACT if setting.kind != Kind::List => {
            return Err(invalid(format!("Can't append or subtract {name}: it is not a list")));
        }
        APPEND => {
            let mut list = list(overrides);
            words.for_each(|word| {
                if !list.contains(&word) {
                    list.push(word)
                }
            });
            list.join(",")
        }
        SUBTRACT => {
            let gone: Vec<String> = words.collect();
            list(overrides).into_iter().filter(|word| !gone.contains(word)).collect::<Vec<_>>().join(",")
        }
        other => {
            return Err(Failure::because(ErrorCode::InvalidRequest, format!("Unknown operation {other}")));
        }
    };
    if let Some(problem) = setting.problem(&new) {
        return Err(invalid(problem));
    }
    overrides.insert(name.to_owned(), new);
    Ok(())
}
