"""Runs mainstem-bench on files made for a case, and reads what it says and writes."""

import json
import os
import re
import subprocess
import time

from suite import place

DRIVER_CLASS = "io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver"
TOLERANCE = 0.05
ATTEMPTS = 3
# Before the next: a disk that is being flooded needs a moment.
PAUSE_SECONDS = 3
# Of what was published last, so much may not be consumed yet when the measured part ends, or be counted in it too.
TAIL_SECONDS = 0.3
PERCENTILES = ("50pct", "75pct", "95pct", "99pct", "999pct", "9999pct", "Max")

WORKLOAD = {
    "topics": 1, "partitionsPerTopic": 4, "messageSize": 500, "subscriptionsPerTopic": 1, "consumerPerSubscription": 1,
    "producersPerTopic": 1, "producerRate": 2000, "consumerBacklogSizeGB": 0, "warmupDurationSeconds": 1,
    "testDurationSeconds": 2.5,
}


def environment():
    """Without the variables that speak to the tests, but for the cache, which speaks to mainstem-bench too."""
    names = set(place.OWN_VARIABLES) - {"MAINSTEM_CACHE"}
    return {name: value for name, value in os.environ.items() if name not in names}


def block(name, properties):
    lines = "".join(f"  {key}={value}\n" for key, value in properties.items())
    return f"{name}: |\n{lines}\n" if lines else ""


def driver(bootstrap, producer=(), topic=(), common=(), name="Kafka", replicas=1):
    """A driver file in the shape of OMB's."""
    return f"""# A driver for one server.

name: {name}
driverClass: {DRIVER_CLASS}

# Kafka client-specific configuration
replicationFactor: {replicas}

""" + block("topicConfig", dict(topic)) + block("commonConfig", {"bootstrap.servers": bootstrap, **dict(common)}) \
        + block("producerConfig", {"acks": "all", "linger.ms": 1, "batch.size": 131072, **dict(producer)}) \
        + block("consumerConfig", {"auto.offset.reset": "earliest", "enable.auto.commit": "false",
                                   "max.partition.fetch.bytes": 10485760})


def workload(**changed):
    """A workload file; JSON's values are YAML's."""
    keys = {"name": "a workload", **WORKLOAD, **changed}
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items() if value is not None)


class Unsteady(AssertionError):
    """A figure is off, which it also is when the machine stood still for a moment."""


class Pace:
    """How figures that depend on the machine's pace are taken: in the last attempt they are noted, and fail nothing."""

    noted = None


def steady(condition, message):
    if condition:
        return
    if Pace.noted is None:
        raise Unsteady(message)
    Pace.noted.append(message)


def patiently(case, *arguments):
    """Runs a case, and again while all that is wrong is its pace: other programs may have had the machine."""
    for attempt in range(1, ATTEMPTS):
        try:
            note = case(*arguments)
            return note if attempt == 1 else f"{note}; attempt {attempt}"
        except Unsteady:
            time.sleep(PAUSE_SECONDS)
    return f"{leniently(case, *arguments)}; attempt {ATTEMPTS}"


def leniently(case, *arguments):
    """Runs a case, and notes what is off its pace."""
    Pace.noted = []
    try:
        note = case(*arguments)
        return "; ".join([str(note), *(f"off its pace: {message}" for message in Pace.noted)])
    finally:
        Pace.noted = None


class Outcome:
    """A run that has ended."""

    def __init__(self, code, out, err, seconds, result_path):
        self.code, self.out, self.err, self.seconds, self.result_path = code, out, err, seconds, result_path

    def result(self):
        self.succeeded()
        return json.loads(self.result_path.read_text())

    def succeeded(self):
        assert self.code == 0, f"exit code {self.code}: {self.message()}"

    def message(self):
        """The last thing it said: the reason, when it failed."""
        at = self.err.rfind("mainstem-bench: ")
        return (self.err[at:] if at >= 0 else self.err[-600:]).strip()

    def failed(self, *words, seconds):
        """It failed in time, wrote no result, and said why: each of `words` is a pattern."""
        message = self.message()
        assert self.code == 1, f"exit code {self.code} instead of 1: {message}"
        assert not self.out, f"it printed {self.out!r}"
        assert not self.result_path.is_file(), "it wrote a result"
        for word in words:
            assert re.search(word, message), f"the message does not say {word!r}: {message}"
        assert "panicked" not in self.err, self.err[-600:]
        assert self.seconds < seconds, f"that took {self.seconds:.1f} s: {message}"
        return message.removeprefix("mainstem-bench: ").splitlines()[0][-150:]


