"""The kinds of steps that come with Tenuto: each is a built-in job of its own, with typed arguments.

A kind lives in a module beside this one that offers ``KIND`` and ``job(means)``. What it needs of the app (the
database, the settings, secrets) it is given as `Means`, so that none of them reaches for the app.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job, Jobs
from tenuto.model.secrets import Text
from tenuto.model.sql_scripts import Driver
from tenuto.postgres.database import Database
from tenuto.settings import Settings


@dataclass(frozen=True, slots=True)
class Means:
    """What the handlers of steps are given."""

    open: Callable[[], Awaitable[Database]]
    """The database of Tenuto itself."""
    settings: Callable[[], Settings]
    reveal: Callable[[Context, Text], Awaitable[str]]
    """The text itself; if it is a secret, it is masked from here on in everything the attempt leaves behind."""
    drivers: Mapping[str, Driver] = field(default_factory=dict)
    """What runs SQL scripts on databases that Tenuto does not know by itself."""


class Kind(Protocol):
    """What the module of a kind offers."""

    KIND: str
    """How steps name it."""

    def job(self, means: Means) -> Job[..., Any]:
        """What runs the steps of this kind."""
        ...


_HOMES = {
    "executable": "tenuto.steps.programs.executable",
    "http.call": "tenuto.steps.http.call",
    "log.append": "tenuto.steps.log_append",
    "powershell": "tenuto.steps.programs.powershell",
    "sql": "tenuto.steps.sql.script",
}
"""Every kind by its name, with the module it lives in."""


def add_kinds(jobs: Jobs, means: Means) -> None:
    """Make every kind known. What it takes to run one is loaded when the first step of it is looked at."""
    for kind, home in _HOMES.items():
        jobs.add_kind_later(kind, partial(_made, home, means))


def _made(home: str, means: Means) -> Job[..., Any]:
    return cast(Kind, import_module(home)).job(means)
