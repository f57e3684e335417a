//! Apache Kafka in KRaft mode, as a single node or as one of several: its jars from Maven Central, its configuration, its command.
//!
//! All of Kafka's defaults stay, except what a single node requires (one replica of the internal topics) and what the
//! user asks for. The jars are in the user's cache, with one directory per version. A directory appears there only when
//! it is complete.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;

use crate::child;
use crate::interrupt;

/// The default version.
pub const VERSION: &str = "4.3.1";

/// Any 16 bytes in Base64. Every start is formatted anew, so the id may stay the same.
const CLUSTER_ID: &str = "bWFpbnN0ZW0tYmVuY2ghIQ";
/// So often Maven is asked: a registry that refuses a file once gives it the next time.
const FETCHES_MAX: u32 = 3;
const LOG4J_VERSION: &str = "2.25.3";
/// The flags of Kafka's own start script, without those of the heap.
const JVM_FLAGS: [&str; 7] = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
];
/// Everything goes to standard error, which is the log file.
const LOGGING: &str = "status = error
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.err.ref = err
";
/// The log line of a server that is ready.
pub const READY: &str = "Kafka Server started";

/// The version and the settings of a Kafka server.
#[derive(Clone, Copy, Debug)]
pub struct Kafka<'a> {
    /// The version in Maven Central.
    pub version: &'a str,
    /// Flags of the JVM for its heap, separated by blanks.
    pub heap: &'a str,
    /// Settings that add to, or replace, the standard ones.
    pub config: &'a [(String, String)],
    /// Whether clients use TLS. The certificate is in `config`.
    pub tls: bool,
}

/// A broker that is a controller, too.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// `node.id`.
    pub id: u8,
    /// Its address.
    pub host: Ipv4Addr,
    /// The port for clients.
    pub broker: u16,
    /// The port for controllers.
    pub controller: u16,
}

/// A formatted data directory and the parameters to start a server on it.
#[derive(Clone, Debug)]
pub struct Prepared {
    jars: PathBuf,
    config: PathBuf,
    logging: PathBuf,
    /// Host and port for clients.
    pub bootstrap: String,
}

impl Kafka<'_> {
    /// Fetches missing jars, chooses ports and formats `data_dir`. Files go to `work_dir`.
    pub fn prepare(&self, data_dir: &Path, work_dir: &Path) -> anyhow::Result<Prepared> {
        let [broker, controller] = free_ports(Ipv4Addr::LOCALHOST)?;
        let node = Node { id: 1, host: Ipv4Addr::LOCALHOST, broker, controller };
        self.prepare_node(&[node], &node, data_dir, work_dir)
    }

    /// Fetches missing jars, and formats `data_dir` for one of `nodes`. Files go to `work_dir`.
    pub fn prepare_node(
        &self,
        nodes: &[Node],
        node: &Node,
        data_dir: &Path,
        work_dir: &Path,
    ) -> anyhow::Result<Prepared> {
        let jars = install(self.version, work_dir)?;
        let config = work_dir.join("server.properties");
        fs::write(&config, properties(nodes, node, data_dir, self)?)?;
        let logging = work_dir.join("log4j2.properties");
        fs::write(&logging, LOGGING)?;
        let prepared =
            Prepared { jars, config, logging, bootstrap: format!("{}:{}", node.host, node.broker) };
        let mut format = prepared.java("")?;
        format.arg("-Xmx256m").arg("kafka.tools.StorageTool").arg("format");
        if nodes.len() == 1 {
            format.arg("--standalone");
        }
        format.args(["-t", CLUSTER_ID, "-c"]).arg(&prepared.config);
        run_logged(format, &work_dir.join("format.log"))
            .context("Kafka's data directory cannot be formatted")?;
        Ok(prepared)
    }

    /// The command of the server, on the processors `cpus`.
    pub fn command(&self, prepared: &Prepared, cpus: &str) -> anyhow::Result<Command> {
        let mut command = prepared.java(cpus)?;
        command.args(self.heap.split_whitespace()).args(JVM_FLAGS);
        command.arg("kafka.Kafka").arg(&prepared.config);
        Ok(command)
    }
}

impl Prepared {
    fn java(&self, cpus: &str) -> anyhow::Result<Command> {
        let java = child::on_path("java")
            .context("there is no java on the PATH: install openjdk-17-jre-headless")?;
        let mut command = child::command(&java, cpus)?;
        // The class path is in the environment, so that the JVM's own flags may follow.
        command.env("CLASSPATH", self.jars.join("*"));
        command.arg(format!("-Dlog4j2.configurationFile={}", self.logging.display()));
        Ok(command)
    }
}

