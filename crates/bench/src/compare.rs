//! `mainstem-bench compare`: runs servers on one machine in turns (A, B, A, B) and compares their results.
//!
//! Every run has a fresh server and a load generator in a separate process (`mainstem-bench run`), so that runs do not
//! affect each other. If a run fails, the comparison fails in the end, but the other runs continue and are compared.
//! After an interruption, no further run is started. No server is left running in any case.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::child;
use crate::comparison::{self, Comparison, Named, Run};
use crate::contender::{Contender, ContenderArguments, Launch, START_TIMEOUT};
use crate::device_limit::{self, DeviceLimit};
use crate::driver_template::DriverTemplate;
use crate::interrupt;
use crate::result::{Environment, TestResult};
use crate::running::Running;
use crate::servers;
use crate::timestamp::{file_stamp, rfc3339};
use crate::usage;

/// What `mainstem-bench compare` is told.
#[derive(Args, Clone, Debug)]
pub struct CompareArguments {
    /// Workload files, as the OpenMessaging Benchmark has them
    #[arg(value_name = "WORKLOAD.yaml", required = true)]
    pub workloads: Vec<PathBuf>,
    /// Driver file whose bootstrap.servers is replaced [default: acks=all, linger.ms=1, batch.size=131072]
    #[arg(short, long, value_name = "DRIVER.yaml")]
    pub driver: Option<PathBuf>,
    /// The servers, of which the first is compared with each of the others
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', default_value = "mainstem,kafka")]
    pub contenders: Vec<Contender>,
    /// How often each server has its turn
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Processors for the server, such as "0" or "0-3" [default: all]
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub server_cpus: String,
    /// Processors for the load generator [default: all]
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub load_cpus: String,
    /// The client's engine: native or librdkafka [default: as `run` has it]
    #[arg(long, value_name = "ENGINE", value_parser = ["native", "librdkafka"])]
    pub engine: Option<String>,
    /// Kill a broker of each cluster so long after the measured part has begun (needs --engine librdkafka)
    #[arg(long, value_name = "SECONDS")]
    pub kill_after: Option<f64>,
    /// Where results go [default: bench-results/compare-TIME]
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Whether fio measures the device's limit first, when it is installed
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub fio: bool,
    /// The servers.
    #[command(flatten)]
    pub servers: ContenderArguments,
}

/// The outcome of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// The directory with all output.
    pub output_dir: PathBuf,
    /// Result files, in the order of the runs.
    pub files: Vec<PathBuf>,
    /// The reasons why runs failed.
    pub failures: Vec<String>,
    /// Every server that ran, even if the load failed.
    pub servers: Vec<ServerRun>,
}

/// One run of a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerRun {
    /// The kind of server.
    pub contender: &'static str,
    /// The name of the workload's file.
    pub workload: String,
    /// The round, from 1.
    pub round: u32,
    /// The largest resident set before the stop. `None` if the server had already ended.
    pub peak_memory_bytes: Option<u64>,
}

impl Compared {
    /// Returns an error if any run failed.
    pub fn verdict(&self) -> anyhow::Result<()> {
        match self.failures.as_slice() {
            [] => Ok(()),
            failures => bail!("the comparison failed:\n{}", failures.join("\n")),
        }
    }
}

/// Compares the servers, prints the comparison to standard output and writes it to `comparison.json`.
///
/// Must be called on a thread that lives as long as the process (see [`child`]). Failures while servers ran are in the
/// result, for [`Compared::verdict`].
///
/// # Errors
/// The comparison could not begin.
pub fn run(arguments: &CompareArguments) -> anyhow::Result<Compared> {
    interrupt::listen()?;
    let load_program = std::env::current_exe().context("the path of this program is not known")?;
    let setup = Setup::new(arguments, load_program)?;
    for contender in &arguments.contenders {
        // A failure here would otherwise show up only after hours of other runs.
        servers::prepare(*contender, &arguments.servers, &setup.output_dir)?;
    }
    let device_limits = setup.device_limits();
    let mut compared = Compared { output_dir: setup.output_dir.clone(), ..Compared::default() };
    let runs = setup.run_all(&mut compared);
    compared.files = runs.iter().map(|run| run.file.clone()).collect();
    if arguments.servers.data_dir.is_none() {
        // This fails if the directory holds data that is kept.
        let _ = fs::remove_dir(&setup.data_parent);
    }
    let named =
        |contender: &Contender| Named { name: contender.name(), durability: setup.durability(*contender) };
    let contenders: Vec<Named> = arguments.contenders.iter().map(named).collect();
    let mut comparisons = comparison::compare(&contenders, &runs);
    // The paths are relative to the directory, which may be moved.
    for file in comparisons.iter_mut().flat_map(|comparison| &mut comparison.files) {
        if let Ok(inside) = file.strip_prefix(&setup.output_dir) {
            *file = inside.to_owned();
        }
    }
    if !comparisons.is_empty() {
        setup.print(&comparisons, &device_limits);
    }
    setup.write(&comparisons, &device_limits, &compared)?;
    Ok(compared)
}

