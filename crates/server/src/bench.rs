//! `mainstem bench-store`: the throughput and latency of appends to the log in a directory, without network and
//! protocol.
//!
//! One thread keeps `depth` appends in flight, round robin over the streams; the log's own threads do the rest. The
//! measurement uses a mature log, which recycles its segments and no longer writes to new blocks. With `--fio`, fio
//! runs with the same block size, depth and durability in the same directory, to measure the device without the log's
//! code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use disk::Engine;
use hdrhistogram::Histogram;
use model::batch::BatchHeader;
use model::{Compression, Offset, StreamId, Timestamp};
use serde_json::{Value, json};
use storage::{
    AdmitError, Append, AppendError, Committed, Completion, Durability, Listener, Log, Options, SystemClock,
};
use wire::Bytes;
use wire::records::BatchBuilder;

use crate::arguments::{BenchStoreArguments, DurabilityChoice, Output};
use crate::commands;
use crate::process::cpu_seconds;
use crate::settings::parse_engine;

/// Time at the start of a run that is not measured, while segments are still small and files empty.
const WARM_UP: Duration = Duration::from_secs(1);
/// Small enough that the log matures soon.
const SEGMENT_BYTES: u64 = 256 * 1024 * 1024;
/// Bytes appended beyond the retained bytes before segments are recycled: segments that are prepared before any is
/// dead, the first of which are short.
const GROWTH_BYTES: u64 = 4 * SEGMENT_BYTES;
/// Time that a slow log may take to mature. After it, the log is measured as it is.
const GROWTH_PATIENCE: Duration = Duration::from_secs(60);
/// Interval of attempts while the log refuses appends to make room.
const ROOM_WAIT: Duration = Duration::from_millis(20);
/// Size of the file that fio overwrites, too large for a device's cache.
const FIO_FILE_BYTES: u64 = 4 * 1024 * 1024 * 1024;
const SECTOR: u32 = 4096;

/// Runs the benchmark and prints a line for each number of streams.
pub fn run(arguments: &BenchStoreArguments) -> anyhow::Result<()> {
    let engine = parse_engine(&arguments.engine).map_err(|problem| anyhow::anyhow!("--engine: {problem}"))?;
    let parent = &arguments.data_dir;
    fs::create_dir_all(parent).with_context(|| format!("{} cannot be created", parent.display()))?;
    let text = arguments.shown.output == Output::Text;
    if text {
        println!(
            "appends of {} bytes, {} in flight, {:?}, {} s after {} s of warm-up",
            arguments.append_bytes,
            arguments.depth,
            arguments.durability,
            arguments.seconds,
            WARM_UP.as_secs()
        );
        println!("{}", Outcome::HEADING);
    }
    let mut runs = Vec::new();
    let mut best: Option<Outcome> = None;
    for &streams in &arguments.streams {
        let directory = Directory::create(parent)?;
        let disk = disk::open_directory(&directory.0, engine)?;
        let used = format!("{:?}", disk.engine()).to_lowercase();
        let outcome = Bench::new(Arc::new(disk), streams, &Shape::of(arguments))?.run(arguments)?;
        let age = if outcome.young { ", young log" } else { "" };
        if text {
            println!("{}", outcome.to_line(&format!("mainstem, {streams} streams, {used}{age}")));
        }
        runs.push(outcome.to_json(json!({"streams": streams, "engine": used, "young": outcome.young})));
        if best.as_ref().is_none_or(|best| best.bytes_per_second < outcome.bytes_per_second) {
            best = Some(outcome);
        }
    }
    let mut fio_run = Value::Null;
    if arguments.fio {
        let directory = Directory::create(parent)?;
        let fio = run_fio(&directory.0, arguments)?;
        fio_run = fio.to_json(json!({}));
        if text {
            println!("{}", fio.to_line("fio"));
        }
        if let Some(best) = best.filter(|_| text) {
            println!(
                "mainstem / fio: {:.2} of the throughput, {:.2} of the p99",
                best.bytes_per_second / fio.bytes_per_second,
                best.micros[1] / fio.micros[1]
            );
        }
    }
    if !text {
        let found = json!({
            "append_bytes": arguments.append_bytes, "in_flight": arguments.depth,
            "durability": format!("{:?}", arguments.durability).to_lowercase(), "runs": runs, "fio": fio_run,
        });
        commands::print(&format!("{found}\n"))?;
    }
    Ok(())
}

