//! Groups of the consumer protocol in the coordinator: their requests, and their records, which are written before anyone
//! is told what follows from them.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Coordinator, Entry, State, Waiter};
use crate::caller::Caller;
use crate::groups::consumer::{HeartbeatReply, HeartbeatRequest, Refused, TopicSource, Unwritten};
use crate::groups::{Action, GroupError, JoinReply, JoinRequest};
use crate::security::{Authorizer, Operation, ResourceType};
use crate::topics::Topics;

impl TopicSource for Topics {
    fn version(&self) -> u64 {
        self.changes()
    }

    fn shape(&self, name: &str) -> Option<(Uuid, i32)> {
        let topic = self.find(name)?;
        Some((topic.id, i32::try_from(topic.partitions().len()).ok()?))
    }

    fn names(&self) -> Vec<String> {
        self.all().iter().map(|topic| topic.name.to_string()).collect()
    }
}

/// The client that a request of a group comes from, and who says what it may see.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The client.
    pub caller: &'a Caller,
    /// The decisions.
    pub authorizer: &'a Authorizer,
}

/// The topics as a member sees them: a pattern stands only for those that it may describe. As in Kafka, whoever asks first
/// after a change finds out for all members with that pattern.
struct Seen<'a> {
    topics: &'a Topics,
    by: Asking<'a>,
}

impl TopicSource for Seen<'_> {
    fn version(&self) -> u64 {
        // Both only grow.
        self.topics.version() + self.by.authorizer.version()
    }

    fn shape(&self, name: &str) -> Option<(Uuid, i32)> {
        self.topics.shape(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.topics.names();
        let Asking { caller, authorizer } = self.by;
        names.retain(|name| authorizer.shows(caller, Operation::Describe, ResourceType::Topic, name));
        names
    }
}

impl Coordinator {
    /// ConsumerGroupHeartbeat; the answer comes when what it changed is durable.
    pub async fn consumer_heartbeat(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: HeartbeatRequest,
        by: Asking<'_>,
    ) -> Result<HeartbeatReply, Refused> {
        let Some(topics) = self.topics.upgrade() else { return Err(GroupError::NotCoordinator.into()) };
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = entry.state.lock();
            let token = state.token(Waiter::Heartbeat(sender));
            let topics = Seen { topics: &topics, by };
            let actions = state.group.consumer_heartbeat(self.now(), request, &topics, token);
            self.carry_out(entry, &mut state, actions);
        }
        receiver.await.unwrap_or(Err(GroupError::CoordinatorNotAvailable.into()))
    }

    /// JoinGroup; the answer comes when the rebalance is through.
    pub fn join(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: JoinRequest,
        by: Asking<'_>,
    ) -> oneshot::Receiver<JoinReply> {
        let (sender, receiver) = oneshot::channel();
        let mut state = entry.state.lock();
        let token = state.token(Waiter::Join(sender));
        let actions = match self.topics.upgrade() {
            Some(topics) if state.group.consumer().is_some() => {
                state.group.consumer_join(self.now(), request, &Seen { topics: &topics, by }, token)
            }
            _ => state.group.join(self.now(), request, token),
        };
        self.carry_out(entry, &mut state, actions);
        receiver
    }

    /// Carries out what follows from an operation, after what it changed in the group is durable.
    pub(super) fn carry_out(self: &Arc<Self>, entry: &Arc<Entry>, state: &mut State, actions: Vec<Action>) {
        match state.group.take_unwritten() {
            Some(unwritten) => self.write_first(entry, state, unwritten, actions),
            // Who finds the group as records on their way have left it is told no sooner than the others.
            None if !state.settling.is_over() => {
                state.settling.behind.push_back((state.settling.begun, actions))
            }
            None => self.deliver(entry, state, actions),
        }
        self.arm(entry, state);
    }

    fn write_first(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        state: &mut State,
        mut unwritten: Unwritten,
        actions: Vec<Action>,
    ) {
        state.settling.begun += 1;
        let batch = state.settling.begun;
        let records = std::mem::take(&mut unwritten.records);
        let this = self.clone();
        self.append_then(entry, state, records, move |state, position| {
            if position.is_none() {
                state.group.put_back(unwritten);
                // What was begun on top of it is told only together with it, which the next operation writes again.
                state.settling.torn_to = state.settling.begun;
            } else if state.group.consumer().is_some() {
                state.stored = None;
            } else if unwritten.classic.is_some() {
                state.stored = unwritten.classic;
            }
            state.settling.ended += 1;
            let mut due = vec![(batch, actions)];
            while let Some((last, _)) = state.settling.behind.front()
                && *last <= state.settling.ended
            {
                due.extend(state.settling.behind.pop_front());
            }
            let mut all = Vec::new();
            for (batch, actions) in due {
                if batch > state.settling.torn_to {
                    all.extend(actions);
                    continue;
                }
                for action in actions {
                    match action {
                        Action::Persist { id, .. } => {
                            let failed = Err(GroupError::CoordinatorNotAvailable);
                            all.extend(state.group.persisted(this.now(), id, failed));
                        }
                        other => all.push(other.failed()),
                    }
                }
            }
            all
        });
    }
}

/// Batches of a consumer group's records on their way to the log, by number, and what waits for them.
#[derive(Default)]
pub(super) struct Settling {
    begun: u64,
    ended: u64,
    /// Those up to here failed, or were begun on top of one that did.
    torn_to: u64,
    /// What may be said once so many have ended.
    behind: VecDeque<(u64, Vec<Action>)>,
}

impl Settling {
    fn is_over(&self) -> bool {
        self.begun == self.ended
    }
}
