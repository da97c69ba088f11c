"""Prometheus accepts alarms and dashboard, each alarm is raised when it should be, and every metric is exported."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.files import DEPLOY, documents
from tests.documents import ROOT, anchors

HERE: Final = DEPLOY / "prometheus"
ALARMS: Final[list[dict[str, Any]]] = [
    rule for group in documents(HERE / "alerts.yml")[0]["groups"] for rule in group["rules"]
]
DASHBOARD: Final[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "poller.json").read_text("utf-8"))
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ASKED: Final = [target["expr"] for panel in PANELS for target in panel["targets"]]
_NAME: Final = re.compile(r"\bpoller_[a-z_]+")
_HISTOGRAM: Final = re.compile(r"_(?:bucket|count|sum)$")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on the PATH (Debian: prometheus)"
)


def promtool(*arguments: str) -> None:
    """Run promtool; fails with its output."""
    done = subprocess.run(("promtool", *arguments), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_the_configuration() -> None:
    """Prometheus accepts the configuration and its rules."""
    promtool("check", "config", str(HERE / "prometheus.yml"))


@pytest.mark.thorough
@needs_promtool
def test_each_alarm_is_raised_and_none_without_reason() -> None:
    """The rules' own tests pass: each alarm is raised by its cause, and a healthy poller raises none."""
    promtool("test", "rules", str(HERE / "alerts.test.yml"))


def test_each_alarm_has_its_test() -> None:
    """Each alarm has a test case that raises it, and is expected to be silent in the healthy case."""
    calm, *cases = documents(HERE / "alerts.test.yml")[0]["tests"]
    names = {alarm["alert"] for alarm in ALARMS}
    assert {one["alertname"] for one in calm["alert_rule_test"]} == names
    raised = {one["alertname"] for case in cases for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert raised == names


@needs_promtool
def test_what_the_dashboard_asks(tmp_path: Path) -> None:
    """Prometheus accepts every query of the dashboard."""
    rules = [
        {"record": f"panel:{at}", "expr": re.sub(r"\$__rate_interval", "5m", expr)} for at, expr in enumerate(ASKED)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")
    promtool("check", "rules", str(file))


@needs_promtool
def test_processes_are_found_whatever_their_job(tmp_path: Path) -> None:
    """Process metrics are shown for every poller, whatever its job is called, and for no other program."""
    asked = [expr for expr in ASKED if "process_" in expr]
    assert len(asked) == 2
    labels = '{instance="10.0.0.1:8080",job="kubernetes-pods"}'
    other = labels.replace("10.0.0.1", "10.0.0.2")
    series = {f"poller_build_info{labels}": "1x30"}
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes"):
        series |= {name + labels: "60+60x30", name + other: "60+60x30"}
    questions = [
        {
            "expr": expr.replace("$__rate_interval", "5m"),
            "eval_time": "20m",
            "exp_samples": [{"labels": labels, "value": 1}]
            if expr.startswith("rate(")
            else [{"labels": "process_resident_memory_bytes" + labels, "value": 60 + 20 * 60}],
        }
        for expr in asked
    ]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": questions,
    }
    file = tmp_path / "questions.test.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}), "utf-8")
    promtool("test", "rules", str(file))


def test_the_dashboard_is_of_one_piece() -> None:
    """Panels have unique ids, do not overlap, and use the provisioned data source."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    (source,) = documents(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yaml")[0]["datasources"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}
    assert set(re.findall(r"\$(?!__)(\w+)", " ".join(ASKED))) == {
        one["name"] for one in DASHBOARD["templating"]["list"]
    }


def test_provisioning_and_compose_agree() -> None:
    """Provisioned files are where the compose file mounts them, and Prometheus scrapes the project's services."""
    compose = documents(DEPLOY / "compose.yaml")[0]["services"]
    (provider,) = documents(DEPLOY / "grafana" / "provisioning" / "dashboards" / "poller.yaml")[0]["providers"]
    assert f"./grafana/poller.json:{provider['options']['path']}/poller.json:ro" in compose["grafana"]["volumes"]
    (job,) = documents(HERE / "prometheus.yml")[0]["scrape_configs"]
    targets = {target for one in job["static_configs"] for target in one["targets"]}
    assert targets == {f"{name}:8080" for name, service in compose.items() if "build" in service}
    networks = set(compose["prometheus"]["networks"])
    assert all(networks & set(compose[target.partition(":")[0]]["networks"]) for target in targets)


def test_every_name_is_exported() -> None:
    """Alarms and dashboard use only metrics that the program declares."""
    catalogue = pytest.importorskip("poller.telemetry.metrics", reason="the program has no metrics yet")
    package = importlib.import_module("poller.telemetry")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"poller.telemetry.{module.name}")
    importlib.import_module("poller.daemon.stored_metrics")  # declares the metrics computed from the store
    exported = {one.name for one in catalogue.described()}
    used = {name for alarm in ALARMS for name in _NAME.findall(alarm["expr"])}
    used |= {name for expr in ASKED for name in _NAME.findall(expr)}
    used |= {name for one in DASHBOARD["templating"]["list"] for name in _NAME.findall(one["query"]["query"])}
    assert {_HISTOGRAM.sub("", name) for name in used} <= exported


_RUNBOOKS: Final = "https://git.example.org/poller/blob/main"


def test_each_alarm_leads_to_its_section() -> None:
    """Each alarm's runbook address ends with the manual and the anchor of the section with the alarm's name."""
    manual = DEPLOY / "README.md"
    for alarm in ALARMS:
        told = alarm["annotations"]
        anchor = alarm["alert"].lower()
        assert told["runbook_url"] == f"{_RUNBOOKS}/{manual.relative_to(ROOT)}#{anchor}"
        assert anchor in anchors(manual)
        assert all(told[name] for name in ("summary", "description", "action"))


@pytest.mark.thorough
def test_the_address_of_the_runbooks_can_be_set(tmp_path: Path) -> None:
    """The manual's command replaces the runbook address in every alarm and its test, and Prometheus accepts both."""
    (command,) = re.findall(r"`(sed -i '[^']+') deploy/prometheus/\*\.yml`", (DEPLOY / "README.md").read_text("utf-8"))
    file = tmp_path / "alerts.yml"
    tests = tmp_path / "alerts.test.yml"
    for one in (file, tests):
        one.write_bytes((HERE / one.name).read_bytes())
    subprocess.run([*shlex.split(command), str(file), str(tests)], check=True)
    rules = [rule for group in documents(file)[0]["groups"] for rule in group["rules"]]
    assert len(rules) == len(ALARMS)
    for rule in rules:
        assert rule["annotations"]["runbook_url"].startswith("https://YOUR-HOST/YOUR-PATH/deploy/README.md#poller")
    if shutil.which("promtool"):
        promtool("check", "rules", str(file))
        promtool("test", "rules", str(tests))
