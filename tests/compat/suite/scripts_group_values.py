"""As scripts_values: values that requests seldom have, in those about groups, transactions, rights, quotas and users."""

import struct

from .scripts import (
    ADD_OFFSETS, ADD_PARTITIONS, ALTER_QUOTAS, CONSUMER_DESCRIBE, CONSUMER_HEARTBEAT, CREATE_ACLS, DELETE_ACLS, DELETE_GROUPS,
    DESCRIBE_ACLS, DESCRIBE_GROUPS, DESCRIBE_QUOTAS, DESCRIBE_TXNS, END, FIND_COORDINATOR, HEARTBEAT, INIT_PRODUCER, JOIN,
    LEAVE, LIST_GROUPS, LIST_RESOURCES, LIST_TXNS, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, SYNC, TXN_COMMIT, Producer,
    base64,
    coordinator, create, wire)
from .scripts_values import INT, LONG, NOBODY, PARTITION, SHORT, SOME_ID, answered, probe, topic_id, twice

DESCRIBE_USERS, ALTER_USERS, MARKERS = 50, 51, 27
CREATE_TOKEN, RENEW_TOKEN, EXPIRE_TOKEN, DESCRIBE_TOKENS = range(38, 42)
NAMES = ("", " ", ".", "ü", "n" * 32767)


def coordinators(peer):
    body = {"CoordinatorType": 0, "CoordinatorKey": "g", "CoordinatorKeys": ["g"]}
    coordinator(peer, "g", 0)
    coordinator(peer, "t", 1)
    # A share group's coordinator is another matter.
    probe(peer, "coordinator", FIND_COORDINATOR, range(6), body, {"CoordinatorType": (1, 3, -1, 127)}, {
        **{f"group {key[:9]!r}": {"CoordinatorKey": key, "CoordinatorKeys": [key]} for key in NAMES},
        **{f"id {key[:9]!r}": {"CoordinatorKey": key, "CoordinatorKeys": [key], "CoordinatorType": 1} for key in NAMES},
        "none": {"CoordinatorKeys": []}, "twice": {"CoordinatorKeys": ["g", "g"]}, "one good": {"CoordinatorKeys": ["",
            "g"]}})


