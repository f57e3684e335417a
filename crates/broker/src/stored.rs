//! Values of the metadata that are JSON.

use meta::{MetaError, Value};
use serde::de::DeserializeOwned;

/// What stands under `key`. A value that is not what this version writes is an error, not nothing: what depends on it would
/// be dropped, or given out again.
pub fn read<T: DeserializeOwned>(key: &str, value: &Value) -> Result<T, MetaError> {
    serde_json::from_slice(&value.bytes)
        .map_err(|error| MetaError::Unreadable { key: key.into(), why: error.to_string() })
}
