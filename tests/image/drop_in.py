"""The image in the place of apache/kafka and of Confluent's: what scripts and libraries that nobody here wrote rely on."""

import json
import time

from podman import KAFKA, START_SECONDS, kcat
from suite.ports import free_port

# Each variable of Kafka's images with the setting that it has to give.
VARIABLES = {
    "KAFKA_NUM_PARTITIONS": ("7", "num.partitions", "7"),
    "KAFKA_LOG_RETENTION_HOURS": ("2", "log.retention.ms", "7200000"),
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": ("0", "group.initial.rebalance.delay.ms", "0"),
    "KAFKA_MESSAGE_MAX_BYTES": ("2000000", "message.max.bytes", "2000000"),
}
# What means nothing here, or is for the JVM, must not stop the server.
WITHOUT_MEANING = {
    "KAFKA_PROCESS_ROLES": "broker,controller", "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1", "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1", "KAFKA_HEAP_OPTS": "-Xmx1g",
    "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN", "KAFKA_JMX_PORT": "9999",
}
FILES = (
    "/etc/kafka/docker/run", "/etc/kafka/secrets", "/mnt/shared/config", "/opt/kafka/config", "/etc/confluent/docker/run",
    "/etc/confluent/docker/bash-config", "/etc/confluent/docker/configure", "/etc/confluent/docker/ensure",
    "/etc/confluent/docker/launch", "/usr/bin/kafka-storage",
)
VOLUMES = {"/var/lib/kafka/data", "/etc/kafka/secrets", "/mnt/shared/config"}
LINES = (
    "[BrokerLifecycleManager id=1] Transitioning from RECOVERY to RUNNING.", "[KafkaRaftServer nodeId=1] Kafka Server started",
    "[KafkaServer id=1] started",
)
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


