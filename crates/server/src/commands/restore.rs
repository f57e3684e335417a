//! `mainstem restore`: a new data directory from what is in a bucket.
//!
//! The broker crate restores. This module chooses the directories, keeps others out of them, and says what came back.
//! While a restore is not finished, the data directory has a file that says so: a server refuses the directory, and the
//! same command goes on with it. The exit code is 0 if everything that the snapshot knows came back, 1 if something that
//! is named did not, and 2 if nothing was restored.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use broker::snapshots::restore::{
    LogTarget, LogToRestore, Newest, RestoreError, Restored, newest, restore as bring_back,
};
use disk::{DirectoryLock, Engine};
use model::{Offset, StreamId};
use serde_json::{Value, json};
use storage::examine::Severity;

use super::names::{Names, span, word};
use super::show;
use super::store::{Store, pause};
use crate::arguments::{RestoreArguments, now_ms};
use crate::log_dirs::{self, RESTORING};

/// The exit code if something did not come back.
const INCOMPLETE: u8 = 1;
/// Names in a directory that counts as empty: the lock, and what file systems put into their root.
const NOT_DATA: [&str; 2] = ["lock", "lost+found"];

/// Runs the command. An error means that nothing was restored.
pub fn restore(arguments: &RestoreArguments) -> anyhow::Result<ExitCode> {
    let store = Store::open(&arguments.from)?;
    let found =
        newest(&*store.bucket, arguments.cluster_id.as_deref(), pause).map_err(|error| match error {
            RestoreError::Clusters(_) => anyhow!("{error} with --cluster-id"),
            error => error.into(),
        })?;
    let logs = found.snapshot.logs()?;
    let paths = directories(arguments, &logs)?;
    log_dirs::check(&paths)?;
    let mut all = paths.clone();
    let home = log_dirs::resolved(&arguments.data_dir);
    if paths.iter().all(|path| log_dirs::resolved(path) != home) {
        all.push(arguments.data_dir.clone());
    }
    // Held until the end.
    let _locks = all.iter().map(|path| lock(path)).collect::<anyhow::Result<Vec<DirectoryLock>>>()?;
    begin(arguments, &found, &paths, &all)?;
    let mut targets = Vec::new();
    for (log, path) in logs.iter().zip(&paths) {
        let shown = std::path::absolute(path)?.display().to_string();
        let opened = disk::open_directory(path, Engine::Auto)
            .with_context(|| format!("{} cannot be written to", path.display()))?;
        targets.push(LogTarget { id: log.id, path: shown, disk: Arc::new(opened) });
    }
    let now_ms = now_ms();
    let how = (arguments.accept_loss, now_ms);
    let restored = store.asking("restoring", |asking| {
        bring_back(asking, &found.snapshot, &arguments.data_dir, &targets, how)
    });
    let restored = restored.map_err(|error| damaged(error, &found))?;
    let names = names(&found)?;
    let report = Report { found: &found, restored: &restored, names: &names, now_ms };
    end(&arguments.data_dir)?;
    show(arguments.shown.output, || report.to_text(), || report.to_json())?;
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

/// The directory of each log.
fn directories(arguments: &RestoreArguments, logs: &[LogToRestore]) -> anyhow::Result<Vec<PathBuf>> {
    let given = match arguments.log_dirs.is_empty() {
        true => vec![arguments.data_dir.clone()],
        false => arguments.log_dirs.clone(),
    };
    if given.len() != logs.len() {
        let lines: Vec<String> = logs
            .iter()
            .map(|log| {
                let path = log.path.as_deref().unwrap_or("a directory that was lost before");
                format!("{path} ({} partitions)", log.partitions)
            })
            .collect();
        bail!(
            "the cluster has {} logs: {}; name as many directories with --log-dirs, in this order",
            logs.len(),
            lines.join(", ")
        );
    }
    Ok(given)
}

/// Makes a directory if it is missing, and keeps servers out of it.
fn lock(directory: &Path) -> anyhow::Result<DirectoryLock> {
    let shown = directory.display();
    log_dirs::create(directory).with_context(|| format!("{shown} cannot be created"))?;
    disk::lock_directory(directory).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => anyhow!("{}", log_dirs::in_use("directory", directory)),
        _ => anyhow::Error::new(error).context(format!("{shown} cannot be locked")),
    })
}

