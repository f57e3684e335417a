//! A log whose owner loses its disk comes back from its objects and from one broker of its copy set, while the former owner goes
//! on: nothing that was answered is lost, and the former owner answers for nothing that the log does not have.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::{Disk, SimDisk};
use model::{Offset, StreamId};
use objects::BucketError;
use objects::sim::Faults;

use super::crash::seeds;
use super::restore::{Snapshot, restored, snapshot};
use super::support::{Former, Left, Outcome, Sent, StreamModel, World, open, small_options};
use super::takeover::{former_go_on, one_thing};
use crate::copies::{Block, Copies, Opening, RefusedError};
use crate::epochs::Owned;
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, Lsn, seeded_crc};
use crate::log::Parts;
use crate::options::Mutation;
use crate::preparer::Preparer;
use crate::request::Durability;
use crate::stream::REMEMBERED_BATCHES;
use crate::tier::Class;
use crate::tools::takeover::{TakeOver, TakeOverError};
use crate::writer::{Patience, Writer};

/// A mistake in what the test does for an owner and for those that keep copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// An owner answers when one of the set has a block.
    AnswersAfterOne,
    /// A broker forgets its fences when it starts again.
    ForgetsFences,
    /// A recoverer reads a copy that it has not fenced.
    ReadsUnfenced,
    /// A recoverer takes what is stored for everything.
    IgnoresCopies,
    /// Copies of the former owner go before the next one is open.
    DropsEarly,
    /// The mistake is in the log.
    Within(Mutation),
}

/// A broker that keeps copies.
struct Peer {
    disk: SimDisk,
    copies: Copies,
    writer: Writer,
    preparer: Preparer,
}

impl Peer {
    fn on(disk: SimDisk, world: &World) -> Peer {
        let options = crate::Options { log_id: 7, ..small_options() };
        let Parts { log, writer, preparer, .. } = open(&disk, &options, &world.clock).unwrap();
        let copies = Copies::of(log, Arc::new(disk.clone())).unwrap();
        Peer { disk, copies, writer, preparer }
    }

    fn turn(&mut self) {
        while self.preparer.turn() {}
        self.writer.turn(Patience::None);
    }

    /// Takes some of the blocks that it does not have. Returns the number behind those that it has synced, unless it is fenced.
    fn take(&mut self, of: Opening, sent: &Sent, most: usize) -> Option<u64> {
        let extent = self.copies.extents(of.log_id).into_iter().find(|extent| extent.of == of);
        let blocks = sent.blocks.lock();
        let (begins, from) = (extent.is_none(), extent.map_or(0, |extent| extent.next.max(self.taken(of))));
        let from = usize::try_from(from).unwrap();
        let blocks = blocks.get(from..(from + most).min(blocks.len())).unwrap_or_default();
        self.turn();
        match self.copies.add(of, blocks, begins, Arc::new(Outcome::default())) {
            Ok(()) | Err(RefusedError::Admit(_)) => {}
            Err(RefusedError::Fenced(_)) => return None,
            Err(error) => panic!("{error}"),
        }
        self.turn();
        let extent = self.copies.extents(of.log_id).into_iter().find(|extent| extent.of == of);
        Some(extent.map_or(0, |extent| extent.next))
    }

    fn taken(&self, of: Opening) -> u64 {
        match self.copies.add(of, &[gap()], false, Arc::new(Outcome::default())) {
            Err(RefusedError::Gap(next)) => next,
            _ => 0,
        }
    }

    fn settle(&mut self, log_id: u128) {
        while !self.copies.is_settled(log_id).unwrap() {
            self.turn();
        }
    }
}

/// A block that no copy takes.
fn gap() -> Block {
    block(u64::MAX >> 1)
}

/// A block that looks like those of a log.
fn block(number: u64) -> Block {
    let generation = number + 1;
    let payload = [u8::try_from(number % 251).unwrap(); 8192];
    let header = BlockHeader {
        kind: BlockKind::Entries,
        epoch: 1,
        lsn: Lsn(number),
        synced: Lsn(0),
        length: u32::try_from(payload.len()).unwrap(),
        entries: 0,
        payload_crc: seeded_crc(generation, &payload),
    };
    let mut bytes = vec![0; BLOCK_HEADER_BYTES];
    header.encode(generation, &mut bytes);
    bytes.extend(payload);
    Block { number, generation, bytes: bytes.into() }
}

