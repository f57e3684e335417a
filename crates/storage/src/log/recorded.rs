//! The end of a trim in a log whose owner changes: the next owner must know the start.

use std::sync::Arc;

use model::Offset;

use crate::request::{AppendError, Completion};
use crate::shared::Shared;
use crate::stream::Stream;

/// Completes a trim once an object records the new start.
pub(super) struct StartRecorded {
    done: Arc<dyn Completion>,
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    to: Offset,
}

impl StartRecorded {
    pub fn then(
        done: Arc<dyn Completion>,
        shared: &Arc<Shared>,
        stream: &Arc<Stream>,
        to: Offset,
    ) -> Arc<dyn Completion> {
        Arc::new(StartRecorded { done, shared: shared.clone(), stream: stream.clone(), to })
    }
}

impl Completion for StartRecorded {
    fn complete(&self, result: Result<(), AppendError>) {
        if result.is_err() {
            return self.done.complete(result);
        }
        let recorded = self.stream.lock().recorded.wait_for_start(self.to, self.done.clone());
        if let Some(done) = recorded {
            return done.complete(Ok(()));
        }
        let tier = &self.shared.tier;
        tier.record(vec![self.stream.clone()], Some(self.shared.clock.nanos()));
        // Whoever stops the uploader says so before it fails those who wait.
        if let Some(why) = tier.fenced() {
            let mut recorded = std::mem::take(&mut self.stream.lock().recorded);
            recorded.fail(&AppendError::Unstored(why));
        }
    }
}