/// The parameters that all runs share.
struct Setup<'a> {
    arguments: &'a CompareArguments,
    load_program: PathBuf,
    driver: DriverTemplate,
    acks: i16,
    output_dir: PathBuf,
    data_parent: PathBuf,
    environment: Environment,
    begin: SystemTime,
}

impl Setup<'_> {
    fn new(arguments: &CompareArguments, load_program: PathBuf) -> anyhow::Result<Setup<'_>> {
        for workload in &arguments.workloads {
            fs::read(workload)
                .with_context(|| format!("the workload {} cannot be read", workload.display()))?;
        }
        let twice = |at: usize| arguments.contenders[..at].contains(&arguments.contenders[at]);
        if let Some(at) = (0..arguments.contenders.len()).find(|at| twice(*at)) {
            bail!("--contenders has {} twice", arguments.contenders[at].name());
        }
        if arguments.kill_after.is_some() {
            if let Some(one) = arguments.contenders.iter().find(|contender| !contender.is_cluster()) {
                bail!("--kill-after: {} is no cluster, which goes on without a broker", one.name());
            }
            if arguments.engine.as_deref() != Some("librdkafka") {
                bail!("--kill-after needs --engine librdkafka: the native engine does not connect again");
            }
        }
        let driver = match &arguments.driver {
            Some(file) => fs::read_to_string(file)
                .map_err(anyhow::Error::from)
                .and_then(|text| DriverTemplate::parse(&text))
                .with_context(|| format!("the driver {} cannot be read", file.display()))?,
            None => DriverTemplate::standard(),
        };
        let begin = SystemTime::now();
        let default = || Path::new("bench-results").join(format!("compare-{}", file_stamp(begin)));
        let output_dir = std::path::absolute(arguments.output_dir.clone().unwrap_or_else(default))?;
        let data_parent = arguments.servers.data_dir.clone().unwrap_or_else(|| output_dir.join("data"));
        for directory in [&output_dir, &data_parent] {
            fs::create_dir_all(directory)
                .with_context(|| format!("{} cannot be created", directory.display()))?;
        }
        let environment = Environment {
            server_cpus: arguments.server_cpus.clone(),
            load_cpus: arguments.load_cpus.clone(),
            ..usage::environment(Some(&data_parent))
        };
        let acks = driver.acks()?;
        Ok(Setup { arguments, load_program, driver, acks, output_dir, data_parent, environment, begin })
    }

    /// Empty if the limits are not to be measured, or cannot be. The comparison continues without them.
    fn device_limits(&self) -> Vec<DeviceLimit> {
        if !self.arguments.fio || child::on_path("fio").is_none() {
            return Vec::new();
        }
        eprintln!("measuring the device with fio");
        device_limit::measure(&self.data_parent).unwrap_or_else(|error| {
            eprintln!("the device's limit is not known: {error:#}");
            Vec::new()
        })
    }

    fn durability(&self, contender: Contender) -> &'static str {
        contender.durability(self.acks, &self.arguments.servers)
    }

    fn run_all(&self, compared: &mut Compared) -> Vec<Run> {
        let mut runs = Vec::new();
        for workload in 0..self.arguments.workloads.len() {
            for round in 1..=self.arguments.rounds {
                for contender in 0..self.arguments.contenders.len() {
                    let turn = Turn { setup: self, workload, contender, round };
                    if let Err(error) = turn.run(&mut runs, &mut compared.servers) {
                        eprintln!("{turn}: {error:#}");
                        compared.failures.push(format!("{turn}: {error:#}"));
                    }
                    if interrupt::requested() {
                        return runs;
                    }
                }
            }
        }
        runs
    }

    fn print(&self, comparisons: &[Comparison], device_limits: &[DeviceLimit]) {
        let Environment { cpus, cpu_model, memory_bytes, kernel, filesystem, .. } = &self.environment;
        let gigabytes = *memory_bytes as f64 / 1e9;
        println!("\n{cpus} x {cpu_model}, {gigabytes:.1} GB of memory, {kernel}, {filesystem}");
        let pinned = |cpus: &str| if cpus.is_empty() { "all".to_owned() } else { cpus.to_owned() };
        let (server, load) = (pinned(&self.arguments.server_cpus), pinned(&self.arguments.load_cpus));
        println!(
            "processors: {server} for the server, {load} for the load; rounds: {}",
            self.arguments.rounds
        );
        for limit in device_limits {
            println!("the device's limit (fio): {}", limit.to_line());
        }
        for comparison in comparisons {
            println!("\n{}", comparison.to_text());
        }
    }

    fn write(
        &self,
        comparisons: &[Comparison],
        device_limits: &[DeviceLimit],
        compared: &Compared,
    ) -> anyhow::Result<()> {
        let all = json!({
            "beginTime": rfc3339(self.begin),
            "rounds": self.arguments.rounds,
            "environment": self.environment,
            "deviceLimits": device_limits,
            "comparisons": comparisons,
            "failures": compared.failures,
            "servers": compared.servers,
        });
        let file = self.output_dir.join("comparison.json");
        fs::write(&file, format!("{all:#}\n"))
            .with_context(|| format!("{} cannot be written", file.display()))?;
        eprintln!("written to {}", self.output_dir.display());
        Ok(())
    }
}

