//! A server as a broker of a cluster: how it reaches etcd, what it tells the others, and the local directories of the
//! logs that come and go.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use broker::{CopyDirectory, Directories, Membership, Remote};
use client::Security;
use disk::{Disk, Engine};

use crate::remote::OtherBrokers;
use crate::settings::{ListenerSettings, Settings};
use crate::{cluster_store, log_dirs};

/// The directory of the logs, below data.dir.
const LOGS: &str = "cluster";
/// That of the copies of other brokers' logs, which stays.
const COPIES: &str = "copies";

/// The directories of the logs that this broker owns. What is in them is also in the object store.
#[derive(Debug)]
struct LocalLogs {
    root: PathBuf,
    engine: Engine,
}

impl Directories for LocalLogs {
    fn empty(&self, name: &str) -> io::Result<(String, Arc<dyn Disk>)> {
        let path = self.root.join(name);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        log_dirs::create(&path)?;
        Ok((path.display().to_string(), Arc::new(disk::scratch_directory(&path, self.engine)?)))
    }
}

/// What this server is in a cluster. `None` for a server of its own, which names no etcd. `bound` has the address of each
/// listener.
pub fn membership(
    settings: &Settings,
    bound: &[(ListenerSettings, SocketAddr)],
) -> anyhow::Result<Option<Membership>> {
    if settings.text("etcd.endpoints").is_empty() {
        return Ok(None);
    }
    if settings.broker.object_store.get().is_none() {
        let problem = "a cluster keeps its records in an object store, which object.store has to name";
        return Err(settings.refuse("etcd.endpoints", problem.into()).into());
    }
    let (data, metadata) = (&settings.data_dir, settings.data_dir.join("meta.redb"));
    if metadata.exists() {
        bail!(
            "the data directory {} has the data of a server that is in no cluster; name another one",
            data.display()
        );
    }
    let Some(store) = cluster_store::open(settings)? else { return Ok(None) };
    // Nothing in them counts any more: this process owns no log yet.
    let root = data.join(LOGS);
    match std::fs::remove_dir_all(&root) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("{} cannot be emptied", root.display()));
        }
        _ => {}
    }
    let inter_broker = inter_broker(settings)?;
    let copies = copies(settings)?;
    Ok(Some(Membership {
        copies,
        inter_broker,
        store,
        directories: Arc::new(LocalLogs { root, engine: settings.engine }),
        listeners: listeners(settings, bound)?,
        session: Duration::from_millis(settings.values().number("broker.session.timeout.ms")),
    }))
}

/// The directory for the copies of other brokers' logs.
fn copies(settings: &Settings) -> anyhow::Result<CopyDirectory> {
    let path = settings.data_dir.join(COPIES);
    log_dirs::create(&path)?;
    let disk = Arc::new(disk::open_directory(&path, settings.engine)?);
    Ok(CopyDirectory { path: path.display().to_string(), disk })
}

/// The listener at which brokers reach each other, and how they do that.
fn inter_broker(settings: &Settings) -> anyhow::Result<(String, Arc<dyn Remote>)> {
    let named = settings.text("inter.broker.listener.name");
    let listener = match settings.listeners.iter().find(|listener| listener.name.eq_ignore_ascii_case(&named))
    {
        Some(listener) => listener,
        None if named.is_empty() => &settings.listeners[0],
        None => {
            let problem = format!("there is no listener {named} in listeners");
            return Err(settings.refuse("inter.broker.listener.name", problem).into());
        }
    };
    let file = settings.text("inter.broker.client.config");
    let named = Some(Path::new(&file)).filter(|_| !file.is_empty());
    let security = Security::load(named).with_context(|| format!("inter.broker.client.config = {file}"))?;
    Ok((listener.name.clone(), Arc::new(OtherBrokers::new(security))))
}

/// The addresses at which clients and other brokers reach this one.
fn listeners(
    settings: &Settings,
    bound: &[(ListenerSettings, SocketAddr)],
) -> anyhow::Result<BTreeMap<String, (String, u16)>> {
    let mut listeners = BTreeMap::new();
    for (listener, address) in bound {
        let advertised = match &listener.advertised {
            Some(advertised) => advertised.clone(),
            None if address.ip().is_unspecified() => {
                let problem = format!(
                    "the listener {} takes connections at any address; a cluster has to know which of them the others use",
                    listener.name
                );
                return Err(settings.refuse("advertised.listeners", problem).into());
            }
            None => (address.ip().to_string(), address.port()),
        };
        listeners.insert(listener.name.clone(), advertised);
    }
    Ok(listeners)
}
