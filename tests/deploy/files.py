"""The files in deploy/, read once."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase
from typer.main import get_command

from jiyi import metrics
from jiyi.cli.app import app

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

COMMAND_LINE = get_command(app)
COMMANDS = set(COMMAND_LINE.commands)
DEAD_COMMANDS = set(COMMAND_LINE.commands["dead"].commands)
ROUTES = {"/healthz", "/readyz", "/metrics"}
KUBERNETES_VERSIONS = ("1.30", "1.37")
TARGET_LABELS = {"job", "instance"}

TEXTS = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
YAMLS = [path for path in TEXTS if path.suffix in {".yaml", ".yml"}]


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def name_of(path):
    return str(path.relative_to(DEPLOY))


COMPOSE = documents(DEPLOY / "compose.yaml")[0]
OBJECTS = [
    (name_of(path), document)
    for path in YAMLS
    if path.is_relative_to(KUBERNETES) and path.name != "kustomization.yaml"
    for document in documents(path)
]
KUSTOMIZATIONS = {path.parent: documents(path)[0] for path in YAMLS if path.name == "kustomization.yaml"}
SETTINGS_ENV = dict(
    line.split("=", 1) for line in (KUBERNETES / "settings.env").read_text().splitlines() if line and line[0] != "#"
)
WORKLOADS = [
    pytest.param(document, id=document["metadata"]["name"])
    for _, document in OBJECTS
    if document["kind"] in {"Deployment", "StatefulSet"}
]
ALERTS = [rule for group in documents(DEPLOY / "prometheus" / "alerts.yml")[0]["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SCRAPES = documents(DEPLOY / "prometheus" / "prometheus.yml")[0]["scrape_configs"]


def of_kind(kind):
    return [document for _, document in OBJECTS if document["kind"] == kind]


def seconds(duration):
    assert re.fullmatch(r"\d+(ms|s|m|h|d)", duration), duration
    return promql_parser.parse_duration(duration).total_seconds()


def instructions():
    """The Dockerfile as (instruction, arguments), comments dropped and continued lines joined."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and line[0] != "#"]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


def final_stage():
    found = instructions()
    last = max(i for i, (instruction, _) in enumerate(found) if instruction == "FROM")
    return found[last:]


def image_environment():
    pairs = [pair for name, value in final_stage() if name == "ENV" for pair in shlex.split(value)]
    return dict(pair.split("=", 1) for pair in pairs)


OURS = ("worker", "api")

CONFIG = DEPLOY / "redis.conf"

STATEFUL_SET = of_kind("StatefulSet")[0]

METRICS = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
SAMPLES = {
    f"{family.name}{suffix}": (metric, family)
    for metric in METRICS
    for family in metric.describe()
    for suffix in SUFFIXES[family.type]
}


def nodes(query):
    found = []
    promql_parser.walk(promql_parser.parse(query), pre_visit=found.append)
    return found


def selectors(query):
    return [node for node in nodes(query) if isinstance(node, promql_parser.VectorSelector)]


def pod_of(workload):
    return workload["spec"]["template"]["spec"]
