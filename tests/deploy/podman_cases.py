"""The file for one server brought up by podman-compose, with the image that people build."""

import re
import subprocess

from podman import LIMITS, SLIM, kcat
from rendered import COMPOSE, PODMAN_COMPOSE, compose
from suite.ports import free_port
from suite.report import until

SECONDS = 120
PROJECT = "mainstem-deploy-test"


def cases(podman, directory):
    override = directory / "override.yaml"

    def project(*words):
        command = [PODMAN_COMPOSE, "--project-name", PROJECT, f"--podman-run-args={' '.join(('--cgroups=disabled', *LIMITS))}",
                   "-f", COMPOSE / "compose.yaml", "-f", override, *words]
        done = subprocess.run(command, env=podman.environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
        return done.stdout

    def up():
        inside, host, admin = free_port(), free_port(), free_port()
        variables = {name: str(value) for name, value in compose("compose.yaml")["services"]["mainstem"]["environment"].items()}
        for name, value in variables.items():
            variables[name] = re.sub(r":9092\b", f":{host}", re.sub(r":19092\b", f":{inside}", value))
        # What a sandbox refuses: a network of its own, and so mapped ports, and control groups.
        variables["MAINSTEM_ADMIN_LISTEN"] = f"127.0.0.1:{admin}"
        lines = "".join(f"      {name}: {value}\n" for name, value in variables.items())
        override.write_text(f"services:\n  mainstem:\n    image: {SLIM}\n    network_mode: host\n    ports: !reset []\n"
                            f"    mem_limit: !reset null\n    environment:\n{lines}")
        project("up", "--detach")
        try:
            name = podman.ask("ps", "--format", "{{.Names}}").stdout.strip()
            assert name, "no container runs"
            until(lambda: podman.ask("healthcheck", "run", name, check=False).returncode == 0, "the server to be healthy",
                  lambda: podman.ask("logs", name, check=False).stderr[-1000:])
            kcat(f"127.0.0.1:{host}", "-P", "-t", "t", records="one\ntwo\n")
            project("stop")
            assert not podman.ask("ps", "--quiet").stdout.strip()
            project("start")
            until(lambda: podman.ask("healthcheck", "run", name, check=False).returncode == 0, "the server to be healthy again")
            assert kcat(f"127.0.0.1:{host}", "-C", "-t", "t", "-e", "-q") == ["one", "two"]
            found = podman.ask("inspect", "--format", "{{.HostConfig.ReadonlyRootfs}} {{.EffectiveCaps}}", name).stdout
            assert found == "true []\n", found
        finally:
            project("down", "--volumes")

    yield "compose.yaml: up, stop and start with podman-compose", SECONDS, up
