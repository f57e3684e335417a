//! JoinGroup and ConsumerGroupHeartbeat, and the topics that a member of a group may see.

use std::sync::Arc;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Coordinator, Entry, Waiter};
use crate::caller::Caller;
use crate::groups::consumer::{HeartbeatReply, HeartbeatRequest, Refused, TopicSource};
use crate::groups::{GroupError, JoinReply, JoinRequest};
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

/// The client that sends a request of a group, and the authorizer that decides which topics the client may see.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The client.
    pub caller: &'a Caller,
    /// Decides which topics the client may see.
    pub authorizer: &'a Authorizer,
}

/// The topics as one member sees them. A pattern matches only topics that this member may describe. As in Kafka, the
/// first member that asks after a change resolves the pattern for all members that use it.
struct Seen<'a> {
    topics: &'a Topics,
    by: Asking<'a>,
}

impl TopicSource for Seen<'_> {
    fn version(&self) -> u64 {
        // Both versions only grow, so the sum changes with each of them.
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
    /// ConsumerGroupHeartbeat. The answer comes when the changes of this heartbeat are durable.
    pub async fn consumer_heartbeat(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: HeartbeatRequest,
        by: Asking<'_>,
    ) -> Result<HeartbeatReply, Refused> {
        let Some(topics) = self.shards.topics() else { return Err(GroupError::NotCoordinator.into()) };
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = entry.state.lock();
            let token = state.token(Waiter::Heartbeat(sender));
            let topics = Seen { topics: &topics, by };
            let actions = state.group.consumer_heartbeat(self.now(), request, &topics, token);
            // If the log refuses the records, the replies carry the error.
            let _ = self.carry_out(entry, &mut state, actions);
        }
        receiver.await.unwrap_or(Err(GroupError::CoordinatorNotAvailable.into()))
    }

    /// JoinGroup. The answer comes when the rebalance is complete.
    pub fn join(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        request: JoinRequest,
        by: Asking<'_>,
    ) -> oneshot::Receiver<JoinReply> {
        let (sender, receiver) = oneshot::channel();
        let mut state = entry.state.lock();
        let token = state.token(Waiter::Join(sender));
        let actions = match self.shards.topics() {
            Some(topics) if state.group.consumer().is_some() => {
                state.group.consumer_join(self.now(), request, &Seen { topics: &topics, by }, token)
            }
            _ => state.group.join(self.now(), request, token),
        };
        let _ = self.carry_out(entry, &mut state, actions);
        receiver
    }
}
