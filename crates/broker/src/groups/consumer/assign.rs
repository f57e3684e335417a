//! The server-side assignors (KIP-848): the rules that distribute partitions to members.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use uuid::Uuid;

use super::Partitions;
use super::member::{add, each};

/// An assignor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignor {
    /// Every member gets the same number of partitions and keeps its previous ones where possible.
    Uniform,
    /// Every member gets a range of each topic. Topics with the same number of partitions are split alike, which joins
    /// need.
    Range,
}

/// All assignors. The first one is the default.
pub const ASSIGNORS: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

/// Rounds that move partitions from members with many to members with few, if subscriptions differ. Each round improves
/// the balance, and a few rounds are enough.
const BALANCING_ROUNDS: usize = 16;

/// A member as an assignor sees it.
pub(super) struct Subject<'a> {
    pub id: &'a str,
    pub instance_id: Option<&'a str>,
    /// The topics the member subscribes to, with their numbers of partitions.
    pub topics: BTreeMap<Uuid, i32>,
    /// The member's previous assignment.
    pub before: &'a Partitions,
}

impl Assignor {
    /// The name in `group.remote.assignor`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// The assignor with this name.
    pub fn named(name: &str) -> Option<Self> {
        ASSIGNORS.into_iter().find(|of| of.name() == name)
    }

    /// The assignment of each subject, in their order.
    pub(super) fn assign(self, subjects: &[Subject]) -> Vec<Partitions> {
        match self {
            Self::Range => range(subjects),
            Self::Uniform => match subjects {
                [first, rest @ ..] if rest.iter().all(|other| other.topics == first.topics) => {
                    uniform(subjects)
                }
                _ => uniform_by_topic(subjects),
            },
        }
    }
}

/// Gives each member one range of every topic. If the division has a remainder, the first members get one partition
/// more.
fn range(subjects: &[Subject]) -> Vec<Partitions> {
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    // Static members are sorted by instance id, so that a new member id does not change their place.
    order.sort_by_key(|at| {
        let subject = &subjects[*at];
        (subject.instance_id.is_none(), subject.instance_id.unwrap_or(subject.id))
    });
    let mut assigned = vec![Partitions::new(); subjects.len()];
    for (topic, (partitions, members)) in by_topic(subjects, &order) {
        let each = partitions / count(members.len());
        let mut with_one_more = partitions % count(members.len());
        let mut next = 0;
        for at in members {
            let share = each + i32::from(with_one_more > 0);
            with_one_more = (with_one_more - 1).max(0);
            if share > 0 {
                assigned[at].insert(topic, (next..next + share).collect());
            }
            next += share;
        }
    }
    assigned
}

/// Assigns if all members subscribe to the same topics. Every member keeps its previous partitions up to its share, and
/// the rest is dealt out in turn.
fn uniform(subjects: &[Subject]) -> Vec<Partitions> {
    let Some(first) = subjects.first() else { return Vec::new() };
    let mut left: BTreeSet<(Uuid, i32)> = first
        .topics
        .iter()
        .flat_map(|(topic, partitions)| (0..*partitions).map(|index| (*topic, index)))
        .collect();
    let each_gets = left.len() / subjects.len();
    let mut with_one_more = left.len() % subjects.len();
    let mut assigned: Vec<Partitions> = Vec::with_capacity(subjects.len());
    for subject in subjects {
        let mut kept: Vec<(Uuid, i32)> = each(subject.before).filter(|key| left.contains(key)).collect();
        let more = kept.len() > each_gets && with_one_more > 0;
        with_one_more -= usize::from(more);
        kept.truncate(each_gets + usize::from(more));
        for key in &kept {
            left.remove(key);
        }
        assigned.push(collect(kept));
    }
    // The partitions are dealt out topic by topic, so that the partitions of a topic go to different members.
    let mut sizes: Vec<usize> = assigned.iter().map(size).collect();
    let mut takers: VecDeque<usize> = (0..subjects.len()).collect();
    for key in left {
        while let Some(at) = takers.pop_front() {
            let more = sizes[at] == each_gets && with_one_more > 0;
            if sizes[at] >= each_gets && !more {
                continue;
            }
            with_one_more -= usize::from(more);
            sizes[at] += 1;
            add(&mut assigned[at], key);
            takers.push_back(at);
            break;
        }
    }
    assigned
}

