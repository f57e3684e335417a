//! Metadata values that are stored as JSON.

use meta::{MetaError, Value};
use serde::de::DeserializeOwned;

/// Name of the metadata store in the data directory.
pub const META_FILE: &str = "meta.redb";

/// Decodes the value under `key`.
///
/// # Errors
/// A value in another format is an error, not a missing value. Otherwise the data that depends on it would be dropped,
/// allocated again or allowed.
pub fn read<T: DeserializeOwned>(key: &str, value: &Value) -> Result<T, MetaError> {
    serde_json::from_slice(&value.bytes).map_err(|error| unreadable(key, error))
}

/// The error for a key or value that cannot be read.
pub fn unreadable(key: &str, why: impl ToString) -> MetaError {
    MetaError::Unreadable { key: key.into(), why: why.to_string() }
}
