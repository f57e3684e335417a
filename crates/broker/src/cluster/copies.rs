//! The disks that keep copies of logs, and how their brokers are asked.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use storage::copies::{Block, Copies, CopyError, Extent, Opening, RefusedError};
use storage::{AppendError, Completion};
use uuid::Uuid;
use wire::ErrorCode;
use wire::messages as m;
use wire::messages::copy_blocks_request::CopiedBlock;

use super::replicas::with_disk;
use crate::coordinator::Peers;
use crate::image::Metadata;

/// Bytes of blocks in an answer.
pub const READ_BYTES: usize = 4 * 1024 * 1024;

/// Why a disk does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// It does not answer.
    #[error("{0}")]
    Away(String),
    /// It has answered that it cannot, or takes nothing at the moment.
    #[error("{0}")]
    Failed(String),
    /// The log has a later owner.
    #[error("the log has a later owner")]
    Fenced,
    /// It lacks blocks before those that it was sent.
    #[error("it lacks blocks")]
    Gap,
}

/// Blocks on their way to a disk.
#[derive(Debug)]
pub struct Sent<'a> {
    /// Who sends them.
    pub of: Opening,
    /// The copy may begin with them.
    pub begins: bool,
    /// The object store has what is in the blocks below.
    pub stored: u64,
    /// The blocks, in a row. Without any, only `stored` is told.
    pub blocks: &'a [Block],
}

/// The disks that keep copies.
pub trait CopyDisks: fmt::Debug + Send + Sync {
    /// Adds blocks to a copy. Returns the number behind the last one that is synced. Blocks.
    fn add(&self, disk: Uuid, sent: &Sent<'_>) -> Result<u64, DiskError>;

    /// Refuses all blocks of a log's epochs below `epoch` from now on. Returns the copies of the log. Blocks.
    fn fence(&self, disk: Uuid, log_id: u128, epoch: u32) -> Result<Vec<Extent>, DiskError>;

    /// Blocks of a copy from number `from` on: about [`READ_BYTES`], and one at least. Blocks.
    fn read(&self, disk: Uuid, of: Opening, from: u64) -> Result<Vec<Block>, DiskError>;
}

/// The disks of this broker and of the others.
#[derive(Debug)]
pub struct PeerDisks {
    /// That of this broker.
    pub local: Arc<Copies>,
    /// The others, by what the metadata says.
    pub metadata: Arc<Metadata>,
    /// How their brokers are asked.
    pub peers: Arc<Peers>,
}

impl PeerDisks {
    fn is_local(&self, disk: Uuid) -> bool {
        disk.as_u128() == self.local.disk_id()
    }

    /// The answer of the broker that has the disk.
    fn ask<Q: wire::Message, A: wire::Message>(
        &self,
        disk: Uuid,
        request: &Q,
        outcome: impl Fn(&A) -> (i16, Option<wire::Text>),
    ) -> Result<A, DiskError> {
        let Some(broker) = with_disk(&self.metadata.image(), disk) else {
            return Err(DiskError::Away(format!("no broker has disk {disk}")));
        };
        let answer = self.peers.ask_blocking::<Q, A>(broker, 0, request);
        let answer = answer.map_err(|error| DiskError::Away(format!("broker {broker}: {error}")))?;
        let (code, message) = outcome(&answer);
        match ErrorCode::from_code(code) {
            Some(ErrorCode::None) => Ok(answer),
            Some(ErrorCode::FencedLeaderEpoch) => Err(DiskError::Fenced),
            Some(ErrorCode::OffsetOutOfRange) => Err(DiskError::Gap),
            _ => {
                let message = message.map_or_else(String::new, |message| message.to_string());
                Err(DiskError::Failed(format!("broker {broker}: {code} {message}")))
            }
        }
    }
}

/// The number of a block as the protocol has it.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl CopyDisks for PeerDisks {
    fn add(&self, disk: Uuid, sent: &Sent<'_>) -> Result<u64, DiskError> {
        let Sent { of, begins, stored, blocks } = *sent;
        let block = |block: &Block| CopiedBlock {
            generation: block.generation.cast_signed(),
            content: block.bytes.clone(),
        };
        let request = m::CopyBlocksRequest {
            disk_id: disk,
            log_id: Uuid::from_u128(of.log_id),
            epoch: of.epoch.cast_signed(),
            begins,
            stored: signed(stored),
            first: blocks.first().map_or(-1, |block| signed(block.number)),
            blocks: blocks.iter().map(block).collect(),
        };
        let answer = self.ask(disk, &request, |answer: &m::CopyBlocksResponse| {
            (answer.error_code, answer.error_message.clone())
        })?;
        Ok(unsigned(answer.next))
    }

