"""Readiness of this process: named checks with a result and a reason.

The endpoint needs no API key, so the details contain no names and no addresses; the log has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.clock import monotonic_seconds
from tenuto.errors import SchemaMismatch
from tenuto.observability.cached_query import QueryResult
from tenuto.observability.process_metrics import ProcessMetrics
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.store.reports import metrics
from tenuto.store.reports.metrics import LivenessSigns

MAX_POLL_AGE_SECONDS = 60.0
"""A worker without a successful poll for this long does no work; normally it polls every few seconds."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one readiness check."""

    name: str
    ok: bool
    detail: str


async def load_liveness(database: Database) -> LivenessSigns:
    """Load what the checks need; raise an error if the database does not result or its schema does not fit."""
    await metrics.ping(database)
    await migrator.check_schema(database)
    return await metrics.load_liveness_signs(database)


def decide_readiness(
    result: QueryResult[LivenessSigns], counters: ProcessMetrics, max_delay_seconds: float
) -> list[Check]:
    """Decide all checks; those that depend on a failed one are omitted."""
    if isinstance(result.error, SchemaMismatch):
        return [Check("database", ok=True, detail="answers"), Check("schema", ok=False, detail=result.error.message)]
    if result.value is None:
        return [Check("database", ok=False, detail="does not result")]
    return [
        Check("database", ok=True, detail="answers"),
        Check("schema", ok=True, detail="up to date"),
        _check_claims(result.value, counters),
        _check_scheduler(result.value, max_delay_seconds),
    ]


def _check_claims(signs: LivenessSigns, counters: ProcessMetrics) -> Check:
    """Check the poll of a worker in this process, or otherwise the heartbeat of any worker."""
    if counters.polled_at is not None:
        ago = monotonic_seconds() - counters.polled_at
        return Check(
            "claims", ok=ago < MAX_POLL_AGE_SECONDS, detail=f"the worker of this process last polled {ago:.0f} s ago"
        )
    workers = next((service for service in signs.services if service["service"] == "worker"), None)
    if workers is None:
        return Check("claims", ok=True, detail="no worker is registered; tasks wait")
    heard = max(0.0, workers["heard_seconds"])
    return Check(
        "claims", ok=heard < MAX_POLL_AGE_SECONDS, detail=f"{workers['alive']} alive, last heartbeat {heard:.0f} s ago"
    )


def _check_scheduler(signs: LivenessSigns, max_delay_seconds: float) -> Check:
    if signs.most_overdue_schedule is None:
        return Check("scheduler", ok=True, detail="no schedule is overdue")
    late = max(0.0, signs.most_overdue_schedule["late_seconds"])
    detail = f"the most overdue schedule is {late:.0f} s late"
    return Check(
        "scheduler",
        ok=late <= max_delay_seconds,
        detail=detail if late <= max_delay_seconds else f"{detail}; check that a scheduler runs",
    )
