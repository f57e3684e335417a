//! Verify and salvage, over the logs of the long runs. They report nothing for an intact log. For damage of every kind
//! at random places they are exact: they name every damaged record, and lose no other.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use disk::{AlignedBuffer, Disk, SimDisk};
use model::{BatchHeader, Offset, StreamId};

use super::crash::seeds;
use super::long::{Seen, run};
use super::support::{Left, World, open, small_options};
use crate::log::Parts;
use crate::options::{Options, SystemClock};
use crate::reader::{ReadError, ReadRequest};
use crate::segment::{is_cleaned, sequence_of};
use crate::tools::examine::{Finding, Item, Severity, entries, inspect, verify};
use crate::tools::resolve::resolve;
use crate::tools::salvage::{Salvaged, salvage};
use crate::tools::survey::Survey;

/// A log with a long history, and without data that was not acknowledged.
fn world(seed: u64) -> World {
    let mut world = run(seed, &mut Seen::default(), !seed.is_multiple_of(4));
    // The barriers vouch for everything before them.
    for _ in 0..3 {
        world.strike(Left::Killed);
    }
    world.disk = world.disk.restart();
    world
}

fn copy(disk: &SimDisk) -> SimDisk {
    let other = SimDisk::new(1);
    for name in disk.list().unwrap() {
        let file = disk.open(&name).unwrap();
        let mut bytes = AlignedBuffer::zeroed(usize::try_from(file.length()).unwrap());
        file.read_at(0, &mut bytes).unwrap();
        other.create(&name, file.length()).unwrap().write_at(0, &bytes).unwrap();
    }
    other
}

fn bad(findings: &[Finding]) -> Vec<&Finding> {
    findings.iter().filter(|finding| finding.severity > Severity::Note).collect()
}

/// All batches of a stream.
fn read_all(parts: &Parts, id: u64) -> Result<BTreeMap<Offset, Bytes>, ReadError> {
    let stream = parts.log.stream(StreamId(id));
    let bounds = stream.bounds();
    let (mut from, mut found) = (bounds.start, BTreeMap::new());
    while from < bounds.committed {
        let (stream, until) = (stream.clone(), Offset(i64::MAX));
        let request = ReadRequest { stream, from, until, bytes_max: 100_000, at_least_one: true };
        let read = parts.log.read_blocking(&request)?;
        let bytes = Bytes::from(read.chunks.concat());
        let mut at = 0;
        while at < bytes.len() {
            let header = BatchHeader::parse(&bytes[at..]).unwrap();
            found.insert(header.base_offset, bytes.slice(at..at + header.total_bytes));
            at += header.total_bytes;
        }
        let Some(next) = read.next else { break };
        from = next;
    }
    Ok(found)
}

fn salvaged(source: &SimDisk, world: &World) -> (Salvaged, Parts) {
    let target = SimDisk::new(2);
    let options = Options { log_id: 7 << 90, ..small_options() };
    let clock = Arc::new(SystemClock::default());
    let salvaged = salvage(source, Arc::new(target.clone()), options, clock, &|_, _, _| {}).unwrap();
    let target = target.crash(3);
    let findings = verify(&target, &|_, _| {}).unwrap().findings;
    assert!(bad(&findings).is_empty(), "{findings:#?}");
    let options = Options { segment_bytes: 4 << 20, ..world.options.clone() };
    (salvaged, open(&target, &options, &world.clock).unwrap())
}

#[test]
fn an_undamaged_log_is_in_order_and_salvaged_whole() {
    let mut cleaned = 0;
    for seed in seeds(0..30) {
        let mut world = world(seed);
        if seed.is_multiple_of(5) {
            world.disk = world.disk.crash(seed);
        }
        let verified = verify(&world.disk, &|_, _| {}).unwrap();
        assert!(bad(&verified.findings).is_empty(), "seed {seed}: {:#?}", verified.findings);
        let report = verified.opening.unwrap();
        assert_eq!(verified.end, report.end, "seed {seed}");
        cleaned += report.cleaned_segments;
        let inspected = inspect(&world.disk).unwrap();
        let (salvaged, parts) = salvaged(&world.disk, &world);
        assert_eq!(salvaged.dropped, [], "seed {seed}");
        world.parts = open(&world.disk, &world.options, &world.clock).unwrap();
        assert_eq!(inspected.streams.len(), world.parts.log.streams().len());
        for summary in inspected.streams {
            let id = summary.stream;
            let (old, new) = (world.parts.log.stream(id), parts.log.stream(id));
            assert_eq!((summary.start, summary.next), (old.bounds().start, old.bounds().committed));
            assert_eq!((new.bounds().start, new.bounds().committed), (summary.start, summary.next));
            let records = |parts: &Parts| {
                let mut all = read_all(parts, id.0).unwrap();
                all.retain(|_, batch| BatchHeader::parse(batch).unwrap().count > 0);
                all
            };
            assert_eq!(records(&world.parts), records(&parts), "seed {seed} stream {id}");
            let (old, new) = (old.producers(), new.producers());
            for (producer, known) in old.iter() {
                let remembered = &new.find(producer).unwrap().batches;
                assert_eq!(&known.batches, remembered, "seed {seed} stream {id} producer {producer}");
            }
        }
        let mut listed = 0;
        entries(
            &world.disk,
            |_| true,
            |item| {
                assert!(matches!(item, Item::Entry { batch: Ok(_), .. }), "seed {seed}: {item:?}");
                listed += 1;
                true
            },
        )
        .unwrap();
        assert_eq!(listed, verified.checked.entries);
    }
    assert!(cleaned > 15 || seeds(0..30) != (0..30), "{cleaned} cleaned segments");
}

