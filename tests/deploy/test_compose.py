"""The Compose file."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from jiyi import metrics
from jiyi.settings import Settings

from .files import COMMANDS, COMPOSE, DEPLOY, OURS, ROUTES, image_environment, seconds


def test_compose_follows_its_specification():
    """The schema comes with check-jsonschema; nothing is fetched."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, DEPLOY / "compose.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_publishes_only_on_loopback():
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_compose_images_are_pinned():
    for service in COMPOSE["services"].values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", service["image"]), service["image"]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_compose_limits_and_restricts_every_service(name):
    service = COMPOSE["services"][name]
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory"} <= set(limits)
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", [*OURS, "valkey"])
def test_compose_checks_the_health_of_each_part(name):
    service = COMPOSE["services"][name]
    assert service["read_only"]
    test = service["healthcheck"]["test"]
    assert test[0] in {"CMD", "CMD-SHELL"}
    if test[1] == "python":
        compile(test[3], "healthcheck", "exec")
        port, path = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", test[3]).groups()
        own_port = service["environment"].get("JIYI_METRICS_PORT", str(Settings().api_port))
        assert port == own_port
        assert path in ROUTES


@pytest.mark.parametrize("name", OURS)
def test_compose_waits_longer_than_a_drain(name):
    service = COMPOSE["services"][name]
    drain_ms = Settings.from_environment(service["environment"]).drain_ms
    assert seconds(service["stop_grace_period"]) * 1000 >= drain_ms + 10_000


@pytest.mark.parametrize("name", OURS)
def test_compose_settings_are_accepted(name):
    service = COMPOSE["services"][name]
    assert set(service["environment"]) <= set(Settings().to_environment()) | {metrics.MULTIPROCESS_VARIABLE}
    settings = Settings.from_environment(service["environment"])
    assert settings.redis_url.startswith("redis://valkey:")
    assert service["depends_on"] == {"valkey": {"condition": "service_healthy"}}
    assert service["command"][0] in COMMANDS


def test_compose_runs_two_workers():
    assert COMPOSE["services"]["worker"]["deploy"]["replicas"] == 2


def test_compose_keeps_redis_where_only_the_service_reaches_it():
    inside = {name for name, service in COMPOSE["services"].items() if "data" in service["networks"]}
    assert inside == {"valkey", *OURS}
    assert COMPOSE["services"]["valkey"]["networks"] == ["data"]
    assert COMPOSE["networks"]["data"] == {"internal": True}


def test_compose_gives_the_reader_a_folder_for_compiled_code():
    """numba refuses a cache that it cannot write to, and the root file system is read-only."""
    assert COMPOSE["services"]["api"]["volumes"] == [image_environment()["NUMBA_CACHE_DIR"]]


def test_compose_mounts_what_exists():
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source, *_ = volume.split(":")
            assert source.startswith("/") or source in COMPOSE["volumes"] or (DEPLOY / source).exists(), volume
