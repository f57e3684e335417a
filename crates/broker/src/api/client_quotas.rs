//! DescribeClientQuotas and AlterClientQuotas (KIP-546): the quotas of users, client ids and addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};

use wire::messages::alter_client_quotas_request::{EntryData, OpData};
use wire::messages::{
    self as m, alter_client_quotas_response as altered, describe_client_quotas_response as described,
};
use wire::{ErrorCode, Text};

use crate::failure::Failure;
use crate::quotas::{CLIENT_ID, ENTITIES_MAX, Entity, IP, Quota, USER, Values};
use crate::request::Request;
use crate::security::audit;

/// Bound in bytes of a name. Names are held in memory.
const NAME_BYTES_MAX: usize = 1024;
/// Bound of the host names in one request. Each needs a look-up, which may take seconds.
const HOSTS_MAX: usize = 16;
/// Largest fractional part of a value that still counts as a whole number.
const FRACTION_MAX: f64 = 1e-6;
/// Match types for a part of an entity.
const MATCH_EXACT: i8 = 0;
const MATCH_DEFAULT: i8 = 1;
const MATCH_SPECIFIED: i8 = 2;

fn refused(why: impl Into<Text>) -> Failure {
    Failure::because(ErrorCode::InvalidRequest, why)
}

/// Answers DescribeClientQuotas.
pub async fn describe(request: Request<m::DescribeClientQuotasRequest>) -> m::DescribeClientQuotasResponse {
    let Request { broker, body: request, .. } = &request;
    let filter = match Filter::new(request) {
        Ok(filter) => filter,
        Err(failure) => {
            return m::DescribeClientQuotasResponse {
                error_code: failure.code.code(),
                error_message: Some(failure.text()),
                entries: None,
                ..m::DescribeClientQuotasResponse::default()
            };
        }
    };
    let entities = broker.quotas.entities();
    let entry = |(entity, values): (&Entity, &Values)| described::EntryData {
        entity: parts(entity)
            .map(|(entity_type, entity_name)| described::EntityData { entity_type, entity_name })
            .collect(),
        values: values
            .iter()
            .map(|(key, value)| described::ValueData { key: Text::from(key.clone()), value: *value })
            .collect(),
    };
    let matching = entities.iter().filter(|(entity, _)| filter.matches(entity));
    m::DescribeClientQuotasResponse {
        error_message: Some(Text::default()),
        entries: Some(matching.map(entry).collect()),
        ..m::DescribeClientQuotasResponse::default()
    }
}

fn parts(entity: &Entity) -> impl Iterator<Item = (Text, Option<Text>)> {
    entity.0.iter().map(|(part, name)| (Text::from(part.clone()), name.clone().map(Text::from)))
}

/// Selects entities.
struct Filter {
    /// The condition for each part: a name, `None` for the default, or any name.
    parts: BTreeMap<Text, Option<Option<Text>>>,
    /// Whether an entity may have other parts.
    strict: bool,
}

impl Filter {
    fn new(request: &m::DescribeClientQuotasRequest) -> Result<Filter, Failure> {
        let mut parts = BTreeMap::new();
        for component in &request.components {
            let (part, name) = (&component.entity_type, &component.match_);
            if part.is_empty() {
                return Err(refused("Invalid empty entity type."));
            }
            if parts.contains_key(part) {
                let why = format!("Entity type {part} cannot appear more than once in the filter.");
                return Err(refused(why));
            }
            if ![USER, CLIENT_ID, IP].contains(&part.as_str()) {
                let why = format!("Unsupported entity type {part}");
                return Err(Failure::because(ErrorCode::UnsupportedVersion, why));
            }
            let wanted = match (component.match_type, name) {
                (MATCH_EXACT, Some(name)) => Some(Some(name.clone())),
                (MATCH_EXACT, None) => {
                    return Err(refused("Request specified MATCH_TYPE_EXACT, but set match string to null."));
                }
                (MATCH_DEFAULT, None) => Some(None),
                (MATCH_SPECIFIED, None) => None,
                (kind @ (MATCH_DEFAULT | MATCH_SPECIFIED), Some(_)) => {
                    let kind = if kind == MATCH_DEFAULT { "DEFAULT" } else { "SPECIFIED" };
                    let why =
                        format!("Request specified MATCH_TYPE_{kind}, but also specified a match string.");
                    return Err(refused(why));
                }
                (other, _) => return Err(refused(format!("Unknown match type {other}"))),
            };
            parts.insert(part.clone(), wanted);
        }
        if parts.contains_key(IP) && parts.len() > 1 {
            return Err(refused(
                "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter component.",
            ));
        }
        Ok(Filter { parts, strict: request.strict })
    }

