//! The codecs of a batch's records, whole buffers at a time.
//!
//! Invariant: no input produces more than the caller's limit. At most one block of the codec beyond the limit is held.
//!
//! Snappy comes in two shapes. Java's and librdkafka's is that of xerial's snappy-java: a header of 16 bytes, then
//! blocks, each a big-endian length and raw snappy:
//! ```text
//! 82 53 4e 41 50 50 59 00 | version i32 | oldest reader's version i32 | ( length i32 | snappy block )*
//! ```
//! Some clients send one raw block instead. This module reads both shapes and writes the first.

use std::io::{Read, Write};

use bytes::Bytes;
use model::Compression;

const XERIAL_MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
/// Magic, version 1, readable since version 1.
const XERIAL_HEADER: [u8; 16] = *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The flag of a frame whose window is its whole content.
const ZSTD_SINGLE_SEGMENT: u8 = 1 << 5;
/// Bytes that are decompressed at a time.
const ZSTD_STEP_BYTES: usize = 64 * 1024;
/// Bytes in one xerial block before compression: snappy-java's own default.
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

/// Why records cannot be decompressed.
#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    /// The records decompress to more than the caller allows.
    #[error("the records decompress to more than {limit_bytes} bytes")]
    TooLarge {
        /// The caller's limit.
        limit_bytes: usize,
    },
    /// During decompression, the codec would hold a larger window or block than the caller allows.
    #[error("the records need {bytes} bytes to be decompressed")]
    Window {
        /// Bytes that the codec would hold.
        bytes: u64,
    },
    /// The bytes are not valid for the codec that the batch names.
    #[error("the records are not valid {codec}: {reason}")]
    Corrupt {
        /// The codec.
        codec: &'static str,
        /// The codec's own message.
        reason: String,
    },
}

fn corrupt(codec: &'static str, reason: impl ToString) -> DecompressError {
    DecompressError::Corrupt { codec, reason: reason.to_string() }
}

/// Decompresses `input` to at most `limit_bytes`. Without compression, returns `input` itself without a copy.
pub fn decompress(codec: Compression, input: &Bytes, limit_bytes: usize) -> Result<Bytes, DecompressError> {
    let output = match codec {
        Compression::None if input.len() > limit_bytes => {
            return Err(DecompressError::TooLarge { limit_bytes });
        }
        Compression::None => return Ok(input.clone()),
        Compression::Gzip => drain(flate2::read::MultiGzDecoder::new(&input[..]), codec, limit_bytes)?,
        Compression::Lz4 => drain(lz4_flex::frame::FrameDecoder::new(&input[..]), codec, limit_bytes)?,
        Compression::Snappy => snappy(input, limit_bytes)?,
        Compression::Zstd => {
            let limits = Limits { decompressed: limit_bytes, held: usize::MAX };
            drain(ZstdReader::new(input, limits), codec, limit_bytes)?
        }
    };
    Ok(Bytes::from(output))
}

/// Converts an error of a read from [`reader`].
pub(crate) fn read_error(codec: Compression, error: std::io::Error) -> DecompressError {
    match error.downcast::<DecompressError>() {
        Ok(error) => error,
        Err(error) => {
            let codec = match codec {
                Compression::None => "plain",
                Compression::Gzip => "gzip",
                Compression::Snappy => "snappy",
                Compression::Lz4 => "lz4",
                Compression::Zstd => "zstd",
            };
            corrupt(codec, error)
        }
    }
}

/// Bounds in bytes for a batch that is decompressed piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// All decompressed bytes.
    pub decompressed: usize,
    /// The bytes that the codec holds at a time: a window (zstd) or a block (snappy). The other codecs hold at most 4
    /// MiB.
    pub held: usize,
}

/// Decompresses `input` piece by piece. A window or block above `limits.held` is refused before it is made. The caller
/// must stop at `limits.decompressed`.
pub(crate) fn reader(codec: Compression, input: &[u8], limits: Limits) -> Box<dyn Read + '_> {
    match codec {
        Compression::None => Box::new(input),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(input)),
        Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(input)),
        Compression::Snappy => {
            Box::new(SnappyReader { input, begun: false, block: Vec::new(), at: 0, limits })
        }
        Compression::Zstd => Box::new(ZstdReader::new(input, limits)),
    }
}

/// Decompresses snappy of either shape, a block at a time. A raw block is one block.
struct SnappyReader<'a> {
    /// The bytes that are not decompressed yet.
    input: &'a [u8],
    begun: bool,
    block: Vec<u8>,
    at: usize,
    limits: Limits,
}