def memberships(peer):
    create(peer, "member", 1)
    subscription = base64.b64encode(b"\0\0" + struct.pack(">ih", 1, 6) + b"member" + struct.pack(">i", -1)).decode()
    base = {"Group": "odd", "SessionTimeoutMillis": 30_000, "RebalanceTimeoutMillis": 30_000, "MemberID": "",
        "InstanceID": None,
            "ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": subscription}], "Reason": None}
    coordinator(peer, "odd", 0)
    # What would make a member that stays is left out: its rebalances would be waited for. Session times are checked first.
    refused = {"SessionTimeoutMillis": 1}
    probe(peer, "join", JOIN, range(10), {**base, **refused}, {
        "SessionTimeoutMillis": (0, -1, 5999, 1_800_001, INT, -1 << 31), "Group": ("",), "MemberID": ("nobody",),
        "Protocols": ([],), "ProtocolType": ("",)})
    probe(peer, "join as nobody", JOIN, range(10), {**base, "MemberID": "nobody"}, {
        "RebalanceTimeoutMillis": (0, -1), "InstanceID": ("", "i", "i i", "x" * 250, "."), "Protocols": ([],),
        "ProtocolType": ("", "x"),
        "Group": ("", " ")}, {
            "a protocol twice": twice(base, "Protocols"), "garbage": {"Protocols": [{"Name": "range", "Metadata": "AAAA"}]},
            "no name": {"Protocols": [{"Name": "", "Metadata": subscription}]}, "no metadata": {"Protocols": [
                {"Name": "range", "Metadata": ""}]}})
    lone = {"Group": "never", "Generation": 1, "MemberID": "m", "InstanceID": None, "ProtocolType": "consumer",
            "Protocol": "range", "GroupAssignment": []}
    stay = {"Generation": (-1, 0, -2, INT), "MemberID": ("",), "Group": ("", " ", "odd"), "InstanceID": ("", "i")}
    probe(peer, "sync", SYNC, range(6), lone, {
        **stay, "ProtocolType": (None, ""), "Protocol": (None, "")}, {
            "an assignment twice": {"GroupAssignment": [{"MemberID": "m", "MemberAssignment": ""}] * 2}})
    probe(peer, "heartbeat", HEARTBEAT, range(5), lone_of(lone), stay)
    probe(peer, "leave", LEAVE, range(6), {"Group": "never", "MemberID": "m", "Members": [{"MemberID": "m",
        "InstanceID": None}]}, {
        "Group": ("", " ", "odd"), "MemberID": ("",), "Members": ([], [{"MemberID": ""}], [{"MemberID": "m"}] * 2, [
            {"MemberID": "", "InstanceID": ""}], [{"MemberID": "m", "InstanceID": "i"}])})
    probe(peer, "describe", DESCRIBE_GROUPS, range(7), {"Groups": ["never"]}, {
        "Groups": ([], [""], [" "], ["never"] * 2, ["n" * 32767]), "IncludeAuthorizedOperations": (True,)})
    probe(peer, "delete", DELETE_GROUPS, range(3), {"Groups": ["never"]}, {
        "Groups": ([], [""], [" "], ["never"] * 2, ["n" * 32767])})
    probe(peer, "list", LIST_GROUPS, range(4, 6), {"StatesFilter": ["Dead"], "TypesFilter": []}, {
        "StatesFilter": (["dead"], ["Asleep"], [""], ["Asleep", "Dead"]), "TypesFilter": (
            ["classic"], ["CLASSIC"], ["nothing"], [""], ["unknown"], ["streams"])})
    # A group that is there, of one member, in which nothing is waited for.
    member = peer.ask("", JOIN, 9, base, note=False)["MemberID"]
    joined = peer.ask("", JOIN, 9, {**base, "MemberID": member}, note=False)
    peer.ask("", SYNC, 5, {**lone, "Group": "odd", "Generation": joined["Generation"], "MemberID": member,
        "GroupAssignment": [
        {"MemberID": member, "MemberAssignment": ""}]}, note=False)
    within = {**lone, "Group": "odd", "Generation": joined["Generation"], "MemberID": member}
    there = {"Generation": (-1, 0, -2, INT), "MemberID": ("", "nobody"), "InstanceID": ("", "i")}
    probe(peer, "sync within", SYNC, range(6), within, {**there, "ProtocolType": (None, "", "x"), "Protocol": (None, "",
        "x")})
    probe(peer, "heartbeat within", HEARTBEAT, range(5), lone_of(within), there)
    commits(peer, "within", within)
    probe(peer, "leave within", LEAVE, range(3, 6), {"Group": "odd", "Members": [{"MemberID": "nobody"}]}, {"Members": (
        [], [{"MemberID": ""}], [{"MemberID": "nobody", "InstanceID": "i"}])}, {
            "its id and another's instance": {"Members": [{"MemberID": member, "InstanceID": "i"}]}})
    peer.ask("leave", LEAVE, 5, {"Group": "odd", "Members": [{"MemberID": member}]})
    coordinator(peer, "alone", 0)
    commits(peer, "alone", {"Group": "alone", "Generation": -1, "MemberID": "", "InstanceID": None})


def lone_of(body):
    return {key: body[key] for key in ("Group", "Generation", "MemberID", "InstanceID")}