class Load:
    def __init__(self, program, directory, short=False):
        self.program, self.directory, self.short = program, directory, short
        self.count = 0

    def folder(self, name):
        """For the files of one run."""
        self.count += 1
        folder = self.directory / f"{self.count:02}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"
        folder.mkdir()
        return folder

    def spawn(self, folder, *arguments):
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            return subprocess.Popen([self.program, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                    cwd=folder, env=environment())

    def files(self, name, driver_text, workload_text):
        folder = self.folder(name)
        (folder / "driver.yaml").write_text(driver_text)
        (folder / "workload.yaml").write_text(workload_text)
        return folder

    def begin(self, folder, engine, *more):
        return self.spawn(folder, "run", "-d", "driver.yaml", "workload.yaml", "-o", "result.json", "--engine", engine,
                          *more)

    def end(self, process, folder, seconds=60, since=None):
        begun = since or time.monotonic()
        try:
            process.wait(seconds)
        finally:
            # Also when the case's limit is over.
            if process.poll() is None:
                process.kill()
                process.wait()
        read = [(folder / name).read_text(errors="replace") for name in ("stdout", "stderr")]
        return Outcome(process.returncode, *read, time.monotonic() - begun, folder / "result.json")

    def run(self, name, driver_text, workload_text, engine="native", *more, seconds=60):
        folder = self.files(f"{name} {engine}", driver_text, workload_text)
        return self.end(self.begin(folder, engine, *more), folder, seconds)

    def call(self, name, *arguments, seconds=60):
        folder = self.folder(name)
        return self.end(self.spawn(folder, *arguments), folder, seconds)


def check_result(result, engine, rate=None, groups=1, client=(), tolerance=TOLERANCE, **changed):
    """That a result is what was asked for; returns a note."""
    asked = {**WORKLOAD, **changed}
    bench = result["bench"]
    wanted = {"messageSize": asked["messageSize"], "topics": asked["topics"], "partitions": asked["partitionsPerTopic"],
              "producersPerTopic": asked["producersPerTopic"], "consumersPerTopic": asked["consumerPerSubscription"]}
    found = {key: result[key] for key in wanted}
    assert found == wanted, f"the result says {found}"
    assert (bench["engine"], bench["groups"]) == (engine, groups), f"{bench['engine']}, {bench['groups']} groups"
    for key, value in dict(client).items():
        assert bench["client"].get(key) == str(value), f"the result's clients are {bench['client']}"
    assert bench["verified"] is True and bench["publishErrors"] == 0, "it is not verified"
    published, consumed = bench["publishedMessages"], bench["consumedMessages"]
    assert bench["publishedBytes"] == published * asked["messageSize"], "bytes and messages do not fit"
    assert bench["consumedBytes"] == consumed * asked["messageSize"], "bytes and messages do not fit"
    reached = published / bench["seconds"]
    rate = asked["producerRate"] if rate is None else rate
    if rate:
        assert bench["producerRate"] == rate, f"the result says that {bench['producerRate']}/s were asked for"
        steady(abs(reached / rate - 1) <= tolerance, f"{reached:.0f} messages/s instead of {rate}")
        tail = abs(consumed - published * groups)
        steady(tail <= TAIL_SECONDS * rate * groups, f"{published} published, {consumed} consumed by {groups} groups")
    for name in ("PublishLatency", "PublishDelayLatency", "EndToEndLatency"):
        rising = [result[f"aggregated{name}{suffix}"] for suffix in PERCENTILES]
        assert rising == sorted(rising), f"{name} falls: {rising}"
        assert 0 < result[f"aggregated{name}Avg"] <= rising[-1] < 1e8, f"{name}: {rising}"
    return f"{reached:.0f}/s, p99 {result['aggregatedPublishLatency99pct']:.1f} ms"