/// The damage done to a log.
#[derive(Debug)]
struct Harm {
    file: String,
    from: u64,
    to: u64,
    removed: bool,
}

fn harm(world: &mut World, disk: &SimDisk) -> Harm {
    let names: Vec<String> =
        disk.list().unwrap().into_iter().filter(|name| sequence_of(name).is_some()).collect();
    let rng = &mut world.rng;
    let file = rng.choice(&names).unwrap().clone();
    let length = disk.open(&file).unwrap().length();
    let kind = rng.u8(0..10);
    let (from, to) = match kind {
        0 => (0, length),
        1 => (rng.u64(0..52), 60),
        2 => (length - 4096 + rng.u64(0..30), length - 4000),
        3 => (rng.u64(1..length / 4096) * 4096, length),
        // Near the footer.
        4 => (length - rng.u64(8000..60_000), length - 6000),
        _ => {
            let from = rng.u64(0..length - 1);
            (from, (from + rng.u64(1..9000)).min(length))
        }
    };
    match kind {
        0 => disk.remove(&file).unwrap(),
        3 => drop(disk.shorten(&file, from).unwrap()),
        _ => disk.damage(&file, from..to),
    }
    Harm { file, from, to, removed: kind == 0 }
}

/// The error of opening or reading, if either meets the damage.
fn stumbles(disk: &SimDisk, world: &World) -> Option<String> {
    let parts = match open(disk, &world.options, &world.clock) {
        Ok(parts) => parts,
        Err(error) => return Some(error.to_string()),
    };
    world
        .streams
        .iter()
        .filter(|(_, model)| model.deleted.is_none())
        .find_map(|(id, _)| read_all(&parts, *id).err().map(|error| format!("stream {id}: {error}")))
}

