//! `mainstem log dump`: the entries of a log as they stand in its files.

use std::io::{self, BufWriter, StdoutLock, Write};
use std::process::ExitCode;

use anyhow::Context;
use model::batch::{BatchHeader, TimestampType};
use model::{Offset, StreamId};
use serde_json::{Map, Value, json};
use storage::examine::{Item, entries};
use storage::format::{EntryHeader, EntryKind, RangeBody};
use wire::Bytes;
use wire::records::{RecordError, RecordView, records};

use super::OutputError;
use super::format;
use super::log::{code, look};
use super::names::{Names, span};
use crate::arguments::{DumpArguments, Output};

/// Bound in bytes of a decompressed batch.
const BATCH_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Runs the command. With JSON, each entry is an object in a line of its own.
pub fn dump(arguments: &DumpArguments, output: Output) -> anyhow::Result<ExitCode> {
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
        let printed = match output {
            Output::Text => dumping.line(&item),
            Output::Json => dumping.object(&item),
        };
        dumping.failed = printed.err();
        dumping.failed.is_none()
    })
    .context("the log cannot be read")?;
    for finding in findings.iter().filter(|finding| wanted(&finding.file)) {
        let line = match output {
            Output::Text => dumping.names.finding("damage", finding),
            Output::Json => format!("{}\n", json!({"damage": dumping.names.finding_to_json(finding)})),
        };
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
                let Some(end) = self.end_if_wanted(header) else { return Ok(()) };
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

    /// The offset behind an entry, unless other entries are asked for.
    fn end_if_wanted(&self, header: &EntryHeader) -> Option<Offset> {
        let end = header.base_offset + i64::from(header.offset_count.max(1));
        let wanted = self.stream.is_none_or(|stream| stream == header.stream) && end > self.from;
        wanted.then_some(end)
    }

    /// Prints an entry as an object in one line. The ends of bytes and offsets are those behind the last.
    fn object(&mut self, item: &Item) -> io::Result<()> {
        let object = match item {
            Item::Damage { file, from, to, what } => {
                self.damaged = true;
                json!({"damage": {"file": file, "from": from, "to": to, "what": what}})
            }
            Item::Entry { file, position, header, body, batch } => {
                let Some(end) = self.end_if_wanted(header) else { return Ok(()) };
                let mut object = self.names.stream_to_json(header.stream);
                object.insert("file".into(), (*file).into());
                object.insert("position".into(), (*position).into());
                object.insert("from".into(), header.base_offset.0.into());
                object.insert("to".into(), end.0.into());
                match batch {
                    Ok(Some(batch)) => self.put_batch(&mut object, batch, body),
                    Ok(None) => put_event(&mut object, header, body),
                    Err(what) => {
                        self.damaged = true;
                        object.insert("damage".into(), json!({ "what": what.to_string() }));
                    }
                }
                Value::Object(object)
            }
        };
        writeln!(self.output, "{object}")
    }

    fn put_batch(&self, object: &mut Map<String, Value>, batch: &BatchHeader, body: &[u8]) {
        object.insert("to".into(), batch.next_offset().0.into());
        object.insert("kind".into(), "batch".into());
        object.insert("bytes".into(), batch.total_bytes.into());
        object.insert("record_count".into(), batch.count.into());
        object.insert("codec".into(), codec(batch).into());
        object.insert("first_timestamp".into(), batch.base_timestamp.0.into());
        object.insert("last_timestamp".into(), batch.max_timestamp.0.into());
        object.insert("transactional".into(), batch.is_transactional().into());
        object.insert("control".into(), batch.is_control().into());
        object.insert(
            "log_append_time".into(),
            (batch.timestamp_type() == TimestampType::LogAppendTime).into(),
        );
        if batch.is_idempotent() {
            object.insert("producer".into(), batch.producer_id.into());
            object.insert("epoch".into(), batch.producer_epoch.into());
            object.insert("sequence".into(), batch.base_sequence.into());
        }
        if !self.records || batch.count == 0 {
            return;
        }
        let read = records_from(body, self.from).and_then(|all| {
            let one = |(offset, timestamp, record): (Offset, i64, RecordView)| {
                let mut object = Map::new();
                format::put_record(&mut object, offset.0, timestamp, &record);
                object
            };
            all.map(|record| record.map(one)).collect::<Result<Vec<_>, _>>()
        });
        match read {
            Ok(all) => object.insert("records".into(), json!(all)),
            Err(error) => object.insert("records_error".into(), error.to_string().into()),
        };
    }

    fn event(&mut self, header: &EntryHeader, body: &[u8]) -> io::Result<()> {
        match header.kind {
            EntryKind::Batch => Ok(()),
            EntryKind::Trim => writeln!(self.output, "trim: it starts at {}", header.base_offset),
            EntryKind::Delete => writeln!(self.output, "deleted"),
            EntryKind::Range => {
                let offsets = span(header.base_offset, range_end(header, body));
                writeln!(self.output, "range: what follows is all of {offsets}")
            }
        }
    }

    fn batch(&mut self, batch: &BatchHeader, body: &[u8]) -> io::Result<()> {
        let offsets = span(batch.base_offset, batch.next_offset());
        write!(self.output, "offsets {offsets} records {} codec {}", batch.count, codec(batch))?;
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
        let all = match records_from(body, self.from) {
            Ok(all) => all,
            Err(error) => return writeln!(self.output, "    {error}"),
        };
        for record in all {
            let (offset, timestamp, record) = match record {
                Ok(record) => record,
                Err(error) => return writeln!(self.output, "    {error}"),
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

fn put_event(object: &mut Map<String, Value>, header: &EntryHeader, body: &[u8]) {
    let kind = match header.kind {
        EntryKind::Batch => "batch",
        EntryKind::Trim => "trim",
        EntryKind::Delete => "delete",
        EntryKind::Range => {
            object.insert("to".into(), range_end(header, body).0.into());
            "range"
        }
    };
    object.insert("kind".into(), kind.into());
}

fn range_end(header: &EntryHeader, body: &[u8]) -> Offset {
    RangeBody::decode(body).map_or(header.base_offset, |body| body.end)
}

fn codec(batch: &BatchHeader) -> String {
    format!("{:?}", batch.compression()).to_lowercase()
}

type Recorded = Result<(Offset, i64, RecordView), RecordError>;

/// The records of a batch with this offset or a higher one, each with its offset and its timestamp in milliseconds.
fn records_from(body: &[u8], from: Offset) -> Result<impl Iterator<Item = Recorded>, RecordError> {
    let (header, all) = records(&Bytes::copy_from_slice(body), BATCH_BYTES_MAX)?;
    let place = move |record: RecordView| {
        let timestamp = match header.timestamp_type() {
            TimestampType::CreateTime => header.base_timestamp.0.saturating_add(record.timestamp_delta),
            TimestampType::LogAppendTime => header.max_timestamp.0,
        };
        (header.base_offset + i64::from(record.offset_delta), timestamp, record)
    };
    let wanted = move |record: &Recorded| record.as_ref().map_or(true, |(offset, ..)| *offset >= from);
    Ok(all.map(move |record| record.map(place)).filter(wanted))
}

/// Text in quotes, other bytes in hexadecimal.
fn readable(bytes: Option<&Bytes>) -> String {
    let Some(bytes) = bytes else { return "null".into() };
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => format!("{text:?}"),
        _ => bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    }
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
