"""Lines for real-input: made, counted, and accounted for when they come back.

A line is `key TAB value`; a value starts with the number that the line has among those of its key.
Memory is bounded by the number of keys and of runs, whatever the number of lines.

What is compared, for the lines that went in and for those that came out:
- the count, and the sum of a 128-bit hash of each line: equal exactly when the multisets are equal
  (but for chances of 2^-128);
- the partitions' offsets: all readers' runs together cover 0 up to the end, each offset once. A run is
  an unbroken stretch of one partition's offsets at one reader; it ends where a rebalance takes the
  partition away;
- each key's numbers: 0, 1, 2, ... in the order of offsets, through all runs.
"""

import hashlib
import json
import random
import sys

KEYS = 20_000
LINE_BYTES_MIN, LINE_BYTES_MAX = 100, 1000
SUM_MODULUS = 1 << 128


def hash_of(line):
    return int.from_bytes(hashlib.blake2b(line, digest_size=16).digest(), "little")


def prose(chance, size):
    """Words as a log might hold them, without tabs and line ends."""
    words = ["".join(chance.choices("etaoinshrdlucmfwypvbgkjqxz", k=chance.randrange(2, 11))) for _ in range(5000)]
    parts, length = [], 0
    while length < size:
        word = chance.choice(words) if chance.random() < 0.8 else str(chance.randrange(10**6))
        parts.append(word)
        length += len(word) + 1
    return " ".join(parts).encode()


def make(size, seed=1):
    """Yields lines until they hold `size` bytes; always the same ones for a seed."""
    chance = random.Random(seed)
    pool = prose(chance, 1 << 20)
    last_start = len(pool) - LINE_BYTES_MAX
    numbers, keys = [0] * KEYS, [b"user-%05d" % k for k in range(KEYS)]
    bits = chance.getrandbits
    span = LINE_BYTES_MAX - LINE_BYTES_MIN
    made = 0
    while made < size:
        key, start, length = bits(30) % KEYS, bits(30) % last_start, LINE_BYTES_MIN + bits(24) % span
        number = numbers[key]
        numbers[key] = number + 1
        line = b"%b\t%d %b\n" % (keys[key], number, pool[start:start + length])
        made += len(line)
        yield line


def generate(size, summary_path):
    """The producing side: writes the lines to standard output, then what they sum up to."""
    output, count, total, made, half_told = sys.stdout.buffer, 0, 0, 0, False
    chunk = []
    for line in make(size):
        chunk.append(line)
        count += 1
        total += hash_of(line)
        made += len(line)
        if len(chunk) == 1000:
            output.write(b"".join(chunk))
            chunk.clear()
            if not half_told and made >= size // 2:
                half_told = True
                print("half", file=sys.stderr, flush=True)
    output.write(b"".join(chunk))
    output.flush()
    save(summary_path, {"count": count, "sum": total % SUM_MODULUS, "bytes": made})


class Reader:
    """Takes in one reader's lines, `partition TAB offset TAB key TAB value`."""

    def __init__(self):
        self.count = self.total = 0
        self.problems = []
        self.runs = []  # {partition, start, end, keys: {key: [first number, next number]}}
        self.open_runs = {}

    def take(self, line):
        partition, offset, rest = line.split(b"\t", 2)
        offset = int(offset)
        self.count += 1
        self.total += hash_of(rest)
        run = self.open_runs.get(partition)
        if run is None or offset != run["end"]:
            if run is not None and offset < run["end"]:
                self.problem(f"partition {int(partition)}: offset {offset} came after {run['end'] - 1}")
            run = {"partition": int(partition), "start": offset, "end": offset, "keys": {}}
            self.open_runs[partition] = run
            self.runs.append(run)
        run["end"] = offset + 1
        key, value = rest.split(b"\t", 1)
        number = int(value[:value.index(b" ")])
        seen = run["keys"].get(key)
        if seen is None:
            run["keys"][key] = [number, number + 1]
        elif number != seen[1]:
            self.problem(f"key {key.decode()}: number {number} came after {seen[1] - 1}")
            seen[1] = number + 1
        else:
            seen[1] += 1

    def problem(self, text):
        if len(self.problems) < 10:
            self.problems.append(text)

    def summary(self):
        for run in self.runs:
            run["keys"] = {key.decode(): numbers for key, numbers in run["keys"].items()}
        return {"count": self.count, "sum": self.total % SUM_MODULUS,
                "problems": self.problems, "runs": self.runs}


def read(summary_path):
    """The consuming side: standard input to the end, then what it sums up to."""
    reader = Reader()
    for line in sys.stdin.buffer:
        reader.take(line)
    save(summary_path, reader.summary())


def same_lines(sent, readers):
    """The output is the input, as a multiset."""
    count = sum(r["count"] for r in readers)
    assert count == sent["count"], f"{count} lines came, {sent['count']} were sent"
    assert sum(r["sum"] for r in readers) % SUM_MODULUS == sent["sum"], "the lines differ in their contents"
    return f"{count} lines"


def same_order(readers):
    """Every offset once, and each key's lines in the order in which they were sent."""
    problems = [p for r in readers for p in r["problems"]]
    assert not problems, "; ".join(problems)
    runs = sorted((run for r in readers for run in r["runs"]), key=lambda run: (run["partition"], run["start"]))
    ends, nexts, homes = {}, {}, {}
    for run in runs:
        partition, expected = run["partition"], ends.get(run["partition"], 0)
        assert run["start"] == expected, f"partition {partition}: offset {run['start']} follows {expected - 1}"
        ends[partition] = run["end"]
        for key, (first, following) in run["keys"].items():
            home = homes.setdefault(key, partition)
            assert home == partition, f"key {key} is in partitions {home} and {partition}"
            expected = nexts.get(key, 0)
            assert first == expected, f"key {key}: number {first} follows {expected - 1}"
            nexts[key] = following
    return f"{len(nexts)} keys, {len(ends)} partitions, {len(runs)} runs"


def save(path, summary):
    with open(path, "w") as file:
        json.dump(summary, file)


def load(path):
    with open(path) as file:
        return json.load(file)
