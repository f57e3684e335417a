//! The compared servers. Each is started on free ports of this machine with a fresh data directory.
//!
//! Dropping a [`Running`] server stops it and removes its data. It also ends with this process (see [`child`]).

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::certificate::Certificate;
use crate::child;
use crate::interrupt;
use crate::kafka::{self, Kafka};

/// Time within which a server must be ready.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which the log of a starting server is read.
const START_POLL: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Contender {
    /// Ours.
    Mainstem,
    /// Apache Kafka with its defaults.
    Kafka,
    /// Apache Kafka that flushes before it answers.
    KafkaDurable,
    /// Ours over TLS, with a certificate made for the comparison.
    MainstemTls,
    /// Apache Kafka with its defaults, over TLS.
    KafkaTls,
}

/// How the servers are brought up.
#[derive(Args, Clone, Debug)]
pub struct ContenderArguments {
    /// The program `mainstem` [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub mainstem: Option<PathBuf>,
    /// Configuration file (TOML) for mainstem
    #[arg(long, value_name = "FILE")]
    pub mainstem_config: Option<PathBuf>,
    /// Where the servers' data lives while they run, hence on which disk [default: in the output directory]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Keep the servers' data when they have stopped
    #[arg(long)]
    pub keep_data: bool,
    /// Version of Apache Kafka, fetched from Maven Central
    #[arg(long, value_name = "VERSION", default_value = kafka::VERSION)]
    pub kafka_version: String,
    /// The JVM's flags about Kafka's heap
    #[arg(long, value_name = "FLAGS", default_value = "-Xms3g -Xmx3g", allow_hyphen_values = true)]
    pub kafka_heap: String,
    /// A server setting for every contender, by Kafka's name; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub server_config: Vec<(String, String)>,
    /// A server setting for Kafka; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub kafka_config: Vec<(String, String)>,
}

/// The parameters for one start of a server.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The arguments of the command line.
    pub arguments: &'a ContenderArguments,
    /// The parent of the server's data directory.
    pub data_parent: &'a Path,
    /// The directory for the server's log and configuration.
    pub work_dir: &'a Path,
    /// The processors, as for `taskset -c`; empty for all.
    pub cpus: &'a str,
    /// Time within which the server must be ready.
    pub timeout: Duration,
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    contender: Contender,
    bootstrap: String,
    client_properties: Vec<(String, String)>,
    setup: Vec<(String, String)>,
    child: Child,
    log: PathBuf,
    // This field is dropped after the server is stopped. Dropping it removes the data.
    data: DataDirectory,
}

