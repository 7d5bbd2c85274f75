"""The inputs of a batch, some thousand at a time, with a digest of all so far: so that whoever goes on with a batch, or
sends it again, is known to come with the same ones.

A row of bulk work with the key it goes by, for whoever reads rows from outside: a file, the body of a request.

Bulk work goes in by parts: the next one is made ready while the database stores the last.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any

from tenuto.errors import Conflict, Invalid
from tenuto.model import stored_values

SIZE = 2000

Key = Callable[[Any], str]


class Part:
    """Some inputs, ready to be stored."""

    def __init__(self, keyed: bool) -> None:
        self.inputs: list[str] = []
        self.keys: list[str] | None = [] if keyed else None
        self.digest: str | None = None
        """Of everything up to the last of them."""


class Parts:
    """Reads inputs once, from the first to the last.

    An iterable that is not asynchronous may keep the whole loop waiting, and may belong to this thread: it is asked on
    the loop, for a part's worth at once, and before ``begin`` is awaited; what it gave is looked at afterwards.
    """

    def __init__(
        self,
        inputs: Iterable[Any] | AsyncIterable[Any],
        dump: Callable[[Any], str],
        key: Key | None = None,
        *,
        known: int = 0,
        digest: str | None = None,
        remembered: bool = True,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``known`` inputs are in already, with this digest; of an old batch nobody knows it. Nothing is told of those
        that need not be ``remembered``, because nobody can come back to them. ``begin``: the part that was given out
        last may be stored from now on."""
        self._inputs = inputs
        self._dump = dump
        self._key = key
        self._known = known
        self._then = digest
        self._digest = hashlib.sha256() if remembered else None
        self._begin = begin
        self._number = 0
        self._part = Part(key is not None)

    async def __aiter__(self) -> AsyncIterator[Part]:
        """The inputs that are not in yet; those that are must be the same as then. If one is refused, first comes what
        went before it."""
        inputs, refusal = self._inputs, None
        try:
            async for part in self._drawn(inputs) if isinstance(inputs, Iterable) else self._as_they_come(inputs):
                yield part
        except Invalid as error:
            refusal = error
        if self._part.inputs:
            yield self._whole()
        if refusal is not None:
            raise refusal
        if self._number <= self._known:
            self.must_be(self._known, self._then)

    async def _drawn(self, inputs: Iterable[Any]) -> AsyncIterator[Part]:
        items, refusal = iter(inputs), None
        while refusal is None:
            drawn, refusal = _draw(items)
            if not drawn:
                break
            await self._go_on()
            for item in drawn:
                self._add(item)
            if self._part.inputs:
                yield self._whole()
        if refusal is not None:
            raise refusal

    async def _as_they_come(self, inputs: AsyncIterable[Any]) -> AsyncIterator[Part]:
        async for item in inputs:
            if enough := self._add(item):
                yield self._whole()
            if enough or self._number % SIZE == 0:
                await self._go_on()

    async def must_be_in(self) -> None:
        """Refuse other inputs than those of a batch that is complete."""
        if self._then is not None or not self._known:
            async for _ in self:
                raise _others()

    def must_be(self, known: int, digest: str | None) -> None:
        """Refuse what was read so far if other inputs are in: how many are, and their digest."""
        if known and digest is None:
            return  # an old batch
        if self._number != known or (known and digest != self._told()):
            raise _others()

    async def _go_on(self) -> None:
        await asyncio.sleep(0)  # of many that are known nothing is stored, and nobody else would have a turn
        if self._begin is not None:
            await self._begin()

    def _add(self, item: Any) -> bool:
        """One more; whether that is enough."""
        if self._number == self._known:
            self.must_be(self._known, self._then)
        self._number += 1
        try:
            text = self._dump(item)
            key = "" if self._key is None else stored_values.label(str(self._key(item)), field="key")
        except Invalid as error:
            error.item = self._number
            raise
        if self._digest is not None:
            self._digest.update(f"{len(text)}:{text}{key}\n".encode())
        if self._number <= self._known:
            return False
        self._part.inputs.append(text)
        if self._part.keys is not None:
            self._part.keys.append(key)
        return len(self._part.inputs) == SIZE

    def _whole(self) -> Part:
        part, self._part = self._part, Part(self._key is not None)
        part.digest = self._told()
        return part

    def _told(self) -> str | None:
        return None if self._digest is None else self._digest.hexdigest()


def _draw(items: Iterator[Any]) -> tuple[list[Any], Invalid | None]:
    """A part's worth of inputs, or those before the one that whoever reads them has refused."""
    drawn: list[Any] = []
    try:
        for item in islice(items, SIZE):
            drawn.append(item)  # noqa: PERF402 — what was drawn before a refusal counts
    except Invalid as error:
        return drawn, error
    return drawn, None


def _others() -> Conflict:
    return Conflict(
        "other inputs came in under this key",
        field="batch_key",
        remedy="send the same inputs in the same order, or use another key",
    )


class Row(dict[str, Any]):
    """The fields of one row, and the key it goes by."""

    key: str = ""


def keyed(value: Any, field: str | None, *, drop: bool, remedy: str) -> Any:
    """The row with the key that stands in one of its fields, or as it is where no field is named.

    ``drop`` takes that field out of it, where the job has no such parameter.
    """
    if field is None:
        return value
    if not isinstance(value, dict) or value.get(field) is None:
        raise Invalid(f"has no {field!r:.80}", remedy=remedy)
    row = Row(value)
    row.key = str(row.pop(field) if drop else row[field])
    return row


Store = Callable[[Callable[[], object]], Coroutine[Any, Any, int]]
"""Stores a part and answers how many it created; says when there is only the database to wait for."""


class Storing:
    """One part at a time; at the end of the block all that were taken are in.

    A part is taken when the one before it is in, and stored when told to `begin`. In between no transaction is open:
    that is the time to ask an iterator for more, which may keep the whole loop waiting for as long as it likes. What it
    gave is made ready after `begin`, while the database is busy.
    """

    def __init__(self) -> None:
        self.created = 0
        self._next: Store | None = None
        self._under_way: asyncio.Task[int] | None = None

    async def take(self, store: Store) -> None:
        """Wait for the part before to be in, and keep this one for `begin`."""
        await self.begin()
        await self._settle()
        self._next = store

    async def begin(self) -> None:
        """Have stored what was taken, if anything; back once there is only the database to wait for, so that it has
        something to do meanwhile."""
        if self._next is None:
            return
        store, self._next = self._next, None
        sent = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, sent.set)  # the database may be on another loop
        self._under_way = asyncio.create_task(store(tell))
        self._under_way.add_done_callback(lambda _: sent.set())  # not every way of storing says so, nor one that fails
        await sent.wait()

    async def _settle(self) -> None:
        if self._under_way is not None:
            storing, self._under_way = self._under_way, None
            self.created += await storing

    async def __aenter__(self) -> Storing:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.begin()
        finally:
            await self._settle()
