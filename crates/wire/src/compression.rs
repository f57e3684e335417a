//! The codecs of a batch's records, whole buffers at a time.
//!
//! Invariant: no input, however small, makes more than the caller's limit come out; one block of the codec beyond it
//! is the most that is ever held.
//!
//! Snappy comes in two shapes. Java's and librdkafka's is that of xerial's snappy-java: a header of 16 bytes, then
//! blocks, each a big-endian length and raw snappy:
//! ```text
//! 82 53 4e 41 50 50 59 00 | version i32 | oldest reader's version i32 | ( length i32 | snappy block )*
//! ```
//! Some clients send one raw block instead. We read both and write the first.

use std::io::{Read, Write};

use bytes::Bytes;
use model::Compression;

const XERIAL_MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
/// Magic, version 1, readable since version 1.
const XERIAL_HEADER: [u8; 16] = *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
/// Bytes in one xerial block before compression: snappy-java's own default.
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

/// Why records cannot be decompressed.
#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    /// More would come out than the caller allows.
    #[error("the records decompress to more than {limit_bytes} bytes")]
    TooLarge {
        /// The caller's limit.
        limit_bytes: usize,
    },
    /// The bytes are not of the codec that the batch names.
    #[error("the records are not valid {codec}: {reason}")]
    Corrupt {
        /// Which codec.
        codec: &'static str,
        /// In the codec's words.
        reason: String,
    },
}

fn corrupt(codec: &'static str, reason: impl ToString) -> DecompressError {
    DecompressError::Corrupt { codec, reason: reason.to_string() }
}

/// What `input` decompresses to, at most `limit_bytes`. Without compression that is `input` itself, not copied.
pub fn decompress(codec: Compression, input: &Bytes, limit_bytes: usize) -> Result<Bytes, DecompressError> {
    let output = match codec {
        Compression::None if input.len() > limit_bytes => {
            return Err(DecompressError::TooLarge { limit_bytes });
        }
        Compression::None => return Ok(input.clone()),
        Compression::Gzip => drain(flate2::read::MultiGzDecoder::new(&input[..]), "gzip", limit_bytes)?,
        Compression::Lz4 => drain(lz4_flex::frame::FrameDecoder::new(&input[..]), "lz4", limit_bytes)?,
        Compression::Snappy => snappy(input, limit_bytes)?,
        Compression::Zstd => zstd(input, limit_bytes)?,
    };
    Ok(Bytes::from(output))
}

/// A failure to read from what [`reader`] gave.
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

/// What `input` decompresses to, piece by piece. A block of snappy of more than `limit_bytes` is refused before it is made.
pub(crate) fn reader(codec: Compression, input: &[u8], limit_bytes: usize) -> Box<dyn Read + '_> {
    match codec {
        Compression::None => Box::new(input),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(input)),
        Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(input)),
        Compression::Snappy => {
            Box::new(SnappyReader { input, begun: false, block: Vec::new(), at: 0, limit_bytes })
        }
        Compression::Zstd => {
            Box::new(ZstdReader { input, decoder: ruzstd::decoding::FrameDecoder::new(), in_frame: false })
        }
    }
}

/// Snappy of either shape, a block at a time; a raw block is one.
struct SnappyReader<'a> {
    /// What was not decompressed yet.
    input: &'a [u8],
    begun: bool,
    block: Vec<u8>,
    at: usize,
    limit_bytes: usize,
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
            snappy_block(block, &mut self.block, self.limit_bytes).map_err(std::io::Error::other)?;
        }
        let mut rest = &self.block[self.at..];
        let read = rest.read(into)?;
        self.at += read;
        Ok(read)
    }
}

/// The next block of xerial's shape, taken off `blocks`, which are not empty.
fn xerial_block<'a>(blocks: &mut &'a [u8]) -> Result<&'a [u8], DecompressError> {
    let (length, rest) =
        blocks.split_first_chunk().ok_or_else(|| corrupt("snappy", "a block's length is cut short"))?;
    let length = u32::from_be_bytes(*length) as usize;
    let block = rest.get(..length).ok_or_else(|| corrupt("snappy", "a block is cut short"))?;
    *blocks = &rest[length..];
    Ok(block)
}

/// Frames of zstd, a block at a time.
struct ZstdReader<'a> {
    /// What was not decompressed yet.
    input: &'a [u8],
    decoder: ruzstd::decoding::FrameDecoder,
    in_frame: bool,
}

impl Read for ZstdReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy;
        let failed = |error: &dyn std::fmt::Display| std::io::Error::other(corrupt("zstd", error));
        loop {
            if self.in_frame && self.decoder.can_collect() > 0 {
                return self.decoder.read(into);
            }
            if self.in_frame && self.decoder.is_finished() {
                self.in_frame = false;
                check_zstd_sum(&self.decoder).map_err(std::io::Error::other)?;
            }
            if !self.in_frame {
                if self.input.is_empty() {
                    return Ok(0);
                }
                self.in_frame =
                    begin_zstd_frame(&mut self.decoder, &mut self.input).map_err(std::io::Error::other)?;
                continue;
            }
            self.decoder
                .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|error| failed(&error))?;
        }
    }
}

/// Reads a frame's header off `input`; false where the frame was one to skip, and was skipped.
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

fn drain(decoder: impl Read, codec: &'static str, limit_bytes: usize) -> Result<Vec<u8>, DecompressError> {
    let mut output = Vec::new();
    let cap = u64::try_from(limit_bytes).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(cap).read_to_end(&mut output).map_err(|error| corrupt(codec, error))?;
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
    // Three bytes of snappy give at most 64, so a length far beyond that is a lie that need not be allocated.
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

fn zstd(mut input: &[u8], limit_bytes: usize) -> Result<Vec<u8>, DecompressError> {
    use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
    let mut output = Vec::new();
    while !input.is_empty() {
        let mut decoder = FrameDecoder::new();
        if !begin_zstd_frame(&mut decoder, &mut input)? {
            continue;
        }
        // One call a frame: it stops at the first block past the limit. Draining as it goes would not do, since the
        // decoder holds back a whole window, which a hostile frame makes 128 MiB.
        let left = limit_bytes - output.len();
        let finished = decoder
            .decode_blocks(&mut input, BlockDecodingStrategy::UptoBytes(left + 1))
            .map_err(|error| corrupt("zstd", error))?;
        if !finished || decoder.can_collect() > left {
            return Err(DecompressError::TooLarge { limit_bytes });
        }
        let frame = decoder.collect().unwrap_or_default();
        check_zstd_sum(&decoder)?;
        if output.is_empty() {
            output = frame;
        } else {
            output.extend_from_slice(&frame);
        }
    }
    Ok(output)
}

/// `input` compressed, in the shape that every Kafka client reads.
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
            // Kafka's Java reader takes independent blocks only.
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
