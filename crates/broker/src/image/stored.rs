//! Values of the metadata that are JSON.

use meta::{MetaError, Value};
use serde::de::DeserializeOwned;

/// Name of the metadata store in the data directory.
pub const META_FILE: &str = "meta.redb";

/// What stands under `key`. A value that is not what this version writes is an error, not nothing: what depends on it would
/// be dropped, given out again or allowed.
pub fn read<T: DeserializeOwned>(key: &str, value: &Value) -> Result<T, MetaError> {
    serde_json::from_slice(&value.bytes).map_err(|error| unreadable(key, error))
}

/// What is said of a key or a value that cannot be read.
pub fn unreadable(key: &str, why: impl ToString) -> MetaError {
    MetaError::Unreadable { key: key.into(), why: why.to_string() }
}
