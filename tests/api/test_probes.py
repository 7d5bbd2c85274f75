"""Probes and metrics of the web service: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenuto import PermanentFailure, RetryPolicy, Step, Tenuto, every
from tenuto.api.application import add_middleware, create_api
from tenuto.errors import Unavailable
from tenuto.extension import Extension, ExtensionServices, ProcessRole, Service
from tenuto.logs import Log
from tenuto.model.access.actors import Role
from tenuto.observability.external_event_metrics import EVENT_METRICS
from tenuto.observability.metrics_by_name import METRICS_BY_NAME
from tenuto.observability.process_metrics import process_metrics
from tenuto.observability.prometheus import DATABASE_METRICS, PROCESS_METRICS
from tenuto.observability.status import ReadinessCheck
from tenuto.postgres.database import Database
from tenuto.service.polling_loop import PollingLoop
from tenuto.service.service_protocol import run_services
from tenuto.settings import load_settings
from tenuto.store.reports import metrics
from tenuto.store.work import workers
from tests.races.disposable_server import DisposableServer
from tests.support.waiting import eventually

Samples = dict[tuple[str, ...], float]


@asynccontextmanager
async def open_client(app: Tenuto) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=add_middleware(app, create_api(app)), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def parse_samples(text: str) -> Samples:
    """Return every sample by its name and the values of its labels, sorted by label name."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def open_metrics_app(url: str, tmp_path: Path) -> Tenuto:
    return Tenuto(settings=load_settings(database=url, home=tmp_path, metrics_public=True))


