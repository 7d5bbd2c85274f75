"""``app.status``: metrics of the installation, and readiness of this process.

The readiness endpoint needs no API key, so its details contain no addresses and no names but those of services; the log
has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenuto.clock import monotonic_seconds
from tenuto.errors import SchemaBehind, SchemaMismatch
from tenuto.extension import LabelledValue, Metric
from tenuto.extension.contribution_checks import check_metric_values
from tenuto.extension.registry import ExtensionRegistry
from tenuto.observability import prometheus
from tenuto.observability.cached_query import CachedQuery, QueryResult
from tenuto.observability.metrics_by_name import metrics_by_name
from tenuto.observability.process_metrics import ProcessMetrics, process_metrics
from tenuto.postgres import migrator, read_transactions
from tenuto.postgres.database import Database
from tenuto.service.service_protocol import find_unready_services
from tenuto.settings import Settings
from tenuto.store.reports import metrics
from tenuto.store.reports.metrics import LivenessSigns
from tenuto.store.reports.metrics_by_name import load_figures_by_name

METRICS_INTERVAL_SECONDS = 5.0
READINESS_INTERVAL_SECONDS = 1.0
MAX_POLL_AGE_SECONDS = 60.0
"""A worker without a successful poll for this long does no work; normally it polls every few seconds."""


class CheckName(StrEnum):
    """Names of the readiness checks, as a probe excludes them."""

    DATABASE = "database"
    SCHEMA = "schema"
    CLAIMS = "claims"
    SCHEDULER = "scheduler"
    SERVICES = "services"


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    """Result of one readiness check."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this process can serve requests, with the result of each check."""

    ready: bool
    checks: list[ReadinessCheck]


class InstallationStatus:
    """``app.status``: metrics and readiness. Results are cached, so that frequent calls do not load the database."""

    def __init__(
        self,
        open: Callable[[], Awaitable[Database]],
        settings: Callable[[], Settings],
        extensions: ExtensionRegistry | None = None,
    ) -> None:
        self._settings = settings
        self._extensions = extensions
        self._extension_metrics = CachedQuery(open, self._load_extension_metrics, METRICS_INTERVAL_SECONDS)
        self._metrics = CachedQuery(open, metrics.load_metrics, METRICS_INTERVAL_SECONDS)
        self._metrics_by_name = CachedQuery(open, self._load_metrics_by_name, METRICS_INTERVAL_SECONDS)
        self._liveness = CachedQuery(open, _load_liveness, READINESS_INTERVAL_SECONDS)

    async def metrics(self) -> str:
        """Return all metrics in the Prometheus text format."""
        further = dict((await self._metrics_by_name.latest()).value or {})
        if self._extensions is not None:
            further |= (await self._extension_metrics.latest()).value or {}
        return prometheus.render_metrics(process_metrics, await self._metrics.latest(), further)

    async def _load_metrics_by_name(self, database: Database) -> Mapping[Metric, Sequence[LabelledValue]]:
        max_names = self._settings().metrics_max_names
        return metrics_by_name(await load_figures_by_name(database, max_names), max_names)

    async def _load_extension_metrics(self, database: Database) -> dict[Metric, Sequence[LabelledValue]]:
        found: dict[Metric, Sequence[LabelledValue]] = {}
        assert self._extensions is not None
        for contribution in self._extensions.metrics():
            async with self._extensions.isolate_async(contribution.extension, "metrics"):
                values = await read_transactions.read_quickly(database, contribution.value.load)
                found |= check_metric_values(contribution.value, values)
        return found

    async def readiness(self, exclude: Collection[str] = ()) -> Readiness:
        """Check database, schema, claims, schedules, and the services of this process.

        The result lists the checks in ``exclude`` like the others, but readiness does not depend on them.
        """
        max_delay_seconds = self._settings().ready_max_delay_seconds
        checks = _decide_readiness(await self._liveness.latest(), process_metrics, max_delay_seconds)
        return Readiness(all(check.ok for check in checks if check.name not in exclude), checks)


