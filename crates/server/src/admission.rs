//! Admission of connections: bounds on connections of the whole server, of single addresses and of listeners, and on the
//! rate of new connections.
//!
//! As in Kafka (ConnectionQuotas), an address is a whole address, also for IPv6. A client with a whole IPv6 network
//! gets the bound once per address. `max.connections`, the rate and the lobby limit such a client.
//!
//! Beyond `max.connections` and `max.connections.per.ip`, a connection is closed at once. A connection whose address is
//! over its quota of new connections is held and closed only when the address may connect again. A client that
//! reconnects at once therefore costs no more than one that waits. Beyond the rate of the whole server or of a
//! listener, no connection is accepted there for a while.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use broker::{Config, Rate, Window};

/// The quota of new connections of an address. Returns the time that a connection over the quota must wait.
pub type AddressQuota = Box<dyn Fn(IpAddr) -> Option<Duration> + Send + Sync>;

/// The bounds of admission.
pub struct Rules {
    /// The settings in force: `max.connections`, `max.connections.per.ip` and its overrides, `max.connection.creation.rate`, which
    /// clients may change.
    pub now: Box<dyn Fn() -> Arc<Config> + Send + Sync>,
    /// The window of that rate.
    pub window: Window,
    pub quota: AddressQuota,
}

/// The reason why a connection is not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// The server has as many open connections as it allows.
    Full,
    /// The address has as many open connections as it may have.
    Address,
    /// The address opens connections too fast. The connection must be held for this time.
    Rate(Duration),
}

/// Counts the connections of all listeners.
pub struct Admission {
    rules: Rules,
    open: Mutex<Open>,
    /// Of new connections of the whole server.
    rate: Mutex<Rate>,
    started: Instant,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("open", &self.open).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Open {
    connections: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The bounds of one listener within those of the server. Clients may change them.
#[derive(Debug)]
pub struct ListenerBounds {
    connections_max: AtomicUsize,
    /// New connections a second; `i32::MAX` for no bound.
    rate_max: AtomicI32,
    rate: Mutex<Rate>,
}

impl ListenerBounds {
    /// Creates bounds; `None` for no bound.
    pub fn new(connections_max: Option<usize>, rate_max: Option<i32>) -> ListenerBounds {
        let bounds = ListenerBounds {
            connections_max: AtomicUsize::default(),
            rate_max: AtomicI32::default(),
            rate: Mutex::default(),
        };
        bounds.set(connections_max, rate_max);
        bounds
    }

    /// Sets both bounds. Open connections stay.
    pub fn set(&self, connections_max: Option<usize>, rate_max: Option<i32>) {
        self.connections_max.store(connections_max.unwrap_or(usize::MAX), Ordering::Relaxed);
        self.rate_max.store(rate_max.unwrap_or(i32::MAX), Ordering::Relaxed);
    }

    /// The connections that the listener may have.
    pub fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::Relaxed)
    }
}

/// An admitted connection. Dropping it releases its place.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    address: IpAddr,
}

impl Admission {
    /// Creates an admission with these bounds.
    pub fn new(rules: Rules) -> Admission {
        Admission { rules, open: Mutex::default(), rate: Mutex::default(), started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection from `address`, or returns the reason against it.
    pub fn admit(self: &Arc<Admission>, address: IpAddr) -> Result<Admitted, Rejection> {
        let address = address.to_canonical();
        let now = (self.rules.now)();
        let connections_max = count_of(now.connections_max);
        if self.lock().connections >= connections_max {
            return Err(Rejection::Full);
        }
        if let Some(wait) = (self.rules.quota)(address) {
            return Err(Rejection::Rate(wait));
        }
        let mut open = self.lock();
        // The bound is checked again under the lock, because another listener may have been faster.
        if open.connections >= connections_max {
            return Err(Rejection::Full);
        }
        let own = now.connections_per_address.of(address);
        let max = own.unwrap_or(count_of(now.connections_per_address_max));
        let held = open.by_address.get(&address).copied().unwrap_or(0);
        if held >= max {
            return Err(Rejection::Address);
        }
        open.by_address.insert(address, held + 1);
        open.connections += 1;
        Ok(Admitted { admission: self.clone(), address })
    }

    /// Counts a new connection of a listener. Returns the time during which the listener may accept no further connection, if its
    /// rate or that of the server is exceeded.
    pub fn count(&self, listener: &ListenerBounds) -> Option<Duration> {
        let own = self.count_of(listener.rate_max.load(Ordering::Relaxed), &listener.rate);
        let of_server = self.count_of((self.rules.now)().connection_rate_max, &self.rate);
        own.max(of_server)
    }

    fn count_of(&self, rate_max: i32, rate: &Mutex<Rate>) -> Option<Duration> {
        if rate_max == i32::MAX {
            return None;
        }
        let now_ms = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let mut rate = rate.lock().unwrap_or_else(PoisonError::into_inner);
        rate.record(self.rules.window, 1.0, now_ms);
        let wait_ms = rate.throttle_ms(self.rules.window, f64::from(rate_max), now_ms);
        (wait_ms > 0).then(|| Duration::from_millis(wait_ms.unsigned_abs()))
    }
}

fn count_of(setting: i32) -> usize {
    usize::try_from(setting).unwrap_or(0)
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.admission.lock();
        open.connections -= 1;
        if let Some(count) = open.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            connections_max: 4,
            connections_per_address_max: 2,
            connections_per_address: "10.0.0.9:3".parse().unwrap(),
            ..Config::default()
        }
    }

