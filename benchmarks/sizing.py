"""How large an installation must be for a number of tasks a day: a table, and a simulation of one day that checks it.

The functions are pure. They start from the saved measurement of the benchmark `scale`, rounded up to two digits, or, if
there is none, from the assumptions in `PLANNING`. The tables are on docs/how-to/sizing.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DAY_SECONDS = 86_400
DAY_MINUTES = 24 * 60
NOON = 12 * 60
WAVE_MINUTES = 240
"""Half of the duration for which more tasks arrive than at night."""
PEAK_FACTOR = 4.0
"""Tasks of the busiest hour, divided by the average hour."""
TARGET_USE = 0.5
"""Share of the processors that is planned for the peak; the rest is for vacuum, queries and a lost machine."""
RECORD_GIGABYTES_PER_DATABASE = 2_000
"""More is slow to back up and to restore."""
WORKERS_PER_SERVER = 64
"""Processes that a server without a pooler serves easily: their connections, and their statements when idle."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one task with 200 bytes of input, and of one process."""

    wal_bytes: float
    record_bytes: float
    database_ms: float
    """CPU time to enqueue the task alone and to run it."""
    worker_ms: float
    connections: float
    """Of a busy worker."""
    commit_ms: float = 1.0
    """Time for which a commit waits for the disk. It is a property of the disk, and assumed."""


PLANNING = Costs(wal_bytes=3_000, record_bytes=1_800, database_ms=0.5, worker_ms=0.3, connections=8)
"""Assumptions, with which the goals of the benchmark compare each measurement."""
MEASURED = Path(__file__).parent / "results" / "scale.json"
_CASES = {
    "wal_bytes": ("cost of a task, WAL to enqueue it alone", "cost of a task, WAL to run it"),
    "record_bytes": ("cost of a task, disk for its record",),
    "database_ms": (
        "cost of a task, CPU of the database to enqueue it alone",
        "cost of a task, CPU of the database to run it",
    ),
    "worker_ms": ("cost of a task, CPU of the worker",),
    "connections": ("connections of a busy worker",),
}
"""The cases of the benchmark whose sum is a cost."""


def read_measured_costs(result: Mapping[str, Any]) -> Costs:
    """Return the costs that a result of the benchmark `scale` contains, rounded up."""
    found = {case["case"]: case["tenuto"] for case in result["results"]}
    return Costs(**{name: _round_up(sum(found[case] for case in cases)) for name, cases in _CASES.items()})


