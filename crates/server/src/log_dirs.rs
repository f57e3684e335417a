//! The log directories: checks that no two of them are the same, and locks them. The broker interprets their content.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use broker::LogDirectory;
use disk::{DirectoryLock, Disk, Engine};

use crate::settings::engine_name;

/// Permission bits of a file for its group, for all others, and for both; for all others beside a group that may read.
const GROUP_WRITES: u32 = 0o020;
const SET_GROUP_ID: u32 = 0o2000;
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_READ: u32 = 0o055;
const ALL_READ: u32 = 0o005;
/// A data directory with this file holds a restore that is not finished.
pub const RESTORING: &str = "restoring";

/// The locks on log directories, held until this value and all its clones are dropped.
#[derive(Clone, Debug, Default)]
pub struct Locks(Arc<Mutex<Vec<(PathBuf, DirectoryLock)>>>);

impl Locks {
    /// Locks `directory`, unless it is already locked here.
    fn lock(&self, directory: &Path) -> io::Result<()> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if locks.iter().all(|(other, _)| other != directory) {
            locks.push((directory.to_owned(), disk::lock_directory(directory)?));
        }
        Ok(())
    }
}

/// Creates a directory and its parents.
pub fn create(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Refuses a directory that other users can write to, or that another user owns. Warns if other users can read it.
/// `what` names the directory in messages.
pub fn check_access(what: &str, directory: &Path) -> anyhow::Result<()> {
    let found = std::fs::metadata(directory)
        .with_context(|| format!("the {what} {} cannot be looked at", directory.display()))?;
    let (shown, mode) = (directory.display(), found.mode() & 0o7777);
    let (us, group) = (rustix::process::geteuid().as_raw(), found.gid());
    let is_group_ours = || {
        rustix::process::getegid().as_raw() == group
            || rustix::process::getgroups().is_ok_and(|groups| groups.iter().any(|one| one.as_raw() == group))
    };
    let subdirectory =
        format!("or name a directory in it that the server is to create, such as {shown}/mainstem");
    match Access::of(&found, us, is_group_ours) {
        Access::Ours => Ok(()),
        Access::Readable => {
            tracing::warn!(
                "other users can look into the {what} {shown} (mode {mode:04o}); `chmod 700 {shown}` shuts them out"
            );
            Ok(())
        }
        Access::OthersOwn => bail!(
            "the {what} {shown} belongs to another user (uid {}, the server runs as {us}), who could change everything in \
             it; `chown -R {us} {shown}` gives it to the server, {subdirectory}",
            found.uid()
        ),
        Access::OthersWrite => bail!(
            "the {what} {shown} can be written to by other users (mode {mode:04o}); `chmod 700 {shown}` shuts them out, \
             {subdirectory}"
        ),
    }
}

/// Who can do what in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Only the server's user, or the system's own and a group that the server was put into.
    Ours,
    /// Other users can look into it.
    Readable,
    OthersOwn,
    OthersWrite,
}

impl Access {
    /// The access to a directory for a server that runs as the user `us`.
    fn of(found: &std::fs::Metadata, us: u32, is_group_ours: impl Fn() -> bool) -> Access {
        let mode = found.mode();
        let by_group = mode & GROUP_WRITES != 0;
        // Kubernetes gives root's volumes to a group that it puts the server into (`fsGroup`), and what the server made in them too:
        // that has this bit then.
        let is_given = by_group && is_group_ours() && (found.uid() != us || mode & SET_GROUP_ID != 0);
        if found.uid() != us {
            return match () {
                () if mode & OTHERS_WRITE != 0 => Access::OthersWrite,
                () if found.uid() == 0 && is_given => Access::Ours,
                () => Access::OthersOwn,
            };
        }
        match () {
            () if mode & OTHERS_WRITE != 0 => Access::OthersWrite,
            () if by_group && !is_given => Access::OthersWrite,
            () if mode & if is_given { ALL_READ } else { OTHERS_READ } != 0 => Access::Readable,
            () => Access::Ours,
        }
    }
}

/// Refuses a data directory in which a restore is not finished.
pub fn check_restored(directory: &Path) -> anyhow::Result<()> {
    if directory.join(RESTORING).exists() {
        bail!(
            "the data directory {} holds a restore that is not finished: run `mainstem restore` again, as before",
            directory.display()
        );
    }
    Ok(())
}

/// A message that names the holder of the lock on `directory`. `what` names the directory.
pub fn in_use(what: &str, directory: &Path) -> String {
    let holder = std::fs::read_to_string(directory.join("lock")).unwrap_or_default();
    let holder = match holder.trim() {
        "" => String::new(),
        pid => format!(" (pid {pid})"),
    };
    format!("the {what} {} is in use by another mainstem{holder}", directory.display())
}