/// The server's configuration. `data_dir` is absolute. If a key occurs twice, the last value counts.
fn properties(nodes: &[Node], node: &Node, data_dir: &Path, kafka: &Kafka<'_>) -> anyhow::Result<String> {
    let Node { id, host, broker, controller } = *node;
    let data_dir = data_dir.to_str().context("the name of Kafka's data directory must be UTF-8")?;
    let protocol = if kafka.tls { "SSL" } else { "PLAINTEXT" };
    let listeners = format!("{protocol}://{host}:{broker},CONTROLLER://{host}:{controller}");
    let protocols = format!("CONTROLLER:PLAINTEXT,{protocol}:{protocol}");
    let id = id.to_string();
    let ours = [
        ("process.roles", "broker,controller"),
        ("node.id", &id),
        ("controller.listener.names", "CONTROLLER"),
        ("listeners", &listeners),
        ("advertised.listeners", &listeners),
        ("listener.security.protocol.map", &protocols),
        ("inter.broker.listener.name", protocol),
        ("log.dirs", data_dir),
    ];
    let quorum = format!("{host}:{controller}");
    let voter = |node: &Node| format!("{}@{}:{}", node.id, node.host, node.controller);
    let voters = nodes.iter().map(voter).collect::<Vec<_>>().join(",");
    let alone = [
        ("controller.quorum.bootstrap.servers", quorum.as_str()),
        // A single node cannot hold the default three copies of the internal topics.
        ("offsets.topic.replication.factor", "1"),
        ("transaction.state.log.replication.factor", "1"),
        ("transaction.state.log.min.isr", "1"),
        ("share.coordinator.state.topic.replication.factor", "1"),
        ("share.coordinator.state.topic.min.isr", "1"),
    ];
    let among_others = [("controller.quorum.voters", voters.as_str())];
    let of_quorum: &[(&str, &str)] = if nodes.len() == 1 { &alone } else { &among_others };
    let theirs = kafka.config.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    // In this format a backslash escapes the next character.
    let line = |(key, value): (&str, &str)| format!("{key}={}\n", value.replace('\\', "\\\\"));
    Ok(ours.into_iter().chain(of_quorum.iter().copied()).chain(theirs).map(line).collect())
}

/// For the record: the version, the heap, and the settings that were `asked` for.
pub fn setup(version: &str, heap: &str, asked: Vec<(String, String)>) -> Vec<(String, String)> {
    let ours = [("version".to_owned(), version.to_owned()), ("heap".to_owned(), heap.to_owned())];
    ours.into_iter().chain(asked).collect()
}

/// Some ports of an address that are free at this moment.
pub fn free_ports<const N: usize>(host: Ipv4Addr) -> anyhow::Result<[u16; N]> {
    // All listeners are open at the same time, so that the ports differ.
    let mut listeners = Vec::new();
    for _ in 0..N {
        listeners.push(TcpListener::bind((host, 0))?);
    }
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

/// What `mainstem-bench fetch-kafka` is told.
#[derive(Args, Clone, Debug)]
pub struct FetchArguments {
    /// Version of Apache Kafka, fetched from Maven Central
    #[arg(long, value_name = "VERSION", default_value = VERSION)]
    pub kafka_version: String,
}

/// The directory of the jars, for programs that start Kafka themselves.
pub fn fetch_only(arguments: &FetchArguments) -> anyhow::Result<PathBuf> {
    interrupt::listen()?;
    install(&arguments.kafka_version, &env::temp_dir())
}

/// The directory of the jars of a version. Missing jars are fetched. Maven's log goes to `work_dir`.
pub fn install(version: &str, work_dir: &Path) -> anyhow::Result<PathBuf> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    if !version.starts_with(|first: char| first.is_ascii_digit()) || !version.bytes().all(valid) {
        bail!("--kafka-version must be a version such as 4.3.1, not {version:?}");
    }
    java()?;
    let cache =
        cache_directory(|name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))?;
    let jars = cache.join(format!("kafka-{version}"));
    if jars.is_dir() {
        return Ok(jars);
    }
    let maven = child::on_path("mvn").context(
        "there is no mvn on the PATH to fetch Kafka with: install maven, or compare without kafka (--contenders)",
    )?;
    eprintln!("fetching Kafka {version} from Maven Central to {}", jars.display());
    let partial = cache.join(format!("kafka-{version}.{}.partial", std::process::id()));
    fs::create_dir_all(&partial).with_context(|| format!("{} cannot be created", partial.display()))?;
    let mut fetched = fetch(&maven, version, &partial, work_dir);
    for _ in 1..FETCHES_MAX {
        if fetched.is_ok() || interrupt::requested() {
            break;
        }
        // Maven goes on with what it has.
        eprintln!("Maven Central did not give everything; another attempt follows");
        fetched = fetch(&maven, version, &partial, work_dir);
    }
    let fetched = fetched.and_then(|()| {
        // Another process may have been faster.
        fs::rename(partial.join("jars"), &jars)
            .or_else(|error| if jars.is_dir() { Ok(()) } else { Err(error) })?;
        Ok(())
    });
    // Nothing refers to the directory, so leftovers do no harm.
    let _ = fs::remove_dir_all(&partial);
    fetched.with_context(|| format!("Kafka {version} cannot be fetched from Maven Central"))?;
    Ok(jars)
}

fn java() -> anyhow::Result<PathBuf> {
    child::on_path("java").context("there is no java on the PATH: install openjdk-17-jre-headless")
}