def _round_up(figure: float) -> float:
    """Round up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(figure)) - 1)
    return round(math.ceil(round(figure / unit, 6)) * unit, 6)


def load_costs(path: Path = MEASURED) -> Costs:
    """Return the measured costs, or the assumptions if there is no saved measurement."""
    return read_measured_costs(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else PLANNING


COSTS = load_costs()


@dataclass(frozen=True)
class Load:
    """The load for which sizes are computed."""

    tasks_per_day: int
    job_seconds: float = 0.2
    """Average time for which a job occupies its slot; it waits for other services most of the time."""
    job_cpu_seconds: float = 0.005
    retention_days: int = 90
    callers: int = 20
    """Callers that enqueue at the same time, each waiting for its commit."""
    partition_days: int = 31
    """Length of a partition: records are dropped by the partition."""

    @property
    def average_rate(self) -> float:
        return self.tasks_per_day / DAY_SECONDS

    @property
    def peak_rate(self) -> float:
        return self.average_rate * PEAK_FACTOR


@dataclass(frozen=True, slots=True)
class Installation:
    """Sizes that are enough for a load; of each database where there are several."""

    databases: int
    database_cores: int
    workers: int
    """Processes in total, of 100 slots and one core each."""
    connections: int
    wal_gigabytes_per_day: float
    record_gigabytes: float


def plan(load: Load, costs: Costs = COSTS, slots: int = 100) -> Installation:
    """Return the smallest installation that keeps its processors at `TARGET_USE` in the busiest hour."""
    kept_days = load.retention_days + load.partition_days
    record_gigabytes = load.tasks_per_day * kept_days * costs.record_bytes / 1e9
    per_worker = TARGET_USE * min(1000 / (costs.worker_ms + load.job_cpu_seconds * 1000), slots / load.job_seconds)
    workers = max(2, math.ceil(load.peak_rate / per_worker))
    databases = max(
        math.ceil(record_gigabytes / RECORD_GIGABYTES_PER_DATABASE), math.ceil(workers / WORKERS_PER_SERVER)
    )
    cores = max(2, math.ceil(load.peak_rate * costs.database_ms / 1000 / TARGET_USE / databases))
    services = 2 + 2  # schedulers and web services of each database, with up to ten connections each
    return Installation(
        databases=databases,
        database_cores=cores,
        workers=workers,
        connections=math.ceil(workers / databases * costs.connections) + services * 10,
        wal_gigabytes_per_day=load.tasks_per_day * costs.wal_bytes / 1e9 / databases,
        record_gigabytes=record_gigabytes / databases,
    )


@dataclass(frozen=True, slots=True)
class Day:
    """What happened on a simulated day."""

    finished: float
    busiest_database: float
    """Largest share of the processors of the databases in a minute."""
    busiest_workers: float
    """Largest share of the workers, of their processors or slots, in a minute."""
    longest_wait_minutes: int
    """Of a task, from its arrival to its end."""
    backlog_minutes: int
    """Minutes at whose end tasks waited for a worker."""
    wal_gigabytes: float
    busiest_commits: float
    """Largest share of a minute for which the callers wait for commits."""


def simulate_day(
    load: Load, installation: Installation, costs: Costs = COSTS, slots: int = 100, outage_minutes: int = 0
) -> Day:
    """Replay the costs minute by minute; no worker runs for ``outage_minutes`` from noon on, when most tasks arrive."""
    by_cpu = installation.workers * 60_000 / (costs.worker_ms + load.job_cpu_seconds * 1000)
    by_workers = min(by_cpu, installation.workers * slots * 60 / load.job_seconds)
    by_database = installation.databases * installation.database_cores * 60_000 / costs.database_ms
    by_commits = load.callers * 60_000 / costs.commit_ms
    offered, arrived, finished, longest_wait, busiest_commits = 0.0, 0.0, 0.0, 0, 0.0
    busiest, backlog_minutes = 0.0, 0
    arrivals_until: list[float] = []
    oldest = 0
    for minute in range(DAY_MINUTES):
        offered += arrivals(load, minute)
        accepted = min(offered - arrived, by_commits)  # callers that wait for their commits enqueue later
        arrived += accepted
        busiest_commits = max(busiest_commits, accepted / by_commits)
        arrivals_until.append(arrived)
        is_out = NOON <= minute < NOON + outage_minutes
        done = 0.0 if is_out else min(arrived - finished, by_workers, by_database)
        finished += done
        busiest = max(busiest, done)
        backlog_minutes += arrived - finished > 1
        while oldest <= minute and arrivals_until[oldest] <= finished * (1 + 1e-9):
            longest_wait = max(longest_wait, minute - oldest)
            oldest += 1
    if oldest < DAY_MINUTES:  # the tasks of that minute have not ended on this day
        longest_wait = max(longest_wait, DAY_MINUTES - oldest)
    return Day(
        finished,
        busiest / by_database,
        busiest / by_workers,
        longest_wait,
        backlog_minutes,
        finished * costs.wal_bytes / 1e9,
        busiest_commits,
    )


def arrivals(load: Load, minute: int) -> float:
    """Return how many tasks arrive in a minute of the day: a constant base, and a wave in the shape of cos² around noon
    whose top is `PEAK_FACTOR` times the average.
    """
    average = load.tasks_per_day / DAY_MINUTES
    base = (DAY_MINUTES - PEAK_FACTOR * WAVE_MINUTES) / (DAY_MINUTES - WAVE_MINUTES)
    distance = abs(minute - NOON)
    wave = math.cos(math.pi / 2 * distance / WAVE_MINUTES) ** 2 if distance < WAVE_MINUTES else 0.0
    return average * (base + (PEAK_FACTOR - base) * wave)


STEPS = (
    (
        Load(1_000_000),
        "Nothing: the defaults are enough. Run the two workers on two machines.",
    ),
    (
        Load(10_000_000, retention_days=30, partition_days=1),
        "A separate database server with `max_wal_size = 16GB`; `TENUTO_RETENTION_DAYS=30` and "
        "`TENUTO_PARTITION_PERIOD=day`; many enqueueing processes through PgBouncer.",
    ),
    (
        Load(100_000_000, retention_days=7, partition_days=1),
        "`TENUTO_RETENTION_DAYS=7`; workers on several machines; enqueue in bulk where tasks arrive together; "
        "several databases, by queue or tenant, if one is too large to restore in the time that you have.",
    ),
)
"""The loads of the table, with what to change at each step."""


OUTAGE_MINUTES = 30


def render_table(steps: Sequence[tuple[Load, str]] = STEPS) -> str:
    """Return the table of docs/how-to/sizing.md."""
    heads = ["", *(_describe(load.tasks_per_day) for load, _ in steps)]
    plans = [(load, plan(load)) for load, _ in steps]
    days = [simulate_day(load, made) for load, made in plans]
    outages = [simulate_day(load, made, outage_minutes=OUTAGE_MINUTES) for load, made in plans]
    rows = [
        [
            "tasks per second, average / peak",
            *(f"{load.average_rate:,.0f} / {load.peak_rate:,.0f}" for load, _ in plans),
        ],
        ["retention, days", *(f"{load.retention_days}" for load, _ in plans)],
        ["partitions by", *("day" if load.partition_days == 1 else "month" for load, _ in plans)],
        ["databases", *(f"{made.databases}" for _, made in plans)],
        ["cores of each database", *(f"{made.database_cores}" for _, made in plans)],
        ["worker processes in total (one core, 100 slots)", *(f"{made.workers}" for _, made in plans)],
        ["connections of each database", *(f"{made.connections}" for _, made in plans)],
        ["WAL of each database, GB a day", *(f"{made.wal_gigabytes_per_day:,.0f}" for _, made in plans)],
        ["records on disk of each database, GB", *(f"{made.record_gigabytes:,.0f}" for _, made in plans)],
        ["simulated day: use of the databases in the busiest minute", *(f"{day.busiest_database:.0%}" for day in days)],
        ["simulated day: use of the workers in the busiest minute", *(f"{day.busiest_workers:.0%}" for day in days)],
        [
            "simulated day: callers wait for commits of 1 ms, share of the busiest minute",
            *(f"{day.busiest_commits:.0%}" for day in days),
        ],
        [
            f"simulated outage of all workers for {OUTAGE_MINUTES} min at noon: backlog gone after, min",
            *(f"{day.backlog_minutes}" for day in outages),
        ],
        *([["change", *(change for _, change in steps)]] if any(change for _, change in steps) else []),
    ]
    return "\n".join(
        [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
    )


def render_costs(costs: Costs = COSTS) -> str:
    """Return the costs from which the table is computed, with their source."""
    source = (
        "They are assumed: no measurement of the benchmark [`scale`](../performance.md) is saved."
        if costs == PLANNING
        else "They are rounded up from the last measurement of the benchmark [`scale`](../performance.md)."
    )
    rows = [
        ("WAL to enqueue and run a task", f"{costs.wal_bytes / 1000:g} kB"),
        ("disk of its record, with indexes", f"{costs.record_bytes / 1000:g} kB"),
        ("CPU time of the database to enqueue and run it", f"{costs.database_ms:g} ms"),
        ("CPU time of the worker, without the job", f"{costs.worker_ms:g} ms"),
        ("connections of a busy worker", f"{costs.connections:g} (at most 23)"),
        ("time for which a commit waits for the disk (assumed)", f"{costs.commit_ms:g} ms"),
    ]
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join([source, "", "| cost of a task | |", "|---|---|", *lines])


def _describe(tasks_per_day: int) -> str:
    millions = tasks_per_day / 1_000_000
    return f"{millions:g} million a day" if millions >= 1 else f"{tasks_per_day:,} a day"


def main() -> None:
    """Print the table of one load."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=main.__doc__)
    parser.add_argument("tasks_per_day", type=int)
    parser.add_argument("--job-seconds", type=float, default=Load.job_seconds)
    parser.add_argument("--job-cpu-seconds", type=float, default=Load.job_cpu_seconds)
    parser.add_argument("--retention-days", type=int, default=Load.retention_days)
    parser.add_argument("--partition-days", type=int, choices=(1, 31), default=Load.partition_days)
    print(render_table([(Load(**vars(parser.parse_args())), "")]))


if __name__ == "__main__":
    main()
