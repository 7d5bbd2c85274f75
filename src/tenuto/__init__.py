"""Tenuto: a durable scheduler for Python. These are its public names; importing one does not load the others."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tenuto.version import __version__

if TYPE_CHECKING:
    from tenuto.app import Enqueued, Tenuto
    from tenuto.errors import TenutoError
    from tenuto.handlers.chains import stop
    from tenuto.handlers.context import Context, PermanentFailure, RetryLater
    from tenuto.handlers.jobs import Job
    from tenuto.model.access import Actor
    from tenuto.model.manifests import Manifest
    from tenuto.model.retries import RetryPolicy
    from tenuto.model.schedules import Definition, Misfire
    from tenuto.model.steps import Step
    from tenuto.model.triggers import Trigger, at, cron, every, manual
    from tenuto.verbs.batches import Batch

_HOMES = {
    "Actor": "tenuto.model.access",
    "Batch": "tenuto.verbs.batches",
    "Context": "tenuto.handlers.context",
    "Definition": "tenuto.model.schedules",
    "Enqueued": "tenuto.app",
    "Job": "tenuto.handlers.jobs",
    "Manifest": "tenuto.model.manifests",
    "Misfire": "tenuto.model.schedules",
    "PermanentFailure": "tenuto.handlers.context",
    "RetryLater": "tenuto.handlers.context",
    "RetryPolicy": "tenuto.model.retries",
    "Step": "tenuto.model.steps",
    "Tenuto": "tenuto.app",
    "TenutoError": "tenuto.errors",
    "Trigger": "tenuto.model.triggers",
    "at": "tenuto.model.triggers",
    "cron": "tenuto.model.triggers",
    "every": "tenuto.model.triggers",
    "manual": "tenuto.model.triggers",
    "stop": "tenuto.handlers.chains",
}

__all__ = [
    "Actor",
    "Batch",
    "Context",
    "Definition",
    "Enqueued",
    "Job",
    "Manifest",
    "Misfire",
    "PermanentFailure",
    "RetryLater",
    "RetryPolicy",
    "Step",
    "Tenuto",
    "TenutoError",
    "Trigger",
    "__version__",
    "at",
    "cron",
    "every",
    "manual",
    "stop",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
    return getattr(import_module(home), name)
