"""The past of the demo: a week of runs, written by the real scheduler and worker code on a simulated clock.

The database must be empty (`start` checks it): runs of the past are never mixed with real ones.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tenuto.app import Tenuto
from tenuto.demo.application import BILLS, MAIL_QUEUE, PAST_DURATIONS, THUMBNAILS, Pace, define_live_schedules
from tenuto.maintenance.activity_rollups import add_ended_activities
from tenuto.model.access.actors import Actor
from tenuto.store import partitions
from tenuto.testing import TimeMachine

DAYS = 7
LIVE_HISTORY = timedelta(minutes=50)
"""History of the schedule that runs every 45 seconds."""
_ANA, _BEN = Actor.user("example-ana", "ana (example)"), Actor.user("example-ben", "ben (example)")
_BILLS_PER_DAY, _PICTURES = 30, 60
_WAITING_BILLS = 40


async def create_history(app: Tenuto, pace: Pace, now: datetime) -> int:
    """Create a week of history up to ``now``; return the number of ended attempts."""
    database = await app.open()
    start = now - timedelta(days=DAYS)
    for instant in (start, now):
        await partitions.ensure_partitions(database, instant)
    ended_count = 0
    async with TimeMachine(app, start=start, durations=PAST_DURATIONS) as machine:
        for day in range(DAYS):
            ended_count += (await machine.advance(hours=9)).ended_count
            await _submit_bills(app, day)
            if day == DAYS - 3:
                await _submit_pictures(app)
            if day < DAYS - 1:
                ended_count += (await machine.advance_to(start + timedelta(days=day + 1))).ended_count
        ended_count += (await machine.advance_to(now - LIVE_HISTORY)).ended_count
        define_live_schedules(app, pace)
        await app.schedules.deploy()
        ended_count += (await machine.advance_to(now)).ended_count
        await _resolve_some_dead_letters(app)
        ended_count += (await machine.run_until_idle()).ended_count
    await add_ended_activities(database, now)
    return ended_count


async def prepare_present(app: Tenuto) -> None:
    """Leave something that needs attention, and work that waits."""
    ana = app.acting_as(_ANA, source="demo")
    await ana.pause_queue(MAIL_QUEUE, "mail server down (example)")
    await ana.bulk_enqueue(BILLS, [_bill(10_000 + number) for number in range(_WAITING_BILLS)], name="Evening bills")


async def _submit_bills(app: Tenuto, day: int) -> None:
    bills = [_bill(day * 100 + number) for number in range(_BILLS_PER_DAY)]
    await app.acting_as(_BEN, source="demo").bulk_enqueue(BILLS, bills, name=f"Bills of day {day + 1}")


async def _submit_pictures(app: Tenuto) -> None:
    await app.acting_as(_ANA, source="demo").bulk_enqueue(THUMBNAILS, range(_PICTURES), name="Catalogue pictures")


def _bill(number: int) -> dict[str, object]:
    return {"number": number, "address": None if number % 25 == 7 else f"{number % 90 + 1} Reed Lane"}


async def _resolve_some_dead_letters(app: Tenuto) -> None:
    """Resolve some of the dead letters, as an operator would have done."""
    ben = app.acting_as(_BEN, source="demo")
    for dead_letter in list(await app.dead_letters.list(limit=6))[::2]:
        await ben.dead_letters.acknowledge(dead_letter.id, note="called the customer (example)")
