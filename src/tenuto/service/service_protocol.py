"""The protocol of background services, and their common start and stop.

Every loop of a service process is a `Service`: those of the core and those of extensions start and stop alike. The
readiness probe asks all running ones whether they do their work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from typing import Protocol, runtime_checkable


class ProcessRole(StrEnum):
    """Role of a service process. A process that runs everything has several roles."""

    WORKER = "worker"
    SCHEDULER = "scheduler"
    WEB = "web"


@runtime_checkable
class Service(Protocol):
    """A background activity of a service process."""

    name: str

    async def start(self) -> None:
        """Start in the background. An error ends the start of the process."""

    async def stop(self) -> None:
        """Stop and return when everything has ended."""

    @property
    def is_ready(self) -> bool:
        """Whether the service does its work."""


_running: list[Service] = []


def find_unready_services() -> tuple[list[str], list[str]]:
    """Return the names of the running services of this process that do not do their work: of the core, and of
    extensions."""
    unready = [service for service in _running if not service.is_ready]
    optional = [service.name for service in unready if getattr(service, "is_optional", False)]
    return [service.name for service in unready if service.name not in optional], optional


@asynccontextmanager
async def run_services(
    services: Iterable[Service], is_stopped: Callable[[], bool] = lambda: False
) -> AsyncIterator[None]:
    """Start the services in order for the duration of the block, and stop them in reverse order.

    If the process is stopped meanwhile, the remaining services are not started.
    """
    async with AsyncExitStack() as running:
        for service in services:
            if is_stopped():
                break
            await service.start()
            running.push_async_callback(service.stop)
            _running.append(service)
            running.callback(_running.remove, service)
        yield
