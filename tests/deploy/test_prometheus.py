"""Alerts and scrapes: queries that are valid and mean what they say."""

from __future__ import annotations

import re
from collections import Counter

import promql_parser
import pytest

from jiyi.settings import Settings

from .files import (
    ALERTS,
    COMPOSE,
    DEPLOY,
    PANELS,
    SAMPLES,
    SCRAPES,
    TARGET_LABELS,
    documents,
    nodes,
    seconds,
    selectors,
)

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
