"""A server of ours with a file of settings, so with listeners of its own, and users from before its start."""

import subprocess

from suite import place
from suite.server import Server


class ConfiguredServer(Server):
    def __init__(self, listen, directory, settings):
        """`listen` is one of its listeners that is plain; `settings` are by their names."""
        super().__init__(None, directory, listen)
        self.config = directory / "mainstem.toml"
        self.config.write_text("".join(f"{name} = {toml(value)}\n" for name, value in settings.items()))

    def command(self):
        return [place.MAINSTEM, "serve", "--data-dir", self.directory / "data", "--config", self.config]


def create_user(user, mechanism, secret, *where):
    command = [place.MAINSTEM, "user", "create", user, "--mechanism", mechanism, "--password-file", secret, *where]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"user create: {done.stderr}"


def toml(value):
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return str(value) if isinstance(value, int) else f'"{text}"'
