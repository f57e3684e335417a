"""A container's program as a process of this machine: what it is given, with its paths below a folder and its ports free ones.

What a container engine would do besides is not done: users, the read-only file system, the network.
"""

import os
import re
import signal
import subprocess
import threading
import time
import tomllib

from suite import place
from suite.ports import free_port
from suite.report import until

READY = "mainstem is ready on "
TAKEN = "the file can be used\n"
COMMAND_SECONDS, STOP_SECONDS = 30, 40


class Translation:
    """Texts of a container as they are outside of it."""

    def __init__(self, directory, paths, ports, hosts=()):
        """`paths` lie below `directory`, `ports` get free ones, `hosts` are this machine."""
        self.directory = directory
        self.paths = sorted(paths, key=len, reverse=True)
        self.ports = {port: free_port() for port in ports}
        self.addresses = {}
        self.hosts = sorted(hosts, key=len, reverse=True)

    def path(self, path):
        return self.directory / "root" / path.lstrip("/")

    def knows(self, other, host):
        """Where this one finds another, whose host name inside is `host`."""
        for port, outside in other.ports.items():
            self.addresses[f"{host}:{port}"] = f"localhost:{outside}"

    def text(self, text):
        for address, outside in self.addresses.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(address)}\b", outside, text)
        for host in self.hosts:
            text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?=:\d)", "localhost", text)
        # Only behind a host name: those of other programs have been replaced.
        for port, outside in self.ports.items():
            text = re.sub(rf"\b(0\.0\.0\.0|127\.0\.0\.1|localhost):{port}\b", rf"\1:{outside}", text)
        for path in self.paths:
            text = re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", str(self.path(path)), text)
        return text

    def words(self, words):
        return [self.text(str(word)) for word in words]

    def variables(self, variables):
        return {name: self.text(str(value)) for name, value in variables.items()}


