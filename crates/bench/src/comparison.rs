//! Derives medians over the rounds, and ratios between servers, from the runs of several servers.
//!
//! On a shared machine, absolute values mean little and change from hour to hour. A ratio is therefore taken within a
//! round, between runs that are close in time. Only the ratios of the rounds are summarized.

use std::path::PathBuf;

use serde::Serialize;

use crate::result::{LatencySeries, TestResult};

/// One result of a comparison.
#[derive(Clone, Debug)]
pub struct Run {
    /// The index of the workload file.
    pub workload: usize,
    /// The index of the contender.
    pub contender: usize,
    /// The round, from 1.
    pub round: u32,
    /// The result as read.
    pub result: TestResult,
    /// The file of the result.
    pub file: PathBuf,
}

/// A server in the comparison.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Named {
    /// The name in tables.
    pub name: &'static str,
    /// The durability that an acknowledgement promises.
    pub durability: &'static str,
}

/// The comparison of one workload at one producer rate.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// The workload's name.
    pub workload: String,
    /// Messages per second over all producers; 0 for the highest sustainable rate.
    pub producer_rate: f64,
    /// Message size in bytes.
    pub message_size: u64,
    /// The servers. Ratios compare the first one to each of the others.
    pub contenders: Vec<Named>,
    /// A row for each measure.
    pub rows: Vec<Row>,
    /// Result files, in the order of the runs.
    pub files: Vec<PathBuf>,
    /// Runs whose data was not received as it was sent: server and round.
    pub unverified: Vec<(&'static str, u32)>,
}

/// One measure of all servers.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The name for people.
    pub measure: String,
    /// The unit for people.
    pub unit: &'static str,
    /// One cell per contender, in their order.
    pub cells: Vec<Cell>,
}

/// One measure of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// The round and the value, in the order of the rounds.
    pub values: Vec<(u32, f64)>,
    /// The median of the values.
    pub median: Option<f64>,
    /// The first server's value divided by this one's. `None` for the first server, and for a measure without a
    /// meaningful ratio.
    pub ratio_of_first: Option<Ratio>,
}

/// The ratios of several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median ratio.
    pub median: f64,
    /// The smallest ratio.
    pub lowest: f64,
    /// The largest ratio.
    pub highest: f64,
}

/// The compared percentiles of a latency, in addition to the maximum.
const COMPARED: [f64; 5] = [50.0, 95.0, 99.0, 99.9, 99.99];

/// Seconds after the end of a process until its cluster should serve as before.
const RECOVERED_AFTER: f64 = 10.0;

#[derive(Clone, Copy, Debug)]
enum Measure {
    Published,
    Consumed,
    Publish(Option<f64>),
    EndToEnd(Option<f64>),
    ServerCpu,
    PeakMemory,
    BetweenPerPublished,
    WrittenPerPublished,
    WriteSize,
    Stolen,
    /// The publish latency before, or from [`RECOVERED_AFTER`] after, a process of the server is killed.
    PublishAroundKill {
        before: bool,
    },
}

impl Measure {
    fn all() -> Vec<Measure> {
        let latencies = || COMPARED.into_iter().map(Some).chain([None]);
        let mut all = vec![Measure::Published, Measure::Consumed];
        all.extend(latencies().map(Measure::Publish));
        all.extend(latencies().map(Measure::EndToEnd));
        all.extend([
            Measure::ServerCpu,
            Measure::PeakMemory,
            Measure::BetweenPerPublished,
            Measure::WrittenPerPublished,
            Measure::WriteSize,
            Measure::Stolen,
            Measure::PublishAroundKill { before: true },
            Measure::PublishAroundKill { before: false },
        ]);
        all
    }

