"""Forks the services of a chaos run: a worker, a scheduler or a web service, each like its command.

Some start with a wrong machine clock. Only `tenuto.clock` reads the clock, and only `tenuto.ids` puts it into ids;
both are shifted.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID

from tenuto import clock, ids, logs
from tenuto.settings import Settings
from tenuto.web.server import run_web_service
from tests.chaos import feature_jobs as _feature_jobs  # noqa: F401 — it adds jobs and schedules to the app
from tests.chaos.jobs import PORT, SKEW, app
from tests.races import process_launcher


def main() -> None:
    process_launcher.main({"work": _run_worker, "schedule": _run_scheduler, "web": _run_web_service})


def _run_worker(order: dict[str, Any]) -> None:
    _prepare(order)
    asyncio.run(app.run_worker(**order["worker"]))


def _run_scheduler(order: dict[str, Any]) -> None:
    _prepare(order)
    asyncio.run(app.run_scheduler(name=order["worker"]["name"]))


def _run_web_service(order: dict[str, Any]) -> None:
    _prepare(order)
    asyncio.run(run_web_service(app, port=int(os.environ[PORT]), name=order["worker"]["name"]))


def _prepare(order: dict[str, Any]) -> None:
    os.environ.update(order["environment"])
    logs.configure()
    app.settings = Settings(**order["settings"])
    shift_clock(float(os.environ.get(SKEW, "0")))


def shift_clock(seconds: float) -> None:
    """Shift the machine clock of this process by that many seconds."""
    if not seconds:
        return
    by, made = timedelta(seconds=seconds), vars(ids)["uuid7"]

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + by

    def skewed_id() -> UUID:
        return UUID(int=made().int + (int(seconds * 1000) << 80))

    vars(clock)["datetime"] = Skewed
    vars(ids)["uuid7"] = skewed_id


if __name__ == "__main__":
    main()
