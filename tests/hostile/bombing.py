"""Record batches that expand: produced, asked for by time, fetched, compacted; and whatever else has a codec beside its bytes."""

import time
from functools import partial

import bombs
import volley
from demands import said, versions_to_try
from schema import Plan, frame
from seeds import COMPACTED, TOPIC

CONNECTIONS = 6
# Compaction begins within this after a batch came.
COMPACTION_SECONDS = 5
CODEC_FIELD = "CompressionType"
PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2
# ListOffsets asks for the first record of a time, for one of a time that never comes, and for that of the largest time.
TIMES = (1000, 1 << 62, -3)


class Bombing:
    def __init__(self, attacker, definitions, served):
        self.attacker, self.definitions, self.served = attacker, definitions, served
        self.laid = None

    @property
    def target(self):
        return self.attacker.target

    def run(self, short):
        """Every bomb on a plain and on a compacted topic; then what reads it."""
        made = bombs.all_of_them()
        made = [next(made)] if short else list(made)
        for what, batch in made:
            for topic in (COMPACTED,) if short else (TOPIC, COMPACTED):
                times, crowds = (TIMES[:1], (CONNECTIONS,)) if short else (TIMES, (1, CONNECTIONS))
                self.produced(f"{what}, to {topic}", topic, batch, times, crowds)
        self.others(made)

    def newest(self, key, holds):
        """The newest version served that has a field of this name."""
        definition, (first, last) = self.definitions[key], self.served[key]
        return max(version for version in range(first, last + 1)
                   if any(path[-1] == holds for path, _ in definition.walk(version)))

    def frame(self, key, holds, topic, **wishes):
        definition, version = self.definitions[key], self.newest(key, holds)
        of_topic = {path: topic.encode() for path, field in definition.walk(version) if field.entity == "topicName"}
        return version, frame(definition, version, Plan(self.target.seeds, texts=of_topic, **wishes), 1)

    def produced(self, what, topic, batch, times, crowds):
        path = ("TopicData", "PartitionData", "Records")
        version, data = self.frame(PRODUCE, "Name", topic, blobs={path: batch})
        if topic == COMPACTED:
            self.attack("Produce", version, f"compaction of {what}", data, partial(self.compacted, what, data))
        for connections in crowds:
            self.attack("Produce", version, f"{connections} at once, {what}", data,
                        partial(self.read, what, data, connections))
        for timestamp in times:
            path = ("Topics", "Partitions", "Timestamp")
            version, asked = self.frame(LIST_OFFSETS, "Name", topic, numbers={path: timestamp})
            for connections in crowds:
                kind = f"time {timestamp}, {connections} at once, of {what}"
                self.attack("ListOffsets", version, kind, asked,
                            partial(self.read, what, asked, connections), data)
        version, asked = self.frame(FETCH, "Topic", topic, numbers={("Topics", "Partitions", "FetchOffset"): 0})
        self.attack("Fetch", version, f"{CONNECTIONS} at once, of {what}", asked,
                    partial(self.read, what, asked, CONNECTIONS), data)

    def read(self, what, asked, connections):
        return volley.repeated(self.target.address, [(what, asked)], 1, connections)

    def compacted(self, what, data):
        """More batches behind the first, so that it is no longer in the segment that is written to."""
        came = volley.repeated(self.target.address, [(what, data)], 2, 1)
        time.sleep(COMPACTION_SECONDS)
        return came

    def attack(self, api, version, kind, data, work, bomb=None):
        self.attacker.measured(api, version, kind, partial(self.lay, bomb), work, [(kind, data)])

    def lay(self, bomb):
        """Produces what an attack reads, where the server is another one than before."""
        if bomb is not None and self.laid != (self.target.starts, bomb):
            volley.each_alone(self.target.address, [("bomb", bomb)])
            self.laid = self.target.starts, bomb

    def others(self, made):
        """Requests that say a codec for bytes that are no record batches: the compressed part of one will do."""
        for key, definition in self.definitions.items():
            for version in versions_to_try(definition, *self.served.get(key, (0, -1))):
                fields = definition.walk(version)
                codec = [path for path, field in fields if field.name == CODEC_FIELD]
                blobs = [path for path, field in fields if field.type == "bytes" and not field.is_array]
                for what, batch in made if codec and blobs else ():
                    wishes = {"numbers": {codec[0]: batch[22] & 7}, "blobs": {blobs[0]: batch[61:]}}
                    data = frame(definition, version, Plan(self.target.seeds, **wishes), 1)
                    for connections in (1, CONNECTIONS):
                        self.attack(definition.name, version, f"{connections} at once, {said(blobs[0])}: {what}", data,
                                    partial(self.read, what, data, connections))
