//! The use of resources by a server, by the device below its data and by this process, observed through Linux's
//! `/proc`.
//!
//! What cannot be read (another system, a process that has ended, a file system without a block device) is `None` or
//! empty, and an experiment continues without it. The parsers are pure functions over the text of the files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::result::{DeviceUsage, Environment, ServerUsage};
use crate::traffic::Traffic;

/// The unit of times in /proc. On Linux it is the same everywhere (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;
/// The unit of /proc/diskstats, whatever the device's sector size is.
const SECTOR_BYTES: u64 = 512;

/// A process that is observed from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerProcess {
    pid: u32,
}

impl ServerProcess {
    /// The process with this id.
    pub fn of(pid: u32) -> ServerProcess {
        ServerProcess { pid }
    }

    /// User and system CPU time of all its threads since the start, with a precision of a hundredth of a second.
    pub fn cpu_seconds(self) -> Option<f64> {
        cpu_seconds_in(&self.read("stat")?)
    }

    /// The largest resident set since the start, in bytes.
    pub fn peak_memory_bytes(self) -> Option<u64> {
        kilobytes_in(&self.read("status")?, "VmHWM:").map(|kilobytes| kilobytes * 1024)
    }

    fn read(self, file: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid)).ok()
    }
}

/// Kills a process, as a crash does.
pub fn kill(pid: u32) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("this is no process")?;
    Ok(kill_process(pid, Signal::KILL)?)
}

/// Processor time that a hypervisor withheld although there was work, between two calls.
///
/// A machine that shares its processors, or has a quota of them, stands still during that time. Every latency then is
/// longer, whatever the server does.
#[derive(Debug, Default)]
pub struct Stolen {
    processors: f64,
    before: Option<f64>,
}

impl Stolen {
    /// Begins now, for this number of processors.
    pub fn of(processors: u32) -> Stolen {
        Stolen { processors: f64::from(processors), before: stolen_seconds() }
    }

    /// The share of the `seconds` since the last call, from 0 to 1. `None` if the system does not report it.
    pub fn share(&mut self, seconds: f64) -> Option<f64> {
        let now = stolen_seconds();
        let stolen = now? - std::mem::replace(&mut self.before, now)?;
        (self.processors > 0.0 && seconds > 0.0)
            .then(|| (stolen / (self.processors * seconds)).clamp(0.0, 1.0))
    }
}

fn stolen_seconds() -> Option<f64> {
    stolen_seconds_in(&fs::read_to_string("/proc/stat").ok()?)
}

/// Parses `/proc/stat`, over all processors: `cpu`, user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
fn stolen_seconds_in(stat: &str) -> Option<f64> {
    let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: u64 = fields.split_whitespace().nth(7)?.parse().ok()?;
    Some(ticks as f64 / TICKS_PER_SECOND)
}

/// User and system CPU time of this process.
pub fn own_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Exact up to 2^53 seconds.
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Parses `/proc/PID/stat`: `utime` and `stime` are the 14th and 15th field.
fn cpu_seconds_in(stat: &str) -> Option<f64> {
    // The second field is the name in brackets, which may contain blanks and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let (user, system) = (ticks()?, ticks()?);
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

/// Parses a file of lines like `VmHWM:     1234 kB`.
fn kilobytes_in(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A partition or a disk, by its device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    major: u64,
    minor: u64,
}

/// Counters of a device since the start of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// The kernel's name of the device.
    pub name: String,
    /// Number of completed reads.
    pub reads: u64,
    /// Sectors of 512 bytes read.
    pub sectors_read: u64,
    /// Number of completed writes.
    pub writes: u64,
    /// Sectors of 512 bytes written.
    pub sectors_written: u64,
}

impl Device {
    /// The device that holds the data at `path`. `None` if it is not a block device (tmpfs, overlay, network).
    pub fn below(path: &Path) -> Option<Device> {
        let device = Device::of_number(fs::metadata(path).ok()?.dev());
        device.counters().map(|_| device)
    }

    /// In hexadecimal, the number is `MMMMMmmmmmmMMMmm`: major and minor in two parts each, so that the 16-bit numbers
    /// of old systems stay the same.
    fn of_number(number: u64) -> Device {
        Device {
            major: ((number >> 32) & 0xffff_f000) | ((number >> 8) & 0xfff),
            minor: ((number >> 12) & 0xffff_ff00) | (number & 0xff),
        }
    }

