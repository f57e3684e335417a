//! A disk in memory that behaves as badly as a real one may, and repeats its behaviour for the same seed.
//!
//! For every file, the simulated disk knows which bytes a power cut can take and which not. It finishes the operations
//! of a queue late and out of order, tears writes, and fails on demand. It has no clock and makes no threads. A seed
//! and the sequence of calls decide everything.
//!
//! Invariants:
//! - A write survives [`SimDisk::crash`] for certain only under the conditions in this crate's root documentation.
//! - After [`SimDisk::crash`] or [`SimDisk::restart`] every operation of the old disk fails, also those in flight.
//! - Locks are taken in the order state, content.

mod content;
mod queue;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use self::content::Content;
use self::queue::SimQueue;
use crate::{Disk, File, Queue, SECTOR};

/// Free space of a new disk: more than a test fills by accident.
const CAPACITY_DEFAULT: u64 = 1 << 40;

/// A handle to a simulated disk; clones share it.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

/// How long a fault lasts after it struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One operation fails; those after it succeed.
    Once,
    /// Every operation fails from then on.
    Forever,
}

/// Counts of the operations of a [`SimDisk`] since it was made, by queues and files together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Completed writes, durable or not.
    pub writes: u64,
    /// Completed writes that had to be durable.
    pub durable_writes: u64,
    /// Bytes of completed writes.
    pub bytes_written: u64,
    /// Reads.
    pub reads: u64,
    /// Reads that failed on demand.
    pub failed_reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Completed syncs.
    pub syncs: u64,
}

struct Shared {
    state: Mutex<State>,
}

struct State {
    dead: bool,
    rng: fastrand::Rng,
    names: BTreeMap<String, Name>,
    capacity: u64,
    tear_bytes: usize,
    lies_about_sync: bool,
    holds_syncs: bool,
    holds_durable_writes: bool,
    write_fault: Option<Countdown>,
    sync_fault: Option<Countdown>,
    read_fault: Option<ReadFault>,
    counters: Counters,
    /// Grows with every completed write.
    next_sequence: u64,
    /// In the order of their start, over all queues.
    in_flight: BTreeMap<u64, Operation>,
    next_operation: u64,
}

struct Name {
    inode: Arc<Inode>,
    durable: bool,
}

struct Inode {
    length: u64,
    content: Mutex<Content>,
}

/// An operation that a queue has started and not finished.
struct Operation {
    token: u64,
    inode: Arc<Inode>,
    kind: OperationKind,
}

enum OperationKind {
    Write {
        position: u64,
        data: Bytes,
        durable: bool,
    },
    /// The sync covers completed writes with a lower sequence number.
    Sync {
        below: u64,
    },
}

struct Countdown {
    remaining: u64,
    fault: Fault,
}

struct ReadFault {
    inode: Option<Arc<Inode>>,
    range: Range<u64>,
    fault: Fault,
}

