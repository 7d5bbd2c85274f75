"""The load: batches, single tasks, one-shots and events over HTTP, a backfill, an operator and an approver.

Each client repeats a request with the same key until it is acknowledged. Acknowledged requests are recorded, and the
audit compares the system with them. The load never runs far ahead of the workers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import httpx2 as httpx

from tenuto import Actor, Job
from tenuto.errors import Conflict, Unavailable
from tenuto.ids import new_id
from tenuto.model.access.actors import Role
from tests.chaos import jobs
from tests.chaos.environment import Environment
from tests.chaos.feature_jobs import ANNOUNCED, APPROVER, HISTORY, PAID, deliver_order, hurried, listen, metered, voyage
from tests.chaos.jobs import Fate, app

T = TypeVar("T")

LARGE_RUN_TASKS = 20_000
"""From this size on, batches are ten times as large, and the load may be ten times as far ahead."""
BATCH_SIZE, MAX_OPEN_TASKS = 50, 600
"""Items of a batch, and number of open tasks at which the load waits."""


@dataclass
class Accepted:
    """Acknowledged requests."""

    tasks: dict[UUID, str] = field(default_factory=dict)
    """Single tasks and one-shots, with their intended outcome."""
    batches: dict[UUID, int] = field(default_factory=dict)
    """Batches, with their number of items."""
    events: dict[str, tuple[UUID, str]] = field(default_factory=dict)
    """Keys of sent events, each with the task that waits for it and the payload."""
    backfilled: tuple[datetime, datetime] | None = None
    """Period of the backfill."""
    asked: int = 0
    asked_again: int = 0

    def add(self, task: UUID, fate: str) -> None:
        self.tasks[task] = fate
        self.asked += 1

    def add_batch(self, batch: UUID, items: int) -> None:
        self.batches[batch] = items
        self.asked += items


class Load:
    """Clients that submit work."""

    def __init__(self, environment: Environment, most: int | None) -> None:
        self._environment = environment
        self._chance = random.Random(environment.chance.random())
        self._max_tasks = most
        self._scale = 10 if most is not None and most >= LARGE_RUN_TASKS else 1
        self.accepted = Accepted()
        self.is_over = False

    @property
    def is_complete(self) -> bool:
        return self._max_tasks is not None and self.accepted.asked >= self._max_tasks

    async def run(self, may_go_on: Callable[[], bool]) -> None:
        """Submit work until the run is over or the requested number of tasks is reached."""
        _, key = await self.retry(lambda: app.api_keys.create(f"chaos-{uuid4()}", Role.OPERATOR))
        client = httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=5.0)
        async with client, asyncio.TaskGroup() as group:
            for action in (
                self._submit_batch, self._submit_tasks, lambda: self._submit_one_shots(client),
                lambda: self._submit_durable_tasks(client),
            ):  # fmt: skip
                group.create_task(self._submit_repeatedly(action, may_go_on))
            group.create_task(self._resolve_dead_letters())
            group.create_task(self._approve_repeatedly())
            group.create_task(self._backfill())

    async def _submit_repeatedly(self, action: Callable[[], Awaitable[None]], may_go_on: Callable[[], bool]) -> None:
        while not self.is_over and not self.is_complete:
            if may_go_on() and not await self._is_too_far_ahead():
                await action()
            else:
                await asyncio.sleep(0.1)

    async def _is_too_far_ahead(self) -> bool:
        database = await app.open()
        count = "SELECT count(*) FROM (SELECT FROM tenuto.tasks LIMIT $1) AS open"
        most = MAX_OPEN_TASKS * self._scale
        open_now: int = await self.retry(lambda: database.fetch_value(count, most))
        return open_now >= most

    async def retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until it is answered."""
        while True:
            try:
                return await ask()
            except (Unavailable, OSError):
                self.accepted.asked_again += 1
                await asyncio.sleep(0.1)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _submit_batch(self) -> None:
        key, name = str(uuid4()), f"batch {len(self.accepted.batches)}"
        items = [
            {"number": number, "fate": self._choose_fate(), "seconds": self._chance.choice((0, 0, 0.02))}
            for number in range(BATCH_SIZE * self._scale)
        ]
        batch = await self.retry(lambda: app.bulk_enqueue(jobs.BULK, items, batch_key=key, name=name))
        self.accepted.add_batch(batch.id, len(items))

    async def _submit_tasks(self) -> None:
        for number in range(10):
            job = self._chance.choices(
                (jobs.item, jobs.in_thread, jobs.narrow, jobs.whisper, metered, hurried), (4, 4, 3, 1, 3, 2)
            )[0]
            given: dict[str, Any] = {"number": number}
            fate = Fate.FINE
            if job is jobs.item or job is jobs.in_thread:
                given["fate"] = fate = self._choose_fate()
            if job not in (jobs.whisper, metered, hurried):
                given["seconds"] = self._chance.choice((0, 0, 0.05, 0.3))
            text, id = job.dump_input((), given), new_id()
            await self.retry(lambda job=job, text=text, id=id: app.enqueue_json(job, text, request_id=id))  # type: ignore[misc]
            self.accepted.add(id, fate)

    async def _submit_one_shots(self, client: httpx.AsyncClient) -> None:
        await asyncio.gather(*(self._submit_one_shot(client, number) for number in range(10)))

    async def _submit_one_shot(self, client: httpx.AsyncClient, number: int) -> None:
        fate = self._choose_fate()
        body = {
            "exec_at": (datetime.now(UTC) + timedelta(seconds=self._chance.choice((-1, 0, 0.5, 2)))).isoformat(),
            "prompt_type": jobs.item.name,
            "payload": {"number": number, "fate": fate},
            "retry": {"max_attempts": 2, "base_seconds": 0.1},
        }
        answer = await self._post(client, "/api/schedule", body, {"Idempotency-Key": str(uuid4())})
        if answer is not None:
            self.accepted.add(UUID(answer["transaction_id"]), fate)

    async def _post(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any] | None:
        """Repeat a request to any web service until it is accepted; None if it was refused, which is not expected."""
        while True:
            port = self._chance.choice([each.port for each in self._environment.services if each.role == "web"])
            try:
                answer = await client.post(f"http://127.0.0.1:{port}{path}", json=body, headers=headers)
            except httpx.HTTPError:
                pass
            else:
                if answer.status_code == 202:
                    found: dict[str, Any] = answer.json()
                    return found
                problem = f"{path} answered with {answer.status_code}: {answer.text[:300]}"
                if answer.status_code not in (409, 429, 500, 503):
                    self._environment.unexpected.append(problem)
                    return None
                if answer.status_code == 500:
                    self._environment.unexpected.append(problem)
            self.accepted.asked_again += 1
            await asyncio.sleep(0.1)

    # --- what waits for the outside ---------------------------------------------------------------------------------

    async def _submit_durable_tasks(self, client: httpx.AsyncClient) -> None:
        """Submit workflows, chains and listeners, and send the events; some are sent before their task exists."""
        orders: list[tuple[Job[..., Any], str]] = [(deliver_order, PAID), (listen, ANNOUNCED)] * 4
        sent = [self._submit_with_event(client, job, name) for job, name in orders]
        voyages = [self._submit_task(voyage, {"key": str(uuid4())}, new_id()) for _ in range(4)]
        await asyncio.gather(*voyages, *sent)

    async def _submit_with_event(self, client: httpx.AsyncClient, job: Job[..., Any], name: str) -> None:
        key, payload, id = str(uuid4()), str(uuid4()), new_id()
        steps = [self._submit_task(job, {"key": key}, id), self._send_event(client, name, key, payload, id)]
        if self._chance.random() < 0.5:
            steps.reverse()
        for each in steps:
            await each
            await asyncio.sleep(self._chance.choice((0, 0.2, 1.0)))

    async def _submit_task(self, job: Job[..., Any], given: dict[str, Any], id: UUID) -> None:
        text = job.dump_input((), given)
        await self.retry(lambda: app.enqueue_json(job, text, request_id=id))
        self.accepted.add(id, Fate.FINE)

    async def _send_event(self, client: httpx.AsyncClient, name: str, key: str, payload: str, task: UUID) -> None:
        body = {"payload": payload, "key": key, "id": f"chaos-{key}"}
        if await self._post(client, f"/api/v1/events/{name}", body, {}) is not None:
            self.accepted.events[key] = task, payload

    async def _approve_repeatedly(self) -> None:
        while not self.is_over:
            await asyncio.sleep(0.5)
            await self.approve_pending()

    async def approve_pending(self) -> None:
        """Approve everything that waits for it."""
        acting = app.acting_as(Actor.user(APPROVER))
        for pending in await self.retry(lambda: app.approvals.pending()):
            with suppress(Conflict):  # its step was cancelled
                await self.retry(lambda id=pending.id: acting.approvals.approve(id))  # type: ignore[misc]

    async def _backfill(self) -> None:
        """Create the missed runs of ten hours, from half an hour before the first to half an hour after the last."""
        request, hour = new_id(), datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        start, end = hour - timedelta(hours=10, minutes=30), hour - timedelta(minutes=30)
        await self.retry(lambda: app.schedules.backfill(HISTORY, start, end, parallel=2, request_id=request))
        self.accepted.backfilled = start, end

    async def _resolve_dead_letters(self) -> None:
        """Retry or acknowledge the dead letters of the failing manifest."""
        while not self.is_over:
            await asyncio.sleep(0.5)
            dead_letters = await self.retry(lambda: app.dead_letters.list(manifest="doomed", limit=5))
            for dead_letter in dead_letters:
                await self._resolve(dead_letter.id, new_id())

    async def _resolve(self, dead_letter: UUID, request: UUID) -> None:
        with suppress(Conflict):  # resolved by the request whose reply was lost
            if self._chance.random() < 0.5:
                await self.retry(lambda: app.dead_letters.retry(dead_letter, request_id=request))
            else:
                await self.retry(lambda: app.dead_letters.acknowledge(dead_letter, note="chaos"))

    def _choose_fate(self) -> Fate:
        return self._chance.choices(list(Fate), (90, 8, 2))[0]