/// How often what does not always happen did happen.
#[derive(Default, Debug)]
struct Counts {
    /// Blocks that a recoverer read.
    blocks: usize,
    /// Batches that only a copy had.
    replayed: u64,
    /// Blocks that peers had dropped by then.
    dropped: u64,
    refused: u32,
    unopened: u32,
    answered: usize,
    lost_disks: u32,
}

struct Cluster {
    world: World,
    peers: [Peer; 2],
    mistake: Option<Mistake>,
    /// The epoch of each owner, as many as there are.
    epoch: u32,
    /// The last epoch whose owner was open.
    set_epoch: u32,
    /// Which peers are members of the set of that epoch: a new disk is another member.
    members: [bool; 2],
    /// The ends of streams that the owner knew from objects when it began.
    restored: BTreeMap<u64, Offset>,
    /// Appends that did not come along.
    lost: Vec<Arc<Outcome>>,
    counts: Counts,
}

impl Cluster {
    fn new(seed: u64, mistake: Option<Mistake>) -> Cluster {
        let mutation = if let Some(Mistake::Within(mutation)) = mistake { Some(mutation) } else { None };
        let mut world = World::owned(seed, mutation);
        world.replicate();
        let peers = [1, 2].map(|peer| Peer::on(SimDisk::new(seed ^ peer << 32), &world));
        Cluster {
            world,
            peers,
            mistake,
            epoch: 1,
            set_epoch: 1,
            members: [true; 2],
            restored: BTreeMap::new(),
            lost: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn of(&self, epoch: u32) -> Opening {
        Opening { log_id: self.world.options.log_id, epoch }
    }

    /// Brings blocks of the opening to the peers. Returns below which number all have them, if none is fenced.
    fn deliver(&mut self, epoch: u32, sent: &Sent, most: usize) -> u64 {
        let of = self.of(epoch);
        let stored = sent.stored.load(Ordering::Relaxed);
        let mut had = Vec::new();
        for peer in &mut self.peers {
            let most = self.world.rng.usize(0..=most);
            let has = peer.take(of, sent, most);
            self.counts.refused += u32::from(has.is_none());
            had.extend(has);
            if self.world.rng.bool() {
                peer.copies.drop_below(of, stored);
            }
        }
        match self.mistake {
            Some(Mistake::AnswersAfterOne) => had.into_iter().max().unwrap_or(0),
            _ if had.len() < self.peers.len() => 0,
            _ => had.into_iter().min().unwrap_or(0),
        }
    }

    /// Ends all earlier epochs in the object store.
    fn seal(&mut self, epoch: u32) -> Owned {
        let mut takeover =
            TakeOver::new(Arc::new(self.world.store().clone()), self.world.options.log_id, epoch);
        loop {
            let times = self.world.rng.usize(0..6);
            self.work(times);
            match takeover.step(&|_, _| false) {
                Ok(Some(owned)) => return owned,
                Ok(None) | Err(TakeOverError::Bucket(BucketError::Unclear(_))) => {}
                Err(error) => panic!("seed {}: {error}", self.world.seed),
            }
        }
    }

    /// The owner works, and its peers get some of it. It does nothing before it is open.
    fn work(&mut self, times: usize) {
        let times = if self.set_epoch == self.epoch { times } else { 0 };
        for _ in 0..times {
            one_thing(&mut self.world);
            check_told(&self.world, &self.restored);
            let sent = self.world.sent.clone().unwrap();
            if self.world.rng.u8(0..4) == 0 {
                let copied = self.deliver(self.epoch, &sent, 6);
                self.world.parts.log.copied(copied);
            }
            let id = self.world.rng.u64(0..4);
            match self.world.rng.u8(0..120) {
                0..4 => {
                    let at = self.world.rng.usize(0..2);
                    self.restart(at);
                }
                4..8 => self.world.trim(id),
                8..12 => {
                    let bytes_max = self.world.rng.u64(0..100_000);
                    self.world.retain(id, None, Some(bytes_max));
                }
                _ => {}
            }
        }
    }

    /// Starts a peer again, perhaps after a power cut.
    fn restart(&mut self, at: usize) {
        let Cluster { world, peers, .. } = self;
        let disk =
            if world.rng.bool() { peers[at].disk.restart() } else { peers[at].disk.crash(world.rng.u64(..)) };
        if self.mistake == Some(Mistake::ForgetsFences)
            && disk.list().unwrap().iter().any(|name| name == "fences")
        {
            disk.remove("fences").unwrap();
        }
        peers[at] = Peer::on(disk, world);
    }

    /// Another process takes the log over, in a later epoch, from the objects and one of the peers.
    fn take_over(&mut self) {
        let (seed, before) = (self.world.seed, self.epoch);
        // Another process may try it with the epoch between.
        let next = before + 2;
        let owned = self.seal(next);
        let log_id = self.world.options.log_id;
        let chosen = self.world.rng.usize(0..2);
        let chosen = if self.members[chosen] { chosen } else { 1 - chosen };
        if self.world.rng.bool() {
            self.restart(chosen);
        }
        let set_of = self.of(self.set_epoch);
        if self.mistake != Some(Mistake::ReadsUnfenced) {
            self.peers[chosen].copies.fence(log_id, next).unwrap();
        }
        self.peers[chosen].settle(log_id);
        let extents = self.peers[chosen].copies.extents(log_id);
        let mut blocks = Vec::new();
        if let Some(extent) = extents.iter().find(|extent| extent.of == set_of) {
            self.counts.dropped += extent.first;
            let mut from = extent.first;
            while from < extent.next {
                let bytes_max = self.world.rng.usize(1..200_000);
                let read = self.peers[chosen].copies.read(set_of, from, bytes_max).unwrap();
                assert!(!read.is_empty(), "seed {seed}: blocks of a copy are gone");
                from += read.len() as u64;
                blocks.extend(read);
            }
        }
        self.counts.blocks += blocks.len();
        // The former owner may be alive, and the other one has not heard of the fence.
        if self.world.rng.bool() {
            self.restart(chosen);
        }
        self.work(10);
        if self.world.rng.u8(0..4) == 0 {
            self.counts.lost_disks += 1;
            self.members[1 - chosen] = false;
            self.peers[1 - chosen] = Peer::on(SimDisk::new(self.world.rng.u64(..)), &self.world);
        }
        if self.mistake == Some(Mistake::IgnoresCopies) {
            blocks.clear();
        }
        let appended = self.world.streams.iter().flat_map(|(id, model)| {
            model.appended.iter().map(|appended| (*id, appended.end(), appended.outcome.clone()))
        });
        let appended: Vec<_> = appended.collect();
        self.counts.answered += appended.iter().filter(|(_, _, outcome)| outcome.acknowledged()).count();
        let known = snapshot(&self.world);
        self.world.options.owned = Some(owned);
        let disk = SimDisk::new(self.world.rng.u64(..));
        let unknown: Snapshot = known.keys().map(|id| (*id, None)).collect();
        let log = restored(&self.world, &disk, &unknown, false)
            .unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        for (id, model) in &mut self.world.streams {
            if !log.streams.contains_key(&StreamId(*id)) {
                *model = StreamModel { deleted: Some(Outcome::done()), ..Default::default() };
            }
        }
        self.restored = log.streams.iter().map(|(id, stream)| (id.0, stream.next)).collect();
        self.world.producers_may_be_forgotten = true;
        self.world.store().set_faults(Faults::default());
        self.world.keep_running();
        self.world.replay = blocks;
        // Perhaps it dies before it is open. Then the next one may find more at another broker.
        let opens = self.world.rng.u8(0..3) > 0;
        let before_all = (!opens).then(|| self.world.streams.clone());
        self.world.reopen(disk, Left::PowerCut).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let kept: Vec<usize> = self.world.streams.values().map(|model| model.appended.len()).collect();
        let restored: u64 = log.streams.values().map(|stream| stream.batches).sum();
        self.counts.replayed += (kept.into_iter().sum::<usize>() as u64).saturating_sub(restored);
        // What did not come along must never be answered.
        let ends: BTreeMap<u64, Offset> =
            self.world.streams.iter().map(|(id, model)| (*id, model.next)).collect();
        let lost = appended.into_iter().filter(|(id, end, _)| opens && *end > ends[id]);
        self.lost.extend(lost.map(|(_, _, outcome)| outcome));
        self.former_goes_on(before);
        assert!(
            !self.lost.iter().any(|lost| lost.acknowledged()),
            "seed {seed}: answered for what the log does not have"
        );
        self.epoch = next;
        let sent = self.world.sent.clone().unwrap();
        if self.mistake == Some(Mistake::DropsEarly) {
            self.peers.iter().for_each(|peer| peer.copies.drop_before(log_id, next));
        }
        if let Some(streams) = before_all {
            let most = self.world.rng.usize(0..20);
            self.deliver(next, &sent, most);
            self.world.streams = streams;
            self.counts.unopened += 1;
            return;
        }
        let blocks = sent.blocks.lock().len();
        while self.deliver(next, &sent, 50) < blocks as u64 {}
        (self.set_epoch, self.members) = (next, [true; 2]);
        self.peers.iter().for_each(|peer| peer.copies.drop_before(log_id, next));
        self.world.parts.log.copied(blocks as u64);
        for (id, model) in &self.world.streams {
            let committed = self.world.stream(*id).bounds().committed;
            assert!(committed >= model.visible(), "seed {seed}: {} is not visible any more", model.visible());
        }
        self.world.compare();
    }

    /// The former owner goes on, with whoever still listens to it.
    fn former_goes_on(&mut self, last: u32) {
        for _ in 0..20 {
            former_go_on(&mut self.world);
            let Some(former) = self.world.former.pop() else { return };
            let Former { sent: Some(sent), .. } = &former else { return };
            let copied = self.deliver(last, sent, 6);
            former.copied(copied);
            self.world.former.push(former);
        }
    }
}

/// Checks that objects know the end of every stream once the copy set may drop all blocks. They knew those that were `restored`.
fn check_told(world: &World, restored: &BTreeMap<u64, Offset>) {
    let sent = world.sent.as_ref().unwrap();
    if sent.stored.load(Ordering::Relaxed) < sent.blocks.lock().len() as u64 {
        return;
    }
    for id in world.streams.keys() {
        let stream = world.stream(*id);
        let state = stream.lock();
        let restored = restored.get(id).copied().unwrap_or_default();
        let known = state.stored_to().unwrap_or_default().max(state.recorded.next()).max(restored);
        let goes = !state.deleted && Class::of(stream.level()).is_some();
        assert!(
            !goes || known >= state.synced,
            "seed {}: no object knows that stream {id} ends at {}",
            world.seed,
            state.synced
        );
    }
}

/// Lets the log write, and all disks of its copy set.
fn copied(world: &mut World) {
    let sent = world.sent.clone().unwrap();
    for _ in 0..20 {
        while world.parts.preparer.turn() {}
        world.parts.writer.turn(Patience::None);
        world.parts.log.copied(sent.blocks.lock().len() as u64);
    }
}

/// Trims all of stream 0, as retention does. Returns its end.
fn empty(world: &mut World) -> Offset {
    let end = world.stream(0).bounds().committed;
    world.streams.get_mut(&0).unwrap().trims.push((end, Outcome::done()));
    world.parts.log.trim(&world.stream(0), end, None);
    copied(world);
    end
}

/// Fails if the copy set keeps a block, or if the next owner would give out offsets below `end` again.
fn check_end(world: &World, end: Offset) {
    let sent = world.sent.as_ref().unwrap();
    assert_eq!(sent.stored.load(Ordering::Relaxed), sent.blocks.lock().len() as u64, "the copies may go");
    let log = restored(world, &SimDisk::new(9), &both(), false).unwrap();
    assert_eq!(log.streams[&StreamId(0)].next, end, "seed {}", world.seed);
}

fn both() -> Snapshot {
    Snapshot::from([(StreamId(0), None), (StreamId(1), None)])
}

/// Lets the uploader work, and checks what it told.
fn upload(world: &mut World) {
    world.parts.uploader.turn();
    check_told(world, &BTreeMap::new());
}

/// A log with an object of stream 1 on its way. Then an object was to be built with stream 0, and found none of its records, which
/// were trimmed meanwhile. Returns the end of stream 0 too.
fn emptied_while_built() -> (World, Offset) {
    let mut world = World::owned(1, None);
    world.replicate();
    world.put_in_parallel();
    // Several objects are put at a time only after the first one.
    assert!(world.append(1, 100, Durability::Synced));
    copied(&mut world);
    for _ in 0..3 {
        upload(&mut world);
        world.run_puts(4);
    }
    assert!(world.append(1, 100, Durability::Synced));
    copied(&mut world);
    upload(&mut world);
    assert!(world.append(0, 100, Durability::Synced));
    copied(&mut world);
    let shared = world.parts.log.shared.clone();
    assert_eq!(shared.tier.take_waiting(shared.clock.nanos()).len(), 1);
    world.stream(0).note_awaits_upload(false);
    let end = empty(&mut world);
    (world, end)
}

/// Lets the object of stream 1 land, and checks that the copies stay until an object has the end of stream 0.
fn end_is_known(mut world: World, end: Offset) {
    let sent = world.sent.clone().unwrap();
    upload(&mut world);
    upload(&mut world);
    assert!(sent.stored.load(Ordering::Relaxed) < sent.blocks.lock().len() as u64, "nothing has its end yet");
    for _ in 0..4 {
        world.run_puts(4);
        upload(&mut world);
    }
    check_end(&world, end);
}

#[test]
fn objects_know_the_end_of_an_emptied_stream_before_the_copies_of_it_go() {
    let (mut world, end) = emptied_while_built();
    world.run_puts(4);
    end_is_known(world, end);
}

#[test]
fn bounds_on_their_way_keep_the_copies() {
    let (mut world, end) = emptied_while_built();
    let shared = world.parts.log.shared.clone();
    shared.tier.record(vec![world.stream(0)], Some(shared.clock.nanos()));
    // The object of the other stream is named when that with the bounds has been begun.
    world.run_puts(4);
    end_is_known(world, end);
}

/// The same where the next owner has both from a copy, and looks at what is to be stored before it has all of it.
#[test]
fn objects_know_the_end_of_a_stream_that_copies_fill_and_empty() {
    for seed in 0..20 {
        let mut world = World::owned(seed, None);
        world.replicate();
        // So many blocks that some are written when the uploader looks.
        for _ in 0..8 {
            assert!(world.append(1, 100, Durability::Synced));
            copied(&mut world);
        }
        assert!(world.append(0, 100, Durability::Synced));
        copied(&mut world);
        let end = empty(&mut world);
        world.options.upload_interval_ms = 1000;
        taken_over(&mut world, usize::MAX);
        copied(&mut world);
        world.clock.nanos.fetch_add(2_000_000_000, Ordering::Relaxed);
        for _ in 0..8 {
            upload(&mut world);
        }
        check_end(&world, end);
    }
}

/// The next owner opens the log, with what the objects know and the first blocks of a copy, up to `blocks`.
fn taken_over(world: &mut World, blocks: usize) {
    let copied = world.sent.take().unwrap();
    world.replay = copied.blocks.lock().iter().take(blocks).cloned().collect();
    let mut takeover = TakeOver::new(Arc::new(world.store().clone()), world.options.log_id, 3);
    world.options.owned = Some(takeover.finish(&|_, _| true).unwrap());
    let disk = SimDisk::new(world.seed + 100);
    restored(world, &disk, &both(), false).unwrap();
    world.sent = Some(Arc::default());
    world.reopen(disk, Left::PowerCut).unwrap();
}

/// Batches behind the end of an emptied stream, which no copy has, make its producer forget all that it sent before. The producer
/// has no answer for them, and sends them again.
#[test]
fn a_producer_goes_on_at_the_end_of_an_emptied_stream() {
    for later in 0..=REMEMBERED_BATCHES {
        let mut world = World::owned(1, None);
        world.replicate();
        let append = |world: &mut World| assert!(world.append(0, 100, Durability::Synced));
        append(&mut world);
        copied(&mut world);
        let uploads = |world: &mut World| {
            for _ in 0..4 {
                world.parts.uploader.turn();
                world.run_puts(4);
            }
        };
        uploads(&mut world);
        assert!(world.stream(0).bounds().stored.is_some(), "an object knows of the producer");
        append(&mut world);
        copied(&mut world);
        let end = empty(&mut world);
        let blocks = world.sent.as_ref().unwrap().blocks.lock().len();
        (0..later).for_each(|_| append(&mut world));
        world.turns(20);
        // The end is stored before they are.
        let shared = world.parts.log.shared.clone();
        shared.tier.take_waiting(shared.clock.nanos());
        world.stream(0).note_awaits_upload(false);
        shared.tier.record(vec![world.stream(0)], Some(shared.clock.nanos()));
        uploads(&mut world);
        assert_eq!(world.stream(0).lock().recorded.next(), end);
        taken_over(&mut world, blocks);
        let last = world.stream(0).producers().find(7).unwrap().batches.back().unwrap().last_sequence();
        assert_eq!((world.stream(0).bounds().synced, last + 1), (end, i32::try_from(end.0).unwrap()));
    }
}

fn run(seed: u64, mistake: Option<Mistake>) -> Counts {
    let mut cluster = Cluster::new(seed, mistake);
    if seed % 2 == 1 {
        cluster.world.put_in_parallel();
    }
    for _ in 0..cluster.world.rng.usize(1..4) {
        let faults = if cluster.world.rng.bool() { Faults::MANY } else { Faults::default() };
        cluster.world.store().set_faults(faults);
        let times = cluster.world.rng.usize(20..120);
        cluster.work(times);
        cluster.take_over();
    }
    cluster.counts
}

#[test]
fn a_log_that_gets_another_owner_keeps_what_its_copy_set_has() {
    let mut all = Counts::default();
    for seed in seeds(0..500) {
        let counts = run(seed, None);
        all.blocks += counts.blocks;
        all.replayed += counts.replayed;
        all.dropped += counts.dropped;
        all.refused += counts.refused;
        all.unopened += counts.unopened;
        all.answered += counts.answered;
        all.lost_disks += counts.lost_disks;
    }
    let enough = all.blocks > 500 && all.replayed > 500 && all.dropped > 100 && all.refused > 100;
    assert!(enough && all.unopened > 20 && all.answered > 1000 && all.lost_disks > 20, "{all:?}");
}

#[test]
fn mistakes_with_copies_are_noticed() {
    for mistake in [
        Mistake::AnswersAfterOne,
        Mistake::ForgetsFences,
        Mistake::ReadsUnfenced,
        Mistake::IgnoresCopies,
        Mistake::DropsEarly,
        Mistake::Within(Mutation::VisibleWhenSynced),
        Mistake::Within(Mutation::ToldTooEarly),
    ] {
        let harmed = |seed: u64| catch_unwind(|| run(seed, Some(mistake))).is_err();
        assert!((0..200).any(harmed), "{mistake:?}");
    }
}

fn blocks(numbers: std::ops::Range<u64>) -> Vec<Block> {
    numbers.map(block).collect()
}

#[test]
fn copies_have_no_gaps_and_keep_their_fences() {
    let world = World::new(1);
    let mut peer = Peer::on(SimDisk::new(3), &world);
    let (of, other) = (Opening { log_id: 9, epoch: 4 }, Opening { log_id: 8, epoch: 1 });
    let add = |peer: &mut Peer, of, numbers: std::ops::Range<u64>| {
        let done = Arc::new(Outcome::default());
        let begins = [0, 5, 20].contains(&numbers.start);
        let added = peer.copies.add(of, &blocks(numbers), begins, done.clone());
        peer.settle(of.log_id);
        (0..10).for_each(|_| peer.turn());
        assert!(added.is_err() == done.pending(), "what is taken is answered");
        added
    };
    // A broker that joins later begins later.
    add(&mut peer, of, 5..9).unwrap();
    add(&mut peer, other, 0..3).unwrap();
    add(&mut peer, of, 9..12).unwrap();
    assert!(matches!(add(&mut peer, of, 13..15), Err(RefusedError::Gap(12))));
    // What arrives again is there.
    for numbers in [8..10, 0..1, 11..12, 10..12] {
        add(&mut peer, of, numbers).unwrap();
    }
    assert_eq!(peer.copies.read(of, 7, usize::MAX).unwrap(), blocks(7..12));
    assert_eq!(peer.copies.read(of, 7, 1).unwrap(), blocks(7..8), "one at least");
    peer.copies.drop_below(of, 10);
    peer.copies.fence(of.log_id, 6).unwrap();
    while peer.copies.extents(of.log_id)[0].first < 10 {
        peer.turn();
    }
    let mut peer = Peer::on(peer.disk.crash(5), &world);
    assert!(matches!(add(&mut peer, of, 12..13), Err(RefusedError::Fenced(6))));
    let later = Opening { epoch: 6, ..of };
    add(&mut peer, later, 0..1).unwrap();
    add(&mut peer, other, 3..4).unwrap();
    let extents = |peer: &Peer| -> Vec<(u32, u64, u64)> {
        peer.copies.extents(9).iter().map(|extent| (extent.of.epoch, extent.first, extent.next)).collect()
    };
    assert_eq!(extents(&peer), [(4, 10, 12), (6, 0, 1)]);
    assert_eq!(peer.copies.read(of, 10, usize::MAX).unwrap(), blocks(10..12));
    peer.copies.drop_before(of.log_id, 6);
    assert_eq!(extents(&peer), [(6, 0, 1)]);
    assert!(peer.copies.read(of, 10, 1).is_err());
    // One that had to begin anew has no gap, and what arrives late does not bring the former one back.
    for numbers in [20..23, 0..1, 22..24] {
        add(&mut peer, later, numbers).unwrap();
    }
    assert_eq!(extents(&peer), [(6, 20, 24)]);
    assert_eq!(peer.copies.logs(), [8, 9]);
    // A fence never goes back.
    peer.copies.fence(of.log_id, 2).unwrap();
    assert!(matches!(add(&mut peer, of, 12..13), Err(RefusedError::Fenced(6))));
}

/// As followers in Kafka refuse batches whose checksum is wrong.
#[test]
fn blocks_that_were_damaged_on_their_way_are_refused() {
    let world = World::new(1);
    let mut peer = Peer::on(SimDisk::new(3), &world);
    let of = Opening { log_id: 9, epoch: 4 };
    let mut add = |blocks: &[Block]| {
        let added = peer.copies.add(of, blocks, true, Arc::new(Outcome::default()));
        peer.settle(of.log_id);
        added
    };
    let changed = |block: &Block, change: fn(&mut Vec<u8>)| {
        let mut bytes = block.bytes.to_vec();
        change(&mut bytes);
        Block { bytes: bytes.into(), ..block.clone() }
    };
    let changes: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes[20] ^= 1,
        |bytes| *bytes.last_mut().unwrap() ^= 4,
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.truncate(7),
        Vec::clear,
    ];
    for change in changes {
        let sent = [block(0), changed(&block(1), change)];
        assert!(matches!(add(&sent), Err(RefusedError::Damaged(1))));
    }
    let other_segment = Block { generation: 9, ..block(0) };
    assert!(matches!(add(&[other_segment]), Err(RefusedError::Damaged(0))));
    add(&blocks(0..2)).unwrap();
    assert_eq!(peer.copies.extent(of).unwrap().next, 2);
}

/// Segments of a disk that was started anew have rows of copies that are deleted. These are not rows of the next copies.
#[test]
fn a_copy_has_nothing_of_a_deleted_one_after_restarts() {
    let world = World::new(1);
    // A segment has some eighty blocks.
    for (first, second) in
        (70..300).step_by(46).flat_map(|first| [50, 100, 190].map(|second| (first, second)))
    {
        let mut peer = Peer::on(SimDisk::new(3), &world);
        let add = |peer: &mut Peer, of: Opening, numbers: std::ops::Range<u64>| {
            for block in blocks(numbers) {
                let block = std::slice::from_ref(&block);
                while peer.copies.add(of, block, true, Arc::new(Outcome::default())).is_err() {
                    peer.turn();
                }
                peer.settle(of.log_id);
            }
        };
        let other = Opening { log_id: 8, epoch: 1 };
        add(&mut peer, other, 0..1);
        let of = Opening { log_id: 9, epoch: 1 };
        add(&mut peer, of, 0..first);
        peer.copies.drop_before(of.log_id, 2);
        // What is written next makes that durable.
        add(&mut peer, other, 1..2);
        let mut peer = Peer::on(peer.disk.restart(), &world);
        let next = Opening { epoch: 2, ..of };
        add(&mut peer, next, 0..second);
        let peer = Peer::on(peer.disk.restart(), &world);
        let extents = peer.copies.extents(of.log_id);
        assert_eq!(
            extents.iter().map(|it| (it.of, it.first, it.next)).collect::<Vec<_>>(),
            [(next, 0, second)]
        );
        assert_eq!(peer.copies.read(next, 0, usize::MAX).unwrap(), blocks(0..second), "{first} and {second}");
    }
}

#[test]
fn a_damaged_file_of_fences_is_no_file_without_fences() {
    let world = World::new(1);
    let peer = Peer::on(SimDisk::new(3), &world);
    peer.copies.fence(9, 6).unwrap();
    let mut sector = disk::AlignedBuffer::zeroed(disk::SECTOR);
    let file = peer.disk.open("fences").unwrap();
    file.read_at(0, &mut sector).unwrap();
    sector[9] ^= 1;
    file.write_at(0, &sector).unwrap();
    file.sync().unwrap();
    let Parts { log, .. } = open(&peer.disk.restart(), &small_options(), &world.clock).unwrap();
    assert!(Copies::of(log, Arc::new(peer.disk.clone())).is_err());
}
