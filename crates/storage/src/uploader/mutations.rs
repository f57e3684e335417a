//! Faults that a test plants in the uploader.

use objects::{Bucket, Put};

use super::{Progress, Uploader};
use crate::format::length32;
use crate::options::Mutation;

impl Uploader {
    /// After the puts that have ended were looked at; `failed` tells whether one of them has no clear outcome.
    pub(super) fn mutate(&mut self, bucket: &dyn Bucket, failed: bool) {
        match self.shared.options.mutation {
            Some(Mutation::DeletesUnknown) if failed => {
                for (at, _) in self.pending.iter().enumerate().filter(|(_, p)| matches!(p.put, Progress::Due))
                {
                    drop(bucket.delete(&self.shared.object_key(self.next + length32(at))));
                }
            }
            Some(Mutation::TrustsTaken) => {
                let taken = |put: &Progress| matches!(put, Progress::Ended(Put::Exists));
                for pending in self.pending.iter_mut().filter(|pending| taken(&pending.put)) {
                    pending.put = Progress::Ended(Put::Stored);
                }
            }
            _ => {}
        }
    }
}
