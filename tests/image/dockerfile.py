"""packaging/image/Dockerfile, built without a registry: a base image made here, and the program given instead of compiled."""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path

from podman import BUILD_SECONDS, KAFKA, SLIM, kcat
from suite import place
from suite.ports import free_port

IMAGES = place.ROOT / "packaging" / "image"
DOCKERFILE = IMAGES / "Dockerfile"
BASE = "docker.io/library/debian:bookworm-slim"
BUILT = {"slim": ("mainstem:dockerfile", SLIM), "kafka": ("mainstem:dockerfile-kafka", KAFKA)}
CONFIGURATION = ("User", "Env", "Entrypoint", "Cmd", "ExposedPorts", "Volumes", "WorkingDir", "StopSignal", "Labels", "Healthcheck")
# packaging/image/build extracts whole packages with all that they depend on. Of that, the Dockerfile leaves out what nothing here uses.
LEFT_OUT = re.compile(
    r"/(media|mnt|opt|srv|proc|sys|boot|home|run|dev|root|var)(/|$)|/etc/(?!kafka|confluent|ssl/certs|passwd|group)|/usr/share(/|$)|"
    r"/usr/(games|include|src|local|libexec)(/|$)|(/usr)?/s?bin(/|$)|/lib/systemd(/|$)|/usr/lib(/(?!x86_64-linux-gnu/)|$)|"
    r"(/usr)?/lib/x86_64-linux-gnu/(gconv|perl|engines|ossl|libssl|libcrypto|libz|libbz2|liblzma|libmd|libdb|audit|security)"
)
# The start scripts, and those of test libraries, use these: each has to run.
PROGRAMS = ("mainstem", "bash", "sh", "sed", "grep", "hostname", "cut", "head", "base64", "tr", "mktemp", "cat", "sleep", "dirname")


def cases(podman):
    context = podman.directory / "context"

    def base_image():
        """What the Dockerfile begins with. It has the certificates, so that the build needs no network."""
        tree = podman.directory / "base"
        made = subprocess.run(["mmdebstrap", "--quiet", "--variant=essential", "--include=ca-certificates", "--dpkgopt=force-unsafe-io",
                               "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "bookworm", tree],
                              capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        assert made.returncode == 0, made.stderr[-2000:]
        container = buildah("from", "scratch")
        buildah("copy", "--quiet", container, str(tree), "/")
        buildah("commit", "--quiet", container, BASE)
        buildah("rm", container)
        shutil.rmtree(tree)

    def buildah(*arguments):
        done = subprocess.run(["buildah", *arguments], env=podman.environment, capture_output=True, text=True, timeout=BUILD_SECONDS,
                              check=False)
        assert done.returncode == 0, f"buildah {arguments[0]}: {done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        return done.stdout.strip()

    def build():
        base_image()
        program = context / "target" / "packaged" / "mainstem"
        program.parent.mkdir(parents=True)
        subprocess.run(["strip", "-o", program, place.MAINSTEM], check=True)
        shutil.copytree(IMAGES, context / "packaging" / "image")
        for target, (name, _) in BUILT.items():
            # Without namespaces, and from nothing but what lies here: any access to a registry would fail.
            buildah("bud", "--isolation", "chroot", "--format", "docker", "--pull-never", "--build-arg", "PROGRAM=given",
                    "--ignorefile", str(IMAGES / "Dockerfile.dockerignore"), "--target", target, "--tag", name, "--file", str(DOCKERFILE),
                    str(context))

    def configuration(image):
        shown = json.loads(podman.ask("inspect", "--type", "image", image).stdout)[0]
        found = {key: shown["Config"].get(key) or shown.get(key) or None for key in CONFIGURATION}
        found["Labels"] = {key: value for key, value in found["Labels"].items() if not key.startswith("io.buildah")}
        return found

    def same_configuration():
        for name, model in BUILT.values():
            found, expected = configuration(name), configuration(model)
            different = {key: (found[key], expected[key]) for key in CONFIGURATION if found[key] != expected[key]}
            assert not different, f"{name}: {different}"
            assert all(expected[key] for key in ("User", "Env", "Cmd", "ExposedPorts", "Volumes", "Labels", "Healthcheck")), expected

    def files(image):
        """Each file of an image with its type, mode, owners and contents, by its path."""
        container = buildah("from", "--pull-never", image)
        root = Path(buildah("mount", container))
        found = {}
        for directory, directories, names in os.walk(root):
            for name in (*directories, *names):
                path = Path(directory, name)
                status = path.lstat()
                kind = stat.S_IFMT(status.st_mode)
                about = [kind, oct(stat.S_IMODE(status.st_mode)), status.st_uid, status.st_gid]
                if kind == stat.S_IFREG:
                    about.append(hashlib.sha256(path.read_bytes()).hexdigest())
                elif kind == stat.S_IFLNK:
                    about = [kind, os.readlink(path)]
                found["/" + str(path.relative_to(root))] = about
        buildah("umount", container)
        buildah("rm", container)
        return found

    def same_files():
        counts = []
        for name, model in BUILT.values():
            found, expected = files(name), files(model)
            more = sorted(set(found) - set(expected))
            assert not more, f"{name} has {more[:20]}"
            lost = sorted(path for path in set(expected) - set(found) if not LEFT_OUT.match(path))
            assert not lost, f"{name} lacks {lost[:20]}"
            different = {path: (found[path], expected[path]) for path in found if found[path] != expected[path]}
            assert not different, f"{name}: {dict(list(different.items())[:5])}"
            counts.append(f"{len(found)} of {len(expected)}")
        return f"{' and '.join(counts)} files"

    def pins():
        """What the Dockerfile repeats: the toolchain and the version."""
        text = DOCKERFILE.read_text()
        toolchain = tomllib.loads((place.ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
        version = tomllib.loads((place.ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
        assert f"ARG RUST_VERSION={toolchain}\n" in text, f"Rust is {toolchain}"
        assert f"ARG VERSION={version}\n" in text, f"the version is {version}"

    def runs():
        port = free_port()
        for image, variables in (
            (BUILT["slim"][0], {"MAINSTEM_LISTEN": f"0.0.0.0:{port}"}), (BUILT["kafka"][0], {"KAFKA_LISTENERS": f"PLAINTEXT://:{port}"}),
        ):
            given = {**variables, "MAINSTEM_ADMIN_LISTEN": ""}
            container = podman.start(image, *(word for name, value in given.items() for word in ("--env", f"{name}={value}")))
            kcat(f"127.0.0.1:{port}", "-P", "-t", "t", records="one\n")
            assert kcat(f"127.0.0.1:{port}", "-C", "-t", "t", "-e", "-q") == ["one"]
            for program in PROGRAMS if image == BUILT["kafka"][0] else ("mainstem",):
                container.run(*(("sh", "-c", "true") if program == "sh" else (program, "--version")))
            container.remove()

    yield "Dockerfile: builds both images", 2 * BUILD_SECONDS, build
    yield "Dockerfile: the same configuration as packaging/image/build", 60, same_configuration
    yield "Dockerfile: the same files", 120, same_files
    yield "Dockerfile: the pinned versions", 10, pins
    yield "Dockerfile: both images run", 60, runs
