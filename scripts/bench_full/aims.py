"""The aims: for each what is run, and which figures come of it. docs/bench.md says what they mean."""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import cluster
from .figures import (Figure, Unmeasured, around, batch_bytes_per_byte, cpu_per_gigabyte, deleted, device_bytes_per_byte, doubts,
                      ends, growth, load_full, median_held, messages_held_per_second, messages_per_second, number, ratios,
                      stalls_filled, stolen)
from .memory_limit import MemoryLimit
from .runs import KAFKA, OURS, PART1_4, PART1_50, RETENTION_AT_ONCE, SMOKE_SECONDS, Changes, Runs, driver, server_config

MESSAGE_BYTES, PARTITIONS, BATCH_BYTES_MAX = 1024, 288, 131072
# Bounded in the server, not by a setting: INDEX_CACHE_BYTES of the broker.
INDEX_CACHE_BYTES = 32 * 1024 * 1024
BOUNDS = ("log.tail.cache.bytes", "log.read.cache.bytes", "queued.max.request.bytes")
BESIDE_BOUNDS = 150e6
# What the server may have while it drains a backlog that is larger, and a heap that leaves Kafka room for pages.
DRAIN_MEMORY_BYTES, DRAIN_HEAP = 1536 * 1024 * 1024, "-Xms512m -Xmx512m"
# A drive's rate differs by a third from one moment to the next, so a round is so many short turns with fio.
DRIVE_TURNS = 3
# Until the backlog stands and is drained again.
BACKLOG_SPARE_SECONDS = 300
SMOKE_BACKLOG_GIGABYTES = 0.005
# Segments so small that they are used again during the run: deletion is then all that it can be.
RETENTION_SEGMENTS = "log.segment.bytes=67108864"
LONG_RUN_MESSAGES_MAX = 200e6 / MESSAGE_BYTES
# Of a long run in a smoke test: a second for each sixth.
SMOKE_LONG_RUN_SECONDS = 6


def messages(megabytes: float) -> float:
    """Messages a second for megabytes a second."""
    return megabytes * 1e6 / MESSAGE_BYTES


def cost(runs: Runs) -> list[Figure]:
    ours, kafka = runs.versus("cost", PART1_4, {"producerRate": runs.rate(messages(20))})
    return [Figure("server CPU per GB published, ours / Kafka", ratios(ours, kafka, cpu_per_gigabyte), at_most=1 / 3,
                   remark=doubts([*ours, *kafka]))]


def producers(runs: Runs) -> list[Figure]:
    found: dict[tuple[int, str], list] = {(rate, clients): [] for rate in (20, 400) for clients in (PART1_4, PART1_50)}
    for turn in runs.rounds:
        for (rate, clients), results in found.items():
            name = f"producers/{Path(clients).stem}-{rate}-round-{turn}"
            results += runs.ours(name, clients, {"producerRate": runs.rate(messages(rate))})
    return [Figure(f"server CPU per GB, 50 + 50 clients / 4 + 4, at {rate} MB/s",
                   ratios(found[rate, PART1_50], found[rate, PART1_4], cpu_per_gigabyte), at_most=1.15,
                   remark=doubts(found[rate, PART1_50] + found[rate, PART1_4])) for rate in (20, 400)]


def streams(runs: Runs) -> list[Figure]:
    one, many = [], []
    for turn in runs.rounds:
        for count, results in ((1, one), (2000, many)):
            results += runs.ours(f"streams/{count}-round-{turn}", f"small/streams-{count}.yaml", {"producerRates": [600]})
    held = doubts(one + many)
    return [Figure("server CPU per GB, 2000 streams / 1", ratios(many, one, cpu_per_gigabyte), at_most=1.15, remark=held),
            Figure("publish p99, 2000 streams / 1", ratios(many, one, lambda one: one["aggregatedPublishLatency99pct"]),
                   at_most=1.15, remark=held)]


