"""The files in deploy/: they are valid, and agree with the code and with each other."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import kubernetes_validate
import promql_parser
import pytest
import redis
import yaml
from prometheus_client.metrics import MetricWrapperBase
from typer.main import get_command

import jiyi
from jiyi import keys, metrics
from jiyi.cli.app import app
from jiyi.postings import DF, INLINE_BYTES
from jiyi.server import find_binary
from jiyi.settings import PREFIX, Settings

ROOT = Path(__file__).parent.parent
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


# --- texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", YAMLS, ids=name_of)
def test_yaml_is_parseable_and_has_no_repeated_keys(path):
    """A repeated key silently replaces the first one."""

    class Strict(yaml.SafeLoader):
        pass

    def construct(loader, node):
        own = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(own) == len(set(own)), f"{path.name}, line {node.start_mark.line + 1}: {own}"
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct)
    assert list(yaml.load_all(path.read_text(), Strict))


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_named_settings_exist(path):
    """Comments, alerts and instructions name only settings of the code."""
    named = set(re.findall(rf"\b{PREFIX}[A-Z][A-Z_]*[A-Z]\b", path.read_text()))
    assert named <= set(Settings().to_environment())


def test_named_commands_exist():
    """Instructions name only commands of the command line."""
    named = {found for path in TEXTS for found in re.findall(r"`jiyi ([a-z]+)(?: ([a-z]+))?[^`\n]*`", path.read_text())}
    assert len(named) > 5
    assert {command for command, _ in named} <= COMMANDS
    assert {second for command, second in named if command == "dead"} <= DEAD_COMMANDS


def test_own_image_carries_the_version_of_the_package():
    tags = {tag for path in TEXTS for tag in re.findall(r"\bjiyi:(\d[\w.]*)", path.read_text())}
    tags |= {str(image["newTag"]) for image in KUSTOMIZATIONS[KUBERNETES]["images"] if image["name"] == "jiyi"}
    assert tags == {jiyi.__version__}


def test_paths_in_the_readme_exist():
    text = (DEPLOY / "README.md").read_text()
    paths = set(re.findall(r"[\w/.]+\.(?:yaml|yml|json|conf|env)\b|deploy/[\w/]+", text)) - {"/etc/valkey/redis.conf"}
    missing = {path for path in paths if not any((base / path).exists() for base in (ROOT, DEPLOY, KUBERNETES))}
    assert len(paths) > 5
    assert missing == set()


def test_code_blocks_of_the_readme_are_shell():
    """Every quoted command line can be split, and the commands after the image exist."""
    blocks = re.findall(r"```sh\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    runs = [words for words in (shlex.split(line, comments=True) for line in lines) if words[:2] == ["docker", "run"]]
    assert {words[words.index(f"jiyi:{jiyi.__version__}") + 1] for words in runs} == {
        "api",
        "worker",
        "check",
    } & COMMANDS


# --- image ------------------------------------------------------------------------------------------------------


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


def test_dockerfile_knows_only_real_instructions():
    known = {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "LABEL", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {instruction for instruction, _ in instructions()} <= known  # no ADD: it fetches URLs


def test_base_images_are_pinned_and_the_same():
    """The virtual environment works only on the interpreter that it was made with."""
    bases = {value.split()[0] for instruction, value in instructions() if instruction == "FROM"}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", bases.pop())


def test_image_runs_as_a_fixed_user_who_is_not_root():
    stage = final_stage()
    users = [value for instruction, value in stage if instruction == "USER"]
    assert users == ["10001:10001"]
    names = [instruction for instruction, _ in stage]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_kernel_is_compiled_by_the_user_into_a_folder_of_his():
    stage = final_stage()
    compiled = stage.index(("RUN", "python -m jiyi_api.compiled"))
    assert compiled > stage.index(("USER", "10001:10001"))
    folder = image_environment()["NUMBA_CACHE_DIR"]
    assert any(f"--owner 10001 --group 10001 {folder}" in value for name, value in stage[:compiled] if name == "RUN")
    assert (ROOT / "api" / "jiyi_api" / "kernel.py").is_file()


def test_image_starts_the_command_line():
    stage = dict(final_stage())
    assert json.loads(stage["ENTRYPOINT"]) == ["jiyi"]
    assert json.loads(stage["CMD"])
    assert set(stage["EXPOSE"].split()) == {str(Settings().api_port), "9101"}


def test_environment_of_the_image_is_accepted():
    environment = image_environment()
    assert Settings.from_environment(environment).api_host == "0.0.0.0"
    assert environment["PATH"].startswith("/opt/jiyi/bin:")


def test_build_context_is_exactly_what_is_copied():
    copied = {
        word
        for instruction, value in instructions()
        if instruction == "COPY" and not value.startswith("--from")
        for word in value.split()[:-1]
    }
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*"
    assert {pattern[1:] for pattern in patterns if pattern[0] == "!"} == copied
    assert all((ROOT / path).exists() for path in copied)


def test_build_context_holds_what_the_wheel_needs():
    build = (ROOT / "pyproject.toml").read_text()
    admitted = (ROOT / ".dockerignore").read_text().splitlines()
    for path in ("jiyi", "workers", "api", "lua", "README.md", "LICENSE"):
        assert path in build
        assert f"!{path}" in admitted


# --- compose ----------------------------------------------------------------------------------------------------

OURS = ("worker", "api")


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


# --- Redis ------------------------------------------------------------------------------------------------------

CONFIG = DEPLOY / "redis.conf"
PASSWORD = "a-password"


def directives():
    lines = (line for line in CONFIG.read_text().splitlines() if line and line[0] != "#")
    return {name: " ".join(shlex.split(value)) for name, value in (line.split(maxsplit=1) for line in lines)}


def valkey_arguments(words):
    """What follows the configuration file on the command line of a container."""
    assert words[:2] == ["valkey-server", "/etc/valkey/redis.conf"]
    return [word.replace("$(VALKEY_PASSWORD)", PASSWORD) for word in words[2:]]


STATEFUL_SET = of_kind("StatefulSet")[0]
COMMAND_LINES = {
    "file": [],
    "compose": valkey_arguments(COMPOSE["services"]["valkey"]["command"]),
    "kubernetes": valkey_arguments(STATEFUL_SET["spec"]["template"]["spec"]["containers"][0]["args"]),
}


@contextmanager
def running(arguments):
    """A real server with our file, on a unix socket in a short path."""
    with tempfile.TemporaryDirectory(prefix="jiyi-") as folder:
        log = Path(folder, "log")
        place = ["--dir", folder, "--port", "0", "--unixsocket", f"{folder}/socket", "--logfile", log]
        process = subprocess.Popen([find_binary(), CONFIG, *arguments, *place], stdout=subprocess.PIPE)
        password = PASSWORD if PASSWORD in arguments else None
        client = redis.Redis(unix_socket_path=f"{folder}/socket", password=password, decode_responses=True, protocol=2)
        try:
            _wait_for(client, process)
            yield client
        finally:
            client.close()
            process.terminate()
            process.communicate(timeout=10)


def _wait_for(client, process):
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            assert process.poll() is None, process.stdout.read().decode()
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        else:
            return


@pytest.mark.parametrize("arguments", COMMAND_LINES.values(), ids=COMMAND_LINES)
def test_redis_takes_every_setting(arguments):
    """A real server starts with the file and reports each value; command lines change only what they should."""
    overridden = {word.removeprefix("--") for word in arguments if word.startswith("--")}
    assert overridden <= {"bind", "protected-mode", "maxmemory", "requirepass"}
    expected = {name: value for name, value in directives().items() if name not in overridden | {"port"}}
    with running(arguments) as client:
        assert {name: client.config_get(name).get(name) for name in expected} == expected
        if arguments:
            assert client.config_get("bind")["bind"] == "* -::*"
            assert int(client.config_get("maxmemory")["maxmemory"]) > 0
            assert client.config_get("protected-mode")["protected-mode"] == "no" or PASSWORD in arguments


def test_redis_keeps_what_the_design_needs():
    found = directives()
    assert found["appendonly"] == "yes"
    assert found["appendfsync"] in {"everysec", "always"}
    assert found["maxmemory-policy"] == "noeviction"
    assert found["timeout"] == "0"
    assert found["protected-mode"] == "yes"
    assert found["bind"] == "127.0.0.1 -::1"


def test_redis_explains_every_setting():
    previous = ""
    for line in CONFIG.read_text().splitlines():
        if line and line[0] != "#":
            name = re.match(r"[a-z]+", line)[0]
            assert previous.startswith(("#", name)) or name == "port", f"no reason given for: {line}"
        previous = line


def test_redis_keeps_the_layout_compact():
    """A full block of ids and a bucket's longest value stay in a listpack, and no entry more than needed does not."""
    with running([]) as client:
        client.hset("ids", mapping={str(doc): "x" * 36 for doc in range(keys.IDS_PER_BLOCK)})
        client.hset("terms", "word", "p" * max(INLINE_BYTES, DF.size))
        assert client.object("encoding", "ids") == "listpack"
        assert client.object("encoding", "terms") == "listpack"


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_redis_memory_leaves_room_for_a_rewrite(where):
    """Rewriting the append-only file forks: at most two thirds of the container's memory may be data."""
    if where == "compose":
        limit = COMPOSE["services"]["valkey"]["deploy"]["resources"]["limits"]["memory"]
    else:
        limit = STATEFUL_SET["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    units = {"mb": 2**20, "g": 2**30, "Gi": 2**30}
    size = {}
    for name, text in (("limit", limit), ("data", COMMAND_LINES[where][COMMAND_LINES[where].index("--maxmemory") + 1])):
        number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
        size[name] = int(number) * units[unit]
    assert size["data"] <= size["limit"] * 2 / 3


# --- metrics ----------------------------------------------------------------------------------------------------

METRICS = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
SAMPLES = {
    f"{family.name}{suffix}": (metric, family)
    for metric in METRICS
    for family in metric.describe()
    for suffix in SUFFIXES[family.type]
}
INTERVALS = {"$__rate_interval": "5m", "$__range": "1h"}


def expressions():
    """All queries of alerts and dashboard, with where they are."""
    yield from ((f"alert {rule['alert']}", rule["expr"]) for rule in ALERTS)
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"]
            for variable, interval in INTERVALS.items():
                query = query.replace(variable, interval)
            yield f"panel {panel['title']} {target['refId']}", query


EXPRESSIONS = [pytest.param(query, id=where) for where, query in expressions()]


def nodes(query):
    found = []
    promql_parser.walk(promql_parser.parse(query), pre_visit=found.append)
    return found


def selectors(query):
    return [node for node in nodes(query) if isinstance(node, promql_parser.VectorSelector)]


def labels_kept(query):
    """Labels that some aggregation of the query keeps; those of the target where nothing aggregates."""
    modifiers = [node.modifier for node in nodes(query) if isinstance(node, promql_parser.AggregateExpr)]
    return {label for modifier in modifiers if modifier for label in modifier.labels} if modifiers else TARGET_LABELS


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_query_is_valid_and_uses_metrics_that_exist(query):
    found = selectors(query)
    assert found
    for selector in found:
        assert selector.name == "up" or selector.name in SAMPLES, selector.name


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_query_uses_labels_and_values_that_exist(query):
    jobs = {scrape["job_name"] for scrape in SCRAPES}
    own = set()
    for selector in selectors(query):
        metric, family = SAMPLES.get(selector.name, (None, None))
        own |= set(metric._labelnames) if metric else set()
        for matcher in selector.matchers.matchers:
            if matcher.name == "job":
                assert set(matcher.value.split("|")) <= jobs
                continue
            assert matcher.name in metric._labelnames, matcher.name
            if matcher.name == "result":  # the help text lists the values
                assert set(matcher.value.split("|")) <= set(re.findall(r"\w+", family.documentation))
    assert labels_kept(query) <= own | TARGET_LABELS | {"le"}


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_query_takes_rates_of_counters_only(query):
    """A rate of a gauge, or a bare counter, says nothing (but whether it has just been born)."""
    for call in (node for node in nodes(query) if isinstance(node, promql_parser.Call)):
        inner = [node for node in nodes(call.prettify()) if isinstance(node, promql_parser.MatrixSelector)]
        if call.func.name in {"rate", "increase", "deriv", "delta"}:
            kind = SAMPLES[inner[0].vector_selector.name][1].type
            assert (kind == "gauge") == (call.func.name in {"deriv", "delta"}), call.prettify()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert_says_what_it_means_and_what_to_do(rule):
    assert re.fullmatch(r"Jiyi[A-Za-z]+", rule["alert"])
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "description", "action"}
    assert all(len(text) > 20 for text in rule["annotations"].values())
    assert seconds(rule.get("for", "1s")) <= 86_400


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert_fills_only_labels_that_its_query_keeps(rule):
    texts = " ".join(rule["annotations"].values())
    assert texts.count("{{") == texts.count("}}") == len(re.findall(r"\{\{ \$(?:value|labels\.\w+)[^{}]* \}\}", texts))
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels_kept(rule["expr"])


