//! Kafka's message schemas: the JSON of `common/message/*.json` in the clients jar, and this project's own, in the same
//! form, for requests between brokers. Also sets of versions.
//!
//! This module knows nothing of Rust; `emit` turns schemas into code.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The directory of the schemas in the jar.
const SCHEMAS: &str = "common/message/";
/// The schemas of requests that only brokers of this project send each other. Kafka's keys stay far below theirs.
const OWN: [&str; 8] = [
    include_str!("../schemas/CopyBlocksRequest.json"),
    include_str!("../schemas/CopyBlocksResponse.json"),
    include_str!("../schemas/FenceCopiesRequest.json"),
    include_str!("../schemas/FenceCopiesResponse.json"),
    include_str!("../schemas/ReadCopiesRequest.json"),
    include_str!("../schemas/ReadCopiesResponse.json"),
    include_str!("../schemas/LocateRecordsRequest.json"),
    include_str!("../schemas/LocateRecordsResponse.json"),
];
/// Number of bits of a [`Versions`] set. No API has nearly as many versions.
const VERSIONS_MAX: i16 = 63;

/// One schema file.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schema {
    /// Kafka's name of the message.
    pub name: String,
    /// `request`, `response`, `header`, `data`, and other kinds that are not used here.
    #[serde(rename = "type")]
    pub kind: String,
    pub api_key: Option<i16>,
    #[serde(default)]
    pub listeners: Vec<String>,
    /// A range, or `none` for a removed API.
    pub valid_versions: String,
    #[serde(default = "none")]
    pub flexible_versions: String,
    #[serde(default)]
    pub latest_version_unstable: bool,
    #[serde(default)]
    pub fields: Vec<Field>,
    #[serde(default)]
    pub common_structs: Vec<CommonStruct>,
}

/// A struct that several fields of one schema share.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommonStruct {
    pub name: String,
    pub versions: String,
    pub fields: Vec<Field>,
}

/// One field of a struct.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Field {
    pub name: String,
    /// A primitive, the name of a struct, or an array (`[]`) of either.
    #[serde(rename = "type")]
    pub kind: String,
    pub versions: String,
    #[serde(default = "none")]
    pub nullable_versions: String,
    #[serde(default = "none")]
    pub tagged_versions: String,
    pub tag: Option<u32>,
    /// Only one field has this: the client id in the request header, which never becomes compact.
    pub flexible_versions: Option<String>,
    pub default: Option<serde_json::Value>,
    #[serde(default)]
    pub ignorable: bool,
    /// The fields of a struct that this field defines in place.
    #[serde(default)]
    pub fields: Vec<Field>,
    #[serde(rename = "about", default)]
    pub _about: String,
    #[serde(rename = "entityType", default)]
    pub _entity_type: String,
    #[serde(rename = "mapKey", default)]
    pub _map_key: bool,
    #[serde(rename = "zeroCopy", default)]
    pub _zero_copy: bool,
}

fn none() -> String {
    "none".to_owned()
}

/// A set of versions, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions(u64);

impl Versions {
    /// Parses `none`, `3`, `3+` or `3-5`.
    pub fn parse(text: &str) -> Result<Versions> {
        let (low, high) = match text {
            "none" => return Ok(Versions(0)),
            text if text.ends_with('+') => (text.trim_end_matches('+').parse()?, VERSIONS_MAX),
            text => match text.split_once('-') {
                Some((low, high)) => (low.parse()?, high.parse()?),
                None => (text.parse()?, text.parse()?),
            },
        };
        if !(0..=VERSIONS_MAX).contains(&low) || !(low..=VERSIONS_MAX).contains(&high) {
            bail!("the versions {text:?} are not a range within 0-{VERSIONS_MAX}");
        }
        Ok(Versions((low..=high).fold(0, |set, version| set | 1 << version)))
    }

    pub fn and(self, other: Versions) -> Versions {
        Versions(self.0 & other.0)
    }

    pub fn without(self, other: Versions) -> Versions {
        Versions(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn contains(self, version: i16) -> bool {
        self.0 & 1 << version != 0
    }

    pub fn iter(self) -> impl Iterator<Item = i16> {
        (0..=VERSIONS_MAX).filter(move |version| self.contains(*version))
    }

    pub fn first(self) -> Option<i16> {
        self.iter().next()
    }

    pub fn last(self) -> Option<i16> {
        self.iter().last()
    }
}

/// The schemas to generate, by name: requests that a broker answers, their responses, the two headers, and the data
/// that clients and servers store in record values or exchange as opaque bytes.
pub fn load(jar: &Path) -> Result<BTreeMap<String, Schema>> {
    const DATA: [&str; 5] = [
        "AbortedTxn",
        "ConsumerProtocolAssignment",
        "ConsumerProtocolSubscription",
        "ControlRecordTypeSchema",
        "EndTxnMarker",
    ];
    let file = File::open(jar).with_context(|| format!("open {}", jar.display()))?;
    let mut archive = zip::ZipArchive::new(file)?;
    let mut all = BTreeMap::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let path = entry.name()?.to_string();
        if !path.starts_with(SCHEMAS) || !path.ends_with(".json") {
            continue;
        }
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        let schema = parse(&text).with_context(|| path.clone())?;
        all.insert(schema.name.clone(), schema);
    }
    if all.is_empty() {
        bail!("{} holds no schemas under {SCHEMAS}", jar.display());
    }
    for text in OWN {
        let schema = parse(text)?;
        if let Some(theirs) = all.insert(schema.name.clone(), schema) {
            bail!("Kafka has a message {}, too", theirs.name);
        }
    }
    let served: Vec<i16> = all
        .values()
        .filter(|schema| schema.kind == "request" && schema.listeners.iter().any(|name| name == "broker"))
        .filter_map(|schema| schema.api_key)
        .collect();
    all.retain(|name, schema| match schema.kind.as_str() {
        "request" | "response" => schema.api_key.is_some_and(|key| served.contains(&key)),
        "header" => true,
        _ => DATA.contains(&name.as_str()),
    });
    Ok(all)
}

fn parse(text: &str) -> Result<Schema> {
    // Comments are on separate lines.
    let json: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    Ok(serde_json::from_str(&json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_ranges_are_read() {
        let all = |text| Versions::parse(text).unwrap().iter().collect::<Vec<_>>();
        assert_eq!(all("none"), Vec::<i16>::new());
        assert_eq!(all("4"), [4]);
        assert_eq!(all("2-4"), [2, 3, 4]);
        assert_eq!((all("60+").first(), all("60+").last()), (Some(&60), Some(&63)));
        for bad in ["", "x", "4-2", "-1", "64", "1-99"] {
            assert!(Versions::parse(bad).is_err(), "{bad}");
        }
    }
}
