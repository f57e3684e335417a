"""Lives of a server under load, the cuts in each, and what has to be there after a cut.

A life: the server starts, producers and committing consumers get going, and the image is copied at random moments.
The server never learns of it. Then everything is killed, and cut after cut is looked at: the disk as it was then is
mounted, the server started on it, and everything read. The next life goes on from the last cut, as a machine does
after a power cut; every LIVES_PER_DISK lives begin with an empty disk.
"""

import time
from collections import Counter
from dataclasses import dataclass

import rounds
from ledger import ACKNOWLEDGED, Checker, Notes
from load import LASTING, Load
from suite.report import until

CUTS_PER_LIFE, LIVES_PER_DISK = 5, 2
# Seconds before the first cut and between two.
DELAY = (0.05, 2.5)
# Some cuts are followed by a second one while the server starts again.
AGAIN_SHARE, AGAIN_SECONDS = 0.3, (0.0, 0.25)
PROFILES = (*LASTING, "mixed", "plain")
FRESH_NANOSECONDS = 100_000_000
LOST = ("lost", "commit-went-back")


@dataclass
class Plan:
    delay: float
    again: float | None

    @classmethod
    def random(cls, rng, may_repeat):
        # Both are always drawn, so that one seed gives every server the same moments.
        delay, dice, again = rng.uniform(*DELAY), rng.random(), rng.uniform(*AGAIN_SECONDS)
        return cls(delay, again if may_repeat and dice < AGAIN_SHARE else None)


@dataclass
class Cut:
    number: int
    plan: Plan
    # All acknowledged before `before` was promised; nothing that was sent after `after` can be there.
    before: int
    after: int
    sent: list

    def __str__(self):
        text = f"{self.plan.delay:.2f} s after the last"
        return text + (f", again {self.plan.again * 1000:.0f} ms into the start" if self.plan.again is not None else "")

    @property
    def name(self):
        return f"cut-{self.number}"


class NotesOfCut(Notes):
    """The notes as they stood at a cut."""

    def __init__(self, directory, cut):
        super().__init__(directory)
        self.promised_before, self.attempted_before, self.sent_then = cut.before, cut.after, cut.sent

    def sent(self):
        return self.sent_then

    def fresh(self):
        """How many records were acknowledged in the last moment before."""
        notes = Notes(self.directory)
        notes.promised_before = self.promised_before - FRESH_NANOSECONDS
        return sum(1 for _ in self.acknowledged()) - sum(1 for _ in notes.acknowledged())


def forget_since(directory, cut):
    """Drops from the notes what was promised by a server whose disk went back to a cut."""
    for path in directory.glob("*.acknowledged"):
        kept = [entry for entry in ACKNOWLEDGED.iter_unpack(path.read_bytes()) if entry[3] < cut.before]
        path.write_bytes(b"".join(ACKNOWLEDGED.pack(*entry) for entry in kept))
    for path in directory.glob("*.commits"):
        latest = {"c": cut.before, "t": cut.after}
        lines = [line.split() for line in path.read_text().splitlines()]
        path.write_text("".join(" ".join(line) + "\n" for line in lines if int(line[3]) < latest[line[0]]))


class Tally:
    """What was promised before the cuts, and what of it was gone."""

    def __init__(self):
        self.cuts = self.records = self.commits = 0
        self.found = Counter()

    def add(self, checker, commits):
        self.cuts += 1
        self.records += checker.acknowledged_records
        self.commits += commits
        self.found.update(kind for kind, _ in checker.findings)

    def __str__(self):
        others = sum(self.found.values()) - sum(self.found[kind] for kind in LOST)
        text = f"{self.cuts} cuts read: lost {self.found['lost']} of {self.records} acknowledged records and " \
               f"{self.found['commit-went-back']} of {self.commits} commits"
        return text + (f"; {others} other findings" if others else "")


def losses(checker):
    return sum(kind == "lost" for kind, _ in checker.findings)


def only_lost(checker):
    return bool(checker.findings) and all(kind in LOST for kind, _ in checker.findings)


