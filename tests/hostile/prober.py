#!/usr/bin/env python3
"""The honest clients of the adversary, one process of three connections.

    prober.py HOST PORT TOPIC

One produces, fetches back and compares, as honest.py does. One asks for small things, as heartbeats are: which versions
there are, and one topic. One asks for the 2,000 topics of a large consumer. Each line on standard input is answered by a
line of JSON: what honest.py says, for each of the three.
"""

import json
import sys
import threading

import wire
from honest import PATIENCE_SECONDS, Honest
from peer import Peer

LARGE_TOPICS = 2000


class Small(Honest):
    def round(self, peer, number):
        error, found = self.timed(lambda: wire.versions_listed(peer.ask(wire.api_versions(), PATIENCE_SECONDS)))
        assert error == 0 and found, f"ApiVersions was answered with error {error}"
        answer = self.timed(lambda: wire.topics_described(peer.ask(wire.metadata([self.topic]), PATIENCE_SECONDS)))
        assert answer == {self.topic: (0, 1)}, f"metadata says {answer}"


class Large(Honest):
    frame = wire.metadata([f"hostile-nobody-{number}" for number in range(LARGE_TOPICS)]).frame()

    def round(self, peer, number):
        body = self.timed(lambda: peer.send(self.frame).answer(seconds=PATIENCE_SECONDS))
        assert len(body) > LARGE_TOPICS * 20, f"metadata of {LARGE_TOPICS} topics has {len(body)} bytes"


def main():
    _, host, port, topic = sys.argv
    clients = {kind.__name__.lower(): kind(lambda: Peer((host, int(port))), topic) for kind in (Honest, Small, Large)}
    for client in clients.values():
        threading.Thread(target=client.run, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps({name: client.report() for name, client in clients.items()}), flush=True)


if __name__ == "__main__":
    main()