    /// The counters of the device until now.
    pub fn counters(self) -> Option<DeviceCounters> {
        counters_in(&fs::read_to_string("/proc/diskstats").ok()?, self)
    }
}

impl DeviceCounters {
    /// The work between `before` and this.
    pub fn since(&self, before: &DeviceCounters) -> DeviceUsage {
        DeviceUsage {
            name: self.name.clone(),
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.sectors_written.saturating_sub(before.sectors_written) * SECTOR_BYTES,
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.sectors_read.saturating_sub(before.sectors_read) * SECTOR_BYTES,
        }
    }
}

/// Parses `/proc/diskstats`: major, minor, name, then for reads and for writes: completed, merged, sectors, millis.
fn counters_in(diskstats: &str, device: Device) -> Option<DeviceCounters> {
    diskstats.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let found = Device { major: number(0)?, minor: number(1)? };
        if found != device {
            return None;
        }
        Some(DeviceCounters {
            name: (*fields.get(2)?).into(),
            reads: number(3)?,
            sectors_read: number(5)?,
            writes: number(7)?,
            sectors_written: number(9)?,
        })
    })
}

/// This machine, and the file system below `data_dir`. The processors of the server and of the load are not known here.
pub fn environment(data_dir: Option<&Path>) -> Environment {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let kernel = [read("/proc/sys/kernel/ostype"), read("/proc/sys/kernel/osrelease")];
    // Absolute and without symbolic links, as mount points are.
    let data_dir = data_dir.and_then(|path| fs::canonicalize(path).ok());
    Environment {
        cpus: cpus_in(&cpuinfo),
        cpu_model: cpu_model_in(&cpuinfo).unwrap_or_default().into(),
        memory_bytes: kilobytes_in(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0) * 1024,
        kernel: kernel.each_ref().map(|part| part.trim()).join(" ").trim().into(),
        filesystem: data_dir
            .and_then(|path| filesystem_in(&read("/proc/self/mountinfo"), &path))
            .unwrap_or_default(),
        ..Environment::default()
    }
}

/// The number of all processors of the machine, including those that this process may not use.
fn cpus_in(cpuinfo: &str) -> u32 {
    let processors = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    u32::try_from(processors).unwrap_or(0)
}

/// x86 has `model name`. Some ARM systems have only `Hardware` or nothing.
fn cpu_model_in(cpuinfo: &str) -> Option<&str> {
    let value = |name: &str| {
        let rest = cpuinfo.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim_start().strip_prefix(':').map(str::trim)
    };
    value("model name").or_else(|| value("Hardware"))
}

/// Parses `/proc/self/mountinfo`: type and device of the file system that holds `path` (absolute), "ext4 on /dev/vda".
fn filesystem_in(mountinfo: &str, path: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        // Between the two there is a list of optional fields of any length.
        let (mount, filesystem) = line.split_once(" - ")?;
        let point = PathBuf::from(unescaped(mount.split(' ').nth(4)?));
        let mut filesystem = filesystem.split(' ');
        let (kind, source) = (filesystem.next()?, filesystem.next()?);
        path.starts_with(&point)
            .then(|| (point.components().count(), format!("{kind} on {}", unescaped(source))))
    });
    // If several are mounted on the same point, the last one covers the others, and `max_by_key` takes the last.
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, filesystem)| filesystem)
}

/// Undoes the kernel's octal escapes of blanks, tabs, line feeds and backslashes.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// Observes a server, its device and this process over the measured part of an experiment.
#[derive(Debug)]
pub struct Observer {
    /// All processes of the server.
    server: Vec<ServerProcess>,
    device: Option<Device>,
    begun: Begun,
}

#[derive(Debug, Default)]
struct Begun {
    server_cpu_seconds: Option<f64>,
    traffic: Option<Traffic>,
    device: Option<DeviceCounters>,
    own_cpu_seconds: f64,
}

