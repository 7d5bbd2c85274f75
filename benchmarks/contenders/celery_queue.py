"""Celery for `compare`: `celery worker` with two processes, over Redis, results ignored.

The durable entry acknowledges after the work, also when a child dies, prefetches one, and makes unacknowledged jobs
visible again after 20 s instead of an hour, checked every 2 s instead of every 100 s.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery

from benchmarks.contenders import peer_protocol
from benchmarks.contenders.ledger import job

DATABASE = 0
DURABLE = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
    "broker_transport_options": {
        "visibility_timeout": 20,
        "unacked_restore_interval": 2,
        "unacked_restore_throttle": 1,
    },
}
POOL = ["--pool", "prefork", "--concurrency", "2"]
ALONE = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]

app = Celery("bench", broker=f"redis+socket://{os.environ.get(peer_protocol.URL, '')}?virtual_host={DATABASE}")
app.conf.update(broker_connection_retry_on_startup=True, task_ignore_result=True)
if peer_protocol.is_durable():
    app.conf.update(DURABLE)


@app.task(name="noop")
def noop(payload: str) -> None:
    job(payload)


class Sender:
    async def one(self, payload: str) -> None:
        noop.delay(payload)


class CeleryQueue:
    packages = ("celery", "kombu", "redis")

    async def prepare(self, url: str) -> None:
        app.connection_for_write().default_channel.client.flushdb()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Any]:
        yield Sender()

    def command(self) -> list[str]:
        return ["-m", "celery", "--app", peer_protocol.module_name(__spec__), "worker", *POOL, *ALONE]

    async def remembered(self, url: str) -> int:
        redis = app.connection_for_read().default_channel.client
        counted: int = redis.llen("celery") + redis.hlen("unacked")
        return counted


if __name__ == "__main__":
    peer_protocol.main(CeleryQueue())
