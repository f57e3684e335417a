"""Toxiproxy in front of a cluster, as sarama's functional tests want it: a proxy for each broker, which they disturb."""

import json
import subprocess
import urllib.request

from . import place
from .report import until

CONTROL = "127.0.0.1:8474"
# Fixed in sarama's tests, like their number.
PORTS = {number: 29090 + number for number in range(1, 6)}


def address(number):
    """Where clients find the broker `number`."""
    return f"127.0.0.1:{PORTS[number]}"


class Toxiproxy:
    def __init__(self, upstreams, log_path):
        """`upstreams` are the brokers' own addresses, by number."""
        with open(log_path, "wb") as log:
            host, _, port = CONTROL.rpartition(":")
            command = [place.CACHE / "bin" / "toxiproxy", "-host", host, "-port", port]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.upstreams = upstreams

    def __enter__(self):
        try:
            until(self.ready, "toxiproxy")
            for number, upstream in self.upstreams.items():
                proxy = {"name": f"kafka{number}", "listen": address(number), "upstream": upstream, "enabled": True}
                self.ask("/proxies", proxy)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ask(self, path, body=None):
        data = json.dumps(body).encode() if body else None
        with urllib.request.urlopen(urllib.request.Request(f"http://{CONTROL}{path}", data), timeout=5) as answer:
            return answer.read()

    def ready(self):
        assert self.process.poll() is None, "toxiproxy ended"
        try:
            return self.ask("/version")
        except OSError:
            return None
