"""A proxy between the server and an S3 store. It does to requests what networks and busy stores do.

    proxy.py LISTEN STORE USER PASSWORD SEED        LISTEN and STORE are HOST:PORT

Each line on its standard input is a command as JSON, answered with a line of JSON: how many requests are held, and
counts of requests by fault, or mode, and method and subject: log for an object of the log, list, else. `listed` counts
the lists of the log's objects whose last page was answered. A command may have:

    rates   fault -> probability, for each request
    mode    open, or one of the modes below
    settle  true: forwards what is held, and answers when the store has it

    fault      what happens to a request
    lost       forwarded; the connection ends instead of the answer
    torn       forwarded; the connection ends in the middle of the answer, of its body if it has one
    late       the connection ends; the request is forwarded after that
    busy       503 SlowDown, not forwarded
    done-busy  forwarded; 503 SlowDown all the same
    conflict   a put under a condition gets 409, not forwarded
    slow       forwarded after a pause, and answered after another
    garbled    of a put, forwarded with another byte in its body: a store that compares it with its checksum refuses it

    mode           what happens to all requests
    away           nobody listens
    silent         no answer; forwarded when the client has given up
    unconditional  the condition of a put is ignored, as by a store that does not know it
    forgetful      a put of a log's object is answered with 200 and forgotten
    altering       a byte of each answer to a get of a log's object is another

Requests go on byte by byte, the header Host included, since their signatures cover it. The process ends with its
standard input.
"""

import asyncio
import collections
import json
import random
import socket
import sys

import s3

HEAD_BYTES_MAX, RECEIVE_BYTES = 64 * 1024, 256 * 1024
LATE_SECONDS, SLOW_SECONDS = (0.05, 3.0), (0.02, 0.4)
# A client that waits for an answer which does not come gives up before.
SILENT_SECONDS_MAX = 120
FAULTS = ("lost", "torn", "late", "busy", "done-busy", "conflict", "slow", "garbled")
MODES = ("open", "away", "silent", "unconditional", "forgetful", "altering")
BUSY = (503, "SlowDown", "Please reduce your request rate.")
CONFLICT = (409, "ConditionalRequestConflict", "A conflicting operation occurred during the request.")


class Gone(Exception):
    """The other side ended the connection, or the store gave no whole answer."""


class Request:
    def __init__(self, head, body):
        self.head, self.body = head, body
        self.method, self.target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        self.headers = headers_of(head)
        self.of_log = "/logs/" in self.target
        # What it is about, for the counts: an object of the log, a list of them, or something else.
        self.about = "log" if self.of_log else "list" if "logs%2F" in self.target else "else"

    def raw(self):
        # So that the end of the answer is the end of the connection. No signature covers this header.
        return self.head[:-2] + b"connection: close\r\n\r\n" + self.body

    def unconditional(self, credentials):
        """The same without its condition, and signed anew."""
        if "if-none-match" not in self.headers:
            return self
        covered = self.headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
        names = [name for name in covered if name != "if-none-match"]
        signature = s3.authorization(credentials, self.method, self.target, self.headers, names)
        kept = [line for line in self.head.split(b"\r\n")
                if not line.lower().startswith((b"if-none-match:", b"authorization:"))]
        kept.insert(1, b"authorization: " + signature.encode())
        return Request(b"\r\n".join(kept), self.body)


def headers_of(head):
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


