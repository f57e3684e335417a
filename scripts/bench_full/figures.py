"""What was measured beside what was aimed at, and the arithmetic between the two. Reads and writes no files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# A result of mainstem-bench as its JSON has it, or a part of one.
Result = dict[str, Any]

# What a record takes in a batch beyond its value of 1 KiB, without a key: length, attributes, time, offset, sizes.
RECORD_BYTES = 11
# What a batch takes beyond its records.
BATCH_BYTES = 61
# From this share of its processors on the load generator may have been what held a run back.
LOAD_FULL = 0.9
# Below this share of the rate asked for it is said that the rate was not held.
RATE_HELD = 0.98
# From this many times the rate asked for on, a run makes up for its warm-up.
MAKES_UP = 1.1
# So long after a broker is killed, the others serve as before.
RECOVERED_SECONDS = 10
# From this share of the processors' time on it is said that a hypervisor withheld it.
STOLEN_SAID = 0.01


class Unmeasured(Exception):
    """Something could not be run or read; the text says what."""


@dataclass(frozen=True)
class Figure:
    """One measured figure, a value for each round, and the limit that its median is to keep."""

    what: str
    values: Sequence[float]
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""
    remark: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def reached(self) -> bool:
        if self.at_most is not None:
            return self.median <= self.at_most
        return self.median >= (self.at_least or 0)

    @property
    def limit(self) -> str:
        sign, limit = ("<=", self.at_most) if self.at_most is not None else (">=", self.at_least or 0)
        return f"{sign} {number(limit)} {self.unit}".rstrip()

    @property
    def measured(self) -> str:
        spread = f" ({number(min(self.values))}..{number(max(self.values))})" if len(self.values) > 1 else ""
        remark = f"; {self.remark}" if self.remark else ""
        return f"{number(self.median)}{spread} {self.unit}".rstrip() + remark

    def to_json(self) -> Result:
        values = list(self.values)
        return {"figure": self.what, "limit": self.limit, "median": self.median, "lowest": min(values),
                "highest": max(values), "values": values, "unit": self.unit, "reached": self.reached,
                "remark": self.remark}


@dataclass(frozen=True)
class Outcome:
    """What came of an aim: its figures, or what kept them from being measured."""

    aim: str
    figures: Sequence[Figure] = ()
    problem: str = ""


def number(value: float) -> str:
    """To four digits, from a hundred on whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def table(outcomes: Sequence[Outcome]) -> str:
    """All outcomes as a table in Markdown."""
    rows = [("aim", "figure aimed at", "measured: median (lowest..highest)", "reached"), ("---",) * 4]
    for outcome in outcomes:
        for figure in outcome.figures:
            rows.append((outcome.aim, f"{figure.what} {figure.limit}", figure.measured, "yes" if figure.reached else "no"))
        if outcome.problem:
            rows.append((outcome.aim, "", f"not measured: {' '.join(outcome.problem.split())}", "-"))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def ratios(ours: Sequence[Result], theirs: Sequence[Result], of: Callable[[Result], float]) -> list[float]:
    """One for each round, of the runs that were side by side."""
    return [quotient(of(one), of(other)) for one, other in zip(ours, theirs, strict=True)]


def quotient(value: float, of: float) -> float:
    if of <= 0:
        raise Unmeasured(f"there is nothing to divide {value:.3g} by: the run was too short or nothing was done in it")
    return value / of


def cpu_per_gigabyte(result: Result) -> float:
    """CPU-seconds of the server for a gigabyte (10^9) published."""
    bench = result["bench"]
    if "server" not in bench:
        raise Unmeasured("the server's CPU time is not known")
    return quotient(bench["server"]["cpuSeconds"], bench["publishedBytes"] / 1e9)


def between_per_byte(result: Result) -> float:
    """Bytes that the processes of a cluster sent each other for a byte published."""
    bench = result["bench"]
    if "betweenBytes" not in bench.get("server", {}):
        raise Unmeasured("what brokers send each other is not known: is ss of iproute2 installed?")
    return quotient(bench["server"]["betweenBytes"], bench["publishedBytes"])


def between_per_batch_byte(result: Result) -> float:
    """The same for a byte of the batches that the clients sent."""
    bench = result["bench"]
    return between_per_byte(result) * quotient(bench["publishedBytes"], bench["publishedBatchBytes"])


def after_kill(result: Result) -> tuple[list[float], list[float]]:
    """The publish p99 of the samples before a broker was killed, and from ten seconds afterwards on."""
    bench = result["bench"]
    if "killedAfter" not in bench:
        raise Unmeasured("no broker was killed")
    series, length = stalls_filled(result["publishLatency99pct"]), bench["sampleSeconds"]
    before, _ = around(series, length, bench["killedAfter"], len(series) * length)
    recovered = math.ceil((bench["killedAfter"] + RECOVERED_SECONDS) / length) * length
    _, after = around(series, length, recovered, len(series) * length)
    return before, after


def messages_per_second(result: Result) -> float:
    return quotient(result["bench"]["publishedMessages"], result["bench"]["seconds"])


def messages_moved_per_second(result: Result) -> float:
    """Published, and received by every group if there are any."""
    bench = result["bench"]
    received = [bench["consumedMessages"] / bench["groups"]] if bench["groups"] else []
    return quotient(min([bench["publishedMessages"], *received]), bench["seconds"])


