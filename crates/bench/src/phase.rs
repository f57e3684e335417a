//! The phases of a test: the end of the measured part, and the handling of a backlog before it.
//!
//! As in OMB, with a backlog the consumers are paused at the start of the measured part, until enough messages have
//! accumulated. Then they are resumed until little of the backlog is left. Then the test's duration begins. Pure: the
//! caller reads the clock and pauses the consumers.

use std::time::Duration;

use crate::clock::{Nanos, nanos};
use crate::result::BacklogResult;

/// A backlog up to this number of messages counts as none.
const DRAINED_MAX: f64 = 1_000.0;
/// Time without progress after which a backlog counts as stuck: a client waits for ever for an answer, or consumers are
/// slower than producers.
pub const PROGRESS_TIMEOUT: Duration = Duration::from_secs(120);

/// The backlog to build, and the level at which it counts as drained, in messages over all groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BacklogPlan {
    pub messages: u64,
    pub drained: u64,
}

impl BacklogPlan {
    /// A backlog of `gigabytes` (2^30) of messages. `ratio` of it is to be drained.
    pub fn new(gigabytes: f64, message_bytes: usize, ratio: f64) -> Option<BacklogPlan> {
        if gigabytes <= 0.0 {
            return None;
        }
        let messages = gigabytes * f64::from(1 << 30) / message_bytes as f64;
        let drained = ((1.0 - ratio) * messages).max(DRAINED_MAX);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not below 0; saturates")]
        Some(BacklogPlan { messages: messages as u64, drained: drained as u64 })
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Until this time.
    Plain(Nanos),
    Building {
        plan: BacklogPlan,
        since: Nanos,
    },
    Draining {
        plan: BacklogPlan,
        since: Nanos,
        received: u64,
        result: BacklogResult,
    },
    Over,
}

/// The measured part of a test.
#[derive(Clone, Debug)]
pub struct Phases {
    state: State,
    duration: Nanos,
    /// The backlog that came nearest to its goal, and when.
    nearest: (u64, Nanos),
    /// Set once the backlog is drained.
    pub backlog: Option<BacklogResult>,
}

/// The next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    GoOn,
    Pause,
    Resume,
    End,
    /// The backlog makes no progress.
    Stuck,
}

impl Phases {
    /// Begins now. The first step says whether to pause for a backlog.
    pub fn begin(now: Nanos, duration: Duration, backlog: Option<BacklogPlan>) -> (Phases, Step) {
        let duration = nanos(duration);
        let (state, step) = match backlog {
            None => (State::Plain(now + duration), Step::GoOn),
            Some(plan) => (State::Building { plan, since: now }, Step::Pause),
        };
        (Phases { state, duration, nearest: (0, now), backlog: None }, step)
    }

    /// Checks the current backlog, over all groups, and the number of messages received so far.
    pub fn look(&mut self, now: Nanos, backlog: u64, received: u64) -> Step {
        match self.state {
            State::Plain(until) if now < until => Step::GoOn,
            State::Plain(_) | State::Over => {
                self.state = State::Over;
                Step::End
            }
            State::Building { plan, since } if backlog >= plan.messages => {
                let result = BacklogResult {
                    messages: backlog,
                    build_seconds: seconds(now - since),
                    ..BacklogResult::default()
                };
                self.state = State::Draining { plan, since: now, received, result };
                self.nearest = (backlog, now);
                Step::Resume
            }
            State::Draining { plan, since, received: before, result } if backlog <= plan.drained => {
                let drain_seconds = seconds(now - since);
                let drain_rate = (received - before) as f64 / drain_seconds.max(1e-9);
                self.backlog = Some(BacklogResult { drain_seconds, drain_rate, ..result });
                self.state = State::Plain(now + self.duration);
                Step::GoOn
            }
            State::Building { .. } => self.progress(now, backlog, backlog > self.nearest.0),
            State::Draining { .. } => self.progress(now, backlog, backlog < self.nearest.0),
        }
    }