    fn name(self) -> String {
        let latency = |of: &str, percentile: Option<f64>| match percentile {
            Some(percentile) => format!("{of} latency p{percentile}"),
            None => format!("{of} latency max"),
        };
        match self {
            Measure::Published => "published".into(),
            Measure::Consumed => "consumed".into(),
            Measure::Publish(percentile) => latency("publish", percentile),
            Measure::EndToEnd(percentile) => latency("end-to-end", percentile),
            Measure::ServerCpu => "server CPU per published GB".into(),
            Measure::PeakMemory => "server memory, peak".into(),
            Measure::BetweenPerPublished => "bytes between servers per published byte".into(),
            Measure::WrittenPerPublished => "device writes per published byte".into(),
            Measure::WriteSize => "mean size of a device write".into(),
            Measure::Stolen => "processor time withheld by a hypervisor".into(),
            Measure::PublishAroundKill { before: true } => {
                "publish latency p99, median before the kill".into()
            }
            Measure::PublishAroundKill { before: false } => {
                format!("publish latency p99, median from {RECOVERED_AFTER} s after it")
            }
        }
    }

    /// Whether only clusters have it.
    fn is_of_clusters(self) -> bool {
        matches!(self, Measure::BetweenPerPublished | Measure::PublishAroundKill { .. })
    }

    fn unit(self) -> &'static str {
        match self {
            Measure::Published | Measure::Consumed => "MB/s",
            Measure::Publish(_) | Measure::EndToEnd(_) | Measure::PublishAroundKill { .. } => "ms",
            Measure::ServerCpu => "s",
            Measure::PeakMemory => "MB",
            Measure::BetweenPerPublished | Measure::WrittenPerPublished => "bytes",
            Measure::WriteSize => "KiB",
            Measure::Stolen => "%",
        }
    }

    fn of(self, result: &TestResult) -> Option<f64> {
        let bench = &result.bench;
        let published = bench.published_bytes as f64;
        match self {
            Measure::Published => quotient(published / 1e6, bench.seconds),
            Measure::Consumed => quotient(bench.consumed_bytes as f64 / 1e6, bench.seconds),
            Measure::Publish(percentile) => millis(&result.publish_latency, percentile),
            Measure::EndToEnd(percentile) => millis(&result.end_to_end_latency, percentile),
            Measure::ServerCpu => quotient(bench.server?.cpu_seconds, published / 1e9),
            Measure::PeakMemory => Some(bench.server?.peak_memory_bytes as f64 / 1e6),
            Measure::BetweenPerPublished => quotient(bench.server?.between_bytes? as f64, published),
            Measure::WrittenPerPublished => quotient(bench.device.as_ref()?.written_bytes as f64, published),
            Measure::WriteSize => {
                let device = bench.device.as_ref()?;
                quotient(device.written_bytes as f64 / 1024.0, device.writes as f64)
            }
            Measure::Stolen => {
                let sum: f64 = bench.stolen.iter().sum();
                quotient(100.0 * sum, bench.stolen.len() as f64)
            }
            Measure::PublishAroundKill { before } => {
                let killed_after = bench.killed_after?;
                let is_meant = |end: f64| match before {
                    true => end <= killed_after,
                    false => end - bench.sample_seconds >= killed_after + RECOVERED_AFTER,
                };
                let samples = (1u32..)
                    .map(|number| f64::from(number) * bench.sample_seconds)
                    .zip(&result.publish_latency.samples);
                let meant = samples.filter(|(end, _)| is_meant(*end));
                let percentiles: Vec<f64> = meant.filter_map(|(_, sample)| sample.percentile(99.0)).collect();
                Some(median(&percentiles)? / 1e3)
            }
        }
    }
}

fn quotient(dividend: f64, divisor: f64) -> Option<f64> {
    (divisor > 0.0).then(|| dividend / divisor)
}

/// The latency at a percentile, or the maximum for `None`, in milliseconds. `None` if nothing was measured, for
/// instance without consumers.
fn millis(latency: &LatencySeries, percentile: Option<f64>) -> Option<f64> {
    let summary = &latency.aggregated;
    let micros = percentile.map_or(Some(summary.max), |percentile| summary.percentile(percentile))?;
    (summary.max > 0.0).then_some(micros / 1e3)
}

