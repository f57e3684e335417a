//! The store in a file of the data directory. The embedded engine is redb.
//!
//! Every commit is synced before it returns, so an acknowledged commit survives `kill -9`. After an error of its file,
//! the engine does nothing more. The error may be that of a disk that was full for a moment. So the store opens the
//! file again, which shows whether the commit is in it.

use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use crate::local::{self, Clock, Engine, Local};
use crate::{Change, Compare, Listing, MetaError, Value};

/// The permissions of the file.
const OWNER_ONLY: u32 = 0o600;
const TABLE: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("meta");
/// The keys with a lease.
const LEASED: TableDefinition<&str, ()> = TableDefinition::new("leased");
/// The revision of the last commit, under a key that no caller can use (keys are not empty).
const REVISION_KEY: &str = "";
/// Bytes of the engine's page cache. The whole state is small, and the broker keeps its own image of it.
const CACHE_BYTES: usize = 4 * 1024 * 1024;

/// Why an operation on the file failed.
enum Failure {
    Store(redb::Error),
    Conflict(String),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Store(error.into())
    }
}

impl From<Failure> for MetaError {
    fn from(failure: Failure) -> MetaError {
        match failure {
            Failure::Store(error) => MetaError::Store(Box::new(error)),
            Failure::Conflict(key) => MetaError::Conflict { key },
        }
    }
}

/// A store in a file.
pub type Embedded = Local<File>;

impl Embedded {
    /// Opens the store in `file`, or creates it. The file holds SCRAM credentials, so only its owner may read it; an
    /// existing file gets these permissions too. Blocks.
    pub fn open(file: &Path) -> Result<Embedded, MetaError> {
        Embedded::open_with_clock(file, local::clock())
    }

    /// Like [`Embedded::open`]; leases end by `clock`.
    pub fn open_with_clock(file: &Path, clock: Clock) -> Result<Embedded, MetaError> {
        let file = file.to_owned();
        let opened = File::open(Box::new(move || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY);
            let opened = options.open(&file)?;
            let mode = opened.metadata()?.permissions().mode();
            if mode & 0o777 != OWNER_ONLY {
                opened.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
            }
            database(FileBackend::new(opened)?)
        }))?;
        opened.begin()?;
        Local::new(opened, clock)
    }

    /// Opens a copy in memory of the store in `file`. The file is only read, and a server may have it open. Blocks.
    pub fn open_copy(file: &Path) -> Result<Embedded, MetaError> {
        let file = file.to_owned();
        let opened = File::open(Box::new(move || {
            let bytes = std::fs::read(&file)?;
            let copy = InMemoryBackend::new();
            copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, &bytes))?;
            database(copy)
        }))?;
        // A file without the table is not a file of this store.
        opened.reading(|database| {
            database.begin_read()?.open_table(TABLE)?;
            Ok(())
        })?;
        opened.begin()?;
        Local::new(opened, local::clock())
    }
}

type Open = dyn Fn() -> Result<Database, Failure> + Send + Sync;

/// The file.
#[doc(hidden)]
pub struct File {
    open: Box<Open>,
    /// `None` while the file could not be opened again.
    database: RwLock<Option<Database>>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("database", &self.database).finish_non_exhaustive()
    }
}

impl File {
    fn open(open: Box<Open>) -> Result<File, MetaError> {
        let database = RwLock::new(Some(open()?));
        Ok(File { open, database })
    }

    /// Creates missing tables.
    fn begin(&self) -> Result<(), MetaError> {
        self.reading(|database| {
            let read = database.begin_read()?;
            if read.open_table(TABLE).is_err() || read.open_table(LEASED).is_err() {
                let create = database.begin_write()?;
                create.open_table(TABLE)?;
                create.open_table(LEASED)?;
                create.commit()?;
            }
            Ok(())
        })
    }

    /// Reads. Reads again if the file has failed.
    fn reading<T>(&self, read: impl Fn(&Database) -> Result<T, Failure>) -> Result<T, MetaError> {
        match self.once(&read) {
            Err(Failure::Store(_)) => {
                self.open_again()?;
                Ok(self.once(&read)?)
            }
            result => Ok(result?),
        }
    }

    fn once<T>(&self, act: impl Fn(&Database) -> Result<T, Failure>) -> Result<T, Failure> {
        match &*self.database.read().unwrap_or_else(PoisonError::into_inner) {
            Some(database) => act(database),
            None => Err(redb::Error::PreviousIo.into()),
        }
    }