    fn fence(&self, disk: Uuid, log_id: u128, epoch: u32) -> Result<Vec<Extent>, DiskError> {
        if self.is_local(disk) {
            return fence_here(&self.local, log_id, epoch, &|| {
                std::thread::sleep(std::time::Duration::from_millis(1));
            });
        }
        let request = m::FenceCopiesRequest {
            disk_id: disk,
            log_id: Uuid::from_u128(log_id),
            epoch: epoch.cast_signed(),
        };
        let answer = self.ask(disk, &request, |answer: &m::FenceCopiesResponse| {
            (answer.error_code, answer.error_message.clone())
        })?;
        let extent = |copy: &m::fence_copies_response::CopyExtent| Extent {
            of: Opening { log_id, epoch: copy.epoch.cast_unsigned() },
            first: unsigned(copy.first),
            next: unsigned(copy.next),
            proven: copy.proven,
        };
        Ok(answer.copies.iter().map(extent).collect())
    }

    fn read(&self, disk: Uuid, of: Opening, from: u64) -> Result<Vec<Block>, DiskError> {
        if self.is_local(disk) {
            return self.local.read(of, from, READ_BYTES).map_err(|error| unread(&error));
        }
        let request = m::ReadCopiesRequest {
            disk_id: disk,
            log_id: Uuid::from_u128(of.log_id),
            epoch: of.epoch.cast_signed(),
            from: signed(from),
            bytes_max: i32::try_from(READ_BYTES).unwrap_or(i32::MAX),
        };
        let answer = self.ask(disk, &request, |answer: &m::ReadCopiesResponse| {
            (answer.error_code, answer.error_message.clone())
        })?;
        let numbered = (unsigned(answer.first)..).zip(answer.blocks);
        let block = |(number, block): (u64, m::read_copies_response::CopiedBlock)| Block {
            number,
            generation: block.generation.cast_unsigned(),
            bytes: block.content,
        };
        Ok(numbered.map(block).collect())
    }
}

/// The error for copies that cannot be read.
pub fn unread(error: &CopyError) -> DiskError {
    match error {
        CopyError::Unknown(_) => DiskError::Gap,
        error => DiskError::Failed(error.to_string()),
    }
}

/// Fences a log on a disk of this process, and waits until what it has is synced. `pause` waits a little.
pub fn fence_here(
    copies: &Copies,
    log_id: u128,
    epoch: u32,
    pause: &dyn Fn(),
) -> Result<Vec<Extent>, DiskError> {
    copies.fence(log_id, epoch).map_err(|error| DiskError::Failed(error.to_string()))?;
    while !copies.is_settled(log_id).map_err(|error| DiskError::Failed(error.to_string()))? {
        pause();
    }
    Ok(copies.extents(log_id))
}

/// The outcome of an append to the copies.
#[derive(Debug, Default)]
pub struct Added(Mutex<Option<Result<(), AppendError>>>);

impl Added {
    /// The outcome, once there is one.
    pub fn outcome(&self) -> Option<Result<(), AppendError>> {
        self.0.lock().clone()
    }
}

impl Completion for Added {
    fn complete(&self, result: Result<(), AppendError>) {
        self.0.lock().get_or_insert(result);
    }
}

/// The error for blocks that a disk does not take.
pub fn refused(error: &RefusedError) -> DiskError {
    match error {
        RefusedError::Fenced(_) => DiskError::Fenced,
        RefusedError::Gap(_) => DiskError::Gap,
        RefusedError::Damaged(_) | RefusedError::Admit(_) => DiskError::Failed(error.to_string()),
    }
}