def core(runs: Runs) -> list[Figure]:
    figures = []
    cases = (
        ("highest rate held, ours / Kafka", "highest-rate", (OURS, KAFKA), 3),
        ("the same with keys", "highest-rate-keys", (OURS, KAFKA), 2),
        ("the same with TLS", "highest-rate", (f"{OURS}-tls", f"{KAFKA}-tls"), 2),
    )
    # The search is the same, and the longest part of a smoke test.
    for what, workload, contenders, factor in cases[:1] if runs.options.smoke else cases:
        ours, kafka = runs.held(f"core/{workload}-{contenders[0]}", f"aims/{workload}.yaml", contenders, runs.options.rounds)
        rates = [median_held(of) for of in (ours, kafka)]
        if contenders[0] == OURS and workload == "highest-rate":
            runs.highest.update(zip(contenders, rates))
        reached = " and ".join(number(rate * MESSAGE_BYTES / 1e6) for rate in rates) + " MB/s"
        remark = "; ".join(filter(None, (reached, doubts([*ours, *kafka]), load_full(ours))))
        figures.append(Figure(what, ratios(ours, kafka, messages_held_per_second), at_least=factor, remark=remark))
    return figures


def latency(runs: Runs) -> list[Figure]:
    rate = runs.rate(runs.highest_of(KAFKA) / 2)
    ours, kafka = runs.versus("latency", PART1_4, {"producerRate": rate})
    remark = "; ".join(filter(None, (f"at {number(rate * MESSAGE_BYTES / 1e6)} MB/s", doubts([*ours, *kafka]))))
    return [Figure(f"end-to-end {name} at half of Kafka's highest rate, ours / Kafka",
                   ratios(ours, kafka, lambda one: one[f"aggregatedEndToEndLatency{field}"]), at_most=1 / 3, remark=remark)
            for name, field in (("p99", "99pct"), ("p99.9", "999pct"))]


def small_batches(runs: Runs) -> list[Figure]:
    figures = []
    for name, what in (("requests-of-1", "appended, a record in each request"),
                       ("batches-of-1", "appended, a record in each batch, up to 16 batches in a request")):
        results = runs.ours(f"small-batches/{name}", "aims/small-batches.yaml", {"producerRate": runs.rate(600_000)},
                            runs.options.rounds, ("--driver", driver(name)))
        figures.append(Figure(what, [messages_per_second(one) for one in results], at_least=320_000, unit="messages/s",
                              remark=load_full(results)))
    return figures


