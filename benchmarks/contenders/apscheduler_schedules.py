"""APScheduler 3 for `schedules`: a hundred jobs once a minute, stored in the same PostgreSQL, run in its thread pool.

It has no separate workers, no steps and no history: the delay of a job is compared. It cannot run twice on one store,
so two schedulers cannot be compared.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.contenders import contender_protocol, fire_times

DELAYS: list[float] = []


def noop(first: float) -> None:
    """The job: records its delay."""
    DELAYS.append((time.time() - first) % fire_times.MINUTE_SECONDS * 1000)


def minute(url: str, seconds: int) -> None:
    store = SQLAlchemyJobStore(url=url.replace("postgresql://", "postgresql+psycopg://", 1))
    scheduler = BackgroundScheduler(jobstores={"default": store}, timezone=UTC)
    scheduler.start(paused=True)
    begins = fire_times.first_instant() + 2
    for number in range(fire_times.SCHEDULE_COUNT):
        first = begins + fire_times.first_due_offset(number)
        scheduler.add_job(
            noop,
            "interval",
            seconds=fire_times.MINUTE_SECONDS,
            start_date=datetime.fromtimestamp(first, UTC),
            args=[float(first)],
            misfire_grace_time=None,
        )
    if time.time() > begins:
        raise SystemExit("creating the jobs took until they were due")
    scheduler.resume()
    time.sleep(begins + seconds - 0.5 - time.time())
    scheduler.shutdown(wait=True)
    wanted = fire_times.fires_within(seconds)
    if len(DELAYS) != wanted:
        raise SystemExit(f"{wanted} were due, {len(DELAYS)} were started")
    contender_protocol.print_answer(milliseconds=DELAYS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "minute"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(("apscheduler", "sqlalchemy", "psycopg"))
        case "prepare":
            pass  # the product creates its table itself
        case _:
            minute(asked.url, asked.count)


if __name__ == "__main__":
    main()
