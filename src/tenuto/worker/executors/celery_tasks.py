"""The Celery task that runs attempts for Tenuto, and a Celery app with only this task.

Start workers with ``celery -A tenuto.worker.executors.celery_tasks -b BROKER worker -Q tenuto``, or list this module
under ``include`` in the configuration of a Celery app of your own.
"""

from __future__ import annotations

import celery
from celery import shared_task

from tenuto.worker.executors import remote_runner

QUEUE = "tenuto"
TASK = "tenuto.run_attempt"


# A task that ran once is never run again by Celery: the worker of Tenuto decides that.
@shared_task(
    name=TASK, bind=True, acks_late=False, ignore_result=True, store_errors_even_if_ignored=True, max_retries=0
)  # type: ignore[untyped-decorator]
def run_attempt(task: celery.Task, payload: str) -> str:
    return remote_runner.run_attempt(payload, {"celery_task": task.request.id, "worker": task.request.hostname})


app = celery.Celery("tenuto")
app.conf.task_default_queue = QUEUE
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = 1
app.conf.worker_hijack_root_logger = False
app.conf.worker_redirect_stdouts = False
app.set_default()
