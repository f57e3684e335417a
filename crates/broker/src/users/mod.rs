//! The users that prove who they are by a password (KIP-554): what is stored of it, under `scram/<mechanism>/<user>`.
//!
//! All of it is in memory too: whoever connects is looked up here. No password is stored, and nothing of a credential is
//! ever shown.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use meta::{Change, MetaError, Store};
use parking_lot::{Mutex, RwLock};
use sasl::scram::{Credential, Hash};
use serde::{Deserialize, Serialize};

use crate::stored::{self, META_FILE};

const PREFIX: &str = "scram/";
/// Users that there may be: they are held in memory.
pub(crate) const USERS_MAX: usize = 100_000;
/// What a password costs where nothing else is said: twice the least, half of the most, so that whoever steals the
/// metadata pays more for each guess than with Kafka's tools (4096), and PLAIN costs some milliseconds a log-in.
pub const ITERATIONS: NonZeroU32 = NonZeroU32::new(8192).expect("it is not zero");
/// The least and the most that Kafka accepts.
pub const ITERATIONS_MIN: i32 = 4096;
/// See [`ITERATIONS_MIN`].
pub const ITERATIONS_MAX: i32 = 16_384;

/// What is stored of one user's password, by mechanism.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    sha256: Option<Arc<Credential>>,
    sha512: Option<Arc<Credential>>,
}

impl Credentials {
    /// That for one mechanism.
    pub fn of(&self, hash: Hash) -> Option<&Arc<Credential>> {
        match hash {
            Hash::Sha256 => self.sha256.as_ref(),
            Hash::Sha512 => self.sha512.as_ref(),
        }
    }

    /// All, by mechanism.
    pub fn iter(&self) -> impl Iterator<Item = (Hash, &Arc<Credential>)> {
        Hash::ALL.into_iter().filter_map(|hash| Some((hash, self.of(hash)?)))
    }

    fn set(&mut self, hash: Hash, credential: Option<Arc<Credential>>) {
        match hash {
            Hash::Sha256 => self.sha256 = credential,
            Hash::Sha512 => self.sha512 = credential,
        }
    }
}

/// A change of one user's credentials; without one, it is deleted.
pub type UserChange = (String, Hash, Option<Credential>);

/// A credential as it is stored, as JSON.
#[derive(Deserialize, Serialize)]
struct Record {
    iterations: NonZeroU32,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

/// All users.
#[derive(Debug)]
pub struct Users {
    store: Arc<Store>,
    all: RwLock<Arc<BTreeMap<String, Credentials>>>,
    /// One change at a time.
    change: Mutex<()>,
}

impl Users {
    /// Loads what is stored.
    pub(crate) fn open(store: Arc<Store>) -> Result<Users, MetaError> {
        let mut all: BTreeMap<String, Credentials> = BTreeMap::new();
        for (key, value) in store.list(PREFIX)? {
            let named = key[PREFIX.len()..].split_once('/');
            let named = named.and_then(|(mechanism, user)| Some((Hash::from_mechanism(mechanism)?, user)));
            let (hash, user) =
                named.ok_or_else(|| stored::unreadable(&key, "it is of an unknown mechanism"))?;
            let Record { iterations, salt, stored_key, server_key } = stored::read(&key, &value)?;
            let credential = Arc::new(Credential { iterations, salt, stored_key, server_key });
            all.entry(user.to_owned()).or_default().set(hash, Some(credential));
        }
        Ok(Users { store, all: RwLock::new(Arc::new(all)), change: Mutex::default() })
    }

    /// The users in the data directory of a server that does not run: whoever calls holds its lock. Blocks.
    pub fn of_directory(directory: &Path) -> Result<Users, MetaError> {
        Users::open(Arc::new(Store::open(&directory.join(META_FILE))?))
    }

    /// What is stored of this user's password for one mechanism.
    pub fn find(&self, hash: Hash, user: &str) -> Option<Arc<Credential>> {
        self.all.read().get(user)?.of(hash).cloned()
    }

    /// What is stored of this user's password for any mechanism, the strongest first.
    pub fn find_any(&self, user: &str) -> Option<(Hash, Arc<Credential>)> {
        let all = self.all.read();
        let (hash, credential) = all.get(user)?.iter().last()?;
        Some((hash, credential.clone()))
    }

