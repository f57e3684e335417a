"""Where things are: the repository, the cache that scripts/setup-tests fills, the commands in it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COMPAT = ROOT / "tests" / "compat"
CACHE = Path(
    os.environ.get("MAINSTEM_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainstem"
)
# Variables that speak to the tests and not to the server.
OWN_VARIABLES = ("MAINSTEM_BIN", "MAINSTEM_BENCH_BIN", "MAINSTEM_CACHE")
# Where cargo builds. A relative folder is one below the repository: cargo is run there.
TARGET = ROOT / (os.environ.get("CARGO_TARGET_DIR") or "target")
MAINSTEM = Path(os.environ.get("MAINSTEM_BIN") or TARGET / "release" / "mainstem")
MAINSTEM_BENCH = Path(os.environ.get("MAINSTEM_BENCH_BIN") or TARGET / "release" / "mainstem-bench")

# Small heaps and the serial collector: several JVMs share a machine of two cores with the server.
JVM = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
JVM += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]


def set_up():
    """Brings what the tests need; a moment when it is there already."""
    subprocess.run([ROOT / "scripts" / "setup-tests"], check=True)


def enter_environment():
    """Sets up, and goes on in the set-up's Python, which has confluent-kafka."""
    if sys.prefix != str(CACHE / "venv"):
        set_up()
        python = str(CACHE / "venv" / "bin" / "python3")
        os.execv(python, [python, *sys.argv])


def work_directory(suite="compat"):
    """A new folder for a run's data and logs. Not under /tmp, which may be memory."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=ROOT / ".cache"))


def worker_command(client, bootstrap):
    if client == "java":
        classpath = f"{CACHE}/java/classes:{CACHE}/java/clients/*"
        return [*JVM, "-cp", classpath, "Worker", bootstrap]
    if client == "confluent":
        return [f"{CACHE}/venv/bin/python3", COMPAT / "confluent" / "worker.py", bootstrap]
    assert client == "franz"
    return [f"{CACHE}/bin/franz", bootstrap]


def tool_command(tool, *arguments):
    """One of Kafka's console tools, by the name of its script."""
    name = {
        "kafka-topics": "TopicCommand",
        "kafka-console-producer": "ConsoleProducer",
        "kafka-console-consumer": "consumer.ConsoleConsumer",
        "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand",
        "kafka-reassign-partitions": "reassign.ReassignPartitionsCommand",
    }[tool]
    return [*JVM, "-cp", f"{CACHE}/java/tools/*", f"org.apache.kafka.tools.{name}", *arguments]
