"""Testcontainers' own modules for Kafka, unchanged, on podman's socket for clients of Docker.

The service and what uses it are in a network of their own, where podman's bridge and the ports that it maps touch nothing of this machine.
Testcontainers' container that clears up after a test, Ryuk, is off, since no registry can be reached: what is left over is removed here.
"""

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys

from podman import KAFKA, LIMITS, SLIM, complaint
from suite import network, place
from suite.report import Skipped, until

RECORDS = 1000
CASE_SECONDS, WORKER_SECONDS = 150, 120
# The names that modules look at: the one that the service puts in front of a short name, a name of Kafka's own image that is in no
# registry here, and a tag that is no older than 7.0.0, below which the Python module does not start KRaft.
FULL, APACHE, NUMBERED = f"docker.io/library/{KAFKA}", "docker.io/apache/kafka:mainstem", "docker.io/library/mainstem:8.0.0"
PODMAN_PROGRAMS = ("/usr/lib/podman", "/usr/libexec/podman")
CONTAINERS_CONF = """[containers]
cgroups = "disabled"
default_ulimits = [{limits}]

[network]
network_backend = "netavark"
network_config_dir = "{directory}/networks"

[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Service:
    """`podman system service` with a bridge."""

    def __init__(self, podman):
        self.podman = podman
        directory = podman.directory
        self.socket, self.log_path = directory / "podman.sock", directory / "service.log"
        config = directory / "containers.conf"
        limits = ", ".join(f'"{limit}"' for limit in LIMITS if limit != "--ulimit")
        config.write_text(CONTAINERS_CONF.format(limits=limits, directory=directory))
        self.environment = {**podman.environment, "CONTAINERS_CONF": str(config)}
        self.process = self.refusal = None

    def start(self):
        """Starts it the first time. Where there can be no bridge, each case is skipped and says why."""
        if self.refusal:
            raise Skipped(self.refusal)
        if self.process is None:
            self.refusal = missing() or self._start()
            if self.refusal:
                raise Skipped(self.refusal)

    def _start(self):
        for name in (FULL, APACHE, NUMBERED):
            self.podman.ask("tag", KAFKA, name)
        command = ["unshare", "--net", sys.executable, network.__file__, shutil.which("podman"), "system", "service", "--time", "0",
                   f"unix://{self.socket}"]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        until(lambda: self.socket.exists() or self.process.poll() is not None, "podman's service", self.log)
        if self.process.poll() is not None:
            return f"podman's service ends: {complaint(self.log())}"
        tried = self.inside("podman", "run", "--rm", "--network", "podman", "--publish", "127.0.0.1:9092:9092", SLIM, "version")
        return None if tried.returncode == 0 else f"no container with a bridge: {complaint(tried.stderr)}"

    def log(self):
        return self.log_path.read_text(errors="replace")

    def inside(self, *command, more=None, seconds=WORKER_SECONDS):
        """Runs a command in the service's network."""
        within = ["nsenter", f"--net=/proc/{self.process.pid}/ns/net", "--", *command]
        return subprocess.run(within, env={**self.environment, **(more or {})}, text=True, capture_output=True, timeout=seconds,
                              check=False)

    def work(self, *command):
        """What a worker reads back, and the seconds of its container's start."""
        self.start()
        more = {
            "DOCKER_HOST": f"unix://{self.socket}", "TESTCONTAINERS_RYUK_DISABLED": "true",
            # This machine may be a container itself. The libraries would then look for podman's ports at a gateway.
            "TESTCONTAINERS_HOST_OVERRIDE": "localhost", "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
        }
        done = self.inside(*command, more=more)
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{complaint(self.log())}"
        first, *lines = done.stdout.splitlines()
        assert first.startswith("started "), first
        return lines, float(first.split()[1])

    def stop(self):
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.inside("podman", "rm", "--all", "--force", "--time", "1", seconds=60)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def missing():
    """What the service needs and is not here."""
    absent = [tool for tool in ("unshare", "nsenter", "iptables") if not shutil.which(tool)]
    for tool in ("netavark", "aardvark-dns"):
        if not any(os.access(f"{directory}/{tool}", os.X_OK) for directory in PODMAN_PROGRAMS):
            absent.append(tool)
    return f"no {', '.join(absent)}" if absent else None


def cases(podman, service, short):
    def compare(lines, seconds):
        found = collections.Counter(lines)
        expected = collections.Counter(f"record {number}" for number in range(RECORDS))
        assert found == expected, f"{found.total()} records, {len(found)} different: {list((found - expected) + (expected - found))[:5]}"
        return f"started in {seconds:.1f} s, {RECORDS} records"

    def java(kind, image=KAFKA):
        jars = place.CACHE / "java"
        classpath = f"{jars}/libraries-classes:{jars}/libraries/*"
        return lambda: compare(*service.work(*place.JVM, "-cp", classpath, "Library", kind, image, str(RECORDS)))

    def go(image):
        return lambda: compare(*service.work(str(place.CACHE / "bin" / "library"), image, str(RECORDS)))

    def python(kind, image):
        worker = place.ROOT / "tests" / "image" / "python" / "library.py"
        return lambda: compare(*service.work(f"{place.CACHE}/libraries/bin/python3", str(worker), kind, image, str(RECORDS)))

    yield "libraries: Java, KafkaContainer", CASE_SECONDS, java("apache")
    yield "libraries: Go", CASE_SECONDS, go(KAFKA)
    yield "libraries: Python", CASE_SECONDS, python("zookeeper", KAFKA)
    if short:
        return
    yield "libraries: Java, KafkaContainer, read by another container", CASE_SECONDS, java("neighbour")
    yield "libraries: Java, ConfluentKafkaContainer", CASE_SECONDS, java("confluent")
    yield "libraries: Java, the old KafkaContainer", CASE_SECONDS, java("old")
    yield "libraries: Java, the old KafkaContainer with KRaft", CASE_SECONDS, java("old-kraft", NUMBERED.rpartition("/")[2])
    yield "libraries: Go, by the name of Kafka's image", CASE_SECONDS, go(APACHE)
    yield "libraries: Python, KRaft", CASE_SECONDS, python("kraft", NUMBERED.rpartition("/")[2])
