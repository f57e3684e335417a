//! An index from a topic to the groups that may have committed offsets of it. With this index, the cost of deleting a
//! topic does not depend on the number of other groups.
//!
//! Invariant: a group that holds offsets of a topic is listed under the topic. The offsets may be committed, part of an
//! open transaction, or on their way to the log. A listed group may hold no offsets any more.
//!
//! Lock order: the state of a group, then this index.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Entry;

/// The topics that one group is listed under. Part of the group's state.
pub(super) type OfGroup = HashSet<Arc<str>>;

/// Groups by the address of their entry, so that a group is listed once.
type Groups = HashMap<usize, Weak<Entry>>;

/// The groups of each topic.
#[derive(Default)]
pub(super) struct CommittedTopics(Mutex<ByTopic>);

#[derive(Default)]
struct ByTopic(HashMap<Arc<str>, Groups>);

impl CommittedTopics {
    /// Lists `entry` under `topic`. `of_group` is the group's own set of topics.
    pub fn list(&self, entry: &Arc<Entry>, of_group: &mut OfGroup, topic: &Arc<str>) {
        if !of_group.contains(topic) {
            of_group.insert(topic.clone());
            let mut topics = self.0.lock();
            topics.0.entry(topic.clone()).or_default().insert(address(entry), Arc::downgrade(entry));
        }
    }

    /// The groups listed under a topic.
    pub fn groups(&self, topic: &str) -> Vec<Arc<Entry>> {
        let topics = self.0.lock();
        topics.0.get(topic).into_iter().flat_map(Groups::values).filter_map(Weak::upgrade).collect()
    }

    /// The listed topics for which `wanted` is true.
    pub fn topics(&self, wanted: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        self.0.lock().0.keys().filter(|topic| wanted(topic)).cloned().collect()
    }

    /// Removes a group from the list of a topic. The group must hold no offsets of the topic.
    pub fn unlist(&self, entry: &Arc<Entry>, of_group: &mut OfGroup, topic: &str) {
        if of_group.remove(topic) {
            self.0.lock().remove(entry, topic);
        }
    }

    /// Removes a group that no longer exists from all lists.
    pub fn remove(&self, entry: &Arc<Entry>, of_group: &mut OfGroup) {
        if !of_group.is_empty() {
            let mut topics = self.0.lock();
            of_group.drain().for_each(|topic| topics.remove(entry, &topic));
        }
    }
}

impl ByTopic {
    fn remove(&mut self, entry: &Arc<Entry>, topic: &str) {
        let Some(groups) = self.0.get_mut(topic) else { return };
        groups.remove(&address(entry));
        if groups.is_empty() {
            self.0.remove(topic);
        }
    }
}

fn address(entry: &Arc<Entry>) -> usize {
    Arc::as_ptr(entry).addr()
}