/// The median. For an even number of values, the mean of the middle two.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => Some(sorted[middle]),
        _ if sorted.is_empty() => None,
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// `first` divided by `other`, for every round that both have and in which the ratio is a number.
pub fn ratio(first: &[(u32, f64)], other: &[(u32, f64)]) -> Option<Ratio> {
    let paired = first.iter().filter_map(|(round, value)| {
        let (_, divisor) = other.iter().find(|(other, _)| other == round)?;
        quotient(*value, *divisor)
    });
    let ratios: Vec<f64> = paired.collect();
    Some(Ratio {
        median: median(&ratios)?,
        lowest: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        highest: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    })
}

/// A comparison for each workload and producer rate, in the order of the files and of the rates.
pub fn compare(contenders: &[Named], runs: &[Run]) -> Vec<Comparison> {
    let key = |run: &Run| (run.workload, run.result.workload.clone(), run.result.bench.producer_rate);
    let mut keys: Vec<(usize, String, f64)> = runs.iter().map(key).collect();
    keys.sort_by(|a, b| a.0.cmp(&b.0).then(a.2.total_cmp(&b.2)).then(a.1.cmp(&b.1)));
    keys.dedup();
    keys.into_iter()
        .map(|of| {
            let runs: Vec<&Run> = runs.iter().filter(|run| key(run) == of).collect();
            compare_one(contenders, &runs, of.1, of.2)
        })
        .collect()
}

fn compare_one(contenders: &[Named], runs: &[&Run], workload: String, producer_rate: f64) -> Comparison {
    let rows = Measure::all().into_iter().map(|measure| {
        let values = |contender: usize| {
            let runs = runs.iter().filter(|run| run.contender == contender);
            let mut values: Vec<(u32, f64)> =
                runs.filter_map(|run| Some((run.round, measure.of(&run.result)?))).collect();
            values.sort_by_key(|(round, _)| *round);
            values
        };
        let first = values(0);
        let cell = |contender: usize| {
            let values = values(contender);
            let median = median(&values.iter().map(|(_, value)| *value).collect::<Vec<f64>>());
            // The processor time that the hypervisor withheld is not a property of a server.
            let is_compared = contender > 0 && !matches!(measure, Measure::Stolen);
            let ratio_of_first = is_compared.then(|| ratio(&first, &values)).flatten();
            Cell { values, median, ratio_of_first }
        };
        let cells = (0..contenders.len()).map(cell).collect();
        (measure, Row { measure: measure.name(), unit: measure.unit(), cells })
    });
    let unverified = runs.iter().filter(|run| !run.result.bench.verified);
    Comparison {
        workload,
        producer_rate,
        message_size: runs.first().map_or(0, |run| run.result.message_size),
        contenders: contenders.to_vec(),
        rows: rows
            .filter(|(measure, row)| !measure.is_of_clusters() || row.is_observed())
            .map(|(_, row)| row)
            .collect(),
        files: runs.iter().map(|run| run.file.clone()).collect(),
        unverified: unverified.map(|run| (contenders[run.contender].name, run.round)).collect(),
    }
}

impl Row {
    /// Whether any server has a value.
    fn is_observed(&self) -> bool {
        self.cells.iter().any(|cell| !cell.values.is_empty())
    }
}