    fn open_again(&self) -> Result<(), Failure> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // The engine's lock on the file goes with it.
        drop(database.take());
        *database = Some((self.open)()?);
        Ok(())
    }
}

impl Engine for File {
    fn find(&self, key: &str) -> Result<Option<Value>, MetaError> {
        self.reading(|database| {
            let table = database.begin_read()?.open_table(TABLE)?;
            Ok(table.get(key)?.map(|entry| value_of(entry.value())))
        })
    }

    fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.reading(|database| {
            let table = database.begin_read()?.open_table(TABLE)?;
            let mut entries = Vec::new();
            for entry in table.range(prefix..)? {
                let (key, value) = entry?;
                if !key.value().starts_with(prefix) {
                    break;
                }
                if key.value() != REVISION_KEY {
                    entries.push((key.value().to_owned(), value_of(value.value())));
                }
            }
            Ok(Listing { revision: revision_in(&table)?, entries })
        })
    }

    fn revision(&self) -> Result<u64, MetaError> {
        self.reading(|database| revision_in(&database.begin_read()?.open_table(TABLE)?))
    }

    fn commit(&self, revision: u64, compares: &[Compare], changes: &[Change]) -> Result<(), MetaError> {
        match self.once(|database| commit(database, revision, compares, changes)) {
            Err(failure @ Failure::Store(_)) => {
                self.open_again()?;
                if self.revision()? != revision {
                    return Err(failure.into());
                }
                // The commit is in the file, but a power cut may still take bytes that could not be synced.
                self.once(write_anew).map_err(|failure| {
                    // Without this, the next commit would fail because of this error.
                    let _ = self.open_again();
                    failure.into()
                })
            }
            result => Ok(result?),
        }
    }

    fn leased(&self) -> Result<Vec<String>, MetaError> {
        self.reading(|database| {
            let leased = database.begin_read()?.open_table(LEASED)?;
            leased.iter()?.map(|entry| Ok(entry?.0.value().to_owned())).collect()
        })
    }
}

fn database(backend: impl StorageBackend) -> Result<Database, Failure> {
    Ok(Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
}

fn revision_in(table: &impl ReadableTable<&'static str, (u64, &'static [u8])>) -> Result<u64, Failure> {
    Ok(table.get(REVISION_KEY)?.map_or(0, |entry| entry.value().0))
}

fn commit(
    database: &Database,
    revision: u64,
    compares: &[Compare],
    changes: &[Change],
) -> Result<(), Failure> {
    let transaction = database.begin_write()?;
    {
        let (mut table, mut leased) = (transaction.open_table(TABLE)?, transaction.open_table(LEASED)?);
        for compare in compares {
            let found = table.get(compare.key.as_str())?.map(|entry| entry.value().0);
            if found != compare.revision {
                return Err(Failure::Conflict(compare.key.clone()));
            }
        }
        for change in changes {
            match change {
                Change::Put { key, bytes, .. } => table.insert(key.as_str(), (revision, bytes.as_slice()))?,
                Change::Delete { key } => table.remove(key.as_str())?,
            };
            match change {
                Change::Put { key, lease: Some(_), .. } => leased.insert(key.as_str(), ())?,
                Change::Put { key, lease: None, .. } | Change::Delete { key } => {
                    leased.remove(key.as_str())?
                }
            };
        }
        table.insert(REVISION_KEY, (revision, [].as_slice()))?;
    }
    transaction.commit()?;
    Ok(())
}

