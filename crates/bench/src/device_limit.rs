//! The limits of the device without a server: fio's sequential writes, one durable write at a time, and as many as the
//! device takes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;

use crate::child;

const SECONDS: u32 = 3;
/// Size of the file, which is written before the test and then overwritten.
const FILE_SIZE: &str = "1g";
/// The name of each probe and fio's arguments: the pattern of a log that answers each write when it is on the device,
/// and the maximum of the device.
const PROBES: [(&str, &[&str]); 2] = [
    ("64 KiB, one at a time, each durable", &["--iodepth=1", "--sync=dsync"]),
    ("64 KiB, 32 in flight, not durable", &["--iodepth=32"]),
];

/// fio's measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceLimit {
    /// The kind of writes.
    pub writes: String,
    /// MB (10^6 bytes) per second.
    pub megabytes_per_second: f64,
    /// Writes per second.
    pub writes_per_second: f64,
    /// Median latency in milliseconds, from before the submission to the completion.
    pub p50_millis: f64,
    /// The 99th percentile of the same latency.
    pub p99_millis: f64,
}

impl DeviceLimit {
    /// The measurement as a line for people.
    pub fn to_line(&self) -> String {
        format!(
            "{}: {:.0} MB/s, {:.0} writes/s, p50 {:.3} ms, p99 {:.3} ms",
            self.writes, self.megabytes_per_second, self.writes_per_second, self.p50_millis, self.p99_millis
        )
    }
}

/// Measures on the file system of `parent`, in a directory that is removed afterwards.
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
    // Blocks that were never written sync slower.
    command.args(["--overwrite=1", "--time_based", "--output-format=json"]);
    command.args([format!("--size={FILE_SIZE}"), format!("--runtime={SECONDS}")]);
    // The latency counts from before the submission. fio's clat begins after it, and for a direct write the submission
    // takes a fifth of the time.
    command.args(["--lat_percentiles=1", "--clat_percentiles=0"]);
    command.arg(format!("--directory={}", directory.display())).arg("--filename=data");
    // Files instead of pipes, because nothing would read the pipes while this process waits.
    let [output, log] = ["output", "log"].map(|name| directory.join(name));
    command.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&log)?);
    let status = child::wait(&mut command.spawn().context("fio cannot be run")?)?;
    if !status.success() {
        // The log is removed, so the message leaves out its name.
        let said = fs::read_to_string(&log).unwrap_or_default();
        bail!("fio failed ({status}): {}", said.trim());
    }
    limit_in(&fs::read_to_string(&output)?, name).context("fio's output is not as expected")
}

fn limit_in(text: &str, name: &str) -> Option<DeviceLimit> {
    // fio may print a message before the JSON.
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
