//! DescribeConfigs and ListConfigResources: the settings of topics, of the broker, of groups and of client-metrics
//! subscriptions, each with the source of its value.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use wire::messages::describe_configs_request::DescribeConfigsResource;
use wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult, DescribeConfigsSynonym,
};
use wire::messages::{self as m, DescribeConfigsRequest};
use wire::{ErrorCode, Text};

use crate::broker::Broker;
use crate::caller::{Caller, Origin};
use crate::config::resource_setting::{DefaultFrom, ResourceSetting};
use crate::config::{Kind, Setting};
use crate::failure::Failure;
use crate::request::Request;
use crate::security::Operation;
use crate::settings::accepted::{ACCEPTED_SETTINGS, accepted_setting};
use crate::settings::group::GROUP_SETTINGS;
use crate::settings::listener::{ListenerSetting, listener_setting};
use crate::settings::resource::{ResourceKind, is_dynamic};
use crate::settings::topic::{DISKLESS, TOPIC_SETTINGS};
use crate::telemetry::subscription::SUBSCRIPTION_SETTINGS;
use crate::topics::check_name;

/// Types of resources.
pub const TOPIC: i8 = 2;
pub const BROKER: i8 = 4;
pub const BROKER_LOGGER: i8 = 8;
pub const CLIENT_METRICS: i8 = 16;
pub const GROUP: i8 = 32;
/// Sources of values.
const SOURCE_TOPIC: i8 = 1;
const SOURCE_DYNAMIC_BROKER: i8 = 2;
const SOURCE_DYNAMIC_DEFAULT_BROKER: i8 = 3;
const SOURCE_STATIC_BROKER: i8 = 4;
/// Bound of the groups and subscriptions described in one answer.
const MADE_UP_MAX: usize = 10_000;
const ADVERTISED: &str = "advertised.listeners";
const SOURCE_DEFAULT: i8 = 5;
const SOURCE_CLIENT_METRICS: i8 = 7;
const SOURCE_GROUP: i8 = 8;

/// One setting with its value.
pub struct Described {
    /// The setting's name.
    pub name: Text,
    /// The setting's value.
    pub value: String,
    /// The code of the value's source.
    pub source: i8,
    read_only: bool,
    kind: Kind,
    doc: &'static str,
    synonyms: Vec<Synonym>,
}

/// A name under which a value was given, the value, and the code of its source.
type Synonym = (String, String, i8);

/// The names of the requested settings. `None` for all.
type Keys<'a> = Option<&'a [Text]>;

fn wanted(keys: Keys, name: &str) -> bool {
    keys.is_none_or(|keys| keys.iter().any(|key| key.as_str() == name))
}

/// The settings of a topic with these overrides, limited to `keys` if given.
pub fn described_topic_configs(
    broker: &Broker,
    overrides: &BTreeMap<String, String>,
    keys: Keys,
) -> Vec<Described> {
    described_by_table(broker, TOPIC_SETTINGS, overrides, SOURCE_TOPIC, keys)
}

fn described_by_table(
    broker: &Broker,
    table: &'static [ResourceSetting],
    overrides: &BTreeMap<String, String>,
    source: i8,
    keys: Keys,
) -> Vec<Described> {
    let of_broker = BrokerSynonyms::new(broker);
    let describe = |setting: &'static ResourceSetting| {
        let mut synonyms = Vec::new();
        if let Some(own) = overrides.get(setting.name) {
            synonyms.push((setting.name.to_owned(), own.clone(), source));
        }
        match setting.default {
            // No setting of the broker provides this default, so there is no synonym, as in Kafka.
            DefaultFrom::Fixed(_) => {}
            DefaultFrom::OfCluster(_) => synonyms.extend(of_broker.of_accepted(setting.name)),
            DefaultFrom::Accepted(name, _) => synonyms.extend(of_broker.of_accepted(name)),
            DefaultFrom::Broker(name) => {
                let given = of_broker.settings.iter().find(|other| other.name == name);
                synonyms.extend(of_broker.of(given.expect("the table names broker settings that exist")));
            }
        }
        let default = || setting.fixed_default().unwrap_or_default().to_owned();
        let (value, source) = match synonyms.first() {
            Some((_, value, source)) => (value.clone(), *source),
            None => (default(), SOURCE_DEFAULT),
        };
        let (name, kind, doc) = (Text::from_static(setting.name), setting.kind, setting.doc);
        Described { name, value, source, read_only: false, kind, doc, synonyms }
    };
    let shown = |name: &str| name != DISKLESS || overrides.contains_key(name);
    table.iter().filter(|setting| wanted(keys, setting.name) && shown(setting.name)).map(describe).collect()
}

