#!/usr/bin/env python3
"""A client that behaves, as its own process: produces, fetches back, compares, without a pause worth naming.

    honest.py HOST PORT TOPIC [--authority FILE] [--user NAME --password-file FILE]

With an authority it speaks TLS, with a user it logs in by SCRAM. Each line on standard input is answered by a line of
JSON: rounds done, the slowest answer and the times of all since the line before, those on new connections apart, how
long the answer being waited for takes already, and what went wrong, which ends it.
"""

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

import wire
from peer import Peer, SecurePeer

PAUSE_SECONDS = 0.01
# Longer than any bound that is checked, so that it is the check that fails.
PATIENCE_SECONDS = 80
NEW_CONNECTION_EVERY = 5


class Honest:
    def __init__(self, connect, topic):
        """`connect` gives a new connection, logged in if need be."""
        self.connect, self.topic = connect, topic
        self.lock = threading.Lock()
        self.rounds, self.worst, self.since, self.error = 0, 0.0, None, None
        self.times = {"answers": [], "connections": []}

    def timed(self, work, kind="answers"):
        with self.lock:
            self.since = begin = time.monotonic()
        result = work()
        with self.lock:
            took = time.monotonic() - begin
            self.since, self.worst = None, max(self.worst, took)
            self.times[kind].append(round(took, 6))
        return result

    def run(self):
        try:
            with self.connect() as peer:
                number = 0
                while True:
                    number += 1
                    self.round(peer, number)
                    with self.lock:
                        self.rounds += 1
                    time.sleep(PAUSE_SECONDS)
        except Exception as error:
            with self.lock:
                self.since, self.error = None, f"{type(error).__name__}: {error}"

    def round(self, peer, number):
        value = f"honest record {number} ".encode() + os.urandom(20).hex().encode()
        sent = wire.batch([value])
        request = wire.produce(self.topic, {0: sent})
        (error, base), = self.timed(lambda: wire.produced(peer.ask(request, PATIENCE_SECONDS))).values()
        assert error == 0, f"produce was answered with error {error}"
        request = wire.fetch(self.topic, [(0, base)])
        (error, end, records), = self.timed(lambda: wire.fetched(peer.ask(request, PATIENCE_SECONDS))).values()
        assert error == 0 and end == base + 1, f"fetch at {base} was answered with error {error}, end {end}"
        # All but base offset and leader epoch, which are the server's.
        assert records[8:12] + records[16:] == sent[8:12] + sent[16:], f"offset {base} holds {records.hex()}"
        if number % NEW_CONNECTION_EVERY == 0:
            described = self.timed(self.ask_anew, "connections")
            assert described == {self.topic: (0, 1)}, f"metadata says {described}"

    def ask_anew(self):
        with self.connect() as peer:
            return wire.topics_described(peer.ask(wire.metadata([self.topic]), PATIENCE_SECONDS))

    def report(self):
        with self.lock:
            waiting = time.monotonic() - self.since if self.since is not None else 0.0
            said = {"rounds": self.rounds, "worst": self.worst, "waiting": waiting, "error": self.error, **self.times}
            self.rounds, self.worst, self.times = 0, 0.0, {"answers": [], "connections": []}
            return said


def main():
    arguments = argparse.ArgumentParser()
    for name in ("host", "port", "topic", "--authority", "--user", "--password-file"):
        arguments.add_argument(name)
    chosen = arguments.parse_args()
    address = (chosen.host, int(chosen.port))
    if chosen.authority or chosen.user:
        password = Path(chosen.password_file).read_text() if chosen.user else None
        honest = Honest(lambda: SecurePeer(address, chosen.authority, chosen.user, password), chosen.topic)
    else:
        honest = Honest(lambda: Peer(address), chosen.topic)
    threading.Thread(target=honest.run, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(honest.report()), flush=True)


if __name__ == "__main__":
    main()
