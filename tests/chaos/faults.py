"""Faults and their order, chosen by a seeded random generator; some run in parallel.

Kills count towards the end of a run (`--kills`). Between them come freezes beyond the lease, clean restarts, closed
and stalled connections, lost replies, terminated backends, and restarts of the database.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncpg

from tests.chaos.environment import LEASE_SECONDS, Environment

_OTHER_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
_STATEMENTS_TO_LOSE = ("COMMIT", "", "BEGIN")


class Faults:
    """Injects faults until the run is over."""

    def __init__(self, environment: Environment, pace: Callable[[], bool]) -> None:
        self._environment = environment
        self._may_continue = pace
        self._chance = random.Random(environment.chance.random())
        self._background: set[asyncio.Task[None]] = set()
        self.is_over = False
        self._faults: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (40, self._kill_worker),
            (12, self._kill_scheduler),
            (8, self._kill_web_service),
            (1, self._kill_all),
            (4, self._freeze_beyond_lease),
            (4, self._freeze_briefly),
            (3, self._restart_cleanly),
            (10, self._lose_replies),
            (3, self._close_connections),
            (2, self._stall_connections),
            (4, self._terminate_backends),
            (1, self._kill_backend),
            (1, self._restart_database),
        ]

    async def run(self) -> None:
        """Inject faults until the run is over; each kind occurs once before chance decides alone."""
        environment = self._environment
        first = [fault for _, fault in self._faults]
        self._chance.shuffle(first)
        weights, faults = zip(*self._faults, strict=True)
        try:
            while not self.is_over:
                if not self._may_continue():
                    await asyncio.sleep(0.05)
                    continue
                fault = first.pop() if first else self._chance.choices(faults, weights)[0]
                self._environment.counts["faults"] += 1
                await fault()
                await asyncio.sleep(self._chance.uniform(0.02, 0.25))
        finally:
            await self._end_faults()
        environment.say("fault injection is over")

    @property
    def every_fault_occurred(self) -> bool:
        return self._environment.counts["faults"] >= len(self._faults)

    async def _end_faults(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._environment.proxy.resume()
        self._environment.proxy.lose_reply("no statement begins like this")

    def _run_in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- processes --------------------------------------------------------------------------------------------------

    def _kill(self, *roles: str) -> None:
        if victims := self._environment.available(*roles):
            self._environment.kill(self._chance.choice(victims))

    async def _kill_worker(self) -> None:
        self._kill("work")

    async def _kill_scheduler(self) -> None:
        self._kill("schedule")

    async def _kill_web_service(self) -> None:
        self._kill("web")

    async def _kill_all(self) -> None:
        for service in self._environment.available("work", "schedule", "web"):
            self._environment.kill(service)

    async def _freeze_beyond_lease(self) -> None:
        """Freeze one process at a time, so that another can take over."""
        frozen = any(each.is_reserved for each in self._environment.services)
        if victims := self._environment.available("work", "schedule"):
            seconds = LEASE_SECONDS * self._chance.uniform(1.3, 1.8)
            if not frozen:
                self._run_in_background(self._environment.freeze(self._chance.choice(victims), seconds))

    async def _freeze_briefly(self) -> None:
        if victims := self._environment.available("work", "schedule", "web"):
            self._run_in_background(
                self._environment.freeze(self._chance.choice(victims), self._chance.uniform(0.05, 0.5))
            )

    async def _restart_cleanly(self) -> None:
        if victims := self._environment.available("work", "schedule", "web"):
            self._environment.restart(self._chance.choice(victims))

    # --- connections ------------------------------------------------------------------------------------------------

    async def _lose_replies(self) -> None:
        proxy = self._environment.proxy
        self._environment.counts["lost_replies"] += proxy.lost
        proxy.lose_reply(self._chance.choice(_STATEMENTS_TO_LOSE), times=self._chance.randint(1, 3))

    async def _close_connections(self) -> None:
        self._environment.proxy.disconnect_all()
        self._environment.counts["cuts"] += 1

    async def _stall_connections(self) -> None:
        """Forward nothing for a while, sometimes for longer than a lease."""
        self._environment.counts["silences"] += 1
        self._environment.proxy.stall()

        async def resume_later(seconds: float) -> None:
            await asyncio.sleep(seconds)
            self._environment.proxy.resume()

        self._run_in_background(resume_later(self._chance.choice((0.3, 1.0, LEASE_SECONDS * 1.2))))

    # --- the database -----------------------------------------------------------------------------------------------

    async def _fetch_pids(self, statement: str) -> list[int]:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            connection = await asyncpg.connect(self._environment.url, timeout=5)
            try:
                return [row[0] for row in await connection.fetch(statement)]
            finally:
                await connection.close(timeout=5)
        return []

    async def _terminate_backends(self) -> None:
        share = self._chance.choice((0.1, 0.5, 1.0))
        await self._fetch_pids(
            f"SELECT pid FROM (SELECT pid, pg_terminate_backend(pid) FROM ({_OTHER_BACKENDS}) AS others"
            f" WHERE random() < {share}) AS ended"
        )
        self._environment.counts["backends_ended"] += 1

    async def _kill_backend(self) -> None:
        """Kill one backend with SIGKILL: the server disconnects all clients and replays its WAL."""
        if pids := await self._fetch_pids(_OTHER_BACKENDS):
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
            self._environment.counts["backends_killed"] += 1

    async def _restart_database(self) -> None:
        self._environment.say("the database is restarted")
        await self._environment.server.crash()
        await asyncio.sleep(self._chance.uniform(0, 2))
        await self._environment.server.start()
        self._environment.counts["database_restarts"] += 1
