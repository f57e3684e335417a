//! SASL: who a connection speaks for, before the broker sees its requests.
//!
//! `gate.rs` stands before the broker's connection and lets nothing through before the client has shown who it is;
//! `exchange.rs` takes one log-in through its steps; the mechanisms themselves are the crate `sasl`, which is pure.
//! `keys.rs` and `fetch.rs` bring the keys that sign tokens, `report.rs` counts and logs how log-ins end.

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

/// Passwords that are hashed at once, over all listeners: whoever can connect can ask for it, and it must leave some of
/// the processors to those who are logged in.
#[derive(Clone, Debug)]
pub struct Hashing {
    turns: Arc<Semaphore>,
    /// For those who wait for their turn: past it a log-in fails at once, or what waits would hold the memory that other
    /// log-ins need.
    waiting: Arc<Semaphore>,
}

/// Log-ins that may wait for their password to be hashed.
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

/// How clients log in on one listener: the settings, checked, with what they name.
#[derive(Debug)]
pub struct LogIn {
    settings: SaslSettings,
    mechanisms: Vec<Mechanism>,
    /// What signs tokens, where there is OAUTHBEARER.
    keys: Option<Arc<Keys>>,
}

/// What all connections of one listener need for a log-in.
#[derive(Debug)]
pub struct Sasl {
    log_in: LogIn,
    users: Arc<Users>,
    hashing: Hashing,
    report: Report,
}

impl LogIn {
    /// As the settings say. Has to be called inside a runtime; loads the keys of tokens.
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
    /// For a listener where clients log in like this.
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
