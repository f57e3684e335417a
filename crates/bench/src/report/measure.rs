//! The compared values of a result, each with its name, its unit and its better direction.
//!
//! A value that a result does not have (OMB's results contain nothing about the server) is `None`, never zero.

use std::collections::HashSet;

use super::number::Spread;
use crate::result::{Bench, LatencySeries, LatencySummary, PERCENTILES, TestResult};

/// The better direction of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Better {
    /// A larger value is better.
    More,
    /// A smaller value is better.
    Less,
    /// The value describes the work, not its quality.
    Neither,
}

/// A value of a result.
pub struct Measure {
    /// The heading above it.
    pub section: &'static str,
    /// The name in its row.
    pub name: String,
    /// The unit of the value.
    pub unit: &'static str,
    /// For a value in the overview: the heading of its group there, and its own heading.
    pub overview: Option<(&'static str, String)>,
    /// The better direction.
    pub better: Better,
    /// Extracts the value from a result.
    of: Figure,
}

/// A function that extracts a value from a result.
type Figure = Box<dyn Fn(&TestResult) -> Option<f64>>;

impl Measure {
    fn new(
        (section, name, unit): (&'static str, &str, &'static str),
        better: Better,
        of: impl Fn(&TestResult) -> Option<f64> + 'static,
    ) -> Measure {
        Measure { section, name: name.into(), unit, overview: None, better, of: Box::new(of) }
    }

    fn in_overview(mut self, group: &'static str, heading: &str) -> Measure {
        self.overview = Some((group, heading.into()));
        self
    }

    /// The value of one result, if the result has it.
    pub fn of(&self, result: &TestResult) -> Option<f64> {
        (self.of)(result).filter(|value| value.is_finite())
    }

    /// The spread of the values over the rounds of a contender.
    pub fn spread(&self, rounds: &[&TestResult]) -> Option<Spread> {
        Spread::of(rounds.iter().filter_map(|result| self.of(result)))
    }

    /// A contender's median divided by the base's, with the smallest and the largest ratio of matching rounds.
    pub fn ratio(&self, rounds: &[&TestResult], base: &[&TestResult]) -> Option<Spread> {
        let divided = |above: f64, below: f64| (below != 0.0).then_some(above / below);
        let numbered = are_numbered(rounds) && are_numbered(base);
        let pairs = rounds.iter().enumerate().filter_map(|(at, result)| {
            let partner = if numbered { round_of(result.bench.round, base) } else { base.get(at).copied() };
            divided(self.of(result)?, self.of(partner?)?)
        });
        let pairs = Spread::of(pairs);
        let median = divided(self.spread(rounds)?.median, self.spread(base)?.median)?;
        let alone = Spread { median, min: median, max: median, count: 0 };
        median.is_finite().then(|| pairs.map_or(alone, |pairs| Spread { median, ..pairs }))
    }

    /// Whether all pairs of rounds agree that the ratio is better (`true`) or worse (`false`). `None` if they disagree,
    /// or if there are fewer than two pairs.
    pub fn verdict(&self, ratio: &Spread) -> Option<bool> {
        match self.better {
            _ if ratio.count < 2 => None,
            Better::More if ratio.min > 1.0 => Some(true),
            Better::More if ratio.max < 1.0 => Some(false),
            Better::Less if ratio.max < 1.0 => Some(true),
            Better::Less if ratio.min > 1.0 => Some(false),
            _ => None,
        }
    }
}

/// Whether each round has a unique number. OMB's results have none, and those of several comparisons may share numbers.
/// Such rounds are matched by position.
fn are_numbered(rounds: &[&TestResult]) -> bool {
    let mut numbers = HashSet::new();
    rounds.iter().all(|result| result.bench.round != 0 && numbers.insert(result.bench.round))
}

fn round_of<'a>(number: u32, rounds: &[&'a TestResult]) -> Option<&'a TestResult> {
    rounds.iter().find(|result| result.bench.round == number).copied()
}

