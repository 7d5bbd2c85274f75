"""The inputs of a batch, some thousand at a time, with a digest of all so far: so that whoever goes on with a batch, or
sends it again, is known to come with the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any

from tenuto.errors import Conflict, Invalid
from tenuto.model import payloads

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
    """Reads inputs once, from the first to the last."""

    def __init__(
        self,
        inputs: Iterable[Any] | AsyncIterable[Any],
        dump: Callable[[Any], str],
        key: Key | None = None,
        *,
        known: int = 0,
        digest: str | None = None,
        remembered: bool = True,
    ) -> None:
        """``known`` inputs are in already, with this digest; of an old batch nobody knows it. Nothing is told of those
        that need not be ``remembered``, because nobody can come back to them."""
        self._inputs = inputs
        self._dump = dump
        self._key = key
        self._known = known
        self._then = digest if known else None
        self._digest = hashlib.sha256() if remembered else None
        self._number = 0
        self._part = Part(key is not None)

    async def __aiter__(self) -> AsyncIterator[Part]:
        """The inputs that are not in yet; those that are must be the same as then. If one is refused, first comes what
        went before it."""
        refusal: Invalid | None = None
        try:
            if isinstance(self._inputs, Iterable):
                for item in self._inputs:
                    if self._add(item):
                        yield self._whole()
            else:
                async for item in self._inputs:
                    if self._add(item):
                        yield self._whole()
        except Invalid as error:
            refusal = error
        if self._part.inputs:
            yield self._whole()
        if refusal is not None:
            raise refusal
        if self._number < self._known and self._then is not None:
            raise _others()
        if self._number == self._known:
            self._must_be_the_same()

    async def must_be_in(self) -> None:
        """Refuse other inputs than those of a batch that is complete."""
        if self._then is not None or not self._known:
            async for _ in self:
                raise _others()

    def _add(self, item: Any) -> bool:
        """One more; whether that is enough."""
        if self._number == self._known:
            self._must_be_the_same()
        self._number += 1
        text = self._dump(item)
        key = "" if self._key is None else payloads.label(str(self._key(item)), field="key")
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
        part.digest = None if self._digest is None else self._digest.hexdigest()
        return part

    def _must_be_the_same(self) -> None:
        if self._then is not None and self._digest is not None and self._then != self._digest.hexdigest():
            raise _others()


def _others() -> Conflict:
    return Conflict(
        "other inputs came in under this key",
        field="batch_key",
        remedy="send the same inputs in the same order, or use another key",
    )
