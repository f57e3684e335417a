//! The entries of the metadata, encoded as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use model::StreamId;
use sasl::scram::{Credential, Hash};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::table::Record;
use crate::config::resource_setting::Overrides;
use crate::image::acl::Acl;
use crate::placement::Listeners;

/// Decodes JSON.
fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

fn to_json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("texts and finite numbers can be written as JSON")
}

/// Makes a type the record below a prefix, encoded as JSON. With a check, that is what the name has to be.
macro_rules! json_record {
    ($record:ty, $prefix:literal $(, $check:ident)?) => {
        impl Record for $record {
            const PREFIX: &'static str = $prefix;

            fn parse(_name: &str, bytes: &[u8]) -> Result<$record, String> {
                $($check(_name)?;)?
                json(bytes)
            }

            fn encode(&self) -> Vec<u8> {
                to_json(self)
            }
        }
    };
}

/// Fields of a newer version of this program. A broker that changes a record keeps them: versions are mixed while a cluster is
/// upgraded.
pub type Rest = BTreeMap<String, serde_json::Value>;

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRecord {
    pub id: Uuid,
    pub streams: Vec<u64>,
    /// The log of each stream. Records from the time of a single log have no entries. A nil id stands for that log.
    #[serde(default)]
    pub logs: Vec<Uuid>,
    /// The leader epoch of each partition is this and the epoch of its log. Partitions that have always been in their log have
    /// no entries, and 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<i32>,
    /// The brokers that were named for a partition, the first of which leads it if it can, by index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub assigned: BTreeMap<i32, Vec<i32>>,
    /// The partitions that move to another log, by index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub moves: BTreeMap<i32, Move>,
    #[serde(default)]
    pub configs: Overrides,
    #[serde(flatten)]
    pub rest: Rest,
}

/// A partition that moves to another log (KIP-455). Its records are copied into a new stream there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The new stream.
    pub stream: u64,
    /// The log of that.
    pub log: Uuid,
    /// As in [`TopicRecord::epochs`], for the partition in the new log.
    pub epoch: i32,
    /// The copy has no records below: they were being deleted when it began.
    #[serde(default)]
    pub from: i64,
    /// The copy has almost all records: the leader takes no more of them.
    #[serde(default)]
    pub ready: bool,
    /// Once neither end changes any more.
    #[serde(default)]
    pub bounds: Option<SealedBounds>,
    #[serde(flatten)]
    pub rest: Rest,
}

/// The bounds of a partition that is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedBounds {
    /// The offset of the first record.
    pub start: i64,
    /// The offset after the last record.
    pub end: i64,
    /// The leader epoch in which they were named. A later owner of the log names them again.
    pub epoch: i32,
}

impl TopicRecord {
    /// Creates a topic without partitions.
    pub fn new(id: Uuid, configs: Overrides) -> TopicRecord {
        TopicRecord {
            id,
            streams: Vec::new(),
            logs: Vec::new(),
            epochs: Vec::new(),
            assigned: BTreeMap::new(),
            moves: BTreeMap::new(),
            configs,
            rest: Rest::new(),
        }
    }

    /// The stream and the log of each partition.
    pub fn places(&self) -> impl Iterator<Item = (StreamId, Uuid)> {
        let logs = self.logs.iter().copied().chain(std::iter::repeat(Uuid::nil()));
        self.streams.iter().map(|stream| StreamId(*stream)).zip(logs)
    }

    /// As in [`TopicRecord::epochs`], for the partition `index`.
    pub fn epoch_base(&self, index: i32) -> i32 {
        let at = usize::try_from(index).ok();
        at.and_then(|at| self.epochs.get(at)).copied().unwrap_or(0)
    }

    /// Ends the move of a partition: it is in the new log from now on.
    pub fn finish_move(&mut self, index: i32) {
        let (Some(of), Ok(at)) = (self.moves.remove(&index), usize::try_from(index)) else { return };
        self.replace(at, (StreamId(of.stream), of.log));
        self.epochs.resize(self.streams.len().max(self.epochs.len()), 0);
        self.epochs[at] = of.epoch;
    }

    /// Adds a partition.
    pub fn push(&mut self, (stream, log): (StreamId, Uuid)) {
        self.fill_logs();
        self.streams.push(stream.0);
        self.logs.push(log);
    }

    /// Moves the partition `at` to another stream.
    pub fn replace(&mut self, at: usize, (stream, log): (StreamId, Uuid)) {
        self.fill_logs();
        (self.streams[at], self.logs[at]) = (stream.0, log);
    }

    fn fill_logs(&mut self) {
        self.logs.resize(self.streams.len(), Uuid::nil());
    }
}

json_record!(TopicRecord, "topics/");

json_record!(Overrides, "configs/");

json_record!(Acl, "acls/");

