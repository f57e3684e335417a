//! Streams by the names of their topics, and the lines about findings.

use std::collections::BTreeMap;
use std::path::Path;

use model::{Offset, StreamId};
use serde_json::{Map, Value, json};
use storage::examine::{Finding, Hit, Severity};

/// The topic and partition of each stream.
pub struct Names(pub BTreeMap<StreamId, (String, i32)>);

impl Names {
    /// Reads the names. Without the metadata, streams are shown by their ids.
    pub fn read(directory: &Path) -> Names {
        Names(broker::stream_names(directory).unwrap_or_else(|error| {
            eprintln!("mainstem: topics are not known, streams go by their ids: {error}");
            BTreeMap::new()
        }))
    }

    pub fn of(&self, stream: StreamId) -> String {
        match self.0.get(&stream) {
            Some((topic, partition)) => format!("{topic}-{partition}"),
            None => stream.to_string(),
        }
    }

    pub fn hit(&self, hit: &Hit) -> String {
        let batches = match hit.batches {
            Some(1) => " (1 batch)".to_owned(),
            Some(batches) => format!(" ({batches} batches)"),
            None => String::new(),
        };
        format!("{} offsets {}{batches}", self.of(hit.stream), span(hit.from, hit.to))
    }

    /// The stream of an object in JSON, with its topic if that is known.
    pub fn stream_to_json(&self, stream: StreamId) -> Map<String, Value> {
        let name = self.0.get(&stream);
        let mut object = Map::new();
        object.insert("stream".into(), stream.0.into());
        object.insert("topic".into(), name.map(|(topic, _)| topic.as_str()).into());
        object.insert("partition".into(), name.map(|(_, partition)| *partition).into());
        object
    }

    /// A finding in JSON. The ends of bytes and offsets are those behind the last.
    pub fn finding_to_json(&self, finding: &Finding) -> Value {
        let hit = |hit: &Hit| {
            let mut object = self.stream_to_json(hit.stream);
            object.insert("from".into(), hit.from.0.into());
            object.insert("to".into(), hit.to.0.into());
            object.insert("batches".into(), hit.batches.into());
            object
        };
        json!({
            "severity": word(finding.severity), "file": finding.file, "from": finding.from, "to": finding.to,
            "what": finding.what, "hits": finding.hits.iter().map(hit).collect::<Vec<_>>(),
        })
    }

    /// A line about a finding, behind a word about it.
    pub fn finding(&self, word: &str, finding: &Finding) -> String {
        format!("{word}: {}\n", self.place(finding))
    }

    /// Where something was found, and what.
    pub fn place(&self, finding: &Finding) -> String {
        let place = match (finding.file.as_str(), finding.to > finding.from) {
            ("", _) => "log".to_owned(),
            (file, true) => format!("{file} bytes {} to {}", finding.from, finding.to - 1),
            (file, false) if finding.from > 0 => format!("{file} byte {}", finding.from),
            (file, false) => file.to_owned(),
        };
        let hits: Vec<String> = finding.hits.iter().map(|hit| self.hit(hit)).collect();
        let hits = if hits.is_empty() { String::new() } else { format!(": {}", hits.join(", ")) };
        format!("{place}: {}{hits}", finding.what)
    }
}

/// How bad a finding is.
pub fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

/// The numbers of notes, warnings and errors.
pub fn counts<'a>(findings: impl Iterator<Item = &'a Finding>) -> [usize; 3] {
    let mut counts = [0; 3];
    for finding in findings {
        counts[match finding.severity {
            Severity::Note => 0,
            Severity::Warning => 1,
            Severity::Error => 2,
        }] += 1;
    }
    counts
}

/// The range from the first to the last offset, as text.
pub fn span(from: Offset, to: Offset) -> String {
    if to - from <= 1 { from.to_string() } else { format!("{from} to {}", to + -1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_file_bytes_and_records() {
        let names = Names(BTreeMap::from([(StreamId(7), ("orders".to_owned(), 2))]));
        let hit = |stream, from, to, batches| Hit {
            stream: StreamId(stream),
            from: Offset(from),
            to: Offset(to),
            batches,
        };
        let finding = Finding {
            severity: Severity::Error,
            file: "0000000001.log".into(),
            from: 4096,
            to: 8192,
            what: "there is no valid block header".into(),
            hits: vec![hit(7, 10, 20, Some(2)), hit(9, 5, 6, None)],
        };
        assert_eq!(
            names.finding("error", &finding),
            "error: 0000000001.log bytes 4096 to 8191: there is no valid block header: \
             orders-2 offsets 10 to 19 (2 batches), stream 9 offsets 5\n"
        );
        assert_eq!(
            names.finding_to_json(&finding),
            json!({
                "severity": "error", "file": "0000000001.log", "from": 4096, "to": 8192,
                "what": "there is no valid block header",
                "hits": [
                    {"stream": 7, "topic": "orders", "partition": 2, "from": 10, "to": 20, "batches": 2},
                    {"stream": 9, "topic": null, "partition": null, "from": 5, "to": 6, "batches": null},
                ],
            })
        );
    }
}
