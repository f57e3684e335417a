"""Frames that are small and ask for much, found by walking the definition of a request.

A `Demand` is one kind of frame for one version of an API. Nothing here knows an API by its name: one that a server
begins to serve is attacked with no line added.
"""

import math
from dataclasses import dataclass
from itertools import count as numbers_from
from typing import Callable

from schema import FORMS, Plan, element_bytes, frame

FRAME_BYTES, ELEMENTS = 2_800_000, 400_000
# The longest text of the older encoding, and one less for what is put behind it.
TEXT = b"x" * 32_766
CLIENT = "x" * 32_766
# Only the compact encoding can say a text of this length.
COMPACT_TEXT = b"x" * (1 << 20)
BLOB = bytes(FRAME_BYTES)
# What such a frame is called: its connection must not be closed.
LONG = "long "
CLAIMS = ((1 << 31) - 2, 1_000_000, 999_999)
CLAIMED_TEXTS = (32_767, 32_000)
NUMBER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 17, "uint32": 33}


@dataclass
class Demand:
    kind: str
    build: Callable
    """Makes the frames, each for a connection of its own: [(what, frame)]."""
    waits: bool = False
    """Whether no answer may come, since the request says how long to wait."""
    heavy: bool = True
    """Whether it is worth repeating."""
    first: bool = False
    """Whether a run that has little time tries it."""


class Demands:
    def __init__(self, schema, version, seeds):
        self.schema, self.version, self.seeds = schema, version, seeds
        self.fields = schema.walk(version)
        self.arrays = [path for path, field in self.fields if field.is_array]
        self.texts = [path for path, field in self.fields if field.is_text]
        self.blobs = [path for path, field in self.fields if field.type in ("bytes", "records") and not field.is_array]
        self.numbers = [(path, field) for path, field in self.fields
                        if field.type in NUMBER_BITS and not field.is_array]
        self.correlations = numbers_from(1)

    def frame(self, plan):
        return frame(self.schema, self.version, plan, next(self.correlations))

    def plan(self, **wishes):
        return Plan(self.seeds, **wishes)

    def all(self):
        """The heaviest first."""
        deepest_first = sorted(self.arrays, key=len, reverse=True)
        for array in deepest_first:
            outside = [text for text in self.texts if text[:len(array)] != array]
            # What lies nearest is what is most likely said again for every element.
            nearest = max(outside, key=lambda text: shared(text, array), default=None)
            for text in outside:
                first = array == deepest_first[0] and text == nearest
                yield self.one(f"{said(array)} filled, {said(text)} long", self.filled, array, texts={text: TEXT},
                               first=first)
        for array in deepest_first:
            yield self.one(f"{said(array)} filled, all differ", self.filled, array, flags=True,
                           first=array == deepest_first[0])
            yield self.one(f"{said(array)} filled, all the same", self.filled, array, distinct=False)
            if len(array) > 1:
                yield self.one(f"{said(array)} filled, of what does not exist", self.filled, array, absent=True)
        for array in deepest_first:
            outer = [other for other in self.arrays if len(other) < len(array) and array[:len(other)] == other]
            if outer:
                yield self.one(f"{said(array)} filled, and all it lies in", self.nested, [*outer, array],
                               first=array == deepest_first[0])
        for array in deepest_first:
            for text in self.texts:
                if text[:len(array)] == array and not any(array != other and other[:len(array)] == array
                                                          and text[:len(other)] == other for other in self.arrays):
                    yield self.one(f"{said(array)} filled with long {said(text)}", self.filled, array,
                                   texts={text: TEXT})
        for path in self.blobs:
            yield self.one(f"{said(path)} of {len(BLOB)} zeros", self.plain, blobs={path: BLOB})
        yield Demand("long texts", self.long_texts, heavy=False, first=True)
        if self.numbers:
            yield Demand("largest and smallest numbers", self.extreme_numbers, waits=True, heavy=False)
        if self.arrays or self.texts:
            yield Demand("claims of more than there is", self.claims, heavy=False, first=True)

    def one(self, kind, build, *arguments, first=False, **wishes):
        return Demand(kind, lambda: [(kind, build(*arguments, **wishes))], first=first)

    def plain(self, **wishes):
        return self.frame(self.plan(**wishes))

    def filled(self, array, distinct=True, **wishes):
        plan = self.plan(**wishes)
        plan.distinct = distinct
        self.fill(plan, array, FRAME_BYTES)
        return self.frame(plan)

    def fill(self, plan, array, bytes_max):
        each = element_bytes(self.schema, self.version, plan, array)
        plan.counts[array] = max(1, min(ELEMENTS, bytes_max // each))

    def nested(self, arrays):
        """About as many elements in each of the arrays, from the outermost to the innermost."""
        plan = self.plan()
        for array in reversed(arrays):
            share = FRAME_BYTES ** ((len(arrays) - arrays.index(array)) / len(arrays))
            self.fill(plan, array, math.floor(share))
        return self.frame(plan)

    # Many small frames

    def long_texts(self):
        """All texts at once, then each alone, so that what is checked first does not hide the others."""
        every_one = {array: 1 for array in self.arrays}
        yield f"{LONG}all", self.frame(self.plan(texts={text: TEXT for text in self.texts}, counts=every_one, client=CLIENT))
        yield f"{LONG}client id", self.frame(self.plan(client=CLIENT))
        for text in self.texts:
            yield f"{LONG}{said(text)}", self.frame(self.plan(texts={text: TEXT}))

    def extreme_numbers(self):
        for path, field in self.numbers:
            limit = 1 << (NUMBER_BITS[field.type] - 1)
            values = (limit - 1, 0) if FORMS[field.type].isupper() else (limit - 1, -limit, -1)
            for value in values:
                yield f"{said(path)} {value}", self.frame(self.plan(numbers={path: value}))

    def claims(self):
        flexible = self.version in self.schema.flexible
        for array in self.arrays:
            for claim in CLAIMS:
                yield f"{said(array)} claims {claim}", self.frame(self.plan(counted={array: claim}, counts={array: 1}))
        for text in self.texts:
            for claim in CLAIMED_TEXTS:
                yield f"{said(text)} claims {claim}", self.frame(self.plan(claims={text: claim}, texts={text: b"short"}))
            if flexible:
                yield f"{said(text)} of 1 MiB", self.frame(self.plan(texts={text: COMPACT_TEXT}))


def shared(path, other):
    """How many of the outer names are the same."""
    return next((at for at, pair in enumerate(zip(path, other)) if pair[0] != pair[1]), min(len(path), len(other)))


def said(path):
    return ".".join(path)


def versions_to_try(schema, first, last):
    """The oldest, the newest, and each that is the first of its shape."""
    chosen, before = [], None
    for version in range(first, last + 1):
        if version not in schema.versions:
            continue
        shape = schema.shape(version)
        if shape != before:
            chosen.append(version)
        before = shape
    newest = min(last, schema.versions[-1]) if chosen else None
    return chosen + [newest] if chosen and newest != chosen[-1] else chosen
