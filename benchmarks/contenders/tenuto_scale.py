"""A process of the benchmark `scale`: it works, enqueues or idles as the harness commands, one JSON object per line.

The processes stay alive between the cases, because twenty starts would take longer than a case.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.start_counters import make_payload
from tenuto import Job, Tenuto
from tenuto.settings import load_settings
from tenuto.store.work import task_creation

POOLED_CALLS = 3
"""Calls of each caller before the clock starts: its connection is open and its statements are prepared."""

_started_count = 0


def add_jobs(app: Tenuto) -> dict[str, Job[..., Any]]:
    """Declare the jobs of all cases."""

    async def noop(payload: str) -> None:
        _count_start()

    async def sleep_5_ms(payload: str) -> None:
        _count_start()
        await asyncio.sleep(0.005)

    def cpu_1_ms(payload: str) -> None:
        _count_start()
        end = time.thread_time_ns() + 1_000_000
        while time.thread_time_ns() < end:
            pass

    return {job.__name__: app.job(job) for job in (noop, sleep_5_ms, cpu_1_ms)}


def _count_start() -> None:
    global _started_count
    _started_count += 1


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Agent:
    """Runs one command after the other. A command that must be stopped answers when it is ready and at its end."""

    def __init__(self, gate: contender_protocol.StandardStreamGate, home: str) -> None:
        self._gate = gate
        self._home = home

    async def run(self) -> None:
        commands: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
            "work": self.work, "enqueue": self.enqueue, "bulk": self.bulk,
        }  # fmt: skip
        contender_protocol.print_answer(ready=True)
        while line := await self._gate.read_line():
            command = json.loads(line)
            answer = await commands[command.pop("do")](**command)
            contender_protocol.print_answer(**answer)

    async def work(self, url: str, queues: list[str], workers: int, is_pooled: bool) -> dict[str, Any]:
        """Run workers until the next line; return how many jobs started and the CPU time of this process."""
        global _started_count
        async with AsyncExitStack() as stack:
            _started_count, used = 0, _cpu_seconds()
            for number in range(workers):
                app = await stack.enter_async_context(self._app(url, is_pooled))
                add_jobs(app)
                name = f"scale-{os.getpid()}-{number}"
                await stack.enter_async_context(app.worker(name=name, queues=queues))
            contender_protocol.print_answer(ready=True)
            await self._gate.read_line()
            return {"starts": _started_count, "cpu_seconds": _cpu_seconds() - used}

    async def bulk(self, url: str, job: str, queues: list[str], count: int) -> dict[str, Any]:
        """Enqueue in bulk, divided among the queues."""
        async with self._app(url, is_pooled=False) as app:
            template = add_jobs(app)[job]
            for queue in queues:
                share = count // len(queues)
                await app.enqueue_many(
                    template.using(queue=queue), ({"payload": make_payload(number)} for number in range(share))
                )
        return {}

    async def enqueue(
        self, url: str, callers: int, connections: int, seconds: float, way: str, is_pooled: bool
    ) -> dict[str, Any]:
        """Enqueue single tasks from concurrent callers, after the next line; return their calls.

        The callers share ``connections`` apps, each with its own connections.
        """
        _choose_notification(way)
        async with AsyncExitStack() as stack:
            apps = [await stack.enter_async_context(self._app(url, is_pooled)) for _ in range(connections)]
            jobs = [add_jobs(app)["noop"] for app in apps]
            milliseconds: list[float] = []

            async def call(caller: int, until_ns: int, kept: list[float] | None, times: int = 0) -> None:
                app, job = apps[caller % connections], jobs[caller % connections]
                number = 0
                while time.monotonic_ns() < until_ns or number < times:
                    number += 1
                    began = time.monotonic_ns()
                    await app.enqueue(job, payload=make_payload(number))
                    if kept is not None:
                        kept.append((time.monotonic_ns() - began) / 1e6)

            await asyncio.gather(*(call(caller, 0, None, POOLED_CALLS) for caller in range(callers)))
            contender_protocol.print_answer(ready=True)
            await self._gate.read_line()
            began, used = time.monotonic_ns(), _cpu_seconds()
            until_ns = began + int(seconds * 1e9)
            await asyncio.gather(*(call(caller, until_ns, milliseconds) for caller in range(callers)))
            return {
                "milliseconds": milliseconds,
                "began": began,
                "ended": time.monotonic_ns(),
                "cpu_seconds": _cpu_seconds() - used,
            }

    @asynccontextmanager
    async def _app(self, url: str, is_pooled: bool) -> AsyncIterator[Tenuto]:
        settings = load_settings(
            database=url, home=self._home, behind_pooler=is_pooled, disabled_extensions=("identity", "notifications")
        )
        async with Tenuto(settings=settings) as app:
            yield app


_STATEMENTS = {name: getattr(task_creation.SQL, name) for name in ("enqueue_task", "enqueue_tasks")}
_MAY_NOTIFY = "pg_try_advisory_xact_lock(hashtext('tenuto enqueue notification'))"


def _choose_notification(way: str) -> None:
    """Set how an enqueue notifies the workers: as Tenuto does, inside every statement, or never."""
    for name, text in _STATEMENTS.items():
        assert _MAY_NOTIFY in text
        changed = {
            "tenuto": text,
            "in each statement": text.replace(_MAY_NOTIFY, "true"),
            "none": text.replace("pg_notify('tenuto',", "concat_ws(' ', 'tenuto',").replace(_MAY_NOTIFY, "true"),
        }[way]
        setattr(task_creation.SQL, name, changed)


async def main() -> None:
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        await Agent(gate, home).run()


if __name__ == "__main__":
    contender_protocol.run(main())
