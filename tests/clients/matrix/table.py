"""docs/clients.md, made from what ran against both servers."""

from suite import place

from .cases import CASES
from .known import KNOWN, NOT_HERE

HEAD = """# Clients

Made by `tests/clients/run --write` from what ran. Do not edit it.

The matrix runs releases of many client libraries, old and new, against this server and against Apache Kafka 4.3.1. Each
client goes through the same cases and the contents are compared: key, value, headers, time, order, each record once.

    make clients                            # among the other tests of clients: the representative releases
    tests/clients/run                       # every release, against target/release/mainstem
    tests/clients/run --only kafkajs        # one library, or one release: --only 'sarama 1.38.1'
    tests/clients/run --kafka               # against Apache Kafka 4.3.1, which decides whose fault a failure is
    tests/clients/run --write               # both, and this file

The clients are fetched by the ordinary tools of their ecosystems, once, at the versions that stand in `tests/clients/`.

## What is tried

| column | what it does |
|---|---|
"""

LEGEND = """
## What came of it

`ok`: the same with both servers. `-`: the client has no such feature. A number in brackets is a note below.

"""


def write(missing, ours, peer):
    """`ours` and `peer` are the cells of each server: {client: {case: result}}."""
    notes = []
    lines = [HEAD + "".join(f"| {case.name} | {case.about} |\n" for case in CASES) + LEGEND]
    lines.append(f"| client | {' | '.join(case.name for case in CASES)} |\n|---|{'---|' * len(CASES)}\n")
    for client, cells in ours.items():
        row = [entry(client, case.name, cells, peer[client], notes) for case in CASES]
        lines.append(f"| {client.name} | {' | '.join(row)} |\n")
    lines += ["\n"] + [f"{number}. {note}\n" for number, note in enumerate(notes, 1)]
    absent = {client.name: reason for client, reason in missing.items()} | NOT_HERE
    if absent:
        lines.append("\n## What did not run\n\n| client | why |\n|---|---|\n")
        lines += [f"| {name} | {reason} |\n" for name, reason in absent.items()]
    (place.ROOT / "docs" / "clients.md").write_text("".join(lines))


def entry(client, case, ours, peer, notes):
    here, there = ours.get(case, "did not start"), peer.get(case, "did not start")
    if here == there and here in ("ok", "-"):
        return here
    if here == "ok":
        return "ok, " + noted(f"Fails with Kafka 4.3.1: {why(client, case, there)}", notes)
    also = f"Also with Kafka 4.3.1: {why(client, case, here)}" if there != "ok" else f"Not with Kafka 4.3.1: {here}"
    return "FAILED " + noted(also, notes)


def why(client, case, problem):
    return KNOWN.get((client.name, case), problem.replace("|", "\\|").replace("\n", " "))


def noted(note, notes):
    if note not in notes:
        notes.append(note)
    return f"[{notes.index(note) + 1}]"
