"""``app.observing``: how the installation is, in figures, and whether this process is ready to be asked anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenuto.observability import prometheus, readiness
from tenuto.observability.cached_query import Gathering
from tenuto.observability.process_metrics import counters
from tenuto.observability.readiness import Check
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tenuto.store.reports import metrics

GATHER_EVERY = 5.0
READINESS_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this process should be sent requests, and each check that says so."""

    ready: bool
    checks: list[Check]


class Observing:
    """``app.observing``: figures and readiness. However often one asks, the database is asked now and then."""

    def __init__(self, open: Callable[[], Awaitable[Database]], settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._figures = Gathering(open, metrics.gather, GATHER_EVERY)
        self._signs = Gathering(open, readiness.look, READINESS_EVERY)

    async def metrics(self) -> str:
        """All figures, as Prometheus reads them."""
        return prometheus.text(counters, await self._figures.latest())

    async def readiness(self) -> Readiness:
        """Database, schema, claims and schedules: whether all is as it must be."""
        most_late = self._settings().ready_lag_seconds
        checks = readiness.judge(await self._signs.latest(), counters, most_late)
        return Readiness(all(check.ok for check in checks), checks)