    /// What checking a password costs, for a user that there is not: as for some that there is.
    pub fn usual_cost(&self) -> (Hash, NonZeroU32) {
        let all = self.all.read();
        let some = all.values().next().and_then(|credentials| credentials.iter().last());
        some.map_or((Hash::Sha256, ITERATIONS), |(hash, credential)| (hash, credential.iterations))
    }

    /// All users with what is stored of them.
    pub fn all(&self) -> Arc<BTreeMap<String, Credentials>> {
        self.all.read().clone()
    }

    /// Makes the changes that `change` wants, all or none. Durable on return; blocks.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&BTreeMap<String, Credentials>) -> (T, Vec<UserChange>),
    ) -> Result<T, MetaError> {
        let _one = self.change.lock();
        let mut all = BTreeMap::clone(&self.all());
        let (result, wanted) = change(&all);
        let mut changes = Vec::with_capacity(wanted.len());
        for (user, hash, credential) in wanted {
            let key = format!("{PREFIX}{}/{user}", hash.mechanism());
            changes.push(match &credential {
                Some(credential) => Change::Put { key, bytes: encode(credential) },
                None => Change::Delete { key },
            });
            let credentials = all.entry(user.clone()).or_default();
            credentials.set(hash, credential.map(Arc::new));
            if credentials.iter().next().is_none() {
                all.remove(&user);
            }
        }
        if !changes.is_empty() {
            self.store.commit(&[], &changes)?;
            *self.all.write() = Arc::new(all);
        }
        Ok(result)
    }
}

fn encode(credential: &Credential) -> Vec<u8> {
    let Credential { iterations, salt, stored_key, server_key } = credential.clone();
    let record = Record { iterations, salt, stored_key, server_key };
    serde_json::to_vec(&record).expect("numbers can be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(password: &str) -> Credential {
        Credential::new(Hash::Sha256, password, b"salt".to_vec(), NonZeroU32::MIN)
    }

    #[test]
    fn users_come_back_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let users = Users::of_directory(directory.path()).unwrap();
        let put = |user: &str, hash, password| {
            let change = (user.to_owned(), hash, Some(credential(password)));
            users.change(|_| ((), vec![change])).unwrap();
        };
        put("a/b", Hash::Sha256, "one");
        put("a/b", Hash::Sha512, "two");
        put("", Hash::Sha512, "three");
        put("ä", Hash::Sha256, "four");
        put("ä", Hash::Sha256, "five");
        let all = users.all();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["", "a/b", "ä"]);
        assert!(users.find(Hash::Sha256, "ä").unwrap().is_of(Hash::Sha256, "five"));
        assert_eq!(users.find_any("a/b").unwrap().0, Hash::Sha512);
        assert_eq!(users.find_any("").unwrap().0, Hash::Sha512);
        assert!(users.find(Hash::Sha256, "").is_none() && users.find_any("b").is_none());
        assert_eq!(users.usual_cost(), (Hash::Sha512, NonZeroU32::MIN));
        drop(users);
        let users = Users::of_directory(directory.path()).unwrap();
        assert_eq!(users.all(), all);
        users.change(|_| ((), vec![("a/b".into(), Hash::Sha256, None)])).unwrap();
        users.change(|_| ((), vec![("ä".into(), Hash::Sha256, None)])).unwrap();
        drop(users);
        let users = Users::of_directory(directory.path()).unwrap();
        assert_eq!(users.all().keys().collect::<Vec<_>>(), ["", "a/b"]);
        assert_eq!(users.find_any("a/b").unwrap().0, Hash::Sha512);
        let shown = format!("{users:?}");
        assert!(shown.contains("[hidden]") && !shown.contains(&format!("{:?}", b"salt")), "{shown}");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&directory.path().join(META_FILE)).unwrap());
        let change = |change: Change| store.commit(&[], &[change]).unwrap();
        let put = |key: &str, bytes: &[u8]| change(Change::Put { key: key.into(), bytes: bytes.into() });
        put("scram/SCRAM-SHA-256/good", &encode(&credential("x")));
        let zero = br#"{"iterations":0,"salt":[],"stored_key":[],"server_key":[]}"#;
        for (key, bytes) in [
            ("scram/SCRAM-SHA-1/old", &encode(&credential("x"))[..]),
            ("scram/SCRAM-SHA-256/empty", b""),
            ("scram/SCRAM-SHA-256/zero", zero),
        ] {
            put(key, bytes);
            let error = Users::open(store.clone()).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
            change(Change::Delete { key: key.into() });
        }
        assert_eq!(Users::open(store).unwrap().all().keys().collect::<Vec<_>>(), ["good"]);
    }
}
