"""Looks after the server during an attack: alive, bounded in memory, and quick for the honest client."""

import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEGABYTE = 1 << 20
# The server may never grow beyond its idle size by more than this: the budget for requests in flight
# (queued.max.request.bytes, 128 MiB), as much again for what they turn into, and slack.
GROWTH_MB_MAX = 300
# An honest answer takes less, during an attack and after it. Two cores serve attackers, clients and server.
ANSWER_SECONDS_MAX = 2.0
# And never more than this, whatever other programs do.
WAIT_SECONDS_MAX = 10.0
ROUNDS_AFTER = 3
SETTLE_SECONDS = 60


class Slow(AssertionError):
    """An honest answer took too long, and that is all."""


class HonestProcess:
    """honest.py at work."""

    def __init__(self, address, topic, directory, *more, name="honest"):
        self.name = name
        command = [sys.executable, HERE / "honest.py", address[0], str(address[1]), topic, *more]
        with open(directory / f"{name}.log", "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            text=True)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def ask(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        said = json.loads(self.process.stdout.readline())
        assert said["error"] is None, f"the {self.name} client failed: {said['error']}"
        return said


class Watch:
    def __init__(self, server, topic, directory):
        self.server = server
        host, _, port = server.bootstrap.rpartition(":")
        self.address = (host, int(port))
        self.honest = HonestProcess(self.address, topic, directory)
        self.idle_bytes = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.honest.stop()

    def ask(self):
        return self.honest.ask()

    def settle(self):
        """A few more rounds of the honest client, each in time; the slowest answer since the last call."""
        worst = self.ask_worst()
        rounds, deadline = 0, time.monotonic() + SETTLE_SECONDS
        while rounds < ROUNDS_AFTER:
            time.sleep(0.02)
            said = self.ask()
            rounds, worst = rounds + said["rounds"], max(worst, said["worst"], said["waiting"])
            assert time.monotonic() < deadline, f"the honest client waits, {said['waiting']:.1f} s by now"
        return worst

    def ask_worst(self):
        said = self.ask()
        return max(said["worst"], said["waiting"])

    def note_idle(self):
        self.settle()
        self.idle_bytes = self.server.memory()
        return f"{self.idle_bytes // MEGABYTE} MB"

    def open_files(self):
        return sum(1 for _ in Path(f"/proc/{self.server.process.pid}/fd").iterdir())

    def during(self, attack, cost_mb_max):
        """Runs `attack` and checks what it did to the server and to the honest client."""
        self.settle()
        before = self.server.memory()
        # Makes VmHWM the peak of this attack alone.
        Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")
        note = attack()
        assert self.server.process.poll() is None, f"the server ended with {self.server.process.returncode}"
        peak = self.server.peak_memory()
        growth, cost = (peak - self.idle_bytes) / MEGABYTE, (peak - before) / MEGABYTE
        worst = self.settle()
        facts = f"{note + ', ' if note else ''}idle {growth:+.0f} MB, honest client {worst * 1000:.0f} ms"
        assert growth <= GROWTH_MB_MAX, f"the server grew by more than {GROWTH_MB_MAX} MB: {facts}"
        assert cost <= cost_mb_max, f"this attack alone cost {cost:.0f} MB, more than {cost_mb_max}: {facts}"
        assert worst <= WAIT_SECONDS_MAX, f"an honest answer took longer than {WAIT_SECONDS_MAX} s: {facts}"
        if worst > ANSWER_SECONDS_MAX:
            raise Slow(f"an honest answer took longer than {ANSWER_SECONDS_MAX} s: {facts}")
        return facts
