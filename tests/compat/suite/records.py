"""Records to send, and the comparison of what came back with what was sent.

A record is a dict as the workers speak it: key, value (base64 or None), headers ([[name, base64 or
None]]), timestamp (ms), and where it matters partition. What a seed makes is always the same.
"""

import base64
import collections
import random
import time

# Record times lie in the past, an even second, and increase: a server may refuse times far ahead.
TIME_BASE = int(time.time()) * 1000 - 3_600_000


def text(data):
    return None if data is None else base64.b64encode(data).decode()


def make(count, seed, partitions=None, nulls=True, value_bytes_max=1500):
    """`count` records with random bytes, the corner cases among them. With `partitions` each record
    names its partition, round robin; else the client's partitioner chooses."""
    chance = random.Random(seed)
    records = []
    for index in range(count):
        # Half of the values compress and half do not.
        length = chance.randrange(1, value_bytes_max)
        value = chance.randbytes(length) if index % 2 else (b"mainstem %d " % index * length)[:length]
        key = chance.randbytes(chance.randrange(1, 24))
        if nulls and index % 11 == 3:
            value = None
        elif index % 7 == 5:
            value = b""
        if nulls and index % 13 == 4:
            key = None
        elif index % 17 == 6:
            key = b""
        headers = []
        if index % 3 == 0:
            headers = [
                ["trace", text(chance.randbytes(16))],
                ["twice", text(b"first")],
                ["twice", text(b"second")],
                ["empty", text(b"")],
                ["clé-ключ", text(chance.randbytes(3))],
            ]
            if nulls:
                headers.append(["null", None])
        records.append({
            "partition": None if partitions is None else index % partitions,
            "key": text(key), "value": text(value), "headers": headers,
            "timestamp": TIME_BASE + index * 1000,
        })
    return records


def content(record):
    return record["key"], record["value"], record["headers"], record["timestamp"]


def placed(records, places):
    """{(partition, offset): record} from what a producer was told; no two may share a place, and
    the offsets of each partition follow on one another in the order of sending."""
    assert len(records) == len(places), f"{len(places)} places for {len(records)} records"
    result, nexts = {}, {}
    for record, (partition, offset) in zip(records, places):
        expected = nexts.get(partition, offset)
        assert offset == expected, f"partition {partition} acknowledged offset {offset}, not {expected}"
        nexts[partition] = offset + 1
        result[partition, offset] = record
    return result


def ends(sent):
    result = collections.defaultdict(int)
    for partition, offset in sent:
        result[partition] = max(result[partition], offset + 1)
    return {str(p): end for p, end in sorted(result.items())}


def same(sent, got):
    """`got`, a list of records, holds exactly what was sent, each once, each partition in order."""
    check_order(got)
    seen = collections.Counter((r["partition"], r["offset"]) for r in got)
    missing = sorted(sent.keys() - seen.keys())
    assert not missing, f"{len(missing)} of {len(sent)} records missing, first {missing[0]}"
    foreign = sorted(seen.keys() - sent.keys())
    assert not foreign, f"{len(foreign)} records that were never sent, first {foreign[0]}"
    twice = sorted(place for place, times in seen.items() if times > 1)
    assert not twice, f"{len(twice)} records came more than once, first {twice[0]}"
    for record in got:
        place = record["partition"], record["offset"]
        for name, was, now in zip(("key", "value", "headers", "timestamp"),
                                  content(sent[place]), content(record)):
            assert was == now, f"{name} differs at {place}: sent {str(was)[:80]}, got {str(now)[:80]}"


def check_order(got):
    """One reader's records of a partition come in the order of their offsets."""
    last = {}
    for record in got:
        partition, offset = record["partition"], record["offset"]
        assert offset > last.get(partition, -1), \
            f"partition {partition}: offset {offset} came after {last[partition]}"
        last[partition] = offset


def selftest():
    """The comparison finds each kind of damage, and nothing in sound output."""
    batch = make(60, "selftest")
    sent = placed(batch, [[i % 3, i // 3] for i in range(len(batch))])
    sound = [dict(record, partition=p, offset=o) for (p, o), record in sorted(sent.items())]
    same(sent, sound)

    def changed(index, **fields):
        return sound[:index] + [dict(sound[index], **fields)] + sound[index + 1:]

    with_headers = next(i for i, r in enumerate(sound) if r["headers"])
    headers = sound[with_headers]["headers"]
    empty = next(i for i, r in enumerate(sound) if r["value"] == "")
    null = next(i for i, r in enumerate(sound) if r["value"] is None)
    for damage, got in (
        ("a record missing", sound[:7] + sound[8:]),
        ("a record twice", sorted(sound + sound[7:8], key=lambda r: (r["partition"], r["offset"]))),
        ("two in the wrong order", sound[:7] + [sound[8], sound[7]] + sound[9:]),
        ("a record never sent", sound + [dict(sound[-1], offset=999)]),
        ("another key", changed(7, key=text(b"?"))),
        ("another value", changed(7, value=text(b"?"))),
        ("null for an empty value", changed(empty, value=None)),
        ("an empty value for null", changed(null, value="")),
        ("another time", changed(7, timestamp=sound[7]["timestamp"] + 1)),
        ("a header lost", changed(with_headers, headers=headers[:1] + headers[2:])),
        ("headers in another order", changed(with_headers, headers=headers[::-1])),
    ):
        try:
            same(sent, got)
        except AssertionError:
            continue
        raise AssertionError(f"the comparison does not find {damage}")
