"""A Java program of Apache Kafka's as a process. What it prints, which may be an event in JSON on each line, goes to a
file, and so does its log."""

import json
import signal
import subprocess

from . import place
from .report import until

JARS = place.CACHE / "java" / "frameworks"


class Tool:
    def __init__(self, directory, name, main, *arguments):
        directory.mkdir(parents=True, exist_ok=True)
        self.name, self.output_path, self.log_path = name, directory / f"{name}.out", directory / f"{name}.log"
        scratch = directory / "tmp"
        scratch.mkdir(exist_ok=True)
        command = [*place.JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", f"-Djava.io.tmpdir={scratch}",
                   "-cp", f"{JARS}/*", main, *map(str, arguments)]
        with open(self.output_path, "ab") as output, open(self.log_path, "ab") as log:
            self._seen = output.tell()
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=log, cwd=scratch)
        self._events = []

    def running(self):
        return self.process.poll() is None

    def text(self):
        return self.output_path.read_text(errors="replace")

    def events(self):
        """The events so far."""
        with open(self.output_path, "rb") as output:
            output.seek(self._seen)
            for line in output:
                if not line.endswith(b"\n"):
                    break
                self._seen += len(line)
                if line.startswith(b"{"):
                    self._events.append(json.loads(line))
        return self._events

    def until(self, probe, what):
        """Waits for `probe` while the tool runs."""
        def either():
            found = probe()
            assert found or self.running(), f"{self.name} ended with {self.process.returncode} before {what}"
            return found
        return until(either, f"{what} of {self.name}")

    def finish(self):
        """Waits for its end, which has to be a good one."""
        until(lambda: not self.running(), f"the end of {self.name}")
        assert self.process.returncode == 0, \
            f"{self.name} ended with {self.process.returncode}: {(self.log_path.read_text() + self.text())[-400:]}"

    def stop(self):
        """SIGTERM, and waits."""
        assert self.running(), f"{self.name} had ended by itself with {self.process.returncode}"
        self.process.send_signal(signal.SIGTERM)
        until(lambda: not self.running(), f"the end of {self.name}")

    def kill(self):
        assert self.running(), f"{self.name} had ended by itself with {self.process.returncode}"
        self.process.kill()
        self.process.wait()


class Tools:
    """The tools of one case: none outlives it."""

    def __init__(self, directory):
        self.directory, self.started = directory, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for tool in self.started:
            if tool.running():
                tool.kill()

    def start(self, name, main, *arguments):
        self.started.append(Tool(self.directory, name, f"org.apache.kafka.{main}", *arguments))
        return self.started[-1]

    def properties(self, name, settings):
        """A file of settings for a tool."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path
