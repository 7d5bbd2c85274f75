"""``ctx.step``, ``ctx.gather`` and ``ctx.run``: the durable calls of a workflow, with the types of what they call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job
from tenuto.model.definitions.policies import RetryPolicy

if TYPE_CHECKING:
    from tenuto.jobs.workflows.workflow_run import WorkflowRun

P = ParamSpec("P")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")


class StepCaller:
    """Calls functions as durable steps of a run."""

    __slots__ = ("_name", "_retry", "_run")

    def __init__(self, run: WorkflowRun, name: str | None = None, retry: RetryPolicy | None = None) -> None:
        self._run = run
        self._name = name
        self._retry = retry

    def using(self, *, name: str | None = None, retry: RetryPolicy | None = None) -> StepCaller:
        """Return a caller with options: a name instead of that of the function, and retries within the attempt."""
        return StepCaller(self._run, name, retry)

    @overload
    async def __call__(
        self, function: Callable[Concatenate[Context, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def __call__(
        self, function: Callable[Concatenate[Context, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def __call__(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def __call__(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function, or return its stored result."""
        return await self._run.call(self._name, self._retry, function, args, kwargs)


class GatherCaller:
    """Runs branches of a run in parallel."""

    __slots__ = ("_run",)

    def __init__(self, run: WorkflowRun) -> None:
        self._run = run

    @overload
    async def __call__(self, call1: Awaitable[T1], call2: Awaitable[T2], /) -> tuple[T1, T2]: ...

    @overload
    async def __call__(
        self, call1: Awaitable[T1], call2: Awaitable[T2], call3: Awaitable[T3], /
    ) -> tuple[T1, T2, T3]: ...

    @overload
    async def __call__(
        self, call1: Awaitable[T1], call2: Awaitable[T2], call3: Awaitable[T3], call4: Awaitable[T4], /
    ) -> tuple[T1, T2, T3, T4]: ...

    @overload
    async def __call__(self, *calls: Awaitable[T]) -> tuple[T, ...]: ...

    @overload
    async def __call__(self, *calls: Awaitable[T], return_exceptions: bool) -> tuple[T | Exception, ...]: ...

    async def __call__(self, *calls: Awaitable[Any], return_exceptions: bool = False) -> tuple[Any, ...]:
        """Run the branches until all have ended, and return their results."""
        return await self._run.run_branches(calls, return_exceptions=return_exceptions)


class ChildCaller:
    """Runs jobs as child tasks of a run."""

    __slots__ = ("_run",)

    def __init__(self, run: WorkflowRun) -> None:
        self._run = run

    @overload
    async def __call__(self, job: Job[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def __call__(self, job: Job[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def __call__(self, job: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run the job as a child, or return the result of the child."""
        return await self._run.run_child(job, args, kwargs)