impl SimDisk {
    /// An empty disk. All its choices follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::from_state(State {
            dead: false,
            rng: fastrand::Rng::with_seed(seed),
            names: BTreeMap::new(),
            capacity: CAPACITY_DEFAULT,
            tear_bytes: SECTOR,
            lies_about_sync: false,
            holds_syncs: false,
            holds_durable_writes: false,
            write_fault: None,
            sync_fault: None,
            read_fault: None,
            counters: Counters::default(),
            next_sequence: 1,
            in_flight: BTreeMap::new(),
            next_operation: 0,
        })
    }

    /// The disk after a power cut at this moment. `seed` decides what is lost. Each write that is in flight or not
    /// synced is kept, dropped or torn. Each new name that is not yet durable is kept or dropped.
    pub fn crash(&self, seed: u64) -> Self {
        let mut state = self.shared.state.lock();
        let mut rng = fastrand::Rng::with_seed(seed);
        state.dead = true;
        let mut names = BTreeMap::new();
        for (name, entry) in &state.names {
            if !entry.durable && rng.bool() {
                continue;
            }
            let caught: Vec<(u64, &[u8])> = state.writes_in_flight(&entry.inode).collect();
            let content = entry.inode.content.lock().after_power_cut(&caught, state.tear_bytes, &mut rng);
            names.insert(name.clone(), Name::new(entry.inode.length, content, true));
        }
        Self::from_state(state.successor(names, rng))
    }

    /// The disk after `kill -9` of the process. Completed writes are kept (and are still not durable). Each write in
    /// flight happened or did not.
    pub fn restart(&self) -> Self {
        let mut state = self.shared.state.lock();
        let mut rng = state.rng.fork();
        state.dead = true;
        let mut names = BTreeMap::new();
        let mut sequence = state.next_sequence;
        for (name, entry) in &state.names {
            let mut content = entry.inode.content.lock().clone();
            for (position, data) in state.writes_in_flight(&entry.inode) {
                if rng.bool() {
                    content.write(sequence, position, data, false);
                    sequence += 1;
                }
            }
            names.insert(name.clone(), Name::new(entry.inode.length, content, entry.durable));
        }
        let mut successor = state.successor(names, rng);
        successor.next_sequence = sequence;
        Self::from_state(successor)
    }

    /// After `n` more writes complete, the next write fails with EIO and leaves any part of itself behind.
    pub fn fail_write_after(&self, n: u64, fault: Fault) {
        self.shared.state.lock().write_fault = Some(Countdown { remaining: n, fault });
    }

    /// After `n` more syncs complete, the next sync fails with EIO. No later sync makes the writes durable that it
    /// covered. Durable writes count as writes, not as syncs.
    pub fn fail_sync_after(&self, n: u64, fault: Fault) {
        self.shared.state.lock().sync_fault = Some(Countdown { remaining: n, fault });
    }

    /// The next read fails with EIO: of the named file, or of any file.
    pub fn fail_reads(&self, name: Option<&str>, fault: Fault) {
        let mut state = self.shared.state.lock();
        let inode = name.map(|name| state.named(name).expect("the file exists"));
        state.read_fault = Some(ReadFault { inode, range: 0..u64::MAX, fault });
    }

    /// From now on every read of a byte in `range` fails with EIO, as from sectors that a medium has lost.
    pub fn fail_reads_of(&self, name: &str, range: Range<u64>) {
        let mut state = self.shared.state.lock();
        let inode = Some(state.named(name).expect("the file exists"));
        state.read_fault = Some(ReadFault { inode, range, fault: Fault::Forever });
    }

    /// Ends all faults that were asked for.
    pub fn clear_faults(&self) {
        let mut state = self.shared.state.lock();
        state.write_fault = None;
        state.sync_fault = None;
        state.read_fault = None;
    }

    /// Sets the bytes that all files together may take. Existing files do not change.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.state.lock().capacity = bytes;
    }

    /// Sets the unit in which a power cut tears writes: a divisor of [`SECTOR`], which is the default. Smaller units
    /// model devices with 512-byte sectors.
    pub fn set_tear_bytes(&self, bytes: usize) {
        assert!(bytes > 0 && SECTOR.is_multiple_of(bytes), "a sector is torn in equal parts");
        self.shared.state.lock().tear_bytes = bytes;
    }

    /// Lets durable writes and syncs complete without reaching the medium. This tests the tests.
    pub fn lie_about_sync(&self, lie: bool) {
        self.shared.state.lock().lies_about_sync = lie;
    }

    /// Keeps queues from finishing syncs, like a busy device, until called with false.
    pub fn hold_syncs(&self, hold: bool) {
        self.shared.state.lock().holds_syncs = hold;
    }

    /// Like [`SimDisk::hold_syncs`], for durable writes.
    pub fn hold_durable_writes(&self, hold: bool) {
        self.shared.state.lock().holds_durable_writes = hold;
    }

    /// Flips one bit (0 to 7) of the byte at `position`, as a decaying medium does. Panics when the file is missing.
    pub fn flip_bit(&self, name: &str, position: u64, bit: u8) {
        assert!(bit < 8, "a byte has bits 0 to 7");
        self.corrupt(name, position..position + 1, |_, byte| byte ^ (1 << bit));
    }

    /// Overwrites a range of bytes with random ones. Panics when the file is missing.
    pub fn damage(&self, name: &str, range: Range<u64>) {
        let mut rng = self.shared.state.lock().rng.fork();
        self.corrupt(name, range, |_, _| rng.u8(..));
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        self.shared.state.lock().counters
    }

    fn corrupt(&self, name: &str, range: Range<u64>, change: impl FnMut(u64, u8) -> u8) {
        let state = self.shared.state.lock();
        let inode = state.named(name).expect("the file exists");
        assert!(range.end <= inode.length, "damage ends inside the file");
        inode.content.lock().corrupt(range, change);
    }

    fn from_state(state: State) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(state) }) }
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.shared.alive()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        assert_aligned(length);
        let mut state = self.shared.alive()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state.free_bytes() < length {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let entry = Name::new(length, Content::default(), false);
        let file = self.shared.file(name, &entry.inode);
        state.names.insert(name.to_owned(), entry);
        Ok(file)
    }

    fn shorten(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        assert_aligned(length);
        let mut state = self.shared.alive()?;
        let entry = state.names.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        assert!(length <= entry.inode.length, "a file is only made shorter");
        // Bytes behind the new end stay in the content and can no longer be reached.
        let inode = entry.resize(length);
        drop(state);
        Ok(self.shared.file(name, &inode))
    }

    fn lengthen(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        assert_aligned(length);
        let mut state = self.shared.alive()?;
        let before = state.named(name)?.length;
        assert!(length >= before, "a file is only made longer");
        if state.free_bytes() < length - before {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = state.names.get_mut(name).ok_or(io::ErrorKind::NotFound)?.resize(length);
        drop(state);
        Ok(self.shared.file(name, &inode))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let inode = self.shared.alive()?.named(name)?;
        Ok(self.shared.file(name, &inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.shared.alive()?;
        let entry = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), entry);
        state.sync_names();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.shared.alive()?;
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.sync_names();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.shared.alive()?.free_bytes())
    }

    fn capacity_bytes(&self) -> io::Result<u64> {
        Ok(self.shared.alive()?.capacity)
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn Queue>> {
        let rng = self.shared.alive()?.rng.fork();
        Ok(Box::new(SimQueue::new(self.shared.clone(), depth, rng)))
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        let names: Vec<&String> = state.names.keys().collect();
        f.debug_struct("SimDisk")
            .field("dead", &state.dead)
            .field("names", &names)
            .field("counters", &state.counters)
            .finish()
    }
}

