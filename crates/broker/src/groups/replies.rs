//! Replies that wait until the records before them are durable.
//!
//! The records of a group are in one log, which becomes durable in order. One position is therefore enough: a reply
//! waits for the last record that was queued before it, and replies go out in the order in which they were given. A
//! position is any number that grows with each batch, such as its sequence number or its end offset.

use std::collections::VecDeque;

/// The outcome of [`Replies::hold`].
#[derive(Debug, PartialEq, Eq)]
pub enum Held<T> {
    /// All batches before the reply are durable. The caller sends the reply now.
    Due(T),
    /// [`Replies::durable`] or [`Replies::fail`] returns the reply later.
    Waits,
    /// A batch before the reply will never be durable. The caller answers with an error.
    Failed(T),
}

/// The replies of one group, or of another owner of records in one partition.
#[derive(Debug)]
pub struct Replies<T> {
    /// The last batch that was queued.
    queued: i64,
    /// The last batch that is known to be durable.
    durable: i64,
    /// Whether the log has failed.
    failed: bool,
    /// Each reply with the batch that must be durable before it. The positions do not decrease.
    waiting: VecDeque<(i64, T)>,
}

impl<T> Default for Replies<T> {
    fn default() -> Self {
        Replies { queued: 0, durable: 0, failed: false, waiting: VecDeque::new() }
    }
}

impl<T> Replies<T> {
    /// The position of the last queued batch; 0 for none.
    pub fn last(&self) -> i64 {
        self.queued
    }

    /// Notes that the log has accepted a batch at this position.
    pub fn queued(&mut self, position: i64) {
        self.queued = self.queued.max(position);
    }

    /// Keeps a reply until all batches queued so far are durable. Returns the reply if they already are, or never will
    /// be.
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

    /// Notes that the batches up to this position are durable. Returns the replies that waited for them.
    pub fn durable(&mut self, position: i64) -> Vec<T> {
        self.durable = self.durable.max(position);
        let due = self.waiting.partition_point(|(until, _)| *until <= self.durable);
        self.waiting.drain(..due).map(|(_, reply)| reply).collect()
    }

    /// Notes that the log has failed: no further batch becomes durable. Returns all waiting replies, which must be
    /// answered with an error.
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
        // Completions may arrive out of order, because the log becomes durable in order.
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
