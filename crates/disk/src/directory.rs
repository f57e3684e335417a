//! The real [`Disk`]: the files of one directory, by io_uring and O_DIRECT where the system allows it.
//!
//! This module does not write; the queues do. It does not watch for changes by other processes: [`lock_directory`]
//! keeps them out.
//!
//! Invariants:
//! - A file that [`Disk::create`] returns has its length on the device; one that it could not fill is gone again.
//! - Renames and removals have reached the device on return.

#![allow(unsafe_code)]

use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::file::DirectoryFile;
use crate::threads::ThreadQueue;
use crate::uring::UringQueue;
use crate::writeback::Writeback;
use crate::{AlignedBuffer, Disk, File, Queue, SECTOR};

/// The file that [`lock_directory`] locks; [`Disk::list`] leaves it out.
const LOCK_NAME: &str = "lock";

/// How a directory is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The first of the others that works.
    Auto,
    /// O_DIRECT and io_uring.
    Uring,
    /// O_DIRECT, and threads for each queue. For systems that refuse io_uring, as most containers do.
    Direct,
    /// The page cache, and a thread for each queue. For file systems that refuse O_DIRECT.
    Plain,
}

/// The files of one directory.
#[derive(Debug)]
pub struct DirectoryDisk {
    path: PathBuf,
    directory: fs::File,
    /// Never `Auto`.
    engine: Engine,
    read_only: bool,
    /// Of a directory of which nothing has to outlive a crash of the system.
    scratch: Option<Arc<Writeback>>,
}

/// Opens an existing directory. With [`Engine::Auto`], a feature that the system refuses is logged once and not used.
/// With another engine, the refusal of what it needs is an error.
pub fn open_directory(path: &Path, engine: Engine) -> io::Result<DirectoryDisk> {
    let directory = fs::File::open(path)?;
    if !directory.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let engine = if engine == Engine::Plain { engine } else { probe(path, engine)? };
    Ok(DirectoryDisk { path: path.to_owned(), directory, engine, read_only: false, scratch: None })
}

/// Opens an existing directory for reading: through the page cache, without a test of writes, and with files that
/// cannot be written.
pub fn read_directory(path: &Path) -> io::Result<DirectoryDisk> {
    Ok(DirectoryDisk { read_only: true, ..open_directory(path, Engine::Plain)? })
}

/// Opens an existing directory for files that are worth nothing after a crash of the system. They are written to the page
/// cache, and reach the device soon afterwards. Syncs do nothing, and neither new files nor their names are synced.
pub fn scratch_directory(path: &Path, engine: Engine) -> io::Result<DirectoryDisk> {
    Ok(DirectoryDisk { scratch: Some(Writeback::start()), ..open_directory(path, engine)? })
}

impl DirectoryDisk {
    /// The engine in use: never [`Engine::Auto`].
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The path of the directory, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn path_of(&self, name: &str) -> PathBuf {
        assert!(
            !name.is_empty() && !name.starts_with('.') && !name.contains('/'),
            "{name:?} is a plain file name"
        );
        assert!(name != LOCK_NAME, "the lock file is not data");
        self.path.join(name)
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(!self.read_only);
        if self.direct() {
            options.custom_flags(libc::O_DIRECT);
        }
        options
    }

    /// What nobody syncs is written to the page cache: the device gets it in large pieces, and nobody waits for it.
    fn direct(&self) -> bool {
        self.engine != Engine::Plain && self.scratch.is_none()
    }

    fn file(&self, file: fs::File, path: PathBuf, length: u64) -> DirectoryFile {
        let file = DirectoryFile::new(file, path, length, self.direct());
        match &self.scratch {
            Some(writeback) => file.without_sync(writeback),
            None => file,
        }
    }

    /// Syncs the names.
    fn sync_names(&self) -> io::Result<()> {
        if self.scratch.is_some() { Ok(()) } else { self.directory.sync_all() }
    }
}