def commits(peer, name, who):
    own = topic_id(peer, "member")
    base = {**lone_of(who), "RetentionTimeMillis": -1, "Topics": [{"Topic": "member", "TopicID": own, "Partitions": [
        {"Partition": 0, "Offset": 3, "LeaderEpoch": -1, "Metadata": ""}]}]}
    probe(peer, f"commit {name}", OFFSET_COMMIT, range(2, 11), base, {
        "Generation": (-1, -2, 0, INT), "MemberID": ("", "nobody"), "InstanceID": ("", "i"), "Group": ("", " "),
        "RetentionTimeMillis": (0, -2, 1, LONG), PARTITION + "Offset": (-1, -2, -1 - LONG, LONG),
        PARTITION + "LeaderEpoch": (-2, 0, INT),
        PARTITION + "Metadata": (None, "ü", "m" * 4096, "m" * 4097), PARTITION + "Partition": (-1, 1, INT),
        "Topics.0.Topic": ("", "nowhere", "bad!"), "Topics.0.TopicID": (NOBODY, SOME_ID)}, {
            "no topics": {"Topics": []}, "no partitions": {"Topics.0.Partitions": []}, "a topic twice": twice(base, "Topics"),
            "a partition twice": twice(base, "Topics.0.Partitions")})
    peer.ask(f"commit {name} at last", OFFSET_COMMIT, 8, base)
    asked = [{"Topic": "member", "TopicID": own, "Partitions": [0]}]
    older = {"Group": who["Group"], "Topics": [{"Topic": "member", "Partitions": [0]}]}
    twice_asked = asked * 2
    topics = (None, [], [{"Topic": "member", "Partitions": []}], [{"Topic": "", "Partitions": [0]}], twice_asked,
              [{"Topic": "member", "Partitions": [0, 0, -1, 9]}], [{"Topic": "nowhere", "Partitions": [0]}])
    probe(peer, f"committed {name}", OFFSET_FETCH, range(1, 8), older, {
        "Topics": [of for of in topics if of and of is not twice_asked], "Group": ("", " ", "never"),
        "RequireStable": (True,)}, {
            "no topics": {"Topics": []}, "a topic twice": twice(older, "Topics")})
    # Versions below 2 know no null.
    probe(peer, f"committed {name}, all", OFFSET_FETCH, range(2, 8), {**older, "Topics": None})
    newer = {"RequireStable": False, "Groups": [{"Group": who["Group"], "MemberID": None, "MemberEpoch": -1,
        "Topics": asked}]}
    probe(peer, f"committed {name}", OFFSET_FETCH, (8, 9), newer, {
        "Groups.0.Topics": [of for of in topics if of is not twice_asked], "Groups.0.Group": ("", " ", "never"),
        "Groups.0.MemberID": ("", "nobody"),
        "Groups.0.MemberEpoch": (0, -2, 5), "Groups": ([],), "RequireStable": (True,)}, {
            "a group twice": twice(newer, "Groups"), "a topic twice": twice(newer, "Groups.0.Topics"),
            "of a member": {"Groups.0.MemberID": "nobody", "Groups.0.MemberEpoch": 1}})
    probe(peer, f"committed {name}", OFFSET_FETCH, (10,), newer, {
        "Groups.0.Topics": (None, [], [{"TopicID": NOBODY, "Partitions": [0]}], [{"TopicID": SOME_ID, "Partitions": [0]}])}, {
            "a topic twice": twice(newer, "Groups.0.Topics"), "no partitions": {"Groups.0.Topics.0.Partitions": []},
            "odd partitions": {"Groups.0.Topics.0.Partitions": [0, 0, -1, 9]}})
    gone = {"Group": who["Group"], "Topics": [{"Topic": "nowhere", "Partitions": [{"Partition": 0}]}]}
    probe(peer, f"offset delete {name}", OFFSET_DELETE, (0,), gone, {
        "Group": ("", " ", "never"), "Topics.0.Topic": ("",), PARTITION + "Partition": (-1, INT)}, {
            "none": {"Topics": []}, "no partitions": {"Topics.0.Partitions": []}, "twice": twice(gone, "Topics"),
            "a partition that is not there": {"Topics.0.Topic": "member", PARTITION + "Partition": 9}})


