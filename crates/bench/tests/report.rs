//! `mainstem-bench report`, run like by a user, on generated results: Mainstem's, OMB's own and broken ones.
//!
//! The page of the first test stays in the build's directory for temporary files (`tmp/report/report.html`), where
//! `scripts/check-report` examines it in a browser. This test itself needs no browser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Map, Value, json};

/// Number of samples of a generated result.
const SAMPLES: usize = 90;
/// Length of the test in seconds: one per sample.
const SECONDS: u64 = 90;

/// A generated result, for a server with this latency in milliseconds.
struct Made {
    workload: &'static str,
    contender: &'static str,
    round: u32,
    /// Messages per second.
    rate: u32,
    millis: f64,
    cpu_seconds: f64,
    backlog: bool,
}

/// The latency at a percentile. It grows with the square of the nines, as tails do.
fn millis_at(millis: f64, percentile: f64) -> f64 {
    let nines = (100.0 / (100.0 - percentile.min(99.999))).log10();
    millis * (0.6 + nines + nines * nines)
}

fn latency(result: &mut Map<String, Value>, names: (&str, &str), millis: f64, random: &mut fastrand::Rng) {
    let percentiles = [
        ("50pct", 50.0),
        ("75pct", 75.0),
        ("95pct", 95.0),
        ("99pct", 99.0),
        ("999pct", 99.9),
        ("9999pct", 99.99),
        ("Avg", 60.0),
        ("Max", 100.0),
    ];
    let weather: Vec<f64> =
        (0..SAMPLES).map(|_| 0.85 + 0.3 * random.f64() + if random.u8(..) < 8 { 2.0 } else { 0.0 }).collect();
    for (suffix, percentile) in percentiles {
        let values: Vec<f64> = weather.iter().map(|factor| millis_at(millis, percentile) * factor).collect();
        result.insert(format!("{}{suffix}", names.0), json!(values));
        result.insert(format!("{}{suffix}", names.1), json!(millis_at(millis, percentile)));
    }
    let quantiles = (0..50).map(|at| 100.0 - 100.0 / 10f64.powf(f64::from(at) / 10.0)).chain([100.0]);
    let quantiles: Map<String, Value> =
        quantiles.map(|percentile| (percentile.to_string(), json!(millis_at(millis, percentile)))).collect();
    result.insert(format!("{}Quantiles", names.1), Value::Object(quantiles));
}

impl Made {
    /// The part that OMB's own results have too.
    fn of_omb(&self) -> Map<String, Value> {
        let mut random = fastrand::Rng::with_seed(u64::from(self.round) + self.contender.len() as u64 * 100);
        let mut around =
            |value: f64| (0..SAMPLES).map(|_| value * (0.98 + 0.04 * random.f64())).collect::<Vec<f64>>();
        let (published, mut consumed) = (around(f64::from(self.rate)), around(f64::from(self.rate)));
        let mut waiting = vec![12; SAMPLES];
        if self.backlog {
            // Paused for a third of the time, then drained at twice the rate.
            for at in 0..SAMPLES {
                let (paused, drained) = (SAMPLES / 3, SAMPLES * 2 / 3);
                consumed[at] *= if at < paused {
                    0.0
                } else if at < drained {
                    2.0
                } else {
                    1.0
                };
                let seconds = if at < paused { at } else { drained.saturating_sub(at) };
                waiting[at] += u64::from(self.rate) * seconds as u64;
            }
        }
        let fields = json!({
            "workload": self.workload, "driver": format!("{}-driver", self.contender), "messageSize": 1024,
            "topics": 1, "partitions": 288, "producersPerTopic": 4, "consumersPerTopic": 4,
            "publishRate": published, "publishErrorRate": vec![0.0; SAMPLES], "consumeRate": consumed,
            "backlog": waiting,
        });
        let mut fields = fields.as_object().cloned().unwrap_or_default();
        latency(&mut fields, ("publishLatency", "aggregatedPublishLatency"), self.millis, &mut random);
        latency(&mut fields, ("publishDelayLatency", "aggregatedPublishDelayLatency"), 0.01, &mut random);
        latency(
            &mut fields,
            ("endToEndLatency", "aggregatedEndToEndLatency"),
            self.millis * 1.4,
            &mut random,
        );
        fields
    }

