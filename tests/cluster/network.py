"""A network for each broker, so that one can be cut off from something: packets are dropped, and nobody says so.

The tests run in a network namespace of their own, and each broker in another one. A bridge joins them. All of it ends with the
processes in it.
"""

import subprocess

from suite import network

CLIENTS, ETCD, STORE = "10.77.0.1", "10.77.0.2", "10.77.0.3"
# A bridge without an address of its own takes the lowest of its ports. When a port joins, those who know the old one reach nobody.
BRIDGE, BRIDGE_ADDRESS, NOBODY = "hub", "02:00:00:00:00:01", "02:00:00:00:00:99"


def enter():
    """Runs this program again in a network of its own. Returns why it is in none, or may not make others; "" if all is well."""
    if not network.is_own():
        network.start_again_in_own()
    try:
        why = network.is_own() or "no right to network namespaces"
        if why is True:
            run("ip", "link", "add", BRIDGE, "address", BRIDGE_ADDRESS, "type", "bridge")
            return ""
    except (AssertionError, OSError) as error:
        why = error
    return str(why)


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr.strip()}"


class Network:
    """The bridge that enter() made, which has the addresses of everything that is no broker."""

    def __init__(self):
        for address in (CLIENTS, ETCD, STORE):
            run("ip", "address", "add", f"{address}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        self.machines = {}

    def machine(self, number):
        """The network of the broker `number`."""
        return self.machines.setdefault(number, Machine(number))

    def end(self):
        for machine in self.machines.values():
            machine.end()


class Machine:
    def __init__(self, number):
        self.address, self.cut = f"10.77.0.{10 + number}", []
        # The namespace lives as long as this process.
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE)
        assert self.holder.stdout.readline(), "there is no namespace for a broker"
        link = f"broker{number}"
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.holder.pid)
        run("ip", "link", "set", link, "master", BRIDGE, "up")
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "eth0", "up")

    def prefix(self):
        """Before a command that shall run there."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--"]

    def inside(self, *words):
        run(*self.prefix(), *words)

    def cut_off(self, *addresses):
        """Drops every packet to these addresses: they go to a card that nobody has."""
        for address in addresses:
            self.inside("ip", "neighbour", "replace", address, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
            self.cut.append(address)

    def mend(self):
        while self.cut:
            self.inside("ip", "neighbour", "delete", self.cut.pop(), "dev", "eth0")

    def end(self):
        self.holder.kill()
        self.holder.wait()
