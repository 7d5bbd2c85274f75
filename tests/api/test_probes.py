"""What those who watch are told: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenuto import PermanentFailure, RetryPolicy, Step, Tenuto, every
from tenuto.api.application import api, guarded
from tenuto.model.actors import Role
from tenuto.observability.process_metrics import counters
from tenuto.observability.prometheus import OF_THE_INSTALLATION, OF_THIS_PROCESS
from tenuto.postgres.database import Database
from tenuto.settings import load
from tenuto.store import workers
from tenuto.store.reports import metrics
from tests.races.servers import Server
from tests.support.waiting import eventually

Figures = dict[tuple[str, ...], float]


@asynccontextmanager
async def asking(app: Tenuto) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=guarded(app, api(app)), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def figures(text: str) -> Figures:
    """Every sample by its name and the values of its labels, in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def watched(url: str, tmp_path: Path) -> Tenuto:
    return Tenuto(settings=load(database=url, home=tmp_path, metrics_open=True))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are gathered whenever somebody asks."""
    monkeypatch.setattr("tenuto.observability.status.GATHER_EVERY", 0.0)
    monkeypatch.setattr("tenuto.observability.cached_query._SHARE", 0)


async def test_figures_follow_the_work(url: str, tmp_path: Path, at_once: None) -> None:
    """From asking to running to failing for good: what is counted is what has happened."""
    app = Tenuto(settings=load(database=url, home=tmp_path, metrics_open=True))
    hold = threading.Event()

    @app.job
    async def quick() -> None: ...

    @app.job(retry=RetryPolicy(max_retries=2, base_seconds=0))
    async def hopeless() -> None:
        raise ValueError("no")

    @app.job(queue="slow", timeout=20)
    def long() -> None:
        hold.wait(20)

    async with app, asking(app) as client:

        async def read() -> Figures:
            answer = await client.get("/metrics")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            return figures(answer.text)

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
        assert waiting[("tenuto_tasks", "scheduled")] == 1
        assert ("tenuto_services", "worker", "alive") not in waiting

        await app.enqueue(hopeless)
        await app.enqueue(long)
        async with app.worker(queues="default,slow", slots=5):
            running = await eventually(lambda: _when(read, _only_the_long_one_is_left))
            assert running[("tenuto_leases", "live", "slow")] == 1
            assert running[("tenuto_services", "worker", "alive")] == 1
            assert running[("tenuto_slots",)] == 5
            hold.set()
            await eventually(lambda: _when(read, lambda now: now[("tenuto_tasks", "running")] == 0))
        after = await read()  # when the worker has left: what is in the database is counted a moment later

        def grown(*key: str) -> float:
            return after.get(key, 0) - before.get(key, 0)

        assert grown("tenuto_claimed_tasks_total") == 7
        assert 0 < grown("tenuto_claims_total") <= 7
        assert grown("tenuto_attempts_ended_total", "", "completed") == 5
        assert grown("tenuto_attempts_ended_total", "error", "failed") == 2
        assert grown("tenuto_attempt_seconds_count") == 7
        assert grown("tenuto_attempt_seconds_bucket", "+Inf") == 7
        assert grown("tenuto_start_late_seconds_count") == 7
        assert grown("tenuto_attempt_seconds_sum") > 0
        assert grown("tenuto_outcomes_stale_total") == 0
        assert after[("tenuto_recent_attempts", "", "completed")] == 5
        assert after[("tenuto_recent_attempts", "error", "failed")] == 2
        assert after[("tenuto_recent_longest_seconds",)] > 0
        assert ("tenuto_leases", "live", "slow") not in after
    await app.close()


async def _when(read: Any, so: Any) -> Figures | None:
    now: Figures = await read()
    return now if so(now) else None


def _only_the_long_one_is_left(now: Figures) -> bool:
    """And what is for later: the hopeless one is not between its attempts either."""
    return [now[("tenuto_tasks", state)] for state in ("queued", "scheduled", "running")] == [0, 1, 1]


async def test_the_figures_tell_of_schedules_letters_repairs_and_what_is_held_back(
    at_once: None, app: Tenuto, db: Database
) -> None:
    @app.job
    async def broken() -> None:
        raise PermanentFailure("no")

    app.schedule("hourly", every("1h"), [Step.job(broken), Step.job(broken, name="again")])
    app.manifest("wanted", broken, on_demand=True)
    await app.schedules.deploy()
    await app.manifests.deploy()
    await app.schedules.run("hourly")
    await app.bulk_enqueue("wanted", [{}])
    await db.all("UPDATE tenuto.schedules SET next_run_at = now() - interval '90 s', planned = true")
    await db.transaction(lambda connection: workers.count_repair(connection, "lease_expired", 3))
    before = figures(await app.observing.metrics())
    assert before[("tenuto_executions_in_progress",)] == 1
    assert before[("tenuto_tasks", "waiting")] == 1
    assert before[("tenuto_due", "schedule")] == 1
    assert before[("tenuto_due_late_seconds", "schedule")] >= 90
    assert before[("tenuto_repairs_total", "lease_expired")] == 3

    said = await app.observing.readiness()
    assert not said.ready
    assert [check.name for check in said.checks if not check.ok] == ["scheduler"]
    async with app.worker(slots=2):
        await eventually(lambda: _when(_read_of(app), lambda now: now[("tenuto_dead_letters_open",)] == 1))
    async with app.scheduler():
        await eventually(lambda: _when(_read_of(app), lambda now: now[("tenuto_due", "schedule")] == 0))
    fired = figures(await app.observing.metrics())  # when the scheduler has left: it counts a moment later
    assert fired[("tenuto_schedules_fired_total",)] > before[("tenuto_schedules_fired_total",)]
    batch = await app.bulk_enqueue("wanted", [{}, {}])
    await app.batches.pause(batch.id)
    held = figures(await app.observing.metrics())
    assert held[("tenuto_tasks", "waiting")] == 2 + 1  # of the execution that has just begun


def _read_of(app: Tenuto) -> Any:
    async def read() -> Figures:
        return figures(await app.observing.metrics())

    return read


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[Database]:
    """Whom the apps made from here on ask for figures, once for each time; they are never too old."""
    monkeypatch.setattr("tenuto.observability.status.GATHER_EVERY", 3600.0)
    asked: list[Database] = []
    gather = metrics.gather

    async def counted(database: Database) -> Any:
        asked.append(database)
        return await gather(database)

    monkeypatch.setattr(metrics, "gather", counted)
    return asked


async def test_many_scrapes_cost_one_gathering(gathered: list[Database], watched: Tenuto) -> None:
    async with watched, asking(watched) as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert (await client.get("/metrics")).status_code == 200
    assert len(gathered) == 1


async def test_every_figure_there_is_is_told_and_none_that_is_not_in_the_table(at_once: None, watched: Tenuto) -> None:
    async with watched:
        families = {family.name for family in text_string_to_metric_families(await watched.observing.metrics())}
    known = {metric.name.removesuffix("_total") for metric in OF_THIS_PROCESS + OF_THE_INSTALLATION}
    assert families == known


async def test_figures_need_a_viewers_key_unless_they_are_open(app: Tenuto) -> None:
    async with asking(app) as client:
        assert (await client.get("/healthz")).text == "ok\n"
        assert (await client.get("/readyz")).status_code == 200
        refused = await client.get("/metrics")
        assert refused.status_code == 401
        assert refused.headers["content-type"] == "application/problem+json"
        _, text = await app.keys.make("prometheus", Role.VIEWER)
        key = {"Authorization": f"Bearer {text}"}
        assert (await client.get("/metrics", headers=key)).status_code == 200


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


async def test_a_service_whose_database_is_gone_lives_and_is_not_ready_until_it_is_back(
    own_server: Server, tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.observability.status.READINESS_EVERY", 0.0)
    app = Tenuto(settings=load(database=own_server.url, home=tmp_path, metrics_open=True, connect_seconds=1))
    async with asking(app) as client:

        async def ready() -> dict[str, Any]:
            answer = await client.get("/readyz")
            told: dict[str, Any] = answer.json()
            assert answer.status_code == (200 if told["ready"] else 503)
            return told

        no_schema = await eventually(lambda: _when(ready, lambda told: told["checks"][0]["ok"]))
        assert (no_schema["ready"], no_schema["checks"][-1]["name"]) == (False, "schema")
        await own_server.make_schema()
        told = await eventually(lambda: _when(ready, lambda told: told["ready"]))
        assert [check["name"] for check in told["checks"]] == ["database", "schema", "claims", "scheduler"]

        await own_server.crash()
        told = await ready()
        assert told == {"ready": False, "checks": [{"name": "database", "ok": False, "detail": "does not answer"}]}
        assert (await client.get("/healthz")).status_code == 200
        gone = await client.get("/metrics")
        assert gone.status_code == 200
        assert figures(gone.text)[("tenuto_database_up",)] == 0
        assert not [name for name, *_ in figures(gone.text) if name.startswith("tenuto_queue")]

        await own_server.start()
        await eventually(lambda: _when(ready, lambda told: told["ready"]), timeout=20)
        async with (await app.open()).connection() as connection:
            await connection.execute("DELETE FROM tenuto.migrations WHERE number > 1")
        told = await ready()
        (wrong,) = [check for check in told["checks"] if not check["ok"]]
        assert wrong["name"] == "schema"
        assert "the schema is at 1" in wrong["detail"]
    await app.close()


async def test_a_worker_that_gets_no_answers_makes_its_process_unready(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app:
        async with app.worker(slots=1):
            await eventually(lambda: counters.polled_at is not None)
            (claims,) = [check for check in (await app.observing.readiness()).checks if check.name == "claims"]
            assert (claims.ok, "last looked for work" in claims.detail) == (True, True)
        assert counters.polled_at is None
        monkeypatch.setattr(counters, "polled_at", counters.polled_at or -1e9)
        monkeypatch.setattr("tenuto.observability.cached_query.steady", lambda: 1e12)
        said = await app.observing.readiness()
        assert [check.name for check in said.checks if not check.ok] == ["claims"]


async def test_workers_nobody_hears_of_make_the_installation_unready(app: Tenuto, db: Database) -> None:
    async with app, app.worker(slots=1):
        pass
    await db.all("UPDATE tenuto.workers SET ended_at = NULL, seen_at = now() - interval '5 min'")
    signs = await metrics.signs(db)
    assert (signs.services[0]["alive"], signs.services[0]["silent"]) == (0, 1)
    said = await app.observing.readiness()
    assert [check.name for check in said.checks if not check.ok] == ["claims"]
    await app.close()
