"""A connection to the server, and what can be expected of it."""

import errno
import functools
import socket
import ssl
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "compat"))

import wire  # noqa: E402
from suite.security import raw  # noqa: E402

ANSWER_SECONDS = 5
CLOSE_SECONDS = 3


class Peer:
    def __init__(self, address, receive_bytes=None):
        self.socket = socket.socket()
        if receive_bytes:
            # Before connecting, or the window is large already.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(ANSWER_SECONDS)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """A server that closes meanwhile is what many attacks expect: reading will tell."""
        self.socket.settimeout(ANSWER_SECONDS)
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return self

    def end(self):
        """No more will be sent."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        return self

    def vanish(self):
        """Without a goodbye: the server gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def receive(self, count, deadline):
        data = bytearray()
        while len(data) < count:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                received = self.socket.recv(count - len(data))
            except ConnectionResetError:
                received = b""
            except TimeoutError:
                raise AssertionError(f"nothing came in time, {len(data)} of {count} bytes before") from None
            if not received:
                return bytes(data), True
            data += received
        return bytes(data), False

    def answer(self, correlation=wire.CORRELATION, seconds=ANSWER_SECONDS):
        """The body of the next answer, which has to carry this correlation id."""
        body = self.answer_or_end(seconds)
        assert body is not None, "the connection was closed instead of an answer"
        assert body[:4] == struct.pack(">i", correlation), f"the answer has correlation id {body[:4].hex()}"
        return body[4:]

    def answer_or_end(self, seconds=ANSWER_SECONDS):
        """The next answer with its header, None when the connection is closed."""
        deadline = time.monotonic() + seconds
        size, ended = self.receive(4, deadline)
        if ended:
            assert not size, f"the connection was closed after {size.hex()}"
            return None
        size, = struct.unpack(">i", size)
        assert 4 <= size < 1 << 30, f"an answer claims {size} bytes"
        body, ended = self.receive(size, deadline)
        assert not ended, f"the connection was closed {len(body)} bytes into an answer of {size}"
        return body

    def closed(self, seconds=CLOSE_SECONDS):
        """Closed in time, and not a byte before."""
        try:
            data, ended = self.receive(1, time.monotonic() + seconds)
        except AssertionError:
            raise AssertionError(f"the connection is open after {seconds} s") from None
        assert ended, f"a byte came instead of the end: {data.hex()}"

    def still_open(self, seconds):
        """Open and silent for so long."""
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(1)
        except TimeoutError:
            return
        except ConnectionResetError:
            data = b""
        raise AssertionError(f"a byte came: {data.hex()}" if data else "the connection was closed")

    def ask(self, request, seconds=ANSWER_SECONDS):
        self.send(request.frame())
        return self.answer(seconds=seconds)


class SecurePeer(Peer):
    """Over TLS where there is an authority to trust, logged in where there is a user."""

    def __init__(self, address, authority=None, user=None, password=None):
        super().__init__(address)
        if authority:
            self.socket = trusting(authority).wrap_socket(self.socket, server_hostname=address[0])
        if user:
            self.log_in(user, password)

    def log_in(self, user, password):
        self.send(raw.handshake("SCRAM-SHA-256"))
        body = self.answer_or_end()
        assert body and body[4:6] == b"\0\0", f"the handshake was answered {body}"
        client = raw.Scram("SCRAM-SHA-256", user, password)
        client.check(self.token(client.final(self.token(client.first()))))

    def token(self, data):
        self.send(raw.authenticate(data, 0))
        body = self.answer_or_end()
        assert body and body[4:6] == b"\0\0", f"the log-in was answered {body}"
        # Error and message, which is null.
        return body[12:]

    def closed(self, seconds=CLOSE_SECONDS):
        try:
            super().closed(seconds)
        except ssl.SSLError:
            # An alert, or an end without one.
            pass


@functools.cache
def trusting(authority):
    return ssl.create_default_context(cafile=authority)
