//! `mainstem doctor`: looks at what a server needs from the machine, and says what to do where it is missing.
//!
//! The latencies are measured on the log directories of the settings, in a fresh directory that is removed afterwards. A server may
//! run beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use disk::{AlignedBuffer, Disk, Engine};
use hdrhistogram::Histogram;
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use crate::arguments::{Output, ServerArguments};
use crate::bench::{Directory, append_latency};
use crate::settings::{Settings, engine_name};
use crate::{commands, log_dirs};

/// Each client has a connection, and each segment that is read a file.
const OPEN_FILES: u64 = 65_536;
/// What a small server takes at once, with its spare segments.
const FREE_BYTES: u64 = 5 << 30;
const FREE_SHARE: f64 = 0.1;
/// Every `acks=all` waits for one synced write. A drive with a capacitor takes less than 1 ms.
const SYNC_MS: f64 = 20.0;
/// Bytes and number of the writes to the device alone.
const WRITE_BYTES: usize = 4096;
const WRITES: u64 = 256;
const MEASURED_FOR: Duration = Duration::from_secs(2);
const MEMORY_BYTES: u64 = 128 << 20;
/// File systems whose files are gone after a restart, or belong to another machine.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
const REMOTE: [&str; 6] = ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"];

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    /// It works, and could be better.
    Note,
    Bad,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Good => "ok",
            State::Note => "note",
            State::Bad => "BAD",
        }
    }
}

/// What one check found.
#[derive(Debug)]
struct Finding {
    what: &'static str,
    state: State,
    found: String,
    /// Empty where there is nothing to do.
    advice: String,
}

impl Finding {
    fn new(what: &'static str, state: State, found: impl Into<String>, advice: &str) -> Finding {
        let advice = if state == State::Good { "" } else { advice };
        Finding { what, state, found: found.into(), advice: advice.to_owned() }
    }
}

/// Prints the findings. Fails if something is bad.
pub fn run(asked: &ServerArguments, output: Output) -> anyhow::Result<()> {
    let settings = Settings::load(asked, std::env::vars())?;
    let mut findings = vec![open_files(), memory_lock(), memory(), io_uring_allowed(), clock()];
    let mut directories = settings.log_directories();
    if !directories.contains(&settings.data_dir) {
        directories.insert(0, settings.data_dir.clone());
    }
    let logs = settings.log_directories();
    for directory in &directories {
        let _missing = Missing::of(directory);
        match look_into(directory) {
            Ok(found) => findings.extend(found),
            Err(finding) => {
                findings.push(finding);
                continue;
            }
        }
        if logs.contains(directory) {
            findings.extend(engine_and_latency(directory, settings.engine));
        }
    }
    let bad = findings.iter().filter(|finding| finding.state == State::Bad).count();
    let text = match output {
        Output::Text => to_text(&findings),
        Output::Json => format!("{}\n", to_json(&findings)),
    };
    commands::print(&text)?;
    if bad > 0 {
        bail!("{bad} of {} checks found what a server cannot do without", findings.len());
    }
    Ok(())
}

/// Directories that are missing, the lowest first. They are made to be measured and removed on drop, since they may belong to another
/// user than the server's.
struct Missing(Vec<PathBuf>);

impl Missing {
    fn of(directory: &Path) -> Missing {
        let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        Missing(missing.map(ToOwned::to_owned).collect())
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        // A directory that somebody else uses meanwhile is not empty, unless it was taken at this very moment.
        self.0.iter().for_each(|path| drop(fs::remove_dir(path)));
    }
}

fn to_text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { what, state, found, advice } in findings {
        text.push_str(&format!("{:<4}  {what:<width$}  {found}\n", state.word()));
        if !advice.is_empty() {
            text.push_str(&format!("{:width$}  -> {advice}\n", "", width = width + 6));
        }
    }
    text
}

fn to_json(findings: &[Finding]) -> serde_json::Value {
    let one = |finding: &Finding| {
        json!({
            "check": finding.what, "state": finding.state.word().to_lowercase(), "found": finding.found,
            "advice": finding.advice,
        })
    };
    findings.iter().map(one).collect()
}

/// Said, since people look for it: queues of io_uring counted against it before Linux 5.12.
fn memory_lock() -> Finding {
    let limit = match getrlimit(Resource::Memlock).maximum {
        Some(bytes) => format!("{} KiB", bytes / 1024),
        None => "no limit".to_owned(),
    };
    Finding::new("memory lock", State::Good, format!("{limit}; the server locks no memory"), "")
}

fn open_files() -> Finding {
    const WHAT: &str = "open files";
    // The server raises its limit to the maximum.
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < OPEN_FILES => Finding::new(
            WHAT,
            if most < 1024 { State::Bad } else { State::Note },
            format!("{most} at most"),
            "each connection takes one: raise `ulimit -Hn`, LimitNOFILE= of the unit, or --ulimit nofile of the container",
        ),
        most => Finding::new(
            WHAT,
            State::Good,
            most.map_or("no limit".into(), |most| format!("{most} at most")),
            "",
        ),
    }
}

