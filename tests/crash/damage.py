"""Loses the end of a server's log behind its back, as a server that acknowledges too early would."""

SECTOR = 4096
STEP = 1 << 20
LOST_BYTES_MAX = 8 << 20


def zero_end(data):
    """Zeroes the last half, at most 8 MiB, of what is written in the newest segment that holds anything."""
    for segment in sorted(data.glob("*.log"), reverse=True):
        end = written_end(segment)
        if end > SECTOR:
            break
    else:
        raise AssertionError("no segment holds anything")
    lost = min(LOST_BYTES_MAX, (end - SECTOR) // 2)
    begin = (end - lost) // SECTOR * SECTOR
    with open(segment, "r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


def written_end(segment):
    """The position after the last byte that is not zero."""
    with open(segment, "rb") as file:
        position = file.seek(0, 2)
        while position > 0:
            begin = max(0, position - STEP)
            file.seek(begin)
            kept = file.read(position - begin).rstrip(b"\0")
            if kept:
                return begin + len(kept)
            position = begin
    return 0
