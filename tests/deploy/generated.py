"""What the chart has a copy of must be what the program prints."""

import json
import re
import subprocess

from rendered import CHART
from suite import place

FILES = CHART / "files"
# The chart's rule counts the controllers of each release.
ALL = "sum(kafka_controller_kafkacontroller_activecontrollercount)"
EACH = "sum by (namespace, service) (kafka_controller_kafkacontroller_activecontrollercount)"
SECONDS = 30


def printed(*words):
    return subprocess.run([place.MAINSTEM, *words], capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def check_copies(directory, chart):
    """The files of the chart, and what is rendered of them; its version."""
    rules = printed("generate", "prometheus-rules")
    here = FILES.relative_to(place.ROOT)
    assert (FILES / "prometheus-rules.yaml").read_text() == rules, f"run mainstem generate prometheus-rules >{here}/prometheus-rules.yaml"
    into = directory / "dashboards"
    into.mkdir()
    printed("generate", "grafana", "--into", into)
    dashboards = {file.name: file.read_text() for file in into.iterdir()}
    copies = {file.name: file.read_text() for file in (FILES / "dashboards").iterdir()}
    assert copies == dashboards, f"run mainstem generate grafana --into {here}/dashboards"
    rendered = [document["data"] for document in chart.all("ConfigMap") if document["metadata"]["name"].endswith("-dashboards")]
    assert rendered == [{f"mainstem-{name}": text for name, text in dashboards.items()}], "the dashboards of the chart are others"
    version = printed("version").split()[1]
    assert f"\nappVersion: {version}\n" in (CHART / "Chart.yaml").read_text(), f"appVersion is not {version}"
    spec = chart.one("PrometheusRule")["spec"]
    found = [rule for group in spec["groups"] for rule in group["rules"]]
    assert len(found) == rules.count("- alert: ") and rules.count(ALL) == 1, f"{len(found)} rules"
    for rule in found:
        expression = rule["expr"].replace(EACH, ALL).replace("'", "''")
        assert f"- alert: {rule['alert']}\n        expr: '{expression}'\n" in rules, rule
        assert f"severity: {rule['labels']['severity']}" in rules and rule["annotations"]["summary"].replace("'", "''") in rules, rule
    assert sum(EACH in rule["expr"] for rule in found) == 1, "the controllers of all releases are counted together"
    file = directory / "rules.yaml"
    file.write_text(json.dumps(spec))
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert checked.returncode == 0 and f"{len(found)} rules found" in checked.stdout, checked.stdout + checked.stderr
    return f"{len(found)} rules, {len(dashboards)} dashboards"


def documented(chart):
    """docs/kubernetes.md has a row for every value, and none for what is no value."""
    def leaves(values, prefix=""):
        for name, value in values.items():
            if isinstance(value, dict) and value and prefix + name not in rows:
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield prefix + name

    text = (place.ROOT / "docs" / "kubernetes.md").read_text()
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    rows = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    there = {name for name in leaves(chart.values) if name != "global"}
    assert rows == there, f"values without a row: {sorted(there - rows)}, rows without a value: {sorted(rows - there)}"
    return f"{len(rows)} values"
