"""The clients' own test suites: what each needs of a server, how it is run, and what came of its cases.

A suite is a function of the server's HOST:PORT and a log file that returns the outcome of each case: "pass", "fail" or
"skip".
"""

import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import xml.etree.ElementTree

from . import place, toxiproxy

RDKAFKA = place.CACHE / "rdkafka"
KAFKA_PYTHON = place.CACHE / "kafka-python"


@dataclasses.dataclass
class Client:
    """Suites that run against one server."""

    suites: dict
    # Settings of the server, which Apache Kafka has by the same names, and what Kafka needs beside them for the same.
    settings: tuple = ()
    kafka_settings: tuple = ()
    # Where the server has to listen, if a suite has the address written into it.
    listen: str | None = None
    # What makes the suites ready to run, if that is long.
    build: object = None
    # The suites want a cluster of so many brokers, each behind a proxy.
    proxied_brokers: int = 0


def clients(records):
    """`records`: how many the exactly-once suite sends."""
    go = functools.partial(franz, records)
    return {
        "franz-go": Client({
            # Packages and patterns of tests; those of exactly-once and groups apart, for their time.
            "franz-go etl": functools.partial(go, "kgo", "-run=^(TestTxnEtl|TestGroupETL)$"),
            "franz-go kgo": functools.partial(go, "kgo", "-skip=^(TestTxnEtl|TestGroupETL)$"),
            "franz-go kadm": functools.partial(go, "kadm", "-run=."),
        }),
        "rdkafka": Client(
            # It reads records of 1970, some seconds after they were written.
            {"rdkafka": rdkafka}, ("node.id=0", "num.partitions=3", "log.retention.ms=-1"),
            # Made at the first commit, which does not wait for fifty.
            ("offsets.topic.num.partitions=1",), listen="127.0.0.1:9092", build=build_rdkafka,
        ),
        "kafka-python": Client(
            {"kafka-python": kafka_python},
            # As its own fixtures configure the server that they start.
            (
                "node.id=0", "num.partitions=4", "group.min.session.timeout.ms=1000",
                "group.initial.rebalance.delay.ms=0",
            ),
        ),
        "sarama": Client({"sarama": sarama}, ("auto.create.topics.enable=false",), proxied_brokers=len(toxiproxy.PORTS)),
    }


def franz(records, package, pattern, bootstrap, log):
    package = f"github.com/twmb/franz-go/pkg/{package}"
    execute(["go", "test", package, pattern, "-count=1", "-json", "-timeout", f"{max(400, records // 200)}s"], log, place.COMPAT / "franz", {
        "KGO_SEEDS": bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(records), "KGO_TEST_UNSAFE": "1",
        "KGO_TEST_MAX_TOPIC_PARTS": "11",
    })
    return go_outcomes(log)


def fetch_sarama():
    """Fetches sarama with its tests, and builds the proxy that they want."""
    # The second command compiles the tests, since what they alone need is in no list of the module's own.
    for command in (["go", "mod", "download"],
                    ["go", "test", "-tags=functional", "-c", "-o", os.devnull, "github.com/IBM/sarama"],
                    ["go", "build", "-o", place.CACHE / "bin" / "toxiproxy", "github.com/Shopify/toxiproxy/v2/cmd/server"]):
        subprocess.run(command, cwd=place.COMPAT / "sarama", check=True)


def sarama(_, log):
    command = ["go", "test", "-tags=functional", "github.com/IBM/sarama", "-run=^TestFunc", "-count=1", "-json", "-timeout=900s"]
    execute(command, log, place.COMPAT / "sarama", {
        "TOXIPROXY_ADDR": f"http://{toxiproxy.CONTROL}", "KAFKA_VERSION": "4.1.0",
    })
    return go_outcomes(log)


