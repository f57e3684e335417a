"""The compose files: what the library of docker compose and podman-compose make of them, and their servers started with what they say."""

import json
import os
import re
import subprocess
import urllib.parse
import urllib.request

from outside import Process, Translation, program
from rendered import COMPOSE, PODMAN_COMPOSE, compose, image_environment
from running import alive, round_trip, scraped
from suite import place
from suite.ports import free_address, free_port
from suite.report import until

FILES = {"compose.yaml": ("compose.yaml",), "cluster.yaml": ("cluster.yaml",), "kafka.yaml": ("kafka.yaml",),
         "monitoring.yaml": ("compose.yaml", "monitoring.yaml")}
# Services that are servers of ours, and the others.
OURS = {"compose.yaml": ["mainstem"], "cluster.yaml": ["broker-1", "broker-2", "broker-3"], "kafka.yaml": ["kafka"],
        "monitoring.yaml": ["mainstem"]}
OTHERS = {"cluster.yaml": ["etcd", "minio"], "monitoring.yaml": ["grafana", "prometheus"]}
KAFKA = place.ROOT / "packaging" / "image" / "kafka"
KAFKA_LINES = ("Transitioning from RECOVERY to RUNNING", "Kafka Server started", "[KafkaServer id=1] started")
SECONDS = 60


class Service:
    """A service of a file as a process of this machine. `before` are words in place of the image's entry point."""

    def __init__(self, project, name, directory, image_variables, entry):
        self.name, self.spec, self.image_variables = name, project["services"][name], image_variables
        self.entry = entry
        directory.mkdir(parents=True, exist_ok=True)
        paths = [volume["target"] for volume in self.spec.get("volumes", [])]
        ports = {int(port) for port in re.findall(r":([0-9]{4,5})\b", " ".join(self.texts()))} | {9644}
        self.translation = Translation(directory, paths, ports, hosts=[name])
        for path in paths:
            self.translation.path(path).mkdir(parents=True, exist_ok=True)
        for port in self.spec.get("ports", []):
            self.translation.addresses[f"localhost:{port['published']}"] = f"localhost:{self.translation.ports[port['target']]}"

    def texts(self):
        own = [value for name, value in self.spec.get("environment", {}).items() if "LISTEN" in name and "ADVERTISED" not in name]
        return [str(value) for value in own] + list(self.spec.get("command") or [])

    def process(self):
        # What the server does where nothing is said, but at a port that is free here.
        variables = {"MAINSTEM_ADMIN_LISTEN": "127.0.0.1:9644"} | self.image_variables
        variables |= {name: str(value) for name, value in (self.spec.get("environment") or {}).items()}
        words = (self.spec.get("entrypoint") or self.entry) + (self.spec.get("command") or [])
        kind, *health = self.spec["healthcheck"]["test"]
        assert kind == "CMD", health
        return Process(self.translation, program(words), variables, program(health), self.name)


