//! Replies that wait until the records before them are durable.
//!
//! The records of a group stand in one log, which becomes durable in its order. So one position is enough: a reply waits
//! for the last record that was queued before it, and replies go out in the order in which they were given. A position is
//! whatever grows with each batch: its number, or the offset behind it.

use std::collections::VecDeque;

/// What becomes of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Held<T> {
    /// All batches before it are durable: it goes out now.
    Due(T),
    /// It comes out of [`Replies::durable`] or [`Replies::fail`].
    Waits,
    /// A batch before it will never be durable: it has to say so.
    Failed(T),
}

/// The replies of one group, or of whatever has its records in one partition.
#[derive(Debug)]
pub struct Replies<T> {
    /// The last batch that was queued.
    queued: i64,
    /// The last batch that is known to be durable.
    durable: i64,
    /// Whether the log has failed.
    failed: bool,
    /// With the batch up to which the log has to be durable. The positions do not decrease.
    waiting: VecDeque<(i64, T)>,
}

impl<T> Default for Replies<T> {
    fn default() -> Self {
        Replies { queued: 0, durable: 0, failed: false, waiting: VecDeque::new() }
    }
}

impl<T> Replies<T> {
    /// The last batch that was queued; 0 for none.
    pub fn last(&self) -> i64 {
        self.queued
    }

    /// The log has taken a batch at this position.
    pub fn queued(&mut self, position: i64) {
        self.queued = self.queued.max(position);
    }

    /// Keeps a reply until all batches queued so far are durable, unless that is known already.
    pub fn hold(&mut self, reply: T) -> Held<T> {
        if self.durable >= self.queued {
            return Held::Due(reply);
        }
        if self.failed {
            return Held::Failed(reply);
        }
        self.waiting.push_back((self.queued, reply));
        Held::Waits
    }

    /// The batches up to this position are durable: the replies that waited for them.
    pub fn durable(&mut self, position: i64) -> Vec<T> {
        self.durable = self.durable.max(position);
        let due = self.waiting.partition_point(|(until, _)| *until <= self.durable);
        self.waiting.drain(..due).map(|(_, reply)| reply).collect()
    }

    /// The log has failed: no batch that is not durable yet ever will be. All replies, which have to say so.
    pub fn fail(&mut self) -> Vec<T> {
        self.failed = true;
        self.waiting.drain(..).map(|(_, reply)| reply).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_wait_for_the_records_before_them() {
        let mut replies = Replies::default();
        assert_eq!(replies.hold('a'), Held::Due('a'), "nothing is on its way");
        replies.queued(10);
        assert_eq!(replies.hold('b'), Held::Waits);
        replies.queued(20);
        assert_eq!((replies.hold('c'), replies.hold('d')), (Held::Waits, Held::Waits));
        assert_eq!(replies.durable(9), []);
        assert_eq!(replies.durable(10), ['b']);
        // Completions may arrive out of order: the log is durable in its order.
        replies.queued(30);
        assert_eq!(replies.hold('e'), Held::Waits);
        assert_eq!(replies.durable(30), ['c', 'd', 'e']);
        assert_eq!(replies.durable(20), []);
        assert_eq!(replies.hold('f'), Held::Due('f'));
    }

    #[test]
    fn nobody_waits_for_a_log_that_has_failed() {
        let mut replies = Replies::default();
        replies.queued(1);
        assert_eq!(replies.durable(1), []);
        replies.queued(2);
        assert_eq!(replies.hold('a'), Held::Waits);
        assert_eq!(replies.fail(), ['a']);
        assert_eq!(replies.hold('b'), Held::Failed('b'));
        assert_eq!(replies.fail(), []);
    }
}
