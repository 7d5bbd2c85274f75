"""Whether this process should be sent requests: each check by name, whether it holds, and in plain words why not.

Anybody may ask, so nothing is said that only operators should know: no names, no addresses. The log has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.clock import steady
from tenuto.errors import SchemaMismatch
from tenuto.observability.cached_query import Answer
from tenuto.observability.process_metrics import Counters
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.store.reports import metrics
from tenuto.store.reports.metrics import Signs

POLL_TOO_OLD = 60.0
"""A worker that has had no answer for so long takes no work. (It asks every few seconds.)"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so."""

    name: str
    ok: bool
    detail: str


async def look(database: Database) -> Signs:
    """What the database tells; an error if it does not answer, or its schema does not fit."""
    await metrics.knock(database)
    await migrator.check(database)
    return await metrics.signs(database)


def judge(answer: Answer[Signs], counters: Counters, most_late: float) -> list[Check]:
    """All checks. What cannot be known because an earlier one failed is left out."""
    if isinstance(answer.problem, SchemaMismatch):
        return [Check("database", ok=True, detail="answers"), Check("schema", ok=False, detail=answer.problem.message)]
    if answer.value is None:
        return [Check("database", ok=False, detail="does not answer")]
    return [
        Check("database", ok=True, detail="answers"),
        Check("schema", ok=True, detail="up to date"),
        _claims(answer.value, counters),
        _scheduler(answer.value, most_late),
    ]


def _claims(signs: Signs, counters: Counters) -> Check:
    """A worker in this process must get answers; of those elsewhere, one at least must be heard of."""
    if counters.polled_at is not None:
        ago = steady() - counters.polled_at
        return Check("claims", ok=ago < POLL_TOO_OLD, detail=f"the worker here last looked for work {ago:.0f} s ago")
    workers = next((service for service in signs.services if service["service"] == "worker"), None)
    if workers is None:
        return Check("claims", ok=True, detail="no worker is in the register: tasks wait for one")
    heard = max(0.0, workers["heard_seconds"])
    return Check("claims", ok=heard < POLL_TOO_OLD, detail=f"{workers['alive']} alive, last heard of {heard:.0f} s ago")


def _scheduler(signs: Signs, most_late: float) -> Check:
    if signs.latest_schedule is None:
        return Check("scheduler", ok=True, detail="nothing is due")
    late = max(0.0, signs.latest_schedule["late_seconds"])
    words = f"what is due has waited for {late:.0f} s"
    return Check("scheduler", ok=late <= most_late, detail=words if late <= most_late else f"{words}: is one running?")