/// Assigns if subscriptions differ. Every member keeps its previous partitions. Each remaining partition goes to the
/// subscriber with the fewest partitions. Then partitions move from members with many to members with few.
fn uniform_by_topic(subjects: &[Subject]) -> Vec<Partitions> {
    let order: Vec<usize> = (0..subjects.len()).collect();
    let mut topics: Vec<(Uuid, (i32, Vec<usize>))> = by_topic(subjects, &order).into_iter().collect();
    let mut owners: HashMap<(Uuid, i32), usize> = HashMap::new();
    for (at, subject) in subjects.iter().enumerate() {
        for (topic, index) in each(subject.before) {
            if subject.topics.get(&topic).is_some_and(|partitions| index < *partitions) {
                owners.entry((topic, index)).or_insert(at);
            }
        }
    }
    let mut sizes = vec![0_usize; subjects.len()];
    owners.values().for_each(|at| sizes[*at] += 1);
    // Topics with few subscribers come first, because their partitions have the fewest alternatives later.
    topics.sort_by_key(|(topic, (_, members))| (members.len(), *topic));
    for (topic, (partitions, members)) in &topics {
        for index in 0..*partitions {
            if owners.contains_key(&(*topic, index)) {
                continue;
            }
            let Some(at) = members.iter().copied().min_by_key(|at| sizes[*at]) else { continue };
            owners.insert((*topic, index), at);
            sizes[at] += 1;
        }
    }
    for _ in 0..BALANCING_ROUNDS {
        let mut moved = false;
        for (topic, (partitions, members)) in &topics {
            for index in 0..*partitions {
                let Some(owner) = owners.get_mut(&(*topic, index)) else { continue };
                let Some(least) = members.iter().copied().min_by_key(|at| sizes[*at]) else { continue };
                if sizes[*owner] > sizes[least] + 1 {
                    sizes[*owner] -= 1;
                    sizes[least] += 1;
                    *owner = least;
                    moved = true;
                }
            }
        }
        if !moved {
            break;
        }
    }
    let mut assigned = vec![Partitions::new(); subjects.len()];
    owners.into_iter().for_each(|(key, at)| add(&mut assigned[at], key));
    assigned
}

/// Each topic with its number of partitions and its subscribers, in the order given.
fn by_topic(subjects: &[Subject], order: &[usize]) -> BTreeMap<Uuid, (i32, Vec<usize>)> {
    let mut topics: BTreeMap<Uuid, (i32, Vec<usize>)> = BTreeMap::new();
    for at in order {
        for (topic, partitions) in &subjects[*at].topics {
            topics.entry(*topic).or_insert((*partitions, Vec::new())).1.push(*at);
        }
    }
    topics
}

fn collect(keys: Vec<(Uuid, i32)>) -> Partitions {
    let mut partitions = Partitions::new();
    keys.into_iter().for_each(|key| add(&mut partitions, key));
    partitions
}

fn size(partitions: &Partitions) -> usize {
    partitions.values().map(BTreeSet::len).sum()
}

