"""``/api/v1/batches`` and ``POST /api/v1/manifests/{external_id}/bulk``: submit and control batches."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import NoteBody
from tenuto.api.bodies.responses import RetriedCount
from tenuto.api.bodies.strict_json import parse_strict_json
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_filters import (
    CappedCount,
    FilterText,
    Window,
    describe_count,
    describe_filtered_page,
    parse_query,
)
from tenuto.api.list_pages import After, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import ExternalId, Id, TextFilter
from tenuto.api.problems import Refused
from tenuto.api.security.authentication import ApiCall, is_still_authorized, requires
from tenuto.api.streaming import csv_download
from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid, quoted
from tenuto.ids import new_id
from tenuto.model.access.actors import Role
from tenuto.model.filter_keys import BATCH_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.model.validation import MAX_INPUT_BYTES
from tenuto.model.work.tasks import ActivityState
from tenuto.operations.work.batch_inputs import add_row_key
from tenuto.operations.work.batches import BatchDetails
from tenuto.presentation.work_views import BATCH_ITEMS, BATCHES
from tenuto.store.work.batches import BatchItemRecord, BatchRecord

router = APIRouter(prefix="/api/v1/batches", tags=["batches"], route_class=ApiRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "key": "invoices-2031-05",
    "external_id": "invoices",
    "state": "in_progress",
    "item_count": 20000,
    "duplicate_count": 12,
    "open_count": 15400,
    "done_count": 4590,
    "failed_count": 10,
    "rate_per_second": 412.5,
    "remaining_seconds": 37.3,
}
LISTED = {name: EXAMPLE[name] for name in ("id", "key", "external_id", "item_count", "open_count", "failed_count")}
ITEM = {"task_id": EXAMPLE["id"], "item_key": "17", "state": "completed", "attempt": 1, "output": {"pages": 2}}
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "batch.read")]


@router.get("", operation_id="batches_list", responses=describe_filtered_page(LISTED))
@listed_as(BATCHES)
async def list_batches(
    call: Viewer,
    q: FilterText = None,
    window: Window = DEFAULT_WINDOW,
    manifest: TextFilter = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[BatchRecord]:
    """List batches, newest first."""
    filter = (await parse_query(call, BATCH_KEYS, q, window)).where(manifest=manifest)
    found = await call.app.batches.list(filter, below=decode_key(after, UUID), limit=limit)
    return make_page(found, limit, lambda each: (each.id,), filter)


@router.get("/count", operation_id="batches_count", responses=describe_count())
async def count_batches(call: Viewer, q: FilterText = None, window: Window = DEFAULT_WINDOW) -> CappedCount:
    """Count batches. The number is exact up to 10,000."""
    return await call.app.batches.count(await parse_query(call, BATCH_KEYS, q, window))


@router.get("/{id}", operation_id="batches_get", responses=describe(EXAMPLE, not_found="batch.not_found"))
async def get_batch(call: Viewer, id: Id) -> BatchDetails:
    """Get a batch with counts by state, rate and estimated time left."""
    return await call.app.batches.get(id)


@router.get("/{id}/items", operation_id="batches_items", responses=describe_page(ITEM, not_found="batch.not_found"))
@listed_as(BATCH_ITEMS)
async def batch_items(
    call: Viewer, id: Id, state: ActivityState | None = None, limit: Limit = 100, after: After = None
) -> Page[BatchItemRecord]:
    """List the items of a batch with their outcomes, in the order of submission."""
    found = await call.app.batches.list_items(id, above=decode_key(after, UUID), state=state, limit=limit)
    return make_page(found, limit, lambda each: (each.task_id,))


@router.get(
    "/{id}/items.csv",
    operation_id="batches_items_csv",
    response_class=StreamingResponse,
    responses=describe(not_found="batch.not_found"),
)
async def download_batch_items(call: Viewer, id: Id, state: ActivityState | None = None) -> StreamingResponse:
    """Download all items of a batch with their outcomes as a CSV file."""
    await call.app.batches.get(id)
    return csv_download(BATCH_ITEMS, call.app.batches.items(id, state=state), f"batch-{id}.csv")


@router.post(
    "/{id}/pause",
    operation_id="batches_pause",
    status_code=204,
    responses=describe(not_found="batch.not_found", conflict=("batch.already_paused", "batch.cancelled")),
)
async def pause_batch(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "batch.pause", handles_repeats=True)], id: Id
) -> None:
    """Pause a batch. No further item starts; running items finish."""
    # A repeated request completes an interrupted one.
    await call.app.batches.pause(id)


@router.post(
    "/{id}/resume",
    operation_id="batches_resume",
    status_code=204,
    responses=describe(not_found="batch.not_found", conflict=("batch.not_paused", "batch.cancelled")),
)
async def resume_batch(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "batch.resume", handles_repeats=True)], id: Id
) -> None:
    """Resume a paused batch."""
    # A repeated request completes an interrupted one.
    await call.app.batches.resume(id)


@router.post(
    "/{id}/cancel",
    operation_id="batches_cancel",
    status_code=204,
    responses=describe(not_found="batch.not_found", conflict="batch.cancelled"),
)
async def cancel_batch(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "batch.cancel", handles_repeats=True)], id: Id
) -> None:
    """Cancel a batch. Waiting items end, running items end when their code has stopped."""
    # A repeated request completes an interrupted cancellation.
    await call.app.batches.cancel(id)


@router.post(
    "/{id}/retry-failed",
    operation_id="batches_retry_failed",
    status_code=202,
    responses=describe({"retried": 10}, 202, not_found="batch.not_found", conflict="batch.cancelled"),
)
async def retry_failed_items(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "batch.retry", handles_repeats=True)],
    id: Id,
    note: NoteBody | None = None,
) -> RetriedCount:
    """Retry the failed items of a batch, that is its open dead letters."""
    text = (note and note.note) or call.reason
    retried = await call.app.batches.retry_failed(id, note=text, request_id=call.object_id)
    return RetriedCount(retried=retried)


submit_router = APIRouter(prefix="/api/v1", tags=["manifests"], route_class=ApiRoute)

_AUTHORIZATION_CHECK_SECONDS = 1.0
_MAX_LINE_BYTES = 2 * MAX_INPUT_BYTES
_MEDIA_TYPES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
_SUBMIT_BODY = {
    "requestBody": {
        "required": True,
        "description": "One input per line: the arguments of the job, or the value of its only open argument.",
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string", "format": "binary"},
                "example": '{"customer": 17}\n{"customer": 18}\n',
            }
        },
    }
}


@submit_router.post(
    "/manifests/{external_id:name}/bulk",
    operation_id="manifests_bulk",
    status_code=202,
    responses=describe(
        EXAMPLE,
        202,
        unauthorized="auth.revoked",
        not_found="manifest.not_found",
        conflict=("batch.inputs.different", "batch.key.in_use", "batch.cancelled", "batch.manifest.deleted"),
        invalid=("batch.*", "manifest.*", "request.json.*", "job.unknown", "job.input.invalid", "value.*"),
    ),
    openapi_extra=_SUBMIT_BODY,
)
async def submit_batch(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "manifest.bulk", streams_body=True)],
    external_id: ExternalId,
    request: Request,
    response: Response,
    key: Annotated[
        str | None,
        Query(
            max_length=200,
            description="Input field that holds the item key. An item is skipped while one with its key is open.",
        ),
    ] = None,
    batch_key: Annotated[
        str | None,
        Query(max_length=200, description="Name of the batch chosen by the caller; a repetition continues the batch."),
    ] = None,
    name: Annotated[str | None, Query(max_length=200, description="Display name of the batch.")] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=200,
            description="Alternative to the batch key, unique per caller. Repeat it only with the same lines.",
        ),
    ] = None,
) -> BatchDetails:
    """Submit a batch: run a manifest for every line of the body. Lines are stored as they arrive. An invalid line is
    reported by its number; earlier lines stay stored, and the batch stays incomplete until all lines are sent again.
    The upload ends with 401 when the API key is revoked, even while it is idle."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in _MEDIA_TYPES:
        raise Refused(
            415,
            f"the Content-Type must be {_MEDIA_TYPES[0]}, not {quoted(media_type)}",
            code="request.content_type.unsupported",
            remedy=f"send Content-Type: {_MEDIA_TYPES[0]}",
        )
    stored = await call.app.manifests.get(external_id)
    parameters = call.app.jobs.get_job(stored.manifest.job).parameters
    chosen_key = batch_key or _derive_batch_key(call, idempotency_key) or f"api-{new_id().hex[-12:]}"
    lines = _JsonLines(
        _authorized_pieces(request, call, chosen_key), key, drop_key=key is not None and key not in parameters
    )
    try:
        batch = await call.app.bulk_enqueue(
            external_id, lines, key=(lambda row: row.key) if key is not None else None, batch_key=chosen_key, name=name
        )
    except Invalid as error:
        if lines.number and error.field not in ("batch_key", "name"):
            error.message = f"line {lines.number}: {error.message}"
            error.field = f"line {lines.number}: {error.field}" if error.field else f"line {lines.number}"
            error.remedy = f"correct it and send all lines again with ?batch_key={chosen_key}; earlier lines are stored"
        raise
    response.headers["Location"] = f"/api/v1/batches/{batch.id}"
    return await batch.progress()


