//! The metadata store of a cluster: [`meta::Store`] on etcd.
//!
//! Requests go to etcd's JSON gateway (decision 0024), under a prefix of the cluster's own. A commit is one transaction of
//! etcd. Its outcome is known even where an answer is lost: see [`lanes`].

mod api;
mod gateway;
mod lanes;
mod watch;

use std::fmt;
use std::time::Duration;

use meta::{Change, Compare, LeaseId, Listing, MetaError, Store, Value, Watch};
use tokio::runtime::Handle;

use self::api::{
    Absent, Bytes, Int, KeyValue, LeaseAnswer, LeaseRequest, RangeRequest, RangeResponse, prefix_end,
};
use self::gateway::{CallError, Gateway};
pub use self::gateway::{OpenEtcdError, Settings, Tls};
use self::lanes::Lanes;
use self::watch::EtcdWatch;

/// Keys that one request lists.
const LISTED: i64 = 1000;
/// Attempts of a listing.
const LIST_ATTEMPTS: u32 = 5;
/// The prefix of the keys that no caller sees, below the cluster's prefix.
const HIDDEN: &str = "~";

/// A metadata store on etcd. Its methods block, and may not be called on a thread of `runtime`.
pub struct Etcd {
    gateway: Gateway,
    /// Before all keys.
    prefix: String,
    lanes: Lanes,
    runtime: Handle,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Etcd {
    /// A store of the keys below `prefix`. Makes no request. Requests run on `runtime`.
    ///
    /// # Errors
    /// An endpoint, a certificate or a key cannot be used.
    pub fn open(settings: &Settings, prefix: &str, runtime: Handle) -> Result<Etcd, OpenEtcdError> {
        let gateway = Gateway::new(settings)?;
        Ok(Etcd { gateway, prefix: prefix.to_owned(), lanes: Lanes::new(prefix), runtime })
    }

    fn key(&self, key: &str) -> Bytes {
        Bytes::from(format!("{}{key}", self.prefix))
    }

    /// All keys below a prefix at one revision.
    async fn list_once(&self, prefix: &str) -> Result<Result<Listing, CallError>, MetaError> {
        let whole = self.key(prefix);
        let end = prefix_end(&whole);
        let mut request = RangeRequest { range_end: end, limit: Int(LISTED), ..RangeRequest::of(whole) };
        let mut listing = Listing { revision: 0, entries: Vec::new() };
        loop {
            let page: RangeResponse = match self.gateway.read("/v3/kv/range", &request).await {
                Ok(page) => page,
                Err(error) => return Ok(Err(error)),
            };
            // All pages show the revision of the first one.
            if listing.revision == 0 {
                request.revision = page.header.revision;
                listing.revision = page.header.revision.revision();
            }
            if let Some(last) = page.kvs.last() {
                request.key = last.key.clone();
                request.key.0.push(0);
            }
            for found in page.kvs {
                listing.entries.extend(entry(&self.prefix, found)?);
            }
            if !page.more {
                return Ok(Ok(listing));
            }
        }
    }
}

fn failed(error: CallError) -> MetaError {
    MetaError::Store(Box::new(error))
}

/// The answer to a request that names a lease.
fn of_lease<T>(lease: LeaseId, answer: Result<T, CallError>) -> Result<T, MetaError> {
    answer.map_err(|error| if error.is_no_lease() { MetaError::NoLease(lease) } else { failed(error) })
}

/// The key below the prefix of the store, and the value. `None` for keys that no caller sees.
fn entry(prefix: &str, found: KeyValue) -> Result<Option<(String, Value)>, MetaError> {
    let KeyValue { key, mod_revision, value, .. } = found;
    let unreadable = |why: &str| MetaError::Unreadable {
        key: String::from_utf8_lossy(&key.0).into_owned(),
        why: why.to_owned(),
    };
    let whole = std::str::from_utf8(&key.0).map_err(|_| unreadable("the key is not UTF-8"))?;
    let key = whole.strip_prefix(prefix).ok_or_else(|| unreadable("the key lies outside the prefix"))?;
    let value = Value { revision: mod_revision.revision(), bytes: value.0 };
    Ok((!key.starts_with(HIDDEN)).then(|| (key.to_owned(), value)))
}

impl Store for Etcd {
    fn find(&self, key: &str) -> Result<Option<Value>, MetaError> {
        let request = RangeRequest::of(self.key(key));
        let found: RangeResponse =
            self.runtime.block_on(self.gateway.read("/v3/kv/range", &request)).map_err(failed)?;
        let found = found.kvs.into_iter().next();
        Ok(found.map(|found| entry(&self.prefix, found)).transpose()?.flatten().map(|(_, value)| value))
    }

    fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.runtime.block_on(async {
            for _ in 1..LIST_ATTEMPTS {
                match self.list_once(prefix).await? {
                    // The revision of the first page was forgotten before the last one was read.
                    Err(error) if error.is_compacted() => {}
                    listed => return listed.map_err(failed),
                }
            }
            self.list_once(prefix).await?.map_err(failed)
        })
    }

    fn commit(&self, compares: &[Compare], changes: &[Change]) -> Result<u64, MetaError> {
        self.runtime.block_on(self.lanes.commit(&self.gateway, compares, changes))
    }

    fn changes_max(&self) -> usize {
        lanes::CHANGES_MAX
    }

    fn watch(&self, prefix: &str, after: u64) -> Box<dyn Watch> {
        let below = format!("{}{prefix}", self.prefix);
        Box::new(EtcdWatch::begin(&self.gateway, (&self.prefix, below), after, self.runtime.clone()))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        self.runtime.block_on(self.gateway.grant(ttl)).map_err(failed)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), MetaError> {
        let request = LeaseRequest { id: Int(lease.0) };
        let answer = self.runtime.block_on(self.gateway.read_first("/v3/lease/keepalive", &request));
        let LeaseAnswer { ttl, .. } = of_lease(lease, answer)?;
        // etcd answers for leases that it does not have, without a time to live.
        if ttl.0 > 0 { Ok(()) } else { Err(MetaError::NoLease(lease)) }
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        let request = LeaseRequest { id: Int(lease.0) };
        let answer = self.runtime.block_on(self.gateway.read::<_, Absent>("/v3/lease/revoke", &request));
        of_lease(lease, answer).map(drop)
    }
}