fn memory() -> Finding {
    const WHAT: &str = "memory";
    match broker::process_memory_bytes() {
        None => Finding::new(WHAT, State::Note, "unknown", "the system does not say how much there is"),
        Some(bytes) => Finding::new(
            WHAT,
            if bytes < MEMORY_BYTES { State::Bad } else { State::Good },
            format!("{} MiB for this process", bytes >> 20),
            "the server needs 128 MiB: raise the limit of the control group",
        ),
    }
}

/// Whether the kernel lets processes use io_uring at all.
fn io_uring_allowed() -> Finding {
    const WHAT: &str = "io_uring";
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match disabled.trim() {
        "1" | "2" => Finding::new(
            WHAT,
            State::Note,
            format!("refused: kernel.io_uring_disabled is {}", disabled.trim()),
            "the server writes with O_DIRECT from threads, at the same rate and for some more CPU time; \
             `sysctl kernel.io_uring_disabled=0` allows it",
        ),
        _ => Finding::new(WHAT, State::Good, "the kernel allows it", ""),
    }
}

/// Whether a service sets the clock. Retention, timestamps and leases of a cluster go by it.
fn clock() -> Finding {
    const WHAT: &str = "clock";
    const SERVICES: [(&str, &str); 4] = [
        ("/run/systemd/timesync/synchronized", "systemd-timesyncd"),
        ("/run/chrony", "chrony"),
        ("/run/ntpd.pid", "ntpd"),
        ("/run/openntpd", "openntpd"),
    ];
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_default();
    let source = source.trim();
    if ["hpet", "acpi_pm", "jiffies"].contains(&source) {
        let advice = "each look at the clock is a slow one: `tsc` or the hypervisor's own is better";
        return Finding::new(WHAT, State::Note, format!("its source is {source}"), advice);
    }
    match SERVICES.iter().find(|(path, _)| Path::new(path).exists()) {
        Some((_, service)) => Finding::new(WHAT, State::Good, format!("set by {service}"), ""),
        None => Finding::new(
            WHAT,
            State::Note,
            "no time service was found here",
            "in a container or a virtual machine the host may have one; otherwise install chrony or systemd-timesyncd",
        ),
    }
}

/// The type of the file system that a path is on: that of the longest mount point above it.
fn file_system(mounts: &str, path: &Path) -> Option<String> {
    let of_line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        // Blanks are escaped (proc(5)).
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        let kind = after.split(' ').next()?.to_owned();
        path.starts_with(&point).then_some((point.len(), kind))
    };
    // Of two mounts on one point the later one is seen.
    mounts.lines().filter_map(of_line).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

