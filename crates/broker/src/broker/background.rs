//! The work that a broker does without a request: retention, compaction, snapshots, expired offsets.

use std::sync::Arc;
use std::time::Duration;

use model::Timestamp;

use super::Broker;
use super::ends::ASKED_EVERY_MS;
use crate::config::Config;
use crate::partition::log::PartitionLog;
use crate::settings::topic::Tiering;

/// A metadata snapshot is looked for so often, if the settings do not ask for more.
const SNAPSHOT_CHECK_MS_MAX: i64 = 1000;
/// The length of transaction indexes is looked at so often.
const INDEX_CHECK_MS: i64 = 1000;

impl Broker {
    pub(super) fn start_background(self: &Arc<Self>) {
        let every = |ms: fn(&Config) -> i64, work: fn(&Arc<Broker>)| {
            let broker = Arc::downgrade(self);
            tokio::spawn(async move {
                loop {
                    let begun = tokio::time::Instant::now();
                    // The wait is divided into steps, because the interval may change in the meantime.
                    loop {
                        let Some(ms) = broker.upgrade().map(|broker| ms(&broker.configs.now())) else {
                            return;
                        };
                        let wait = Duration::from_millis(u64::try_from(ms).unwrap_or(1).max(1));
                        let left = wait.saturating_sub(begun.elapsed());
                        if left.is_zero() {
                            break;
                        }
                        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
                    }
                    let Some(broker) = broker.upgrade() else { return };
                    broker.blocking(work).await;
                }
            })
        };
        let compact = |broker: &Arc<Broker>| {
            if broker.config.cleaner_enable {
                broker.compactor.run(broker.now_ms());
            }
        };
        let write_snapshot = |broker: &Arc<Broker>| {
            if let Some(snapshots) = &broker.snapshots {
                snapshots.turn(broker.now_ms());
            }
        };
        let snapshot_check_ms =
            |config: &Config| config.object_snapshot_interval_ms.min(SNAPSHOT_CHECK_MS_MAX);
        let tasks = [
            every(snapshot_check_ms, write_snapshot),
            every(|config| config.cleaner_backoff_ms, compact),
            every(|config| config.retention_check_interval_ms, Broker::apply_retention),
            every(|_| INDEX_CHECK_MS, Broker::shorten_transaction_indexes),
            every(|config| config.offsets_check_interval_ms, |broker| broker.coordinator.expire()),
            every(|_| ASKED_EVERY_MS, Broker::ask_for_ends),
        ];
        self.background.lock().extend(tasks);
        self.background.lock().push(self.transactions.watch());
    }

    /// Applies every topic's retention, and removes idle producers.
    fn apply_retention(self: &Arc<Self>) {
        let now_ms = self.now_ms();
        let producer_expiry_ms = i64::from(self.configs.now().producer_expiry_ms);
        self.maintain_transaction_indexes();
        self.quotas.expire();
        self.authorizer.audit().expire();
        for topic in self.topics.all() {
            let (config, partitions) = (topic.config(), topic.partitions());
            for partition in partitions.iter() {
                partition.expire_producers(now_ms - producer_expiry_ms);
                if topic.is_internal() {
                    // Compaction alone keeps internal topics small.
                    continue;
                }
                let oldest = config.retention_ms.map(|ms| Timestamp(now_ms.saturating_sub(ms)));
                let Ok(log) = partition.log() else { continue };
                if partition.is_sealed() {
                    // Its bounds are named.
                    continue;
                }
                apply_tiering(&**log, config.tiering.as_ref(), now_ms);
                if let Some(start) = partition.retain(&**log, oldest, config.retention_bytes) {
                    tracing::debug!(topic = %topic.name, partition = partition.index, %start, "retention");
                }
            }
        }
    }

    fn shorten_transaction_indexes(self: &Arc<Self>) {
        self.logs.all().iter().for_each(|log| log.transactions.shorten(&log.log, self.now_ms()));
    }

    pub(super) fn maintain_transaction_indexes(&self) {
        for log in self.logs.all().iter() {
            // A partition may not have been made anew yet with a log that was just opened.
            let start_of =
                |stream| self.topics.knows(stream).then(|| log.log.lasting_start(&log.log.stream(stream)));
            log.transactions.maintain(&log.log, start_of, self.now_ms());
        }
    }
}

/// Applies what a topic's settings say of the object store.
fn apply_tiering(log: &dyn PartitionLog, tiering: Option<&Tiering>, now_ms: i64) {
    let Some(tiering) = tiering else { return log.forget_stored() };
    log.set_level(tiering.level);
    let oldest = tiering.local_retention_ms.map(|ms| Timestamp(now_ms.saturating_sub(ms)));
    if oldest.is_some() || tiering.local_retention_bytes.is_some() {
        log.retain_locally(oldest, tiering.local_retention_bytes);
    }
}
