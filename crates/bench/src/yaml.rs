//! YAML files of known keys, with errors that name the key.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads a file's text.
pub fn from_str<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    // Parsed through JSON values, because a map of unknown keys needs a self-describing format.
    let keys: Map<String, Value> = serde_saphyr::from_str(text)?;
    let read = |keys: Map<String, Value>| serde_json::from_value::<T>(Value::Object(keys));
    let error = match read(keys.clone()) {
        Ok(value) => return Ok(value),
        Err(error) => error.to_string(),
    };
    // Serde does not name the key. It is the one without which the error disappears.
    let is_to_blame = |key: &&String| {
        let mut others = keys.clone();
        others.remove(*key);
        read(others).err().is_none_or(|other| other.to_string() != error)
    };
    match keys.keys().find(is_to_blame) {
        Some(key) => anyhow::bail!("{key}: {error}"),
        None => anyhow::bail!("{error}"),
    }
}
