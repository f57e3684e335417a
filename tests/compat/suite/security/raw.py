"""A client of sockets that says of Kafka's authentication what it is told to, and notes what it is answered.

What it notes are texts, one for each answer, which are the same for both servers: see raw_cases.py. It knows just
enough of SCRAM (RFC 5802), PLAIN and OAUTHBEARER (RFC 7628) to log in rightly, and to do so wrongly in one place.
"""

import base64
import hashlib
import hmac
import os
import socket
import ssl
import struct
import time

from .users import MECHANISMS

ANSWER_SECONDS = 5
# Kafka closes 100 ms after it has refused a connection, when it comes round to it: every 300 ms.
CLOSE_SECONDS = 0.6
METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 3, 17, 18, 36


def text(value):
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def sized(data):
    return struct.pack(">i", len(data)) + data


def request(key, version, body, correlation=7):
    """A frame with a header of the older kind, which all that is sent here has."""
    return sized(struct.pack(">hhi", key, version, correlation) + text("raw") + body)


def handshake(mechanism, version=1):
    return request(SASL_HANDSHAKE, version, text(mechanism))


def authenticate(token, version=1):
    return request(SASL_AUTHENTICATE, version, sized(token))


def api_versions(version=0):
    # The newer versions have tags, here none, behind the header and at the end, and name the client between them.
    return request(API_VERSIONS, version, b"\0\4raw\0021\0" if version >= 3 else b"")


def metadata():
    """Of no topic: what everybody who has logged in may ask for."""
    return request(METADATA, 4, struct.pack(">i", 0) + b"\0")


class Raw:
    def __init__(self, address, context=None):
        host, _, port = address.rpartition(":")
        self.notes, self.last, self.session_ms = [], None, None
        self.socket = socket.create_connection((host, int(port)), ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname=host)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, seconds=ANSWER_SECONDS):
        """The next frame; None when the connection is closed, "" when nothing comes."""
        self.socket.settimeout(seconds)
        try:
            head = self.exactly(4)
            return None if head is None else self.exactly(*struct.unpack(">i", head))
        except TimeoutError:
            return ""

    def exactly(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except (ConnectionResetError, ssl.SSLError):
                more = b""
            if not more:
                return None
            data += more
        return data

    def note(self, what):
        if what != "closed" or self.notes[-1:] != [what]:
            self.notes.append(what)

    def ask(self, frame, read, what):
        self.send(frame)
        return self.hear(read, what)

    def hear(self, read, what):
        body = self.answer()
        if body is None:
            self.note("closed")
        elif body == "":
            self.note(f"{what}: silence")
        else:
            self.note(f"{what} {read(body)}")
        return bool(body)

    # What is said and noted

    def handshake(self, mechanism, version=1):
        return self.ask(handshake(mechanism, version), self.read_handshake, "handshake")

    def read_handshake(self, body):
        error, count = struct.unpack(">hi", body[4:10])
        mechanisms, at = [], 10
        for _ in range(count):
            length, = struct.unpack(">h", body[at:at + 2])
            mechanisms.append(body[at + 2:at + 2 + length].decode())
            at += 2 + length
        said = "all" if sorted(mechanisms) == sorted(MECHANISMS) else ",".join(sorted(mechanisms))
        return f"{error} {said}".strip()

    def token(self, data, version=1):
        return self.ask(authenticate(data, version), lambda body: self.read_token(body, version), "token")

    def read_token(self, body, version):
        error, length = struct.unpack(">hh", body[4:8])
        at = 8 + max(0, length)
        message = body[8:at].decode() if length >= 0 else None
        size, = struct.unpack(">i", body[at:at + 4])
        self.last = body[at + 4:at + 4 + max(0, size)]
        if version >= 1:
            self.session_ms, = struct.unpack(">q", body[at + 4 + max(0, size):][:8])
        return f"{error} {message or ''}".strip()

    def bare(self, data):
        """A token as SaslHandshake v0 has it, without a request around it."""
        def read(body):
            self.last = body
            return f"of {len(body)} bytes" if len(body) < 10 else "of some bytes"
        return self.ask(sized(data), read, "token")

    def api_versions(self, version=0):
        return self.ask(api_versions(version), lambda body: struct.unpack(">h", body[4:6])[0], "versions")

    def metadata(self):
        return self.ask(metadata(), self.read_metadata, "metadata")

    def read_metadata(self, body):
        """Without brokers it is an error's: Metadata has no code of its own."""
        brokers, = struct.unpack(">i", body[8:12])
        return "answered" if brokers else "with an error"

    def end(self):
        """Whether the connection is closed by now."""
        if self.notes and self.notes[-1] == "closed":
            return
        body = self.answer(CLOSE_SECONDS)
        self.note("closed" if body is None else "open" if body == "" else "an answer to nothing")


class Scram:
    """Each message can be changed on its way; the proof fits what was said."""

    def __init__(self, mechanism, user, password, nonce=None, header="n,,"):
        self.digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self.password, self.header = password, header
        self.nonce = nonce or base64.b64encode(os.urandom(18)).decode()
        self.first_bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"

    def first(self):
        return (self.header + self.first_bare).encode()

    def final(self, challenge, nonce=None, binding=None):
        challenge = challenge.decode()
        fields = dict(part.split("=", 1) for part in challenge.split(","))
        salted = hashlib.pbkdf2_hmac(self.digest, self.password.encode(), base64.b64decode(fields["s"]),
                                     int(fields["i"]))
        client_key = self.hmac(salted, b"Client Key")
        said = f"c={base64.b64encode((binding or self.header).encode()).decode()},r={nonce or fields['r']}"
        whole = f"{self.first_bare},{challenge},{said}".encode()
        signature = self.hmac(hashlib.new(self.digest, client_key).digest(), whole)
        proof = bytes(a ^ b for a, b in zip(client_key, signature))
        self.server_signature = self.hmac(self.hmac(salted, b"Server Key"), whole)
        return f"{said},p={base64.b64encode(proof).decode()}".encode()

    def hmac(self, key, message):
        return hmac.new(key, message, self.digest).digest()

    def check(self, verifier):
        """The server has to know the password too."""
        wanted = b"v=" + base64.b64encode(self.server_signature)
        assert verifier == wanted, f"the server's signature is {verifier}, not {wanted}"


def log_in(peer, mechanism, user, password):
    """All that a good client says, with handshake."""
    peer.handshake(mechanism)
    if mechanism == "PLAIN":
        peer.token(f"\0{user}\0{password}".encode())
        return
    scram = Scram(mechanism, user, password)
    if peer.token(scram.first()) and peer.notes[-1] == "token 0":
        peer.token(scram.final(peer.last))
        if peer.notes[-1] == "token 0":
            scram.check(peer.last)


def timed(work):
    begin = time.monotonic()
    work()
    return time.monotonic() - begin