@dataclass(frozen=True, slots=True)
class _Liveness:
    """The facts for the checks."""

    signs: LivenessSigns
    schema: str
    """What is to be said about the schema."""


async def _load_liveness(database: Database) -> _Liveness:
    """Load the facts for the checks; raise an error if the database does not answer or its schema is too old."""
    await metrics.ping(database)
    schema = "up to date"
    try:
        await migrator.check_schema(database)
    except SchemaBehind:
        raise
    except SchemaMismatch as error:
        schema = f"{error.message}; an upgrade has begun"  # this process works until it is replaced
    return _Liveness(await metrics.load_liveness_signs(database), schema)


def _decide_readiness(
    result: QueryResult[_Liveness], counters: ProcessMetrics, max_delay_seconds: float
) -> list[ReadinessCheck]:
    """Decide all checks; those that depend on a failed one are omitted."""
    if isinstance(result.error, SchemaMismatch):
        return [
            ReadinessCheck(CheckName.DATABASE, ok=True, detail="answers"),
            ReadinessCheck(CheckName.SCHEMA, ok=False, detail=result.error.message),
        ]
    if result.value is None:
        return [ReadinessCheck(CheckName.DATABASE, ok=False, detail="does not answer")]
    return [
        ReadinessCheck(CheckName.DATABASE, ok=True, detail="answers"),
        ReadinessCheck(CheckName.SCHEMA, ok=True, detail=result.value.schema),
        _check_claims(result.value.signs, counters),
        _check_scheduler(result.value.signs, max_delay_seconds),
        _check_services(*find_unready_services()),
    ]


def _check_claims(signs: LivenessSigns, counters: ProcessMetrics) -> ReadinessCheck:
    """Check the poll of a worker in this process, or otherwise the heartbeat of any worker."""
    if counters.polled_at is not None:
        age_seconds = monotonic_seconds() - counters.polled_at
        return ReadinessCheck(
            CheckName.CLAIMS,
            ok=age_seconds < MAX_POLL_AGE_SECONDS,
            detail=f"the worker of this process last polled {age_seconds:.0f} s ago",
        )
    workers = next((service for service in signs.services if service.service == "worker"), None)
    if workers is None:
        return ReadinessCheck(CheckName.CLAIMS, ok=True, detail="no worker is registered; tasks wait")
    age_seconds = max(0.0, workers.heartbeat_age_seconds)
    return ReadinessCheck(
        CheckName.CLAIMS,
        ok=workers.alive_count > 0,
        detail=f"{workers.alive_count} alive, last heartbeat {age_seconds:.0f} s ago",
    )


def _check_services(core: Sequence[str], extensions: Sequence[str]) -> ReadinessCheck:
    """Check the services of this process. The process is ready without services of extensions."""
    failing = ", ".join([*core, *(f"{name} (of an extension)" for name in extensions)])
    return ReadinessCheck(
        CheckName.SERVICES, ok=not core, detail=f"failing, see the log: {failing}" if failing else "running"
    )


def _check_scheduler(signs: LivenessSigns, max_delay_seconds: float) -> ReadinessCheck:
    if signs.misses_scheduler:
        detail = "enabled schedules or manifests wait, and no scheduler is alive"
        return ReadinessCheck(CheckName.SCHEDULER, ok=False, detail=detail)
    if signs.most_overdue_schedule is None:
        return ReadinessCheck(CheckName.SCHEDULER, ok=True, detail="no schedule is overdue")
    delay_seconds = max(0.0, signs.most_overdue_schedule.late_seconds)
    detail = f"the most overdue schedule is {delay_seconds:.0f} s late"
    return ReadinessCheck(
        CheckName.SCHEDULER,
        ok=delay_seconds <= max_delay_seconds,
        detail=detail if delay_seconds <= max_delay_seconds else f"{detail}; check that a scheduler runs",
    )
