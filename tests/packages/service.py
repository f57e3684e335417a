"""The service in a root, started by its unit's command and with most of its sandbox, but without systemd."""

import os
import re
import resource
import signal
import subprocess
from pathlib import Path

from root import inside
from suite.ports import free_address
from suite.report import until
from unit import Unit, parse_environment

UNIT = "/usr/lib/systemd/system/mainstem.service"
STATE = "/var/lib/mainstem"
STOP_SECONDS = 30
NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


class Service:
    def __init__(self, root):
        self.root = root
        self.unit = Unit(root.path(UNIT).read_text())
        self.log_path = root.directory.with_suffix(".log")
        self.log_path.write_bytes(b"")
        self.process = None
        self.starts = 0
        self.address, self.admin = (free_address() for _ in range(2))
        variables = root.path(self.unit.environment_file())
        variables.write_text(f"# The administrator's.\nMAINSTEM_LISTEN={self.address}\nMAINSTEM_ADMIN_LISTEN={self.admin}\n"
                             "MAINSTEM_GROUP_INITIAL_REBALANCE_DELAY_MS=0\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            for each in (self.server_id(), self.process.pid):
                os.kill(each, signal.SIGKILL)
            self.process.wait()

    def allowed(self):
        return self.unit.system_calls(self.root.run("systemd-analyze", "syscall-filter").stdout)

    def plan(self, is_filtered):
        user, group = self.root.ids()
        assert self.unit.value("User") == self.unit.value("Group") == "mainstem"
        variables = self.root.path(self.unit.environment_file())
        given = parse_environment(variables.read_text()) if variables.exists() else {}
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())}
        return {
            "user": user, "group": group, "umask": int(self.unit.value("UMask"), 8), "environment": given,
            "files": min(int(self.unit.value("LimitNOFILE")), most),
            "writable": f"/var/lib/{self.unit.value('StateDirectory')}",
            "allowed": sorted(numbers[name] for name in self.allowed() if name in numbers) if is_filtered else None,
        }

    def start(self, prefix=(), is_filtered=True):
        """With a `prefix`, such as strace, that one makes calls of its own, which the filter would refuse."""
        command = inside(self.root.directory, self.plan(is_filtered), *prefix, *self.unit.command())
        self.starts += 1
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: self.log().count("mainstem is ready on ") == self.starts or self.process.poll() is not None, "the server to be ready")
        assert self.process.poll() is None, f"exit code {self.process.returncode}: {self.log()[-1500:]}"

    def log(self):
        return self.log_path.read_text(errors="replace")

    def server_id(self):
        """The process of the server, which strace has as its child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else self.process.pid

    def status(self):
        """The server's process as the kernel sees it."""
        lines = Path(f"/proc/{self.server_id()}/status").read_text().splitlines()
        return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}

    def stop(self):
        """As the unit says."""
        os.kill(self.server_id(), signal.Signals[self.unit.value("KillSignal")])
        code = self.process.wait(STOP_SECONDS)
        assert code == 0, f"exit code {code}: {self.log()[-1500:]}"


def kcat(address, *arguments, records=None, seconds=60):
    """What kcat of this machine prints, from outside of the root."""
    done = subprocess.run(["kcat", "-b", address, *arguments], input=records, text=True, capture_output=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout.splitlines()


def read(address, topic):
    """All records of a topic. At its end the server need not wait for more."""
    return kcat(address, "-C", "-t", topic, "-e", "-q", "-X", "fetch.wait.max.ms=10")