/// Checks that all directories are empty, or left by the same restore, and notes that a restore is under way.
fn begin(
    arguments: &RestoreArguments,
    found: &Newest,
    paths: &[PathBuf],
    all: &[PathBuf],
) -> anyhow::Result<()> {
    let mut note = format!(
        "a restore is not finished: run `mainstem restore` again\ncluster {}\n",
        found.stored.cluster_id
    );
    for path in paths {
        note.push_str(&format!("log {}\n", std::path::absolute(path)?.display()));
    }
    let file = arguments.data_dir.join(RESTORING);
    match fs::read_to_string(&file) {
        // A note that was cut off belongs to directories that were empty.
        Ok(there) if there == note || note.starts_with(&there) => {}
        Ok(_) => bail!(
            "{} holds an unfinished restore of another cluster, or into other directories: empty it, or run the same \
             command again",
            arguments.data_dir.display()
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            for path in all {
                check_empty(path)?;
            }
        }
        Err(error) => return Err(error).context(format!("{} cannot be read", file.display())),
    }
    let written = || {
        let mut opened = File::create(&file)?;
        opened.write_all(note.as_bytes())?;
        opened.sync_all()?;
        File::open(&arguments.data_dir)?.sync_all()
    };
    written().with_context(|| format!("{} cannot be written", file.display()))
}

fn check_empty(directory: &Path) -> anyhow::Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("{} cannot be read", directory.display()))?;
    for entry in entries {
        let name = entry?.file_name();
        if NOT_DATA.iter().all(|other| name != *other) {
            bail!("{} is not empty: name a new directory", directory.display());
        }
    }
    Ok(())
}

/// Notes that the restore is finished.
fn end(data_dir: &Path) -> anyhow::Result<()> {
    let removed = fs::remove_file(data_dir.join(RESTORING)).and_then(|()| File::open(data_dir)?.sync_all());
    removed.with_context(|| format!("{} cannot be removed", data_dir.join(RESTORING).display()))
}

fn names(found: &Newest) -> anyhow::Result<Names> {
    Ok(Names(found.snapshot.stream_names()?))
}

/// Says which objects are damaged, if that is why nothing was restored.
fn damaged(error: RestoreError, found: &Newest) -> anyhow::Error {
    if let RestoreError::Log(_, storage::restore::RestoreError::Damaged(findings)) = &error
        && let Ok(names) = names(found)
    {
        let lines: String = findings.iter().map(|finding| format!("  {}\n", names.place(finding))).collect();
        return anyhow!(
            "{error}:\n{lines}bring the objects back and run the command again; or with --accept-loss, to go on without \
             what cannot be reached"
        );
    }
    anyhow::Error::new(error).context("nothing is restored yet; the same command goes on with what is there")
}

/// What came back and what did not.
struct Report<'a> {
    found: &'a Newest,
    restored: &'a Restored,
    names: &'a Names,
    now_ms: i64,
}

/// Sums over all partitions and logs.
struct Sums {
    offsets: i64,
    batches: u64,
    bytes: u64,
    objects: usize,
    object_bytes: u64,
}

