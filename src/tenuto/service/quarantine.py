"""What goes wrong with one row stays with it: it is told of once, left out for a while, and the others go on.

Nothing is written down about such a row. Another process, of another version perhaps, may be able to do what this one
cannot, and so may this one later: at the latest when somebody has changed the row. A database that is away is no row's
fault, and is raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

from tenuto.errors import StoreError, TenutoError
from tenuto.logs import Log
from tenuto.postgres.database import Connection, Database, DatabaseError

BATCH = 100
UNREADABLE = (TenutoError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What reading something that somebody wrote by hand, or a later version, may come to."""

Seen = tuple[UUID, int]
"""A row as somebody found it: its id and its version."""
Held = dict[Seen, str]
"""Whom a transaction holds, each with its name."""


@dataclass(slots=True)
class LeftOut:
    """What this process cannot deal with just now, and leaves to others."""

    what: str
    """What they are, in the words of the log: a schedule, a manifest."""
    log: Log
    ids: set[Seen] = field(default_factory=set)
    """Each with its version: what somebody has changed since is not meant, and has its chance at once."""
    _told: dict[UUID, str] = field(default_factory=dict)

    def add(self, seen: Seen, name: str, cannot: str, error: Exception) -> None:
        """Leave one out from now on, as it was seen, and say so, unless that was said before."""
        self.ids.add(seen)
        id, _ = seen
        if self._told.get(id) != str(error):
            self._told[id] = str(error)
            _tell(self.log, f"a {self.what} cannot be {cannot}", error, **{self.what: name})

    def try_again(self) -> None:
        """Each has another chance. What fails again for the same reason is not told of again."""
        self._told = {id: self._told[id] for id, _ in self.ids if id in self._told}
        self.ids.clear()


@contextmanager
def alone(failed: Callable[[Exception], None]) -> Iterator[None]:
    """Hand over what goes wrong in here, and go on behind it; a database that is away is raised all the same."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error, DatabaseError):
            raise
        failed(error)
    except Exception as error:  # noqa: BLE001 — one thing that goes wrong must not take its neighbours with it
        failed(error)


def telling(log: Log, event: str, **fields: str) -> Callable[[Exception], None]:
    """Have the log say it."""
    return lambda error: _tell(log, event, error, **fields)


def _tell(log: Log, event: str, error: Exception, **fields: str) -> None:
    say = log.error if isinstance(error, TenutoError) else log.exception
    say(event, **fields, error=str(error))


class Some(Protocol):
    """What one transaction came to; ``found`` is how many it held, be it dealt with or left out."""

    found: int


@dataclass(slots=True)
class Counted:
    """As little as can be said of it."""

    found: int
    done: int


T = TypeVar("T", bound=Some)
Deal = Callable[[Connection, int, Held], Awaitable[T]]
"""Deals with up to so many, except for those left out; whom it holds, it notes."""
Failed = Callable[[str, Exception], None]
"""Told the name of one that had to be left out, and why."""


async def in_batches(
    database: Database, deal: Deal[T], left_out: LeftOut, cannot: str, failed: Failed = lambda name, error: None
) -> AsyncIterator[T]:
    """Deal with all there are, many in one transaction. If something spoils one, each is dealt with for itself, and
    what cannot be is left out."""
    found = BATCH
    while found == BATCH:
        whole: list[T] = []
        with alone(lambda error: None):  # which of them it is, and why, is found out one by one
            whole.append(await database.transaction(lambda connection: deal(connection, BATCH, {})))
        if whole:
            yield whole[0]
            found = whole[0].found
            continue
        found = 0
        async for one in _one_by_one(database, deal, left_out, cannot, failed):
            found += 1
            if one is not None:
                yield one


async def _one_by_one(
    database: Database, deal: Deal[T], left_out: LeftOut, cannot: str, failed: Failed
) -> AsyncIterator[T | None]:
    """A batch of them; None for each that had to be left out."""
    held: Held = {}

    async def one(connection: Connection) -> T:
        held.clear()  # what was held when it had to be done again
        return await deal(connection, 1, held)

    def leave_out(error: Exception) -> None:
        if not held:  # it is none of them
            raise error
        for seen, name in held.items():
            left_out.add(seen, name, cannot, error)
            failed(name, error)

    for _ in range(BATCH):
        done: list[T] = []
        held.clear()
        with alone(leave_out):
            done.append(await database.transaction(one))
        if done and not done[0].found:
            return
        yield done[0] if done else None