/// The directory below the first variable that is set, as in the XDG base directory specification.
fn cache_directory(variable: impl Fn(&str) -> Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let cache = variable("MAINSTEM_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("mainstem")))
        .or_else(|| Some(variable("HOME")?.join(".cache").join("mainstem")))
        .context("there is no place for Kafka's jars: set MAINSTEM_CACHE to a directory")?;
    Ok(std::path::absolute(cache)?.join("bench"))
}

fn fetch(maven: &Path, version: &str, directory: &Path, work_dir: &Path) -> anyhow::Result<()> {
    let pom = directory.join("pom.xml");
    fs::write(&pom, project(version))?;
    let jars = directory.join("jars");
    let mut command = child::command(maven, "")?;
    command
        .args(["-q", "-B", "-f"])
        .arg(&pom)
        .args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
    command.arg(format!("-DoutputDirectory={}", jars.display()));
    run_logged(command, &work_dir.join("maven.log"))?;
    let jar = jars.join(format!("kafka_2.13-{version}.jar"));
    if !jar.is_file() {
        bail!("Maven brought no {}", jar.display());
    }
    Ok(())
}

/// A Maven project that depends on the server and its logging.
fn project(version: &str) -> String {
    let dependency = |(group, artifact, version): (&str, &str, &str)| {
        format!(
            "    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency>\n"
        )
    };
    let dependencies: String = [
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
        ("org.apache.logging.log4j", "log4j-core", LOG4J_VERSION),
    ]
    .into_iter()
    .map(dependency)
    .collect();
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">
  <modelVersion>4.0.0</modelVersion>
  <groupId>mainstem</groupId>
  <artifactId>bench-kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}  </dependencies>
</project>
"
    )
}

/// Runs a command to its end. If it fails, the error contains the last lines of its output.
fn run_logged(mut command: Command, log: &Path) -> anyhow::Result<()> {
    let output = fs::File::create(log).with_context(|| format!("{} cannot be written", log.display()))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = command.spawn().with_context(|| format!("{command:?} cannot be run"))?;
    let status = child::wait(&mut child)?;
    if !status.success() {
        bail!("{status}; {}", child::last_lines(log));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_ends_with_what_was_asked_for() {
        let extra = [("log.flush.interval.messages".to_owned(), "1".to_owned())];
        let kafka = Kafka { version: VERSION, heap: "", config: &extra, tls: false };
        let node = |id: u8| Node { id, host: Ipv4Addr::new(127, 0, 0, id), broker: 1001, controller: 1002 };
        let text = properties(&[node(1)], &node(1), Path::new("/data/k"), &kafka).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.contains(&"listeners=PLAINTEXT://127.0.0.1:1001,CONTROLLER://127.0.0.1:1002"));
        assert!(lines.contains(&"controller.quorum.bootstrap.servers=127.0.0.1:1002"));
        assert!(lines.contains(&"log.dirs=/data/k"));
        assert_eq!(lines.last(), Some(&"log.flush.interval.messages=1"));
        let tls = Kafka { tls: true, ..kafka };
        let text = properties(&[node(1)], &node(1), Path::new("/data/k"), &tls).unwrap();
        assert!(text.contains("\nlisteners=SSL://127.0.0.1:1001,CONTROLLER://127.0.0.1:1002\n"));
        let text = properties(&[node(1), node(2)], &node(2), Path::new("/data/k"), &kafka).unwrap();
        assert!(text.contains("\nlisteners=PLAINTEXT://127.0.0.2:1001,CONTROLLER://127.0.0.2:1002\n"));
        assert!(text.contains("\ncontroller.quorum.voters=1@127.0.0.1:1002,2@127.0.0.2:1002\n"));
        assert!(text.contains("\nnode.id=2\n") && !text.contains("replication.factor"));
    }

    #[test]
    fn ports_differ() {
        let [a, b, c] = free_ports(Ipv4Addr::LOCALHOST).unwrap();
        assert!(a != b && b != c && a != c);
    }

    #[test]
    fn the_cache_is_where_the_environment_says() {
        let of = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            cache_directory(find).map(|path| path.display().to_string())
        };
        assert_eq!(of(&[("HOME", "/h")]).unwrap(), "/h/.cache/mainstem/bench");
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).unwrap(), "/x/mainstem/bench");
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x"), ("MAINSTEM_CACHE", "/m")]).unwrap(), "/m/bench");
        assert!(of(&[]).unwrap_err().to_string().contains("MAINSTEM_CACHE"));
    }

    #[test]
    fn a_version_is_no_path() {
        for version in ["", "../4.3.1", "4.3.1/x", "latest", "4<"] {
            assert!(
                install(version, Path::new("")).unwrap_err().to_string().contains("--kafka-version"),
                "{version}"
            );
        }
    }

    #[test]
    fn the_project_names_the_version() {
        let text = project("4.3.1");
        assert!(text.contains("<artifactId>kafka_2.13</artifactId><version>4.3.1</version>"));
        assert_eq!(text.matches("<dependency>").count(), 3);
    }
}