/// The values of the broker's settings by source.
struct BrokerSynonyms {
    settings: Vec<Setting>,
    dynamic: [std::sync::Arc<BTreeMap<String, String>>; 2],
}

impl BrokerSynonyms {
    fn new(broker: &Broker) -> BrokerSynonyms {
        BrokerSynonyms { settings: broker.config.settings(), dynamic: broker.configs.of_broker() }
    }

    /// All values of a setting, the value in force first (KIP-226).
    fn of(&self, setting: &Setting) -> Vec<Synonym> {
        let mut synonyms = if is_dynamic(setting.name) { self.by_clients(setting.name) } else { Vec::new() };
        if setting.value != setting.default {
            synonyms.push((setting.name.to_owned(), setting.value.clone(), SOURCE_STATIC_BROKER));
        }
        synonyms.push((setting.name.to_owned(), setting.default.clone(), SOURCE_DEFAULT));
        synonyms
    }

    /// As [`BrokerSynonyms::accepted`], of the setting of this name.
    fn of_accepted(&self, name: &str) -> Vec<Synonym> {
        self.accepted(accepted_setting(name).expect("the table names settings that are accepted"))
    }

    /// All values of a setting that is only accepted. Empty if it has no value.
    fn accepted(&self, setting: &ResourceSetting) -> Vec<Synonym> {
        let mut synonyms = self.by_clients(setting.name);
        let given = self.settings.iter().find(|of| of.name == setting.name);
        if let DefaultFrom::OfCluster(text) = setting.default
            && synonyms.iter().all(|(_, _, source)| *source != SOURCE_DYNAMIC_DEFAULT_BROKER)
        {
            let text = given.map_or(text, |given| &given.value);
            synonyms.push((setting.name.to_owned(), text.to_owned(), SOURCE_DYNAMIC_DEFAULT_BROKER));
        }
        if let Some(given) = given.filter(|given| given.value != given.default) {
            synonyms.push((setting.name.to_owned(), given.value.clone(), SOURCE_STATIC_BROKER));
        }
        let default = setting.fixed_default().filter(|default| !default.is_empty());
        synonyms.extend(default.map(|text| (setting.name.to_owned(), text.to_owned(), SOURCE_DEFAULT)));
        synonyms
    }

    fn by_clients(&self, name: &str) -> Vec<Synonym> {
        let dynamic = self.dynamic.iter().zip([SOURCE_DYNAMIC_BROKER, SOURCE_DYNAMIC_DEFAULT_BROKER]);
        let given = |(overrides, source): (&std::sync::Arc<BTreeMap<String, String>>, i8)| {
            overrides.get(name).map(|value| (name.to_owned(), value.clone(), source))
        };
        dynamic.filter_map(given).collect()
    }
}

