//! Settings of single listeners that clients change while the server runs: keys, certificates, and bounds of connections.
//!
//! Such a setting takes the place of the one of the start, and returns to it when it is deleted. New connections get what is new; open
//! ones go on. What cannot be used of one listener concerns no other.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::ListenerConfigs;

use crate::admission::ListenerBounds;
use crate::settings::{ListenerSettings, OVERRIDE_PREFIX, Settings};
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

impl Open {
    /// The settings of this listener, if clients had set `overrides`, of which those of other listeners do not count.
    fn with(
        &self,
        start: &Settings,
        overrides: &BTreeMap<String, String>,
    ) -> Result<ListenerSettings, String> {
        let prefix = format!("{OVERRIDE_PREFIX}{}.", self.name.to_lowercase());
        let own = overrides.iter().filter(|(name, _)| name.starts_with(&prefix));
        let own = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        let all = start.listeners_with(&own).map_err(|error| error.to_string())?;
        let found = all.into_iter().find(|settings| settings.name == self.name);
        found.ok_or_else(|| format!("there is no listener {}", self.name))
    }
}

impl ListenerConfigs for OpenListeners {
    fn check(&self, listener: &str, overrides: &BTreeMap<String, String>) -> Result<(), String> {
        let open = self.listeners.iter().find(|open| open.name.eq_ignore_ascii_case(listener));
        let open =
            open.ok_or_else(|| format!("there is no listener {} in listeners", listener.to_uppercase()))?;
        match open.with(&self.settings, overrides)?.ssl {
            Some(ssl) => Keys::check(&ssl).map_err(|problem| format!("listener {}: {problem}", open.name)),
            None => Ok(()),
        }
    }

    fn apply(&self, overrides: &BTreeMap<String, String>) -> Result<(), String> {
        let mut problems = Vec::new();
        for open in &self.listeners {
            match open.with(&self.settings, overrides) {
                Ok(settings) => {
                    open.bounds.set(settings.connections_max, settings.connection_rate_max);
                    if let (Some(keys), Some(ssl)) = (&open.keys, settings.ssl) {
                        keys.change(ssl);
                    }
                }
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }
}