def messages_held_per_second(result: Result) -> float:
    """Messages a second that were published and received, of those asked for: what is moved beyond them makes up for the warm-up."""
    return min(messages_moved_per_second(result), result["bench"]["producerRate"])


def median_held(results: Sequence[Result]) -> float:
    """Messages a second of those asked for, published and received, of the run in the middle."""
    return statistics.median(map(messages_held_per_second, results))


def makes_up(result: Result) -> bool:
    """Whether much more was moved than was asked for: the contender was behind after its warm-up, and may hold more."""
    return messages_moved_per_second(result) > MAKES_UP * result["bench"]["producerRate"]


def holds(result: Result) -> bool:
    """Whether the rate asked for was published and received."""
    return messages_moved_per_second(result) >= RATE_HELD * result["bench"]["producerRate"]


def best_seconds(result: Result, seconds: float) -> float:
    """Messages a second, published and received by the one group, in the best so many seconds of a run."""
    length = max(1, round(seconds / result["bench"]["sampleSeconds"]))
    published, received = ([statistics.mean(series[at:at + length]) for at in range(max(1, len(series) - length + 1))]
                           for series in (result["publishRate"], result["consumeRate"]))
    return max(min(both) for both in zip(published, received, strict=True))


def device_bytes_per_byte(result: Result) -> float:
    """Bytes that the device wrote for a byte of published values."""
    if "device" not in result["bench"]:
        raise Unmeasured("what the device does is not known: the data is not on a block device")
    return quotient(result["bench"]["device"]["writtenBytes"], result["bench"]["publishedBytes"])


def batch_bytes_per_byte(message_bytes: int, batch_bytes_max: int) -> float:
    """Bytes of the batches for a byte of values, at the least: as if every batch were full."""
    record = message_bytes + RECORD_BYTES
    return (record + BATCH_BYTES / max(1, (batch_bytes_max - BATCH_BYTES) // record)) / message_bytes


def around(series: Sequence[float], sample_seconds: float, begin: float, end: float) -> tuple[list[float], list[float]]:
    """The samples before the second `begin`, and those from there to `end`; at least one of each.

    The one in which `begin` lies belongs to the second part.
    """
    if len(series) < 2:
        raise Unmeasured(f"a series of {len(series)} samples has no two parts")
    first = min(max(1, int(begin / sample_seconds)), len(series) - 1)
    last = max(first + 1, math.ceil(end / sample_seconds))
    return list(series[:first]), list(series[first:last])


def ends(series: Sequence[float], parts: int) -> tuple[list[float], list[float]]:
    """The first and the last of so many parts of a series; one sample each at least."""
    if len(series) < 2:
        raise Unmeasured(f"a series of {len(series)} samples has no two parts")
    count = max(1, len(series) // parts)
    return list(series[:count]), list(series[-count:])


def stalls_filled(latencies: Sequence[float]) -> list[float]:
    """A series of latencies in which a sample without any, which is 0, has that of the next: what was due then came later."""
    filled = list(latencies)
    for at in range(len(filled) - 2, -1, -1):
        filled[at] = filled[at] or filled[at + 1]
    if not filled or not filled[-1]:
        raise Unmeasured("nothing was acknowledged in the end of a run")
    return filled


def deleted(result: Result) -> int:
    """Messages that the server had deleted by the end."""
    messages = result["bench"].get("deletedMessages")
    if messages is None:
        raise Unmeasured("it is not known whether anything was deleted")
    return messages


def growth(parts: tuple[Sequence[float], Sequence[float]]) -> float:
    """What the median of the second part is of the first's."""
    before, after = parts
    return quotient(statistics.median(after), statistics.median(before))


def not_held(results: Sequence[Result]) -> str:
    """Says which runs published less than they were asked for, or received less than that."""
    behind = [f"{result['bench']['contender']} moved {number(messages_moved_per_second(result))} of "
              f"{number(result['bench']['producerRate'])} messages/s" for result in results if not holds(result)]
    return "; ".join(behind)


def stolen(shares: Sequence[float], when: str = "") -> str:
    """Says when a hypervisor withheld processors on average over these samples: latencies are then not the server's alone."""
    share = statistics.mean(shares) if shares else 0
    if share < STOLEN_SAID:
        return ""
    return f"a hypervisor withheld {share:.0%} of the processors' time{when}"


def doubts(results: Sequence[Result]) -> str:
    """What must be known of runs to trust what they measured."""
    worst = max((one["bench"].get("stolen", []) for one in results), key=lambda shares: statistics.mean(shares or [0]))
    return "; ".join(filter(None, (not_held(results), stolen(worst, " in one of the runs"))))


def load_full(results: Sequence[Result]) -> str:
    """Says when the load generator used up its processors, so that the server could have done more."""
    shares = [one["bench"]["loadCpuSeconds"] / one["bench"]["seconds"] / load_processors(one) for one in results]
    if max(shares) < LOAD_FULL:
        return ""
    return f"the load generator used {max(shares):.0%} of its processors: the server may do more"


def load_processors(result: Result) -> int:
    """How many, of a list such as 1-3,5; all where it is empty."""
    environment = result["bench"]["environment"]
    ranges = [part.split("-") for part in environment["loadCpus"].split(",") if part]
    return sum(int(one[-1]) - int(one[0]) + 1 for one in ranges) or environment["cpus"]