impl Disk for DirectoryDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Other names are not files of this crate: hidden files, the lock, and names that are not UTF-8.
            if let Ok(name) = entry.file_name().into_string()
                && !name.starts_with('.')
                && name != LOCK_NAME
                && entry.file_type()?.is_file()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        assert!(length.is_multiple_of(SECTOR as u64), "length {length} is not a multiple of a sector");
        let path = self.path_of(name);
        let file = self.options().create_new(true).open(&path).map_err(full)?;
        let synced = |()| if self.scratch.is_some() { Ok(()) } else { file.sync_all() };
        if let Err(error) = allocate(&file, length).and_then(synced) {
            fs::remove_file(&path)?;
            return Err(full(error));
        }
        Ok(Arc::new(self.file(file, path, length)))
    }

    fn shorten(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        assert!(length.is_multiple_of(SECTOR as u64), "length {length} is not a multiple of a sector");
        let path = self.path_of(name);
        let file = self.options().open(&path)?;
        assert!(length <= file.metadata()?.len(), "a file is only made shorter");
        file.set_len(length)?;
        Ok(Arc::new(self.file(file, path, length)))
    }

    fn lengthen(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        assert!(length.is_multiple_of(SECTOR as u64), "length {length} is not a multiple of a sector");
        let path = self.path_of(name);
        let file = self.options().open(&path)?;
        assert!(length >= file.metadata()?.len(), "a file is only made longer");
        allocate(&file, length).map_err(full)?;
        Ok(Arc::new(self.file(file, path, length)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let path = self.path_of(name);
        let file = self.options().open(&path)?;
        let length = file.metadata()?.len();
        Ok(Arc::new(self.file(file, path, length)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path_of(from), self.path_of(to))?;
        self.sync_names()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path_of(name))?;
        self.sync_names()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        free_beside(&self.directory)
    }

    fn capacity_bytes(&self) -> io::Result<u64> {
        let numbers = file_system_of(&self.directory)?;
        Ok(numbers.f_blocks.saturating_mul(numbers.f_frsize))
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>> {
        Ok(match self.engine {
            Engine::Plain => Box::new(ThreadQueue::in_order(depth)?),
            Engine::Direct => Box::new(ThreadQueue::overlapping(depth)?),
            Engine::Uring | Engine::Auto => Box::new(UringQueue::new(depth)?),
        })
    }
}

/// Holds the lock on a directory until it is dropped, or until the process ends in any way.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: fs::File,
}

/// Locks a directory against other processes (`flock` on the file `lock` in it). `WouldBlock` if another process has
/// the lock.
pub fn lock_directory(path: &Path) -> io::Result<DirectoryLock> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path.join(LOCK_NAME))?;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    // The process id is for people who look for the owner. A full disk must not prevent the start of the server.
    if let Err(error) = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())) {
        tracing::debug!(%error, "the process id could not be noted in the lock file");
    }
    Ok(DirectoryLock { _file: file })
}

