"""Checks on the documents of a chart: what one says of another must be there. Kubernetes takes a document without looking at the others."""

import re

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
NAME_LENGTH_MAX = 63
PORT_NAME_LENGTH_MAX = 15
# A StatefulSet's pods have a label of its name and of a hash of ten characters.
HASH_LENGTH = 11
HAVE_PODS = ("StatefulSet", "Job", "Pod")
VERSIONS = {
    "ConfigMap": "v1", "Service": "v1", "ServiceAccount": "v1", "Pod": "v1", "StatefulSet": "apps/v1", "Job": "batch/v1",
    "PodDisruptionBudget": "policy/v1", "NetworkPolicy": "networking.k8s.io/v1",
    "ServiceMonitor": "monitoring.coreos.com/v1", "PrometheusRule": "monitoring.coreos.com/v1",
}


def check(documents, secrets):
    """Every check. `secrets` are the keys that are there, by the name of the Secret."""
    identities = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(identities)) == len(identities), f"two documents are the same: {sorted(identities)}"
    for document in documents:
        names(document)
    for pod in pods(documents):
        safe(pod)
        volumes(pod, documents, secrets)
        variables(pod, documents, secrets)
        account(pod, documents)
    selectors(documents)
    ports(documents)


class PodOf:
    """A pod that a document makes: its labels and what it is."""

    def __init__(self, document):
        self.owner = f"{document['kind']} {document['metadata']['name']}"
        self.kind = document["kind"]
        template = document if self.kind == "Pod" else document["spec"]["template"]
        self.labels, self.spec = template["metadata"]["labels"], template["spec"]
        self.claims = [claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", [])]

    @property
    def containers(self):
        return self.spec.get("initContainers", []) + self.spec["containers"]


def pods(documents):
    return [PodOf(document) for document in documents if document["kind"] in HAVE_PODS]


def names(document):
    kind, metadata = document["kind"], document["metadata"]
    assert document["apiVersion"] == VERSIONS[kind], f"{kind} is of {document['apiVersion']}"
    name = metadata["name"]
    longest = NAME_LENGTH_MAX - (HASH_LENGTH if kind == "StatefulSet" else 0)
    assert NAME.fullmatch(name) and len(name) <= longest, f"{kind} {name} has {len(name)} characters"
    labels = [metadata["labels"]]
    if kind in ("StatefulSet", "Job"):
        labels.append(document["spec"]["template"]["metadata"]["labels"])
    for key, value in [pair for some in labels for pair in some.items()]:
        assert len(value) <= NAME_LENGTH_MAX and LABEL.fullmatch(value), f"{kind} {name}: the label {key} is {value!r}"
    for key in ("app.kubernetes.io/name", "app.kubernetes.io/instance", "helm.sh/chart"):
        assert metadata["labels"].get(key), f"{kind} {name} has no {key}"


def safe(pod):
    spec, where = pod.spec, pod.owner
    assert spec.get("enableServiceLinks") is False, f"{where} gets variables of services"
    assert spec.get("automountServiceAccountToken") is False, f"{where} gets a token"
    of_pod = spec["securityContext"]
    assert of_pod["runAsNonRoot"] is True and of_pod["runAsUser"] > 0 and of_pod["fsGroup"] > 0, f"{where}: {of_pod}"
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}, f"{where}: {of_pod}"
    for container in pod.containers:
        expected = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == expected, f"{where}, {container['name']}: {container['securityContext']}"


def volumes(pod, documents, secrets):
    there = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
    assert not set(there) & set(pod.claims), f"{pod.owner} has a volume twice: {sorted(there)} and {pod.claims}"
    mounted = set()
    for container in pod.containers:
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        assert len(set(paths)) == len(paths), f"{pod.owner}, {container['name']} has two volumes at one path: {paths}"
        for mount in container.get("volumeMounts", []):
            assert mount["name"] in there or mount["name"] in pod.claims, f"{pod.owner} mounts {mount['name']}, which is no volume of it"
            mounted.add(mount["name"])
    unused = (set(there) | set(pod.claims)) - mounted
    assert not unused, f"{pod.owner} has volumes that no container mounts: {sorted(unused)}"
    for volume in there.values():
        if "secret" in volume:
            assert volume["secret"]["secretName"] in secrets, f"{pod.owner}: {volume['secret']['secretName']} is none of {sorted(secrets)}"
            assert volume["secret"]["defaultMode"] == 0o440, f"{pod.owner}: others may read {volume['name']}"
        if "configMap" in volume:
            found(documents, "ConfigMap", volume["configMap"]["name"])


