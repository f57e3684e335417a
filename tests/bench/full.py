"""`scripts/bench-full`: its arithmetic, what it does when a run fails, and every aim once for seconds."""

import json
import os
import re
import shutil
import subprocess
import sys

from load import environment
from suite import place

SCRIPT = place.ROOT / "scripts" / "bench-full"
sys.path.insert(0, str(SCRIPT.parent))

from bench_full import aims, figures, runs  # noqa: E402

SMOKE_SECONDS = 1200
# Minutes, most of them for three JVMs to start; `make soak` runs these.
LONG = {"cluster-rate", "cluster-cost"}
# Left out of a short run: others make the same kinds of runs.
ALIKE = {"producers", "streams", "latency", "long-run", "cluster-producers", "cluster-streams", "cluster-tls"}


def check_arithmetic(_load):
    figure = figures.Figure("a", [0.3, 0.1, 0.2], at_most=0.2, unit="MB", remark="b")
    assert figure.reached and figure.limit == "<= 0.2 MB" and figure.measured == "0.2 (0.1..0.3) MB; b", figure
    assert not figures.Figure("a", [0.3, 0.3], at_most=0.2).reached, "more than the most"
    assert figures.Figure("a", [2], at_least=2).reached, "just enough"
    assert not figures.Figure("a", [1.9], at_least=2).reached, "less than the least"
    outcomes = [figures.Outcome("x", [figure]), figures.Outcome("y", problem="it\nfailed")]
    rows = figures.table(outcomes).splitlines()
    assert rows[2:] == ["| x | a <= 0.2 MB | 0.2 (0.1..0.3) MB; b | yes |", "| y |  | not measured: it failed | - |"], rows

    series = [1, 2, 3, 4, 5, 6, 7]
    assert figures.around(series, 1, 2.5, 4.5) == ([1, 2], [3, 4, 5]), "in the middle"
    assert figures.around(series, 10, 20, 40) == ([1, 2], [3, 4]), "samples of ten seconds"
    assert figures.around(series, 1, 0.1, 0.2) == ([1], [2]), "one sample each at least"
    assert figures.around(series, 1, 50, 60) == (series[:6], [7]), "behind the end"
    assert figures.ends(series, 3) == ([1, 2], [6, 7]), "thirds"
    assert figures.ends([1, 2], 6) == ([1], [2]), "fewer samples than parts"
    assert figures.growth(([1, 2, 9], [3, 4])) == 1.75, "the medians"
    assert figures.stalls_filled([10, 0, 0, 3000, 10]) == [10, 3000, 3000, 3000, 10], "who was not answered waited"
    assert figures.deleted({"bench": {"deletedMessages": 0}}) == 0, "nothing"
    for of in (lambda: figures.ends([1], 2), lambda: figures.around([1], 1, 0, 1), lambda: figures.quotient(1, 0),
               lambda: figures.stalls_filled([1, 0]), lambda: figures.deleted({"bench": {}}),
               lambda: aims.share_of_fio("mainstem / nothing"), lambda: aims.setting("a = 1\n", "b")):
        try:
            raise AssertionError(f"{of()} was measured")
        except figures.Unmeasured:
            pass

    run = {"loadCpuSeconds": 57, "seconds": 10, "environment": {"loadCpus": "1-3,5,8-9", "cpus": 16}}
    assert figures.load_processors({"bench": run}) == 6 and "95% of" in figures.load_full([{"bench": run}]), "a full load"
    run["environment"]["loadCpus"] = ""
    assert figures.load_processors({"bench": run}) == 16 and not figures.load_full([{"bench": run}]), "all processors"

    killed = {"publishLatency99pct": [1, 1, *[900] * 11, 3, 4], "bench": {"killedAfter": 2.4, "sampleSeconds": 1}}
    assert figures.after_kill(killed) == ([1, 1], [3, 4]), "whole samples"
    between = {"bench": {"server": {"betweenBytes": 21}, "publishedBytes": 10, "publishedBatchBytes": 14}}
    assert figures.between_per_byte(between) == 2.1, "for each byte"
    assert round(figures.between_per_batch_byte(between), 9) == 1.5, "for each byte of the batches"
    moved = {"publishedMessages": 1000, "consumedMessages": 1960, "groups": 2, "seconds": 10, "sampleSeconds": 1,
             "producerRate": 100, "contender": "x"}
    assert figures.messages_moved_per_second({"bench": moved}) == 98 and figures.holds({"bench": moved}), "the slower of both"
    assert figures.not_held([{"bench": moved}]) == "", "just held"
    moved["consumedMessages"] = 1940
    assert figures.not_held([{"bench": moved}]) == "x moved 97 of 100 messages/s", "received too late"
    assert figures.messages_moved_per_second({"bench": {**moved, "groups": 0}}) == 100, "without consumers"
    withheld = [{"bench": {**moved, "stolen": shares}} for shares in ([0, 0.03], [0.2, 0.1], [])]
    assert figures.doubts(withheld[:1]) == \
        "x moved 97 of 100 messages/s; a hypervisor withheld 2% of the processors' time in one of the runs", "both"
    assert "withheld 15%" in figures.doubts(withheld), "of the worst run"
    assert figures.stolen([0.009]) == figures.stolen([]) == "" == figures.stolen([0, 0]), "nothing worth a word"
    search = {"bench": moved, "publishRate": [9, 1, 6, 7, 5, 1], "consumeRate": [9, 1, 5, 6, 5, 9]}
    assert figures.best_seconds(search, 3) == 16 / 3, "three seconds of both"
    assert figures.best_seconds(search, 60) == 29 / 6, "of a short run all"

    # 126 records of 1024 + 11 bytes fill a batch.
    assert round(figures.batch_bytes_per_byte(1024, 131072) * 1024 * 126) == 126 * 1035 + 61, "full batches"
    assert figures.batch_bytes_per_byte(1024, 1) == (1035 + 61) / 1024, "batches of one"
    assert aims.share_of_fio("1 2 fio\nmainstem / fio: 0.85 of the throughput, 1.21 of the p99\n") == 0.85, "bench-store"
    assert aims.setting("# b = 2\na.b = 12\nb = 3\n", "b") == 3, "a setting"
    assert aims.setting("# a.b = 12\n# b = 2\nc = 3\n", "b") == 2, "the default of this machine"
    text = runs.changed("name: a\ntopicConfig:\n  x.y: 1\nn: 1\n", {"x.y": 2, "name": "b", "new": [3]})
    assert text == "name: b\ntopicConfig:\n  x.y: 2\nn: 1\nnew: [3]\n", text
    assert runs.without_round("core/highest-rate/round-2-at-109916-kafka") == "core-highest-rate", "one of several tries"
    assert runs.without_round("streams/2000-round-1") == "streams-2000", "one of several rounds"
    assert runs.without_round("highest-rate/search") == "highest-rate-search", "no round"
    return "holds"


