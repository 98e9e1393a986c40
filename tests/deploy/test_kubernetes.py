"""The Kubernetes objects."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from jiyi.settings import PREFIX, Settings

from .files import (
    COMMANDS,
    COMPOSE,
    CONFIG,
    DEPLOY,
    KUBERNETES,
    KUBERNETES_VERSIONS,
    KUSTOMIZATIONS,
    OBJECTS,
    ROUTES,
    SCRAPES,
    SETTINGS_ENV,
    STATEFUL_SET,
    WORKLOADS,
    image_environment,
    name_of,
    of_kind,
    pod_of,
)

CUSTOM = {
    "ScaledObject": "keda.sh/v1alpha1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize(
    "document", [pytest.param(document, id=f"{name}-{document['kind']}") for name, document in OBJECTS]
)
def test_kubernetes_objects_follow_their_schema(document, version):
    """The schemas come with kubernetes-validate; those of custom resources do not."""
    if document["kind"] in CUSTOM:
        assert document["apiVersion"] == CUSTOM[document["kind"]]
    else:
        kubernetes_validate.validate(document, version, strict=True)
    assert "namespace" not in document["metadata"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_pods_are_confined(workload):
    pod = pod_of(workload)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"requests", "limits"} == set(container["resources"])
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_pods_are_selected_by_their_labels(workload):
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    assert workload["metadata"]["labels"] == labels
    for spread in pod_of(workload).get("topologySpreadConstraints", []):
        assert spread["labelSelector"]["matchLabels"] == labels


def test_nothing_selects_pods_that_do_not_exist():
    """Each selector of a service, budget, policy or monitor matches the pods of exactly one workload."""
    pods = [workload.values[0]["spec"]["template"]["metadata"]["labels"] for workload in WORKLOADS]
    chosen = [service["spec"]["selector"] for service in of_kind("Service")]
    chosen += [budget["spec"]["selector"]["matchLabels"] for budget in of_kind("PodDisruptionBudget")]
    chosen += [policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind("NetworkPolicy")]
    chosen += [monitor["spec"]["selector"]["matchLabels"] for monitor in of_kind("PodMonitor")]
    assert len(chosen) == 6
    for selector in chosen:
        assert sum(selector.items() <= labels.items() for labels in pods) == 1, selector


def test_monitors_find_their_port_and_give_the_job_that_alerts_expect():
    ports = {port["name"] for service in of_kind("Service") for port in service["spec"]["ports"]}
    labels = [service["metadata"]["labels"] for service in of_kind("Service")]
    (monitor,) = of_kind("ServiceMonitor")
    assert any(monitor["spec"]["selector"]["matchLabels"].items() <= found.items() for found in labels)
    (pods,) = of_kind("PodMonitor")
    ports |= {port["name"] for workload in WORKLOADS for port in pod_of(workload.values[0])["containers"][0]["ports"]}
    endpoints = [*monitor["spec"]["endpoints"], *pods["spec"]["podMetricsEndpoints"]]
    assert {endpoint["port"] for endpoint in endpoints} <= ports
    jobs = {rule["replacement"] for endpoint in endpoints for rule in endpoint["relabelings"]}
    assert jobs == {scrape["job_name"] for scrape in SCRAPES}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_probes_ask_what_exists(workload):
    probes = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    (container,) = pod_of(workload)["containers"]
    ports = {port["name"] for port in container["ports"]}
    found = {name: container[name]["httpGet"] for name in probes if "httpGet" in container.get(name, {})}
    assert all(get["port"] in ports and get["path"] in ROUTES for get in found.values())
    if workload["metadata"]["name"] == "jiyi-api":
        assert {name: get["path"] for name, get in found.items()} == probes
    assert "readinessProbe" in container


def test_services_lead_to_named_ports():
    for service in of_kind("Service"):
        pods = [
            pod_of(workload.values[0])
            for workload in WORKLOADS
            if service["spec"]["selector"].items()
            <= workload.values[0]["spec"]["template"]["metadata"]["labels"].items()
        ]
        for port in service["spec"]["ports"]:
            (target,) = [own for own in pods[0]["containers"][0]["ports"] if own["name"] == port["targetPort"]]
            assert target["containerPort"] == port["port"]


def test_no_service_puts_settings_into_the_environment():
    """Kubernetes gives pods `<SERVICE>_PORT` and more; with our prefix the settings would refuse them."""
    for service in of_kind("Service"):
        assert not f"{service['metadata']['name'].upper().replace('-', '_')}_".startswith(PREFIX)
    for workload in WORKLOADS:
        assert pod_of(workload.values[0])["enableServiceLinks"] is False


@pytest.mark.parametrize("workload", [workload for workload in WORKLOADS if workload.id != "valkey"])
def test_pods_have_settings_that_are_accepted(workload):
    (container,) = pod_of(workload)["containers"]
    own = {variable["name"]: variable.get("value", "redis://valkey:6379/0") for variable in container["env"]}
    settings = Settings.from_environment(image_environment() | SETTINGS_ENV | own)
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == ({settings.metrics_port} if container["args"] == ["worker"] else {settings.api_port})
    assert container["args"][0] in COMMANDS
    assert container["envFrom"] == [{"configMapRef": {"name": "jiyi-settings"}}]


@pytest.mark.parametrize("workload", [workload for workload in WORKLOADS if workload.id != "valkey"])
def test_pods_have_time_to_drain(workload):
    pod = pod_of(workload)
    drain_s = Settings.from_environment(SETTINGS_ENV).drain_ms / 1000
    before = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    assert before[0] == "sleep"
    assert pod["terminationGracePeriodSeconds"] >= int(before[1]) + drain_s + 10


@pytest.mark.parametrize("workload", WORKLOADS)
def test_pods_write_only_to_volumes(workload):
    """The root file system is read-only: /tmp and the compiler's folder have to be volumes."""
    (container,) = pod_of(workload)["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod_of(workload)["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    assert set(mounts.values()) == volumes
    if workload["metadata"]["name"] == "jiyi-api":
        folder = next(variable["value"] for variable in container["env"] if variable["name"] == "NUMBA_CACHE_DIR")
        assert Path(folder).parent == Path("/tmp")
    assert ("/data" if workload["metadata"]["name"] == "valkey" else "/tmp") in mounts


def test_reader_memory_has_room_for_its_cache():
    (api,) = (workload.values[0] for workload in WORKLOADS if workload.id == "jiyi-api")
    limit = pod_of(api)["containers"][0]["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert int(limit[:-2]) * 2**30 >= Settings.from_environment(SETTINGS_ENV).cache_bytes + 400 * 2**20


@pytest.mark.parametrize("workload", WORKLOADS)
def test_pod_images_are_pinned(workload):
    replaced = {image["name"]: image["newTag"] for image in KUSTOMIZATIONS[KUBERNETES]["images"]}
    image = pod_of(workload)["containers"][0]["image"]
    tag = replaced.get(image) or image.partition(":")[2]
    assert re.fullmatch(r"\d+\.\d+\.\d+[\w.-]*", tag)


def test_the_same_valkey_everywhere():
    image = pod_of(STATEFUL_SET)["containers"][0]["image"]
    assert image == COMPOSE["services"]["valkey"]["image"]
    assert f"{pod_of(STATEFUL_SET)['securityContext']['runAsUser']}:1000" == COMPOSE["services"]["valkey"]["user"]


def test_valkey_has_the_same_configuration_everywhere():
    (config,) = of_kind("ConfigMap")
    assert config["data"]["redis.conf"] == CONFIG.read_text()
    assert {"name": "config", "configMap": {"name": config["metadata"]["name"]}} in pod_of(STATEFUL_SET)["volumes"]


def test_secrets_are_those_that_the_readme_creates():
    created = re.search(r"create secret generic (\S+)(.*)", (DEPLOY / "README.md").read_text())
    known = {(created[1], key) for key in re.findall(r"--from-literal=(\w+)=", created[2])}
    used = {
        (variable["valueFrom"]["secretKeyRef"]["name"], variable["valueFrom"]["secretKeyRef"]["key"])
        for workload in WORKLOADS
        for variable in pod_of(workload.values[0])["containers"][0]["env"]
        if "valueFrom" in variable
    }
    (authentication,) = of_kind("TriggerAuthentication")
    used |= {(reference["name"], reference["key"]) for reference in authentication["spec"]["secretTargetRef"]}
    assert used == known


def test_autoscaler_follows_the_stream_of_the_workers():
    (scaler,) = of_kind("ScaledObject")
    settings = Settings.from_environment(SETTINGS_ENV)
    (trigger,) = scaler["spec"]["triggers"]
    assert scaler["spec"]["scaleTargetRef"]["name"] in {workload.id for workload in WORKLOADS}
    assert trigger["type"] == "redis-streams"
    assert trigger["metadata"]["stream"] == settings.stream
    assert trigger["metadata"]["consumerGroup"] == settings.group
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert {"lagCount", "activationLagCount"} <= set(trigger["metadata"])
    assert 1 <= scaler["spec"]["minReplicaCount"] <= scaler["spec"]["maxReplicaCount"]
    assert trigger["authenticationRef"]["name"] == of_kind("TriggerAuthentication")[0]["metadata"]["name"]
    (patch,) = KUSTOMIZATIONS[KUBERNETES / "keda"]["patches"]
    assert patch["target"]["name"] == scaler["spec"]["scaleTargetRef"]["name"]
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=name_of)
def test_kustomization_names_every_file(folder):
    """As a resource, or in a comment that says when to add it."""
    content, text = KUSTOMIZATIONS[folder], (folder / "kustomization.yaml").read_text()
    assert content["kind"] == ("Kustomization" if folder == KUBERNETES else "Component")
    named = set(content["resources"]) | {e for g in content.get("configMapGenerator", []) for e in g["envs"]}
    named |= set(re.findall(r"# +- ([\w.]+)", text))
    present = {path.name for path in folder.iterdir() if path.name != "kustomization.yaml"}
    assert named == present


def test_kubernetes_names_are_unique():
    names = Counter((document["kind"], document["metadata"]["name"]) for _, document in OBJECTS)
    assert max(names.values()) == 1
    assert {name for kind, name in names if kind == "PodDisruptionBudget"} == {"jiyi-worker", "jiyi-api"}
