//! Which objects record the bounds of a stream. The next owner of the log knows them from there, also where no record is
//! left.

use std::sync::Arc;

use model::Offset;

use crate::completion::{AppendError, Completion};

/// A bound, and the newest object that records it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    offset: Offset,
    /// Its sequence number. 0 if no object is known to record it.
    object: u32,
}

/// The bounds of a stream that objects record.
#[derive(Default)]
pub(crate) struct Recorded {
    /// The highest start.
    start: Bound,
    /// The highest end.
    next: Bound,
    /// Those who wait until a start is recorded.
    waiters: Vec<(Offset, Arc<dyn Completion>)>,
}

impl std::fmt::Debug for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorded")
            .field("start", &self.start)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl Recorded {
    /// Notes that the stored object `object` records these bounds. Returns those who waited for it.
    #[must_use]
    pub fn note(&mut self, start: Offset, next: Offset, object: u32) -> Vec<Arc<dyn Completion>> {
        self.start = self.start.max(Bound { offset: start, object });
        self.next = self.next.max(Bound { offset: next, object });
        let recorded = self.start.offset;
        let done = self.waiters.extract_if(.., |(start, _)| *start <= recorded);
        done.map(|(_, done)| done).collect()
    }

    /// Completes `done` once an object records this start. Returns it if one does already.
    #[must_use]
    pub fn wait_for_start(
        &mut self,
        start: Offset,
        done: Arc<dyn Completion>,
    ) -> Option<Arc<dyn Completion>> {
        if self.start.object > 0 && self.start.offset >= start {
            return Some(done);
        }
        self.waiters.push((start, done));
        None
    }

    /// Whether a bound would be unknown without the objects that `gone` names, or is not known to be recorded at all.
    pub fn needs(&self, gone: impl Fn(u32) -> bool) -> bool {
        [self.start, self.next].into_iter().any(|bound| bound.object == 0 || gone(bound.object))
    }

    /// The objects that are known to record a bound.
    pub fn objects(&self) -> [u32; 2] {
        [self.start.object, self.next.object]
    }

    /// The highest start that an object records.
    pub fn start(&self) -> Offset {
        self.start.offset
    }

    /// The highest end that an object records.
    pub fn next(&self) -> Offset {
        self.next.offset
    }

    /// Whether the objects that record a bound are not known: the log was opened since.
    pub fn is_unknown(&self) -> bool {
        self.start.object == 0 || self.next.object == 0
    }

    /// Fails all who wait.
    pub fn fail(&mut self, error: &AppendError) {
        for (_, done) in self.waiters.drain(..) {
            done.complete(Err(error.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_needed_from_the_newest_object_that_has_the_highest() {
        let mut recorded = Recorded::default();
        assert!(recorded.is_unknown() && recorded.needs(|_| false));
        let _ = recorded.note(Offset(0), Offset(10), 5);
        let _ = recorded.note(Offset(4), Offset(10), 6);
        // It replaces older records.
        let _ = recorded.note(Offset(5), Offset(7), 9);
        assert!(!recorded.is_unknown() && !recorded.needs(|object| object == 5));
        assert!(recorded.needs(|object| object == 6) && recorded.needs(|object| object == 9));
        let _ = recorded.note(Offset(5), Offset(10), 12);
        assert!(!recorded.needs(|object| object < 12) && recorded.needs(|object| object == 12));
    }
}