@pytest.fixture
def uncached_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the metrics for each request."""
    monkeypatch.setattr("tenuto.observability.status.METRICS_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr("tenuto.observability.cached_query._MIN_INTERVAL_FACTOR", 0)


async def test_metrics_follow_tasks_from_enqueue_to_failure(url: str, tmp_path: Path, uncached_metrics: None) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path, metrics_public=True))
    hold = threading.Event()

    @app.job
    async def quick() -> None: ...

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0))
    async def hopeless() -> None:
        raise ValueError("no")

    @app.job(queue="slow", timeout=20)
    def long() -> None:
        hold.wait(20)

    async with app, open_client(app) as client:

        async def read() -> Samples:
            response = await client.get("/metrics")
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            return parse_samples(response.text)

        before = await read()
        assert before[("tenuto_database_up",)] == 1
        assert before[("tenuto_tasks", "queued")] == 0
        for _ in range(3):
            await app.enqueue(quick)
        await app.enqueue(quick.using(limit_key="one", limit=1, queue="slow"))
        await app.enqueue(quick.using(delay=3600))
        waiting = await read()
        assert waiting[("tenuto_queue_waiting", "default")] == 3
        assert waiting[("tenuto_queue_waiting", "slow")] == 1
        assert waiting[("tenuto_queue_oldest_seconds", "default")] > 0
        assert waiting[("tenuto_tasks", "queued")] == 4
        assert waiting[("tenuto_job_tasks", "quick", "default", "queued")] == 3
        assert waiting[("tenuto_job_tasks", "quick", "slow", "queued")] == 1
        assert waiting[("tenuto_tasks", "scheduled")] == 1
        assert ("tenuto_services", "worker", "alive") not in waiting

        await app.enqueue(hopeless)
        await app.enqueue(long)
        async with app.worker(queues="default,slow", slots=5):
            running = await eventually(lambda: _sample_if(read, _only_long_task_is_left))
            assert running[("tenuto_leases", "live", "slow")] == 1
            assert running[("tenuto_services", "worker", "alive")] == 1
            assert running[("tenuto_slots",)] == 5
            assert running[("tenuto_job_tasks", "long", "slow", "running")] == 1
            hold.set()
            await eventually(lambda: _sample_if(read, lambda now: now[("tenuto_tasks", "running")] == 0))
        after = await read()  # after the worker: it counts shortly after its commits

        def growth(*key: str) -> float:
            return after.get(key, 0) - before.get(key, 0)

        assert growth("tenuto_claimed_tasks_total") == 7
        assert 0 < growth("tenuto_claims_total") <= 7
        assert growth("tenuto_attempts_ended_total", "quick", "default", "", "completed") == 3
        assert growth("tenuto_attempts_ended_total", "quick", "slow", "", "completed") == 1
        assert growth("tenuto_attempts_ended_total", "hopeless", "default", "error", "failed") == 2
        assert growth("tenuto_attempt_seconds_count", "quick", "default") == 3
        assert growth("tenuto_attempt_seconds_bucket", "+Inf", "hopeless", "default") == 2
        assert growth("tenuto_start_delay_seconds_count", "long", "slow") == 1
        assert growth("tenuto_attempt_seconds_sum", "long", "slow") > 0
        assert growth("tenuto_outcomes_stale_total") == 0
        assert after[("tenuto_recent_attempts", "", "completed")] == 5
        assert after[("tenuto_recent_attempts", "error", "failed")] == 2
        assert after[("tenuto_recent_max_run_seconds",)] > 0
        assert ("tenuto_leases", "live", "slow") not in after
    await app.close()


async def _sample_if(read: Any, condition: Any) -> Samples | None:
    now: Samples = await read()
    return now if condition(now) else None


def _only_long_task_is_left(now: Samples) -> bool:
    """Besides the delayed task; the failing task is not between its attempts."""
    return [now[("tenuto_tasks", state)] for state in ("queued", "scheduled", "running")] == [0, 1, 1]


async def test_metrics_include_schedules_dead_letters_repairs_and_held_tasks(
    uncached_metrics: None, app: Tenuto, db: Database
) -> None:
    @app.job
    async def broken() -> None:
        raise PermanentFailure("no")

    app.schedule("hourly", every("1h"), [Step.job(broken), Step.job(broken, name="again")])
    app.manifest("on-demand", broken, on_demand=True)
    await app.schedules.deploy()
    await app.manifests.deploy()
    await app.schedules.run("hourly")
    await app.bulk_enqueue("on-demand", [{}])
    await db.fetch_all("UPDATE tenuto.schedules SET next_run_at = now() - interval '90 s', planned = true")
    await db.transaction(lambda connection: workers.count_repair(connection, "lease_expired", 3))
    before = parse_samples(await app.status.metrics())
    assert before[("tenuto_executions_in_progress",)] == 1
    assert before[("tenuto_tasks", "waiting")] == 1
    assert before[("tenuto_due", "schedule")] == 1
    assert before[("tenuto_due_delay_seconds", "schedule")] >= 90
    assert before[("tenuto_repairs_total", "lease_expired")] == 3

    readiness = await app.status.readiness()
    assert not readiness.ready
    assert [check.name for check in readiness.checks if not check.ok] == ["scheduler"]
    async with app.worker(slots=2):
        await eventually(lambda: _sample_if(_metrics_reader(app), lambda now: now[("tenuto_dead_letters_open",)] == 1))
    async with app.scheduler():
        await eventually(lambda: _sample_if(_metrics_reader(app), lambda now: now[("tenuto_due", "schedule")] == 0))
    fired = parse_samples(await app.status.metrics())  # after the scheduler: it counts shortly after its commits
    schedule = ("tenuto_schedules_fired_total", "hourly")
    assert fired[schedule] > before.get(schedule, 0)
    assert before[("tenuto_schedule_executions_in_progress", "hourly")] == 1
    assert fired[("tenuto_schedule_last_run_failed", "hourly")] == 1
    assert fired[("tenuto_schedule_recent_executions", "hourly", "failed")] == 1
    assert ("tenuto_schedule_last_success_age_seconds", "hourly") not in fired
    batch = await app.bulk_enqueue("on-demand", [{}, {}])
    await app.batches.pause(batch.id)
    held = parse_samples(await app.status.metrics())
    assert held[("tenuto_tasks", "waiting")] == 2 + 1  # of the new execution


def _metrics_reader(app: Tenuto) -> Any:
    async def read() -> Samples:
        return parse_samples(await app.status.metrics())

    return read


@pytest.fixture
def metric_queries(monkeypatch: pytest.MonkeyPatch) -> list[Database]:
    """Return a list of the databases queried for metrics; cached metrics never expire."""
    monkeypatch.setattr("tenuto.observability.status.METRICS_INTERVAL_SECONDS", 3600.0)
    databases: list[Database] = []
    load = metrics.load_metrics

    async def counted(database: Database) -> Any:
        databases.append(database)
        return await load(database)

    monkeypatch.setattr(metrics, "load_metrics", counted)
    return databases


async def test_concurrent_scrapes_share_one_metrics_query(
    metric_queries: list[Database], open_metrics_app: Tenuto
) -> None:
    async with open_metrics_app, open_client(open_metrics_app) as client:
        responses = await asyncio.gather(*(client.get("/metrics") for _ in range(50)))
        assert {response.status_code for response in responses} == {200}
        assert (await client.get("/metrics")).status_code == 200
    assert len(metric_queries) == 1


async def test_metrics_are_exactly_those_of_the_tables(uncached_metrics: None, open_metrics_app: Tenuto) -> None:
    async with open_metrics_app:
        families = {family.name for family in text_string_to_metric_families(await open_metrics_app.status.metrics())}
    tables = PROCESS_METRICS + DATABASE_METRICS + METRICS_BY_NAME + EVENT_METRICS
    known = {metric.name.removesuffix("_total") for metric in tables}
    assert families == known


async def test_metrics_require_a_viewer_key_unless_open(app: Tenuto) -> None:
    async with open_client(app) as client:
        assert (await client.get("/healthz")).text == "ok\n"
        assert (await client.get("/readyz")).status_code == 200
        refused = await client.get("/metrics")
        assert refused.status_code == 401
        assert refused.headers["content-type"] == "application/problem+json"
        _, text = await app.api_keys.create("prometheus", Role.VIEWER)
        key = {"Authorization": f"Bearer {text}"}
        assert (await client.get("/metrics", headers=key)).status_code == 200


@pytest.fixture
def own_database_server() -> Iterator[DisposableServer]:
    server = DisposableServer()
    yield server
    server.close()


async def test_web_service_without_database_is_alive_and_not_ready(
    own_database_server: DisposableServer, tmp_path: Path, uncached_metrics: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.observability.status.READINESS_INTERVAL_SECONDS", 0.0)
    app = Tenuto(
        settings=load_settings(database=own_database_server.url, home=tmp_path, metrics_public=True, connect_seconds=1)
    )
    async with open_client(app) as client:

        async def ready() -> dict[str, Any]:
            response = await client.get("/readyz")
            body: dict[str, Any] = response.json()
            assert response.status_code == (200 if body["ready"] else 503)
            return body

        no_schema = await eventually(lambda: _sample_if(ready, lambda body: body["checks"][0]["ok"]))
        assert (no_schema["ready"], no_schema["checks"][-1]["name"]) == (False, "schema")
        await own_database_server.migrate()
        body = await eventually(lambda: _sample_if(ready, lambda body: body["ready"]))
        assert [check["name"] for check in body["checks"]] == [
            "database", "schema", "claims", "scheduler", "services",
        ]  # fmt: skip

        await own_database_server.crash()
        body = await ready()
        assert not body["ready"]
        assert [(check["name"], check["ok"]) for check in body["checks"]] == [("database", False)]
        assert (await client.get("/healthz")).status_code == 200
        metrics_response = await client.get("/metrics")
        assert metrics_response.status_code == 200
        assert parse_samples(metrics_response.text)[("tenuto_database_up",)] == 0
        assert not [name for name, *_ in parse_samples(metrics_response.text) if name.startswith("tenuto_queue")]

        await own_database_server.start()
        await eventually(lambda: _sample_if(ready, lambda body: body["ready"]), timeout=20)
        async with (await app.open()).connection() as connection:
            await connection.execute("DELETE FROM tenuto.migrations WHERE number > 1")
        body = await ready()
        (wrong,) = [check for check in body["checks"] if not check["ok"]]
        assert wrong["name"] == "schema"
    await app.close()


async def test_process_of_the_previous_release_stays_ready_after_the_migration_of_an_upgrade(app: Tenuto) -> None:
    async with app, (await app.open()).connection() as connection:
        await connection.execute(
            "INSERT INTO tenuto.migrations (number, name, checksum)"
            " SELECT max(number) + 1, 'of_the_next_release', '' FROM tenuto.migrations WHERE component = 'tenuto'"
        )
        readiness = await app.status.readiness()
        assert readiness.ready, readiness
        (schema,) = [check for check in readiness.checks if check.name == "schema"]
        assert "knows only" in schema.detail


async def test_worker_without_recent_claims_makes_its_process_unready(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app:
        async with app.worker(slots=1):
            await eventually(lambda: process_metrics.polled_at is not None)
            (claims,) = [check for check in (await app.status.readiness()).checks if check.name == "claims"]
            assert claims.ok
        assert process_metrics.polled_at is None
        monkeypatch.setattr(process_metrics, "polled_at", process_metrics.polled_at or -1e9)
        monkeypatch.setattr("tenuto.observability.cached_query.monotonic_seconds", lambda: 1e12)
        readiness = await app.status.readiness()
        assert [check.name for check in readiness.checks if not check.ok] == ["claims"]


async def test_silent_workers_make_the_installation_unready(app: Tenuto, db: Database) -> None:
    async with app, app.worker(slots=1):
        pass
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = NULL, seen_at = now() - interval '5 min'")
    signs = await metrics.load_liveness_signs(db)
    assert (signs.services[0].alive_count, signs.services[0].dead_count) == (0, 1)
    readiness = await app.status.readiness()
    assert [check.name for check in readiness.checks if not check.ok] == ["claims"]
    await app.close()


async def test_readiness_does_not_depend_on_excluded_checks(app: Tenuto, db: Database) -> None:
    async with app, app.worker(slots=1):
        pass
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = NULL, seen_at = now() - interval '5 min'")
    async with open_client(app) as client:
        assert (await client.get("/readyz")).status_code == 503
        response = await client.get("/readyz?exclude=scheduler&exclude=claims")
        assert (response.status_code, response.json()["ready"]) == (200, True)
        assert [check["name"] for check in response.json()["checks"] if not check["ok"]] == ["claims"]
        assert (await client.get("/readyz?exclude=scheduler")).status_code == 503
        assert (await client.get("/readyz?exclude=workers")).status_code == 422
    await app.close()


async def test_failing_service_makes_its_process_unready_until_a_cycle_succeeds(app: Tenuto) -> None:
    failing = asyncio.Event()
    failing.set()

    async def run_cycle() -> float:
        if failing.is_set():
            raise Unavailable("the disk is full", code="test.disk_full")
        return 60.0

    async def services_check() -> ReadinessCheck:
        return next(check for check in (await app.status.readiness()).checks if check.name == "services")

    async def has_detail(detail: str) -> bool:
        return (await services_check()).detail == detail

    async with app, run_services([PollingLoop("sweep", run_cycle, Log("tenuto.test"))]):
        await eventually(lambda: has_detail("failing, see the log: sweep"))
        assert not (await app.status.readiness()).ready
        failing.clear()
        await eventually(lambda: has_detail("running"))
        assert (await services_check()).ok


async def test_process_is_ready_without_a_service_of_an_extension(url: str, tmp_path: Path) -> None:
    class Idle:
        name = "stocktaking"
        is_ready = False

        async def start(self) -> None: ...
        async def stop(self) -> None: ...

    class Stock(Extension):
        name = "stock"

        def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
            return [Idle()]

    async with (
        Tenuto(url, home=tmp_path, extensions=[Stock()]) as app,
        run_services(app.extension_registry.background_services(ProcessRole.WORKER)),
    ):
        readiness = await app.status.readiness()
        assert readiness.ready
        assert readiness.checks[-1].detail == "failing, see the log: stocktaking (of an extension)"