    fn matches(&self, entity: &Entity) -> bool {
        let fits = |(part, wanted): (&Text, &Option<Option<Text>>)| match (entity.part(part), wanted) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(name), Some(wanted)) => name == wanted.as_deref(),
        };
        (!self.strict || entity.0.len() == self.parts.len()) && self.parts.iter().all(fits)
    }
}

/// Answers AlterClientQuotas. All valid entities are changed at once.
pub async fn alter(
    Request { broker, caller, body: request, .. }: Request<m::AlterClientQuotasRequest>,
) -> m::AlterClientQuotasResponse {
    let validate_only = request.validate_only;
    let shown: Vec<String> = request.entries.iter().map(|entry| format!("{:?}", entry.ops)).collect();
    let mut shown = shown.into_iter();
    let results = broker
        .blocking(move |broker| {
            // The look-up of host names happens before the lock, because it may take long.
            let mut hosts = HOSTS_MAX;
            let checked = request.entries.iter().map(|entry| (entity_of(entry, &mut hosts), entry));
            let checked: Vec<_> = checked.collect();
            broker.quotas.change(|old| {
                let (results, changed) = change_all(old, checked.clone());
                (results, if request.validate_only { BTreeMap::new() } else { changed })
            })
        })
        .await;
    let mut entry = |(entity, result): Changed| {
        let details = shown.next().unwrap_or_default();
        if result.is_ok() && !validate_only {
            audit::changed(&caller.origin, "changed quotas of", &format!("{entity:?}"), &details);
        }
        let failure = result.err();
        altered::EntryData {
            error_code: failure.as_ref().map_or(0, |failure| failure.code.code()),
            error_message: failure.map(|failure| failure.text()),
            entity: entity
                .into_iter()
                .map(|(entity_type, entity_name)| altered::EntityData { entity_type, entity_name })
                .collect(),
        }
    };
    let entries = match results {
        Ok(results) => results.into_iter().map(&mut entry).collect(),
        // In a cluster a part may have been changed, if there were many. The answer has no other place for the error than an entry.
        Err(error) => vec![entry((Vec::new(), Err(error.into())))],
    };
    m::AlterClientQuotasResponse { entries, ..m::AlterClientQuotasResponse::default() }
}

/// An entity in the form of the answer, and the outcome of its change.
type Changed = (Vec<(Text, Option<Text>)>, Result<(), Failure>);
type Results = Vec<Changed>;
/// The entity of an entry, and the error if the entity is invalid.
type Checked = (Entity, Result<(), Failure>);

fn change_all(
    old: &BTreeMap<Entity, Values>,
    entries: Vec<(Checked, &EntryData)>,
) -> (Results, BTreeMap<Entity, Values>) {
    let (mut results, mut changed): (Results, _) = (Vec::new(), BTreeMap::new());
    let mut answered: BTreeMap<Entity, usize> = BTreeMap::new();
    let mut count = old.len();
    for ((entity, legal), entry) in entries {
        let mut keys = BTreeSet::new();
        let twice = answered.contains_key(&entity) || !entry.ops.iter().all(|op| keys.insert(&op.key));
        let result = if twice {
            Err(refused(format!("Ignoring duplicate entity {}", shown(&entity))))
        } else if count >= ENTITIES_MAX && !old.contains_key(&entity) {
            Err(refused(format!("{ENTITIES_MAX} entities have quotas already: delete some")))
        } else {
            let now = old.get(&entity).cloned().unwrap_or_default();
            legal.and_then(|()| changed_values(&entity, now, &entry.ops))
        };
        let result = result.map(|values| {
            count += usize::from(!values.is_empty() && !old.contains_key(&entity));
            changed.insert(entity.clone(), values);
        });
        match answered.get(&entity) {
            Some(at) => results[*at].1 = result,
            None => {
                answered.insert(entity.clone(), results.len());
                results.push((parts(&entity).collect(), result));
            }
        }
    }
    (results, changed)
}

