"""The server under test with every kind of listener: one of ours, or Apache Kafka with the same settings."""

from suite.kafka import KafkaProcess, fetch_jars
from suite.ports import free_address

from .administration import Administration
from .configured import ConfiguredServer, create_user
from .tokens import AUDIENCE, ISSUER
from .users import MECHANISMS, PASSWORD, SCRAM, USERS

SECURITY = "org.apache.kafka.common.security"
REAUTHENTICATION_MS = 3000
RECEIVE_BYTES_MAX = 4096
LISTENERS = {
    "INTERNAL": "PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL", "REQUESTED": "SSL", "EXPIRED": "SSL", "ELSEWHERE": "SSL",
    "CHAINED": "SSL", "RELOADED": "SSL", "LOGIN": "SASL_PLAINTEXT", "TLSLOGIN": "SASL_SSL", "SCRAMONLY": "SASL_PLAINTEXT",
    "REAUTH": "SASL_PLAINTEXT",
}


def settings(certificates, tokens):
    """Both servers' names."""
    found = {
        "listener.security.protocol.map": ",".join(f"{name}:{what}" for name, what in LISTENERS.items()),
        "ssl.keystore.type": "PEM", "ssl.keystore.location": certificates["server"],
        "ssl.truststore.type": "PEM", "ssl.truststore.location": certificates["authority"],
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),O=(.*?)$/$2-$1/L,DEFAULT",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.requested.ssl.client.auth": "requested",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.scramonly.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.reauth.connections.max.reauth.ms": REAUTHENTICATION_MS,
        "sasl.server.max.receive.size": RECEIVE_BYTES_MAX,
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{tokens.jwks}",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1,
    }
    for listener in ("expired", "elsewhere", "chained", "reloaded"):
        found[f"listener.name.{listener}.ssl.keystore.type"] = "PEM"
        found[f"listener.name.{listener}.ssl.keystore.location"] = certificates[listener]
    return found


class Secured:
    """What both have in common. `addresses`: listener -> HOST:PORT."""

    def __init__(self, directory, certificates, tokens):
        self.directory, self.certificates, self.tokens = directory, certificates, tokens
        self.addresses = {name: free_address() for name in LISTENERS}
        self.urls = ",".join(f"{name}://{address}" for name, address in self.addresses.items())
        self.process = self.server = self.admin = None
        directory.mkdir(parents=True)

    def connect(self, listener, mechanism=None, user="alice", password=PASSWORD, host="127.0.0.1", token=None,
                authority="authority", certificate=None, protocol=None):
        """For the clients; what the listener wants, but for what is given."""
        protocol = protocol or LISTENERS[listener]
        found = {"bootstrap": self.addresses[listener].replace("127.0.0.1", host), "protocol": protocol}
        if protocol.endswith("SSL"):
            found["authority"] = str(self.certificates[authority])
        if certificate:
            found["certificate"] = str(self.certificates[certificate])
        if protocol.startswith("SASL"):
            found["mechanism"] = mechanism
            if mechanism == "OAUTHBEARER":
                found["token"] = token or self.tokens.make(user=user)
            else:
                found.update(user=user, password=password)
        return found


class SecuredKafka(Secured):
    own = False

    def properties(self):
        controller = free_address()
        found = {
            **settings(self.certificates, self.tokens),
            "process.roles": "broker,controller", "node.id": 1, "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": controller,
            "listeners": f"{self.urls},CONTROLLER://{controller}", "advertised.listeners": self.urls,
            "inter.broker.listener.name": "INTERNAL", "log.dirs": self.directory / "data",
            "log.cleaner.dedupe.buffer.size": 16 << 20,
        }
        found["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            found[f"{topic}.replication.factor"] = 1
        for topic in ("transaction.state.log", "share.coordinator.state.topic"):
            found[f"{topic}.min.isr"] = 1
        users = " ".join(f'user_{user}="{quoted(PASSWORD)}"' for user in USERS)
        for listener, protocol in LISTENERS.items():
            if protocol.startswith("SASL"):
                prefix = f"listener.name.{listener.lower()}"
                found[f"{prefix}.plain.sasl.jaas.config"] = f"{SECURITY}.plain.PlainLoginModule required {users};"
                for mechanism in ("scram-sha-256", "scram-sha-512"):
                    found[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{SECURITY}.scram.ScramLoginModule required;"
                found[f"{prefix}.oauthbearer.sasl.jaas.config"] = \
                    f"{SECURITY}.oauthbearer.OAuthBearerLoginModule required;"
                found[f"{prefix}.oauthbearer.sasl.server.callback.handler.class"] = \
                    f"{SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        return found

    def __enter__(self):
        self.process = AllowingKafka(fetch_jars(), self.directory, self.properties().items())
        self.process.allowed = f"file://{self.tokens.jwks}"
        self.process.format()
        self.process.start()
        self.admin = Administration(self.addresses["INTERNAL"])
        for mechanism in SCRAM:
            self.admin.set_passwords(mechanism, dict.fromkeys(USERS, PASSWORD))
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.stop()


class AllowingKafka(KafkaProcess):
    """Kafka takes keys from nowhere that this does not name."""

    def java(self, *arguments):
        command = super().java(*arguments)
        return [command[0], f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.allowed}", *command[1:]]


class SecuredMainstem(Secured):
    own = True

    def __enter__(self):
        values = {**settings(self.certificates, self.tokens), "listeners": self.urls, "advertised.listeners": self.urls,
                  "ssl.reload.interval.ms": 200}
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        for user in USERS:
            for mechanism in SCRAM:
                create_user(user, mechanism, secret, "--data-dir", self.directory / "data")
        self.server = ConfiguredServer(self.addresses["INTERNAL"], self.directory, values)
        self.server.__enter__()
        self.admin = Administration(self.addresses["INTERNAL"])
        return self

    def __exit__(self, *_):
        if self.server:
            self.server.__exit__()


def quoted(text):
    return text.replace("\\", "\\\\").replace('"', '\\"')
