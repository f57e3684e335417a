//! Client quotas (KIP-13, KIP-124, KIP-546, KIP-599): the share of the server that each client may use, and the
//! throttle time of a client that used more.
//!
//! The answer tells a client over its quota to wait. The server does not read its connection during that time
//! (KIP-219). If no quota is set, a request costs one atomic load here.

mod limits;
mod meter;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use meta::MetaError;
use parking_lot::{Mutex, RwLock};
use wire::Text;

use crate::caller::Caller;
use crate::config::Config;
use crate::image::records::ClientQuota;
pub use crate::image::records::{Entity, Values};
use crate::image::{Delta, Image, Metadata, Observer, Record, Update};
use crate::resources::oldest::forget_oldest;
pub use limits::{CLIENT_ID, IP, Limit, Limits, Quota, USER};
use meter::Bucket;
pub use meter::{Rate, Window};

/// Bound of the entities that may have quotas.
pub const ENTITIES_MAX: usize = 10_000;
/// Bound of the clients tracked for each quota, because clients choose their ids. Beyond it, the clients with the
/// oldest last use are forgotten.
const METERS_MAX: usize = 10_000;
/// A client is forgotten after this time without use, as in Kafka.
const METER_IDLE: Duration = Duration::from_secs(3600);

/// The client whose quotas a request counts towards.
#[derive(Clone, Debug)]
pub struct Payer {
    /// The name of the client's principal.
    pub user: Text,
    /// The client id. Empty if the client sends none.
    pub client_id: Text,
}

impl Caller {
    /// The client whose quotas the request counts towards.
    pub fn payer(&self) -> Payer {
        Payer { user: self.origin.principal.name.clone(), client_id: self.client_id.clone() }
    }
}

/// The recent use of one client.
#[derive(Debug)]
struct Meter {
    used: Used,
    at_ms: i64,
}

#[derive(Debug)]
enum Used {
    Rate(Rate),
    Bucket(Bucket),
}

/// One quota, with its limits and the use of all clients.
#[derive(Debug, Default)]
struct Account {
    limits: RwLock<Option<Limits>>,
    meters: Mutex<HashMap<(String, String), Meter>>,
}

/// All quotas.
#[derive(Debug)]
pub struct Quotas {
    metadata: Arc<Metadata>,
    /// A bit for each quota that is set for any entity.
    enabled: AtomicU8,
    accounts: [Account; 5],
    window: Window,
    mutation_window: Window,
    started: Instant,
}

impl Quotas {
    /// Creates the quotas from the metadata.
    pub fn new(metadata: Arc<Metadata>, config: &Config) -> Arc<Quotas> {
        let window = |samples: i32, seconds: i32| Window {
            samples: i64::from(samples),
            sample_ms: i64::from(seconds) * 1000,
        };
        let quotas = Arc::new(Quotas {
            metadata,
            enabled: AtomicU8::new(0),
            accounts: Default::default(),
            window: window(config.quota_samples, config.quota_sample_seconds),
            mutation_window: window(config.mutation_quota_samples, config.mutation_quota_sample_seconds),
            started: Instant::now(),
        });
        quotas.apply();
        let observer = Arc::downgrade(&quotas);
        quotas.metadata.observe(observer);
        quotas
    }

    /// The quotas of all entities.
    pub fn entities(&self) -> BTreeMap<Entity, Values> {
        entities(&self.metadata.image())
    }

    /// Replaces the quotas of the entities that `change` returns. An entity without values loses its quotas. Durable on
    /// return. Blocks.
    pub fn change<T>(
        &self,
        change: impl Fn(&BTreeMap<Entity, Values>) -> (T, BTreeMap<Entity, Values>),
    ) -> Result<T, MetaError> {
        self.metadata.update_in_parts(|image| {
            let old = entities(image);
            let (result, changed) = change(&old);
            let changed = changed
                .into_iter()
                .filter(|(entity, values)| old.get(entity).unwrap_or(&Values::new()) != values);
            let changes = changed.map(|(entity, values)| {
                let name = ClientQuota::name(&entity);
                match values.is_empty() {
                    true => ClientQuota::delete(&name),
                    false => ClientQuota { entity, values }.put(&name),
                }
            });
            Ok(Update::new(changes.collect(), result))
        })
    }

    /// Applies the stored quotas.
    fn apply(&self) {
        let entities = self.entities();
        let mut enabled = 0;
        for quota in Quota::ALL {
            let limits = Limits::new(quota, entities.iter());
            enabled |= u8::from(limits.is_some()) << quota as u8;
            if limits.is_none() {
                self.account(quota).meters.lock().clear();
            }
            *self.account(quota).limits.write() = limits;
        }
        self.enabled.store(enabled, Ordering::Release);
    }

    fn account(&self, quota: Quota) -> &Account {
        &self.accounts[quota as usize]
    }

    /// Whether any quota is set that requests count towards.
    pub fn any(&self) -> bool {
        self.enabled.load(Ordering::Relaxed) & !(1 << Quota::Connections as u8) != 0
    }

