"""``POST /api/v1/manifests/{external_id}/bulk``: thousands of inputs for one manifest, as a stream of JSON lines.

Lines are taken in as they come, and no more of them is held than a part: memory stays flat however long the stream is.
Whoever is cut off sends the same lines again with the same batch key, and nothing is doubled.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from tenuto.api.auth import Needs, Visit, still_welcome
from tenuto.api.path_names import ExternalId
from tenuto.api.problems import Refused
from tenuto.api.response_docs import answers
from tenuto.api.routes.batches import EXAMPLE, shown
from tenuto.api.strict_route import StrictRoute, strict_json
from tenuto.clock import steady
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.model.actors import Role
from tenuto.model.stored_values import MAX_INPUT
from tenuto.operations.batch_inputs import keyed

router = APIRouter(prefix="/api/v1", tags=["manifests"], route_class=StrictRoute)

_CHECKED_EVERY = 1.0
_LONGEST_LINE = 2 * MAX_INPUT
_KINDS = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
_BODY = {
    "requestBody": {
        "required": True,
        "description": "One input a line: a set of the job's arguments, or the one its properties leave open.",
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"customer": 17}\n{"customer": 18}\n',
            }
        },
    }
}


@router.post(
    "/manifests/{external_id:name}/bulk", status_code=202, responses=answers(EXAMPLE, 202), openapi_extra=_BODY
)
async def bulk_enqueue(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "manifest.bulk", streams=True))],
    external_id: ExternalId,
    request: Request,
    response: Response,
    key: Annotated[
        str | None,
        Query(max_length=200, description="The field that names the item: one that is open already is left out."),
    ] = None,
    batch_key: Annotated[
        str | None,
        Query(max_length=200, description="A name of your own: sending again with it goes on, and doubles nothing."),
    ] = None,
    name: Annotated[str | None, Query(max_length=200, description="What to call the batch.")] = None,
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="Instead of a batch key: yours alone, and for these lines.")
    ] = None,
) -> dict[str, Any]:
    """Have a manifest run for every line. Lines are taken in as they come; one that is refused is named by its number:
    nothing after it is taken in, what went before stands, and the batch waits for the rest. Whoever may no longer send
    them is cut off, also while nothing comes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise Refused(415, "the body must be JSON lines", remedy=f"send Content-Type: {_KINDS[0]}")
    stored = await visit.app.manifests.get(external_id)
    parameters = visit.app.jobs.get(stored.manifest.job).parameters
    chosen = batch_key or _of_request(visit, idempotency_key) or f"api-{new_id().hex[-12:]}"
    lines = _Lines(_while_welcome(request, visit, chosen), key, drop_key=key is not None and key not in parameters)
    try:
        batch = await visit.app.bulk_enqueue(
            external_id,
            lines,
            key=(lambda row: row.key) if key is not None else None,
            batch_key=chosen,
            name=name,
        )
    except Invalid as error:
        if lines.number and error.field not in ("batch_key", "name"):
            error.field = f"line {lines.number}: {error.field}" if error.field else f"line {lines.number}"
            error.remedy = f"mend it and send all lines again with ?batch_key={chosen}: those before it are in"
        raise
    response.headers["Location"] = f"/api/v1/batches/{batch.id}"
    return shown(await batch.progress())


def _of_request(visit: Visit, key: str | None) -> str | None:
    """The batch key that stands for a caller's own key: two callers may have the same one."""
    if key is None:
        return None
    actor = visit.caller.actor
    return f"request-{hashlib.sha256(f'{actor.type}:{actor.id}:{key}'.encode()).hexdigest()[:32]}"


async def _while_welcome(request: Request, visit: Visit, batch_key: str) -> AsyncIterator[bytes]:
    """The body piece by piece, for as long as whoever sends it may."""
    checked_at = steady()
    async with aclosing(_also_while_nothing_comes(request.stream())) as pieces:
        async for piece in pieces:
            if steady() - checked_at >= _CHECKED_EVERY:
                if not await still_welcome(request, visit):
                    raise Refused(
                        401,
                        "the key is no longer valid; what was taken in before stands, and the batch waits for the rest",
                        remedy=f"send all lines again with another key and ?batch_key={batch_key}",
                        headers={"WWW-Authenticate": "Bearer"},
                    )
                checked_at = steady()
            yield piece


async def _also_while_nothing_comes(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The pieces, and an empty one whenever none has come for a while."""
    while True:
        coming = asyncio.create_task(_next(pieces))  # goes on when the while is over: a read that is given up is lost
        try:
            while not (await asyncio.wait([coming], timeout=_CHECKED_EVERY))[0]:
                yield b""
        finally:
            if coming.cancel():
                await asyncio.wait([coming])
        piece = coming.result()
        if piece is None:
            return
        yield piece


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


class _Lines:
    """The lines of a body, each read strictly when its turn comes."""

    def __init__(self, body: AsyncIterator[bytes], key: str | None, *, drop_key: bool) -> None:
        self._body = body
        self._key = key
        self._drop_key = drop_key
        self.number = 0
        """Of the line that was given out last."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for text in self._texts():
            self.number += 1
            if text.strip():
                yield self._keyed(self._value(text))

    async def _texts(self) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self._body:
            *whole, rest = (rest + piece).split(b"\n")
            for text in whole:
                yield text
            if len(rest) > _LONGEST_LINE:
                self.number += 1
                raise Invalid(f"is longer than {_LONGEST_LINE:,} bytes", remedy="write one input a line")
        if rest:
            yield rest

    def _value(self, text: bytes) -> Any:
        try:
            return strict_json(text)
        except Refused as error:
            raise Invalid(str(error.detail), remedy="write one JSON value a line") from None

    def _keyed(self, value: Any) -> Any:
        return keyed(value, self._key, drop=self._drop_key, remedy="give every line one, or leave key out")