/// Whether a result has the part that OMB's results lack.
pub fn is_ours(result: &TestResult) -> bool {
    let seconds = result.bench.sample_seconds;
    result.bench != Bench { sample_seconds: seconds, ..Bench::default() }
}

/// The mean of a series. `None` if it is empty.
pub fn mean(series: &[f64]) -> Option<f64> {
    let count = u32::try_from(series.len()).ok().filter(|count| *count > 0)?;
    Some(series.iter().sum::<f64>() / f64::from(count))
}

/// An amount per measured second. If the amount is unknown, the value `otherwise` from a series.
fn rate(amount: u64, result: &TestResult, otherwise: Option<f64>) -> Option<f64> {
    if is_ours(result) && result.bench.seconds > 0.0 {
        Some(amount as f64 / result.bench.seconds)
    } else {
        otherwise
    }
}

fn megabytes_of(messages: Option<f64>, result: &TestResult) -> Option<f64> {
    messages.filter(|_| result.message_size > 0).map(|rate| rate * result.message_size as f64)
}

fn published_bytes(result: &TestResult) -> Option<f64> {
    let bytes = result.bench.published_bytes;
    (bytes > 0).then_some(bytes as f64)
}

/// Publish errors: the count, or a value computed from the series in OMB's results.
pub fn publish_errors(result: &TestResult) -> f64 {
    if is_ours(result) {
        result.bench.publish_errors as f64
    } else {
        (result.publish_error_rate.iter().sum::<f64>() * result.bench.sample_seconds).round()
    }
}

/// All values in the order of the table.
pub fn measures() -> Vec<Measure> {
    let mut measures = throughput();
    measures.extend(latency("Publish latency", "publish latency, ms", |result| &result.publish_latency));
    measures
        .extend(latency("End-to-end latency", "end-to-end latency, ms", |result| &result.end_to_end_latency));
    measures.extend(backlog());
    measures.extend(cost());
    measures
}

fn throughput() -> Vec<Measure> {
    let section = "Throughput";
    let published = |result: &TestResult| {
        let otherwise = megabytes_of(mean(&result.publish_rate), result);
        rate(result.bench.published_bytes, result, otherwise).map(|bytes| bytes / 1e6)
    };
    let consumed = |result: &TestResult| {
        let otherwise = megabytes_of(mean(&result.consume_rate), result);
        rate(result.bench.consumed_bytes, result, otherwise).map(|bytes| bytes / 1e6)
    };
    let messages =
        |result: &TestResult| rate(result.bench.published_messages, result, mean(&result.publish_rate));
    let sustainable = |result: &TestResult| result.bench.sustainable_rate;
    vec![
        Measure::new((section, "published", "MB/s"), Better::More, published)
            .in_overview("published", "MB/s"),
        Measure::new((section, "published", "msg/s"), Better::More, messages)
            .in_overview("published", "msg/s"),
        Measure::new((section, "consumed, all groups", "MB/s"), Better::More, consumed),
        Measure::new((section, "highest sustainable", "msg/s"), Better::More, sustainable),
    ]
}

fn latency(
    section: &'static str,
    group: &'static str,
    of: fn(&TestResult) -> &LatencySeries,
) -> Vec<Measure> {
    let aggregated = move |result: &TestResult| {
        let series = of(result);
        let measured = series.aggregated != LatencySummary::default() || !series.quantiles.is_empty();
        measured.then_some(series.aggregated)
    };
    let mut measures = Vec::new();
    for (at, (percentile, _)) in PERCENTILES.into_iter().enumerate().filter(|(_, (at, _))| *at != 75.0) {
        let value = move |result: &TestResult| aggregated(result).map(|summary| summary.at[at] / 1000.0);
        let name = format!("p{percentile}");
        let measure = Measure::new((section, &name, "ms"), Better::Less, value);
        let is_summary = [50.0, 99.0, 99.9].contains(&percentile);
        measures.push(if is_summary { measure.in_overview(group, &name) } else { measure });
    }
    let max = move |result: &TestResult| aggregated(result).map(|summary| summary.max / 1000.0);
    measures.push(Measure::new((section, "max", "ms"), Better::Less, max));
    measures
}