    /// Whether this quota is set for any entity.
    pub fn enabled(&self, quota: Quota) -> bool {
        self.enabled.load(Ordering::Relaxed) & (1 << quota as u8) != 0
    }

    /// Counts the use of `payer`. Returns its throttle time in milliseconds.
    pub fn record(&self, quota: Quota, payer: &Payer, value: f64) -> i32 {
        self.with_rate(quota, payer, |rate, window, limit, now_ms| {
            rate.record(window, value, now_ms);
            rate.throttle_ms(window, limit, now_ms)
        })
    }

    /// Counts the use of `payer` if it is within the quota. Otherwise counts nothing and returns the milliseconds until
    /// it may be granted.
    pub fn record_if_within(&self, quota: Quota, payer: &Payer, value: f64) -> i32 {
        self.with_rate(quota, payer, |rate, window, limit, now_ms| {
            rate.record(window, value, now_ms);
            let throttle_ms = rate.throttle_ms(window, limit, now_ms);
            if throttle_ms > 0 {
                rate.record(window, -value, now_ms);
            }
            throttle_ms
        })
    }

    /// Counts a connection from `address` if it is within the quota. Otherwise counts nothing and returns the time that
    /// it must wait. As in Kafka, this time is at most one sample.
    pub fn record_connection(&self, address: IpAddr) -> Option<Duration> {
        if !self.enabled(Quota::Connections) {
            return None;
        }
        let payer = Payer { user: Text::default(), client_id: Text::from(limits::shown(address)) };
        let wait_ms =
            self.record_if_within(Quota::Connections, &payer, 1.0).min(throttle(self.window.sample_ms));
        (wait_ms > 0).then(|| Duration::from_millis(u64::from(wait_ms.unsigned_abs())))
    }

    /// The largest use that `payer` could be granted at once after a time without use. A larger one would never be
    /// granted.
    pub fn window_max(&self, quota: Quota, payer: &Payer) -> f64 {
        let seconds = self.window.full_seconds();
        self.limit(quota, payer).map_or(f64::INFINITY, |limit| limit.value * seconds)
    }

    /// Takes `partitions` tokens for changes of topics. A strict payer in debt takes none and gets an error with the
    /// milliseconds until it is out of debt. A payer that is not strict gets the milliseconds that it should wait.
    pub fn record_mutations(&self, payer: &Payer, partitions: f64, strict: bool) -> Result<i32, i32> {
        let quota = Quota::ControllerMutation;
        let Some(limit) = self.limit(quota, payer) else { return Ok(0) };
        let window = self.mutation_window;
        self.with_meter(quota, payer, limit, |used, now_ms| {
            let Used::Bucket(bucket) = used else { return Ok(0) };
            let debt_ms = bucket.throttle_ms(window, limit.value, now_ms);
            if strict && debt_ms > 0 {
                return Err(throttle(debt_ms));
            }
            bucket.take(window, limit.value, partitions, now_ms);
            Ok(if strict { 0 } else { throttle(bucket.throttle_ms(window, limit.value, now_ms)) })
        })
    }

    /// The longest throttle time for the use of thread time, in milliseconds. As in Kafka it is one sample, because the
    /// measure is rough.
    pub fn request_throttle_ms_max(&self) -> i32 {
        throttle(self.window.sample_ms)
    }

    /// Forgets clients without recent use.
    pub fn expire(&self) {
        let oldest_ms = self.now_ms() - i64::try_from(METER_IDLE.as_millis()).unwrap_or(i64::MAX);
        for account in &self.accounts {
            account.meters.lock().retain(|_, meter| meter.at_ms >= oldest_ms);
        }
    }

    fn limit(&self, quota: Quota, payer: &Payer) -> Option<Limit> {
        if !self.enabled(quota) {
            return None;
        }
        self.account(quota).limits.read().as_ref()?.find(&payer.user, &payer.client_id)
    }

    fn with_rate(
        &self,
        quota: Quota,
        payer: &Payer,
        work: impl FnOnce(&mut Rate, Window, f64, i64) -> i64,
    ) -> i32 {
        let Some(limit) = self.limit(quota, payer) else { return 0 };
        self.with_meter(quota, payer, limit, |used, now_ms| match used {
            Used::Rate(rate) => throttle(work(rate, self.window, limit.value, now_ms)),
            Used::Bucket(_) => 0,
        })
    }

