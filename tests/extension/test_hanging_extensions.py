"""An extension that does not answer is cancelled and named; the core goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.extension import (
    EventTopics,
    Extension,
    ExtensionServices,
    Metric,
    MetricSource,
    ProcessRole,
    Retention,
    Service,
)
from tenuto.extension.registry import ExtensionRegistry
from tenuto.maintenance.housekeeping import RETENTION, Housekeeping
from tenuto.observability.event_feed import ChangeDetector
from tenuto.postgres.database import Database
from tests.support.extension_registries import make_registry

TEST_TIMEOUT_SECONDS = 20.0


async def _hang(*_: object) -> Any:
    await asyncio.Event().wait()


async def _time_out() -> None:
    raise TimeoutError("the device is off")


class HangingService:
    name = "hanging"
    is_ready = False

    async def start(self) -> None:
        await _hang()

    async def stop(self) -> None:
        await _hang()


class HangingSource:
    def __init__(self) -> None:
        self.load_count = 0

    async def load(self, database: Database, since: datetime) -> Any:
        self.load_count += 1
        await _hang()

    def detect_changes(self, loaded: Any) -> list[Any]:
        return []


class Hanging(Extension):
    """All of its asynchronous code waits forever."""

    name = "hanging"

    def __init__(self) -> None:
        self.source = HangingSource()

    def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
        return [HangingService()]

    def retention(self) -> Sequence[Retention]:
        return [Retention("rows", _hang)]

    def event_topics(self) -> Sequence[EventTopics]:
        return [EventTopics(("hanging.rows",), lambda options: self.source)]

    def metrics(self) -> Sequence[MetricSource]:
        return [MetricSource((Metric("tenuto_hanging_rows", "gauge", "Rows."),), _hang)]


@pytest.fixture
async def app(url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    async with Tenuto(url, home=tmp_path, extensions=[Hanging()]) as app:
        app.extension_registry.timeout_seconds = 0.2
        yield app


def _problems(registry: ExtensionRegistry) -> dict[str, str]:
    return {failure.part: failure.problem for failure in registry.failures}


@pytest.mark.parametrize("method", ["start", "stop"])
async def test_hanging_service_does_not_stop_the_process(method: str) -> None:
    registry = make_registry([Hanging()], create_services=lambda _: None, timeout_seconds=0.05)
    (service,) = registry.background_services(ProcessRole.WORKER)
    async with asyncio.timeout(TEST_TIMEOUT_SECONDS):
        await getattr(service, method)()
    assert _problems(registry) == {"background service hanging": "no answer within 0.05 seconds"}


async def test_worker_runs_tasks_beside_a_hanging_service(app: Tenuto) -> None:
    @app.job
    async def double(n: int) -> int:
        return 2 * n

    async with asyncio.timeout(TEST_TIMEOUT_SECONDS), app.worker():
        done = await app.wait(await app.enqueue(double, 21), timeout=15)
        assert done.output == 42


async def test_housekeeping_deletes_other_records_when_a_batch_hangs(app: Tenuto) -> None:
    database = await app.open()
    deleted: list[str] = []

    async def delete_batch(*_: object) -> int:
        deleted.append("last")
        return 0

    retention = [*app.extension_registry.retention(), *RETENTION, Retention("last", delete_batch)]
    housekeeping = Housekeeping(database, database.clock, app.settings, retention=retention)
    async with asyncio.timeout(TEST_TIMEOUT_SECONDS):
        await housekeeping.apply_retention(database.clock.now())
    assert deleted == ["last"]
    assert "no answer within 0.2 seconds" in housekeeping._failures["hanging: rows"]


async def test_event_feed_skips_a_hanging_source(app: Tenuto) -> None:
    database = await app.open()
    detector = ChangeDetector(extensions=app.extension_registry)
    async with asyncio.timeout(TEST_TIMEOUT_SECONDS):
        for _ in range(3):
            await detector.detect_changes(database, database.clock.now())
    (extension,) = app.extension_registry.extensions
    assert isinstance(extension, Hanging)
    assert extension.source.load_count == 1
    assert _problems(app.extension_registry) == {"event topics": "no answer within 0.2 seconds"}


async def test_metrics_leave_out_a_hanging_source(app: Tenuto) -> None:
    async with asyncio.timeout(TEST_TIMEOUT_SECONDS):
        assert "tenuto_database_up 1.0" in await app.status.metrics()
    assert _problems(app.extension_registry) == {"metrics": "no answer within 0.2 seconds"}


async def test_timeout_of_the_extension_itself_keeps_its_text() -> None:
    extension = Hanging()
    registry = make_registry([extension])
    async with registry.isolate_async(extension, "metrics"):
        await _time_out()
    assert _problems(registry) == {"metrics": "TimeoutError: the device is off"}
