"""The load: batches, single tasks, one-shots over HTTP, and an operator who retries dead letters.

Whoever asks for something asks until it is acknowledged, each time with the same key, as a careful client does; what
was acknowledged is remembered, and is what the audit holds the system to. It never runs far ahead of the work.
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

from tenuto.errors import Conflict, Unavailable
from tenuto.ids import new_id
from tenuto.model.actors import Role
from tests.chaos import jobs
from tests.chaos.environment import Stage
from tests.chaos.jobs import Fate, app

T = TypeVar("T")

MANY = 20_000
"""From so many tasks on, batches are ten times as long, and the load may be ten times as far ahead."""
BATCH, AHEAD = 50, 600
"""Items of a batch, and how many tasks may be open before the load waits."""


@dataclass
class Accepted:
    """What was acknowledged."""

    tasks: dict[UUID, str] = field(default_factory=dict)
    """Single tasks and one-shots, with what is to become of them."""
    batches: dict[UUID, int] = field(default_factory=dict)
    """Batches, with how many items they have."""
    asked: int = 0
    asked_again: int = 0

    def add(self, task: UUID, fate: str) -> None:
        self.tasks[task] = fate
        self.asked += 1

    def add_batch(self, batch: UUID, items: int) -> None:
        self.batches[batch] = items
        self.asked += items


class Load:
    """Those who ask."""

    def __init__(self, stage: Stage, most: int | None) -> None:
        self._stage = stage
        self._chance = random.Random(stage.chance.random())
        self._most = most
        self._scale = 10 if most is not None and most >= MANY else 1
        self.accepted = Accepted()
        self.over = False

    @property
    def all_asked(self) -> bool:
        return self._most is not None and self.accepted.asked >= self._most

    async def run(self, may_go_on: Callable[[], bool]) -> None:
        """Ask until told that it is over, or until as many were asked for as there were to be."""
        _, key = await self.insist(lambda: app.api_keys.create(f"chaos-{uuid4()}", Role.OPERATOR))
        client = httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=5.0)
        async with client, asyncio.TaskGroup() as group:
            for act in (self._a_batch, self._some_singles, lambda: self._some_one_shots(client)):
                group.create_task(self._ask_for(act, may_go_on))
            group.create_task(self._operate())

    async def _ask_for(self, act: Callable[[], Awaitable[None]], may_go_on: Callable[[], bool]) -> None:
        while not self.over and not self.all_asked:
            if may_go_on() and not await self._too_far_ahead():
                await act()
            else:
                await asyncio.sleep(0.1)

    async def _too_far_ahead(self) -> bool:
        database = await app.open()
        count = "SELECT count(*) FROM (SELECT FROM tenuto.tasks LIMIT $1) AS open"
        most = AHEAD * self._scale
        open_now: int = await self.insist(lambda: database.fetch_value(count, most))
        return open_now >= most

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer."""
        while True:
            try:
                return await ask()
            except (Unavailable, OSError):
                self.accepted.asked_again += 1
                await asyncio.sleep(0.1)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _a_batch(self) -> None:
        key, name = str(uuid4()), f"batch {len(self.accepted.batches)}"
        items = [
            {"number": number, "fate": self._fate(), "seconds": self._chance.choice((0, 0, 0.02))}
            for number in range(BATCH * self._scale)
        ]
        batch = await self.insist(lambda: app.bulk_enqueue(jobs.BULK, items, batch_key=key, name=name))
        self.accepted.add_batch(batch.id, len(items))

    async def _some_singles(self) -> None:
        for number in range(10):
            job = self._chance.choices((jobs.item, jobs.in_thread, jobs.narrow, jobs.whisper), (4, 4, 3, 1))[0]
            given: dict[str, Any] = {"number": number}
            fate = Fate.FINE
            if job is jobs.item or job is jobs.in_thread:
                given["fate"] = fate = self._fate()
            if job is not jobs.whisper:
                given["seconds"] = self._chance.choice((0, 0, 0.05, 0.3))
            text, id = job.dump_input((), given), new_id()
            await self.insist(lambda job=job, text=text, id=id: app.enqueue_json(job, text, request_id=id))  # type: ignore[misc]
            self.accepted.add(id, fate)

    async def _some_one_shots(self, client: httpx.AsyncClient) -> None:
        await asyncio.gather(*(self._one_shot(client, number) for number in range(10)))

    async def _one_shot(self, client: httpx.AsyncClient, number: int) -> None:
        fate = self._fate()
        body = {
            "exec_at": (datetime.now(UTC) + timedelta(seconds=self._chance.choice((-1, 0, 0.5, 2)))).isoformat(),
            "prompt_type": jobs.item.name,
            "payload": {"number": number, "fate": fate},
            "retry": {"max_retries": 2, "base_seconds": 0.1},
        }
        headers = {"Idempotency-Key": str(uuid4())}
        while True:
            port = self._chance.choice([each.port for each in self._stage.services if each.role == "web"])
            try:
                answer = await client.post(f"http://127.0.0.1:{port}/api/schedule", json=body, headers=headers)
            except httpx.HTTPError:
                pass
            else:
                if answer.status_code == 202:
                    self.accepted.add(UUID(answer.json()["transaction_id"]), fate)
                    return
                if answer.status_code not in (409, 429, 500, 503):
                    self._stage.wrong.append(f"a one-shot was answered {answer.status_code}: {answer.text[:300]}")
                    return
                if answer.status_code == 500:
                    self._stage.wrong.append(f"a one-shot was answered 500: {answer.text[:300]}")
            self.accepted.asked_again += 1
            await asyncio.sleep(0.1)

    async def _operate(self) -> None:
        """What the doomed manifest leaves is tried again now and then, or seen to."""
        while not self.over:
            await asyncio.sleep(0.5)
            letters = await self.insist(lambda: app.dead_letters.list(manifest="doomed", limit=5))
            for letter in letters:
                await self._resolve(letter["id"], new_id())

    async def _resolve(self, letter: UUID, request: UUID) -> None:
        with suppress(Conflict):  # resolved by the request whose answer was lost
            if self._chance.random() < 0.5:
                await self.insist(lambda: app.dead_letters.retry(letter, request_id=request))
            else:
                await self.insist(lambda: app.dead_letters.acknowledge(letter, note="chaos"))

    def _fate(self) -> Fate:
        return self._chance.choices(list(Fate), (90, 8, 2))[0]
