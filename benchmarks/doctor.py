"""The doctor on large tables: the duration of `tenuto doctor` on 1,000,000 open tasks and 1,000,000 activities.

The tables are filled with statements, not through the product, so that many rows of every kind exist: plain, limited,
later attempts, steps of executions, items of batches, their activities and the ledger. They are consistent, so a
check
that finds something is wrong, and the figure does not count; nor does it if a check timed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory

from benchmarks import databases
from benchmarks.contender import Contender
from benchmarks.measure import Case, alternate, progress
from benchmarks.processes import ContenderFailed
from benchmarks.queue_benchmarks import Size
from tenuto import Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.model.doctor_findings import Finding, Severity
from tenuto.postgres.database import Database
from tenuto.store import partitions

# An id that carries an instant, as the product makes them: twenty per millisecond, in the order of their numbers.
_ID = """
CREATE FUNCTION pg_temp.id(kind text, number bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(%d + number / 20), 12, '0') || '7' || substr(md5(kind || number), 1, 3)
            || '8' || substr(md5(kind || number), 4, 15))::uuid
$$"""
_DUE = """
CREATE FUNCTION pg_temp.due(number bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT to_timestamp(%d - number)
$$"""

_WORKER = """
INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)
VALUES (pg_temp.id('worker', 1), 'busy', 'worker', 'here', 'boot', 1, '0', '{default}', 50, now(),
        now() + interval '1 h')
"""
_MANIFESTS = """
INSERT INTO tenuto.manifests (id, external_id, name, enabled, definition, job, schedule_type, version, origin,
                              created_at, updated_at, planned)
SELECT pg_temp.id('manifest', n), 'manifest ' || n, 'manifest', true, '{}', 'work', 'none', 1, 'hand', now(), now(),
       true
FROM generate_series(0, 9) AS n
"""
_BATCHES = """
INSERT INTO tenuto.batches (id, manifest_id, external_id, total, created_at, complete_at, initiator_type,
                            initiator_name)
SELECT pg_temp.id('batch', n), pg_temp.id('manifest', n), 'manifest ' || n, $1::bigint / 10, now(), now(), 'system',
       'bench'
FROM generate_series(0, 9) AS n
"""
# Executions 1 to $1 have ended, $2 more are open.
_RUNS = """
INSERT INTO tenuto.executions (id, schedule_id, schedule_name, version, origin, state, alone, plan, current_group,
                               total_groups, total_steps, due_at, started_at, ended_at, initiator_type, initiator_name)
SELECT pg_temp.id('run', n), pg_temp.id('schedule', n % 500), 'schedule ' || n % 500, 1, 'trigger',
       CASE WHEN n > $1 THEN 'in_progress' ELSE 'completed' END, false, '[[{}, {}], [{}, {}]]',
       (n <= $1)::integer, 2, 4, pg_temp.due(n), pg_temp.due(n),
       CASE WHEN n <= $1 THEN now() END, 'system', 'bench'
FROM generate_series(1, $1::bigint + $2::bigint) AS n
"""
_LEDGER = """
INSERT INTO tenuto.occurrences (id, schedule_id, schedule_name, due_at, origin, decision, execution_id, decided_at,
                                decided_by)
SELECT pg_temp.id('due', n), pg_temp.id('schedule', n % 500), 'schedule ' || n % 500, pg_temp.due(n),
       'trigger', 'fired', pg_temp.id('run', n), pg_temp.due(n), 'bench'
FROM generate_series(1, $1::bigint) AS n
"""
_TASKS = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, name, input, policy, initiator_type,
                          initiator_name, %s)
SELECT pg_temp.id('%s', n), pg_temp.id('%s', n), '%s', 'default', 0, 'job', 'work', '{"number": 1}', '{}', 'system',
       'bench', %s
FROM generate_series(0, $1::bigint - 1) AS n
"""
_RECORDS = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, reason, final, kind, name, queue, priority, created_at,
                               run_at, claimed_at, started_at, ended_at, fence, worker_id, failures, losses, input,
                               initiator_type, initiator_name, %s)
SELECT pg_temp.id('%s', n), pg_temp.id('%s', n), %s, 'job', 'work', 'default', 0, now(), now(),
       now() + (n %% 4) * interval '1 ms', now(), now() + (n %% 4) * interval '1 ms', 1, pg_temp.id('worker', 1), 0, 0,
       '{"number": 1}', 'system', 'bench', %s
