//! `mainstem log inspect` and `verify` on a bucket: the objects of all logs in it.
//!
//! The storage crate interprets the objects. Names of topics come from the metadata snapshots in the bucket.

use std::collections::BTreeMap;
use std::process::ExitCode;

use broker::snapshots::Snapshot;
use broker::snapshots::restore::{clusters, newest};
use model::{Offset, StreamId};
use serde_json::{Value, json};
use storage::bucket::{self, InspectedObjects};
use storage::examine::{Finding, Severity, StreamSummary};
use storage::restore::{Asking, KnownBounds};

use super::log::{checked_to_json, code};
use super::names::{Names, counts, word};
use super::store::{Store, pause};
use super::{Table, show};
use crate::arguments::Output;

/// The bounds of a stream of which only its objects know.
const UNKNOWN: KnownBounds =
    KnownBounds { start: Offset::ZERO, next: Offset::ZERO, stored: Some(Offset::ZERO) };

/// The newest snapshots in a bucket, of each cluster one.
pub struct Snapshots(Vec<Snapshot>);

/// A log of the bucket, with what the snapshots know of its streams.
pub struct Log {
    pub id: u128,
    pub names: Names,
    /// `None` without a snapshot of the log's cluster.
    streams: Option<BTreeMap<StreamId, KnownBounds>>,
    next_stream: StreamId,
}

impl Snapshots {
    /// Reads them. Clusters without a usable snapshot are left out, which is said.
    pub fn read(store: &Store) -> anyhow::Result<Snapshots> {
        let mut found = Vec::new();
        for cluster in clusters(&*store.bucket, pause)? {
            match newest(&*store.bucket, Some(&cluster), pause) {
                Ok(newest) => found.push(newest.snapshot),
                Err(error) => eprintln!("mainstem: topics of {cluster} are not known: {error}"),
            }
        }
        Ok(Snapshots(found))
    }

    /// What is known of a log.
    pub fn log(&self, id: u128) -> anyhow::Result<Log> {
        for snapshot in &self.0 {
            let all = snapshot.logs()?;
            let Some(log) = all.iter().find(|log| log.id.as_u128() == id) else { continue };
            let streams = snapshot.streams_of(log.id)?.into_iter();
            let known = |(id, bounds): (StreamId, Option<KnownBounds>)| (id, bounds.unwrap_or(UNKNOWN));
            return Ok(Log {
                id,
                names: Names(snapshot.stream_names()?),
                streams: Some(streams.map(known).collect()),
                next_stream: snapshot.next_stream()?,
            });
        }
        Ok(Log { id, names: Names(BTreeMap::new()), streams: None, next_stream: StreamId(0) })
    }
}

impl Log {
    /// What is known of a stream. `None` if it was deleted.
    pub fn known(&self, stream: StreamId) -> Option<KnownBounds> {
        match &self.streams {
            Some(streams) if stream < self.next_stream => streams.get(&stream).copied(),
            // Nobody knows better than the objects.
            _ => Some(UNKNOWN),
        }
    }

    fn findings_to_json(&self, findings: &[Finding]) -> Value {
        findings.iter().map(|finding| self.names.finding_to_json(finding)).collect()
    }

    /// Describes its objects.
    pub fn inspect(&self, asking: &Asking) -> anyhow::Result<InspectedObjects> {
        Ok(bucket::inspect(asking, self.id, &|stream| self.known(stream))?)
    }
}

/// All logs in the bucket.
pub fn logs_of(store: &Store) -> anyhow::Result<Vec<Log>> {
    let snapshots = Snapshots::read(store)?;
    let ids = store.asking("listing", |asking| bucket::logs(&asking))?;
    ids.into_keys().map(|id| snapshots.log(id)).collect()
}

/// Runs `log inspect` on a bucket.
pub fn inspect(address: &str, output: Output) -> anyhow::Result<ExitCode> {
    let store = Store::open(address)?;
    let (mut text, mut whole, mut damaged) = (String::new(), Vec::new(), false);
    let logs = logs_of(&store)?;
    for log in &logs {
        let inspected = store.asking("reading", |asking| log.inspect(&asking))?;
        damaged |= inspected.findings.iter().any(|finding| finding.severity == Severity::Error);
        match output {
            Output::Json => whole.push(json_of(log, &inspected)),
            Output::Text => text.push_str(&text_of(log, &inspected)),
        }
    }
    if logs.is_empty() {
        text = format!("{address} has no objects of a log\n");
    }
    show(output, || text, || json!({ "logs": whole }))?;
    Ok(code(damaged))
}

