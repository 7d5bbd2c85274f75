"""Services under load on replicating servers, and the audit of what they did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import httpx2 as httpx

from tenuto import Step, Tenuto, every
from tenuto.errors import Unavailable
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings
from tests.failover.process_launcher import PORT
from tests.races import jobs
from tests.races.effect_ledger import Ledger, overlaps
from tests.races.invariants import violated_invariants
from tests.races.processes import ProcessPool, WorkerProcess, Workers
from tests.races.table_queries import Observer
from tests.support.replication import free_port
from tests.support.waiting import eventually

SCHEDULE_SECONDS = 1
PYTHON, HTTP = _PATHS = ("Python", "HTTP")
"""How tasks are enqueued: by an app, and through the web service."""
FIRST_REQUEST = 1_000_000
"""Number of the first HTTP request, which its task returns."""


class Load:
    """Two workers, a scheduler and a web service; tasks are enqueued from Python and over HTTP without a pause."""

    def __init__(self, app: Tenuto, workers: Workers, ledger: Ledger, key: str, *, behind_pooler: bool) -> None:
        self.app = app
        self.workers = workers
        self.ledger = ledger
        self._key = key
        self._environment = {"TENUTO_BEHIND_POOLER": "1"} if behind_pooler else {}
        self.web_port = free_port()
        self.web: WorkerProcess
        self.accepted: set[UUID] = set()
        self._accepted_at = dict.fromkeys(_PATHS, time.monotonic())
        self._refused_counts = dict.fromkeys(_PATHS, 0)
        self.requested_count = 0
        """HTTP requests that were accepted in the end."""
        self.repeated_count = 0
        """Those of them that were refused, or not answered, at first."""
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for number in range(2):
            self.workers.start(f"worker-{number}", environment=self._environment)
        self.workers.start("scheduler", do="schedule", environment=self._environment)
        self.web = self.start_web("web", self.web_port)
        for process in self.workers.started[:2]:
            await process.wait_until_ready()
        await eventually(lambda: self.web.has_logged("web service started"), timeout=30, what="web service is ready")
        self._tasks = [asyncio.create_task(self._enqueue()), asyncio.create_task(self._enqueue_over_http())]

    def start_web(self, name: str, port: int) -> WorkerProcess:
        return self.workers.start(name, do="web", environment={PORT: str(port), **self._environment})

    async def stop(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    def _accept(self, task: UUID, path: str) -> None:
        self.accepted.add(task)
        self._accepted_at[path] = time.monotonic()

    async def _enqueue(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            try:
                self._accept((await self.app.enqueue(jobs.touch, number, seconds=0.01)).id, PYTHON)
            except Unavailable:
                self._refused_counts[PYTHON] += 1
            await asyncio.sleep(0.005)

    async def _enqueue_over_http(self) -> None:
        exec_at = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {self._key}"}, timeout=30.0) as client:
            while not self._over.is_set():
                number = FIRST_REQUEST + self.requested_count
                body = {"exec_at": exec_at, "prompt_type": jobs.touch.name, "payload": {"number": number}}
                key = str(uuid4())
                was_refused = False
                while not await self._post(client, body, key):  # repeated with its key until it is accepted
                    was_refused = True
                    self._refused_counts[HTTP] += 1
                    if self._over.is_set():
                        return
                    await asyncio.sleep(0.05)
                self.repeated_count += was_refused
                await asyncio.sleep(0.02)

    async def _post(self, client: httpx.AsyncClient, body: Mapping[str, object], key: str) -> bool:
        """Send a request; return whether it was accepted. A repeated one is accepted as the first one."""
        url = f"http://127.0.0.1:{self.web_port}/api/schedule"
        try:
            answer = await client.post(url, json=body, headers={"Idempotency-Key": key})
        except httpx.HTTPError:
            return False
        if answer.status_code != 202:
            assert answer.status_code in (409, 503), answer.text
            return False
        self.requested_count += 1
        self._accept(UUID(answer.json()["transaction_id"]), HTTP)
        return True

    async def until_busy(self, *, more_effects: int = 50) -> None:
        """Wait until the workers have done more and the callers got more accepted."""
        begun, accepted = self.ledger.begun_count(), len(self.accepted)
        await eventually(
            lambda: self.ledger.begun_count() > begun + more_effects and len(self.accepted) > accepted + more_effects,
            timeout=60,
            what="services are busy",
        )

    async def until_refused(self) -> None:
        """Wait until callers of both paths are refused: the outage is longer than the retries of a statement."""
        before = dict(self._refused_counts)
        await eventually(
            lambda: all(self._refused_counts[path] > before[path] for path in _PATHS),
            timeout=30,
            what="callers are refused",
        )

    @property
    def refused_count(self) -> int:
        return sum(self._refused_counts.values())

    async def seconds_until_resumed(self, since: float) -> float:
        """Return how long after ``since`` both paths had accepted an enqueue and workers had started further tasks."""
        begun = self.ledger.begun_count()
        await eventually(
            lambda: min(self._accepted_at.values()) > since and self.ledger.begun_count() > begun + 5,
            timeout=60,
            what="enqueues are accepted and tasks run",
        )
        return time.monotonic() - since


@asynccontextmanager
async def services_under_load(
    url: str, process_pool: ProcessPool, folder: Path, ledger: Ledger, *, behind_pooler: bool = False
) -> AsyncIterator[Load]:
    """Run the services for the block, with a schedule that is due every second."""
    workers = Workers(process_pool, url, folder, ledger.path)
    app = Tenuto(settings=load_settings(database=url, home=folder, behind_pooler=behind_pooler))

    @app.job(name=jobs.touch.name)
    async def touch(number: int) -> None:
        """Run by the workers, which have the job of this name."""

    load: Load | None = None
    try:
        await app.open()
        _, key = await app.api_keys.create("failover", Role.OPERATOR)
        app.schedule(
            "every second", every(timedelta(seconds=SCHEDULE_SECONDS)), [Step.job(touch, number=0)], overlap="allow"
        )
        await app.schedules.deploy()
        load = Load(app, workers, ledger, key, behind_pooler=behind_pooler)
        await load.start()
        yield load
    finally:
        if load is not None:
            await load.stop()
        await workers.kill_all()
        await app.close()


async def assert_nothing_lost_repeated_or_skipped(url: str, load: Load) -> dict[str, int]:
    """Wait until all tasks have ended and audit the tables; return figures for a report."""
    observer = await Observer.at(url)
    await _until_due_instants_are_decided(observer)
    await load.app.schedules.disable("every second")
    await observer.until_all_ended(within=60)
    connection = await asyncpg.connect(url)
    try:
        known = await connection.fetchval("SELECT count(DISTINCT task_id) FROM tenuto.activities")
        assert await violated_invariants(connection, known) == {}
        rows = await connection.fetch("SELECT task_id FROM tenuto.activities WHERE final")
        ended = [row["task_id"] for row in rows]
        assert load.accepted - set(ended) == set(), "accepted tasks are lost"
        assert len(ended) == len(set(ended)), "tasks have ended twice"
        requested = await connection.fetch(
            "SELECT output, count(DISTINCT task_id) FROM tenuto.activities WHERE final AND name = $1"
            " GROUP BY output HAVING output::text::integer >= $2",
            jobs.touch.name,
            FIRST_REQUEST,
        )
        assert [row for row in requested if row["count"] > 1] == [], "repeated requests were accepted twice"
        assert len(requested) >= load.requested_count > 0
        due = [
            row["due_at"]
            for row in await connection.fetch(
                "SELECT due_at FROM tenuto.occurrences WHERE origin = 'trigger' ORDER BY due_at"
            )
        ]
    finally:
        await connection.close()
        await observer.close()
    step = timedelta(seconds=SCHEDULE_SECONDS)
    assert due == [due[0] + step * number for number in range(len(due))], "due instants are missing or doubled"
    assert overlaps(load.ledger.effects(), {}) == []
    return {
        "tasks": known,
        "accepted": len(load.accepted),
        "refused": load.refused_count,
        "repeated requests": load.repeated_count,
        "due instants": len(due),
    }


async def _until_due_instants_are_decided(observer: Observer) -> None:
    """Wait until the scheduler has decided an instant after now: one that has stopped would leave no gap behind it."""
    (now,) = (await observer.rows("SELECT clock_timestamp()"))[0]

    async def is_decided() -> bool:
        (newest,) = (await observer.rows("SELECT max(due_at) FROM tenuto.occurrences WHERE origin = 'trigger'"))[0]
        return bool(newest > now)

    await eventually(is_decided, timeout=60, what="the scheduler goes on")
