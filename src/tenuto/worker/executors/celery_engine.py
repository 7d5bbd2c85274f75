"""Runs attempts on Celery workers, over their broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import celery
from celery import states
from celery.exceptions import CeleryError
from kombu.exceptions import KombuError, OperationalError

from tenuto.worker.executors.attempt_messages import LaunchRequest
from tenuto.worker.executors.celery_tasks import QUEUE, TASK
from tenuto.worker.executors.cluster import EngineUnavailable

TIMEOUT_SECONDS = 5
INSPECT_SECONDS = 1.0
"""How long the answers of all workers to an inquiry are collected."""
_PREFORK = "celery.concurrency.prefork:TaskPool"

T = TypeVar("T")


class CeleryEngine:
    """Celery workers that take tasks from a queue. A slot is a process of a prefork worker."""

    name = "celery"

    def __init__(self, address: str, queue: str = QUEUE) -> None:
        self._address = address
        self._queue = queue
        self.host = urlsplit(address).hostname or "127.0.0.1"
        self._app: celery.Celery | None = None
        self._pools: dict[str, str] = {}
        """Implementations of the pools of the Celery workers, by name of the worker."""

    def connect(self) -> None:
        self.disconnect()
        timeouts = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
        app = celery.Celery("tenuto-client", broker=self._address, set_as_current=False)
        if self._address.startswith(("redis", "rediss")):  # it reports killed processes
            app.conf.result_backend = self._address
        app.conf.broker_transport_options = timeouts
        app.conf.redis_socket_timeout = app.conf.redis_socket_connect_timeout = TIMEOUT_SECONDS
        app.conf.broker_connection_timeout = TIMEOUT_SECONDS
        app.conf.broker_connection_retry = False
        app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
        app.conf.redis_retry_on_timeout = False
        self._call(lambda: self._ping(app))
        self._app = app

    @staticmethod
    def _ping(app: celery.Celery) -> None:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=TIMEOUT_SECONDS)

    def count_slots(self) -> int:
        app = self._connected()
        inspect = app.control.inspect(timeout=INSPECT_SECONDS)
        self._call(lambda: self._ping(app))  # a broker without workers gives the same answer as none
        queues = self._call(inspect.active_queues) or {}
        serving = [name for name, served in queues.items() if any(each["name"] == self._queue for each in served)]
        if not serving:
            return 0
        stats = self._call(app.control.inspect(serving, timeout=INSPECT_SECONDS).stats) or {}
        self._pools = {name: str(each["pool"].get("implementation", _PREFORK)) for name, each in stats.items()}
        return sum(int(each["pool"].get("max-concurrency") or 0) for each in stats.values())

    def submit(self, requests: Sequence[LaunchRequest]) -> None:
        app = self._connected()

        def send() -> None:
            with app.producer_or_acquire() as producer:
                for request in requests:
                    app.send_task(
                        TASK, [request.to_json()], task_id=request.id, queue=self._queue, producer=producer,
                        ignore_result=True, retry=False,
                    )  # fmt: skip

        self._call(send)

    def withdraw(self, id: str) -> None:
        app = self._connected()
        self._call(lambda: app.control.revoke(id))

    def has_ended(self, id: str, place: dict[str, Any]) -> bool:
        app = self._connected()
        if not app.conf.result_backend:
            return False
        return bool(self._call(lambda: app.AsyncResult(id).state) in states.READY_STATES)

    def force_stop(self, id: str, place: dict[str, Any]) -> bool:
        """Have the Celery worker kill the process that runs the task: each process of a prefork pool runs one."""
        app = self._connected()
        if self._pools.get(str(place.get("worker")), _PREFORK) != _PREFORK:
            return False
        self._call(lambda: app.control.revoke(id, terminate=True, signal="SIGKILL"))
        return True

    def forget(self, id: str) -> None:
        """Nothing is kept for a launch."""

    def abandon(self) -> None:
        """Nothing of Celery keeps the process from ending."""

    def disconnect(self) -> None:
        app, self._app = self._app, None
        if app is not None:
            app.close()

    def _connected(self) -> celery.Celery:
        if self._app is None:
            raise EngineUnavailable("there is no connection to the broker")
        return self._app

    def _call(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except (OSError, CeleryError, KombuError, OperationalError) as error:
            raise EngineUnavailable(str(error)) from error
