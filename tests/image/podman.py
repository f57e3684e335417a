"""podman and buildah with images and containers in a folder of their own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from suite import place
from suite.report import until

BUILD = place.ROOT / "packaging" / "image" / "build"
TAG = "test"
SLIM, KAFKA = f"mainstem:{TAG}", f"mainstem:{TAG}-kafka"
BUILD_SECONDS, COMMAND_SECONDS, START_SECONDS = 300, 60, 30
# What is inherited may be above what this process may give to another.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
HOST = ("--network", "host", "--cgroups=disabled")
INSIDE = "IMAGE_TEST_INSIDE"
CGROUPS = Path("/sys/fs/cgroup")


class Unusable(Exception):
    """Containers cannot be run here."""


def enter_namespace():
    """Goes on in a mount namespace without control groups of version 2, which crun refuses beside those of version 1."""
    if os.environ.get(INSIDE):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, where, kind, *_ = line.split()
            if kind == "cgroup2" and where != str(CGROUPS):
                subprocess.run(["umount", "--lazy", where], check=True)
        return
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])


class Podman:
    def __init__(self, directory):
        self.directory = directory
        store = directory / "store"
        self.environment = {**os.environ, "STORAGE_DRIVER": "vfs"}
        self.store = ("--root", str(store), "--runroot", str(directory / "run"))
        self.containers = []

    def build(self):
        """Both images, by the script that people use."""
        config = self.directory / "storage.conf"
        root, runroot = self.store[1], self.store[3]
        config.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{root}"\nrunroot = "{runroot}"\n')
        self.environment["CONTAINERS_STORAGE_CONF"] = str(config)
        made = subprocess.run([BUILD, "--tag", TAG, "--program", place.MAINSTEM], env=self.environment, text=True,
                              capture_output=True, timeout=BUILD_SECONDS, check=False)
        assert made.returncode == 0, made.stderr[-2000:]

    def ask(self, *arguments, seconds=COMMAND_SECONDS, check=True):
        done = subprocess.run(["podman", *arguments], env=self.environment, text=True, capture_output=True, timeout=seconds,
                              check=False)
        if check:
            assert done.returncode == 0, f"podman {' '.join(map(str, arguments))}: {complaint(done.stderr)}"
        return done

    def run(self, image, *options, command=(), check=True):
        """Runs a container to its end. The log of one that ends at once may be written after podman calls it ended."""
        return self.ask("run", "--rm", *HOST, *LIMITS, *options, image, *command, check=check)

    def try_to_run(self):
        done = self.run(SLIM, command=("version",), check=False)
        if done.returncode != 0 or not done.stdout.startswith("mainstem "):
            raise Unusable(complaint(done.stderr))

    def volume(self, name):
        self.ask("volume", "rm", "--force", name, check=False)
        self.ask("volume", "create", name)
        return name

    def start(self, image, *options, command=(), wait=True, prefix=(), how=("run", "--detach")):
        """A container on this machine's network, with ports of its own in `MAINSTEM_*`."""
        name = f"mainstem-test-{len(self.containers)}"
        container = Container(self, name)
        self.containers.append(container)
        arguments = ["podman", *how, "--name", name, *HOST, *LIMITS, *options, image, *command]
        done = subprocess.run([*prefix, *arguments], env=self.environment, text=True, capture_output=True, timeout=COMMAND_SECONDS,
                              check=False)
        assert done.returncode == 0, complaint(done.stderr)
        if wait:
            container.wait_until_ready()
        return container

    def clean(self):
        for container in self.containers:
            self.ask("rm", "--force", "--time", "1", container.name, check=False)
        self.ask("volume", "prune", "--force", check=False)


class Container:
    def __init__(self, podman, name):
        self.podman, self.name = podman, name

    def log(self):
        done = self.podman.ask("logs", self.name)
        return done.stdout + done.stderr

    def is_running(self):
        return self.inspect()["State"]["Running"]

    def inspect(self):
        return json.loads(self.podman.ask("inspect", self.name).stdout)[0]

    def wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while "mainstem is ready on " not in self.log():
            assert self.is_running() and time.monotonic() < deadline, self.log()[-2000:]
            time.sleep(0.1)

    def restart(self):
        """Starts it again, and waits for another line that says that it is ready."""
        before = self.log().count("mainstem is ready on ")
        self.podman.ask("start", self.name)
        until(lambda: self.log().count("mainstem is ready on ") > before, "the server to be ready again")

    def run(self, *command, check=True):
        return self.podman.ask("exec", self.name, *command, check=check)

    def signal(self, name):
        self.podman.ask("kill", "--signal", name, self.name)

    def remove(self):
        self.podman.ask("rm", "--force", "--time", "1", self.name)


def complaint(errors):
    """The lines of an error that are about it, without those on parts of the machine that are not needed."""
    return "\n".join(line for line in errors.splitlines() if "CNI config" not in line and "systemd connection" not in line)[-1500:]


def kcat(bootstrap, *arguments, records=None, seconds=30):
    """What kcat of this machine prints."""
    done = subprocess.run(["kcat", "-b", bootstrap, *arguments], input=records, text=True, capture_output=True, timeout=seconds,
                          check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout.splitlines()
