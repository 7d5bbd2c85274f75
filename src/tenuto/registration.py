"""Registration of jobs, chains, schedules, manifests and SQL drivers by a program. Does not access the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from tenuto.errors import Invalid
from tenuto.jobs.chains import Chain
from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job, JobEnqueuer, JobRegistry, JobWithContext, TaskOptions, job_class
from tenuto.jobs.workflows.definition import workflow_function
from tenuto.model import validation
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy, resolve_retry_policy
from tenuto.model.definitions.schedules import Misfire, ScheduleDefinition
from tenuto.model.definitions.sql_scripts import ScriptDriver
from tenuto.model.definitions.steps import Step
from tenuto.model.triggers import Trigger
from tenuto.model.work.tasks import parse_duration_seconds, parse_expires_in
from tenuto.operations.definitions.manifests import Manifests, build_manifest
from tenuto.operations.definitions.schedules import Schedules, schedule_definition

P = ParamSpec("P")
R = TypeVar("R")


class ChainOptions(TypedDict, total=False):
    """Options of a chain or a workflow; see `Registration.job`."""

    queue: str
    priority: int
    max_attempts: int | None
    retry: RetryPolicy | None
    timeout: float | str | timedelta | None
    limit: int | None
    limit_key: str | None
    rate_limit: str | None
    rate_key: str | None
    expires_in: float | str | timedelta | None
    on_lost: Literal["retry", "fail"]
    tags: Iterable[str]
    version: str | None
    dead_letter: bool


class JobDecorator(Protocol):
    """Turns a function into a job. A first parameter `Context` is not part of the input."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> JobWithContext[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


