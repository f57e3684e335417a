//! The object store of the settings: opened, and tried before anything depends on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use broker::Config;
use objects::{Bucket, BucketError, PacedBucket, ProbeError};
use tokio::runtime::Handle;

/// Opens the bucket that `object.store` names, if it names one. Blocks.
///
/// # Errors
/// If the bucket refuses this server, or cannot keep what must be kept. A store that does not answer is no error: the
/// server runs without it for a while.
pub fn open(config: &Config, runtime: &Handle) -> anyhow::Result<Option<Arc<dyn Bucket>>> {
    let Some(address) = config.object_store.get() else { return Ok(None) };
    let wrong = || format!("object.store = {address}");
    let bucket = clouds::open(address, &BTreeMap::new(), runtime.clone()).with_context(wrong)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Two servers that start at the same time do not meet in the keys of their probes.
    let name = format!("{}-{}", since.as_nanos(), std::process::id());
    let now_ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    match objects::probe(&*bucket, &name, now_ms) {
        Ok(()) => tracing::info!(address, "the object store keeps what is put first, and can be used"),
        Err(ProbeError::Bucket(BucketError::Unclear(why))) => {
            tracing::warn!(
                address,
                why,
                "the object store does not answer; the server starts without it and tries again"
            );
        }
        Err(error) => return Err(error).with_context(wrong),
    }
    let bound = |setting: i64| u64::try_from(setting).unwrap_or(0);
    let (requests, bytes) = (bound(config.object_requests_per_second), bound(config.object_bytes_per_second));
    Ok(Some(if requests > 0 || bytes > 0 {
        Arc::new(PacedBucket::new(bucket, requests, bytes))
    } else {
        bucket
    }))
}
