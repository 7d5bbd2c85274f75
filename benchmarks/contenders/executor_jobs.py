"""Jobs of the benchmark `executors`, and the same functions as tasks of Celery."""

from __future__ import annotations

import time

from celery import shared_task

from tenuto import Tenuto
from tenuto.worker.executors import celery_tasks

app = Tenuto("postgresql://nobody@nowhere.invalid/none", home="/tmp/tenuto-never-made")
celery = celery_tasks.app
"""Celery workers run both: the task of Tenuto, and those below."""


def noop(number: int) -> None:
    """Do nothing."""


def sleep_10_ms(number: int) -> None:
    time.sleep(0.01)


def tell_time(number: int) -> float:
    """Return when the code started."""
    return time.time()


FUNCTIONS = (noop, sleep_10_ms, tell_time)
JOBS = {function.__name__: app.job(function) for function in FUNCTIONS}
CELERY_TASKS = {each.__name__: shared_task(name=f"bench.{each.__name__}")(each) for each in FUNCTIONS}
