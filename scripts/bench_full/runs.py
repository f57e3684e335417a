"""Runs workloads through `mainstem-bench compare`, with copies of their files, and reads what comes of them."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .figures import Result, Unmeasured, best_seconds, holds, makes_up, median_held, messages_moved_per_second

ROOT = Path(__file__).resolve().parents[2]
# Where cargo builds.
TARGET = ROOT / (os.environ.get("CARGO_TARGET_DIR") or "target")
WORKLOADS = ROOT / "workloads"
PART1_4, PART1_50 = "small/part1-4-producers.yaml", "small/part1-50-producers.yaml"
OURS, KAFKA = "mainstem", "kafka"
# Three brokers each.
OURS_3, KAFKA_3 = f"{OURS}-3", f"{KAFKA}-3"
CLUSTER_HEAP = "-Xms1g -Xmx1g"
# Kafka's compiler needs so long; a server of ours needs only its first segments.
WARM_UP_SECONDS, WARM_UP_SECONDS_OURS = 20, 6
# Of a smoke test: it shows that everything can be run, not how fast.
SMOKE_SECONDS, SMOKE_WARM_UP_SECONDS, SMOKE_RATE = 2, 1, 2000
# Kafka is up sooner with the quick compiler alone.
SMOKE_HEAP = "-Xms256m -Xmx512m -XX:TieredStopAtLevel=1"
# Of what a run moved that makes up for its warm-up, it may hold all, or a part.
RAISED = (1, 0.9, 0.8)
# A turn that takes so much longer than it should hangs.
PATIENCE, PATIENCE_SECONDS = 4, 240
STOP_SECONDS = 90
LOG_LINES = 12

Changes = Mapping[str, object]


@dataclass
class Options:
    """What was asked for."""

    mainstem: Path
    bench: Path
    output: Path
    rounds: int = 3
    seconds: int = 20
    long_minutes: float = 60
    smoke: bool = False


@dataclass
class Runs:
    """Runs what the aims ask for, and keeps what one aim found for another."""

    options: Options
    # Peak memory of each server of ours, with the name of its run.
    peaks: list[tuple[int, str]] = field(default_factory=list)
    # Messages a second in the shape of part1, by contender.
    highest: dict[str, float] = field(default_factory=dict)
    # Files with the results of the aim that is being measured, for its page.
    shown: list[Path] = field(default_factory=list)
    # What fio got of the device before the first run.
    device_limits: list[Result] | None = None

    @property
    def rounds(self) -> range:
        return range(1, self.options.rounds + 1)

    def lengths(self, seconds: float, warm_up: float) -> Changes:
        if self.options.smoke:
            seconds, warm_up = SMOKE_SECONDS, SMOKE_WARM_UP_SECONDS
        return {"testDurationSeconds": seconds, "warmupDurationSeconds": warm_up}

    def rate(self, messages: float) -> int:
        return int(min(messages, SMOKE_RATE) if self.options.smoke else messages)

    def ours(self, name: str, workload: str, changes: Changes, rounds: int = 1, more: Sequence[str] = (),
             contender: str = OURS) -> list[Result]:
        """Runs of our server alone."""
        lengths = self.lengths(self.options.seconds, WARM_UP_SECONDS_OURS)
        return self.compare(name, workload, {**lengths, **changes}, (contender,), rounds, more)[0]

    def versus(self, name: str, workload: str, changes: Changes, contenders: Sequence[str] = (OURS, KAFKA),
               more: Sequence[str] = (), programs: Path | None = None, spare_seconds: float = 0) -> list[list[Result]]:
        """Runs of our server and Kafka in turns, by contender and round."""
        lengths = self.lengths(self.options.seconds, WARM_UP_SECONDS)
        return self.compare(name, workload, {**lengths, **changes}, contenders, self.options.rounds, more, programs,
                            spare_seconds)

    def highest_of(self, contender: str) -> float:
        """The highest rate that a contender holds in the shape of part1, looked for unless it is known."""
        if contender not in self.highest:
            found, = self.held("highest-rate", "aims/highest-rate.yaml", (contender,), rounds=1)
            self.highest[contender] = median_held(found)
        return self.highest[contender]

    def held(self, name: str, workload: str, contenders: Sequence[str], rounds: int) -> list[list[Result]]:
        """Runs at the highest rate that each contender holds, by contender and round.

        What a run reached that looked for the rate is a guess: each contender is asked for less and less of it until it keeps
        up, then for what it moved if that was more, and in the next round for that rate again.
        """
        # From 10,000 a second the rate is doubled every three seconds: up in the warm-up, the best of what follows counts.
        lengths = self.lengths(2 * self.options.seconds, WARM_UP_SECONDS)
        searches = self.compare(f"{name}/search", workload, lengths, contenders, 1, server_config(RETENTION_AT_ONCE))
        best = [self.rate(best_seconds(found, BEST_SECONDS)) for found, in searches]
        left = [[max(1, int(share * rate)) for share in SHARES] for rate in best]
        results: list[list[Result]] = [[] for _ in contenders]
        for turn in range(1, rounds + 1):
            for contender, rates, of in zip(contenders, left, results, strict=True):
                of.append(self.first_held(f"{name}/round-{turn}", workload, contender, rates))
        return results

    def first_held(self, name: str, workload: str, contender: str, rates: list[int]) -> Result:
        """A run at the first of these rates that is held, else at the last; those that are not are removed, and not shown.

        While a run that holds its rate makes up for its warm-up, what it moved is put before the others, and parts of that.
        """
        below: Result | None = None
        not_held = math.inf
        while True:
            if below and rates[0] <= below["bench"]["producerRate"]:
                return below
            try:
                result = self.at_rate(f"{name}-at-{rates[0]}", workload, contender, rates[0])
                if holds(result):
                    if below:
                        del self.shown[-2:-1]
                    moved = self.rate(messages_moved_per_second(result))
                    raised = [rate for rate in (int(share * moved) for share in RAISED) if rates[0] < rate < not_held]
                    if not makes_up(result) or not raised:
                        return result
                    below = result
                    rates[:0] = raised
                    continue
                if len(rates) == 1:
                    return result
                del self.shown[-1:]
            except Unmeasured as error:
                # Consumers that are too far behind find what they want deleted. Nothing else may go wrong.
                if len(rates) == 1 or DELETED not in str(error) or ENDED in str(error):
                    raise
                print(f"bench-full: {name}: {contender} at {rates[0]} messages/s: {error}", file=sys.stderr, flush=True)
            not_held = rates.pop(0)

    def at_rate(self, name: str, workload: str, contender: str, rate: int) -> Result:
        changes = {**self.lengths(self.options.seconds, WARM_UP_SECONDS), "producerRate": rate}
        (result,), = self.compare(f"{name}-{contender}", workload, changes, (contender,), 1, server_config(RETENTION_AT_ONCE))
        return result

    def compare(self, name: str, workload: str, changes: Changes, contenders: Sequence[str], rounds: int,
                more: Sequence[str] = (), programs: Path | None = None, spare_seconds: float = 0) -> list[list[Result]]:
        """Runs a changed copy of a workload, and returns the results by contender and round.

        `programs` is a directory with other programs for `mainstem` and `java`; `spare_seconds` is what a turn may take
        beyond its lengths.
        """
        output = self.options.output / name
        output.mkdir(parents=True)
        file = output / f"{output.name}.yaml"
        file.write_text(changed((WORKLOADS / workload).read_text(), {**changes, "name": without_round(name)}))
        command = [self.options.bench, "compare", file, "--contenders", ",".join(contenders), "--rounds", rounds]
        measures_device = self.device_limits is None and not self.options.smoke
        command += ["--fio", str(measures_device).lower(), "--mainstem", programs / "mainstem" if programs else self.options.mainstem]
        clusters = all(map(is_cluster, contenders))
        command += ["--output-dir", output, *(() if clusters else pinning()), *more]
        if "--kafka-heap" not in more and (self.options.smoke or clusters):
            command += ["--kafka-heap", SMOKE_HEAP if self.options.smoke else CLUSTER_HEAP]
        turn = sum(float(str(changes[key])) for key in ("testDurationSeconds", "warmupDurationSeconds")) + spare_seconds
        limit = rounds * len(contenders) * (PATIENCE * turn + PATIENCE_SECONDS)
        try:
            run(command, output / "output.log", limit, environment("MAINSTEM_CACHE", programs))
        finally:
            # Also where the load failed: it may have been the heaviest.
            self.note_peaks(output / "comparison.json", name)
        results = self.read(output, name)
        by_contender = [sorted((one for one in results if one["bench"]["contender"] == contender),
                               key=lambda one: one["bench"]["round"]) for contender in contenders]
        if any(len(of) != rounds for of in by_contender):
            raise Unmeasured(f"{name}: results are missing in {output}")
        return by_contender

    def read(self, output: Path, name: str) -> list[Result]:
        written = json.loads((output / "comparison.json").read_text())
        self.device_limits = self.device_limits or written["deviceLimits"]
        comparison, = written["comparisons"]
        files = [output / result for result in comparison["files"]]
        results = [json.loads(file.read_text()) for file in files]
        for result in results:
            bench = result["bench"]
            who = f"{name}, {bench['contender']} in round {bench['round']}"
            if bench["publishErrors"] != 0:
                raise Unmeasured(f"{who}: {bench['publishErrors']} messages were refused")
            # Without consumers there is nobody to verify it.
            if not bench["verified"] and result["consumersPerTopic"] * bench["groups"] > 0:
                raise Unmeasured(f"{who}: it is not verified that every acknowledged message was received")
            if bench["contender"].startswith(OURS) and "server" not in bench and "killedAfter" not in bench:
                raise Unmeasured(f"{who}: the server's memory is not known")
        self.shown += files
        return results

    def write_page(self, aim: str, note: str) -> None:
        """One page with all that was measured for an aim, those of `drive` excepted, where no load generator runs."""
        files, self.shown = self.shown, []
        if files:
            page = self.options.output / aim / "report.html"
            page.parent.mkdir(exist_ok=True)
            command = [self.options.bench, "report", *files, "--output", page, "--title", aim, "--note", note]
            run(command, page.with_suffix(".log"), PATIENCE_SECONDS, environment())

    def note_peaks(self, comparison: Path, name: str) -> None:
        """The peak memory of our servers in a comparison, if there was one."""
        try:
            servers = json.loads(comparison.read_text())["servers"]
        except (OSError, ValueError):
            return
        for server in servers:
            contender = server["contender"]
            if contender.startswith(OURS) and not is_cluster(contender) and server["peakMemoryBytes"] is not None:
                self.peaks.append((server["peakMemoryBytes"], f"{name}, {contender} in round {server['round']}"))

    def call(self, name: str, arguments: Sequence[object], seconds: float) -> str:
        """Runs `mainstem` with a command of its own, and returns what it printed."""
        log = self.options.output / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        run([self.options.mainstem, *arguments], log, PATIENCE * seconds + PATIENCE_SECONDS, environment())
        return log.read_text()


# Deletion has to go on all the time, not in strokes minutes apart.
RETENTION_AT_ONCE = "log.retention.check.interval.ms=1000"
# What a consumer is told that is too far behind.
DELETED = "OFFSET_OUT_OF_RANGE"
# What `mainstem-bench compare` says of a server that is no more.
ENDED = "the server has ended"
# What is tried of the rate that a search reached in its best seconds.
SHARES, BEST_SECONDS = (0.9, 0.8, 0.7, 0.6, 0.5), 3


def server_config(*settings: str) -> list[str]:
    return [word for text in settings for word in ("--server-config", text)]


def changed(workload: str, changes: Changes) -> str:
    """A workload's text with other values; what it does not have is added."""
    for key, value in changes.items():
        line = f"{key}: {value}"
        workload, count = re.subn(rf"^( *){re.escape(key)}:.*$", lambda found: found[1] + line, workload, flags=re.M)
        if count == 0:
            workload += f"{line}\n"
    return workload


