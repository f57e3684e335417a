//! The state of a client connection, apart from the identity of its client.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The state of one connection, which its requests share.
#[derive(Debug, Default)]
pub struct ConnectionState {
    /// The time until which the connection is not read.
    pub muted: Muted,
    /// The client's library.
    pub software: Software,
}

/// The time until which a connection is not read, because its client is over a quota (KIP-219).
#[derive(Debug, Default)]
pub struct Muted {
    /// Milliseconds after `opened`.
    until_ms: AtomicU64,
    opened: OnceLock<Instant>,
}

impl Muted {
    /// Mutes the connection for `ms` milliseconds from now, unless it is already muted for longer.
    pub fn mute(&self, ms: i32) {
        let opened = self.opened.get_or_init(Instant::now);
        let until_ms = opened.elapsed().as_millis() + u128::from(ms.unsigned_abs());
        self.until_ms.fetch_max(u64::try_from(until_ms).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// The end of the last mute; `None` if there was none.
    pub fn until(&self) -> Option<Instant> {
        let until_ms = self.until_ms.load(Ordering::Acquire);
        let opened = self.opened.get().filter(|_| until_ms > 0)?;
        opened.checked_add(Duration::from_millis(until_ms))
    }
}

/// Name and version of the client's library, once ApiVersions has reported them (KIP-511).
#[derive(Debug, Default)]
pub struct Software(OnceLock<(String, String)>);

impl Software {
    /// Name and version of a library that has not reported them.
    const UNKNOWN: &'static str = "unknown";

    /// Sets name and version. Only the first ApiVersions of a connection counts.
    pub fn tell(&self, name: &str, version: &str) {
        self.0.get_or_init(|| (name.to_owned(), version.to_owned()));
    }

    /// Name and version, or "unknown".
    pub fn told(&self) -> (String, String) {
        let unknown = || (Software::UNKNOWN.to_owned(), Software::UNKNOWN.to_owned());
        self.0.get().cloned().unwrap_or_else(unknown)
    }
}
