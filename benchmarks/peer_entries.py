"""Entries of `compare`: products with their settings, their store and their capabilities.

Every product has an entry with default settings. If its documentation has more settings to keep jobs, it has a
second,
durable entry: with those settings, over a Redis that writes to disk before it answers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders.peer_protocol import URL
from benchmarks.peers import peers_python
from benchmarks.processes import start_process

POSTGRESQL, REDIS, DURABLE_REDIS = "PostgreSQL", "Redis", "Redis, synced"

ON_DISK = "on disk before the call returns"
SNAPSHOTS = "in Redis' memory; on disk with its next snapshot"
SYNCED = "on disk before the call returns (`appendfsync always`)"


@dataclass(frozen=True)
class PeerEntry:
    """One product with one set of settings."""

    name: str
    title: str
    script: str
    store: str
    settings: str
    drain_count: int
    """Number of jobs whose drain takes some seconds."""
    has_bulk: bool = False
    runner_script: str = ""
    """Script for executions of several steps, if the product has groups that follow groups."""
    in_process: bool = False
    """Whether jobs run in the process that adds them, so that a separate worker would not notice them."""
    measures_speed: bool = True
    """Whether its speed is measured; not if it equals that of another entry of the product."""

    @property
    def durability(self) -> str:
        return {POSTGRESQL: ON_DISK, REDIS: SNAPSHOTS, DURABLE_REDIS: SYNCED}[self.store]

    @property
    def module(self) -> str:
        return f"benchmarks.contenders.{self.script}"

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.name == "tenuto" else peers_python()

    async def run_command(self, url: str, verb: str, *arguments: str, limit: float) -> dict[str, object]:
        """Run one command of the script to its end and return its answer."""
        async with start_process(self.python, self.module, [verb, *arguments], self.name, {URL: url}) as process:
            answer = {} if verb == "prepare" else await process.read_answer(limit)
            await process.wait_for_exit(limit)
            return answer


ENTRIES = [
    PeerEntry(
        "tenuto",
        "Tenuto",
        "tenuto_queue",
        POSTGRESQL,
        "`tenuto worker --name bench`, one process: 100 slots, lease 30 s (defaults)",
        20_000,
        has_bulk=True,
        runner_script="tenuto_runs",
    ),
    PeerEntry(
        "pgqueuer",
        "PgQueuer",
        "pgqueuer_queue",
        POSTGRESQL,
        "its manager in one process, batches of 100; heartbeat timeout 30 s (default)",
        10_000,
        has_bulk=True,
    ),
    PeerEntry(
        "procrastinate",
        "Procrastinate",
        "procrastinate_queue",
        POSTGRESQL,
        "`app.run_worker`, one process, concurrency 20 (default: 1)",
        2_000,
        has_bulk=True,
    ),
    PeerEntry(
        "procrastinate-durable",
        "Procrastinate, durable",
        "procrastinate_queue",
        POSTGRESQL,
        "the same with the periodic task of its documentation that retries stalled jobs (30 s, every 10 s)",
        2_000,
        has_bulk=True,
        measures_speed=False,
    ),
    PeerEntry(
        "dbos",
        "DBOS",
        "dbos_queue",
        POSTGRESQL,
        "one process, a workflow of one step, a queue of 50 at once, polled every 20 ms (default: 1 s)",
        600,
        runner_script="dbos_runs",
    ),
    PeerEntry(
        "apscheduler",
        "APScheduler",
        "apscheduler_queue",
        POSTGRESQL,
        "a scheduler with ten threads (default); jobs late by 1 s are skipped (default)",
        500,
        in_process=True,
        measures_speed=False,
    ),
    PeerEntry(
        "apscheduler-durable",
        "APScheduler, durable",
        "apscheduler_queue",
        POSTGRESQL,
        "the same with `misfire_grace_time=None`; pick-up within one process, because it knows no other",
        500,
        in_process=True,
    ),
    PeerEntry(
        "celery",
        "Celery",
        "celery_queue",
        REDIS,
        "`celery worker`, two processes, results ignored; acknowledged before the work (default)",
        1_500,
        runner_script="celery_runs",
    ),
    PeerEntry(
        "celery-durable",
        "Celery, durable",
        "celery_queue",
        DURABLE_REDIS,
        (
            "the same with `acks_late`, `reject_on_worker_lost`, prefetch 1, "
            "visibility timeout 20 s (default: 1 h), checked every 2 s (100 s)"
        ),
        1_000,
        runner_script="celery_runs",
    ),
    PeerEntry(
        "dramatiq",
        "Dramatiq",
        "dramatiq_queue",
        REDIS,
        "`dramatiq`, two processes of eight threads; heartbeat timeout 60 s, maintenance chance 0.1 % (defaults)",
        3_000,
    ),
    PeerEntry(
        "dramatiq-durable",
        "Dramatiq, durable",
        "dramatiq_queue",
        DURABLE_REDIS,
        "the same with heartbeat timeout 10 s, maintenance chance 10 %",
        2_000,
    ),
    PeerEntry(
        "huey",
        "Huey",
        "huey_queue",
        REDIS,
        "`huey_consumer`, four threads, results off",
        3_000,
    ),
    PeerEntry(
        "huey-durable",
        "Huey, durable",
        "huey_queue",
        DURABLE_REDIS,
        "the same; it has no setting to keep a task until it is done",
        2_000,
    ),
    PeerEntry(
        "taskiq",
        "taskiq",
        "taskiq_queue",
        REDIS,
        "`taskiq worker`, two processes, a Redis list",
        3_000,
    ),
    PeerEntry(
        "taskiq-durable",
        "taskiq, durable",
        "taskiq_queue",
        DURABLE_REDIS,
        "the same with a Redis stream, acknowledged when executed, idle timeout 20 s (default: 10 min)",
        2_000,
    ),
]