/// A credential in its stored form.
#[derive(Deserialize, Serialize)]
struct CredentialRecord {
    iterations: NonZeroU32,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl Record for Credential {
    const PREFIX: &'static str = "scram/";

    fn parse(name: &str, bytes: &[u8]) -> Result<Credential, String> {
        let mechanism = name.split_once('/').and_then(|(mechanism, _)| Hash::from_mechanism(mechanism));
        mechanism.ok_or("it is of an unknown mechanism")?;
        let CredentialRecord { iterations, salt, stored_key, server_key } = json(bytes)?;
        Ok(Credential { iterations, salt, stored_key, server_key })
    }

    fn encode(&self) -> Vec<u8> {
        let Credential { iterations, salt, stored_key, server_key } = self.clone();
        to_json(&CredentialRecord { iterations, salt, stored_key, server_key })
    }
}

/// The name of a user's credential in the image.
pub fn credential_name(hash: Hash, user: &str) -> String {
    format!("{}/{user}", hash.mechanism())
}

/// The entity that a quota applies to: a name for each part. A part without a name stands for all users, clients or
/// addresses without their own quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Entity(pub BTreeMap<String, Option<String>>);

impl Entity {
    /// The name of a part. `None` if the entity does not have the part.
    pub fn part(&self, part: &str) -> Option<Option<&str>> {
        self.0.get(part).map(Option::as_deref)
    }
}

/// The values of an entity's quotas, by name.
pub type Values = BTreeMap<String, f64>;

/// The quotas of one entity.
#[derive(Clone, Debug)]
pub struct ClientQuota {
    pub entity: Entity,
    pub values: Values,
}

impl ClientQuota {
    /// The name of an entity in the image.
    pub fn name(entity: &Entity) -> String {
        String::from_utf8(to_json(entity)).expect("JSON is UTF-8")
    }
}

impl Record for ClientQuota {
    const PREFIX: &'static str = "quotas/";

    fn parse(name: &str, bytes: &[u8]) -> Result<ClientQuota, String> {
        Ok(ClientQuota { entity: json(name.as_bytes())?, values: json(bytes)? })
    }

    fn encode(&self) -> Vec<u8> {
        to_json(&self.values)
    }
}

/// A broker of a cluster that is alive. The entry ends with the broker's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerRecord {
    /// The process. A broker that is started again is another one.
    pub incarnation: Uuid,
    /// The addresses at which clients and brokers reach it, by listener.
    pub listeners: Listeners,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// The version of the program.
    pub version: String,
    /// The broker is about to end: it gives its logs away.
    #[serde(default)]
    pub leaving: bool,
    /// The object store does not answer the broker: it gives its logs away until it does.
    #[serde(default)]
    pub without_store: bool,
    /// Little of its disk is free: others get logs, partitions and copies first.
    #[serde(default)]
    pub low_on_space: bool,
    /// The disk on which it keeps copies of logs. A broker of an older version has none.
    #[serde(default)]
    pub disk: Option<Uuid>,
}

json_record!(BrokerRecord, "brokers/", broker_id);

/// The wish that a broker owns nothing (`mainstem cluster drain`). It stays while the broker is not alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {}

json_record!(DrainRecord, "drains/", broker_id);

/// Whether a key says something of the brokers of a cluster as they run. A snapshot leaves it out: after a restore other
/// processes run.
pub fn is_of_processes(key: &str) -> bool {
    let prefixes = [BrokerRecord::PREFIX, DrainRecord::PREFIX, ControllerRecord::PREFIX, OwnerRecord::PREFIX];
    prefixes.iter().any(|prefix| key.starts_with(prefix))
}

/// The id of a broker as the last part of a key.
pub fn broker_id(name: &str) -> Result<i32, String> {
    name.parse().map_err(|_| format!("{name} is not the id of a broker"))
}

/// The broker that acts as the controller. The only entry has an empty name, and ends with that broker's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerRecord {
    /// Its id.
    pub broker: i32,
    /// Its process.
    pub incarnation: Uuid,
}

json_record!(ControllerRecord, "controller");

/// The owner of a log: the one process that may take it over in this epoch. Each epoch has one owner for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// The broker that gets the log back when it is alive: the preferred leader of the log's partitions.
    pub home: i32,
    /// The owner.
    pub broker: i32,
    /// The owner's process.
    pub incarnation: Uuid,
    /// The epoch of the log, and the leader epoch of its partitions.
    pub epoch: u32,
    /// The broker for which the owner closes the log, as soon as that is ready.
    pub next: Option<i32>,
    /// The process of the next broker, once it has fetched what can be fetched before.
    #[serde(default)]
    pub ready: Option<Uuid>,
    /// The disks that have what the owner of `set_epoch` has acknowledged and the object store may lack. Without any, the
    /// store lacks nothing.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub set: BTreeSet<Uuid>,
    /// The last epoch whose owner was open.
    #[serde(default)]
    pub set_epoch: u32,
    #[serde(flatten)]
    pub rest: Rest,
}

json_record!(OwnerRecord, "owners/");
