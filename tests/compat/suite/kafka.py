"""Apache Kafka as a single node: a process with its files in one directory."""

import subprocess
import time

from . import place
from .ports import free_address
from .server import ServerFailed

READY_SECONDS = 60
CLUSTER_ID = "bWFpbnN0ZW0tdGVzdHMhIQ"
LOGGING = """status = error
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.err.ref = err
"""


class KafkaProcess:
    """A broker that is its own controller. `directory` gets its configuration and logs, not its data. `more_jars` is
    another directory of jars."""

    def __init__(self, jars, directory, properties, more_jars=None):
        self.jars, self.directory = jars, directory
        self.class_path = ":".join(f"{found}/*" for found in (jars, more_jars) if found)
        self.config, self.log_path = directory / "server.properties", directory / "server.log"
        self.logging = directory / "log4j2.properties"
        lines = [f"{key}={value}".replace("\\", "\\\\") for key, value in properties]
        self.config.write_text("\n".join(lines) + "\n")
        self.logging.write_text(LOGGING)
        self.process = None

    def java(self, *arguments):
        logging = f"-Dlog4j2.configurationFile={self.logging}"
        return [*place.JVM, "-cp", self.class_path, logging, *arguments]

    def format(self, *more, how=("--standalone",)):
        """Makes its data directory, as its configuration names it. `how` says who the first controllers are, if that does not."""
        path = self.directory / "format.log"
        command = self.java("kafka.tools.StorageTool", "format", *how, "-t", CLUSTER_ID, "-c", self.config)
        with open(path, "wb") as output:
            done = subprocess.run([*command, *more], stdout=output, stderr=output)
        assert done.returncode == 0, path.read_text()[-600:]

    def start(self):
        """Starts it, at first or again; seconds until it is ready."""
        self.spawn()
        return self.until_started()

    def spawn(self):
        self.begun = time.monotonic()
        with open(self.log_path, "ab") as output:
            self.said = output.tell()
            self.process = subprocess.Popen(self.java("kafka.Kafka", self.config), stdout=output, stderr=output)

    def until_started(self):
        while "Kafka Server started" not in self._log_from(self.said):
            if self.process.poll() is not None or time.monotonic() - self.begun > READY_SECONDS:
                raise ServerFailed(f"Kafka did not start, see {self.log_path}")
            time.sleep(0.1)
        return time.monotonic() - self.begun

    def _log_from(self, position):
        with open(self.log_path, errors="replace") as log:
            log.seek(position)
            return log.read()

    def kill(self):
        """SIGKILL. A broker that has ended by itself before is a failure."""
        if self.process.poll() is not None:
            raise ServerFailed(f"Kafka had ended by itself with code {self.process.returncode}, see {self.log_path}")
        self.stop()

    def stop(self):
        """SIGKILL, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def fetch_jars():
    """The directory with Apache Kafka's jars, which are brought the first time."""
    fetched = subprocess.run([place.MAINSTEM_BENCH, "fetch-kafka"], stdout=subprocess.PIPE, text=True, check=True)
    return fetched.stdout.strip()


class Kafka:
    """Apache Kafka with its data in `directory` too; `settings` are KEY=VALUE, `listen` is HOST:PORT if it matters,
    `more_jars` a directory of jars beside Kafka's own."""

    own = False

    def __init__(self, directory, settings=(), listen=None, more_jars=None):
        self.bootstrap, controller = listen or free_address(), free_address()
        clients = f"PLAINTEXT://{self.bootstrap}"
        directory.mkdir(parents=True, exist_ok=True)
        properties = {
            "process.roles": "broker,controller", "node.id": 1, "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": controller, "listeners": f"{clients},CONTROLLER://{controller}",
            "advertised.listeners": clients, "log.dirs": directory / "data", "log.cleaner.dedupe.buffer.size": 16 << 20,
        }
        # One node cannot hold the default three copies of the internal topics.
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            properties[f"{topic}.replication.factor"] = 1
        for topic in ("transaction.state.log", "share.coordinator.state.topic"):
            properties[f"{topic}.min.isr"] = 1
        properties.update(setting.split("=", 1) for setting in settings)
        self.broker = KafkaProcess(fetch_jars(), directory, properties.items(), more_jars)

    def __enter__(self):
        self.broker.format()
        self.broker.start()
        return self

    def __exit__(self, *_):
        self.broker.stop()
