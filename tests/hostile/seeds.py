"""What makes requests pass the first checks: a topic, a group with a member, a producer with a transaction.

Definitions name what a field holds by its entity type or by its name; a field that is not known here gets its default,
0, or a short word. So an API that did not exist when this was written is asked for something, if less deep.
"""

import struct
import time
import uuid

import wire
from peer import Peer
from wire import Answer, Request

TOPIC, COMPACTED = "attacked", "compacted"
NO_ERROR, TOPIC_EXISTS, MEMBER_ID_REQUIRED = 0, 36, 79
GROUP_SESSION_MS, TRANSACTION_MS = 1_800_000, 600_000
RETRY_SECONDS, RETRY_PAUSE_SECONDS = 20, 0.1

# By name of the field; what is as small as may be, or asks for an answer at once.
TEXTS = {
    "ProtocolType": b"consumer", "ProtocolName": b"range", "ServerAssignor": b"uniform", "Principal": b"User:attacker",
    "PrincipalFilter": b"User:attacker", "PrincipalType": b"User", "OwnerPrincipalType": b"User", "Host": b"*",
    "Mechanism": b"SCRAM-SHA-256", "EntityType": b"user", "EntityName": b"attacker", "Match": b"attacker",
    "ResourceName": TOPIC.encode(), "ResourceNameFilter": TOPIC.encode(), "ClientSoftwareName": b"adversary",
    "ClientSoftwareVersion": b"1", "StateFilters": b"Ongoing", "StatesFilter": b"Stable", "TypesFilter": b"classic",
    "ConfigurationKeys": b"retention.ms", "Path": b"/nowhere", "TransactionalIdPattern": b"a.*",
    "SubscribedTopicRegex": b"a.*",
}
# Of some requests, since the name alone does not tell.
TEXTS_OF = {
    ("AlterConfigs", "Name"): b"retention.ms", ("IncrementalAlterConfigs", "Name"): b"retention.ms",
    ("CreateTopics", "Configs.Name"): b"retention.ms", ("AlterClientQuotas", "Key"): b"producer_byte_rate",
    ("JoinGroup", "Name"): b"range", ("UpdateFeatures", "Feature"): b"nothing", ("CreateTopics", "Topics.Name"): b"created",
    ("AlterUserScramCredentials", "Name"): b"attacker",
}
CONFIG_VALUE, WORD = b"600000000", b"anything"
NUMBERS = {
    "SessionTimeoutMs": 30_000, "RebalanceTimeoutMs": 1000, "TransactionTimeoutMs": TRANSACTION_MS, "TimeoutMs": 1000,
    "timeoutMs": 1000, "NumPartitions": 1, "ReplicationFactor": 1, "Count": 2, "Acks": -1, "MaxBytes": 1 << 24,
    "PartitionMaxBytes": 1 << 20, "ResponsePartitionLimit": 2000, "ResourceType": 2, "ResourceTypeFilter": 2,
    "ResourcePatternType": 3, "PatternTypeFilter": 3, "Operation": 3, "PermissionType": 3, "Timestamp": 1000,
    "CurrentLeaderEpoch": -1, "LastFetchedEpoch": -1, "CommittedLeaderEpoch": -1, "DurationFilter": -1,
    "RetentionTimeMs": -1, "Iterations": 4096, "Value": 1e9, "MaxLifetimeMs": -1, "EndpointType": 1, "CoordinatorEpoch": 0,
    "MaxVersionLevel": 1, "UpgradeType": 1,
}
NUMBERS_OF = {("AlterUserScramCredentials", "Mechanism"): 1, ("Fetch", "SessionEpoch"): 0, ("Fetch", "MinBytes"): 0,
              ("ListOffsets", "LeaderEpoch"): -1, ("InitProducerId", "ProducerId"): -1,
              ("InitProducerId", "ProducerEpoch"): -1}
