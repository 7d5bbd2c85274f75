"""Reading what comes in, strictly: JSON whose every key is there once, not too deep, with real numbers only.

What cannot be read is refused before anybody acts on half of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from itertools import accumulate
from math import inf
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from tenuto.api.auth import Needs, Visit, remember_answer
from tenuto.api.problems import Refused
from tenuto.errors import Conflict
from tenuto.model import stored_values
from tenuto.model.stored_values import MAX_DEPTH

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
_DEEPER = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def strict_json(text: bytes) -> Any:
    """JSON as the standard means it, and as it can be stored."""
    if _depth(text) > MAX_DEPTH:
        raise Refused(400, "the JSON is nested too deeply", remedy=f"keep to {MAX_DEPTH} levels")
    try:
        read = _DECODER.decode(text.decode("utf-8"))
        if b"\\u" in text:
            _refuse_unstorable(read)
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}"[:300]) from None
    return read


def _depth(text: bytes) -> int:
    """How deep it is nested at most."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return 0
    brackets = _BRACKETS.findall(_TEXTS.sub(b"", text))
    return max(accumulate(_DEEPER[each] for each in brackets), default=0)


def _refuse_unstorable(read: Any) -> None:
    """What only an escape can write: half of a surrogate pair, and NUL."""
    plain = json.dumps(read, ensure_ascii=False)
    try:
        plain.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(422, "the body holds half of a surrogate pair", remedy="send valid Unicode text") from None
    if _NUL.search(plain):
        raise Refused(422, "the body holds a NUL character", remedy="remove it, or send bytes as base64")


def _finite(text: str) -> float:
    number = float(text)
    if number in (inf, -inf):
        raise ValueError("a number is larger than any that can be stored")
    return number


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError("a whole number is larger than 64 bits")
    return int(text)


_DECODER = stored_values.decoder(parse_int=_whole, parse_float=_finite)


class StrictRequest(Request):
    """A request whose JSON is read strictly."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = strict_json(await self.body())
        return self._json


class StrictRoute(APIRoute):
    """A route that lets nobody in before it knows them, reads strictly, and remembers what it answered to a request
    that may come again."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if self.needs is not None:
            told = {"x-role": self.needs.role.word, "x-action": self.needs.action}
            self.openapi_extra = {**told, **(self.openapi_extra or {})}

    @property
    def needs(self) -> Needs | None:
        """Who may use it; None if it is open."""
        return next((each.call for each in self.dependant.dependencies if isinstance(each.call, Needs)), None)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, needs = super().get_route_handler(), self.needs

        async def strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            visit: Visit | None = None
            try:
                if needs is not None:
                    visit = await needs(strict)
                if self.body_field is not None:
                    await _read(strict)
                response = await handle(strict)
                if visit is not None and needs is not None and needs.keeps_answer:
                    await remember_answer(visit, response)
                return response
            except Conflict as error:
                if visit is not None and visit.again:
                    if self.status_code == 204:
                        return Response(status_code=204)  # it was done before, and had nothing else to tell
                    error.remedy = "it was done before, under the same Idempotency-Key: see what became of it"
                raise
            except ClientDisconnect:
                return Response(status_code=400)  # to nobody
            finally:
                if visit is not None:
                    visit.end()

        return strictly


async def _read(request: StrictRequest) -> None:
    """The body, before anything is done with it: JSON, and said to be."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not await request.body():
        return
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        said = f"it is said to be {kind!r:.80}" if kind else "it is not said what it is"
        raise Refused(415, f"the body must be JSON, and {said}", remedy="send Content-Type: application/json")
    await request.json()