#[test]
fn damage_is_named_and_nothing_else_is_lost() {
    let (mut stumbled, mut silent, mut lost, mut whole, mut fallen_back) = (0, 0, 0, 0, 0);
    for seed in seeds(0..80) {
        let mut world = world(seed);
        let before = Survey::of(&world.disk, &|_, _| {}).unwrap();
        let disk = copy(&world.disk);
        let undamaged = open(&copy(&disk), &world.options, &world.clock).unwrap();
        let harm = harm(&mut world, &disk);
        let verified = verify(&disk, &|_, _| {}).unwrap();
        let named = |severity| {
            let here = |finding: &&Finding| {
                let inside =
                    finding.from < harm.to.max(harm.from + 1) && finding.to.max(finding.from + 1) > harm.from;
                finding.severity >= severity && (harm.removed || finding.file == harm.file && inside)
            };
            verified.findings.iter().any(|finding| here(&finding))
        };
        let (salvaged, parts) = salvaged(&disk, &world);
        match stumbles(&copy(&disk), &world) {
            Some(how) => {
                stumbled += 1;
                assert!(named(Severity::Error), "seed {seed}: {harm:?}, {how}, but {:#?}", verified.findings);
            }
            None => {
                silent += 1;
                let open = verified.opening.is_ok();
                assert!(open, "seed {seed}: {harm:?}: {:?}", verified.opening);
            }
        }
        let unknown = salvaged.dropped.iter().any(|finding| finding.what.contains("not known"));
        for (id, model) in &world.streams {
            if model.deleted.is_some() {
                assert!(
                    unknown || read_all(&parts, *id).unwrap().is_empty(),
                    "seed {seed}: {id} is back, {harm:?} {:#?}",
                    salvaged.dropped
                );
                continue;
            }
            let Some(known) = before.streams.get(&StreamId(*id)) else { continue };
            let bounds = parts.log.stream(StreamId(*id)).bounds();
            let same = (bounds.start, bounds.committed) == (known.start, known.next);
            assert!(same || harm.removed || unknown, "seed {seed} stream {id}: {bounds:?} {harm:?}");
            let all = read_all(&parts, *id).unwrap();
            let mut original = read_all(&undamaged, *id).unwrap();
            original.retain(|_, batch| BatchHeader::parse(batch).unwrap().count > 0);
            let hits: Vec<(Offset, Offset)> = salvaged
                .dropped
                .iter()
                .flat_map(|finding| &finding.hits)
                .filter(|hit| hit.stream == StreamId(*id))
                .map(|hit| (hit.from, hit.to))
                .collect();
            // The place of each batch, and whether the damage hit it.
            let extents = &before.extents.get(&StreamId(*id)).map_or(&[][..], Vec::as_slice);
            let (mut places, mut ranges) = (BTreeMap::new(), Vec::new());
            for part in resolve(&before, StreamId(*id)).parts {
                let file = before.name(extents[part.extent].segment);
                if file == harm.file {
                    ranges.push(part.from..part.to);
                }
                for place in part.places(extents) {
                    let (begin, end) =
                        (u64::from(place.position), u64::from(place.position + place.length) + 40);
                    places.insert(place.base_offset, file == harm.file && begin < harm.to && harm.from < end);
                }
            }
            for appended in model.appended.iter().filter(|a| a.base >= known.start) {
                let got = all.get(&appended.base).filter(|got| BatchHeader::parse(got).unwrap().count > 0);
                if let Some(got) = got {
                    // The compacted batch is gone; its source batch is not.
                    let place = places.get(&appended.base);
                    let gone = place == Some(&true)
                        || place.is_none() && ranges.iter().any(|range| range.contains(&appended.base));
                    let older = gone && !appended.is(got);
                    fallen_back += u32::from(older);
                    assert!(
                        older || appended.is(got),
                        "seed {seed} stream {id}: {} is not as it was, {harm:?} {:?}",
                        appended.base,
                        places.get(&appended.base)
                    );
                    assert!(
                        hits.iter().all(|(from, to)| appended.end() <= *from || *to <= appended.base),
                        "seed {seed} stream {id}: {} is there, and said to be dropped",
                        appended.base
                    );
                    continue;
                }
                if !original.contains_key(&appended.base) {
                    continue;
                }
                lost += 1;
                let said = hits.iter().any(|(from, to)| *from <= appended.base && appended.end() <= *to);
                let cut = unknown && appended.base >= bounds.committed;
                assert!(
                    said || cut,
                    "seed {seed} stream {id}: {} is dropped in silence, {harm:?}",
                    appended.base
                );
                assert!(
                    places.get(&appended.base) == Some(&true),
                    "seed {seed} stream {id}: {} was not harmed by {harm:?}, but lost: {:#?}",
                    appended.base,
                    salvaged.dropped
                );
            }
        }
        whole += u32::from(salvaged.dropped.is_empty());
    }
    println!(
        "{stumbled} stumbled, {silent} not; {lost} batches lost, {whole} logs whole, {fallen_back} older copies"
    );
    let runs = stumbled + silent;
    if runs >= 20 {
        let every = 4 * stumbled > runs && 6 * silent > runs && lost > runs / 2 && 4 * whole > runs;
        assert!(every, "the damage is of every kind");
    }
}

#[test]
fn what_a_cleaned_segment_hides_stays_hidden() {
    // Every segment that opening would find superseded still exists, so each range has two copies.
    let mut superseded = 0;
    for seed in seeds(0..20) {
        let world = world(seed);
        let survey = Survey::of(&world.disk, &|_, _| {}).unwrap();
        for id in survey.streams.keys() {
            let extents = survey.extents.get(id).map_or(&[][..], Vec::as_slice);
            let sequence = |at: usize| survey.files.segments[extents[at].segment].segment.sequence;
            let parts = resolve(&survey, *id).parts;
            let read: u64 = parts.iter().map(|part| part.bytes(extents)).sum();
            let all: u64 = extents.iter().map(|extent| u64::from(extent.places.bytes())).sum();
            superseded += u32::from(read < all && (0..extents.len()).any(|at| is_cleaned(sequence(at))));
        }
    }
    assert!(superseded > 2 || seeds(0..20) != (0..20), "{superseded}");
}