    fn rules() -> Rules {
        let config = Arc::new(config());
        Rules {
            now: Box::new(move || config.clone()),
            window: Window { samples: 11, sample_ms: 1000 },
            quota: Box::new(|_| None),
        }
    }

    #[test]
    fn an_address_has_its_bound_and_the_server_has_one() {
        let admission = Arc::new(Admission::new(rules()));
        let admit = |address: &str| admission.admit(address.parse().unwrap());
        let one = admit("10.0.0.1").unwrap();
        // The same address, mapped to IPv6.
        let _two = admit("::ffff:10.0.0.1").unwrap();
        assert_eq!(admit("10.0.0.1").unwrap_err(), Rejection::Address);
        drop(one);
        let _others = [admit("10.0.0.9").unwrap(), admit("10.0.0.9").unwrap(), admit("10.0.0.9").unwrap()];
        assert_eq!(admit("10.0.0.1").unwrap_err(), Rejection::Full);
        drop(_others);
        assert_eq!(admission.lock().by_address.len(), 1, "addresses without connections are forgotten");
    }

    #[test]
    fn bounds_change_while_connections_are_open() {
        let bound = Arc::new(Mutex::new(Arc::new(config())));
        let read = bound.clone();
        let now = Box::new(move || read.lock().unwrap().clone());
        let admission = Arc::new(Admission::new(Rules { now, ..rules() }));
        let admit = |address: &str| admission.admit(address.parse().unwrap());
        let _two = [admit("10.0.0.1").unwrap(), admit("10.0.0.1").unwrap()];
        assert_eq!(admit("10.0.0.1").unwrap_err(), Rejection::Address);
        *bound.lock().unwrap() = Arc::new(Config { connections_per_address_max: 3, ..config() });
        let _third = admit("10.0.0.1").unwrap();
        *bound.lock().unwrap() = Arc::new(Config { connections_max: 1, ..config() });
        assert_eq!(admit("10.0.0.2").unwrap_err(), Rejection::Full);
    }

    #[test]
    fn who_is_over_its_quota_is_not_counted() {
        let quota =
            |address: IpAddr| (address == IpAddr::from([10, 0, 0, 1])).then(|| Duration::from_millis(5));
        let admission = Arc::new(Admission::new(Rules { quota: Box::new(quota), ..rules() }));
        let admit = |address: &str| admission.admit(address.parse().unwrap());
        assert_eq!(admit("10.0.0.1").unwrap_err(), Rejection::Rate(Duration::from_millis(5)));
        let _other = admit("10.0.0.2").unwrap();
        assert_eq!(admission.lock().connections, 1);
    }

    #[test]
    fn past_the_rate_the_server_waits() {
        let slow = Arc::new(Config { connection_rate_max: 2, ..config() });
        let admission = Admission::new(Rules { now: Box::new(move || slow.clone()), ..rules() });
        let (free, bounded) = (ListenerBounds::new(None, None), ListenerBounds::new(None, Some(1)));
        let waits: Vec<bool> = (0..30).map(|_| admission.count(&free).is_some()).collect();
        // A whole window of connections is admitted at once.
        assert_eq!(waits.iter().filter(|wait| !**wait).count(), 20);
        assert!(waits[29] && !waits[0]);
        let admission = Admission::new(rules());
        let waits: Vec<bool> = (0..30).map(|_| admission.count(&bounded).is_some()).collect();
        assert_eq!(waits.iter().filter(|wait| !**wait).count(), 10, "of one listener");
        assert_eq!(admission.count(&free), None, "others go on");
        bounded.set(None, None);
        assert_eq!(admission.count(&bounded), None);
    }
}
