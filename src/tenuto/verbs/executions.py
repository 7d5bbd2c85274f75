"""``app.executions``: what runs and ran of schedules, and what may be done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal
from uuid import UUID

from tenuto.clock import steady
from tenuto.engine import executing, narrative
from tenuto.engine.why import Why, why_execution
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.model.access import Actor
from tenuto.store import activities, auditing, executions
from tenuto.verbs.asking import Open, Record, listed, the_one
from tenuto.verbs.schedules import id_of
from tenuto.verbs.waiting import Endings


class Executions:
    """``app.executions``: what runs and ran, and what may be done to it."""

    def __init__(self, open: Open, who: Callable[[], Actor], endings: Endings) -> None:
        self._open = open
        self._who = who
        self._endings = endings

    async def get(self, id: UUID) -> Record:
        """An execution with every step: its state, activity, wait, duration and error, running ones live."""
        database = await self._open()
        found, steps = await asyncio.gather(executions.execution(database, id), executions.steps(database, id))
        if found is None:
            raise NotFound(f"there is no execution {id}", remedy="see `tenuto execution list`")
        return narrative.told(found, steps, database.clock.now())

    async def find(self, prefix: str) -> UUID:
        """The one execution whose id begins so."""
        found = await executions.find(await self._open(), *activities.ids_beginning(prefix))
        return the_one(found, prefix, whose="execution's id", listed_by="`tenuto execution list`")

    async def why(self, id: UUID) -> Why:
        """Why an execution does not go on: the reasons of every open step of the group it has come to."""
        return await why_execution(await self._open(), id)

    async def list(
        self,
        *,
        below: UUID | None = None,
        state: str | None = None,
        schedule: str | None = None,
        limit: int = 50,
    ) -> Sequence[Record]:
        """Executions, the newest first."""
        database = await self._open()
        schedule_id = None if schedule is None else await id_of(database, schedule)
        return await executions.list_executions(
            database, below=below, state=state, schedule_id=schedule_id, limit=listed(limit)
        )

    async def cancel(self, id: UUID, *, reason: str | None = None) -> Literal["cancelled", "stopping"]:
        """Cancel: what has not begun is removed at once, what runs is told to stop."""
        database = await self._open()
        auditing.tell(target=str(id), reason=reason)
        return await executing.cancel(database, id, database.clock.now(), self._who(), reason)

    async def pause(self, id: UUID) -> None:
        """Let nothing more of it begin; what runs goes on to its end."""
        database = await self._open()
        auditing.tell(target=str(id))
        await executing.pause(database, id, database.clock.now(), self._who())

    async def resume(self, id: UUID) -> None:
        """Let a paused one go on."""
        database = await self._open()
        auditing.tell(target=str(id))
        await executing.resume(database, id, database.clock.now())

    async def retry(self, id: UUID, *, request_id: UUID | None = None) -> UUID:
        """Run one that failed or was cancelled again from the group it came to; the id of the new one. Asking again
        with the same ``request_id`` begins one."""
        database = await self._open()
        request = request_id or new_id()
        auditing.tell(target=str(id), after={"execution_id": str(request)})
        return await executing.retry(database, id, database.clock.now(), self._who(), request)

    async def wait(self, id: UUID, timeout: float | None = None) -> Record:
        """Wait until an execution has ended."""
        deadline = None if timeout is None else steady() + timeout
        database = await self._open()
        told = False
        with self._endings.of(database, id) as ending:
            while True:
                over = told or await executions.has_ended(database, id)
                if over is None:
                    raise NotFound(f"there is no execution {id}")
                if over:
                    return await self.get(id)
                left = None if deadline is None else deadline - steady()
                if left is not None and left <= 0:
                    why = f"`tenuto execution show {id}` says what holds it up"
                    raise Conflict(f"execution {id} has not ended after {timeout:g} s", remedy=why)
                told = await ending.pause(left)
