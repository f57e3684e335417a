//! The footer of a segment. The writer builds it to seal the segment; recovery rebuilds it if it is missing.
//!
//! The footer has a batch index for each stream with records in the segment, the directory of these indexes, and the
//! stream table: start, next offset and producers of every stream of the log at the end of the segment. Recovery starts
//! from the newest table, so offsets and sequences survive the recycling of older segments.
//!
//! ```text
//! payload      | batch indexes | directory | stream table | the trailer's first 60 bytes |
//! stream table | version u8 | stream count varint | stream… |
//! stream       | id varint | start varint | next varint | producers (see producers.rs) |
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use model::{Offset, StreamId};

use crate::format::{DirectoryRow, Trailer, index, length32, put_varint, seeded_crc, take_varint};
use crate::index::BatchIndex;
use crate::stream::{Producers, Stream};

/// The version of a table in which no producer has a coordinator epoch, and of one in which some have.
const TABLE_VERSIONS: [u8; 2] = [1, 2];
/// Bytes of the footer for one more stream in the segment: directory row and head of its index.
pub(crate) const STREAM_FOOTER_BYTES: usize = crate::format::DIRECTORY_ROW_BYTES + 8;
/// Upper bound of the bytes of the stream table for one stream.
pub(crate) const TABLE_STREAM_BYTES: usize = 10 + 10 + 10 + 10;
/// Upper bound of the bytes of the stream table for one producer on one stream.
pub(crate) const TABLE_PRODUCER_BYTES: usize =
    10 + 3 + 10 + 5 + crate::stream::REMEMBERED_BATCHES * (5 + 10 + 5 + 10);
/// The last bytes of a footer's payload repeat the trailer, in case the sector at the end of the file was not written.
pub(crate) const TRAILER_COPY_BYTES: usize = 60;

/// The batches of a stream in a segment that is being sealed.
pub(crate) struct SealedStream {
    pub stream: StreamId,
    pub index: Arc<BatchIndex>,
    /// The offsets that the extent stands for. Where records were compacted away, these are more offsets than its
    /// batches have.
    pub base_offset: Offset,
    pub next_offset: Offset,
    /// As in [`DirectoryRow::flags`].
    pub flags: u32,
}

impl SealedStream {
    /// The extent of a segment of the writer.
    pub fn written(stream: StreamId, index: Arc<BatchIndex>) -> SealedStream {
        let base_offset = index.base_offset().expect("a stream is sealed with at least one batch");
        let next_offset = index.next_offset().expect("a stream is sealed with at least one batch");
        SealedStream { stream, index, base_offset, next_offset, flags: 0 }
    }
}

/// The payload of a footer block, and the trailer that points into it.
pub(crate) struct BuiltFooter {
    pub payload: Vec<u8>,
    pub trailer: Trailer,
    /// The sealed extents' rows, in the order of the directory.
    pub rows: Vec<DirectoryRow>,
}

/// Builds the footer whose payload will stand at `payload_position` in the file. `streams` are sorted by id, and the
/// extents of one stream by offset.
pub(crate) fn build(
    sequence: u32,
    generation: u64,
    epoch: u64,
    footer_position: u32,
    payload_position: u32,
    streams: &[SealedStream],
    table: Vec<u8>,
) -> BuiltFooter {
    let mut payload = Vec::with_capacity(
        streams.iter().map(|s| s.index.stored_bytes() + crate::format::DIRECTORY_ROW_BYTES).sum::<usize>()
            + table.len(),
    );
    let mut rows = Vec::with_capacity(streams.len());
    for sealed in streams {
        let from = payload.len();
        sealed.index.encode(&mut payload);
        rows.push(DirectoryRow {
            stream: sealed.stream,
            base_offset: sealed.base_offset,
            next_offset: sealed.next_offset,
            max_timestamp: sealed.index.max_timestamp().expect("a stream is sealed with at least one batch"),
            bytes: u64::from(sealed.index.bytes()),
            index_position: payload_position + length32(from),
            index_length: length32(payload.len() - from),
            index_crc: seeded_crc(generation, &payload[from..]),
            batches: sealed.index.batches(),
            flags: sealed.flags,
        });
    }
    let directory_at = payload.len();
    for row in &rows {
        row.encode(&mut payload);
    }
    let directory_crc = seeded_crc(generation, &payload[directory_at..]);
    let table_at = payload.len();
    payload.extend_from_slice(&table);
    let trailer = Trailer {
        sequence,
        footer_position,
        directory_position: payload_position + length32(directory_at),
        rows: length32(rows.len()),
        directory_crc,
        table_position: payload_position + length32(table_at),
        table_length: length32(table.len()),
        table_crc: seeded_crc(generation, &table),
        end: footer_position
            + length32(crate::format::sectors(
                crate::format::BLOCK_HEADER_BYTES + payload.len() + TRAILER_COPY_BYTES,
            )),
        epoch,
    };
    payload.extend_from_slice(&trailer.encode(generation)[..TRAILER_COPY_BYTES]);
    BuiltFooter { payload, trailer, rows }
}

/// Upper bound of the size of a stream table.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TableBound {
    pub streams: usize,
    pub producers: usize,
}