def consumers(peer):
    create(peer, "consumed", 1)
    coordinator(peer, "epochs", 0)
    # It is refused, and shows in what order.
    base = {"Group": "epochs", "MemberID": "m", "MemberEpoch": 5, "InstanceID": None, "RackID": None,
        "RebalanceTimeoutMillis": -1,
            "SubscribedTopicNames": None, "SubscribedTopicRegex": None, "ServerAssignor": None, "Topics": None}
    joins = {"MemberEpoch": 0, "RebalanceTimeoutMillis": 1000, "SubscribedTopicNames": ["consumed"], "Topics": []}

    def tidy(answer):
        if answer["ErrorCode"] == 128:
            answer["ErrorMessage"] = answer["ErrorMessage"].split(":")[0]

    probe(peer, "beat", CONSUMER_HEARTBEAT, range(2), base, {
        "MemberEpoch": (-1, -2, -3, -1 << 31, 1, INT), "Group": ("", " "), "MemberID": ("", " ", "m" * 37),
        "InstanceID": ("", " ", "i"),
        "RackID": ("", " "), "RebalanceTimeoutMillis": (0, 1, -2), "SubscribedTopicNames": ([], [""], ["bad!"]),
        "SubscribedTopicRegex": ("", "(", "[", "x{9999}", "(?=a)", "\\1"), "ServerAssignor": ("", " ", "range",
            "nothing"), "Topics": ([],)},
        {"leave as an instance": {"MemberEpoch": -2, "InstanceID": "i"}, "an instance leaves": {
            "MemberEpoch": -1, "InstanceID": "i"}}, tidy)
    probe(peer, "join", CONSUMER_HEARTBEAT, range(2), {**base, **joins, "ServerAssignor": "nothing"}, {
        "RebalanceTimeoutMillis": (0, -1, -2), "SubscribedTopicNames": (None, []), "Topics": (None, [
            {"TopicID": SOME_ID, "Partitions": [0]}]), "InstanceID": ("", " "), "RackID": ("",), "MemberID": ("", " "),
            "Group": ("", " "),
        "SubscribedTopicRegex": ("", "(", "consumed")}, {}, tidy)
    for label, changed in (
        ("a bad name", {"SubscribedTopicNames": ["bad!"]}), ("an empty name", {"SubscribedTopicNames": [""]}),
        ("nothing", {"SubscribedTopicNames": []}), ("nothing and an empty expression", {
            "SubscribedTopicNames": [], "SubscribedTopicRegex": ""}), ("an empty expression", {
                "SubscribedTopicNames": None, "SubscribedTopicRegex": ""}), ("no time", {"RebalanceTimeoutMillis": 0}),
        ("a blank instance", {"InstanceID": " "}), ("a blank member", {"MemberID": " "}), ("no assignor",
            {"ServerAssignor": ""}),
        ("partitions it has not", {"Topics": [{"TopicID": SOME_ID, "Partitions": [0]}]}),
        ("look-ahead", {"SubscribedTopicNames": None, "SubscribedTopicRegex": "(?=a)"}),
        ("a reference", {"SubscribedTopicNames": None, "SubscribedTopicRegex": "(a)\\1"}),
        ("repeated too often", {"SubscribedTopicNames": None, "SubscribedTopicRegex": "x{9999}"}),
        ("a twice named topic", {"SubscribedTopicNames": ["consumed", "consumed"]}),
    ):
        body = {**base, **joins, "Group": f"epochs of {label}", **changed}
        answer = peer.ask("", CONSUMER_HEARTBEAT, 1, body, note=False)
        tidy(answer)
        peer.answers.append((f"join with {label}", peer.named(answer)))
        peer.ask(f"leave after {label}", CONSUMER_HEARTBEAT, 1, {**base, "Group": body["Group"], "MemberEpoch": -1,
                                                                 "MemberID": body["MemberID"]})
    probe(peer, "describe", CONSUMER_DESCRIBE, range(2), {"Groups": ["never"]}, {
        "Groups": ([], [""], [" "], ["never"] * 2), "IncludeAuthorizedOperations": (True,)})


