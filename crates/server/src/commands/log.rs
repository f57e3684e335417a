//! `mainstem log`: inspects a data directory without a server, and makes a new one from what is left of a damaged one.
//!
//! The storage crate interprets the bytes. This module handles arguments, names of topics, and output lines. It never
//! writes to the inspected directory. The exit code is 0 if all is well, 1 if something is damaged or was dropped, and
//! 2 if the directory could not be inspected.

use std::fs::DirBuilder;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use disk::DirectoryDisk;
use model::batch::{BatchHeader, TimestampType};
use model::{Offset, StreamId};
use serde_json::json;
use storage::examine::{Inspected, Item, Severity, entries, inspect, verify};
use storage::format::{EntryHeader, EntryKind, RangeBody};
use storage::salvage::{Doing, salvage};
use storage::{Options, SystemClock};
use wire::Bytes;
use wire::records::records;

use super::names::{Names, span};
use super::progress::{Progress, Unit};
use super::{OutputError, Table, objects, print};
use crate::arguments::{Directory, DumpArguments, LogVerb};

/// Bound in bytes of a decompressed batch.
const BATCH_BYTES_MAX: usize = 512 * 1024 * 1024;
/// The exit code if damage was found or data was dropped.
const FOUND: u8 = 1;

/// Runs the command. An error means that the directory could not be inspected.
pub fn log(verb: LogVerb) -> anyhow::Result<ExitCode> {
    match verb {
        LogVerb::Inspect { place, json } => match &place.from {
            Some(bucket) => objects::inspect(bucket, json),
            None => show(&place.directory, json),
        },
        LogVerb::Verify { place } => match &place.from {
            Some(bucket) => objects::verify(bucket),
            None => check(&place.directory),
        },
        LogVerb::Dump(arguments) => dump(&arguments),
        LogVerb::Salvage { directory, into } => rescue(&directory, &into),
    }
}

/// The exit code of a command that looks for damage.
pub(super) fn code(found: bool) -> ExitCode {
    if found { ExitCode::from(FOUND) } else { ExitCode::SUCCESS }
}

/// Opens a data directory for reading, and warns if a server uses it.
fn look(directory: &Path) -> anyhow::Result<DirectoryDisk> {
    let disk = disk::read_directory(directory)
        .with_context(|| format!("the data directory {} cannot be read", directory.display()))?;
    if in_use(directory)? {
        eprintln!(
            "mainstem: a server is running on {}: what it changes meanwhile may look like damage at the end of the log",
            directory.display()
        );
    }
    let names = disk::Disk::list(&disk)?;
    if !names.iter().any(|name| name.ends_with(".log")) {
        bail!("{} holds no log: there is no file NNNNNNNNNN.log in it", directory.display());
    }
    Ok(disk)
}

/// Whether a server uses the directory. The check does not keep a server from starting.
fn in_use(directory: &Path) -> anyhow::Result<bool> {
    match disk::share_directory(directory) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error).context("the lock file cannot be read"),
        Ok(_) => Ok(false),
    }
}

fn show(directory: &Directory, as_json: bool) -> anyhow::Result<ExitCode> {
    let disk = look(&directory.data_dir)?;
    let names = Names::read(directory.metadata());
    let inspected = inspect(&disk).context("the log cannot be read")?;
    let text = if as_json { json_of(&inspected, &names) } else { text_of(&inspected, &names) };
    print(&text)?;
    Ok(code(inspected.opening.is_err()))
}

