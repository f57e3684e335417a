//! References in values to other places: `${env:NAME}`, `${file:/path}` and `${file:/path:key}`.
//!
//! With a reference, a secret is neither in the configuration file nor in the arguments of the process. The last form
//! reads a properties file, as Kafka's FileConfigProvider does.

use std::collections::BTreeMap;
use std::path::Path;

use client::properties;

/// Bound in bytes of a referenced file. A larger file is a mistake.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Whether `text` is exactly one reference, which reveals no secret.
pub fn is_reference(text: &str) -> bool {
    let inner = text.trim().strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    inner.is_some_and(|inner| {
        (inner.starts_with("env:") || inner.starts_with("file:")) && !inner.contains(['{', '}'])
    })
}

/// `text` with every reference replaced by the value that it names.
pub fn resolve(text: &str, environment: &BTreeMap<String, String>) -> Result<String, String> {
    let mut resolved = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        resolved.push_str(before);
        let inner = &from[2..];
        let kind = ["env:", "file:"].into_iter().find(|kind| inner.starts_with(kind));
        let Some(kind) = kind else {
            resolved.push_str("${");
            rest = inner;
            continue;
        };
        let end = inner.find('}').ok_or("a reference begins with ${ and has no end")?;
        let named = &inner[kind.len()..end];
        match kind {
            "env:" => {
                let value = environment.get(named);
                resolved.push_str(value.ok_or_else(|| format!("there is no environment variable {named}"))?);
            }
            _ => resolved.push_str(&from_file(named)?),
        }
        rest = &inner[end + 1..];
    }
    resolved.push_str(rest);
    Ok(resolved)
}

fn from_file(named: &str) -> Result<String, String> {
    let (path, key) = match named.split_once(':') {
        Some((path, key)) => (path, Some(key)),
        None => (named, None),
    };
    let unreadable = |error: std::io::Error| format!("the file {path} cannot be read: {error}");
    let length = std::fs::metadata(Path::new(path)).map_err(unreadable)?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!("the file {path} has {length} bytes, too many for a setting"));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    match key {
        None => Ok(text.trim().to_owned()),
        Some(key) => {
            properties::parse(&text).remove(key).ok_or_else(|| format!("the file {path} has no key {key}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_wherever_they_stand() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets");
        std::fs::write(&path, " whole \n").unwrap();
        let properties = directory.path().join("p.properties");
        std::fs::write(&properties, "# c\nkey = old\nother: a b\nkey=one\\\n  two\n").unwrap();
        let environment = BTreeMap::from([("NAME".to_owned(), "value".to_owned())]);
        let of = |text: String| resolve(&text, &environment);
        assert_eq!(of("a ${env:NAME}/${env:NAME} $1 ${x}".into()), Ok("a value/value $1 ${x}".into()));
        assert_eq!(of(format!("${{file:{}}}", path.display())), Ok("whole".into()));
        assert_eq!(of(format!("${{file:{}:key}}", properties.display())), Ok("onetwo".into()));
        assert_eq!(of(format!("${{file:{}:other}}", properties.display())), Ok("a b".into()));
        assert!(
            of(format!("${{file:{}:none}}", properties.display())).unwrap_err().ends_with("has no key none")
        );
        assert_eq!(of("${env:GONE}".into()).unwrap_err(), "there is no environment variable GONE");
        assert!(
            of("${file:/nowhere/x}".into()).unwrap_err().starts_with("the file /nowhere/x cannot be read")
        );
        assert!(of("${env:NAME".into()).is_err());
        assert!(
            is_reference(" ${env:A} ") && !is_reference("x${env:A}") && !is_reference("${env:A}${env:B}")
        );
    }
}