/// Prepares the log directories in `paths` and locks those that exist. Missing or failing directories are handled
/// later, when the metadata is known. `data_dir` is already locked. Fails if two directories are the same, or if
/// another server uses one.
pub fn prepare(
    paths: &[PathBuf],
    data_dir: &Path,
    engine: Engine,
    locks: &Locks,
) -> anyhow::Result<Vec<LogDirectory>> {
    check(paths)?;
    let data_dir = resolved(data_dir);
    let mut directories = Vec::with_capacity(paths.len());
    for path in paths {
        let locked = resolved(path) == data_dir;
        if !locked && path.is_dir() {
            check_access("log directory", path)?;
            match locks.lock(path) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    bail!(in_use("log directory", path))
                }
                // Any other failure concerns only this directory. Opening it tries again and reports the error.
                _ => {}
            }
        }
        let shown = std::path::absolute(path).with_context(|| format!("log.dirs: {}", path.display()))?;
        let (path, locks) = (path.clone(), locks.clone());
        directories.push(LogDirectory::new(shown.display().to_string(), move |make| {
            if make {
                create(&path)?;
            }
            if !locked {
                locks.lock(&path)?;
            }
            let disk = disk::open_directory(&path, engine)?;
            tracing::info!(directory = %path.display(), engine = engine_name(disk.engine()), "the log directory is in use");
            Ok(Arc::new(disk) as Arc<dyn Disk>)
        }));
    }
    Ok(directories)
}

/// Refuses paths that would put two logs into one directory, or one log into another's directory.
pub fn check(paths: &[PathBuf]) -> anyhow::Result<()> {
    let inode = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    for (at, path) in paths.iter().enumerate() {
        for other in &paths[..at] {
            let (one, two) = (resolved(other), resolved(path));
            // The inode reveals a directory that is mounted at two places.
            if one == two || inode(path).is_some_and(|found| inode(other) == Some(found)) {
                let (one, two) = (other.display(), path.display());
                bail!("log.dirs names the same directory twice: {one} and {two}");
            }
            let nested = if two.starts_with(&one) { Some((path, other)) } else { None };
            let nested = nested.or_else(|| one.starts_with(&two).then_some((other, path)));
            if let Some((inner, outer)) = nested {
                bail!("log.dirs: {} lies inside of {}", inner.display(), outer.display());
            }
        }
    }
    Ok(())
}

/// The path with links resolved, as far as it exists.
pub fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match known {
        Some((above, known)) => match path.strip_prefix(above) {
            Ok(rest) if rest.as_os_str().is_empty() => known,
            Ok(rest) => known.join(rest),
            Err(_) => path,
        },
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d");
        create(&path).unwrap();
        let mode_of = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode_of(&path), 0o700);
        for (mode, refused) in [(0o700, false), (0o755, false), (0o775, true), (0o702, true), (0o1777, true)]
        {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let result = check_access("data directory", &path);
            assert_eq!(result.is_err(), refused, "{mode:o}");
            if let Err(error) = result {
                let line = format!("`chmod 700 {}`", path.display());
                assert!(error.to_string().contains(&line), "{error}");
                assert!(error.to_string().contains(&format!("{}/mainstem", path.display())), "{error}");
            }
        }
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            let error = check_access("data directory", &path).unwrap_err().to_string();
            assert!(
                error.contains("belongs to another user (uid 12345") && error.contains("chown -R 0 "),
                "{error}"
            );
        }
    }

    /// What Kubernetes mounts: a volume of root's that belongs to a group of the server's, and one that is everybody's.
    #[test]
    fn a_volume_that_was_given_to_the_servers_group_is_taken() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let server = 12_345;
        for (owner, mode, ours, access) in [
            (0, 0o2775, true, Access::Ours),
            (0, 0o2770, true, Access::Ours),
            (0, 0o2770, false, Access::OthersOwn),
            (0, 0o755, true, Access::OthersOwn),
            (0, 0o777, true, Access::OthersWrite),
            (0, 0o1777, false, Access::OthersWrite),
            (99, 0o770, true, Access::OthersOwn),
            (server, 0o770, true, Access::OthersWrite),
            (server, 0o2770, true, Access::Ours),
            (server, 0o2775, true, Access::Readable),
            (server, 0o2770, false, Access::OthersWrite),
            (server, 0o2777, true, Access::OthersWrite),
            (server, 0o750, false, Access::Readable),
            (server, 0o700, false, Access::Ours),
        ] {
            std::os::unix::fs::chown(directory.path(), Some(owner), None).unwrap();
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let found = std::fs::metadata(directory.path()).unwrap();
            assert_eq!(Access::of(&found, server, || ours), access, "{owner} {mode:o} {ours}");
        }
        std::os::unix::fs::chown(directory.path(), Some(0), None).unwrap();
    }

    #[test]
    fn one_directory_cannot_be_two_logs() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        std::fs::create_dir(at("a")).unwrap();
        std::os::unix::fs::symlink(at("a"), at("link")).unwrap();
        let error_of = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(|name| at(name)).collect();
            let shown = format!("{}/", parent.path().display());
            check(&paths).map_err(|error| error.to_string().replace(&shown, ""))
        };
        let twice =
            |one: &str, two: &str| Err(format!("log.dirs names the same directory twice: {one} and {two}"));
        assert_eq!(error_of(&["a", "b", "a"]), twice("a", "a"));
        assert_eq!(error_of(&["a", "link"]), twice("a", "link"));
        // Neither directory exists yet, and both would be the same.
        assert_eq!(error_of(&["link/new", "a/new"]), twice("link/new", "a/new"));
        assert_eq!(error_of(&["new", "new/."]), twice("new", "new/."));
        assert_eq!(error_of(&["a", "a/b"]), Err("log.dirs: a/b lies inside of a".into()));
        assert_eq!(error_of(&["link/b", "a"]), Err("log.dirs: link/b lies inside of a".into()));
        assert_eq!(error_of(&["a", "ab", "b"]), Ok(()));
    }
}
