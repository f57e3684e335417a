//! How a log is taken over, restored and opened.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use meta::MetaError;
use model::StreamId;
use objects::{Bucket, BucketError};
use storage::copies::ReplayError;
use storage::restore::{Asking, Epochs, KnownBounds, Restore, RestoreError, keep_prefetched};
use storage::takeover::{TakeOver, TakeOverError};
use storage::{AdmitError, Log, OpenError};
use uuid::Uuid;

use super::{LOGS_EXPECTED, Parts, STORED_CHECK, Shared};
use crate::cluster::prefetched::{LocalDirectory, Prefetched};
use crate::logs::OpenLog;
use crate::transactions::INDEX_STREAM;

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BringError {
    #[error("{0} is not the id of a log")]
    Name(String),
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
    #[error("its directory: {0}")]
    Directory(#[from] io::Error),
    #[error(transparent)]
    Restore(#[from] storage::restore::RestoreError),
    #[error(transparent)]
    Open(#[from] storage::OpenError),
    #[error("its copies: {0}")]
    Copies(String),
    #[error("a broker with a copy: {0}")]
    Away(String),
    #[error(transparent)]
    Append(#[from] AdmitError),
    #[error("the metadata: {0}")]
    Meta(#[from] MetaError),
    #[error("it has another owner by now")]
    Unwanted,
    #[error("a bug, which is in the log")]
    Bug,
}

impl BringError {
    /// Whether the disk of this broker is the problem. Another broker may open the log.
    pub fn is_local(&self) -> bool {
        match self {
            BringError::Directory(_) | BringError::Restore(RestoreError::Local(..)) => true,
            BringError::Append(error) => {
                matches!(error, AdmitError::Busy | AdmitError::Full | AdmitError::Stopped(_))
            }
            BringError::Restore(RestoreError::Open(error)) | BringError::Open(error) => {
                matches!(error, OpenError::Io { .. })
            }
            _ => false,
        }
    }
}

impl From<ReplayError> for BringError {
    fn from(error: ReplayError) -> BringError {
        match error {
            ReplayError::Damaged(_) => BringError::Copies(error.to_string()),
            ReplayError::Admit(error) => BringError::Append(error),
        }
    }
}

impl Shared {
    /// The directory for the log `name`, which was taken over: with what was prefetched of it, or else empty.
    fn directory(
        &self,
        name: &str,
        taken: &Epochs,
        unwanted: &AtomicBool,
    ) -> Result<LocalDirectory, BringError> {
        loop {
            match self.prefetched.lock().get(name) {
                Some(Prefetched::Going { unwanted }) => unwanted.store(true, Ordering::Release),
                _ => break,
            }
            if unwanted.load(Ordering::Acquire) {
                return Err(BringError::Unwanted);
            }
            self.parts.threads.sleep(STORED_CHECK);
        }
        if let Some(Prefetched::Ended(ready)) = self.prefetched.lock().remove(name)
            && keep_prefetched(&ready.directory.1, &ready.along, taken)?
        {
            return Ok(ready.directory);
        }
        Ok(self.parts.directories.empty(name)?)
    }

    /// Takes the log over, restores it, opens it, and makes its partitions lead.
    pub(super) fn open(
        &self,
        name: &str,
        epoch: u32,
        unwanted: &AtomicBool,
    ) -> Result<Arc<OpenLog>, BringError> {
        let Parts { logs, topics, opening, threads, .. } = &self.parts;
        let bucket: Arc<dyn Bucket> = self.parts.bucket.clone();
        let id: Uuid = name.parse().map_err(|_| BringError::Name(name.to_owned()))?;
        let pause = |wait: Duration, _: &BucketError| {
            threads.sleep(wait);
            !unwanted.load(Ordering::Acquire)
        };
        let owned = TakeOver::new(bucket.clone(), id.as_u128(), epoch)
            .with_threads(threads.of_a_restore())
            .finish(&pause)?;
        // The former owner stores nothing that counts from here on, so every stream with records is known now.
        let known = topics.streams_of(id)?;
        let mut streams: HashMap<StreamId, Option<KnownBounds>> =
            known.owned.iter().map(|id| (*id, None)).collect();
        streams.insert(INDEX_STREAM, None);
        let (path, disk) = self.directory(name, &owned.epochs, unwanted)?;
        let now_ms = opening.clock.now_ms();
        let asking =
            Asking { bucket: &bucket, threads: threads.of_a_restore(), pause: &pause, progress: &|_, _| {} };
        let (log_id, epochs) = (id.as_u128(), owned.epochs.clone());
        let request =
            Restore { asking, log_id, epochs, streams: &streams, opens: true, accept_loss: false, now_ms };
        let restored = storage::restore::restore(&disk, &request)?;
        let former = self.former_set(name, epoch)?;
        let add_copies = |log: &Arc<Log>| {
            topics.set_levels_of(log, id);
            self.start_copier(log, name, epoch);
            let doing = "appending what copies have";
            self.add_copies(name, log, &former, epoch, unwanted).map_err(|error| match error.is_local() {
                true => OpenError::Io { doing: doing.into(), source: io::Error::other(error) },
                false => OpenError::Unusable { doing, source: error.into() },
            })
        };
        let open = opening.open(&path, disk, LOGS_EXPECTED, Some((owned, restored, &add_copies)))?;
        let open = Arc::new(open);
        let copier = self.copiers.lock().get(name).cloned();
        let unwanted = || unwanted.load(Ordering::Acquire);
        let copies = copier.is_some_and(|copier| match former.0.is_empty() {
            true => copier.open_alone(),
            false => copier.open(&unwanted),
        });
        if unwanted() || !copies {
            open.log.close();
            return Err(BringError::Unwanted);
        }
        // Entries of the index that a crash left ahead of the data: before other batches take their offsets. Not before the copies of
        // this opening count: the next owner may find more in those of the former one, which these records would stand in the place of.
        open.transactions.write_corrections(&open.log, now_ms);
        let start_of =
            |stream| known.owned.contains(&stream).then(|| open.log.lasting_start(&open.log.stream(stream)));
        open.transactions.maintain(&open.log, start_of, now_ms);
        logs.add(open.clone());
        let partitions = topics.opened(&open);
        topics.drop_orphans(&open, known.next);
        partitions.iter().for_each(|partition| self.parts.peers.follow(partition));
        Ok(open)
    }
}
