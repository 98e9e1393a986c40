"""The dashboard."""

from __future__ import annotations

from collections import Counter

import pytest

from .files import COMPOSE, DASHBOARD, DEPLOY, PANELS, SAMPLES, documents, selectors


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
