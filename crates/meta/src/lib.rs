//! Small consistent state: topics, their configuration, ids. Keys and values with compare-and-set, in the shape etcd has,
//! so that a cluster can keep them there; standalone they live in one file of an embedded engine in the data directory.
//!
//! Never written per batch. Every commit is synced before it returns, so what was answered survives `kill -9`.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError, RwLock};

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
    /// A value is not what this version writes.
    #[error("the metadata under {key} cannot be read: {why}")]
    Unreadable {
        /// Where it is.
        key: String,
        /// What is wrong with it.
        why: String,
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

type Open = dyn Fn() -> Result<Database, MetaError> + Send + Sync;

/// The embedded store.
///
/// The engine does nothing more after an error of its file, which may be that of a disk that was full for a moment: then
/// the file is opened again, and says what became of the commit.
pub struct Store {
    open: Box<Open>,
    /// `None` while it could not be opened again.
    database: RwLock<Option<Database>>,
    /// One commit at a time; reads go on meanwhile.
    commit: Mutex<()>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("database", &self.database).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in `file`, or begins one. It holds what passwords are checked against, so it is for its owner only,
    /// also where it was not. Blocks.
    pub fn open(file: &Path) -> Result<Store, MetaError> {
        let file = file.to_owned();
        let store = Store::with(Box::new(move || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY);
            let opened = options.open(&file).map_err(redb::Error::Io)?;
            let mode = opened.metadata().map_err(redb::Error::Io)?.permissions().mode();
            if mode & 0o777 != OWNER_ONLY {
                opened.set_permissions(Permissions::from_mode(OWNER_ONLY)).map_err(redb::Error::Io)?;
            }
            database(FileBackend::new(opened)?)
        }))?;
        store.begin()?;
        Ok(store)
    }

    /// Opens a copy in memory of the store in `file`, which is only read and may be in use. Blocks.
    pub fn open_copy(file: &Path) -> Result<Store, MetaError> {
        let file = file.to_owned();
        let store = Store::with(Box::new(move || {
            let bytes = std::fs::read(&file).map_err(redb::Error::Io)?;
            let copy = InMemoryBackend::new();
            copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, &bytes)).map_err(redb::Error::Io)?;
            database(copy)
        }))?;
        // A file without the table is none of ours.
        store.reading(|database| {
            database.begin_read()?.open_table(TABLE)?;
            Ok(())
        })?;
        Ok(store)
    }

    fn with(open: Box<Open>) -> Result<Store, MetaError> {
        let database = RwLock::new(Some(open()?));
        Ok(Store { open, database, commit: Mutex::new(()) })
    }

    /// Makes the table where there is none.
    fn begin(&self) -> Result<(), MetaError> {
        self.reading(|database| {
            if database.begin_read()?.open_table(TABLE).is_err() {
                let create = database.begin_write()?;
                create.open_table(TABLE)?;
                create.commit()?;
            }
            Ok(())
        })
    }

    /// The value under `key`.
    pub fn find(&self, key: &str) -> Result<Option<Value>, MetaError> {
        self.reading(|database| {
            let table = database.begin_read()?.open_table(TABLE)?;
            Ok(table.get(key)?.map(|entry| value_of(entry.value())))
        })
    }

    /// All keys that begin with `prefix`, in order, with their values.
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, Value)>, MetaError> {
        self.reading(|database| {
            let table = database.begin_read()?.open_table(TABLE)?;
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
        })
    }

    /// The revision of the last commit; 0 before the first. Blocks.
    pub fn revision(&self) -> Result<u64, MetaError> {
        self.reading(|database| {
            let table = database.begin_read()?.open_table(TABLE)?;
            Ok(table.get(REVISION_KEY)?.map_or(0, |entry| entry.value().0))
        })
    }

    /// Makes all `changes` or, where a compare does not hold, none. Durable on return; returns the new revision. Blocks.
    ///
    /// After [`MetaError::Store`] nothing was changed either, unless the file failed again while it was found out: then
    /// that is not known before the next start.
    pub fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError> {
        let _one_at_a_time = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.revision()? + 1;
        match self.once(|database| commit(database, next, compares, changes)) {
            Err(error @ MetaError::Store(_)) => {
                self.open_again()?;
                if self.revision()? != next {
                    return Err(error);
                }
                // It is in the file, but what could not be synced may be gone with the power.
                self.once(write_anew)?;
            }
            result => result?,
        }
        Ok(next)
    }

    /// Reads, for a second time if the file has failed.
    fn reading<T>(&self, read: impl Fn(&Database) -> Result<T, MetaError>) -> Result<T, MetaError> {
        match self.once(&read) {
            Err(MetaError::Store(_)) => {
                self.open_again()?;
                self.once(&read)
            }
            result => result,
        }
    }

    fn once<T>(&self, act: impl Fn(&Database) -> Result<T, MetaError>) -> Result<T, MetaError> {
        match &*self.database.read().unwrap_or_else(PoisonError::into_inner) {
            Some(database) => act(database),
            None => Err(redb::Error::PreviousIo.into()),
        }
    }

    fn open_again(&self) -> Result<(), MetaError> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // Its lock on the file goes with it.
        drop(database.take());
        *database = Some((self.open)()?);
        Ok(())
    }
}

