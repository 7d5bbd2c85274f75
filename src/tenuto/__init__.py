"""Tenuto: a durable scheduler for Python. The public names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tenuto.version import __version__

if TYPE_CHECKING:
    from tenuto.app import Tenuto
    from tenuto.errors import TenutoError
    from tenuto.jobs.chains import stop
    from tenuto.jobs.context import Context, EventTimeout, PermanentFailure, RetryLater, injected
    from tenuto.jobs.enqueued_task import Enqueued
    from tenuto.jobs.registry import Job
    from tenuto.jobs.workflows.failures import ChildFailed, StepFailed
    from tenuto.model.access.actors import Actor, Role
    from tenuto.model.access.secrets import SecretRef
    from tenuto.model.definitions.manifests import Manifest
    from tenuto.model.definitions.policies import RetryPolicy
    from tenuto.model.definitions.schedules import Misfire, ScheduleDefinition
    from tenuto.model.definitions.steps import Step
    from tenuto.model.triggers import Trigger, at, cron, every, manual
    from tenuto.operations.work.batches import Batch
    from tenuto.operations.work.tasks import Record

_MODULES = {
    "Actor": "tenuto.model.access.actors",
    "Batch": "tenuto.operations.work.batches",
    "ChildFailed": "tenuto.jobs.workflows.failures",
    "Context": "tenuto.jobs.context",
    "Enqueued": "tenuto.jobs.enqueued_task",
    "Job": "tenuto.jobs.registry",
    "Manifest": "tenuto.model.definitions.manifests",
    "Misfire": "tenuto.model.definitions.schedules",
    "EventTimeout": "tenuto.jobs.context",
    "PermanentFailure": "tenuto.jobs.context",
    "Record": "tenuto.operations.work.tasks",
    "RetryLater": "tenuto.jobs.context",
    "RetryPolicy": "tenuto.model.definitions.policies",
    "Role": "tenuto.model.access.actors",
    "ScheduleDefinition": "tenuto.model.definitions.schedules",
    "SecretRef": "tenuto.model.access.secrets",
    "Step": "tenuto.model.definitions.steps",
    "StepFailed": "tenuto.jobs.workflows.failures",
    "Tenuto": "tenuto.app",
    "TenutoError": "tenuto.errors",
    "Trigger": "tenuto.model.triggers",
    "at": "tenuto.model.triggers",
    "cron": "tenuto.model.triggers",
    "every": "tenuto.model.triggers",
    "injected": "tenuto.jobs.context",
    "manual": "tenuto.model.triggers",
    "stop": "tenuto.jobs.chains",
}

__all__ = [
    "Actor",
    "Batch",
    "ChildFailed",
    "Context",
    "Enqueued",
    "EventTimeout",
    "Job",
    "Manifest",
    "Misfire",
    "PermanentFailure",
    "Record",
    "RetryLater",
    "RetryPolicy",
    "Role",
    "ScheduleDefinition",
    "SecretRef",
    "Step",
    "StepFailed",
    "Tenuto",
    "TenutoError",
    "Trigger",
    "__version__",
    "at",
    "cron",
    "every",
    "injected",
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
