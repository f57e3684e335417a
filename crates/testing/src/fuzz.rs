//! The loop of a fuzz test: valid inputs, damaged, for some seconds.
//!
//! The environment variable `FUZZ_SECONDS` replaces the time that the test asks for. A failure prints the input. `fuzz/`
//! runs some of the same targets guided by coverage.

use std::time::{Duration, Instant};

use fastrand::Rng;

/// Upper bound of the bytes that a failure prints.
const SHOWN_BYTES_MAX: usize = 4096;
/// Upper bound of the changes to one input.
const CHANGES_MAX: usize = 5;
/// Upper bound of the bytes that one change appends.
const ADDED_BYTES_MAX: usize = 40;
/// Bytes with a meaning in some format: bounds of varints, and the separators of texts.
const SPECIAL: &[u8] = b"\0\x01,=.\"{}[]\\\x7f\x80\xff";

/// Rounds until the time is over. Each has a generator of random numbers of its own.
#[derive(Debug)]
pub struct Rounds {
    until: Instant,
    seed: u64,
    begun: u64,
}

impl Rounds {
    /// Rounds with other numbers in each run of the test, for `FUZZ_SECONDS` or `seconds`. Prints the seed.
    pub fn random(seconds: u64) -> Rounds {
        let seed = Rng::new().get_seed();
        println!("fuzzing with seed {seed:#x}");
        Rounds::from_seed(seconds, seed)
    }

    /// Rounds with the same numbers in each run.
    pub fn from_seed(seconds: u64, seed: u64) -> Rounds {
        let seconds = std::env::var("FUZZ_SECONDS")
            .map_or(seconds, |seconds| seconds.parse().expect("FUZZ_SECONDS is a number"));
        Rounds::lasting(Duration::from_secs(seconds), seed)
    }

    fn lasting(time: Duration, seed: u64) -> Rounds {
        Rounds { until: Instant::now() + time, seed, begun: 0 }
    }

    /// Calls `target` with the result of `input` in each round. Returns the number of rounds.
    pub fn run(mut self, mut input: impl FnMut(&mut Rng) -> Vec<u8>, target: impl Fn(&[u8])) -> u64 {
        for mut rng in self.by_ref() {
            let input = Shown(input(&mut rng));
            target(&input.0);
        }
        self.begun
    }
}

impl Iterator for Rounds {
    type Item = Rng;

    fn next(&mut self) -> Option<Rng> {
        if Instant::now() >= self.until {
            return None;
        }
        let rng = Rng::with_seed(self.seed.wrapping_add(self.begun));
        self.begun += 1;
        Some(rng)
    }
}

/// An input. A panic of the target prints it.
struct Shown(Vec<u8>);

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("input: {:02x?}", &self.0[..self.0.len().min(SHOWN_BYTES_MAX)]);
        }
    }
}

/// Calls `target` with each seed, then with damaged seeds for `FUZZ_SECONDS` or `seconds`. Returns the number of rounds.
pub fn run(seconds: u64, seeds: &[Vec<u8>], target: impl Fn(&[u8])) -> u64 {
    run_rounds(Rounds::random(seconds), seeds, target)
}

fn run_rounds(rounds: Rounds, seeds: &[Vec<u8>], target: impl Fn(&[u8])) -> u64 {
    for seed in seeds {
        let seed = Shown(seed.clone());
        target(&seed.0);
    }
    let damaged = |rng: &mut Rng| {
        let mut input = rng.choice(seeds).expect("there are seeds").clone();
        damage(rng, &mut input, seeds);
        input
    };
    rounds.run(damaged, target)
}

/// Damages an input at some places, or at none. One kind of damage replaces the end by the end of one of `others`.
pub fn damage(rng: &mut Rng, input: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..rng.usize(0..=CHANGES_MAX) {
        let at = rng.usize(0..input.len().max(1)).min(input.len());
        let inside = at < input.len();
        match rng.u8(0..7) {
            0 if inside => input[at] ^= 1 << rng.u8(0..8),
            1 if inside => input[at] = *rng.choice(SPECIAL).expect("there are some"),
            2 => input.truncate(at),
            3 => input.insert(at, rng.u8(..)),
            4 if inside => {
                let end = (at + rng.usize(1..9)).min(input.len());
                rng.fill(&mut input[at..end]);
            }
            5 => {
                if let Some(other) = rng.choice(others) {
                    let from = rng.usize(0..other.len().max(1)).min(other.len());
                    input.truncate(at);
                    input.extend_from_slice(&other[from..]);
                }
            }
            _ => input.extend((0..rng.usize(0..ADDED_BYTES_MAX)).map(|_| rng.u8(..))),
        }
    }
}

/// Random bytes.
pub fn random_bytes(rng: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn seeds_come_as_they_are_and_then_damaged() {
        let seeds = [b"one".to_vec(), b"second".to_vec()];
        let seen = RefCell::new(Vec::new());
        let target = |input: &[u8]| seen.borrow_mut().push(input.to_vec());
        let rounds = Rounds::lasting(Duration::from_millis(50), 7);
        assert!(run_rounds(rounds, &seeds, target) > 1000);
        let seen = seen.into_inner();
        assert_eq!(seen[..2], seeds);
        let different: BTreeSet<&Vec<u8>> = seen.iter().collect();
        assert!(different.len() > 100, "{} of {}", different.len(), seen.len());
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let first = |mut rounds: Rounds| (0..9).map(|_| rounds.next().unwrap().u64(..)).collect::<Vec<_>>();
        assert_eq!(first(Rounds::from_seed(60, 7)), first(Rounds::from_seed(60, 7)));
        assert_ne!(first(Rounds::from_seed(60, 7)), first(Rounds::from_seed(60, 9)));
        let mut empty = Vec::new();
        (0..1000).for_each(|seed| damage(&mut Rng::with_seed(seed), &mut empty, &[]));
    }
}
