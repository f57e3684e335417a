//! The metadata as this broker knows it: an immutable [`Image`] for each revision, built from the store's listing and
//! its watch.
//!
//! No other module keeps a copy of metadata. A module that derives data from it, such as an index of ACLs, observes the
//! image ([`Observer`]). A request changes the store ([`Metadata::update`]). When it continues, the image shows its
//! change.

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

use self::records::{BrokerRecord, ClientQuota, ControllerRecord, DrainRecord, OwnerRecord, TopicRecord};
pub use self::table::{Record, Table};
use crate::config::resource_setting::Overrides;
use crate::image::acl::Acl;

/// Time within which the watch has to report a commit.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// Bound of the attempts to make a change while other writers change the same keys.
const TRIES_MAX: usize = 100;

/// The metadata at one revision.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The revision of the last commit in this image.
    pub revision: u64,
    /// Topics, by name.
    pub topics: Table<TopicRecord>,
    /// Dynamic settings of brokers, groups and client-metrics subscriptions, by kind and name.
    pub configs: Table<Overrides>,
    /// SCRAM credentials, by mechanism and user.
    pub credentials: Table<Credential>,
    /// ACLs, by an arbitrary id.
    pub acls: Table<Acl>,
    /// Client quotas, by entity.
    pub quotas: Table<ClientQuota>,
    /// The brokers of a cluster that are alive, by id.
    pub brokers: Table<BrokerRecord>,
    /// The brokers that shall own nothing, by id.
    pub drains: Table<DrainRecord>,
    /// The controller of a cluster, under the empty name.
    pub controller: Table<ControllerRecord>,
    /// The owners of a cluster's logs, by log.
    pub owners: Table<OwnerRecord>,
}

/// The names of the entries that differ between an image and its predecessor.
#[derive(Debug, Default)]
pub struct Delta {
    pub topics: BTreeSet<String>,
    pub configs: BTreeSet<String>,
    pub credentials: BTreeSet<String>,
    pub acls: BTreeSet<String>,
    pub quotas: BTreeSet<String>,
    pub brokers: BTreeSet<String>,
    pub drains: BTreeSet<String>,
    pub controller: BTreeSet<String>,
    pub owners: BTreeSet<String>,
}

impl Image {
    /// Builds the image from the whole content of `store`.
    fn load(store: &dyn Store) -> Result<Image, MetaError> {
        let listing = store.list("")?;
        let mut image = Image { revision: listing.revision, ..Image::default() };
        let mut delta = Delta::default();
        for (key, value) in listing.entries {
            image.follow(&key, value.revision, Some(&value.bytes), &mut delta)?;
        }
        Ok(image)
    }

    /// Applies one change. Ignores keys outside the tables, such as counters.
    fn follow(
        &mut self,
        key: &str,
        revision: u64,
        bytes: Option<&[u8]>,
        delta: &mut Delta,
    ) -> Result<(), MetaError> {
        let Image {
            revision: _,
            topics,
            configs,
            credentials,
            acls,
            quotas,
            brokers,
            drains,
            controller,
            owners,
        } = self;
        brokers.follow(key, revision, bytes, &mut delta.brokers)?;
        drains.follow(key, revision, bytes, &mut delta.drains)?;
        controller.follow(key, revision, bytes, &mut delta.controller)?;
        owners.follow(key, revision, bytes, &mut delta.owners)?;
        topics.follow(key, revision, bytes, &mut delta.topics)?;
        configs.follow(key, revision, bytes, &mut delta.configs)?;
        credentials.follow(key, revision, bytes, &mut delta.credentials)?;
        acls.follow(key, revision, bytes, &mut delta.acls)?;
        quotas.follow(key, revision, bytes, &mut delta.quotas)
    }

    /// The entries in which `self`, a newly loaded image, differs from `old`.
    fn differences(&self, old: &Image) -> Delta {
        Delta {
            topics: self.topics.differences(&old.topics),
            configs: self.configs.differences(&old.configs),
            credentials: self.credentials.differences(&old.credentials),
            acls: self.acls.differences(&old.acls),
            quotas: self.quotas.differences(&old.quotas),
            brokers: self.brokers.differences(&old.brokers),
            drains: self.drains.differences(&old.drains),
            controller: self.controller.differences(&old.controller),
            owners: self.owners.differences(&old.owners),
        }
    }

    /// The revision of a key in one of the tables.
    pub fn revision_of(&self, key: &str) -> Option<u64> {
        let found = self.topics.revision_of(key).or_else(|| self.configs.revision_of(key));
        let found =
            found.or_else(|| self.credentials.revision_of(key)).or_else(|| self.acls.revision_of(key));
        let found = found.or_else(|| self.quotas.revision_of(key)).or_else(|| self.brokers.revision_of(key));
        let found = found.or_else(|| self.drains.revision_of(key));
        found.or_else(|| self.controller.revision_of(key)).or_else(|| self.owners.revision_of(key))
    }
}