impl TableBound {
    /// The bound in bytes. The producers get at most `producer_bytes_max`.
    pub fn bytes(self, producer_bytes_max: usize) -> usize {
        1 + 10
            + self.streams * TABLE_STREAM_BYTES
            + (self.producers * TABLE_PRODUCER_BYTES).min(producer_bytes_max)
    }

    /// The bound of a table of `streams`.
    pub fn of<'a>(streams: impl IntoIterator<Item = &'a Arc<Stream>>) -> TableBound {
        let mut bound = TableBound::default();
        for stream in streams {
            let state = stream.lock();
            bound.streams += usize::from(state.next > Offset::ZERO);
            bound.producers += state.producers.len();
        }
        bound
    }
}

/// The stream table of all `streams` that were ever written to, and the bound of the next table. If the producers would
/// take more than `producer_bytes_max`, those that appended longest ago are forgotten.
pub(crate) fn encode_table(
    streams: &mut Vec<Arc<Stream>>,
    oldest_producer_ms: i64,
    producer_bytes_max: usize,
) -> (Vec<u8>, TableBound) {
    streams.retain(|stream| {
        let state = stream.lock();
        !state.placed_delete && state.next > Offset::ZERO
    });
    streams.sort_unstable_by_key(|stream| stream.id());
    let mut oldest_ms = oldest_producer_ms;
    loop {
        let mut out = vec![TABLE_VERSIONS[0]];
        put_varint(&mut out, streams.len() as u64);
        let (mut appended_ms, mut producer_bytes) = (Vec::new(), 0);
        for stream in streams.iter() {
            let mut state = stream.lock();
            state.producers.expire(oldest_ms);
            appended_ms.extend(state.producers.iter().map(|(_, producer)| producer.last_append_ms));
            put_varint(&mut out, stream.id().0);
            put_varint(&mut out, state.placed_start.0.cast_unsigned());
            put_varint(&mut out, state.next.0.cast_unsigned());
            let before = out.len();
            encode_producers(&state.producers, &mut out);
            producer_bytes += out.len() - before;
        }
        if producer_bytes <= producer_bytes_max + streams.len() || appended_ms.is_empty() {
            return (out, TableBound { streams: streams.len(), producers: appended_ms.len() });
        }
        // Forget the older half and try again.
        appended_ms.sort_unstable();
        oldest_ms = appended_ms[appended_ms.len() / 2] + 1;
        tracing::warn!(
            producers = appended_ms.len(),
            "too many idempotent producers to remember, forgetting the older half"
        );
    }
}

/// The stream table with these rows, sorted by id.
pub(crate) fn encode_rows(rows: &[(StreamId, TableRow)]) -> Vec<u8> {
    let mut out = vec![TABLE_VERSIONS[0]];
    put_varint(&mut out, rows.len() as u64);
    for (id, row) in rows {
        put_varint(&mut out, id.0);
        put_varint(&mut out, row.start.0.cast_unsigned());
        put_varint(&mut out, row.next.0.cast_unsigned());
        encode_producers(&row.producers, &mut out);
    }
    out
}

fn encode_producers(producers: &Producers, table: &mut Vec<u8>) {
    producers.encode(table);
    if producers.iter().any(|(_, producer)| producer.coordinator_epoch.is_some()) {
        table[0] = TABLE_VERSIONS[1];
    }
}

/// A row of a stream table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableRow {
    pub start: Offset,
    pub next: Offset,
    pub producers: Producers,
}

/// Reads a stream table whose CRC was checked. Returns `None` if it contradicts itself.
pub(crate) fn decode_table(bytes: &[u8]) -> Option<HashMap<StreamId, TableRow>> {
    let (&version, mut rest) = bytes.split_first()?;
    if !TABLE_VERSIONS.contains(&version) {
        return None;
    }
    let mut streams = HashMap::new();
    for _ in 0..take_varint(&mut rest)? {
        let id = StreamId(take_varint(&mut rest)?);
        let start = Offset(i64::try_from(take_varint(&mut rest)?).ok()?);
        let next = Offset(i64::try_from(take_varint(&mut rest)?).ok()?);
        let producers = Producers::decode(&mut rest)?;
        streams.insert(id, TableRow { start, next, producers });
    }
    rest.is_empty().then_some(streams)
}

/// Reads the directory at the beginning of `bytes`. Returns `None` if its CRC does not match.
pub(crate) fn decode_directory(
    bytes: &[u8],
    trailer: &Trailer,
    generation: u64,
) -> Option<Vec<DirectoryRow>> {
    let bytes = bytes.get(..index(trailer.rows) * crate::format::DIRECTORY_ROW_BYTES)?;
    if seeded_crc(generation, bytes) != trailer.directory_crc {
        return None;
    }
    bytes.chunks_exact(crate::format::DIRECTORY_ROW_BYTES).map(DirectoryRow::decode).collect()
}

/// Whether a row agrees with its index.
pub(crate) fn fits(row: &DirectoryRow, index: &BatchIndex) -> bool {
    let inside = index.base_offset().is_some_and(|base| base >= row.base_offset)
        && index.next_offset().is_some_and(|next| next <= row.next_offset);
    inside
        && row.bytes == u64::from(index.bytes())
        && row.batches == index.batches()
        && Some(row.max_timestamp) == index.max_timestamp()
}