impl Comparison {
    /// The table with its legend, for people.
    pub fn to_text(&self) -> String {
        let rate = match self.producer_rate {
            0.0 => "the highest sustainable rate".to_owned(),
            rate => format!("{rate} messages/s"),
        };
        let mut text = format!("{}: {rate}, messages of {} bytes\n\n", self.workload, self.message_size);
        let table = self.table();
        let width = |column: usize| table.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..table[0].len()).map(width).collect();
        for line in &table {
            let mut cells = String::new();
            for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
                // Names and units are aligned to the left, values to the right, and the columns behind the values to
                // the left again.
                let left = at < 2 || at >= 2 + self.contenders.len();
                cells += &if left { format!("{cell:<width$}   ") } else { format!("{cell:>width$}   ") };
            }
            text += cells.trim_end();
            text.push('\n');
        }
        text += "\nMedians of the rounds; a ratio is the median of the rounds' ratios, with the lowest and the highest.\n\
            What the device did is counted for all programs that use it.\n\
            A message is acknowledged when it is\n";
        for Named { name, durability } in &self.contenders {
            text += &format!("  {name}: {durability}\n");
        }
        text += &self.verification();
        text
    }

    fn table(&self) -> Vec<Vec<String>> {
        let names = self.contenders.iter().map(|contender| contender.name.to_owned());
        let first = self.contenders.first().map_or("", |contender| contender.name);
        let ratios = self.contenders.iter().skip(1).map(|other| format!("{first} / {}", other.name));
        let mut table = vec![["".into(), "".into()].into_iter().chain(names).chain(ratios).collect()];
        let measured = |row: &&Row| row.cells.iter().any(|cell| cell.median.is_some());
        for row in self.rows.iter().filter(measured) {
            let medians = row.cells.iter().map(|cell| cell.median.map_or("-".into(), figure));
            let ratios =
                row.cells.iter().skip(1).map(|cell| cell.ratio_of_first.map_or("-".into(), Ratio::to_text));
            let name = [row.measure.clone(), row.unit.to_owned()];
            table.push(name.into_iter().chain(medians).chain(ratios).collect());
        }
        table
    }

    fn verification(&self) -> String {
        if self.unverified.is_empty() {
            return format!(
                "Verified: in all {} runs every acknowledged message was received, once, in order and undamaged.\n",
                self.files.len()
            );
        }
        let runs: Vec<String> =
            self.unverified.iter().map(|(name, round)| format!("{name} in round {round}")).collect();
        format!("NOT VERIFIED: {} of {} runs: {}\n", runs.len(), self.files.len(), runs.join(", "))
    }
}

impl Ratio {
    fn to_text(self) -> String {
        format!("{} ({} to {})", figure(self.median), figure(self.lowest), figure(self.highest))
    }
}