/// Writes every entry again, to other places in the file.
fn write_anew(database: &Database) -> Result<(), Failure> {
    let transaction = database.begin_write()?;
    {
        let (mut table, mut leased) = (transaction.open_table(TABLE)?, transaction.open_table(LEASED)?);
        let mut all = Vec::new();
        for entry in table.iter()? {
            let (key, value) = entry?;
            all.push((key.value().to_owned(), value_of(value.value())));
        }
        for (key, value) in all {
            table.insert(key.as_str(), (value.revision, value.bytes.as_slice()))?;
        }
        let keys: Result<Vec<_>, _> = leased.iter()?.map(|entry| Ok(entry?.0.value().to_owned())).collect();
        for key in keys.map_err(|error: redb::StorageError| error)? {
            leased.insert(key.as_str(), ())?;
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
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::Store;

    fn put(key: &str, bytes: &[u8]) -> Change {
        Change::put(key, bytes)
    }

    #[test]
    fn the_file_is_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("meta.redb");
        let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        drop(Embedded::open(&file).unwrap());
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(Embedded::open(&file).unwrap());
        assert_eq!(mode(), 0o600);
    }

    /// A file in memory. After some operations, one operation fails.
    #[derive(Clone, Debug, Default)]
    struct Faulty {
        bytes: Arc<Mutex<Vec<u8>>>,
        fails_after: Arc<AtomicI64>,
        /// After the failure, this many operations succeed, and then one fails again.
        then: Arc<Mutex<Option<i64>>>,
    }

    impl Faulty {
        fn may_fail(&self) -> io::Result<()> {
            match self.fails_after.fetch_sub(1, Ordering::Relaxed) {
                0 => {
                    let then = self.then.lock().unwrap().take();
                    if let Some(then) = then {
                        self.fails_after.store(then, Ordering::Relaxed);
                    }
                    Err(io::ErrorKind::StorageFull.into())
                }
                _ => Ok(()),
            }
        }

        fn store(&self) -> Embedded {
            let backend = self.clone();
            let file = File::open(Box::new(move || database(backend.clone()))).unwrap();
            file.begin().unwrap();
            Local::new(file, local::clock()).unwrap()
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
            let keys: Vec<String> = store.list("").unwrap().entries.into_iter().map(|(key, _)| key).collect();
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
    fn a_commit_of_which_nothing_is_known_makes_watches_list_again() {
        let mut unknown = 0;
        for (first, second) in (0..30).flat_map(|first| (0..30).map(move |second| (first, second))) {
            let file = Faulty { fails_after: Arc::new(AtomicI64::new(-1)), ..Faulty::default() };
            let store = file.store();
            let before = store.commit(&[], &[put("before", b"x")]).unwrap();
            let mut watch = store.watch("", before);
            file.fails_after.store(first, Ordering::Relaxed);
            *file.then.lock().unwrap() = Some(second);
            let result = store.commit(&[], &[put("a", b"y")]);
            *file.then.lock().unwrap() = None;
            file.fails_after.store(-1, Ordering::Relaxed);
            let there = store.find("a").unwrap().is_some();
            assert!(result.is_err() || there);
            unknown += u32::from(result.is_err() && there);
            // A watch tells the commit, or says that commits are missing; it never does neither.
            let next = store.commit(&[], &[put("b", b"z")]).unwrap();
            let keys = match watch.next(std::time::Duration::ZERO) {
                Ok(events) => events.changes.into_iter().map(|event| event.key).collect(),
                Err(_) => vec!["listed".to_owned()],
            };
            let expected: &[&str] = match (&result, there) {
                (Ok(_), _) => &["a", "b"],
                (Err(_), true) => &["listed"],
                (Err(_), false) => &["b"],
            };
            assert_eq!(keys, expected, "after {first} and {second}");
            assert_eq!(next, before + 1 + u64::from(there));
        }
        assert!(unknown > 0, "no commit was kept and said to have failed");
    }

    #[test]
    fn commits_compare_and_survive_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("meta.redb");
        let store = Embedded::open(&file).unwrap();
        let absent = |key: &str| Compare::absent(key);
        let first =
            store.commit(&[absent("a/1")], &[put("a/1", b"x"), put("a/2", b"y"), put("b", b"z")]).unwrap();
        assert!(
            matches!(store.commit(&[absent("a/1")], &[put("c", b"w")]), Err(MetaError::Conflict { key }) if key == "a/1")
        );
        assert_eq!(store.find("c").unwrap(), None);
        let same = Compare { key: "a/1".into(), revision: Some(first) };
        let second =
            store.commit(std::slice::from_ref(&same), &[put("a/1", b"v"), Change::delete("b")]).unwrap();
        assert!(second > first);
        assert!(store.commit(&[same], &[]).is_err());
        let revision = store.list("").unwrap().revision;
        assert_eq!(revision, second);
        let copy = Embedded::open_copy(&file).unwrap();
        assert_eq!(copy.list("").unwrap(), store.list("").unwrap());
        drop(store);
        let store = Embedded::open(&file).unwrap();
        let listed = store.list("a/").unwrap().entries;
        assert_eq!(
            listed.iter().map(|(key, value)| (key.as_str(), value.bytes.as_slice())).collect::<Vec<_>>(),
            [("a/1", b"v".as_slice()), ("a/2", b"y".as_slice())]
        );
        assert_eq!(store.find("b").unwrap(), None);
        assert_eq!(store.list("").unwrap().entries.len(), 2);
    }
}
