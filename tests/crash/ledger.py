"""What was sent, what was acknowledged, and whether the log holds exactly that.

A record says who sent it, for which partition, as which in sequence, and carries the CRC-32 of all of it.
A sender counts what it hands over and notes every acknowledgement before it goes on, both in files that
survive its own death:

    sent          a row of counters, one a partition: records handed over so far, written before each
    acknowledged  one entry a record: partition, sequence, offset as the server said, when it said so
    GROUP.commits one line a partition: tried or confirmed, the offset, when

Times are the machine's monotonic clock in nanoseconds, which all processes share; they are taken after the answer
came and before the attempt is made.

`Checker` is fed what the log holds, in the order of offsets, and what was acknowledged. It finds:
dropped, duplicated, reordered, altered, misplaced, invented, lost, moved, offset-gap, end-went-back,
start-moved, commit-went-back, commit-beyond-end, commit-invented.
"""

import array
import math
import mmap
import os
import struct
import time
import zlib

# The partitions written to; a "slot" is an index into this list.
WIDE, SINGLE = "crash-wide", "crash-single"
SLOTS = [(WIDE, partition) for partition in range(6)] + [(SINGLE, 0)]

# Sender, slot, sequence, CRC-32 of these three and of the payload that follows.
HEAD = struct.Struct(">IIQI")
CLAIM = struct.Struct(">IIQ")
ACKNOWLEDGED = struct.Struct(">IQqq")
COUNTER_BYTES = 8
FINDINGS_MAX = 20


def value_of(sender, slot, sequence, payload):
    claim = CLAIM.pack(sender, slot, sequence)
    return claim + zlib.crc32(payload, zlib.crc32(claim)).to_bytes(4, "big") + payload