class Proxy:
    def __init__(self, listen, store, credentials, seed):
        self.listen, self.store, self.credentials = listen, store, credentials
        self.rng = random.Random(seed)
        self.rates, self.mode = {}, "open"
        self.counts = collections.Counter()
        self.server, self.clients = None, set()
        # What is forwarded without a client that waits for it.
        self.held, self.hurry = set(), asyncio.Event()
        # What is being forwarded for a client that may be gone by now.
        self.going = set()

    async def open(self):
        host, port = self.listen
        self.server = await asyncio.start_server(self.serve, host, port, limit=HEAD_BYTES_MAX)

    async def close(self):
        self.server.close()
        self.server = None
        for writer in list(self.clients):
            writer.transport.abort()

    async def command(self, command):
        if "rates" in command:
            unknown = set(command["rates"]) - set(FAULTS)
            assert not unknown and sum(command["rates"].values()) <= 1, f"wrong rates: {command['rates']}"
            self.rates = command["rates"]
        if "mode" in command:
            assert command["mode"] in MODES, f"unknown mode {command['mode']}"
            self.mode = command["mode"]
            if self.mode == "away" and self.server is not None:
                await self.close()
            elif self.mode != "away" and self.server is None:
                await self.open()
        if command.get("settle"):
            self.hurry.set()
            if self.going:
                await asyncio.wait(set(self.going))
            while self.held:
                await asyncio.wait(self.held)
            self.hurry.clear()
        return {"counts": dict(self.counts), "held": len(self.held)}

    async def serve(self, reader, writer):
        self.clients.add(writer)
        try:
            while True:
                await self.treat(await request_of(reader), reader, writer)
        except (Gone, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self.clients.discard(writer)
            writer.close()

    async def treat(self, request, reader, writer):
        """Answers a request, or raises `Gone` to end the connection."""
        fault = self.draw(request)
        self.counts[f"{fault or self.mode} {request.method} {request.about}"] += 1
        if fault == "late":
            self.hold(request, self.rng.uniform(*LATE_SECONDS))
            raise Gone
        if fault == "busy":
            return await write(writer, refusal(*BUSY))
        if fault == "conflict":
            return await write(writer, refusal(*CONFLICT))
        if self.mode == "silent":
            # The client sends nothing before it is answered: what can be read is its end.
            try:
                await asyncio.wait_for(reader.read(1), SILENT_SECONDS_MAX)
            finally:
                self.hold(request, 0)
            raise Gone
        if self.mode == "forgetful" and request.method == "PUT" and request.of_log:
            return await write(writer, b'HTTP/1.1 200 OK\r\nETag: "0"\r\nContent-Length: 0\r\n\r\n')
        if fault == "slow":
            await asyncio.sleep(self.rng.uniform(*SLOW_SECONDS))
        if fault == "garbled":
            request = Request(request.head, another_byte(request.body, self.rng))
        if self.mode == "unconditional":
            request = request.unconditional(self.credentials)
        landed = asyncio.get_running_loop().create_future()
        self.going.add(landed)
        try:
            answer = await self.forward(request)
        finally:
            self.going.discard(landed)
            landed.set_result(None)
        if self.mode == "altering" and request.method == "GET" and request.of_log:
            answer = altered(answer, self.rng)
        if fault == "lost":
            raise Gone
        if fault == "torn":
            head, _, body = answer.partition(b"\r\n\r\n")
            await write(writer, answer[:-(len(body) // 2 + 1)] if body else head[:len(head) // 2])
            raise Gone
        if fault == "done-busy":
            answer = refusal(*BUSY)
        if fault == "slow":
            await asyncio.sleep(self.rng.uniform(*SLOW_SECONDS))
        await write(writer, answer)
        # The page without a key is the last one of a list.
        if request.about == "list" and answer.startswith(b"HTTP/1.1 200 ") and b"<Key>" not in answer:
            self.counts["listed"] += 1

    def draw(self, request):
        at = self.rng.random()
        for fault, rate in self.rates.items():
            if at < rate:
                meets = (fault != "conflict" or "if-none-match" in request.headers) and (fault != "garbled" or request.body)
                return fault if meets else None
            at -= rate
        return None

    def hold(self, request, seconds):
        async def later():
            try:
                await asyncio.wait_for(self.hurry.wait(), seconds)
            except TimeoutError:
                pass
            try:
                await self.forward(request)
            except (Gone, ConnectionError):
                # The store was away just then: this one never lands.
                self.counts[f"dropped {request.method}"] += 1

        task = asyncio.get_running_loop().create_task(later())
        self.held.add(task)
        task.add_done_callback(self.held.discard)

    async def forward(self, request):
        """The store's answer, ready for the client. If this raises, the store may have the request or not."""
        loop, answer = asyncio.get_running_loop(), bytearray()
        with socket.socket() as store:
            store.setblocking(False)
            await loop.sock_connect(store, self.store)
            # A store that refuses a request answers before it has read all of it, and may reset the connection then.
            sent = loop.create_task(loop.sock_sendall(store, request.raw()))
            try:
                while part := await loop.sock_recv(store, RECEIVE_BYTES):
                    answer += part
            except ConnectionResetError:
                """What came before counts, if it is whole."""
            finally:
                sent.cancel()
                await asyncio.gather(sent, return_exceptions=True)
        answer = bytes(answer)
        head, found, body = answer.partition(b"\r\n\r\n")
        if not found:
            raise Gone
        kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        headers = headers_of(head)
        if request.method == "HEAD" or head.split(b" ", 2)[1] in (b"204", b"304"):
            whole = not body
        elif "content-length" in headers:
            whole = len(body) == int(headers["content-length"])
        else:
            whole = body.endswith(b"0\r\n\r\n")
        if not whole:
            raise Gone
        return b"\r\n".join(kept) + b"\r\n\r\n" + body


async def request_of(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    headers = headers_of(head)
    if "transfer-encoding" in headers:
        raise Gone
    return Request(head, await reader.readexactly(int(headers.get("content-length", 0))))


async def write(writer, answer):
    writer.write(answer)
    await writer.drain()


def refusal(status, code, text):
    body = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
    return (f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def altered(answer, rng):
    head, _, body = answer.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + another_byte(body, rng) if body else answer


def another_byte(body, rng):
    at = rng.randrange(len(body))
    return body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1:]


def address_of(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


async def main():
    listen, store, user, password, seed = sys.argv[1:]
    proxy = Proxy(address_of(listen), address_of(store), s3.Credentials(user, password), seed)
    await proxy.open()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print(json.dumps({"ready": True}), flush=True)
    while line := await commands.readline():
        print(json.dumps(await proxy.command(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
