//! The metadata as this broker knows it: an immutable [`Image`] for each revision, made from the store's listing and its watch.
//!
//! Nothing else keeps a copy of metadata. A room that works something out from it, such as an index of ACLs, observes the
//! image ([`Observer`]). A request changes the store ([`Metadata::update`]), and sees its change in the image when it goes on.

pub mod acl;
pub mod offline;
pub mod records;
pub mod stored;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use meta::{Change, Compare, Event, MetaError, Store, Watch, WatchError};
use parking_lot::{Mutex, RwLock};
use sasl::scram::Credential;

use self::records::{ClientQuota, TopicRecord};
pub use self::table::{Record, Table};
use crate::config::resource_setting::Overrides;
use crate::image::acl::Acl;

/// How long a commit is waited for until the watch tells it.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// How often a change is tried again when somebody else has changed the same keys meanwhile.
const TRIES_MAX: usize = 100;

/// The metadata at one revision.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The revision of the last commit that it shows.
    pub revision: u64,
    /// By name.
    pub topics: Table<TopicRecord>,
    /// What clients set of brokers, groups and subscriptions, by kind and name.
    pub configs: Table<Overrides>,
    /// By mechanism and user.
    pub credentials: Table<Credential>,
    /// By an id that means nothing.
    pub acls: Table<Acl>,
    /// By entity.
    pub quotas: Table<ClientQuota>,
}

/// The names of the entries that differ between an image and the one before.
#[derive(Debug, Default)]
pub struct Delta {
    pub topics: BTreeSet<String>,
    pub configs: BTreeSet<String>,
    pub credentials: BTreeSet<String>,
    pub acls: BTreeSet<String>,
    pub quotas: BTreeSet<String>,
}

impl Image {
    /// The image of everything that `store` has.
    fn load(store: &dyn Store) -> Result<Image, MetaError> {
        let listing = store.list("")?;
        let mut image = Image { revision: listing.revision, ..Image::default() };
        let mut delta = Delta::default();
        for (key, value) in listing.entries {
            image.follow(&key, value.revision, Some(&value.bytes), &mut delta)?;
        }
        Ok(image)
    }

    /// Follows one change. Keys of no table, such as counters, are passed over.
    fn follow(
        &mut self,
        key: &str,
        revision: u64,
        bytes: Option<&[u8]>,
        delta: &mut Delta,
    ) -> Result<(), MetaError> {
        let Image { revision: _, topics, configs, credentials, acls, quotas } = self;
        topics.follow(key, revision, bytes, &mut delta.topics)?;
        configs.follow(key, revision, bytes, &mut delta.configs)?;
        credentials.follow(key, revision, bytes, &mut delta.credentials)?;
        acls.follow(key, revision, bytes, &mut delta.acls)?;
        quotas.follow(key, revision, bytes, &mut delta.quotas)
    }

    /// What `self`, which was read anew, has otherwise than `old`.
    fn differences(&self, old: &Image) -> Delta {
        Delta {
            topics: self.topics.differences(&old.topics),
            configs: self.configs.differences(&old.configs),
            credentials: self.credentials.differences(&old.credentials),
            acls: self.acls.differences(&old.acls),
            quotas: self.quotas.differences(&old.quotas),
        }
    }

    /// The revision of a key of one of the tables.
    fn revision_of(&self, key: &str) -> Option<u64> {
        let Image { revision: _, topics, configs, credentials, acls, quotas } = self;
        let found = topics.revision_of(key).or_else(|| configs.revision_of(key));
        let found = found.or_else(|| credentials.revision_of(key));
        found.or_else(|| acls.revision_of(key)).or_else(|| quotas.revision_of(key))
    }
}

/// Works something out from the image.
pub trait Observer: Send + Sync {
    /// The image has changed. Called in the order of the images, before whoever made the change goes on. It must not wait
    /// for another change of the metadata.
    fn changed(&self, image: &Arc<Image>, delta: &Delta);
}

/// The image, and the way to change it.
pub struct Metadata {
    store: Arc<dyn Store>,
    image: RwLock<Arc<Image>>,
    following: Mutex<Following>,
    /// Held by whoever changes the metadata of this process, so that changes do not conflict with each other.
    update: Mutex<()>,
}

