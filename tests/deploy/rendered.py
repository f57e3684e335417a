"""What helm and compose make of the files in packaging, by `render`."""

import json
import re
import subprocess

from suite import place

CHART = place.ROOT / "packaging" / "helm" / "mainstem"
COMPOSE = place.ROOT / "packaging" / "compose"
RENDER = place.CACHE / "bin" / "render"
PODMAN_COMPOSE = place.CACHE / "podman-compose" / "bin" / "podman-compose"
BUILD = place.ROOT / "packaging" / "image" / "build"
NAMESPACE = "apps"
NOTES = "mainstem/templates/NOTES.txt"
SECONDS = 60


class Refused(Exception):
    """It cannot be rendered, for the reason that is given."""


def render(*words):
    # Nothing of the user's environment, which compose files may refer to.
    done = subprocess.run([RENDER, *words], capture_output=True, text=True, timeout=SECONDS, env={"HOME": "/"}, check=False)
    if done.returncode != 0:
        raise Refused((done.stdout + done.stderr).strip())
    return done.stdout


def lint(*values):
    return render("lint", CHART, *values)


class Chart:
    """The chart rendered with values: files, or NAME=VALUE."""

    def __init__(self, *values, release="orders"):
        self.release = release
        by_file = json.loads(render("template", CHART, release, NAMESPACE, *values))
        self.notes = by_file.pop(NOTES)[0]
        self.values = by_file.pop("values")[0]
        self.documents = [document for documents in by_file.values() for document in documents]

    def all(self, kind):
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind, end=""):
        """The only one of its kind whose name ends so; without `end`, the only one."""
        found = [document for document in self.all(kind) if document["metadata"]["name"].endswith(end)]
        assert len(found) == 1, f"{len(found)} of {kind} …{end}"
        return found[0]

    @property
    def settings(self):
        """The file of settings, as text."""
        return self.settings_map["data"]["mainstem.toml"]

    @property
    def settings_map(self):
        found = [document for document in self.all("ConfigMap") if "mainstem.toml" in document["data"]]
        assert len(found) == 1, found
        return found[0]


def compose(*names):
    return json.loads(render("compose", *(COMPOSE / name for name in names)))


def image_environment():
    """The variables of the image with the program alone, from the script that builds it."""
    text = BUILD.read_text()
    begin = text.index('commit "mainstem:$tag" ')
    part = text[begin:text.index("\n\n", begin)]
    found = dict(re.findall(r"--env ([A-Z_]+)=(\S+)", part))
    assert "MAINSTEM_DATA_DIR" in found and "PATH" in found, f"the variables of the image are not found in {BUILD}: {found}"
    return found