def cases(podman):
    def options(variables):
        return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]

    def listeners():
        """The listeners of the start scripts of libraries, on ports that are free here."""
        outside, inside, controller = free_port(), free_port(), free_port()
        return outside, {
            "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{outside},BROKER://0.0.0.0:{inside},CONTROLLER://0.0.0.0:{controller}",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER", "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_NODE_ID": "1", "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@localhost:{controller}", "KAFKA_BROKER_ID": "1",
            "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1", "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "9223372036854775807", "MAINSTEM_ADMIN_LISTEN": "",
        }, inside

    def works(port):
        bootstrap = f"127.0.0.1:{port}"
        kcat(bootstrap, "-P", "-t", "t", records="one\ntwo\n")
        # They may be in two partitions.
        assert sorted(kcat(bootstrap, "-C", "-t", "t", "-e", "-q")) == ["one", "two"]
        return bootstrap

    def contract():
        from confluent_kafka.admin import AdminClient  # the set-up brings it
        port = free_port()
        given = {name: value for name, (value, _, _) in VARIABLES.items()}
        given |= WITHOUT_MEANING | {"KAFKA_LISTENERS": f"PLAINTEXT://:{port}", "CLUSTER_ID": CLUSTER, "MAINSTEM_ADMIN_LISTEN": ""}
        container = podman.start(KAFKA, *options(given))
        works(port)
        for file in FILES:
            container.run("test", "-e", file)
        shown = container.run("mainstem", "config", "--config", "/opt/kafka/config/server.properties", "--diff").stdout
        for name, (_, setting, value) in VARIABLES.items():
            assert f"{setting} = {value}\n" in shown, f"{name} is not {setting} = {value} in {shown}"
        log = container.log()
        for line in LINES:
            assert line in log.splitlines(), f"{line!r} is not a line of {log[-2000:]}"
        named = next(line for line in log.splitlines() if "have no meaning here" in line)
        for name in ("process.roles", "controller.quorum.voters", "offsets.topic.replication.factor"):
            assert name in named, named
        assert not any(word in named for word in ("heap", "jmx", "log4j")), named
        metadata = "\n".join(kcat(f"127.0.0.1:{port}", "-L", "-J"))
        assert '"originating_broker"' in metadata and ":7," not in metadata, metadata
        image = json.loads(podman.ask("inspect", "--type", "image", KAFKA).stdout)[0]["Config"]
        assert set(image["Volumes"]) == VOLUMES and set(image["ExposedPorts"]) == {"9092/tcp"} and image["User"] == "1000:0", image
        cluster = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=10).cluster_id
        assert cluster == CLUSTER, cluster
        container.remove()
        return f"{len(FILES)} files, {len(VARIABLES) + len(WITHOUT_MEANING)} variables, {len(LINES)} lines"

    def names():
        """Kafka's rule for the names of variables, by a program that prints its settings in the server's place."""
        stub = podman.directory / "stub"
        stub.mkdir()
        (stub / "mainstem").write_text('#!/bin/bash\ncat "$3"\n')
        (stub / "mainstem").chmod(0o755)
        variables = {"KAFKA_ONE_TWO__THREE___FOUR": "5", "KAFKA_LINES": "a\nb", "KAFKA_HEAP_OPTS": "-Xmx1g", "PATH": "/stub:/usr/bin:/bin"}
        settings = podman.run(KAFKA, *options(variables), "--volume", f"{stub}:/stub:ro").stdout
        assert "one.two_three-four=5\n" in settings and "lines=a\\\nb\n" in settings and "heap" not in settings, settings

    def mounted():
        """A file in /mnt/shared/config holds, except where a variable says otherwise."""
        shared = podman.directory / "shared"
        shared.mkdir()
        port = free_port()
        (shared / "server.properties").write_text(f"listeners=PLAINTEXT://:{port}\nnum.partitions=3\nlog.retention.ms=5000\n")
        variables = {"KAFKA_NUM_PARTITIONS": "4", "MAINSTEM_ADMIN_LISTEN": ""}
        container = podman.start(KAFKA, *options(variables), "--volume", f"{shared}:/mnt/shared/config:ro")
        works(port)
        shown = container.run("mainstem", "config", "--config", "/opt/kafka/config/server.properties", "--diff").stdout
        assert "num.partitions = 4\n" in shown and "log.retention.ms = 5000\n" in shown, shown
        container.remove()

    def advertised():
        """Files for compose of Kafka's images often name no listeners but those that are advertised."""
        inside, outside = free_port(), free_port()
        variables = {
            "KAFKA_ADVERTISED_LISTENERS": f"INSIDE://localhost:{inside},OUTSIDE://127.0.0.1:{outside}",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT", "KAFKA_INTER_BROKER_LISTENER_NAME": "INSIDE",
            "MAINSTEM_ADMIN_LISTEN": "",
        }
        container = podman.start(KAFKA, *options(variables))
        works(outside)
        assert f"127.0.0.1:{outside}" in "".join(kcat(f"127.0.0.1:{outside}", "-L"))
        assert f"localhost:{inside}" in "".join(kcat(f"127.0.0.1:{inside}", "-L"))
        container.remove()

    def arguments():
        """As with Kafka's image, variables may be arguments of its command."""
        port = free_port()
        variables = (f"KAFKA_LISTENERS=PLAINTEXT://:{port}", "KAFKA_NUM_PARTITIONS=3", "MAINSTEM_ADMIN_LISTEN=")
        container = podman.start(KAFKA, command=("/etc/kafka/docker/run", *variables, "--set", "log.retention.ms=5000"))
        works(port)
        shown = container.run("mainstem", "topic", "describe", "t", "--bootstrap", f"127.0.0.1:{port}", "--output", "json").stdout
        assert len(json.loads(shown)["partitions"]) == 3, shown
        container.remove()

    def started_by(script, path, entrypoint=None, more=None, shell="bash"):
        """As test libraries do it: the container waits for a script, which comes when its port is known."""
        outside, variables, inside = listeners()
        text = script.replace("OUTSIDE", str(outside)).replace("INSIDE", str(inside))
        command = ("-c", f"while [ ! -f {path} ]; do sleep 0.1; done; {shell} {path}")
        if entrypoint is None:
            command = ("sh", *command)
        begin = time.monotonic()
        container = podman.start(KAFKA, *options(variables | (more or {})), *(("--entrypoint", entrypoint) if entrypoint else ()),
                                 command=command, wait=False)
        local = podman.directory / "start.sh"
        local.write_text(text)
        local.chmod(0o755)
        podman.ask("cp", str(local), f"{container.name}:{path}")
        container.wait_until_ready()
        seconds = time.monotonic() - begin
        assert seconds < START_SECONDS
        works(outside)
        for line in LINES:
            assert line in container.log(), container.log()[-2000:]
        container.remove()
        return f"ready after {seconds:.1f} s"

    def by_java():
        return started_by(
            "#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:OUTSIDE,BROKER://localhost:INSIDE\n"
            "/etc/kafka/docker/run\n", "/tmp/testcontainers_start.sh")

    def by_go():
        return started_by(
            "#!/bin/bash\nsource /etc/confluent/docker/bash-config\n"
            "export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:OUTSIDE,BROKER://localhost:INSIDE\n"
            "echo Starting Kafka KRaft mode\nsed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure\n"
            "echo 'kafka-storage format --ignore-formatted -t \"$(kafka-storage random-uuid)\" -c /etc/kafka/kafka.properties'"
            " >> /etc/confluent/docker/configure\necho '' > /etc/confluent/docker/ensure\n"
            "/etc/confluent/docker/configure\n/etc/confluent/docker/launch\n", "/usr/sbin/testcontainers_start.sh", entrypoint="sh")

    def by_python():
        return started_by(
            "#!/bin/bash\nsed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure\n"
            f"echo 'kafka-storage format --ignore-formatted -t {CLUSTER} -c /etc/kafka/kafka.properties' >> "
            "/etc/confluent/docker/configure\n"
            "export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:OUTSIDE,BROKER://$(hostname -i | cut -d' ' -f1):INSIDE\n"
            ". /etc/confluent/docker/bash-config\n/etc/confluent/docker/configure\n/etc/confluent/docker/launch\n", "/tc-start.sh",
            more={"CLUSTER_ID": CLUSTER}, shell="sh")

    def read_only():
        """Where a file can be written only below /tmp, the settings lie there."""
        port = free_port()
        container = podman.start(KAFKA, *options({"KAFKA_LISTENERS": f"PLAINTEXT://:{port}", "MAINSTEM_ADMIN_LISTEN": ""}), "--read-only",
                                 "--user", "123456:0")
        works(port)
        container.remove()

    def signals():
        port = free_port()
        container = podman.start(KAFKA, *options({"KAFKA_LISTENERS": f"PLAINTEXT://:{port}", "MAINSTEM_ADMIN_LISTEN": ""}))
        begin = time.monotonic()
        podman.ask("stop", "--time", "30", container.name)
        seconds = time.monotonic() - begin
        assert seconds < 10 and container.inspect()["State"]["ExitCode"] == 0, (seconds, container.log()[-1000:])
        container.remove()
        return f"{seconds:.1f} s"

    yield "drop-in: files, variables and lines of Kafka's images", 120, contract
    yield "drop-in: the names of variables", 60, names
    yield "drop-in: a mounted server.properties", 60, mounted
    yield "drop-in: listeners from those that are advertised", 60, advertised
    yield "drop-in: variables as arguments", 60, arguments
    yield "drop-in: started as Testcontainers for Java does", 60, by_java
    yield "drop-in: started as Testcontainers for Go does", 60, by_go
    yield "drop-in: started as Testcontainers for Python does", 60, by_python
    yield "drop-in: a root file system that cannot be written, and another user", 60, read_only
    yield "drop-in: SIGTERM", 60, signals
