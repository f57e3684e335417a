//! One call of `mainstem-bench run` against a [`Fake`]: its files, its end, its result.
//!
//! A call that does not end by itself is killed and counts as a failure of the test. A load generator that hangs is
//! worse than one that fails.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use testing::process::wait_within;

use crate::fake::Fake;
use crate::fake::faults::Faults;

/// A run takes about 15 seconds at most, and three times that on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Short, and small enough to run several at once.
const WORKLOAD: &[(&str, &str)] = &[
    ("name", "faulty"),
    ("topics", "1"),
    ("partitionsPerTopic", "1"),
    ("messageSize", "100"),
    ("subscriptionsPerTopic", "1"),
    ("consumerPerSubscription", "1"),
    ("producersPerTopic", "1"),
    ("producerRate", "1000"),
    ("warmupDurationSeconds", "0.5"),
    ("testDurationSeconds", "2"),
];

/// A request every 10 ms, and fetches that end soon, so that the run ends soon.
const PRODUCER: &str = "linger.ms=10";
const CONSUMER: &str = "fetch.max.wait.ms=100";

/// The parameters of a call.
pub struct Trial {
    directory: TempDir,
    pub fake: Fake,
    workload: Vec<(&'static str, &'static str)>,
    producer: Vec<&'static str>,
    output: &'static str,
}

/// The outcome of a call.
pub struct Outcome {
    pub success: bool,
    pub stderr: String,
    /// The results, ordered by file name.
    pub results: Vec<Value>,
}

impl Trial {
    pub fn against(faults: Faults) -> Trial {
        Trial {
            directory: tempfile::tempdir().expect("there is room for temporary files"),
            fake: Fake::start(faults),
            workload: WORKLOAD.to_vec(),
            producer: vec![PRODUCER],
            output: "out.json",
        }
    }

    /// Sets a key of the workload.
    pub fn with(mut self, name: &'static str, value: &'static str) -> Trial {
        self.workload.retain(|(known, _)| *known != name);
        self.workload.push((name, value));
        self
    }

    /// Adds a property of the producers.
    pub fn producer(mut self, property: &'static str) -> Trial {
        self.producer.push(property);
        self
    }

    /// A file, or a directory if its name does not end in JSON.
    pub fn output(mut self, output: &'static str) -> Trial {
        self.output = output;
        self
    }

    pub fn run(&self) -> Outcome {
        let line = |(name, value): &(&str, &str)| format!("{name}: {value}\n");
        let workload = self.workload.iter().map(line).collect::<String>();
        let driver = driver(self.fake.address(), &self.producer);
        run_files(&self.directory, &workload, &driver, self.output)
    }

    /// Runs the call, which must succeed. Returns the only result.
    pub fn succeed(&self) -> Value {
        let mut outcome = self.run();
        assert!(outcome.success, "it failed: {}", outcome.stderr);
        assert_eq!(outcome.results.len(), 1, "{}", outcome.stderr);
        outcome.results.remove(0)
    }

    /// Runs the call, which must fail. Returns the message. It must leave no file that looks like a result.
    pub fn fail(&self, why: &str) -> String {
        let outcome = self.run();
        assert!(!outcome.success, "{why}: it succeeded: {}", outcome.stderr);
        assert_eq!(outcome.results.len(), 0, "{why}: a failed run left a result: {}", outcome.stderr);
        outcome.stderr
    }
}

pub fn driver(address: SocketAddr, producer: &[&str]) -> String {
    format!(
        "name: Fake\ncommonConfig: |\n  bootstrap.servers={address}\nproducerConfig: |\n  {}\nconsumerConfig: |\n  {CONSUMER}\n",
        producer.join("\n  ")
    )
}

/// Runs one workload file with one driver file.
pub fn run_files(directory: &TempDir, workload: &str, driver: &str, output: &str) -> Outcome {
    let path = |name: &str| directory.path().join(name);
    fs::write(path("workload.yaml"), workload).expect("the directory is there");
    fs::write(path("driver.yaml"), driver).expect("the directory is there");
    let log = fs::File::create(path("stderr")).expect("the directory is there");
    let mut child = Command::new(env!("CARGO_BIN_EXE_mainstem-bench"))
        .args(["run", "-d"])
        .arg(path("driver.yaml"))
        .arg(path("workload.yaml"))
        .arg("-o")
        .arg(path(output))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("cargo built it");
    let status = wait_within(&mut child, TIMEOUT);
    let stderr = fs::read_to_string(path("stderr")).expect("it was made");
    let status = status.unwrap_or_else(|| panic!("it did not end within {TIMEOUT:?}: {stderr}"));
    assert!(status.code().is_some(), "it ended by {status}: {stderr}");
    Outcome { success: status.success(), stderr, results: results(path(output)) }
}

fn results(output: PathBuf) -> Vec<Value> {
    let mut files = if output.is_dir() {
        fs::read_dir(output)
            .expect("it is a directory")
            .map(|entry| entry.expect("it can be read").path())
            .collect()
    } else {
        vec![output]
    };
    files.sort();
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        Some(serde_json::from_str(&text).expect("a result is JSON"))
    };
    files.iter().filter_map(read).collect()
}

/// The latency at a percentile of a result's `aggregated…Quantiles`.
pub fn at(result: &Value, quantiles: &str, percentile: f64) -> f64 {
    let pairs = quantile_pairs(result, quantiles);
    let found = pairs.iter().find(|(at, _)| *at >= percentile);
    found.unwrap_or_else(|| panic!("{quantiles} end below {percentile}: {pairs:?}")).1
}

/// The pairs as OMB's chart script reads them: `sorted((float(x), y) for x, y in values.items())`.
pub fn quantile_pairs(result: &Value, name: &str) -> Vec<(f64, f64)> {
    let values = result[name].as_object().unwrap_or_else(|| panic!("{name} is no object"));
    let pair = |(x, y): (&String, &Value)| {
        (x.parse().expect("a percentile is a number"), y.as_f64().expect("a latency is a number"))
    };
    let mut pairs: Vec<(f64, f64)> = values.iter().map(pair).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    pairs
}

/// A number of a result, by its path.
pub fn number(result: &Value, path: &str) -> f64 {
    let value = result.pointer(path).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{path} is no number"))
}