    fn of_ours(&self) -> Map<String, Value> {
        let mut fields = self.of_omb();
        let messages = u64::from(self.rate) * SECONDS;
        let bytes = messages * 1024;
        let mut bench = json!({
            "version": "0.1.0", "engine": "native", "contender": self.contender, "round": self.round,
            "durability": if self.contender == "kafka" { "in the page cache of the server" }
                else { "on the device before the answer" },
            "beginTime": format!("2025-06-0{}T10:00:00Z", self.round), "sampleSeconds": 1.0,
            "seconds": SECONDS, "producerRate": self.rate, "groups": 1,
            "publishedMessages": messages, "publishedBytes": bytes,
            "consumedMessages": messages, "consumedBytes": bytes,
            "publishErrors": 0, "verified": true, "loadCpuSeconds": 30.0,
            "client": {"acks": "all", "batch.size": "131072", "linger.ms": "1"},
            "environment": {"cpus": 2, "cpuModel": "Made-up Processor 9000 & Sons", "memoryBytes": 8_000_000_000u64,
                "kernel": "Linux 6.1.0", "filesystem": "ext4 on nvme0n1", "serverCpus": "0", "loadCpus": "1"},
            "server": {"cpuSeconds": self.cpu_seconds, "peakMemoryBytes": 210_000_000},
            "device": {"name": "nvme0n1", "writes": bytes / 131_072,
                "writtenBytes": bytes / 100 * 107, "reads": 0, "readBytes": 0},
        });
        if self.backlog {
            bench["backlog"] = json!({"messages": 600_000, "buildSeconds": 30.0, "drainSeconds": 31.5, "drainRate": 40_000.0});
        }
        fields.insert("bench".into(), bench);
        fields
    }
}

fn write(directory: &Path, name: &str, result: Map<String, Value>) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, Value::Object(result).to_string()).expect("the directory can be written");
    path
}

