//! The memory available to this process.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

const MIB: u64 = 1024 * 1024;

/// Default size in bytes of the cache of the newest records: a sixteenth of the memory. At most 1 GiB, and at least 128
/// MiB or an eighth of the memory, whichever is less.
pub fn tail_cache_bytes_default() -> i64 {
    static BYTES: OnceLock<i64> = OnceLock::new();
    *BYTES.get_or_init(|| share_of(process_memory_bytes()))
}

/// Bytes of memory that this process may use; `None` if the system does not say.
pub fn process_memory_bytes() -> Option<u64> {
    memory_bytes(Path::new("/"))
}

fn share_of(memory: Option<u64>) -> i64 {
    let memory = memory.unwrap_or(2048 * MIB);
    let bytes = (memory / 16).clamp((memory / 8).clamp(4 * MIB, 128 * MIB), 1024 * MIB);
    i64::try_from(bytes / MIB * MIB).expect("it is at most 1 GiB")
}

/// Bytes of memory that this process may use: the memory of the machine, or less if a limit of one of its control
/// groups is lower (`memory.max` or `memory.high` of cgroups version 2, `memory.limit_in_bytes` of version 1). `None`
/// if the system reports neither. `root` is the directory that contains `/proc` and `/sys`.
fn memory_bytes(root: &Path) -> Option<u64> {
    let total = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| total_of(&text));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let (hierarchy, files): (_, &[_]) = match controllers {
            "" => ("sys/fs/cgroup", &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
            }
            _ => return None,
        };
        // In a container, the group may have its name outside the container, while only the container's own group is
        // visible. So its ancestors are checked as well.
        let hierarchy = root.join(hierarchy);
        let of = |group: &Path| {
            let limits = files.iter().filter_map(|file| {
                fs::read_to_string(hierarchy.join(group).join(file)).ok()?.trim().parse().ok()
            });
            limits.min()
        };
        Path::new(group).ancestors().filter_map(of).min()
    });
    total.into_iter().chain(limits).min()
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1024 * MIB;

    fn memory_of(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::TempDir::new().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        memory_bytes(root.path())
    }

    #[test]
    fn the_smallest_limit_counts() {
        let machine = ("proc/meminfo", "MemFree: 1 kB\nMemTotal:       8388608 kB\n");
        let version2 = ("proc/self/cgroup", "0::/system.slice/mainstem.service\n");
        let version1 = ("proc/self/cgroup", "5:devices:/\n4:cpu,memory:/docker/17\n0::/\n");
        let limit = "2147483648\n";
        assert_eq!(memory_of(&[]), None);
        assert_eq!(memory_of(&[machine]), Some(8 * GIB));
        let of = "sys/fs/cgroup/system.slice/mainstem.service/memory.max";
        assert_eq!(memory_of(&[machine, version2, (of, "max\n")]), Some(8 * GIB));
        assert_eq!(memory_of(&[machine, version2, (of, limit)]), Some(2 * GIB));
        let high = ("sys/fs/cgroup/system.slice/mainstem.service/memory.high", limit);
        assert_eq!(memory_of(&[machine, version2, (of, "max\n"), high]), Some(2 * GIB));
        let outer = ("sys/fs/cgroup/system.slice/memory.max", limit);
        assert_eq!(memory_of(&[machine, version2, (of, "max\n"), outer]), Some(2 * GIB));
        let of = "sys/fs/cgroup/memory/docker/17/memory.limit_in_bytes";
        assert_eq!(memory_of(&[machine, version1, (of, limit)]), Some(2 * GIB));
        let inside = ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit);
        assert_eq!(memory_of(&[machine, version1, inside]), Some(2 * GIB));
        let none = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(memory_of(&[machine, version1, none]), Some(8 * GIB));
    }

    #[test]
    fn the_share_has_bounds() {
        let of = |memory| u64::try_from(share_of(memory)).unwrap() / MIB;
        assert_eq!([of(None), of(Some(GIB)), of(Some(8 * GIB)), of(Some(256 * GIB))], [128, 128, 512, 1024]);
        assert_eq!([of(Some(256 * MIB)), of(Some(MIB))], [32, 4]);
        assert_eq!(of(Some(8 * GIB - 1)), 511, "whole MiB");
    }

    #[test]
    fn this_machine_says_how_much_it_has() {
        assert!(memory_bytes(Path::new("/")).is_some_and(|bytes| bytes > 64 * MIB));
    }
}
