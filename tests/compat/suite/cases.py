"""The cases that every client with an API of its own goes through: java, confluent and franz.

Each is written once against the operations that suite/worker.py lists. A case makes its own topics
and groups, under names of its own, so that it may run against a server that holds others.
"""

import functools

from . import records
from .report import until
from .worker import RequestFailed

PARTITIONS = 6
# default.replication.factor, where there are so many brokers.
COPIES = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# Kafka's error codes, https://kafka.apache.org/protocol#protocol_error_codes
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC_EXCEPTION = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86


class Client:
    """One client under test: its worker, and names that no other run uses."""

    def __init__(self, name, worker, token):
        self.name, self.worker, self.token = name, worker, token
        self.call, self.send = worker.call, worker.send
        self.last_states = {}

    def named(self, what):
        return f"compat-{self.name}-{what}-{self.token}"

    def topic(self, what, partitions=PARTITIONS, **configs):
        topic = self.named(what)
        self.call("create_topic", topic=topic, partitions=partitions, configs=configs)
        return topic

    def produce(self, topic, batch, codec="none", acks="all", idempotent=False, **more):
        """Sends and waits; {(partition, offset): record}."""
        places = self.call("produce", topic=topic, records=batch, codec=codec, acks=acks,
                           idempotent=idempotent, linger_ms=5, **more)
        return records.placed(batch, places)

    def read(self, topic, ends, *passes):
        found = self.call("read", topic=topic, ends=ends, passes=passes or [dict.fromkeys(ends, 0)])
        return [one or [] for one in found]

    def offsets(self, topic, at, partitions):
        found = self.call("list_offsets", topic=topic, at=at, partitions=list(partitions))
        return {int(partition): tuple(one) for partition, one in found.items()}

    def refuses(self, code, operation, **arguments):
        """The server answers the operation with this error."""
        try:
            self.call(operation, **arguments)
        except RequestFailed as error:
            assert error.code == code, f"expected error code {code}, got: {error}"
        else:
            raise AssertionError(f"{operation} succeeded, expected error code {code}")


def all_cases(client):
    """[(name, seconds, case)] in the order to run them."""
    cases = [("cluster", 15, cluster), ("topics", 20, topics)]
    cases += [(f"codec {codec}", 20, functools.partial(codec_round_trip, codec=codec)) for codec in CODECS]
    cases += [
        ("acks 0", 20, acks_0),
        ("large records", 30, large_records),
        ("seek", 20, seek),
        ("list offsets", 20, list_offsets),
        ("configs", 20, configs),
        ("create partitions", 20, create_partitions),
        ("delete topic", 20, delete_topic),
        ("committed offsets", 30, committed_offsets),
        ("group range", 45, functools.partial(group, assignor="range")),
        ("group cooperative-sticky", 45, functools.partial(group, assignor="cooperative-sticky")),
        ("static members", 45, static_members),
    ]
    if client.name != "franz":  # Whose own suites try the consumer protocol.
        cases += [(f"group {assignor}", 60, functools.partial(group, assignor=assignor))
                  for assignor in ("remote uniform", "remote range")]
    return [(f"{client.name}: {name}", seconds, functools.partial(case, client))
            for name, seconds, case in cases]


def cluster(client):
    found = client.call("cluster")
    assert found["cluster_id"], "no cluster id"
    brokers = {b["id"]: b["address"] for b in found["brokers"]}
    assert brokers, "no brokers"
    assert found["controller"] in brokers, f"controller {found['controller']} is none of {brokers}"


def topics(client):
    topic = client.topic("topics")
    found = client.call("describe_topic", topic=topic)
    assert [p["partition"] for p in found] == list(range(PARTITIONS)), found
    copies = min(len(client.call("cluster")["brokers"]), COPIES)
    # The copies of the first topic of a cluster come a moment later.
    assert all(p["leader"] >= 0 and p["replicas"] == copies and 1 <= p["isr"] <= copies for p in found), found
    assert topic in client.call("topics")
    client.refuses(TOPIC_ALREADY_EXISTS, "create_topic", topic=topic, partitions=1)
    client.refuses(INVALID_TOPIC_EXCEPTION, "create_topic", topic="no/such name", partitions=1)
    if client.name != "confluent":  # whose metadata request creates what it names
        client.refuses(UNKNOWN_TOPIC_OR_PARTITION, "describe_topic", topic=client.named("none"))


