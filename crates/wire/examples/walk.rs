//! What walking records costs beside decompressing them, of one batch for each codec: nanoseconds a record.
//!
//! `cargo run --release -p mainstem-wire --example walk`

use std::time::{Duration, Instant};

use model::{BatchHeader, Compression, Timestamp, batch::HEADER_BYTES};
use wire::records::BatchBuilder;
use wire::{Limits, decompress, walk};

const RECORDS: u32 = 120;
const VALUE_BYTES: usize = 1024;
const LENGTH: Duration = Duration::from_secs(1);
const TURNS: usize = 5;

fn main() {
    // Half of each value is random, as in the workloads of the benchmark.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut value = || -> Vec<u8> {
        let mut byte = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.to_le_bytes()[0]
        };
        (0..VALUE_BYTES).map(|at| if at < VALUE_BYTES / 2 { byte() } else { b'a' }).collect()
    };
    let values: Vec<Vec<u8>> = (0..RECORDS).map(|_| value()).collect();
    for codec in
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd]
    {
        let mut builder = BatchBuilder::new(codec);
        for value in &values {
            builder.push(Timestamp(1), Some(b"key"), Some(value));
        }
        let batch = builder.finish();
        let header = BatchHeader::parse(&batch).expect("it was just built");
        let packed = batch.slice(HEADER_BYTES..);
        let limits = Limits { decompressed: 1 << 30, held: 1 << 30 };
        let walks = || {
            walk(&header, &packed, limits).expect("they decode");
        };
        let decompresses = || {
            decompress(codec, &packed, 1 << 30).expect("it decompresses");
        };
        // In turns, since the machine may be another one a second later; the fastest of each counts.
        let (mut walked, mut decompressed) = (f64::MAX, f64::MAX);
        for _ in 0..TURNS {
            walked = walked.min(nanoseconds(walks));
            decompressed = decompressed.min(nanoseconds(decompresses));
        }
        let each = |batch: f64| batch / f64::from(RECORDS);
        println!(
            "{codec:?}: walked in {:.0} ns a record, decompressed in {:.0}: {:.2}",
            each(walked),
            each(decompressed),
            walked / decompressed
        );
    }
}

fn nanoseconds(work: impl Fn()) -> f64 {
    let (begun, mut times) = (Instant::now(), 0u32);
    while begun.elapsed() < LENGTH {
        work();
        times += 1;
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(times)
}
