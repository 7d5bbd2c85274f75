"""Everything at once: 10,000,000 finished tasks in twelve monthly partitions, 1,000,000 waiting ones, 100,000
schedules and 10,000 manifests.

Claims, pages of lists, the queries of the overview, the doctor and the end of a partition are compared with the same in
a small database, both measured alternately. The rows of the past are created by statements and indexed afterwards,
because that is faster; the waiting tasks are created through the product.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from tempfile import TemporaryDirectory

import asyncpg

from benchmarks import databases
from benchmarks.contender import Contender
from benchmarks.growth import time_claims
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.processes import ContenderFailed
from benchmarks.queue_benchmarks import Size
from tenuto import Step, Tenuto, every
from tenuto.clock import monotonic_seconds
from tenuto.ids import smallest_id_at
from tenuto.model.doctor_findings import Finding, Severity
from tenuto.model.partition_ranges import month_start
from tenuto.postgres.database import Database
from tenuto.store import partitions
from tenuto.store.reports import overview

HISTORY = {"tenuto": "benchmarks.contenders.tenuto_contender"}
MONTHS = 12
JOBS = 50
SAMPLES = 20

_PARTITION = """
CREATE TABLE IF NOT EXISTS tenuto.activities_{name} PARTITION OF tenuto.activities
    FOR VALUES FROM ('{low}') TO ('{high}');
CREATE OR REPLACE TRIGGER activities_are_not_emptied BEFORE TRUNCATE ON tenuto.activities_{name}
    FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_past();
"""
_INDEXES = """
SELECT index.indexrelid::regclass::text AS name,
       replace(pg_get_indexdef(index.indexrelid), ' ON ONLY ', ' ON ') AS definition
FROM pg_index AS index
WHERE index.indrelid = 'tenuto.activities'::regclass AND NOT index.indisprimary
ORDER BY 1
"""
# Attempts of one month, evenly over its time; one in a hundred failed. Ids carry their time, as the product makes them.
_ATTEMPTS = """
INSERT INTO tenuto.activities (
    id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at,
    started_at, ended_at, fence, worker_id, failures, losses, input, initiator_type, initiator_name
)
SELECT id, id, 1, CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'completed' END, CASE WHEN n % 100 = 0 THEN 'error' END,
       true, 'job', 'job-' || n % {jobs}, 'default', 0, at, at, at, at, at + interval '20 ms', 1,
       '00000000-0000-7000-8000-000000000000', (n % 100 = 0)::integer, 0, '{{"payload": "a slice of a table"}}',
       'system', 'bench'
FROM (
    SELECT n, to_timestamp(at / 1000.0) AS at,
           (lpad(to_hex(at), 12, '0') || '7' || lpad(to_hex(n & 4095), 3, '0') || '8'
            || lpad(to_hex(n), 15, '0'))::uuid AS id
    FROM (SELECT n, $1::bigint + n * ($2::bigint - $1::bigint) / $3::bigint AS at
          FROM generate_series(0, $3::bigint - 1) AS n) AS times
) AS attempts
"""
_SCHEDULES = """
INSERT INTO tenuto.schedules (id, name, description, enabled, trigger, plan, overlap, misfire, version, origin,
                              created_at, updated_at, next_run_at, planned)
SELECT gen_random_uuid(), name || ' ' || n, '', true, trigger, plan, overlap, misfire, 1, origin, created_at,
       updated_at, now() + interval '1 day' + n * interval '1 second', true
FROM tenuto.schedules, generate_series(1, $1::integer - 1) AS n
WHERE name = 'nightly'
"""
_MANIFESTS = """
INSERT INTO tenuto.manifests (id, external_id, name, enabled, definition, job, schedule_type, version, origin,
                              created_at, updated_at, next_run_at, planned)
SELECT gen_random_uuid(), external_id || '-' || n, name, true,
       definition || jsonb_build_object('external_id', external_id || '-' || n), job, schedule_type, 1, origin,
       created_at, updated_at, now() + interval '1 day' + n * interval '1 second', true
FROM tenuto.manifests, generate_series(1, $1::integer - 1) AS n
WHERE external_id = 'copy'
"""


@dataclass(frozen=True)
class Contents:
    """Rows of one database."""

    finished: int
    waiting: int
    schedules: int
    manifests: int

    @property
    def database(self) -> str:
        return f"bench_history_{self.finished}"


def _build(url: str, home: str | None = None) -> Tenuto:
    app = Tenuto(url, home=home)

    @app.job
    async def noop(payload: str = "") -> None:
        """The job of all tasks, schedules and manifests."""

    app.schedule("nightly", every("1d"), [Step.job(noop)])
    app.manifest("copy", noop, trigger=every("1d"))
    return app


async def history(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure a small database and the whole alternately."""
    (tenuto,) = contenders
    small = Contents(12_000, 1_000, 100, 100)
    whole = Contents(
        size.of(10_000_000, 120_000), size.of(1_000_000, 20_000), size.of(100_000, 2_000), size.of(10_000, 500)
    )
    names = ("a claim of 100", "slowest page of a list", "queries of the overview", "doctor", "end of a month")
    cases: dict[Contents, list[Case]] = {}
    for contents, place in ((small, "small"), (whole, f"{whole.finished:,} finished")):
        baselines = cases.get(small, [None] * len(names))
        cases[contents] = [
            Case(f"{name}, {place}", "s" if name == "doctor" else "ms", baseline)
            for name, baseline in zip(names, baselines, strict=True)
        ]
    async with contextlib.AsyncExitStack() as stack:
        urls = {contents: await stack.enter_async_context(_set_up(tenuto, contents)) for contents in cases}
        ended_months = 0
        async with _opened(urls[small]) as (app, _database):
            await app.doctor()  # loads the extensions

        async def run(_: Contender) -> None:
            nonlocal ended_months
            for contents, (claim, page, facts, doctor, retention) in cases.items():
                url = urls[contents]
                claim.add("tenuto", percentile(await time_claims(tenuto, url, size.of(30, 10)), 0.5))
                async with _opened(url) as (app, database):
                    page.add("tenuto", await _time_slowest_page(app))
                    facts.add("tenuto", await _time(partial(overview.load_overview_facts, database)))
                    doctor.add("tenuto", await _time_doctor(app))
                    retention.add("tenuto", await _time_end_of_month(database, ended_months))
            ended_months += 1

        await alternate([tenuto], size.runs, run, "small and whole")
    return [case for name in zip(*cases.values(), strict=True) for case in name]