/// Keeps servers out of a directory without writing to it, until it is dropped. `WouldBlock` if a server uses the
/// directory. Several processes may share the directory in this way.
pub fn share_directory(path: &Path) -> io::Result<Option<DirectoryLock>> {
    let file = match fs::File::open(path.join(LOCK_NAME)) {
        // No server has ever used this directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(DirectoryLock { _file: file })),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The engine to use where `wanted` is asked for: tries O_DIRECT, and io_uring unless it is not wanted, on a file without a
/// name. Fails where the directory cannot be written at all, and where an engine that was named is refused. A full disk is no
/// evidence against an engine.
fn probe(path: &Path, wanted: Engine) -> io::Result<Engine> {
    let refused = |what: &str, error: io::Error, instead, by: &str| {
        if wanted == Engine::Auto {
            tracing::info!(directory = %path.display(), %error, "{what} is refused here, so the disk is written by {by}");
            return Ok(instead);
        }
        Err(io::Error::new(error.kind(), format!("{what} is refused: {error}")))
    };
    let file_path = path.join(format!(".probe-{}", std::process::id()));
    drop(OpenOptions::new().write(true).create(true).truncate(true).open(&file_path)?);
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&file_path);
    fs::remove_file(&file_path)?;
    let file = match opened {
        Ok(file) => DirectoryFile::new(file, file_path, SECTOR as u64, true),
        Err(error) => return refused("O_DIRECT", error, Engine::Plain, "the page cache"),
    };
    let writable = match file.write_at(0, &AlignedBuffer::zeroed(SECTOR)) {
        Ok(()) => true,
        Err(error) if full_kind(&error) => false,
        Err(error) => return refused("O_DIRECT", error, Engine::Plain, "the page cache"),
    };
    if wanted == Engine::Direct {
        return Ok(wanted);
    }
    let file: Arc<dyn File> = Arc::new(file);
    match UringQueue::new(2).and_then(|queue| probe_ring(queue, &file, writable)) {
        Ok(()) => Ok(Engine::Uring),
        Err(error) => refused("io_uring", error, Engine::Direct, "O_DIRECT and threads"),
    }
}

fn probe_ring(mut queue: UringQueue, file: &Arc<dyn File>, writable: bool) -> io::Result<()> {
    queue.sync(0, file);
    if writable {
        queue.write(1, file, 0, AlignedBuffer::zeroed(SECTOR).into_bytes(), true);
    }
    let mut finished = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(true, None, &mut finished)?;
    }
    finished.into_iter().try_for_each(|operation| operation.result)
}

/// Free bytes of the file system that holds an open file or directory.
fn free_beside(file: &fs::File) -> io::Result<u64> {
    let numbers = file_system_of(file)?;
    Ok(numbers.f_bavail.saturating_mul(numbers.f_frsize))
}

fn file_system_of(file: &fs::File) -> io::Result<libc::statvfs> {
    // SAFETY: `statvfs` is plain data for which all zeros is a value.
    let mut numbers: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `numbers` outlives the call.
    retried(|| unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut numbers) })?;
    Ok(numbers)
}

/// Allocates the blocks of a file up to a length that is at least its own. If the file system cannot do that, only sets
/// the length.
fn allocate(file: &fs::File, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let bytes =
        libc::off_t::try_from(length).map_err(|error| io::Error::new(io::ErrorKind::FileTooLarge, error))?;
    // A file system may take all free space before it finds that the space is too small, and other programs write to it
    // too.
    if length - file.metadata()?.len() > free_beside(file)? {
        return Err(io::ErrorKind::StorageFull.into());
    }
    // SAFETY: the descriptor is open; no memory is involved.
    match retried(|| unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) }) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
            file.set_len(length)
        }
        result => result,
    }
}