/// A module that derives data from the image.
pub trait Observer: Send + Sync {
    /// Called after each change, in the order of the images, and before the caller that made the change continues. It
    /// must not wait for another change of the metadata.
    fn changed(&self, image: &Arc<Image>, delta: &Delta);
}

/// The current image, and the operations that change it.
pub struct Metadata {
    store: Arc<dyn Store>,
    image: RwLock<Arc<Image>>,
    following: Mutex<Following>,
    /// Held during a change, so that changes made by this process do not conflict with each other.
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

/// A change of the metadata: the changes to commit, and the value to return after the commit.
pub struct Update<T> {
    /// Conditions in addition to those on the changed keys. The changed keys must be as the image shows them.
    pub compares: Vec<Compare>,
    /// The changes, at most one for each key. An empty list commits nothing.
    pub changes: Vec<Change>,
    pub result: T,
}

impl<T> Update<T> {
    pub fn new(changes: Vec<Change>, result: T) -> Update<T> {
        Update { compares: Vec::new(), changes, result }
    }
}

impl Metadata {
    /// Reads everything in `store`. Blocks.
    ///
    /// # Errors
    /// An unreadable value is an error. Otherwise the data that depends on it would be dropped, allocated again, or
    /// allowed.
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

    /// The current image.
    pub fn image(&self) -> Arc<Image> {
        self.image.read().clone()
    }

    /// The store, for keys outside the tables.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Calls `observer` for each image from now on. Observers are called in the order in which they were added.
    pub fn observe(&self, observer: Weak<dyn Observer>) {
        self.following.lock().observers.push(observer);
    }

    /// Commits the changes that `change` derives from the image, and returns once the image shows them. If another
    /// writer changes the same keys in between, `change` is called again with the newer image. Blocks.
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
                    self.reach(revision)?;
                    return Ok(result);
                }
                Err(MetaError::Conflict { key }) if tries < TRIES_MAX => match self.store.find(&key)? {
                    // The image has passed it over, and would not show it later either.
                    Some(there) if there.revision <= image.revision => {
                        let why = "a newer version of this program wrote it".to_owned();
                        return Err(MetaError::Unreadable { key, why }.into());
                    }
                    Some(there) => self.reach(there.revision)?,
                    None => self.reach(image.revision + 1)?,
                },
                Err(error) => {
                    // The store may have kept the commit although it reports a failure.
                    let _ = self.refresh();
                    return Err(error.into());
                }
            }
        }
    }

    /// As [`Metadata::update`], for changes of any number that need not be made together: in several commits, if the store takes
    /// no more in one. Returns the first result. After an error a part may have been made.
    pub fn update_in_parts<T, E: From<MetaError>>(
        &self,
        mut change: impl FnMut(&Image) -> Result<Update<T>, E>,
    ) -> Result<T, E> {
        let most = self.store.changes_max();
        let (mut first, mut made) = (None, BTreeSet::new());
        loop {
            let (result, part, all) = self.update(|image| {
                let Update { compares, mut changes, result } = change(image)?;
                changes.retain(|change| !made.contains(change.key()));
                let left = changes.len();
                changes.truncate(most);
                let keys: Vec<String> = changes.iter().map(|change| change.key().to_owned()).collect();
                Ok::<_, E>(Update { compares, result: (result, keys, left <= most), changes })
            })?;
            made.extend(part);
            let result = first.take().unwrap_or(result);
            if all {
                return Ok(result);
            }
            first = Some(result);
        }
    }

    /// Applies all changes that the store has reported so far.
    pub fn refresh(&self) -> Result<(), MetaError> {
        self.step(&mut self.following.lock(), Duration::ZERO)
    }

    /// Waits up to `patience` for a change, and applies it. Blocks.
    pub fn wait(&self, patience: Duration) -> Result<(), MetaError> {
        self.step(&mut self.following.lock(), patience)
    }

    /// Applies changes until the image has reached `revision`. Blocks.
    pub fn reach(&self, revision: u64) -> Result<(), MetaError> {
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

    /// Waits up to `patience` for a change, and builds the next image.
    fn step(&self, following: &mut Following, patience: Duration) -> Result<(), MetaError> {
        let old = self.image();
        let (image, delta) = match following.watch.next(patience) {
            Ok(events) => {
                let (mut image, mut delta) = (Image::clone(&old), Delta::default());
                image.revision = events.revision;
                for Event { key, revision, bytes } in &events.changes {
                    if let Err(error) = image.follow(key, *revision, bytes.as_deref(), &mut delta) {
                        // A newer version of this program wrote the value. The old value under the key stays in force.
                        tracing::error!(%error, "a change of the metadata is passed over");
                    }
                }
                (image, delta)
            }
            Err(WatchError::Compacted(_)) => {
                let image = Image::load(&*self.store)?;
                if image.revision < old.revision {
                    // With this image, the broker would delete the streams of every topic that the image lacks.
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
