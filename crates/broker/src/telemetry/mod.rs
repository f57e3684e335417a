//! Metrics that clients push to the server (KIP-714): the metrics each client is asked for, and the last values of each
//! client, which are exported with the server's own.

pub mod otlp;
pub mod subscription;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use model::Compression;
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;
use wire::messages::PushTelemetryRequest;
use wire::{Bytes, ErrorCode, decompress};

use crate::image::{Delta, Image, Metadata, Observer};
use crate::resources::oldest::forget_oldest;
use crate::settings::resource::{ResourceConfigs, ResourceKind};
use otlp::Series;
use subscription::{ALL_METRICS, ClientLabels, INTERVAL_MS_DEFAULT, Subscription};

/// Bound of the clients that are tracked at a time, as in Kafka. Beyond it, the client that was silent longest is
/// forgotten.
const INSTANCES_MAX: usize = 16_384;
/// A client is forgotten after three intervals of silence, but not before this many milliseconds.
const SILENCE_MS: i64 = 60_000;
/// Bounds of the values exported for one client, and for all clients.
const SERIES_PER_INSTANCE_MAX: usize = otlp::POINTS_MAX;
const SERIES_MAX: usize = 20_000;
/// Bound in bytes of a decompressed push.
const PUSH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The codecs that a push may use, the best first.
const CODECS: [Compression; 4] =
    [Compression::Zstd, Compression::Lz4, Compression::Gzip, Compression::Snappy];

/// The subscription of one client: the metrics it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The id that the client uses from now on.
    pub instance_id: Uuid,
    /// A number that changes with the subscription.
    pub subscription_id: i32,
    /// Prefixes of metric names.
    pub metrics: Arc<[String]>,
    /// Interval between two pushes, in milliseconds.
    pub interval_ms: i32,
}

/// One client.
#[derive(Debug)]
struct Instance {
    labels: ClientLabels,
    asked: Asked,
    /// The version of the subscriptions that `asked` was derived from.
    version: u64,
    terminating: bool,
    /// Whether the last push was refused for a reason that a new subscription fixes. The client may then ask for one at
    /// once.
    outdated: bool,
    got_ms: Option<i64>,
    /// Whether the client has received its subscription and has not pushed since.
    informed: bool,
    pushed_ms: Option<i64>,
    seen_ms: i64,
    values: BTreeMap<Series, f64>,
}

impl Instance {
    fn is_silent(&self, now_ms: i64) -> bool {
        now_ms - self.seen_ms > SILENCE_MS.max(3 * i64::from(self.asked.interval_ms))
    }

    fn may_get(&mut self, now_ms: i64) -> bool {
        let may = self
            .got_ms
            .max(self.pushed_ms)
            .is_none_or(|last_ms| now_ms - last_ms >= i64::from(self.asked.interval_ms));
        let may = std::mem::take(&mut self.outdated) || may;
        if may {
            (self.got_ms, self.informed) = (Some(now_ms), true);
        }
        may
    }

    /// Whether a push is due. The first push after a new subscription may come at any time, because clients spread
    /// their first pushes.
    fn may_push(&mut self, now_ms: i64) -> bool {
        let due = |last_ms: i64| now_ms - last_ms >= i64::from(self.asked.interval_ms);
        let may = std::mem::take(&mut self.informed) || self.pushed_ms.is_none_or(due);
        if may {
            self.pushed_ms = Some(now_ms);
        }
        may
    }
}

#[derive(Debug, Default)]
struct Subscriptions {
    version: u64,
    all: Vec<Subscription>,
    /// Each distinct list of metrics, stored once.
    lists: Mutex<HashSet<Arc<[String]>>>,
}

impl Subscriptions {
    fn list(&self, metrics: Vec<String>) -> Arc<[String]> {
        let mut lists = self.lists.lock();
        if let Some(list) = lists.get(metrics.as_slice()) {
            return list.clone();
        }
        let list: Arc<[String]> = metrics.into();
        lists.insert(list.clone());
        list
    }
}

/// All clients and their subscriptions.
#[derive(Debug)]
pub struct Telemetry {
    configs: Arc<ResourceConfigs>,
    subscriptions: RwLock<Arc<Subscriptions>>,
    /// Held while a push is decoded, because each takes memory.
    decoding: Mutex<()>,
    instances: Mutex<HashMap<Uuid, Instance>>,
    bytes_max: usize,
    started: Instant,
}

