//! `mainstem-bench report`: compares results on one page of HTML that needs no network.
//!
//! Results are grouped by workload, and within it by contender. Several results of a contender are its rounds.
//! Contenders keep the order of their first result, and with it their colour, over the whole page. The first contender
//! is the base of all ratios.
//!
//! The parts: [`measure`] defines the values, [`number`] formats them, [`chart`] draws, [`page`] builds the HTML.

mod chart;
mod measure;
mod number;
mod page;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use crate::result::{LatencySeries, LatencySummary, PERCENTILES, TestResult};
use chart::{Axis, Chart, Scale, Series};

/// What `mainstem-bench report` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct ReportArguments {
    /// Results, ours or OMB's own; the contender of the first is compared with each of the others
    #[arg(required = true, value_name = "RESULT.json")]
    pub results: Vec<PathBuf>,
    /// Where the page goes
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Also write every chart as an SVG file into this directory
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Heading of the page
    #[arg(long, value_name = "TEXT", default_value = "Benchmark report")]
    pub title: String,
    /// A paragraph below the heading
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

/// Reads the results, and writes the page and, if requested, the images.
///
/// # Errors
/// A file cannot be read, is not a result or cannot be written. The message names the file.
pub fn run(arguments: &ReportArguments) -> anyhow::Result<()> {
    let results: Vec<TestResult> =
        arguments.results.iter().map(|path| read(path)).collect::<anyhow::Result<_>>()?;
    let workloads = grouped(&results);
    let charts = workloads
        .iter()
        .map(|workload| workload_charts(workload).iter().map(Drawing::of).collect())
        .collect::<anyhow::Result<Vec<Vec<Drawing>>>>()?;
    let html = page::html(&arguments.title, arguments.note.as_deref(), &workloads, &charts);
    write(&arguments.output, &html)?;
    if let Some(directory) = &arguments.images {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        for (workload, drawings) in workloads.iter().zip(&charts) {
            for drawing in drawings {
                let name = format!("{}-{}.svg", workload.slug, slug(drawing.title));
                write(&directory.join(name), &drawing.svg)?;
            }
        }
    }
    println!("{}: {} results of {} workloads", arguments.output.display(), results.len(), workloads.len());
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<TestResult> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    TestResult::from_json(&text).map_err(|error| anyhow!("{} is not a result: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The results of one workload.
struct Workload<'a> {
    name: &'a str,
    /// The name as part of a file name and of a link. It is unique.
    slug: String,
    /// In the order of the page.
    contenders: Vec<Contender<'a>>,
}

/// The results of one contender for one workload.
struct Contender<'a> {
    name: &'a str,
    /// The position among all contenders of the page, which decides the colour.
    position: usize,
    /// Ordered by number.
    rounds: Vec<&'a TestResult>,
}

impl Workload<'_> {
    fn results(&self) -> impl Iterator<Item = &TestResult> {
        self.contenders.iter().flat_map(|contender| contender.rounds.iter().copied())
    }
}

fn grouped(results: &[TestResult]) -> Vec<Workload<'_>> {
    let contenders = distinct(results.iter().map(TestResult::label));
    let mut slugs = HashSet::new();
    let of_workload = |name| {
        let of_contender = |(position, contender): (usize, &&'_ str)| {
            let is_round = |result: &&TestResult| result.workload == name && result.label() == *contender;
            let mut rounds: Vec<&TestResult> = results.iter().filter(is_round).collect();
            rounds.sort_by_key(|result| result.bench.round);
            (position, rounds)
        };
        let by_contender = contenders.iter().enumerate().map(of_contender);
        let present = by_contender.filter(|(_, rounds)| !rounds.is_empty());
        let contenders = present
            .map(|(position, rounds)| Contender { name: rounds[0].label(), position, rounds })
            .collect();
        Workload { name, slug: unused_slug(name, &mut slugs), contenders }
    };
    distinct(results.iter().map(|result| result.workload.as_str())).into_iter().map(of_workload).collect()
}

/// Each value once, in the order of the first occurrence.
fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// A text as part of a file name.
fn slug(text: &str) -> String {
    // File systems allow 255 bytes. The rest is for the chart's name.
    const CHARACTERS_MAX: usize = 120;
    let fitting = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    let slug: String = text.chars().map(fitting).take(CHARACTERS_MAX).collect();
    let words: Vec<&str> = slug.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-").trim_matches(['.', '-']).to_owned()
}