impl Read for SnappyReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.at == self.block.len() {
            let raw = !self.begun && !self.input.starts_with(&XERIAL_MAGIC);
            if !self.begun && !raw {
                let blocks = self.input.get(XERIAL_HEADER.len()..);
                self.input = blocks
                    .ok_or_else(|| corrupt("snappy", "the header is cut short"))
                    .map_err(std::io::Error::other)?;
            }
            if self.begun && self.input.is_empty() || self.input.is_empty() && !raw {
                return Ok(0);
            }
            self.begun = true;
            self.block.clear();
            self.at = 0;
            let block = if raw {
                std::mem::take(&mut self.input)
            } else {
                xerial_block(&mut self.input).map_err(std::io::Error::other)?
            };
            let Limits { decompressed, held } = self.limits;
            match snappy_block(block, &mut self.block, decompressed.min(held)) {
                Err(DecompressError::TooLarge { limit_bytes }) if limit_bytes < decompressed => {
                    let bytes = snap::raw::decompress_len(block).unwrap_or(usize::MAX) as u64;
                    return Err(std::io::Error::other(DecompressError::Window { bytes }));
                }
                done => done.map_err(std::io::Error::other)?,
            }
        }
        let mut rest = &self.block[self.at..];
        let read = rest.read(into)?;
        self.at += read;
        Ok(read)
    }
}

/// Takes the next block of xerial's shape off `blocks`, which must not be empty.
fn xerial_block<'a>(blocks: &mut &'a [u8]) -> Result<&'a [u8], DecompressError> {
    let (length, rest) =
        blocks.split_first_chunk().ok_or_else(|| corrupt("snappy", "a block's length is cut short"))?;
    let length = u32::from_be_bytes(*length) as usize;
    let block = rest.get(..length).ok_or_else(|| corrupt("snappy", "a block is cut short"))?;
    *blocks = &rest[length..];
    Ok(block)
}

/// Frames of zstd, a few blocks at a time.
struct ZstdReader<'a> {
    /// The bytes that are not decompressed yet.
    input: &'a [u8],
    decoder: ruzstd::decoding::FrameDecoder,
    in_frame: bool,
    limits: Limits,
    /// Lower bound of the decompressed bytes. The decoder holds back a window of them, so possibly none has come out
    /// yet.
    decompressed: usize,
}

impl ZstdReader<'_> {
    fn new(input: &[u8], limits: Limits) -> ZstdReader<'_> {
        let decoder = ruzstd::decoding::FrameDecoder::new();
        ZstdReader { input, decoder, in_frame: false, limits, decompressed: 0 }
    }

    /// Decompresses more, or goes on to the next frame. Returns false at the end of the input.
    fn advance(&mut self) -> Result<bool, DecompressError> {
        use ruzstd::decoding::BlockDecodingStrategy;
        if self.in_frame && self.decoder.is_finished() {
            self.in_frame = false;
            check_zstd_sum(&self.decoder)?;
        }
        if self.in_frame {
            let limit_bytes = self.limits.decompressed;
            if self.decompressed > limit_bytes {
                return Err(DecompressError::TooLarge { limit_bytes });
            }
            let finished = self
                .decoder
                .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBytes(ZSTD_STEP_BYTES))
                .map_err(|error| corrupt("zstd", error))?;
            self.decompressed += if finished { 0 } else { ZSTD_STEP_BYTES };
            return Ok(true);
        }
        if self.input.is_empty() {
            return Ok(false);
        }
        if let Some(bytes) = zstd_window(self.input).filter(|bytes| *bytes > self.limits.held as u64) {
            return Err(DecompressError::Window { bytes });
        }
        self.in_frame = begin_zstd_frame(&mut self.decoder, &mut self.input)?;
        Ok(true)
    }
}

impl Read for ZstdReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while !self.in_frame || self.decoder.can_collect() == 0 {
            if !self.advance().map_err(std::io::Error::other)? {
                return Ok(0);
            }
        }
        self.decoder.read(into)
    }
}

