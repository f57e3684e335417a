//! Who is let in: the bounds on connections of the whole server, of single addresses, and on how fast they come.
//!
//! As in Kafka (ConnectionQuotas) an address is a whole address, of IPv6 too. A client that has a whole network of IPv6
//! gets as many times the bound; against it there are `max.connections`, the rate, and the lobby.
//!
//! Past `max.connections` and `max.connections.per.ip` a connection is closed at once. One whose address is over its
//! quota of new connections is kept and closed only when it might come back, so that a client that comes back at once
//! does not cost more than one that waits. Past the rate of the whole server nobody is taken in for a while.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use broker::{Rate, Window};

/// The quota of new connections of an address: for how long one more must wait, if it must.
pub type AddressQuota = Box<dyn Fn(IpAddr) -> Option<Duration> + Send + Sync>;

/// The bounds.
pub struct Rules {
    /// `max.connections`.
    pub connections_max: usize,
    /// `max.connections.per.ip`, and its overrides.
    pub per_address_max: usize,
    pub overrides: BTreeMap<IpAddr, usize>,
    /// `max.connection.creation.rate`, a second, over this window.
    pub rate_max: f64,
    pub window: Window,
    pub quota: AddressQuota,
}

/// Why a connection is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// As many as may be are open.
    Full,
    /// Its address has as many open as it may have.
    Address,
    /// Its address opens too many; it is to be kept waiting for so long.
    Rate(Duration),
}

/// Counts connections, whatever their listener.
pub struct Admission {
    rules: Rules,
    open: Mutex<Open>,
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
    rate: Rate,
}

/// A connection that was let in; it is out again when this is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    address: IpAddr,
}

impl Admission {
    /// With these bounds.
    pub fn new(rules: Rules) -> Admission {
        Admission { rules, open: Mutex::default(), started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection from `address` in, or says why not.
    pub fn admit(self: &Arc<Admission>, address: IpAddr) -> Result<Admitted, Rejection> {
        let address = address.to_canonical();
        if self.lock().connections >= self.rules.connections_max {
            return Err(Rejection::Full);
        }
        if let Some(wait) = (self.rules.quota)(address) {
            return Err(Rejection::Rate(wait));
        }
        let mut open = self.lock();
        // Looked at again: another listener may have been faster.
        if open.connections >= self.rules.connections_max {
            return Err(Rejection::Full);
        }
        let max = self.rules.overrides.get(&address).copied().unwrap_or(self.rules.per_address_max);
        let held = open.by_address.get(&address).copied().unwrap_or(0);
        if held >= max {
            return Err(Rejection::Address);
        }
        open.by_address.insert(address, held + 1);
        open.connections += 1;
        Ok(Admitted { admission: self.clone(), address })
    }

    /// Counts a connection that came; answers for how long no further one may be taken.
    pub fn count(&self) -> Option<Duration> {
        if self.rules.rate_max >= f64::from(i32::MAX) {
            return None;
        }
        let mut open = self.lock();
        let now_ms = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        open.rate.record(self.rules.window, 1.0, now_ms);
        let wait_ms = open.rate.throttle_ms(self.rules.window, self.rules.rate_max, now_ms);
        (wait_ms > 0).then(|| Duration::from_millis(wait_ms.unsigned_abs()))
    }
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

    fn rules() -> Rules {
        Rules {
            connections_max: 4,
            per_address_max: 2,
            overrides: BTreeMap::from([("10.0.0.9".parse().unwrap(), 3)]),
            rate_max: f64::from(i32::MAX),
            window: Window { samples: 11, sample_ms: 1000 },
            quota: Box::new(|_| None),
        }
    }

    #[test]
    fn an_address_has_its_bound_and_the_server_has_one() {
        let admission = Arc::new(Admission::new(rules()));
        let admit = |address: &str| admission.admit(address.parse().unwrap());
        let one = admit("10.0.0.1").unwrap();
        // The same address, by way of IPv6.
        let _two = admit("::ffff:10.0.0.1").unwrap();
        assert_eq!(admit("10.0.0.1").unwrap_err(), Rejection::Address);
        drop(one);
        let _others = [admit("10.0.0.9").unwrap(), admit("10.0.0.9").unwrap(), admit("10.0.0.9").unwrap()];
        assert_eq!(admit("10.0.0.1").unwrap_err(), Rejection::Full);
        drop(_others);
        assert_eq!(admission.lock().by_address.len(), 1, "addresses without connections are forgotten");
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
        let admission = Admission::new(Rules { rate_max: 2.0, ..rules() });
        let waits: Vec<bool> = (0..30).map(|_| admission.count().is_some()).collect();
        // A window's worth comes through at once.
        assert_eq!(waits.iter().filter(|wait| !**wait).count(), 20);
        assert!(waits[29] && !waits[0]);
        assert_eq!(Admission::new(rules()).count(), None);
    }
}
