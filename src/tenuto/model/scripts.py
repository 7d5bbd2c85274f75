"""A SQL script that is to be run, and what became of each of its statements: what drivers are given, and give.

A driver is an async generator function: it takes a `Script` and yields a `Ran` after every statement. When it is closed
or cancelled, the statement under way must really stop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from tenuto.errors import StoreError
from tenuto.model.sqltext import Value


@dataclass(frozen=True, slots=True)
class Script:
    """What is to be run, and where."""

    url: str = field(repr=False)
    """The address of the database, with the login."""
    text: str = field(repr=False)
    parameters: Mapping[str, Value] = field(repr=False)
    """What stands for ``:name`` in the text."""
    secret: frozenset[str]
    """Which of them must not be seen by anybody who looks at what the database is doing."""
    timeout_seconds: float
    """How long one statement may take."""
    transaction: bool
    """Whether all of it counts, or nothing."""
    notice: Callable[[str, str], None] = field(repr=False)
    """Takes what the database says on the way: a level (debug, info, warning) and words."""
    forbidden_login: str | None = ""
    """Who Tenuto itself is in its own database: scripts log in as somebody else, and not as a superuser. None if the
    settings allow any login."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A statement that came to its end."""

    command: str
    """The word it begins with, in capitals."""
    rows: int | None
    """How many rows it wrote, or found; None if it does neither."""


Driver = Callable[[Script], AsyncIterator[Ran]]


class ScriptFailed(StoreError):
    """A statement of a script was refused or took too long."""