FROM generate_series(0, $1::bigint - 1) AS n
"""
_DONE, _FAILED = "1, 'completed', NULL, true", "1, 'failed', 'error', false"
_DONE_LATER = "2, 'completed', NULL, true"
_OF_BATCH = ("manifest_id, batch_id", "pg_temp.id('manifest', n % 10), pg_temp.id('batch', n % 10)")


def _tasks(kind: str, state: str, columns: str, values: str, activity: str | None = None) -> str:
    return _TASKS % (columns, kind, activity or kind, state, values)


def _records(id: str, task: str, ended: str, columns: str, values: str) -> str:
    statement = _RECORDS % (columns, id, task, ended, values)
    return statement.replace("ms', 1, pg_temp", "ms', 2, pg_temp") if ended is _DONE_LATER else statement


def _statements(count: int) -> list[tuple[str, list[int]]]:
    """Return the statements that create that many tasks and activities."""
    ended, going = count // 10, count // 40
    steps = "pg_temp.id('run', {first} + n / 4), n % 4 / 2, n % 4"
    columns = "execution_id, group_index, step_index"
    held = "1, pg_temp.id('worker', 1), now() + interval '1 h', now()"
    limited, one_batch = "'key ' || n % 200, 5", "'batch ' || n % 10, 5"
    item = f"limit_key, limit_max, {_OF_BATCH[0]}"
    of_open = steps.format(first=ended + 1)
    return [
        (_WORKER, []), (_MANIFESTS, []), (_BATCHES, [count * 15 // 100]), (_RUNS, [ended, going]),
        (_LEDGER, [ended + going]),
        (_tasks("plain", "queued", "tags", "NULL"), [count * 7 // 10 - 50]),
        (_tasks("held", "running", "fence, worker_id, lease_until, claimed_at", held), [50]),
        (_tasks("limited", "queued", "limit_key, limit_max", limited), [count // 20]),
        (_tasks("later", "scheduled", "run_at", "now() + interval '1 h'"), [count // 20]),
        (_tasks("again", "queued", "attempt, failures, fence", "2, 1, 1", "second"), [count // 20]),
        (_tasks("step", "queued", columns, of_open), [going * 4]),
        (_tasks("item", "queued", item, f"{one_batch}, {_OF_BATCH[1]}"), [count // 20]),
        ("UPDATE tenuto.tasks SET state = 'waiting' WHERE group_index = 1", []),
        (_records("done", "done", _DONE, "tags", "NULL"), [count * 35 // 100]),
        (_records("past", "past", _DONE, columns, steps.format(first=1)), [ended * 4]),
        (_records("was item", "was item", _DONE, *_OF_BATCH), [count // 10]),
        (_records("tried", "tried", _FAILED, "tags", "NULL"), [count // 20]),
        (_records("tried again", "tried", _DONE_LATER, "tags", "NULL"), [count // 20]),
        (_records("again", "again", _FAILED, "tags", "NULL"), [count // 20]),
    ]  # fmt: skip


DOCTOR = {"tenuto": "benchmarks.contenders.tenuto_contender"}


async def doctor(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Return the seconds of all checks of `tenuto doctor`, and of its slowest check."""
    count = size.of(1_000_000, 40_000)
    whole = Case(f"doctor, {count:,} tasks and records", "s")
    slowest = Case("doctor, its slowest question", "s")
    for contender in contenders:
        async with contender.prepared_database("bench_doctor") as url:
            progress(f"doctor, setting up {count:,} tasks and as many records")
            await fill_tables(url, count)

            async def run(_: Contender, url: str = url) -> None:
                took = await time_checks(url)
                whole.add("tenuto", sum(took.values()))
                slowest.add("tenuto", max(took.values()))
                progress("  slowest: " + ", ".join(f"{name} {took[name]:.2f} s" for name in _slowest(took)))

            await alternate([contender], size.runs, run, "all checks")
    return [whole, slowest]


async def fill_tables(url: str, count: int) -> None:
    """Create consistent tables of this size."""
    database = await Database.open(url)
    await partitions.ensure_partitions(database, database.clock.now())
    await database.close()
    async with databases.connected(url) as connection:
        began: int = await connection.fetchval("SELECT (extract(epoch FROM now()) * 1000)::bigint")
        await connection.execute(_ID % (began - count // 20))
        await connection.execute(_DUE % (began // 1000))
        for statement, values in _statements(count):
            await connection.execute(statement, *values, timeout=900)
    await databases.settle(url)


async def time_checks(url: str) -> dict[str, float]:
    """Return the duration of each check; fail if one timed out or found something."""
    took: dict[str, float] = {}
    with TemporaryDirectory() as home:
        app = Tenuto(url, home=home)
        at = monotonic_seconds()

        def answered(finding: Finding, _done: int, _of: int) -> None:
            nonlocal at
            took[finding.name], at = monotonic_seconds() - at, monotonic_seconds()

        findings = await app.doctor(answered)
    bad = [finding for finding in findings if finding.severity not in (Severity.OK, Severity.NOTE)]
    if bad:
        raise ContenderFailed("; ".join(f"{each.name}: {each.title} {each.details[:1]}" for each in bad))
    return took


def _slowest(took: dict[str, float]) -> list[str]:
    return sorted(took, key=took.__getitem__, reverse=True)[:5]