def producers(peer):
    create(peer, "odd-txn", 1)
    for name in ("odd", "of-odd"):
        coordinator(peer, name, 1)
    coordinator(peer, "of-odd", 0)
    nobody = {"TransactionalID": None, "TransactionTimeoutMillis": 1000, "ProducerID": -1, "ProducerEpoch": -1}
    pairs = [(1, -1), (-1, 1), (-2, -1), (-1, -2), (-2, -2), (5, 5), (LONG, SHORT), (0, 0)]

    def tidy(answer):
        answer["ProducerID"] = answer["ProducerID"] >= 0

    probe(peer, "no id", INIT_PRODUCER, range(6), nobody, {"TransactionTimeoutMillis": (0, -1, INT),
        "TransactionalID": ("",)}, {
        f"{pid}, {epoch}": {"ProducerID": pid, "ProducerEpoch": epoch} for pid, epoch in pairs}, tidy)
    probe(peer, "an id", INIT_PRODUCER, range(6), {**nobody, "TransactionalID": "odd", "TransactionTimeoutMillis": 0}, {
        "TransactionTimeoutMillis": (-1, -1 << 31, 900_001, INT)}, {
            f"{pid}, {epoch}": {"ProducerID": pid, "ProducerEpoch": epoch, "TransactionTimeoutMillis": 1000}
            for pid, epoch in pairs}, tidy)
    one = Producer(peer, "odd")
    own = {"TransactionalID": "odd", "ProducerID": one.pid, "ProducerEpoch": one.epoch}
    who = {"TransactionalID": ("", "nobody", " "), "ProducerID": (-1, 0, LONG), "ProducerEpoch": (-1, -2, SHORT)}
    ahead = {"the next epoch": {"ProducerEpoch": one.epoch + 1}}
    # These are not of the transaction, which stays closed.
    nowhere = [{"Topic": "nowhere", "Partitions": [0]}]
    probe(peer, "add", ADD_PARTITIONS, range(4), {**own, "Topics": nowhere}, {
        **who, "Topics": ([], [{"Topic": "", "Partitions": [0]}], [{"Topic": "odd-txn", "Partitions": [-1]}], [
            {"Topic": "nowhere", "Partitions": []}], [{"Topic": "nowhere", "Partitions": [0, 0]}], nowhere * 2)}, ahead)
    asked = {"TransactionalID": "odd", "ProducerID": one.pid, "ProducerEpoch": one.epoch, "VerifyOnly": True, "Topics": [
        {"Topic": "odd-txn", "Partitions": [0]}]}
    probe(peer, "add as a server", ADD_PARTITIONS, (4, 5), {"Transactions": [asked]}, {
        "Transactions.0.TransactionalID": ("", "nobody"), "Transactions.0.ProducerID": (-1,),
        "Transactions.0.ProducerEpoch": (-1, SHORT), "Transactions.0.Topics": ([], nowhere)}, {
            "twice": {"Transactions": [asked, asked]}})
    probe(peer, "offsets of no group", ADD_OFFSETS, range(5), {**own, "Group": ""}, who, ahead)
    probe(peer, "offsets of nobody", ADD_OFFSETS, range(5), {**own, "Group": "of-odd", "TransactionalID": "nobody"}, who,
        ahead)
    probe(peer, "end of nobody", END, range(6), {**own, "TransactionalID": "nobody", "Commit": True}, {"Commit": (False,),
        **who})
    # It would be Kafka's own affair when the end of an empty one is through.
    probe(peer, "end", END, range(5), {**own, "Commit": True, "ProducerEpoch": -1}, {
        "ProducerID": (-1, 0, LONG), "ProducerEpoch": (-1, -2, SHORT)}, ahead)
    commit = {**own, "Group": "of-odd", "Generation": -1, "MemberID": "", "InstanceID": None, "Topics": [
        {"Topic": "odd-txn", "Partitions": [{"Partition": 0, "Offset": 3, "LeaderEpoch": -1, "Metadata": ""}]}]}
    probe(peer, "commit", TXN_COMMIT, range(5), commit, {
        **who, "Group": ("", " "), "Generation": (0, 1, -2), "MemberID": ("nobody",), "InstanceID": ("", "i"),
        PARTITION + "Offset": (
            -1, -2), PARTITION + "Metadata": (None, "m" * 4097), PARTITION + "Partition": (-1, 9), "Topics.0.Topic": ("",
            "nowhere"),
        "Topics": ([],), "Topics.0.Partitions": ([],)}, {**ahead, "a topic twice": twice(commit, "Topics")})
    marker = {"ProducerID": 77, "ProducerEpoch": 0, "Committed": True, "CoordinatorEpoch": 0, "Topics": nowhere}
    probe(peer, "markers", MARKERS, (1, 2), {"Markers": [marker]}, {
        "Markers": ([], [marker] * 2), "Markers.0.Topics": ([], [{"Topic": "nowhere", "Partitions": []}], [
            {"Topic": "odd-txn", "Partitions": [-1]}], [{"Topic": "odd-txn", "Partitions": [9]}]),
            "Markers.0.ProducerID": (-1,),
        "Markers.0.ProducerEpoch": (-1,), "Markers.0.CoordinatorEpoch": (-1,)})
    probe(peer, "describe", DESCRIBE_TXNS, (0,), {"TransactionalIDs": ["nobody"]}, {"TransactionalIDs": (
        [], [""], [" "], ["nobody"] * 2)})
    probe(peer, "list", LIST_TXNS, range(3), {"StateFilters": ["Dead"], "ProducerIDFilters": [],
        "DurationFilterMillis": -1}, {
        "StateFilters": (["dead"], [""], ["Nothing"], ["Nothing", "Dead", "Nothing"]), "ProducerIDFilters": ([-1], [LONG]),
        "DurationFilterMillis": (0, -2, LONG), "TransactionalIDPattern": (None, "", "(", "a.*", "[", "(?=a)")})


