"""Celery for `executions`: a chain with two groups, which it turns into chords, over Redis as broker and result
store.

One `celery worker` under three names, because the best pool depends on the machine: `celery` has two processes (its
default on two cores), `celery-threads` eight threads, `celery-solo` neither. Gossip and heartbeats between workers
are
off, because a single worker does not need them.

There are two ways to wait for the end. A chain that ends in a group gives a result whose `get`, as in the manual,
polls
every half second; `celery-get` waits so. All others wait for each result of the last group by itself, which Celery
reports at once: unusual code, but the best it offers.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from celery import Celery, chain, group

from benchmarks.contenders import contender_protocol, runner_protocol
from benchmarks.contenders.start_counters import Starts

POOLS = {
    "celery": ["--pool", "prefork", "--concurrency", "2"],
    "celery-threads": ["--pool", "threads", "--concurrency", "8"],
    "celery-solo": ["--pool", "solo"],
    "celery-durable": ["--pool", "prefork", "--concurrency", "2"],
    "celery-get": ["--pool", "prefork", "--concurrency", "2"],
}
ALONE = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]


def build(socket: str) -> Celery:
    made = Celery(
        "bench",
        broker=f"redis+socket://{socket}?virtual_host=0",
        backend=f"redis+socket://{socket}?virtual_host=1",
    )
    made.conf.broker_connection_retry_on_startup = True
    return made


app = build(os.environ.get("BENCH_REDIS", ""))
starts = Starts(Path(os.environ.get("BENCH_FOLDER", "")))


@app.task(name="noop")
def noop() -> None:
    starts.count()


class Submitter:
    async def submit(self) -> Any:
        step = noop.si
        return chain(step(), step(), group(step(), step()), group(step(), step())).apply_async()

    async def ended(self, execution: Any) -> None:
        waited_for = [execution] if os.environ["BENCH_CONTENDER"] == "celery-get" else execution.results
        for each in waited_for:
            each.get(timeout=runner_protocol.TIMEOUT_SECONDS)


class CeleryRunner:
    packages = ("celery", "kombu", "redis")

    async def prepare(self, url: str) -> None:
        build(url).backend.client.flushall()

    @asynccontextmanager
    async def submitter(self, url: str) -> AsyncIterator[Submitter]:
        app.conf.update(broker_url=build(url).conf.broker_url, result_backend=build(url).conf.result_backend)
        yield Submitter()

    async def work(self, url: str, starts: Starts, gate: contender_protocol.Gate) -> None:
        pool = POOLS[os.environ["BENCH_CONTENDER"]]
        await gate.ready()
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-m", "celery", "--app", __spec__.name, "worker", *pool, *ALONE),
            env={**os.environ, "BENCH_REDIS": url, "BENCH_FOLDER": str(starts.folder)},
            stdout=asyncio.subprocess.DEVNULL,
        )
        await gate.wait_for_stop()
        worker.terminate()
        await worker.wait()

    async def audit(self, url: str) -> tuple[int, int]:
        redis = build(url).backend.client
        redis_of_broker = build(url).connection_for_read().default_channel.client
        ended = sum(1 for _ in redis.scan_iter("celery-task-meta-*", count=1000))
        return redis_of_broker.llen("celery"), ended // runner_protocol.STEPS

    async def handovers(self, url: str) -> list[float]:
        return []


if __name__ == "__main__":
    runner_protocol.main(CeleryRunner())
