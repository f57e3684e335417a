"""Damages a small honest log in every way the checker is there for; each has to be named."""

import functools

from ledger import Checker, value_of

SLOT, SENDERS, COUNT = 2, (0, 5), 20


def honest():
    """Two senders, records in turn."""
    return [value_of(sender, SLOT, sequence, b"payload %d" % sequence)
            for sequence in range(COUNT) for sender in SENDERS]


def check(values, acknowledged=None, start=0, end=None, commit=(10, 10, 12), known=SENDERS):
    """The kinds of what is found in a log that holds `values` from `start` on."""
    checker = Checker()
    end = len(values) if end is None else end
    checker.bounds(SLOT, start, end)
    for offset, value in enumerate(values):
        checker.record(SLOT, offset, value)
    every = [(sender, SLOT, sequence, len(SENDERS) * sequence + at)
             for sequence in range(COUNT) for at, sender in enumerate(SENDERS)]
    for entry in every if acknowledged is None else acknowledged:
        checker.acknowledged(*entry)
    for sender in known:
        checker.sent(sender, SLOT, COUNT)
    checker.settle(known)
    checker.committed("group", SLOT, commit[0], commit[1], commit[2], end)
    return checker


def damaged():
    """(what was done, what has to be found, the checker after it)"""
    good = honest()
    swapped = good[:10] + [good[12], good[11], good[10]] + good[13:]
    altered = good[:7] + [good[7][:-1] + b"!"] + good[8:]
    stranger = value_of(9, SLOT, 0, b"")
    yield "a record dropped in the middle", "dropped", check(good[:11] + good[12:], [])
    yield "an acknowledged record dropped", "lost", check(good[:11] + good[12:])
    yield "acknowledged records dropped at the end", "lost", check(good[:-4])
    yield "a record twice in a row", "duplicated", check(good[:11] + good[10:], [])
    yield "a batch again at the end", "duplicated", check(good + good[-6:])
    yield "two records in the wrong order", "reordered", check(swapped, [])
    yield "a byte of a payload", "altered", check(altered, [])
    yield "a byte of a header", "altered", check([b"\x7f" + good[0][1:]] + good[1:], [])
    yield "an empty record", "altered", check([*good, b""])
    yield "a record of another partition", "misplaced", check([*good, value_of(0, 3, 0, b"x")])
    yield "a record more than was sent", "invented", check([*good, value_of(0, SLOT, COUNT, b"x")])
    yield "a record of nobody", "invented", check([*good, stranger])
    yield "acknowledged for another offset", "moved", check(good, [(0, SLOT, 3, 7)])
    yield "a log that begins later", "start-moved", check(good, start=5)
    yield "a commit that goes back", "commit-went-back", check(good, commit=(11, 10, 12))
    yield "a commit that is forgotten", "commit-went-back", check(good, commit=(11, -1, 12))
    yield "a commit beyond the end", "commit-beyond-end", check(good, commit=(10, 41, 50))
    yield "a commit that nobody tried", "commit-invented", check(good, commit=(10, 13, 12))
    gap = Checker()
    gap.record(SLOT, 0, good[0])
    gap.record(SLOT, 2, good[2])
    yield "an offset left out", "offset-gap", gap
    again = check(good)
    again.bounds(SLOT, 0, len(good) - 1)
    yield "an end that goes back", "end-went-back", again


def cases():
    def undamaged():
        check(honest()).require_nothing()

    def expect(kind, checker):
        kinds = {found for found, _ in checker.findings}
        assert kind in kinds, f"{kind} was not found, but {kinds or 'nothing'}"
        try:
            checker.require_nothing()
        except AssertionError:
            return kind
        raise AssertionError("it was found and did not count")

    yield "an honest log is in order", undamaged
    for name, kind, checker in damaged():
        yield f"found: {name}", functools.partial(expect, kind, checker)
