"""Kafka's own definitions of its requests, as the jar of its clients holds them, and frames made of them.

`requests()` gives every request that a broker may serve. A `Plan` says what a frame holds: how many elements each array
has, what each text, number and byte field is. `encode` walks the definition and writes what the plan says.
"""

import functools
import json
import re
import struct
import zipfile

from suite import place
from wire import varint

JAR = place.CACHE / "java" / "clients" / "kafka-clients-4.4.0.jar"
FOLDER = "common/message/"
COUNTER_DIGITS = 6
FORMS = {"bool": "b", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d"}
NO_VERSIONS = range(0)
VERSION_MAX = 1 << 15


def versions(text):
    if text in (None, "none"):
        return NO_VERSIONS
    first, _, last = text.rstrip("+").partition("-")
    return range(int(first), VERSION_MAX if text.endswith("+") else int(last or first) + 1)


class Field:
    def __init__(self, said, structs):
        self.name, self.entity, self.default = said["name"], said.get("entityType"), said.get("default")
        self.is_array = said["type"].startswith("[]")
        self.type = said["type"].removeprefix("[]")
        self.versions, self.nullable = versions(said["versions"]), versions(said.get("nullableVersions"))
        self.tagged, self.tag = versions(said.get("taggedVersions")), said.get("tag")
        inner = said.get("fields") or structs.get(self.type)
        self.fields = inner and [Field(field, structs) for field in inner]

    @property
    def is_text(self):
        return self.type == "string"

    @property
    def is_number(self):
        return self.type in FORMS


class RequestSchema:
    def __init__(self, said):
        structs = {struct["name"]: struct["fields"] for struct in said.get("commonStructs", ())}
        self.key, self.name = said["apiKey"], said["name"].removesuffix("Request")
        self.versions, self.flexible = versions(said["validVersions"]), versions(said.get("flexibleVersions"))
        self.fields = [Field(field, structs) for field in said["fields"]]

    def walk(self, version):
        """(path, field) of every field at this version, outer ones first; a path is the names from the outermost on."""
        def inside(fields, path):
            for field in fields:
                if version in field.versions:
                    yield (*path, field.name), field
                    yield from inside(field.fields or (), (*path, field.name))
        return list(inside(self.fields, ()))

    def shape(self, version):
        """Versions of one shape have the same arrays and texts, encoded the same way."""
        of = [(path, field.is_array, field.type) for path, field in self.walk(version)
              if field.is_array or field.is_text or field.type in ("bytes", "records")]
        return version in self.flexible, tuple(of)


def requests():
    """Request definitions by API key."""
    found = {}
    with zipfile.ZipFile(JAR) as jar:
        for name in jar.namelist():
            if name.startswith(FOLDER) and name.endswith("Request.json"):
                # Kafka's files begin with comments, which JSON has not.
                said = json.loads(re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE))
                if said["validVersions"] != "none":
                    found[said["apiKey"]] = RequestSchema(said)
    return found


class Plan:
    """What a frame holds. What is not said here, `seeds` says."""

    def __init__(self, seeds, counts=None, texts=None, numbers=None, blobs=None, claims=None, counted=None, absent=False,
                 flags=False, client="adversary"):
        self.seeds, self.client = seeds, client
        # By path: elements of an array, the text of a string, the value of a number, the content of a byte field.
        self.counts, self.texts, self.numbers, self.blobs = counts or {}, texts or {}, numbers or {}, blobs or {}
        # By path: what a text or a byte field claims to hold; what an array does. Strings in an array have the array's path.
        self.claims, self.counted = claims or {}, counted or {}
        # Whether topics, groups and the like are some that do not exist, and whether truth values are true.
        self.absent, self.flags = absent, flags
        # Whether elements of the same array differ.
        self.distinct = True


