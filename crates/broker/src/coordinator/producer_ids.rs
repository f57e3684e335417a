//! Allocates producer ids. Ids are taken from the metadata store in blocks, so that no crash can make an id be handed
//! out twice.

use std::sync::Arc;

use meta::{Change, Compare, MetaError};
use parking_lot::Mutex;

use crate::image::stored;
use crate::image::{Metadata, Update};

/// Number of ids taken from the store at a time.
const BLOCK_IDS: i64 = 1000;
/// The key of the first id that was never taken.
pub const NEXT_BLOCK_KEY: &str = "next_producer_id";
/// After a restore, producer ids go on so far behind the highest known one: more than are handed out while backups fail.
pub const PRODUCERS_APART: u64 = 1 << 32;

/// Hands out producer ids.
#[derive(Debug)]
pub struct ProducerIds {
    metadata: Arc<Metadata>,
    block: Mutex<std::ops::Range<i64>>,
}

impl ProducerIds {
    /// Creates an allocator that has taken no block yet.
    pub fn new(metadata: Arc<Metadata>) -> ProducerIds {
        ProducerIds { metadata, block: Mutex::default() }
    }

    /// Returns an id that was never handed out. Blocks when it takes a new block from the store.
    pub fn take(&self) -> Result<i64, MetaError> {
        let mut block = self.block.lock();
        if block.is_empty() {
            let first = self.metadata.update(|_| {
                let stored = self.metadata.store().find(NEXT_BLOCK_KEY)?;
                let revision = stored.as_ref().map(|value| value.revision);
                let stored = stored.map(|value| stored::read(NEXT_BLOCK_KEY, &value)).transpose()?;
                let first: i64 = stored.unwrap_or(0);
                let bytes =
                    serde_json::to_vec(&(first + BLOCK_IDS)).expect("a number can be written as JSON");
                let compares = vec![Compare { key: NEXT_BLOCK_KEY.into(), revision }];
                Ok::<_, MetaError>(Update {
                    compares,
                    changes: vec![Change::put(NEXT_BLOCK_KEY, bytes)],
                    result: first,
                })
            })?;
            *block = first..first + BLOCK_IDS;
        }
        Ok(block.next().expect("the block was just filled if it was empty"))
    }
}