def _derive_batch_key(call: ApiCall, key: str | None) -> str | None:
    """Return a batch key for an idempotency key, which is unique per caller only."""
    if key is None:
        return None
    actor = call.caller.actor
    return f"request-{hashlib.sha256(f'{actor.type}:{actor.id}:{key}'.encode()).hexdigest()[:32]}"


async def _authorized_pieces(request: Request, call: ApiCall, batch_key: str) -> AsyncIterator[bytes]:
    """Yield the body in pieces while the caller is authorized."""
    checked_at = monotonic_seconds()
    async with aclosing(_with_idle_ticks(request.stream())) as pieces:
        async for piece in pieces:
            if monotonic_seconds() - checked_at >= _AUTHORIZATION_CHECK_SECONDS:
                if not await is_still_authorized(request, call):  # guard: access.upload_ends_with_key
                    raise Refused(
                        401,
                        "the API key is no longer valid; earlier lines are stored, and the batch is incomplete",
                        code="auth.revoked",
                        remedy=f"send all lines again with a valid key and ?batch_key={batch_key}",
                        headers={"WWW-Authenticate": "Bearer"},
                    )
                checked_at = monotonic_seconds()
            yield piece


async def _with_idle_ticks(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces, and an empty piece after each interval without one."""
    while True:
        reading = asyncio.create_task(_next(pieces))  # continues over intervals: a cancelled read would lose data
        try:
            # guard: access.idle_upload_ends_with_key
            while not (await asyncio.wait([reading], timeout=_AUTHORIZATION_CHECK_SECONDS))[0]:
                yield b""
        finally:
            if reading.cancel():
                await asyncio.wait([reading])
        piece = reading.result()
        if piece is None:
            return
        yield piece


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


class _JsonLines:
    """Lines of a body, each parsed strictly when it is reached."""

    def __init__(self, body: AsyncIterator[bytes], key: str | None, *, drop_key: bool) -> None:
        self._body = body
        self._key = key
        self._drop_key = drop_key
        self.number = 0
        """Number of the last line read."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for text in self._split_lines():
            self.number += 1
            if text.strip():
                yield self._add_key(self._parse(text))

    async def _split_lines(self) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self._body:
            *lines, rest = (rest + piece).split(b"\n")
            for text in lines:
                yield text
            if len(rest) > _MAX_LINE_BYTES:
                self.number += 1
                raise Invalid(
                    f"the line is longer than {_MAX_LINE_BYTES:,} bytes",
                    code="batch.line.too_long",
                    remedy="write one input per line",
                )
        if rest:
            yield rest

    def _parse(self, text: bytes) -> Any:
        try:
            return parse_strict_json(text)
        except Refused as error:
            raise Invalid(str(error.detail), code=error.code, remedy="write one JSON value per line") from None

    def _add_key(self, value: Any) -> Any:
        return add_row_key(value, self._key, drop_field=self._drop_key, remedy="add it to every line, or omit key")