def go_outcomes(log):
    """What `go test -json` printed, case by case."""
    outcomes = {}
    for line in log.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("Test") and event.get("Action") in ("pass", "fail", "skip"):
            outcomes[event["Test"]] = event["Action"]
    return outcomes


def build_rdkafka(log):
    """Builds librdkafka too, which takes minutes the first time."""
    assert cargo_test(log, "--no-run") == 0, log.read_text()[-600:]


def rdkafka(bootstrap, log):
    cargo_test(log, "--no-fail-fast", KAFKA_HOST=bootstrap)
    return rust_outcomes(log.read_text())


def cargo_test(log, *arguments, **environment):
    command = ["cargo", "test", "--offline", "--locked", "--lib", "--tests", *arguments]
    command += ["--manifest-path", RDKAFKA / "source" / "Cargo.toml", "--target-dir", RDKAFKA / "target"]
    # In the repository for its toolchain; the log of librdkafka would tear the lines of the outcomes.
    return execute(command, log, place.ROOT, {"RUST_LOG": "off", "CARGO_PROFILE_DEV_DEBUG": "0", **environment})


def rust_outcomes(output):
    """What `cargo test` printed, case by case, each with the program that it is in."""
    words = {"ok": "pass", "FAILED": "fail", "ignored": "skip"}
    program, outcomes = None, {}
    for line in output.splitlines():
        if found := re.match(r" +Running (?:unittests )?(?:src|tests)/(\w+)\.rs ", line):
            program = found[1]
        elif found := re.match(r"test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", line):
            outcomes[f"{program}::{found[1]}"] = words[found[2]]
    # A program that died, or a line that was torn, would leave cases out.
    for said, word in (("passed", "pass"), ("failed", "fail"), ("ignored", "skip")):
        counted = sum(int(count) for count in re.findall(rf"^test result: .*?(\d+) {said}", output, re.MULTILINE))
        listed = sum(outcome == word for outcome in outcomes.values())
        assert counted == listed, f"{counted} {said} by its own count, {listed} by name"
    begun, ended = (len(re.findall(start, output, re.MULTILINE)) for start in ("^ +Running ", "^test result: "))
    assert begun == ended, f"{begun - ended} of {begun} programs died"
    return outcomes


def kafka_python(bootstrap, log):
    outcomes, again = pytest(bootstrap, log, ["test/integration"])
    for turn in range(5):
        if not again:
            break
        repeated, again = pytest(bootstrap, log.with_suffix(f".again-{turn}.log"), again)
        outcomes.update(repeated)
    return outcomes


def pytest(bootstrap, log, what):
    """The outcomes of kafka-python's cases, and those to run again: they failed, and the client forgot a subscription."""
    results = log.with_suffix(".xml")
    command = [KAFKA_PYTHON / "venv" / "bin" / "python3", "-m", "pytest", *what, "-p", "no:cacheprovider", "-p", "forgotten"]
    execute([*command, f"--junitxml={results}"], log, KAFKA_PYTHON / "source", {
        # The tests choose by the version what to expect. KAFKA_ROOT only has to be there: the server runs already.
        "KAFKA_VERSION": "4.3.1", "KAFKA_URI": f"kafka://{bootstrap}", "KAFKA_ROOT": str(KAFKA_PYTHON),
        "PYTHONPATH": str(place.COMPAT / "kafka-python"), "PYTHONDONTWRITEBYTECODE": "1",
    })
    outcomes, again = {}, []
    for case in xml.etree.ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname').removeprefix('test.integration.')}::{case.get('name')}"
        kinds = {part.tag for part in case}
        outcomes[name] = "fail" if kinds & {"failure", "error"} else "skip" if "skipped" in kinds else "pass"
        forgotten = case.find("properties/property[@name='forgotten']")
        if outcomes[name] == "fail" and forgotten is not None:
            again.append(forgotten.get("value"))
    return outcomes, again


def execute(command, log, directory, environment):
    """Runs it with its output in the log; its exit code. None of its processes are left."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
