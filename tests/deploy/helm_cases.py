"""The chart: what helm makes of it with tables of values, and the server started with what it says."""

import copy
import json
import tomllib

import shapes
from breaks import BREAKS
from generated import check_copies, documented
from outside import Pod
from rendered import CHART, NAMESPACE, Chart, Refused, image_environment, lint
from running import scraped, three_brokers, topics
from stores import Stores
from suite import place
from suite.certificates import Certificates

VALUES = place.ROOT / "tests" / "deploy" / "values"
PASSWORD, TOKEN = "a password of the tests", "a-token-of-the-tests"
CLIENT_FILE = {
    "tls": ["security.protocol=SSL", "ssl.truststore.type=PEM", "ssl.truststore.location=/etc/mainstem/tls/ca.crt",
            "ssl.keystore.type=PEM", "ssl.keystore.location=/etc/mainstem/client/client.pem"],
    "sasl": ["security.protocol=SASL_SSL", "ssl.truststore.type=PEM", "ssl.truststore.location=/etc/mainstem/tls/ca.crt",
             "sasl.mechanism=SCRAM-SHA-512", "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
             f'username="USER" password="{PASSWORD}";'],
}
# The values of each table, and the Secrets that they name.
TABLE = {
    "default": (), "empty-dir": (), "existing-claim": (),
    "tls": ("server-tls", "client-files"), "sasl": ("server-tls", "client-files", "admin-password"),
    "store": ("store-keys", "token"), "cluster": ("store-keys",),
    "cluster-secured": ("store-keys", "server-tls", "client-files", "admin-password"),
    "all": ("server-tls", "client-files", "admin-password", "token", "more"),
    "all-cluster": ("server-tls", "admin-password", "token", "etcd-user", "etcd-tls"),
}
# What the settings have to be, for each table.
ADVERTISED = "CLIENTS://orders-mainstem.apps.svc.cluster.local:9092"
PLAIN = {"listener.security.protocol.map": "CLIENTS:PLAINTEXT", "allow.insecure.listeners": True}
BROKER = "orders-mainstem-0.orders-mainstem-headless.apps.svc.cluster.local"
EXPECTED = {
    "default": PLAIN, "empty-dir": PLAIN, "existing-claim": PLAIN,
    "tls": {"listener.security.protocol.map": "CLIENTS:SSL", "listener.name.clients.ssl.client.auth": "required",
            "ssl.keystore.key": "${file:/etc/mainstem/tls/tls.key}", "ssl.truststore.location": "/etc/mainstem/tls/ca.crt"},
    "sasl": {"listener.security.protocol.map": "CLIENTS:SASL_SSL", "super.users": "User:ops;User:admin",
             "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"},
    "store": PLAIN | {"object.store": "s3://records/one", "admin.token": "[hidden]"},
    "cluster": PLAIN | {"listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT", "node.id": 0,
                        "inter.broker.listener.name": "BROKERS", "etcd.endpoints": "http://etcd:2379", "object.store": "s3://records/cluster"},
    "cluster-secured": {"listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL", "node.id": 0, "cluster.name": "secured",
                        "listener.name.brokers.ssl.client.auth": "required", "super.users": "User:admin;User:CN=server"},
    "all": {"num.partitions": 6, "log.segment.bytes": 268435456, "log.retention.ms": -1, "auto.create.topics.enable": False,
            "log.cleaner.min.cleanable.ratio": "0.25", "max.connections": 500, "max.connections.per.ip": 400,
            "max.connections.per.ip.overrides": "10.0.0.1:100,[::1]:200", "broker.rack": 'a "rack" & \\more', "log.format": "json",
            "listener.name.clients.max.connections": 100, "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "super.users": "User:CN=ops,O=Example;User:root", "admin.token": "[hidden]"},
    "all-cluster": {"etcd.endpoints": "https://etcd-a:2379,https://etcd-b:2379,https://etcd-c:2379", "etcd.user": "brokers",
                    "etcd.password": "[hidden]", "object.store": "gs://records", "cluster.name": "events", "node.id": 4},
}
# Values that are refused, and a part of the reason.
REFUSED = [
    (["replicas=2"], "replicas"),
    (["config.data\\.dir=/elsewhere"], "data.dir"),
    (["config.listeners=PLAINTEXT://:1"], "listeners"),
    (["config.num\\.partitions=null", "config.log\\.dirs={a,b}"], "log.dirs"),
    (["service.type=ExternalName"], "service/type"),
    (["service.port=70000"], "service/port"),
    (["service.advertisedHost=example.com:9092"], "advertisedHost"),
    (["tls.enabled=true"], "tls/existingSecret"),
    (["tls.enabled=true", "tls.existingSecret=Not_A_Name"], "tls/existingSecret"),
    (["sasl.enabled=true"], "tls/enabled"),
    (["sasl.mechanisms={GSSAPI}"], "sasl/mechanisms"),
    (["metrics.enabled=true"], "metrics/existingSecret"),
    (["serviceMonitor.enabled=true"], "metrics/enabled"),
    (["objectStore.url=/var/lib/records"], "objectStore/url"),
    (["cluster.enabled=true", "objectStore.url=s3://records"], "cluster/etcd/endpoints"),
    (["cluster.enabled=true", "cluster.etcd.endpoints={http://etcd:2379}"], "objectStore/url"),
    (["cluster.enabled=true", "cluster.etcd.endpoints={etcd:2379}", "objectStore.url=s3://records"], "endpoints"),
    ([VALUES / "cluster.yaml", "cluster.etcd.endpoints={http://etcd:2379}", "persistence.existingClaim=one"], "existingClaim"),
    ([VALUES / "cluster.yaml", "cluster.etcd.endpoints={http://etcd:2379}", "service.advertisedHost=one"], "advertisedHost"),
    ([VALUES / "cluster.yaml", "cluster.etcd.endpoints={http://etcd:2379}", "authorization.enabled=true"], "tls/enabled"),
    ([VALUES / "all-cluster.yaml", "cluster.brokerPrincipal="], "brokerPrincipal"),
    ([VALUES / "all-cluster.yaml", "tls.combinedKey="], "combinedKey"),
    (["authorization.superUsers={admin}"], "superUsers"),
    (["persistence.size=lots"], "persistence/size"),
    (["livenessProbe.httpGet.path=/healthz"], "livenessProbe"),
]


class Site:
    """Certificates and Secrets for all cases."""

    def __init__(self, directory):
        self.directory = directory
        self.image = image_environment()
        self.certificates = Certificates(directory / "certificates")
        self.certificates.make_all()

    def secrets(self, name, user="admin"):
        """The Secrets that exist beside a table's values."""
        folder = self.certificates.folder

        def read(file):
            return (folder / file).read_text()

        server = {"tls.key": read("server.key"), "tls.crt": read("server.crt"), "ca.crt": read("authority.pem"),
                  "tls-combined.pem": read("server.pem")}
        kind = "tls" if name == "tls" else "sasl"
        every = {
            "server-tls": server,
            "client-files": {"client.properties": "\n".join(CLIENT_FILE[kind]).replace("USER", user) + "\n", "client.pem": read("client.pem")},
            "admin-password": {"password": PASSWORD + "\n", "root": PASSWORD},
            "token": {"admin-token": TOKEN, "prometheus": TOKEN},
            "store-keys": {"AWS_ACCESS_KEY_ID": Stores.USER, "AWS_SECRET_ACCESS_KEY": Stores.PASSWORD},
            "etcd-user": {"username": "brokers", "password": "secret"}, "etcd-tls": server, "more": {"MAINSTEM_LOG_LEVEL": "info,broker=debug"},
        }
        return {secret: every[secret] for secret in TABLE[name]}

    def pod(self, chart, name, case, **more):
        """A pod, with files and directories of its own. The service for clients is at this machine."""
        service = chart.one("StatefulSet")["metadata"]["name"]
        hosts = [f"{service}.{NAMESPACE}.svc.cluster.local"]
        directory = self.directory / f"{case}-{len(list(self.directory.iterdir()))}"
        user = "root" if name == "all" else "admin"
        return Pod(chart, self.image, self.secrets(name, user), directory, hosts=hosts, **more)


def values_of(name):
    """The words for `render`."""
    if name == "default":
        return []
    more = {"cluster": ["cluster.etcd.endpoints={http://etcd:2379}"], "cluster-secured": ["cluster.etcd.endpoints={http://etcd:2379}"]}
    return [VALUES / f"{name}.yaml", *more.get(name, [])]


def cases(site, stores):
    directory = site.directory
    assert sorted(TABLE) == sorted(["default", *(file.stem for file in VALUES.glob("*.yaml"))]), "a file of values is in no case"

    def linted():
        for name in TABLE:
            lint(*values_of(name))
        return f"{len(TABLE)} tables of values"

    def documents(name):
        def case():
            chart = Chart(*values_of(name))
            shapes.check(chart.documents, {secret: list(content) for secret, content in site.secrets(name).items()})
            return f"{len(chart.documents)} documents"
        return case

    def settings(name):
        def case():
            chart = Chart(*values_of(name))
            pod = site.pod(chart, name, f"settings-{name}", index=4 if name == "all-cluster" else 0)
            pod.write_files()
            pod.check_file()
            found = pod.effective()
            expected = {key: pod.translation.text(value) if isinstance(value, str) else value for key, value in EXPECTED[name].items()}
            wrong = {key: (found.get(key), value) for key, value in expected.items() if found.get(key) != value}
            assert not wrong, f"found and expected: {wrong}"
            advertised = [value for key, value in {**pod.variables(pod.spec["containers"][0]), **_lines(chart.settings)}.items()
                          if key in ("MAINSTEM_ADVERTISED_LISTENERS", "advertised.listeners")]
            expected = ADVERTISED
            if name == "all":
                expected = "CLIENTS://localhost:9092"
            elif name == "all-cluster":
                host = "orders-broker-4.orders-broker-headless.apps.svc.k8s.example.com"
                expected = f"CLIENTS://{host}:9092,BROKERS://{host}:9094"
            elif name.startswith("cluster"):
                expected = f"CLIENTS://{BROKER}:9092,BROKERS://{BROKER}:9094"
            assert advertised == [expected], advertised
            insecure = found.get("allow.insecure.listeners", False)
            assert insecure == ("PLAINTEXT" in found["listener.security.protocol.map"]), found
        return case

    def starts(name, *more):
        """The server of the pod, the chart's own test, and the health check."""
        def case():
            chart = Chart(*values_of(name), *more)
            pod = site.pod(chart, name, f"start-{name}")
            pod.write_files()
            pod.run_first()
            server = pod.process()
            try:
                server.start()
                assert server.is_healthy()
                topics(site, chart, name, pod)
                if chart.values["metrics"]["enabled"]:
                    scraped(server, TOKEN)
                server.stop()
                assert not server.is_healthy()
                # A pod starts again with the volume that is there, also after the container was killed.
                for end in (server.end, server.stop):
                    pod.run_first()
                    server.start()
                    topics(site, chart, name, pod, create=False)
                    end()
            finally:
                server.end()
        return case

    def with_bucket():
        return starts("store", f"objectStore.env.AWS_ENDPOINT_URL={stores.store}")()

    def cluster(name):
        def case():
            chart = Chart(*values_of(name), f"cluster.etcd.endpoints={{{stores.etcd}}}", f"objectStore.env.AWS_ENDPOINT_URL={stores.store}")
            return three_brokers(site, chart, name)
        return case

    def refused():
        for given, reason in REFUSED:
            try:
                Chart(*given)
            except Refused as error:
                assert "schema" in str(error) and reason in str(error), f"{given} is refused without {reason}: {error}"
            else:
                raise AssertionError(f"{given} is taken")
        return f"{len(REFUSED)} values"

    def owned():
        """The settings that the schema refuses in `config` are those that the chart sets, and no others."""
        schema = json.loads((CHART / "values.schema.json").read_text())
        kept = set(schema["properties"]["config"]["propertyNames"]["not"]["enum"])
        made = set()
        for name in TABLE:
            chart = Chart(*values_of(name))
            made |= set(_lines(chart.settings)) - set(chart.values["config"])
            container = chart.one("StatefulSet")["spec"]["template"]["spec"]["containers"][0]
            made |= {one["name"][9:].lower().replace("_", ".") for one in container["env"] if one["name"].startswith("MAINSTEM_")}
        # Both are set from outside of the chart: by the image, which it outranks, and by extraEnv of a table.
        assert made - {"log.format"} == kept - {"listen"}, f"not refused: {made - kept}, refused and not set: {kept - made}"

    def numbers():
        """helm reads numbers of --set and of files in different ways."""
        def shown(*given):
            return _lines(Chart(*given).settings)
        assert shown("config.log\\.segment\\.bytes=1073741824")["log.segment.bytes"] == "1073741824"
        file = directory / "numbers.yaml"
        file.write_text("config: {log.segment.bytes: 1073741824, log.retention.ms: -1, log.roll.ms: \"9223372036854775807\"}\n")
        found = shown(file)
        assert found["log.segment.bytes"] == "1073741824" and found["log.retention.ms"] == "-1", found
        assert found["log.roll.ms"] == "9223372036854775807", found

    def long_names():
        """Fifty-three characters are what helm allows a release."""
        chart = Chart(VALUES / "all.yaml", "fullnameOverride=", release="r" * 53)
        shapes.check(chart.documents, {secret: list(content) for secret, content in site.secrets("all").items()})
        return max((document["metadata"]["name"] for document in chart.documents), key=len)

    def broken():
        """The checks on documents see what is broken."""
        chart, secrets = Chart(VALUES / "all-cluster.yaml"), {secret: list(content) for secret, content in site.secrets("all-cluster").items()}
        shapes.check(chart.documents, secrets)
        for name, change in BREAKS.items():
            documents = copy.deepcopy(chart.documents)
            change({document["kind"]: document for document in reversed(documents)})
            try:
                shapes.check(documents, secrets)
            except (AssertionError, StopIteration):
                continue
            raise AssertionError(f"nothing is found wrong with {name}")
        return f"{len(BREAKS)} defects"

    def fresh():
        return check_copies(directory, Chart(VALUES / "all.yaml"))

    def links():
        """Why pods get no variables of services."""
        pod = site.pod(Chart(), "default", "links")
        pod.write_files()
        process = pod.process()
        process.variables["MAINSTEM_GATEWAY_SERVICE_HOST"] = "10.0.0.1"
        done = process.run(str(place.MAINSTEM), "config", check=False)
        assert done.returncode != 0 and "there is no such setting" in done.stderr, done.stderr

    yield "chart: helm lint --strict", 120, linted
    for name in TABLE:
        yield f"chart, {name}: documents", 30, documents(name)
    for name in TABLE:
        yield f"chart, {name}: settings and variables are taken", 30, settings(name)
    yield "chart: values that the schema refuses", 60, refused
    yield "chart: settings that only the chart gives", 60, owned
    yield "chart: numbers are not rounded", 30, numbers
    yield "chart: a long name of a release", 30, long_names
    yield "chart: broken documents are found", 60, broken
    yield "chart: rules, dashboards and version are those of the program", 60, fresh
    yield "chart: docs/kubernetes.md has every value", 30, lambda: documented(Chart())
    yield "chart: variables of services would be refused", 30, links
    for name in ("default", "tls", "sasl", "all"):
        yield f"chart, {name}: the server starts", 60, starts(name)
    yield "chart, store: the server starts", 60, with_bucket
    for name in ("cluster", "cluster-secured"):
        yield f"chart, {name}: three brokers", 120, cluster(name)


def _lines(settings):
    """The settings of a file, each name as one key."""
    return {name: str(value) for line in settings.splitlines() if line.strip() for name, value in tomllib.loads(line).items()}