fn text_of(log: &Log, inspected: &InspectedObjects) -> String {
    let bytes: u64 = inspected.objects.iter().map(|object| object.bytes).sum();
    let mut text = format!("log {:032x}, {} objects, {bytes} bytes\n\n", log.id, inspected.objects.len());
    let mut table = Table::new(&["OBJECT", "BYTES", "RANGES", "BATCHES", "BATCH BYTES", "LIVE BYTES"]);
    for object in &inspected.objects {
        table.row([
            object.number.to_string(),
            object.bytes.to_string(),
            object.ranges.to_string(),
            object.batches.to_string(),
            object.batch_bytes.to_string(),
            object.live_bytes.to_string(),
        ]);
    }
    text.push_str(&table.to_text());
    text.push('\n');
    let mut table =
        Table::new(&["STREAM", "PARTITION", "START", "STORED TO", "BYTES", "RANGES", "PRODUCERS"]);
    for stream in &inspected.streams {
        table.row([
            stream.stream.0.to_string(),
            name(log, stream),
            stream.start.to_string(),
            stream.next.to_string(),
            stream.bytes.to_string(),
            stream.extents.to_string(),
            stream.producers.to_string(),
        ]);
    }
    text.push_str(&table.to_text());
    text.push('\n');
    inspected.findings.iter().for_each(|finding| text.push_str(&line(log, finding)));
    text
}

fn name(log: &Log, stream: &StreamSummary) -> String {
    let name = log.names.0.get(&stream.stream);
    name.map_or("-".to_owned(), |(topic, partition)| format!("{topic}-{partition}"))
}

fn line(log: &Log, finding: &Finding) -> String {
    log.names.finding(word(finding.severity), finding)
}

fn json_of(log: &Log, inspected: &InspectedObjects) -> Value {
    let object = |object: &bucket::ObjectSummary| {
        json!({
            "number": object.number, "bytes": object.bytes, "ranges": object.ranges, "batches": object.batches,
            "batch_bytes": object.batch_bytes, "live_bytes": object.live_bytes,
        })
    };
    let stream = |stream: &StreamSummary| {
        let name = log.names.0.get(&stream.stream);
        json!({
            "stream": stream.stream.0, "topic": name.map(|name| &name.0),
            "partition": name.map(|name| name.1), "start": stream.start.0, "stored_to": stream.next.0,
            "bytes": stream.bytes, "ranges": stream.extents, "producers": stream.producers,
        })
    };
    json!({
        "log_id": format!("{:032x}", log.id),
        "objects": inspected.objects.iter().map(object).collect::<Vec<_>>(),
        "streams": inspected.streams.iter().map(stream).collect::<Vec<_>>(),
        "findings": log.findings_to_json(&inspected.findings),
    })
}

/// Runs `log verify` on a bucket.
pub fn verify(address: &str, output: Output) -> anyhow::Result<ExitCode> {
    let store = Store::open(address)?;
    let (mut text, mut whole, mut all) = (String::new(), Vec::new(), [0; 3]);
    for log in logs_of(&store)? {
        let known = |stream: StreamId| log.known(stream);
        let verified = store.asking("verifying", |asking| bucket::verify(&asking, log.id, &known))?;
        for (sum, count) in all.iter_mut().zip(counts(verified.findings.iter())) {
            *sum += count;
        }
        verified.findings.iter().for_each(|finding| text.push_str(&line(&log, finding)));
        let checked = &verified.checked;
        text.push_str(&format!(
            "log {:032x}: checked {} objects, {} blocks, {} batches in {} entries, {} bytes\n",
            log.id, checked.segments, checked.blocks, checked.batches, checked.entries, checked.bytes
        ));
        whole.push(json!({
            "log_id": format!("{:032x}", log.id), "findings": log.findings_to_json(&verified.findings),
            "checked": checked_to_json(checked),
        }));
    }
    let [notes, warnings, errors] = all;
    text.push_str(&match errors + warnings {
        0 => format!("no damage; {notes} notes\n"),
        _ => format!("{errors} errors, {warnings} warnings\n"),
    });
    show(output, || text, || json!({"logs": whole, "notes": notes, "warnings": warnings, "errors": errors}))?;
    Ok(code(errors + warnings > 0))
}
