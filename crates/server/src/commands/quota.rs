//! `mainstem quota`: list, alter, delete.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use client::check;
use serde_json::json;
use wire::Text;
use wire::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use wire::messages::describe_client_quotas_request::ComponentData;
use wire::messages::{AlterClientQuotasRequest, DescribeClientQuotasRequest};

use super::cluster::Cluster;
use super::{Table, connect, show};
use crate::arguments::{Bootstrap, QuotaEntity, QuotaVerb};

/// How a part of an entity is matched.
const EXACT: i8 = 0;
const DEFAULT: i8 = 1;

/// Type and name of each part of an entity; the default has no name.
type Entity = Vec<(&'static str, Option<String>)>;

/// Runs the command against a server.
pub fn quota(bootstrap: &Bootstrap, verb: QuotaVerb) -> anyhow::Result<()> {
    let (mut cluster, output) = (connect(bootstrap)?, bootstrap.shown.output);
    match verb {
        QuotaVerb::List(asked) => {
            let table = table(&found(&mut cluster, &entity(&asked), false)?);
            show(output, || table.to_text(), || table.to_json())
        }
        QuotaVerb::Alter { entity: asked, quotas } => {
            let entity = named(&asked)?;
            let changes = quotas.into_iter().map(change).collect::<anyhow::Result<_>>()?;
            alter(&mut cluster, &entity, changes)?;
            show(output, || format!("changed {}\n", shown(&entity)), || json!({"changed": shown(&entity)}))
        }
        QuotaVerb::Delete(asked) => {
            let entity = named(&asked)?;
            let found = found(&mut cluster, &entity, true)?;
            let Some((_, values)) = found.first() else { bail!("{} has no quotas", shown(&entity)) };
            alter(&mut cluster, &entity, values.keys().map(|name| (name.clone(), None)).collect())?;
            show(output, || format!("deleted {}\n", shown(&entity)), || json!({"deleted": shown(&entity)}))
        }
    }
}

fn entity(asked: &QuotaEntity) -> Entity {
    let parts = [
        ("user", &asked.user, asked.default_user),
        ("client-id", &asked.client_id, asked.default_client_id),
        ("ip", &asked.ip, asked.default_ip),
    ];
    parts
        .into_iter()
        .filter(|(_, name, default)| name.is_some() || *default)
        .map(|(kind, name, _)| (kind, name.clone()))
        .collect()
}

/// An entity that has to be named.
fn named(asked: &QuotaEntity) -> anyhow::Result<Entity> {
    let entity = entity(asked);
    if entity.is_empty() {
        bail!(
            "say whom it is for: --user, --client-id, --ip, or --default-user, --default-client-id, --default-ip"
        );
    }
    Ok(entity)
}

fn shown(entity: &[(&'static str, Option<String>)]) -> String {
    let part =
        |(kind, name): &(&str, Option<String>)| format!("{kind} {}", name.as_deref().unwrap_or("<default>"));
    entity.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// A quota and its value, or none to remove it.
fn change((name, value): (String, String)) -> anyhow::Result<(String, Option<f64>)> {
    let value = match value.as_str() {
        "" => None,
        value => Some(
            value
                .parse()
                .ok()
                .filter(|value: &f64| value.is_finite())
                .context(format!("{name}: {value} is no number"))?,
        ),
    };
    Ok((name, value))
}

/// Who has quotas, and their values.
type Found = Vec<(BTreeMap<String, Option<String>>, BTreeMap<String, f64>)>;

/// `strict` leaves out entities with more parts than these.
fn found(
    cluster: &mut Cluster,
    entity: &[(&'static str, Option<String>)],
    strict: bool,
) -> anyhow::Result<Found> {
    let component = |(kind, name): &(&'static str, Option<String>)| ComponentData {
        entity_type: Text::from_static(kind),
        match_type: if name.is_some() { EXACT } else { DEFAULT },
        match_: name.as_deref().map(Text::copied),
    };
    let request = DescribeClientQuotasRequest { components: entity.iter().map(component).collect(), strict };
    let answer = cluster.any()?.call(&request)?;
    check(answer.error_code, answer.error_message.as_ref())?;
    let mut found: Found = Vec::new();
    for entry in answer.entries.unwrap_or_default() {
        let parts = entry
            .entity
            .into_iter()
            .map(|part| (part.entity_type.to_string(), part.entity_name.map(String::from)));
        found.push((
            parts.collect(),
            entry.values.into_iter().map(|value| (value.key.to_string(), value.value)).collect(),
        ));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

fn table(found: &Found) -> Table {
    let mut table = Table::new(&["USER", "CLIENT ID", "IP", "QUOTA", "LIMIT"]);
    for (entity, values) in found {
        let part = |kind| match entity.get(kind) {
            None => "-".to_owned(),
            Some(name) => name.clone().unwrap_or("<default>".into()),
        };
        for (name, value) in values {
            table.row([part("user"), part("client-id"), part("ip"), name.clone(), value.to_string()]);
        }
    }
    table
}

fn alter(
    cluster: &mut Cluster,
    entity: &[(&'static str, Option<String>)],
    changes: Vec<(String, Option<f64>)>,
) -> anyhow::Result<()> {
    let part = |(kind, name): &(&'static str, Option<String>)| EntityData {
        entity_type: Text::from_static(kind),
        entity_name: name.as_deref().map(Text::copied),
    };
    let op = |(name, value): (String, Option<f64>)| OpData {
        key: Text::from(name),
        value: value.unwrap_or_default(),
        remove: value.is_none(),
    };
    let request = AlterClientQuotasRequest {
        entries: vec![EntryData {
            entity: entity.iter().map(part).collect(),
            ops: changes.into_iter().map(op).collect(),
        }],
        validate_only: false,
    };
    for result in &cluster.controller()?.call(&request)?.entries {
        check(result.error_code, result.error_message.as_ref())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_has_names_and_defaults() {
        let asked = QuotaEntity { user: Some("a".into()), default_client_id: true, ..QuotaEntity::default() };
        let entity = named(&asked).unwrap();
        assert_eq!(entity, [("user", Some("a".to_owned())), ("client-id", None)]);
        assert_eq!(shown(&entity), "user a, client-id <default>");
        assert!(named(&QuotaEntity::default()).is_err());
    }

    #[test]
    fn a_value_is_a_number_or_nothing() {
        let parsed = |value: &str| change(("q".into(), value.into())).map(|(_, value)| value).ok();
        assert_eq!(
            (parsed("1e3"), parsed(""), parsed("x"), parsed("inf")),
            (Some(Some(1000.0)), Some(None), None, None)
        );
    }
}
