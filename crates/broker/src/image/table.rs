//! The entries of the image below one key prefix. A copy of a table shares all entries that do not change later.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use meta::{Change, MetaError};
use rpds::RedBlackTreeMapSync;

/// An entry of the metadata whose key begins with [`Record::PREFIX`].
pub trait Record: Sized {
    const PREFIX: &'static str;

    /// Decodes the value under [`Record::PREFIX`] and `name`.
    fn parse(name: &str, bytes: &[u8]) -> Result<Self, String>;

    /// Encodes the value.
    fn encode(&self) -> Vec<u8>;

    /// The key of the entry `name`.
    fn key(name: &str) -> String {
        format!("{}{name}", Self::PREFIX)
    }

    /// The change that stores the record under `name`.
    fn put(&self, name: &str) -> Change {
        Change::put(Self::key(name), self.encode())
    }

    /// The change that removes the entry `name`.
    fn delete(name: &str) -> Change {
        Change::delete(Self::key(name))
    }
}

#[derive(Debug)]
struct Entry<T> {
    revision: u64,
    record: Arc<T>,
}

/// Records by the part of their key after the prefix.
#[derive(Debug)]
pub struct Table<T>(RedBlackTreeMapSync<String, Entry<T>>);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(RedBlackTreeMapSync::new_sync())
    }
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Table<T> {
        Table(self.0.clone())
    }
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Entry<T> {
        Entry { revision: self.revision, record: self.record.clone() }
    }
}

impl<T: Record> Table<T> {
    pub fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.0.get(name).map(|entry| &entry.record)
    }

    /// All entries, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<T>)> {
        self.0.iter().map(|(name, entry)| (name.as_str(), &entry.record))
    }

    /// The entries whose names begin with `prefix`, with their names without the prefix.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Arc<T>)> {
        let from = self.0.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.map_while(move |(name, entry)| Some((name.strip_prefix(prefix)?, &entry.record)))
    }

    /// Applies a change of `key`. Notes the entry in `changed` if the key belongs to this table.
    pub(super) fn follow(
        &mut self,
        key: &str,
        revision: u64,
        bytes: Option<&[u8]>,
        changed: &mut BTreeSet<String>,
    ) -> Result<(), MetaError> {
        let Some(name) = key.strip_prefix(T::PREFIX) else { return Ok(()) };
        match bytes {
            Some(bytes) => {
                let unreadable = |why| MetaError::Unreadable { key: key.to_owned(), why };
                let record = Arc::new(T::parse(name, bytes).map_err(unreadable)?);
                self.0.insert_mut(name.to_owned(), Entry { revision, record });
            }
            None => drop(self.0.remove_mut(name)),
        }
        changed.insert(name.to_owned());
        Ok(())
    }

    /// The revision of `key`, if the key belongs to this table.
    pub(super) fn revision_of(&self, key: &str) -> Option<u64> {
        self.0.get(key.strip_prefix(T::PREFIX)?).map(|entry| entry.revision)
    }

    /// The names whose entries differ between the tables.
    pub(super) fn differences(&self, old: &Table<T>) -> BTreeSet<String> {
        let revision = |table: &Table<T>, name: &String| table.0.get(name).map(|entry| entry.revision);
        let names = self.0.keys().chain(old.0.keys());
        names.filter(|name| revision(self, name) != revision(old, name)).cloned().collect()
    }
}