ABSENT_BROKER, OWN_REPLICA = 7, -1
# Arrays without which a request is refused early; the others are empty where nobody asks for more.
NEEDED = {("JoinGroup", "Protocols"), ("AlterClientQuotas", "Ops"), ("IncrementalAlterConfigs", "Configs"),
          ("ConsumerGroupHeartbeat", "SubscribedTopicNames"), ("CreateDelegationToken", "Renewers")}


class Seeds:
    """State on the server, and the values of fields that name it."""

    def __init__(self, address):
        self.address, self.renewals = address, 0
        self.topic_id = bytes(16)
        self.group, self.member, self.generation = None, "", -1
        self.transactional_id, self.producer = None, (-1, -1)
        self.modern_group, self.modern_member, self.modern_epoch = None, str(uuid.UUID(int=1)), 0
        self.record = wire.batch([b"a record"])

    # Before each attack

    def renew(self, transactions):
        with Peer(self.address) as peer:
            self.renewals += 1
            self.find_topic(peer)
            if not self.is_member(peer):
                self.join(peer)
            if transactions:
                self.begin_transaction(peer)

    def find_topic(self, peer):
        self.topic_id = self.id_of(peer, TOPIC)
        deadline = time.monotonic() + RETRY_SECONDS
        while self.topic_id is None:
            create(peer, TOPIC)
            self.topic_id = self.id_of(peer, TOPIC)
            assert time.monotonic() < deadline, f"{TOPIC} cannot be made"

    def id_of(self, peer, topic):
        answer = Answer(peer.ask(wire.metadata([topic], version=12)))
        # Tags, throttle time, one or more brokers, cluster id, controller: the id stands behind the topic's name.
        name = wire.varint(len(topic) + 1) + topic.encode()
        at = answer.body.find(name)
        assert at > 2, f"{topic} is not in an answer to Metadata"
        error, = struct.unpack_from(">h", answer.body, at - 2)
        return answer.body[at + len(name):at + len(name) + 16] if error == NO_ERROR else None

    def is_member(self, peer):
        if self.group is None:
            return False
        request = Request(12, 2, False).text(self.group).add("i", self.generation).text(self.member)
        return Answer(peer.ask(request)).take("ih")[1] == NO_ERROR

    def join(self, peer):
        """A group of one member, which says no more and stays."""
        self.group, self.member = f"attacked-group-{self.renewals}", ""
        coordinator(peer, self.group, 0)
        # Joins once to be given a member id, and once more; a new coordinator may take a while.
        deadline = time.monotonic() + RETRY_SECONDS
        error = None
        while error != NO_ERROR and time.monotonic() < deadline:
            request = Request(11, 4, False).text(self.group).add("ii", GROUP_SESSION_MS, 1000).text(self.member)
            request.text("consumer").array(1).text("range").bytes(bytes(12))
            answer = Answer(peer.ask(request))
            _, error, self.generation, _, _, self.member = (answer.take("i"), answer.take("h"), answer.take("i"),
                                                            answer.text(), answer.text(), answer.text())
            if error not in (NO_ERROR, MEMBER_ID_REQUIRED):
                time.sleep(RETRY_PAUSE_SECONDS)
        assert error == NO_ERROR, f"joining: error {error}"
        request = Request(14, 1, False).text(self.group).add("i", self.generation).text(self.member)
        peer.ask(request.array(1).text(self.member).bytes(bytes(8)))

    def begin_transaction(self, peer):
        self.transactional_id = f"attacked-transaction-{self.renewals}"
        coordinator(peer, self.transactional_id, 1)
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            request = Request(22, 1, False).text(self.transactional_id).add("i", TRANSACTION_MS)
            _, error, *self.producer = Answer(peer.ask(request)).take("ihqh")
            if error == NO_ERROR:
                break
            assert time.monotonic() < deadline, f"InitProducerId: error {error}"
            time.sleep(RETRY_PAUSE_SECONDS)
        request = Request(24, 1, False).text(self.transactional_id).add("qh", *self.producer)
        peer.ask(request.array(1).text(TOPIC).array(1).add("i", 0))

    # Values of fields

    def text(self, encoder, field, path):
        if field.default == "null" and encoder.version in field.nullable:
            return None
        of, absent = encoder.schema.name, encoder.plan.absent
        if field.entity == "topicName":
            if (of, ".".join(path)) in TEXTS_OF:
                return TEXTS_OF[of, ".".join(path)]
            return b"nonexistent" if absent else TOPIC.encode()
        if field.entity == "groupId" or field.name == "GroupId":
            group = self.modern_group or "modern-group" if "ConsumerGroup" in of else self.group
            return b"nonexistent-group" if absent or not group else group.encode()
        if field.entity == "transactionalId":
            return b"nonexistent-transaction" if absent or not self.transactional_id else self.transactional_id.encode()
        if field.name == "MemberId":
            return (self.modern_member if "ConsumerGroup" in of else self.member).encode()
        if field.name == "Value":
            return CONFIG_VALUE
        for key in ((of, ".".join(path)), (of, field.name)):
            if key in TEXTS_OF:
                return TEXTS_OF[key]
        return TEXTS.get(field.name, WORD)

    def number_of(self, encoder, field):
        of = encoder.schema.name
        if (of, field.name) in NUMBERS_OF:
            return NUMBERS_OF[of, field.name]
        if field.entity == "producerId":
            return self.producer[0]
        if "ProducerEpoch" in field.name:
            return self.producer[1]
        if field.name in ("GenerationId", "GenerationIdOrMemberEpoch"):
            return self.generation
        if field.name == "ReplicaId":
            return OWN_REPLICA
        if field.entity == "brokerId":
            return ABSENT_BROKER
        if field.name in NUMBERS:
            return NUMBERS[field.name]
        default = str(field.default or 0)
        return float(default) if field.type == "float64" else int(default, 0)

    def number(self, encoder, field, _):
        if field.type == "bool":
            return encoder.plan.flags
        return self.number_of(encoder, field)

    def uuid(self, encoder, field, siblings):
        # Where a name is said as well, it is the name that counts.
        named = {"Name", "Topic", "TopicName"} & set(siblings)
        if named or "Topic" not in field.name:
            return bytes(16)
        return uuid.UUID(int=5).bytes if encoder.plan.absent else self.topic_id

    def blob(self, encoder, field, _):
        if field.type == "records":
            return b"" if encoder.plan.distinct else self.record
        return bytes(12)

    def count(self, encoder, field, path):
        """Elements of an array that nobody asked for."""
        asked = encoder.asked_for(path) or (encoder.schema.name, field.name) in NEEDED
        if asked or len(path) == 1 and field.fields:
            return 1
        return None if field.default == "null" and encoder.version in field.nullable else 0


def create(peer, topic, settings=()):
    request = Request(19, 2, False).array(1).text(topic).add("ih", 1, 1).array(0).array(len(settings))
    for name, value in settings:
        request.text(name).text(value)
    answer = Answer(peer.ask(request.add("i?", 10_000, False), 30))
    answer.take("ii"), answer.text()
    error = answer.take("h")
    assert error in (NO_ERROR, TOPIC_EXISTS), f"creating {topic}: error {error}"
    deadline = time.monotonic() + RETRY_SECONDS
    while wire.topics_described(peer.ask(wire.metadata([topic])))[topic] != (NO_ERROR, 1):
        assert time.monotonic() < deadline, f"{topic} was created and is not there"
        time.sleep(RETRY_PAUSE_SECONDS)


def coordinator(peer, name, kind):
    """Waits until somebody looks after this group, or transactional id."""
    deadline = time.monotonic() + RETRY_SECONDS
    while Answer(peer.ask(Request(10, 1, False).text(name).add("b", kind))).take("ih")[1] != NO_ERROR:
        assert time.monotonic() < deadline, f"{name} has no coordinator"
        time.sleep(RETRY_PAUSE_SECONDS)