class Lives:
    def __init__(self, directory, disk, server, rng, seed):
        self.directory, self.disk, self.server, self.rng, self.seed = directory, disk, server, rng, seed
        self.load = None
        self.lives = self.cuts = 0
        self.tally = Tally()
        self.kept = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.load is not None:
            self.load.kill()

    def live(self, count):
        """One life; its cuts."""
        fresh = self.lives % LIVES_PER_DISK == 0
        self.lives += 1
        if fresh:
            self.begin_disk()
        self.server.start()
        if fresh:
            self.load.create_topics()
        self.start_load()
        cuts = [self.cut() for _ in range(count)]
        self.load.kill()
        self.server.kill()
        self.disk.unmount()
        return cuts

    def begin_disk(self):
        self.disk.renew()
        self.server.prepare()
        # Kafka's formatting flushes nothing and would have to be done again. No server has run yet.
        self.disk.sync()
        directory = self.directory / f"{self.server.name}-{self.lives}"
        directory.mkdir()
        self.load = Load(self.server, directory, self.seed, PROFILES)

    def start_load(self):
        load = self.load
        groups = {f"power-{how}-{self.lives}": how for how in ("assigned", "member")}
        load.start_lasting(groups)
        until(self.all_at_work, "all senders and committers")

    def all_at_work(self):
        self.load.require_alive()
        newest = self.load.next_sender - len(PROFILES)
        paths = [self.load.notes_directory / f"{newest + at}.acknowledged" for at in range(len(PROFILES))]
        return all(path.exists() and path.stat().st_size for path in paths) \
            and all(self.load.notes.commits(group, "c") for group in self.load.committers)

    def cut(self):
        plan = Plan.random(self.rng, self.server.name == "mainstem")
        acknowledged = self.load.notes.acknowledged_bytes()
        until(lambda: self.load.notes.acknowledged_bytes() > acknowledged, "an acknowledgement since the last cut")
        time.sleep(plan.delay)
        self.cuts += 1
        before, after = self.disk.cut(f"cut-{self.cuts}")
        cut = Cut(self.cuts, plan, before, after, list(self.load.notes.sent()))
        self.load.require_alive()
        return cut

    def verify(self, cut, expect_loss):
        """Powers on after a cut and holds what is there against what was promised before it."""
        checker, notes = Checker(), NotesOfCut(self.load.notes_directory, cut)
        try:
            note = self.look(cut, notes, checker)
            self.server.kill()
        except BaseException:
            if not (expect_loss and only_lost(checker)):
                self.keep(cut)
                raise
            note = f"lost {losses(checker)} of {checker.acknowledged_records} acknowledged"
        finally:
            self.server.end()
            # Where nothing was found, nothing may have been read either.
            if checker.records or checker.findings:
                self.tally.add(checker, sum(len(notes.commits(group, "c")) for group in self.load.groups))
        fresh = NotesOfCut(self.load.notes_directory, cut).fresh()
        return f"{note}; {fresh} acknowledged in the last {FRESH_NANOSECONDS // 10**6} ms; " \
               f"copied in {(cut.after - cut.before) / 1e6:.0f} ms"

    def look(self, cut, notes, checker):
        self.power_on(cut)
        started = self.server.start()
        self.server.settle(self.load)
        note = rounds.verify(self.load, notes, checker)
        return f"up in {started * 1000:.0f} ms, {note}"

    def power_on(self, cut):
        self.disk.restore(cut.name)
        if cut.plan.again is not None:
            again = f"{cut.name}-again"
            self.server.start_and_kill(cut.plan.again, lambda: self.disk.cut(again))
            self.disk.restore(again)

    def keep(self, cut):
        """The first cut after which something was wrong."""
        if self.kept is None:
            self.kept = self.disk.keep(cut.name, self.directory)

    def end_life(self, cuts):
        """The disk stays as the last cut left it, and so do the promises."""
        forget_since(self.load.notes_directory, cuts[-1])
        self.disk.forget(self.disk.host.glob("cut-*.img"))
