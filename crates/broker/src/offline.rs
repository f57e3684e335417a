//! The metadata of a data directory without a broker in it: for tools that look at the files.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use meta::{MetaError, Store};
use model::StreamId;

use crate::stored::META_FILE;
use crate::topics::{TOPIC_PREFIX, TopicRecord};

/// Topic and partition of each stream, as the metadata in `directory` says; nothing is written there. Blocks.
pub fn stream_names(directory: &Path) -> Result<BTreeMap<StreamId, (String, i32)>, MetaError> {
    let store = Store::open_copy(&directory.join(META_FILE))?;
    let mut names = BTreeMap::new();
    for (key, value) in store.list(TOPIC_PREFIX)? {
        let Ok(record) = serde_json::from_slice::<TopicRecord>(&value.bytes) else { continue };
        for (partition, stream) in (0..).zip(record.streams) {
            names.insert(StreamId(stream), (key[TOPIC_PREFIX.len()..].to_owned(), partition));
        }
    }
    Ok(names)
}

/// Copies the metadata of one data directory to another that has none. Blocks.
pub fn copy_metadata(from: &Path, to: &Path) -> io::Result<()> {
    let copy = to.join(META_FILE);
    std::fs::copy(from.join(META_FILE), &copy)?;
    std::fs::File::open(&copy)?.sync_all()
}