impl Telemetry {
    /// Creates the state with the stored subscriptions.
    pub fn new(metadata: &Metadata, configs: Arc<ResourceConfigs>, bytes_max: i32) -> Arc<Telemetry> {
        let telemetry = Arc::new(Telemetry {
            configs,
            subscriptions: RwLock::default(),
            decoding: Mutex::default(),
            instances: Mutex::default(),
            bytes_max: usize::try_from(bytes_max).unwrap_or(0),
            started: Instant::now(),
        });
        telemetry.resubscribe();
        let observer = Arc::downgrade(&telemetry);
        metadata.observe(observer);
        telemetry
    }

    /// Reloads the subscriptions after a change. Clients learn of it with their next request.
    fn resubscribe(&self) {
        let names = self.configs.names(ResourceKind::ClientMetrics);
        // Subscriptions of a later version may not be valid here.
        let parsed =
            |name: &String| Subscription::new(name, &self.configs.of(ResourceKind::ClientMetrics, name)).ok();
        let all = names.iter().filter_map(parsed).collect();
        let version = self.subscriptions.read().version + 1;
        // The new subscriptions are built before the lock is taken, so that no client waits for them.
        *self.subscriptions.write() = Arc::new(Subscriptions { version, all, lists: Mutex::default() });
    }

    /// Bound in bytes of a push.
    pub fn bytes_max(&self) -> i32 {
        i32::try_from(self.bytes_max).unwrap_or(i32::MAX)
    }

    /// Returns a client's subscription. A nil id gets a new id.
    pub fn get(&self, id: Uuid, labels: ClientLabels) -> Result<Asked, ErrorCode> {
        let id = if id.is_nil() { Uuid::new_v4() } else { id };
        let now_ms = self.now_ms();
        self.with_instance(id, labels, now_ms, |instance| match instance.may_get(now_ms) {
            true => Ok(instance.asked.clone()),
            false => Err(ErrorCode::ThrottlingQuotaExceeded),
        })
    }

    /// Handles a push. Decompresses and decodes it, so the caller's thread must be allowed to take a while.
    pub fn push(&self, request: &PushTelemetryRequest, labels: ClientLabels) -> Result<(), ErrorCode> {
        let id = request.client_instance_id;
        // Kafka reserves these ids.
        if id.as_u128() <= 1 {
            return Err(ErrorCode::InvalidRequest);
        }
        let now_ms = self.now_ms();
        let codec = self.with_instance(id, labels, now_ms, |instance| {
            let checked = self.check_push(instance, request, now_ms);
            instance.terminating = request.terminating;
            instance.outdated = matches!(
                checked,
                Err(ErrorCode::UnknownSubscriptionId | ErrorCode::UnsupportedCompressionType)
            );
            checked
        })?;
        if request.metrics.is_empty() {
            return Ok(());
        }
        let points = {
            let _one = self.decoding.lock();
            decoded(codec, &request.metrics)
        };
        let points = points.map_err(|error| {
            tracing::debug!(client = %id, error, "metrics of a client cannot be read");
            ErrorCode::InvalidRecord
        })?;
        let mut instances = self.instances.lock();
        let mut count: usize = instances.values().map(|instance| instance.values.len()).sum();
        let Some(instance) = instances.get_mut(&id) else { return Ok(()) };
        for point in points {
            let room = count < SERIES_MAX && instance.values.len() < SERIES_PER_INSTANCE_MAX;
            match instance.values.get_mut(&point.series) {
                Some(value) if point.is_delta => *value += point.value,
                Some(value) => *value = point.value,
                None if room => {
                    count += 1;
                    instance.values.insert(point.series, point.value);
                }
                None => {}
            }
        }
        Ok(())
    }

    fn check_push(
        &self,
        instance: &mut Instance,
        request: &PushTelemetryRequest,
        now_ms: i64,
    ) -> Result<Compression, ErrorCode> {
        if instance.terminating {
            return Err(ErrorCode::InvalidRequest);
        }
        if !instance.may_push(now_ms) && !request.terminating {
            return Err(ErrorCode::ThrottlingQuotaExceeded);
        }
        if request.subscription_id != instance.asked.subscription_id {
            return Err(ErrorCode::UnknownSubscriptionId);
        }
        let codec = Some(i16::from(request.compression_type)).filter(|code| (0..8).contains(code));
        let codec =
            codec.and_then(Compression::from_attributes).ok_or(ErrorCode::UnsupportedCompressionType)?;
        if request.metrics.len() > self.bytes_max {
            return Err(ErrorCode::TelemetryTooLarge);
        }
        Ok(codec)
    }

