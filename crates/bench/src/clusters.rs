//! Clusters of three brokers on this machine: each broker has an address of its own, and all processes are started together.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::certificate::Certificate;
use crate::child;
use crate::contender::{Contender, Launch, kafka_config};
use crate::kafka::{self, Kafka, Node, free_ports};
use crate::mainstem as ours;
use crate::running::Running;

/// The ids of the brokers.
const NODES: [u8; 3] = [1, 2, 3];
const ETCD: &str = "etcd";
/// The heading of the logs in the output of `mainstem cluster status`.
const LOGS_HEADING: &str = "LOG";
const HTTP_TIMEOUT: Duration = Duration::from_secs(2);

/// The address of a broker.
fn host(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, node)
}

/// The program of etcd.
pub fn etcd() -> anyhow::Result<PathBuf> {
    child::on_path("etcd")
        .context("there is no etcd on the PATH for a cluster of mainstem: install etcd-server")
}

/// Starts an etcd of one member, and three brokers whose object store is a directory. They reach each other over TLS if there
/// is a certificate.
pub fn mainstem(running: &mut Running, launch: &Launch<'_>) -> anyhow::Result<()> {
    let deadline = launch.deadline();
    let data = running.data_dir().to_owned();
    let [client, peer] = free_ports(Ipv4Addr::LOCALHOST)?;
    let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
    let mut command = child::command(&etcd()?, launch.cpus)?;
    command.arg("--data-dir").arg(data.join(ETCD)).args(["--logger", "zap", "--log-level", "error"]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    running.spawn(ETCD, command, launch.work_dir)?;
    running.until(ETCD, deadline, || Ok(is_healthy(client.trim_start_matches("http://"))))?;
    let certificate = (running.contender() == Contender::Mainstem3Tls)
        .then(|| Certificate::make(launch.work_dir, &NODES.map(host)))
        .transpose()?;
    let properties = launch.work_dir.join("inter-broker.properties");
    if let Some(certificate) = &certificate {
        let lines =
            certificate.client_properties().into_iter().map(|(key, value)| format!("{key}={value}\n"));
        std::fs::write(&properties, lines.collect::<String>())?;
    }
    let store = data.join("objects");
    std::fs::create_dir(&store)?;
    let name = |node: u8| format!("broker-{node}");
    for node in NODES {
        let mut command = ours::command(launch, &data.join(name(node)))?;
        match &certificate {
            None => {
                command.args(["--listen", &format!("{}:0", host(node))]);
            }
            Some(certificate) => {
                let listeners = format!("listeners=PLAINTEXT://{0}:0,INTERNAL://{0}:0", host(node));
                let protocols = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:SSL";
                let reached = format!("inter.broker.client.config={}", properties.display());
                for setting in [&listeners, protocols, "inter.broker.listener.name=INTERNAL", &reached] {
                    command.args(["--set", setting]);
                }
                for (key, value) in certificate.server_settings() {
                    command.arg("--set").arg(format!("{key}={value}"));
                }
            }
        }
        command.arg("--set").arg(format!("node.id={node}"));
        command.arg("--set").arg(format!("etcd.endpoints={client}"));
        command.arg("--set").arg(format!("object.store={}", store.display()));
        running.spawn(&name(node), command, launch.work_dir)?;
    }
    let mut addresses = Vec::new();
    for node in NODES {
        let ready = |log: &str| ours::address(log).map(str::to_owned);
        addresses.push(running.until_ready(&name(node), deadline, ready)?);
    }
    running.bootstrap = addresses.join(",");
    let program = ours::program(launch.arguments)?;
    // A topic needs logs, which each broker brings after it has joined.
    running.until(&name(NODES[0]), deadline, || {
        let said = Command::new(&program).args(["cluster", "--etcd", &client, "status"]).output()?;
        Ok(owners(&String::from_utf8_lossy(&said.stdout)) >= NODES.len())
    })?;
    running.setup = ours::setup(launch.arguments, running.log(&name(NODES[0])))?;
    let etcd = ("etcd".to_owned(), "one member".to_owned());
    running.setup.extend([etcd, ("object.store".to_owned(), "a directory".to_owned())]);
    Ok(())
}

/// Starts three brokers of Kafka that are the controllers, too.
pub fn kafka(running: &mut Running, launch: &Launch<'_>) -> anyhow::Result<()> {
    let (arguments, deadline) = (launch.arguments, launch.deadline());
    let asked = kafka_config(running.contender(), arguments);
    let kafka =
        Kafka { version: &arguments.kafka_version, heap: &arguments.kafka_heap, config: &asked, tls: false };
    let mut nodes = Vec::new();
    for id in NODES {
        let [broker, controller] = free_ports(host(id))?;
        nodes.push(Node { id, host: host(id), broker, controller });
    }
    let mut prepared = Vec::new();
    for node in &nodes {
        let name = format!("broker-{}", node.id);
        let work_dir = launch.work_dir.join(&name);
        std::fs::create_dir_all(&work_dir)?;
        let of = kafka.prepare_node(&nodes, node, &running.data_dir().join(&name), &work_dir)?;
        running.spawn(&name, kafka.command(&of, launch.cpus)?, launch.work_dir)?;
        prepared.push((name, of));
    }
    let mut addresses = Vec::new();
    for (name, of) in &prepared {
        let ready = |log: &str| log.contains(kafka::READY).then(|| of.bootstrap.clone());
        addresses.push(running.until_ready(name, deadline, ready)?);
    }
    running.bootstrap = addresses.join(",");
    running.setup = kafka::setup(&arguments.kafka_version, &arguments.kafka_heap, asked);
    Ok(())
}

/// Whether an etcd answers that it is well.
fn is_healthy(address: &str) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(HTTP_TIMEOUT))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer.contains("\"true\""))
    };
    ask().unwrap_or(false)
}

/// The number of brokers that own logs, in the output of `mainstem cluster status`: a table of brokers, an empty line, a table
/// of logs: id, partitions, epoch, owner.
fn owners(status: &str) -> usize {
    let rows = status.lines().skip_while(|line| !line.starts_with(LOGS_HEADING)).skip(1);
    let owners: std::collections::BTreeSet<&str> =
        rows.filter_map(|line| line.split_whitespace().nth(3)).collect();
    owners.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_there_once_all_brokers_own_logs() {
        let brokers = "BROKER  STATE  LOGS\n1       alive  2\n2       alive  0\n\n";
        let logs =
            "LOG   PARTITIONS  EPOCH  OWNER  HOME\nab-1  0           1      1      1\nab-2  9  1  1  1\n";
        assert_eq!(owners(&format!("{brokers}{logs}")), 1);
        assert_eq!(owners(&format!("{brokers}{logs}ab-3  0  1  2  2\n")), 2);
        assert_eq!(owners(brokers), 0);
        assert_eq!(owners(""), 0);
    }
}
