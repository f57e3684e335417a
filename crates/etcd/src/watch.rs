//! Watches of the keys below a prefix.

use std::time::Duration;

use meta::{Event, Events, Watch, WatchError};
use reqwest::Response;
use serde_json::from_slice;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::api::{Bytes, Int, Streamed, WatchAnswer, WatchCreate, WatchEvent, WatchRequest, prefix_end};
use crate::gateway::{ANSWER_BYTES_MAX, CallError, Gateway, PAUSE, refused, unclear};
use crate::{entry, failed};

/// Messages that wait for the watch's user.
const WAITING: usize = 16;
/// Time until etcd has begun a watch.
const CREATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Of so many connections in a row that are lost without news, one is told to the watch's user.
const TOLD_EVERY: u32 = 20;

/// A watch. A task follows etcd, across lost connections, until the watch is dropped.
pub struct EtcdWatch {
    heard: Receiver<Result<Events, WatchError>>,
    /// The last revision that was reported.
    revision: u64,
    /// Told at the next call.
    failed: Option<WatchError>,
    runtime: Handle,
}

/// The task of a watch.
struct Follower {
    gateway: Gateway,
    /// Before the keys that the user sees.
    prefix: String,
    /// What is watched.
    below: Bytes,
    revision: u64,
    told: Sender<Result<Events, WatchError>>,
}

impl EtcdWatch {
    /// Watches the keys that begin with `below`, in commits after the revision `after`.
    pub fn begin(
        gateway: &Gateway,
        (prefix, below): (&str, String),
        after: u64,
        runtime: Handle,
    ) -> EtcdWatch {
        let (told, heard) = channel(WAITING);
        let (gateway, prefix) = (gateway.clone(), prefix.to_owned());
        let follower = Follower { gateway, prefix, below: below.into(), revision: after, told };
        runtime.spawn(follower.run());
        EtcdWatch { heard, revision: after, failed: None, runtime }
    }
}

impl Watch for EtcdWatch {
    fn next(&mut self, patience: Duration) -> Result<Events, WatchError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let heard = &mut self.heard;
        let first = self.runtime.block_on(async { tokio::time::timeout(patience, heard.recv()).await });
        let mut events = match first {
            Ok(Some(events)) => events?,
            // The task has told its last error before.
            Ok(None) => return Err(WatchError::Compacted(self.revision)),
            Err(_) => Events { revision: self.revision, changes: Vec::new() },
        };
        while let Ok(more) = self.heard.try_recv() {
            match more {
                Ok(more) => {
                    events.revision = more.revision;
                    events.changes.extend(more.changes);
                }
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        self.revision = events.revision;
        Ok(events)
    }
}

/// Why a connection of a watch ended.
enum End {
    /// Nobody listens any more, or an error was told that ends the watch.
    Done,
    Lost(CallError),
}

impl Follower {
    async fn run(mut self) {
        let mut in_a_row = 0;
        loop {
            let (told, before) = (self.told.clone(), self.revision);
            let mut current = self.gateway.current();
            let asked = *current.borrow_and_update();
            let ended = tokio::select! {
                ended = self.follow(asked) => ended,
                // A member that hangs says nothing, and its connection stays open.
                _ = current.changed() => End::Lost(CallError::Unclear("another member is asked".to_owned())),
                () = told.closed() => return,
            };
            match ended {
                End::Done => return,
                End::Lost(error) => {
                    if let CallError::Unclear(_) = error {
                        self.gateway.try_another(asked);
                    }
                    in_a_row = if self.revision > before { 1 } else { in_a_row + 1 };
                    // Whoever waits hears of it, unless it has not heard of the last ones. The watch goes on.
                    if in_a_row % TOLD_EVERY == 0 {
                        let _ = self.told.try_send(Err(WatchError::Meta(failed(error))));
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Follows etcd on one connection.
    async fn follow(&mut self, asked: usize) -> End {
        let create = WatchCreate {
            key: self.below.clone(),
            range_end: prefix_end(&self.below),
            start_revision: Int::of_revision(self.revision + 1),
        };
        let request = WatchRequest { create_request: create };
        let begun = self.gateway.send(asked, "/v3/watch", &request);
        let mut response = match tokio::time::timeout(CREATE_TIMEOUT, begun).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return End::Lost(error),
            Err(_) => return End::Lost(CallError::Unclear("no watch was made in time".to_owned())),
        };
        let mut lines = Lines::default();
        loop {
            let line = match lines.next(&mut response).await {
                Ok(line) => line,
                Err(error) => return End::Lost(error),
            };
            match from_slice::<Streamed<WatchAnswer>>(&line) {
                Ok(Streamed::Result(answer)) => match self.take(answer) {
                    Ok(Some(events)) => {
                        // Whoever cancels this comes back for what was not told.
                        let revision = events.revision;
                        if self.told.send(Ok(events)).await.is_err() {
                            return End::Done;
                        }
                        self.revision = revision;
                    }
                    Ok(None) => {}
                    Err(Taken::Lost(error)) => return End::Lost(error),
                    Err(Taken::Ended(error)) => {
                        let _ = self.told.send(Err(error)).await;
                        return End::Done;
                    }
                },
                Ok(Streamed::Error(failure)) => return End::Lost(refused(failure)),
                Err(error) => return End::Lost(unclear(error)),
            }
        }
    }

    /// The events of an answer, if it has any.
    fn take(&self, answer: WatchAnswer) -> Result<Option<Events>, Taken> {
        let compacted = || Taken::Ended(WatchError::Compacted(self.revision));
        if answer.compact_revision.0 > 0 {
            return Err(compacted());
        }
        if answer.canceled {
            return Err(Taken::Lost(CallError::Unclear(answer.cancel_reason)));
        }
        // The store is another one than it was, or an older copy of it.
        if answer.created && answer.header.revision.revision() < self.revision {
            return Err(compacted());
        }
        let Some(last) = answer.events.last() else { return Ok(None) };
        // An answer has all changes of its commits. Its header may be ahead of them.
        let revision = last.kv.mod_revision.revision();
        let mut changes = Vec::with_capacity(answer.events.len());
        for WatchEvent { kind, kv } in answer.events {
            let found = entry(&self.prefix, kv).map_err(|error| Taken::Ended(WatchError::Meta(error)))?;
            let Some((key, value)) = found else { continue };
            let bytes = (kind != "DELETE").then_some(value.bytes);
            changes.push(Event { key, revision: value.revision, bytes });
        }
        Ok(Some(Events { revision, changes }))
    }
}

/// Why an answer has no events.
enum Taken {
    Lost(CallError),
    Ended(WatchError),
}

/// The lines of an answer that has no end.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    async fn next(&mut self, response: &mut Response) -> Result<Vec<u8>, CallError> {
        let mut seen = 0;
        loop {
            if let Some(end) = self.0[seen..].iter().position(|byte| *byte == b'\n') {
                let rest = self.0.split_off(seen + end + 1);
                return Ok(std::mem::replace(&mut self.0, rest));
            }
            seen = self.0.len();
            match response.chunk().await.map_err(unclear)? {
                Some(chunk) if self.0.len() + chunk.len() <= ANSWER_BYTES_MAX => {
                    self.0.extend_from_slice(&chunk)
                }
                Some(_) => return Err(CallError::Unclear("a message of a watch is too long".to_owned())),
                None => return Err(CallError::Unclear("the watch was ended".to_owned())),
            }
        }
    }
}
