//! The last commits of a store in this process, for watches.
//!
//! A watch holds no events: it is a position in the history, so a slow watch costs no memory. If its position is
//! forgotten, the watcher must list the keys again.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Event, Events, WatchError};

/// Upper bound of the remembered changes. The commit of a large request has some thousands.
const EVENTS_MAX: usize = 16 * 1024;
/// Upper bound of the bytes of remembered keys and values.
const BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Debug)]
pub struct History {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Debug)]
struct State {
    /// The history has the changes of all commits after this revision.
    forgotten: u64,
    /// The last commit.
    last: u64,
    events: VecDeque<Event>,
    bytes: usize,
}

fn size_of(event: &Event) -> usize {
    event.key.len() + event.bytes.as_ref().map_or(0, Vec::len)
}

impl History {
    /// A history that begins after the commit `last`.
    pub fn new(last: u64) -> History {
        let state = State { forgotten: last, last, events: VecDeque::new(), bytes: 0 };
        History { state: Mutex::new(state), grown: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the commit `revision`. If it does not follow the last one, the changes between them are unknown, and the
    /// history begins anew.
    pub fn push(&self, revision: u64, events: impl IntoIterator<Item = Event>) {
        let mut state = self.lock();
        state.skip_to(revision - 1);
        state.last = revision;
        for event in events {
            state.bytes += size_of(&event);
            state.events.push_back(event);
        }
        state.forget();
        drop(state);
        self.grown.notify_all();
    }

    /// Records that the last commit is `revision`. If the history does not have that commit, it begins anew, and
    /// watchers must list the keys.
    pub fn skip_to(&self, revision: u64) {
        self.lock().skip_to(revision);
        self.grown.notify_all();
    }

    /// The changes below `prefix` after the commit `after`. Waits for a commit, at most for `patience`; then there are
    /// no changes.
    pub fn wait(&self, prefix: &str, after: u64, patience: Duration) -> Result<Events, WatchError> {
        let unchanged = |state: &mut State| state.last == after;
        let waited = self.grown.wait_timeout_while(self.lock(), patience, unchanged);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // A revision in the future belongs to a store whose later commits were lost.
        if after < state.forgotten || after > state.last {
            return Err(WatchError::Compacted(after));
        }
        let first = state.events.partition_point(|event| event.revision <= after);
        let changes = state.events.range(first..).filter(|event| event.key.starts_with(prefix));
        Ok(Events { revision: state.last, changes: changes.cloned().collect() })
    }
}

impl State {
    fn skip_to(&mut self, revision: u64) {
        if revision != self.last {
            self.events.clear();
            (self.bytes, self.forgotten, self.last) = (0, revision, revision);
        }
    }

    /// Forgets whole commits, the oldest first, until the bounds hold. The last commit stays.
    fn forget(&mut self) {
        while self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let oldest = self.events.front().map_or(self.last, |event| event.revision);
            if oldest == self.last {
                return;
            }
            while self.events.front().is_some_and(|event| event.revision == oldest) {
                let event = self.events.pop_front();
                self.bytes -= event.as_ref().map_or(0, size_of);
            }
            self.forgotten = oldest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(revision: u64, bytes: usize) -> Event {
        Event { key: "k".into(), revision, bytes: Some(vec![0; bytes]) }
    }

    #[test]
    fn the_oldest_commits_are_forgotten_as_a_whole() {
        let history = History::new(7);
        history.push(8, [put(8, 10), put(8, 10)]);
        history.push(9, [put(9, BYTES_MAX)]);
        let wait = |after| history.wait("", after, Duration::ZERO);
        assert!(matches!(wait(7), Err(WatchError::Compacted(7))));
        let events = wait(8).unwrap();
        assert_eq!((events.revision, events.changes.len()), (9, 1), "the last commit stays, however large");
        history.push(10, [put(10, 1)]);
        assert!(matches!(wait(8), Err(WatchError::Compacted(8))));
        assert_eq!(wait(9).unwrap().changes, [put(10, 1)]);
        assert_eq!(wait(10).unwrap(), Events { revision: 10, changes: vec![] });
    }

    #[test]
    fn many_small_commits_are_bounded() {
        let history = History::new(0);
        let commits = EVENTS_MAX as u64 + 100;
        (1..=commits).for_each(|revision| history.push(revision, [put(revision, 0)]));
        assert_eq!(history.lock().events.len(), EVENTS_MAX);
        assert!(history.wait("", 99, Duration::ZERO).is_err());
        assert_eq!(history.wait("", 100, Duration::ZERO).unwrap().changes.len(), EVENTS_MAX);
    }

    #[test]
    fn a_commit_that_nobody_told_makes_watches_list_again() {
        let history = History::new(3);
        history.push(4, [put(4, 1)]);
        history.push(6, [put(6, 1)]);
        assert!(matches!(history.wait("", 4, Duration::ZERO), Err(WatchError::Compacted(4))));
        assert_eq!(history.wait("", 5, Duration::ZERO).unwrap().changes, [put(6, 1)]);
        assert!(matches!(history.wait("", 7, Duration::ZERO), Err(WatchError::Compacted(7))));
    }
}
