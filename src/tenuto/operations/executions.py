"""An execution told step by step: the plan beside what has become of it so far. Only puts together what is there.

``app.executions``: what runs and ran of schedules, and what may be done to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

from tenuto.clock import steady
from tenuto.diagnostics.why import Why, why_execution
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.lifecycle import execution_control
from tenuto.model.actors import Actor
from tenuto.model.schedules import plan_from_json
from tenuto.model.steps import Step
from tenuto.operations.execution_waiter import Endings
from tenuto.operations.listing import Open, Record, listed, the_one
from tenuto.operations.schedules import id_of
from tenuto.store import activities, executions
from tenuto.store.access import audit_recorder


def told(execution: Record, attempts: list[Record], now: datetime) -> Record:
    """The execution with a list of its steps, in the order of the plan."""
    plan = plan_from_json(execution["plan"])
    by_step: dict[int, list[Record]] = {}
    for attempt in attempts:
        by_step.setdefault(attempt["step_index"], []).append(attempt)
    steps = [
        _step(step, group, number, by_step.get(number, []), execution, now) for group, number, step in plan.numbered()
    ]
    shown = {key: value for key, value in execution.items() if key != "plan"}
    return {**shown, "duration": _seconds(execution["started_at"], execution["ended_at"] or now), "steps": steps}


def _step(step: Step, group: int, number: int, attempts: list[Record], execution: Record, now: datetime) -> Record:
    last: Record = attempts[-1] if attempts else {}
    began = last.get("started_at")
    return {
        "group": group,
        "number": number,
        "name": step.name,
        "kind": step.kind,
        "target": step.target,
        "continue_on_failure": step.continue_on_failure,
        "status": last.get("status") or ("done_before" if group < execution["first_group"] else "not_run"),
        "reason": last.get("reason"),
        "attempt": last.get("attempt", 0),
        "task_id": last.get("task_id"),
        "activity_id": last.get("id"),
        "activities": [attempt["id"] for attempt in attempts],
        "run_at": last.get("run_at"),
        "started_at": began,
        "ended_at": last.get("ended_at"),
        "wait": _seconds(last["run_at"], began) if began is not None else None,
        "duration": _seconds(began, last.get("ended_at") or now) if began is not None else None,
        "progress": last.get("progress"),
        "worker": last.get("worker"),
        "error": _message(last),
        "last_error": _last_error(attempts),
    }


def _last_error(attempts: list[Record]) -> Record | None:
    """What went wrong with a step: in its last attempt, or, as long as it is tried again, in the latest before."""
    is_over = bool(attempts) and attempts[-1].get("ended_at") is not None
    for attempt in attempts[-1:] if is_over else reversed(attempts):
        if message := _message(attempt):
            return {"attempt": attempt["attempt"], "activity_id": attempt["id"], "message": message}
    return None


def _message(attempt: Record) -> str | None:
    return (attempt.get("error") or {}).get("message")


def _seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())


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
        return told(found, steps, database.clock.now())

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
        audit_recorder.tell(target=str(id), reason=reason)
        return await execution_control.cancel(database, id, database.clock.now(), self._who(), reason)

    async def pause(self, id: UUID) -> None:
        """Let nothing more of it begin; what runs goes on to its end."""
        database = await self._open()
        audit_recorder.tell(target=str(id))
        await execution_control.pause(database, id, database.clock.now(), self._who())

    async def resume(self, id: UUID) -> None:
        """Let a paused one go on."""
        database = await self._open()
        audit_recorder.tell(target=str(id))
        await execution_control.resume(database, id, database.clock.now())

    async def retry(self, id: UUID, *, request_id: UUID | None = None) -> UUID:
        """Run one that failed or was cancelled again from the group it came to; the id of the new one. Asking again
        with the same ``request_id`` begins one."""
        database = await self._open()
        request = request_id or new_id()
        audit_recorder.tell(target=str(id), after={"execution_id": str(request)})
        return await execution_control.retry(database, id, database.clock.now(), self._who(), request)

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