    fn progress(&mut self, now: Nanos, backlog: u64, nearer: bool) -> Step {
        if nearer {
            self.nearest = (backlog, now);
        }
        let stuck = now - self.nearest.1 > nanos(PROGRESS_TIMEOUT);
        if stuck { Step::Stuck } else { Step::GoOn }
    }

    /// Seconds until the end, if known.
    pub fn left(&self, now: Nanos) -> Option<f64> {
        match self.state {
            State::Plain(until) => Some(seconds(until.saturating_sub(now))),
            State::Over => Some(0.0),
            State::Building { .. } | State::Draining { .. } => None,
        }
    }

    /// The name of the phase, for people.
    pub fn name(&self) -> &'static str {
        match self.state {
            State::Plain(_) | State::Over => "measuring",
            State::Building { .. } => "building the backlog",
            State::Draining { .. } => "draining the backlog",
        }
    }
}

/// Converts to seconds.
pub fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_plain_test_ends_after_its_duration() {
        let (mut phases, step) = Phases::begin(5 * SECOND, Duration::from_secs(10), None);
        assert_eq!(step, Step::GoOn);
        assert_eq!((phases.look(14 * SECOND, 9, 9), phases.left(14 * SECOND)), (Step::GoOn, Some(1.0)));
        assert_eq!(phases.look(15 * SECOND, 9, 9), Step::End);
        assert!(phases.backlog.is_none());
    }

    #[test]
    fn a_backlog_is_built_and_drained_before_the_duration() {
        let plan = BacklogPlan::new(1.0, 1024, 0.99).unwrap();
        assert_eq!(plan, BacklogPlan { messages: 1_048_576, drained: 10_485 });
        assert_eq!(BacklogPlan::new(0.001, 1024, 1.0).unwrap().drained, 1000);
        assert_eq!(BacklogPlan::new(0.0, 1024, 1.0), None);
        let (mut phases, step) = Phases::begin(0, Duration::from_secs(10), Some(plan));
        assert_eq!((step, phases.left(0)), (Step::Pause, None));
        assert_eq!(phases.look(SECOND, 1_000_000, 50), Step::GoOn);
        assert_eq!(phases.look(2 * SECOND, 1_100_000, 50), Step::Resume);
        assert_eq!(phases.look(3 * SECOND, 20_000, 2_000_000), Step::GoOn);
        assert_eq!(phases.look(6 * SECOND, 10_000, 4_000_050), Step::GoOn);
        let result = phases.backlog.unwrap();
        let expected = BacklogResult {
            messages: 1_100_000,
            build_seconds: 2.0,
            drain_seconds: 4.0,
            drain_rate: 1_000_000.0,
        };
        assert_eq!(result, expected);
        assert_eq!(phases.look(15 * SECOND, 0, 0), Step::GoOn);
        assert_eq!(phases.look(16 * SECOND, 0, 0), Step::End);
    }

    #[test]
    fn a_backlog_that_gets_nowhere_is_stuck() {
        let plan = BacklogPlan::new(1.0, 1024, 0.99).unwrap();
        let (mut phases, _) = Phases::begin(0, Duration::from_secs(10), Some(plan));
        assert_eq!(phases.look(SECOND, 1000, 0), Step::GoOn);
        assert_eq!(phases.look(121 * SECOND, 999, 0), Step::GoOn);
        assert_eq!(phases.look(122 * SECOND, 1000, 0), Step::Stuck, "nothing is produced");
        assert_eq!(phases.look(123 * SECOND, 2_000_000, 0), Step::Resume);
        // While the backlog shrinks, it may take any time.
        for second in 0..1000 {
            assert_eq!(phases.look((124 + 100 * second) * SECOND, 1_900_000 - second, 9), Step::GoOn);
        }
        assert_eq!(phases.look(100_144 * SECOND, 1_899_001, 10), Step::GoOn);
        assert_eq!(
            phases.look(100_145 * SECOND, 1_899_001, 10),
            Step::Stuck,
            "as much is produced as is received"
        );
    }
}