fn text_of(inspected: &Inspected, names: &Names) -> String {
    let mut text = match inspected.log_id {
        Some(id) => format!("log {id:032x}\n\n"),
        None => "log unknown\n\n".to_owned(),
    };
    let mut table = Table::new(&["SEGMENT", "GENERATION", "STATE", "LENGTH", "DATA", "LIVE", "STREAMS"]);
    for segment in &inspected.segments {
        let numbers =
            [segment.length, segment.data_bytes, segment.live_bytes, segment.streams].map(|n| n.to_string());
        let [length, data, live, streams] = numbers;
        let (generation, state) = (format!("{:x}", segment.generation), segment.state.to_owned());
        table.row([segment.name.clone(), generation, state, length, data, live, streams]);
    }
    text.push_str(&table.to_text());
    text.push('\n');
    let mut table =
        Table::new(&["STREAM", "PARTITION", "START", "NEXT", "BYTES", "EXTENTS", "COMPACTED", "PRODUCERS"]);
    for stream in &inspected.streams {
        let name = names.0.get(&stream.stream).map_or("-".to_owned(), |(topic, p)| format!("{topic}-{p}"));
        table.row([
            stream.stream.0.to_string(),
            name,
            stream.start.to_string(),
            stream.next.to_string(),
            stream.bytes.to_string(),
            stream.extents.to_string(),
            stream.compacted.to_string(),
            stream.producers.to_string(),
        ]);
    }
    text.push_str(&table.to_text());
    text.push('\n');
    text.push_str(&match &inspected.opening {
        Ok(report) if report.dropped_blocks == 0 => format!("the log ends at {}\n", report.end),
        Ok(report) => format!(
            "the log ends at {}; opening drops {} blocks ({} bytes) behind it that were never acknowledged\n",
            report.end, report.dropped_blocks, report.dropped_bytes
        ),
        Err(error) => format!(
            "a server refuses to open it: {error}\nwhat is shown is what is left; `mainstem log verify` says what is damaged\n"
        ),
    });
    text
}

fn json_of(inspected: &Inspected, names: &Names) -> String {
    let segments: Vec<_> = inspected
        .segments
        .iter()
        .map(|segment| {
            json!({
                "name": segment.name, "sequence": segment.sequence, "generation": segment.generation,
                "length": segment.length, "state": segment.state, "data_bytes": segment.data_bytes,
                "live_bytes": segment.live_bytes, "streams": segment.streams,
            })
        })
        .collect();
    let streams: Vec<_> = inspected
        .streams
        .iter()
        .map(|stream| {
            let name = names.0.get(&stream.stream);
            json!({
                "stream": stream.stream.0, "topic": name.map(|name| &name.0),
                "partition": name.map(|name| name.1), "start": stream.start.0, "next": stream.next.0,
                "bytes": stream.bytes, "extents": stream.extents, "compacted": stream.compacted.0,
                "producers": stream.producers,
            })
        })
        .collect();
    let report = inspected.opening.as_ref().ok();
    let end = report.map(|report| json!({"segment": report.end.sequence(), "byte": report.end.byte()}));
    let whole = json!({
        "log_id": inspected.log_id.map(|id| format!("{id:032x}")),
        "segments": segments,
        "streams": streams,
        "end": end,
        "dropped_blocks": report.map(|report| report.dropped_blocks),
        "dropped_bytes": report.map(|report| report.dropped_bytes),
        "refused": inspected.opening.as_ref().err().map(ToString::to_string),
    });
    format!("{whole:#}\n")
}

fn check(directory: &Directory) -> anyhow::Result<ExitCode> {
    let disk = look(&directory.data_dir)?;
    let names = Names::read(directory.metadata());
    let progress = Progress::new(Unit::Bytes);
    let verified = verify(&disk, &|done, all| progress.show("verifying", done, all))
        .context("the log cannot be read")?;
    drop(progress);
    let mut text = String::new();
    let mut counts = [0; 3];
    for finding in &verified.findings {
        let (at, severity) = match finding.severity {
            Severity::Note => (0, "note: "),
            Severity::Warning => (1, "warning: "),
            Severity::Error => (2, "error: "),
        };
        counts[at] += 1;
        text.push_str(&names.finding(severity, finding));
    }
    let checked = &verified.checked;
    let [notes, warnings, errors] = counts;
    text.push_str(&format!(
        "checked {} segments, {} blocks, {} batches in {} entries, {} bytes, up to {}\n",
        checked.segments, checked.blocks, checked.batches, checked.entries, checked.bytes, verified.end
    ));
    text.push_str(&match (warnings + errors, &verified.opening) {
        (0, _) => format!("no damage; {notes} notes\n"),
        (_, Ok(_)) => format!("{errors} errors, {warnings} warnings; a server opens it\n"),
        (_, Err(_)) => format!("{errors} errors, {warnings} warnings; a server refuses to open it\n"),
    });
    print(&text)?;
    Ok(code(warnings + errors > 0))
}

