//! `mainstem log`: inspects a data directory without a server, and makes a new one from what is left of a damaged one.
//!
//! The storage crate interprets the bytes. This module handles arguments, names of topics, and output lines. It never
//! writes to the inspected directory. The exit code is 0 if all is well, 1 if something is damaged or was dropped, and
//! 2 if the directory could not be inspected.

use std::fs::DirBuilder;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use disk::DirectoryDisk;
use serde_json::{Value, json};
use storage::examine::{Checked, Inspected, inspect, verify};
use storage::format::Lsn;
use storage::salvage::{Doing, salvage};
use storage::{Options, SystemClock};

use super::dump::dump;
use super::names::{Names, counts, word};
use super::progress::{Progress, Unit};
use super::{Table, objects, show};
use crate::arguments::{Directory, LogVerb, Output};

/// The exit code if damage was found or data was dropped.
const FOUND: u8 = 1;

/// Runs the command. An error means that the directory could not be inspected.
pub fn log(verb: LogVerb, output: Output) -> anyhow::Result<ExitCode> {
    match verb {
        LogVerb::Inspect { place, json } => {
            let output = if json { Output::Json } else { output };
            match &place.from {
                Some(bucket) => objects::inspect(bucket, output),
                None => look_into(&place.directory, output),
            }
        }
        LogVerb::Verify { place } => match &place.from {
            Some(bucket) => objects::verify(bucket, output),
            None => check(&place.directory, output),
        },
        LogVerb::Dump(arguments) => dump(&arguments, output),
        LogVerb::Salvage { directory, into } => rescue(&directory, &into, output),
    }
}

/// The exit code of a command that looks for damage.
pub(super) fn code(found: bool) -> ExitCode {
    if found { ExitCode::from(FOUND) } else { ExitCode::SUCCESS }
}

/// Opens a data directory for reading, and warns if a server uses it.
pub(super) fn look(directory: &Path) -> anyhow::Result<DirectoryDisk> {
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

fn look_into(directory: &Directory, output: Output) -> anyhow::Result<ExitCode> {
    let disk = look(&directory.data_dir)?;
    let names = Names::read(directory.metadata());
    let inspected = inspect(&disk).context("the log cannot be read")?;
    show(output, || text_of(&inspected, &names), || json_of(&inspected, &names))?;
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

fn json_of(inspected: &Inspected, names: &Names) -> Value {
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
    let end = report.map(|report| lsn_to_json(report.end));
    json!({
        "log_id": inspected.log_id.map(|id| format!("{id:032x}")),
        "segments": segments,
        "streams": streams,
        "end": end,
        "dropped_blocks": report.map(|report| report.dropped_blocks),
        "dropped_bytes": report.map(|report| report.dropped_bytes),
        "refused": inspected.opening.as_ref().err().map(ToString::to_string),
    })
}

fn lsn_to_json(lsn: Lsn) -> Value {
    json!({"segment": lsn.sequence(), "byte": lsn.byte()})
}

fn check(directory: &Directory, output: Output) -> anyhow::Result<ExitCode> {
    let disk = look(&directory.data_dir)?;
    let names = Names::read(directory.metadata());
    let progress = Progress::new(Unit::Bytes);
    let verified = verify(&disk, &|done, all| progress.show("verifying", done, all))
        .context("the log cannot be read")?;
    drop(progress);
    let [notes, warnings, errors] = counts(verified.findings.iter());
    let checked = &verified.checked;
    let text = || {
        let mut text = String::new();
        for finding in &verified.findings {
            text.push_str(&names.finding(word(finding.severity), finding));
        }
        text.push_str(&format!(
            "checked {} segments, {} blocks, {} batches in {} entries, {} bytes, up to {}\n",
            checked.segments, checked.blocks, checked.batches, checked.entries, checked.bytes, verified.end
        ));
        text.push_str(&match (warnings + errors, &verified.opening) {
            (0, _) => format!("no damage; {notes} notes\n"),
            (_, Ok(_)) => format!("{errors} errors, {warnings} warnings; a server opens it\n"),
            (_, Err(_)) => format!("{errors} errors, {warnings} warnings; a server refuses to open it\n"),
        });
        text
    };
    show(output, text, || {
        json!({
            "findings": verified.findings.iter().map(|finding| names.finding_to_json(finding)).collect::<Vec<_>>(),
            "notes": notes, "warnings": warnings, "errors": errors,
            "checked": checked_to_json(checked), "end": lsn_to_json(verified.end),
            "refused": verified.opening.as_ref().err().map(ToString::to_string),
        })
    })?;
    Ok(code(warnings + errors > 0))
}

/// How much was checked, in JSON.
pub(super) fn checked_to_json(checked: &Checked) -> Value {
    json!({
        "segments": checked.segments, "blocks": checked.blocks, "batches": checked.batches,
        "entries": checked.entries, "bytes": checked.bytes,
    })
}

fn rescue(from: &Directory, into: &Path, output: Output) -> anyhow::Result<ExitCode> {
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
    if names.0.is_empty() {
        bail!(
            "the metadata in {} knows no topic, so a server would refuse what is salvaged: name the directory of the right meta.redb with \
             --metadata",
            metadata.display()
        );
    }
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
    let told = |doing: Doing, done, all| match doing {
        Doing::Reading => progress.show("reading", done, all),
        Doing::Copying => progress.show("copying", done, all),
    };
    let salvaged = salvage(&source, Arc::new(target), options, Arc::new(SystemClock::default()), &told)
        .with_context(|| format!("what is in {} is worth nothing", into.display()))?;
    drop(progress);
    // The metadata is copied last. Without it, a server takes the directory for one without topics and refuses to
    // start.
    if from.metadata.is_none() {
        broker::copy_metadata(metadata, into).context("the metadata cannot be copied")?;
    }
    let (mut offsets, mut batches, mut exact) = (0, 0, true);
    for finding in &salvaged.dropped {
        exact &= !finding.hits.is_empty();
        for hit in &finding.hits {
            offsets += hit.to - hit.from;
            batches += hit.batches.unwrap_or_default();
            exact &= hit.batches.is_some();
        }
    }
    let text = || {
        let mut text: String =
            salvaged.dropped.iter().map(|finding| names.finding("dropped", finding)).collect();
        text.push_str(&format!(
            "salvaged {} batches ({} bytes) of {} streams into {}\n",
            salvaged.batches,
            salvaged.bytes,
            salvaged.streams,
            into.display()
        ));
        text.push_str(&match (salvaged.dropped.len(), exact) {
            (0, _) => "nothing was dropped\n".to_owned(),
            (places, true) => {
                format!("dropped {offsets} offsets in {batches} batches, at {places} places\n")
            }
            (places, false) => format!(
                "dropped {offsets} offsets or more, in {batches} batches or more, at {places} places\n"
            ),
        });
        text
    };
    show(output, text, || {
        json!({
            "batches": salvaged.batches, "bytes": salvaged.bytes, "streams": salvaged.streams,
            "dropped": salvaged.dropped.iter().map(|finding| names.finding_to_json(finding)).collect::<Vec<_>>(),
            "dropped_offsets": offsets, "dropped_batches": batches, "dropped_exact": exact,
        })
    })?;
    Ok(code(!salvaged.dropped.is_empty()))
}

/// A random number from the seed of the standard hash tables.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}