fn unused_slug(text: &str, used: &mut HashSet<String>) -> String {
    let plain = Some(slug(text)).filter(|slug| !slug.is_empty()).unwrap_or_else(|| "workload".into());
    let mut candidate = plain.clone();
    let mut number = 2;
    while !used.insert(candidate.clone()) {
        candidate = format!("{plain}-{number}");
        number += 1;
    }
    candidate
}

/// Escapes a text for the content of an element or the value of an attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A drawn chart.
struct Drawing {
    title: &'static str,
    svg: String,
    wide: bool,
    /// The number of lines with at least one point. `scripts/check-report` looks for them in the browser.
    lines: usize,
    /// The colours of the contenders with a line.
    colours: Vec<String>,
}

impl Drawing {
    fn of(chart: &Chart<'_>) -> anyhow::Result<Drawing> {
        let colours = distinct(chart.series.iter().map(|series| chart::colour(series.contender)));
        let svg = chart.svg().with_context(|| format!("cannot draw {}", chart.title))?;
        Ok(Drawing { title: chart.title, svg, wide: chart.wide, lines: chart.drawn_lines(), colours })
    }
}

/// The values of one round for one chart.
type LineOf = fn(&TestResult) -> Vec<(f64, f64)>;

fn workload_charts<'a>(workload: &Workload<'a>) -> Vec<Chart<'a>> {
    let sized = workload.results().all(|result| result.message_size > 0);
    let rate = Axis { title: if sized { "MB/s" } else { "messages/s" }, scale: Scale::LinearRounded };
    let time = Axis { title: "time [s]", scale: Scale::Linear };
    let percentile = Axis { title: "percentile", scale: Scale::Nines };
    let latency = Axis { title: "latency [ms]", scale: Scale::Logarithmic };
    let waiting = Axis { title: "messages", scale: Scale::LinearRounded };
    let mut kinds: Vec<(&'static str, &Axis, &Axis, LineOf)> = vec![
        ("Published", &time, &rate, |result| over_time(result, &rates(result, &result.publish_rate))),
        ("Consumed", &time, &rate, |result| over_time(result, &rates(result, &result.consume_rate))),
        ("Publish latency, p99", &time, &latency, |result| tail_over_time(result, &result.publish_latency)),
        ("End-to-end latency, p99", &time, &latency, |result| {
            tail_over_time(result, &result.end_to_end_latency)
        }),
        ("Publish latency by percentile", &percentile, &latency, |result| {
            percentiles(&result.publish_latency)
        }),
        ("End-to-end latency by percentile", &percentile, &latency, |result| {
            percentiles(&result.end_to_end_latency)
        }),
    ];
    if workload.results().any(has_backlog) {
        kinds.push(("Backlog, all groups", &time, &waiting, |result| {
            let backlog: Vec<f64> = result.backlog.iter().map(|messages| *messages as f64).collect();
            over_time(result, &backlog)
        }));
    }
    let count = kinds.len();
    let chart = |(at, (title, x, y, line_of)): (usize, (&'static str, &Axis, &Axis, LineOf))| {
        let series = workload.contenders.iter().map(|contender| Series {
            name: contender.name,
            contender: contender.position,
            lines: contender.rounds.iter().map(|round| line_of(round)).collect(),
        });
        // An odd chart at the end would leave half a row empty.
        let wide = at % 2 == 0 && at + 1 == count;
        Chart { title, x: x.clone(), y: y.clone(), series: series.collect(), wide }
    };
    kinds.into_iter().enumerate().map(chart).collect()
}

/// Whether messages waited on purpose, or more messages waited than are published in a second because consumers lag.
fn has_backlog(result: &TestResult) -> bool {
    let second = measure::mean(&result.publish_rate).unwrap_or(0.0);
    result.bench.backlog.is_some() || result.backlog.iter().any(|messages| *messages as f64 > second)
}

/// Messages per second converted to MB/s. Unchanged if the message size is unknown.
fn rates(result: &TestResult, messages: &[f64]) -> Vec<f64> {
    let factor = if result.message_size > 0 { result.message_size as f64 / 1e6 } else { 1.0 };
    messages.iter().map(|rate| rate * factor).collect()
}

fn over_time(result: &TestResult, values: &[f64]) -> Vec<(f64, f64)> {
    // Without a sample interval, the number of the sample is used.
    let step = Some(result.bench.sample_seconds).filter(|seconds| *seconds > 0.0).unwrap_or(1.0);
    values.iter().zip(0u32..).map(|(value, at)| (f64::from(at) * step, *value)).collect()
}

