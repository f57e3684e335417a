"""A cluster on this machine: etcd, an object store behind its proxy, and brokers as processes."""

import collections
import json
import random
import re
import subprocess
import sys
import urllib.request
from base64 import b64decode, b64encode
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "compat"), str(HERE.parent / "objects")]

import network as networks  # noqa: E402
from store import Site, StoredServer, at  # noqa: E402
from suite import place  # noqa: E402, F401
from suite.certificates import Certificates  # noqa: E402
from suite.ports import free_address  # noqa: E402
from suite.report import until  # noqa: E402
from suite.server import environment  # noqa: E402

SESSION_MS = 3000
# Small, so that a short run has many objects; everything else is as a user has it.
SETTINGS = [
    "log.segment.bytes=9437184", "group.initial.rebalance.delay.ms=0", f"broker.session.timeout.ms={SESSION_MS}",
]
# What the alert rule MainstemSlowCopies looks at.
SYNCS, SLOW_SYNC_SECONDS = "mainstem_cluster_copies_logflush_seconds", 0.2
ADMIN_TOKEN = "token-of-tests"
# Consumers that name their rack read from the broker there.
BY_RACK = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"
# Some clients have little patience: poll() of kafka-python 3 returns before a SyncGroup that takes longer than 200 ms is answered, and a
# commit after it fails.
QUICK = "object.store.diskless.interval.ms=50"


class Member:
    """A process of etcd. Its data outlives a kill."""

    def __init__(self, name, directory, client, peer):
        self.name, self.directory = name, directory
        self.endpoint, self.peer = f"http://{client}", f"http://{peer}"
        self.process = None

    def spawn(self, peers):
        command = [
            "etcd", "--name", self.name, "--data-dir", self.directory / self.name, "--logger", "zap", "--log-level", "error",
            "--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint,
            "--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer, "--initial-cluster", peers,
        ]
        with open(self.directory / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ready(self):
        """Whether it answers, and the members have a leader."""
        assert self.process.poll() is None, f"etcd ended with {self.process.returncode}, see {self.name}.log"
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=5) as answer:
                return json.load(answer).get("health") == "true"
        except (OSError, ValueError):
            return False

    def leads(self):
        with urllib.request.urlopen(f"{self.endpoint}/v3/maintenance/status", b"{}", timeout=5) as answer:
            status = json.load(answer)
        return status.get("leader") == status["header"]["member_id"]

    def kill(self):
        self.process.kill()
        self.process.wait()


class Etcd:
    """All members of one etcd."""

    def __init__(self, directory, host, count):
        """Brokers find the members at `host`, if that is not this machine."""
        self.members = [Member(f"etcd-{number}", directory, at(host, free_address()), free_address())
                        for number in range(1, count + 1)]
        self.peers = ",".join(f"{member.name}={member.peer}" for member in self.members)

    @property
    def endpoints(self):
        """As the setting `etcd.endpoints` has them."""
        return ",".join(member.endpoint for member in self.members)

    def found(self, prefix):
        """What it has below a prefix, as its gateway says it, but for the keys and the values."""
        def encoded(text):
            return b64encode(text.encode()).decode()
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        body = json.dumps({"key": encoded(prefix), "range_end": encoded(end)}).encode()
        with urllib.request.urlopen(f"{self.members[0].endpoint}/v3/kv/range", body, timeout=20) as answer:
            found = json.load(answer).get("kvs", [])
        return [{**of, "key": b64decode(of["key"]).decode(), "value": b64decode(of.get("value", ""))} for of in found]

    def start(self):
        """Starts the members that do not run."""
        for member in self.members:
            if member.process is None or member.process.poll() is not None:
                member.spawn(self.peers)
        for member in self.members:
            until(member.ready, member.name)

    def kill(self):
        for member in self.members:
            member.kill()

    def end(self):
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                member.kill()


