"""The processes that write and commit while the server is being killed."""

import signal
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ledger import SINGLE, SLOTS, WIDE, Notes, commits_path

HERE = Path(__file__).resolve().parent
# Live through every crash; a third one is killed and replaced in each round.
LASTING = ("small", "large")
MORTAL = ("mixed", "hurried")
GROUPS = {"crash-assigned": "assigned", "crash-member": "member"}
END_SECONDS = 45
ANSWER_SECONDS = 15


class Load:
    # Profiles of the sender that is killed in each round, in turn.
    mortal_profiles = MORTAL

    def __init__(self, server, directory, seed, profiles=LASTING):
        self.server, self.directory, self.seed = server, directory, seed
        self.notes_directory = directory / "notes"
        self.notes_directory.mkdir()
        self.notes = Notes(self.notes_directory)
        self.next_sender = 0
        self.profiles = profiles
        self.lasting, self.mortal = [], None
        # Those that ever committed, and who commits now.
        self.groups, self.committers = {}, {}
        self.offset_readers = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        for process in self.processes():
            if process.poll() is None:
                process.kill()
                process.wait()

    def processes(self):
        return [*self.lasting, *([self.mortal] if self.mortal else []), *self.committers.values()]

    def start(self):
        self.create_topics()
        self.start_lasting(GROUPS)
        self.start_mortal()

    def start_lasting(self, groups):
        """Senders and committers, the latter in groups that did not commit before."""
        self.lasting = [self.start_sender(profile) for profile in self.profiles]
        self.groups.update(groups)
        self.committers = {}
        for group, how in groups.items():
            arguments = [self.server.bootstrap, commits_path(self.notes_directory, group), group, how]
            self.committers[group] = self.spawn("committer.py", arguments, group)

    def create_topics(self):
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        for topic in (WIDE, SINGLE):
            partitions = sum(name == topic for name, _ in SLOTS)
            created = admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=ANSWER_SECONDS)
            created[topic].result(ANSWER_SECONDS)

    def spawn(self, script, arguments, name):
        with open(self.directory / f"{name}.log", "ab") as log:
            command = [sys.executable, HERE / script, *map(str, arguments)]
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def start_sender(self, profile):
        sender, self.next_sender = self.next_sender, self.next_sender + 1
        arguments = [self.server.bootstrap, self.notes_directory, sender, profile, self.seed]
        return self.spawn("sender.py", arguments, f"sender-{sender}")

    def start_mortal(self):
        """Of each kind in turn."""
        self.mortal = self.start_sender(self.mortal_profiles[self.next_sender % len(self.mortal_profiles)])

    def kill_mortal(self):
        """The producer that dies in the middle of what it does, as clients do."""
        if self.mortal and self.mortal.poll() is None:
            self.mortal.kill()
            self.mortal.wait()

    def require_alive(self):
        for process in [*self.lasting, *self.committers.values()]:
            assert process.poll() is None, f"{process.args[1].name} ended with {process.returncode}, see the logs"

    def finish(self):
        """Tells the senders to end; each has to get everything acknowledged first."""
        senders = [*self.lasting, self.mortal]
        for process in senders:
            process.send_signal(signal.SIGTERM)
        for process in senders:
            code = process.wait(END_SECONDS)
            assert code == 0, f"sender {process.args[4]} ended with {code}, see sender-{process.args[4]}.log"

    def committed(self, group):
        """What the server says that `group` has committed, by slot; nothing where it has not."""
        if group not in self.offset_readers:
            self.offset_readers[group] = Consumer({
                "bootstrap.servers": self.server.bootstrap, "group.id": group, "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10,
                "metadata.recovery.strategy": "none", "log_level": 0,
            })
        asked = [TopicPartition(*place) for place in SLOTS]
        answers = self.offset_readers[group].committed(asked, timeout=ANSWER_SECONDS)
        found = {}
        for slot, answer in enumerate(answers):
            assert answer.error is None, f"committed offset of {group}: {answer.error}"
            if answer.offset >= 0:
                found[slot] = answer.offset
        return found

    def ends(self, consumer):
        """Where each slot begins and ends, as the server says."""
        bounds = []
        for place in SLOTS:
            partition = TopicPartition(*place)
            bounds.append(consumer.get_watermark_offsets(partition, timeout=ANSWER_SECONDS, cached=False))
        return bounds

    def groups_are_done(self):
        ends = [end for _, end in self.group_ends()]
        return all(self.committed(group) == dict(enumerate(ends)) for group in self.groups)

    def group_ends(self):
        self.committed(next(iter(self.groups)))
        return self.ends(next(iter(self.offset_readers.values())))

    def group_state(self):
        return {group: self.notes.commits(group, "c") for group in self.groups}

    def stop_committers(self):
        for process in self.committers.values():
            process.kill()
            process.wait()
