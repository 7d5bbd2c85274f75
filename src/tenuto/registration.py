"""What a program declares: its jobs, chains, schedules and manifests. Nothing here touches the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.jobs.chains import Chain
from tenuto.jobs.registry import Job, Jobs, Using
from tenuto.model import stored_values
from tenuto.model.actors import Actor
from tenuto.model.manifests import Manifest
from tenuto.model.policies import Policy, RetryPolicy, retry_policy
from tenuto.model.schedules import Definition, Misfire
from tenuto.model.sql_scripts import Driver
from tenuto.model.steps import Step
from tenuto.model.tasks import NewTask, seconds
from tenuto.model.triggers import Trigger
from tenuto.operations.manifests import Manifests, manifest_of
from tenuto.operations.schedules import Schedules, definition

P = ParamSpec("P")
R = TypeVar("R")


class ChainOptions(TypedDict, total=False):
    """What may be said of a chain: see `Defining.job`."""

    queue: str
    priority: int
    max_retries: int | None
    retry: RetryPolicy | None
    timeout: float | str | timedelta | None
    limit: int | None
    limit_key: str | None
    on_lost: Literal["retry", "fail"]
    tags: Iterable[str]


class Defining:
    """The part of an app with which a program says what there is."""

    jobs: Jobs
    schedules: Schedules
    manifests: Manifests
    _actor: Actor
    _drivers: dict[str, Driver]

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
        max_retries: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | str | timedelta | None = None,
        limit: int | None = None,
        limit_key: str | None = None,
        on_lost: Literal["retry", "fail"] = "retry",
        isolated: bool = False,
        tags: Iterable[str] = (),
    ) -> Callable[[Callable[P, R]], Job[P, R]]: ...

    def job(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_retries: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | str | timedelta | None = None,
        limit: int | None = None,
        limit_key: str | None = None,
        on_lost: Literal["retry", "fail"] = "retry",
        isolated: bool = False,
        tags: Iterable[str] = (),
    ) -> Job[P, R] | Callable[[Callable[P, R]], Job[P, R]]:
        """Register a function as a job.

        ``max_retries`` (3 unless said) is short for ``retry=RetryPolicy(max_retries=…)``: give one of the two.
        ``limit`` bounds how many of its tasks run at the same time, everywhere; with ``limit_key`` the bound is
        shared by all tasks of that key. ``isolated`` runs it in a child process that can be killed.
        """
        policy = Policy(retry_policy(max_retries, retry), seconds(timeout, field="timeout"), on_lost)

        def register(function: Callable[P, R]) -> Job[P, R]:
            job_name = name or function.__name__
            key = limit_key or (f"job:{job_name}" if limit is not None else None)
            using = Using(
                queue=queue, priority=priority, limit_key=key, limit=limit, tags=tuple(stored_values.tags(tags))
            )
            job = Job(function, job_name, policy, using, isolated=isolated)
            self.jobs.add(job)
            return job

        return register if function is None else register(function)

    def register_driver(self, name: str, driver: Driver) -> None:
        """Let SQL scripts be run on databases Tenuto does not know by itself.

        A connection names it with ``driver``, or by what its url begins with. It is an async generator function: it
        takes a `tenuto.model.sql_scripts.Script` and yields a `tenuto.model.sql_scripts.Ran` after every statement.
        """
        stored_values.name(name, field="driver", limit=64)
        if name in self._drivers:
            raise Invalid(f"a driver named {name} is registered already", field="driver")
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
    ) -> Definition:
        """Declare a schedule: steps one after the other, a list in the list runs side by side.

        It comes into force when a service of this program starts (or with ``app.schedules.deploy()``).
        """
        return self.schedules.declare(
            definition(name, trigger, steps, description=description, overlap=overlap, misfire=misfire)
        )

    def chain(self, name: str, *steps: Callable[..., Any], **options: Unpack[ChainOptions]) -> Job[..., Any]:
        """Register several functions as one job: values flow from one to the next by type.

        What a step returns is stored as it ends; a retry goes on after the last one that is. The options are those of
        a job, but for ``isolated``: a child process cannot store.
        """
        if unknown := options.keys() - ChainOptions.__optional_keys__:
            raise Invalid(f"a chain has no option {min(unknown)!r}", field="chain")
        return self.job(name=name, **options)(Chain(name, steps).as_function())

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
        max_retries: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | str | timedelta | None = None,
        queue: str | None = None,
        priority: int | None = None,
        group: str | None = None,
        max_active: int | None = None,
    ) -> Manifest:
        """Declare a manifest: a job with input and rules of its own, run by a clock (``trigger``), after another has
        succeeded (``after``), for what it is given (``on_demand``), or by hand.

        It comes into force when a service of this program starts (or with ``app.manifests.deploy()``).
        """
        return self.manifests.declare(
            manifest_of(
                job,
                external_id,
                trigger=trigger,
                on_demand=on_demand,
                after=after,
                properties=properties,
                name=name,
                description=description,
                max_retries=max_retries,
                retry=retry,
                timeout=timeout,
                queue=queue,
                priority=priority,
                group=group,
                max_active=max_active,
            )
        )


def new_task(job: Job[..., Any], input: str, now: datetime, actor: Actor) -> NewTask:
    """A task of a job, with the options it is to be run with."""
    using = job.using_
    run_at = using.run_at if using.delay is None else now + using.delay
    return NewTask(
        new_id(),
        job.name,
        input,
        now,
        actor,
        run_at,
        "job",
        using.queue,
        using.priority,
        job.policy_json,
        using.key,
        using.limit_key,
        using.limit,
        list(using.tags) or None,
        using.correlation_id,
    )
