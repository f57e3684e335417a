"""MinIO behind the proxy, and servers of ours that keep records there."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import s3
from suite import place
from suite.ports import free_address
from suite.report import until
from suite.server import Server, ServerFailed, environment

HERE = Path(__file__).resolve().parent
MINIO = place.CACHE / "bin" / "minio"
CREDENTIALS = s3.Credentials("mainstem-tests", "a password of the tests")
BUCKET = "records"
# Small and quick, so that a short run has many objects, and segments that local copies leave with. An eighth of a segment takes a
# batch of clients' usual size.
SETTINGS = [
    "group.initial.rebalance.delay.ms=0", "log.segment.bytes=9437184", "log.retention.check.interval.ms=200",
    "object.store.object.bytes=1048576", "object.store.upload.interval.ms=200", "object.store.delete.delay.ms=500",
]


def at(host, address):
    """The address on another host, if there is one."""
    return f"{host}:{address.rpartition(':')[2]}" if host else address


class Minio:
    def __init__(self, directory, address):
        self.directory, self.address = directory, address
        self.process, self.s3 = None, s3.S3(address, CREDENTIALS)

    def start(self, password=CREDENTIALS.password):
        """Starts it on its directory; `password` is that of the one user."""
        # What a user's environment or home says to MinIO is not for this one.
        variables = {
            "PATH": os.environ["PATH"], "HOME": str(self.directory), "MINIO_BROWSER": "off",
            "MINIO_ROOT_USER": CREDENTIALS.user, "MINIO_ROOT_PASSWORD": password,
        }
        command = [MINIO, "server", "--quiet", "--address", self.address, self.directory / "objects"]
        with open(self.directory / "minio.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)
        until(self.ready, "MinIO")

    def ready(self):
        assert self.process.poll() is None, f"MinIO ended with {self.process.returncode}, see minio.log"
        try:
            # Its health probe says ready before the first bucket can be asked for.
            status, _ = self.s3.ask("GET", "/")
            return status != 503
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def blink(self, after, away):
        """Killed after so many seconds, and started again when it was away for so many."""
        time.sleep(after)
        self.kill()
        time.sleep(away)
        self.start()

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()


class Proxy:
    """The process of proxy.py."""

    def __init__(self, directory, address, store, seed):
        self.address = address
        command = [sys.executable, HERE / "proxy.py", address, store, *CREDENTIALS, str(seed)]
        with open(directory / "proxy.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout.readline(), "the proxy ended while starting, see proxy.log"

    def tell(self, **command):
        """The proxy's answer: "counts" and "held"."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the proxy ended, see proxy.log"
        return json.loads(answer)

    def clear(self):
        """No more faults, and nothing that is held: what was sent has landed."""
        return self.tell(rates={}, mode="open", settle=True)

    def counted(self, *words):
        """How many requests were counted under something with all these words."""
        counts = self.tell()["counts"]
        return sum(count for name, count in counts.items() if set(words) <= set(name.split()))

    def end(self):
        self.process.kill()
        self.process.wait()


class Site:
    """A store with its proxy, and room for servers that use it."""

    def __init__(self, directory, seed, host=None):
        """`host` is where servers find the store, if it is not this machine."""
        self.directory, self.seed, self.host = directory, seed, host

    def __enter__(self):
        self.minio = Minio(self.directory, free_address())
        self.proxy = None
        try:
            self.minio.start()
            address = at(self.host, free_address())
            self.proxy = Proxy(self.directory, address, self.minio.address, self.seed)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.minio.end()
        if self.proxy is not None:
            self.proxy.end()

    def server(self, name, bucket=BUCKET, prefix=None, password=CREDENTIALS.password):
        """Not started; its objects lie below its name, or below `prefix`."""
        directory = self.directory / name
        directory.mkdir()
        return StoredServer(self, directory, f"s3://{bucket}/{prefix or name}", password)


class StoredServer(Server):
    """A server of ours with the site's store."""

    def __init__(self, site, directory, bucket, password):
        super().__init__(None, directory, free_address(), [*SETTINGS, f"object.store={bucket}"])
        self.bucket = bucket
        # Nothing of the user's own clouds.
        self.variables = {name: value for name, value in environment().items() if not name.startswith("AWS_")} | {
            "AWS_ACCESS_KEY_ID": CREDENTIALS.user, "AWS_SECRET_ACCESS_KEY": password, "AWS_REGION": s3.REGION,
            "AWS_ENDPOINT_URL": f"http://{site.proxy.address}", "AWS_ALLOW_HTTP": "true",
        }

    def on_bucket(self, *arguments, seconds):
        """Runs a command on its bucket, with its credentials: (exit code, what it printed)."""
        command = [place.MAINSTEM, *arguments, "--from", self.bucket]
        ended = subprocess.run(command, env=self.variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=seconds)
        return ended.returncode, ended.stdout

    def popen(self, log, **options):
        return subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=log, env=self.variables, **options)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def logged(self, text):
        """The lines of its log with this text."""
        return [line for line in self.log().splitlines() if text in line]

    def require_no_bug(self, *expected):
        """No panic and no error in its log, but for lines with one of the expected texts."""
        bugs = [line for line in self.log().splitlines() if "panic" in line or " ERROR " in line or "a bug" in line]
        bugs = [line for line in bugs if not any(text in line for text in expected)]
        assert not bugs, f"{len(bugs)} lines, the first: {bugs[0][:500]}"

    def require_refusal(self, *texts):
        """Starts it: it has to end with an exit code that is not 0, and with all these texts in its log."""
        try:
            self.start()
        except ServerFailed:
            code = self.process.wait()
        else:
            raise AssertionError("the server started")
        log = self.log()
        missing = [text for text in texts if text not in log]
        assert code > 0 and not missing, f"it ended with {code}, without {missing}: {log[-600:]}"

    def stored_locally(self):
        """The numbers of the objects that its local files name."""
        return sorted(int(path.stem) for path in (self.directory / "data").glob("*.stored"))