/// The use of resources between the beginning and the end of an observation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The server, if it could be observed at both ends.
    pub server: Option<ServerUsage>,
    /// The device, if there is one and it could be observed at both ends.
    pub device: Option<DeviceUsage>,
    /// CPU-seconds of this process.
    pub load_cpu_seconds: f64,
}

impl Observer {
    /// Observes the processes `pids` and the device below `data_dir`, if given.
    pub fn new(pids: &[u32], data_dir: Option<PathBuf>) -> Observer {
        Observer {
            server: pids.iter().copied().map(ServerProcess::of).collect(),
            device: data_dir.and_then(|path| Device::below(&path)),
            begun: Begun::default(),
        }
    }

    /// CPU-seconds of all processes of the server. `None` if there are none.
    fn cpu_seconds(&self) -> Option<f64> {
        if self.server.is_empty() {
            return None;
        }
        self.server.iter().map(|process| process.cpu_seconds()).sum()
    }

    /// What the processes of a cluster have sent to each other.
    fn traffic(&self) -> Option<Traffic> {
        let pids: Vec<u32> = self.server.iter().map(|process| process.pid).collect();
        (pids.len() > 1).then(|| Traffic::between(&pids)).flatten()
    }

    /// Begins the measured part.
    pub fn begin(&mut self) {
        self.begun = Begun {
            server_cpu_seconds: self.cpu_seconds(),
            traffic: self.traffic(),
            device: self.device.and_then(Device::counters),
            own_cpu_seconds: own_cpu_seconds(),
        };
    }

    /// Ends the measured part.
    pub fn end(&self) -> Observed {
        let server = || {
            let between = || Some(self.traffic()?.since(self.begun.traffic.as_ref()?));
            Some(ServerUsage {
                cpu_seconds: self.cpu_seconds()? - self.begun.server_cpu_seconds?,
                peak_memory_bytes: self
                    .server
                    .iter()
                    .map(|process| process.peak_memory_bytes())
                    .sum::<Option<u64>>()?,
                between_bytes: between(),
            })
        };
        let device = || Some(self.device?.counters()?.since(self.begun.device.as_ref()?));
        Observed {
            server: server(),
            device: device(),
            load_cpu_seconds: own_cpu_seconds() - self.begun.own_cpu_seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const DISKSTATS: &str = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 604099 52147 503610962 597120 5683283 526540 1100602224 4972524 0 616608 5737057 119601 80 7983528456 86509 2033306 80902
 259       2 nvme0n1p2 2101 10 88064 300 42 7 4096 99 0 500 399 0 0 0 0 0 0
";
    const MOUNTINFO: &str = r"22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 27 259:2 / /mnt/fast\040disk rw,noatime shared:1 master:2 - xfs /dev/nvme0n1p2 rw
40 27 0:24 / /mnt/over rw - tmpfs tmpfs rw
41 27 0:25 / /mnt/over rw - overlay overlay rw
";

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "14254 (a (b) c) R 14244 14244 12936 0 -1 4194304 100 0 0 0 1234 66 7 8 20 0 1 0 1283754";
        assert_eq!(cpu_seconds_in(stat), Some(13.0));
        assert_eq!(cpu_seconds_in("14254 (cat) R 1 2"), None);
        assert_eq!(cpu_seconds_in(""), None);
    }

    #[test]
    fn stolen_time_is_read_over_all_processors() {
        let stat = "cpu  227058 0 48088 172507 143030 0 12714 3599 17 0\n\
            cpu0 113636 0 21804 67135 97106 0 6651 1758 0 0\nintr 1 2 3 4 5 6 7 8 9\n";
        assert_eq!(stolen_seconds_in(stat), Some(35.99));
        assert_eq!(stolen_seconds_in("cpu  1 2 3 4\n"), None, "a kernel before 2.6.11");
        assert_eq!(stolen_seconds_in(""), None);
    }

    #[test]
    fn memory_is_read_in_kilobytes() {
        let status = "Name:\tjava\nVmPeak:\t 5800096 kB\nVmHWM:\t  345678 kB\nVmRSS:\t  300000 kB\n";
        assert_eq!(kilobytes_in(status, "VmHWM:"), Some(345_678));
        assert_eq!(kilobytes_in("MemTotal:       24731708 kB\n", "MemTotal:"), Some(24_731_708));
        assert_eq!(kilobytes_in(status, "VmSwap:"), None);
    }

    #[test]
    fn a_device_is_found_by_its_number() {
        assert_eq!(Device::of_number(65024), Device { major: 254, minor: 0 });
        assert_eq!(Device::of_number(0x0000_1000_0010_3402), Device { major: 0x1034, minor: 0x102 });
        let counters = counters_in(DISKSTATS, Device::of_number(65024)).unwrap();
        let vda = DeviceCounters {
            name: "vda".into(),
            reads: 604_099,
            sectors_read: 503_610_962,
            writes: 5_683_283,
            sectors_written: 1_100_602_224,
        };
        assert_eq!(counters, vda);
        assert_eq!(counters_in(DISKSTATS, Device { major: 259, minor: 2 }).unwrap().name, "nvme0n1p2");
        assert_eq!(counters_in(DISKSTATS, Device { major: 0, minor: 24 }), None);
    }

    #[test]
    fn usage_of_a_device_is_a_difference_in_bytes() {
        let before = counters_in(DISKSTATS, Device { major: 259, minor: 2 }).unwrap();
        let after =
            DeviceCounters { writes: 44, sectors_written: 4104, sectors_read: 88_065, ..before.clone() };
        let usage = after.since(&before);
        assert_eq!((usage.writes, usage.written_bytes), (2, 4096));
        assert_eq!((usage.reads, usage.read_bytes), (0, 512));
    }

    #[test]
    fn the_processor_is_read() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Processor\n\n\
            processor\t: 1\nmodel name\t: Intel(R) Xeon(R) Processor\n";
        assert_eq!((cpus_in(cpuinfo), cpu_model_in(cpuinfo)), (2, Some("Intel(R) Xeon(R) Processor")));
        assert_eq!((cpus_in(""), cpu_model_in("")), (0, None));
    }

