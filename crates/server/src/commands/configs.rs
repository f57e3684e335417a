//! Settings of topics and brokers: DescribeConfigs and IncrementalAlterConfigs.

use std::collections::HashSet;

use client::check;
use wire::Text;
use wire::messages::describe_configs_request::DescribeConfigsResource;
use wire::messages::describe_configs_response::DescribeConfigsResourceResult;
use wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use wire::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};

use super::Table;
use super::peer::Peer;

/// What has settings, by Kafka's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum Kind {
    Topic = 2,
    Broker = 4,
}

/// The source of a setting that nobody set.
const SOURCE_DEFAULT: i8 = 5;

/// Topics whose settings are asked for at once.
const TOPICS_ASKED: usize = 100;

/// The name of the resource itself as a source.
const SET: &str = "set";

/// The name of a source, as `kafka-configs.sh` prints it, in words.
fn source(kind: Kind, code: i8) -> &'static str {
    match (kind, code) {
        (Kind::Topic, 1) | (Kind::Broker, 2) => SET,
        (_, 2) => "set on the broker",
        (_, 3) => "set for all brokers",
        (_, 4) => "set at the start",
        _ => "",
    }
}

/// The settings of a resource as the server tells them: those that are named, or all.
fn asked(
    peer: &mut Peer,
    kind: Kind,
    name: &str,
    only: Option<&str>,
) -> anyhow::Result<Vec<DescribeConfigsResourceResult>> {
    let request = request(kind, &[name], only);
    let mut configs = Vec::new();
    for result in peer.call(&request)?.results {
        check(result.error_code, result.error_message.as_ref())?;
        configs.extend(result.configs);
    }
    Ok(configs)
}

/// The settings of a resource, in the order of their names; only those that are not as by default, or all.
pub fn describe(peer: &mut Peer, kind: Kind, name: &str, all: bool) -> anyhow::Result<Table> {
    let mut configs = asked(peer, kind, name, None)?;
    configs.retain(|config| all || config.config_source != SOURCE_DEFAULT);
    configs.sort_by(|a, b| a.name.cmp(&b.name));
    let mut table = Table::new(&["CONFIG", "VALUE", ""]);
    for config in configs {
        let value = match &config.value {
            None if config.is_sensitive => "(hidden)".to_owned(),
            value => value.as_ref().map(ToString::to_string).unwrap_or_default(),
        };
        table.row([config.name.to_string(), value, source(kind, config.config_source).into()]);
    }
    Ok(table)
}

/// Those of the topics that have settings of their own. What a server gives every new topic is not one that somebody chose.
pub fn overridden(peer: &mut Peer, names: &[&str]) -> anyhow::Result<HashSet<String>> {
    let mut found = HashSet::new();
    for names in names.chunks(TOPICS_ASKED) {
        let request = request(Kind::Topic, names, None);
        for result in peer.call(&request)?.results {
            check(result.error_code, result.error_message.as_ref())?;
            let own = |config: &DescribeConfigsResourceResult| {
                source(Kind::Topic, config.config_source) == SET && config.name != "diskless.enable"
            };
            if result.configs.iter().any(own) {
                found.insert(result.resource_name.to_string());
            }
        }
    }
    Ok(found)
}

fn request(kind: Kind, names: &[&str], only: Option<&str>) -> DescribeConfigsRequest {
    let resource = |name: &&str| DescribeConfigsResource {
        resource_type: kind as i8,
        resource_name: Text::copied(name),
        configuration_keys: only.map(|config| vec![Text::copied(config)]),
    };
    DescribeConfigsRequest {
        resources: names.iter().map(resource).collect(),
        ..DescribeConfigsRequest::default()
    }
}

/// The value of one setting.
pub fn value(peer: &mut Peer, kind: Kind, name: &str, config: &str) -> anyhow::Result<Option<String>> {
    let found = asked(peer, kind, name, Some(config))?.into_iter().next();
    Ok(found.and_then(|config| config.value).map(String::from))
}

/// Changes settings; an empty value returns one to what it was.
pub fn alter(peer: &mut Peer, kind: Kind, name: &str, configs: Vec<(String, String)>) -> anyhow::Result<()> {
    const SET: i8 = 0;
    const DELETE: i8 = 1;
    let change = |(name, value): (String, String)| AlterableConfig {
        name: Text::from(name),
        config_operation: if value.is_empty() { DELETE } else { SET },
        value: if value.is_empty() { None } else { Some(Text::from(value)) },
    };
    let request = IncrementalAlterConfigsRequest {
        resources: vec![AlterConfigsResource {
            resource_type: kind as i8,
            resource_name: Text::copied(name),
            configs: configs.into_iter().map(change).collect(),
        }],
        validate_only: false,
    };
    for result in &peer.call(&request)?.responses {
        check(result.error_code, result.error_message.as_ref())?;
    }
    Ok(())
}
