"""Builds of the same commit in two folders."""

import os
import shutil
import subprocess

from suite import place

BUILD_SECONDS = 3600
FOLDERS = ("a", "another/folder-with-a-longer-name")


def cases(directory):
    def same_bytes():
        """Of what is committed: the working tree is not looked at."""
        sums, environment = [], {**os.environ, "CARGO_TERM_COLOR": "never"}
        for folder in FOLDERS:
            clone, made = directory / "clones" / folder, directory / f"built-{len(sums)}"
            clone.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "clone", "--quiet", place.ROOT, clone], check=True)
            with open(directory / "build.log", "ab") as log:
                command = [clone / "packaging" / "dist", "--build", "--into", made]
                done = subprocess.run(command, cwd="/", stdout=log, stderr=log, check=False, env=environment)
            assert done.returncode == 0, (directory / "build.log").read_text()[-2000:]
            sums.append((made / "SHA256SUMS").read_text())
            named = [program for program in ("mainstem", "mainstem-bench")
                     if str(clone).encode() in (clone / "target" / "dist-build" / "release" / program).read_bytes()]
            assert not named, f"{named} have the name of the folder in them"
            shutil.rmtree(clone)
        assert sums[0] == sums[1], f"\n{sums[0]}\n{sums[1]}"

    yield "builds: two folders give the same bytes", 2 * BUILD_SECONDS, same_bytes
