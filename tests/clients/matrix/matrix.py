"""Runs the cases of each client against one server, and keeps what became of each: the cells of the table."""

import functools

from suite import records

from . import setup
from .cases import CASES, expected
from .known import KNOWN
from .program import Program

OK, ABSENT = "ok", "-"
# Not on brokers that pass coordinators to each other: clients do not repeat a LeaveGroup that found no coordinator, so that the
# group is not empty before their session is over.
NOT_MOVING = {"groups"}


class Matrix:
    """`cells` is {client: {case: OK, ABSENT or what went wrong}}."""

    def __init__(self, server, bootstrap, directory, token, report, brokers=1, moving=False):
        self.brokers, self.moving = brokers, moving
        self.server, self.bootstrap, self.directory = server, bootstrap, directory
        self.token, self.report = token, report
        self.cells = {}

    def warm_up(self, client):
        """For a server that needs a while for its first group and transaction; clients of little patience fail by that."""
        program = Program("warm-up", setup.command(client, self.bootstrap), self.directory / "warm-up.log", self.token)
        try:
            program.learn()
            for case in CASES:
                if case.name in ("group", "transactions"):
                    self.report.run(f"{self.server}: warm-up, {case.name}", 60, functools.partial(case.run, program))
        finally:
            program.stop()

    def run(self, client):
        slug = "".join(c if c.isalnum() or c == "." else "-" for c in client.name)
        log = self.directory / f"{slug}-{self.server}.log"
        program = Program(client.name, setup.command(client, self.bootstrap), log, self.token)
        program.brokers, program.moving = self.brokers, self.moving
        cells = self.cells[client] = {}
        try:
            if not self.case(client, "starts", 30, program.learn):
                return
            for case in CASES:
                if self.moving and case.name in NOT_MOVING:
                    continue
                if not case.offered_by(program):
                    cells[case.name] = ABSENT
                    continue
                cells[case.name] = self.cell(client, program, case)
                if cells[case.name] != OK:
                    program.stop()  # What it began may still run: the next case gets a fresh process.
        finally:
            program.stop()
        absent = [name for name, cell in cells.items() if cell == ABSENT]
        if absent:
            print(f"-               {client.name}: does not offer {', '.join(absent)}")

    def cell(self, client, program, case):
        """OK or what went wrong. What is known to fail passes as a case if it fails; with Kafka it has to."""
        known = KNOWN.get((client.name, case.name))
        cell = OK

        def attempt():
            nonlocal cell
            try:
                case.run(program)
            except BaseException as error:
                cell = str(error) or type(error).__name__
                if known is None:
                    raise
                return f"fails as is known: {known}"
            assert known is None or self.server != "Kafka", f"passes, but is known to fail: {known}"

        self.case(client, case.name, case.seconds_max, attempt)
        return cell

    def case(self, client, name, seconds_max, run):
        return self.report.run(f"{self.server}, {client.name}: {name}", seconds_max, run)


class Echo:
    """A program that gives back what it was sent, after `damage` has changed it."""

    operations, codecs, lacks = {"create_topic", "topics", "produce", "read"}, {"none"}, set()

    def __init__(self, damage):
        self.damage, self.sent, self.token, self.name = damage, [], "", "echo"

    def named(self, what):
        return "none"

    def call(self, operation, **arguments):
        if operation == "produce":
            before = len(self.sent)
            self.sent += arguments["records"]
            return [list(place) for place in list(expected(self.sent))[before:]]
        if operation == "read":
            return self.damage([{**record, "partition": partition, "offset": offset}
                                for (partition, offset), record in sorted(expected(self.sent).items())])
        return ["none"] if operation == "topics" else None


def selftest():
    """A case turns red by a record that is lost, doubled, changed or moved, and is green without."""
    records.selftest()
    (case,) = (case for case in CASES if case.name == "none")
    case.run(Echo(lambda got: got))
    for name, damage in (
        ("lost", lambda got: got[:-1]),
        ("doubled", lambda got: [*got, got[-1]]),
        ("moved", lambda got: [got[1], got[0], *got[2:]]),
        ("changed", lambda got: [*got[:3], {**got[3], "value": None if got[3]["value"] else ""}, *got[4:]]),
    ):
        expect_red(functools.partial(case.run, Echo(damage)), name)


def expect_red(attempt, name):
    try:
        attempt()
    except AssertionError:
        return
    raise AssertionError(f"a record {name} is not found")
