"""Brings the clients, once: into the folder `clients` of the tests' cache, each by its ecosystem's ordinary tool.

A part is made again when the files that it is made from change; a stamp beside it has their hash. The checkout is not
written to. Builds are niced.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from suite import place

HERE = Path(__file__).resolve().parents[1]
CACHE = place.CACHE / "clients"
JVM = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
       "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
NODE = ["node", "--max-old-space-size=256"]
PYTHON_PROGRAMS = {"confluent-kafka": "confluent_program.py", "kafka-python": "kafka_python_program.py",
                   "aiokafka": "aiokafka_program.py"}


class SetUpFailed(Exception):
    pass


def bring(clients, say=print):
    """Brings what these clients need and returns {client: reason} of those that cannot be had."""
    CACHE.mkdir(parents=True, exist_ok=True)
    missing = {}
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Two runs at once would tread on each other.
        for client in clients:
            try:
                FAMILIES[client.family][0](client, say)
            except SetUpFailed as error:
                missing[client] = str(error)
    return missing


def command(client, bootstrap):
    return [*FAMILIES[client.family][1](client), bootstrap]


def made(name, sources, make, say):
    """Makes the folder `name` by `make(folder)` unless it was made from the same sources."""
    folder, stamp = CACHE / name, CACHE / f"{name}.stamp"
    digest = hashlib.sha256(b"\0".join(s.read_bytes() if isinstance(s, Path) else s.encode() for s in sources))
    if folder.is_dir() and stamp.exists() and stamp.read_text() == digest.hexdigest():
        return folder
    say(f"setting up {name}")
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder)
    stamp.write_text(digest.hexdigest())
    return folder


def tool(name, *arguments, **more):
    """Runs a tool that fetches or builds; its output goes into `name`.log."""
    path = CACHE / f"{name}.log"
    with open(path, "ab") as log:
        try:
            done = subprocess.run(["nice", "-n", "10", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=log, **more)
        except OSError as error:
            raise SetUpFailed(f"{arguments[0]}: {error}") from None
    if done.returncode != 0:
        raise SetUpFailed(f"{arguments[0]} failed, see {path}")


# Java: one class file, compiled against the oldest release, and the jars of each


def java_jars(version, say):
    pom = HERE / "java" / "pom.xml"
    return made(f"java-{version}", [pom, version], lambda folder: tool(
        f"java-{version}", "mvn", "-q", "-B", "-f", pom, f"-Dkafka={version}", "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={folder}"), say)


def bring_java(client, say):
    from .clients import JAVA
    oldest, source = java_jars(JAVA[0], say), HERE / "java" / "Program.java"
    made("java-classes", [source, HERE / "java" / "pom.xml", JAVA[0]],
         lambda folder: tool("java-classes", "javac", "-nowarn", "-cp", f"{oldest}/*", "-d", folder, source), say)
    java_jars(client.version, say)


def java_command(client):
    return [*JVM, "-cp", f"{CACHE}/java-classes:{CACHE}/java-{client.version}/*", "Program"]


# Python: an environment for each release


def bring_python(client, say):
    pins = HERE / "python" / f"{client.variant}.txt"

    def make(folder):
        tool(client.variant, "python3", "-m", "venv", folder)
        tool(client.variant, folder / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "-r", pins)

    made(client.variant, [pins], make, say)


def python_command(client):
    return [CACHE / client.variant / "bin" / "python3", "-B", HERE / "python" / PYTHON_PROGRAMS[client.library]]


# JavaScript: a folder of modules for each library


def bring_javascript(client, say):
    source = HERE / "javascript" / client.variant

    def make(folder):
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, folder)
        tool(f"javascript-{client.variant}", "npm", "ci", "--no-audit", "--no-fund", cwd=folder)

    made(f"javascript-{client.variant}", [source / "package.json", source / "package-lock.json"], make, say)


def javascript_command(client):
    modules = CACHE / f"javascript-{client.variant}" / "node_modules"
    return ["env", f"NODE_PATH={modules}", *NODE, HERE / "javascript" / f"{client.variant}.js"]


# Go: a program for each release, by a module file of its own


def bring_go(client, say):
    library, release = client.variant.rsplit("-", 1)
    source = HERE / "go" / library
    module = source / ("go.mod" if release == "new" else f"{release}.mod")
    sources = [*sorted(source.glob("*.go")), *sorted((HERE / "go" / "lines").glob("*")), module,
               module.with_suffix(".sum")]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    made(f"go-{client.variant}", sources, lambda folder: tool(
        f"go-{client.variant}", "go", "build", f"-modfile={module}", "-p", "1", "-tags", release,
        "-o", folder / "program", ".", cwd=source, env=environment), say)


def go_command(client):
    return [CACHE / f"go-{client.variant}" / "program"]


# Rust: a program built with its library, in a folder of its own


def bring_rust(client, say):
    source = HERE / "rust"
    sources = [source / "src" / "main.rs", source / "Cargo.toml", source / "Cargo.lock"]
    made(f"rust-{client.variant}", sources, lambda folder: tool(
        f"rust-{client.variant}", "cargo", "build", "-q", "--locked", "--manifest-path", source / "Cargo.toml",
        "--target-dir", folder), say)


def rust_command(client):
    return [CACHE / f"rust-{client.variant}" / "debug" / "mainstem-clients-rskafka"]


FAMILIES = {
    "java": (bring_java, java_command),
    "python": (bring_python, python_command),
    "javascript": (bring_javascript, javascript_command),
    "go": (bring_go, go_command),
    "rust": (bring_rust, rust_command),
}
