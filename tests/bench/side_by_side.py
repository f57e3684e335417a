"""`mainstem-bench compare`: a server of ours and Apache Kafka, small and short, and the page that comes of it."""

import json
import shutil
import subprocess

import chart
from load import check_result, workload
from suite import place

ROUNDS = 2
CONTENDERS = ("mainstem", "kafka")
# Kafka leaves its data in the page cache: within seconds its device may see nothing to divide by.
OF_DEVICE = ("device writes per published byte", "mean size of a device write")
# What the machine did is compared with nothing.
OF_MACHINE = "processor time withheld by a hypervisor"
MEASURES = 19
# Wide: Kafka is cold, and a comparison takes too long to be repeated.
TOLERANCE = 0.25


def compare(load):
    folder = load.folder("compare")
    (folder / "small.yaml").write_text(workload(name="small", warmupDurationSeconds=1, testDurationSeconds=3))
    process = load.spawn(folder, "compare", "small.yaml", "--contenders", ",".join(CONTENDERS), "--rounds", str(ROUNDS),
                         "--mainstem", place.MAINSTEM, "--output-dir", "out", "--fio", "false", "--kafka-heap",
                         "-Xms256m -Xmx512m")
    outcome = load.end(process, folder, 150)
    outcome.succeeded()
    written = json.loads((folder / "out" / "comparison.json").read_text())
    assert written["failures"] == [] and written["rounds"] == ROUNDS, "failures or rounds"
    comparison, = written["comparisons"]
    assert [one["name"] for one in comparison["contenders"]] == list(CONTENDERS), "the contenders"
    assert comparison["unverified"] == [], f"not verified: {comparison['unverified']}"
    assert len(comparison["rows"]) == MEASURES, f"{len(comparison['rows'])} measures"
    for row in comparison["rows"]:
        first, second = row["cells"]
        of_device = row["measure"] in OF_DEVICE
        of_machine = row["measure"] == OF_MACHINE
        for cell in (first, second):
            assert of_device or len(cell["values"]) == ROUNDS, f"{row['measure']}: {cell}"
        ratio = second["ratioOfFirst"]
        assert first["ratioOfFirst"] is None, f"{row['measure']}: the first is compared with itself"
        assert of_device or bool(ratio) != of_machine, f"{row['measure']}: a ratio of {ratio}"
        if ratio:
            assert 0 <= ratio["lowest"] <= ratio["median"] <= ratio["highest"], f"{row['measure']}: {ratio}"
    shown = {row["measure"]: row["cells"][1]["ratioOfFirst"]["median"] for row in comparison["rows"]
             if row["measure"] not in (*OF_DEVICE, OF_MACHINE)}
    results = [json.loads((folder / "out" / file).read_text()) for file in comparison["files"]]
    assert len(results) == ROUNDS * len(CONTENDERS), f"{len(results)} results"
    for result in results:
        chart.draw(result)
        check_result(result, "native", tolerance=TOLERANCE)
        assert result["bench"]["server"]["cpuSeconds"] > 0, "the server's CPU time"
        withheld = result["bench"]["stolen"]
        assert len(withheld) == len(result["publishRate"]), f"a share for each sample: {withheld}"
        assert all(0 <= share < 1 for share in withheld), withheld
    left = [path.name for path in (folder / "out").iterdir() if path.name == "data"]
    assert not left, "the servers' data is left"
    assert "mainstem / kafka" in outcome.out and "Verified" in outcome.out, outcome.out
    return f"publish p99 {shown['publish latency p99']:.2f} of Kafka's, CPU {shown['server CPU per published GB']:.2f}"


def check_report(load):
    """The page of the comparison before, in a browser."""
    page, = load.directory.glob("*-compare/out/report.html")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return "SKIPPED: no chromium here; Debian: apt-get install chromium fonts-dejavu-core"
    said = []
    # The second shows that the check can fail: it breaks the page in every way that it looks for.
    for options in ([], ["--selftest"]):
        done = subprocess.run([place.ROOT / "scripts" / "check-report", *options, page], capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(options)} {done.stderr.strip()}"
        said.append(done.stdout.strip().rpartition(": ")[2])
    return "; ".join(said)


CASES = [("compare with Kafka", 160, compare), ("compare: the report is drawn", 180, check_report)]
