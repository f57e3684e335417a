//! Small consistent state: topics, their configuration, ids. Keys and values with compare-and-set, in the shape etcd has,
//! so that a cluster can keep them there; standalone they live in one file of an embedded engine in the data directory.
//!
//! Never written per batch. Every commit is synced before it returns, so what was answered survives `kill -9`.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

/// The permissions of the file.
const OWNER_ONLY: u32 = 0o600;
const TABLE: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("meta");
/// The revision of the last commit, under a key that no caller can use (keys are not empty).
const REVISION_KEY: &str = "";
/// Bytes of the engine's page cache: the whole state is small, and the broker keeps its own view of it.
const CACHE_BYTES: usize = 4 * 1024 * 1024;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The file cannot be read or written.
    #[error("the metadata store failed: {0}")]
    Store(Box<redb::Error>),
    /// A compare did not hold; nothing was changed.
    #[error("the metadata changed meanwhile: {key}")]
    Conflict {
        /// The key that was not as expected.
        key: String,
    },
}

impl<E: Into<redb::Error>> From<E> for MetaError {
    fn from(error: E) -> MetaError {
        MetaError::Store(Box::new(error.into()))
    }
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The revision of the commit that wrote it; grows with every commit of the store.
    pub revision: u64,
    /// As written.
    pub bytes: Vec<u8>,
}

/// One change of a commit.
#[derive(Clone, Debug)]
pub enum Change {
    /// Writes `bytes` under `key`.
    Put {
        /// Not empty.
        key: String,
        /// Anything.
        bytes: Vec<u8>,
    },
    /// Removes `key`; nothing happens where it does not exist.
    Delete {
        /// Not empty.
        key: String,
    },
}

/// A condition of a commit: `key` has this revision, or does not exist (`None`).
#[derive(Clone, Debug)]
pub struct Compare {
    /// Not empty.
    pub key: String,
    /// As read before.
    pub revision: Option<u64>,
}

/// The embedded store.
#[derive(Debug)]
pub struct Store {
    database: Database,
    /// One commit at a time; reads go on meanwhile.
    commit: Mutex<()>,
}

impl Store {
    /// Opens the store in `file`, or begins one. It holds what passwords are checked against, so it is for its owner only,
    /// also where it was not. Blocks.
    pub fn open(file: &Path) -> Result<Store, MetaError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY);
        let opened = options.open(file).map_err(redb::Error::Io)?;
        let mode = opened.metadata().map_err(redb::Error::Io)?.permissions().mode();
        if mode & 0o777 != OWNER_ONLY {
            opened.set_permissions(Permissions::from_mode(OWNER_ONLY)).map_err(redb::Error::Io)?;
        }
        let database =
            Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(FileBackend::new(opened)?)?;
        let begin = database.begin_read()?;
        if begin.open_table(TABLE).is_err() {
            drop(begin);
            let create = database.begin_write()?;
            create.open_table(TABLE)?;
            create.commit()?;
        }
        Ok(Store { database, commit: Mutex::new(()) })
    }

    /// Opens a copy in memory of the store in `file`, which is only read and may be in use. Blocks.
    pub fn open_copy(file: &Path) -> Result<Store, MetaError> {
        let bytes = std::fs::read(file).map_err(redb::Error::Io)?;
        let copy = InMemoryBackend::new();
        copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, &bytes)).map_err(redb::Error::Io)?;
        let database = Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(copy)?;
        database.begin_read()?.open_table(TABLE)?;
        Ok(Store { database, commit: Mutex::new(()) })
    }

    /// The value under `key`.
    pub fn find(&self, key: &str) -> Result<Option<Value>, MetaError> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        Ok(table.get(key)?.map(|entry| value_of(entry.value())))
    }

    /// All keys that begin with `prefix`, in order, with their values.
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, Value)>, MetaError> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        let mut found = Vec::new();
        for entry in table.range(prefix..)? {
            let (key, value) = entry?;
            if !key.value().starts_with(prefix) {
                break;
            }
            if key.value() != REVISION_KEY {
                found.push((key.value().to_owned(), value_of(value.value())));
            }
        }
        Ok(found)
    }

    /// The revision of the last commit; 0 before the first. Blocks.
    pub fn revision(&self) -> Result<u64, MetaError> {
        let read = self.database.begin_read()?;
        let table = read.open_table(TABLE)?;
        Ok(table.get(REVISION_KEY)?.map_or(0, |entry| entry.value().0))
    }

    /// Makes all `changes` or, where a compare does not hold, none. Durable on return; returns the new revision. Blocks.
    pub fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError> {
        let _one_at_a_time = self.commit.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let transaction = self.database.begin_write()?;
        let revision = {
            let mut table = transaction.open_table(TABLE)?;
            for compare in compares {
                assert!(!compare.key.is_empty(), "keys are not empty");
                let found = table.get(compare.key.as_str())?.map(|entry| entry.value().0);
                if found != compare.revision {
                    return Err(MetaError::Conflict { key: compare.key.clone() });
                }
            }
            let revision = table.get(REVISION_KEY)?.map_or(0, |entry| entry.value().0) + 1;
            for change in changes {
                match change {
                    Change::Put { key, bytes } => {
                        assert!(!key.is_empty(), "keys are not empty");
                        table.insert(key.as_str(), (revision, bytes.as_slice()))?;
                    }
                    Change::Delete { key } => {
                        table.remove(key.as_str())?;
                    }
                }
            }
            table.insert(REVISION_KEY, (revision, [].as_slice()))?;
            revision
        };
        transaction.commit()?;
        Ok(revision)
    }
}

fn value_of((revision, bytes): (u64, &[u8])) -> Value {
    Value { revision, bytes: bytes.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, bytes: &[u8]) -> Change {
        Change::Put { key: key.into(), bytes: bytes.into() }
    }

    #[test]
    fn the_file_is_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("meta.redb");
        let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        drop(Store::open(&file).unwrap());
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(Store::open(&file).unwrap());
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn commits_compare_and_survive_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("meta.redb");
        let store = Store::open(&file).unwrap();
        let absent = |key: &str| Compare { key: key.into(), revision: None };
        let first =
            store.commit(&[absent("a/1")], &[put("a/1", b"x"), put("a/2", b"y"), put("b", b"z")]).unwrap();
        assert!(
            matches!(store.commit(&[absent("a/1")], &[put("c", b"w")]), Err(MetaError::Conflict { key }) if key == "a/1")
        );
        assert_eq!(store.find("c").unwrap(), None);
        let same = Compare { key: "a/1".into(), revision: Some(first) };
        let second = store
            .commit(std::slice::from_ref(&same), &[put("a/1", b"v"), Change::Delete { key: "b".into() }])
            .unwrap();
        assert!(second > first);
        assert!(store.commit(&[same], &[]).is_err());
        let copy = Store::open_copy(&file).unwrap();
        assert_eq!(copy.list("").unwrap(), store.list("").unwrap());
        drop(store);
        let store = Store::open(&file).unwrap();
        let listed = store.list("a/").unwrap();
        assert_eq!(
            listed.iter().map(|(key, value)| (key.as_str(), value.bytes.as_slice())).collect::<Vec<_>>(),
            [("a/1", b"v".as_slice()), ("a/2", b"y".as_slice())]
        );
        assert_eq!(store.find("b").unwrap(), None);
        assert_eq!(store.list("").unwrap().len(), 2);
    }
}