def drive(runs: Runs) -> list[Figure]:
    if not shutil.which("fio"):
        raise Unmeasured("fio is not installed")
    limits = {"synced": 0.85, "written": 0.95}
    shares: dict[str, list[float]] = {durability: [] for durability in limits}
    seconds = 1 if runs.options.smoke else max(1, runs.options.seconds // DRIVE_TURNS)
    turns = 1 if runs.options.smoke else DRIVE_TURNS * runs.options.rounds
    for turn in range(1, turns + 1):
        for durability, found in shares.items():
            arguments = ["bench-store", "--data-dir", runs.options.output / "data", "--append-bytes", 65536, "--streams", 100,
                         "--durability", durability, "--seconds", seconds, "--fio"]
            found.append(share_of_fio(runs.call(f"drive/{durability}-round-{turn}", arguments, 2 * seconds)))
    return [Figure(f"appends of 64 KiB, {durability}: throughput of fio's", shares[durability], at_least=limit)
            for durability, limit in limits.items()]


def share_of_fio(printed: str) -> float:
    """From the last line of `mainstem bench-store --fio`."""
    found = re.search(r"^mainstem / fio: ([0-9.]+) of the throughput", printed, re.M)
    if not found:
        raise Unmeasured(f"bench-store printed no comparison with fio:\n{printed}")
    return float(found[1])


def device_bytes(runs: Runs) -> list[Figure]:
    # So long that segments are used again before it is measured.
    lengths = runs.lengths(runs.options.seconds, 25)
    rate = runs.rate(runs.highest_of(OURS))
    results = runs.ours("device-bytes", "aims/device-bytes.yaml", {"producerRate": rate, **lengths}, runs.options.rounds,
                        server_config("log.segment.bytes=268435456", RETENTION_AT_ONCE))
    of_values = [device_bytes_per_byte(one) for one in results]
    batches = batch_bytes_per_byte(MESSAGE_BYTES, BATCH_BYTES_MAX)
    reached = statistics.median(map(messages_per_second, results)) * MESSAGE_BYTES / 1e6
    remark = "; ".join(filter(None, (f"at {number(reached)} MB/s", doubts(results))))
    return [Figure("device writes per byte of the values published", of_values, at_most=1.02, remark=remark),
            Figure("device writes per byte of their batches", [value / batches for value in of_values], at_most=1.02,
                   remark=f"a batch taken as {batches:.4f} of its values, which is when it is full")]


def retention(runs: Runs) -> list[Figure]:
    rate = runs.rate(messages(40))
    lengths = runs.lengths(2 * runs.options.seconds, 10)
    warm_up, test = (float(str(lengths[key])) for key in ("warmupDurationSeconds", "testDurationSeconds"))
    limit = int(rate * MESSAGE_BYTES * (warm_up + test / 2) / PARTITIONS)
    results = runs.ours("retention", "small/part3-retention.yaml",
                        {"producerRate": rate, **lengths, "retention.bytes": limit}, runs.options.rounds,
                        server_config(RETENTION_AT_ONCE, RETENTION_SEGMENTS))
    if not runs.options.smoke and not all(map(deleted, results)):
        raise Unmeasured("nothing was deleted")
    # Partitions fill at different paces and reach the limit within seconds of each other: the middle third is neither.
    parts = [ends(stalls_filled(one["publishLatency99pct"]), 3) for one in results]
    return [Figure("publish p99 after deletion began / before", [growth(part) for part in parts], at_most=1.1,
                   remark=doubts(results))]


def backlog(runs: Runs) -> list[Figure]:
    changes: Changes = {"producerRate": runs.rate(messages(40))}
    if runs.options.smoke:
        changes = {**changes, "consumerBacklogSizeGB": SMOKE_BACKLOG_GIGABYTES}
    with limited(runs) as (programs, heap, remark):
        ours, kafka = runs.versus("backlog", "aims/backlog.yaml", changes, more=heap, programs=programs,
                                  spare_seconds=BACKLOG_SPARE_SECONDS)
    if any("backlog" not in one["bench"] for one in (*ours, *kafka)):
        raise Unmeasured("a backlog was not drained")
    parts, withheld = [], []
    for one in ours:
        bench = one["bench"]
        drain = (bench["sampleSeconds"], bench["backlog"]["buildSeconds"],
                 bench["backlog"]["buildSeconds"] + bench["backlog"]["drainSeconds"])
        parts.append(around(stalls_filled(one["publishLatency99pct"]), *drain))
        withheld += around(bench["stolen"], *drain)[1] if "stolen" in bench else []
    meanwhile = "; ".join(filter(None, (remark, stolen(withheld, " while it drained"))))
    return [Figure("drain rate of a backlog, ours / Kafka", ratios(ours, kafka, lambda one: one["bench"]["backlog"]["drainRate"]),
                   at_least=2, remark=remark),
            Figure("publish p99 while it drains / before", [growth(part) for part in parts], at_most=2, remark=meanwhile)]


@contextmanager
def limited(runs: Runs) -> Iterator[tuple[Path | None, Sequence[str], str]]:
    """A directory with programs whose memory is limited, arguments for that and a remark; without where it cannot be."""
    java = shutil.which("java")
    limit = MemoryLimit(DRAIN_MEMORY_BYTES)
    try:
        limit.make()
    except OSError as error:
        yield None, (), f"without a limit of memory ({error.strerror or error}): the backlog may have been cached"
        return
    try:
        programs = runs.options.output / "limited"
        limit.wrap(runs.options.mainstem, programs, OURS)
        # Without java the comparison says what is missing.
        if java:
            limit.wrap(Path(java), programs, "java")
        yield programs, ("--kafka-heap", DRAIN_HEAP), f"{number(DRAIN_MEMORY_BYTES / 2**30)} GiB of memory, page cache included"
    finally:
        limit.remove()


def long_run(runs: Runs) -> list[Figure]:
    rate = runs.rate(min(runs.highest_of(OURS) / 2, LONG_RUN_MESSAGES_MAX))
    seconds = SMOKE_LONG_RUN_SECONDS if runs.options.smoke else runs.options.long_minutes * 60
    lengths = {**runs.lengths(seconds, 30), "testDurationSeconds": seconds}
    result, = runs.ours("long-run", "aims/long-run.yaml", {"producerRate": rate, **lengths}, 1,
                        server_config(RETENTION_AT_ONCE))
    held = doubts([result])
    # A figure of medians says nothing of stalls.
    whole = " and ".join(f"{name} {number(result[f'aggregatedPublishLatency{field}'])} ms"
                         for name, field in (("p99", "99pct"), ("longest", "Max")))
    remark = "; ".join(filter(None, (f"{number(seconds / 60)} minutes at {number(rate * MESSAGE_BYTES / 1e6)} MB/s",
                                     f"{whole} in all of it", held)))
    return [Figure("publish p99 of the last sixth of a long run / of the first", [growth(ends(stalls_filled(result["publishLatency99pct"]), 6))],
                   at_most=1.1, remark=remark)]


def memory(runs: Runs) -> list[Figure]:
    if not runs.peaks:
        runs.ours("memory", PART1_50, {"producerRate": runs.rate(messages(400))})
    settings = runs.call("memory/settings", ["config"], SMOKE_SECONDS)
    bound = INDEX_CACHE_BYTES + sum(setting(settings, name) for name in BOUNDS)
    peak, run = max(runs.peaks)
    what = f"highest peak memory of our server, its caches of {number(bound / 1e6)} MB and {number(BESIDE_BOUNDS / 1e6)}"
    return [Figure(what, [peak / 1e6], at_most=(bound + BESIDE_BOUNDS) / 1e6, unit="MB",
                   remark=f"the highest of {len(runs.peaks)}, in {run}")]


def setting(settings: str, name: str) -> int:
    """A number from what `mainstem config` printed."""
    line = rf"{re.escape(name)} = (\d+)$"
    # A default that depends on the machine is printed as a comment.
    found = re.search(f"^{line}", settings, re.M) or re.search(f"^# {line}", settings, re.M)
    if not found:
        raise Unmeasured(f"mainstem config prints no {name}")
    return int(found[1])


@dataclass(frozen=True)
class Aim:
    name: str
    what: str
    measure: Callable[[Runs], list[Figure]]


# Those of clusters go by what the first of them has found. Memory is last: it looks at the runs of all others.
AIMS = (
    Aim("cost", "server CPU per GB at 20 MB/s, to Kafka's", cost),
    Aim("producers", "server CPU per GB with 50 + 50 clients, to 4 + 4", producers),
    Aim("streams", "server CPU per GB and publish p99 with 2000 streams, to 1", streams),
    Aim("core", "the highest rate on one processor, to Kafka's: plain, with keys, with TLS", core),
    Aim("latency", "end-to-end p99 and p99.9 at half of Kafka's highest rate, to Kafka's", latency),
    Aim("small-batches", "appends of one record a second, on one processor", small_batches),
    Aim("drive", "throughput of the log alone, to fio's", drive),
    Aim("device-bytes", "bytes that the device writes for a byte published", device_bytes),
    Aim("retention", "publish p99 after deletion began, to before", retention),
    Aim("backlog", "drain rate of a backlog larger than the memory, to Kafka's; publish p99 meanwhile", backlog),
    Aim("long-run", "publish p99 of the last sixth of an hour, to the first", long_run),
    Aim("cluster-rate", "the highest rate of three brokers, to Kafka's", cluster.rate),
    Aim("cluster-cost", "CPU per GB and end-to-end p99 of three brokers, to Kafka's", cluster.cost),
    Aim("cluster-producers", "CPU per GB and bytes between three brokers with 50 + 50 clients", cluster.producers),
    Aim("cluster-streams", "CPU per GB of three brokers with 2000 streams, to 1", cluster.streams),
    Aim("cluster-tls", "CPU per GB with TLS between three brokers, to plain", cluster.tls),
    Aim("cluster-kill", "the gap when one of three brokers is killed, to Kafka's; p99 afterwards, to before", cluster.kill),
    Aim("memory", "peak memory of our server in all of these runs, to its settings", memory),
)