/// One server's run of one workload file.
struct Turn<'a> {
    setup: &'a Setup<'a>,
    workload: usize,
    contender: usize,
    round: u32,
}

impl std::fmt::Display for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let workload = self.workload_name();
        let (round, rounds) = (self.round, self.setup.arguments.rounds);
        write!(f, "{workload}, round {round} of {rounds}, {}", self.contender().name())
    }
}

impl Turn<'_> {
    fn contender(&self) -> Contender {
        self.setup.arguments.contenders[self.contender]
    }

    fn workload_file(&self) -> &Path {
        &self.setup.arguments.workloads[self.workload]
    }

    /// The file's name without its directory, because results are shown to others.
    fn workload_name(&self) -> String {
        self.workload_file().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The directory for the log of this run's server and for its results.
    fn directory(&self) -> PathBuf {
        let stem = self.workload_file().file_stem().unwrap_or_default().to_string_lossy();
        let workload = format!("{}-{stem}", self.workload + 1);
        self.setup.output_dir.join(workload).join(format!("round-{}-{}", self.round, self.contender().name()))
    }

    /// Runs the load. Results of a failed run are kept if it wrote them.
    fn run(&self, runs: &mut Vec<Run>, servers: &mut Vec<ServerRun>) -> anyhow::Result<()> {
        interrupt::check()?;
        let directory = self.directory();
        fs::create_dir_all(&directory)
            .with_context(|| format!("{} cannot be created", directory.display()))?;
        eprintln!("{self}: starting the server");
        let launch = Launch {
            arguments: &self.setup.arguments.servers,
            data_parent: &self.setup.data_parent,
            work_dir: &directory,
            cpus: &self.setup.arguments.server_cpus,
            timeout: START_TIMEOUT,
        };
        let mut server = servers::start(self.contender(), &launch)?;
        eprintln!("{self}: processes {:?} serve on {}", server.pids(), server.bootstrap);
        let victim = self.setup.arguments.kill_after.and_then(|after| Some((server.victim()?, after)));
        let loaded = self.load(&server, victim, &directory);
        let alive = server.check();
        servers.push(ServerRun {
            contender: self.contender().name(),
            workload: self.workload_name(),
            round: self.round,
            peak_memory_bytes: server.peak_memory_bytes(),
        });
        server.stop();
        let found = self.read_results(&directory, runs);
        // A server that has ended explains why the load failed, so this error comes first.
        interrupt::check().and(alive).and(loaded)?;
        found
    }

    fn load(&self, server: &Running, victim: Option<(u32, f64)>, directory: &Path) -> anyhow::Result<()> {
        let arguments = self.setup.arguments;
        let contender = server.contender();
        let driver = directory.join("driver.yaml");
        fs::write(&driver, {
            let (setup, of_cluster) = (self.setup, contender.is_cluster() && arguments.driver.is_none());
            let driver = if of_cluster { setup.driver.clone().of_cluster() } else { setup.driver.clone() };
            driver.to_yaml(contender.name(), &server.bootstrap, &server.client_properties)
        })?;
        let mut command = child::command(&self.setup.load_program, &arguments.load_cpus)?;
        command.arg("run").arg("-d").arg(&driver).arg(self.workload_file()).arg("-o").arg(directory);
        command.args(["--contender", contender.name(), "--round", &self.round.to_string()]);
        command.args(["--durability", self.setup.durability(contender)]);
        for pid in server.pids() {
            command.args(["--server-pid", &pid.to_string()]);
        }
        if let Some((pid, after)) = victim {
            command.args(["--kill-pid", &pid.to_string(), "--kill-after", &after.to_string()]);
        }
        command.arg("--server-data-dir").arg(server.data_dir());
        for (key, value) in &server.setup {
            command.arg(format!("--server-setup={key}={value}"));
        }
        let optional = [
            ("--server-cpus", arguments.server_cpus.as_str()),
            ("--load-cpus", arguments.load_cpus.as_str()),
            ("--engine", arguments.engine.as_deref().unwrap_or_default()),
        ];
        for (name, value) in optional.into_iter().filter(|(_, value)| !value.is_empty()) {
            command.args([name, value]);
        }
        // Standard output is reserved for the comparison.
        command.stdin(Stdio::null()).stdout(io::stderr().as_fd().try_clone_to_owned()?);
        let status = child::wait(&mut command.spawn().context("the load generator cannot be run")?)?;
        if !status.success() {
            bail!("the load generator failed ({status}); it says why above");
        }
        Ok(())
    }

    fn read_results(&self, directory: &Path, runs: &mut Vec<Run>) -> anyhow::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(directory)? {
            let file = entry?.path();
            if file.extension().is_some_and(|extension| extension == "json") {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            bail!("the load generator wrote no result to {}", directory.display());
        }
        for file in files {
            let text = fs::read_to_string(&file)?;
            let result = TestResult::from_json(&text)
                .with_context(|| format!("{} is not a result", file.display()))?;
            let Turn { workload, contender, round, .. } = *self;
            runs.push(Run { workload, contender, round, result, file });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use clap::{CommandFactory, Parser};
    use serde_json::Value;

    use super::*;
    use crate::result::Bench;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        compare: CompareArguments,
    }

    fn arguments(line: &[&str]) -> Result<CompareArguments, clap::Error> {
        Line::try_parse_from([&["compare"], line].concat()).map(|line| line.compare)
    }

    fn script(file: &Path, text: &str) {
        fs::write(file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_command_line_is_consistent() {
        Line::command().debug_assert();
        let parsed = arguments(&["a.yaml", "b.yaml"]).unwrap();
        assert_eq!(parsed.contenders, [Contender::Mainstem, Contender::Kafka]);
        assert_eq!((parsed.rounds, parsed.fio, parsed.workloads.len()), (2, true, 2));
        let parsed =
            arguments(&["a.yaml", "--contenders", "kafka-durable,mainstem", "--fio", "false"]).unwrap();
        assert_eq!(parsed.contenders, [Contender::KafkaDurable, Contender::Mainstem]);
        assert!(!parsed.fio);
        for line in [&["--rounds", "1"][..], &["a", "--rounds", "0"], &["a", "--contenders", "redis"]] {
            assert!(arguments(line).is_err(), "{line:?}");
        }
    }

    /// Runs a comparison with shell scripts in place of the server and of the load generator.
    fn compare(directory: &Path, load: &str) -> (Compared, Vec<Run>, Value) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let file = |name: &str| directory.join(name).display().to_string();
        let ready =
            format!("echo 'ready version=\"7\" mainstem is ready on {address} (data)'; exec sleep 1000");
        script(&directory.join("mainstem"), &ready);
        script(&directory.join("load"), load);
        let result =
            TestResult { bench: Bench { verified: true, ..Bench::default() }, ..TestResult::default() };
        fs::write(directory.join("result"), result.to_json().to_string()).unwrap();
        fs::write(directory.join("w.yaml"), "name: w\n").unwrap();
        let (mainstem, workload, output) = (file("mainstem"), file("w.yaml"), file("out"));
        let line = ["--contenders", "mainstem", "--mainstem", &mainstem, &workload, "--output-dir", &output];
        let arguments = arguments(&line).unwrap();
        let setup = Setup::new(&arguments, directory.join("load")).unwrap();
        let mut compared = Compared::default();
        let runs = setup.run_all(&mut compared);
        let mainstem = Contender::Mainstem;
        let contenders = [Named { name: mainstem.name(), durability: setup.durability(mainstem) }];
        setup.write(&comparison::compare(&contenders, &runs), &[], &compared).unwrap();
        assert_eq!(fs::read_dir(directory.join("out/data")).unwrap().count(), 0);
        let written = fs::read(directory.join("out/comparison.json")).unwrap();
        (compared, runs, serde_json::from_slice(&written).unwrap())
    }

    #[test]
    fn each_round_has_its_server_and_its_results() {
        let directory = tempfile::tempdir().unwrap();
        let load = "echo \"$*\" >>$(dirname $0)/calls; cp $(dirname $0)/result $6/r.json";
        let (compared, runs, written) = compare(directory.path(), load);
        compared.verdict().unwrap();
        let out = directory.path().join("out/1-w");
        let expected = [out.join("round-1-mainstem/r.json"), out.join("round-2-mainstem/r.json")];
        assert_eq!(runs.iter().map(|run| run.file.clone()).collect::<Vec<PathBuf>>(), expected);
        assert_eq!(runs.iter().map(|run| run.round).collect::<Vec<u32>>(), [1, 2]);
        let driver = fs::read_to_string(out.join("round-1-mainstem/driver.yaml")).unwrap();
        assert!(driver.starts_with("name: \"mainstem\"\n"), "{driver}");
        let calls = fs::read_to_string(directory.path().join("calls")).unwrap();
        let call: Vec<&str> = calls.lines().next().unwrap().split(' ').collect();
        assert_eq!(&call[..2], ["run", "-d"]);
        assert_eq!(call[4], "-o");
        let text = calls.lines().nth(1).unwrap();
        let options =
            "--contender mainstem --round 2 --durability on the device before the answer --server-pid ";
        assert!(text.contains(options) && text.contains(" --server-data-dir "), "{text}");
        assert!(text.contains(" --server-setup=version=7"), "{text}");
        assert!(!text.contains("--server-cpus") && !text.contains("--engine"), "{text}");
        assert_eq!(written["comparisons"][0]["contenders"][0]["name"], "mainstem");
        assert_eq!(written["failures"], json!([]));
        assert_eq!(written["rounds"], 2);
    }

    #[test]
    fn a_run_that_fails_fails_the_comparison_and_the_others_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let load = "test ${10} = 2 || exit 9; cp $(dirname $0)/result $6/r.json";
        let (compared, runs, written) = compare(directory.path(), load);
        assert_eq!((runs.len(), runs[0].round), (1, 2));
        let text = compared.verdict().unwrap_err().to_string();
        assert_eq!(
            text.lines().last(),
            Some(
                "w.yaml, round 1 of 2, mainstem: the load generator failed (exit status: 9); it says why above"
            )
        );
        assert_eq!(written["failures"].as_array().unwrap().len(), 1);
        // The usage of the servers is known anyway.
        let servers = written["servers"].as_array().unwrap();
        assert_eq!(servers.iter().map(|server| &server["round"]).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(servers[0]["workload"], "w.yaml");
        assert!(
            servers.iter().all(|server| server["peakMemoryBytes"].as_u64() > Some(100_000)),
            "{servers:?}"
        );
    }

    #[test]
    fn a_server_that_ends_under_load_is_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let load = "while [ \"$1\" != --server-pid ]; do shift; done; kill -9 $2; sleep 0.2; exit 1";
        let (compared, _, _) = compare(directory.path(), load);
        assert!(compared.failures[0].contains("the server has ended (signal: 9"), "{:?}", compared.failures);
    }

    #[test]
    fn mistakes_are_found_before_anything_starts() {
        let error = |line: &[&str]| {
            let arguments = arguments(line).unwrap();
            Setup::new(&arguments, PathBuf::new()).err().map(|error| error.to_string())
        };
        assert_eq!(error(&["/no.yaml"]).unwrap(), "the workload /no.yaml cannot be read");
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(error(&[here, "--contenders", "kafka,kafka"]).unwrap(), "--contenders has kafka twice");
        let kill = |more: &[&str]| error(&[&[here, "--kill-after", "5"], more].concat()).unwrap();
        assert!(kill(&[]).starts_with("--kill-after: mainstem is no cluster"));
        assert!(kill(&["--contenders", "kafka-3"]).starts_with("--kill-after needs --engine librdkafka"));
        assert_eq!(error(&[here, "-d", "/no.yaml"]).unwrap(), "the driver /no.yaml cannot be read");
    }
}