impl Shared {
    fn alive(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.dead { Err(dead()) } else { Ok(state) }
    }

    fn file(self: &Arc<Self>, name: &str, inode: &Arc<Inode>) -> Arc<dyn File> {
        Arc::new(SimFile { shared: self.clone(), inode: inode.clone(), name: name.to_owned() })
    }
}

impl State {
    fn named(&self, name: &str) -> io::Result<Arc<Inode>> {
        Ok(self.names.get(name).ok_or(io::ErrorKind::NotFound)?.inode.clone())
    }

    fn free_bytes(&self) -> u64 {
        let taken: u64 = self.names.values().map(|entry| entry.inode.length).sum();
        self.capacity.saturating_sub(taken)
    }

    fn sync_names(&mut self) {
        for entry in self.names.values_mut() {
            entry.durable = true;
        }
    }

    fn writes_in_flight<'a>(&'a self, inode: &'a Arc<Inode>) -> impl Iterator<Item = (u64, &'a [u8])> {
        self.in_flight.values().filter(move |operation| Arc::ptr_eq(&operation.inode, inode)).filter_map(
            |operation| match &operation.kind {
                OperationKind::Write { position, data, .. } => Some((*position, &data[..])),
                OperationKind::Sync { .. } => None,
            },
        )
    }

    /// A disk with the same settings and no faults.
    fn successor(&self, names: BTreeMap<String, Name>, rng: fastrand::Rng) -> Self {
        Self {
            dead: false,
            rng,
            names,
            capacity: self.capacity,
            tear_bytes: self.tear_bytes,
            lies_about_sync: self.lies_about_sync,
            holds_syncs: false,
            holds_durable_writes: false,
            write_fault: None,
            sync_fault: None,
            read_fault: None,
            counters: Counters::default(),
            next_sequence: self.next_sequence,
            in_flight: BTreeMap::new(),
            next_operation: 0,
        }
    }

    fn finish_write(&mut self, inode: &Inode, position: u64, data: &[u8], durable: bool) -> io::Result<()> {
        if self.dead {
            return Err(dead());
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let mut content = inode.content.lock();
        if Countdown::strikes(&mut self.write_fault) {
            content.fail_write(sequence, position, data, &mut self.rng);
            return Err(input_output_error());
        }
        content.write(sequence, position, data, durable && !self.lies_about_sync);
        self.counters.writes += 1;
        self.counters.durable_writes += u64::from(durable);
        self.counters.bytes_written += data.len() as u64;
        Ok(())
    }

    fn finish_sync(&mut self, inode: &Inode, below: u64) -> io::Result<()> {
        if self.dead {
            return Err(dead());
        }
        let mut content = inode.content.lock();
        if Countdown::strikes(&mut self.sync_fault) {
            content.fail_sync(below);
            return Err(input_output_error());
        }
        if !self.lies_about_sync {
            content.sync(below);
        }
        self.counters.syncs += 1;
        Ok(())
    }

    fn read_fails(&mut self, inode: &Arc<Inode>, range: &Range<u64>) -> bool {
        let Some(fault) = &self.read_fault else { return false };
        let apart = range.end <= fault.range.start || fault.range.end <= range.start;
        if apart || fault.inode.as_ref().is_some_and(|wanted| !Arc::ptr_eq(wanted, inode)) {
            return false;
        }
        if fault.fault == Fault::Once {
            self.read_fault = None;
        }
        true
    }
}

