"""What goes wrong, and when: chosen by a seeded chance, one fault after the other, some of them side by side.

Kills are what is counted towards an end (`--kills`); between them come freezes past the lease, orderly restarts, cut
and silent lines, lost replies, ended backends, and a database that goes down in the middle of everything.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncpg

from tests.chaos.environment import LEASE, Stage

_OTHERS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
_TO_LOSE = ("COMMIT", "", "BEGIN")


class Faults:
    """The one who spoils it."""

    def __init__(self, stage: Stage, pace: Callable[[], bool]) -> None:
        self._stage = stage
        self._pace = pace
        self._chance = random.Random(stage.chance.random())
        self._beside: set[asyncio.Task[None]] = set()
        self.over = False
        self._acts: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (40, self._kill_a_worker),
            (12, self._kill_a_scheduler),
            (8, self._kill_a_web_service),
            (1, self._kill_everybody),
            (4, self._freeze_past_the_lease),
            (4, self._freeze_for_a_moment),
            (3, self._restart_in_good_order),
            (10, self._lose_replies),
            (3, self._cut_lines),
            (2, self._silence),
            (4, self._end_backends),
            (1, self._kill_a_backend),
            (1, self._restart_the_database),
        ]

    async def run(self) -> None:
        """Go on until told that it is over; each kind of fault has come once before chance decides alone."""
        stage = self._stage
        first = [act for _, act in self._acts]
        self._chance.shuffle(first)
        weights, acts = zip(*self._acts, strict=True)
        try:
            while not self.over:
                if not self._pace():
                    await asyncio.sleep(0.05)
                    continue
                act = first.pop() if first else self._chance.choices(acts, weights)[0]
                self._stage.counts["faults"] += 1
                await act()
                await asyncio.sleep(self._chance.uniform(0.02, 0.25))
        finally:
            await self._heal()
        stage.say("the faults are over")

    @property
    def came_once(self) -> bool:
        return self._stage.counts["faults"] >= len(self._acts)

    async def _heal(self) -> None:
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        self._stage.proxy.resume()
        self._stage.proxy.lose_reply("nothing begins like this")

    def _aside(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    # --- processes --------------------------------------------------------------------------------------------------

    def _kill(self, *roles: str) -> None:
        if victims := self._stage.of(*roles):
            self._stage.kill(self._chance.choice(victims))

    async def _kill_a_worker(self) -> None:
        self._kill("work")

    async def _kill_a_scheduler(self) -> None:
        self._kill("schedule")

    async def _kill_a_web_service(self) -> None:
        self._kill("web")

    async def _kill_everybody(self) -> None:
        for service in self._stage.of("work", "schedule", "web"):
            self._stage.kill(service)

    async def _freeze_past_the_lease(self) -> None:
        """Never two at once: somebody must be there to take over."""
        frozen = any(each.held_back for each in self._stage.services)
        if victims := self._stage.of("work", "schedule"):
            seconds = LEASE * self._chance.uniform(1.3, 1.8)
            if not frozen:
                self._aside(self._stage.freeze(self._chance.choice(victims), seconds))

    async def _freeze_for_a_moment(self) -> None:
        if victims := self._stage.of("work", "schedule", "web"):
            self._aside(self._stage.freeze(self._chance.choice(victims), self._chance.uniform(0.05, 0.5)))

    async def _restart_in_good_order(self) -> None:
        if victims := self._stage.of("work", "schedule", "web"):
            self._stage.tell_to_leave(self._chance.choice(victims))

    # --- lines ------------------------------------------------------------------------------------------------------

    async def _lose_replies(self) -> None:
        proxy = self._stage.proxy
        self._stage.counts["lost_replies"] += proxy.lost
        proxy.lose_reply(self._chance.choice(_TO_LOSE), times=self._chance.randint(1, 3))

    async def _cut_lines(self) -> None:
        self._stage.proxy.disconnect_all()
        self._stage.counts["cuts"] += 1

    async def _silence(self) -> None:
        """Nothing passes for a while; sometimes for longer than a lease."""
        self._stage.counts["silences"] += 1
        self._stage.proxy.stall()

        async def and_heal(seconds: float) -> None:
            await asyncio.sleep(seconds)
            self._stage.proxy.resume()

        self._aside(and_heal(self._chance.choice((0.3, 1.0, LEASE * 1.2))))

    # --- the database -----------------------------------------------------------------------------------------------

    async def _backends(self, statement: str) -> list[int]:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            connection = await asyncpg.connect(self._stage.url, timeout=5)
            try:
                return [row[0] for row in await connection.fetch(statement)]
            finally:
                await connection.close(timeout=5)
        return []

    async def _end_backends(self) -> None:
        share = self._chance.choice((0.1, 0.5, 1.0))
        await self._backends(
            f"SELECT pid FROM (SELECT pid, pg_terminate_backend(pid) FROM ({_OTHERS}) AS others"
            f" WHERE random() < {share}) AS ended"
        )
        self._stage.counts["backends_ended"] += 1

    async def _kill_a_backend(self) -> None:
        """kill -9 of one: the server throws everybody out and replays its log."""
        if pids := await self._backends(_OTHERS):
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
            self._stage.counts["backends_killed"] += 1

    async def _restart_the_database(self) -> None:
        self._stage.say("the database goes down")
        await self._stage.server.crash()
        await asyncio.sleep(self._chance.uniform(0, 2))
        await self._stage.server.start()
        self._stage.counts["database_restarts"] += 1
