"""Streaming of bulk inputs: read them in chunks with a digest, add keys to rows, and write chunks in a pipeline.

The digest covers all inputs so far. It shows whether a continued or repeated submission has the same inputs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any

from tenuto.errors import Conflict, Invalid, quoted
from tenuto.model import validation

CHUNK_SIZE = 2000

KeyFunction = Callable[[Any], str]


class Chunk:
    """Inputs that are ready to be stored."""

    def __init__(self, *, has_keys: bool) -> None:
        self.inputs: list[str] = []
        self.keys: list[str] | None = [] if has_keys else None
        self.digest: str | None = None
        """Digest of all inputs up to the last one of this chunk."""


class ChunkReader:
    """Reads inputs once, in order, and yields those that are not stored yet as chunks.

    A synchronous iterable may block the event loop and may be bound to this thread. It is therefore read on the loop, a
    chunk at a time, while no transaction is open; the chunk is serialised while the previous one is being stored.
    """

    def __init__(
        self,
        inputs: Iterable[Any] | AsyncIterable[Any],
        dump: Callable[[Any], str],
        key: KeyFunction | None = None,
        *,
        stored_count: int = 0,
        stored_digest: str | None = None,
        with_digest: bool = True,
        start_write: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """The first ``stored_count`` inputs are stored and have ``stored_digest`` (None for batches of old versions).

        ``with_digest`` is False for batches without a key, which cannot be continued. ``start_write`` is awaited
        after each read and starts to write the chunk yielded last.
        """
        self._inputs = inputs
        self._dump = dump
        self._key = key
        self._stored_count = stored_count
        self._stored_digest = stored_digest
        self._digest = hashlib.sha256() if with_digest else None
        self._start_write = start_write
        self._number = 0
        self._chunk = Chunk(has_keys=key is not None)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield chunks of the inputs that are not stored; raise an error if the stored ones were different.

        If an input is invalid, the inputs before it are yielded first.
        """
        inputs, first_error = self._inputs, None
        chunks = self._read_sync(inputs) if isinstance(inputs, Iterable) else self._read_async(inputs)
        try:
            async for chunk in chunks:
                yield chunk
        except Invalid as error:
            first_error = error
        if self._chunk.inputs:
            yield self._finish_chunk()
        if first_error is not None:
            raise first_error
        if self._number <= self._stored_count:
            self.check_same_inputs(self._stored_count, self._stored_digest)

    async def _read_sync(self, inputs: Iterable[Any]) -> AsyncIterator[Chunk]:
        iterator, error = iter(inputs), None
        while error is None:
            items, error = _read_items(iterator)
            if not items:
                break
            await self._yield_to_loop()
            for item in items:
                self._add(item)
            if self._chunk.inputs:
                yield self._finish_chunk()
        if error is not None:
            raise error

    async def _read_async(self, inputs: AsyncIterable[Any]) -> AsyncIterator[Chunk]:
        async for item in inputs:
            if is_full := self._add(item):
                yield self._finish_chunk()
            if is_full or self._number % CHUNK_SIZE == 0:
                await self._yield_to_loop()

    async def check_all_stored(self) -> None:
        """Read all inputs and raise an error if they are not those of a complete batch."""
        if self._stored_digest is not None or not self._stored_count:
            async for _ in self:
                raise _different_inputs()

    def check_same_inputs(self, count: int, digest: str | None) -> None:
        """Raise an error if the inputs read so far are not the stored ones, given by count and digest."""
        if count and digest is None:
            return  # a batch of an old version, without digest
        if self._number != count or (count and digest != self._digest_so_far()):
            raise _different_inputs()

    async def _yield_to_loop(self) -> None:
        await asyncio.sleep(0)  # skipping many stored inputs awaits nothing else and would starve other coroutines
        if self._start_write is not None:
            await self._start_write()

    def _add(self, item: Any) -> bool:
        """Add an input to the chunk and return whether the chunk is full."""
        if self._number == self._stored_count:
            self.check_same_inputs(self._stored_count, self._stored_digest)
        self._number += 1
        try:
            text = self._dump(item)
            key = "" if self._key is None else validation.check_label(str(self._key(item)), field="key")
        except Invalid as error:
            error.item = self._number
            raise
        if self._digest is not None:
            self._digest.update(f"{len(text)}:{text}{key}\n".encode())
        if self._number <= self._stored_count:
            return False
        self._chunk.inputs.append(text)
        if self._chunk.keys is not None:
            self._chunk.keys.append(key)
        return len(self._chunk.inputs) == CHUNK_SIZE

    def _finish_chunk(self) -> Chunk:
        chunk, self._chunk = self._chunk, Chunk(has_keys=self._key is not None)
        chunk.digest = self._digest_so_far()
        return chunk

    def _digest_so_far(self) -> str | None:
        return None if self._digest is None else self._digest.hexdigest()


def _read_items(iterator: Iterator[Any]) -> tuple[list[Any], Invalid | None]:
    """Read the items of one chunk; on an error of the iterator, return the items before it and the error."""
    items: list[Any] = []
    try:
        for item in islice(iterator, CHUNK_SIZE):
            items.append(item)  # noqa: PERF402 — items read before an error are needed
    except Invalid as error:
        return items, error
    return items, None


def _different_inputs() -> Conflict:
    return Conflict(
        "the batch with this batch_key has different inputs",
        code="batch.inputs.different",
        field="batch_key",
        remedy="send the same inputs in the same order, or use another batch_key",
    )


class KeyedRow(dict[str, Any]):
    """The fields of a row, and its item key."""

    key: str = ""


def add_row_key(value: Any, field: str | None, *, drop_field: bool, remedy: str) -> Any:
    """Return a row from a file or request with the item key from one of its fields; without ``field``, unchanged.

    ``drop_field`` removes the field from the row, for jobs without such a parameter.
    """
    if field is None:
        return value
    if not isinstance(value, dict) or value.get(field) is None:
        raise Invalid(f"a row has no field {quoted(field)} for its key", code="batch.item.key_missing", remedy=remedy)
    row = KeyedRow(value)
    row.key = str(row.pop(field) if drop_field else row[field])
    return row


StoreChunk = Callable[[Callable[[], object]], Coroutine[Any, Any, int]]
"""Stores a chunk and returns the number of rows created; calls its argument when only the database has work left."""


class PipelinedWriter:
    """Writes chunks one after the other; at the end of the block all submitted chunks are stored.

    `submit` waits for the previous chunk and keeps the new one until `start_pending`. In between no transaction is
    open, so a slow iterator may be read then. Its items are serialised after `start_pending`, while the database works.
    """

    def __init__(self) -> None:
        self.created_count = 0
        self._pending: StoreChunk | None = None
        self._write: asyncio.Task[int] | None = None

    async def submit(self, store: StoreChunk) -> None:
        """Wait until the previous chunk is stored, and keep this one for `start_pending`."""
        await self.start_pending()
        await self._await_write()
        self._pending = store

    async def start_pending(self) -> None:
        """Start to write the submitted chunk, if any; return when only the database has work left."""
        if self._pending is None:
            return
        store, self._pending = self._pending, None
        sent = asyncio.Event()
        on_sent = partial(asyncio.get_running_loop().call_soon_threadsafe, sent.set)  # may be called on another loop
        self._write = asyncio.create_task(store(on_sent))
        self._write.add_done_callback(lambda _: sent.set())  # a failed write does not call on_sent
        await sent.wait()

    async def _await_write(self) -> None:
        if self._write is not None:
            write, self._write = self._write, None
            self.created_count += await write

    async def __aenter__(self) -> PipelinedWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.start_pending()
        finally:
            await self._await_write()
