//! The end of a segment: its footer, and the next one.

use bytes::Bytes;
use model::Offset;

use super::block::OpenBlock;
use super::{Writer, producer_bytes_max};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, Lsn, length32, sectors, seeded_crc};
use crate::segment::Segment;
use crate::segment::footer::{self, SealedStream};
use crate::stream::{SealedExtent, clamp_timestamp};

impl Writer {
    /// Ends the active segment with its footer and continues in the next prepared segment. Returns false if none is
    /// prepared.
    pub(super) fn roll(&mut self) -> bool {
        let Some(next) = self.shared.take_prepared() else { return false };
        if self.open.entries > 0 {
            self.submit_block(BlockKind::Entries);
        }
        let sequence = self.segment.sequence;
        self.touched.sort_unstable_by_key(|stream| stream.id());
        let mut owners = Vec::with_capacity(self.touched.len());
        let mut sealed = Vec::with_capacity(self.touched.len());
        for stream in std::mem::take(&mut self.touched) {
            let index = {
                let state = stream.lock();
                let here =
                    state.active.as_ref().filter(|active| active.segment == sequence && !state.deleted);
                here.map(|active| active.index.clone())
            };
            if let Some(index) = index {
                sealed.push(SealedStream::written(stream.id(), index));
                owners.push(stream);
            }
        }
        let oldest_ms =
            self.shared.clock.now_ms().saturating_sub(self.shared.options.tuning.producer_expiry_ms());
        let producer_bytes_max = producer_bytes_max(&self.segment);
        let (table, bound) = footer::encode_table(&mut self.shared.streams(), oldest_ms, producer_bytes_max);
        self.table = bound;
        let footer_position = self.position;
        let payload_position = self.position + length32(BLOCK_HEADER_BYTES);
        let built = footer::build(
            sequence,
            self.segment.generation,
            self.epoch,
            footer_position,
            payload_position,
            &sealed,
            table,
        );
        let payload = self.submit_footer(&built.payload);
        // From here on readers find these extents through the footer. Compaction may release some of them before all
        // are counted. So all are counted first, with one extra count until the end.
        let rows_bytes: u64 = built.rows.iter().map(|row| row.bytes).sum();
        self.segment.set_live(length32(built.rows.len()) + 1, rows_bytes);
        self.segment.set_footer(built.trailer, Some((payload_position, payload)));
        for (at, (stream, sealed)) in owners.iter().zip(sealed).enumerate() {
            let row = &built.rows[at];
            let mut state = stream.lock();
            let active = state.active.take();
            if state.deleted {
                self.segment.release(sealed.index.bytes());
                continue;
            }
            // Compaction may have moved a part of the extent, or all of it, at any time before this lock.
            let (from, moved) = active.map_or((Offset::ZERO, 0), |active| (active.from, active.moved_bytes));
            let bytes = sealed.index.bytes() - moved;
            if row.next_offset <= state.start.max(from) {
                state.bytes -= u64::from(bytes);
                self.segment.release(sealed.index.bytes());
                continue;
            }
            self.segment.release_part(moved);
            state.push_sealed(SealedExtent {
                base_offset: row.base_offset.max(from),
                segment: sequence,
                row: length32(at),
                bytes,
                max_timestamp_s: clamp_timestamp(row.max_timestamp),
            });
            drop(state);
            self.shared.indexes.insert(sequence, length32(at), sealed.index);
        }
        self.segment.release(0);
        self.footer_bytes = 0;
        self.shared.segments.insert(next.clone());
        self.segment = next;
        self.position = Segment::data_start();
        self.count_room();
        self.shared.count_prepared(self.table.bytes(producer_bytes_max));
        true
    }

    /// Starts the write of the footer block. Returns its payload as it stays in memory.
    fn submit_footer(&mut self, payload: &[u8]) -> Bytes {
        let open =
            OpenBlock { bytes: BLOCK_HEADER_BYTES + payload.len(), durable: true, ..OpenBlock::default() };
        let total = sectors(open.bytes);
        let lsn = Lsn::new(self.segment.sequence, self.position);
        let mut buffer = self.shared.buffers.take_at_least(total);
        let block = &mut buffer.unfilled()[..total];
        block[BLOCK_HEADER_BYTES..open.bytes].copy_from_slice(payload);
        block[open.bytes..].fill(0);
        let header = BlockHeader {
            kind: BlockKind::Footer,
            epoch: self.epoch,
            lsn,
            synced: self.synced,
            length: length32(payload.len()),
            entries: 0,
            payload_crc: seeded_crc(self.segment.generation, payload),
        };
        header.encode(self.segment.generation, block);
        let bytes = buffer.freeze(total);
        self.unmarked = true;
        self.leave_buffer();
        let segment = self.segment.clone();
        let kept = bytes.slice(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + payload.len());
        self.submit(lsn, bytes, open, Some(segment));
        self.shared.tail.waste(buffer.remaining());
        kept
    }
}
