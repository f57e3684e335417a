"""What an attack of the adversary costs: the server's memory, how long honest clients wait, what is in its log.

A `Target` is the server under attack, started anew where an attack left it dead or large. `Target.during` measures one
attack and returns a `Cost`; whether that is too much, the caller says.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import wire
from peer import Peer
from seeds import COMPACTED, TOPIC, Seeds, create
from suite.kafka import Kafka
from suite.server import Server
from volley import ANSWER_SECONDS, SILENT

HERE = Path(__file__).resolve().parent
MEGABYTE = 1 << 20
HONEST = "honest"
# What the caches may hold is no growth, and groups of one member need no time to gather.
SETTINGS = ("log.tail.cache.bytes=16777216", "log.read.cache.bytes=16777216", "group.initial.rebalance.delay.ms=0")
KAFKA_SETTINGS = ("group.initial.rebalance.delay.ms=0",)
# Honest records are of 2023, and retention may pass over them.
KEPT_SETTINGS = (("retention.ms", "-1"),)
# A batch is compacted soon after it came.
COMPACTED_SETTINGS = (("cleanup.policy", "compact"), ("segment.ms", "100"), ("min.cleanable.dirty.ratio", "0.01"))
# Kafka leaves some requests without an answer, and is not what is tested.
KAFKA_ANSWER_SECONDS = 5
ROUNDS_BEFORE, ROUNDS_AFTER = 1, 2
SETTLE_SECONDS, STEP_SECONDS = 60, 0.01
# A server of so much memory is killed before the machine has none left.
RUNAWAY_BYTES = 6 << 30
GUARD_SECONDS = 0.02
# A server that kept so much after an attack is started anew, so that the next one is measured alone.
KEPT_BYTES = 96 * MEGABYTE
GIVE_BACK_SECONDS = 0.3


def machine_seconds():
    """Processor time that all processes of the machine have had."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid):
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Prober:
    """prober.py at work."""

    def __init__(self, address, directory):
        command = [sys.executable, HERE / "prober.py", address[0], str(address[1]), HONEST]
        with open(directory / "prober.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def ask(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@dataclass
class Cost:
    """What one attack did."""

    peak_bytes: int = 0
    own_bytes: int = 0
    kept_bytes: int = 0
    wait_seconds: float = 0.0
    large_wait_seconds: float = 0.0
    others_cores: float = 0.0
    """Processors that others than the server, the honest clients and the attacker had meanwhile."""
    outcome: object = None
    problems: list = field(default_factory=list)


class Target:
    def __init__(self, directory, kafka):
        self.directory, self.kafka, self.number = directory, kafka, 0
        self.server = self.prober = self.address = self.seeds = self.process = None
        self.idle_bytes, self.log_read, self.starts = 0, 0, 0
        self.runaway = False
        self.answer_seconds = KAFKA_ANSWER_SECONDS if kafka else ANSWER_SECONDS

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """A new server, with nothing on its disk but what attacks need."""
        self.stop()
        self.starts += 1
        place = self.directory / f"server-{self.starts}"
        place.mkdir()
        self.server = Kafka(place, KAFKA_SETTINGS) if self.kafka else Server(None, place, settings=SETTINGS)
        self.server.__enter__()
        self.process = self.server.broker.process if self.kafka else self.server.process
        self.log_path, self.log_read, self.runaway = place / "server.log", 0, False
        host, _, port = self.server.bootstrap.rpartition(":")
        self.address = (host, int(port))
        with Peer(self.address) as peer:
            create(peer, HONEST, KEPT_SETTINGS)
            create(peer, TOPIC, KEPT_SETTINGS)
            create(peer, COMPACTED, COMPACTED_SETTINGS)
        self.seeds = Seeds(self.address)
        self.seeds.renew(transactions=True)
        self.prober = Prober(self.address, place)
        self.settle(5 * ROUNDS_AFTER)
        self.idle_bytes = self.memory("VmRSS")

    def stop(self):
        if self.prober is not None:
            self.prober.stop()
        if self.server is not None:
            self.server.__exit__()
            shutil.rmtree(self.directory / f"server-{self.starts}" / "data", ignore_errors=True)
        self.server = self.prober = None

    def memory(self, name):
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        for line in text.splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        # It has ended, and nobody has asked for its exit code yet.
        return 0

    def guard(self, ended):
        """Kills the server before it takes the machine's memory."""
        while not ended.wait(GUARD_SECONDS):
            if not self.kafka and self.memory("VmRSS") > RUNAWAY_BYTES:
                self.runaway = True
                self.process.kill()
                return

    def settle(self, rounds):
        """More rounds of each honest client; the longest waits since the last call."""
        waits, done = {}, {}
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            for name, said in self.prober.ask().items():
                waits[name] = max(waits.get(name, 0), said["worst"], said["waiting"])
                done[name] = done.get(name, 0) + said["rounds"]
                assert said["error"] is None, f"the {name} client failed: {said['error']}"
            if min(done.values()) >= rounds:
                return waits
            assert time.monotonic() < deadline, f"honest clients wait: rounds {done}, seconds {waits}"
            assert self.process.poll() is None, "the server ended"
            time.sleep(STEP_SECONDS)

    def own_seconds(self):
        return sum(process_seconds(pid) for pid in (self.process.pid, self.prober.process.pid, os.getpid()))

    def alive(self):
        return self.server is not None and self.process.poll() is None

    def ready(self, build):
        """Makes the frames of an attack, which asks the server; one that does not answer any more is started anew."""
        try:
            if not self.alive():
                self.start()
            build()
        except (AssertionError, OSError):
            self.start()
            build()

    def during(self, attack):
        """Runs `attack`, which says what came of it, and measures."""
        cost = Cost()
        ended = threading.Event()
        guard = threading.Thread(target=self.guard, args=(ended,))
        try:
            self.settle(ROUNDS_BEFORE)
            # Makes VmHWM the peak of this attack alone.
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
            before = self.memory("VmRSS")
            begun, busy, own = time.monotonic(), machine_seconds(), self.own_seconds()
            guard.start()
            cost.outcome = attack()
            waits = self.settle(ROUNDS_AFTER)
            cost.wait_seconds = max(waits["honest"], waits["small"])
            cost.large_wait_seconds = waits["large"]
            others = machine_seconds() - busy - (self.own_seconds() - own)
            cost.others_cores = max(0.0, others / (time.monotonic() - begun))
            peak = self.memory("VmHWM")
            cost.peak_bytes, cost.own_bytes = max(0, peak - self.idle_bytes), max(0, peak - before)
        except (AssertionError, OSError, ValueError) as error:
            cost.problems.append(f"{error}")
        finally:
            ended.set()
            if guard.ident:
                guard.join()
        if self.runaway:
            cost.peak_bytes = RUNAWAY_BYTES
            cost.problems = [f"the server took {RUNAWAY_BYTES >> 30} GB and was killed"]
        elif not self.alive():
            cost.problems.append(f"the server ended with {self.process.returncode}")
        cost.problems += self.bugs()
        if cost.problems:
            self.start()
        elif not self.kafka:
            cost.kept_bytes = self.give_back()
            if cost.kept_bytes > KEPT_BYTES or any(came == SILENT for _, came, _ in cost.outcome):
                self.start()
        return cost

    def give_back(self):
        """What the server keeps once the attacker is gone."""
        deadline = time.monotonic() + GIVE_BACK_SECONDS
        while (kept := self.memory("VmRSS") - self.idle_bytes) > KEPT_BYTES and time.monotonic() < deadline:
            time.sleep(STEP_SECONDS)
        return max(0, kept)

    def bugs(self):
        """Panics and errors that the log got since the last call. Panics are caught by the server, which goes on."""
        if self.kafka:
            return []
        with open(self.log_path, errors="replace") as log:
            log.seek(self.log_read)
            lines = log.read().splitlines()
            self.log_read = log.tell()
        bugs = [line for line in lines if "panic" in line or " ERROR " in line or "a bug" in line]
        return [f"{len(bugs)} errors in its log, the first: {bugs[0][28:300]}"] if bugs else []
