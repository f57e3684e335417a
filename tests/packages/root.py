"""A clean Debian in a folder, made by mmdebstrap once and unpacked for each use."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from suite import place

SUITE = "bookworm"
# What the package needs, what its scripts ask for things, and what looks at the server's system calls.
INCLUDED = "adduser,libgcc-s1,libssl3,strace,systemd,zlib1g"
MAKE = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={INCLUDED}", "--format=tar", SUITE]
MAKE_SECONDS, COMMAND_SECONDS = 400, 90
INSIDE = Path(__file__).resolve().parent / "inside.py"


class Unusable(Exception):
    """No root can be made or entered here."""


def archive(log_path):
    """The clean root as an archive. It is made again when what it is made of changes here."""
    folder = place.CACHE / "packages"
    path = folder / f"{SUITE}-{hashlib.sha256(repr(MAKE).encode()).hexdigest()[:16]}.tar"
    if not path.exists():
        print("making a clean Debian, once", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        unfinished = path.with_suffix(".new")
        with open(log_path, "wb") as log:
            made = subprocess.run([*MAKE, unfinished], stdout=log, stderr=log, timeout=MAKE_SECONDS, check=False)
        if made.returncode != 0:
            raise Unusable(f"mmdebstrap failed: {log_path.read_text(errors='replace').strip()[-500:]}")
        unfinished.rename(path)
    return path


def inside(directory, plan, *command):
    """The command line that runs `command` in the root, as inside.py says. It does not fork, so that a process keeps its number."""
    return ["unshare", "--mount", "--propagation", "private", sys.executable, "-I", str(INSIDE), str(directory), json.dumps(plan), *command]


class Root:
    def __init__(self, directory, packed):
        self.directory = directory
        directory.mkdir()
        unpacked = subprocess.run(["tar", "--numeric-owner", "-xpf", packed, "-C", directory], capture_output=True, text=True, check=False)
        if unpacked.returncode != 0:
            raise Unusable(unpacked.stderr.strip()[-500:])
        tried = self.run("true", check=False)
        if tried.returncode != 0:
            raise Unusable(tried.stderr.strip()[-500:])

    def path(self, name):
        """Where the file called `name` in the root is outside of it."""
        return self.directory / name.lstrip("/")

    def run(self, *command, check=True):
        done = subprocess.run(inside(self.directory, {}, *command), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=COMMAND_SECONDS, check=False)
        if check:
            assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
        return done

    def dpkg(self, *arguments):
        """What dpkg says, both outputs together. It need not wait for the disk."""
        done = self.run("dpkg", "--force-unsafe-io", *arguments)
        return done.stdout + done.stderr

    def install(self, package, *options):
        given = self.path("/var/cache/given.deb")
        shutil.copyfile(package, given)
        try:
            return self.dpkg(*options, "--install", "/var/cache/given.deb")
        finally:
            given.unlink()

    def status(self):
        """What dpkg knows of the package: `install ok installed` and the version."""
        return self.run("dpkg-query", "--show", "--showformat=${Status} ${Version}", "mainstem").stdout

    def ids(self):
        """The numbers of the service's user and group."""
        user, group = self.run("id", "-u", "mainstem").stdout, self.run("id", "-g", "mainstem").stdout
        return int(user), int(group)
