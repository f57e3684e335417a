//! Completions: finished operations, the syncs and trailers that they allow, and the calls to waiting callers, in log
//! order. Also the end of the log after a failure.

use std::sync::Arc;

use disk::{Finished, SECTOR};

use super::block::{Effect, InFlight, Progress};
use super::pace::Wait;
use super::{BYTES_MEANWHILE, IDLE_MARK_AFTER, Patience, Writer};
use crate::format::Lsn;
#[cfg(any(test, feature = "stepped"))]
use crate::options::Mutation;
use crate::outgoing::show;
use crate::request::{AppendError, Completion, Enough};
use crate::segment::deleted;
use crate::stream::{Level, Stream, Waiter};
use crate::tier::Class;

impl Writer {
    /// Starts the sync that written blocks wait for, and the next trailer.
    pub(super) fn submit_followups(&mut self) {
        let waiting = self.in_flight.iter().take_while(|block| block.progress != Progress::Submitted);
        if self.sync_in_flight.is_none()
            && let Some(last) = waiting.filter(|block| block.progress == Progress::Written).last()
        {
            let (covers, segment) = (last.token, last.lsn.sequence());
            let token = self.token();
            // The blocks of an earlier segment end with a durable footer. Still, only a sync of their own file covers
            // them.
            let first = self.in_flight.iter().find(|block| block.progress == Progress::Written);
            let oldest = first.map_or(segment, |block| block.lsn.sequence());
            let covers = if oldest == segment { covers } else { self.last_written_of(oldest) };
            let file = self
                .shared
                .segments
                .find(oldest)
                .expect("a segment with blocks in flight is not recycled")
                .file
                .clone();
            self.queue.sync(token, &file);
            self.sync_in_flight = Some((token, covers));
        }
        if self.trailer_in_flight.is_none()
            && let Some(segment) = self.trailers_due.pop_front()
        {
            let token = self.token();
            let trailer = segment.footer().expect("a trailer is due only after the footer was built").trailer;
            let mut buffer = self.shared.buffers.take_at_least(crate::format::TRAILER_BYTES);
            buffer.unfilled()[..SECTOR].copy_from_slice(&trailer.encode(segment.generation));
            let bytes = buffer.freeze(SECTOR);
            self.queue.write(token, &segment.file, u64::from(segment.data_end()), bytes, true);
            self.trailer_in_flight = Some((token, segment));
        }
    }

    fn last_written_of(&self, sequence: u32) -> u64 {
        let of = |block: &&InFlight| block.lsn.sequence() == sequence && block.progress == Progress::Written;
        self.in_flight
            .iter()
            .take_while(|block| block.progress != Progress::Submitted)
            .filter(of)
            .last()
            .map_or(0, |b| b.token)
    }

    /// Takes finished operations and completes their callers. `wait` is the reason why the open block was not
    /// submitted. This function must not evaluate that reason again: it might have ended meanwhile, and nothing would
    /// wake the writer.
    pub(super) fn reap(&mut self, patience: Patience, wait: Option<Wait>) {
        let mut finished = std::mem::take(&mut self.finished);
        let busy = self.queue.in_flight() > 0;
        let mark_due =
            !busy && self.unmarked && !self.stopping && self.open.entries == 0 && self.requests.is_empty();
        let writing = self.writing() > 0 || !self.may_submit(1);
        let timeout = mark_due.then_some(IDLE_MARK_AFTER).or(wait.map(|wait| wait.time));
        let enough = match wait {
            Some(wait) => wait.enough,
            // New requests are written after the writes in flight have finished.
            None if writing => Enough { appends: usize::MAX, bytes: BYTES_MEANWHILE },
            None => Enough::ANY,
        };
        let woken_early = self.stopping && !busy;
        let waits = self.shared.queue.wake_from(enough) && !woken_early;
        let block = patience == Patience::Block && waits;
        if let Err(error) = self.queue.wait(block, timeout, &mut finished) {
            self.poison(&format!("waiting for the disk failed: {error}"));
        }
        if mark_due && block && finished.is_empty() && !self.shared.queue.has_requests() {
            self.submit_mark();
        }
        for Finished { token, result } in finished.drain(..) {
            if let Err(error) = result {
                self.poison(&format!("a write to segment {} failed: {error}", self.segment.sequence));
                continue;
            }
            self.finish(token);
        }
        self.finished = finished;
        if self.shared.queue.stopped().is_none() {
            self.announce();
        }
    }

    fn finish(&mut self, token: u64) {
        if self.sync_in_flight.is_some_and(|(sync, _)| sync == token) {
            let (_, covers) = self.sync_in_flight.take().expect("it was just seen");
            for block in
                self.in_flight.iter_mut().filter(|b| b.token <= covers && b.progress == Progress::Written)
            {
                block.progress = Progress::Synced;
            }
        } else if self.trailer_in_flight.as_ref().is_some_and(|(trailer, _)| *trailer == token) {
            let (_, segment) = self.trailer_in_flight.take().expect("it was just seen");
            segment.seal();
            self.shared.wake_preparer();
        } else {
            let block = self.in_flight.iter_mut().find(|block| block.token == token);
            let block = block.expect("a finished operation was in flight");
            block.progress = if block.durable { Progress::Synced } else { Progress::Written };
        }
    }