    fn with_instance<T>(
        &self,
        id: Uuid,
        labels: ClientLabels,
        now_ms: i64,
        work: impl FnOnce(&mut Instance) -> T,
    ) -> T {
        let subscriptions = self.subscriptions.read().clone();
        let labels = labels.cut();
        let mut instances = self.instances.lock();
        if !instances.contains_key(&id) && instances.len() >= INSTANCES_MAX {
            forget_silent(&mut instances, now_ms);
        }
        let fresh = |labels: ClientLabels| Instance {
            asked: asked(id, &labels, &subscriptions),
            labels,
            version: subscriptions.version,
            terminating: false,
            outdated: false,
            got_ms: None,
            informed: false,
            pushed_ms: None,
            seen_ms: now_ms,
            values: BTreeMap::new(),
        };
        let instance =
            instances.entry(id).or_insert_with(|| fresh(ClientLabels { instance_id: base64(id), ..labels }));
        if instance.version < subscriptions.version {
            // The client gets the new subscription at once, however soon it asks again.
            let values = std::mem::take(&mut instance.values);
            *instance = Instance { values, ..fresh(instance.labels.clone()) };
        }
        instance.seen_ms = now_ms;
        work(instance)
    }

    /// Calls `show` with the last values of all clients that are not silent: instance, client id, series and value.
    /// Returns the number of these clients.
    pub fn show<E>(
        &self,
        mut show: impl FnMut(&str, &str, &Series, f64) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut instances = self.instances.lock();
        let now_ms = self.now_ms();
        instances.retain(|_, instance| !instance.is_silent(now_ms));
        for instance in instances.values() {
            for (series, value) in &instance.values {
                show(&instance.labels.instance_id, &instance.labels.id, series, *value)?;
            }
        }
        Ok(instances.len())
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

fn forget_silent(instances: &mut HashMap<Uuid, Instance>, now_ms: i64) {
    instances.retain(|_, instance| !instance.is_silent(now_ms));
    if instances.len() >= INSTANCES_MAX {
        forget_oldest(instances, |instance| instance.seen_ms);
    }
}

fn decoded(codec: Compression, bytes: &Bytes) -> Result<Vec<otlp::Point>, String> {
    let bytes = decompress(codec, bytes, PUSH_BYTES_MAX).map_err(|error| error.to_string())?;
    otlp::points(&bytes).map_err(|error| error.to_string())
}

/// Combines all subscriptions that match a client.
fn asked(id: Uuid, labels: &ClientLabels, subscriptions: &Subscriptions) -> Asked {
    let (mut metrics, mut interval_ms) = (Vec::new(), INTERVAL_MS_DEFAULT);
    for subscription in subscriptions.all.iter().filter(|subscription| subscription.matches(labels)) {
        metrics.extend(subscription.metrics.iter().cloned());
        interval_ms = interval_ms.min(subscription.interval_ms);
    }
    if metrics.iter().any(|name| name == ALL_METRICS) {
        metrics = vec![ALL_METRICS.to_owned()];
    }
    metrics.sort();
    metrics.dedup();
    // As in Kafka, the same subscription of the same client gets the same number. The number itself has no meaning.
    let text = format!("{metrics:?}{interval_ms}");
    let [high, low] = [id.as_u128() >> 64, id.as_u128()].map(|half| half & u128::from(u64::MAX));
    let hash = u64::try_from(high ^ low).expect("half of it");
    let folded = u32::try_from((hash >> 32) ^ (hash & u64::from(u32::MAX))).expect("half of it");
    let subscription_id = (model::crc32c(text.as_bytes()) ^ folded).cast_signed();
    Asked { instance_id: id, subscription_id, metrics: subscriptions.list(metrics), interval_ms }
}

/// An id as Kafka shows it: 22 letters of URL-safe base64.
fn base64(id: Uuid) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let letter = |at: u32| {
        let bits = if at == 21 { id.as_u128() << 4 } else { id.as_u128() >> (122 - 6 * at) };
        char::from(LETTERS[usize::try_from(bits & 63).expect("below 64")])
    };
    (0..22).map(letter).collect()
}

/// The codes of the codecs that a push may use.
pub fn codecs() -> Vec<i8> {
    CODECS.iter().filter_map(|codec| i8::try_from(codec.bits()).ok()).collect()
}

impl Observer for Telemetry {
    fn changed(&self, _image: &Arc<Image>, delta: &Delta) {
        if ResourceKind::ClientMetrics.is_in(delta) {
            self.resubscribe();
        }
    }
}
