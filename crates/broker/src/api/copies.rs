//! The copies of logs on this broker's disk, as the owners of the logs ask for them: requests of this project's brokers alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use storage::copies::{Block, Copies, Opening, RefusedError};
use storage::{AdmitError, AppendError};
use tokio::sync::oneshot;
use uuid::Uuid;
use wire::messages as m;
use wire::{ErrorCode, Text};

use crate::broker::Broker;
use crate::cluster::copies::{DiskError, READ_BYTES, fence_here, refused, signed, unread};
use crate::internal::Told;
use crate::request::Request;

/// Blocks wait so long for room in the log of the copies.
const ROOM_WITHIN: Duration = Duration::from_secs(2);
/// They look so often whether there is some.
const LOOK: Duration = Duration::from_millis(2);
/// Larger requests are taken in by a thread for blocking work.
const SMALL_BYTES: usize = 64 * 1024;

/// An error as the protocol has it.
type Failed = (ErrorCode, Option<Text>);

fn failed(error: &DiskError) -> Failed {
    let code = match error {
        DiskError::Fenced => ErrorCode::FencedLeaderEpoch,
        DiskError::Gap => ErrorCode::OffsetOutOfRange,
        DiskError::Away(_) | DiskError::Failed(_) => ErrorCode::KafkaStorageError,
    };
    (code, Some(Text::from(error.to_string())))
}

fn cannot(error: impl std::fmt::Display) -> Failed {
    failed(&DiskError::Failed(error.to_string()))
}

/// The copies on this broker's disk, if that is the one which is meant.
fn copies_on(broker: &Broker, disk: Uuid) -> Result<Arc<Copies>, Failed> {
    let copies = broker.copies.as_ref().filter(|copies| copies.disk_id() == disk.as_u128());
    copies.cloned().ok_or_else(|| cannot(format_args!("this broker has no disk {disk}")))
}

fn opening(log: Uuid, epoch: i32) -> Opening {
    Opening { log_id: log.as_u128(), epoch: epoch.cast_unsigned() }
}

fn number(number: i64) -> Result<u64, Failed> {
    u64::try_from(number).map_err(|_| cannot(format_args!("{number} is not the number of a block")))
}

/// Answers CopyBlocks: the blocks are synced then.
pub async fn add(
    Request { broker, body: request, .. }: Request<m::CopyBlocksRequest>,
) -> m::CopyBlocksResponse {
    match add_blocks(&broker, request).await {
        Ok(next) => m::CopyBlocksResponse { next, ..m::CopyBlocksResponse::default() },
        Err((code, error_message)) => m::CopyBlocksResponse {
            error_code: code.code(),
            error_message,
            ..m::CopyBlocksResponse::default()
        },
    }
}

async fn add_blocks(broker: &Arc<Broker>, request: m::CopyBlocksRequest) -> Result<i64, Failed> {
    let copies = copies_on(broker, request.disk_id)?;
    let of = opening(request.log_id, request.epoch);
    let stored = number(request.stored)?;
    if request.blocks.is_empty() {
        copies.drop_below(of, stored);
        return Ok(-1);
    }
    // First, since this may make the room that the blocks need.
    copies.drop_below(of, stored);
    let first = number(request.first)?;
    let bytes: usize = request.blocks.iter().map(|block| block.content.len()).sum();
    let block = |(number, block): (u64, m::copy_blocks_request::CopiedBlock)| Block {
        number,
        generation: block.generation.cast_unsigned(),
        bytes: block.content,
    };
    let blocks: Arc<[Block]> = (first..).zip(request.blocks).map(block).collect();
    let until = Instant::now() + ROOM_WITHIN;
    let landed = loop {
        let (sender, landed) = oneshot::channel();
        let (copies, blocks, begins) = (copies.clone(), blocks.clone(), request.begins);
        let take = move || copies.add(of, &blocks, begins, Arc::new(Told::new(sender)));
        let taken = if bytes <= SMALL_BYTES { take() } else { broker.blocking(move |_| take()).await };
        match taken {
            Ok(()) => break landed,
            Err(RefusedError::Admit(AdmitError::Busy)) if Instant::now() < until => {
                tokio::time::sleep(LOOK).await;
            }
            Err(error) => return Err(failed(&refused(&error))),
        }
    };
    landed.await.unwrap_or(Err(AppendError::Closed)).map_err(cannot)?;
    let next = first + blocks.len() as u64;
    i64::try_from(next).map_err(cannot)
}

/// Answers FenceCopies: the fence is durable then, and all copies that are listed are synced.
pub async fn fence(
    Request { broker, body: request, .. }: Request<m::FenceCopiesRequest>,
) -> m::FenceCopiesResponse {
    let fenced = match copies_on(&broker, request.disk_id) {
        Ok(copies) => {
            let (log_id, epoch) = (request.log_id.as_u128(), request.epoch.cast_unsigned());
            let pause = || std::thread::sleep(LOOK);
            let fence = move |_: &_| fence_here(&copies, log_id, epoch, &pause);
            broker.blocking(fence).await.map_err(|error| failed(&error))
        }
        Err(error) => Err(error),
    };
    match fenced {
        Ok(extents) => {
            let copy = |extent: storage::copies::Extent| m::fence_copies_response::CopyExtent {
                epoch: extent.of.epoch.cast_signed(),
                first: signed(extent.first),
                next: signed(extent.next),
                proven: extent.proven,
            };
            let copies = extents.into_iter().map(copy).collect();
            m::FenceCopiesResponse { copies, ..m::FenceCopiesResponse::default() }
        }
        Err((code, error_message)) => {
            let error_code = code.code();
            m::FenceCopiesResponse { error_code, error_message, ..m::FenceCopiesResponse::default() }
        }
    }
}

/// Answers ReadCopies.
pub async fn read(
    Request { broker, body: request, .. }: Request<m::ReadCopiesRequest>,
) -> m::ReadCopiesResponse {
    match read_blocks(&broker, &request).await {
        Ok(blocks) => {
            let first = blocks.first().and_then(|block| i64::try_from(block.number).ok()).unwrap_or(-1);
            let block = |block: Block| m::read_copies_response::CopiedBlock {
                generation: block.generation.cast_signed(),
                content: block.bytes,
            };
            let blocks = blocks.into_iter().map(block).collect();
            m::ReadCopiesResponse { first, blocks, ..m::ReadCopiesResponse::default() }
        }
        Err((code, error_message)) => m::ReadCopiesResponse {
            error_code: code.code(),
            error_message,
            ..m::ReadCopiesResponse::default()
        },
    }
}

async fn read_blocks(broker: &Arc<Broker>, request: &m::ReadCopiesRequest) -> Result<Vec<Block>, Failed> {
    let copies = copies_on(broker, request.disk_id)?;
    let (of, from) = (opening(request.log_id, request.epoch), number(request.from)?);
    let bytes = usize::try_from(request.bytes_max).unwrap_or(0).min(READ_BYTES);
    let read = broker.blocking(move |_| copies.read(of, from, bytes)).await;
    read.map_err(|error| failed(&unread(&error)))
}
