"""The line-up of `compare`: who takes part, with which settings, over which store, and what it may be asked for.

Every product stands here as it comes. Where its documentation has more to keep jobs, it stands here a second time, made
durable: with those settings, and over a Redis that writes to disk before it answers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders.arena import URL
from benchmarks.peers import peers_python
from benchmarks.processes import started

POSTGRESQL, REDIS, DURABLE_REDIS = "PostgreSQL", "Redis", "Redis, synced"

ON_DISK = "on disk before the call returns"
SNAPSHOTS = "in Redis' memory; on disk with its next snapshot"
SYNCED = "on disk before the call returns (`appendfsync always`)"


@dataclass(frozen=True)
class Entry:
    """One product with one set of settings."""

    name: str
    title: str
    script: str
    store: str
    settings: str
    drain: int
    """So many jobs that working them off takes some seconds."""
    bulk: bool = False
    steps: str = ""
    """Its script on the course of several steps, if it has groups after groups."""
    in_process: bool = False
    """Whether jobs run in the process that adds them, so that a worker apart would not hear of them."""
    speed: bool = True
    """Whether its speed is measured; not where it would be that of the same product further up."""

    @property
    def durability(self) -> str:
        return {POSTGRESQL: ON_DISK, REDIS: SNAPSHOTS, DURABLE_REDIS: SYNCED}[self.store]

    @property
    def module(self) -> str:
        return f"benchmarks.contenders.{self.script}"

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.name == "tenuto" else peers_python()

    async def ask(self, url: str, verb: str, *arguments: str, limit: float) -> dict[str, object]:
        """Run one verb of the script to its end and return its answer."""
        async with started(self.python, self.module, [verb, *arguments], self.name, {URL: url}) as process:
            answer = {} if verb == "prepare" else await process.answer(limit)
            await process.end(limit)
            return answer


LINEUP = [
    Entry(
        "tenuto",
        "Tenuto",
        "tenuto_queue",
        POSTGRESQL,
        "`tenuto worker --name bench`, one process: 100 slots, lease 30 s (defaults)",
        20_000,
        bulk=True,
        steps="tenuto_runs",
    ),
    Entry(
        "pgqueuer",
        "PgQueuer",
        "pgqueuer_queue",
        POSTGRESQL,
        "its manager in one process, batches of 100; heartbeat timeout 30 s (default)",
        10_000,
        bulk=True,
    ),
    Entry(
        "procrastinate",
        "Procrastinate",
        "procrastinate_queue",
        POSTGRESQL,
        "`app.run_worker`, one process, concurrency 20 (default: 1)",
        2_000,
        bulk=True,
    ),
    Entry(
        "procrastinate-durable",
        "Procrastinate, durable",
        "procrastinate_queue",
        POSTGRESQL,
        "the same with the periodic task of its documentation that retries stalled jobs (30 s, every 10 s)",
        2_000,
        bulk=True,
        speed=False,
    ),
    Entry(
        "dbos",
        "DBOS",
        "dbos_queue",
        POSTGRESQL,
        "one process, a workflow of one step, a queue of 50 at once, polled every 20 ms (default: 1 s)",
        600,
        steps="dbos_runs",
    ),
    Entry(
        "apscheduler",
        "APScheduler",
        "apscheduler_queue",
        POSTGRESQL,
        "a scheduler with ten threads (default); jobs late by 1 s are skipped (default)",
        500,
        in_process=True,
        speed=False,
    ),
    Entry(
        "apscheduler-durable",
        "APScheduler, durable",
        "apscheduler_queue",
        POSTGRESQL,
        "the same with `misfire_grace_time=None`; pick-up within one process, because it knows no other",
        500,
        in_process=True,
    ),
    Entry(
        "celery",
        "Celery",
        "celery_queue",
        REDIS,
        "`celery worker`, two processes, results ignored; acknowledged before the work (default)",
        1_500,
        steps="celery_runs",
    ),
    Entry(
        "celery-durable",
        "Celery, durable",
        "celery_queue",
        DURABLE_REDIS,
        "the same with `acks_late`, `reject_on_worker_lost`, prefetch 1, "
        "visibility timeout 20 s (default: 1 h), looked for every 2 s (100 s)",
        1_000,
        steps="celery_runs",
    ),
    Entry(
        "dramatiq",
        "Dramatiq",
        "dramatiq_queue",
        REDIS,
        "`dramatiq`, two processes of eight threads; heartbeat timeout 60 s, maintenance chance 0.1 % (defaults)",
        3_000,
    ),
    Entry(
        "dramatiq-durable",
        "Dramatiq, durable",
        "dramatiq_queue",
        DURABLE_REDIS,
        "the same with heartbeat timeout 10 s, maintenance chance 10 %",
        2_000,
    ),
    Entry(
        "huey",
        "Huey",
        "huey_queue",
        REDIS,
        "`huey_consumer`, four threads, results off",
        3_000,
    ),
    Entry(
        "huey-durable",
        "Huey, durable",
        "huey_queue",
        DURABLE_REDIS,
        "the same; it has no setting to keep a task until it is done",
        2_000,
    ),
    Entry(
        "taskiq",
        "taskiq",
        "taskiq_queue",
        REDIS,
        "`taskiq worker`, two processes, a Redis list",
        3_000,
    ),
    Entry(
        "taskiq-durable",
        "taskiq, durable",
        "taskiq_queue",
        DURABLE_REDIS,
        "the same with a Redis stream, acknowledged when executed, idle timeout 20 s (default: 10 min)",
        2_000,
    ),
]