/// The window in bytes of the zstd frame at the front of `input` (RFC 8878, 3.1.1.1). `None` if the frame cannot be
/// decompressed.
fn zstd_window(input: &[u8]) -> Option<u64> {
    let [descriptor, rest @ ..] = input.strip_prefix(&ZSTD_MAGIC)? else { return None };
    if descriptor & ZSTD_SINGLE_SEGMENT == 0 {
        let window = rest.first()?;
        let base = 1u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // The window is the content. The size of the content stands behind the id of a dictionary.
    let rest = rest.get([0, 1, 2, 4][usize::from(descriptor & 3)]..)?;
    let size = |bytes: usize| {
        let mut size = [0; 8];
        size[..bytes].copy_from_slice(rest.get(..bytes)?);
        Some(u64::from_le_bytes(size))
    };
    match descriptor >> 6 {
        0 => size(1),
        1 => size(2).map(|size| size + 256),
        2 => size(4),
        _ => size(8),
    }
}

/// Reads a frame's header off `input`. Returns false if the frame was a skippable one, and was skipped.
fn begin_zstd_frame(
    decoder: &mut ruzstd::decoding::FrameDecoder,
    input: &mut &[u8],
) -> Result<bool, DecompressError> {
    use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
    match decoder.reset(&mut *input) {
        Ok(()) => Ok(true),
        Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
            *input = input
                .get(length as usize..)
                .ok_or_else(|| corrupt("zstd", "a skippable frame is cut short"))?;
            Ok(false)
        }
        Err(error) => Err(corrupt("zstd", error)),
    }
}

fn check_zstd_sum(decoder: &ruzstd::decoding::FrameDecoder) -> Result<(), DecompressError> {
    match decoder.get_checksum_from_data() {
        Some(sum) if Some(sum) != decoder.get_calculated_checksum() => {
            Err(corrupt("zstd", "the frame's checksum does not match"))
        }
        _ => Ok(()),
    }
}

fn drain(decoder: impl Read, codec: Compression, limit_bytes: usize) -> Result<Vec<u8>, DecompressError> {
    let mut output = Vec::new();
    let cap = u64::try_from(limit_bytes).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(cap).read_to_end(&mut output).map_err(|error| read_error(codec, error))?;
    if output.len() > limit_bytes { Err(DecompressError::TooLarge { limit_bytes }) } else { Ok(output) }
}

fn snappy(input: &[u8], limit_bytes: usize) -> Result<Vec<u8>, DecompressError> {
    let mut output = Vec::new();
    if !input.starts_with(&XERIAL_MAGIC) {
        snappy_block(input, &mut output, limit_bytes)?;
        return Ok(output);
    }
    let mut blocks =
        input.get(XERIAL_HEADER.len()..).ok_or_else(|| corrupt("snappy", "the header is cut short"))?;
    while !blocks.is_empty() {
        snappy_block(xerial_block(&mut blocks)?, &mut output, limit_bytes)?;
    }
    Ok(output)
}

fn snappy_block(block: &[u8], output: &mut Vec<u8>, limit_bytes: usize) -> Result<(), DecompressError> {
    let length = snap::raw::decompress_len(block).map_err(|error| corrupt("snappy", error))?;
    if length > limit_bytes - output.len() {
        return Err(DecompressError::TooLarge { limit_bytes });
    }
    // Three bytes of snappy give at most 64, so a far larger length is false and nothing is allocated for it.
    if length / 32 > block.len() {
        return Err(corrupt("snappy", "a block claims more bytes than it can hold"));
    }
    let from = output.len();
    output.resize(from + length, 0);
    let written = snap::raw::Decoder::new()
        .decompress(block, &mut output[from..])
        .map_err(|error| corrupt("snappy", error))?;
    output.truncate(from + written);
    Ok(())
}