def check_failures(load):
    """Of the runs at lower and lower rates only those may fail whose consumers were too far behind."""
    class Fake(runs.Runs):
        def at_rate(self, name, workload, contender, rate):
            if rate > 80:
                raise figures.Unmeasured(self.failure)
            return {"bench": {"publishedMessages": rate, "groups": 0, "seconds": 1, "producerRate": rate}}

    fake = Fake(runs.Options(place.MAINSTEM, load.program, load.folder("bench-full failures")))
    fake.failure = "t-0: fetching failed: OFFSET_OUT_OF_RANGE"
    assert fake.first_held("x", "w", "mainstem", [90, 80, 70])["bench"]["producerRate"] == 80, "the next lower one"
    for failure in ("t-0: 5 acknowledged records were never received, the first at offset 3",
                    "t-0: fetching failed: OFFSET_OUT_OF_RANGE\nthe server has ended (signal: 9)"):
        fake.failure = failure
        try:
            fake.first_held("x", "w", "mainstem", [90, 80, 70])
        except figures.Unmeasured as error:
            assert failure in str(error), error
        else:
            raise AssertionError(f"passed over: {failure}")

    class Falling(Fake):
        def at_rate(self, name, workload, contender, rate):
            self.shown.append(rate)
            published = min(rate, 75)
            return {"bench": {"publishedMessages": published, "groups": 0, "seconds": 1, "producerRate": rate}}

    class Late(Fake):
        """Moves 30 more than it is asked for, at most 75."""
        def at_rate(self, name, workload, contender, rate):
            self.shown.append(rate)
            return {"bench": {"publishedMessages": min(rate + 30, 75), "groups": 0, "seconds": 1, "producerRate": rate}}

    late, rates = Late(fake.options), [40, 30]
    found = late.first_held("x", "w", "mainstem", rates)
    assert figures.messages_held_per_second(found) == 70 and late.shown == [70] and rates == [70, 63, 56, 40, 30], (found, late.shown, rates)
    late, rates = Late(fake.options), [60, 50]
    assert late.first_held("x", "w", "mainstem", rates)["bench"]["producerRate"] == 75 and late.shown == [75], late.shown
    class Burst(Fake):
        """Moves 75 if it is asked for 40 at most, else 45."""
        def at_rate(self, name, workload, contender, rate):
            self.shown.append(rate)
            asked.append(rate)
            return {"bench": {"publishedMessages": 75 if rate <= 40 else 45, "groups": 0, "seconds": 1, "producerRate": rate}}

    asked, burst, rates = [], Burst(fake.options), [50, 40, 30]
    burst.shown = ["other"]
    found = burst.first_held("x", "w", "mainstem", rates)
    assert figures.messages_held_per_second(found) == 40 and burst.shown == ["other", 40] and rates == [40, 30], (burst.shown, rates)
    assert asked == [50, 40], f"what was not held is not asked for again: {asked}"
    asked, burst.shown, rates = [], ["other"], [40, 30]
    found = burst.first_held("x", "w", "mainstem", rates)
    assert figures.messages_held_per_second(found) == 40 and burst.shown == ["other", 40] and rates == [40, 30], (burst.shown, rates)
    assert asked == [40, 75, 67, 60], asked
    late, rates = Late(fake.options), [72]
    assert figures.messages_held_per_second(late.first_held("x", "w", "mainstem", rates)) == 72, "what is moved beyond is not held"

    falling = Falling(fake.options)
    falling.shown = ["other"]
    falling.first_held("x", "w", "mainstem", [90, 80, 75])
    assert falling.shown == ["other", 75], f"rates that are not held are shown: {falling.shown}"

    comparison = fake.options.output / "comparison.json"
    fake.note_peaks(comparison, "none")
    comparison.write_text(json.dumps({"servers": [
        {"contender": "mainstem-tls", "round": 2, "peakMemoryBytes": 7}, {"contender": "kafka", "round": 1, "peakMemoryBytes": 9},
        {"contender": "mainstem", "round": 1, "peakMemoryBytes": None}]}))
    fake.note_peaks(comparison, "a")
    assert fake.peaks == [(7, "a, mainstem-tls in round 2")], fake.peaks
    return "only what was deleted is passed over"


