"""Three client libraries on secured listeners: java/Secure.java, confluent/secure.py and franz/secure.go.

Each is a process with requests and answers of one JSON line, as suite/worker.py has it. Every operation but the last
two makes a client of its own with `connect`: {bootstrap, protocol, mechanism?, user?, password?, token?,
authority?, certificate?}; the last two are paths of PEM files. `seconds` bounds what a client waits for.

    probe(connect)                                 logs in and asks for something that everybody may see
    topics(connect)                                [name]
    create_topic(connect, topic)
    produce(connect, topic, values, transactional_id?)     [offset]
    consume(connect, topic, count, group?)         [value], from the beginning, committed if there is a group
    stream(connect, name, topic)                   begins to produce, every 20 ms
    state(name)                                    {sent, acknowledged, errors: [[code, text]]}
    stop(name)                                     the same, when all is acknowledged

An error has Kafka's code; -2 where TLS was refused, -3 where the connection was closed or no answer came.
"""

import re

from suite import place
from suite.worker import RequestFailed, Worker

NAMES = ("java", "confluent", "franz")
CODES = {
    -3: "CLOSED", -2: "TLS", -1: "OTHER", 29: "TOPIC_AUTHORIZATION_FAILED", 30: "GROUP_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED", 33: "UNSUPPORTED_SASL_MECHANISM", 34: "ILLEGAL_SASL_STATE",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", 58: "SASL_AUTHENTICATION_FAILED", 3: "UNKNOWN_TOPIC_OR_PARTITION",
}


class Outcome:
    """What came of one request: a result, or the name of a code and the client's text."""

    def __init__(self, pending):
        self.result, self.code, self.text = None, None, ""
        try:
            self.result = pending.result()
        except RequestFailed as failed:
            self.code, self.text = CODES.get(failed.code, str(failed.code)), str(failed)

    def __str__(self):
        return f"{self.code}: {self.text}" if self.code else str(self.result)


class Clients:
    def __init__(self, directory):
        self.workers = {name: Worker(name, command(name), directory / f"{name}.log") for name in NAMES}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers.values():
            worker.stop()

    def each(self, operation, **arguments):
        """The same of all three at once: {name: Outcome}. Callable arguments are called with the client's name."""
        pending = {}
        for name, worker in self.workers.items():
            given = {key: value(name) if callable(value) else value for key, value in arguments.items()}
            pending[name] = worker.send(operation, **given)
        return {name: Outcome(one) for name, one in pending.items()}

    def done(self, operation, **arguments):
        """The same, where none may fail: {name: result}."""
        outcomes = self.each(operation, **arguments)
        failed = [f"{name}: {outcome}" for name, outcome in outcomes.items() if outcome.code]
        assert not failed, f"{operation}: {'; '.join(failed)}"
        return {name: outcome.result for name, outcome in outcomes.items()}

    def refused(self, code, text="", operation="probe", **arguments):
        """The same, where each must be refused with this code, and in words that `text` matches if there is any."""
        return check_refused(self.each(operation, **arguments), code, text)


def command(name):
    if name == "java":
        return [*place.JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp",
                f"{place.CACHE}/java/classes:{place.CACHE}/java/clients/*", "Secure"]
    if name == "confluent":
        return [f"{place.CACHE}/venv/bin/python3", place.COMPAT / "confluent" / "secure.py"]
    return [f"{place.CACHE}/bin/franz", "secure"]


def check_refused(outcomes, code, text):
    """`code`, or several with | between them, and `text` are for all clients, or {name: one}."""
    wrong = []
    for name, outcome in outcomes.items():
        wanted = code[name] if isinstance(code, dict) else code
        words = text.get(name, "") if isinstance(text, dict) else text
        if outcome.code not in wanted.split("|"):
            wrong.append(f"{name} wants {wanted} and got {outcome}")
        elif not re.search(words, outcome.text):
            wrong.append(f"{name} wants the words {words!r} and got {outcome}")
    assert not wrong, "; ".join(wrong)
    return ", ".join(sorted({outcome.code for outcome in outcomes.values()}))
