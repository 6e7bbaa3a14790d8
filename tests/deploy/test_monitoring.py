"""Tests of the Prometheus rules and the Grafana dashboard, with promtool and on a running service."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ranking.artifacts.atomic_files import write_json
from service.main import OPERATIONS_PORT
from tests.deploy.processes import LoadGenerator, Prometheus
from tests.deploy.rendering import DEPLOY
from tests.support.http_client import send_request
from tests.support.ports import free_port
from tests.support.processes import ServiceProcess, running_service
from tests.support.waiting import wait_until

CONFIG_FOLDER = DEPLOY / "prometheus"
RULE_GROUPS = yaml.safe_load((CONFIG_FOLDER / "rules.yml").read_text())["groups"]
RULES = [rule for group in RULE_GROUPS for rule in group["rules"]]
RECORDED_SERIES = [rule["record"] for rule in RULES if "record" in rule]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
COMMAND_ALERTS = {"RankerCountersLag", "RankerCountersDamagedFiles", "RankerCountersIncomplete"}
"""Alerts on metrics of ``ranker counters follow``, which is not part of the monitored service."""
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "ranker.json").read_text())
QUERIES = [
    target["expr"].replace("$__rate_interval", "1m")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", [])
]
RULE_TESTS = [Path(__file__).parent / name for name in ("rules_test.yml", "long_rules_test.yml")]

BODY = {"user": {"id": "u3"}, "context": {"surface": "home", "hour": 9}, "items": {"id": [f"v{i}" for i in range(40)]}}


@pytest.fixture(scope="module", autouse=True)
def _require_promtool() -> None:
    if not os.environ.get("CI") and shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package: prometheus)")


def promtool(*arguments: str) -> None:
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_accepts_configuration_and_rules() -> None:
    promtool("check", "config", str(CONFIG_FOLDER / "prometheus.yml"))
    promtool("check", "rules", str(CONFIG_FOLDER / "rules.yml"))


def test_promtool_rule_tests_pass() -> None:
    """Protects the alerts: each fires for its cause and clears when the cause is gone."""
    promtool("test", "rules", *map(str, RULE_TESTS))


def test_every_alert_has_rule_tests_for_firing_and_clearing() -> None:
    tests = [
        alert
        for file in RULE_TESTS
        for test in yaml.safe_load(file.read_text())["tests"]
        for alert in test.get("alert_rule_test", [])
    ]
    firing = {test["alertname"] for test in tests if test["exp_alerts"]}
    cleared = {
        test["alertname"]
        for test in tests
        if not test["exp_alerts"] and test["eval_time"] in _times_after_firing(tests, test["alertname"])
    }
    assert firing == cleared == ALERTS.keys()


def _times_after_firing(tests: list[dict[str, Any]], alert: str) -> set[str]:
    """Evaluation times of an alert that follow the first one at which it fires."""
    times = [test["eval_time"] for test in tests if test["alertname"] == alert]
    first = next(test["eval_time"] for test in tests if test["alertname"] == alert and test["exp_alerts"])
    return set(times[times.index(first) + 1 :])


def test_scrape_config_uses_operations_port_and_job_name_of_rules() -> None:
    (scrape,) = yaml.safe_load((CONFIG_FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert {source["port"] for source in scrape["dns_sd_configs"]} == {OPERATIONS_PORT}
    jobs = set(re.findall(r'job="(\w+)"', (CONFIG_FOLDER / "rules.yml").read_text()))
    assert jobs == {scrape["job_name"]}


def test_dashboard_panels_use_provisioned_datasource_and_do_not_overlap() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [
        (x, y)
        for position in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(position["x"], position["x"] + position["w"])
        for y in range(position["y"], position["y"] + position["h"])
    ]
    assert len(set(cells)) == len(cells), "two panels overlap"
    assert max(x for x, _ in cells) < 24


def test_incidents_page_documents_every_alert() -> None:
    guide = (DEPLOY.parent / "docs" / "incidents.md").read_text()
    assert [alert for alert in ALERTS if f"`{alert}`" not in guide] == []


class Monitored(NamedTuple):
    """A service under load, the arguments that start it, and the Prometheus server that scrapes it."""

    service: ServiceProcess
    repository: Path
    options: list[str]
    prometheus: Prometheus


@pytest.fixture(scope="class")
def monitored(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    folder = tmp_path_factory.mktemp("monitored")
    own = shutil.copytree(repository, folder / "repository")
    options = ["--port", str(free_port()), "--operations-port", str(free_port())]  # the same after a restart
    with running_service(own, options) as service, ExitStack() as stack:
        prometheus = Prometheus(CONFIG_FOLDER, service.operations_port, folder)
        stack.callback(prometheus.stop)
        stack.callback(LoadGenerator(f"{service.url}/v1/rank", BODY).stop)
        yield Monitored(service, own, options, prometheus)


class TestMonitoredService:
    def test_every_rule_alert_and_panel_returns_data(self, monitored: Monitored) -> None:
        """Protects operators from alerts and panels that name a metric that the service does not have."""
        prometheus = monitored.prometheus
        requests_counted = 'rate(ranker_requests_total{status="200"}[1m]) > 0'
        wait_until(lambda: prometheus.query(requests_counted), "Prometheus counts successful requests")
        # With "bool", a comparison that does not hold returns 0 instead of no series.
        of_service = [alert["expr"] for name, alert in ALERTS.items() if name not in COMMAND_ALERTS]
        comparisons = [re.sub(r"(==|>)", r"\1 bool", expression) for expression in of_service]
        without_data = {*RECORDED_SERIES, *comparisons, *QUERIES}

        def all_have_data() -> bool:
            without_data.difference_update([expression for expression in without_data if prometheus.query(expression)])
            return not without_data

        try:
            wait_until(all_have_data, "every expression has data")
        finally:
            assert not without_data
        assert prometheus.query('ranker:errors:ratio_rate5m{job="ranker"}')[0]["value"][1] == "0"
        assert float(prometheus.query("ranker:request_seconds:p99_5m")[0]["value"][1]) > 0
        critical = 'ALERTS{alertstate="firing",severity="critical"}'  # may fire while the service starts
        wait_until(lambda: not prometheus.query(critical), "no critical alert fires")

    def test_autoscaling_metric_exists(self, monitored: Monitored) -> None:
        (queue,) = yaml.safe_load((CONFIG_FOLDER / "adapter.yml").read_text())["rules"]["custom"]
        query = queue["metricsQuery"].replace("<<.Series>>", "ranker_queue_rows")
        query = query.replace("<<.LabelMatchers>>", 'job="ranker"').replace("<<.GroupBy>>", "instance")
        wait_until(lambda: len(monitored.prometheus.query(query)) == 1, "the autoscaler has a value")

    def test_rejected_bundle_fires_alert_and_previous_version_keeps_serving(self, monitored: Monitored) -> None:
        model = monitored.repository / "feed"
        weights = shutil.copytree(model / "1", model / "2") / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
        write_json({"version": 2}, model / "current.json")
        wait_until(lambda: monitored.prometheus.firing("RankerModelRefused"), "RankerModelRefused fires")
        assert send_request(f"{monitored.service.url}/v1/rank", BODY).status == 200
        write_json({"version": 1}, model / "current.json")

    def test_stopped_service_fires_alert_that_clears_after_restart(self, monitored: Monitored) -> None:
        prometheus = monitored.prometheus
        wait_until(lambda: not prometheus.firing("RankerGone"), "RankerGone does not fire at first")
        monitored.service.kill()
        wait_until(lambda: prometheus.firing("RankerGone"), "RankerGone fires")
        with running_service(monitored.repository, monitored.options):
            wait_until(lambda: not prometheus.firing("RankerGone"), "RankerGone clears")
