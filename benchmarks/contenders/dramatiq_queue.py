"""Dramatiq in the arena: `dramatiq` with two processes of eight threads, its default on two cores, over Redis.

It acknowledges after the work by default. What a dead process held comes back when others notice: after a minute, and
when one of a thousand commands happens to look. Made durable: after 10 s, and one of ten commands looks.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from benchmarks.contenders import arena
from benchmarks.contenders.ledger import job

DATABASE = 2
DURABLE = {"heartbeat_timeout": 10_000, "maintenance_chance": 100_000}

client = redis.Redis(unix_socket_path=os.environ.get(arena.URL, ""), db=DATABASE)
broker = RedisBroker(client=client, **(DURABLE if arena.durable() else {}))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(payload: str) -> None:
    job(payload)


class Sender:
    async def one(self, payload: str) -> None:
        noop.send(payload)


class DramatiqQueue:
    packages = ("dramatiq", "redis")

    async def prepare(self, url: str) -> None:
        client.flushdb()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Any]:
        yield Sender()

    def command(self) -> list[str]:
        return ["-m", "dramatiq", arena.module(__spec__), "--processes", "2", "--threads", "8", "--skip-logging"]

    async def remembered(self, url: str) -> int:
        counted: int = client.hlen("dramatiq:default.msgs") + client.hlen("dramatiq:default.DQ.msgs")
        return counted


if __name__ == "__main__":
    arena.main(DramatiqQueue())