class SenderNotes:
    """Written by a sender, one pair of files for each of its lives."""

    def __init__(self, directory, sender):
        path = directory / f"{sender}.sent"
        path.write_bytes(bytes(COUNTER_BYTES * len(SLOTS)))
        with open(path, "r+b") as counters:
            self.sent = memoryview(mmap.mmap(counters.fileno(), 0)).cast("Q")
        self.acknowledged = os.open(directory / f"{sender}.acknowledged", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.waiting = bytearray()

    def acknowledge(self, slot, sequence, offset):
        self.waiting += ACKNOWLEDGED.pack(slot, sequence, offset, time.monotonic_ns())

    def write(self):
        if self.waiting:
            os.write(self.acknowledged, self.waiting)
            self.waiting.clear()


class Notes:
    """All senders' and groups' files, the senders' read bit by bit."""

    # Only what was promised, and what was attempted, before these moments counts.
    promised_before = attempted_before = math.inf

    def __init__(self, directory):
        self.directory = directory
        self.read = {}

    def senders(self):
        return sorted(int(path.stem) for path in self.directory.glob("*.sent"))

    def acknowledged_bytes(self):
        return sum(path.stat().st_size for path in self.directory.glob("*.acknowledged"))

    def acknowledged(self):
        """What has been acknowledged since the last call: (sender, slot, sequence, offset)."""
        for sender in self.senders():
            path = self.directory / f"{sender}.acknowledged"
            if not path.exists():
                continue
            with open(path, "rb") as entries:
                entries.seek(self.read.get(sender, 0))
                data = entries.read()
            whole = len(data) - len(data) % ACKNOWLEDGED.size
            self.read[sender] = self.read.get(sender, 0) + whole
            for slot, sequence, offset, when in ACKNOWLEDGED.iter_unpack(data[:whole]):
                if when < self.promised_before:
                    yield sender, slot, sequence, offset

    def sent(self):
        """(sender, slot, records handed over)."""
        for sender in self.senders():
            counters = memoryview((self.directory / f"{sender}.sent").read_bytes()).cast("Q")
            for slot, count in enumerate(counters):
                yield sender, slot, count

    def commits(self, group, kind):
        """The last offset of each slot that `group` tried (t) or had confirmed (c)."""
        before = self.promised_before if kind == "c" else self.attempted_before
        path = commits_path(self.directory, group)
        offsets = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            noted, slot, offset, when = line.split()
            if noted == kind and int(when) < before:
                offsets[int(slot)] = max(int(offset), offsets.get(int(slot), 0))
        return offsets


def commits_path(directory, group):
    return directory / f"{group}.commits"


class Checker:
    def __init__(self):
        self.findings = []
        self.next_offset = [0] * len(SLOTS)
        # (sender, slot) -> the offset of each sequence that was passed, -1 for one that did not come yet.
        self.places = {}
        self.holes = {}
        self.reordered = set()
        self.records = self.acknowledged_records = 0

    def find(self, kind, text):
        self.findings.append((kind, text))

    def bounds(self, slot, start, end):
        """The log's own word on where a partition begins and ends, asked for before it is read."""
        if start != 0:
            self.find("start-moved", f"{name(slot)} starts at {start}, nothing was ever deleted")
        if end < self.next_offset[slot]:
            self.find("end-went-back", f"{name(slot)} ends at {end}, records below {self.next_offset[slot]} were read")

    def record(self, slot, offset, value):
        """The next record of a partition."""
        if offset != self.next_offset[slot]:
            self.find("offset-gap", f"{name(slot)} goes on at {offset}, expected {self.next_offset[slot]}")
        self.next_offset[slot] = offset + 1
        self.records += 1
        if len(value) < HEAD.size:
            return self.find("altered", f"{name(slot)} offset {offset} holds {len(value)} bytes")
        sender, meant, sequence, crc = HEAD.unpack_from(value)
        view = memoryview(value)
        if zlib.crc32(view[HEAD.size:], zlib.crc32(view[:CLAIM.size])) != crc:
            return self.find("altered", f"{name(slot)} offset {offset}: its checksum does not fit, {len(value)} bytes")
        if meant != slot:
            return self.find("misplaced", f"{name(slot)} offset {offset} was meant for {name(meant)}")
        places = self.places.get((sender, slot))
        if places is None:
            places = self.places[sender, slot] = array.array("q")
        if sequence == len(places):
            places.append(offset)
        elif sequence > len(places):
            self.holes.setdefault((sender, slot), set()).update(range(len(places), sequence))
            places.extend([-1] * (sequence - len(places)))
            places.append(offset)
        elif places[sequence] >= 0:
            self.find("duplicated", f"{who(sender, slot, sequence)} is at {places[sequence]} and again at {offset}")
        else:
            self.find("reordered", f"{who(sender, slot, sequence)} is at {offset}, behind later ones")
            places[sequence] = offset
            self.holes[sender, slot].discard(sequence)

    def sent(self, sender, slot, count):
        """How many a sender handed over; asked after everything else."""
        have = len(self.places.get((sender, slot), ()))
        if have > count:
            self.find("invented", f"{who(sender, slot, have - 1)} is there, only {count} were sent")

    def acknowledged(self, sender, slot, sequence, offset):
        self.acknowledged_records += 1
        places = self.places.get((sender, slot), ())
        if sequence >= len(places) or places[sequence] < 0:
            self.find("lost", f"{who(sender, slot, sequence)} was acknowledged for offset {offset} and is not there")
        elif offset >= 0 and places[sequence] != offset:
            self.find("moved", f"{who(sender, slot, sequence)} was acknowledged for {offset}, "
                               f"it is at {places[sequence]}")

    def settle(self, known):
        """Everything up to here has been read: what is missing in the middle will not come any more."""
        for (sender, slot), sequences in self.holes.items():
            for sequence in sorted(sequences):
                self.find("dropped", f"{who(sender, slot, sequence)} is not there, later ones are")
            sequences.clear()
        for sender in {sender for sender, _ in self.places} - set(known):
            self.find("invented", f"records of sender {sender}, who does not exist")

    def committed(self, group, slot, acknowledged, committed, attempted, end):
        """`acknowledged` was confirmed before the server was asked for `committed`; `attempted` was read after."""
        if committed < acknowledged:
            self.find("commit-went-back", f"{group} at {name(slot)}: {acknowledged} was confirmed, "
                                          f"now it is {committed}")
        if committed > end:
            self.find("commit-beyond-end", f"{group} at {name(slot)}: {committed}, but the log ends at {end}")
        elif committed > attempted:
            self.find("commit-invented", f"{group} at {name(slot)}: {committed}, but only {attempted} was tried")

    def require_nothing(self):
        """AssertionError with what was found."""
        if self.findings:
            listed = "".join(f"\n        {kind}: {text}" for kind, text in self.findings[:FINDINGS_MAX])
            raise AssertionError(f"{len(self.findings)} findings{listed}\n       ")


def name(slot):
    return "%s/%d" % SLOTS[slot] if slot < len(SLOTS) else f"slot {slot}"


def who(sender, slot, sequence):
    return f"record {sequence} of sender {sender} for {name(slot)}"