fn dump(arguments: &DumpArguments) -> anyhow::Result<ExitCode> {
    let disk = look(&arguments.directory.data_dir)?;
    let names = Names::read(arguments.directory.metadata());
    let stream = match (&arguments.topic, arguments.stream) {
        (Some(topic), _) => {
            let wanted = (topic.clone(), arguments.partition.unwrap_or_default());
            let found = names.0.iter().find(|(_, name)| **name == wanted).map(|(id, _)| *id);
            Some(found.with_context(|| format!("there is no partition {} of {topic}", wanted.1))?)
        }
        (None, stream) => stream.map(StreamId),
    };
    let mut dumping = Dumping {
        output: BufWriter::new(io::stdout().lock()),
        names,
        stream,
        from: Offset(arguments.from),
        records: arguments.records,
        damaged: false,
        failed: None,
    };
    let wanted = |name: &str| arguments.segment.as_ref().is_none_or(|segment| segment == name);
    let findings = entries(&disk, wanted, |item| {
        dumping.failed = dumping.line(&item).err();
        dumping.failed.is_none()
    })
    .context("the log cannot be read")?;
    for finding in findings.iter().filter(|finding| wanted(&finding.file)) {
        let line = dumping.names.finding("damage: ", finding);
        dumping.output.write_all(line.as_bytes()).map_err(OutputError)?;
        dumping.damaged = true;
    }
    match dumping.failed.take() {
        Some(error) => Err(OutputError(error).into()),
        None => {
            dumping.output.flush().map_err(OutputError)?;
            Ok(code(dumping.damaged))
        }
    }
}

/// Prints the entries that it receives.
struct Dumping {
    output: BufWriter<StdoutLock<'static>>,
    names: Names,
    stream: Option<StreamId>,
    from: Offset,
    records: bool,
    damaged: bool,
    failed: Option<io::Error>,
}

impl Dumping {
    fn line(&mut self, item: &Item) -> io::Result<()> {
        match item {
            Item::Damage { file, from, to, what } => {
                self.damaged = true;
                writeln!(self.output, "damage: {file} bytes {from} to {}: {what}", to - 1)
            }
            Item::Entry { file, position, header, body, batch } => {
                let end = header.base_offset + i64::from(header.offset_count.max(1));
                if self.stream.is_some_and(|stream| stream != header.stream) || end <= self.from {
                    return Ok(());
                }
                let name = self.names.of(header.stream);
                write!(self.output, "{file} {position} {name} ")?;
                match batch {
                    Ok(Some(batch)) => self.batch(batch, body),
                    Ok(None) => self.event(header, body),
                    Err(what) => {
                        self.damaged = true;
                        let offsets = span(header.base_offset, end);
                        writeln!(self.output, "offsets {offsets} damage: {what}")
                    }
                }
            }
        }
    }

    fn event(&mut self, header: &EntryHeader, body: &[u8]) -> io::Result<()> {
        match header.kind {
            EntryKind::Batch => Ok(()),
            EntryKind::Trim => writeln!(self.output, "trim: it starts at {}", header.base_offset),
            EntryKind::Delete => writeln!(self.output, "deleted"),
            EntryKind::Range => {
                let end = RangeBody::decode(body).map_or(header.base_offset, |body| body.end);
                writeln!(self.output, "range: what follows is all of {}", span(header.base_offset, end))
            }
        }
    }

    fn batch(&mut self, batch: &BatchHeader, body: &[u8]) -> io::Result<()> {
        let offsets = span(batch.base_offset, batch.next_offset());
        let codec = format!("{:?}", batch.compression()).to_lowercase();
        write!(self.output, "offsets {offsets} records {} codec {codec}", batch.count)?;
        if batch.is_idempotent() {
            let (id, epoch, sequence) = (batch.producer_id, batch.producer_epoch, batch.base_sequence);
            write!(self.output, " producer {id} epoch {epoch} sequence {sequence}")?;
        }
        for (set, word) in [
            (batch.is_transactional(), " transactional"),
            (batch.is_control(), " control"),
            (batch.timestamp_type() == TimestampType::LogAppendTime, " log-append-time"),
        ] {
            self.output.write_all(if set { word.as_bytes() } else { b"" })?;
        }
        let (first, last) = (batch.base_timestamp.0, batch.max_timestamp.0);
        writeln!(self.output, " timestamps {first} to {last} bytes {}", batch.total_bytes)?;
        if !self.records || batch.count == 0 {
            return Ok(());
        }
        match records(&Bytes::copy_from_slice(body), BATCH_BYTES_MAX) {
            Err(error) => writeln!(self.output, "    {error}"),
            Ok((header, all)) => {
                for record in all {
                    let record = match record {
                        Ok(record) => record,
                        Err(error) => return writeln!(self.output, "    {error}"),
                    };
                    let offset = header.base_offset + i64::from(record.offset_delta);
                    if offset < self.from {
                        continue;
                    }
                    let timestamp = match header.timestamp_type() {
                        TimestampType::CreateTime => {
                            header.base_timestamp.0.saturating_add(record.timestamp_delta)
                        }
                        TimestampType::LogAppendTime => header.max_timestamp.0,
                    };
                    let (key, value) = (readable(record.key.as_ref()), readable(record.value.as_ref()));
                    write!(self.output, "    {offset} {timestamp} {key} {value}")?;
                    for (name, value) in record.headers.iter() {
                        write!(self.output, " {}={}", readable(Some(&name)), readable(value.as_ref()))?;
                    }
                    writeln!(self.output)?;
                }
                Ok(())
            }
        }
    }
}

