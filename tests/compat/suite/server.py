"""Starts and stops the server under test.

`Server` is a context manager. A server given by --bootstrap is only looked at: it is neither started
nor stopped. One started here is told to stop by SIGTERM and has to end with exit code 0.
"""

import os
import queue
import signal
import socket
import subprocess
import threading
import time

from . import place
from .ports import free_address

READY_SECONDS = 30
STOP_SECONDS = 30


class ServerFailed(Exception):
    pass


def environment():
    """For a server of ours: without the tests' own variables, which it would take for settings, and
    without the admin listener, whose port servers side by side would fight for. Its log is text, which
    people read when a test has failed."""
    ours = {name: value for name, value in os.environ.items() if name not in place.OWN_VARIABLES}
    return {"MAINSTEM_ADMIN_LISTEN": "", "MAINSTEM_LOG_FORMAT": "text", **ours}


class Server:
    def __init__(self, bootstrap, directory, listen=None, settings=()):
        """For a server of ours: `listen` is the HOST:PORT if it has to come back at the same address,
        `settings` are KEY=VALUE."""
        self.bootstrap, self.directory, self.listen = bootstrap, directory, listen
        self.settings = settings
        self.own = bootstrap is None
        self.log_path = directory / "server.log"
        self.process = None

    def __enter__(self):
        if self.own:
            self._start()
        self._connect()
        return self

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _start(self):
        self._await_ready(self._spawn())

    def _spawn(self):
        if not place.MAINSTEM.exists():
            raise ServerFailed(f"{place.MAINSTEM} is missing, build it first: cargo build --release")
        self.bootstrap = self.listen or free_address()
        with open(self.log_path, "ab") as log:
            self.process = self.popen(log)
        lines, output = queue.Queue(), self.process.stdout

        def pump():
            with output:
                for line in output:
                    lines.put(line)
            lines.put(b"")

        threading.Thread(target=pump, daemon=True).start()
        return lines

    def popen(self, log, **options):
        return subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=log, env=environment(), **options)

    def command(self):
        command = [place.MAINSTEM, "serve", "--data-dir", self.directory / "data", "--listen", self.bootstrap]
        return command + [argument for setting in self.settings for argument in ("--set", setting)]

    def _await_ready(self, lines):
        try:
            ready = lines.get(timeout=READY_SECONDS)
        except queue.Empty:
            self.__exit__()
            raise ServerFailed(f"no ready line within {READY_SECONDS} s, see {self.log_path}") from None
        if not ready:
            raise ServerFailed(f"the server ended while starting, see {self.log_path}")

    def _connect(self):
        host, _, port = self.bootstrap.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            self.__exit__()
            raise ServerFailed(f"no server answers at {self.bootstrap}: {error}") from None

    def peak_memory(self):
        """The most resident memory a server of ours has held, in bytes; None for another's."""
        if self.process is None:
            return None
        return self._memory("VmHWM:")

    def memory(self):
        """The resident memory of a server of ours now, in bytes."""
        return self._memory("VmRSS:")

    def _memory(self, field):
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
        return None

    def start(self):
        """Starts it, at first or again, on the data directory that is there; seconds until it is ready."""
        begin = time.monotonic()
        self._start()
        return time.monotonic() - begin

    def start_and_kill(self, seconds, first=lambda: None):
        """Starts it, calls `first` after so long and kills it, whether it is ready by then or not."""
        self._spawn()
        time.sleep(seconds)
        first()
        self.kill()

    def kill(self):
        """SIGKILL. A server that has ended by itself before is a failure."""
        if self.process.poll() is not None:
            raise ServerFailed(f"the server had ended by itself with code {self.process.returncode}, "
                               f"see {self.log_path}")
        self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGTERM, and exit code 0 in time."""
        if self.process.poll() is not None:
            raise ServerFailed(f"the server had ended by itself with code {self.process.returncode}, "
                               f"see {self.log_path}")
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"still running {STOP_SECONDS} s after SIGTERM") from None
        if code != 0:
            raise ServerFailed(f"exit code {code} after SIGTERM, see {self.log_path}")
        return time.monotonic() - begin
