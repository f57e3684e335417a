"""Two brokers on one log that pass their partitions, and with them their coordinators, to each other while clients run.

The program is crates/broker/examples/two_brokers.rs.
"""

import re
import subprocess
import time

from . import place
from .ports import free_port
from .server import STOP_SECONDS, Server, ServerFailed

# Fewer in a run would show nothing.
MOVES_MIN = 100
PROGRAM = place.TARGET / "debug" / "examples" / "two_brokers"


class TwoBrokers(Server):
    def __init__(self, directory, moves_ms):
        super().__init__(None, directory)
        self.moves_ms = moves_ms

    def command(self):
        if not PROGRAM.exists():
            raise ServerFailed(f"{PROGRAM.name} is missing, build it first: cargo build --example {PROGRAM.name}")
        port = self.bootstrap.rpartition(":")[2]
        return [PROGRAM, self.directory / "data", port, str(free_port()), str(self.moves_ms)]

    def popen(self, log):
        # It ends with its standard input, so that none is left behind.
        return super().popen(log, stdin=subprocess.PIPE)

    def stop(self):
        begin = time.monotonic()
        self.process.stdin.close()
        code = self.process.wait(STOP_SECONDS)
        if code:
            raise ServerFailed(f"it ended with code {code}, see {self.log_path}")
        moved = re.search(r"moved (\d+) partitions", self.log_path.read_text())
        if not moved or int(moved[1]) < MOVES_MIN:
            raise ServerFailed(f"hardly a partition moved, see {self.log_path}")
        return time.monotonic() - begin
