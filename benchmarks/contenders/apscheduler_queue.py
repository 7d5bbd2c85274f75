"""APScheduler 3 for `compare`: jobs to run immediately, stored in PostgreSQL, run by ten threads of the scheduler
itself.

It has no separate workers: the process that adds jobs runs them and does not notice jobs of other processes. So the
latency is measured within one process, and otherwise a paused scheduler adds the jobs. A job leaves the store when a
thread takes it. In the durable entry a job may be late for any length of time; by default one that is late by a
second
is skipped.
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

from benchmarks.contenders import peer_protocol
from benchmarks.contenders.ledger import LEDGER, job


def scheduler(url: str) -> BackgroundScheduler:
    store = SQLAlchemyJobStore(url=url.replace("postgresql://", "postgresql+psycopg://", 1))
    late = {"misfire_grace_time": None} if peer_protocol.is_durable() else {}
    return BackgroundScheduler(jobstores={"default": store}, job_defaults=late)


def serve() -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # it logs each job as missed
    made = scheduler(os.environ[peer_protocol.URL])
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
        pass  # the product creates its table itself

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Any]:
        made = scheduler(url)
        made.start(paused=LEDGER not in os.environ)
        yield Sender(made)  # not shut down: even a paused scheduler would take jobs out of the store at its end

    def command(self) -> list[str]:
        return ["-c", f"import {peer_protocol.module_name(__spec__)} as it; it.serve()"]

    async def remembered(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        counted: int = await connection.fetchval("SELECT count(*) FROM apscheduler_jobs")
        await connection.close()
        return counted


if __name__ == "__main__":
    peer_protocol.main(ApschedulerQueue())
