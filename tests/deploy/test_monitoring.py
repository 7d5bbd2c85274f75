"""The alert rules and the Grafana dashboard use metrics, labels and commands that exist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric as MetricFamily
from prometheus_client.parser import text_string_to_metric_families

from tenuto import Tenuto
from tenuto.observability.external_event_metrics import EVENT_METRICS
from tenuto.observability.metrics_by_name import METRICS_BY_NAME
from tenuto.observability.prometheus import DATABASE_METRICS, PROCESS_METRICS
from tenuto_identity.extension import Identity
from tenuto_notifications.commands import notification
from tenuto_notifications.extension import Notifications
from tests.deploy.promql_selectors import MetricUse, metric_uses
from tests.deploy.rendered_chart import DEPLOY
from tests.deploy.test_deployment import parse_command

TARGET_LABELS = frozenset({"namespace", "job", "instance", "pod"})
"""Labels that Prometheus adds."""
EXTENSION_METRICS = tuple(
    metric for extension in (Notifications(), Identity()) for source in extension.metrics() for metric in source.metrics
)
INSTALLATION_METRICS = (*DATABASE_METRICS, *METRICS_BY_NAME, *EVENT_METRICS, *EXTENSION_METRICS)
DECLARED = {metric.name: metric for metric in (*PROCESS_METRICS, *INSTALLATION_METRICS)}
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
HOW_TO = DEPLOY.parent / "docs" / "how-to"


def rule_queries() -> list[str]:
    return [rule["expr"] for rule in RULES]


def dashboard_queries() -> Iterator[str]:
    """Yield the queries of the dashboard, with values for the variables of Grafana."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$__rate_interval", "5m")
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert found, variable["definition"]
            assert found[2] in TARGET_LABELS
            yield found[1]


def without_extensions(queries: Iterable[str]) -> list[str]:
    """Return the queries that use no metrics of extensions."""
    names = {metric.name for metric in EXTENSION_METRICS}
    return [query for query in queries if not names & {use.name for use in metric_uses(query)}]


def check_metric_uses(queries: Iterable[str], families: Mapping[str, MetricFamily]) -> None:
    """Check that the metrics and labels of the queries are in a response of /metrics."""
    for query in queries:
        for use in metric_uses(query):
            family = families.get(family_name(use))
            assert family is not None, f"{use.name} does not exist: {query}"
            own = {label: value for label, value in use.equal.items() if label not in TARGET_LABELS}
            samples = [sample for sample in family.samples if sample.name == use.name]
            if samples:
                assert any(own.items() <= sample.labels.items() for sample in samples), f"no sample fits: {query}"
            assert use.labels - TARGET_LABELS <= declared_labels(use), query


def family_name(use: MetricUse) -> str:
    return re.sub(r"_(bucket|total|sum|count)$", "", use.name)


def declared_labels(use: MetricUse) -> set[str]:
    if use.name.endswith("_bucket"):
        return {"le", *DECLARED[use.name.removesuffix("_bucket")].labels}
    return set(DECLARED[use.name].labels)


def test_alert_rules_are_complete_and_name_existing_commands() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description"}
        labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert labels <= TARGET_LABELS | {label for use in metric_uses(rule["expr"]) for label in use.labels}
        for command in re.findall(r"tenuto ([a-z-]+ .*)$", rule["annotations"]["description"]):
            parse_command(shlex.split(command), {"notification": notification})
    commands = [rule for rule in RULES if "tenuto " in rule["annotations"]["description"]]
    assert len(commands) >= 3


def test_alert_rules_of_installation_metrics_take_one_value_of_many_processes() -> None:
    """Every process reports these metrics: without an aggregation, an alert fires once for each of them."""
    installation = {metric.name for metric in INSTALLATION_METRICS}
    for query in rule_queries():
        for use in metric_uses(query):
            if use.name in installation:
                assert re.search(rf"max by \([^)]*\) \((increase\()?{use.name}\b", query), query
                assert {"namespace", "job"} <= use.labels, query


def test_dashboard_panels_are_complete_and_show_every_metric_once_at_least() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            (query,) = [target["expr"].replace("$__rate_interval", "5m")]
            assert shown <= {label for use in metric_uses(query) for label in use.labels}, query
            assert 'namespace=~"$namespace", job=~"$job"' in query
    used = {family_name(use) for query in dashboard_queries() for use in metric_uses(query)}
    assert used == {re.sub("_total$", "", name) for name in DECLARED}


def test_metric_check_detects_a_wrong_name_label_and_value() -> None:
    leases = MetricFamily("tenuto_leases", "Claimed tasks.", "gauge")
    leases.add_sample("tenuto_leases", {"queue": "default", "lease": "live"}, 1)
    families = {"tenuto_leases": leases}
    check_metric_uses(['max by (job, queue) (tenuto_leases{lease="live"}) > 0'], families)
    for wrong in ("tenuto_leased > 0", 'tenuto_leases{lease="late"}', "max by (status) (tenuto_leases)"):
        with pytest.raises(AssertionError):
            check_metric_uses([wrong], families)


@pytest.fixture
async def extended_app(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tenuto]:
    """An app with notifications and identity synchronisation."""
    monkeypatch.setenv("TENUTO_DISABLED_EXTENSIONS", "")
    async with Tenuto(url, home=tmp_path) as app:
        await app.migrate()
        yield app
        assert app.extension_registry.failures == []


async def test_dashboard_and_alerts_use_metrics_that_extensions_report(extended_app: Tenuto) -> None:
    rule = {"name": "broken", "event": "task.failed", "channel": {"kind": "email", "to": ["ops@example.org"]}}
    await extended_app.extensions.notifications.create(rule)
    async with extended_app.worker():
        sent = await extended_app.extensions.notifications.test("broken")
        await extended_app.wait(sent.id, timeout=30)  # no mail server is configured
    text = await extended_app.status.metrics()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    queries = [*rule_queries(), *dashboard_queries()]
    own = [query for query in queries if query not in without_extensions(queries)]
    assert len(own) >= len(EXTENSION_METRICS)
    check_metric_uses(own, families)
    samples = families["tenuto_notifications_messages"].samples
    assert [(each.labels, each.value) for each in samples] == [({"rule": "broken", "state": "failed"}, 1.0)]


@pytest.mark.parametrize("page", ["observing", "kubernetes"])
def test_page_names_existing_metrics(page: str) -> None:
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\btenuto_[a-z_]+", text))
    assert named
    assert named <= DECLARED.keys()


def test_monitoring_page_lists_every_alert_with_its_severity() -> None:
    rows = re.findall(
        r"^\| `(Tenuto\w+)` \| (\w+) \|", (HOW_TO / "observing.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]
