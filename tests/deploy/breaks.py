"""Defects of documents, each of which `shapes.check` must find. Each function is given the first document of each kind, of all-cluster.yaml."""


def pod(by_kind):
    return by_kind["StatefulSet"]["spec"]["template"]["spec"]


def container(by_kind):
    return pod(by_kind)["containers"][0]


def variable(by_kind, name):
    return next(one for one in container(by_kind)["env"] if one["name"] == name)


def drop_selector(by_kind):
    del by_kind["Service"]["spec"]["selector"]["app.kubernetes.io/component"]


def misspell_selector(by_kind):
    by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] = "servers"


def misspell_policy(by_kind):
    by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] = "servers"


def relabel_test(by_kind):
    by_kind["Pod"]["metadata"]["labels"]["app.kubernetes.io/component"] = "server"


def misname_port(by_kind):
    by_kind["Service"]["spec"]["ports"][0]["targetPort"] = "client"


def renumber_port(by_kind):
    container(by_kind)["ports"][0]["containerPort"] = 9093


def close_port(by_kind):
    by_kind["NetworkPolicy"]["spec"]["ingress"].pop()


def misname_service(by_kind):
    by_kind["StatefulSet"]["spec"]["serviceName"] = by_kind["Service"]["metadata"]["name"]


def misname_scraped(by_kind):
    by_kind["ServiceMonitor"]["spec"]["endpoints"][0]["port"] = "admin"


def scrape_both(by_kind):
    del by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]


def lose_volume(by_kind):
    pod(by_kind)["volumes"].pop(0)


def lose_claim(by_kind):
    by_kind["StatefulSet"]["spec"]["volumeClaimTemplates"].clear()


def lose_mount(by_kind):
    container(by_kind)["volumeMounts"].pop()


def mount_twice(by_kind):
    mounts = container(by_kind)["volumeMounts"]
    mounts[1]["mountPath"] = mounts[0]["mountPath"]


def misname_map(by_kind):
    next(volume for volume in pod(by_kind)["volumes"] if "configMap" in volume)["configMap"]["name"] = "settings"


def misname_secret(by_kind):
    next(volume for volume in pod(by_kind)["volumes"] if "secret" in volume)["secret"]["secretName"] = "certificates"


def misname_key(by_kind):
    variable(by_kind, "MAINSTEM_ADMIN_TOKEN")["valueFrom"]["secretKeyRef"]["key"] = "token"


def name_pod_late(by_kind):
    variables = container(by_kind)["env"]
    variables.append(variables.pop(variables.index(variable(by_kind, "POD_NAME"))))


def give_variable_twice(by_kind):
    container(by_kind)["env"].append({"name": "MAINSTEM_DATA_DIR", "value": "/"})


def link_services(by_kind):
    del pod(by_kind)["enableServiceLinks"]


def give_token(by_kind):
    pod(by_kind)["automountServiceAccountToken"] = True


def run_as_root(by_kind):
    pod(by_kind)["securityContext"]["runAsUser"] = 0


def keep_capabilities(by_kind):
    container(by_kind)["securityContext"]["capabilities"] = {}


def write_to_root(by_kind):
    container(by_kind)["securityContext"]["readOnlyRootFilesystem"] = False


def show_secrets(by_kind):
    next(volume for volume in pod(by_kind)["volumes"] if "secret" in volume)["secret"]["defaultMode"] = 0o444


def lengthen_name(by_kind):
    by_kind["StatefulSet"]["metadata"]["name"] = "x" * 53


def spoil_label(by_kind):
    by_kind["Service"]["metadata"]["labels"]["helm.sh/chart"] = "mainstem-0.1.0+1"


def misname_version(by_kind):
    by_kind["PodDisruptionBudget"]["apiVersion"] = "policy/v1beta1"


def name_twice(by_kind):
    by_kind["ConfigMap"]["kind"] = "Service"
    by_kind["ConfigMap"]["metadata"]["name"] = by_kind["Service"]["metadata"]["name"]


BREAKS = {
    function.__name__: function
    for function in (
        drop_selector, misspell_selector, misspell_policy, relabel_test, misname_port, renumber_port, close_port, misname_service,
        misname_scraped, scrape_both, lose_volume, lose_claim, lose_mount, mount_twice, misname_map, misname_secret, misname_key,
        name_pod_late, give_variable_twice, link_services, give_token, run_as_root, keep_capabilities, write_to_root,
        show_secrets, lengthen_name, spoil_label, misname_version, name_twice,
    )
}