/// The broker's settings. With `of_all`, which stands for the empty name, only the defaults set for all brokers.
fn described_broker_configs(broker: &Broker, of_all: bool, keys: Keys) -> Vec<Described> {
    let of_broker = BrokerSynonyms::new(broker);
    let describe =
        |name: Text, kind: Kind, doc: &'static str, read_only: bool, mut synonyms: Vec<Synonym>| {
            if of_all {
                synonyms.retain(|(_, _, source)| *source == SOURCE_DYNAMIC_DEFAULT_BROKER);
            }
            let (_, value, source) = synonyms.first()?.clone();
            Some(Described { name, value, source, read_only, kind, doc, synonyms })
        };
    let own = of_broker.settings.iter().filter(|setting| accepted_setting(setting.name).is_none());
    let own = own.filter(|setting| wanted(keys, setting.name)).filter_map(|setting| {
        let read_only = !is_dynamic(setting.name);
        describe(Text::from_static(setting.name), setting.kind, setting.doc, read_only, of_broker.of(setting))
    });
    let accepted =
        ACCEPTED_SETTINGS.iter().filter(|setting| wanted(keys, setting.name)).filter_map(|setting| {
            describe(
                Text::from_static(setting.name),
                setting.kind,
                setting.doc,
                false,
                of_broker.accepted(setting),
            )
        });
    let [own_names, all_names] = [0, 1].map(|at| of_broker.dynamic[at].keys());
    let names: BTreeSet<&String> = own_names.chain(all_names).filter(|name| wanted(keys, name)).collect();
    let of_listeners = names.into_iter().filter_map(|name| {
        let ListenerSetting { kind, doc, .. } = listener_setting(name)?;
        describe(Text::copied(name), *kind, doc, false, of_broker.by_clients(name))
    });
    own.chain(accepted).chain(of_listeners).collect()
}

/// The server's advertised address under Kafka's name: the endpoint that the client has reached, or the value of a
/// flag.
fn advertised(origin: &Origin) -> Described {
    let endpoint = origin.endpoint();
    let value = format!("{}://{}:{}", origin.listener.name, endpoint.host, endpoint.port);
    Described {
        name: Text::from_static(ADVERTISED),
        value: value.clone(),
        source: SOURCE_STATIC_BROKER,
        read_only: true,
        kind: Kind::List,
        doc: "The address that clients are told to connect to.",
        synonyms: vec![(ADVERTISED.to_owned(), value, SOURCE_STATIC_BROKER)],
    }
}

fn described(
    broker: &Broker,
    caller: &Caller,
    resource: &DescribeConfigsResource,
    keys: Keys,
) -> Result<Vec<Described>, Failure> {
    let refused = |why: &'static str| Err(Failure::because(ErrorCode::InvalidRequest, why));
    let name = resource.resource_name.as_str();
    match resource.resource_type {
        TOPIC => {
            check_name(name)?;
            match broker.topics.find(name) {
                Some(topic) => Ok(described_topic_configs(broker, &topic.record().configs, keys)),
                // As in Kafka, the message is empty.
                None => Err(Failure::because(ErrorCode::UnknownTopicOrPartition, "")),
            }
        }
        BROKER => {
            // The empty name stands for the defaults of all brokers.
            if !name.is_empty() {
                check_node(broker, name, " or empty string,")?;
            }
            let mut all = described_broker_configs(broker, name.is_empty(), keys);
            if !name.is_empty() && wanted(keys, ADVERTISED) {
                all.push(advertised(&caller.origin));
            }
            Ok(all)
        }
        BROKER_LOGGER if name.is_empty() => refused("Broker id must not be empty"),
        // Log levels are chosen at the start, so no logger can be set.
        BROKER_LOGGER => check_node(broker, name, "").map(|()| Vec::new()),
        CLIENT_METRICS if name.is_empty() => refused("Client metrics subscription name must not be empty"),
        CLIENT_METRICS => {
            let own = broker.configs.of(ResourceKind::ClientMetrics, name);
            let table = SUBSCRIPTION_SETTINGS;
            Ok(described_by_table(broker, table, &own, SOURCE_CLIENT_METRICS, keys))
        }
        GROUP if name.is_empty() => refused("Group name must not be empty"),
        GROUP => {
            let own = broker.configs.of(ResourceKind::Group, name);
            Ok(described_by_table(broker, GROUP_SETTINGS, &own, SOURCE_GROUP, keys))
        }
        _ => Err(Failure::new(ErrorCode::InvalidRequest)),
    }
}

