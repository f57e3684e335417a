//! Looks at all states that a model can reach.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Visits each state that steps lead to from `first`, once, those that few steps lead to first: faults lie near the beginning.
/// Ends when `visit` returns false.
pub fn visit_all<S: Hash>(
    first: impl IntoIterator<Item = S>,
    next: impl Fn(&S) -> Vec<S>,
    mut visit: impl FnMut(&S) -> bool,
) {
    let mut open: VecDeque<S> = first.into_iter().collect();
    let mut known: HashSet<u128> = open.iter().map(print_of).collect();
    while let Some(state) = open.pop_front() {
        if !visit(&state) {
            return;
        }
        open.extend(next(&state).into_iter().filter(|next| known.insert(print_of(next))));
    }
}

fn print_of(state: &impl Hash) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, state).hash(&mut hasher);
        hasher.finish()
    };
    u128::from(half(1)) << 64 | u128::from(half(2))
}
