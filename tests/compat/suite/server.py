"""Starts and stops the server under test.

`Server` is a context manager. A server given by --bootstrap is only looked at: it is neither started
nor stopped. One started here is told to stop by SIGTERM and has to end with exit code 0.
"""

import queue
import signal
import socket
import subprocess
import threading
import time

from . import place

READY_SECONDS = 30
STOP_SECONDS = 30


class ServerFailed(Exception):
    pass


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    def __init__(self, bootstrap, directory):
        self.bootstrap, self.directory = bootstrap, directory
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
        if not place.MAINSTEM.exists():
            raise ServerFailed(f"{place.MAINSTEM} is missing, build it first: cargo build --release")
        self.bootstrap = f"127.0.0.1:{free_port()}"
        command = [place.MAINSTEM, "serve", "--data-dir", self.directory / "data", "--listen", self.bootstrap]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        lines = queue.Queue()

        def pump():
            with self.process.stdout as output:
                for line in output:
                    lines.put(line)
            lines.put(b"")

        threading.Thread(target=pump, daemon=True).start()
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
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None

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