struct Following {
    watch: Box<dyn Watch>,
    observers: Vec<Weak<dyn Observer>>,
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A change of the metadata: what to commit, and what is returned once that is done.
pub struct Update<T> {
    /// Conditions besides those on the changed keys, which must be as the image has them.
    pub compares: Vec<Compare>,
    /// A key is changed once. Without changes nothing is committed.
    pub changes: Vec<Change>,
    pub result: T,
}

impl<T> Update<T> {
    pub fn new(changes: Vec<Change>, result: T) -> Update<T> {
        Update { compares: Vec::new(), changes, result }
    }
}

impl Metadata {
    /// Reads everything in `store`. A value that cannot be read is an error: what depends on it would be dropped, given out
    /// again, or allowed. Blocks.
    pub fn open(store: Arc<dyn Store>) -> Result<Arc<Metadata>, MetaError> {
        let image = Image::load(&*store)?;
        let watch = store.watch("", image.revision);
        let following = Mutex::new(Following { watch, observers: Vec::new() });
        Ok(Arc::new(Metadata {
            store,
            image: RwLock::new(Arc::new(image)),
            following,
            update: Mutex::default(),
        }))
    }

    /// The metadata now.
    pub fn image(&self) -> Arc<Image> {
        self.image.read().clone()
    }

    /// The store, for what is in no table.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Tells `observer` of each image that follows. Observers are called in the order in which they were added.
    pub fn observe(&self, observer: Weak<dyn Observer>) {
        self.following.lock().observers.push(observer);
    }

    /// Commits what `change` makes of the image, and returns once the image shows it. If somebody else changes the same keys
    /// meanwhile, `change` is called again with the newer image. Blocks.
    pub fn update<T, E: From<MetaError>>(
        &self,
        mut change: impl FnMut(&Image) -> Result<Update<T>, E>,
    ) -> Result<T, E> {
        let _one = self.update.lock();
        let mut tries = 0;
        loop {
            let image = self.image();
            let Update { mut compares, changes, result } = change(&image)?;
            if changes.is_empty() {
                return Ok(result);
            }
            let compare = |key: &str| Compare { key: key.to_owned(), revision: image.revision_of(key) };
            let named: BTreeSet<String> = compares.iter().map(|compare| compare.key.clone()).collect();
            compares.extend(changes.iter().map(Change::key).filter(|key| !named.contains(*key)).map(compare));
            tries += 1;
            match self.store.commit(&compares, &changes) {
                Ok(revision) => {
                    self.catch_up(revision)?;
                    return Ok(result);
                }
                Err(MetaError::Conflict { .. }) if tries < TRIES_MAX => {
                    self.catch_up(image.revision + 1)?;
                }
                Err(error) => {
                    // The store may have kept a commit although it says that it failed.
                    let _ = self.refresh();
                    return Err(error.into());
                }
            }
        }
    }

    /// Follows what the store has told by now.
    pub fn refresh(&self) -> Result<(), MetaError> {
        self.step(&mut self.following.lock(), Duration::ZERO)
    }

    /// Follows the store up to `revision` at least.
    fn catch_up(&self, revision: u64) -> Result<(), MetaError> {
        let mut following = self.following.lock();
        let begun = std::time::Instant::now();
        while self.image.read().revision < revision {
            let left = TOLD_WITHIN.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(MetaError::Store(format!("revision {revision} was not told in time").into()));
            }
            self.step(&mut following, left)?;
        }
        Ok(())
    }

    /// Makes the next image, once there is a change.
    fn step(&self, following: &mut Following, patience: Duration) -> Result<(), MetaError> {
        let old = self.image();
        let (image, delta) = match following.watch.next(patience) {
            Ok(events) => {
                let (mut image, mut delta) = (Image::clone(&old), Delta::default());
                image.revision = events.revision;
                for Event { key, revision, bytes } in &events.changes {
                    if let Err(error) = image.follow(key, *revision, bytes.as_deref(), &mut delta) {
                        // Whoever wrote it is newer than this broker; what it had under the key stays in force.
                        tracing::error!(%error, "a change of the metadata is passed over");
                    }
                }
                (image, delta)
            }
            Err(WatchError::Compacted(_)) => {
                let image = Image::load(&*self.store)?;
                if image.revision < old.revision {
                    // To follow it would delete the streams of every topic that it does not have.
                    let why =
                        format!("the store went back from revision {} to {}", old.revision, image.revision);
                    return Err(MetaError::Store(why.into()));
                }
                following.watch = self.store.watch("", image.revision);
                let delta = image.differences(&old);
                (image, delta)
            }
            Err(WatchError::Meta(error)) => return Err(error),
        };
        let image = Arc::new(image);
        *self.image.write() = image.clone();
        following.observers.retain(|observer| match observer.upgrade() {
            Some(observer) => {
                observer.changed(&image, &delta);
                true
            }
            None => false,
        });
        Ok(())
    }
}
