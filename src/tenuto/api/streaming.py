"""Responses that are written while their records are read."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Send

from tenuto.errors import StoreError
from tenuto.logs import Log
from tenuto.presentation.columns import ResourceView, csv_line

log = Log("tenuto.api")


class StreamAborted(Exception):
    """The rest of the response must not be sent."""


class AbortableStream(StreamingResponse):
    """Stream that closes the connection without an end marker when it is aborted, so that the client notices."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (StreamAborted, StoreError) as error:
            log.warning("response stream aborted", error=str(error))


def csv_download(view: ResourceView, records: AsyncIterable[Any], filename: str) -> StreamingResponse:
    """Return records as a CSV file, as the command line writes it. A browser saves it and never shows it as a page."""
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    return AbortableStream(_csv_lines(view, records), media_type="text/plain; charset=utf-8", headers=headers)


async def _csv_lines(view: ResourceView, records: AsyncIterable[Any]) -> AsyncIterator[str]:
    yield csv_line(view.csv_header())
    async for record in records:
        yield csv_line(view.csv_row(record))
