"""Huey for `compare`: `huey_consumer` with four threads over Redis, waiting for the next task instead of polling.

A task leaves the queue when it is taken; no setting keeps it until it is done.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from huey import RedisHuey

from benchmarks.contenders import peer_protocol
from benchmarks.contenders.ledger import job

DATABASE = 3

huey = RedisHuey("bench", results=False, url=f"unix://{os.environ.get(peer_protocol.URL, '')}?db={DATABASE}")


@huey.task(name="noop")
def noop(payload: str) -> None:
    job(payload)


class Sender:
    async def one(self, payload: str) -> None:
        served.noop(payload)


class HueyQueue:
    packages = ("huey", "redis")

    async def prepare(self, url: str) -> None:
        huey.storage.conn.flushdb()

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Any]:
        yield Sender()

    def command(self) -> list[str]:
        return [
            "-m",
            "huey.bin.huey_consumer",
            f"{peer_protocol.module_name(__spec__)}.huey",
            "--workers",
            "4",
            "--quiet",
        ]

    async def remembered(self, url: str) -> int:
        return len(huey)


if __name__ == "__main__":
    from benchmarks.contenders import huey_queue as served  # tasks are identified by their module

    peer_protocol.main(HueyQueue())
