"""A broken extension is named by the doctor and does not stop services, metrics, events or housekeeping."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.errors import Invalid
from tenuto.extension import (
    DoctorCheck,
    EventTopics,
    Extension,
    ExtensionServices,
    Finding,
    LabelledValue,
    Metric,
    MetricSource,
    ProcessRole,
    Retention,
    Service,
    StepDefaults,
    StepKind,
)
from tenuto.jobs.context import Context
from tenuto.maintenance.housekeeping import RETENTION, Housekeeping
from tenuto.model.doctor_findings import Severity
from tenuto.observability.event_feed import ChangeDetector
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Connection, Database
from tests.support.errors import raises_code


class FailingService:
    name = "failing"
    is_ready = False

    async def start(self) -> None:
        raise OSError("no such device")

    async def stop(self) -> None:
        raise OSError("no such device")


class FailingSource:
    async def load(self, database: Database, since: datetime) -> Any:
        raise KeyError("items")

    def detect_changes(self, loaded: Any) -> list[Any]:
        return []


async def _fail(*_: object) -> Any:
    raise ZeroDivisionError("division by zero")


def _derive(arguments: object) -> StepDefaults:
    raise LookupError("no queue")


class Broken(Extension):
    """All of its code fails when it is used."""

    name = "broken"

    def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
        return [FailingService()]

    def retention(self) -> Sequence[Retention]:
        return [Retention("rows", _fail)]

    def doctor_checks(self) -> Sequence[DoctorCheck]:
        return [DoctorCheck("broken_check", _fail)]

    def event_topics(self) -> Sequence[EventTopics]:
        return [EventTopics(("broken.rows",), lambda options: FailingSource())]

    def metrics(self) -> Sequence[MetricSource]:
        async def load(connection: Connection) -> dict[str, Sequence[LabelledValue]]:
            await connection.fetch("SELECT * FROM tenuto_broken.nothing")
            return {}

        return [MetricSource((Metric("tenuto_broken_rows", "gauge", "Rows."),), load)]

    def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
        def create(ctx: Context) -> None: ...

        from tenuto.jobs.registry import Job, TaskOptions
        from tenuto.model.definitions.policies import TaskPolicy

        job = Job(create, "broken.step", TaskPolicy(), TaskOptions(), isolated=False)
        return [
            StepKind("broken.derive", lambda: job, derive=_derive),
            StepKind("broken.check", lambda: job, check=_fail),
            StepKind("sql", lambda: job),
        ]


class AllHooksFail(Extension):
    name = "hopeless"

    def __getattribute__(self, name: str) -> Any:
        if name in ("name", "requires_tenuto") or name.startswith("__"):
            return super().__getattribute__(name)
        raise RuntimeError(f"{name} is broken")


@pytest.fixture(params=[Broken, AllHooksFail])
async def app(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    async with Tenuto(url, home=tmp_path, extensions=[request.param()]) as app:
        yield app


async def test_services_start_and_run_tasks(app: Tenuto) -> None:
    @app.job
    async def double(n: int) -> int:
        return 2 * n

    async with app.worker(), app.scheduler():
        done = await app.wait(await app.enqueue(double, 21), timeout=30)
        assert done.output == 42
    assert "background service" in " ".join(failure.part for failure in app.extension_registry.failures)


async def test_doctor_names_the_extension_and_runs_all_other_checks(app: Tenuto) -> None:
    (extension,) = app.extension_registry.extensions
    findings = await app.doctor()
    named = [finding for finding in findings if extension.name in f"{finding.name} {finding.title}"]
    assert named
    assert all(finding.severity is Severity.WARNING and finding.details and finding.remedy for finding in named)
    assert {"server", "schema", "audit", "partitions"} <= {finding.name for finding in findings}
    assert not any(finding.severity is Severity.PROBLEM for finding in findings)


async def test_doctor_names_an_extension_that_is_not_loaded(url: str, tmp_path: Path) -> None:
    class Newer(Extension):
        name = "newer"
        requires_tenuto = ">=99"

    async with Tenuto(url, home=tmp_path, extensions=[Newer()]) as app:
        found: dict[str, Finding] = {finding.name: finding for finding in await app.doctor()}
        assert found["extension newer"].title == "the extension newer is not loaded"
        assert "install a version" in (found["extension newer"].remedy or "")


async def test_metrics_events_and_retention_of_the_core_go_on(app: Tenuto) -> None:
    database = await app.open()
    assert "tenuto_database_up 1.0" in await app.status.metrics()
    detector = ChangeDetector(extensions=app.extension_registry)
    assert [event.topic for event in await detector.detect_changes(database, database.clock.now())] != []
    retention = [*app.extension_registry.retention(), *RETENTION]
    housekeeping = Housekeeping(database, database.clock, app.settings, retention=retention)
    assert await housekeeping.apply_retention(database.clock.now())


@pytest.mark.parametrize("kind", ["broken.derive", "broken.check"])
async def test_failing_step_kind_is_named(url: str, tmp_path: Path, kind: str) -> None:
    async with Tenuto(url, home=tmp_path, extensions=[Broken()]) as app:
        with raises_code("step.kind.failed", Invalid) as error:
            await app.schedules.create(schedule_definition("s", manual(), [Step.of(kind)]))
        assert kind in error.value.message
        (failure,) = app.extension_registry.failures
        assert failure.problem == "kind 'sql' already has a handler"
