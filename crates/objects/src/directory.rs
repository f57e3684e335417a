//! A bucket in a local directory, for one machine: what is stored is durable on return.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use crate::{Bucket, BucketError, Listed, Put};

/// Names of files that are not complete yet begin so; keys never do.
const UNFINISHED: &str = "~";

/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 * 1024;

/// A bucket in a directory. A file with its final name is complete and durable.
#[derive(Debug)]
pub struct DirectoryBucket {
    root: PathBuf,
    /// In the names of unfinished files: several brokers may store in one directory, and the ids of their processes may be
    /// the same (containers).
    opening: u64,
    unfinished: AtomicU64,
}

impl DirectoryBucket {
    /// Opens the bucket in the directory `root`, which is made if it is missing.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<DirectoryBucket> {
        let root = root.into();
        fs::create_dir_all(&root)?;
        Ok(DirectoryBucket { root, opening: fastrand::u64(..), unfinished: AtomicU64::new(0) })
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// Writes and syncs the file, and gives it its name unless the name is taken.
    fn store(&self, path: &Path, body: &[Bytes]) -> io::Result<Put> {
        let folder = path.parent().unwrap_or(&self.root);
        create_folders(&self.root, folder)?;
        let number = self.unfinished.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.root.join(format!("{UNFINISHED}{:016x}-{number}", self.opening));
        let written = write_synced(&unfinished, body).and_then(|()| match fs::hard_link(&unfinished, path) {
            Ok(()) => sync_folder(folder).map(|()| Put::Stored),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // The name may be younger than the last sync of its folder.
                sync_folder(folder).map(|()| Put::Exists)
            }
            Err(error) => Err(error),
        });
        // The name of a complete file stays.
        let removed = fs::remove_file(&unfinished);
        let put = written?;
        removed.map(|()| put)
    }

    fn collect(&self, folder: &Path, prefix: &str, after: &str, found: &mut Vec<Listed>) -> io::Result<()> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            let relative = path.strip_prefix(&self.root).unwrap_or(&path);
            let Some(key) = relative.to_str().filter(|key| !key.starts_with(UNFINISHED)) else { continue };
            if kind.is_dir() {
                let below = format!("{key}/");
                if below.starts_with(prefix) || prefix.starts_with(&below) {
                    self.collect(&path, prefix, after, found)?;
                }
            } else if key.starts_with(prefix) && key > after {
                let metadata = match fs::metadata(&path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    metadata => metadata?,
                };
                let stored = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                let stored_ms = i64::try_from(stored.as_millis()).unwrap_or(i64::MAX);
                found.push(Listed { key: key.to_owned(), bytes: metadata.len(), stored_ms });
            }
        }
        Ok(())
    }
}

/// Makes the folders below `root` down to `folder`; durable on return. A missing `root` is an error: perhaps the disk
/// that should be mounted there is not.
fn create_folders(root: &Path, folder: &Path) -> io::Result<()> {
    if folder == root || folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        create_folders(root, above)?;
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => folder.parent().map_or(Ok(()), sync_folder),
    }
}

fn write_synced(path: &Path, body: &[Bytes]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // Parts may be short.
    let mut file = BufWriter::with_capacity(WRITE_BYTES, file);
    body.iter().try_for_each(|part| file.write_all(part))?;
    file.into_inner()?.sync_all()
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn failure(key: &str, error: &io::Error) -> BucketError {
    match error.kind() {
        ErrorKind::NotFound => BucketError::NotFound(key.to_owned()),
        ErrorKind::PermissionDenied => BucketError::Refused(format!("{key}: {error}")),
        _ => BucketError::Unclear(format!("{key}: {error}")),
    }
}

impl Bucket for DirectoryBucket {
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError> {
        self.store(&self.path(key), body).map_err(|error| match error.kind() {
            ErrorKind::NotFound => BucketError::Refused(format!("{}: {error}", self.root.display())),
            _ => failure(key, &error),
        })
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        let read = || {
            let mut file = File::open(self.path(key))?;
            file.seek(SeekFrom::Start(range.start))?;
            let mut bytes = Vec::new();
            file.take(range.end.saturating_sub(range.start)).read_to_end(&mut bytes)?;
            Ok(Bytes::from(bytes))
        };
        read().map_err(|error| failure(key, &error))
    }

    fn length(&self, key: &str) -> Result<u64, BucketError> {
        fs::metadata(self.path(key)).map(|file| file.len()).map_err(|error| failure(key, &error))
    }

    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError> {
        let mut found = Vec::new();
        self.collect(&self.root, prefix, after, &mut found).map_err(|error| failure(prefix, &error))?;
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        found.truncate(most);
        Ok(found)
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        match fs::remove_file(self.path(key)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failure(key, &error)),
            _ => Ok(()),
        }
    }
}
