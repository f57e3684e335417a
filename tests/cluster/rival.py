"""Three brokers of Apache Kafka on this machine, each a controller too, with its defaults and three copies of every partition."""

import time

from suite.kafka import KafkaProcess, fetch_jars
from suite.ports import free_address

COPIES, LEAST_IN_SYNC = 3, 2
STOP_SECONDS = 60


class Broker(KafkaProcess):
    def __init__(self, node, listen, jars, directory, properties):
        directory.mkdir(parents=True)
        super().__init__(jars, directory, properties)
        self.node, self.listen = node, listen

    def stop(self):
        """SIGTERM: the seconds until it has ended."""
        begun = time.monotonic()
        self.process.terminate()
        self.process.wait(STOP_SECONDS)
        return time.monotonic() - begun

    def kill(self):
        assert self.process.poll() is None, f"Kafka had ended by itself, see {self.log_path}"
        self.end()

    def end(self):
        super().stop()


class Rivals:
    """What tests of a cluster want of one."""

    outage = None
    by_rack, diskless = False, ()

    def __init__(self, directory):
        jars, nodes = fetch_jars(), (1, 2, 3)
        listen = {node: free_address() for node in nodes}
        controllers = {node: free_address() for node in nodes}
        voters = ",".join(f"{node}@{address}" for node, address in controllers.items())
        self.brokers = {
            node: Broker(node, listen[node], jars, directory / f"kafka-{node}", {
                "process.roles": "broker,controller", "node.id": node, "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters, "log.dirs": directory / f"kafka-{node}" / "data",
                "listeners": f"PLAINTEXT://{listen[node]},CONTROLLER://{controllers[node]}",
                "advertised.listeners": f"PLAINTEXT://{listen[node]}", "group.initial.rebalance.delay.ms": 0,
            }.items())
            for node in nodes
        }
        self.bootstrap = ",".join(listen.values())

    def __enter__(self):
        try:
            for broker in self.brokers.values():
                broker.format(how=())
            for broker in self.brokers.values():
                broker.spawn()
            for broker in self.brokers.values():
                broker.until_started()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for broker in self.brokers.values():
            broker.end()

    def options_of(self, _):
        return {"replication_factor": COPIES, "config": {"min.insync.replicas": str(LEAST_IN_SYNC)}}

    def at_home(self):
        """Waits until every partition has all its copies and its preferred leader, which it would have by itself after minutes."""
        from confluent_kafka import ElectionType
        from confluent_kafka.admin import AdminClient
        admin, deadline = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}), time.monotonic() + 60
        while True:
            partitions = [of for topic in admin.list_topics(timeout=10).topics.values() for of in topic.partitions.values()]
            if all(len(of.isrs) == len(of.replicas) for of in partitions):
                if all(of.leader == of.replicas[0] for of in partitions):
                    return
                admin.elect_leaders(ElectionType.PREFERRED, None).result(20)
            assert time.monotonic() < deadline, "not all partitions have their copies and their leaders again"
            time.sleep(0.2)
