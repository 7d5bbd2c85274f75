"""Tenuto: a durable scheduler for Python. The public names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tenuto.version import __version__

if TYPE_CHECKING:
    from tenuto.app import Tenuto
    from tenuto.errors import TenutoError
    from tenuto.jobs.chains import stop
    from tenuto.jobs.context import Context, PermanentFailure, RetryLater
    from tenuto.jobs.enqueued import Enqueued
    from tenuto.jobs.registry import Job
    from tenuto.model.actors import Actor
    from tenuto.model.manifests import Manifest
    from tenuto.model.policies import RetryPolicy
    from tenuto.model.schedules import Misfire, ScheduleDefinition
    from tenuto.model.steps import Step
    from tenuto.model.triggers import Trigger, at, cron, every, manual
    from tenuto.operations.batches import Batch
    from tenuto.operations.tasks import Record

_MODULES = {
    "Actor": "tenuto.model.actors",
    "Batch": "tenuto.operations.batches",
    "Context": "tenuto.jobs.context",
    "Enqueued": "tenuto.jobs.enqueued",
    "Job": "tenuto.jobs.registry",
    "Manifest": "tenuto.model.manifests",
    "Misfire": "tenuto.model.schedules",
    "PermanentFailure": "tenuto.jobs.context",
    "Record": "tenuto.operations.tasks",
    "RetryLater": "tenuto.jobs.context",
    "RetryPolicy": "tenuto.model.policies",
    "ScheduleDefinition": "tenuto.model.schedules",
    "Step": "tenuto.model.steps",
    "Tenuto": "tenuto.app",
    "TenutoError": "tenuto.errors",
    "Trigger": "tenuto.model.triggers",
    "at": "tenuto.model.triggers",
    "cron": "tenuto.model.triggers",
    "every": "tenuto.model.triggers",
    "manual": "tenuto.model.triggers",
    "stop": "tenuto.jobs.chains",
}

__all__ = [
    "Actor",
    "Batch",
    "Context",
    "Enqueued",
    "Job",
    "Manifest",
    "Misfire",
    "PermanentFailure",
    "Record",
    "RetryLater",
    "RetryPolicy",
    "ScheduleDefinition",
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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
    return getattr(import_module(module), name)