/// Repeats a call until no signal interrupts it.
fn retried(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    loop {
        if call() == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn full_kind(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A used-up quota counts as a full disk.
fn full(error: io::Error) -> io::Error {
    if full_kind(&error) { io::Error::new(io::ErrorKind::StorageFull, error) } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the kernel refuse a system call of this thread with `error`; if `flags` is not zero, only with one of
    /// these flags in its third argument.
    fn refuse(call: libc::c_long, flags: i32, error: i32) {
        const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        const SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
        const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
        let number = u32::try_from(call).expect("a system call's number");
        let mask = if flags == 0 { u32::MAX } else { flags.cast_unsigned() };
        let refusal = libc::SECCOMP_RET_ERRNO | error.cast_unsigned();
        let step = |code: u32, jt, jf, k| {
            let code = u16::try_from(code).expect("an instruction's code");
            libc::sock_filter { code, jt, jf, k }
        };
        // Offsets into `seccomp_data`: the number is at 0, the third argument at 32.
        let mut steps = [
            step(LOAD, 0, 0, 0),
            step(EQUAL, 0, 3, number),
            step(LOAD, 0, 0, 32),
            step(SET, 0, 1, mask),
            step(RETURN, 0, 0, refusal),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        if flags == 0 {
            steps[3] = step(EQUAL, 0, 0, 0);
        }
        let program = libc::sock_fprog { len: 6, filter: steps.as_mut_ptr() };
        // SAFETY: the filter is copied by the call and binds only this thread.
        let outcome = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
    }

    /// Checks that `instead` is the engine where a call is refused, that better ones are refused with `what`, and that it works.
    fn falls_back(call: libc::c_long, flags: i32, error: i32, what: &'static str, instead: Engine) {
        let work = move || {
            let directory = tempfile::TempDir::new().expect("a directory");
            refuse(call, flags, error);
            let disk = open_directory(directory.path(), Engine::Auto).expect("something works");
            assert_eq!(disk.engine(), instead);
            for named in [Engine::Uring, Engine::Direct, Engine::Plain] {
                match open_directory(directory.path(), named) {
                    Ok(opened) => assert_eq!(opened.engine(), named),
                    Err(refusal) => {
                        assert!(named != instead && named != Engine::Plain);
                        assert!(refusal.to_string().starts_with(what), "{refusal}");
                    }
                }
            }
            let file = disk.create("a", 4096).expect("a file");
            let mut queue = disk.queue(1).expect("a queue");
            queue.write(1, &file, 0, AlignedBuffer::zeroed(4096).into_bytes(), true);
            let mut finished = Vec::new();
            queue.wait(true, None, &mut finished).expect("it works");
            assert!(finished[0].result.is_ok());
        };
        std::thread::spawn(work).join().expect("the fallback works");
    }

    #[test]
    fn auto_does_without_io_uring() {
        falls_back(libc::SYS_io_uring_setup, 0, libc::EPERM, "io_uring is refused", Engine::Direct);
    }

    #[test]
    fn auto_does_without_direct_io() {
        falls_back(libc::SYS_openat, libc::O_DIRECT, libc::EINVAL, "O_DIRECT is refused", Engine::Plain);
    }

    /// A file that cannot fit is refused before the file system is asked. A refusal of the file system leaves no file.
    #[test]
    fn a_file_that_cannot_fit_takes_no_room() {
        let work = || {
            let directory = tempfile::TempDir::new().expect("a directory");
            let disk = open_directory(directory.path(), Engine::Plain).expect("plain I/O is not refused");
            refuse(libc::SYS_fallocate, 0, libc::EIO);
            let too_long = (disk.free_bytes().expect("it is known") * 2).next_multiple_of(SECTOR as u64);
            for (length, kind) in [(too_long, Some(io::ErrorKind::StorageFull)), (1 << 20, None)] {
                let error = disk.create("a", length).expect_err("nothing can be reserved");
                assert_eq!(error.raw_os_error().is_none().then_some(error.kind()), kind, "{length}");
                assert!(disk.list().expect("a list").is_empty());
            }
        };
        std::thread::spawn(work).join().expect("the checks hold");
    }

    #[test]
    fn durable_writes_do_without_dsync() {
        let work = |engine| {
            let directory = tempfile::TempDir::new().expect("a directory");
            refuse(libc::SYS_pwritev2, 0, libc::EOPNOTSUPP);
            let disk = open_directory(directory.path(), engine).expect("a durable write is not tried");
            let file = disk.create("a", 4096).expect("a file");
            let mut queue = disk.queue(2).expect("a queue");
            let mut data = AlignedBuffer::zeroed(4096);
            data.fill(5);
            let data = data.into_bytes();
            for round in 0..2 {
                queue.write(round, &file, 0, data.clone(), true);
                let mut finished = Vec::new();
                queue.wait(true, None, &mut finished).expect("it works");
                assert!(finished[0].result.is_ok());
            }
            let mut back = AlignedBuffer::zeroed(4096);
            file.read_at(0, &mut back).expect("it was written");
            assert_eq!(back[..], data[..]);
        };
        for engine in [Engine::Plain, Engine::Direct] {
            std::thread::spawn(move || work(engine)).join().expect("the fallback works");
        }
    }
}
