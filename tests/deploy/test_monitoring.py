"""What Prometheus and Grafana are told, by promtool and on a service that runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from ranking.files import write_json
from service.security.exposure import OPERATIONS_PORT
from tests.deploy.live import Load, Prometheus, Service, status, until
from tests.deploy.rendering import DEPLOY

FOLDER = DEPLOY / "prometheus"
RULES = [rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]]
RECORDED = [rule["record"] for rule in RULES if "record" in rule]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "ranker.json").read_text())
QUERIES = [
    target["expr"].replace("$__rate_interval", "1m")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", [])
]
TESTS = Path(__file__).parent / "rules_test.yml"

BODY = {"user": {"id": "u3"}, "context": {"surface": "home", "hour": 9}, "items": {"id": [f"v{i}" for i in range(40)]}}


@pytest.fixture(scope="module", autouse=True)
def _parts() -> None:
    if not os.environ.get("CI") and shutil.which("promtool") is None:
        pytest.skip("Debian's package prometheus is not installed")


pytestmark = pytest.mark.parts


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_no_fault() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))
    promtool("check", "rules", str(FOLDER / "rules.yml"))


def test_each_alert_fires_for_its_reason_and_clears() -> None:
    promtool("test", "rules", str(TESTS))


def test_each_alert_has_a_test_of_both() -> None:
    tests = [alert for test in yaml.safe_load(TESTS.read_text())["tests"] for alert in test.get("alert_rule_test", [])]
    fired = {test["alertname"] for test in tests if test["exp_alerts"]}
    quiet_after = {
        test["alertname"]
        for test in tests
        if not test["exp_alerts"] and test["eval_time"] in _later(tests, test["alertname"])
    }
    assert fired == quiet_after == ALERTS.keys()


def _later(tests: list[dict[str, Any]], alert: str) -> set[str]:
    """Times of an alert's tests that follow one in which it fires."""
    times = [test["eval_time"] for test in tests if test["alertname"] == alert]
    first = next(test["eval_time"] for test in tests if test["alertname"] == alert and test["exp_alerts"])
    return set(times[times.index(first) + 1 :])


def test_prometheus_scrapes_the_operations_port_as_the_job_that_the_rules_speak_of() -> None:
    (scrape,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert {source["port"] for source in scrape["dns_sd_configs"]} == {OPERATIONS_PORT}
    jobs = set(re.findall(r'job="(\w+)"', (FOLDER / "rules.yml").read_text()))
    assert jobs == {scrape["job_name"]}


def test_the_dashboard_is_where_grafana_looks_for_it() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken), "two panels overlap"
    assert max(x for x, _ in taken) < 24


def test_the_handbook_says_what_to_do_about_each_alert() -> None:
    handbook = (DEPLOY.parent / "docs" / "operations.md").read_text()
    assert [alert for alert in ALERTS if f"`{alert}`" not in handbook] == []


@pytest.fixture(scope="class")
def watched(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Prometheus]]:
    """A service under load, scraped."""
    folder = tmp_path_factory.mktemp("watched")
    with ExitStack() as stack:
        service = Service(shutil.copytree(repository, folder / "repository"), folder)
        stack.callback(service.stop)
        service.start()
        prometheus = Prometheus(FOLDER, service.operations, folder)
        stack.callback(prometheus.stop)
        stack.callback(Load(service.url("/v1/rank"), BODY).stop)
        yield service, prometheus


@pytest.mark.slow
class TestOnAServiceThatRuns:
    def test_every_rule_alert_and_panel_has_data(self, watched: tuple[Service, Prometheus]) -> None:
        _, prometheus = watched
        until(lambda: prometheus.ask('rate(ranker_requests_total{status="200"}[1m]) > 0'), "answers are seen")
        # with "bool" a comparison that does not hold is 0 instead of nothing
        compared = [re.sub(r"(==|>)", r"\1 bool", alert["expr"]) for alert in ALERTS.values()]
        lacking = {*RECORDED, *compared, *QUERIES}

        def asked() -> bool:
            lacking.difference_update([wanted for wanted in lacking if prometheus.ask(wanted)])
            return not lacking

        try:
            until(asked, "everything has data")
        finally:
            assert not lacking
        assert prometheus.ask('ranker:errors:ratio_rate5m{job="ranker"}')[0]["value"][1] == "0"
        assert float(prometheus.ask("ranker:request_seconds:p99_5m")[0]["value"][1]) > 0
        assert prometheus.ask('ALERTS{alertstate="firing",severity="critical"}') == []

    def test_the_probes_and_the_metric_to_scale_by_are_there(self, watched: tuple[Service, Prometheus]) -> None:
        service, prometheus = watched
        assert status(service.url("/v2/health/live")) == status(service.url("/v2/health/ready")) == 200
        (queue,) = yaml.safe_load((FOLDER / "adapter.yml").read_text())["rules"]["custom"]
        query = queue["metricsQuery"].replace("<<.Series>>", "ranker_queue_rows")
        query = query.replace("<<.LabelMatchers>>", 'job="ranker"').replace("<<.GroupBy>>", "instance")
        assert len(prometheus.ask(query)) == 1

    def test_an_alert_fires_when_a_bundle_is_refused_and_the_version_before_goes_on(
        self, watched: tuple[Service, Prometheus]
    ) -> None:
        service, prometheus = watched
        model = service.repository / "feed"
        broken = shutil.copytree(model / "1", model / "2") / "weights.safetensors"
        broken.write_bytes(broken.read_bytes()[:-1] + b"?")
        write_json({"version": 2}, model / "current.json")
        until(lambda: prometheus.firing("RankerModelRefused"), "the alert fires")
        assert status(service.url("/v1/rank"), json.dumps(BODY).encode()) == 200
        write_json({"version": 1}, model / "current.json")

    def test_an_alert_fires_when_the_service_stops_and_clears_when_it_is_back(
        self, watched: tuple[Service, Prometheus]
    ) -> None:
        service, prometheus = watched
        until(lambda: not prometheus.firing("RankerGone"), "no alert before")
        service.stop()
        until(lambda: prometheus.firing("RankerGone"), "the alert fires")
        service.start()
        until(lambda: not prometheus.firing("RankerGone"), "the alert clears")