class Broker(StoredServer):
    """A broker of the cluster. Its directory stays when it is killed."""

    def __init__(self, cluster, node, settings):
        directory = cluster.directory / f"broker-{node}"
        directory.mkdir()
        super().__init__(cluster.site, directory, "s3://records/cluster", cluster.password)
        self.node = node
        self.machine = cluster.network and cluster.network.machine(node)
        if node == 1 and cluster.first:
            self.listen = cluster.first
        if self.machine:
            self.listen = at(self.machine.address, self.listen)
        self.program = cluster.program
        # Its listeners are in the settings then.
        self.two_listeners = cluster.certificates is not None or node in cluster.proxies
        self.settings = [*SETTINGS, *([BY_RACK] if cluster.by_rack else []), *settings, f"object.store={self.bucket}", f"node.id={node}",
                         f"etcd.endpoints={cluster.etcd.endpoints}", f"broker.rack=rack-{node}"]
        self.admin = free_address()
        if self.machine:
            self.admin = at(self.machine.address, self.admin)
            self.settings.append("allow.insecure.listeners=true")
        self.settings.append(f"admin.listen={self.admin}")
        # Whoever can be reached from other machines needs one.
        self.variables["MAINSTEM_ADMIN_TOKEN"] = ADMIN_TOKEN
        internal = free_address() if self.two_listeners else None
        if cluster.certificates:
            self.settings += self.secured(cluster.certificates, internal)
        elif self.two_listeners:
            self.settings += self.proxied(cluster.proxies[node], internal)

    def proxied(self, proxy, internal):
        """The settings for a proxy between clients and the broker. The brokers find each other without one."""
        return [
            f"listeners=PLAINTEXT://{self.listen},INTERNAL://{internal}",
            f"advertised.listeners=PLAINTEXT://{proxy},INTERNAL://{internal}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name=INTERNAL",
        ]

    def secured(self, certificates, internal):
        """The settings for TLS between brokers, with a certificate of each; clients go on in plain text."""
        properties = self.directory / "brokers.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM", "ssl.truststore.location": certificates.authority,
            "ssl.keystore.type": "PEM", "ssl.keystore.location": certificates.server,
        }.items()))
        of_listener = {
            "ssl.keystore.type": "PEM", "ssl.keystore.location": certificates.server, "ssl.client.auth": "required",
            "ssl.truststore.type": "PEM", "ssl.truststore.location": certificates.authority,
        }
        return [
            f"listeners=PLAINTEXT://{self.listen},INTERNAL://{internal}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:SSL",
            *(f"listener.name.internal.{name}={value}" for name, value in of_listener.items()),
            "inter.broker.listener.name=INTERNAL", f"inter.broker.client.config={properties}",
        ]

    def command(self):
        command = [self.program, *super().command()[1:]]
        if self.two_listeners:
            first = command.index("--listen")
            del command[first:first + 2]
        return (self.machine.prefix() if self.machine else []) + command

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def metrics(self):
        """Its metrics as they are now: the value of each series."""
        request = urllib.request.Request(
            f"http://{self.admin}/metrics", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}

    def syncs(self):
        """How many syncs of copies took longer than what MainstemSlowCopies allows for one in a hundred, and all."""
        bounds = {float(name.partition('le="')[2].partition('"')[0]): value
                  for name, value in self.metrics().items() if name.startswith(f"{SYNCS}_bucket")}
        quick = min(bound for bound in bounds if bound >= SLOW_SYNC_SECONDS)
        return collections.Counter(slow=bounds[float("inf")] - bounds[quick], all=bounds[float("inf")])