fn backlog() -> Vec<Measure> {
    let section = "Backlog";
    let messages = |result: &TestResult| Some(result.bench.backlog?.messages as f64);
    let build = |result: &TestResult| Some(result.bench.backlog?.build_seconds);
    let drain = |result: &TestResult| Some(result.bench.backlog?.drain_seconds);
    let drain_rate = |result: &TestResult| Some(result.bench.backlog?.drain_rate);
    vec![
        Measure::new((section, "waiting when resumed", "messages"), Better::Neither, messages),
        Measure::new((section, "built in", "s"), Better::Neither, build),
        Measure::new((section, "drained in", "s"), Better::Less, drain)
            .in_overview("backlog", "drained in s"),
        Measure::new((section, "consumed while drained", "msg/s"), Better::More, drain_rate),
    ]
}

fn cost() -> Vec<Measure> {
    let section = "Cost";
    let per_gigabyte = |seconds: f64, result: &TestResult| Some(seconds / published_bytes(result)? * 1e9);
    let cpu = move |result: &TestResult| per_gigabyte(result.bench.server?.cpu_seconds, result);
    let load_cpu = move |result: &TestResult| {
        let seconds = Some(result.bench.load_cpu_seconds).filter(|seconds| *seconds > 0.0);
        per_gigabyte(seconds?, result)
    };
    let memory = |result: &TestResult| Some(result.bench.server?.peak_memory_bytes as f64 / 1e6);
    let amplification = |result: &TestResult| {
        Some(result.bench.device.as_ref()?.written_bytes as f64 / published_bytes(result)?)
    };
    let write_size = |result: &TestResult| {
        let device = result.bench.device.as_ref().filter(|device| device.writes > 0)?;
        Some(device.written_bytes as f64 / device.writes as f64 / 1024.0)
    };
    let stolen = |result: &TestResult| mean(&result.bench.stolen).map(|share| share * 100.0);
    vec![
        Measure::new((section, "server CPU per GB published", "CPU-s/GB"), Better::Less, cpu)
            .in_overview("server", "CPU-s/GB"),
        Measure::new((section, "server peak memory", "MB"), Better::Less, memory)
            .in_overview("server", "peak MB"),
        Measure::new(
            (section, "device bytes written per byte published", "B/B"),
            Better::Less,
            amplification,
        )
        .in_overview("device", "written B/B"),
        Measure::new((section, "mean device write", "KiB"), Better::More, write_size),
        Measure::new((section, "load generator CPU per GB published", "CPU-s/GB"), Better::Less, load_cpu),
        Measure::new((section, "processor time withheld by a hypervisor", "%"), Better::Neither, stolen),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{DeviceUsage, ServerUsage};

    fn result(round: u32, cpu_seconds: f64) -> TestResult {
        let mut result = TestResult { message_size: 1024, ..TestResult::default() };
        result.publish_rate = vec![100.0, 300.0];
        result.publish_latency.aggregated.at = [1000.0, 0.0, 3000.0, 4500.0, 5000.0, 6000.0];
        result.bench = Bench {
            round,
            seconds: 10.0,
            published_messages: 4_000_000,
            published_bytes: 2_000_000_000,
            server: Some(ServerUsage { cpu_seconds, peak_memory_bytes: 123_000_000, between_bytes: None }),
            device: Some(DeviceUsage { writes: 1000, written_bytes: 2_048_000, ..DeviceUsage::default() }),
            stolen: vec![0.0, 0.5],
            ..Bench::default()
        };
        result
    }

    fn value(result: &TestResult, name: &str, unit: &str) -> Option<f64> {
        let all = measures();
        let found = all.iter().find(|measure| measure.name == name && measure.unit == unit);
        found.expect("there is such a measure").of(result)
    }

    #[test]
    fn figures_are_taken_from_the_result() {
        let result = result(1, 3.0);
        assert_eq!(value(&result, "published", "MB/s"), Some(200.0));
        assert_eq!(value(&result, "published", "msg/s"), Some(400_000.0));
        assert_eq!(value(&result, "p99", "ms"), Some(4.5));
        assert_eq!(value(&result, "server CPU per GB published", "CPU-s/GB"), Some(1.5));
        assert_eq!(value(&result, "server peak memory", "MB"), Some(123.0));
        assert_eq!(value(&result, "mean device write", "KiB"), Some(2.0));
        assert_eq!(value(&result, "device bytes written per byte published", "B/B"), Some(0.001_024));
        assert_eq!(value(&result, "processor time withheld by a hypervisor", "%"), Some(25.0));
        assert_eq!(value(&result, "drained in", "s"), None);
    }

    #[test]
    fn what_omb_does_not_know_comes_from_its_series_or_is_absent() {
        let mut result = TestResult { message_size: 1000, ..TestResult::default() };
        result.bench.sample_seconds = 10.0;
        result.publish_rate = vec![1000.0, 3000.0];
        result.publish_error_rate = vec![0.0, 0.3];
        assert!(!is_ours(&result));
        assert_eq!(value(&result, "published", "MB/s"), Some(2.0));
        assert_eq!(publish_errors(&result), 3.0);
        for name in ["server CPU per GB published", "load generator CPU per GB published"] {
            assert_eq!(value(&result, name, "CPU-s/GB"), None);
        }
        assert_eq!(value(&result, "processor time withheld by a hypervisor", "%"), None);
        assert_eq!(value(&result, "p99", "ms"), None);
    }

    #[test]
    fn ratios_pair_rounds_by_their_number() {
        let base = [result(2, 8.0), result(1, 2.0), result(3, 4.0)];
        let other = [result(1, 4.0), result(2, 4.0), result(4, 100.0)];
        let (base, other): (Vec<_>, Vec<_>) = (base.iter().collect(), other.iter().collect());
        let all = measures();
        let cpu = all.iter().find(|measure| measure.unit == "CPU-s/GB").expect("it is there");
        // The medians are 4 and 4. Rounds 1 and 2 give 4/2 and 4/8. Round 4 has no partner.
        let ratio = cpu.ratio(&other, &base).expect("both have it");
        assert_eq!(ratio, Spread { median: 1.0, min: 0.5, max: 2.0, count: 2 });
        assert_eq!(cpu.verdict(&ratio), None);
        assert_eq!(cpu.verdict(&Spread { max: 0.9, ..ratio }), Some(true));
        assert_eq!(cpu.verdict(&Spread { min: 1.1, ..ratio }), Some(false));
        assert_eq!(cpu.verdict(&Spread { max: 0.9, count: 1, ..ratio }), None);
    }

    #[test]
    fn rounds_of_several_comparisons_pair_by_their_position() {
        let base = [result(1, 2.0), result(1, 8.0)];
        let other = [result(1, 4.0), result(1, 4.0)];
        let (base, other): (Vec<_>, Vec<_>) = (base.iter().collect(), other.iter().collect());
        let all = measures();
        let cpu = all.iter().find(|measure| measure.unit == "CPU-s/GB").expect("it is there");
        let ratio = cpu.ratio(&other, &base).expect("both have it");
        assert_eq!(ratio, Spread { median: 0.8, min: 0.5, max: 2.0, count: 2 });
    }

    #[test]
    fn a_ratio_to_zero_is_none() {
        let (zero, one) = (result(0, 0.0), result(0, 1.0));
        let all = measures();
        let cpu = all.iter().find(|measure| measure.unit == "CPU-s/GB").expect("it is there");
        assert_eq!(cpu.ratio(&[&one], &[&zero]), None);
    }
}
