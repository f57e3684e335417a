//! Commits whose outcome is known even where etcd's answer is lost.
//!
//! A lane is a key of this process alone. Each commit compares the lane's revision and writes a random number into the
//! lane. So a commit can be repeated: it takes effect once, since the first one that does makes all others fail. Whether
//! it did stands in the lane. A commit takes one lane for itself, and several lanes let as many commits go on at the same
//! time.
//!
//! A lane's key also makes each commit visible to the watches of the cluster's prefix, which hide it from their users. The
//! keys have a lease, so those of earlier processes go.

use std::time::Duration;

use meta::{Change, Compare, LeaseId, MetaError};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::api::{Bytes, Condition, Int, KeyValue, Operation, RangeRequest, TxnRequest, TxnResponse};
use crate::gateway::{CallError, Gateway};
use crate::{HIDDEN, failed};

const LANES: usize = 4;
/// etcd takes 128 operations in a transaction (`--max-txn-ops`). The lane is one of them, and a few compares are of other keys.
pub const CHANGES_MAX: usize = 120;
/// Time for a commit, with all its attempts.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time of a lane's lease. It is taken anew after half of that, so a lane's key stays much longer after its last use
/// than any request may be on its way.
const KEPT: Duration = Duration::from_secs(3600);

/// The lanes of a process.
pub struct Lanes {
    /// Before the keys of commits.
    prefix: String,
    /// The name of this process.
    name: String,
    lanes: [Mutex<Lane>; LANES],
}

#[derive(Clone, Copy, Default)]
struct Lane {
    /// Of the lane's key; `None` if it does not exist, or nobody knows.
    revision: Option<u64>,
    lease: Option<(LeaseId, Instant)>,
}

impl Lanes {
    pub fn new(prefix: &str) -> Lanes {
        let name = format!("{:016x}", fastrand::u64(..));
        Lanes { prefix: prefix.to_owned(), name, lanes: <[Mutex<Lane>; LANES]>::default() }
    }

    /// A lane that nobody uses. Waits for one if need be.
    async fn take(&self) -> (usize, MutexGuard<'_, Lane>) {
        for (number, lane) in self.lanes.iter().enumerate() {
            if let Ok(lane) = lane.try_lock() {
                return (number, lane);
            }
        }
        let number = fastrand::usize(..LANES);
        (number, self.lanes[number].lock().await)
    }

    /// As [`meta::Store::commit`].
    pub async fn commit(
        &self,
        gateway: &Gateway,
        compares: &[Compare],
        changes: &[Change],
    ) -> Result<u64, MetaError> {
        let until = Instant::now() + PATIENCE;
        let (number, mut lane) = self.take().await;
        let key = Bytes::from(format!("{}{HIDDEN}lanes/{}/{number}", self.prefix, self.name));
        let nonce = Bytes(fastrand::u128(..).to_le_bytes().to_vec());
        let mut attempts = 0;
        loop {
            let lease = match lane.lease.filter(|(_, since)| since.elapsed() < KEPT / 2) {
                Some((lease, _)) => lease,
                None => {
                    let lease = gateway.grant(KEPT).await.map_err(failed)?;
                    lane.lease = Some((lease, Instant::now()));
                    lease
                }
            };
            let request = self.request(compares, changes, (&key, &nonce), (lane.revision, lease));
            let response: TxnResponse = match gateway.call("/v3/kv/txn", &request, attempts).await {
                Ok(response) => response,
                Err(error) if error.is_no_lease() => {
                    // Of the changes' leases, or the lane's.
                    if let Some(gone) = self.gone_lease(gateway, changes).await? {
                        return Err(MetaError::NoLease(gone));
                    }
                    lane.lease = None;
                    continue;
                }
                Err(CallError::Unclear(_)) if Instant::now() < until => {
                    attempts += 1;
                    gateway.pause(attempts).await;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            if response.succeeded {
                let revision = response.header.revision.revision();
                lane.revision = Some(revision);
                return Ok(revision);
            }
            let found: Vec<Option<&KeyValue>> =
                response.responses.iter().map(|answer| answer.response_range.kvs.first()).collect();
            let now = found.first().copied().flatten();
            let had = lane.revision.is_some();
            lane.revision = now.map(|lane| lane.mod_revision.revision());
            if had && now.is_none() && attempts > 0 {
                // This process stood still for longer than the lease, and an attempt may have taken effect before.
                return Err(crate::failed(CallError::Unclear("the lane of a commit has expired".to_owned())));
            }
            if let Some(revision) = lane.revision
                && now.is_some_and(|lane| lane.value == nonce)
            {
                // An earlier attempt took effect.
                return Ok(revision);
            }
            let revision = |found: &Option<&KeyValue>| found.map(|found| found.mod_revision.revision());
            let failed =
                compares.iter().zip(found.iter().skip(1)).find(|(of, found)| of.revision != revision(found));
            if let Some((Compare { key, .. }, _)) = failed {
                return Err(MetaError::Conflict { key: key.clone() });
            }
            // The lane was elsewhere: an earlier commit without an answer took effect since, or the lane has expired.
            if Instant::now() >= until {
                return Err(crate::failed(CallError::Unclear("no commit went through".to_owned())));
            }
        }
    }

    fn request(
        &self,
        compares: &[Compare],
        changes: &[Change],
        (lane, nonce): (&Bytes, &Bytes),
        (revision, lease): (Option<u64>, LeaseId),
    ) -> TxnRequest {
        let whole = |key: &str| Bytes::from(format!("{}{key}", self.prefix));
        let mut compare = vec![Condition::new(lane.clone(), revision)];
        compare.extend(compares.iter().map(|of| Condition::new(whole(&of.key), of.revision)));
        let mut success =
            vec![Operation::Put { key: lane.clone(), value: nonce.clone(), lease: Int(lease.0) }];
        success.extend(changes.iter().map(|change| match change {
            Change::Put { key, bytes, lease } => Operation::Put {
                key: whole(key),
                value: Bytes(bytes.clone()),
                lease: Int(lease.map_or(0, |lease| lease.0)),
            },
            Change::Delete { key } => Operation::Delete { key: whole(key) },
        }));
        let mut failure = vec![Operation::Range(RangeRequest::of(lane.clone()))];
        let look = |of: &Compare| RangeRequest { keys_only: true, ..RangeRequest::of(whole(&of.key)) };
        failure.extend(compares.iter().map(|of| Operation::Range(look(of))));
        TxnRequest { compare, success, failure }
    }

    /// The first lease of `changes` that does not exist.
    async fn gone_lease(&self, gateway: &Gateway, changes: &[Change]) -> Result<Option<LeaseId>, MetaError> {
        let leases = changes.iter().filter_map(|change| match change {
            Change::Put { lease, .. } => *lease,
            Change::Delete { .. } => None,
        });
        for lease in leases {
            if !gateway.has_lease(lease).await.map_err(failed)? {
                return Ok(Some(lease));
            }
        }
        Ok(None)
    }
}
