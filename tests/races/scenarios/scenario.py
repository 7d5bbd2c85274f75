"""State and building blocks of the scenarios."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.ids import new_id
from tenuto.model.work.tasks import NewTask, Task
from tenuto.postgres.database import Connection, Database
from tests.races.task_actions import ACTOR

LATER = timedelta(days=400)


@dataclass
class Scenario:
    """State of one run of a scenario."""

    db: Database
    """Healthy database, for queries that are not under test."""
    worker: UUID
    held: list[Task] = field(default_factory=list)
    ids: dict[str, UUID] = field(default_factory=dict)
    approval_link: str = ""
    violates_invariants: bool = False
    """The invariants are violated on purpose until the next action completes."""

    def id(self, what: str) -> UUID:
        """Return the id for a name, the same one each time."""
        return self.ids.setdefault(what, new_id())

    def task(self, what: str, **fields: Any) -> NewTask:
        now = self.db.clock.now() - timedelta(hours=2)
        return NewTask(self.id(what), "touch", "{}", now, ACTOR, **fields)

    def author(self) -> ChangeContext:
        return ChangeContext(ACTOR, self.db.clock.now())


Action = Callable[[Database, Scenario], Awaitable[object]]


class Preparation:
    """Action that only prepares the next one: it is not interrupted and runs once."""

    def __init__(self, step: Action) -> None:
        self.step = step

    async def __call__(self, db: Database, scenario: Scenario) -> object:
        return await self.step(scenario.db, scenario)


def run_sql(statement: str, *, violates_invariants: bool = False) -> Preparation:
    async def action(db: Database, scenario: Scenario) -> None:
        await db.fetch_all(statement)
        scenario.violates_invariants = violates_invariants

    return Preparation(action)


def in_transaction(work: Callable[[Connection, Scenario], Awaitable[object]]) -> Action:
    async def action(db: Database, scenario: Scenario) -> None:
        await db.transaction(lambda connection: work(connection, scenario))

    return action