/// The directory, its file system and its free space.
fn look_into(directory: &Path) -> Result<Vec<Finding>, Finding> {
    const WHAT: &str = "directory";
    let shown = directory.display();
    let failed = |problem: String| {
        Finding::new(
            WHAT,
            State::Bad,
            problem,
            "create it for the user of the server, or name another one: --data-dir",
        )
    };
    log_dirs::create(directory).map_err(|error| failed(format!("{shown} cannot be made: {error}")))?;
    if let Err(error) = log_dirs::check_access("directory", directory) {
        return Err(Finding::new(WHAT, State::Bad, error.to_string(), "the server refuses it"));
    }
    let whole = directory.canonicalize().map_err(|error| failed(format!("{shown}: {error}")))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let kind = file_system(&mounts, &whole).unwrap_or_else(|| "unknown".into());
    let (state, advice) = match kind.as_str() {
        kind if IN_MEMORY.contains(&kind) => (State::Note, "records are gone when the machine restarts"),
        kind if REMOTE.contains(&kind) => {
            (State::Note, "a synced write is only as durable as the other machine makes it")
        }
        "overlay" => (State::Note, "records are gone with the container: mount a volume here"),
        _ => (State::Good, ""),
    };
    let mut findings = vec![Finding::new(WHAT, state, format!("{shown} on {kind}"), advice)];
    let disk = disk::read_directory(directory).map_err(|error| failed(format!("{shown}: {error}")))?;
    let (free, all) = (disk.free_bytes().unwrap_or(0), disk.capacity_bytes().unwrap_or(0));
    // Exact up to 2^53 bytes.
    let scarce = free < FREE_BYTES || (free as f64) < all as f64 * FREE_SHARE;
    findings.push(Finding::new(
        "free space",
        if scarce { State::Note } else { State::Good },
        format!("{:.1} GiB of {:.1} GiB", gib(free), gib(all)),
        "a log that finds no space takes no more records: set retention.bytes of topics, or give it more",
    ));
    Ok(findings)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// How a log would write here, and how long a synced write takes: of the device alone, and through a log.
fn engine_and_latency(directory: &Path, wanted: Engine) -> Vec<Finding> {
    let (engine, mut findings) = match disk::open_directory(directory, wanted) {
        Ok(found) => (found.engine(), Vec::new()),
        Err(error) => {
            let found = format!("{} is refused: {error}", engine_name(wanted));
            let advice = "set disk.engine=auto, which takes the first that works";
            return vec![Finding::new("engine", State::Bad, found, advice)];
        }
    };
    let advice = match engine {
        Engine::Plain => "this file system refuses O_DIRECT: ext4, xfs and btrfs do not, and are faster",
        _ => "io_uring is refused, as in most containers; threads write at the same rate",
    };
    let state = if engine == Engine::Uring { State::Good } else { State::Note };
    findings.push(Finding::new("engine", state, engine_name(engine), advice));
    let measured = device_latency(directory, engine)
        .and_then(|device| append_latency(directory, engine, MEASURED_FOR).map(|log| (device, log)));
    findings.push(match measured {
        Err(error) => Finding::new("sync latency", State::Bad, format!("{error:#}"), "the directory cannot be written to"),
        Ok(([device_p50, device_p99], [p50, p99])) => Finding::new(
            "sync latency",
            if device_p99 > SYNC_MS { State::Note } else { State::Good },
            format!(
                "p50 {p50:.2} ms, p99 {p99:.2} ms for a record in the log; {device_p50:.2} and {device_p99:.2} ms for the device \
                 alone"
            ),
            "every acks=all waits for the device: drives with power-loss protection answer in less than 1 ms, and disks of clouds \
             have types with less latency",
        ),
    });
    findings
}

/// p50 and p99 in milliseconds of a synced write of 4 KiB to a file that has its blocks.
fn device_latency(parent: &Path, engine: Engine) -> anyhow::Result<[f64; 2]> {
    let directory = Directory::create(parent)?;
    let disk = disk::open_directory(directory.path(), engine)?;
    let file = disk.create("device", WRITES * WRITE_BYTES as u64)?;
    let mut buffer = AlignedBuffer::zeroed(WRITE_BYTES);
    buffer.fill(b'm');
    let data = buffer.into_bytes();
    let mut queue = disk.queue(1)?;
    // Nanoseconds up to a minute.
    let mut latency: Histogram<u64> = Histogram::new_with_max(60_000_000_000, 3)?;
    let (begun, mut finished) = (Instant::now(), Vec::new());
    for number in 0.. {
        let from = Instant::now();
        queue.write(0, &file, number % WRITES * WRITE_BYTES as u64, data.clone(), true);
        while queue.in_flight() > 0 {
            queue.wait(true, None, &mut finished)?;
        }
        finished.drain(..).try_for_each(|operation| operation.result)?;
        // Blocks that were never written take longer, and a log does not write to such blocks.
        if number >= WRITES {
            latency.saturating_record(u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX));
            if begun.elapsed() > MEASURED_FOR {
                break;
            }
        }
    }
    Ok([0.5, 0.99].map(|quantile| latency.value_at_quantile(quantile) as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_above_a_path_counts() {
        let mounts = "\
            22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            23 22 0:5 / /var rw - xfs /dev/sdb rw\n\
            24 23 0:6 / /var/my\\040data rw shared:2 - tmpfs none rw\n\
            25 22 0:7 / /va rw - nfs host:/ rw\n";
        let of = |path: &str| file_system(mounts, Path::new(path)).unwrap();
        assert_eq!(of("/opt/x"), "ext4");
        assert_eq!(of("/var/lib/mainstem"), "xfs");
        assert_eq!(of("/var/my data/log"), "tmpfs");
        assert_eq!(of("/varx"), "ext4");
    }

    #[test]
    fn a_directory_is_measured() {
        let parent = tempfile::tempdir().unwrap();
        let missing = Missing::of(&parent.path().join("deep/data"));
        let findings = look_into(&parent.path().join("deep/data")).unwrap();
        assert_eq!(findings.len(), 2);
        drop(missing);
        let measured = engine_and_latency(parent.path(), Engine::Auto);
        assert!(measured.iter().all(|finding| finding.state != State::Bad), "{measured:?}");
        assert!(measured[1].found.contains("for the device alone"), "{measured:?}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(look_into(&file.join("data")).unwrap_err().state, State::Bad);
    }

    #[test]
    fn what_is_good_needs_no_advice() {
        let findings =
            [Finding::new("a", State::Good, "1", "none"), Finding::new("longer", State::Bad, "2", "do this")];
        assert_eq!(to_text(&findings), "ok    a       1\nBAD   longer  2\n              -> do this\n");
        assert_eq!(to_json(&findings)[1]["advice"], "do this");
    }
}