fn tail_over_time(result: &TestResult, latency: &LatencySeries) -> Vec<(f64, f64)> {
    let tail = latency.samples.iter().filter_map(|summary| summary.percentile(99.0));
    over_time(result, &tail.map(|micros| micros / 1000.0).collect::<Vec<f64>>())
}

fn percentiles(latency: &LatencySeries) -> Vec<(f64, f64)> {
    let quantiles = if latency.quantiles.is_empty() && latency.aggregated != LatencySummary::default() {
        let at = latency.aggregated.at;
        PERCENTILES.iter().zip(at).map(|((percentile, _), micros)| (*percentile, micros)).collect()
    } else {
        latency.quantiles.clone()
    };
    // The maximum has no place on an axis of nines: it would be infinitely far to the right.
    let finite = quantiles.into_iter().filter(|(percentile, _)| *percentile < 100.0);
    finite.map(|(percentile, micros)| (percentile, micros / 1000.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(workload: &str, contender: &str, round: u32) -> TestResult {
        let mut result = TestResult { workload: workload.into(), ..TestResult::default() };
        result.bench.contender = contender.into();
        result.bench.round = round;
        result
    }

    #[test]
    fn results_are_grouped_by_workload_then_contender_then_round() {
        let results = [
            result("w2", "kafka", 2),
            result("w1", "mainstem", 1),
            result("w1", "kafka", 1),
            result("w2", "kafka", 1),
        ];
        let workloads = grouped(&results);
        let names: Vec<&str> = workloads.iter().map(|workload| workload.name).collect();
        assert_eq!(names, ["w2", "w1"]);
        let rounds: Vec<u32> =
            workloads[0].contenders[0].rounds.iter().map(|result| result.bench.round).collect();
        assert_eq!(rounds, [1, 2]);
        let order: Vec<(&str, usize)> =
            workloads[1].contenders.iter().map(|contender| (contender.name, contender.position)).collect();
        assert_eq!(order, [("kafka", 0), ("mainstem", 1)]);
    }

    #[test]
    fn names_become_parts_of_file_names_that_differ() {
        let mut used = HashSet::new();
        let names = ["Part 1/TLS", "part-1 tls", "../..", "<&>"];
        assert_eq!(
            names.map(|name| unused_slug(name, &mut used)),
            ["part-1-tls", "part-1-tls-2", "workload", "workload-2"]
        );
    }

    #[test]
    fn the_largest_latency_has_no_percentile_and_aggregates_stand_in_for_quantiles() {
        let mut latency = LatencySeries {
            quantiles: vec![(0.0, 500.0), (99.0, 2000.0), (100.0, 9000.0)],
            ..LatencySeries::default()
        };
        assert_eq!(percentiles(&latency), [(0.0, 0.5), (99.0, 2.0)]);
        latency.quantiles.clear();
        assert_eq!(percentiles(&latency), []);
        latency.aggregated.at[3] = 4000.0;
        assert_eq!(percentiles(&latency)[3], (99.0, 4.0));
    }

    #[test]
    fn samples_are_placed_by_their_interval() {
        let mut result = result("w", "c", 1);
        result.bench.sample_seconds = 0.5;
        assert_eq!(over_time(&result, &[7.0, 8.0, 9.0]), [(0.0, 7.0), (0.5, 8.0), (1.0, 9.0)]);
        result.bench.sample_seconds = 0.0;
        assert_eq!(over_time(&result, &[7.0, 8.0]), [(0.0, 7.0), (1.0, 8.0)]);
    }

    #[test]
    fn a_backlog_is_drawn_when_there_is_one() {
        let mut waiting = result("w", "c", 1);
        waiting.publish_rate = vec![100.0, 100.0];
        waiting.backlog = vec![3, 90];
        let charts = |result: &TestResult| workload_charts(&grouped(std::slice::from_ref(result))[0]).len();
        assert_eq!(charts(&waiting), 6);
        waiting.backlog[1] = 101;
        assert_eq!(charts(&waiting), 7);
    }

    #[test]
    fn an_empty_result_draws_frames_without_lines() {
        let results = [result("w", "c", 0)];
        let charts = workload_charts(&grouped(&results)[0]);
        assert_eq!(charts.iter().map(Chart::drawn_lines).sum::<usize>(), 0);
        assert!(charts.iter().all(|chart| chart.svg().unwrap().contains("no samples")));
    }
}