@contextlib.asynccontextmanager
async def _set_up(tenuto: Contender, contents: Contents) -> AsyncIterator[str]:
    async with tenuto.prepared_database(contents.database) as url:
        began = monotonic_seconds()
        async with databases.connected(tenuto.server) as connection:
            await connection.execute(f'ALTER DATABASE "{contents.database}" SET synchronous_commit TO off')
            await connection.execute(f"ALTER DATABASE \"{contents.database}\" SET maintenance_work_mem TO '256MB'")
        with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
            async with _build(url, home) as app:
                await app.schedules.deploy()
                await app.manifests.deploy()
        async with databases.connected(url) as connection:
            await _create_history(connection, contents.finished)
            await connection.execute(_SCHEDULES, contents.schedules)
            await connection.execute(_MANIFESTS, contents.manifests)
        await tenuto.enqueue_in_bulk(url, contents.waiting)
        await databases.settle(url)
        progress(f"{contents.finished:,} finished: set up in {monotonic_seconds() - began:.0f} s")
        yield url


async def _create_history(connection: asyncpg.Connection, count: int) -> None:
    """Create the attempts of the last twelve months, and the secondary indexes after them."""
    now = datetime.now(UTC)
    indexes = await connection.fetch(_INDEXES)
    for index in indexes:
        await connection.execute(f"DROP INDEX {index['name']}")
    for month in range(-MONTHS + 1, 1):
        began = month_start(now, month)
        ended = month_start(now, month + 1)
        values = {"name": f"{began:%Y_%m}", "low": smallest_id_at(began), "high": smallest_id_at(ended)}
        await connection.execute(_PARTITION.format(**values))
        milliseconds = [int(instant.timestamp() * 1000) for instant in (began, min(ended, now))]
        await connection.execute(_ATTEMPTS.format(jobs=JOBS), *milliseconds, count // MONTHS, timeout=900)
    for index in indexes:
        await connection.execute(index["definition"], timeout=900)


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[Tenuto, Database]]:
    with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        async with _build(url, home) as app:
            yield app, await app.open()


async def _time(query: Callable[[], Awaitable[object]]) -> float:
    """Return the median of a query in milliseconds."""
    taken = []
    for _ in range(SAMPLES + 1):
        began = monotonic_seconds()
        await query()
        taken.append((monotonic_seconds() - began) * 1000)
    return percentile(taken[1:], 0.5)


async def _time_slowest_page(app: Tenuto) -> float:
    """Return the median of the slowest page of 100 rows in milliseconds."""
    pages: dict[str, Callable[[], Awaitable[object]]] = {
        "tasks": lambda: app.tasks(limit=100),
        "tasks in the order of claims": lambda: app.tasks.next_to_claim(limit=100),
        "activities": lambda: app.activities(limit=100),
        "failed activities": lambda: app.activities("state:failed", limit=100),
        "activities of a job": lambda: app.activities(name="job-7", limit=100),
        "executions": lambda: app.executions.list(limit=100),
        "schedules": lambda: app.schedules.list(limit=100),
        "manifests": lambda: app.manifests.list(limit=100),
    }
    taken = {name: await _time(query) for name, query in pages.items()}
    slowest = max(taken, key=taken.__getitem__)
    progress(f"  slowest page: {slowest}; " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in taken.items()))
    return taken[slowest]


async def _time_doctor(app: Tenuto) -> float:
    """Return the seconds of all checks; fail if a guarantee is broken."""
    taken: dict[str, float] = {}
    at = monotonic_seconds()

    def note(finding: Finding, _done: int, _of: int) -> None:
        nonlocal at
        taken[finding.name], at = monotonic_seconds() - at, monotonic_seconds()

    findings = await app.doctor(note)
    if broken := [each.title for each in findings if each.severity is Severity.PROBLEM]:
        raise ContenderFailed("; ".join(broken))
    warnings = [each.name for each in findings if each.severity is Severity.WARNING]
    slowest = sorted(taken, key=taken.__getitem__, reverse=True)[:3]
    progress("  slowest checks: " + ", ".join(f"{name} {taken[name]:.2f} s" for name in slowest))
    progress(f"  warnings: {', '.join(warnings) or 'none'}")
    return sum(taken.values())


async def _time_end_of_month(database: Database, ended_months: int) -> float:
    """Return the milliseconds in which retention finds and drops the oldest month."""
    cutoff = month_start(datetime.now(UTC), -MONTHS + 2 + ended_months)
    began = monotonic_seconds()
    dropped = await partitions.drop_old_partitions(database, cutoff)
    taken = (monotonic_seconds() - began) * 1000
    if len(dropped) != 1:
        raise ContenderFailed(f"one month should have ended, not {dropped}")
    return taken
