"""packaging/dist, and what it has made."""

import hashlib
import os
import shutil
import subprocess

from suite import place

DIST = place.ROOT / "packaging" / "dist"
MAKE_SECONDS = 180
# What packaging/dist reads, beside the programs.
SOURCES = ("Cargo.toml", "CHANGELOG.md", "LICENSE", "README.md", "docs", "packaging")


class Made:
    """The files of one run. There must be exactly these, under these names and with these sums."""

    def __init__(self, directory, version):
        self.directory, self.version = directory, version
        self.name = f"mainstem-{version}-linux-x86_64"
        self.archive, self.debug_archive = directory / f"{self.name}.tar.gz", directory / f"{self.name}-debug.tar.gz"
        self.deb, self.debug_deb = directory / f"mainstem_{version}_amd64.deb", directory / f"mainstem-dbgsym_{version}_amd64.deb"
        files = [self.archive, self.debug_archive, self.deb, self.debug_deb]
        self.sums = (directory / "SHA256SUMS").read_text()
        assert self.sums == "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files), self.sums
        assert {*files, directory / "SHA256SUMS"} == set(directory.iterdir()), list(directory.iterdir())


def own_version():
    for line in (place.ROOT / "Cargo.toml").read_text().partition("[workspace.package]")[2].splitlines():
        if line.startswith("version = "):
            return line.split('"')[1]
    raise AssertionError("no version in Cargo.toml")


def programs():
    """The folder with both programs, as packaging/dist takes them."""
    assert place.MAINSTEM.parent == place.MAINSTEM_BENCH.parent, "the tests need both programs in one folder"
    return place.MAINSTEM.parent


def make(into, *options, script=DIST, version=None, variables=(), cwd=None, umask=0o022):
    """Runs packaging/dist with the programs under test."""
    arguments = ["--into", into, *options] + (["--version", version] if version else [])
    environment = {**os.environ, **dict(variables)}
    done = subprocess.run([script, *arguments], env=environment, cwd=cwd, umask=umask, text=True, capture_output=True, timeout=MAKE_SECONDS,
                          check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Made(into, version or own_version())


def copy_of_sources(into):
    """A folder without git, with what packaging/dist reads and nothing else: as of today, for its owner alone, and with a group that
    folders in it inherit."""

    def copy(source, target):
        shutil.copyfile(source, target)
        os.chmod(target, 0o700 if os.access(source, os.X_OK) else 0o600)

    into.mkdir()
    into.chmod(0o2700)
    for name in SOURCES:
        source = place.ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, copy_function=copy)
        else:
            copy(source, into / name)
    return into / "packaging" / "dist"


def commit_time():
    return subprocess.run(["git", "-C", place.ROOT, "log", "-1", "--format=%ct"], check=True, capture_output=True, text=True).stdout.strip()


def stripped_programs(into):
    """Programs that are quickly packed, for a version that is only installed."""
    into.mkdir()
    for program in ("mainstem", "mainstem-bench"):
        subprocess.run(["strip", "-o", into / program, programs() / program], check=True)
    return into