impl Contender {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Mainstem => "mainstem",
            Contender::Kafka => "kafka",
            Contender::KafkaDurable => "kafka-durable",
            Contender::MainstemTls => "mainstem-tls",
            Contender::KafkaTls => "kafka-tls",
        }
    }

    /// The location of a record when its acknowledgement is sent, for producers with these `acks`.
    pub fn durability(self, acks: i16, arguments: &ContenderArguments) -> &'static str {
        let flushes = |(name, _): &(String, String)| name.starts_with("log.flush");
        match self {
            _ if acks == 0 => "anywhere: nothing is acknowledged (acks=0)",
            Contender::Mainstem | Contender::MainstemTls if acks == 1 => {
                "written to the device and not synced before the answer (acks=1)"
            }
            Contender::Mainstem | Contender::MainstemTls => "on the device before the answer",
            Contender::Kafka | Contender::KafkaTls | Contender::KafkaDurable
                if arguments.server_config.iter().chain(&arguments.kafka_config).any(flushes) =>
            {
                "in the page cache before the answer, or flushed as its log.flush settings say"
            }
            Contender::Kafka | Contender::KafkaTls => "in the page cache before the answer (Kafka's default)",
            Contender::KafkaDurable => "flushed to the device before the answer (flush.messages=1)",
        }
    }

    /// Checks what the start needs, and fetches what is missing. Maven's log goes to `work_dir`.
    pub fn prepare(self, arguments: &ContenderArguments, work_dir: &Path) -> anyhow::Result<()> {
        match self {
            Contender::Mainstem | Contender::MainstemTls => mainstem_program(arguments).map(drop),
            Contender::Kafka | Contender::KafkaDurable | Contender::KafkaTls => {
                kafka::install(&arguments.kafka_version, work_dir).map(drop)
            }
        }
    }

    /// Whether the server's clients use TLS.
    fn is_tls(self) -> bool {
        matches!(self, Contender::MainstemTls | Contender::KafkaTls)
    }

    /// Starts the server and waits until it is ready.
    pub fn start(self, launch: &Launch<'_>) -> anyhow::Result<Running> {
        self.bring_up(launch).with_context(|| format!("{} did not start", self.name()))
    }

    fn bring_up(self, launch: &Launch<'_>) -> anyhow::Result<Running> {
        let data = DataDirectory::create(launch.data_parent, self.name(), launch.arguments.keep_data)?;
        let certificate = self.is_tls().then(|| Certificate::make(launch.work_dir)).transpose()?;
        let arguments = launch.arguments;
        let mut running = match self {
            Contender::Mainstem | Contender::MainstemTls => {
                let command = mainstem(launch, &data.path, certificate.as_ref())?;
                let mut running = Running::spawn(self, command, data, launch, |log| {
                    mainstem_address(log).map(str::to_owned)
                })?;
                let log = fs::read(&running.log)?;
                let log = String::from_utf8_lossy(&log);
                let version = mainstem_version(&log).map(|version| ("version".into(), version.into()));
                let file = arguments.mainstem_config.as_ref().and_then(|file| file.file_name());
                let file =
                    file.map(|file| ("configuration file".into(), file.to_string_lossy().into_owned()));
                let named = version.into_iter().chain(file);
                running.setup = named.chain(arguments.server_config.iter().cloned()).collect();
                running
            }
            Contender::Kafka | Contender::KafkaDurable | Contender::KafkaTls => {
                let certified = certificate.iter().flat_map(Certificate::server_settings);
                let asked = kafka_config(self, arguments);
                let config: Vec<_> = certified.chain(asked.iter().cloned()).collect();
                let (version, heap) = (&arguments.kafka_version, &arguments.kafka_heap);
                let kafka = Kafka { version, heap, config: &config, tls: self.is_tls() };
                let prepared = kafka.prepare(&data.path, launch.work_dir)?;
                let command = kafka.command(&prepared, launch.cpus)?;
                let ready = |log: &str| log.contains(kafka::READY).then(|| prepared.bootstrap.clone());
                let mut running = Running::spawn(self, command, data, launch, ready)?;
                let setup = [("version".into(), version.clone()), ("heap".into(), heap.clone())];
                running.setup = setup.into_iter().chain(asked).collect();
                running
            }
        };
        running.client_properties = certificate.map(|of| of.client_properties()).unwrap_or_default();
        Ok(running)
    }
}

/// Parses an argument KEY=VALUE.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err("it must be KEY=VALUE".into()),
    }
}

/// Kafka's settings: the contender's flush setting first, then the requested ones, which take precedence.
fn kafka_config(contender: Contender, arguments: &ContenderArguments) -> Vec<(String, String)> {
    let flush = ("log.flush.interval.messages".to_owned(), "1".to_owned());
    let flush = (contender == Contender::KafkaDurable).then_some(flush);
    flush.iter().chain(&arguments.server_config).chain(&arguments.kafka_config).cloned().collect()
}

fn mainstem_program(arguments: &ContenderArguments) -> anyhow::Result<PathBuf> {
    let program = match &arguments.mainstem {
        // A name without a directory would be searched for on the PATH.
        Some(program) => std::path::absolute(program)?,
        None => std::env::current_exe()?.with_file_name("mainstem"),
    };
    if !program.is_file() {
        bail!("there is no {}: build it, or say with --mainstem where it is", program.display());
    }
    Ok(program)
}

