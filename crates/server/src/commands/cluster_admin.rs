//! `mainstem cluster`: what a cluster is like, drains of brokers and moves of logs, by way of etcd. No broker has to run.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use broker::{ClusterAdmin, ClusterState};
use serde_json::json;

use super::{Table, show};
use crate::arguments::{ClusterArguments, ClusterVerb, ServerArguments};
use crate::cluster_store;
use crate::settings::Settings;

/// Interval at which a move is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn cluster(arguments: &ClusterArguments, verb: ClusterVerb) -> anyhow::Result<()> {
    let mut given = ServerArguments { config: arguments.config.clone(), ..ServerArguments::default() };
    given.settings.clone_from(&arguments.settings);
    given.settings.extend(arguments.etcd.iter().map(|etcd| ("etcd.endpoints".to_owned(), etcd.clone())));
    let settings = Settings::load(&given, std::env::vars())?;
    let store = cluster_store::open(&settings)?
        .context("--etcd or etcd.endpoints has to name the etcd of the cluster")?;
    let admin = ClusterAdmin::open(store).context("the metadata of the cluster")?;
    match verb {
        ClusterVerb::Status => {
            let (brokers, logs) = described(&admin.state()?);
            let text = || format!("{}\n{}", brokers.to_text(), logs.to_text());
            show(
                arguments.shown.output,
                text,
                || json!({"brokers": brokers.to_json(), "logs": logs.to_json()}),
            )
        }
        ClusterVerb::Restored => {
            admin.restored()?;
            show(
                arguments.shown.output,
                || "ids of streams and producers go on behind all that may have been given out\n".to_owned(),
                || json!({"restored": true}),
            )
        }
        ClusterVerb::AcceptLoss { log } => {
            admin.accept_loss(&log)?;
            show(
                arguments.shown.output,
                || format!("the log {log} is opened with what the object store has\n"),
                || json!({"log": log, "loss_accepted": true}),
            )
        }
        ClusterVerb::Drain { broker, undo: true, .. } => {
            admin.drain(broker, false)?;
            show(
                arguments.shown.output,
                || format!("broker {broker} may own logs again\n"),
                || json!({"broker": broker, "drained": false}),
            )
        }
        ClusterVerb::Drain { broker, wait, .. } => {
            admin.drain(broker, true)?;
            let left = |state: &ClusterState| state.brokers.get(&broker).map_or(0, |broker| broker.logs);
            let empty = |state: &ClusterState| left(state) == 0;
            let state = settled(&admin, wait, empty)?;
            if !empty(&state) {
                let logs = left(&state);
                bail!(
                    "broker {broker} still owns {logs} logs after {wait} s, and gives them away as soon as it can"
                );
            }
            show(
                arguments.shown.output,
                || format!("broker {broker} owns nothing\n"),
                || json!({"broker": broker, "drained": true}),
            )
        }
        ClusterVerb::Move { log, broker, wait } => {
            admin.move_log(&log, broker)?;
            let there = |state: &ClusterState| state.logs.get(&log).is_some_and(|log| log.owner == broker);
            if !there(&settled(&admin, wait, there)?) {
                bail!("the log {log} is not at broker {broker} after {wait} s, and moves as soon as it can");
            }
            show(
                arguments.shown.output,
                || format!("the log {log} is at broker {broker}\n"),
                || json!({"log": log, "owner": broker}),
            )
        }
    }
}

/// The cluster as soon as `done` says so, or after `wait` seconds.
fn settled(
    admin: &ClusterAdmin,
    wait: u32,
    done: impl Fn(&ClusterState) -> bool,
) -> anyhow::Result<ClusterState> {
    let until = Instant::now() + Duration::from_secs(wait.into());
    loop {
        let state = admin.state()?;
        if done(&state) || Instant::now() >= until {
            return Ok(state);
        }
        std::thread::sleep(LOOK);
    }
}

fn described(state: &ClusterState) -> (Table, Table) {
    let mut brokers = Table::new(&["BROKER", "LOGS", "PARTITIONS", "STATE", "RACK", "VERSION", "LISTENERS"]);
    for (id, broker) in &state.brokers {
        let words = [
            (true, if broker.alive { "alive" } else { "gone" }),
            (broker.controller, "controller"),
            (broker.drained, "drained"),
            (broker.leaving, "leaving"),
            (broker.without_store, "without the object store"),
            (broker.low_on_space, "low on space"),
        ];
        let words = words.into_iter().filter(|(applies, _)| *applies).map(|(_, word)| word);
        let listeners = broker.listeners.iter().map(|(name, (host, port))| format!("{name}://{host}:{port}"));
        let or_dash =
            |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".into());
        brokers.row([
            id.to_string(),
            broker.logs.to_string(),
            broker.partitions.to_string(),
            words.collect::<Vec<_>>().join(", "),
            or_dash(broker.rack.clone()),
            or_dash(broker.version.clone()),
            or_dash(Some(listeners.collect::<Vec<_>>().join(", "))),
        ]);
    }
    let mut logs = Table::new(&["LOG", "PARTITIONS", "EPOCH", "OWNER", "HOME", "MOVES TO", "COPIES"]);
    let copy = |broker: &Option<i32>| broker.map_or_else(|| "gone".to_owned(), |broker| broker.to_string());
    for (id, log) in &state.logs {
        logs.row([
            id.clone(),
            log.partitions.to_string(),
            log.epoch.to_string(),
            log.owner.to_string(),
            log.home.to_string(),
            log.next.map_or_else(|| "-".into(), |next| next.to_string()),
            match log.copies.is_empty() {
                true => "-".into(),
                false => log.copies.iter().map(copy).collect::<Vec<_>>().join(","),
            },
        ]);
    }
    (brokers, logs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use broker::{BrokerState, LogState};

    use super::*;

    #[test]
    fn brokers_and_logs_have_a_line_each() {
        let alive = BrokerState {
            alive: true,
            controller: true,
            rack: Some("a".into()),
            version: Some("1".into()),
            listeners: BTreeMap::from([("PLAINTEXT".into(), ("host".into(), 9092))]),
            logs: 1,
            partitions: 7,
            ..BrokerState::default()
        };
        let gone = BrokerState { drained: true, ..BrokerState::default() };
        let log =
            LogState { home: 2, owner: 1, epoch: 3, next: None, partitions: 7, copies: vec![Some(3), None] };
        let state = ClusterState {
            brokers: BTreeMap::from([(1, alive), (2, gone)]),
            logs: BTreeMap::from([("x".into(), log)]),
        };
        let (brokers, logs) = described(&state);
        let said = format!("{}\n{}", brokers.to_text(), logs.to_text());
        let words: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["1", "1", "7", "alive,", "controller", "a", "1", "PLAINTEXT://host:9092"]);
        assert_eq!(words[2], ["2", "0", "0", "gone,", "drained", "-", "-", "-"]);
        assert_eq!(words[5], ["x", "7", "3", "1", "2", "-", "3,gone"]);
    }
}
