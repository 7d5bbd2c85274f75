"""APScheduler 3 on the timetable: a hundred jobs once a minute, kept in the same PostgreSQL, run in its thread pool.

It has no workers apart, no steps and no record of what ran: what is compared is how late a job starts. It cannot run
twice on one store, so there is nothing to compare with two schedulers.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.contenders import stage, timetable

LATE: list[float] = []


def noop(first: float) -> None:
    """The job: notes how long ago it was due."""
    LATE.append((time.time() - first) % timetable.A_MINUTE * 1000)


def minute(url: str, seconds: int) -> None:
    store = SQLAlchemyJobStore(url=url.replace("postgresql://", "postgresql+psycopg://", 1))
    scheduler = BackgroundScheduler(jobstores={"default": store}, timezone=UTC)
    scheduler.start(paused=True)
    begins = timetable.first_instant() + 2
    for number in range(timetable.FIRES):
        first = begins + timetable.offset(number)
        scheduler.add_job(
            noop,
            "interval",
            seconds=timetable.A_MINUTE,
            start_date=datetime.fromtimestamp(first, UTC),
            args=[float(first)],
            misfire_grace_time=None,
        )
    if time.time() > begins:
        raise SystemExit("making the jobs took until they were due")
    scheduler.resume()
    time.sleep(begins + seconds - 0.5 - time.time())
    scheduler.shutdown(wait=True)
    wanted = timetable.fires_within(seconds)
    if len(LATE) != wanted:
        raise SystemExit(f"{wanted} were due, {len(LATE)} were started")
    stage.answer(milliseconds=LATE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "minute"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            stage.versions(("apscheduler", "sqlalchemy", "psycopg"))
        case "prepare":
            pass  # it makes its table itself
        case _:
            minute(asked.url, asked.count)


if __name__ == "__main__":
    main()