fn mainstem(
    launch: &Launch<'_>,
    data_dir: &Path,
    certificate: Option<&Certificate>,
) -> anyhow::Result<Command> {
    let mut command = child::command(&mainstem_program(launch.arguments)?, launch.cpus)?;
    command.arg("serve");
    match certificate {
        None => {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        Some(certificate) => {
            command.args(["--set", "listeners=SSL://127.0.0.1:0"]);
            for (key, value) in certificate.server_settings() {
                command.arg("--set").arg(format!("{key}={value}"));
            }
        }
    }
    command.args(["--admin-listen", "", "--data-dir"]).arg(data_dir);
    // The server takes every such variable for a setting, but those of tests and builds are none.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MAINSTEM_"))
    {
        command.env_remove(name);
    }
    if let Some(config) = &launch.arguments.mainstem_config {
        command.arg("--config").arg(config);
    }
    for (key, value) in &launch.arguments.server_config {
        command.arg("--set").arg(format!("{key}={value}"));
    }
    Ok(command)
}

/// The address in the line that mainstem prints when it is ready: `mainstem is ready on 127.0.0.1:36311 (data ...)`.
fn mainstem_address(log: &str) -> Option<&str> {
    let (_, rest) = log.split_once("mainstem is ready on ")?;
    // The blank behind the address shows that the address is complete.
    let (address, _) = rest.split_once(' ')?;
    // The address of a listener with an unusual name begins with that name.
    Some(address.split_once("://").map_or(address, |(_, address)| address))
}

/// The version in the log line about readiness.
fn mainstem_version(log: &str) -> Option<&str> {
    let (_, rest) = log.split_once(" version=\"")?;
    rest.split_once('"').map(|(version, _)| version)
}

impl Running {
    fn spawn(
        contender: Contender,
        mut command: Command,
        data: DataDirectory,
        launch: &Launch<'_>,
        ready: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Running> {
        let log = launch.work_dir.join("server.log");
        let output = File::create(&log).with_context(|| format!("{} cannot be written", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("{command:?} cannot be run"))?;
        // From here on, an error stops the server.
        let (bootstrap, client_properties, setup) = (String::new(), Vec::new(), Vec::new());
        let mut running = Running { contender, bootstrap, client_properties, setup, child, log, data };
        let deadline = Instant::now() + launch.timeout;
        loop {
            interrupt::check()?;
            running.check()?;
            let log = fs::read(&running.log)?;
            if let Some(bootstrap) = ready(&String::from_utf8_lossy(&log))
                && connects(&bootstrap)?
            {
                running.bootstrap = bootstrap;
                return Ok(running);
            }
            if Instant::now() >= deadline {
                let seconds = launch.timeout.as_secs_f64();
                bail!("it does not serve after {seconds} s; {}", child::last_lines(&running.log));
            }
            thread::sleep(START_POLL);
        }
    }

    /// The kind of server.
    pub fn contender(&self) -> Contender {
        self.contender
    }

    /// Host and port for clients.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Further settings for the server's clients.
    pub fn client_properties(&self) -> &[(String, String)] {
        &self.client_properties
    }

    /// The server's version and settings, for the record. The paths of certificates are left out.
    pub fn setup(&self) -> &[(String, String)] {
        &self.setup
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The server's data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data.path
    }

    /// Returns an error with the end of the log if the server has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server has ended ({status}); {}", child::last_lines(&self.log));
        }
        Ok(())
    }

    /// Stops the server and removes its data.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        child::stop(&mut self.child, child::STOP_GRACE);
    }
}

fn connects(address: &str) -> anyhow::Result<bool> {
    let address: SocketAddr = address
        .parse()
        .with_context(|| format!("it says that it is ready on {address:?}, which is no address"))?;
    Ok(TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok())
}

/// A fresh directory for a server's data. Dropping it removes the directory, unless the data is to be kept.
#[derive(Debug)]
struct DataDirectory {
    path: PathBuf,
    keep: bool,
}

