//! SASL: authenticates a connection before the broker sees its requests.
//!
//! - `gate.rs` stands before the broker's connection and lets no request pass before the client is authenticated.
//! - `exchange.rs` runs one log-in. The mechanisms are the crate `sasl`, which is pure.
//! - `keys.rs` and `fetch.rs` provide the keys that sign tokens.
//! - `report.rs` counts and logs the results of log-ins.

mod exchange;
mod fetch;
mod gate;
mod keys;
mod report;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use broker::users::Users;
use sasl::Mechanism;
use tokio::sync::Semaphore;

use crate::settings::SaslSettings;
use keys::Keys;

pub use gate::Gate;
pub use report::Report;

/// Turns for hashing passwords, over all listeners. Any client that can connect can request it, so the hashing must
/// leave some processors to authenticated clients.
#[derive(Clone, Debug)]
pub struct Hashing {
    turns: Arc<Semaphore>,
    /// Places for log-ins that wait for their turn. Beyond them a log-in fails at once. Otherwise the waiting ones
    /// would hold the memory that other log-ins need.
    waiting: Arc<Semaphore>,
}

/// Bound of the log-ins that wait for their password to be hashed.
const WAITING_MAX: usize = 64;

impl Default for Hashing {
    fn default() -> Hashing {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Hashing {
            turns: Arc::new(Semaphore::new((processors / 2).max(1))),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }
}

/// The log-in settings of one listener, checked, with the keys that they name.
#[derive(Debug)]
pub struct LogIn {
    settings: SaslSettings,
    mechanisms: Vec<Mechanism>,
    /// The keys that sign tokens, if OAUTHBEARER is enabled.
    keys: Option<Arc<Keys>>,
}

/// Everything that the connections of one listener need for a log-in.
#[derive(Debug)]
pub struct Sasl {
    log_in: LogIn,
    users: Arc<Users>,
    hashing: Hashing,
    report: Report,
}

impl LogIn {
    /// Checks the settings and loads the keys of tokens. Must be called inside a runtime.
    pub async fn prepare(settings: &SaslSettings) -> anyhow::Result<LogIn> {
        let mechanism = |name: &String| {
            Mechanism::from_name(name).with_context(|| format!("sasl.enabled.mechanisms: there is no {name}"))
        };
        let mechanisms: Vec<Mechanism> =
            settings.mechanisms.iter().map(mechanism).collect::<Result<_, _>>()?;
        if mechanisms.is_empty() {
            bail!("sasl.enabled.mechanisms names none: nobody could log in");
        }
        let tokens = mechanisms.contains(&Mechanism::OauthBearer);
        let keys = if tokens { Some(Keys::start(&settings.oauth).await?) } else { None };
        Ok(LogIn { settings: settings.clone(), mechanisms, keys })
    }
}

impl Sasl {
    /// Creates the state for a listener with these log-in settings.
    pub fn new(log_in: LogIn, users: Arc<Users>, hashing: Hashing, report: Report) -> Arc<Sasl> {
        Arc::new(Sasl { log_in, users, hashing, report })
    }
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
