"""Description of a step kind: its handler, its typed arguments, and what follows from them when a schedule is saved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tenuto.jobs.context import Context
    from tenuto.jobs.registry import Job
    from tenuto.model.definitions.policies import TaskPolicy
    from tenuto.postgres.database import Connection

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class StepDefaults:
    """Options that a kind derives from the arguments of a step. None leaves the option to the kind; an option that the
    step itself sets has priority."""

    queue: str | None = None
    priority: int | None = None
    limit_key: str | None = None
    """Steps with the same key share ``limit``."""
    limit: int | None = None
    """Maximum number of tasks with this key that run at the same time."""
    policy: TaskPolicy | None = None


@dataclass(frozen=True, slots=True)
class StepCheck:
    """A step whose arguments are checked against the database before the schedule is saved."""

    connection: Connection
    """Connection for queries; the check must not change anything."""
    arguments: Any
    """The typed arguments of the step."""
    declared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the same definition files declare and may not exist in the database yet, by list and key: the parsed entries
    of lists, and manifests."""


@dataclass(frozen=True, slots=True)
class StepKind:
    """One kind of step."""

    name: str
    create_job: Callable[[], Job[..., Any]]
    """Creates the handler; called when the first step of this kind is checked or run."""
    help: str = ""
    check: Callable[[StepCheck], Awaitable[None]] | None = None
    """Raises `Invalid` if the arguments do not fit the database."""
    derive: Callable[[Any], StepDefaults] | None = None
    """Derives options from the typed arguments."""
    version: str | None = None
    """Version of the code, which workers show."""

    @classmethod
    def of(
        cls,
        name: str,
        arguments: type[A],
        run: Callable[[A, Context], Any],
        *,
        help: str = "",
        policy: TaskPolicy | None = None,
        queue: str = "default",
        check: Callable[[StepCheck], Awaitable[None]] | None = None,
        derive: Callable[[A], StepDefaults] | None = None,
        version: str | None = None,
    ) -> StepKind:
        """A kind whose arguments are a dataclass or a pydantic model; ``run`` may be ``async def``."""
        return cls(name, partial(_create_job, name, arguments, run, policy, queue), help, check, derive, version)


def _create_job(
    name: str, arguments: type[Any], run: Callable[..., Any], policy: TaskPolicy | None, queue: str
) -> Job[..., Any]:
    # Here, because `registry` imports this module, and `tenuto --help` imports it for the commands of extensions.
    from tenuto.jobs.registry import Job, TaskOptions
    from tenuto.model.definitions.policies import TaskPolicy as Policy

    return Job(run, name, policy or Policy(), TaskOptions(queue=queue), isolated=False, arguments=arguments)
