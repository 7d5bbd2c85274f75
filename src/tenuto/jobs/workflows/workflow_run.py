"""The run of a workflow: an `async def` function that calls durable steps, within one attempt of its task.

The function is called again after a retry, a crash, a sleep or a wait. Each durable call has a key: its position in its
branch, which does not depend on the order in which parallel branches proceed, and its name. A call whose result is
stored returns it and runs nothing. A stored key with another name means that the code has changed.

A failed step is stored when the workflow has handled the failure, that is before its next durable call: from then on
the workflow depends on it. A failure that ends the attempt is not stored, and the retry runs the step again.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import typing
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NoReturn, TypeVar
from uuid import UUID, uuid4

from pydantic_core import to_json

from tenuto.clock import SystemClock
from tenuto.errors import EngineError, Invalid, quoted
from tenuto.jobs.context import Context, PermanentFailure, RetryLater, TaskDeferred
from tenuto.jobs.registry import require_job
from tenuto.jobs.workflows.durable_calls import ChildCaller, GatherCaller, StepCaller
from tenuto.jobs.workflows.failures import ChildFailed, StepFailed, load_failure
from tenuto.jobs.workflows.step_results import (
    RedactedResult,
    StepResults,
    call_function,
    redacted_result_error,
    save_result,
    unwrap_function,
)
from tenuto.jobs.workflows.stored_calls import GATHER, History, describe_child
from tenuto.model import validation
from tenuto.model.definitions.policies import RetryPolicy
from tenuto.model.events.event_names import MAX_WAIT
from tenuto.model.work.tasks import Deferral, OutcomeStatus, WaitKey

T = TypeVar("T")

MAX_STEPS = 10_000
"""Stored results of a run; the store reads not many more."""
MAX_HISTORY_CHARACTERS = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Branch:
    """A sequence of durable calls: the workflow itself, or one of the parallel branches of a gather."""

    path: str
    """Empty for the workflow itself; ``3.1`` is the first branch of the gather at position 3."""
    owner: asyncio.Task[Any] | None = None
    position: int = 0
    """Position of the last durable call."""
    failures: list[tuple[str, StepFailed]] = field(default_factory=list)
    """Failures that are not stored, by key."""
    deferred: TaskDeferred | None = None
    """Set when a call of the branch has given up the slot."""

    def path_of(self, position: int) -> str:
        return f"{self.path}.{position}" if self.path else str(position)


@dataclass(slots=True, eq=False)
class _StepScope:
    """A step whose function runs."""

    key: str
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


_branch: ContextVar[Branch | None] = ContextVar("tenuto_workflow_branch", default=None)
_scope: ContextVar[_StepScope | None] = ContextVar("tenuto_workflow_step", default=None)


class WorkflowRun:
    """One attempt of a workflow."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.step = StepCaller(self)
        self.gather = GatherCaller(self)
        self.run = ChildCaller(self)
        self._history: History | None = None
        self._unsaved: dict[str, str] = {}
        """Decisions that are stored before the next durable call."""
        self._decision_lock = asyncio.Lock()
        self._broken: Exception | None = None
        """The error after which no durable call is possible, although the workflow may have caught it."""
        self._running: list[str] = []

    async def load_history(self) -> History:
        """Return what earlier attempts have stored."""
        if self._history is None:
            self._history = History(await self._ctx.steps.load(), self._ctx.attempt)
        return self._history

    def pin_version(self, version: str | None) -> None:
        """Let the run continue with this version until its end: it is stored before the first durable call."""
        if version is not None:
            self._unsaved["version"] = to_json({"value": version}).decode()

    async def execute(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run the workflow to its end, or until it gives up its slot."""
        history = await self.load_history()
        _branch.set(Branch("", asyncio.current_task()))
        failed: StepFailed | None = None
        try:
            result = await function()
        except StepFailed as error:
            failed = error
        except Exception:  # the workflow is user code; it may hide why it cannot continue behind another error
            if self._broken is not None:
                raise self._broken from None
            raise
        if self._broken is not None:
            raise self._broken
        if failed is not None:
            self._ctx.current_step = failed.step
            # A failure that is not stored ends the attempt as the error itself, and the retry policy applies to it.
            raise failed.__cause__ or failed
        if (unused := history.first_unused()) is not None:  # guard: workflows.unused_results
            raise self._changed(unused, "the workflow ended without it")
        self._report("done")
        return result

    # --- steps ------------------------------------------------------------------------------------------------------

    async def call(
        self, name: str | None, retry: RetryPolicy | None, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a step, or return its stored result."""
        step = _describe_function(unwrap_function(function))
        label = validation.check_label(step.label if name is None else name, field="step")
        results = step.results if name is None else StepResults(label, step.results.return_type)
        return await self._run_once(label, results, partial(self._call_with_retries, retry, step, args, kwargs))

    async def now(self) -> datetime:
        """Return the time at which the run first passed here."""
        clock = self._ctx.clock
        value: datetime = await self._make_value("now", datetime, lambda: (clock or SystemClock()).now())
        return value

    async def random(self) -> float:
        """Return a random number that stays the same."""
        value: float = await self._make_value("random", float, random.random)
        return value

    async def uuid(self) -> UUID:
        """Return a random UUID that stays the same."""
        value: UUID = await self._make_value("uuid", UUID, uuid4)
        return value

    async def _make_value(self, label: str, kind: Any, make: Callable[[], Any]) -> Any:
        async def run(_: str) -> Any:
            return make()

        return await self._run_once(label, StepResults(label, kind), run)

    async def _run_once(self, label: str, results: StepResults, run: Callable[[str], Awaitable[Any]]) -> Any:
        branch = self._enter()
        key, stored = self._next_key(branch, label)
        if stored is not None:
            failure = load_failure(label, stored)
            if failure is None:
                return self._load(results, stored, resumed=True)
            if key in self._known_history.kept_failures:
                branch.failures.append((key, failure))
            else:
                failure.is_permanent = True  # the workflow depends on it: a retry raises it again
            raise failure
        await self._store_decisions(branch)
        self._ctx.raise_if_cancelled()  # the previous step may have ended normally in spite of a stop request
        scope = _StepScope(key)
        token = _scope.set(scope)
        self._running.append(label)
        self._report(", ".join(self._running))
        try:
            result = await run(key)
        except Exception as error:  # a step may raise anything; the workflow gets it as StepFailed
            failure = StepFailed.from_error(label, error)
            branch.failures.append((key, failure))
            raise failure from error
        except TaskDeferred as error:
            branch.deferred = error
            raise
        finally:
            self._running.remove(label)
            _scope.reset(token)
        try:
            text = results.dump(result, scope.warnings, scope.errors)
        except PermanentFailure as error:
            failure = StepFailed.from_error(label, error)
            branch.failures.append((key, failure))
            raise failure from error
        return self._load(results, await self._save(key, text), resumed=False)

    async def _call_with_retries(
        self, retry: RetryPolicy | None, step: _StepFunction, args: tuple[Any, ...], kwargs: dict[str, Any], key: str
    ) -> Any:
        failure_count = 0
        while True:
            try:
                return await call_function(step.bind(self._ctx, args, kwargs), {}, self._ctx)
            except PermanentFailure:
                raise
            except Exception as error:  # a step may raise anything, and is retried
                failure_count += 1
                if retry is None or retry.is_final_failure(failure_count):
                    raise
                delay = retry.delay_after(failure_count, f"{self._ctx.task_id} {key}").total_seconds()
                if isinstance(error, RetryLater):
                    delay = error.after.total_seconds()
                message = f"step {key} failed and is retried in {delay:.1f} s: {error}"
                self._ctx.log.warning(message)
            await asyncio.sleep(delay)
            self._ctx.raise_if_cancelled()

    def _load(self, results: StepResults, text: str, *, resumed: bool) -> Any:
        try:
            value = results.load(text, self._ctx, resumed=resumed)
            if isinstance(value, RedactedResult):
                raise redacted_result_error(value.step)
        except (EngineError, PermanentFailure) as error:
            self._ctx.current_step = results.label
            self._break(error)
        return value

    def record_warning(self, text: str) -> None:
        """Store a warning with the step that reported it."""
        if (scope := _scope.get()) is not None:
            scope.warnings.append(text)

    def record_error(self, text: str) -> None:
        """Store an error with the step that reported it."""
        if (scope := _scope.get()) is not None:
            scope.errors.append(text)

    # --- parallel branches ------------------------------------------------------------------------------------------

    async def run_branches(
        self, calls: tuple[Awaitable[Any], ...], *, return_exceptions: bool = False
    ) -> tuple[Any, ...]:
        """Run branches in parallel until all have ended, and return their results in order.

        If some have failed, the failure of the first of them is raised when all have ended. A branch that sleeps or
        waits gives up the slot as soon as no other branch runs.
        """
        try:
            branch = self._enter()
            key, _ = self._next_key(branch, GATHER)
            if branch.failures:  # guard: workflows.failure_before_branches
                await self._store_decisions(branch)
        except BaseException:
            for call in calls:
                if inspect.iscoroutine(call):
                    call.close()
            raise
        path = key.partition(" ")[0]
        branches = [Branch(f"{path}.{number}") for number in range(1, len(calls) + 1)]
        tasks = [
            asyncio.create_task(_run_branch(own, call), name=f"branch {own.path}")
            for own, call in zip(branches, calls, strict=True)
        ]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        if self._broken is not None:
            raise self._broken
        await self._defer_if_interrupted(branches, ended)
        branch.failures += [failure for own in branches for failure in own.failures]
        first_error = next((each for each in ended if isinstance(each, BaseException)), None)
        if first_error is not None and not return_exceptions:
            raise first_error
        return tuple(ended)

    async def _defer_if_interrupted(self, branches: list[Branch], ended: list[Any]) -> None:
        """Give up the slot if a branch has done so; stop if a branch was stopped."""
        interrupted = [each for each in ended if isinstance(each, BaseException) and not isinstance(each, Exception)]
        stopped = next((each for each in interrupted if not isinstance(each, TaskDeferred)), None)
        if stopped is not None:
            raise stopped
        if interrupted:
            # Branches that have failed fail again when the workflow is called again, unless the task is retried.
            for own in branches:
                if own.deferred is None:
                    await self._keep_failures(own)
            self.defer(_merge([each.deferral for each in interrupted if isinstance(each, TaskDeferred)]))

    async def _keep_failures(self, branch: Branch) -> None:
        """Store the failures of a branch for this attempt, which continues after the waits of the other branches."""
        for key, failure in branch.failures:
            if key not in self._known_history.kept_failures:
                await self._save(f"failure of attempt {self._ctx.attempt} at {key}", failure.dump())

    # --- sleeps and waits -------------------------------------------------------------------------------------------

    async def begin_wait(self, kind: str) -> str:
        """Return the key of a sleep or a wait."""
        scope = _scope.get()
        if scope is not None:
            return scope.key
        branch = self._enter()
        key, stored = self._next_key(branch, kind)
        if stored is None:
            await self._store_decisions(branch)
            self._ctx.raise_if_cancelled()
        return key.partition(" ")[0]

    def defer(self, deferral: Deferral) -> NoReturn:
        """Give up the slot. The workflow makes no further durable calls, not even where it cleans up."""
        deferred = TaskDeferred(deferral)
        branch = _branch.get()
        if branch is not None:
            branch.deferred = deferred
        raise deferred

    # --- child tasks ------------------------------------------------------------------------------------------------

    async def run_child(self, job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a child task and give up the slot until it has ended, or return its result."""
        require_job(job)
        if job.options.unique_key is not None:
            raise Invalid(
                f"a child task cannot have the unique key {quoted(job.options.unique_key)}",
                code="workflow.child.unique_key",
                field="unique_key",
                remedy="leave it out: a workflow starts each child once",
            )
        self._enter()  # a step cannot start a child: it may run several times
        path = await self.begin_wait(describe_child(job.name))
        now = (self._ctx.clock or SystemClock()).now()
        child = job.new_task(job.dump_input(args, kwargs), now, self._ctx.initiator)
        try:
            wait = await self._ctx.steps.run_child(path, child, self._ctx.log_text)
        except Exception as error:  # noqa: BLE001 — also where the workflow catches it, no later call may succeed
            self._break(error)
        if not wait.has_ended:
            self._report(f"waits for task {wait.key} ({job.name})")
            self.defer(Deferral(resume_at=max(wait.ends_at, now + MAX_WAIT), waits=(WaitKey(path, 1),)))
        if wait.log is not None:
            self._ctx.log.prepend(wait.log)
        if wait.payload["status"] in (OutcomeStatus.COMPLETED, OutcomeStatus.COMPLETED_WITH_WARNING):
            return job.load_output(wait.payload["output"])
        raise ChildFailed(job.name, wait.key, wait.payload["status"], wait.payload["error"])

    # --- changes of the code ----------------------------------------------------------------------------------------

    def patched(self, name: str) -> bool:
        """Return whether the run takes the new code at this place: False if it had passed the place before."""
        branch = self._enter()
        row = f"patch {validation.check_label(name, field='name')} in {branch.path or 'main'}"
        history = self._known_history
        if row not in history.patches:
            # guard: workflows.patch_of_passed_place
            history.patches[row] = not history.has_passed(branch.path, branch.position)
            self._unsaved[row] = to_json({"value": history.patches[row]}).decode()
        return history.patches[row]

    def _changed(self, key: str, instead: str) -> EngineError:
        return EngineError(
            f"the history of the task has {key!r}, but {instead}",
            code="workflow.code_changed",
            remedy="the code has changed since the task began, or does not call its steps in the same order each time:"
            " deploy the old code beside the new one (ctx.patched, or a version), or cancel the task and enqueue it"
            " again",
        )

    # --- the next durable call --------------------------------------------------------------------------------------

    @property
    def _known_history(self) -> History:
        assert self._history is not None
        return self._history

    def _enter(self) -> Branch:
        """Return the branch of a durable call, or raise if it cannot make one."""
        if self._broken is not None:
            raise self._broken
        branch, scope = _branch.get(), _scope.get()
        if scope is not None:
            raise Invalid(
                f"the step {scope.key!r} makes a durable call itself",
                code="workflow.step.nested",
                field="step",
                remedy="call the steps in the function of the workflow, or in an async function that it calls",
            )
        if branch is None or branch.owner is not asyncio.current_task():  # guard: workflows.calls_of_other_tasks
            raise Invalid(
                "a durable call is made in an asyncio task that is no branch of the workflow",
                code="workflow.branch.unknown",
                field="step",
                remedy="use `await ctx.gather(…)` instead of asyncio.gather, TaskGroup, create_task or wait_for",
            )
        if branch.deferred is not None:  # guard: workflows.no_call_after_deferral
            raise branch.deferred
        return branch

    def _next_key(self, branch: Branch, label: str) -> tuple[str, str | None]:
        """Return the key of the next durable call of a branch, and what is stored under it."""
        branch.position += 1
        path = branch.path_of(branch.position)
        key, history = f"{path} {label}", self._known_history
        name = history.take(path)
        if name is not None and name != label:  # guard: workflows.changed_code
            self._break(self._changed(f"{path} {name}", f"the code calls {label!r} there"))
        return key, None if name is None else history.results.get(key, "")

    async def _store_decisions(self, branch: Branch) -> None:
        """Store what the next durable call depends on: decisions, and the failures that the workflow has handled."""
        # A decision stays until it is stored, so that the calls of parallel branches wait for it too.
        while self._unsaved:  # guard: workflows.decision_before_parallel_calls
            async with self._decision_lock:
                for row, text in list(self._unsaved.items()):
                    await self._save(row, text)
                    del self._unsaved[row]
        while branch.failures:  # guard: workflows.handled_failure_is_stored
            key, failure = branch.failures.pop(0)
            failure.is_permanent, failure.__cause__ = True, None
            await self._save(key, failure.dump())

    async def _save(self, key: str, text: str) -> str:
        history = self._known_history
        history.stored_count += 1
        history.character_count += len(text)
        try:
            if history.stored_count > MAX_STEPS or history.character_count > MAX_HISTORY_CHARACTERS:
                raise PermanentFailure(
                    f"the workflow has more than {MAX_STEPS:,} durable calls, or more than 64 MiB of results",
                    code="workflow.history.too_large",
                    remedy="let child jobs do parts of the work (ctx.run), and store large results elsewhere",
                )
            return await save_result(self._ctx, key, text)
        except Exception as error:  # noqa: BLE001 — also where the workflow catches it, no later call may succeed
            self._break(error)

    def _break(self, error: Exception) -> NoReturn:
        self._broken = self._broken or error
        raise error

    def _report(self, message: str) -> None:
        self._ctx.current_step = ", ".join(self._running)
        self._ctx.progress(self._known_history.stored_count, message=message)


async def _run_branch(branch: Branch, call: Awaitable[T]) -> T:
    branch.owner = asyncio.current_task()
    _branch.set(branch)
    return await call


def _merge(deferrals: list[Deferral]) -> Deferral:
    """Return the deferral until the first of several."""
    instants = [each.resume_at for each in deferrals]
    known = [each for each in instants if each is not None]
    return Deferral(
        resume_at=min(known) if len(known) == len(instants) else None,
        waits=tuple(wait for each in deferrals for wait in each.waits),
    )


# --- functions of steps -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _StepFunction:
    function: Callable[..., Any]
    label: str
    results: StepResults
    context_parameter: str | None
    takes_context_first: bool

    def bind(self, ctx: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return the call with its arguments and the context."""
        if self.takes_context_first:
            args = (ctx, *args)
        elif self.context_parameter is not None:
            kwargs = {**kwargs, self.context_parameter: ctx}
        return partial(self.function, *args, **kwargs)


@lru_cache(maxsize=4096)
def _describe_function(function: Callable[..., Any]) -> _StepFunction:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise Invalid(
            f"the types of step {function.__name__} cannot be resolved: {error}",
            code="chain.step.types.unresolvable",
            field="step",
            remedy="define them at the top level of a module",
        ) from error
    names = [name for name, kind in hints.items() if kind is Context and name != "return"]
    context_parameter = names[0] if names else None
    parameters = list(inspect.signature(function).parameters)
    return _StepFunction(
        function,
        function.__name__,
        StepResults(function.__name__, hints.get("return", Any)),
        context_parameter,
        bool(parameters) and parameters[0] == context_parameter,
    )
