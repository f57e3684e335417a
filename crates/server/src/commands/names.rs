//! Streams by the names of their topics, and the lines about findings.

use std::collections::BTreeMap;
use std::path::Path;

use model::{Offset, StreamId};
use storage::examine::{Finding, Hit};

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

    pub fn finding(&self, severity: &str, finding: &Finding) -> String {
        let place = match (finding.file.as_str(), finding.to > finding.from) {
            ("", _) => "log".to_owned(),
            (file, true) => format!("{file} bytes {} to {}", finding.from, finding.to - 1),
            (file, false) if finding.from > 0 => format!("{file} byte {}", finding.from),
            (file, false) => file.to_owned(),
        };
        let hits: Vec<String> = finding.hits.iter().map(|hit| self.hit(hit)).collect();
        let hits = if hits.is_empty() { String::new() } else { format!(": {}", hits.join(", ")) };
        format!("{severity}{place}: {}{hits}\n", finding.what)
    }
}

/// The range from the first to the last offset, as text.
pub fn span(from: Offset, to: Offset) -> String {
    if to - from <= 1 { from.to_string() } else { format!("{from} to {}", to + -1) }
}

#[cfg(test)]
mod tests {
    use storage::examine::Severity;

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
            names.finding("error: ", &finding),
            "error: 0000000001.log bytes 4096 to 8191: there is no valid block header: \
             orders-2 offsets 10 to 19 (2 batches), stream 9 offsets 5\n"
        );
    }
}
