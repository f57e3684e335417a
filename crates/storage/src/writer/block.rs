//! Blocks: the open block, and the blocks that were handed to the device.

use std::sync::Arc;

use model::Offset;

use crate::format::{BLOCK_HEADER_BYTES, Lsn};
use crate::request::{Admission, Committed, Completion};
use crate::segment::Segment;
use crate::stream::{Stream, Waiter};

/// How far the write of a block has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Submitted,
    /// The write is complete but not durable: the block waits for a sync.
    Written,
    Synced,
}

/// The effect of one entry, announced when its block is synced.
pub(crate) enum Effect {
    Grew { committed: Committed },
    Trimmed { stream: Arc<Stream>, to: Offset },
    Deleted { stream: Arc<Stream> },
}

/// A block that was handed to the device.
pub(crate) struct InFlight {
    pub token: u64,
    pub lsn: Lsn,
    /// Its number among those that the copy set gets.
    pub number: Option<u64>,
    pub bytes: usize,
    pub entries: u32,
    pub durable: bool,
    pub progress: Progress,
    pub submitted_ns: u64,
    pub effects: Vec<Effect>,
    /// Completed when the block is written.
    pub on_written: Vec<Arc<dyn Completion>>,
    /// Completed when the block is synced.
    pub on_synced: Vec<Arc<dyn Completion>>,
    /// Completed when the block is synced and their records are visible.
    pub on_visible: Vec<(Arc<Stream>, Waiter)>,
    pub written_answered: bool,
    /// Set for a footer block: its segment, whose trailer is due when the block is synced.
    pub footer_of: Option<Arc<Segment>>,
}

/// The block under construction, in the unfilled part of the write buffer.
pub(crate) struct OpenBlock {
    pub bytes: usize,
    pub entries: u32,
    pub durable: bool,
    pub effects: Vec<Effect>,
    pub on_written: Vec<Arc<dyn Completion>>,
    pub on_synced: Vec<Arc<dyn Completion>>,
    pub on_visible: Vec<(Arc<Stream>, Waiter)>,
    /// The reservations of its batches. They are given back once the block's position counts instead.
    pub admission: Option<Admission>,
}

impl Default for OpenBlock {
    fn default() -> OpenBlock {
        OpenBlock {
            bytes: BLOCK_HEADER_BYTES,
            entries: 0,
            durable: false,
            effects: Vec::new(),
            on_written: Vec::new(),
            on_synced: Vec::new(),
            on_visible: Vec::new(),
            admission: None,
        }
    }
}
