"""Long answers that may have to be cut off: whoever reads them must notice, and not take a part for the whole."""

from __future__ import annotations

from starlette.responses import StreamingResponse
from starlette.types import Send

from tenuto.errors import StoreError
from tenuto.logs import Log

log = Log("tenuto.api")


class Cut(Exception):
    """Nothing more of this answer is to be sent."""


class UntilCut(StreamingResponse):
    """An answer whose end is sent only if all of it was: the line is closed without it otherwise."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (Cut, StoreError) as error:
            log.warning("a long answer was cut off", why=str(error))