impl Report<'_> {
    fn sums(&self) -> Sums {
        let streams = || self.restored.partitions.iter().map(|partition| &partition.stream);
        Sums {
            offsets: streams().map(|stream| stream.next - stream.start).sum(),
            batches: streams().map(|stream| stream.batches).sum(),
            bytes: streams().map(|stream| stream.bytes).sum(),
            objects: self.restored.logs.iter().map(|(_, log)| log.objects).sum(),
            object_bytes: self.restored.logs.iter().map(|(_, log)| log.object_bytes).sum(),
        }
    }

    /// Offsets that did not come back, or were deleted since the snapshot.
    fn gone(&self) -> i64 {
        let missing = self.restored.partitions.iter().flat_map(|partition| &partition.stream.missing);
        let younger = self.restored.younger.iter().map(|(_, there)| there.next - there.start);
        missing.map(|(from, to)| *to - *from).chain(younger).sum()
    }

    fn is_complete(&self) -> bool {
        let harmless = |finding: &storage::examine::Finding| finding.severity == Severity::Note;
        self.found.passed_over.is_empty() && self.restored.findings().all(harmless) && self.gone() == 0
    }

    fn age(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.now_ms - self.found.snapshot.taken_ms).unwrap_or(0))
    }

    fn to_text(&self) -> String {
        let (found, restored, names) = (self.found, self.restored, self.names);
        let mut text = format!(
            "restored the cluster {} from the snapshot {}, taken {} ago\n",
            found.stored.cluster_id,
            found.stored.key,
            ago(self.age())
        );
        text.push_str(&format!(
            "{} topics with {} partitions, {} users, {} ACLs, {} quotas, {} groups with committed offsets\n",
            restored.topics,
            restored.partitions.len(),
            restored.users,
            restored.acls,
            restored.quotas,
            restored.groups
        ));
        let Sums { offsets, batches, bytes, objects, object_bytes } = self.sums();
        text.push_str(&format!(
            "{offsets} records in {batches} batches ({bytes} bytes), in {objects} objects ({object_bytes} bytes)\n"
        ));
        for passed in &found.passed_over {
            text.push_str(&format!("error: the newer snapshot {} is damaged\n", passed.key));
        }
        for finding in restored.findings() {
            text.push_str(&names.finding(word(finding.severity), finding));
        }
        for partition in &restored.partitions {
            for (from, to) in &partition.stream.missing {
                let (topic, index) = (&partition.topic, partition.index);
                text.push_str(&format!("not stored: {topic}-{index} offsets {}\n", span(*from, *to)));
            }
        }
        for (stream, there) in &restored.younger {
            let (StreamId(id), offsets) = (stream, span(there.start, there.next));
            text.push_str(&format!(
                "not restored: stream {id} offsets {offsets}: its topic is younger than the snapshot\n"
            ));
        }
        text.push_str(&match self.gone() {
            0 => "everything that the snapshot knows came back".to_owned(),
            gone => format!("{gone} offsets did not come back, or were deleted since the snapshot"),
        });
        text.push_str("; records that are younger than the snapshot and were not stored cannot be named\n");
        text
    }

    fn to_json(&self) -> Value {
        let (found, restored) = (self.found, self.restored);
        let Sums { offsets, batches, bytes, objects, object_bytes } = self.sums();
        let missing = restored.partitions.iter().flat_map(|partition| {
            let place = |(from, to): &(Offset, Offset)| {
                json!({"topic": partition.topic, "partition": partition.index, "from": from.0, "to": to.0})
            };
            partition.stream.missing.iter().map(place)
        });
        let younger = restored
            .younger
            .iter()
            .map(|(stream, there)| json!({"stream": stream.0, "from": there.start.0, "to": there.next.0}));
        let findings = restored.findings().map(|finding| self.names.finding_to_json(finding));
        json!({
            "cluster": found.stored.cluster_id, "snapshot": found.stored.key,
            "snapshot_age_seconds": self.age().as_secs(),
            "topics": restored.topics, "partitions": restored.partitions.len(), "users": restored.users,
            "acls": restored.acls, "quotas": restored.quotas, "groups": restored.groups,
            "records": offsets, "batches": batches, "bytes": bytes,
            "objects": objects, "object_bytes": object_bytes,
            "damaged_snapshots": found.passed_over.iter().map(|passed| passed.key.as_str()).collect::<Vec<_>>(),
            "findings": findings.collect::<Vec<_>>(),
            "not_stored": missing.collect::<Vec<_>>(), "not_restored": younger.collect::<Vec<_>>(),
            "complete": self.is_complete(),
        })
    }
}

/// A time as people say it.
fn ago(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_down() {
        let of = |seconds| ago(Duration::from_secs(seconds));
        assert_eq!(
            [of(0), of(119), of(120), of(7199), of(7200)],
            ["0 s", "119 s", "2 min", "119 min", "2 h"]
        );
        assert_eq!(of(172_800), "2 days");
    }
}
