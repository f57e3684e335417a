//! Settings of single listeners that clients change while the server runs: keys, certificates, and bounds of connections.
//!
//! Such a setting takes the place of the one of the start, and returns to it when it is deleted. New connections get what is new; open
//! ones go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::ListenerConfigs;

use crate::admission::ListenerBounds;
use crate::settings::{ListenerSettings, Settings};
use crate::tls::Keys;

/// A listener that is open.
#[derive(Debug)]
pub struct Open {
    /// In upper case.
    pub name: String,
    pub keys: Option<Arc<Keys>>,
    pub bounds: Arc<ListenerBounds>,
}

/// All listeners, with the settings of the start.
#[derive(Debug)]
pub struct OpenListeners {
    pub settings: Settings,
    pub listeners: Vec<Open>,
}

impl OpenListeners {
    /// Each listener with its settings, if clients had set `overrides`.
    fn with(&self, overrides: &BTreeMap<String, String>) -> Result<Vec<(&Open, ListenerSettings)>, String> {
        let all = self.settings.listeners_with(overrides).map_err(|error| error.to_string())?;
        let of = |settings: ListenerSettings| {
            let open = self.listeners.iter().find(|open| open.name == settings.name)?;
            Some((open, settings))
        };
        Ok(all.into_iter().filter_map(of).collect())
    }
}

impl ListenerConfigs for OpenListeners {
    fn check(&self, overrides: &BTreeMap<String, String>) -> Result<(), String> {
        for (_, settings) in self.with(overrides)? {
            if let Some(ssl) = &settings.ssl {
                Keys::check(ssl).map_err(|problem| format!("listener {}: {problem}", settings.name))?;
            }
        }
        Ok(())
    }

    fn apply(&self, overrides: &BTreeMap<String, String>) {
        let all = match self.with(overrides) {
            Ok(all) => all,
            Err(error) => {
                tracing::error!(%error, "the settings of listeners that clients have set are passed over");
                return;
            }
        };
        for (open, settings) in all {
            open.bounds.set(settings.connections_max, settings.connection_rate_max);
            if let (Some(keys), Some(ssl)) = (&open.keys, settings.ssl) {
                keys.change(ssl);
            }
        }
    }
}
