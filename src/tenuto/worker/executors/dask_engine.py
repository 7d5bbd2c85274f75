"""Runs attempts on a Dask cluster (`dask.distributed`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from distributed import Client, Future, get_worker

from tenuto.worker.executors import remote_runner
from tenuto.worker.executors.attempt_messages import LaunchRequest
from tenuto.worker.executors.cluster import EngineUnavailable

TIMEOUT_SECONDS = 5


class DaskEngine:
    """A Dask cluster. A slot is a thread of a Dask worker."""

    name = "dask"

    def __init__(self, address: str) -> None:
        self._address = address if "://" in address else f"tcp://{address}"
        self.host = urlsplit(self._address).hostname or "127.0.0.1"
        self._client: Client | None = None
        self._futures: dict[str, Future[Any]] = {}
        self._killed: set[str] = set()
        """Launches whose process was asked to end."""
        self._threads: dict[str, int] = {}
        """Threads of the workers, by address."""

    def connect(self) -> None:
        self.disconnect()
        self._client = Client(
            self._address, timeout=TIMEOUT_SECONDS, set_as_default=False, name="tenuto", heartbeat_interval=1000
        )

    def count_slots(self) -> int:
        return sum(self._load_threads().values())

    def _load_threads(self) -> dict[str, int]:
        client = self._client
        if client is None or client.status != "running" or client.scheduler is None:
            raise EngineUnavailable("the scheduler has closed the connection")
        self._threads = dict(client.sync(client.scheduler.ncores, callback_timeout=TIMEOUT_SECONDS))
        return self._threads

    def submit(self, requests: Sequence[LaunchRequest]) -> None:
        client = self._client
        if client is None or client.status != "running":
            raise EngineUnavailable("the scheduler has closed the connection")
        for request in requests:
            self._futures[request.id] = client.submit(
                _run_attempt, request.to_json(), key=f"tenuto-{request.id}", pure=False, retries=0,
                priority=request.task.priority,
            )  # fmt: skip

    def withdraw(self, id: str) -> None:
        future = self._futures.get(id)
        if future is not None:
            future.cancel()

    def has_ended(self, id: str, place: dict[str, Any]) -> bool:
        future = self._futures.get(id)
        if place.get("address") not in self._load_threads():
            return True  # the scheduler has lost the process, too
        # The scheduler may run the task again on another worker, where it gets no permission to start.
        return future is not None and bool(future.done())

    def force_stop(self, id: str, place: dict[str, Any]) -> bool:
        """End the worker process, if it runs nothing else; its nanny starts another one."""
        client, address = self._client, place.get("address")
        if client is None or address is None:
            raise EngineUnavailable("the scheduler does not answer")
        if self._threads.get(address, 1) != 1:
            return False
        if id not in self._killed:
            self._killed.add(id)
            client.run(_exit_process, workers=[address], wait=False)
        else:  # the code blocks the event loop of its process
            client.restart_workers([address], timeout=TIMEOUT_SECONDS, raise_for_error=False)
        return True

    def forget(self, id: str) -> None:
        self._killed.discard(id)
        future = self._futures.pop(id, None)
        if future is not None:
            future.release()

    def abandon(self) -> None:
        """Nothing of Dask keeps the process from ending."""

    def disconnect(self) -> None:
        client, self._client = self._client, None
        self._futures.clear()
        if client is not None:
            client.close(timeout=TIMEOUT_SECONDS)


async def _exit_process() -> None:  # Dask waits for the end of functions that are not async
    os._exit(1)


def _run_attempt(payload: str) -> str:
    return remote_runner.run_attempt(payload, {"address": get_worker().address})
