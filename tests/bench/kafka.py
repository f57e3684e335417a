"""Apache Kafka with TLS and log-ins, and the cases against it: what the load generator does is measured on another's server."""

import chart
from load import check_result, driver, workload
from suite.certificates import Certificates
from suite.kafka import KafkaProcess
from suite.ports import free_address

USER, PASSWORD = "alice", 'a"secret'
SECURITY = "org.apache.kafka.common.security"
MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule",
           "SCRAM-SHA-512": "scram.ScramLoginModule"}
# Listeners and their protocols: MUTUAL demands a certificate of clients, OTHER shows one of another host.
LISTENERS = {"INTERNAL": "PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL", "OTHER": "SSL", "LOGIN": "SASL_PLAINTEXT",
             "TLSLOGIN": "SASL_SSL", "CONTROLLER": "PLAINTEXT"}


def quoted(text):
    return text.replace("\\", "\\\\").replace('"', '\\"')


def jaas(mechanism, password=PASSWORD):
    return f'{SECURITY}.{MODULES[mechanism]} required username="{USER}" password="{quoted(password)}";'


class Kafka:
    """One broker."""

    def __init__(self, load, directory):
        self.load, self.directory = load, directory
        self.process = None
        self.certificates = Certificates(self.directory / "certificates")
        self.addresses = {name: free_address() for name in LISTENERS}

    def properties(self):
        urls = {name: f"{name}://{address}" for name, address in self.addresses.items()}
        clients = [url for name, url in urls.items() if name != "CONTROLLER"]
        yield from {
            "process.roles": "broker,controller", "node.id": 1, "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": self.addresses["CONTROLLER"],
            "listeners": ",".join(urls.values()), "advertised.listeners": ",".join(clients),
            "listener.security.protocol.map": ",".join(f"{name}:{what}" for name, what in LISTENERS.items()),
            "inter.broker.listener.name": "INTERNAL", "log.dirs": self.directory / "data",
            "offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificates.server,
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self.certificates.authority,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.other.ssl.keystore.type": "PEM",
            "listener.name.other.ssl.keystore.location": self.certificates.other,
            "sasl.enabled.mechanisms": ",".join(MODULES),
        }.items()
        for listener in ("login", "tlslogin"):
            for mechanism, module in MODULES.items():
                user = f' user_{USER}="{quoted(PASSWORD)}"' if mechanism == "PLAIN" else ""
                yield (f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config",
                       f"{SECURITY}.{module} required{user};")

    def start(self):
        self.directory.mkdir()
        fetched = self.load.call("fetch kafka", "fetch-kafka", seconds=300)
        fetched.succeeded()
        self.certificates.make_all()
        self.process = KafkaProcess(fetched.out.strip(), self.directory, self.properties())
        users = [f"{mechanism}=[name={USER},password={PASSWORD}]" for mechanism in MODULES if "SCRAM" in mechanism]
        self.process.format(*(word for user in users for word in ("--add-scram", user)))
        self.process.start()

    def stop(self):
        if self.process is not None:
            self.process.stop()

    def tls(self, trusted=None, own=None):
        settings = {"security.protocol": "SSL", "ssl.truststore.type": "PEM",
                    "ssl.truststore.location": trusted or self.certificates.authority}
        return settings | ({"ssl.keystore.type": "PEM", "ssl.keystore.location": own} if own else {})

    def login(self, mechanism, password=PASSWORD, tls=False):
        protocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
        settings = self.tls() if tls else {}
        return settings | {"security.protocol": protocol, "sasl.mechanism": mechanism,
                           "sasl.jaas.config": jaas(mechanism, password)}


class Cases:
    def __init__(self, load, kafka):
        self.load, self.kafka = load, kafka

    def passes(self, engine, listener, settings, host="127.0.0.1"):
        address = self.kafka.addresses[listener].replace("127.0.0.1", host)
        protocol = settings["security.protocol"]
        name = f"{listener} {settings.get('sasl.mechanism', '')}"
        outcome = self.load.run(name, driver(address, common=settings), workload(), engine)
        result = outcome.result()
        chart.draw(result)
        assert PASSWORD not in outcome.err, "it says the password"
        return check_result(result, engine, client={"security.protocol": protocol})

    def refused(self, listener, settings, *words):
        address = self.kafka.addresses[listener]
        notes = []
        for engine in ("native", "librdkafka"):
            outcome = self.load.run(f"{listener} refused", driver(address, common=settings), workload(), engine)
            assert "wrong-" not in outcome.message(), "it says the password"
            notes.append(outcome.failed(address, *words, seconds=15))
        return notes[0]

    def all(self):
        """Name, limit in seconds, case."""
        kafka = self.kafka
        for engine in ("native", "librdkafka"):
            for name, *arguments in (
                ("TLS", "TLS", kafka.tls(), "localhost"),
                ("TLS, client's certificate", "MUTUAL", kafka.tls(own=kafka.certificates.client)),
                ("PLAIN", "LOGIN", kafka.login("PLAIN")),
                ("SCRAM-SHA-256", "LOGIN", kafka.login("SCRAM-SHA-256")),
                ("TLS, SCRAM-SHA-256", "TLSLOGIN", kafka.login("SCRAM-SHA-256", tls=True)),
                ("TLS, SCRAM-SHA-512", "TLSLOGIN", kafka.login("SCRAM-SHA-512", tls=True)),
            ):
                yield (f"kafka: {name}, {engine}", 40,
                       lambda engine=engine, arguments=arguments: self.passes(engine, *arguments))
        wrong = "wrong-password"
        for name, *arguments in (
            ("wrong password, PLAIN", "LOGIN", kafka.login("PLAIN", wrong), "refused the log-in", "[Ii]nvalid"),
            ("wrong password, SCRAM", "TLSLOGIN", kafka.login("SCRAM-SHA-512", wrong, True), "refused the log-in",
             "[Ii]nvalid"),
            ("wrong authority", "TLS", kafka.tls(kafka.certificates.stranger), "certificate", "UnknownIssuer|issuer"),
            ("wrong host name", "OTHER", kafka.tls(), "certificate", "not valid for name"),
            ("no client's certificate", "MUTUAL", kafka.tls(), "[Cc]ertificate"),
            ("TLS to a listener without", "INTERNAL", kafka.tls(), "TLS|[Mm]essage|handshake|closed"),
        ):
            yield f"kafka: {name}", 40, lambda arguments=arguments: self.refused(*arguments)