/// p50 and p99 in milliseconds of a synced append of one small record after the other, to a young log in a fresh directory.
pub fn append_latency(parent: &Path, engine: Engine, length: Duration) -> anyhow::Result<[f64; 2]> {
    let directory = Directory::create(parent)?;
    let disk = Arc::new(disk::open_directory(directory.path(), engine)?);
    let mut bench = Bench::new(
        disk,
        1,
        &Shape { append_bytes: 1024, retention_bytes: 0, durability: Durability::Synced },
    )?;
    let result = bench.measure(1, length);
    bench.log.close();
    let [p50, p99, ..] = result?.micros;
    Ok([p50 / 1e3, p99 / 1e3])
}

/// A fresh directory, removed on drop.
pub struct Directory(PathBuf);

impl Directory {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn create(parent: &Path) -> anyhow::Result<Directory> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("bench-store-{}-{number}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("{} cannot be created", path.display()))?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("mainstem: {} could not be removed: {error}", self.0.display());
        }
    }
}

/// The result of a measurement.
struct Outcome {
    bytes_per_second: f64,
    per_second: f64,
    /// p50, p99, p99.9 and maximum of the latency, in microseconds.
    micros: [f64; 4],
    cpu_seconds: f64,
    seconds: f64,
    /// Whether the log was still filling new segments.
    young: bool,
}

impl Outcome {
    const HEADING: &'static str =
        "  appends/s      MB/s   p50 us   p99 us  p99.9 us    max us   CPU %  CPU s/GB";

    fn to_line(&self, name: &str) -> String {
        let [p50, p99, p999, max] = self.micros;
        let gigabytes = self.bytes_per_second * self.seconds / 1e9;
        format!(
            "{:>11.0} {:>9.1} {p50:>8.0} {p99:>8.0} {p999:>9.0} {max:>9.0} {:>7.0} {:>9.2}  {name}",
            self.per_second,
            self.bytes_per_second / 1e6,
            self.cpu_seconds / self.seconds * 100.0,
            self.cpu_seconds / gigabytes,
        )
    }

    /// The same in JSON, beside what the object has already.
    fn to_json(&self, mut object: Value) -> Value {
        let [p50, p99, p999, max] = self.micros;
        for (name, number) in [
            ("appends_per_second", self.per_second),
            ("bytes_per_second", self.bytes_per_second),
            ("p50_us", p50),
            ("p99_us", p99),
            ("p999_us", p999),
            ("max_us", max),
            ("cpu_seconds", self.cpu_seconds),
            ("seconds", self.seconds),
        ] {
            object[name] = number.into();
        }
        object
    }
}

/// A finished append: slot, latency and result.
type Done = (usize, Duration, Result<(), AppendError>);

/// The completion of an append, which notifies the appending thread. There is one for each append in flight.
struct Slot {
    number: usize,
    begun: Instant,
    done: Sender<Done>,
}

impl Completion for Slot {
    fn complete(&self, result: Result<(), AppendError>) {
        // The receiver is dropped if the run has failed.
        let _ = self.done.send((self.number, self.begun.elapsed(), result));
    }
}

/// What is appended.
struct Shape {
    append_bytes: u32,
    retention_bytes: u64,
    durability: Durability,
}

impl Shape {
    fn of(arguments: &BenchStoreArguments) -> Shape {
        let durability = match arguments.durability {
            DurabilityChoice::Synced => Durability::Synced,
            DurabilityChoice::Written => Durability::Written,
        };
        Shape { append_bytes: arguments.append_bytes, retention_bytes: arguments.retention_bytes, durability }
    }
}

struct WakeOnRoom(Thread);

impl Listener for WakeOnRoom {
    fn committed(&self, _: &[Committed]) {}

    fn room(&self) {
        self.0.unpark();
    }
}

struct Bench {
    log: Log,
    streams: Vec<(Arc<storage::Stream>, Offset)>,
    next_stream: usize,
    batch: Bytes,
    header: BatchHeader,
    durability: Durability,
    sender: Sender<Done>,
    done: Receiver<Done>,
    retention_bytes: u64,
    appended_bytes: u64,
}

