//! A disk whose writes stay in memory; the disk below is only read.
//!
//! Opening a log completes trailers and renews headers. On this disk, it can be tried on a log that must not change.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

use disk::{Disk, File, Queue, SECTOR};
use parking_lot::Mutex;

/// The disk below, and the changes above it.
#[derive(Debug)]
pub(crate) struct Unwritten<'a> {
    disk: &'a dyn Disk,
    removed: Mutex<HashSet<String>>,
    /// A file, and the name that it has here.
    renamed: Option<(&'static str, String)>,
}

impl<'a> Unwritten<'a> {
    pub fn new(disk: &'a dyn Disk) -> Unwritten<'a> {
        Unwritten { disk, removed: Mutex::default(), renamed: None }
    }

    /// Like [`Unwritten::new`], with the file `from` under the name `to`.
    pub fn renamed(disk: &'a dyn Disk, from: &'static str, to: String) -> Unwritten<'a> {
        Unwritten { renamed: Some((from, to)), ..Unwritten::new(disk) }
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Disk for Unwritten<'_> {
    fn list(&self) -> io::Result<Vec<String>> {
        let removed = self.removed.lock();
        let shown = |name: String| match &self.renamed {
            Some((from, to)) if name == *from => to.clone(),
            _ => name,
        };
        Ok(self.disk.list()?.into_iter().map(shown).filter(|name| !removed.contains(name)).collect())
    }

    fn create(&self, _name: &str, _length: u64) -> io::Result<Arc<dyn File>> {
        refused()
    }

    fn shorten(&self, _name: &str, _length: u64) -> io::Result<Arc<dyn File>> {
        refused()
    }

    fn lengthen(&self, _name: &str, _length: u64) -> io::Result<Arc<dyn File>> {
        refused()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let name = match &self.renamed {
            Some((from, to)) if name == *to => from,
            _ => name,
        };
        Ok(Arc::new(UnwrittenFile { file: self.disk.open(name)?, sectors: Mutex::default() }))
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        refused()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.removed.lock().insert(name.to_owned());
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn capacity_bytes(&self) -> io::Result<u64> {
        self.disk.capacity_bytes()
    }

    fn queue(&self, _depth: usize) -> io::Result<Box<dyn Queue>> {
        refused()
    }
}

#[derive(Debug)]
struct UnwrittenFile {
    file: Arc<dyn File>,
    /// The written sectors whose contents differ from those of the disk below.
    sectors: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl File for UnwrittenFile {
    fn length(&self) -> u64 {
        self.file.length()
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_at(position, into)?;
        for (at, sector) in self.sectors.lock().range(position..position + into.len() as u64) {
            let from = usize::try_from(at - position).expect("it lies inside of `into`");
            into[from..from + SECTOR].copy_from_slice(sector);
        }
        Ok(())
    }

    fn write_at(&self, position: u64, from: &[u8]) -> io::Result<()> {
        let mut there = disk::AlignedBuffer::zeroed(from.len());
        let known = self.read_at(position, &mut there).is_ok();
        let mut sectors = self.sectors.lock();
        let positions = (position..).step_by(SECTOR);
        for ((at, new), old) in positions.zip(from.chunks(SECTOR)).zip(there.chunks(SECTOR)) {
            if !known || new != old {
                sectors.insert(at, new.to_vec());
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_allocated(&self) -> bool {
        self.file.is_allocated()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
