"""A value of the wrong type, or with a name that is not the extension's, is a failure of its extension only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document
from tenuto.api.routes.admin.service_info import list_step_kinds
from tenuto.extension import (
    AuditAction,
    DefinitionList,
    Event,
    EventTopics,
    Extension,
    ExtensionServices,
    FoundObject,
    LabelledValue,
    Metric,
    MetricSource,
    ProcessRole,
    Retention,
    Service,
    StepKind,
)
from tenuto.extension.contribution_checks import check_values
from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job
from tenuto.observability.event_feed import ChangeDetector, EventFeed
from tenuto.postgres.database import Connection, Database
from tests.support.errors import raises_code
from tests.support.extension_registries import make_registry


class Faulty(Extension):
    """Contributes the given values."""

    name = "faulty"

    def __init__(self, **values: Any) -> None:
        self._values = values

    def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
        return cast("Sequence[Service]", self._values.get("services", ()))

    def retention(self) -> Sequence[Retention]:
        return cast("Sequence[Retention]", self._values.get("retention", ()))

    def event_topics(self) -> Sequence[EventTopics]:
        return cast("Sequence[EventTopics]", self._values.get("topics", ()))

    def metrics(self) -> Sequence[MetricSource]:
        return cast("Sequence[MetricSource]", self._values.get("metrics", ()))

    def audit_actions(self) -> Sequence[AuditAction]:
        return cast("Sequence[AuditAction]", self._values.get("actions", ()))

    def definition_lists(self) -> Sequence[DefinitionList[Any]]:
        return cast("Sequence[DefinitionList[Any]]", self._values.get("lists", ()))


class Source:
    """Reports the given events."""

    def __init__(self, *events: object) -> None:
        self._events = events

    async def load(self, database: Database, since: datetime) -> None: ...

    def detect_changes(self, loaded: object) -> Any:
        return self._events


class Nameless:
    is_ready = True

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Unsure(Nameless):
    name = "unsure"

    @property
    def is_ready(self) -> bool:  # type: ignore[override]
        raise OSError("no such device")


async def _nothing(*_: object) -> Any: ...


def _app(extension: Extension, home: Path, url: str = "postgresql://nowhere/x") -> Tenuto:
    return Tenuto(url, home=home, extensions=[extension])


def _parts(app: Tenuto) -> list[tuple[str, str]]:
    return [(failure.extension, failure.part) for failure in app.extension_registry.failures]


@pytest.mark.parametrize("service", [Nameless(), None, "service"])
def test_registry_leaves_out_an_invalid_background_service(tmp_path: Path, service: object) -> None:
    app = _app(Faulty(services=[service]), tmp_path)
    assert app.extension_registry.background_services(ProcessRole.WORKER) == []
    assert _parts(app) == [("faulty", "background services")]


def test_service_whose_readiness_fails_is_not_ready(tmp_path: Path) -> None:
    app = _app(Faulty(services=[Unsure()]), tmp_path)
    (service,) = app.extension_registry.background_services(ProcessRole.WORKER)
    assert not service.is_ready
    assert _parts(app) == [("faulty", "background service unsure")]


@pytest.mark.parametrize(
    "retention", ["rows", Retention("rows", cast("Any", None)), Retention(cast("Any", 1), _nothing)]
)
def test_registry_leaves_out_an_invalid_retention(tmp_path: Path, retention: object) -> None:
    app = _app(Faulty(retention=[retention]), tmp_path)
    assert [each.name for each in app.extension_registry.retention()] == [
        "bulk_operations: operations",
        "logs: entries",
        "events: events",
        "events: event waits",
        "approvals: approvals",
    ]
    assert _parts(app) == [("faulty", "retention")]


@pytest.mark.parametrize(
    "topics",
    [
        "faulty.rows",
        EventTopics(cast("Any", None), lambda options: Source()),
        EventTopics(cast("Any", "faulty.rows"), lambda options: Source()),
        EventTopics(("tasks",), lambda options: Source()),
        EventTopics(("other.rows",), lambda options: Source()),
    ],
)
def test_event_feed_leaves_out_invalid_topics(tmp_path: Path, topics: object) -> None:
    app = _app(Faulty(topics=[topics]), tmp_path)
    sound = Tenuto(home=tmp_path)
    assert EventFeed(app.open, app.extension_registry).topics == EventFeed(app.open, sound.extension_registry).topics
    sources = ChangeDetector(extensions=app.extension_registry)._extension_sources
    assert "faulty" not in {each.extension.name for each in sources}
    assert _parts(app) == [("faulty", "event topics")]


@pytest.mark.parametrize("event", [Event("reset", None), Event("tasks", None), "faulty.rows"])
async def test_event_feed_leaves_out_invalid_events(url: str, tmp_path: Path, event: object) -> None:
    topics = EventTopics(("faulty.rows",), lambda options: Source(event))
    async with _app(Faulty(topics=[topics]), tmp_path, url) as app:
        database = await app.open()
        detector = ChangeDetector(extensions=app.extension_registry)
        assert event not in await detector.detect_changes(database, database.clock.now())
        assert _parts(app) == [("faulty", "event topics")]


@pytest.mark.parametrize(
    "metric",
    [
        Metric("rows", "gauge", "Rows."),
        Metric("tenuto_tasks", "gauge", "Rows."),
        Metric("tenuto_faulty_rows", "histogram", "Rows."),
        Metric("tenuto_faulty_rows", "gauge", "Rows.", ("kind",)),
        "tenuto_faulty_rows",
    ],
)
async def test_metrics_leave_out_invalid_ones(url: str, tmp_path: Path, metric: Any) -> None:
    async def load(connection: Connection) -> dict[str, Sequence[LabelledValue]]:
        return {getattr(metric, "name", ""): [((), 1.0)]}

    async with _app(Faulty(metrics=[MetricSource((metric,), load)]), tmp_path, url) as app:
        text = await app.status.metrics()
        assert "tenuto_database_up 1.0" in text
        assert "Rows." not in text
        assert _parts(app) == [("faulty", "metrics")]


def _list(name: Any) -> DefinitionList[Any]:
    return DefinitionList(name, lambda entry: entry, str, _nothing, _nothing)


@pytest.mark.parametrize("name", ["schedules", "Not A Name", None])
def test_registry_leaves_out_a_definition_list_with_an_invalid_name(tmp_path: Path, name: object) -> None:
    app = _app(Faulty(lists=[_list(name)]), tmp_path)
    assert app.extension_registry.definition_lists() == []
    assert _parts(app) == [("faulty", "definition lists")]


def test_registry_uses_the_first_of_two_definition_lists_with_the_same_name() -> None:
    class Second(Faulty):
        name = "second"

    registry = make_registry([Faulty(lists=[_list("items")]), Second(lists=[_list("items")])])
    assert [each.extension.name for each in registry.definition_lists()] == ["faulty"]
    (failure,) = registry.failures
    assert (failure.extension, failure.part) == ("second", "definition lists")


def test_registry_reports_an_audit_action_without_the_prefix(tmp_path: Path) -> None:
    app = _app(Faulty(actions=[AuditAction("task.cancel", "A task was cancelled.")]), tmp_path)
    app.extension_registry.try_all_parts()
    assert _parts(app) == [("faulty", "audit actions")]


def test_registry_names_an_extension_whose_module_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exiting_extension.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry_points = [EntryPoint("exiting", "exiting_extension:Extension", "tenuto.extensions")]
    monkeypatch.setattr("tenuto.extension.registry.find_entry_points", lambda: entry_points)
    registry = make_registry()
    assert registry.extensions == ()
    assert [(failure.extension, failure.problem) for failure in registry.failures] == [("exiting", "SystemExit: 3")]


def test_registry_names_an_extension_whose_method_exits() -> None:
    registry = make_registry([Faulty()])
    assert registry.collect("retention", lambda extension: sys.exit("no licence")) == []
    (failure,) = registry.failures
    assert failure.problem == "SystemExit: no licence"


def _create_nothing() -> Job[..., Any]:
    raise ImportError("no module")


@dataclass
class Arguments:
    """Arguments without a JSON schema."""

    on_done: Callable[[], None]


@dataclass
class GoodArguments:
    item: str


async def _run(arguments: object, ctx: Context) -> None: ...


class StepKinds(Extension):
    name = "kinds"

    def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
        return [
            StepKind("kinds.import", _create_nothing),
            StepKind.of("kinds.schema", Arguments, _run),
            StepKind.of("kinds.good", GoodArguments, _run),
        ]


def test_openapi_document_describes_the_step_kinds_of_extensions_that_work(tmp_path: Path) -> None:
    app = _app(StepKinds(), tmp_path)
    schemas = openapi_document(create_api(app))["components"]["schemas"]
    assert {"KindsGoodStep", "KindsGoodArguments", "SqlStep"} <= schemas.keys()
    assert not {"KindsImportStep", "KindsSchemaStep"} & schemas.keys()
    assert _parts(app) == [("kinds", "step kind kinds.import"), ("kinds", "step kind kinds.schema")]


async def test_step_kinds_route_lists_the_kinds_of_extensions_that_work(tmp_path: Path) -> None:
    app = _app(StepKinds(), tmp_path)
    request = SimpleNamespace(headers={})
    listed = await list_step_kinds(call=cast("Any", SimpleNamespace(app=app, request=request)))
    names = [kind.name for kind in listed.items]
    assert "kinds.good" in names
    assert not {"kinds.import", "kinds.schema"} & set(names)


@pytest.mark.parametrize("path", ["//host", "https://host", "/faulty/../keys", "/faulty/\\host", "/api/v1/keys", None])
@pytest.mark.parametrize("owns_names", [True, False])
def test_search_result_whose_path_is_no_page_of_the_dashboard_is_refused(path: Any, owns_names: bool) -> None:
    with raises_code("extension.contribution.invalid"):
        check_values(Faulty(), [FoundObject("item", "bolt", path)], FoundObject, owns_names=owns_names)
    found = FoundObject("item", "bolt", "/faulty/items/bolt")
    assert check_values(Faulty(), [found], FoundObject, owns_names=owns_names) == [found]
