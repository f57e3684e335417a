//! Which quotas there are, and which of them holds for a client.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::image::records::{Entity, Values};

/// The parts of an entity, as Kafka calls them.
pub const USER: &str = "user";
/// See [`USER`].
pub const CLIENT_ID: &str = "client-id";
/// See [`USER`].
pub const IP: &str = "ip";

/// What a quota limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// Bytes of Produce requests, a second.
    Produce,
    /// Bytes of answers to Fetch, a second.
    Fetch,
    /// Time that threads spend on requests: percent of one thread.
    Request,
    /// Partitions created and deleted, a second (KIP-599).
    ControllerMutation,
    /// Connections that one address opens, a second (KIP-612).
    Connections,
}

impl Quota {
    /// All of them.
    pub const ALL: [Quota; 5] =
        [Quota::Produce, Quota::Fetch, Quota::Request, Quota::ControllerMutation, Quota::Connections];

    /// Its name.
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

/// Something for each name, and for all other names.
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

/// The limit that holds for a client, and with whom it shares it: with all of its user, all of its id, or nobody else.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limit {
    /// In the quota's unit.
    pub value: f64,
    /// Whether each user has it for itself.
    pub by_user: bool,
    /// Whether each client id has it for itself.
    pub by_client: bool,
}

impl Limits {
    /// Of `quota`, where anybody has it.
    pub fn new<'a>(quota: Quota, entities: impl Iterator<Item = (&'a Entity, &'a Values)>) -> Option<Limits> {
        let mut limits = None;
        for (entity, values) in entities {
            let Some(value) = values.get(quota.name()) else { continue };
            let limits: &mut Limits = limits.get_or_insert_default();
            // An address is the only thing that its quota goes by, and takes the place of the client's id.
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

    /// The limit of a client. In Kafka's order: of this user with this client id, with any other; of this user; of all
    /// other users with this client id, with any other; of all other users; of this client id; of all others.
    pub fn find(&self, user: &str, client_id: &str) -> Option<Limit> {
        for of in [self.users.by_name.get(user), self.users.others.as_ref()].into_iter().flatten() {
            // Who gives no client id is none of "all others".
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

/// An address as quotas know it.
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
        // The most specific first; the value is the place in this list.
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