def check_constants(_load):
    """What is bounded in the server's source and by no setting."""
    definition = re.compile(r"^const INDEX_CACHE_BYTES: usize = (\d+) \* 1024 \* 1024;", re.M)
    found = [mebibytes for source in sorted((place.ROOT / "crates").rglob("*.rs"))
             for mebibytes in definition.findall(source.read_text())]
    assert [int(mebibytes) << 20 for mebibytes in found] == [aims.INDEX_CACHE_BYTES], \
        f"the server's INDEX_CACHE_BYTES is {found} MiB, not that of aims.py"
    return f"{found[0]} MiB for indexes"


def bench_full(load, name, *arguments, server=None):
    """Runs the script; returns its exit code, what it printed, and its directory."""
    output = load.folder(name) / "out"
    given = {**environment(), "MAINSTEM_BIN": str(server or place.MAINSTEM), "MAINSTEM_BENCH_BIN": str(load.program)}
    with open(output.parent / "output", "w+") as log:
        process = subprocess.Popen([SCRIPT, "--smoke", "--output", output, *arguments], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, env=given)
        try:
            process.wait()
        finally:
            # Also when the case's limit is over: it stops what it has started.
            if process.poll() is None:
                process.terminate()
                process.wait()
        log.seek(0)
        return process.returncode, log.read(), output


def fails(load):
    """A server that ends at once: said with its reason, and the exit code is 1."""
    broken = load.folder("bench-full-broken") / "mainstem"
    broken.write_text("#!/bin/sh\necho it is broken\nexit 3\n")
    broken.chmod(0o755)
    code, printed, output = bench_full(load, "bench-full fails", "--only", "small-batches,long-run", server=broken)
    assert code == 1, f"exit code {code}: {printed}"
    assert "bench-full: not measured: small-batches, long-run" in printed and "it is broken" in printed, printed
    written = json.loads((output / "aims.json").read_text())["aims"]
    assert [aim["name"] for aim in written] == ["small-batches", "long-run"], written
    assert all(aim["problem"] and not aim["figures"] for aim in written), written
    return "said for both aims"


def smoke(load):
    left_out = LONG | ALIKE if load.short else LONG
    names = [aim.name for aim in aims.AIMS if aim.name not in left_out]
    note = ""
    if not shutil.which("fio"):
        names.remove("drive")
        note = "; without drive: no fio here"
    code, printed, output = bench_full(load, "bench-full", "--only", ",".join(names))
    assert code == 0, f"exit code {code}: {printed[-2000:]}"
    written = json.loads((output / "aims.json").read_text())["aims"]
    assert [aim["name"] for aim in written] == names, f"aims {[aim['name'] for aim in written]}"
    shown = (output / "aims.md").read_text()
    assert shown in printed, "the table is not printed"
    for aim in written:
        assert aim["figures"] and not aim["problem"], aim
        for figure in aim["figures"]:
            assert figure["median"] > 0 and len(figure["values"]) == 1, figure
            assert f"| {aim['name']} | {figure['figure']} {figure['limit']} |" in shown, figure
    pages = [path.parent.name for path in output.glob("*/report.html")]
    # `drive` has no results of the load generator, and `memory` looks at those of the others.
    assert set(pages) == set(names) - {"drive", "memory"}, f"pages: {pages}"
    # Where a run is one of its own, its directory has that name too, and what compares it with nothing lies there.
    results = [file for file in output.rglob("round-1-*/*.json") if file.name != "comparison.json"]
    for file in results:
        result = json.loads(file.read_text())
        assert result["bench"]["verified"] or "small-batches" in result["workload"], f"{file} is not verified"
    left = [path for path in output.rglob("data") if os.path.isdir(path)]
    assert not left, f"data is left: {left}"
    return f"{sum(len(aim['figures']) for aim in written)} figures, {len(results)} runs{note}"


CASES = [("bench-full: its arithmetic", 10, check_arithmetic), ("bench-full: bounds of the server", 10, check_constants),
         ("bench-full: which failures are passed over", 10, check_failures), ("bench-full: a run that fails", 60, fails), ("bench-full: every aim, for seconds", SMOKE_SECONDS, smoke)]
