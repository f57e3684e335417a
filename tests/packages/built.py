"""Builds of the same commit in two folders."""

import os
import shutil
import subprocess
from pathlib import Path

from suite import place

BUILD_SECONDS = 3600
FOLDERS = ("a", "another/folder-with-a-longer-name")


def cases(directory):
    def same_bytes():
        """Of what is committed: the working tree is not looked at."""
        sums, home = [], directory / "cargo-home"
        for folder in FOLDERS:
            variables = {"CARGO_HOME": home, "CARGO_NET_OFFLINE": "true"} if sums else {}
            sums.append(build(directory, directory / "clones" / folder, variables))
            if not home.exists():
                copy_cargo_home(home)
        assert sums[0] == sums[1], f"\n{sums[0]}\n{sums[1]}"
        shutil.rmtree(home)

    yield "builds: two folders and two folders of cargo give the same bytes", 2 * BUILD_SECONDS, same_bytes


def build(directory, clone, variables):
    """The checksums of what a new clone makes."""
    clone.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", place.ROOT, clone], check=True)
    made, log_path = directory / f"built-{clone.name}", directory / f"built-{clone.name}.log"
    with open(log_path, "wb") as log:
        done = subprocess.run([clone / "packaging" / "dist", "--build", "--into", made], cwd="/", stdout=log, stderr=log, check=False,
                              env={**os.environ, "CARGO_TERM_COLOR": "never", **variables})
    assert done.returncode == 0, log_path.read_text()[-2000:]
    for program in ("mainstem", "mainstem-bench"):
        built = (clone / "target" / "dist-build" / "packaged" / program).read_bytes()
        assert str(clone).encode() not in built, f"{program} has the name of the folder in it"
    shutil.rmtree(clone)
    return (made / "SHA256SUMS").read_text()


def copy_cargo_home(into):
    """What cargo has fetched, in another folder, as another user has it."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    into.mkdir()
    for name in ("registry", "config.toml"):
        if (home / name).exists():
            subprocess.run(["cp", "-a", "--reflink=auto", home / name, into / name], check=True)
