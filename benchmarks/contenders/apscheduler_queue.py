"""APScheduler 3 in the arena: jobs to run at once, kept in PostgreSQL, run by ten threads of the scheduler itself.

It has no workers apart: whoever adds jobs runs them, and does not hear of jobs another process adds. So a job is timed
within one process, and for all else jobs are added by a scheduler that is paused. A job leaves the store when it is
handed to a thread. Made durable, a job may be late for any length of time; by default one that is late by a second is
skipped.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.contenders import arena
from benchmarks.contenders.ledger import LEDGER, job


def scheduler(url: str) -> BackgroundScheduler:
    store = SQLAlchemyJobStore(url=url.replace("postgresql://", "postgresql+psycopg://", 1))
    late = {"misfire_grace_time": None} if arena.durable() else {}
    return BackgroundScheduler(jobstores={"default": store}, job_defaults=late)


def serve() -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # it says of each job that it was missed
    made = scheduler(os.environ[arena.URL])
    made.start()
    ended.wait()
    made.shutdown(wait=False)


class Sender:
    def __init__(self, made: BackgroundScheduler) -> None:
        self._scheduler = made

    async def one(self, payload: str) -> None:
        self._scheduler.add_job(job, args=[payload])


class ApschedulerQueue:
    packages = ("apscheduler", "sqlalchemy", "psycopg")

    async def prepare(self, url: str) -> None:
        pass  # it makes its table itself

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Any]:
        made = scheduler(url)
        made.start(paused=LEDGER not in os.environ)
        yield Sender(made)  # not shut down: it would take jobs out of the store on leaving, though it is paused

    def command(self) -> list[str]:
        return ["-c", f"import {arena.module(__spec__)} as it; it.serve()"]

    async def remembered(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        counted: int = await connection.fetchval("SELECT count(*) FROM apscheduler_jobs")
        await connection.close()
        return counted


if __name__ == "__main__":
    arena.main(ApschedulerQueue())
