//! The fuzz targets, each for a few seconds (`FUZZ_SECONDS`, 5 by default), with mutated valid inputs and random ones.
//! A failure prints the input. Add it to the list in the target's test.

use model::{Offset, Timestamp};
use testing::fuzz::{Rounds, damage, random_bytes as random};

use super::support::batch;
use crate::fuzzing;
use crate::index::{BatchIndex, BatchPlace};
use crate::stream::Producers;

/// The same inputs at each run.
fn run(target: fn(&[u8]), input: impl FnMut(&mut fastrand::Rng) -> Vec<u8>) -> u64 {
    Rounds::from_seed(5, 0).run(input, target)
}

fn mutate(rng: &mut fastrand::Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    damage(rng, &mut bytes, &[]);
    bytes
}

#[test]
fn batch_headers() {
    let runs = run(fuzzing::batch_header, |rng| {
        let (count, body) = (rng.i32(1..100), rng.usize(0..200));
        let valid = batch(rng, count, body, 7, Some((3, 4))).to_vec();
        if rng.u8(..) < 20 { random(rng, body) } else { mutate(rng, valid) }
    });
    assert!(runs > 1000, "{runs}");
}

#[test]
fn decoders() {
    let runs = run(fuzzing::decoders, |rng| {
        let (mut out, mut position) = (Vec::new(), 4144);
        match rng.u8(0..4) {
            0 => return random(rng, 80),
            1 => {
                let mut index = BatchIndex::default();
                for n in 0..rng.u32(0..200) {
                    let length = rng.u32(61..5000);
                    let base_offset = Offset(i64::from(n) * 10);
                    let max_timestamp = Timestamp(rng.i64(..));
                    index.push(BatchPlace { base_offset, offset_count: 10, position, length, max_timestamp });
                    position += length + 40;
                }
                index.encode(&mut out);
            }
            table => {
                let mut producers = Producers::default();
                for n in 0..rng.i32(0..9) {
                    let batch = batch(rng, 5, 0, 7, Some((i64::from(n % 3), n)));
                    producers.record(
                        &model::BatchHeader::parse(&batch).unwrap(),
                        &batch,
                        Offset(i64::from(n)),
                        5,
                    );
                }
                if table == 2 {
                    // Version, one stream, id 7, start 0, next 9.
                    out.extend([1, 1, 7, 0, 9]);
                }
                producers.encode(&mut out);
            }
        }
        mutate(rng, out)
    });
    assert!(runs > 1000, "{runs}");
}

#[test]
fn recovery() {
    fuzzing::recovery(&[]);
    let runs = run(fuzzing::recovery, |rng| {
        let changes = rng.usize(1..5);
        random(rng, 8 * changes)
    });
    assert!(runs > 20, "{runs}");
    println!("{runs} damaged logs");
}
