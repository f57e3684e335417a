//! Maps that are bounded because clients choose what is in them.

use std::collections::HashMap;
use std::hash::Hash;

/// Makes room for a while in a full map: forgets the eighth that was not heard of for longest, by `at_ms`.
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
