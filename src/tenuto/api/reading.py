"""Reading what comes in, strictly: JSON whose every key is there once, not too deep, with real numbers only.

What cannot be read is refused before anybody acts on half of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from tenuto.api.door import Visit, remember_answer
from tenuto.api.problems import Refused
from tenuto.model.payloads import MAX_DEPTH


def strict_json(text: bytes) -> Any:
    """JSON as the standard means it."""
    if _depth(text) > MAX_DEPTH:
        raise Refused(400, "the JSON is nested too deeply", remedy=f"keep to {MAX_DEPTH} levels")
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_refuse_constant, parse_int=_whole)
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}"[:300]) from None


def _depth(text: bytes) -> int:
    """How deep it is nested at most; braces inside texts count too, which errs on the safe side only when in doubt."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return 0
    deepest = depth = 0
    inside = escaped = False
    for byte in text:
        if inside:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                inside = False
        elif byte == 0x22:
            inside = True
        elif byte in (0x5B, 0x7B):
            depth += 1
            deepest = max(deepest, depth)
        elif byte in (0x5D, 0x7D):
            depth -= 1
    return deepest


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.60} is there twice")
    return found


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number JSON knows")


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError("a whole number is larger than 64 bits")
    return int(text)


class StrictRequest(Request):
    """A request whose JSON is read strictly."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = strict_json(await self.body())
        return self._json


class StrictRoute(APIRoute):
    """A route that reads strictly, and remembers what it answered to a request that may come again."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            try:
                response = await handle(strict)
                visit: Visit | None = request.scope.get("tenuto_visit")
                if visit is not None:
                    await remember_answer(visit, response)
                return response
            finally:
                visit = request.scope.get("tenuto_visit")
                if visit is not None:
                    visit.end()

        return strictly