/// Formats with about three significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.1.. => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Bench, DeviceUsage, LatencySummary, PERCENTILES, ServerUsage};

    const CONTENDERS: [Named; 2] = [
        Named { name: "mainstem", durability: "on the device" },
        Named { name: "kafka", durability: "in memory" },
    ];

    /// `factor` scales the measures for which a smaller value is better.
    fn run(contender: usize, round: u32, producer_rate: f64, factor: f64) -> Run {
        let latency = |scale: f64| LatencySeries {
            aggregated: LatencySummary {
                avg: 1.0,
                at: std::array::from_fn(|at| PERCENTILES[at].0 * scale * factor),
                max: 1000.0 * scale * factor,
            },
            ..LatencySeries::default()
        };
        let bench = Bench {
            seconds: 10.0,
            producer_rate,
            published_bytes: 500_000_000,
            consumed_bytes: 1_000_000_000,
            verified: true,
            server: Some(ServerUsage {
                cpu_seconds: 2.0 * factor,
                peak_memory_bytes: 40_000_000,
                between_bytes: Some(1_050_000_000),
            }),
            device: Some(DeviceUsage { writes: 1000, written_bytes: 512_000_000, ..DeviceUsage::default() }),
            stolen: vec![0.25, 0.0],
            ..Bench::default()
        };
        let result = TestResult {
            workload: "w".into(),
            message_size: 1024,
            publish_latency: latency(10.0),
            end_to_end_latency: latency(20.0),
            bench,
            ..TestResult::default()
        };
        Run { workload: 0, contender, round, result, file: format!("{contender}-{round}.json").into() }
    }

    fn row<'a>(comparison: &'a Comparison, name: &str) -> &'a Row {
        comparison.rows.iter().find(|row| row.measure == name).unwrap()
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let first = [(1, 1.0), (2, 20.0), (3, 5.0), (4, 1.0)];
        let other = [(4, 0.0), (2, 10.0), (1, 2.0), (5, 1.0)];
        assert_eq!(ratio(&first, &other), Some(Ratio { median: 1.25, lowest: 0.5, highest: 2.0 }));
        assert_eq!(ratio(&first, &[(9, 1.0)]), None);
    }

    #[test]
    fn measures_are_computed() {
        let comparison = &compare(&CONTENDERS, &[run(0, 1, 50_000.0, 1.0)])[0];
        let value = |name: &str| row(comparison, name).cells[0].median.unwrap();
        assert_eq!(value("published"), 50.0);
        assert_eq!(value("consumed"), 100.0);
        assert_eq!(value("publish latency p50"), 0.5);
        assert_eq!(value("publish latency p99.99"), 0.9999);
        assert_eq!(value("end-to-end latency p95"), 1.9);
        assert_eq!(value("end-to-end latency max"), 20.0);
        assert_eq!(value("server CPU per published GB"), 4.0);
        assert_eq!(value("server memory, peak"), 40.0);
        assert_eq!(value("device writes per published byte"), 1.024);
        assert_eq!(value("mean size of a device write"), 500.0);
        assert_eq!(value("processor time withheld by a hypervisor"), 12.5);
        assert_eq!(value("bytes between servers per published byte"), 2.1);
        assert_eq!(comparison.rows.len(), 20);
        assert_eq!(row(comparison, "published").cells[1], Cell::default());
    }

    #[test]
    fn what_was_not_observed_is_left_out() {
        let mut run = run(0, 1, 0.0, 1.0);
        (run.result.bench.server, run.result.bench.device) = (None, None);
        run.result.bench.stolen.clear();
        run.result.end_to_end_latency = LatencySeries::default();
        let comparison = &compare(&CONTENDERS, &[run])[0];
        for name in [
            "server CPU per published GB",
            "mean size of a device write",
            "processor time withheld by a hypervisor",
            "end-to-end latency p50",
        ] {
            assert_eq!(row(comparison, name).cells[0].median, None, "{name}");
        }
        assert_eq!(comparison.rows.len(), 19, "no row for what single servers lack");
        assert!(
            comparison.to_text().starts_with("w: the highest sustainable rate, messages of 1024 bytes\n")
        );
    }

    #[test]
    fn rounds_and_rates_are_put_together() {
        let mut runs = vec![
            run(0, 1, 9.0, 1.0),
            run(0, 1, 7.0, 1.0),
            run(1, 1, 7.0, 2.0),
            run(0, 2, 7.0, 3.0),
            run(1, 2, 7.0, 4.0),
        ];
        runs[4].result.bench.verified = false;
        let comparisons = compare(&CONTENDERS, &runs);
        let rates: Vec<f64> = comparisons.iter().map(|comparison| comparison.producer_rate).collect();
        assert_eq!(rates, [7.0, 9.0]);
        let cells = &row(&comparisons[0], "publish latency p50").cells;
        assert_eq!(cells[0].values, [(1, 0.5), (2, 1.5)]);
        assert_eq!((cells[0].median, cells[0].ratio_of_first), (Some(1.0), None));
        assert_eq!(cells[1].median, Some(1.5));
        assert_eq!(cells[1].ratio_of_first, Some(Ratio { median: 0.625, lowest: 0.5, highest: 0.75 }));
        let text = comparisons[0].to_text();
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert_eq!(
            line("publish latency p50 ").split_whitespace().collect::<Vec<_>>().join(" "),
            "publish latency p50 ms 1.00 1.50 0.625 (0.500 to 0.750)"
        );
        assert_eq!(line("NOT"), "NOT VERIFIED: 1 of 4 runs: kafka in round 2");
        assert!(text.contains("\n  mainstem: on the device\n  kafka: in memory\n"));
        let text = comparisons[1].to_text();
        assert!(text.contains("Verified: in all 1 runs") && text.contains(" -"), "{text}");
    }

    #[test]
    fn figures_have_three_digits() {
        let figures = [0.0, 0.0123, 0.25, 1.0, 12.345, 123.45, 12345.6].map(figure);
        assert_eq!(figures, ["0", "0.0123", "0.250", "1.00", "12.3", "123", "12346"]);
    }
}