def codec_round_trip(client, codec):
    """Contents, order and place of every record. The codecs share out the ways to acknowledge."""
    idempotent = codec in ("gzip", "zstd")
    acks = "1" if codec in ("none", "snappy") else "all"
    topic = client.topic(f"codec-{codec}")
    sent = client.produce(topic, records.make(400, codec), codec, acks, idempotent)
    sent.update(shifted(sent, client.produce(topic, records.make(100, codec + " again"), codec, acks, idempotent)))
    (got,) = client.read(topic, records.ends(sent))
    records.same(sent, got)
    return f"acks={acks}{', idempotent' if idempotent else ''}"


def shifted(before, after):
    """`after` was produced to the same topic as `before`: its offsets go on where those ended."""
    ends = {int(p): end for p, end in records.ends(before).items()}
    for partition in {p for p, _ in after}:
        start = min(o for p, o in after if p == partition)
        assert start == ends.get(partition, 0), \
            f"partition {partition} went on at offset {start}, not {ends.get(partition, 0)}"
    return after


def acks_0(client):
    """No answer comes: the records do, in the order of sending."""
    topic = client.topic("acks-0", 3)
    # With acks=0 a partition that has no leader yet drops what it is sent; these tell that it has.
    sent = client.produce(topic, records.make(3, "acks 0, first", partitions=3), acks="1")
    batch = records.make(90, "acks 0", partitions=3)
    client.call("produce", topic=topic, records=batch, codec="none", acks="0", idempotent=False, linger_ms=5)
    sent.update(((r["partition"], 1 + index // 3), r) for index, r in enumerate(batch))
    until(lambda: sum(o for o, _ in client.offsets(topic, "latest", range(3)).values()) >= len(sent),
          "all records in the log")
    (got,) = client.read(topic, records.ends(sent))
    records.same(sent, got)


def large_records(client):
    """Up to the topic's max.message.bytes, past what a fetch asks for by default, and not beyond."""
    def one(size, seed):
        record = records.make(1, seed, partitions=1)
        record[0]["value"] = records.text(records.random.Random(seed).randbytes(size))
        return record

    topic = client.topic("large", 1)
    sent = client.produce(topic, one(900_000, 1))
    client.refuses(MESSAGE_TOO_LARGE, "produce", topic=topic, records=one(2_000_000, 2), codec="none",
                   acks="all", idempotent=False, linger_ms=5)
    client.call("set_config", topic=topic, set={"max.message.bytes": "3000000"})
    sent.update(client.produce(topic, one(2_900_000, 3)))
    sent.update(client.produce(topic, one(10, 4)))
    (got,) = client.read(topic, records.ends(sent))
    records.same(sent, got)


def seek(client):
    """Back and forth in one consumer; each pass reads exactly from where it was sent to."""
    topic = client.topic("seek", 3)
    sent = client.produce(topic, records.make(150, "seek", partitions=3))
    ends = records.ends(sent)
    passes = [{"0": 0, "1": 0, "2": 0}, {"0": 49, "1": 7, "2": 30}, {"0": 20, "1": 20, "2": 0}]
    for starts, got in zip(passes, client.read(topic, ends, *passes)):
        expected = {(p, o): r for (p, o), r in sent.items() if o >= starts[str(p)]}
        records.same(expected, got)


def list_offsets(client):
    topic = client.topic("list-offsets", 2)
    batch = records.make(5, "list offsets", partitions=1)
    base = records.TIME_BASE
    for record, after in zip(batch, (0, 1000, 5000, 3000, 4000)):
        record["timestamp"] = base + after
    client.produce(topic, batch)

    def at(when):
        return client.offsets(topic, when, (0, 1))

    earliest, latest = at("earliest"), at("latest")
    assert (earliest[0][0], earliest[1][0]) == (0, 0), earliest
    assert (latest[0][0], latest[1][0]) == (5, 0), latest
    for when, expected in ((0, (0, base)), (base, (0, base)), (base + 1, (1, base + 1000)),
                           (base + 1001, (2, base + 5000)), (base + 5000, (2, base + 5000))):
        assert at(when)[0] == expected, f"at base + {when - base}: {at(when)[0]}, not {expected}"
    # Where no record is as late, Kafka says -1; franz-go's kadm turns that into the end.
    late = at(base + 5001)
    assert late[0][0] in (-1, 5) and late[1][0] in (-1, 0), late
    newest = at("max_timestamp")
    assert newest[0] == (2, base + 5000), newest
    assert newest[1][0] in (-1, 0), newest


def configs(client):
    topic = client.topic("configs", 1, **{"max.message.bytes": "50000"})

    def expect(name, value, own):
        found = client.call("configs", topic=topic)[name]
        assert found == {"value": value, "own": own}, f"{name}: {found}, not {value}, own={own}"

    expect("max.message.bytes", "50000", True)
    default = client.call("configs", topic=topic)["retention.ms"]
    assert not default["own"], default
    expect("cleanup.policy", "delete", False)
    client.call("set_config", topic=topic, set={"retention.ms": "86400123", "cleanup.policy": "compact"})
    expect("retention.ms", "86400123", True)
    expect("cleanup.policy", "compact", True)
    expect("max.message.bytes", "50000", True)
    client.call("set_config", topic=topic, set={"cleanup.policy": "delete"}, unset=["retention.ms"])
    expect("retention.ms", default["value"], False)
    expect("cleanup.policy", "delete", True)
    client.refuses(INVALID_CONFIG, "set_config", topic=topic, set={"retention.ms": "soon"})
    client.refuses(INVALID_CONFIG, "create_topic", topic=client.named("bad-config"), partitions=1,
                   configs={"retention.ms": "soon"})
    expect("retention.ms", default["value"], False)
    client.refuses(UNKNOWN_TOPIC_OR_PARTITION, "configs", topic=client.named("none"))


def create_partitions(client):
    topic = client.topic("partitions", 3)
    sent = client.produce(topic, records.make(30, "partitions", partitions=3))
    client.call("create_partitions", topic=topic, total=5)
    until(lambda: len(client.call("describe_topic", topic=topic)) == 5, "5 partitions")
    more = client.produce(topic, records.make(50, "partitions again", partitions=5))
    sent.update(shifted(sent, more))
    (got,) = client.read(topic, records.ends(sent))
    records.same(sent, got)
    client.refuses(INVALID_PARTITIONS, "create_partitions", topic=topic, total=2)


def delete_topic(client):
    """A topic made anew under the same name starts empty."""
    topic = client.topic("delete", 2)
    client.produce(topic, records.make(40, "delete", partitions=2))
    client.call("delete_topic", topic=topic)
    until(lambda: topic not in client.call("topics"), "the topic to be gone")
    client.refuses(UNKNOWN_TOPIC_OR_PARTITION, "delete_topic", topic=topic)
    client.call("create_topic", topic=topic, partitions=2)
    sent = client.produce(topic, records.make(10, "anew", partitions=2))
    assert records.ends(sent) == {"0": 5, "1": 5}, records.ends(sent)
    (got,) = client.read(topic, records.ends(sent))
    records.same(sent, got)


def committed_offsets(client):
    """Offsets outlive the connection that committed them, steer a member, and can be deleted."""
    topic, group = client.topic("committed", 3), client.named("committed")
    sent = client.produce(topic, records.make(60, "committed", partitions=3))
    client.call("commit", group=group, topic=topic, offsets={"0": [5, "five"], "1": [17, ""]})
    assert client.call("committed", group=group) == {"0": [5, "five"], "1": [17, ""]}
    client.call("commit", group=group, topic=topic, offsets={"0": [6, "six"]})
    assert client.call("committed", group=group) == {"0": [6, "six"], "1": [17, ""]}
    assert client.call("describe_group", group=group)["state"] == "Empty"
    assert group in client.call("groups")
    if client.name != "confluent":  # which has no such call
        client.call("delete_offsets", group=group, topic=topic, partitions=[1])
        assert client.call("committed", group=group) == {"0": [6, "six"]}
        client.call("commit", group=group, topic=topic, offsets={"1": [17, ""]})

    client.call("join", member=group, group=group, topic=topic, assignor="range")
    starts = {0: 6, 1: 17, 2: 0}
    expected = {(p, o): r for (p, o), r in sent.items() if o >= starts[p]}
    until(lambda: states(client)[group]["count"] >= len(expected), "the records past the commits")
    client.refuses(NON_EMPTY_GROUP, "delete_group", group=group)
    if client.name != "confluent":
        client.refuses(GROUP_SUBSCRIBED_TO_TOPIC, "delete_offsets", group=group, topic=topic, partitions=[0])
    records.same(expected, leave(client, group))
    until(lambda: client.call("describe_group", group=group)["state"] == "Empty", "an empty group")
    assert_committed(client, group, sent)
    client.call("delete_group", group=group)
    assert group not in client.call("groups")
    assert client.call("committed", group=group) == {}
    client.refuses(GROUP_ID_NOT_FOUND, "delete_group", group=group)


def group(client, assignor):
    members = [(client, f"{client.name}-{assignor.replace(' ', '-')}-{index}") for index in (1, 2, 3)]
    return rebalances(client, members, client.topic(f"group-{assignor.replace(' ', '-')}"), assignor)


def rebalances(client, members, topic, assignor, others=None):
    """Two members read, a third joins while records flow, then the second leaves while records flow.
    Each record comes exactly once: members commit before they give a partition up."""
    group = topic
    first, second, third = members
    sent, got = {}, []

    def wait(probe, what):
        return until(probe, what, lambda: [
            f"{name}: {owner.last_states.get(name)}" for owner, name in members] + [f"{len(sent)} sent"])

    def settled(*present):
        """All have joined and share the partitions out evenly."""
        shares = [states(owner)[name]["assigned"] for owner, name in present]
        return (sorted(p for share in shares for p in share) == list(range(PARTITIONS))
                and {len(share) for share in shares} == {PARTITIONS // len(present)} and shares)

    def arrived(*present):
        return len(got) + sum(states(owner)[name]["count"] for owner, name in present)

    def join(owner, name):
        owner.call("join", member=name, group=group, topic=topic, assignor=(others or {}).get(name, assignor))

    def flow(count, seed):
        """Starts producing for about a second; the result is for `flown`."""
        batch = records.make(count, f"{group} {seed}")
        return batch, client.send("produce", topic=topic, records=batch, codec="lz4", acks="all",
                                  idempotent=True, linger_ms=5, pause_ms=40)

    def flown(started):
        batch, pending = started
        sent.update(shifted(sent, records.placed(batch, pending.result())))

    join(*first)
    if others:
        # A classic member that joined before the group is of the consumer protocol is told to join again, as by
        # Kafka, and librdkafka tells its application of that.
        wait(lambda: settled(first), "the first member to make the group one of its protocol")
    join(*second)
    shares = wait(lambda: settled(first, second), "two members to share the partitions")
    flown(flow(200, 1))
    wait(lambda: arrived(first, second) >= len(sent), "the first records")
    assert all(states(owner)[name]["count"] for owner, name in (first, second)), "a member got nothing"

    started = flow(600, 2)
    join(*third)
    shares_of_three = wait(lambda: settled(first, second, third), "three members to share the partitions")
    flown(started)
    wait(lambda: arrived(*members) >= len(sent), "the records sent while the third member joined")
    if assignor == "cooperative-sticky":
        for before, after in zip(shares, shares_of_three):
            assert set(after) <= set(before), f"a member with {before} was moved to {after}"
    described = client.call("describe_group", group=group)
    assert described["state"] == "Stable", described
    assert described["assignor"] == assignor.removeprefix("remote "), described
    by_name = {m["client_id"]: m["partitions"] for m in described["members"]}
    assert by_name == {name: share for (_, name), share in zip(members, shares_of_three)}, described
    flown(flow(100, 3))
    wait(lambda: arrived(*members) >= len(sent), "records for all three")

    started = flow(400, 4)
    got += leave(*second)
    wait(lambda: settled(first, third), "two members to take over from the one that left")
    flown(started)
    wait(lambda: arrived(first, third) >= len(sent), "the records sent while a member left")
    got += leave(*first)
    last = leave(*third)
    assert last, "the third member got nothing"
    got += last
    records.same(sent, sorted(got, key=lambda r: (r["partition"], r["offset"])))
    assert_committed(client, group, sent)
    return f"{len(sent)} records"


def static_members(client):
    """A member with a group.instance.id that comes back in time gets its partitions back, and the
    other member sees no rebalance. Both have a turn, so that the group's leader is among them."""
    topic, group = client.topic("static"), client.named("static")
    names = [client.named("static-a"), client.named("static-b")]
    sent, got = {}, []

    def join(name):
        client.call("join", member=name, group=group, topic=topic, assignor="range", instance_id=name)

    def shares():
        found = states(client)
        return {name: found[name]["assigned"] for name in names if name in found}

    for name in names:
        join(name)
    before = until(lambda: {len(s) for s in shares().values()} == {PARTITIONS // 2} and shares(),
                   "two members to share the partitions")
    described = client.call("describe_group", group=group)["members"]
    assert {m["instance_id"]: m["partitions"] for m in described} == before, described
    for away, stays in (names, reversed(names)):
        rebalances = states(client)[stays]["rebalances"]
        got += leave(client, away)
        batch = client.produce(topic, records.make(120, away, partitions=PARTITIONS))
        sent.update(shifted(sent, batch))
        join(away)
        until(lambda: shares().get(away) == before[away], "the member to have its partitions back")
        until(lambda: len(got) + sum(s["count"] for s in states(client).values()) >= len(sent), "all records")
        assert shares() == before, f"{shares()} was {before}"
        assert states(client)[stays]["rebalances"] == rebalances, "the member that stayed saw a rebalance"
    for name in names:
        got += leave(client, name)
    records.same(sent, sorted(got, key=lambda r: (r["partition"], r["offset"])))


def states(client):
    """The members of this client; one that reports an error ends the case."""
    client.last_states = found = client.call("members")
    for name, state in found.items():
        assert not state["error"], f"member {name}: {state['error']}"
    return found


def leave(client, name):
    """Closes a member; the records it got, in order."""
    left = client.call("leave", member=name)
    assert not left["error"], f"member {name}: {left['error']}"
    got = left["records"] or []
    records.check_order(got)
    return got


def assert_committed(client, group, sent):
    found = {p: offset for p, (offset, _) in client.call("committed", group=group).items()}
    assert found == records.ends(sent), f"committed {found}, sent up to {records.ends(sent)}"


# Several clients at once


def mixed_cases(clients):
    cases = [("mixed: one group of java, confluent and franz", 45, functools.partial(mixed_group, clients))]
    cases.append(("mixed: one group of both protocols", 90, functools.partial(mixed_protocols, clients)))
    cases += [(f"mixed: {reader.name} reads what the others wrote", 30,
               functools.partial(reads_others, reader, [c for c in clients if c is not reader]))
              for reader in clients]
    return cases


def mixed_group(clients):
    members = [(client, f"{client.name}-mixed") for client in clients]
    return rebalances(clients[0], members, clients[0].topic("mixed"), "range")


def mixed_protocols(clients):
    """A group of the consumer protocol with members of the classic one (KIP-848, online migration)."""
    members = [(client, f"{client.name}-protocols") for client in clients]
    others = {name: "range" for client, name in members if client.name != "java"}
    return rebalances(clients[0], members, clients[0].topic("protocols"), "remote uniform", others)


def reads_others(reader, writers):
    topic = reader.topic("others", len(CODECS))
    sent = {}
    for writer in writers:
        for codec in CODECS:
            batch = records.make(40, f"{writer.name} {codec}", partitions=len(CODECS))
            sent.update(shifted(sent, writer.produce(topic, batch, codec)))
    (got,) = reader.read(topic, records.ends(sent))
    records.same(sent, got)
