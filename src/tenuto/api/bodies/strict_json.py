"""Strict JSON in request bodies: unique keys, bounded depth, finite numbers and storable text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any

from fastapi import Request

from tenuto.api.problems import Refused
from tenuto.errors import quoted
from tenuto.model import validation
from tenuto.model.validation import MAX_JSON_DEPTH

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
_DEPTH_CHANGES = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def parse_strict_json(text: bytes) -> Any:
    """Parse JSON that conforms to the standard and can be stored."""
    if _measure_depth(text) > MAX_JSON_DEPTH:
        raise Refused(
            400,
            f"the JSON is nested more than {MAX_JSON_DEPTH} levels deep",
            code="request.json.too_deep",
            remedy="use fewer levels",
        )
    try:
        value = _DECODER.decode(text.decode("utf-8"))
        if b"\\u" in text:
            _refuse_unstorable(value)
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: {error.reason} at byte {error.start}"
        raise Refused(400, message, code="request.body.not_utf8") from None
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not valid JSON: {error}"[:300], code="request.json.invalid") from None
    return value


def _measure_depth(text: bytes) -> int:
    """Return the depth of the nesting; 0 if it cannot exceed the limit."""
    if text.count(b"[") + text.count(b"{") <= MAX_JSON_DEPTH:
        return 0
    brackets = _BRACKETS.findall(_STRINGS.sub(b"", text))
    return max(accumulate(_DEPTH_CHANGES[each] for each in brackets), default=0)


def _refuse_unstorable(value: Any) -> None:
    """Refuse unpaired surrogates and NUL, which only escapes can express."""
    if (path := _find_text(value, _has_unpaired_surrogate)) is not None:
        raise Refused(
            422,
            f"{path or 'the body'} contains an unpaired surrogate",
            code="request.text.unpaired_surrogate",
            field=path or None,
            remedy="send valid Unicode text",
        )
    if (path := _find_text(value, lambda text: "\x00" in text)) is not None:
        raise Refused(
            422,
            f"{path or 'the body'} contains a NUL character",
            code="request.text.nul",
            field=path or None,
            remedy="remove it, or send binary data as base64",
        )


def _has_unpaired_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _find_text(value: Any, is_unstorable: Callable[[str], bool], path: str = "") -> str | None:
    """Return the path of the first text that cannot be stored, such as ``steps[2].name``: of a value, or of the object
    that has such a key. The nesting is bounded, see `parse_strict_json`."""
    if isinstance(value, str):
        return path if is_unstorable(value) else None
    if isinstance(value, Mapping):
        for key, each in value.items():
            if is_unstorable(key):
                return path
            if (found := _find_text(each, is_unstorable, f"{path}.{key}" if path else key)) is not None:
                return found
    elif isinstance(value, Sequence):
        for index, each in enumerate(value):
            if (found := _find_text(each, is_unstorable, f"{path}[{index}]")) is not None:
                return found
    return None


def _parse_float(text: str) -> float:
    number = float(text)
    if number in (inf, -inf):
        raise ValueError("a number is too large for 64-bit floating point")
    return number


def _parse_int(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError("an integer does not fit into 64 bits")
    return int(text)


_DECODER = validation.strict_json_decoder(parse_int=_parse_int, parse_float=_parse_float)


class StrictRequest(Request):
    """A request whose JSON is parsed strictly.

    FastAPI parses a body with ``request.json()``; a request class is its documented way to replace the parser.
    """

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_strict_json(await self.body())
        return self._json


async def check_json_body(request: StrictRequest) -> None:
    """Read the body; refuse it unless it is declared as JSON and valid."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not await request.body():
        return
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Refused(
            415,
            f"the Content-Type must be application/json, not {quoted(media_type)}",
            code="request.content_type.unsupported",
            remedy="send Content-Type: application/json",
        )
    await request.json()
