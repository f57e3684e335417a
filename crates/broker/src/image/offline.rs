//! Reads the metadata of a data directory while no broker uses it, for tools that look at the files.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use meta::{Embedded, MetaError, Store};
use model::StreamId;

use crate::image::Record;
use crate::image::records::TopicRecord;
use crate::image::stored::META_FILE;

/// The topic and partition of each stream, from the metadata in `directory`. Writes nothing there. Blocks.
pub fn stream_names(directory: &Path) -> Result<BTreeMap<StreamId, (String, i32)>, MetaError> {
    let store = Embedded::open_copy(&directory.join(META_FILE))?;
    let mut names = BTreeMap::new();
    for (key, value) in store.list(TopicRecord::PREFIX)?.entries {
        let Some(name) = key.strip_prefix(TopicRecord::PREFIX) else { continue };
        let Ok(record) = TopicRecord::parse(name, &value.bytes) else { continue };
        for (partition, stream) in (0..).zip(record.streams) {
            names.insert(StreamId(stream), (name.to_owned(), partition));
        }
    }
    Ok(names)
}

/// Whether there is metadata in `directory`. An empty file is what an interrupted copy leaves.
pub fn has_metadata(directory: &Path) -> bool {
    std::fs::metadata(directory.join(META_FILE)).is_ok_and(|file| file.is_file() && file.len() > 0)
}

/// Copies the metadata of one data directory to another that has no metadata. Blocks.
pub fn copy_metadata(from: &Path, to: &Path) -> io::Result<()> {
    let copy = to.join(META_FILE);
    std::fs::copy(from.join(META_FILE), &copy)?;
    std::fs::File::open(&copy)?.sync_all()
}
