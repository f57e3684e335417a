"""What is asked of servers that run: clients, scrapes, a cluster's state."""

import json
import urllib.error
import urllib.request

from rendered import NAMESPACE
from suite import place
from suite.report import until

TOPIC = "probe"
RECORDS = ["one", "two", "three"]
ANSWER_SECONDS = 10


def topics(site, chart, name, pod, create=True):
    """The pod of `helm test` finds the server by its service; before, the same client creates a topic."""
    test = site.pod(chart, name, "test", document=chart.one("Pod"))
    service = chart.values["service"]
    host = chart.all("Service")[0]["metadata"]["name"]
    test.translation.addresses[f"{host}.{NAMESPACE}.svc.cluster.local:{service['port']}"] = f"localhost:{pod.translation.ports[9092]}"
    test.write_files()
    container = test.spec["containers"][0]
    if create:
        assert container["args"][:2] == ["topic", "list"], container["args"]
        test.run_to_the_end({**container, "args": ["topic", "create", TOPIC, *container["args"][2:]]})
    listed = test.run_to_the_end(container)
    assert TOPIC in listed.split(), listed


def scraped(server, token):
    """The metrics, for those who know the token."""
    url = f"http://127.0.0.1:{server.port(9644)}/metrics"
    try:
        urllib.request.urlopen(url, timeout=ANSWER_SECONDS).close()
    except urllib.error.HTTPError as error:
        assert error.code == 401, error
    else:
        raise AssertionError("the metrics are shown without a token")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        assert "mainstem_build_info" in answer.read().decode()


def round_trip(server, *more, at, read_at=None, topic=TOPIC):
    """Records go in at one port of this machine, and come out at another."""
    mainstem = str(place.MAINSTEM)
    server.run(mainstem, "produce", topic, f"--bootstrap=localhost:{at}", *more, records="".join(f"{record}\n" for record in RECORDS))
    found = server.run(mainstem, "consume", topic, f"--bootstrap=localhost:{read_at or at}", "--exit-at-end", *more).stdout
    assert found.split() == RECORDS, found


def alive(server, *where):
    """How many brokers `mainstem cluster status` says are alive."""
    found = json.loads(server.run(str(place.MAINSTEM), "cluster", *where, "--output=json", "status").stdout)
    return sum("alive" in broker["state"] for broker in found["brokers"])


def three_brokers(site, chart, name):
    """All pods of the chart's cluster, its job, and clients at two of the brokers."""
    count = chart.one("StatefulSet")["spec"]["replicas"]
    pods = [site.pod(chart, name, f"{name}-{index}", index=index) for index in range(count)]
    for pod in pods:
        for other in pods:
            pod.translation.knows(other.translation, other.host)
        pod.write_files()
    servers = [pod.process() for pod in pods]
    try:
        for server in servers:
            server.start(wait=False)
        for server in servers:
            server.wait_until_ready()
            until(server.is_healthy, "the broker to be healthy")
        config = f"--config={pods[0].translation.path('/etc/mainstem/config/mainstem.toml')}"
        until(lambda: alive(servers[0], config) == count, "all brokers to be alive")
        for document in chart.all("Job"):
            job = site.pod(chart, name, "job", document=document)
            job.translation.knows(pods[0].translation, pods[0].host)
            job.write_files()
            job.run_to_the_end(job.spec["containers"][0])
        topics(site, chart, name, pods[0])
        more = []
        if chart.values["client"]["existingSecret"]:
            more = ["--command-config=/etc/mainstem/client/client.properties"]
        round_trip(servers[0], *more, at=servers[0].port(9092), read_at=servers[-1].port(9092))
        # A broker that is stopped has given its logs away before its grace is over.
        seconds = servers[-1].stop(chart.one("StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
        round_trip(servers[0], *more, at=servers[0].port(9092), topic="after")
    finally:
        for server in servers:
            server.end()
    return f"{count} brokers, one stopped in {seconds:.1f} s"
