//! The metadata of a cluster: how the settings reach etcd.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use etcd::{Etcd, Tls};
use meta::Store;

use crate::settings::{Settings, list};

/// The keys of a cluster in etcd begin with this and its name.
const PREFIX: &str = "/mainstem/";

/// The metadata of the cluster in etcd. `None` if no etcd is named.
pub fn open(settings: &Settings) -> anyhow::Result<Option<Arc<dyn Store>>> {
    let endpoints = settings.text("etcd.endpoints");
    let endpoints: Vec<String> = list(&endpoints).map(str::to_owned).collect();
    if endpoints.is_empty() {
        return Ok(None);
    }
    let file = |name| Some(settings.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
    let client = match (file("etcd.ssl.certificate.location"), file("etcd.ssl.key.location")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            let problem = "etcd.ssl.certificate.location and etcd.ssl.key.location belong together";
            return Err(settings.refuse("etcd.ssl.key.location", problem.into()).into());
        }
    };
    let user = Some(settings.text("etcd.user")).filter(|user| !user.is_empty());
    let how = etcd::Settings {
        endpoints,
        user: user.map(|user| (user, settings.text("etcd.password"))),
        tls: Tls { ca: file("etcd.ssl.truststore.location"), client },
    };
    // Requests to etcd have a thread of their own: signs of life are in time, whatever clients ask for. It lives as long as
    // the process.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("etcd")
        .enable_all()
        .build()
        .context("the threads for etcd could not be started")?;
    let runtime = Box::leak(Box::new(runtime)).handle().clone();
    let prefix = format!("{PREFIX}{}/", settings.text("cluster.name"));
    Ok(Some(Arc::new(Etcd::open(&how, &prefix, runtime).context("etcd.endpoints")?)))
}
