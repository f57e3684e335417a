"""The errors that clients gave to their applications. What a client handles by itself is not here."""

import collections
import time

# What librdkafka tells for information, while it connects again.
INFORMATION = {"_ALL_BROKERS_DOWN", "_TRANSPORT"}
# Errors of commits that Kafka's own client repeats before it returns (commitSync), where librdkafka leaves that to the application.
REPEATED = {
    "_TIMED_OUT", "_WAIT_COORD", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NETWORK_EXCEPTION", "NOT_COORDINATOR",
    "REQUEST_TIMED_OUT",
}


class Errors:
    def __init__(self):
        self.noted = []

    def note(self, client, error, handled=()):
        if error.name() not in INFORMATION and error.name() not in handled:
            self.noted.append((client, error.name(), error.str()))

    def once_quiet(self, seconds=1, patience=20):
        """How many were noted, once there was no other one for so long."""
        deadline = time.monotonic() + patience
        while True:
            before = len(self.noted)
            time.sleep(seconds)
            if len(self.noted) == before or time.monotonic() > deadline:
                return before

    def none_since(self, count):
        """Requires that no more were noted than so many."""
        found = self.noted[count:]
        assert not found, f"clients gave {len(found)} errors to their applications: {found[:3]}"

    def __str__(self):
        counted = collections.Counter(f"{client} {name}" for client, name, _ in self.noted)
        return f"; errors of clients: {dict(counted)}" if counted else ""