fn report(directory: &Path, arguments: &[&str], results: &[PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstem-bench"));
    command.current_dir(directory).arg("report").args(arguments).args(results);
    command.output().expect("the program starts")
}

fn steady(contender: &'static str, round: u32) -> Made {
    let (millis, cpu_seconds) = if contender == "kafka" { (2.4, 16.0) } else { (1.1, 6.0) };
    let difference = 1.0 + f64::from(round) * 0.05;
    Made {
        workload: "1-topic-288-partitions-1kb-4p-4c-50000",
        contender,
        round,
        rate: 50_000,
        millis: millis * difference,
        cpu_seconds: cpu_seconds * difference,
        backlog: false,
    }
}

/// The number of points of each line with this colour.
fn lines_of(svg: &str, colour: &str) -> Vec<usize> {
    let is_line = |line: &&str| line.starts_with("<polyline") && line.contains(colour);
    let points = |line: &str| line.split_once("points=\"").map(|(_, points)| points.matches(',').count());
    svg.lines().filter(is_line).filter_map(points).collect()
}

const BLUE: &str = "#0072B2";
const VERMILION: &str = "#D55E00";

#[test]
fn a_page_of_two_contenders_holds_their_figures_and_draws_every_sample() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    fs::create_dir_all(&directory).expect("the build's directory can be written");
    let mut results = Vec::new();
    for round in 1..=3 {
        for contender in ["kafka", "mainstem"] {
            let name = format!("steady-{contender}-{round}.json");
            results.push(write(&directory, &name, steady(contender, round).of_ours()));
        }
    }
    for contender in ["kafka", "mainstem"] {
        let made = Made {
            workload: "backlog of <1 group> & \"more\"",
            rate: 20_000,
            backlog: true,
            ..steady(contender, 1)
        };
        results.push(write(&directory, &format!("backlog-{contender}.json"), made.of_ours()));
    }
    let arguments = ["--images", "images", "--title", "A <made-up> report", "--note", "5 > 4 & \"so on\""];
    let output = report(&directory, &arguments, &results);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = fs::read_to_string(directory.join("report.html")).expect("the page was written");

    assert!(html.contains("<h1>A &lt;made-up&gt; report</h1>"));
    assert!(html.contains("5 &gt; 4 &amp; &quot;so on&quot;"));
    assert!(html.contains("backlog of &lt;1 group&gt; &amp; &quot;more&quot;"));
    assert!(!html.contains("<1 group>"));
    // 50,000 messages of 1 KiB per second, in 90 seconds 4.608 GB. The CPU-seconds of kafka are 16.8, 17.6, 18.4.
    assert!(html.contains("<td class=\"n\">51.2<small>51.2–51.2</small></td>"));
    assert!(html.contains("<td class=\"n\">3.82<small>3.65–3.99</small></td>"));
    assert!(html.contains("<span class=\"bad\">2.67</span><small>(2.67–2.67)</small>"));
    assert!(html.contains("on the device before the answer"));
    assert!(html.contains("Made-up Processor 9000 &amp; Sons"));
    assert!(html.contains("<td>client: linger.ms</td><td>1</td><td>1</td>"));
    for external in ["<link", "<script", "src=", "@import", "url("] {
        assert!(!html.contains(external), "the page needs {external}");
    }
    assert_eq!(html.matches("<figure").count(), 6 + 7);

    let image = |name: &str| {
        let path = directory.join("images").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    for chart in ["published", "consumed", "publish-latency-p99", "end-to-end-latency-p99"] {
        let svg = image(&format!("1-topic-288-partitions-1kb-4p-4c-50000-{chart}.svg"));
        assert_eq!(lines_of(&svg, BLUE), [SAMPLES; 3], "{chart}");
        assert_eq!(lines_of(&svg, VERMILION), [SAMPLES; 3], "{chart}");
        assert!(html.contains(&svg), "{chart} is in the page");
    }
    for chart in ["publish-latency-by-percentile", "end-to-end-latency-by-percentile"] {
        let svg = image(&format!("1-topic-288-partitions-1kb-4p-4c-50000-{chart}.svg"));
        assert_eq!(lines_of(&svg, BLUE), [50; 3], "{chart}");
        assert!(svg.contains("99.99\n") && svg.contains("kafka (3 rounds)"));
    }
    assert_eq!(lines_of(&image("backlog-of-1-group-more-backlog-all-groups.svg"), BLUE), [SAMPLES]);
}

#[test]
fn results_of_omb_and_odd_ones_are_drawn_as_far_as_they_can_be() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let of_omb = steady("omb", 0).of_omb();
    let mut empty = of_omb.clone();
    let mut single = of_omb.clone();
    for (name, value) in &of_omb {
        if let Some(values) = value.as_array() {
            empty.insert(name.clone(), json!([]));
            single.insert(name.clone(), json!([values[0]]));
        }
        if name.ends_with("Quantiles") {
            empty.insert(name.clone(), json!({}));
        }
    }
    empty.insert("workload".into(), json!("empty"));
    single.insert("workload".into(), json!("single"));
    let mut huge = of_omb.clone();
    huge.insert("workload".into(), json!("huge"));
    huge.insert("publishRate".into(), json!([1e308, 0.0, -1e308, f64::MIN_POSITIVE]));
    huge.insert("messageSize".into(), json!(u64::MAX));
    huge.insert("endToEndLatencyMax".into(), json!([1e308]));
    huge.insert("bench".into(), json!({"publishedBytes": 1, "server": {"cpuSeconds": 1e308}}));
    let results = [("omb", of_omb), ("empty", empty), ("single", single), ("huge", huge)]
        .map(|(name, result)| write(directory, &format!("{name}.json"), result));
    let output = report(directory, &["-o", "odd.html"], &results);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = fs::read_to_string(directory.join("odd.html")).expect("the page was written");
    assert!(html.contains("no samples"));
    assert!(html.contains("<circle"));
    assert!(html.contains("durability not stated"));
    assert!(html.contains("<span class=\"badge unknown\">not known</span>"));
    // OMB has a sample every ten seconds, so the axis goes beyond 800.
    assert!(html.contains("800\n"));
    assert!(!html.contains("NaN") && !html.contains("inf<"));
}

#[test]
fn a_file_that_is_no_result_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    fs::write(directory.join("broken.json"), "{\"workload\":").expect("it can be written");
    fs::write(directory.join("other.json"), "{\"workload\":\"w\",\"driver\":\"d\"}")
        .expect("it can be written");
    let error = |name: &str| {
        let output = report(directory, &[], &[PathBuf::from(name)]);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(error("broken.json").contains("broken.json is not a result: it is not JSON"));
    assert!(error("other.json").contains("other.json is not a result: the field publishRate"));
    assert!(error("absent.json").contains("cannot read absent.json"));
    assert!(!directory.join("report.html").exists());
}
