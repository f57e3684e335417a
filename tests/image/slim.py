"""The image with the program alone."""

import gzip
import json
import os
import shutil
import subprocess
import time

from podman import CGROUPS, SLIM, kcat
from suite.ports import free_port
from suite.report import until

MB = 1_000_000
SLIM_BYTES_MAX = 30 * MB
MEMORY_BYTES = 128 << 20
STOP_SECONDS_MAX = 10


def cases(podman):
    def server(*options, **more):
        port, admin = free_port(), free_port()
        container = podman.start(SLIM, "--env", f"MAINSTEM_LISTEN=0.0.0.0:{port}", "--env", f"MAINSTEM_ADMIN_LISTEN=127.0.0.1:{admin}",
                                 *options, **more)
        return container, f"127.0.0.1:{port}"

    def size():
        archive = podman.directory / "slim.tar"
        podman.ask("save", "--format", "oci-archive", "--output", str(archive), SLIM)
        # The layers are stored as they are in vfs: compressed they are what a registry serves.
        packed = sum(len(gzip.compress(layer, 6)) for layer in parts(archive))
        assert packed < SLIM_BYTES_MAX, f"{packed / MB:.1f} MB"
        archive.unlink()
        config = json.loads(podman.ask("inspect", "--type", "image", SLIM).stdout)[0]["Config"]
        assert config["User"] == "1000:0" and "/var/lib/mainstem" in config["Volumes"], config
        return f"{packed / MB:.1f} MB compressed"

    def outside():
        volume = podman.volume("outside")
        container, bootstrap = server("--volume", f"{volume}:/var/lib/mainstem")
        kcat(bootstrap, "-P", "-t", "t", records="one\ntwo\n")
        assert kcat(bootstrap, "-C", "-t", "t", "-e", "-q") == ["one", "two"]
        assert "allow.insecure.listeners allows that" in container.log(), container.log()
        engine = "io_uring" if "io_uring is refused" not in container.log() else "threads with O_DIRECT"
        begin = time.monotonic()
        podman.ask("stop", "--time", "30", container.name)
        seconds = time.monotonic() - begin
        assert container.inspect()["State"]["ExitCode"] == 0 and seconds < STOP_SECONDS_MAX, (container.log(), seconds)
        container.restart()
        assert kcat(bootstrap, "-C", "-t", "t", "-e", "-q") == ["one", "two"]
        container.remove()
        return f"{engine}, stopped in {seconds:.1f} s"

    def killed():
        volume = podman.volume("killed")
        container, bootstrap = server("--volume", f"{volume}:/var/lib/mainstem")
        acknowledged = 0
        for turn in range(5):
            records = [f"{turn} {number}" for number in range(2000)]
            kcat(bootstrap, "-P", "-t", "t", "-X", "acks=all", records="\n".join(records) + "\n")
            acknowledged += len(records)
            container.signal("KILL")
            until(lambda: not container.is_running(), "the container to end")
            container.restart()
            found = kcat(bootstrap, "-C", "-t", "t", "-e", "-q")
            assert len(found) == acknowledged and set(records) <= set(found), f"{len(found)} of {acknowledged} after kill {turn + 1}"
        container.remove()
        return f"{acknowledged} acknowledged, 5 kills"

    def memory():
        group = CGROUPS / "memory" / "mainstem-image-test"
        if not (CGROUPS / "memory" / "memory.limit_in_bytes").exists():
            return "not tested: the control group of memory is not here"
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
        inside = ("sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh")
        try:
            # The server sees its limit as in any container: as the root of what it sees of control groups.
            container, bootstrap = server("--volume", f"{group}:/sys/fs/cgroup/memory:ro", prefix=inside)
            line = "x" * 1000 + "\n"
            for _ in range(6):
                kcat(bootstrap, "-P", "-t", "t", "-X", "acks=all", records=line * 50_000, seconds=60)
            assert container.is_running(), container.log()[-1000:]
            most = int((group / "memory.max_usage_in_bytes").read_text())
            assert MEMORY_BYTES / 5 < most <= MEMORY_BYTES, f"{most} bytes: is the server in the control group?"
            oom = (group / "memory.oom_control").read_text()
            assert "oom_kill 0" in oom or "oom_kill" not in oom, oom
            shown = subprocess.run(["kcat", "-b", bootstrap, "-C", "-t", "t", "-e", "-q"], stdout=subprocess.PIPE, check=True)
            assert shown.stdout.count(b"\n") == 300_000
            container.remove()
            return f"300 MB through a server of {most >> 20} MiB at most"
        finally:
            until(lambda: not (group / "cgroup.procs").read_text(), "the control group to be empty")
            os.rmdir(group)

    def read_only():
        volume = podman.volume("readonly")
        container, bootstrap = server("--read-only", "--read-only-tmpfs=false", "--volume", f"{volume}:/var/lib/mainstem")
        kcat(bootstrap, "-P", "-t", "t", records="one\n")
        assert kcat(bootstrap, "-C", "-t", "t", "-e", "-q") == ["one"]
        container.remove()

    def any_user():
        volume = podman.volume("user")
        container, bootstrap = server("--user", "123456:0", "--volume", f"{volume}:/var/lib/mainstem")
        kcat(bootstrap, "-P", "-t", "t", records="one\n")
        container.remove()

    def group_of_a_volume():
        """As Kubernetes mounts a volume with fsGroup: root's, and writable for a group that the process is put into."""
        given = podman.directory / "given"
        given.mkdir()
        os.chown(given, 0, 4000)
        given.chmod(0o2775)
        container, bootstrap = server("--group-add", "4000", "--user", "1000:1000", "--volume", f"{given}:/var/lib/mainstem")
        kcat(bootstrap, "-P", "-t", "t", records="one\n")
        container.remove()
        shutil.rmtree(given)

    def health():
        container, _ = server()
        assert container.run("mainstem", "health").stdout == "healthy\n"
        done = podman.ask("healthcheck", "run", container.name, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        container.remove()

    yield "slim: its size, user and volume", 120, size
    yield "slim: clients from outside, a stop, a restart with its volume", 120, outside
    yield "slim: kill -9 loses nothing", 180, killed
    yield "slim: 128 MiB of memory hold under load", 300, memory
    yield "slim: a root file system that cannot be written", 60, read_only
    yield "slim: any user of group 0", 60, any_user
    yield "slim: a volume that is given to a group", 60, group_of_a_volume
    yield "slim: the health check", 60, health


def parts(archive):
    """The layers in an archive of an image."""
    import tarfile

    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.size > 100_000:
                data = tar.extractfile(member).read()
                yield gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