/// Text in quotes, other bytes in hexadecimal.
fn readable(bytes: Option<&Bytes>) -> String {
    let Some(bytes) = bytes else { return "null".into() };
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => format!("{text:?}"),
        _ => bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    }
}

fn rescue(from: &Directory, into: &Path) -> anyhow::Result<ExitCode> {
    let (directory, metadata) = (&from.data_dir, from.metadata());
    let source = disk::read_directory(directory)
        .with_context(|| format!("the data directory {} cannot be read", directory.display()))?;
    // The directory must not change until everything is copied.
    let _kept = match disk::share_directory(directory) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            bail!("a server is running on {}: stop it first", directory.display())
        }
        kept => kept.context("the lock file cannot be read")?,
    };
    // Without its topics, a server would drop every stream.
    let names = Names(broker::stream_names(metadata).with_context(|| {
        format!(
            "{} does not say which topics there are; name the directory of meta.redb with --metadata",
            metadata.display()
        )
    })?);
    let created = DirBuilder::new().recursive(true).mode(0o700).create(into);
    created.with_context(|| format!("{} cannot be created", into.display()))?;
    if std::fs::read_dir(into)?.next().is_some() {
        bail!("{} is not empty: name a new directory", into.display());
    }
    let _lock = disk::lock_directory(into)?;
    let target = disk::open_directory(into, disk::Engine::Auto)
        .with_context(|| format!("{} cannot be written to", into.display()))?;
    let options = Options { log_id: random(), ..Options::default() };
    let progress = Progress::new(Unit::Bytes);
    let show = |doing: Doing, done, all| match doing {
        Doing::Reading => progress.show("reading", done, all),
        Doing::Copying => progress.show("copying", done, all),
    };
    let salvaged = salvage(&source, Arc::new(target), options, Arc::new(SystemClock::default()), &show)
        .with_context(|| format!("what is in {} is worth nothing", into.display()))?;
    drop(progress);
    // The metadata is copied last. Without it, a server takes the directory for one without topics and refuses to
    // start.
    if from.metadata.is_none() {
        broker::copy_metadata(metadata, into).context("the metadata cannot be copied")?;
    }
    let mut text = String::new();
    let (mut offsets, mut batches, mut exact) = (0, 0, true);
    for finding in &salvaged.dropped {
        text.push_str(&names.finding("dropped: ", finding));
        exact &= !finding.hits.is_empty();
        for hit in &finding.hits {
            offsets += hit.to - hit.from;
            batches += hit.batches.unwrap_or_default();
            exact &= hit.batches.is_some();
        }
    }
    text.push_str(&format!(
        "salvaged {} batches ({} bytes) of {} streams into {}\n",
        salvaged.batches,
        salvaged.bytes,
        salvaged.streams,
        into.display()
    ));
    text.push_str(&match (salvaged.dropped.len(), exact) {
        (0, _) => "nothing was dropped\n".to_owned(),
        (places, true) => format!("dropped {offsets} offsets in {batches} batches, at {places} places\n"),
        (places, false) => {
            format!("dropped {offsets} offsets or more, in {batches} batches or more, at {places} places\n")
        }
    });
    print(&text)?;
    Ok(code(!salvaged.dropped.is_empty()))
}

/// A random number from the seed of the standard hash tables.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_readable() {
        assert_eq!(readable(None), "null");
        assert_eq!(readable(Some(&Bytes::from_static("a\nä".as_bytes()))), "\"a\\nä\"");
        assert_eq!(readable(Some(&Bytes::from_static(b"\xff\x01"))), "0xff01");
    }
}