    fn with_meter<T>(
        &self,
        quota: Quota,
        payer: &Payer,
        limit: Limit,
        work: impl FnOnce(&mut Used, i64) -> T,
    ) -> T {
        let part = |has: bool, name: &Text| if has { name.to_string() } else { String::new() };
        let key = (part(limit.by_user, &payer.user), part(limit.by_client, &payer.client_id));
        let mut meters = self.account(quota).meters.lock();
        // The time is read under the lock, so that it never goes back between two uses of a meter.
        let now_ms = self.now_ms();
        if meters.len() >= METERS_MAX && !meters.contains_key(&key) {
            forget_oldest(&mut meters, |meter| meter.at_ms);
        }
        let meter = meters.entry(key).or_insert_with(|| Meter {
            used: match quota {
                Quota::ControllerMutation => Used::Bucket(Bucket::default()),
                Quota::Produce | Quota::Fetch | Quota::Request | Quota::Connections => {
                    Used::Rate(Rate::default())
                }
            },
            at_ms: now_ms,
        });
        meter.at_ms = now_ms;
        work(&mut meter.used, now_ms)
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

impl Observer for Quotas {
    fn changed(&self, _image: &Arc<Image>, delta: &Delta) {
        if !delta.quotas.is_empty() {
            self.apply();
        }
    }
}

fn entities(image: &Image) -> BTreeMap<Entity, Values> {
    let quotas = image.quotas.iter();
    quotas.map(|(_, quota)| (quota.entity.clone(), quota.values.clone())).collect()
}

fn throttle(ms: i64) -> i32 {
    i32::try_from(ms).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas() -> Arc<Quotas> {
        Quotas::new(Metadata::open(Arc::new(meta::Memory::default())).unwrap(), &Config::default())
    }

    fn payer(client_id: &str) -> Payer {
        Payer {
            user: Text::from_static(crate::caller::ANONYMOUS),
            client_id: Text::from(client_id.to_owned()),
        }
    }

    fn set(quotas: &Quotas, quota: Quota, value: Option<f64>) {
        let entity = Entity(BTreeMap::from([(CLIENT_ID.to_owned(), None)]));
        let values: Values = value.map(|value| (quota.name().to_owned(), value)).into_iter().collect();
        quotas.change(|_| ((), BTreeMap::from([(entity.clone(), values.clone())]))).unwrap();
    }

    #[test]
    fn each_client_has_its_own_and_nothing_is_counted_without_a_quota() {
        let quotas = quotas();
        assert!(!quotas.any() && quotas.record(Quota::Produce, &payer("a"), 1e9) == 0);
        set(&quotas, Quota::Produce, Some(1000.0));
        assert!(quotas.enabled(Quota::Produce) && !quotas.enabled(Quota::Fetch));
        assert_eq!(quotas.record(Quota::Produce, &payer("a"), 10_000.0), 0);
        let throttle = quotas.record(Quota::Produce, &payer("a"), 10_000.0);
        assert!((9000..=10_000).contains(&throttle), "{throttle}");
        assert_eq!(quotas.record(Quota::Produce, &payer("b"), 10_000.0), 0);
        set(&quotas, Quota::Produce, None);
        assert!(!quotas.any() && quotas.account(Quota::Produce).meters.lock().is_empty());
    }

    #[test]
    fn what_is_not_given_is_not_counted() {
        let quotas = quotas();
        set(&quotas, Quota::Fetch, Some(1000.0));
        assert_eq!(quotas.window_max(Quota::Fetch, &payer("a")), 10_000.0);
        for _ in 0..100 {
            assert!(quotas.record_if_within(Quota::Fetch, &payer("a"), 20_000.0) > 9000);
        }
        assert_eq!(quotas.record_if_within(Quota::Fetch, &payer("a"), 9000.0), 0);
    }

    #[test]
    fn clients_that_make_up_ids_take_no_more_memory_than_the_bound() {
        let quotas = quotas();
        set(&quotas, Quota::Produce, Some(1.0));
        for number in 0..METERS_MAX * 2 {
            quotas.record(Quota::Produce, &payer(&number.to_string()), 1.0);
        }
        let meters = quotas.account(Quota::Produce).meters.lock().len();
        assert!((METERS_MAX * 3 / 4..=METERS_MAX).contains(&meters), "{meters}");
        quotas.expire();
        assert_eq!(quotas.account(Quota::Produce).meters.lock().len(), meters);
    }

    #[test]
    fn an_address_has_a_rate_of_connections() {
        let quotas = quotas();
        let limit = |address: Option<&str>, value: f64| {
            let entity = Entity(BTreeMap::from([(IP.to_owned(), address.map(ToOwned::to_owned))]));
            let values = Values::from([(Quota::Connections.name().to_owned(), value)]);
            quotas.change(|_| ((), BTreeMap::from([(entity.clone(), values.clone())]))).unwrap();
        };
        let address: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(quotas.record_connection(address), None);
        limit(None, 5.0);
        limit(Some("10.0.0.1"), 1.0);
        assert!(!quotas.any(), "requests have nothing to count");
        let waits: Vec<_> = (0..30).map(|_| quotas.record_connection(address)).collect();
        assert_eq!(waits.iter().filter(|wait| wait.is_none()).count(), 10);
        assert!(waits[29].is_some_and(|wait| wait <= Duration::from_secs(1)));
        assert_eq!(quotas.record_connection("10.0.0.2".parse().unwrap()), None);
    }

    #[test]
    fn a_strict_client_in_debt_changes_nothing() {
        let quotas = quotas();
        set(&quotas, Quota::ControllerMutation, Some(1.0));
        assert_eq!(quotas.record_mutations(&payer("a"), 13.0, true), Ok(0));
        assert!(quotas.record_mutations(&payer("a"), 1.0, true).is_err_and(|ms| ms > 1000));
        assert!(quotas.record_mutations(&payer("a"), 1.0, false).is_ok_and(|ms| ms > 2000));
    }
}