def rights(peer):
    """Neither has an authorizer: what is wrong with a request comes first, or does not."""
    entry = {"ResourceType": 2, "ResourceName": "t", "ResourcePatternType": 3, "Principal": "User:a", "Host": "*",
        "Operation": 3,
             "PermissionType": 3}
    fields = {
        "ResourceType": (0, 1, 7, 8, -1, 127), "ResourcePatternType": (0, 1, 2, 3, 4, 5, -1, 127), "Operation": (
            0, 1, 2, 13, 15, 16, -1, 127), "PermissionType": (0, 1, 2, 4, -1, 127), "ResourceName": ("", " "), "Principal": (
                "", "a", "User:", ":a", "a:b:c"), "Host": ("", "nowhere")}
    null = {"ResourceName": (None,), "Principal": (None,), "Host": (None,)}
    merged = {key: (*fields.get(key, ()), *null.get(key, ())) for key in fields}
    probe(peer, "list", DESCRIBE_ACLS, range(1, 4), entry, merged)
    probe(peer, "create", CREATE_ACLS, range(1, 4), {"Creations": [entry]}, {
        "Creations": ([],), **{f"Creations.0.{key}": values for key, values in fields.items()}})
    probe(peer, "delete", DELETE_ACLS, range(1, 4), {"Filters": [entry]}, {
        "Filters": ([],), **{f"Filters.0.{key}": values for key, values in merged.items()}})


def limits(peer):
    base = {"Strict": False, "Components": [{"EntityType": "user", "MatchType": 0, "Match": "nobody"}]}
    probe(peer, "show", DESCRIBE_QUOTAS, range(2), base, {
        "Strict": (True,), "Components.0.EntityType": ("", "USER", "users", "client-id", "ip"), "Components.0.MatchType": (
            1, 2, 3, -1, 127), "Components.0.Match": (None, "", "<default>")}, {
                "twice": twice(base, "Components"), **{f"{kind}, {name!r}": {"Components.0.MatchType": kind,
                    "Components.0.Match": name}
                                                       for kind in (1, 2) for name in (None, "", "nobody")}})
    entry = {"Entity": [{"Type": "user", "Name": "asked"}], "Ops": [{"Key": "producer_byte_rate", "Value": 5,
        "Remove": False}]}
    body = {"ValidateOnly": True, "Entries": [entry]}
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
            "connection_creation_rate", "", "SCRAM-SHA-256")
    values = (0, -0.0, -1, 0.5, 1, 1.5, 5e-324, 2 ** 31 - 1, 2 ** 31, 2 ** 53, 2 ** 63, 1.7976931348623157e308)
    probe(peer, "change", ALTER_QUOTAS, range(2), body, {
        "Entries": ([],), "Entries.0.Ops": ([],), "Entries.0.Entity": ([], [{"Type": "user", "Name": ""}], [
            {"Type": "user", "Name": "<default>"}], [{"Type": "", "Name": "x"}], [{"Type": "client-id", "Name": ""}], [
                {"Type": "ip", "Name": "::1"}], [{"Type": "ip", "Name": "1.2.3"}], [{"Type": "ip", "Name": "1.2.3.4/8"}], [
                    {"Type": "user", "Name": None}, {"Type": "user", "Name": "x"}], [{"Type": "user", "Name": "x"}, {
                        "Type": "ip", "Name": "1.2.3.4"}], [{"Type": "user", "Name": "x y"}], [{"Type": "user",
                        "Name": "n" * 32767}])}, {
            **{f"{key} = {value}": {"Entries.0.Ops": [{"Key": key, "Value": value, "Remove": False}]}
               for key in keys for value in values},
            **{f"{key} = {value} of an address": {"Entries.0.Entity": [{"Type": "ip", "Name": "1.2.3.4"}], "Entries.0.Ops": [
                {"Key": key, "Value": value, "Remove": False}]} for key in keys[3:5] for value in values},
            **{f"remove {key}": {"Entries.0.Ops": [{"Key": key, "Value": 0, "Remove": True}]} for key in keys},
            "an entity twice": twice(body, "Entries")})
    # JSON has no words for these.
    for value in (float("nan"), float("inf"), -float("inf")):
        request = wire.Request(ALTER_QUOTAS, 1, True).array(1).array(1).text("user").text("asked").tags().array(1)
        request.text("producer_byte_rate").add("d?", value, False).tags().tags().add("?", True).tags()
        code = answered(peer, request.frame(), lambda of: struct.unpack_from(">h", of, 6)[0])
        peer.answers.append((f"change producer_byte_rate = {value}", code))


