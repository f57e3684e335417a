//! One group in the coordinator: its lock, its waiting requests, and the replies that wait for records to become
//! durable.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::GroupShard;
use super::committed_topics::OfGroup;
use crate::groups::consumer::{HeartbeatReply, Refused};
use crate::groups::{Action, Group, GroupError, Held, JoinReply, Replies, ReplyToken, Synced};

pub(super) enum Waiter {
    Join(oneshot::Sender<JoinReply>),
    Sync(oneshot::Sender<Result<Synced, GroupError>>),
    Heartbeat(oneshot::Sender<Result<HeartbeatReply, Refused>>),
}

/// A reply that is sent once the records before it are durable.
pub(super) enum Reply {
    /// A reply to a member of the group.
    Member(Action),
    /// A notice that the records are durable.
    Durable(oneshot::Sender<Result<(), GroupError>>),
}

/// A handle that reports whether all records of a group that were queued before a given moment are durable.
#[derive(Debug, Default)]
pub struct Settled(Option<oneshot::Receiver<Result<(), GroupError>>>);

impl Settled {
    /// Waits for the outcome. Blocks.
    pub fn wait_blocking(self) -> Result<(), GroupError> {
        match self.0 {
            None => Ok(()),
            Some(receiver) => receiver.blocking_recv().unwrap_or(Err(GroupError::CoordinatorNotAvailable)),
        }
    }

    /// Waits for the outcome.
    pub async fn wait(self) -> Result<(), GroupError> {
        match self.0 {
            None => Ok(()),
            Some(receiver) => receiver.await.unwrap_or(Err(GroupError::CoordinatorNotAvailable)),
        }
    }
}

pub(super) struct State {
    pub(super) group: Group,
    pub(super) waiters: HashMap<ReplyToken, Waiter>,
    pub(super) next_token: u64,
    /// The deadline of the running timer, in milliseconds on the monotonic clock. `None` if no timer runs.
    pub(super) armed: Option<u64>,
    pub(super) replies: Replies<Reply>,
    /// The topics under which [`Coordinator::committed_topics`] lists this group.
    pub(super) topics: OfGroup,
}

/// One group.
pub struct Entry {
    pub(super) id: String,
    /// The shard is gone once another broker coordinates the group.
    pub(super) shard: Weak<GroupShard>,
    pub(super) state: Mutex<State>,
}

impl Entry {
    pub(super) fn new(shard: &Arc<GroupShard>, id: &str, group: Group) -> Entry {
        Entry { id: id.to_owned(), shard: Arc::downgrade(shard), state: Mutex::new(State::new(group)) }
    }

    /// The group's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The error for a request that does not find the group. If another broker coordinates the group by now, the error
    /// says so.
    pub(super) fn refusal(&self, error: GroupError) -> GroupError {
        match error {
            GroupError::GroupIdNotFound if self.shard.upgrade().is_none() => GroupError::NotCoordinator,
            error => error,
        }
    }

    /// Looks at the group. Its state may be ahead of the durable records.
    pub fn with<T>(&self, look: impl FnOnce(&Group) -> T) -> T {
        look(&self.state.lock().group)
    }

    /// Looks at the group. The [`Settled`] reports whether the state shown is durable.
    pub fn look<T>(&self, look: impl FnOnce(&Group) -> T) -> (T, Settled) {
        let mut state = self.state.lock();
        (look(&state.group), state.settled())
    }
}

impl State {
    fn new(group: Group) -> State {
        State {
            group,
            waiters: HashMap::new(),
            next_token: 0,
            armed: None,
            replies: Replies::default(),
            topics: OfGroup::default(),
        }
    }

    pub(super) fn token(&mut self, waiter: Waiter) -> ReplyToken {
        self.next_token += 1;
        let token = ReplyToken(self.next_token);
        self.waiters.insert(token, waiter);
        token
    }

    /// Sends the reply once all records queued so far are durable.
    pub(super) fn reply(&mut self, reply: Reply) {
        match self.replies.hold(reply) {
            Held::Due(reply) => self.send(reply),
            Held::Waits => {}
            Held::Failed(reply) => self.send_failed(reply, GroupError::CoordinatorNotAvailable),
        }
    }

    /// Answers with an error all requests whose records are not durable yet, and all later ones.
    pub(super) fn fail(&mut self, error: GroupError) {
        for reply in self.replies.fail() {
            self.send_failed(reply, error);
        }
    }

    fn send_failed(&mut self, reply: Reply, error: GroupError) {
        match reply {
            Reply::Member(action) => self.deliver(action.failed(error)),
            Reply::Durable(sender) => drop(sender.send(Err(error))),
        }
    }

    /// Answers all requests that wait in the group with NOT_COORDINATOR: this broker no longer coordinates it. Those whose
    /// records are not durable yet are among them: a log that moves may first store everything, for many seconds.
    pub(super) fn close(&mut self) {
        self.fail(GroupError::NotCoordinator);
        for action in self.group.close(GroupError::NotCoordinator) {
            self.deliver(action);
        }
    }

    /// Reports whether all records queued so far are durable.
    pub(super) fn settled(&mut self) -> Settled {
        let (sender, receiver) = oneshot::channel();
        match self.replies.hold(Reply::Durable(sender)) {
            Held::Due(_) => Settled(None),
            Held::Waits => Settled(Some(receiver)),
            // The sender is dropped here, so the receiver fails at once.
            Held::Failed(_) => Settled(Some(receiver)),
        }
    }

    pub(super) fn send(&mut self, reply: Reply) {
        match reply {
            Reply::Member(action) => self.deliver(action),
            // The client may have gone away. Then no receiver waits for the notice.
            Reply::Durable(sender) => drop(sender.send(Ok(()))),
        }
    }

    /// Answers a waiting request. If the member has gone away, its session time-out removes it.
    pub(super) fn deliver(&mut self, action: Action) {
        match action {
            Action::Join { token, reply } => {
                if let Some(Waiter::Join(sender)) = self.waiters.remove(&token) {
                    drop(sender.send(reply));
                }
            }
            Action::Sync { token, reply } => {
                if let Some(Waiter::Sync(sender)) = self.waiters.remove(&token) {
                    drop(sender.send(reply));
                }
            }
            Action::Heartbeat { token, reply } => {
                if let Some(Waiter::Heartbeat(sender)) = self.waiters.remove(&token) {
                    drop(sender.send(reply));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::{GroupConfig, Now};

    #[tokio::test]
    async fn who_waits_for_records_of_a_group_that_moves_learns_it_at_once() {
        let now = Now { monotonic_ms: 0, wall_ms: 0 };
        let mut state = State::new(Group::new("g", Arc::new(GroupConfig::default()), now));
        state.replies.queued(1);
        let settled = state.settled();
        let (sender, synced) = oneshot::channel();
        let token = state.token(Waiter::Sync(sender));
        let reply = Err(GroupError::RebalanceInProgress);
        state.reply(Reply::Member(Action::Sync { token, reply }));
        // The records are never durable here.
        state.close();
        assert_eq!(settled.wait().await, Err(GroupError::NotCoordinator));
        assert_eq!(synced.await.unwrap(), Err(GroupError::NotCoordinator));
        assert_eq!(
            state.settled().wait().await,
            Err(GroupError::CoordinatorNotAvailable),
            "what comes later"
        );
    }
}
