//! How the compared servers are brought up.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context;

use crate::certificate::Certificate;
use crate::clusters;
use crate::contender::{Contender, ContenderArguments, Launch, kafka_config};
use crate::kafka::{self, Kafka};
use crate::mainstem;
use crate::running::Running;

/// The only process of a contender that is no cluster.
const SERVER: &str = "server";

/// Checks what the start needs, and fetches what is missing. Maven's log goes to `work_dir`.
pub fn prepare(contender: Contender, arguments: &ContenderArguments, work_dir: &Path) -> anyhow::Result<()> {
    match contender {
        Contender::Mainstem | Contender::MainstemTls => mainstem::program(arguments).map(drop),
        Contender::Mainstem3 | Contender::Mainstem3Tls => {
            clusters::etcd()?;
            mainstem::program(arguments).map(drop)
        }
        Contender::Kafka
        | Contender::KafkaDurable
        | Contender::KafkaTls
        | Contender::Kafka3
        | Contender::Kafka3Durable => kafka::install(&arguments.kafka_version, work_dir).map(drop),
    }
}

/// Starts the server and waits until it is ready.
pub fn start(contender: Contender, launch: &Launch<'_>) -> anyhow::Result<Running> {
    bring_up(contender, launch).with_context(|| format!("{} did not start", contender.name()))
}

fn bring_up(contender: Contender, launch: &Launch<'_>) -> anyhow::Result<Running> {
    let mut running = Running::begin(contender, launch.data_parent, launch.arguments.keep_data)?;
    match contender {
        Contender::Mainstem3 | Contender::Mainstem3Tls => clusters::mainstem(&mut running, launch)?,
        Contender::Kafka3 | Contender::Kafka3Durable => clusters::kafka(&mut running, launch)?,
        _ => bring_up_one(contender, &mut running, launch)?,
    }
    Ok(running)
}

fn bring_up_one(contender: Contender, running: &mut Running, launch: &Launch<'_>) -> anyhow::Result<()> {
    let certificate =
        contender.is_tls().then(|| Certificate::make(launch.work_dir, &[Ipv4Addr::LOCALHOST])).transpose()?;
    let (arguments, deadline) = (launch.arguments, launch.deadline());
    match contender {
        Contender::Mainstem | Contender::MainstemTls => {
            let mut command = mainstem::command(launch, running.data_dir())?;
            match &certificate {
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
            running.spawn(SERVER, command, launch.work_dir)?;
            running.bootstrap =
                running.until_ready(SERVER, deadline, |log| mainstem::address(log).map(str::to_owned))?;
            running.setup = mainstem::setup(arguments, running.log(SERVER))?;
        }
        _ => {
            let certified = certificate.iter().flat_map(Certificate::server_settings);
            let asked = kafka_config(contender, arguments);
            let config: Vec<_> = certified.chain(asked.iter().cloned()).collect();
            let (version, heap) = (&arguments.kafka_version, &arguments.kafka_heap);
            let kafka = Kafka { version, heap, config: &config, tls: contender.is_tls() };
            let prepared = kafka.prepare(running.data_dir(), launch.work_dir)?;
            running.spawn(SERVER, kafka.command(&prepared, launch.cpus)?, launch.work_dir)?;
            let ready = |log: &str| log.contains(kafka::READY).then(|| prepared.bootstrap.clone());
            running.bootstrap = running.until_ready(SERVER, deadline, ready)?;
            running.setup = kafka::setup(version, heap, asked);
        }
    }
    running.client_properties = certificate.map(|of| of.client_properties()).unwrap_or_default();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;
    use crate::contender::START_TIMEOUT;
    use crate::contender::tests::arguments;

    /// Starts a shell script in place of mainstem.
    fn start(directory: &Path, script: &str, timeout: Duration) -> anyhow::Result<Running> {
        let program = directory.join("mainstem");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let arguments = arguments(&["--mainstem", program.to_str().unwrap()]);
        let data = directory.join("data");
        let launch =
            Launch { arguments: &arguments, data_parent: &data, work_dir: directory, cpus: "", timeout };
        super::start(Contender::Mainstem, &launch)
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
        assert_eq!(running.bootstrap, address.to_string());
        assert_eq!(running.contender().name(), "mainstem");
        assert!(running.data_dir().is_dir());
        assert_eq!(running.setup, [("version".to_owned(), "1.2.3".to_owned())]);
        running.check().unwrap();
        let started = format!(
            "{} serve --admin-listen  --data-dir {} --listen 127.0.0.1:0\n",
            running.pids()[0],
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
        let text = format!("{:#}", super::start(Contender::Mainstem, &launch).unwrap_err());
        assert_eq!(
            text,
            "mainstem did not start: there is no /does/not/exist: build it, or say with --mainstem where it is"
        );
    }
}
