"""``app.status``: metrics of the installation, and readiness of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenuto.observability import prometheus, readiness
from tenuto.observability.cached_query import CachedQuery
from tenuto.observability.process_metrics import process_metrics
from tenuto.observability.readiness import Check
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tenuto.store.reports import metrics

METRICS_INTERVAL_SECONDS = 5.0
READINESS_INTERVAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this process can serve requests, with the result of each check."""

    ready: bool
    checks: list[Check]


class InstallationStatus:
    """``app.status``: metrics and readiness. Results are cached, so that frequent calls do not load the database."""

    def __init__(self, open: Callable[[], Awaitable[Database]], settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._metrics = CachedQuery(open, metrics.load_metrics, METRICS_INTERVAL_SECONDS)
        self._liveness = CachedQuery(open, readiness.load_liveness, READINESS_INTERVAL_SECONDS)

    async def metrics(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return prometheus.render_metrics(process_metrics, await self._metrics.latest())

    async def readiness(self) -> Readiness:
        """Check database, schema, claims and schedules."""
        max_delay_seconds = self._settings().ready_lag_seconds
        checks = readiness.decide_readiness(await self._liveness.latest(), process_metrics, max_delay_seconds)
        return Readiness(all(check.ok for check in checks), checks)
