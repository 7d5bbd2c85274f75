"""The scenes, in the order they are seen: from an empty folder to a ledger that balances.

Everything is asked for under an initiator of the tour's own, so that one in a kept folder counts nobody else's. What
was asked for is counted here, what became of it is counted by the database; the ledger puts the two side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from examples.tour import jobs, ledger
from examples.tour.crew import LEASE_SECONDS, NAMES, Crew
from examples.tour.jobs import PACE, app
from examples.tour.ledger import Ledger
from examples.tour.pictures import Attempts, Batch, Hand, Rail, Workshop
from examples.tour.view import Story

from tenuto.clock import monotonic_seconds
from tenuto.errors import Unavailable
from tenuto.ids import new_id
from tenuto.model.actors import Actor

BATCH, REPORTS, INVOICES = 5000, 9, 300
PATIENCE = 300.0
"""On a machine with much else to do everything takes longer; a tour that takes longer than this has failed."""
_LOOK_EVERY = 0.12
_READING = 1.0
_FAR_FROM_ITS_END = 0.6
_REGIONS = ("north", "south", "east", "west", "coast", "hills", "lakes", "islands", "city")


class Tour:
    """Seven scenes."""

    def __init__(self, home: Path, story: Story) -> None:
        self._home = home
        self._story = story
        self._crew = Crew(home)
        self._actor = Actor.user(f"tour-{new_id().hex[-12:]}", "the tour")
        self._began = monotonic_seconds()
        self._submitted = 0
        self._events: dict[str, Any] = {}
        self._dead: set[str] = set()
        self._seen: Workshop | None = None

    async def run(self) -> Ledger:
        self._story.scene(
            "Tenuto: work that is run to its end, with a record that proves it",
            "Seven short scenes, under a minute. Everything is real: a PostgreSQL of its own, worker processes of "
            "their own, and what breaks is really broken.",
        )
        async with app:
            with app.acting_as(self._actor):
                await self._get_ready()
                await self._a_night()
                await self._a_job_that_fails_twice()
                await self._a_dead_letter()
                await self._a_batch()
                await self._a_killed_worker()
                await self._a_restarted_database()
                return await self._the_sum()

    def stop(self) -> None:
        self._crew.stop()

    async def _get_ready(self) -> None:
        await app.open()
        self._story.tell(f"PostgreSQL started in {self._home} after {self._seconds():.1f} s")
        self._crew.start()
        await self._until(self._all_are_here)
        named = ", ".join(f"{name} (pid {pid})" for name, pid in self._crew.pids.items())
        self._story.tell(f"three workers: {named}")

    # --- the scenes -------------------------------------------------------------------------------------------------

    async def _a_night(self) -> None:
        self._scene(
            1,
            "A night's work: six steps in four groups",
            f"The schedule “{jobs.SCHEDULE}” is run now instead of at two at night. Steps of a group run side by "
            "side; the next group begins when all have ended. The whole plan is in the database from the start.",
        )
        started = await app.schedules.run(jobs.SCHEDULE)
        assert started.execution_id is not None
        self._submitted += jobs.STEPS
        ended = await self._follow(started.execution_id)
        await self._outcome(
            f"All {jobs.STEPS} steps {ended['state']} after {ended['duration']:.1f} s. Each left a record: who asked, "
            "what went in, what came out, how long it took."
        )

    async def _follow(self, id: UUID) -> dict[str, Any]:
        async def ended() -> dict[str, Any] | None:
            look = await app.executions.get(id)
            self._story.show(Rail(look))
            return look if look["ended_at"] is not None else None

        look: dict[str, Any] = await self._until(ended)
        return look

    async def _a_job_that_fails_twice(self) -> None:
        self._scene(
            2,
            "A job that fails twice and recovers",
            f"A bank does not answer. The job may try {jobs.TRIES} times, and waits longer after each failure.",
        )
        task = await app.enqueue(jobs.fetch_rates, "the bank")
        self._submitted += 1
        attempts = await self._watch(task.id)
        await self._outcome(f"Worked at attempt {len(attempts)}. The two that failed are on record, with the reason.")

    async def _a_dead_letter(self) -> None:
        self._scene(
            3,
            "A dead letter, mended and retried",
            "A bill is to be sent to a customer without an address. Trying again would not help: it is set aside as "
            "a dead letter, for a person to decide.",
        )
        task = await app.manifests.enqueue(jobs.bills.external_id, {"number": 17})
        self._submitted += 1
        await self._watch(task)
        (letter,) = [one for one in await app.dead_letters.list() if one["task_id"] == task]
        self._story.tell(f"dead letter {str(letter['id'])[-12:]}: {letter['reason']}")
        await self._pause()
        self._story.tell("somebody adds the address and has it run again")
        mended = {"number": 17, "address": "12 Reed Lane"}
        again = await app.dead_letters.retry(letter["id"], input=mended, note="address looked up")
        self._submitted += 1
        self._events["dead_letters_retried"] = 1
        await self._watch(again)
        await self._outcome("Done with the mended input. The letter is closed, and says who did it and why.")

    async def _watch(self, id: UUID) -> Sequence[dict[str, Any]]:
        """Show a task's attempts until it has ended."""

        async def ended() -> Sequence[dict[str, Any]] | None:
            attempts = await app.attempts(id)
            self._story.show(Attempts(attempts))
            return attempts if attempts[-1]["final"] else None

        attempts: Sequence[dict[str, Any]] = await self._until(ended)
        self._story.let_stand()
        return attempts

    async def _a_batch(self) -> None:
        self._scene(
            4,
            f"{BATCH:,} inputs as one batch",
            "One call hands over all of them. They are one thing from then on: to watch, pause, cancel, or run again "
            "what failed of it.",
        )
        began = monotonic_seconds()
        batch = await app.bulk_enqueue(jobs.thumbnails, range(BATCH))
        self._submitted += BATCH
        self._story.tell(f"{BATCH:,} tasks committed in {monotonic_seconds() - began:.2f} s")

        async def ended() -> dict[str, Any] | None:
            look = await batch.progress()
            self._story.show(Batch(look))
            return look if look["complete_at"] is not None and not look["left"] else None

        told = await self._until(ended)
        rate = round(told["total"] / (told["ended_at"] - told["created_at"]).total_seconds())
        self._events |= {"batch_items": told["total"], "batch_items_a_second": rate}
        await self._outcome(f"{told['done']:,} done, {told['failed']} failed: {rate:,} a second, each with its record.")

    async def _a_killed_worker(self) -> None:
        self._scene(
            5,
            "A worker killed with kill -9",
            f"{REPORTS} reports of a few seconds each are running. Whoever holds most of them is killed: it cannot "
            f"say goodbye. Its leases of {LEASE_SECONDS:.0f} s run out, then the others take its work.",
        )
        before = (await self._counts())["lost_attempts"]
        total, victim, held = 0, "", 0
        while not victim:  # on a very busy machine all may have ended before anybody was seen at work
            total += await self._ask_for_reports()
            victim, held = await self._until(partial(self._the_busiest, total))
        self._crew.kill(victim)
        self._dead.add(victim)
        self._events["killed_workers"] = 1
        self._story.tell(
            f"kill -9 {self._crew.pids[victim]}: {victim} is dead, with {_reports(held)} half done", loud=True
        )
        died_at = monotonic_seconds()
        await self._until(lambda: self._all_taken_from(victim, total))
        self._story.tell(f"leases run out, work taken back after {monotonic_seconds() - died_at:.1f} s: {_others(victim)} go on")
        await self._until(lambda: self._all_ended("reports", total))
        taken = (await self._counts())["lost_attempts"] - before
        await self._outcome(
            f"All {total} reports done; {taken} of them were taken back and done by {_others(victim)}. "
            "The lost attempts are on record too."
        )

    async def _ask_for_reports(self) -> int:
        for number in range(REPORTS):
            await app.enqueue(jobs.nightly_report, _REGIONS[number % len(_REGIONS)])
            self._submitted += 1
        return REPORTS

    async def _a_restarted_database(self) -> None:
        self._scene(
            6,
            "The database stopped and started again",
            f"{INVOICES} invoices are on their way when PostgreSQL is stopped. Every connection is cut. Code that "
            "runs goes on; what it came to waits in the worker until the database is back.",
        )
        await app.enqueue_many(jobs.send_invoice, range(INVOICES))
        self._submitted += INVOICES
        await self._until(lambda: self._a_fifth_ended(INVOICES))
        stopped_at = monotonic_seconds()
        await self._crew.stop_the_database()
        self._events["database_restarts"] = 1
        self._story.tell("PostgreSQL has been stopped", loud=True)
        assert self._seen is not None
        self._story.show(replace(self._seen, database="stopped"))
        await self._pause()
        await self._crew.start_the_database()
        down = monotonic_seconds() - stopped_at
        self._story.tell(f"PostgreSQL is back after {down:.1f} s; the workers find it by themselves")
        await self._until(lambda: self._all_ended("invoices", INVOICES))
        await self._outcome(f"All {INVOICES} invoices done, none twice in the record. No worker had to be restarted.")

    async def _the_sum(self) -> Ledger:
        self._scene(
            7,
            "The ledger",
            "What was asked for, counted by the one who asked, beside what became of it, counted by the database.",
        )
        return ledger.of(
            self._submitted, await self._until(self._counts), **self._events, seconds=round(self._seconds(), 1)
        )

    # --- looking ----------------------------------------------------------------------------------------------------

    async def _counts(self) -> dict[str, int]:
        return await app.outcome_counts(initiator_id=self._actor.id)

    async def _all_are_here(self) -> bool:
        here = {worker["pid"] for worker in await app.workers() if worker["service"] == "worker"}
        return set(self._crew.pids.values()) <= here

    async def _workshop(self, what: str, total: int) -> Workshop:
        """What the workers are at: the end of what was asked for last."""
        counts = await self._counts()
        self._seen = Workshop(what, total - counts["open"], total, await self._hands())
        return self._seen

    async def _hands(self) -> list[Hand]:
        running = [
            task for task in await app.tasks(state="running", limit=200) if task["initiator_id"] == self._actor.id
        ]
        ids = {worker["name"]: worker["id"] for worker in await app.workers()}
        return [
            Hand(
                name,
                pid,
                name in self._dead,
                [task for task in running if task["worker_id"] == ids.get(name, "")],
            )
            for name, pid in self._crew.pids.items()
        ]

    async def _all_taken_from(self, victim: str, total: int) -> bool:
        look = await self._workshop("reports", total)
        self._story.show(look)
        return not any(hand.holds for hand in look.hands if hand.name == victim)

    async def _the_busiest(self, total: int) -> tuple[str, int] | None:
        """Who holds most of what has begun and is far from its end, and how much; nobody, if all has ended."""
        look = await self._workshop("reports", total)
        self._story.show(look)
        if look.ended == total:
            return "", 0
        candidates = [hand for hand in look.hands if any(_is_under_way(task) for task in hand.holds)]
        busiest = max(candidates, key=lambda hand: len(hand.holds), default=None)
        return None if busiest is None else (busiest.name, len(busiest.holds))

    async def _a_fifth_ended(self, total: int) -> bool:
        look = await self._workshop("invoices", total)
        self._story.show(look)
        return look.ended >= total / 5

    async def _all_ended(self, what: str, total: int) -> bool:
        look = await self._workshop(what, total)
        self._story.show(look)
        return look.ended == total

    async def _until(self, look: Callable[[], Awaitable[Any]]) -> Any:
        """Look again and again until there is an answer. While the database is away there is none."""
        while self._seconds() < PATIENCE:
            try:
                answer = await look()
            except Unavailable:
                answer = None
            if answer:
                return answer
            if fallen := self._crew.fallen():
                raise RuntimeError("; ".join(f"{name} has ended by itself: {said}" for name, said in fallen.items()))
            await asyncio.sleep(_LOOK_EVERY)
        raise TimeoutError(f"the tour has not ended within {PATIENCE:.0f} s")

    # --- telling ----------------------------------------------------------------------------------------------------

    def _scene(self, number: int, title: str, words: str) -> None:
        self._story.scene(f"{number}/7  {title}", words)

    async def _outcome(self, line: str) -> None:
        self._story.outcome(line)
        await self._pause()

    async def _pause(self) -> None:
        """Time to read, if somebody does."""
        await asyncio.sleep(_READING * PACE if self._story.has_readers else 0)

    def _seconds(self) -> float:
        return monotonic_seconds() - self._began


def _is_under_way(task: Mapping[str, Any]) -> bool:
    progress = task["progress"]
    return progress is not None and progress["done"] <= progress["total"] * _FAR_FROM_ITS_END


def _reports(count: int) -> str:
    return "1 report" if count == 1 else f"{count} reports"


def _others(victim: str) -> str:
    return " and ".join(name for name in NAMES if name != victim)