impl Name {
    fn new(length: u64, content: Content, durable: bool) -> Self {
        Self { inode: Arc::new(Inode { length, content: Mutex::new(content) }), durable }
    }

    /// Another inode with the same content replaces the old one.
    fn resize(&mut self, length: u64) -> Arc<Inode> {
        let content = self.inode.content.lock().clone();
        self.inode = Arc::new(Inode { length, content: Mutex::new(content) });
        self.inode.clone()
    }
}

impl Countdown {
    fn strikes(countdown: &mut Option<Self>) -> bool {
        let Some(this) = countdown else { return false };
        if this.remaining > 0 {
            this.remaining -= 1;
            return false;
        }
        if this.fault == Fault::Once {
            *countdown = None;
        }
        true
    }
}

struct SimFile {
    shared: Arc<Shared>,
    inode: Arc<Inode>,
    name: String,
}

impl SimFile {
    fn assert_inside(&self, position: u64, length: usize) {
        assert_aligned(position);
        assert_aligned(length as u64);
        assert!(length > 0, "a write has bytes");
        assert!(position + length as u64 <= self.inode.length, "a write ends inside {self:?}");
    }
}

impl File for SimFile {
    fn length(&self) -> u64 {
        self.inode.length
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        assert_aligned(position);
        assert_aligned(into.len() as u64);
        let mut state = self.shared.alive()?;
        let end = position + into.len() as u64;
        if end > self.inode.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if state.read_fails(&self.inode, &(position..end)) {
            state.counters.failed_reads += 1;
            return Err(input_output_error());
        }
        state.counters.reads += 1;
        state.counters.bytes_read += into.len() as u64;
        self.inode.content.lock().read(position, into);
        Ok(())
    }

    fn write_at(&self, position: u64, from: &[u8]) -> io::Result<()> {
        self.assert_inside(position, from.len());
        self.shared.alive()?.finish_write(&self.inode, position, from, false)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.shared.alive()?;
        let below = state.next_sequence;
        state.finish_sync(&self.inode, below)
    }

    fn is_allocated(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("opened_as", &self.name).field("length", &self.inode.length).finish()
    }
}

fn assert_aligned(value: u64) {
    assert!(value.is_multiple_of(SECTOR as u64), "{value} is not a multiple of a sector");
}

fn dead() -> io::Error {
    io::Error::other("the simulated disk has lost power")
}

fn input_output_error() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}
