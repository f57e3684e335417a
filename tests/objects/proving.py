"""Shows that the proxy does what it says, on a store of a few lines, and that losses are seen."""

import functools
import http.client
import http.server
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import s3
from store import CREDENTIALS, Proxy
from suite.ports import free_address
from suite.report import until

HERE = Path(__file__).resolve().parent
RUN_SECONDS_MAX, ROUND_SECONDS = 240, 25
# What the run says of objects that are gone. The server may find out, and store nothing more.
LOSSES = ("waiting for the rest of the log", "waiting for the store to have everything", "objects are not there", "lost:")
PATH, BODY = "/records/logs/1", b"an object"


class Store:
    """Keeps what is put, and notes every request: (method, path, headers)."""

    def __init__(self, address):
        noted, objects = self.noted, self.objects = [], {}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                taken = self.headers["if-none-match"] and self.path in objects
                noted.append(("PUT", self.path, dict(self.headers.items())))
                if not taken:
                    objects[self.path] = body
                self.answer(412 if taken else 200)

            def do_GET(self):
                noted.append(("GET", self.path, dict(self.headers.items())))
                self.answer(200 if self.path in objects else 404, objects.get(self.path, b""))

            def answer(self, status, body=b""):
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Nothing."""

        host, _, port = address.rpartition(":")
        self.server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Bench:
    """The proxy, the store behind it, and a client."""

    def __init__(self, directory):
        self.address, store = free_address(), free_address()
        self.store, self.proxy = Store(store), Proxy(directory, self.address, store, 1)

    def end(self):
        self.proxy.end()
        self.store.server.shutdown()
        self.store.server.server_close()

    def ask(self, method="PUT", body=BODY, seconds=10, **headers):
        """(status, body), or None if the connection ended or no answer came in time."""
        connection = http.client.HTTPConnection(self.address, timeout=seconds)
        try:
            connection.request(method, PATH, body if method == "PUT" else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def landed(self):
        return PATH in self.store.objects


def open_(bench):
    assert bench.ask() == (200, b"") and bench.ask("GET") == (200, BODY)
    method, _, headers = bench.store.noted[0]
    host = {name.lower(): value for name, value in headers.items()}["host"]
    assert (method, host) == ("PUT", bench.address), f"the store saw {method} for {host}"
    assert bench.ask(**{"If-None-Match": "*"})[0] == 412, "the condition did not arrive"


def lost(bench):
    bench.proxy.tell(rates={"lost": 1})
    assert bench.ask() is None and bench.landed()


def torn(bench):
    bench.ask()
    bench.proxy.tell(rates={"torn": 1})
    assert bench.ask("GET") is None and bench.store.noted[-1][0] == "GET"


def late(bench):
    bench.proxy.tell(rates={"late": 1})
    assert bench.ask() is None and not bench.landed(), "it landed before its client had given up"
    until(bench.landed, "the request to land")
    bench.store.objects.clear()
    assert bench.ask() is None
    assert bench.proxy.clear()["held"] == 0 and bench.landed(), "not everything landed at the end"


def busy(bench):
    bench.proxy.tell(rates={"busy": 1})
    status, body = bench.ask()
    assert status == 503 and b"SlowDown" in body and not bench.store.noted


def done_busy(bench):
    bench.proxy.tell(rates={"done-busy": 1})
    assert bench.ask()[0] == 503 and bench.landed()


def conflict(bench):
    bench.proxy.tell(rates={"conflict": 1})
    assert bench.ask(**{"If-None-Match": "*"})[0] == 409 and not bench.store.noted
    assert bench.ask()[0] == 200, "a put without a condition has no conflicts"


def slow(bench):
    bench.proxy.tell(rates={"slow": 1})
    begin = time.monotonic()
    assert bench.ask()[0] == 200 and time.monotonic() - begin > 0.04


def garbled(bench):
    bench.proxy.tell(rates={"garbled": 1})
    assert bench.ask()[0] == 200
    stored = bench.store.objects[PATH]
    assert len(stored) == len(BODY) and stored != BODY, stored
    assert bench.ask("GET") == (200, stored), "an answer was altered"


def away(bench):
    bench.proxy.tell(mode="away")
    assert bench.ask() is None and not bench.store.noted
    bench.proxy.tell(mode="open")
    assert bench.ask()[0] == 200


def silent(bench):
    bench.proxy.tell(mode="silent")
    assert bench.ask(seconds=0.5) is None
    until(bench.landed, "the request to land when its client has given up")


def unconditional(bench):
    bench.proxy.tell(mode="unconditional")
    names = ["host", "if-none-match", "x-amz-content-sha256", "x-amz-date"]
    headers = {"host": bench.address, "if-none-match": "*", "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
               "x-amz-date": "20260101T000000Z"}
    headers["authorization"] = s3.authorization(CREDENTIALS, "PUT", PATH, headers, names)
    assert bench.ask(**headers)[0] == 200 and bench.ask(body=b"another", **headers)[0] == 200
    assert bench.store.objects[PATH] == b"another", "the first put stayed"
    sent = {name.lower(): value for name, value in bench.store.noted[-1][2].items()}
    names.remove("if-none-match")
    expected = s3.authorization(CREDENTIALS, "PUT", PATH, headers, names)
    assert "if-none-match" not in sent and sent["authorization"] == expected, sent


def forgetful(bench):
    bench.proxy.tell(mode="forgetful")
    assert bench.ask()[0] == 200 and not bench.landed()


def altering(bench):
    bench.ask()
    bench.proxy.tell(mode="altering")
    status, body = bench.ask("GET")
    assert status == 200 and len(body) == len(BODY) and body != BODY


def counts(bench):
    bench.ask()
    bench.proxy.tell(rates={"busy": 0.5})
    for _ in range(40):
        bench.ask("GET")
    busy, passed = bench.proxy.counted("busy", "GET"), bench.proxy.counted("open", "GET")
    assert busy + passed == 40 and 8 <= busy <= 32, f"{busy} of 40 met a fault of every second"


def forgets():
    """The whole test against a store that says of the log's objects that it has them, and forgets them."""
    command = [HERE / "run", "--part", "ledger", "--rounds", "2", "--seed", "1", "--mode", "forgetful"]
    command += ["--kinds", "dropped", "--seconds", str(ROUND_SECONDS)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=RUN_SECONDS_MAX)
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAIL  ", "        "))]
    assert ran.returncode == 1, f"the run ended with {ran.returncode}:\n{ran.stdout}"
    assert any(reason in line for reason in LOSSES for line in failed), f"the run failed oddly:\n{ran.stdout}"
    for line in ran.stdout.splitlines():
        if "are kept in" in line:
            shutil.rmtree(line.rpartition(" ")[2])
    return "; ".join(line.strip() for line in failed)[:300]


def cases():
    faults = (open_, lost, torn, late, busy, done_busy, conflict, slow, garbled, away, silent, unconditional, forgetful, altering,
              counts)
    for case in faults:
        yield f"proxy: {case.__name__.strip('_').replace('_', '-')}", 20, functools.partial(benched, case)
    yield "a run whose store forgets fails", RUN_SECONDS_MAX, forgets


def benched(case):
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        try:
            case(bench)
        finally:
            bench.end()
