"""Attacks on what a network reaches: the time before a log-in, TLS, and connections as such.

A case is (name, seconds at most, attack, megabytes that it alone may cost).
"""

import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path

import wire
from crowd import Crowd
from peer import SecurePeer, trusting
from suite.security import raw

# The server's sasl.authentication.timeout.ms, and the slack of this suite on a machine that stands still at times.
LOGIN_SECONDS, SLACK_SECONDS = 2, 8
# For what comes at once from a server that works.
PATIENCE_SECONDS = 20
CROWD = 500
DRIP_SECONDS = 0.1
STORM_SECONDS, STORM_RATE = 5, 10_000
STORMERS = 2
# 127.0.0.0/8 is this machine's: the attackers come from an address of their own.
ATTACKER, LIMITED = "127.0.0.8", "127.0.0.9"
LIMITED_CONNECTIONS = 100
COST_MB = 64


def client_hello(authority):
    """What a client of TLS says at first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    talk = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        talk.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


class NetworkAttacks:
    def __init__(self, place, rng):
        self.place, self.rng = place, rng
        self.authority = str(place.certificates["authority"])
        self.hello = client_hello(self.authority)

    def cases(self):
        def case(name, attack, seconds=100, cost=COST_MB):
            return name, seconds, attack, cost

        for listener in ("LOGIN", "TLS", "TLSLOGIN"):
            yield case(f"{CROWD} connections say nothing: {listener.lower()}, closed in time",
                       lambda listener=listener: self.silent(listener))
        for listener in ("TLS", "TLSLOGIN"):
            yield case(f"{CROWD} connections say half of a ClientHello: {listener.lower()}, closed in time",
                       lambda listener=listener: self.silent(listener, self.hello[:len(self.hello) // 2]))
            yield case(f"{CROWD} connections say a ClientHello and no more: {listener.lower()}, closed in time",
                       lambda listener=listener: self.silent(listener, self.hello))
        yield case(f"{CROWD} connections say a byte now and then, of a first frame: login, closed in time",
                   lambda: self.dripping("LOGIN", raw.handshake("S" * 1000)))
        for listener in ("TLS", "TLSLOGIN"):
            yield case(f"{CROWD} connections say a byte now and then, of a ClientHello: {listener.lower()}, closed in time",
                       lambda listener=listener: self.dripping(listener, self.hello))
        yield case(f"{CROWD} connections say a byte now and then: plain, where there is no log-in", self.dripping_plain)
        yield case(f"{CROWD} log-ins stop after the first message: closed in time", self.parked)
        yield case("50 handshakes of TLS without a log-in: closed in time", self.no_login)
        yield case("200 wrong passwords at once: refused", self.wrong_passwords)
        yield case("renegotiation is refused", self.renegotiation)
        yield case("100 connections of TLS end in the middle of a frame, without a goodbye", self.truncated)
        yield case("random bytes instead of TLS: closed", self.random_tls)
        yield case("random bytes in TLS after the log-in: closed", self.random_frames)
        yield case("random bytes behind the handshake of TLS: closed", self.random_records)
        yield case(f"one address has more than its {LIMITED_CONNECTIONS} connections: the others are closed", self.limited)
        for listener in ("PLAIN", "TLSLOGIN"):
            yield case(f"{STORM_RATE:,} connects a second for {STORM_SECONDS} s: {listener.lower()}",
                       lambda listener=listener: self.storm(listener))
        yield case(f"handshakes of TLS, as many as there can be, for {STORM_SECONDS} s", self.handshakes)

    def address(self, listener):
        return self.place.address(listener)

    def crowd(self, listener, count=CROWD, source=ATTACKER):
        return Crowd(self.address(listener), count, source)

    def log_in(self, listener="TLSLOGIN"):
        authority = self.authority if listener.startswith("TLS") else None
        user = (self.place.user, self.place.password) if listener.endswith("LOGIN") else (None, None)
        return SecurePeer(self.address(listener), authority, *user)

    # Before a log-in

    def silent(self, listener, data=b""):
        with self.crowd(listener) as crowd:
            if data:
                crowd.say(data)
            return crowd.all_closed(LOGIN_SECONDS + SLACK_SECONDS)

    def dripping(self, listener, data):
        """Never silent for long, and closed all the same: what counts is when it began."""
        with self.crowd(listener) as crowd:
            crowd.drip(data[:-1], DRIP_SECONDS, LOGIN_SECONDS + SLACK_SECONDS)
            return crowd.all_closed(LOGIN_SECONDS + SLACK_SECONDS)

    def dripping_plain(self):
        with self.crowd("PLAIN") as crowd:
            crowd.drip(wire.metadata(["nothing" * 10]).frame(), DRIP_SECONDS, 4)
            return f"{len(crowd.open)} connections left"

    def parked(self):
        first = raw.Scram("SCRAM-SHA-256", self.place.user, "").first()
        with self.crowd("LOGIN") as crowd:
            crowd.say(raw.handshake("SCRAM-SHA-256") + raw.authenticate(first))
            return crowd.all_closed(LOGIN_SECONDS + SLACK_SECONDS)

    def no_login(self):
        peers = [SecurePeer(self.address("TLSLOGIN"), self.authority) for _ in range(50)]
        deadline = time.monotonic() + LOGIN_SECONDS + SLACK_SECONDS
        for peer in peers:
            with peer:
                peer.closed(deadline - time.monotonic())

    def wrong_passwords(self):
        """Each is told so late, which must not hold up others."""
        client = raw.Scram("SCRAM-SHA-256", self.place.user, "wrong")
        with self.crowd("LOGIN", 200) as crowd:
            crowd.say(raw.handshake("SCRAM-SHA-256") + raw.authenticate(client.first()))
            # The handshake's answer comes before.
            challenges = lambda heard: sum(client.nonce.encode() in data for data in heard.values())  # noqa: E731
            challenged = challenges(crowd.listen(PATIENCE_SECONDS, lambda heard: challenges(heard) == 200))
            assert challenged == 200, f"{challenged} challenges"
            # No proof fits: which one is said is all the same.
            final = b"c=biws,r=" + client.nonce.encode() + b"x,p=" + b"A" * 43 + b"="
            crowd.say(raw.authenticate(final))
            refused = crowd.listen(PATIENCE_SECONDS)
            wrong = [data for data in refused.values() if data[8:10] != struct.pack(">h", 58)]
            assert len(refused) == 200 and not wrong, f"{len(refused)} refusals, {wrong[:1]}"
            assert not crowd.open, f"{len(crowd.open)} are open"

    # TLS

    def renegotiation(self):
        host, port = self.address("TLS")
        command = ["openssl", "s_client", "-tls1_2", "-connect", f"{host}:{port}", "-CAfile", self.authority]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) as process:
            for line in ("R\n", "R\n", "Q\n"):
                time.sleep(0.4)
                try:
                    process.stdin.write(line)
                    process.stdin.flush()
                except BrokenPipeError:
                    break
            said = process.communicate(timeout=10)[0]
        again = said.partition("RENEGOTIATING")[2]
        assert again, f"openssl did not try: {said[-300:]}"
        assert "verify return" not in again, f"it was done: {again[-300:]}"
        return next((line.strip()[-60:] for line in again.splitlines() if "error" in line or "closed" in line), None)

    def truncated(self):
        frame = wire.produce(self.place.topic, {0: wire.batch([b"x" * 5000])}).frame()
        before = self.place.end_offset()
        files = self.place.open_files()
        for number in range(100):
            peer = self.log_in("TLS")
            peer.send(frame[:self.rng.randrange(1, len(frame))])
            if number % 2:
                peer.socket.close()
            else:
                peer.vanish()
        deadline = time.monotonic() + PATIENCE_SECONDS
        # The honest clients open some and close some all the time.
        while self.place.open_files() > files + 20:
            assert time.monotonic() < deadline, f"{self.place.open_files() - files} files stay open"
            time.sleep(0.05)
        assert self.place.end_offset() == before, "half a request was taken"

    def random_tls(self):
        with self.crowd("TLS", 200) as crowd:
            for one in list(crowd.open.values()):
                one.send(self.rng.randbytes(self.rng.randrange(6, 2000)))
            return crowd.all_closed(LOGIN_SECONDS + SLACK_SECONDS)

    def random_records(self):
        for _ in range(50):
            with self.log_in("TLS") as peer:
                # Below TLS: bytes that no key fits.
                with socket.socket(fileno=peer.socket.detach()) as one:
                    one.sendall(b"\x17\x03\x03\x01\x00" + self.rng.randbytes(256))
                    one.settimeout(3)
                    # Until the end: what comes before are tickets and an alert. A connection that stays open times out.
                    while quietly(one):
                        pass

    def random_frames(self):
        for _ in range(50):
            with self.log_in() as peer:
                body = self.rng.randbytes(self.rng.randrange(10, 3000))
                peer.send(wire.frame(b"\x7f" + body))
                peer.closed()

    # Connections

    def limited(self):
        with self.crowd("PLAIN", 3 * LIMITED_CONNECTIONS, LIMITED) as crowd:
            crowd.listen(PATIENCE_SECONDS, lambda _: len(crowd.open) <= LIMITED_CONNECTIONS)
            # And no more.
            crowd.listen(0.5)
            left = len(crowd.open)
            assert left == LIMITED_CONNECTIONS, f"{left} connections are left"
        deadline = time.monotonic() + PATIENCE_SECONDS
        # Until the server has seen those end.
        while left := self.closed_beyond_limit():
            assert time.monotonic() < deadline, f"{left} connections within the limit are closed, afterwards"

    def closed_beyond_limit(self):
        with self.crowd("PLAIN", LIMITED_CONNECTIONS, LIMITED) as crowd:
            crowd.listen(0.3)
            return LIMITED_CONNECTIONS - len(crowd.open)

    def stormers(self, listener, *more):
        host, port = self.address(listener)
        command = [sys.executable, Path(__file__).with_name("storm.py"), host, str(port), str(STORM_SECONDS),
                   str(STORM_RATE // STORMERS), ATTACKER, *more]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(STORMERS)]
        made = 0
        for process in running:
            said, _ = process.communicate(timeout=STORM_SECONDS + 15)
            assert process.returncode == 0, "a stormer failed"
            made += int(said)
        return f"{made / STORM_SECONDS:,.0f}/s"

    def storm(self, listener):
        return self.stormers(listener)

    def handshakes(self):
        return self.stormers("TLS", self.authority)


def quietly(one):
    try:
        return one.recv(65536)
    except ConnectionResetError:
        return b""