def test_alert_names_are_unique():
    assert max(Counter(rule["alert"] for rule in ALERTS).values()) == 1


def test_every_sign_of_trouble_has_an_alert():
    """What an operator must hear of; a metric that is renamed or forgotten shows here."""
    watched = {selector.name for rule in ALERTS for selector in selectors(rule["expr"])}
    assert watched >= {
        "up",
        "jiyi_oldest_unapplied_seconds",
        "jiyi_stream_lag_entries",
        "jiyi_dead_letters_total",
        "jiyi_dead_letters_kept",
        "jiyi_events_total",
        "jiyi_events_lost_total",
        "jiyi_worker_errors_total",
        "jiyi_claimed_total",
        "jiyi_search_seconds_bucket",
        "jiyi_searches_total",
        "jiyi_http_requests_total",
    }


def test_unknown_lag_is_seen():
    """NaN compares as false with any number, so the alert has to compare it with itself, and see its absence."""
    expr = next(rule["expr"] for rule in ALERTS if rule["alert"] == "JiyiLagUnknown")
    assert "max(jiyi_stream_lag_entries) != max(jiyi_stream_lag_entries)" in expr
    assert "absent(jiyi_stream_lag_entries)" in expr


def test_prometheus_scrapes_the_ports_that_compose_opens():
    ports = {
        "worker": int(COMPOSE["services"]["worker"]["environment"]["JIYI_METRICS_PORT"]),
        "api": Settings.from_environment(COMPOSE["services"]["api"]["environment"]).api_port,
    }
    scraped = {found["names"][0]: found["port"] for scrape in SCRAPES for found in scrape["dns_sd_configs"]}
    assert scraped == ports
    for name in (*ports, "prometheus"):
        assert "default" in COMPOSE["services"][name]["networks"]


