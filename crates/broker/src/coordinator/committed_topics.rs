//! The groups that may have committed offsets of a topic, so that the cost of deleting a topic does not depend on the number
//! of other groups.
//!
//! Invariant: a group that holds offsets of a topic (committed, of an open transaction, or on their way to the log) is
//! listed under it, unless the topic is being forgotten for that group. A listed group may hold none any more.
//!
//! Lock order: a group's state, then this.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Entry;

/// The topics that one group is listed under. Part of the group's state.
pub(super) type OfGroup = HashSet<Arc<str>>;

/// The groups of each topic.
#[derive(Default)]
pub(super) struct CommittedTopics(Mutex<HashMap<Arc<str>, Vec<Weak<Entry>>>>);

impl CommittedTopics {
    /// Lists `entry`, whose topics are `of_group`, under `topic`.
    pub fn list(&self, entry: &Arc<Entry>, of_group: &mut OfGroup, topic: &Arc<str>) {
        if !of_group.contains(topic) {
            of_group.insert(topic.clone());
            self.0.lock().entry(topic.clone()).or_default().push(Arc::downgrade(entry));
        }
    }

    /// Takes the groups of a topic out of the list. For each of them [`OfGroup`] still has to lose the topic.
    pub fn take(&self, topic: &str) -> Vec<Arc<Entry>> {
        let entries = self.0.lock().remove(topic).unwrap_or_default();
        entries.iter().filter_map(Weak::upgrade).collect()
    }

    /// The listed topics that are `wanted`.
    pub fn topics(&self, wanted: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        self.0.lock().keys().filter(|topic| wanted(topic)).cloned().collect()
    }

    /// Takes a group that is gone out of the list.
    pub fn remove(&self, entry: &Arc<Entry>, of_group: &mut OfGroup) {
        if of_group.is_empty() {
            return;
        }
        let mut all = self.0.lock();
        for topic in of_group.drain() {
            let Some(entries) = all.get_mut(&topic) else { continue };
            entries.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(entry)));
            if entries.is_empty() {
                all.remove(&topic);
            }
        }
    }
}