def variables(pod, documents, secrets):
    for container in pod.containers:
        given = [one["name"] for one in container.get("env", [])]
        assert len(set(given)) == len(given), f"{pod.owner} has a variable twice: {given}"
        seen = set()
        for one in container.get("env", []):
            for name in re.findall(r"\$\((\w+)\)", one.get("value", "")):
                assert name in seen, f"{pod.owner}: {one['name']} refers to {name}, which no variable before it is"
            seen.add(one["name"])
            key = one.get("valueFrom", {}).get("secretKeyRef")
            if key:
                assert key["key"] in secrets.get(key["name"], ()), f"{pod.owner}: {one['name']} is {key}, of {secrets}"
        for source in container.get("envFrom", []):
            assert source["secretRef"]["name"] in secrets, f"{pod.owner}: {source} is none of {sorted(secrets)}"


def account(pod, documents):
    name = pod.spec["serviceAccountName"]
    made = [document for document in documents if document["kind"] == "ServiceAccount"]
    for document in made:
        assert document["automountServiceAccountToken"] is False, document
        assert document["metadata"]["name"] == name, f"{pod.owner} is {name}, and the chart makes {document['metadata']['name']}"


def chosen(documents, labels):
    """The owners of the pods that these labels choose."""
    assert labels, "an empty selector chooses everything"
    return [pod.kind for pod in pods(documents) if labels.items() <= pod.labels.items()]


def selectors(documents):
    """What chooses pods must choose the server's, and neither the test's nor the job's."""
    only = ["StatefulSet"]
    for document in documents:
        kind, spec = document["kind"], document.get("spec")
        where = f"{kind} {document['metadata']['name']}"
        if kind == "Service":
            assert chosen(documents, spec["selector"]) == only, f"{where} chooses {chosen(documents, spec['selector'])}"
        elif kind in ("StatefulSet", "PodDisruptionBudget"):
            labels = spec["selector"]["matchLabels"]
            assert chosen(documents, labels) == only, f"{where} chooses {chosen(documents, labels)}"
        elif kind == "NetworkPolicy":
            assert chosen(documents, spec["podSelector"]["matchLabels"]) == only, where
        elif kind == "ServiceMonitor":
            labels = spec["selector"]["matchLabels"]
            services = [other for other in documents if other["kind"] == "Service" and labels.items() <= other["metadata"]["labels"].items()]
            assert len(services) == 1, f"{where} chooses {len(services)} services"
            offered = {port["name"] for port in services[0]["spec"]["ports"]}
            asked = {endpoint["port"] for endpoint in spec["endpoints"]}
            assert asked <= offered, f"{where} scrapes {asked}, and the service has {offered}"
    server = found(documents, "StatefulSet")
    headless = found(documents, "Service", server["spec"]["serviceName"])
    assert headless["spec"].get("clusterIP") == "None" and headless["spec"].get("publishNotReadyAddresses") is True, headless
    affinity = server["spec"]["template"]["spec"].get("affinity", {}).get("podAntiAffinity", {})
    for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", []):
        assert chosen(documents, term["podAffinityTerm"]["labelSelector"]["matchLabels"]) == only, term


def ports(documents):
    server = PodOf(found(documents, "StatefulSet"))
    container = server.spec["containers"][0]
    there = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert all(len(name) <= PORT_NAME_LENGTH_MAX for name in there), there
    # What listens is in the settings, and only that.
    settings = next(document["data"]["mainstem.toml"] for document in documents
                    if document["kind"] == "ConfigMap" and "mainstem.toml" in document["data"])
    listening = {int(port) for port in re.findall(r"0\.0\.0\.0:([0-9]+)", settings)}
    assert set(there.values()) == listening, f"the container names the ports {sorted(there.values())} and listens at {sorted(listening)}"
    for document in documents:
        where = f"{document['kind']} {document['metadata']['name']}"
        if document["kind"] == "Service":
            asked = {port["targetPort"] for port in document["spec"]["ports"]}
            assert asked <= set(there), f"{where} asks for {asked}, and the container has {sorted(there)}"
            if document["spec"].get("clusterIP") == "None":
                # Its names are told to others with the port of the container.
                for port in document["spec"]["ports"]:
                    assert there[port["targetPort"]] == port["port"], f"{where}: {port}"
        elif document["kind"] == "NetworkPolicy":
            asked = {port["port"] for rule in document["spec"]["ingress"] for port in rule["ports"]}
            assert asked == set(there), f"{where} opens {sorted(asked)} of {sorted(there)}"


def found(documents, kind, name=None):
    all_of_it = [document for document in documents if document["kind"] == kind and name in (None, document["metadata"]["name"])]
    assert len(all_of_it) == 1, f"there are {len(all_of_it)} of {kind} {name or ''}"
    return all_of_it[0]