class Encoder:
    """Writes one request. `slots` are the places that make elements of an array differ: (position, kind)."""

    def __init__(self, schema, version, plan):
        self.schema, self.version, self.plan = schema, version, plan
        self.flexible = version in schema.flexible
        self.data, self.slots = bytearray(), []

    def body(self):
        self.struct(self.schema.fields, ())
        return bytes(self.data)

    def struct(self, fields, path):
        outer_text = outer_number = False
        tagged = []
        siblings = {field.name for field in fields if self.version in field.versions and field.is_text}
        for field in fields:
            if self.version not in field.versions:
                continue
            at = (*path, field.name)
            if self.version in field.tagged:
                if self.asked_for(at):
                    tagged.append((field, at))
                continue
            begin = len(self.data)
            self.value(field, at, siblings)
            # The first text and the first number of an element are what tells it from others.
            if not field.is_array and self.plan.distinct:
                if field.is_text and not outer_text:
                    outer_text = self.slot_text(begin)
                elif field.type in ("int32", "int64", "int16") and not outer_number:
                    outer_number = True
                    self.slots.append((len(self.data) - min(4, len(self.data) - begin), field.type))
                elif field.type == "uuid" and any(self.data[begin:]):
                    self.slots.append((len(self.data) - 4, "int32"))
        if self.flexible:
            self.tags(tagged)

    def asked_for(self, path):
        plan = self.plan
        all_wishes = (plan.texts, plan.counts, plan.numbers, plan.blobs, plan.claims, plan.counted)
        return any(at[:len(path)] == path for wishes in all_wishes for at in wishes)

    def tags(self, tagged):
        self.data += varint(len(tagged))
        for field, at in sorted(tagged, key=lambda pair: pair[0].tag):
            inner = Encoder(self.schema, self.version, self.plan)
            inner.value(field, at, ())
            self.data += varint(field.tag) + varint(len(inner.data)) + inner.data

    def slot_text(self, begin):
        """The last digits of a text become a counter, if it has so many characters."""
        if len(self.data) - begin < COUNTER_DIGITS + 2:
            return False
        self.slots.append((len(self.data) - COUNTER_DIGITS, "text"))
        return True

    def value(self, field, path, siblings):
        if field.is_array:
            self.array(field, path)
        elif field.fields:
            if self.version in field.nullable:
                present = self.asked_for(path)
                self.data += struct.pack("b", 1 if present else -1)
                if not present:
                    return
            self.struct(field.fields, path)
        elif field.is_text:
            self.text(self.plan.texts.get(path, self.plan.seeds.text(self, field, path)), path)
        elif field.type in ("bytes", "records"):
            self.blob(self.plan.blobs.get(path, self.plan.seeds.blob(self, field, path)), path)
        elif field.type == "uuid":
            self.data += self.plan.seeds.uuid(self, field, siblings)
        else:
            number = self.plan.numbers.get(path, self.plan.seeds.number(self, field, path))
            self.data += struct.pack(">" + FORMS[field.type], number)

    def length(self, count, form):
        self.data += varint(count + 1) if self.flexible else struct.pack(form, count)

    def text(self, value, path):
        if value is None:
            self.data += b"\0" if self.flexible else b"\xff\xff"
            return
        self.length(self.plan.claims.get(path, len(value)), ">h")
        self.data += value

    def blob(self, value, path):
        if value is None:
            self.data += b"\0" if self.flexible else b"\xff\xff\xff\xff"
            return
        self.length(self.plan.claims.get(path, len(value)), ">i")
        self.data += value

    def array(self, field, path):
        count = self.plan.counts.get(path)
        if count is None:
            count = self.plan.seeds.count(self, field, path)
        if count is None:
            self.data += b"\0" if self.flexible else b"\xff\xff\xff\xff"
            return
        self.length(self.plan.counted.get(path, count), ">i")
        if count == 0:
            return
        inner = Encoder(self.schema, self.version, self.plan)
        inner.element(field, path)
        self.data += repeated(bytes(inner.data), inner.slots if self.plan.distinct else (), count)

    def element(self, field, path):
        if field.fields:
            self.struct(field.fields, path)
            return
        element = Field({"name": field.name, "type": field.type, "versions": "0+", "entityType": field.entity}, {})
        self.value(element, path, ())
        if field.is_text:
            self.slot_text(0)
        elif field.type == "uuid":
            self.slots.append((len(self.data) - 4, "int32"))
        else:
            self.slots.append((len(self.data) - min(4, len(self.data)), field.type))


def repeated(element, slots, count):
    """`element` so many times, with a counter in its slots."""
    if count == 1 or not slots:
        return element * count
    data, stride = bytearray(element * count), len(element)
    for at, kind in slots:
        for offset, digits in enumerate(columns(kind, count)):
            data[at + offset::stride] = digits[:count]
    return bytes(data)


def columns(kind, count):
    """The digits of a counter, those of highest value first, each for all elements."""
    # A power of two, so that few are ever made.
    count = 1 << (count - 1).bit_length()
    if kind == "text":
        return [column(4 * place, b"0123456789abcdef", count) for place in reversed(range(COUNTER_DIGITS))]
    width = {"int8": 1, "int16": 2}.get(kind, 4)
    # The counter stays positive.
    return [column(8 * place, bytes(range(128)) if place == width - 1 else bytes(range(256)), count)
            for place in reversed(range(width))]


@functools.cache
def column(shift, digits, count):
    if 1 << shift >= count:
        return digits[:1] * count
    turn = b"".join(bytes((digit,)) * (1 << shift) for digit in digits)
    return (turn * (count // len(turn) + 1))[:count]


def frame(schema, version, plan, correlation):
    header = struct.pack(">hhi", schema.key, version, correlation)
    client = plan.client.encode()
    header += struct.pack(">h", len(client)) + client + (b"\0" if version in schema.flexible else b"")
    body = header + Encoder(schema, version, plan).body()
    return struct.pack(">i", len(body)) + body


def element_bytes(schema, version, plan, path):
    """How much a frame grows by each more element of this array."""
    sizes = []
    for count in (1, 2):
        plan.counts[path] = count
        sizes.append(len(Encoder(schema, version, plan).body()))
    return sizes[1] - sizes[0]
