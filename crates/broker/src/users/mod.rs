//! The users that authenticate with a password (KIP-554), and their stored credentials under
//! `scram/<mechanism>/<user>`.
//!
//! No password is stored, and no part of a credential is ever shown.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use meta::{Embedded, MetaError};
use sasl::scram::{Credential, Hash};

use crate::image::records::credential_name;
use crate::image::stored::META_FILE;
use crate::image::{Image, Metadata, Record, Update};

/// Bound of the users, who are held in memory.
pub(crate) const USERS_MAX: usize = 100_000;
/// Default number of iterations. It is twice the minimum and half of the maximum. A thief of the metadata pays more for
/// each guess than with Kafka's tools (4096), and PLAIN costs some milliseconds per log-in.
pub const ITERATIONS: NonZeroU32 = NonZeroU32::new(8192).expect("it is not zero");
/// The smallest number of iterations that Kafka accepts.
pub const ITERATIONS_MIN: i32 = 4096;
/// The largest number of iterations that Kafka accepts.
pub const ITERATIONS_MAX: i32 = 16_384;

/// The stored credentials of one user, by mechanism.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    sha256: Option<Arc<Credential>>,
    sha512: Option<Arc<Credential>>,
}

impl Credentials {
    /// The credential for one mechanism.
    pub fn of(&self, hash: Hash) -> Option<&Arc<Credential>> {
        match hash {
            Hash::Sha256 => self.sha256.as_ref(),
            Hash::Sha512 => self.sha512.as_ref(),
        }
    }

    /// All credentials, by mechanism.
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

/// A change of one user's credential for a mechanism. `None` deletes the credential.
pub type UserChange = (String, Hash, Option<Credential>);

/// All users.
#[derive(Debug)]
pub struct Users(Arc<Metadata>);

impl Users {
    /// The users in the metadata.
    pub(crate) fn new(metadata: Arc<Metadata>) -> Users {
        Users(metadata)
    }

    /// The users in the data directory of a stopped server. The caller holds the directory's lock. Blocks.
    pub fn of_directory(directory: &Path) -> Result<Users, MetaError> {
        Ok(Users(Metadata::open(Arc::new(Embedded::open(&directory.join(META_FILE))?))?))
    }

    /// The user's credential for one mechanism.
    pub fn find(&self, hash: Hash, user: &str) -> Option<Arc<Credential>> {
        self.0.image().credentials.get(&credential_name(hash, user)).cloned()
    }

    /// All credentials of a user. `None` if the user does not exist.
    pub fn of(&self, user: &str) -> Option<Credentials> {
        let image = self.0.image();
        let mut of = Credentials::default();
        for hash in Hash::ALL {
            of.set(hash, image.credentials.get(&credential_name(hash, user)).cloned());
        }
        let exists = of.iter().next().is_some();
        exists.then_some(of)
    }

    /// The user's credential with the strongest mechanism.
    pub fn find_any(&self, user: &str) -> Option<(Hash, Arc<Credential>)> {
        let of = self.of(user)?;
        of.iter().last().map(|(hash, credential)| (hash, credential.clone()))
    }

    /// The cost of a password check for a user that does not exist: that of one of the existing users, or the default.
    pub fn usual_cost(&self) -> (Hash, NonZeroU32) {
        let image = self.0.image();
        let some = image.credentials.iter().next().and_then(|(name, _)| self.find_any(split(name)?.1));
        some.map_or((Hash::Sha256, ITERATIONS), |(hash, credential)| (hash, credential.iterations))
    }

    /// All users, by name.
    pub fn all(&self) -> BTreeMap<String, Credentials> {
        all(&self.0.image())
    }

    /// Makes the changes that `change` derives from all users: all of them or none, except in a cluster where they are many.
    /// Durable on return. Blocks.
    pub fn change<T>(
        &self,
        change: impl Fn(&BTreeMap<String, Credentials>) -> (T, Vec<UserChange>),
    ) -> Result<T, MetaError> {
        self.0.update_in_parts(|image| {
            let (result, wanted) = change(&all(image));
            let changes = wanted.into_iter().map(|(user, hash, credential)| {
                let name = credential_name(hash, &user);
                credential.map_or_else(|| Credential::delete(&name), |credential| credential.put(&name))
            });
            Ok(Update::new(changes.collect(), result))
        })
    }
}

/// Splits a credential's name into mechanism and user.
fn split(name: &str) -> Option<(Hash, &str)> {
    let (mechanism, user) = name.split_once('/')?;
    Some((Hash::from_mechanism(mechanism)?, user))
}

fn all(image: &Image) -> BTreeMap<String, Credentials> {
    let mut all: BTreeMap<String, Credentials> = BTreeMap::new();
    for (name, credential) in image.credentials.iter() {
        // Credentials with other names are skipped.
        let Some((hash, user)) = split(name) else { continue };
        all.entry(user.to_owned()).or_default().set(hash, Some(credential.clone()));
    }
    all
}

#[cfg(test)]
mod tests {
    use meta::{Change, Memory, Store};

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
            users.change(|_| ((), vec![change.clone()])).unwrap();
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
        let shown = format!("{:?}", users.0.image());
        assert!(shown.contains("[hidden]") && !shown.contains(&format!("{:?}", b"salt")), "{shown}");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let change = |change: Change| store.commit(&[], &[change]).unwrap();
        let put = |key: &str, bytes: &[u8]| change(Change::put(key, bytes));
        put("scram/SCRAM-SHA-256/good", &credential("x").encode());
        let zero = br#"{"iterations":0,"salt":[],"stored_key":[],"server_key":[]}"#;
        for (key, bytes) in [
            ("scram/SCRAM-SHA-1/old", &credential("x").encode()[..]),
            ("scram/SCRAM-SHA-256/empty", b""),
            ("scram/SCRAM-SHA-256/zero", zero),
        ] {
            put(key, bytes);
            let error = Metadata::open(store.clone()).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
            change(Change::delete(key));
        }
        assert_eq!(Users::new(Metadata::open(store).unwrap()).all().keys().collect::<Vec<_>>(), ["good"]);
    }
}