class Registration:
    """The methods of an app that register jobs and declare definitions."""

    jobs: JobRegistry
    schedules: Schedules
    manifests: Manifests
    _actor: Actor
    _drivers: dict[str, ScriptDriver]

    def _job_enqueuer(self) -> JobEnqueuer:
        """Return what `Job.enqueue` calls."""
        raise NotImplementedError

    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> JobWithContext[P, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...

    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | str | timedelta | None = None,
        limit: int | None = None,
        limit_key: str | None = None,
        rate_limit: str | None = None,
        rate_key: str | None = None,
        expires_in: float | str | timedelta | None = None,
        on_lost: Literal["retry", "fail"] = "retry",
        isolated: bool = False,
        tags: Iterable[str] = (),
        version: str | None = None,
        dead_letter: bool = True,
    ) -> JobDecorator: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | str | timedelta | None = None,
        limit: int | None = None,
        limit_key: str | None = None,
        rate_limit: str | None = None,
        rate_key: str | None = None,
        expires_in: float | str | timedelta | None = None,
        on_lost: Literal["retry", "fail"] = "retry",
        isolated: bool = False,
        tags: Iterable[str] = (),
        version: str | None = None,
        dead_letter: bool = True,
    ) -> Job[..., Any] | JobDecorator:
        """Register a function as a job.

        ``max_attempts`` (default 15) is short for ``retry=RetryPolicy(max_attempts=…)``; give only one of them.
        ``limit`` is the maximum number of its tasks that run at the same time over all workers; tasks with the same
        ``limit_key`` share it. ``rate_limit`` is the maximum number of its starts per second, minute or hour, such as
        ``"100/m"`` or ``"5/s burst 20"``; tasks with the same ``rate_key`` share it. A task that has not started
        ``expires_in`` after it was due ends as expired. ``isolated`` runs the job in a child process that can be
        killed. ``version`` is shown with the workers that know the job. With ``dead_letter=False``, a task that fails
        for good leaves no dead letter and cannot be retried by an operator.
        """
        policy = TaskPolicy(
            resolve_retry_policy(max_attempts, retry),
            parse_duration_seconds(timeout, field="timeout"),
            on_lost,
            dead_letter,
        )

        def register(function: Callable[..., Any], /) -> Job[..., Any]:
            job_name = name or function.__name__
            key = limit_key or (f"job:{job_name}" if limit is not None else None)
            options = TaskOptions(
                queue=queue,
                priority=priority,
                limit_key=key,
                limit=limit,
                tags=tuple(validation.check_tags(tags)),
                rate_limit=rate_limit,
                rate_key=rate_key or (f"job:{job_name}" if rate_limit is not None else None),
                expires_in=parse_expires_in(expires_in),
            )
            job = job_class(function)(function, job_name, policy, options, isolated=isolated, version=version)
            job.enqueuer = self._job_enqueuer()
            self.jobs.add_job(job)
            return job

        return cast(JobDecorator, register) if function is None else register(function)

    def register_driver(self, name: str, driver: ScriptDriver) -> None:
        """Register a driver that runs SQL scripts on other kinds of databases.

        A connection selects it with ``driver`` or with the scheme of its URL. The driver is an async generator function
        that takes a `Script` and yields a `StatementResult` after every statement (both are in
        `tenuto.model.definitions.sql_scripts`).
        """
        validation.check_name(name, field="driver", limit=64)
        if name in self._drivers:
            raise Invalid(
                f"a driver named {name!r} is already registered", code="app.driver.already_registered", field="driver"
            )
        self._drivers[name] = driver

    def schedule(
        self,
        name: str,
        trigger: Trigger,
        steps: Iterable[Step | Iterable[Step]],
        *,
        description: str = "",
        overlap: str = "skip",
        misfire: Misfire | Mapping[str, Any] | str = "once",
    ) -> ScheduleDefinition:
        """Declare a schedule. Steps run in order; a list inside the list is a step group whose steps run in parallel.

        The schedule is deployed when a service of this program starts, or with ``app.schedules.deploy()``.
        """
        return self.schedules.declare(
            schedule_definition(name, trigger, steps, description=description, overlap=overlap, misfire=misfire)
        )

    def chain(self, name: str, *steps: Callable[..., Any], **options: Unpack[ChainOptions]) -> Job[..., Any]:
        """Register several functions as one job; results are passed to later functions by type.

        The result of each step is stored, and a retry continues after the last stored step. The options are those of
        `job` except ``isolated``, because a child process cannot store results.
        """
        if unknown := options.keys() - ChainOptions.__optional_keys__:
            raise Invalid(f"a chain has no option {min(unknown)!r}", code="chain.option.unknown", field="chain")
        job: Job[..., Any] = self.job(name=name, **options)(Chain(name, steps).as_function())
        return job

    @overload
    def workflow(self, function: Callable[Concatenate[Context, P], R], /) -> JobWithContext[P, R]: ...

    @overload
    def workflow(self, function: Callable[P, R], /) -> Job[P, R]: ...

    @overload
    def workflow(
        self, function: None = None, /, *, name: str | None = None, **options: Unpack[ChainOptions]
    ) -> JobDecorator: ...

    def workflow(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any
    ) -> Job[..., Any] | JobDecorator:
        """Register an ``async def`` function as a workflow: a job that calls durable steps with ``ctx.step``.

        The function may branch and loop as it likes, as long as it makes the same calls when it is called again with
        the same results. The options are those of `job` except ``isolated``. Functions of one name with different
        ``version`` are registered beside each other: new runs use the highest version, and a run that has begun
        continues with its own.
        """
        if unknown := options.keys() - ChainOptions.__optional_keys__:
            raise Invalid(
                f"a workflow has no option {min(unknown)!r}", code="workflow.option.unknown", field="workflow"
            )

        def register(function: Callable[..., Any], /) -> Job[..., Any]:
            job: Job[..., Any] = self.job(name=name, **options)(workflow_function(function))
            return job

        return cast(JobDecorator, register) if function is None else register(function)

    def manifest(
        self,
        external_id: str,
        job: Job[..., Any],
        *,
        trigger: Trigger | None = None,
        on_demand: bool = False,
        after: Manifest | str | None = None,
        properties: Any = None,
        name: str = "",
        description: str = "",
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | str | timedelta | None = None,
        queue: str | None = None,
        priority: int | None = None,
        group: str | None = None,
        max_active: int | None = None,
        max_retries: int | None = None,
        on_dead_letter: Literal["block", "continue"] = "block",
        expires_in: float | str | timedelta | None = None,
    ) -> Manifest:
        """Declare a manifest: a job with its own input and policies.

        It runs on a ``trigger``, ``after`` another manifest has succeeded, for enqueued items (``on_demand``), or
        manually. While a run of it is a dead letter it does not run on its own, unless ``on_dead_letter`` is
        ``"continue"``. It is deployed when a service of this program starts, or with ``app.manifests.deploy()``.
        ``max_retries`` is another name for ``max_attempts``. A run or batch item that has not started ``expires_in``
        after it was due ends as expired.
        """
        return self.manifests.declare(
            build_manifest(
                job,
                external_id,
                trigger=trigger,
                on_demand=on_demand,
                after=after,
                properties=properties,
                name=name,
                description=description,
                max_attempts=max_attempts,
                retry=retry,
                timeout=timeout,
                queue=queue,
                priority=priority,
                group=group,
                max_active=max_active,
                max_retries=max_retries,
                on_dead_letter=on_dead_letter,
                expires_in=expires_in,
            )
        )
