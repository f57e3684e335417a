//! What the device gives without any server: fio's sequential writes, durable one by one and as many as it takes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;

use crate::child;

const SECONDS: u32 = 3;
/// Written beforehand, then over and over.
const FILE_SIZE: &str = "1g";
/// A name for people, and fio's arguments: what a log does that answers each write when it is on the device, and what
/// the device can take at most.
const PROBES: [(&str, &[&str]); 2] = [
    ("64 KiB, one at a time, each durable", &["--iodepth=1", "--sync=dsync"]),
    ("64 KiB, 32 in flight, not durable", &["--iodepth=32"]),
];

/// What fio measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceLimit {
    /// Which writes.
    pub writes: String,
    /// MB (10^6 bytes) a second.
    pub megabytes_per_second: f64,
    /// Writes a second.
    pub writes_per_second: f64,
    /// From before the submission to the completion, half of the writes.
    pub p50_millis: f64,
    /// As above, 99% of them.
    pub p99_millis: f64,
}

impl DeviceLimit {
    /// For people.
    pub fn to_line(&self) -> String {
        format!(
            "{}: {:.0} MB/s, {:.0} writes/s, p50 {:.3} ms, p99 {:.3} ms",
            self.writes, self.megabytes_per_second, self.writes_per_second, self.p50_millis, self.p99_millis
        )
    }
}

/// Measures on the file system of `parent`, in a directory of its own that it removes.
pub fn measure(parent: &Path) -> anyhow::Result<Vec<DeviceLimit>> {
    let directory = parent.join(format!("fio-{}", std::process::id()));
    fs::create_dir(&directory).with_context(|| format!("{} cannot be created", directory.display()))?;
    let limits = PROBES.iter().map(|(name, arguments)| probe(&directory, name, arguments)).collect();
    fs::remove_dir_all(&directory).with_context(|| format!("{} cannot be removed", directory.display()))?;
    limits
}

fn probe(directory: &Path, name: &str, arguments: &[&str]) -> anyhow::Result<DeviceLimit> {
    let fio = child::on_path("fio").context("there is no fio on the PATH")?;
    let mut command = child::command(&fio, "")?;
    command
        .args(["--name=limit", "--ioengine=io_uring", "--direct=1", "--rw=write", "--bs=64k"])
        .args(arguments);
    // Blocks that were never written are slower to sync.
    command.args(["--overwrite=1", "--time_based", "--output-format=json"]);
    command.args([format!("--size={FILE_SIZE}"), format!("--runtime={SECONDS}")]);
    // From before the submission; fio's clat begins only after it, which for a direct write is a fifth of it.
    command.args(["--lat_percentiles=1", "--clat_percentiles=0"]);
    command.arg(format!("--directory={}", directory.display())).arg("--filename=data");
    // Not through pipes, which nobody would empty while the child is waited for.
    let [output, log] = ["output", "log"].map(|name| directory.join(name));
    command.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&log)?);
    let status = child::wait(&mut command.spawn().context("fio cannot be run")?)?;
    if !status.success() {
        // Without the log's name, which is removed.
        let said = fs::read_to_string(&log).unwrap_or_default();
        bail!("fio failed ({status}): {}", said.trim());
    }
    limit_in(&fs::read_to_string(&output)?, name).context("fio's output is not as expected")
}

fn limit_in(text: &str, name: &str) -> Option<DeviceLimit> {
    // It may say something before.
    let report: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let write = report.pointer("/jobs/0/write")?;
    let percentiles = write.pointer("/lat_ns/percentile")?;
    Some(DeviceLimit {
        writes: name.into(),
        megabytes_per_second: write.get("bw_bytes")?.as_f64()? / 1e6,
        writes_per_second: write.get("iops")?.as_f64()?,
        p50_millis: percentiles.get("50.000000")?.as_f64()? / 1e6,
        p99_millis: percentiles.get("99.000000")?.as_f64()? / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_is_understood() {
        let text = r#"note: fio says things first
            {"jobs":[{"usr_cpu":10.0,"write":{"bw_bytes":200000000,"iops":3051.5,"lat_ns":{"max":9000000,
            "percentile":{"50.000000":250000,"99.000000":1500000}}}}]}"#;
        let limit = limit_in(text, "some").unwrap();
        assert_eq!(limit.to_line(), "some: 200 MB/s, 3052 writes/s, p50 0.250 ms, p99 1.500 ms");
        assert_eq!(limit_in("{}", "some"), None);
        assert_eq!(limit_in("", "some"), None);
    }
}
