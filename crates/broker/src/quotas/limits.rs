//! The quotas, and the choice of the limit that holds for a client.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::image::records::{Entity, Values};

/// The parts of an entity, in Kafka's terms.
pub const USER: &str = "user";
/// See [`USER`].
pub const CLIENT_ID: &str = "client-id";
/// See [`USER`].
pub const IP: &str = "ip";

/// The resource that a quota limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// Bytes of Produce requests per second.
    Produce,
    /// Bytes of answers to Fetch per second.
    Fetch,
    /// Thread time for requests, in percent of one thread.
    Request,
    /// Partitions created and deleted per second (KIP-599).
    ControllerMutation,
    /// Connections opened by one address per second (KIP-612).
    Connections,
}

impl Quota {
    /// All quotas.
    pub const ALL: [Quota; 5] =
        [Quota::Produce, Quota::Fetch, Quota::Request, Quota::ControllerMutation, Quota::Connections];

    /// The quota's name.
    pub fn name(self) -> &'static str {
        match self {
            Quota::Produce => "producer_byte_rate",
            Quota::Fetch => "consumer_byte_rate",
            Quota::Request => "request_percentage",
            Quota::ControllerMutation => "controller_mutation_rate",
            Quota::Connections => "connection_creation_rate",
        }
    }
}

/// A value for each name, and a value for all other names.
#[derive(Debug)]
struct Level<T> {
    by_name: HashMap<String, T>,
    others: Option<T>,
}

impl<T> Default for Level<T> {
    fn default() -> Level<T> {
        Level { by_name: HashMap::new(), others: None }
    }
}

impl<T: Default> Level<T> {
    fn entry(&mut self, name: Option<&str>) -> &mut T {
        match name {
            Some(name) => self.by_name.entry(name.to_owned()).or_default(),
            None => self.others.get_or_insert_default(),
        }
    }
}

#[derive(Debug, Default)]
struct OfUser {
    clients: Level<f64>,
    own: Option<f64>,
}

/// All limits of one quota.
#[derive(Debug, Default)]
pub struct Limits {
    users: Level<OfUser>,
    clients: Level<f64>,
}

/// The limit of a client. The client may share it with all clients of its user, with all clients of its id, or with
/// none.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limit {
    /// The limit, in the quota's unit.
    pub value: f64,
    /// Whether each user has a separate limit.
    pub by_user: bool,
    /// Whether each client id has a separate limit.
    pub by_client: bool,
}

impl Limits {
    /// The limits of `quota`. `None` if no entity has this quota.
    pub fn new<'a>(quota: Quota, entities: impl Iterator<Item = (&'a Entity, &'a Values)>) -> Option<Limits> {
        let mut limits = None;
        for (entity, values) in entities {
            let Some(value) = values.get(quota.name()) else { continue };
            let limits: &mut Limits = limits.get_or_insert_default();
            // The quota of an address depends on nothing else. The address takes the place of the client id.
            if let Some(address) = entity.part(IP) {
                let address =
                    address.map(|text| text.parse().map_or(text.to_owned(), |ip: IpAddr| shown(ip)));
                *limits.clients.entry(address.as_deref()) = *value;
                continue;
            }
            match (entity.part(USER), entity.part(CLIENT_ID)) {
                (Some(user), Some(client)) => *limits.users.entry(user).clients.entry(client) = *value,
                (Some(user), None) => limits.users.entry(user).own = Some(*value),
                (None, Some(client)) => *limits.clients.entry(client) = *value,
                (None, None) => {}
            }
        }
        limits
    }

    /// The limit of a client. The first match in Kafka's order counts: this user with this client id, this user with
    /// any other client id, this user; all other users with this client id, with any other client id, all other users;
    /// this client id; all other client ids.
    pub fn find(&self, user: &str, client_id: &str) -> Option<Limit> {
        for of in [self.users.by_name.get(user), self.users.others.as_ref()].into_iter().flatten() {
            // A client without a client id does not match the default for all other ids.
            let others = of.clients.others.as_ref().filter(|_| !client_id.is_empty());
            if let Some(value) = of.clients.by_name.get(client_id).or(others) {
                return Some(Limit { value: *value, by_user: true, by_client: true });
            }
            if let Some(value) = of.own {
                return Some(Limit { value, by_user: true, by_client: false });
            }
        }
        let others = self.clients.others.as_ref().filter(|_| !client_id.is_empty());
        let value = self.clients.by_name.get(client_id).or(others)?;
        Some(Limit { value: *value, by_user: false, by_client: true })
    }
}

/// An address in the form that quotas use.
pub fn shown(address: IpAddr) -> String {
    address.to_canonical().to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_most_specific_quota_holds() {
        let entity = |parts: &[(&str, Option<&str>)]| {
            Entity(parts.iter().map(|(k, v)| ((*k).to_owned(), v.map(ToOwned::to_owned))).collect())
        };
        let (user, client) = (Some("u"), Some("c"));
        // The most specific entity comes first. The value is the position in this list.
        let all = [
            entity(&[(USER, user), (CLIENT_ID, client)]),
            entity(&[(USER, user), (CLIENT_ID, None)]),
            entity(&[(USER, user)]),
            entity(&[(USER, None), (CLIENT_ID, client)]),
            entity(&[(USER, None), (CLIENT_ID, None)]),
            entity(&[(USER, None)]),
            entity(&[(CLIENT_ID, client)]),
            entity(&[(CLIENT_ID, None)]),
        ];
        let mut values: BTreeMap<Entity, Values> = BTreeMap::new();
        for (place, entity) in all.iter().enumerate() {
            values.insert(entity.clone(), Values::from([(Quota::Fetch.name().to_owned(), place as f64)]));
        }
        assert!(Limits::new(Quota::Produce, values.iter()).is_none());
        for (place, entity) in all.iter().enumerate() {
            let limits = Limits::new(Quota::Fetch, values.iter()).unwrap();
            let found = limits.find("u", "c").unwrap();
            assert_eq!(found.value, place as f64);
            assert_eq!(found.by_user, entity.part(USER).is_some());
            assert_eq!(found.by_client, entity.part(CLIENT_ID).is_some());
            values.remove(entity);
        }
        assert!(Limits::new(Quota::Fetch, values.iter()).is_none());
    }

    #[test]
    fn who_gives_no_client_id_has_its_users_quota_alone() {
        let of = |part: &str| Entity(BTreeMap::from([(part.to_owned(), None)]));
        let value = |value| Values::from([(Quota::Fetch.name().to_owned(), value)]);
        let mut values = BTreeMap::from([(of(CLIENT_ID), value(1.0))]);
        let find = |values: &BTreeMap<Entity, Values>| {
            Limits::new(Quota::Fetch, values.iter()).unwrap().find("u", "").map(|limit| limit.value)
        };
        assert_eq!(find(&values), None);
        values.insert(of(USER), value(2.0));
        assert_eq!(find(&values), Some(2.0));
    }
}