impl DataDirectory {
    fn create(parent: &Path, name: &str, keep: bool) -> anyhow::Result<DataDirectory> {
        static STARTS: AtomicU32 = AtomicU32::new(1);
        let start = STARTS.fetch_add(1, Ordering::Relaxed);
        // A server may have another working directory, and Kafka requires an absolute path.
        let path = std::path::absolute(parent)?.join(format!("{name}-{}-{start}", std::process::id()));
        fs::create_dir_all(parent)
            .and_then(|()| fs::create_dir(&path))
            .with_context(|| format!("the data directory {} cannot be created", path.display()))?;
        Ok(DataDirectory { path, keep })
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("data kept in {}", self.path.display());
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} cannot be removed: {error}", self.path.display());
        }
        // The device frees the blocks now, not while the next contender is measured.
        let parent = self.path.parent().and_then(|parent| File::open(parent).ok());
        let _ = parent.map(|parent| parent.sync_all());
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        contenders: ContenderArguments,
    }

    fn arguments(line: &[&str]) -> ContenderArguments {
        Line::try_parse_from([&["compare"], line].concat()).unwrap().contenders
    }

    #[test]
    fn what_an_acknowledgement_means_depends_on_acks_and_settings() {
        let of = |contender: Contender, acks, line: &[&str]| contender.durability(acks, &arguments(line));
        assert_eq!(of(Contender::Mainstem, -1, &[]), "on the device before the answer");
        assert!(of(Contender::MainstemTls, 1, &[]).contains("not synced"));
        assert!(of(Contender::Kafka, 1, &[]).contains("Kafka's default"));
        for contender in [Contender::Kafka, Contender::KafkaDurable] {
            assert!(
                of(contender, -1, &["--kafka-config", "log.flush.interval.ms=5"]).contains("settings say")
            );
            assert!(of(contender, 0, &[]).contains("nothing is acknowledged"));
        }
    }

    /// Starts a shell script in place of mainstem.
    fn start(directory: &Path, script: &str, timeout: Duration) -> anyhow::Result<Running> {
        let program = directory.join("mainstem");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let arguments = arguments(&["--mainstem", program.to_str().unwrap()]);
        let data = directory.join("data");
        let launch =
            Launch { arguments: &arguments, data_parent: &data, work_dir: directory, cpus: "", timeout };
        Contender::Mainstem.start(&launch)
    }

    fn data_directories(directory: &Path) -> usize {
        fs::read_dir(directory.join("data")).unwrap().count()
    }

    #[test]
    fn a_server_is_started_and_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let out = directory.path().join("out");
        let script = format!(
            "echo \"$$ $*\" >{out}\n trap 'echo stopped >>{out}; exit' TERM\n\
             echo 'INFO mainstem::serve: ready version=\"1.2.3\"'\n\
             echo 'mainstem is ready on {address} (data somewhere, admin off)'\n while :; do sleep 0.01; done",
            out = out.display()
        );
        let mut running = start(directory.path(), &script, Duration::from_secs(20)).unwrap();
        assert_eq!(running.bootstrap(), address.to_string());
        assert_eq!(running.contender().name(), "mainstem");
        assert!(running.data_dir().is_dir());
        assert_eq!(running.setup(), [("version".to_owned(), "1.2.3".to_owned())]);
        running.check().unwrap();
        let started = format!(
            "{} serve --listen 127.0.0.1:0 --admin-listen  --data-dir {}\n",
            running.pid(),
            running.data_dir().display()
        );
        running.stop();
        assert_eq!(fs::read_to_string(&out).unwrap(), started + "stopped\n");
        assert_eq!(data_directories(directory.path()), 0);
    }

    #[test]
    fn a_server_that_ends_is_reported_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let script = "echo the port is taken >&2; exit 3";
        let error = start(directory.path(), script, Duration::from_secs(20)).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.starts_with("mainstem did not start: the server has ended (exit status: 3); its log "),
            "{text}"
        );
        assert!(text.ends_with("/server.log ends with:\n  the port is taken"), "{text}");
        assert_eq!(data_directories(directory.path()), 0);
    }

    #[test]
    fn a_server_that_never_serves_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let script =
            format!("echo $$ >{}\necho slow\nexec sleep 1000", directory.path().join("pid").display());
        let error = start(directory.path(), &script, Duration::from_millis(300)).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("it does not serve after 0.3 s; its log "), "{text}");
        assert!(text.ends_with("ends with:\n  slow"), "{text}");
        let pid = fs::read_to_string(directory.path().join("pid")).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists());
        assert_eq!(data_directories(directory.path()), 0);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let arguments = arguments(&["--mainstem", "/does/not/exist"]);
        let launch = Launch {
            arguments: &arguments,
            data_parent: directory.path(),
            work_dir: directory.path(),
            cpus: "",
            timeout: START_TIMEOUT,
        };
        let text = format!("{:#}", Contender::Mainstem.start(&launch).unwrap_err());
        assert_eq!(
            text,
            "mainstem did not start: there is no /does/not/exist: build it, or say with --mainstem where it is"
        );
    }

    #[test]
    fn the_ready_line_says_the_address() {
        let log = "INFO x\nmainstem is ready on 127.0.0.1:36311 (data /d, admin off)\n";
        assert_eq!(mainstem_address(log), Some("127.0.0.1:36311"));
        assert_eq!(mainstem_address("mainstem is ready on 127.0.0.1:36"), None);
    }

    #[test]
    fn the_ready_line_says_the_version() {
        let log = "INFO mainstem::serve: ready address=\"127.0.0.1:36311\" millis=20 version=\"0.1.0\"\nmainstem is";
        assert_eq!(mainstem_version(log), Some("0.1.0"));
        assert_eq!(mainstem_version("mainstem is ready on 127.0.0.1:36"), None);
    }

    #[test]
    fn durable_kafka_flushes_unless_told_otherwise() {
        let line = ["--kafka-config", "a=b=c", "--server-config", "d=e", "--kafka-heap", "-Xmx1g"];
        let arguments = arguments(&line);
        assert_eq!(arguments.kafka_heap, "-Xmx1g");
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let durable = kafka_config(Contender::KafkaDurable, &arguments);
        assert_eq!(durable, [pair("log.flush.interval.messages", "1"), pair("d", "e"), pair("a", "b=c")]);
        assert_eq!(kafka_config(Contender::Kafka, &arguments), durable[1..]);
    }
}
