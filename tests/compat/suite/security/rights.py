"""Who may do what: through clients, and through Kafka's own tools, which an administrator uses on a secured listener."""

import time

from suite.report import until

from .servers import SECURITY, quoted
from .tools import Tools
from .users import PASSWORD

WITHOUT, GRANTED, ELSEWHERE, WATCHED, LEAVING = "carol", "dave", "erin", "bob", "frank"
TOPIC, OTHER, GROUP, TRANSACTION = "rights-topic", "rights-other", "rights-group", "rights-transaction"
# What the tool is told to grant, and what everybody has here.
GRANTS = [
    ("TOPIC", "rights-", "PREFIXED", ("CREATE", "DESCRIBE", "WRITE")),
    ("TRANSACTIONAL_ID", TRANSACTION, "PREFIXED", ("DESCRIBE", "WRITE")),
    ("TOPIC", TOPIC, "LITERAL", ("DESCRIBE", "READ")), ("GROUP", "*", "LITERAL", ("READ",)),
    *((kind, "open-", "PREFIXED", ("ALL",)) for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID")),
]
VALUES = ["one", "two", "three"]
# Until what an administrator changed is in force, for the next request.
SETTLED_SECONDS = 0.3


def cases(place):
    rights = Rights(place)
    yield "rights: none without a right", 60, rights.nothing
    yield "rights: a super user needs none", 30, rights.super_user
    yield "rights: granted by kafka-acls, literal and prefixed", 90, rights.granted
    yield "rights: kafka-acls lists them", 40, rights.listed
    yield "rights: denied over granted", 60, rights.denied
    yield "rights: removed by kafka-acls", 60, rights.removed
    yield "rights: bound to a host", 40, rights.bound
    yield "rights: in force on open connections", 60, rights.open_connections
    yield "users: made, described and deleted by kafka-configs", 90, rights.users


class Rights:
    def __init__(self, place):
        self.place, self.clients, self.admin, self.server = place, place.clients, place.admin, place.server

    def connect(self, user, password=PASSWORD):
        return self.server.connect("LOGIN", "SCRAM-SHA-256", user, password)

    def tools(self):
        path = self.place.directory / "admin.properties"
        login = f"{SECURITY}.scram.ScramLoginModule required username=\"admin\" password=\"{quoted(PASSWORD)}\";"
        connect = self.server.connect("TLSLOGIN", "SCRAM-SHA-512")
        path.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={connect['authority']}\nsasl.jaas.config={login}\n".replace("\\", "\\\\"))
        return Tools(connect["bootstrap"], path)

    def nothing(self):
        self.admin.create_topics(TOPIC, OTHER)
        who = self.connect(WITHOUT)
        denied = self.clients.refused
        for topic in (TOPIC, "rights-not-there"):
            denied("TOPIC_AUTHORIZATION_FAILED", operation="produce", connect=who, topic=topic, values=VALUES)
        # librdkafka looks for its group's coordinator even when it is told its partitions.
        denied({"java": "TOPIC_AUTHORIZATION_FAILED", "confluent": "GROUP_AUTHORIZATION_FAILED",
                "franz": "TOPIC_AUTHORIZATION_FAILED"}, operation="consume", connect=who, topic=TOPIC, count=1)
        denied("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", operation="produce", connect=who, topic=TOPIC, values=VALUES,
               transactional_id=TRANSACTION)
        denied("TOPIC_AUTHORIZATION_FAILED", operation="create_topic", connect=who, topic="rights-made")
        for name, topics in self.clients.done("topics", connect=who).items():
            # What everybody here may use is seen.
            seen = [topic for topic in topics if not topic.startswith("open-")]
            assert not seen, f"{name} sees {seen}"
        # Clients ask for the topic first: the group's refusal is seen where the topic's is not.
        self.admin.grant(f"User:{WITHOUT}", ("topic", TOPIC, "READ"))
        time.sleep(SETTLED_SECONDS)
        denied("GROUP_AUTHORIZATION_FAILED", operation="consume", connect=who, topic=TOPIC, count=1, group=GROUP)

    def super_user(self):
        who = self.connect("admin")
        for name, topics in self.clients.done("topics", connect=who).items():
            assert TOPIC in topics, f"{name} sees {topics}"
        self.clients.done("create_topic", connect=who, topic=lambda name: f"rights-made-{name}")

    def use(self, who, number):
        """All that the rights are for, with each client; `number` tells groups apart."""
        self.clients.done("produce", connect=who, topic=OTHER, values=VALUES)
        self.clients.done("produce", connect=who, topic=TOPIC, values=VALUES,
                          transactional_id=lambda name: f"{TRANSACTION}-{name}")
        found = self.clients.done("consume", connect=who, topic=TOPIC, count=len(VALUES),
                                  group=lambda name: f"{GROUP}-{name}-{number}")
        for name, values in found.items():
            assert values[:len(VALUES)] == VALUES, f"{name} got {values}"

    def granted(self):
        tools, who = self.tools(), f"User:{GRANTED}"
        tools.acls("--add", "--allow-principal", who, "--producer", "--topic", "rights-", "--transactional-id",
                   TRANSACTION, "--resource-pattern-type", "prefixed")
        tools.acls("--add", "--allow-principal", who, "--consumer", "--topic", TOPIC, "--group", "*")
        time.sleep(SETTLED_SECONDS)
        self.use(self.connect(GRANTED), 1)
        self.clients.refused("TOPIC_AUTHORIZATION_FAILED", operation="consume", connect=self.connect(GRANTED),
                             topic=OTHER, count=1)

    def listed(self):
        said = self.tools().acls("--list", "--principal", f"User:{GRANTED}")
        wanted = f"ACLs for principal `User:{GRANTED}`\n" + "".join(
            f"Current ACLs for resource `ResourcePattern(resourceType={kind}, name={name}, patternType={pattern})`:\n"
            + "".join(f"\t(principal=User:{GRANTED}, host=*, operation={operation}, permissionType=ALLOW)\n"
                      for operation in operations) + "\n"
            for kind, name, pattern, operations in GRANTS)
        assert in_order(said) == in_order(wanted), said

    def denied(self):
        tools = self.tools()
        who = self.connect(GRANTED)
        tools.acls("--add", "--deny-principal", f"User:{GRANTED}", "--operation", "Write", "--topic", OTHER)
        time.sleep(SETTLED_SECONDS)
        self.clients.refused("TOPIC_AUTHORIZATION_FAILED", operation="produce", connect=who, topic=OTHER, values=VALUES)
        self.clients.done("consume", connect=who, topic=TOPIC, count=1)
        self.admin.take(f"User:{GRANTED}", ("topic", OTHER, "WRITE"), allow=False)
        time.sleep(SETTLED_SECONDS)
        self.use(who, 2)

    def removed(self):
        self.tools().acls("--remove", "--force", "--allow-principal", f"User:{GRANTED}", "--producer", "--topic",
                          "rights-", "--transactional-id", TRANSACTION, "--resource-pattern-type", "prefixed")
        time.sleep(SETTLED_SECONDS)
        self.clients.refused("TOPIC_AUTHORIZATION_FAILED", operation="produce", connect=self.connect(GRANTED),
                             topic=OTHER, values=VALUES)

    def bound(self):
        who, right = f"User:{ELSEWHERE}", ("topic", TOPIC, "ALL")
        write = {"operation": "produce", "connect": self.connect(ELSEWHERE), "topic": TOPIC, "values": VALUES}
        self.admin.grant(who, right, host="10.9.9.9")
        time.sleep(SETTLED_SECONDS)
        self.clients.refused("TOPIC_AUTHORIZATION_FAILED", **write)
        self.admin.grant(who, right, host="127.0.0.1")
        time.sleep(SETTLED_SECONDS)
        self.clients.done(**write)
        self.admin.grant(who, right)
        self.admin.grant(who, right, host="127.0.0.1", allow=False)
        time.sleep(SETTLED_SECONDS)
        self.clients.refused("TOPIC_AUTHORIZATION_FAILED", **write)

    def open_connections(self):
        who, right = f"User:{WATCHED}", ("topic", "rights-watched", "WRITE")
        self.admin.create_topics("rights-watched")
        self.admin.grant(who, right)
        time.sleep(SETTLED_SECONDS)
        self.clients.done("stream", connect=self.connect(WATCHED), topic="rights-watched", name="watched")

        def state(ready):
            found = self.clients.done("state", name="watched")
            return found if all(ready(one) for one in found.values()) else None

        until(lambda: state(lambda one: one["acknowledged"] > 10), "records")
        self.admin.take(who, right)
        refused = until(lambda: state(lambda one: one["errors"]), "errors")
        for name, one in refused.items():
            assert one["errors"][0][0] == 29, f"{name}: {one['errors'][0]}"
        time.sleep(0.5)
        before = self.clients.done("state", name="watched")
        self.admin.grant(who, right)
        until(lambda: all(one["acknowledged"] > before[name]["acknowledged"] + 10
                          for name, one in self.clients.done("state", name="watched").items()), "records again",
              lambda: self.clients.done("state", name="watched"))
        self.clients.done("stop", name="watched")

    def users(self):
        tools = self.tools()
        entity = ("--entity-type", "users", "--entity-name", LEAVING)
        made = tools.configs("--alter", *entity, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=simple-one]")
        assert made == f"Completed updating config for user {LEAVING}.\n", made
        described = tools.configs("--describe", *entity)
        assert described == f"SCRAM credential configs for user-principal '{LEAVING}' are SCRAM-SHA-256=iterations=8192\n", \
            described
        time.sleep(SETTLED_SECONDS)
        self.clients.done("probe", connect=self.connect(LEAVING, "simple-one"))
        self.clients.refused("SASL_AUTHENTICATION_FAILED", connect=self.connect(LEAVING, "another"))
        deleted = tools.configs("--alter", *entity, "--delete-config", "SCRAM-SHA-256")
        assert deleted == f"Completed updating config for user {LEAVING}.\n", deleted
        time.sleep(SETTLED_SECONDS)
        self.clients.refused("SASL_AUTHENTICATION_FAILED", connect=self.connect(LEAVING, "simple-one"))


def in_order(text):
    """The lines that kafka-acls prints: the order of the resources, and of what is granted on each, is by chance."""
    parts = text.replace("`\nCurrent", "`\n\nCurrent").strip().split("\n\n")
    return sorted(sorted(part.splitlines()) for part in parts)