/// Compresses `input`, in the shape that every Kafka client reads.
pub fn compress(codec: Compression, input: &[u8]) -> Vec<u8> {
    const INFALLIBLE: &str = "writing to memory does not fail";
    match codec {
        Compression::None => input.to_vec(),
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(input).expect(INFALLIBLE);
            encoder.finish().expect(INFALLIBLE)
        }
        Compression::Lz4 => {
            // Kafka's Java reader accepts only independent blocks.
            let shape = lz4_flex::frame::FrameInfo::new()
                .block_mode(lz4_flex::frame::BlockMode::Independent)
                .block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(shape, Vec::new());
            encoder.write_all(input).expect(INFALLIBLE);
            encoder.finish().expect(INFALLIBLE)
        }
        Compression::Snappy => {
            let mut output = XERIAL_HEADER.to_vec();
            let mut encoder = snap::raw::Encoder::new();
            for block in input.chunks(XERIAL_BLOCK_BYTES) {
                let block = encoder.compress_vec(block).expect("32 KiB are within snappy's range");
                let length = u32::try_from(block.len()).expect("a block stays near 32 KiB");
                output.extend_from_slice(&length.to_be_bytes());
                output.extend_from_slice(&block);
            }
            output
        }
        Compression::Zstd => {
            ruzstd::encoding::compress_to_vec(input, ruzstd::encoding::CompressionLevel::Fastest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODECS: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    /// Neither constant nor random, and more than one block of every codec.
    fn sample(len: usize) -> Vec<u8> {
        (0..len)
            .map(|index| ((index * index) >> 7).to_le_bytes()[0] ^ (index % 251).to_le_bytes()[0])
            .collect()
    }

    #[test]
    fn every_codec_gives_back_what_it_was_given() {
        for codec in CODECS {
            for len in [0, 1, 1000, 32 * 1024, 300_000] {
                let input = sample(len);
                let packed = Bytes::from(compress(codec, &input));
                assert_eq!(decompress(codec, &packed, len).unwrap(), input, "{codec:?} {len}");
            }
        }
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let input = vec![0; 8 << 20];
        for codec in CODECS {
            let packed = Bytes::from(compress(codec, &input));
            let error = decompress(codec, &packed, input.len() - 1).unwrap_err();
            assert!(matches!(error, DecompressError::TooLarge { .. }), "{codec:?} {error}");
            assert!(decompress(codec, &packed, 1000).is_err(), "{codec:?}");
            assert_eq!(decompress(codec, &packed, input.len()).unwrap().len(), input.len(), "{codec:?}");
        }
    }

    #[test]
    fn a_window_beyond_the_limit_is_refused_before_it_is_made() {
        let input = vec![0; 3 << 20];
        // A window of 100 MiB, then a block of nothing; all content at once, in each of the widths of its size.
        let wide = [&ZSTD_MAGIC[..], &[0, 16 << 3 | 4, 1, 0, 0]].concat();
        let single = |width: u8, size: &[u8]| {
            [&ZSTD_MAGIC[..], &[width << 6 | ZSTD_SINGLE_SEGMENT | 1, 7], size, &[1, 0, 0]].concat()
        };
        let all: [(Compression, Vec<u8>, u64); 6] = [
            (Compression::Zstd, wide, 96 << 20),
            (Compression::Zstd, single(0, &[200]), 200),
            (Compression::Zstd, single(1, &[1, 2]), 0x201 + 256),
            (Compression::Zstd, single(2, &[0, 0, 0, 1]), 1 << 24),
            (Compression::Zstd, single(3, &[0, 0, 0, 1, 0, 0, 0, 0]), 1 << 24),
            (Compression::Snappy, snap::raw::Encoder::new().compress_vec(&input).unwrap(), 3 << 20),
        ];
        for (codec, packed, window) in all {
            let read = |held: u64| {
                let limits = Limits { decompressed: 1 << 30, held: usize::try_from(held).unwrap() };
                let result = std::io::copy(&mut reader(codec, &packed, limits), &mut std::io::sink());
                result.map_err(|error| read_error(codec, error))
            };
            let refused = read(window - 1);
            assert!(
                matches!(refused, Err(DecompressError::Window { bytes }) if bytes == window),
                "{codec:?} {window}: {refused:?}"
            );
            let taken = read(window);
            assert!(!matches!(taken, Err(DecompressError::Window { .. })), "{codec:?} {window}: {taken:?}");
        }
    }

    #[test]
    fn raw_snappy_is_read_too() {
        let input = sample(5000);
        let packed = Bytes::from(snap::raw::Encoder::new().compress_vec(&input).unwrap());
        assert_eq!(decompress(Compression::Snappy, &packed, 5000).unwrap(), input);
    }

    #[test]
    fn a_snappy_length_that_lies_is_refused_before_it_is_allocated() {
        let lie = Bytes::from_static(b"\xff\xff\xff\xff\x0f\x00a");
        let error = decompress(Compression::Snappy, &lie, usize::MAX).unwrap_err();
        assert!(matches!(error, DecompressError::Corrupt { .. }), "{error}");
    }

    #[test]
    fn damaged_input_is_an_error_or_other_bytes_but_never_a_panic() {
        let mut source = crate::arbitrary::Source::new(11);
        for codec in CODECS {
            let packed = compress(codec, &sample(3000));
            for len in 0..packed.len().min(400) {
                let _ = decompress(codec, &Bytes::copy_from_slice(&packed[..len]), 1 << 20);
            }
            for _ in 0..2000 {
                let mut damaged = packed.clone();
                for _ in 0..=source.below(3) {
                    let at = usize::try_from(source.below(damaged.len() as u64)).unwrap();
                    damaged[at] ^= 1 << source.below(8);
                }
                if let Ok(output) = decompress(codec, &Bytes::from(damaged), 1 << 20) {
                    assert!(output.len() <= 1 << 20);
                }
            }
        }
    }
}
