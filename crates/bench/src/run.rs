//! `mainstem-bench run`: runs tests of workloads against servers, one after the other, and writes their results.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};

use crate::arguments::{Engine, RunArguments};
use crate::driver::Driver;
use crate::measurement::test;
use crate::rate::CONTROL_PERIOD;
use crate::result::TestResult;
use crate::settings::{ConsumerSettings, ProducerSettings};
use crate::timestamp;
use crate::workload::Workload;

/// Runs every workload with every driver. Returns the written files.
pub fn run(arguments: &RunArguments) -> anyhow::Result<Vec<PathBuf>> {
    let drivers: Vec<Driver> =
        arguments.drivers.iter().map(|path| Driver::read(path)).collect::<anyhow::Result<_>>()?;
    let workloads: Vec<Workload> =
        arguments.workloads.iter().map(|path| Workload::read(path)).collect::<anyhow::Result<_>>()?;
    let tests: usize = workloads.iter().map(|workload| workload.rates().len()).sum::<usize>() * drivers.len();
    let output = Output::of(arguments.output.as_deref(), tests)?;
    drivers.iter().try_for_each(|driver| name_ignored(driver, arguments.engine))?;
    for workload in &workloads {
        say_ignored(&format!("the workload {}", workload.name), &workload.ignored());
    }
    let mut written = Vec::new();
    for workload in &workloads {
        for driver in &drivers {
            for rate in workload.rates() {
                let mut one = workload.clone();
                one.producer_rate = rate;
                if workload.rates().len() > 1 {
                    one.name = format!("{} at {rate}/s", workload.name);
                }
                let name = format!("{} on {}", one.name, driver.name);
                eprintln!("{name}: {}", describe(&one));
                let result = test(one, driver.clone(), arguments).with_context(|| name.clone())?;
                let path = output.write(&result)?;
                eprintln!("{name}: {}", conclusion(&result));
                written.push(path);
            }
        }
    }
    Ok(written)
}

fn name_ignored(driver: &Driver, engine: Engine) -> anyhow::Result<()> {
    let what = format!("the driver {}", driver.name);
    say_ignored(&what, &driver.ignored.iter().map(String::as_str).collect::<Vec<_>>());
    let (_, by_producer) =
        ProducerSettings::of(&driver.producer).with_context(|| format!("{what}: producerConfig"))?;
    let (_, by_consumer) =
        ConsumerSettings::of(&driver.consumer).with_context(|| format!("{what}: consumerConfig"))?;
    if engine != Engine::Native {
        // The library reports settings that it ignores.
        return Ok(());
    }
    // A property that both have is from commonConfig, and may be meant for the other one.
    let of_producer =
        by_producer.iter().filter(|name| !driver.consumer.contains_key(*name) || by_consumer.contains(*name));
    let of_consumer =
        by_consumer.iter().filter(|name| !driver.producer.contains_key(*name) || by_producer.contains(*name));
    let ignored: BTreeSet<&str> = of_producer.chain(of_consumer).map(String::as_str).collect();
    say_ignored(&format!("{what}, settings of clients"), &ignored.into_iter().collect::<Vec<_>>());
    Ok(())
}

fn say_ignored(what: &str, keys: &[&str]) {
    if !keys.is_empty() {
        eprintln!("{what}: ignored, because it means nothing here: {}", keys.join(", "));
    }
}

fn describe(workload: &Workload) -> String {
    let rate = match workload.producer_rate {
        0.0 => "the highest rate that lasts".to_owned(),
        rate => format!("{rate} messages/s ({:.1} MB/s)", rate * workload.message_size as f64 / 1e6),
    };
    format!(
        "{} topics of {} partitions, {} producers and {} x {} consumers each, {rate} of {} bytes, {:.0} s after {:.0} s",
        workload.topics,
        workload.partitions_per_topic,
        workload.producers_per_topic,
        workload.groups(),
        workload.consumer_per_subscription,
        workload.message_size,
        workload.test_duration().as_secs_f64(),
        workload.warmup_duration().as_secs_f64(),
    )
}

fn conclusion(result: &TestResult) -> String {
    let bench = &result.bench;
    let [publish, end_to_end] = [&result.publish_latency, &result.end_to_end_latency].map(|series| {
        let at = |percentile| series.aggregated.percentile(percentile).unwrap_or(0.0) / 1e3;
        format!(
            "p50 {:.2}, p99 {:.2}, p99.9 {:.2}, max {:.2} ms",
            at(50.0),
            at(99.0),
            at(99.9),
            series.aggregated.max / 1e3
        )
    });
    let mut text = format!(
        "{:.1} MB/s published, {:.1} MB/s consumed; publish {publish}; end to end {end_to_end}",
        bench.published_bytes as f64 / bench.seconds / 1e6,
        bench.consumed_bytes as f64 / bench.seconds / 1e6,
    );
    // Without consumers nothing was verified.
    if bench.verified {
        text.push_str("; all received once and in order");
    }
    if let Some(rate) = bench.sustainable_rate {
        text.push_str(&format!("; {rate:.0} messages/s left no backlog for {} s", CONTROL_PERIOD.as_secs()));
    }
    if let Some(backlog) = bench.backlog {
        text.push_str(&format!(
            "; backlog of {} messages drained in {:.1} s",
            backlog.messages, backlog.drain_seconds
        ));
    }
    if let Some(server) = bench.server {
        let per_gigabyte = server.cpu_seconds / (bench.published_bytes as f64 / 1e9);
        text.push_str(&format!(
            "; server {per_gigabyte:.2} CPU-s/GB, {:.0} MB",
            server.peak_memory_bytes as f64 / 1e6
        ));
    }
    text
}

/// The destination of results.
enum Output {
    File(PathBuf),
    Directory(PathBuf),
}

impl Output {
    fn of(path: Option<&Path>, tests: usize) -> anyhow::Result<Output> {
        let Some(path) = path else { return Ok(Output::Directory(PathBuf::from("."))) };
        let is_file = path.extension().is_some_and(|extension| extension == "json") && !path.is_dir();
        if !is_file {
            std::fs::create_dir_all(path).with_context(|| format!("{} cannot be made", path.display()))?;
            return Ok(Output::Directory(path.into()));
        }
        if tests > 1 {
            bail!("these are {tests} tests: --output is to be a directory, not {}", path.display());
        }
        Ok(Output::File(path.into()))
    }

    fn write(&self, result: &TestResult) -> anyhow::Result<PathBuf> {
        let path = match self {
            Output::File(path) => path.clone(),
            Output::Directory(directory) => {
                let stamp = timestamp::file_stamp(SystemTime::now());
                let name = format!("{}-{}-{stamp}", result.workload, result.driver);
                let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
                directory.join(format!("{}.json", name.chars().map(plain).collect::<String>()))
            }
        };
        let text = serde_json::to_string_pretty(&result.to_json())?;
        std::fs::write(&path, text)
            .with_context(|| format!("the result cannot be written to {}", path.display()))?;
        Ok(path)
    }
}
