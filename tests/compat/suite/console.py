"""Kafka's console tools, as people type them: kafka-topics, kafka-console-producer,
kafka-console-consumer and kafka-consumer-groups, each run as its own process.

A tool that cannot do a thing often says so in text and still exits with 0: the text is compared.
"""

import functools
import re
import subprocess
import time

from . import place


class Console:
    def __init__(self, bootstrap, token):
        self.bootstrap, self.token = bootstrap, token

    def named(self, what):
        return f"compat-console-{what}-{self.token}"

    def run(self, tool, *arguments, given=None, fails=False):
        command = place.tool_command(tool, "--bootstrap-server", self.bootstrap, *arguments)
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert (done.returncode != 0) == fails, \
            f"{tool} {' '.join(arguments)}: exit code {done.returncode}: {(done.stderr + done.stdout)[-400:]}"
        return done.stdout + done.stderr if fails else done.stdout

    def produce(self, topic, lines, *arguments):
        self.run("kafka-console-producer", "--topic", topic, *arguments, "--reader-property", "parse.key=true",
                 "--reader-property", "parse.headers=true", "--reader-property", "null.marker=<null>",
                 given="".join(line + "\n" for line in lines))

    def consume(self, topic, count, *arguments):
        """What came, as [(partition, offset, timestamp, rest of the line)]."""
        shown = [a for name in ("key", "headers", "partition", "offset", "timestamp")
                 for a in ("--formatter-property", f"print.{name}=true")]
        output = self.run("kafka-console-consumer", "--topic", topic, "--max-messages", str(count),
                          "--timeout-ms", "15000", "--command-property", "group.protocol=classic", *shown,
                          "--formatter-property", "null.literal=<null>", *arguments)
        found = re.findall(r"^CreateTime:(\d+)\tPartition:(\d+)\tOffset:(\d+)\t(.*)$", output, re.MULTILINE)
        return [(int(partition), int(offset), int(when), rest) for when, partition, offset, rest in found]

    def offsets(self, group):
        """{partition: (committed, end, lag)} as kafka-consumer-groups shows them."""
        output = self.run("kafka-consumer-groups", "--describe", "--group", group, "--offsets")
        rows = [line.split() for line in output.splitlines() if line.startswith(group)]
        return {int(row[2]): tuple(row[3:6]) for row in rows}


def all_cases(*arguments):
    console = Console(*arguments)
    # Most of the time goes into starting a dozen JVMs, which a busy machine takes long for.
    cases = [("kafka-topics", 60, topics), ("producer, consumer and kafka-consumer-groups", 120, records_and_groups)]
    return [(f"java console: {name}", seconds, functools.partial(case, console)) for name, seconds, case in cases]


def topics(console):
    topic = console.named("topics")
    create = ("--create", "--topic", topic, "--partitions", "6", "--config", "retention.ms=86400000")
    console.run("kafka-topics", *create)
    assert "already exists" in console.run("kafka-topics", *create, fails=True)
    described = console.run("kafka-topics", "--describe", "--topic", topic)
    assert "PartitionCount: 6" in described and "retention.ms=86400000" in described, described
    assert len(re.findall(r"Partition: \d+\tLeader: \d+", described)) == 6, described
    console.run("kafka-topics", "--alter", "--topic", topic, "--partitions", "8")
    assert "PartitionCount: 8" in console.run("kafka-topics", "--describe", "--topic", topic)
    assert topic in console.run("kafka-topics", "--list").split()
    console.run("kafka-topics", "--delete", "--topic", topic)
    assert topic not in console.run("kafka-topics", "--list").split()


def records_and_groups(console):
    topic, group = console.named("records"), console.named("group")
    console.run("kafka-topics", "--create", "--topic", topic, "--partitions", "3")
    lines = [f"twice:{i},twice:second\tkey {i % 20}\t{'<null>' if i % 10 == 4 else f'value {i} é'}"
             for i in range(100)]
    begin = int(time.time() * 1000)
    console.produce(topic, lines[:50], "--compression-codec", "gzip")
    console.produce(topic, lines[50:], "--compression-codec", "zstd")
    end = int(time.time() * 1000)
    got = console.consume(topic, 60, "--group", group, "--from-beginning")
    assert len(got) == 60, f"{len(got)} records, not 60"
    got += console.consume(topic, 40, "--group", group)
    assert sorted(rest for *_, rest in got) == sorted(lines), "other records than were sent"
    assert len({place[:2] for place in got}) == 100, "a record came twice"
    assert all(begin <= when <= end for _, _, when, _ in got), "timestamps"
    # A key's records lie in one partition, in the order of sending.
    for key in range(20):
        sent = [line for line in lines if f"\tkey {key}\t" in line]
        found = sorted(one for one in got if f"\tkey {key}\t" in one[3])
        assert [rest for *_, rest in found] == sent, f"key {key}: {found}"

    ends = {p: 1 + max(o for q, o, *_ in got if q == p) for p in {p for p, *_ in got}}
    shown = console.offsets(group)
    for partition, last in ends.items():
        assert shown[partition] == (str(last), str(last), "0"), shown
    assert group in console.run("kafka-consumer-groups", "--list").split()
    state = console.run("kafka-consumer-groups", "--describe", "--group", group, "--state")
    assert "Empty" in state, state
    console.run("kafka-consumer-groups", "--reset-offsets", "--to-earliest", "--execute",
                "--topic", topic, "--group", group)
    shown = console.offsets(group)
    for partition, last in ends.items():
        assert shown[partition] == ("0", str(last), str(last)), shown
    deleted = console.run("kafka-consumer-groups", "--delete-offsets", "--topic", topic, "--group", group)
    assert deleted.count("Successful") == 3, deleted
    assert "successful" in console.run("kafka-consumer-groups", "--delete", "--group", group)
    assert group not in console.run("kafka-consumer-groups", "--list").split()