def cases(directory):
    image = image_environment()

    def server(file, name="mainstem"):
        project = compose(*FILES[file])
        return Service(project, name, directory / f"{file}-{name}", image, ["mainstem", "serve"])

    def valid():
        for file, files in FILES.items():
            project = compose(*files)
            services = project["services"]
            assert sorted(services) == sorted(OURS[file] + OTHERS.get(file, [])), sorted(services)
            for name, service in services.items():
                check_service(file, name, service, own=name in OURS[file])
        return f"{len(FILES)} files"

    def by_podman():
        for files in FILES.values():
            words = [word for file in files for word in ("-f", COMPOSE / file)]
            done = subprocess.run([PODMAN_COMPOSE, *words, "config"], capture_output=True, text=True, timeout=SECONDS, check=False)
            assert done.returncode == 0, done.stderr[-1000:]
            for name in compose(*files)["services"]:
                assert re.search(rf"^  {name}:$", done.stdout, re.MULTILINE), f"{name} is not in {done.stdout}"

    def one():
        service = server("compose.yaml")
        process = service.process()
        try:
            process.start()
            assert process.is_healthy()
            # By the addresses that clients are told: programs of the machine go in, other containers come out.
            round_trip(process, at=process.port(9092), read_at=process.port(19092))
            seconds = process.stop()
        finally:
            process.end()
        return f"stopped in {seconds:.1f} s"

    def in_place_of_kafka():
        project = compose("kafka.yaml")
        service = Service(project, "kafka", directory / "kafka", {}, [])
        scripts = directory / "kafka" / "scripts"
        scripts.mkdir()
        for file in ("run", "server.properties"):
            (scripts / file).write_text(service.translation.text((KAFKA / file).read_text()))
        (scripts / "mainstem").symlink_to(place.MAINSTEM)
        service.entry = ["bash", str(scripts / "run")]
        process = service.process()
        process.variables |= {"PATH": f"{scripts}:{os.environ['PATH']}", "TMPDIR": str(scripts)}
        try:
            process.start()
            assert process.is_healthy()
            round_trip(process, at=process.port(9092), read_at=process.port(29092))
            until(lambda: all(any(line in said for said in process.lines) for line in KAFKA_LINES), "the lines of Kafka's log")
            config = next(scripts.glob("tmp.*/server.properties"))
            shown = process.run(str(place.MAINSTEM), "config", "--config", config, "--diff").stdout
            wanted = ("num.partitions = 3", "group.initial.rebalance.delay.ms = 0", 'cluster.id = "MkU3OEVBNTcwNTJENDM2Qk"')
            assert all(f"{line}\n" in shown for line in wanted), shown
            process.stop()
        finally:
            process.end()

    def cluster():
        project = compose("cluster.yaml")
        place_of = {name: directory / f"cluster-{name}" for name in project["services"]}
        etcd = Service(project, "etcd", place_of["etcd"], {}, [])
        minio = Service(project, "minio", place_of["minio"], {}, [])
        minio.translation.ports[9000] = free_port()
        brokers = [Service(project, name, place_of[name], image, ["mainstem", "serve"]) for name in OURS["cluster.yaml"]]
        for broker in brokers:
            for other in (etcd, minio, *(other for other in brokers if other is not broker)):
                broker.translation.knows(other.translation, other.name)
        processes = [etcd_process(etcd), minio_process(minio)]
        servers = [broker.process() for broker in brokers]
        try:
            for process in processes:
                process.start(wait=False)
            until(lambda: answers(f"http://localhost:{etcd.translation.ports[2379]}/health"), "etcd", processes[0].log)
            until(lambda: answers(f"http://localhost:{minio.translation.ports[9000]}/minio/health/live"), "MinIO", processes[1].log)
            for one in servers:
                one.start(wait=False)
            for one in servers:
                one.wait_until_ready()
                until(one.is_healthy, "the broker to be healthy")
            address = f"--etcd=http://localhost:{etcd.translation.ports[2379]}"
            until(lambda: alive(servers[0], address) == len(servers), "all brokers to be alive")
            round_trip(servers[0], at=servers[0].port(9092), read_at=servers[2].port(19092))
        finally:
            for one in (*servers, *processes):
                one.end()
        return f"{len(servers)} brokers"

    def monitoring():
        service = server("monitoring.yaml")
        process = service.process()
        text = (COMPOSE / "monitoring" / "prometheus.yaml").read_text()
        token = re.search(r"credentials: (\S+)", text)[1]
        by_path = {volume["target"]: volume["source"] for volume in compose(*FILES["monitoring.yaml"])["services"]["prometheus"]["volumes"]}
        text = text.replace("/etc/prometheus/rules.yaml", str(COMPOSE / by_path["/etc/prometheus/rules.yaml"]))
        text = text.replace("scrape_interval: 15s", "scrape_interval: 1s")
        (directory / "prometheus.yaml").write_text(text.replace("mainstem:9644", f"localhost:{process.port(9644)}"))
        web, scraper = free_port(), None
        try:
            process.start()
            assert process.is_healthy()
            scraped(process, token)
            with open(directory / "prometheus.log", "ab") as log:
                scraper = subprocess.Popen(["prometheus", f"--config.file={directory}/prometheus.yaml", f"--storage.tsdb.path={directory}/prometheus",
                                            f"--web.listen-address=127.0.0.1:{web}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            until(lambda: asked(web, "up{job='mainstem'}") == ["1"], "Prometheus to scrape the server")
            rules = len(re.findall(r"- alert: ", (COMPOSE / by_path["/etc/prometheus/rules.yaml"]).read_text()))
            with urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/rules", timeout=SECONDS) as answer:
                found = sum(len(group["rules"]) for group in json.load(answer)["data"]["groups"])
            assert found == rules, f"{found} rules of {rules}"
        finally:
            process.end()
            if scraper is not None:
                scraper.kill()
                scraper.wait()
        return f"{rules} rules"

    yield "compose: the files are valid", 60, valid
    yield "compose: podman-compose reads them", 60, by_podman
    yield "compose.yaml: the server starts", 60, one
    yield "kafka.yaml: the server starts", 60, in_place_of_kafka
    yield "cluster.yaml: etcd, MinIO and three brokers", 60, cluster
    yield "monitoring.yaml: Prometheus scrapes the server", 60, monitoring


def check_service(file, name, service, own):
    where = f"{file}, {name}"
    for port in service.get("ports", []):
        assert port.get("host_ip") == "127.0.0.1", f"{where}: {port} is open to others"
    for volume in service.get("volumes", []):
        if volume["type"] == "bind":
            assert volume["read_only"] and (COMPOSE / volume["source"]).exists(), f"{where}: {volume}"
    assert service["restart"] == "unless-stopped" and not service["image"].endswith(":") and ":" in service["image"], f"{where}: {service}"
    if not own:
        assert not service["image"].endswith(":latest"), f"{where}: {service['image']} is another one each day"
        return
    assert service["healthcheck"]["test"] == ["CMD", "mainstem", "health"], f"{where}: {service['healthcheck']}"
    assert int(service["mem_limit"]) == 512 << 20 and service["stop_grace_period"] in ("1m0s", "2m0s"), f"{where}: {service}"
    data = [volume for volume in service["volumes"] if volume["type"] == "volume"]
    expected = "/var/lib/kafka/data" if name == "kafka" else "/var/lib/mainstem"
    assert [volume["target"] for volume in data] == [expected], f"{where}: {data}"


def etcd_process(service):
    """Debian's etcd with the flags of the file. Its ports for other members are no others' here."""
    peer = f"http://{free_address()}"
    command = [*(service.spec["command"]), f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=etcd={peer}"]
    assert command[0] == "/usr/local/bin/etcd", command
    return Process(service.translation, ["etcd", *command[1:]], {}, ["true"], "etcd")


def minio_process(service):
    """MinIO with the entry point of the file, and at an address of its own."""
    variables = service.spec["environment"] | {
        "MINIO_ADDRESS": f"127.0.0.1:{service.translation.ports[9000]}", "MINIO_BROWSER": "off", "HOME": str(service.translation.directory),
    }
    process = Process(service.translation, service.spec["entrypoint"], variables, ["true"], "minio")
    process.variables["PATH"] = f"{place.CACHE / 'bin'}:{process.variables['PATH']}"
    return process


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return answer.status == 200
    except OSError:
        return False


def asked(port, query):
    """The values that Prometheus has."""
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return [one["value"][1] for one in json.load(answer)["data"]["result"]]
    except OSError:
        return None