fn database(backend: impl StorageBackend) -> Result<Database, MetaError> {
    Ok(Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
}

fn commit(
    database: &Database,
    revision: u64,
    compares: &[Compare],
    changes: &[Change],
) -> Result<(), MetaError> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        for compare in compares {
            assert!(!compare.key.is_empty(), "keys are not empty");
            let found = table.get(compare.key.as_str())?.map(|entry| entry.value().0);
            if found != compare.revision {
                return Err(MetaError::Conflict { key: compare.key.clone() });
            }
        }
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
    }
    transaction.commit()?;
    Ok(())
}

/// Writes every entry again, to other places of the file.
fn write_anew(database: &Database) -> Result<(), MetaError> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        let mut all = Vec::new();
        for entry in table.iter()? {
            let (key, value) = entry?;
            all.push((key.value().to_owned(), value_of(value.value())));
        }
        for (key, value) in all {
            table.insert(key.as_str(), (value.revision, value.bytes.as_slice()))?;
        }
    }
    transaction.commit()?;
    Ok(())
}

fn value_of((revision, bytes): (u64, &[u8])) -> Value {
    Value { revision, bytes: bytes.to_vec() }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

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

    /// A file in memory whose operations fail once, after so many.
    #[derive(Clone, Debug, Default)]
    struct Faulty {
        bytes: Arc<Mutex<Vec<u8>>>,
        fails_after: Arc<AtomicI64>,
    }

    impl Faulty {
        fn may_fail(&self) -> io::Result<()> {
            match self.fails_after.fetch_sub(1, Ordering::Relaxed) {
                0 => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(()),
            }
        }

        fn store(&self) -> Store {
            let backend = self.clone();
            let store = Store::with(Box::new(move || database(backend.clone()))).unwrap();
            store.begin().unwrap();
            store
        }
    }

    impl StorageBackend for Faulty {
        fn len(&self) -> io::Result<u64> {
            Ok(self.bytes.lock().unwrap().len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            let at = usize::try_from(offset).unwrap();
            out.copy_from_slice(&self.bytes.lock().unwrap()[at..at + out.len()]);
            Ok(())
        }

        fn set_len(&self, length: u64) -> io::Result<()> {
            self.may_fail()?;
            self.bytes.lock().unwrap().resize(usize::try_from(length).unwrap(), 0);
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            self.may_fail()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.may_fail()?;
            let at = usize::try_from(offset).unwrap();
            self.bytes.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    #[test]
    fn a_file_that_fails_once_says_what_became_of_the_commit_and_works_on() {
        let (mut refused, mut done) = (0, 0);
        for fails_after in 0..200 {
            let file = Faulty { fails_after: Arc::new(AtomicI64::new(-1)), ..Faulty::default() };
            let store = file.store();
            store.commit(&[], &[put("before", b"x")]).unwrap();
            file.fails_after.store(fails_after, Ordering::Relaxed);
            let result = store.commit(&[], &[put("a", &vec![7; 100_000])]);
            let untouched = file.fails_after.swap(-1, Ordering::Relaxed) >= 0;
            refused += u32::from(result.is_err());
            done += u32::from(result.is_ok() && !untouched);
            let there = store.find("a").unwrap().is_some();
            assert_eq!(there, result.is_ok(), "after {fails_after}");
            let next = store.commit(&[], &[put("b", b"y")]).unwrap();
            assert_eq!(next, if there { 3 } else { 2 });
            drop(store);
            let store = file.store();
            let keys: Vec<String> = store.list("").unwrap().into_iter().map(|(key, _)| key).collect();
            let expected = if there { vec!["a", "b", "before"] } else { vec!["b", "before"] };
            assert_eq!(keys, expected, "after {fails_after}");
            if untouched {
                assert!(refused > 3, "{refused} refused, {done} done all the same");
                return;
            }
        }
        panic!("a commit has fewer steps");
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
