"""What clients in this process log, as it happens: librdkafka writes to standard error from its own threads, also while a call of the
client does not return. And where the threads of this process are."""

import collections
import os
import re
import threading
import time
from pathlib import Path

LINES_MAX = 3000
# A hundred a second, which would push out all others.
FETCHES = re.compile(rb" (Sent|Received) Fetch(Request|Response) ")
# %7|1732896000.123|SEND|name#consumer-1| text
LINE = re.compile(rb"%\d\|[\d.]+\|\w+\|(?P<client>[^|#]+)#\w+-\d+\|")


class ClientLogs:
    """Takes standard error: lines of clients are kept by the client's id, all others go on to where they went."""

    def __init__(self):
        self.lines = collections.defaultdict(lambda: collections.deque(maxlen=LINES_MAX))
        reading, writing = os.pipe()
        self.others = os.dup(2)
        os.dup2(writing, 2)
        os.close(writing)
        threading.Thread(target=self._read, args=(reading,), daemon=True).start()

    def _read(self, descriptor):
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                if found := LINE.match(line):
                    if FETCHES.search(line):
                        continue
                    self.lines[found["client"].decode()].append(f"{stamp()} {line.decode(errors='replace').rstrip()}")
                else:
                    os.write(self.others, line)

    def write(self, client, path):
        path.write_text("\n".join(self.lines[client]))


def stamp():
    now = time.time()
    return f"{time.strftime('%H:%M:%S', time.gmtime(now))}.{now % 1 * 1000:03.0f}"


def cpu_ms():
    """Milliseconds of a processor that each thread of this process has had."""
    used = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            # Behind the name, which may have blanks: the fields from the third one on.
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used[task.name] = (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")
    return used


def threads():
    """A line for each thread of this process: its name, its share of a processor in a second, the system call that it is in with the
    call's arguments, where in the kernel. A client that spins does not wait for a server."""
    before = cpu_ms()
    time.sleep(1)
    after = cpu_ms()
    lines = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name)):
        parts = [f"{(after.get(task.name, 0) - before.get(task.name, 0)) / 10:.0f} %"]
        for file in ("comm", "syscall", "wchan"):
            try:
                parts.append((task / file).read_text().strip())
            except OSError as error:
                parts.append(f"({file}: {error.strerror})")
        lines.append(" ".join([task.name, *parts]))
    return "\n".join(lines) + "\n"