/// An entity as Kafka's messages show it.
fn shown(entity: &Entity) -> String {
    let part =
        |(part, name): (&String, &Option<String>)| format!("{part}={}", name.as_deref().unwrap_or("null"));
    let parts: Vec<String> = entity.0.iter().map(part).collect();
    format!("ClientQuotaEntity(entries={{{}}})", parts.join(", "))
}

fn entity_of(entry: &EntryData, hosts: &mut usize) -> Checked {
    let part = |of: &m::alter_client_quotas_request::EntityData| {
        (of.entity_type.to_string(), of.entity_name.as_ref().map(ToString::to_string))
    };
    let entity = Entity(entry.entity.iter().map(part).collect());
    let legal = check_entity(&entity, hosts);
    (entity, legal)
}

fn check_entity(entity: &Entity, hosts: &mut usize) -> Result<(), Failure> {
    if entity.0.is_empty() {
        return Err(refused("Invalid empty client quota entity"));
    }
    for (part, name) in &entity.0 {
        if ![USER, CLIENT_ID, IP].contains(&part.as_str()) {
            return Err(refused(format!("Unhandled client quota entity type: {part}")));
        }
        if name.as_ref().is_some_and(String::is_empty) {
            return Err(refused(format!("Empty {part} not supported")));
        }
        if name.as_ref().is_some_and(|name| name.len() > NAME_BYTES_MAX) {
            return Err(refused(format!("a name may have {NAME_BYTES_MAX} bytes at most")));
        }
    }
    if let Some(ip) = entity.part(IP) {
        if entity.0.len() > 1 {
            return Err(refused(
                "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
            ));
        }
        if let Some(host) = ip.filter(|ip| ip.parse::<IpAddr>().is_err()) {
            if *hosts == 0 {
                return Err(refused(format!("a request may name {HOSTS_MAX} hosts at most")));
            }
            *hosts -= 1;
            if (host, 0u16).to_socket_addrs().is_err() {
                return Err(refused(format!("{host} is not a valid IP or resolvable host.")));
            }
        }
    }
    Ok(())
}

fn changed_values(entity: &Entity, mut values: Values, ops: &[OpData]) -> Result<Values, Failure> {
    for op in ops {
        let key = op.key.as_str();
        if op.remove {
            values.remove(key);
        } else {
            check_value(entity, key, op.value)?;
            values.insert(key.to_owned(), op.value);
        }
    }
    Ok(values)
}

/// Checks a value by Kafka's rules. Some quotas must be whole numbers within the range of an integer type.
fn check_value(entity: &Entity, key: &str, value: f64) -> Result<(), Failure> {
    let whole = match entity.part(IP) {
        Some(_) if key == Quota::Connections.name() => Some(("an INT", f64::from(i32::MAX))),
        None if key == Quota::Produce.name() || key == Quota::Fetch.name() => {
            Some(("a LONG", i64::MAX as f64))
        }
        None if key == Quota::Request.name() || key == Quota::ControllerMutation.name() => None,
        _ => return Err(refused(format!("Invalid configuration key {key}"))),
    };
    // A value that is not a number is not greater than 0 either. An infinite value could not be stored.
    if value.is_nan() || value <= 0.0 {
        return Err(refused(format!("Quota {key} must be greater than 0")));
    }
    match whole {
        Some((kind, max)) if value > max => {
            Err(refused(format!("Proposed value for {key} is too large for {kind}.")))
        }
        Some(_) if value % 1.0 > FRACTION_MAX => Err(refused(format!("{key} cannot be a fractional value."))),
        None if value.is_infinite() => Err(refused(format!("Proposed value for {key} is too large."))),
        _ => Ok(()),
    }
}
