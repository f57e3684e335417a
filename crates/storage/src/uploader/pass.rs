//! How far the log is stored: the copy set need not keep the blocks below.
//!
//! A pass begins at a position of the log and notes the streams with records below that are not stored yet. It ends when the
//! objects have them. Its cost is that of the streams which an object has, or which wait for one.

use std::sync::Arc;

use model::Offset;

use super::Uploader;
#[cfg(any(test, feature = "stepped"))]
use crate::options::Mutation;
use crate::stream::Stream;

/// A pass that goes on.
pub(super) struct Pass {
    /// The number of the block that it goes up to.
    below: u64,
    /// What is not stored yet: the ends of the streams at the beginning of the pass.
    left: Vec<(Arc<Stream>, Offset)>,
}

impl Uploader {
    /// Begins a pass, unless one goes on. The next object is made of the streams `taken`.
    pub(super) fn begin_pass(&mut self, taken: &[Arc<Stream>]) {
        if self.pass.is_some() || !self.shared.outgoing.has_sink() {
            return;
        }
        let waiting = self.shared.tier.waiting();
        let on_their_way = self.pending.iter().flat_map(|pending| &pending.built.streams);
        let aside = self.aside.values().map(|aside| &aside.stream);
        let all = taken.iter().chain(&waiting).chain(on_their_way).chain(aside);
        // Blocks are announced whole: the ends of all streams are those at one position.
        let _announcing = self.shared.announcing.lock();
        let below = self.shared.outgoing.synced_below();
        let left = all.map(|stream| (stream.clone(), stream.lock().synced)).collect();
        self.pass = Some(Pass { below, left });
    }

    /// Ends the pass if the objects have all of it by now.
    pub(super) fn end_pass(&mut self) {
        let Some(pass) = &mut self.pass else { return };
        pass.left.retain(|(stream, end)| {
            let state = stream.lock();
            let stored = state.stored_to().unwrap_or_default().max(state.start);
            !state.deleted && stored < *end
        });
        #[cfg(any(test, feature = "stepped"))]
        if self.shared.options.mutation == Some(Mutation::ToldTooEarly) {
            pass.left.clear();
        }
        if pass.left.is_empty() {
            self.shared.outgoing.stored(pass.below);
            self.pass = None;
        }
    }
}
