//! How far the log is stored: the copy set need not keep the blocks below.
//!
//! A pass begins at a position of the log and notes the streams with records below that are not stored yet, or were trimmed before
//! that. It ends when the objects have them, or at least know their end: the next owner gives out no offset twice. Its cost is that of
//! the streams which an object has, or which wait for one.

use std::sync::Arc;

use model::Offset;

use super::Uploader;
#[cfg(any(test, feature = "stepped"))]
use crate::options::Mutation;
use crate::stream::{Stream, StreamState};
use crate::tier::Class;

/// A pass that goes on.
pub(super) struct Pass {
    /// The number of the block that it goes up to.
    below: u64,
    left: Vec<Left>,
}

/// A stream that is not stored up to its end at the beginning of the pass.
struct Left {
    stream: Arc<Stream>,
    end: Offset,
    /// The next object was asked to record its bounds.
    asked: bool,
}

impl Uploader {
    /// Begins a pass, if none goes on and the last one did not go as far. No streams are being taken meanwhile.
    pub(super) fn begin_pass(&mut self) {
        let shared = &self.shared;
        if self.pass.is_some() || shared.outgoing.synced_below() <= self.passed {
            return;
        }
        // Blocks are announced whole: the ends of all streams are those at one position, and no stream begins to wait.
        let _announcing = shared.announcing.lock();
        let below = shared.outgoing.synced_below();
        let waiting = shared.tier.waiting();
        let to_record = shared.tier.to_record();
        let on_their_way = self
            .pending
            .iter()
            .flat_map(|pending| pending.built.streams.iter().chain(&pending.built.recorded));
        let aside = self.aside.values().map(|aside| &aside.stream);
        let all = waiting.iter().chain(&to_record).chain(on_their_way).chain(aside);
        let left = all.filter_map(|stream| {
            let state = stream.lock();
            let end = state.synced;
            lacks(stream, &state, end).then(|| Left { stream: stream.clone(), end, asked: false })
        });
        self.pass = Some(Pass { below, left: left.collect() });
    }

    /// Ends the pass if the objects have all of it by now.
    pub(super) fn end_pass(&mut self) {
        let Some(pass) = &mut self.pass else { return };
        let mut to_record = Vec::new();
        pass.left.retain_mut(|Left { stream, end, asked }| {
            let state = stream.lock();
            let lacks = lacks(stream, &state, *end);
            if lacks && state.start >= *end && !*asked {
                *asked = true;
                to_record.push(stream.clone());
            }
            lacks
        });
        self.shared.tier.record(to_record, Some(self.shared.clock.nanos()));
        #[cfg(any(test, feature = "stepped"))]
        if self.shared.options.mutation == Some(Mutation::ToldTooEarly) {
            pass.left.clear();
        }
        if pass.left.is_empty() {
            self.shared.outgoing.stored(pass.below);
            self.passed = pass.below;
            self.pass = None;
        }
    }
}

fn lacks(stream: &Stream, state: &StreamState, end: Offset) -> bool {
    Class::of(stream.level()).is_some() && state.lacks_in_objects(end)
}
