"""What actions have in common: who dies in them, what they know, and what only prepares them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenuto.definitions.versioned import ChangeContext
from tenuto.ids import new_id
from tenuto.model.tasks import NewTask, Task
from tenuto.postgres.database import Connection, Database
from tests.races.task_actions import ACTOR

LATER = timedelta(days=400)


@dataclass
class Scenario:
    """What one pass through a script knows."""

    db: Database
    """The healthy one, for what is not under test."""
    worker: UUID
    held: list[Task] = field(default_factory=list)
    ids: dict[str, UUID] = field(default_factory=dict)
    damaged: bool = False
    """The rules are broken on purpose, until the next action is done."""

    def id(self, what: str) -> UUID:
        """The same each time it is asked for."""
        return self.ids.setdefault(what, new_id())

    def task(self, what: str, **fields: Any) -> NewTask:
        now = self.db.clock.now() - timedelta(hours=2)
        return NewTask(self.id(what), "touch", "{}", now, ACTOR, **fields)

    def author(self) -> ChangeContext:
        return ChangeContext(ACTOR, self.db.clock.now())


Step = Callable[[Database, Scenario], Awaitable[object]]


class Calm:
    """What only prepares the next action: nobody dies in it, and it is done once."""

    def __init__(self, step: Step) -> None:
        self.step = step

    async def __call__(self, db: Database, scenario: Scenario) -> object:
        return await self.step(scenario.db, scenario)


def sql(statement: str, *, damages: bool = False) -> Calm:
    async def action(db: Database, scenario: Scenario) -> None:
        await db.fetch_all(statement)
        scenario.damaged = damages

    return Calm(action)


def within(work: Callable[[Connection, Scenario], Awaitable[object]]) -> Step:
    async def action(db: Database, scenario: Scenario) -> None:
        await db.transaction(lambda connection: work(connection, scenario))

    return action
