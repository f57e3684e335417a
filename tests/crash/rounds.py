"""One round: let the load run, end the server somehow, start it again, read what is new."""

import subprocess
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, TopicPartition

from suite import place
from suite.report import until

import damage
from ledger import SLOTS, Checker, Notes

# A round that is not checked is followed by the next crash before producers have settled.
QUICK_SHARE, STARTUP_SHARE, TERM_SHARE, TERM_KILL_SHARE = 0.25, 0.25, 0.12, 0.08
DELAY_SECONDS, QUICK_DELAY_SECONDS, STARTUP_SECONDS = (0.05, 1.5), (0.05, 0.2), (0.0, 0.3)
TERM_KILL_SECONDS = 0.003
READ_BATCH = 5000
READ_SECONDS = 0.2
# While brokers come and go the client tells of it; it goes on by itself.
PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)


@dataclass
class Plan:
    delay: float
    how: str
    startup_kills: list = field(default_factory=list)
    verified: bool = True
    # When the producer that does not survive is killed: some before the server, some after.
    mortal_first: bool = True

    def __str__(self):
        text = f"{self.how} after {self.delay * 1000:.0f} ms"
        if self.startup_kills:
            text += ", killed while starting after " + \
                " and ".join(f"{seconds * 1000:.0f} ms" for seconds in self.startup_kills)
        return text + ("" if self.verified else ", read later")


def schedule(rng, rounds):
    plans, quick = [], False
    for number in range(rounds):
        delay = rng.uniform(*(QUICK_DELAY_SECONDS if quick else DELAY_SECONDS))
        dice = rng.random()
        how = "kill -9"
        if dice < TERM_SHARE:
            how = "SIGTERM"
        elif dice < TERM_SHARE + TERM_KILL_SHARE:
            how = "SIGTERM and kill -9"
        kills = [rng.uniform(*STARTUP_SECONDS) for _ in range(rng.randint(1, 3))]
        plan = Plan(delay, how, kills if rng.random() < STARTUP_SHARE else [])
        quick = rng.random() < QUICK_SHARE and number + 1 < rounds
        plan.verified, plan.mortal_first = not quick, rng.random() < 0.5
        plans.append(plan)
    return plans


class Rounds:
    def __init__(self, server, load, lose):
        self.server, self.load, self.lose = server, load, lose
        self.checker = Checker()

    def run(self, plan):
        before = self.load.notes.acknowledged_bytes()
        until(lambda: self.load.notes.acknowledged_bytes() > before, "the first acknowledgement since the start")
        time.sleep(plan.delay)
        self.load.require_alive()
        if plan.mortal_first:
            self.load.kill_mortal()
        stopped = self.end_server(plan.how)
        self.load.kill_mortal()
        verify_files(self.server.directory / "data")
        if self.lose:
            damage.zero_end(self.server.directory / "data")
        for seconds in plan.startup_kills:
            self.server.start_and_kill(seconds)
        seconds = self.server.start()
        self.load.start_mortal()
        note = self.verify() if plan.verified else ""
        return f"{stopped}up in {seconds * 1000:.0f} ms{note and ', ' + note}"

    def end_server(self, how):
        """Says how long it took where the server could take its time."""
        if how == "SIGTERM":
            return f"stopped in {self.server.stop() * 1000:.0f} ms, "
        if how == "SIGTERM and kill -9":
            self.server.process.terminate()
            time.sleep(TERM_KILL_SECONDS)
            # It may be through with stopping.
            self.server.process.kill()
            self.server.process.wait()
        else:
            self.server.kill()
        return ""

    def restart_cleanly(self):
        stopped = self.server.stop()
        return f"stopped in {stopped:.1f} s, up in {self.server.start() * 1000:.0f} ms"

    def verify(self):
        """Reads what is new and holds it against what was acknowledged before it was read."""
        return verify(self.load, self.load.notes, self.checker)

    def verify_all(self):
        """The same from the first record on, with nothing remembered."""
        return verify(self.load, Notes(self.load.notes_directory), Checker())


def verify(load, notes, checker):
    # In this order: what was promised first, then what is there, then what was attempted at most.
    acknowledged = list(notes.acknowledged())
    confirmed = {group: notes.commits(group, "c") for group in load.groups}
    consumer = reader(load.server.bootstrap)
    try:
        committed = {group: load.committed(group) for group in load.groups}
        attempted = {group: notes.commits(group, "t") for group in load.groups}
        bounds = load.ends(consumer)
        for slot, (start, end) in enumerate(bounds):
            checker.bounds(slot, start, end)
        checker.require_nothing()
        records = checker.records
        read(consumer, checker, [end for _, end in bounds])
    finally:
        consumer.close()
    for entry in acknowledged:
        checker.acknowledged(*entry)
    for entry in notes.sent():
        checker.sent(*entry)
    checker.settle(notes.senders())
    commits = 0
    for group in load.groups:
        commits += len(committed[group])
        for slot in {*confirmed[group], *committed[group]}:
            checker.committed(group, slot, confirmed[group].get(slot, 0), committed[group].get(slot, -1),
                              attempted[group].get(slot, 0), bounds[slot][1])
    checker.require_nothing()
    return f"{checker.records - records} read, {len(acknowledged)} acknowledged, {commits} commits"


def verify_files(data):
    """What a crash leaves behind is no damage."""
    command = [place.MAINSTEM, "log", "verify", "--data-dir", data]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ran.returncode == 0, f"log verify ended with {ran.returncode}: {ran.stdout}"


def reader(bootstrap):
    """A new one each time: it knows nothing from before the crash."""
    return Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": "crash-reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": 20,
        "log_level": 3,
    })


def read(consumer, checker, ends):
    """Feeds the checker each slot up to its end and what has come since, as far as it was fetched."""
    wanted = {slot for slot, end in enumerate(ends) if checker.next_offset[slot] < end}
    if not wanted:
        return
    slots = {place: slot for slot, place in enumerate(SLOTS)}
    consumer.assign([TopicPartition(*SLOTS[slot], checker.next_offset[slot]) for slot in sorted(wanted)])

    def batch():
        for message in consumer.consume(READ_BATCH, READ_SECONDS):
            error = message.error()
            if error is not None:
                assert error.code() in PASSING, f"reading {message.topic()}/{message.partition()}: {error}"
                continue
            checker.record(slots[message.topic(), message.partition()], message.offset(), message.value())
        return all(checker.next_offset[slot] >= ends[slot] for slot in wanted)

    def missing():
        return {SLOTS[slot]: ends[slot] - checker.next_offset[slot] for slot in wanted}

    until(batch, "the rest of the log", missing)