/// Checks that `name` is this broker's id.
fn check_node(broker: &Broker, name: &str, or: &str) -> Result<(), Failure> {
    let refused = |why: String| Err(Failure::because(ErrorCode::InvalidRequest, why));
    let node = broker.placement.local();
    match name.parse::<i32>() {
        Ok(id) if id == node => Ok(()),
        Ok(_) => refused(format!("Unexpected broker id, expected {node}{or} but received {name}")),
        Err(_) => refused(format!("Broker id must be an integer, but it is: {name}")),
    }
}

/// Answers DescribeConfigs. A request for many resources takes long.
pub async fn describe(request: Request<DescribeConfigsRequest>) -> DescribeConfigsResponse {
    let Request { broker, caller, body: request, .. } = &request;
    // A repeated resource is described once, so that the size of the answer stays proportional to the request.
    let mut named = HashSet::new();
    let resources = request.resources.iter().filter(|r| named.insert((r.resource_type, &r.resource_name)));
    // Any name is a valid group name. The answer is therefore limited to this number of groups and subscriptions.
    let mut made_up = 0;
    let resources = resources.filter(|resource| {
        made_up += usize::from(matches!(resource.resource_type, GROUP | CLIENT_METRICS));
        made_up <= MADE_UP_MAX || !matches!(resource.resource_type, GROUP | CLIENT_METRICS)
    });
    let results = resources.map(|resource| describe_one(broker, caller, request, resource)).collect();
    DescribeConfigsResponse { results, ..DescribeConfigsResponse::default() }
}

fn describe_one(
    broker: &Broker,
    caller: &Caller,
    request: &DescribeConfigsRequest,
    resource: &DescribeConfigsResource,
) -> DescribeConfigsResult {
    let keys = resource.configuration_keys.as_deref().filter(|keys| !keys.is_empty());
    let name = resource.resource_name.as_str();
    let allowed = match resource.resource_type {
        TOPIC => broker.authorizer.topic(caller, Operation::DescribeConfigs, name),
        GROUP => broker.authorizer.group(caller, Operation::DescribeConfigs, name),
        _ => broker.authorizer.cluster(caller, Operation::DescribeConfigs),
    };
    let found = match allowed {
        Ok(()) => described(broker, caller, resource, keys),
        Err(error) => Err(error.into()),
    };
    let shown = |described: Described| {
        let secret = described.kind == Kind::Password;
        let seen = |value: String| (!secret).then(|| Text::from(value));
        let synonym = |(name, value, source): Synonym| DescribeConfigsSynonym {
            name: name.into(),
            value: seen(value),
            source,
        };
        DescribeConfigsResourceResult {
            name: described.name,
            value: seen(described.value),
            read_only: described.read_only,
            config_source: described.source,
            is_sensitive: secret,
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
        error_message: Some(Text::default()),
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

/// Answers ListConfigResources (KIP-1142): the resources that have settings. Version 0 asks for client metrics only.
pub async fn list_resources(
    request: Request<m::ListConfigResourcesRequest>,
) -> m::ListConfigResourcesResponse {
    let version = request.version;
    let Request { broker, body: request, .. } = &request;
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
    // Each type is listed once, however often the request names it.
    for kind in ALL.iter().filter(|kind| types.contains(kind)) {
        match *kind {
            TOPIC => broker.topics.all().iter().for_each(|topic| add(TOPIC, topic.name.clone())),
            BROKER | BROKER_LOGGER => add(*kind, Text::from(broker.placement.local().to_string())),
            CLIENT_METRICS => broker
                .configs
                .names(ResourceKind::ClientMetrics)
                .into_iter()
                .for_each(|name| add(CLIENT_METRICS, name.into())),
            GROUP => {
                broker.configs.names(ResourceKind::Group).into_iter().for_each(|name| add(GROUP, name.into()))
            }
            _ => {}
        }
    }
    m::ListConfigResourcesResponse { config_resources, ..m::ListConfigResourcesResponse::default() }
}