impl Bench {
    fn new(disk: Arc<dyn disk::Disk>, streams: u32, shape: &Shape) -> anyhow::Result<Bench> {
        let segment_bytes =
            if shape.retention_bytes > 0 { SEGMENT_BYTES } else { Options::default().segment_bytes };
        let log_id = u128::from(std::process::id());
        let options = Options { log_id, segment_bytes, ..Options::default() };
        let listener = Arc::new(WakeOnRoom(std::thread::current()));
        let log = Log::open(disk, options, Arc::new(SystemClock::default()), listener)?;
        let streams = (0..u64::from(streams)).map(|id| (log.stream(StreamId(id)), Offset::ZERO)).collect();
        let batch = batch(shape.append_bytes);
        let header = BatchHeader::parse(&batch)?;
        let (sender, done) = channel();
        Ok(Bench {
            log,
            streams,
            next_stream: 0,
            batch,
            header,
            durability: shape.durability,
            sender,
            done,
            retention_bytes: shape.retention_bytes,
            appended_bytes: 0,
        })
    }

    fn run(mut self, arguments: &BenchStoreArguments) -> anyhow::Result<Outcome> {
        let result =
            self.measure(usize::try_from(arguments.depth)?, Duration::from_secs(arguments.seconds.into()));
        self.log.close();
        result
    }

    fn measure(&mut self, depth: usize, length: Duration) -> anyhow::Result<Outcome> {
        // Nanoseconds up to a minute. A slower append ends the run anyway.
        let mut latency: Histogram<u64> = Histogram::new_with_max(60_000_000_000, 3)?;
        for number in 0..depth {
            self.append(number)?;
        }
        let start = Instant::now() + WARM_UP;
        let mut window: Option<(Instant, f64)> = None;
        let (mut count, mut young) = (0u64, false);
        loop {
            let (number, took, result) = match self.done.recv_timeout(Duration::from_secs(30)) {
                Ok(done) => done,
                Err(RecvTimeoutError::Timeout) => bail!("no append was done in 30 s"),
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            };
            result?;
            let now = Instant::now();
            match window {
                None if now >= start
                    && (self.retention_bytes == 0 || !self.is_young() || now >= start + GROWTH_PATIENCE) =>
                {
                    young = self.is_young();
                    window = Some((now, cpu_seconds()));
                }
                None => {}
                Some((from, cpu)) => {
                    count += 1;
                    latency.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                    if now.duration_since(from) >= length {
                        let seconds = now.duration_since(from).as_secs_f64();
                        let micros =
                            [0.5, 0.99, 0.999, 1.0].map(|q| latency.value_at_quantile(q) as f64 / 1e3);
                        let per_second = count as f64 / seconds;
                        let bytes_per_second = per_second * self.batch.len() as f64;
                        let cpu_seconds = cpu_seconds() - cpu;
                        return Ok(Outcome {
                            bytes_per_second,
                            per_second,
                            micros,
                            cpu_seconds,
                            seconds,
                            young,
                        });
                    }
                }
            }
            self.append(number)?;
        }
    }

    fn append(&mut self, number: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        let admission = loop {
            match self.log.admit(self.batch.len()) {
                Ok(admission) => break admission,
                Err(AdmitError::Busy) => std::thread::park_timeout(ROOM_WAIT),
                Err(error) => return Err(error.into()),
            }
        };
        let (stream, end) = &mut self.streams[self.next_stream];
        let base_offset = *end;
        *end = base_offset + self.header.offset_count();
        let append = Append {
            stream: stream.clone(),
            base_offset,
            header: self.header,
            batch: self.batch.clone(),
            append_time: None,
            leader_epoch: 0,
            durability: self.durability,
            done: Some(Arc::new(Slot { number, begun, done: self.sender.clone() })),
            admission,
        };
        self.next_stream = (self.next_stream + 1) % self.streams.len();
        self.log.append(append);
        let segments = self.appended_bytes / SEGMENT_BYTES;
        self.appended_bytes += self.batch.len() as u64;
        if self.retention_bytes > 0 && self.appended_bytes / SEGMENT_BYTES > segments {
            let bytes = self.retention_bytes / self.streams.len() as u64;
            for (stream, _) in &self.streams {
                self.log.retain(stream, None, Some(bytes));
            }
        }
        Ok(())
    }

    /// Whether the log still fills new segments.
    fn is_young(&self) -> bool {
        self.retention_bytes == 0 || self.appended_bytes <= self.retention_bytes + GROWTH_BYTES
    }
}

/// A batch of about this many bytes. Its header claims a single record.
fn batch(bytes: u32) -> Bytes {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let value: Vec<u8> = (0..bytes)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.to_le_bytes()[0]
        })
        .collect();
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(Timestamp(1_700_000_000_000), None, Some(&value));
    builder.finish()
}