    /// Completes, in log order, all blocks that are written or synced without a gap.
    fn announce(&mut self) {
        for block in self.in_flight.iter_mut().take_while(|block| block.progress != Progress::Submitted) {
            if !block.written_answered {
                block.written_answered = true;
                block.on_written.drain(..).for_each(|done| done.complete(Ok(())));
            }
        }
        let mut grown = Vec::new();
        // A block leaves the list only after its callers are completed. If the listener panics, `drop` still completes
        // them.
        while let Some(block) = self.in_flight.front_mut().filter(|block| block.progress == Progress::Synced)
        {
            self.synced = Lsn(block.lsn.0 + block.bytes as u64);
            self.shared.set_synced(self.synced);
            let nanos = self.shared.clock.nanos().saturating_sub(block.submitted_ns);
            self.shared.listener.group_commit(block.bytes, block.entries, nanos);
            let announcing = self.shared.announcing.lock();
            let (mut leading_bytes, mut added) = (0, Vec::new());
            for effect in block.effects.drain(..) {
                match effect {
                    Effect::Grew { committed } => {
                        let level = committed.stream.level();
                        let visible = !level.waits();
                        #[cfg(any(test, feature = "stepped"))]
                        let visible =
                            visible || self.shared.options.mutation == Some(Mutation::VisibleWhenSynced);
                        {
                            let mut state = committed.stream.lock();
                            state.synced = committed.end;
                            if visible {
                                state.committed = committed.end;
                            }
                        }
                        if let Some(class) = Class::of(level) {
                            let bytes = u64::from(committed.bytes);
                            leading_bytes += if committed.stream.leads() { bytes } else { 0 };
                            self.shared.tier.grew(class, &committed.stream, bytes, self.shared.clock.nanos());
                        }
                        if visible {
                            grown.push(committed);
                        } else if level == Level::Replicated {
                            added.push(committed);
                        }
                    }
                    Effect::Trimmed { stream, to } => self.shared.apply_trim(&stream, to),
                    Effect::Deleted { stream } => self.shared.apply_delete(&stream),
                }
            }
            if leading_bytes > 0 {
                self.shared.tier.leading_grew(leading_bytes);
            }
            let (shown, waiters) = show(self.shared.outgoing.synced(block.number, added));
            grown.extend(shown);
            block.on_synced.extend(waiters.into_iter().map(|waiter| waiter.done));
            drop(announcing);
            self.trailers_due.extend(block.footer_of.take());
            // The listener comes before the completions: a completed caller must find its append in everything that
            // follows from commits.
            if !grown.is_empty() {
                self.shared.listener.committed(&grown);
                grown.clear();
            }
            block.on_synced.drain(..).for_each(|done| done.complete(Ok(())));
            for (stream, waiter) in block.on_visible.drain(..) {
                let mut state = stream.lock();
                if state.committed >= waiter.end {
                    drop(state);
                    waiter.done.complete(Ok(()));
                } else if state.deleted {
                    drop(state);
                    Waiter::fail_all(vec![waiter], &deleted());
                } else {
                    state.waiters.push(waiter);
                }
            }
            self.in_flight.pop_front();
        }
    }

    /// Ends the log. After a failed operation the content of the device is unknown, so no later write may be promised.
    fn poison(&mut self, why: &str) {
        tracing::error!(why, "the log takes no more appends; restart the server once the disk is well again");
        let error = AppendError::Poisoned(why.into());
        self.requests.extend(self.shared.queue.stop(error));
    }

    pub(super) fn fail_all(&mut self, error: &AppendError) {
        self.ended = true;
        self.requests.extend(self.shared.queue.stop(error.clone()));
        for block in self.in_flight.drain(..) {
            fail(block.on_written, block.on_synced, block.on_visible, error);
        }
        let open = std::mem::take(&mut self.open);
        fail(open.on_written, open.on_synced, open.on_visible, error);
        self.requests.drain(..).for_each(|request| request.fail(error));
        // Callers that wait for room learn that there will be none.
        self.shared.listener.room();
    }
}

fn fail(
    on_written: Vec<Arc<dyn Completion>>,
    on_synced: Vec<Arc<dyn Completion>>,
    on_visible: Vec<(Arc<Stream>, Waiter)>,
    error: &AppendError,
) {
    let on_visible = on_visible.into_iter().map(|(_, waiter)| waiter.done);
    let all = on_written.into_iter().chain(on_synced).chain(on_visible);
    all.for_each(|done| done.complete(Err(error.clone())));
}

impl Drop for Writer {
    /// A panic of the writer must not leave its callers waiting.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = AppendError::Poisoned("the log's writer panicked, which is a bug".into());
            // The panic may come from the listener or a completion, and a second panic would end the process.
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.fail_all(&error)));
            if told.is_err() {
                tracing::error!("the log's writer panicked again while it told its callers");
            }
        }
    }
}