class Process:
    """A server that is started as a container starts it, and its health check."""

    def __init__(self, translation, command, variables, health, name="server"):
        self.translation = translation
        self.command = translation.words(command)
        self.variables = {"PATH": os.environ["PATH"], **{name: value for name, value in translation.variables(variables).items() if name != "PATH"}}
        self.health_command = translation.words(health)
        self.log_path = translation.directory / f"{name}.log"
        self.process, self.lines = None, []

    def port(self, inside):
        return self.translation.ports[inside]

    def start(self, prefix=(), wait=True):
        self.lines = []
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([*prefix, *self.command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                                            env=self.variables, cwd=self.translation.directory)
        threading.Thread(target=self.read, args=(self.process,), daemon=True).start()
        if wait:
            self.wait_until_ready()

    def read(self, process):
        with process.stdout:
            for line in process.stdout:
                self.lines.append(line)

    def wait_until_ready(self):
        def ready():
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log()[-1500:]}"
            return any(READY in line for line in self.lines)
        until(ready, "the server to be ready", lambda: self.log()[-1500:])

    def log(self):
        return self.log_path.read_text(errors="replace")

    def run(self, *words, check=True, records=None):
        """A command in the same container."""
        done = subprocess.run(self.translation.words(words), env=self.variables, capture_output=True, text=True, timeout=COMMAND_SECONDS,
                              input=records if records is not None else "", check=False)
        if check:
            assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}"
        return done

    def is_healthy(self):
        done = self.run(*self.health_command, check=False)
        return done.returncode == 0 and done.stdout == "healthy\n"

    def stop(self, seconds_max=STOP_SECONDS):
        """As a container is stopped: it ends by itself, without an error."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(seconds_max)
        assert code == 0, f"the server ended with {code}: {self.log()[-1500:]}"
        return time.monotonic() - begin

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def program(words):
    """The command, with the program that is under test."""
    return [str(place.MAINSTEM) if word == "mainstem" else word for word in words]


class Pod:
    """A pod of the chart: its files, the commands of its containers."""

    def __init__(self, chart, image_variables, secrets, directory, document=None, index=0, hosts=()):
        """`secrets` are the contents of Secrets, by their names. `document` makes the pod, by default the StatefulSet."""
        self.chart, self.secrets, self.index, self.image_variables = chart, secrets, index, image_variables
        self.document = document or chart.one("StatefulSet")
        self.spec = self.document["spec"] if self.document["kind"] == "Pod" else self.document["spec"]["template"]["spec"]
        self.name = self.document["metadata"]["name"]
        if self.document["kind"] == "StatefulSet":
            self.name += f"-{index}"
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        containers = self.spec.get("initContainers", []) + self.spec["containers"]
        mounts = {mount["mountPath"]: mount["name"] for container in containers for mount in container.get("volumeMounts", [])}
        ports = [port["containerPort"] for port in containers[-1].get("ports", [])]
        # The port that the health check asks is in no list where only the pod itself reaches it.
        self.translation = Translation(directory, mounts, {*ports, 9644}, hosts)
        self.mounts = mounts

    @property
    def host(self):
        """Its host name, if the chart's service gives it one."""
        metadata = self.document["metadata"]
        return f"{self.name}.{metadata['name']}-headless.apps.svc.cluster.local"

    def write_files(self):
        """Once it is known where the others are."""
        there = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        for path, name in self.mounts.items():
            into = self.translation.path(path)
            into.mkdir(parents=True, exist_ok=True)
            volume = there.get(name, {})
            if "configMap" in volume:
                files = self.chart.settings_map["data"]
                assert volume["configMap"]["name"] == self.chart.settings_map["metadata"]["name"]
            elif "secret" in volume:
                files = self.secrets[volume["secret"]["secretName"]]
            else:
                continue
            for file, text in files.items():
                # What a person writes into a Secret names places of the container, too.
                is_pem = text.startswith("-----BEGIN")
                (into / file).write_text(text if is_pem else self.translation.text(text))

    def variables(self, container):
        """As Kubernetes puts them together: the image's, those of envFrom, those of env."""
        found = dict(self.image_variables)
        for source in container.get("envFrom", []):
            found |= self.secrets[source["secretRef"]["name"]]
        for one in container.get("env", []):
            if "value" in one:
                value = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], one["value"])
            elif "secretKeyRef" in one["valueFrom"]:
                key = one["valueFrom"]["secretKeyRef"]
                value = self.secrets[key["name"]][key["key"]]
            else:
                value = {
                    "metadata.name": self.name, "metadata.labels['apps.kubernetes.io/pod-index']": str(self.index), "status.podIP": "10.0.0.1",
                }[one["valueFrom"]["fieldRef"]["fieldPath"]]
            found[one["name"]] = value
        return found

    def process(self):
        container = self.spec["containers"][0]
        assert "command" not in container, "the image's entry point is the program"
        # `mainstem health` asks this port where nothing says otherwise.
        asked = [f"--admin=127.0.0.1:{self.translation.ports[9644]}"]
        probe = container.get("startupProbe", {}).get("exec", {}).get("command", ["mainstem", "health"])
        return Process(self.translation, program(["mainstem", *container["args"]]), self.variables(container), program(probe) + asked, self.name)

    def run_first(self):
        """Its init containers."""
        for container in self.spec.get("initContainers", []):
            self.run_to_the_end(container)

    def run_to_the_end(self, container):
        command = self.translation.words(program(["mainstem", *container["args"]]))
        variables = {"PATH": os.environ["PATH"], **self.translation.variables(self.variables(container))}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{container['name']}: {done.stdout}{done.stderr}"
        return done.stdout

    def effective(self):
        """What the settings are with this pod's file and variables, as `mainstem config --diff` shows them."""
        process = self.process()
        words = [word for word in process.command if word != "serve"]
        shown = process.run(*words[:1], "config", "--diff", *words[1:]).stdout
        # Secrets are shown behind a comment sign, and values of several lines behind three quotes.
        text = re.sub(r'^# ([\w.]+ = "\[hidden\]")$', r"\1", shown, flags=re.MULTILINE)
        text = re.sub(r'^"?([\w.-]+)"? = ', r'"\1" = ', text, flags=re.MULTILINE)
        return tomllib.loads(text)

    def check_file(self):
        """`mainstem config --check` of the file of settings."""
        process = self.process()
        file = self.translation.path("/etc/mainstem/config/mainstem.toml")
        done = process.run(str(place.MAINSTEM), "config", "--check", file, check=False)
        assert done.returncode == 0 and done.stdout == TAKEN and not done.stderr, f"{done.stdout}{done.stderr}\n{file.read_text()}"