fn run_fio(directory: &Path, arguments: &BenchStoreArguments) -> anyhow::Result<Outcome> {
    let block = arguments.append_bytes.next_multiple_of(SECTOR);
    let mut command = Command::new("fio");
    command.args(["--name=bench-store", "--rw=write", "--ioengine=io_uring", "--direct=1", "--time_based"]);
    // Blocks that were never written sync slower, and the log does not write to such blocks either.
    command.args(["--overwrite=1", "--output-format=json"]);
    command.arg(format!("--directory={}", directory.display()));
    command.arg(format!("--size={}", FIO_FILE_BYTES / u64::from(block) * u64::from(block)));
    command.arg(format!("--bs={block}"));
    command.arg(format!("--iodepth={}", arguments.depth));
    command.arg(format!("--runtime={}", arguments.seconds));
    command.arg(format!("--ramp_time={}", WARM_UP.as_secs()));
    // The latency counts from before the submission, as in this benchmark. fio's clat begins after it, and for a direct
    // write the submission takes a fifth of the time.
    command.args(["--lat_percentiles=1", "--clat_percentiles=0"]);
    if arguments.durability == DurabilityChoice::Synced {
        command.arg("--sync=dsync");
    }
    let output = command.output().context("fio cannot be run; is it installed?")?;
    if !output.status.success() {
        bail!("fio failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    fio_outcome(&output.stdout, f64::from(arguments.seconds)).context("fio's output is not as expected")
}

fn fio_outcome(json: &[u8], seconds: f64) -> anyhow::Result<Outcome> {
    let begin = json.iter().position(|byte| *byte == b'{').context("there is no JSON in it")?;
    let report: serde_json::Value = serde_json::from_slice(&json[begin..])?;
    let job = &report["jobs"][0];
    let number =
        |value: &serde_json::Value, name: &str| value.as_f64().with_context(|| format!("there is no {name}"));
    let latency = &job["write"]["lat_ns"];
    let quantile = |name: &str| number(&latency["percentile"][name], name).map(|nanos| nanos / 1e3);
    let cpu = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    Ok(Outcome {
        bytes_per_second: number(&job["write"]["bw_bytes"], "bw_bytes")?,
        per_second: number(&job["write"]["iops"], "iops")?,
        micros: [
            quantile("50.000000")?,
            quantile("99.000000")?,
            quantile("99.900000")?,
            number(&latency["max"], "max")? / 1e3,
        ],
        cpu_seconds: cpu / 100.0 * seconds,
        seconds,
        young: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Shown;

    #[test]
    fn a_short_run_measures_and_cleans_up() {
        let parent = tempfile::tempdir().unwrap();
        let arguments = BenchStoreArguments {
            data_dir: parent.path().to_owned(),
            streams: vec![3],
            append_bytes: 1000,
            depth: 4,
            seconds: 1,
            retention_bytes: 0,
            durability: DurabilityChoice::Synced,
            engine: "plain".into(),
            fio: false,
            shown: Shown { output: Output::Text },
        };
        let directory = Directory::create(parent.path()).unwrap();
        let disk = disk::open_directory(&directory.0, disk::Engine::Plain).unwrap();
        let outcome = Bench::new(Arc::new(disk), 3, &Shape::of(&arguments)).unwrap().run(&arguments).unwrap();
        assert!(outcome.per_second > 1.0 && outcome.bytes_per_second > 1000.0);
        assert!(outcome.micros.is_sorted() && outcome.micros[0] > 1.0 && outcome.micros[3] < 2e6);
        drop(directory);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn fio_is_understood() {
        let json = br#"note: fio says things first
            {"jobs":[{"usr_cpu":10.0,"sys_cpu":20.0,"write":{"bw_bytes":1000000,"iops":50.5,"lat_ns":{"max":9000000,
            "percentile":{"50.000000":1000,"99.000000":2000,"99.900000":3000}}}}]}"#;
        let outcome = fio_outcome(json, 5.0).unwrap();
        assert_eq!((outcome.bytes_per_second, outcome.per_second, outcome.cpu_seconds), (1e6, 50.5, 1.5));
        assert_eq!(outcome.micros, [1.0, 2.0, 3.0, 9000.0]);
        assert!(fio_outcome(b"{}", 1.0).is_err());
    }
}