    #[test]
    fn the_deepest_and_last_mount_holds_a_path() {
        let of = |path: &str| filesystem_in(MOUNTINFO, Path::new(path)).unwrap();
        assert_eq!(of("/var/data"), "ext4 on /dev/vda");
        assert_eq!(of("/mnt/fast disk/data"), "xfs on /dev/nvme0n1p2");
        assert_eq!(of("/mnt/over"), "overlay on overlay");
        assert_eq!(of("/mnt/overt"), "ext4 on /dev/vda");
        assert_eq!(filesystem_in("", Path::new("/")), None);
    }

    #[test]
    fn what_is_not_there_is_none() {
        assert_eq!(ServerProcess::of(u32::MAX).cpu_seconds(), None);
        assert_eq!(ServerProcess::of(u32::MAX).peak_memory_bytes(), None);
        assert_eq!(Device::below(Path::new("/proc")), None);
        let mut observer = Observer::new(&[u32::MAX], Some("/does/not/exist".into()));
        observer.begin();
        let observed = observer.end();
        assert_eq!((observed.server, observed.device), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_observes_itself() {
        let directory = tempfile::tempdir().unwrap();
        let mut observer = Observer::new(&[std::process::id()], Some(directory.path().into()));
        observer.begin();
        let mut file = fs::File::create(directory.path().join("file")).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let until = own_cpu_seconds() + 0.1;
        while own_cpu_seconds() < until {}
        let observed = observer.end();
        assert!(observed.load_cpu_seconds >= 0.1);
        let server = observed.server.unwrap();
        assert!(server.cpu_seconds >= 0.08 && server.peak_memory_bytes > 1 << 20, "{server:?}");
        // A directory for temporary files may be in memory.
        if let Some(device) = observed.device {
            assert!(device.writes > 0 && device.written_bytes >= 1 << 20, "{device:?}");
        }
        let environment = environment(Some(directory.path()));
        let mut stolen = Stolen::of(environment.cpus);
        assert!(stolen.share(1.0).is_some_and(|share| (0.0..=1.0).contains(&share)), "{stolen:?}");
        assert_eq!(stolen.share(0.0), None);
        assert!(environment.cpus > 0 && environment.memory_bytes > 1 << 26);
        assert!(environment.kernel.starts_with("Linux "), "{environment:?}");
        assert!(environment.filesystem.contains(" on "), "{environment:?}");
    }
}
