//! Kafka's range assignor as a pure function: the partitions that each member of a group reads.

use std::collections::{BTreeMap, BTreeSet};

/// The partitions by member id and topic.
pub type Assignment = BTreeMap<String, BTreeMap<String, Vec<i32>>>;

/// Gives each member of `members` (id and subscribed topics) a range of the partitions of each of its topics. If the
/// division has a remainder, the first members get one partition more. `partitions` holds the number of partitions of
/// each topic.
pub fn range(members: &BTreeMap<String, BTreeSet<String>>, partitions: &BTreeMap<String, i32>) -> Assignment {
    let mut assignment: Assignment = members.keys().map(|id| (id.clone(), BTreeMap::new())).collect();
    for (topic, count) in partitions {
        let readers: Vec<&String> =
            members.iter().filter(|(_, topics)| topics.contains(topic)).map(|(id, _)| id).collect();
        let Some(share) = count.checked_div(i32::try_from(readers.len()).unwrap_or(i32::MAX)) else {
            continue;
        };
        let mut rest = count % i32::try_from(readers.len()).unwrap_or(i32::MAX);
        let mut next = 0;
        for id in readers {
            let end = next + share + i32::from(rest > 0);
            rest -= i32::from(rest > 0);
            if end > next {
                let own = assignment.get_mut(id).expect("every member is in it");
                own.insert(topic.clone(), (next..end).collect());
            }
            next = end;
        }
    }
    assignment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(members: &[(&str, &[&str])], partitions: &[(&str, i32)]) -> Vec<String> {
        let topics = |topics: &[&str]| topics.iter().map(ToString::to_string).collect();
        let members = members.iter().map(|(id, own)| ((*id).to_owned(), topics(own))).collect();
        let partitions = partitions.iter().map(|(topic, count)| ((*topic).to_owned(), *count)).collect();
        let show = |(id, own): (String, BTreeMap<String, Vec<i32>>)| format!("{id} {own:?}");
        range(&members, &partitions).into_iter().map(show).collect()
    }

    #[test]
    fn ranges_are_those_of_kafka() {
        // The example in the documentation of org.apache.kafka.clients.consumer.RangeAssignor.
        assert_eq!(
            assigned(&[("C0", &["t0", "t1"]), ("C1", &["t0", "t1"])], &[("t0", 3), ("t1", 3)]),
            [r#"C0 {"t0": [0, 1], "t1": [0, 1]}"#, r#"C1 {"t0": [2], "t1": [2]}"#]
        );
        assert_eq!(
            assigned(&[("a", &["t"]), ("b", &["t"]), ("c", &["other"])], &[("t", 1), ("unread", 4)]),
            [r#"a {"t": [0]}"#, "b {}", "c {}"]
        );
    }
}
