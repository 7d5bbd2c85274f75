"""Tenuto: a durable scheduler for Python. These are its public names; importing one does not load the others."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tenuto.version import __version__

if TYPE_CHECKING:
    from tenuto.app import Enqueued, Tenuto
    from tenuto.errors import TenutoError
    from tenuto.handlers.context import Context, PermanentFailure, RetryLater
    from tenuto.handlers.jobs import Job
    from tenuto.model.access import Actor
    from tenuto.model.retries import RetryPolicy

_HOMES = {
    "Actor": "tenuto.model.access",
    "Context": "tenuto.handlers.context",
    "Enqueued": "tenuto.app",
    "Job": "tenuto.handlers.jobs",
    "PermanentFailure": "tenuto.handlers.context",
    "RetryLater": "tenuto.handlers.context",
    "RetryPolicy": "tenuto.model.retries",
    "Tenuto": "tenuto.app",
    "TenutoError": "tenuto.errors",
}

__all__ = [
    "Actor",
    "Context",
    "Enqueued",
    "Job",
    "PermanentFailure",
    "RetryLater",
    "RetryPolicy",
    "Tenuto",
    "TenutoError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
    return getattr(import_module(home), name)
