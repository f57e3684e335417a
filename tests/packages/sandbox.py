"""The unit: what systemd says of it, and whether it allows what the server does."""

import re
import shutil
import signal
import subprocess
import urllib.request

from root import inside
from service import STATE, UNIT, Service, kcat, read
from suite.report import until

# Of ten: 0.0 would be a service without a network. What is left are its sockets, and what it may see of /proc.
EXPOSURE_MAX = 1.5
RECORDS = 20_000
# strace's table, with fewer calls than these, would be one of a server that did nothing.
CALLS_MIN = 40


def cases(made, root):
    """`made` is a run of packaging/dist, and `root` a clean root, or one with the package."""

    def with_package():
        if not root.path(UNIT).exists():
            root.install(made.deb)
        shutil.rmtree(root.path(STATE))
        root.run("install", "-d", "-o", "mainstem", "-g", "mainstem", "-m", "0700", STATE)

    def verified():
        with_package()
        # Manual pages are checked as files: this root has no man.
        done = root.run("systemd-analyze", "verify", "--man=no", UNIT, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stdout + done.stderr
        assert root.path("/usr/share/man/man1/mainstem.1.gz").exists()

    def exposed():
        with_package()
        done = root.run("systemd-analyze", "security", "--offline=yes", f"--threshold={round(EXPOSURE_MAX * 10)}", "--no-pager", UNIT,
                        check=False)
        found = re.search(r"Overall exposure level for mainstem\.service: ([\d.]+)", done.stdout)
        assert found and float(found[1]) <= EXPOSURE_MAX and done.returncode == 0, done.stdout + done.stderr
        return f"{found[1]} of 10, at most {EXPOSURE_MAX}"

    def filtered():
        """The filter of the tests kills, or the other cases would show nothing."""
        with_package()
        with Service(root) as service:
            plan = service.plan(is_filtered=True)
            assert {"io_uring_setup", "io_uring_enter", "io_uring_register"} <= service.allowed()
        for command, code in ((("true",), 0), (("nice", "-n", "1", "true"), -signal.SIGSYS), (("touch", f"{STATE}/a"), 0),
                              (("touch", "/etc/a"), 1)):
            program = f"/usr/bin/{command[0]}"
            done = subprocess.run(inside(root.directory, plan, program, *command[1:]), capture_output=True, timeout=30, check=False)
            assert done.returncode == code, (command, done)

    def calls():
        """Every call of the server's life: start, load, metrics, a stop, recovery."""
        with_package()
        table = root.path(f"{STATE}/calls")
        used = set()
        with Service(root) as service:
            for turn in range(2):
                service.start(prefix=("/usr/bin/strace", "-f", "-c", "-U", "name", "-o", f"{STATE}/calls"), is_filtered=False)
                load(service, turn)
                service.stop()
                used |= {line.strip() for line in table.read_text().splitlines()[2:] if re.fullmatch(r"[a-z]\w+", line.strip())}
            used.discard("total")
            refused = used - service.allowed()
            engine = "threads" if "io_uring is refused" in service.log() else "io_uring"
        assert not refused, f"the unit refuses {sorted(refused)}"
        assert len(used) >= CALLS_MIN and {"openat", "sendto", "accept4"} <= used, sorted(used)
        return f"{len(used)} different ones, {engine}"

    def at_work():
        """The same under the filter, where a call that is not allowed would kill the server."""
        with_package()
        with Service(root) as service:
            for turn in range(2):
                service.start()
                load(service, turn)
                service.stop()
        return "without systemd: filter, user, capabilities and read-only files as in the unit"

    yield "systemd: the unit is verified without a word", 60, verified
    yield "systemd: exposure of the unit", 60, exposed
    yield "systemd: the filter of the tests refuses what the unit does", 60, filtered
    yield "systemd: the unit allows each system call of the server", 120, calls
    yield "systemd: the server works under the unit's filter", 120, at_work


def load(service, turn):
    """Producers, a reader, a group, metrics. What earlier turns sent is there."""
    address, topic = service.address, "load"
    kcat(address, "-P", "-t", topic, "-z", "gzip", records="".join(f"{turn} {number}\n" for number in range(RECORDS)))
    kcat(address, "-P", "-t", f"other-{turn}", "-X", "enable.idempotence=true", records="a\nb\n")
    found = read(address, topic)
    assert len(found) == RECORDS * (turn + 1), len(found)
    found = kcat(address, "-q", "-X", "auto.offset.reset=earliest", "-c", "2", "-G", f"group-{turn}", f"other-{turn}")
    assert sorted(found) == ["a", "b"], found

    def scraped():
        with urllib.request.urlopen(f"http://{service.admin}/metrics", timeout=5) as answer:
            return b"process_resident_memory_bytes" in answer.read()

    until(scraped, "metrics")
