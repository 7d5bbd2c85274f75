"""The kinds of steps that come with Tenuto: each is a built-in job of its own, with typed arguments.

A kind lives in a module beside this one that offers ``KIND`` and ``job(means)``. What it needs of the app (the database,
the settings, secrets) it is given as `Means`, so that none of them reaches for the app.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenuto.handlers.context import Context
from tenuto.handlers.jobs import Jobs
from tenuto.model.secrets import Text
from tenuto.settings import Settings
from tenuto.store.database import Database


@dataclass(frozen=True, slots=True)
class Means:
    """What the handlers of steps are given."""

    open: Callable[[], Awaitable[Database]]
    """The database of Tenuto itself."""
    settings: Callable[[], Settings]
    reveal: Callable[[Context, Text], Awaitable[str]]
    """The text itself; if it is a secret, it is masked from here on in everything the attempt leaves behind."""


def add_kinds(jobs: Jobs, means: Means) -> None:
    """Make every kind known."""
    for kind, make in _all():
        jobs.add_kind(kind, make(means))


def _all():  # type: ignore[no-untyped-def]
    return ()
