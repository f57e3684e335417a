#!/usr/bin/env python3
"""A client that behaves, as its own process: produces, fetches back, compares, without a pause worth naming.

    honest.py HOST PORT TOPIC

Each line on standard input is answered by a line of JSON: rounds done and the slowest answer since the
line before, how long the answer being waited for takes already, and what went wrong, which ends it.
"""

import json
import os
import sys
import threading
import time

import wire
from peer import Peer

PAUSE_SECONDS = 0.01
# Longer than any bound that is checked, so that it is the check that fails.
PATIENCE_SECONDS = 80
NEW_CONNECTION_EVERY = 5


class Honest:
    def __init__(self, address, topic):
        self.address, self.topic = address, topic
        self.lock = threading.Lock()
        self.rounds, self.worst, self.since, self.error = 0, 0.0, None, None

    def timed(self, work):
        with self.lock:
            self.since = begin = time.monotonic()
        result = work()
        with self.lock:
            self.since, self.worst = None, max(self.worst, time.monotonic() - begin)
        return result

    def run(self):
        try:
            with Peer(self.address) as peer:
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
            described = self.timed(self.ask_anew)
            assert described == {self.topic: (0, 1)}, f"metadata says {described}"

    def ask_anew(self):
        with Peer(self.address) as peer:
            return wire.topics_described(peer.ask(wire.metadata([self.topic]), PATIENCE_SECONDS))

    def report(self):
        with self.lock:
            waiting = time.monotonic() - self.since if self.since is not None else 0.0
            rounds, worst = self.rounds, self.worst
            self.rounds, self.worst = 0, 0.0
            return {"rounds": rounds, "worst": worst, "waiting": waiting, "error": self.error}


def main():
    host, port, topic = sys.argv[1:]
    honest = Honest((host, int(port)), topic)
    threading.Thread(target=honest.run, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(honest.report()), flush=True)


if __name__ == "__main__":
    main()