fn count(members: usize) -> i32 {
    i32::try_from(members).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Uuid = Uuid::from_u128(1);
    const B: Uuid = Uuid::from_u128(2);

    /// Runs an assignor for the members `m0`, `m1` ... with these topics and previous assignments.
    fn assign(of: Assignor, topics: &[&[(Uuid, i32)]], before: &[Partitions]) -> Vec<Partitions> {
        let ids: Vec<String> = (0..topics.len()).map(|at| format!("m{at}")).collect();
        let subject = |at: usize| Subject {
            id: &ids[at],
            instance_id: None,
            topics: topics[at].iter().copied().collect(),
            before: &before[at],
        };
        let subjects: Vec<Subject> = (0..topics.len()).map(subject).collect();
        let assigned = of.assign(&subjects);
        // Each partition that has subscribers has one owner, and the owner is a subscriber.
        let wanted: BTreeSet<(Uuid, i32)> =
            topics.iter().flat_map(|t| t.iter()).flat_map(|(t, n)| (0..*n).map(|i| (*t, i))).collect();
        let mut owned = BTreeSet::new();
        for (subject, partitions) in subjects.iter().zip(&assigned) {
            for key in each(partitions) {
                assert!(subject.topics.contains_key(&key.0), "{of:?}");
                assert!(owned.insert(key), "{of:?}: {key:?} twice");
            }
        }
        assert_eq!(owned, wanted, "{of:?}");
        assigned
    }

    fn sizes(assigned: &[Partitions]) -> Vec<usize> {
        assigned.iter().map(size).collect()
    }

    /// The number of partitions that kept their owner.
    fn kept(before: &[Partitions], after: &[Partitions]) -> usize {
        before.iter().zip(after).map(|(b, a)| each(a).filter(|key| each(b).any(|k| k == *key)).count()).sum()
    }

    #[test]
    fn uniform_gives_everyone_as_many_and_moves_no_more_than_it_must() {
        let all: &[(Uuid, i32)] = &[(A, 7), (B, 4)];
        let two = assign(Assignor::Uniform, &[all, all], &[Partitions::new(), Partitions::new()]);
        assert_eq!(sizes(&two), [6, 5]);
        assert_eq!(two[0].len(), 2, "a topic goes to different members");
        let before = [two[0].clone(), two[1].clone(), Partitions::new()];
        let three = assign(Assignor::Uniform, &[all, all, all], &before);
        assert_eq!(sizes(&three), [4, 4, 3]);
        assert_eq!(kept(&before, &three), 8);
        let before = [three[0].clone(), three[2].clone()];
        let again = assign(Assignor::Uniform, &[all, all], &before);
        assert_eq!((sizes(&again), kept(&before, &again)), (vec![6, 5], 7));
        // Fewer partitions than members, and previous partitions that no longer exist.
        let few = assign(Assignor::Uniform, &[&[(A, 1)], &[(A, 1)]], &again);
        assert_eq!(few.iter().map(size).sum::<usize>(), 1);
    }

    #[test]
    fn uniform_balances_where_subscriptions_differ() {
        let none = || Partitions::new();
        let assigned = assign(Assignor::Uniform, &[&[(A, 4), (B, 4)], &[(A, 4)]], &[none(), none()]);
        assert_eq!(sizes(&assigned), [4, 4]);
        // The first member owned all of A and B. Only A can move.
        let before = [Partitions::from([(A, (0..4).collect()), (B, (0..4).collect())]), none()];
        let balanced = assign(Assignor::Uniform, &[&[(A, 4), (B, 4)], &[(A, 4)]], &before);
        assert_eq!(sizes(&balanced), [4, 4]);
        // No topics at all.
        assert_eq!(sizes(&assign(Assignor::Uniform, &[&[], &[(A, 2)]], &[none(), none()])), [0, 2]);
    }

    #[test]
    fn range_gives_ranges() {
        let none = || Partitions::new();
        let both: &[(Uuid, i32)] = &[(A, 3), (B, 2)];
        let assigned = assign(Assignor::Range, &[both, both], &[none(), none()]);
        assert_eq!(assigned[0], Partitions::from([(A, BTreeSet::from([0, 1])), (B, BTreeSet::from([0]))]));
        assert_eq!(assigned[1], Partitions::from([(A, BTreeSet::from([2])), (B, BTreeSet::from([1]))]));
        let assigned = assign(Assignor::Range, &[both, &[(A, 3)], &[]], &[none(), none(), none()]);
        assert_eq!(sizes(&assigned), [4, 1, 0]);
    }
}
