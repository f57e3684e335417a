//! Bounds for maps whose keys clients choose.

use std::collections::HashMap;
use std::hash::Hash;

/// Makes room in a full map: removes the eighth of the entries with the oldest `at_ms`.
pub fn forget_oldest<K: Hash + Eq, V>(map: &mut HashMap<K, V>, at_ms: impl Fn(&V) -> i64) {
    let mut left = map.len() / 8;
    if left == 0 {
        return;
    }
    let mut times: Vec<i64> = map.values().map(&at_ms).collect();
    let oldest_ms = *times.select_nth_unstable(left).1;
    map.retain(|_, value| {
        let forgotten = left > 0 && at_ms(value) <= oldest_ms;
        left -= usize::from(forgotten);
        !forgotten
    });
}
