"""Taskiq for `compare`: `taskiq worker` with two processes, its default, over a Redis list.

The durable entry has a Redis stream instead, whose entries are acknowledged after the work; unacknowledged ones are
taken over after 20 s instead of ten minutes.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from taskiq.acks import AcknowledgeType
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from benchmarks.contenders import peer_protocol
from benchmarks.contenders.ledger import async_job

DATABASE = 4
IDLE, LOCK = 20_000, 5

where = f"unix://{os.environ.get(peer_protocol.URL, '')}?db={DATABASE}"
# Its client gives up on a reply after 5 s by default, which ends a worker that waits on an empty queue.
broker = (
    RedisStreamBroker(where, idle_timeout=IDLE, consumer_id="0", unacknowledged_lock_timeout=LOCK, socket_timeout=None)
    if peer_protocol.is_durable()
    else ListQueueBroker(where, socket_timeout=None)
)


@broker.task(task_name="noop")
async def noop(payload: str) -> None:
    await async_job(payload)


class Sender:
    async def one(self, payload: str) -> None:
        await noop.kiq(payload)


class TaskiqQueue:
    packages = ("taskiq", "taskiq-redis", "redis")

    async def prepare(self, url: str) -> None:
        async with Redis.from_url(where) as redis:
            await redis.flushdb()
        await broker.startup()
        await broker.shutdown()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Any]:
        await broker.startup()
        yield Sender()
        await broker.shutdown()

    def command(self) -> list[str]:
        late = ["--ack-type", AcknowledgeType.WHEN_EXECUTED.value] if peer_protocol.is_durable() else []
        return [
            "-m",
            "taskiq",
            "worker",
            f"{peer_protocol.module_name(__spec__)}:broker",
            "--workers",
            "2",
            "--log-level",
            "ERROR",
            *late,
        ]

    async def remembered(self, url: str) -> int:
        async with Redis.from_url(where) as redis:
            if not peer_protocol.is_durable():
                return int(await redis.llen("taskiq"))
            (group,) = await redis.xinfo_groups("taskiq")
            return int(group["pending"]) + int(group["lag"] or 0)


if __name__ == "__main__":
    peer_protocol.main(TaskiqQueue())
