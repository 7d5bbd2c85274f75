"""Forks the services of a failover test: a worker, a scheduler or a web service, each like its command."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tenuto import Tenuto, logs
from tenuto.settings import Settings
from tenuto.web.server import run_web_service
from tests.races import jobs, process_launcher

PORT = "TENUTO_TEST_WEB_PORT"


def main() -> None:
    process_launcher.main({"work": _run_worker, "schedule": _run_scheduler, "web": _run_web_service})


def _make_app(order: dict[str, Any]) -> Tenuto:
    os.environ.update(order["environment"])
    logs.configure()
    jobs.app.settings = Settings(**order["settings"])
    return jobs.app


def _run_worker(order: dict[str, Any]) -> None:
    asyncio.run(_make_app(order).run_worker(**order["worker"]))


def _run_scheduler(order: dict[str, Any]) -> None:
    asyncio.run(_make_app(order).run_scheduler(name=order["worker"]["name"]))


def _run_web_service(order: dict[str, Any]) -> None:
    asyncio.run(run_web_service(_make_app(order), port=int(os.environ[PORT]), name=order["worker"]["name"]))


if __name__ == "__main__":
    main()
