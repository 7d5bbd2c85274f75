"""Chooses the executor of a worker by name. The packages of an engine are imported when it is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tenuto.errors import Invalid
from tenuto.extras import Extra, require_extra
from tenuto.settings import ExecutorName, WorkerSettings, load_worker_settings
from tenuto.worker.executors import Executor, ExecutorContext, ExecutorFactory
from tenuto.worker.executors.native import NativeExecutor

if TYPE_CHECKING:
    from tenuto.worker.executors.cluster import Engine

NATIVE = "native"
_EXTRAS: dict[str, Extra] = {"celery": "celery", "dask": "dask", "ray": "ray"}


def load_worker(
    executor: ExecutorFactory | ExecutorName | None, app: str | None, options: Mapping[str, Any]
) -> tuple[WorkerSettings, ExecutorFactory]:
    """Return the settings of a worker with these options, and its executor: the given one, or that of the settings."""
    if executor is None or isinstance(executor, str):
        settings = load_worker_settings(**{**options, **({} if executor is None else {"executor": executor})})
        return settings, choose_executor(settings, app)
    return load_worker_settings(**options), executor


def choose_executor(settings: WorkerSettings, app: str | None) -> ExecutorFactory:
    """Return the executor that the settings of a worker choose; ``app`` is its MODULE:OBJECT."""
    name = _executor_of_queues(settings.executor, settings.queue_executors, settings.queues)
    if name == NATIVE:
        return NativeExecutor
    return cluster_executor(name, settings.executor_address, app, callback=settings.executor_callback)


def cluster_executor(
    name: str, address: str | None, app: str | None, *, callback: str | None = None
) -> ExecutorFactory:
    """Return an executor on a cluster. ``app`` is the MODULE:OBJECT by which its processes import the jobs.

    ``callback`` is the HOST or HOST:PORT at which they reach the worker.
    """
    if name not in _EXTRAS:
        raise Invalid(
            f"there is no executor named {name!r}",
            code="worker.executor.unknown",
            field="executor",
            remedy=f"use one of {', '.join([NATIVE, *_EXTRAS])}",
        )
    require_extra(_EXTRAS[name], f"the executor {name}")
    if address is None:
        raise Invalid(
            f"the executor {name} needs the address of its cluster",
            code="worker.executor.address_missing",
            field="executor_address",
            remedy="give it with --address, or set TENUTO_WORKER_EXECUTOR_ADDRESS",
        )
    if app is None:
        raise Invalid(
            f"the executor {name} needs the name of the app, by which the processes of the cluster import the jobs",
            code="worker.executor.app_missing",
            field="app",
            remedy="name it with --app MODULE:OBJECT, or app_name= in code",
        )
    return partial(_make, name, address, app, callback)


def _make(name: str, address: str, app: str, callback: str | None, context: ExecutorContext) -> Executor:
    from tenuto.worker.executors.cluster import ClusterExecutor

    return ClusterExecutor(context, _make_engine(name, address), app, callback=callback)


def _make_engine(name: str, address: str) -> Engine:
    if name == "celery":
        from tenuto.worker.executors.celery_engine import CeleryEngine

        return CeleryEngine(address)
    if name == "dask":
        from tenuto.worker.executors.dask_engine import DaskEngine

        return DaskEngine(address)
    from tenuto.worker.executors.ray_engine import RayEngine

    return RayEngine(address)


def _executor_of_queues(default: str, by_queue: Mapping[str, str], queues: Sequence[str]) -> str:
    """Return the executor of the queues of a worker, which has one."""
    names = {queue: by_queue.get(queue, default) for queue in queues}
    if len(set(names.values())) > 1:
        pairs = ", ".join(f"{queue}={name}" for queue, name in names.items())
        raise Invalid(
            f"the queues of this worker have different executors: {pairs}",
            code="worker.executor.ambiguous",
            field="queues",
            remedy="start one worker for the queues of each executor, with --queues",
        )
    return next(iter(names.values()))