def driver(name: str) -> str:
    return str(WORKLOADS / "drivers" / f"{name}.yaml")


def without_round(name: str) -> str:
    """A workload's name for a run: runs that differ by round, or by the rate that was tried in it, are of the same workload."""
    return re.sub(r"[/-]round-\d+.*", "", name).replace("/", "-")


def is_cluster(contender: str) -> bool:
    return contender.startswith((OURS_3, KAFKA_3))


def pinning() -> list[str]:
    """A processor for the server and the others for the load, where there are two."""
    count = os.cpu_count() or 1
    if count < 2:
        return []
    load = f"1-{count - 1}" if count > 2 else "1"
    return ["--server-cpus", os.environ.get("SERVER_CPUS") or "0", "--load-cpus", os.environ.get("LOAD_CPUS") or load]


def environment(kept_too: str = "", programs: Path | None = None) -> dict[str, str]:
    """Without the variables that are ours: the server takes every MAINSTEM_ variable for a setting."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_") or name == kept_too}
    if programs:
        kept["PATH"] = f"{programs}{os.pathsep}{kept.get('PATH', '')}"
    return kept


def run(command: Sequence[object], log: Path, seconds: float, env: Mapping[str, str]) -> None:
    """Runs a command to its end, its output in `log`; it is stopped when it takes longer or we are."""
    words = [str(word) for word in command]
    with open(log, "w") as output:
        try:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env)
        except OSError as error:
            raise Unmeasured(f"{words[0]} cannot be run: {error.strerror}") from error
        try:
            code = process.wait(seconds)
        except BaseException as error:
            stop(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Unmeasured(f"{' '.join(words[:2])} was not done after {seconds:.0f} s, see {log}") from error
            raise
    if code != 0:
        last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:])
        raise Unmeasured(f"{' '.join(words[:2])} failed with exit code {code}, see {log}\n{last}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asks first: mainstem-bench stops the servers that it has started."""
    process.send_signal(signal.SIGTERM)
    until = time.monotonic() + STOP_SECONDS
    while process.poll() is None:
        if time.monotonic() > until:
            process.kill()
        time.sleep(0.1)
