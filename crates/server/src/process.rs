//! The process as the kernel sees it: file descriptors, memory, CPU time. Read from /proc, without another library.

use std::fs;
use std::os::fd::AsRawFd;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The unit of times in /proc. On Linux it is the same everywhere (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Raises the limit of open files to the maximum that the system allows, and returns that maximum.
pub fn raise_open_files() -> std::io::Result<Option<u64>> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current)
}

/// File descriptors that clients' connections leave free: for the admin listener, which is asked just when there is trouble, and
/// for the files of the log.
const KEPT_BACK: u64 = 64;

/// Whether no connection of a client may be taken in, since only the last file descriptors are free. `newest` is a descriptor that
/// was just opened. The kernel gives each file the lowest number that is free (POSIX `open`).
pub fn is_kept_back(newest: &impl AsRawFd) -> bool {
    u64::try_from(newest.as_raw_fd()).is_ok_and(|number| number >= taken_by_clients_max())
}

/// Whether that is still so.
pub fn lacks_descriptors() -> bool {
    const NONE_LEFT: [Errno; 2] = [Errno::MFILE, Errno::NFILE];
    // Any open file shows the lowest number that is free.
    match fs::File::open("/proc/self/stat") {
        Ok(newest) => is_kept_back(&newest),
        Err(error) => NONE_LEFT.iter().any(|of| error.raw_os_error() == Some(of.raw_os_error())),
    }
}

/// The number of the first file that is kept back: at most half of them are.
fn taken_by_clients_max() -> u64 {
    getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit - KEPT_BACK.min(limit / 2))
}

/// Seconds of CPU time that all threads have used.
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Exact up to 2^53 seconds, which are a hundred million years.
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes of resident memory.
pub fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse::<i64>().ok().map(|kilobytes| kilobytes * 1024)
}

fn open_files() -> Option<i64> {
    // One of the entries is the open directory itself.
    i64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok().map(|count| count - 1)
}

/// Start of the process, in seconds since the Unix epoch.
fn start_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name in brackets, which may contain blanks. `starttime` is the 22nd field.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + ticks / TICKS_PER_SECOND)
}

/// The metrics that Prometheus expects of every process, read at the time of a scrape.
#[derive(Debug)]
pub struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let cpu = ConstCounter::new(cpu_seconds());
        cpu.encode(encoder.encode_descriptor(
            "process_cpu_seconds",
            "CPU time used, user and system",
            None,
            MetricType::Counter,
        )?)?;
        let gauges = [
            ("process_resident_memory_bytes", "Memory in use", resident_bytes()),
            ("process_open_fds", "Open file descriptors", open_files()),
            (
                "process_max_fds",
                "Most file descriptors that may be open",
                getrlimit(Resource::Nofile).current.and_then(|limit| i64::try_from(limit).ok()),
            ),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                ConstGauge::new(value).encode(encoder.encode_descriptor(
                    name,
                    help,
                    None,
                    MetricType::Gauge,
                )?)?;
            }
        }
        if let Some(seconds) = start_seconds() {
            let name = "process_start_time_seconds";
            let help = "When the process started, in seconds since the Unix epoch";
            ConstGauge::new(seconds).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_kernel_is_read_right() {
        assert!(cpu_seconds() > 0.0 && cpu_seconds() < 3600.0);
        assert!(resident_bytes().unwrap() > 500_000);
        assert!(open_files().unwrap() > 2);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - start_seconds().unwrap();
        assert!((-3.0..600.0).contains(&age), "{age}");
        assert!(raise_open_files().unwrap().is_none_or(|files| files >= 256));
    }
}