def users(peer):
    probe(peer, "describe", DESCRIBE_USERS, (0,), {"Users": [{"Name": "nobody"}]}, {
        "Users": (None, [], [{"Name": ""}], [{"Name": "nobody"}] * 2, [{"Name": " "}])})
    salt = base64.b64encode(b"salt").decode()
    upsertion = {"Name": "u", "Mechanism": 1, "Iterations": 4096, "Salt": salt, "SaltedPassword": salt}
    deletion = {"Name": "nobody", "Mechanism": 1}
    # Each is refused, for its mechanism at the latest.
    probe(peer, "alter", ALTER_USERS, (0,), {"Deletions": [deletion], "Upsertions": []}, {
        "Deletions": ([], [deletion] * 2), "Deletions.0.Name": ("", " "), "Deletions.0.Mechanism": (0, 2, 3, -1, 127)})
    probe(peer, "set", ALTER_USERS, (0,), {"Deletions": [], "Upsertions": [{**upsertion, "Mechanism": 0}]}, {
        "Upsertions": ([{**upsertion, "Name": ""}], [{**upsertion, "Name": "", "Mechanism": 9}], [upsertion] * 2, *(
            [{**upsertion, **{field: value}}] for field, value in (
                ("Iterations", 0), ("Iterations", -1), ("Iterations", 4095), ("Iterations", 16385), ("Iterations", INT),
                ("Mechanism", 3), ("Mechanism", -1), ("Mechanism", 127), ("Salt", ""), ("SaltedPassword", ""))))}, {
            "set and deleted": {"Deletions": [deletion | {"Name": "u"}], "Upsertions": [upsertion]},
            "a good one and a bad one": {"Upsertions": [{**upsertion, "Iterations": 1}, {**upsertion, "Mechanism": 2,
                "Iterations": 1}]},
            "two mechanisms": {"Upsertions": [{**upsertion, "Iterations": 1}], "Deletions": [{"Name": "u", "Mechanism": 2}]}})
    peer.ask("what is left", DESCRIBE_USERS, 0, {"Users": None})
    probe(peer, "resources", LIST_RESOURCES, (0, 1), {"ResourceTypes": [16]}, {"ResourceTypes": (
        [0], [1], [3], [-1], [127], [16, 7], [8], [16, 16])})


def tokens(peer):
    """Neither server has a secret for delegation tokens."""
    anybody = {"PrincipalType": "User", "PrincipalName": "anybody"}
    some = base64.b64encode(b"some token").decode()
    probe(peer, "create", CREATE_TOKEN, range(1, 4), {"Renewers": [], "MaxLifetimeMillis": -1}, {
        "Renewers": ([anybody], [{"PrincipalType": "x", "PrincipalName": ""}]), "MaxLifetimeMillis": (0, -2, LONG),
        "OwnerPrincipalName": ("anybody",)})
    probe(peer, "renew", RENEW_TOKEN, (1, 2), {"HMAC": some, "RenewTimeMillis": -1}, {
        "HMAC": ("",), "RenewTimeMillis": (0, LONG)})
    probe(peer, "expire", EXPIRE_TOKEN, (1, 2), {"HMAC": some, "ExpiryPeriodMillis": -1}, {
        "HMAC": ("",), "ExpiryPeriodMillis": (0, LONG)})
    probe(peer, "describe", DESCRIBE_TOKENS, range(1, 4), {"Owners": None}, {"Owners": ([], [anybody], [anybody] * 2)})


SCRIPTS = {"values of coordinators": coordinators, "values of groups": memberships, "values of consumer groups": consumers,
           "values of transactions": producers, "values of rights": rights, "values of quotas": limits,
           "values of users": users, "values of delegation tokens": tokens}