class Cluster:
    """etcd, the store and `count` brokers, which are started."""

    def __init__(self, directory, seed, count=3, settings=(), program=None, secured=False, apart=False, first=None,
                 proxies=None, etcd_members=1, diskless=()):
        """With `apart`, each broker has a network of its own. `first` is the address of broker 1, if that is fixed; `proxies` are
        the addresses that clients are told, by broker. The `diskless` topics have no copies on brokers."""
        self.diskless = diskless
        self.first, self.proxies, self.etcd_members = first, proxies or {}, etcd_members
        self.network = networks.Network() if apart else None
        self.directory, self.seed, self.count, self.settings = directory, seed, count, settings
        self.program = program or place.MAINSTEM
        # A version before may not know it.
        known = subprocess.run([self.program, "config"], capture_output=True, text=True, timeout=20, check=True).stdout
        self.by_rack = BY_RACK.partition("=")[0] in known
        self.certificates = Certificates(directory / "certificates") if secured else None
        self.site, self.etcd, self.brokers = Site(directory, seed, networks.STORE if apart else None), None, {}

    def __enter__(self):
        from store import CREDENTIALS
        self.password = CREDENTIALS.password
        self.site.__enter__()
        try:
            self.site.minio.s3.make_bucket("records")
            if self.certificates:
                self.certificates.make_all()
            self.etcd = Etcd(self.directory, self.network and networks.ETCD, self.etcd_members)
            self.etcd.start()
            for node in range(1, self.count + 1):
                self.brokers[node] = Broker(self, node, self.settings)
                self.brokers[node].start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for broker in self.brokers.values():
            broker.__exit__()
        if self.etcd is not None:
            self.etcd.end()
        self.site.__exit__()
        if self.network:
            self.network.end()

    def tell(self, *words):
        """Runs `mainstem cluster`: what it printed."""
        command = [place.MAINSTEM, "cluster", "--etcd", self.etcd.endpoints, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment())
        assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr.strip()}"
        return done.stdout

    def status(self):
        """The brokers and the logs, as `mainstem cluster status` shows them: a dictionary by heading for each."""
        def rows(text):
            heading, *lines = text.splitlines()
            columns = [found.span() for found in re.finditer(r"\S+( \S+)*\s*", heading)]
            names = [heading[start:end].strip() for start, end in columns]
            ends = [end for _, end in columns[:-1]] + [None]
            return [{name: line[start:end].strip() for name, (start, _), end in zip(names, columns, ends)} for line in lines]
        brokers, logs = self.tell("status").strip().split("\n\n")
        return rows(brokers), rows(logs)

    def at_home(self):
        """Waits until every log is where it belongs, every broker has some, and none is drained."""
        def settled():
            brokers, logs = self.status()
            return (len(brokers) == len({log["OWNER"] for log in logs}) == self.count and all("alive" in of["STATE"] for of in brokers)
                    and all(log["OWNER"] == log["HOME"] and log["MOVES TO"] == "-" for log in logs))
        until(settled, "every log to be at home")

    def options_of(self, topic):
        """How a topic is created."""
        return {"replication_factor": self.count, "config": {"diskless.enable": str(topic in self.diskless).lower()}}

    def out_of_sync(self):
        """The brokers without a copy that counts of some partition that shall have one."""
        from confluent_kafka.admin import AdminClient
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        topics = admin.list_topics(timeout=10).topics
        partitions = [of for name, topic in topics.items() if name not in self.diskless for of in topic.partitions.values()]
        return {node for of in partitions for node in self.brokers if node not in of.isrs}

    def in_sync(self):
        """Waits until all partitions have all their copies."""
        until(lambda: not self.out_of_sync(), "all partitions to have all their copies")

    @property
    def bootstrap(self):
        return ",".join(broker.listen for broker in self.brokers.values())


class InPlaceOfServer:
    """A cluster for tests that start a server otherwise."""

    own = True

    def __init__(self, directory, settings=(), seed=None, **options):
        seed = random.randrange(1 << 32) if seed is None else seed
        settings = [QUICK, "log.segment.bytes=67108864", *settings]
        self.cluster = Cluster(directory, seed, settings=settings, **options)

    def __enter__(self):
        self.cluster.__enter__()
        self.cluster.at_home()
        self.bootstrap = self.cluster.brokers[1].listen
        return self

    def __exit__(self, *_):
        self.cluster.__exit__()

    def stop(self):
        """Stops one after the other: the longest time that one took."""
        return max(broker.stop() for broker in self.cluster.brokers.values())
