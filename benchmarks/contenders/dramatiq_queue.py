"""Dramatiq for `compare`: `dramatiq` with two processes of eight threads, its default on two cores, over Redis.

It acknowledges after the work by default. Other processes recover the jobs of a dead one after a minute, when one of
a
thousand commands happens to check. The durable entry waits 10 s, and one of ten commands checks.
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

from benchmarks.contenders import peer_protocol
from benchmarks.contenders.ledger import job

DATABASE = 2
DURABLE = {"heartbeat_timeout": 10_000, "maintenance_chance": 100_000}

client = redis.Redis(unix_socket_path=os.environ.get(peer_protocol.URL, ""), db=DATABASE)
broker = RedisBroker(client=client, **(DURABLE if peer_protocol.is_durable() else {}))
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
        return [
            "-m",
            "dramatiq",
            peer_protocol.module_name(__spec__),
            "--processes",
            "2",
            "--threads",
            "8",
            "--skip-logging",
        ]

    async def remembered(self, url: str) -> int:
        counted: int = client.hlen("dramatiq:default.msgs") + client.hlen("dramatiq:default.DQ.msgs")
        return counted


if __name__ == "__main__":
    peer_protocol.main(DramatiqQueue())
