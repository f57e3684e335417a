"""Record batches of a few KB that hold a hundred MB.

Python's library has gzip alone: the runs of zstd and lz4 are put together here.
"""

import struct
import time
import zlib

import wire
from wire import zigzag

MEGABYTE = 1 << 20
GZIP, LZ4, ZSTD = 1, 3, 4
NAMES = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}
# What the largest frame may turn into without being larger than Kafka's own bound of records to decompress.
EXPANDED_BYTES = 126 * MEGABYTE
ZEROS_BYTES = 120 * MEGABYTE
RECORDS = 600_000

ZSTD_BLOCK_BYTES = 1 << 17
# Magic number, no content size, no checksum; a window of 128 KiB.
ZSTD_HEADER = b"\x28\xb5\x2f\xfd\x00\x38"
ZSTD_RAW, ZSTD_RUN = 0, 1
LZ4_BLOCK_BYTES = 4 * MEGABYTE
# Magic number, independent blocks of 4 MiB without checksums; the last byte is the descriptor's own checksum.
LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x70\x73"
LZ4_UNCOMPRESSED = 1 << 31
# The last five bytes of a block are literals, and a match has four bytes that are not counted.
LZ4_TAIL, LZ4_MATCH_LEAST, LZ4_EXTENDED = 5, 4, 15


def zstd_zeros(prefix, count):
    def block(kind, size, content, last=False):
        return (last | kind << 1 | size << 3).to_bytes(3, "little") + content

    whole, rest = divmod(count, ZSTD_BLOCK_BYTES)
    blocks = block(ZSTD_RUN, ZSTD_BLOCK_BYTES, b"\0") * whole
    return ZSTD_HEADER + block(ZSTD_RAW, len(prefix), prefix) + blocks + block(ZSTD_RUN, rest, b"\0", True)


def lz4_zeros(prefix, count):
    def block(size):
        if size <= LZ4_EXTENDED + LZ4_MATCH_LEAST + LZ4_TAIL:
            return struct.pack("<I", LZ4_UNCOMPRESSED | size) + bytes(size)
        # One literal, then a match one byte behind for all but the tail.
        more, rest = divmod(size - 1 - LZ4_TAIL - LZ4_MATCH_LEAST - LZ4_EXTENDED, 255)
        data = b"\x1f\0\x01\0" + b"\xff" * more + bytes((rest,)) + b"\x50" + bytes(LZ4_TAIL)
        return struct.pack("<I", len(data)) + data

    whole, rest = divmod(count, LZ4_BLOCK_BYTES)
    first = struct.pack("<I", LZ4_UNCOMPRESSED | len(prefix)) + prefix
    return LZ4_HEADER + first + block(LZ4_BLOCK_BYTES) * whole + (block(rest) if rest else b"") + bytes(4)


def gzip_of(*parts):
    made = zlib.compressobj(wbits=31)
    return b"".join([*map(made.compress, parts), made.flush()])


def gzip_zeros(prefix, count):
    whole, rest = divmod(count, MEGABYTE)
    return gzip_of(prefix, *[bytes(MEGABYTE)] * whole, bytes(rest))


ZEROS = {ZSTD: zstd_zeros, LZ4: lz4_zeros, GZIP: gzip_zeros}


def batch(codec, compressed, count=1):
    now = int(time.time() * 1000)
    covered = struct.pack(">hiqqqhii", codec, count - 1, now, now, -1, -1, -1, count) + compressed
    return struct.pack(">qiibI", 0, 9 + len(covered), -1, 2, wire.crc32c(covered)) + covered


def record(body, zeros):
    """The beginning of a record whose end is so many zeros."""
    return zigzag(len(body) + zeros) + body


def headers(codec):
    """One record with 66 million headers, each without a name and a value."""
    count = EXPANDED_BYTES // 2
    # Attributes, timestamp and offset deltas, key, value.
    body = bytes(3) + zigzag(1) + b"k" + zigzag(1) + b"v" + zigzag(count)
    return batch(codec, ZEROS[codec](record(body, 2 * count), 2 * count))


def value(codec):
    """One record with a value of zeros; the last of them is the number of headers."""
    body = bytes(3) + zigzag(1) + b"k" + zigzag(ZEROS_BYTES)
    return batch(codec, ZEROS[codec](record(body, ZEROS_BYTES + 1), ZEROS_BYTES + 1))


def keyed():
    """Many records with one key: compaction keeps the last of them."""
    # Length, attributes, timestamp delta, offset delta of as many bytes as its number takes, key, value, no headers.
    parts = (b"%s\0\0%s\x02k\x02v\0" % (zigzag(7 + len(delta)), delta) for delta in map(zigzag, range(RECORDS)))
    return batch(GZIP, gzip_of(b"".join(parts)), RECORDS)


def all_of_them():
    """(what, batch)."""
    for codec in (ZSTD, GZIP):
        yield f"66 million headers, {NAMES[codec]}", headers(codec)
    for codec in (ZSTD, LZ4, GZIP):
        yield f"120 MiB of zeros, {NAMES[codec]}", value(codec)
    yield f"{RECORDS:,} records of one key, gzip", keyed()
