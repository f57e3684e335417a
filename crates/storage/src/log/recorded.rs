//! The end of a trim in a log whose owner changes: the next owner must know the start.

use std::sync::Arc;

use model::Offset;

use crate::request::{AppendError, Completion};
use crate::shared::Shared;
use crate::stream::Stream;

/// Completes a trim once an object records the new start. If nobody waits for that, the next object with records does.
pub(super) struct StartRecorded {
    done: Option<Arc<dyn Completion>>,
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    to: Offset,
}

impl StartRecorded {
    pub fn then(
        done: Option<Arc<dyn Completion>>,
        shared: &Arc<Shared>,
        stream: &Arc<Stream>,
        to: Offset,
    ) -> Arc<dyn Completion> {
        Arc::new(StartRecorded { done, shared: shared.clone(), stream: stream.clone(), to })
    }
}

impl Completion for StartRecorded {
    fn complete(&self, result: Result<(), AppendError>) {
        let tier = &self.shared.tier;
        let done = match (&self.done, &result) {
            (None, Ok(())) => return tier.record(vec![self.stream.clone()], None),
            (None, Err(_)) => return,
            (Some(done), Err(_)) => return done.complete(result),
            (Some(done), Ok(())) => done.clone(),
        };
        let recorded = self.stream.lock().recorded.wait_for_start(self.to, done);
        if let Some(done) = recorded {
            return done.complete(Ok(()));
        }
        tier.record(vec![self.stream.clone()], Some(self.shared.clock.nanos()));
        // Whoever stops the uploader says so before it fails those who wait.
        if let Some(why) = tier.fenced() {
            let mut recorded = std::mem::take(&mut self.stream.lock().recorded);
            recorded.fail(&AppendError::Unstored(why));
        }
    }
}
