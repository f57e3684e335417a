//! The results of log-ins: counted by mechanism and outcome. Failures are logged at a limited rate.
//!
//! Texts from clients are logged with special characters escaped. Passwords, tokens and proofs never get here.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sasl::jwt::TokenError;

/// Interval of log lines, so that a client that guesses passwords cannot fill the disk with them.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// A longer name is cut in the log.
const SHOWN_CHARACTERS_MAX: usize = 100;

type Labels = [(&'static str, &'static str); 2];

/// The counters of log-ins. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Report {
    ended: Family<Labels, Counter>,
    sessions: Family<[(&'static str, &'static str); 1], Gauge>,
    complaints: Arc<Mutex<Complaints>>,
}

#[derive(Debug, Default)]
struct Complaints {
    last: Option<Instant>,
    times: u64,
}

/// The outcome of a log-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure,
    Reauthentication,
    ReauthenticationFailure,
    Expired,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Success => "success",
            Outcome::Failure => "failure",
            Outcome::Reauthentication => "reauthentication",
            Outcome::ReauthenticationFailure => "reauthentication_failure",
            Outcome::Expired => "expired",
        }
    }
}

/// See [`Report::opened`].
#[derive(Debug)]
pub struct LoggedIn(Gauge);

impl Drop for LoggedIn {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Report {
    /// Adds the counters to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Log-ins by SASL mechanism and outcome";
        registry.register("mainstem_authentications", help, self.ended.clone());
        let help = "Client connections that are logged in, by SASL mechanism";
        registry.register("mainstem_authenticated_connections", help, self.sessions.clone());
    }

    /// Counts a connection that is logged in until the returned value is dropped.
    pub fn opened(&self, mechanism: &'static str) -> LoggedIn {
        let gauge = self.sessions.get_or_create(&[("mechanism", mechanism)]).clone();
        gauge.inc();
        LoggedIn(gauge)
    }

    /// The number of connections that are logged in with this mechanism.
    #[cfg(test)]
    pub fn logged_in(&self, mechanism: &'static str) -> i64 {
        self.sessions.get_or_create(&[("mechanism", mechanism)]).get()
    }

    /// Counts one log-in.
    pub fn count(&self, mechanism: &'static str, outcome: Outcome) {
        self.ended.get_or_create(&[("mechanism", mechanism), ("outcome", outcome.name())]).inc();
    }

    /// The number of log-ins with this mechanism and outcome.
    #[cfg(test)]
    pub fn counted(&self, mechanism: &'static str, outcome: Outcome) -> u64 {
        self.ended.get_or_create(&[("mechanism", mechanism), ("outcome", outcome.name())]).get()
    }

    /// Counts and logs a failed log-in.
    pub fn failed(
        &self,
        mechanism: &'static str,
        outcome: Outcome,
        peer: SocketAddr,
        user: Option<&str>,
        reason: &str,
    ) {
        self.count(mechanism, outcome);
        if let Some(times) = self.may_complain() {
            let user = shown(user.unwrap_or_default());
            let reason = shown(reason);
            tracing::info!(%peer, mechanism, user, reason, times, "a client failed to log in");
        }
    }

    /// Logs the problem with a token. The client still has to answer the refusal.
    pub fn token_refused(&self, error: &TokenError) {
        tracing::debug!(reason = shown(&error.to_string()), "a token was refused");
    }

    /// The number of failures since the last log line, if the next one is due.
    fn may_complain(&self) -> Option<u64> {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.times += 1;
        if complaints.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return None;
        }
        complaints.last = Some(Instant::now());
        Some(std::mem::take(&mut complaints.times))
    }
}

/// The beginning of a text, on one line and without control characters.
fn shown(text: &str) -> String {
    let escaped = text.chars().take(SHOWN_CHARACTERS_MAX).flat_map(char::escape_debug);
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_a_line_and_failures_in_a_row_are_one() {
        assert_eq!(shown("a\nINFO b\u{1b}[31m\"é"), "a\\nINFO b\\u{1b}[31m\\\"é");
        assert_eq!(shown(&"x".repeat(1000)).len(), SHOWN_CHARACTERS_MAX);
        let report = Report::default();
        assert_eq!(report.may_complain(), Some(1));
        for _ in 0..5 {
            assert_eq!(report.may_complain(), None);
        }
        let peer = "127.0.0.1:1".parse().unwrap();
        report.clone().failed("PLAIN", Outcome::Failure, peer, Some("u"), "why");
        assert_eq!(report.counted("PLAIN", Outcome::Failure), 1);
        let mut registry = Registry::default();
        report.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = "mainstem_authentications_total{mechanism=\"PLAIN\",outcome=\"failure\"} 1\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_connection_counts_while_it_is_logged_in() {
        let report = Report::default();
        let (first, second) = (report.opened("PLAIN"), report.opened("PLAIN"));
        assert_eq!((report.logged_in("PLAIN"), report.logged_in("OAUTHBEARER")), (2, 0));
        drop(first);
        assert_eq!(report.logged_in("PLAIN"), 1);
        drop(second);
        assert_eq!(report.logged_in("PLAIN"), 0);
    }
}