def test_prometheus_loads_the_alerts():
    config = documents(DEPLOY / "prometheus" / "prometheus.yml")[0]
    assert [(DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"]] == [True]


# --- dashboard --------------------------------------------------------------------------------------------------


def test_dashboard_shows_every_metric():
    shown = {
        SAMPLES[selector.name][1].name
        for panel in PANELS
        for target in panel["targets"]
        for selector in selectors(target["expr"].replace("$__rate_interval", "5m"))
        if selector.name in SAMPLES
    }
    assert shown == {family.name for _, family in SAMPLES.values()}


def test_dashboard_is_complete():
    assert DASHBOARD["uid"] == "jiyi"
    assert DASHBOARD["schemaVersion"] >= 36
    assert "__inputs" not in DASHBOARD  # those of a manual export are not filled by provisioning
    rows = [panel["title"].split(":")[0] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Freshness", "Pipeline", "Reader", "Errors"]


def test_dashboard_panels_do_not_overlap():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken = Counter()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        taken.update(
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        )
    assert max(taken.values()) == 1


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_dashboard_panel_is_explained_and_has_a_unit(panel):
    assert panel["type"] in {"timeseries", "stat"}
    assert len(panel["description"]) > 10
    units = {"s", "short", "ops", "reqps", "bytes", "percentunit"}
    assert panel["fieldConfig"]["defaults"]["unit"] in units
    for target in panel["targets"]:
        if "_seconds" in target["expr"] and "_seconds_sum" not in target["expr"]:
            assert panel["fieldConfig"]["defaults"]["unit"] == "s"
    references = [target["refId"] for target in panel["targets"]]
    assert len(references) == len(set(references))
    assert {source["uid"] for source in (panel["datasource"], *(t["datasource"] for t in panel["targets"]))} == {
        "${datasource}"
    }


def test_grafana_finds_its_data_source_and_dashboard():
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = documents(provisioning / "datasources" / "prometheus.yaml")[0]["datasources"][0]
    variable = DASHBOARD["templating"]["list"][0]
    assert (variable["type"], variable["query"]) == ("datasource", source["type"])
    assert variable["current"] == {"text": source["name"], "value": source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    interval = documents(DEPLOY / "prometheus" / "prometheus.yml")[0]["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
    folder = documents(provisioning / "dashboards" / "jiyi.yaml")[0]["providers"][0]["options"]["path"]
    service = COMPOSE["services"]["grafana"]
    assert f"./grafana/dashboard.json:{folder}/dashboard.json:ro" in service["volumes"]
    assert service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{folder}/dashboard.json"


# --- Kubernetes -------------------------------------------------------------------------------------------------

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


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


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
