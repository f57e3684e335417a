"""kcat, the command line of librdkafka (Debian's, so an older release than confluent-kafka brings).

kcat has no admin calls: its topics come by auto-creation, or from kafka-topics where there have to be
six partitions. It is told no timestamps and prints no places of what it sends, so those are compared
with the time of the run and with the order of sending.
"""

import collections
import functools
import json
import random
import re
import signal
import subprocess
import threading
import time

from . import place, records
from .report import until

PARTITIONS = 6
KEY_END, RECORD_END = b"|~key~|", b"|~record~|"
FRAME = "%p %o %T %K %S %h\\n%k%s\\n"


class Kcat:
    def __init__(self, bootstrap, token, directory):
        self.bootstrap, self.token = bootstrap, token
        self.log_path = directory / "kcat.log"

    def named(self, what):
        return f"compat-kcat-{what}-{self.token}"

    def command(self, *arguments):
        return ["kcat", "-b", self.bootstrap, *map(str, arguments)]

    def run(self, *arguments, given=None):
        with open(self.log_path, "ab") as log:
            done = subprocess.run(self.command(*arguments), input=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            log.write(done.stderr)
        assert done.returncode == 0, \
            f"kcat {' '.join(map(str, arguments))}: exit code {done.returncode}: {done.stderr.decode()[-300:]}"
        return done.stdout

    def create_topic(self, topic, partitions=PARTITIONS):
        subprocess.run(place.tool_command("kafka-topics", "--bootstrap-server", self.bootstrap, "--create",
                                          "--topic", topic, "--partitions", str(partitions)),
                       check=True, stdout=subprocess.DEVNULL)

    def read(self, topic, *arguments):
        return list(frames(self.run("-C", "-t", topic, "-e", "-q", "-f", FRAME, *arguments)))


def all_cases(*arguments):
    kcat = Kcat(*arguments)
    version = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    features = re.search(r"builtin\.features=([\w,]+)", version)[1].split(",")
    codecs = ["none"] + [c for c in ("gzip", "snappy", "lz4", "zstd") if c in features]
    missing = {"gzip", "snappy", "lz4", "zstd"} - set(codecs)
    if missing:
        print(f"this kcat is built without {', '.join(sorted(missing))}: {version.splitlines()[-2]}")
    cases = [("metadata and auto-creation", 15, metadata)]
    cases += [(f"codec {codec}", 15, functools.partial(codec_round_trip, codec=codec)) for codec in codecs]
    cases += [
        ("tombstones", 15, tombstones),
        ("offsets", 20, offsets),
        ("group range", 60, functools.partial(group, assignor="range")),
        ("group cooperative-sticky", 60, functools.partial(group, assignor="cooperative-sticky")),
        ("killed member", 60, killed_member),
    ]
    return [(f"kcat: {name}", seconds, functools.partial(case, kcat)) for name, seconds, case in cases]


def lines(batch):
    """Keys and values in the form that -K and -D take apart again."""
    return b"".join(key + KEY_END + value + RECORD_END for key, value in batch)


DELIMITED = ("-K", KEY_END.decode(), "-D", RECORD_END.decode())


def frames(output):
    """What FRAME printed: [{partition, offset, timestamp, key, value, headers}], in bytes."""
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        one, key_size, value_size = parse_head(output[at:end])
        at = end + 1
        one["key"], at = piece(output, at, key_size)
        one["value"], at = piece(output, at, value_size)
        assert output[at:at + 1] == b"\n", f"a frame does not end where it says: {one}"
        at += 1
        yield one


def parse_head(line):
    partition, offset, timestamp, key_size, value_size, headers = line.split(b" ", 5)
    one = {"partition": int(partition), "offset": int(offset), "timestamp": int(timestamp),
           "headers": [h.split(b"=", 1) for h in headers.split(b",")] if headers else []}
    return one, int(key_size), int(value_size)


def piece(output, at, size):
    """Size -1 is null."""
    return (None, at) if size < 0 else (output[at:at + size], at + size)


def metadata(kcat):
    topic = kcat.named("auto")
    kcat.run("-P", "-t", topic, given=b"hello\n")
    found = json.loads(kcat.run("-L", "-J"))
    brokers = [b["id"] for b in found["brokers"]]
    assert brokers and found["controllerid"] in brokers, found
    (one,) = [t for t in found["topics"] if t["topic"] == topic]
    assert one["partitions"], one
    assert all(p["leader"] in brokers for p in one["partitions"]), one
    (got,) = kcat.read(topic)
    assert (got["key"], got["value"], got["headers"]) == (None, b"hello", []), got


def codec_round_trip(kcat, codec):
    """Random bytes and empty values, and headers two of which share a key, into a topic that does not
    exist yet. Idempotent for gzip and zstd; acks=1 without compression, acks=all else."""
    topic = kcat.named(f"codec-{codec}")
    chance = random.Random(codec)
    batch = [(chance.randbytes(chance.randrange(1, 20)),
              b"" if i % 7 == 5 else (chance.randbytes if i % 2 else b"x".__mul__)(chance.randrange(1, 1500)))
             for i in range(300)]
    begin = int(time.time() * 1000)
    kcat.run("-P", "-t", topic, "-p", 0, "-z", codec, *DELIMITED, "-H", "twice=first", "-H", "twice=second",
             "-H", "empty=", "-X", f"acks={'1' if codec == 'none' else 'all'}",
             "-X", f"enable.idempotence={'true' if codec in ('gzip', 'zstd') else 'false'}", given=lines(batch))
    end = int(time.time() * 1000)
    got = kcat.read(topic)
    assert [g["offset"] for g in got] == list(range(len(batch))), f"offsets {[g['offset'] for g in got]}"
    for sent, one in zip(batch, got):
        assert (one["key"], one["value"]) == sent, f"offset {one['offset']} differs"
        assert one["headers"] == [[b"twice", b"first"], [b"twice", b"second"], [b"empty", b""]], one["headers"]
        assert begin <= one["timestamp"] <= end, f"timestamp {one['timestamp']} not in {begin}..{end}"


def tombstones(kcat):
    topic = kcat.named("tombstones")
    kcat.run("-P", "-t", topic, "-p", 0, "-Z", *DELIMITED, given=lines([(b"a", b"1"), (b"a", b""), (b"b", b"2")]))
    got = [(g["key"], g["value"]) for g in kcat.read(topic)]
    assert got == [(b"a", b"1"), (b"a", None), (b"b", b"2")], got


def offsets(kcat):
    """Reading from the start, from an offset, from a time, and the last few; asking for offsets."""
    topic = kcat.named("offsets")
    for value in (b"a", b"b", b"c"):
        kcat.run("-P", "-t", topic, "-p", 0, given=b"\n".join([value * 3] * 10) + b"\n")
        time.sleep(0.02)
    all_of_it = kcat.read(topic, "-p", 0)
    assert [g["value"][:1] for g in all_of_it] == [b"a"] * 10 + [b"b"] * 10 + [b"c"] * 10
    then = all_of_it[10]["timestamp"]
    for where, first in (("beginning", 0), ("7", 7), ("-4", 26), (f"s@{then}", 10), ("end", 30)):
        got = [g["offset"] for g in kcat.read(topic, "-p", 0, "-o", where)]
        assert got == list(range(first, 30)), f"-o {where}: {got}"
    for when, expected in ((-2, 0), (-1, 30), (then, 10)):
        answer = kcat.run("-Q", "-t", f"{topic}:0:{when}").decode().split()
        assert answer[-1] == str(expected), f"-Q {when}: {answer}"


class Member:
    """One `kcat -G` process, whose output is taken apart as it comes."""

    def __init__(self, kcat, group, topic, *settings):
        options = ["auto.offset.reset=earliest", "heartbeat.interval.ms=300", "session.timeout.ms=6000",
                   "fetch.wait.max.ms=250", *settings]
        command = kcat.command("-G", group, "-u", "-f", FRAME, *[a for o in options for a in ("-X", o)], topic)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.log_path = kcat.log_path
        self.got, self.assigned = [], set()
        self.threads = [threading.Thread(target=read, daemon=True) for read in (self._records, self._notes)]
        for thread in self.threads:
            thread.start()

    def _records(self):
        output = self.process.stdout
        while line := output.readline():
            one, key_size, value_size = parse_head(line[:-1])
            one["key"] = None if key_size < 0 else output.read(key_size)
            one["value"] = None if value_size < 0 else output.read(value_size)
            if output.read(1) != b"\n":
                return  # killed in the middle
            self.got.append(one)

    def _notes(self):
        for line in self.process.stderr:
            with open(self.log_path, "ab") as log:
                log.write(line)
            partitions = set(map(int, re.findall(rb"\[(\d+)\]", line)))
            if b" assigned:" in line or b"incremental assignment" in line:
                self.assigned |= partitions
            elif b" revoked:" in line or b"incremental revoke" in line:
                self.assigned -= partitions

    def end(self, how=signal.SIGINT):
        self.process.send_signal(how)
        code = self.process.wait()
        for thread in self.threads:
            thread.join()
        assert how == signal.SIGKILL or code == 0, f"kcat -G: exit code {code}, see {self.log_path}"
        records.check_order(self.got)
        return self.got


def settled(*members):
    return (sorted(p for m in members for p in m.assigned) == list(range(PARTITIONS))
            and {len(m.assigned) for m in members} == {PARTITIONS // len(members)})


class Flow:
    """Numbered values under 40 keys, sent by one kcat over about a second."""

    def __init__(self, kcat, topic, codec):
        self.kcat, self.topic, self.codec = kcat, topic, codec
        self.sent, self.chance = [], random.Random(topic)

    def send(self, count):
        command = self.kcat.command("-P", "-t", self.topic, "-z", self.codec, *DELIMITED, "-X", "acks=all",
                                    "-X", "enable.idempotence=true", "-X", "linger.ms=5")
        with open(self.kcat.log_path, "ab") as log:
            producer = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)
        for begin in range(0, count, 20):
            batch = []
            for _ in range(begin, min(begin + 20, count)):
                value = b"%d " % len(self.sent) + self.chance.randbytes(self.chance.randrange(600))
                batch.append((b"key %d" % self.chance.randrange(40), value))
                self.sent.append(batch[-1])
            producer.stdin.write(lines(batch))
            producer.stdin.flush()
            time.sleep(0.04)
        producer.stdin.close()
        assert producer.wait() == 0, "the producer failed"

    def start(self, count):
        thread = threading.Thread(target=self.send, args=(count,), daemon=True)
        thread.start()
        return thread

    def check(self, got, repeats_from=()):
        """Everything sent came; once, or more often if `repeats_from` had it; each key in order."""
        times = collections.Counter((g["partition"], g["offset"]) for g in got)
        excused = {(g["partition"], g["offset"]) for g in repeats_from}
        twice = sorted(at for at, count in times.items() if count > 1 and at not in excused)
        assert not twice, f"{len(twice)} records came more than once, first {twice[0]}"
        by_place = {(g["partition"], g["offset"]): (g["key"], g["value"]) for g in got}
        was, now = collections.Counter(self.sent), collections.Counter(by_place.values())
        assert was == now, f"{sum((was - now).values())} of {len(self.sent)} records missing, " \
                           f"{sum((now - was).values())} that were never sent"
        keys = collections.defaultdict(list)
        for at in sorted(by_place):
            key, value = by_place[at]
            keys[key].append((at[0], int(value.split(b" ", 1)[0])))
        for key, found in keys.items():
            assert len({partition for partition, _ in found}) == 1, f"{key} is in several partitions"
            assert found == sorted(found), f"{key} is out of order"


def group(kcat, assignor):
    """Two members read, a third joins while records flow, then one leaves and records flow
    while the others take over. kcat commits by itself, and when its partitions are revoked: nothing may
    come twice."""
    topic = kcat.named(f"group-{assignor}")
    kcat.create_topic(topic)
    members, left = [], []
    flow = Flow(kcat, topic, "lz4" if assignor == "range" else "none")

    def arrived():
        return len(left) + sum(len(m.got) for m in members) >= len(flow.sent)

    def wait(probe, what):
        until(probe, what, lambda: [f"{len(m.got)} read, partitions {sorted(m.assigned)}" for m in members]
              + [f"{len(left)} read by those that left, {len(flow.sent)} sent"])

    def join():
        members.append(Member(kcat, topic, topic, f"partition.assignment.strategy={assignor}"))

    try:
        join()
        join()
        wait(lambda: settled(*members), "two members to share the partitions")
        flow.send(200)
        wait(arrived, "the first records")
        assert all(m.got for m in members), "a member got nothing"
        running = flow.start(600)
        join()
        wait(lambda: settled(*members), "three members to share the partitions")
        running.join()
        wait(arrived, "the records sent while the third member joined")
        # kcat drops the record in its hand when it is told to stop, and commits it all the same: the
        # member leaves while nothing flows, and records flow again while the others rebalance.
        left += members.pop(1).end()
        running = flow.start(400)
        wait(lambda: settled(*members), "two members to take over from the one that left")
        running.join()
        wait(arrived, "the records sent while a member left")
        assert members[-1].got, "the third member got nothing"
        while members:
            left += members.pop().end()
        flow.check(left)
        # The commits are there for whoever comes next: only new records reach it.
        join()
        wait(lambda: settled(*members), "a new member to have all partitions")
        flow.send(40)
        wait(arrived, "the records of the new member")
        left += members.pop().end()
        flow.check(left)
    finally:
        for member in members:
            member.process.kill()
    return f"{len(flow.sent)} records"


def killed_member(kcat):
    """A member that dies without a word loses its partitions when its session ends. What it had read
    and not committed comes again, and nothing else does."""
    topic = kcat.named("killed")
    kcat.create_topic(topic)
    flow = Flow(kcat, topic, "none")
    members = [Member(kcat, topic, topic, "partition.assignment.strategy=range") for _ in range(2)]
    try:
        until(lambda: settled(*members), "two members to share the partitions")
        flow.send(200)
        until(lambda: sum(len(m.got) for m in members) >= 200, "the first records")
        dead = members.pop().end(signal.SIGKILL)
        killed = time.monotonic()
        flow.send(100)
        until(lambda: settled(*members), "the other member to take over")
        seconds = time.monotonic() - killed
        until(lambda: len({(g["partition"], g["offset"]) for g in dead + members[0].got}) >= 300, "all records")
        flow.check(dead + members.pop().end(), repeats_from=dead)
    finally:
        for member in members:
            member.process.kill()
    return f"taken over after {seconds:.1f} s"
