"""Validation of texts, names and JSON before they are stored, strict JSON parsing, and log entries.

PostgreSQL cannot store NUL characters or lone surrogates, and sizes are bounded. Invalid values are rejected before
anything is written. The module is small because the command line imports it first.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

from pydantic_core import from_json

from tenuto.errors import Invalid, quoted

MAX_INPUT_BYTES = 256 * 1024
MAX_OUTPUT_BYTES = 1024 * 1024
MAX_JSON_DEPTH = 200
"""The depth that the parser of job inputs accepts; PostgreSQL accepts far more."""
MAX_TAGS = 20
DEFAULT_LOG_NAME = "default"
MAX_LOG_MESSAGE_BYTES = 64 * 1024
MAX_LOG_FIELDS_BYTES = 64 * 1024
INVISIBLE_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, change colours or reverse text in a terminal: C0 except tab and line feed, DEL, C1
and the characters that change the direction of writing."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")
# A backslash-u0000 counts only if the backslash itself is not escaped.
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_SURROGATE_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")


# --- text and JSON --------------------------------------------------------------------------------------------------


def check_json_text(text: str, *, field: str, limit: int = MAX_INPUT_BYTES) -> str:
    """Return the JSON text unchanged, or raise `Invalid` if PostgreSQL cannot store it."""
    check_text(text, field=field, limit=limit)
    if len(text) > MAX_JSON_DEPTH:  # a shorter text is neither too deep nor holds a number with too many digits
        _check_readable(text, field)
    if "\\u" in text:
        if _NUL_ESCAPE.search(text):
            raise _nul_error(field)
        if _SURROGATE_ESCAPE.search(text):
            _check_escaped_surrogates(text, field)
    return text


def dump_json(value: Any, *, field: str, limit: int = MAX_INPUT_BYTES) -> str:
    """Return plain data as JSON text that can be stored."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise _depth_error(field) from None
    except (TypeError, ValueError) as error:
        raise _not_json(field, str(error)) from error
    return check_json_text(text, field=field, limit=limit)


def find_non_finite_number(value: Any, path: str) -> str | None:
    """Return the path of the first NaN or infinite number in plain data, such as ``output.mean``; None without one.
    JSON has no such numbers, and serialisers write ``null`` instead."""
    if isinstance(value, float):
        return None if isfinite(value) else path
    if isinstance(value, Mapping):
        children = [(f"{path}.{key}", each) for key, each in value.items()]
        children += [(f"{path}.{key}", key) for key in value if isinstance(key, float)]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        children = [(f"{path}[{index}]", each) for index, each in enumerate(value)]
    else:
        return None
    return next((found for place, each in children if (found := find_non_finite_number(each, place))), None)


def refuse_non_finite_numbers(value: Any, *, field: str) -> None:
    """Raise `Invalid` if plain data contains NaN or an infinite number."""
    if (path := find_non_finite_number(value, field)) is not None:
        raise Invalid(
            f"{path} is NaN or infinite, which JSON cannot express",
            code="value.number.not_finite",
            field=path,
            remedy="return None or a text in its place",
        )


def check_text(text: str, *, field: str, limit: int) -> str:
    """Return the text unchanged, or raise `Invalid` if it is too large or PostgreSQL cannot store it."""
    # Counting characters first avoids encoding a text that is too large anyway.
    if len(text) > limit or (len(text) * 4 > limit and _length_in_bytes(text, field) > limit):
        raise Invalid(
            f"{field} is larger than {limit:,} bytes",
            code="value.too_large",
            field=field,
            remedy="store the data elsewhere and pass a reference to it",
        )
    if "\x00" in text:
        raise _nul_error(field)
    if not text.isascii():
        _length_in_bytes(text, field)
    return text


def truncate_text(text: str, limit: int) -> str:
    """Return a text that can always be stored: unstorable characters escaped, the middle cut out if it is too long."""
    clean = text.replace("\x00", "␀").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= limit:
        return clean
    half = limit // 2
    return f"{clean[:half]}\n… {len(clean) - 2 * half} characters cut …\n{clean[-half:]}"


def check_name(text: str, *, field: str, limit: int = 200) -> str:
    """Return an identifier of letters, digits and ``_ . : / -``, or raise `Invalid`."""
    if not isinstance(text, str) or not text or len(text) > limit or not _NAME.fullmatch(text):
        raise Invalid(
            f"{field} {quoted(text)} is not a valid name",
            code="value.name.invalid",
            field=field,
            remedy=f"use 1 to {limit} letters, digits and _ . : / -",
        )
    return text


def check_label(text: str, *, field: str, limit: int = 200) -> str:
    """Return a short free text, such as a key, or raise `Invalid`."""
    if not isinstance(text, str) or not text or len(text) > limit:
        raise Invalid(
            f"{field} {quoted(text, 60)} is not a text of 1 to {limit} characters",
            code="value.label.invalid",
            field=field,
        )
    return check_text(text, field=field, limit=limit * 4)


def check_title(text: str, *, field: str, limit: int = 200) -> str:
    """Return a label without invisible characters, or raise `Invalid`: users must be able to type what they see.

    For values to be saved. Stored values are checked with `check_label`: older ones may contain such characters.
    """
    found = INVISIBLE_CHARACTERS.search(check_label(text, field=field, limit=limit))
    if found is not None:
        raise Invalid(
            f"{field} contains the invisible or control character U+{ord(found.group()):04X}",
            code="value.invisible_character",
            field=field,
            remedy="remove it",
        )
    return text


def check_tags(values: Iterable[str], *, check: Callable[..., str] = check_title) -> list[str]:
    """Return each tag once, in order of first mention. A search passes `check_label` to find older stored tags."""
    if isinstance(values, str):
        raise Invalid(
            f"tags {quoted(values, 60)} is one text",
            code="task.tags.invalid",
            field="tags",
            remedy="give a list of texts",
        )
    unique = list(dict.fromkeys(values))
    if len(unique) > MAX_TAGS:
        raise Invalid(
            f"{len(unique)} tags are given", code="task.tags.too_many", field="tags", remedy=f"use at most {MAX_TAGS}"
        )
    return [check(tag, field="tags", limit=64) for tag in unique]


def _length_in_bytes(text: str, field: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{field} contains half of a surrogate pair, which cannot be stored",
            code="value.lone_surrogate",
            field=field,
            remedy="send valid Unicode text",
        ) from error


def _check_readable(text: str, field: str) -> None:
    """Raise `Invalid` for JSON that could be written but not be parsed again."""
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError as error:
        reason = str(error)
        if "recursion limit" in reason:
            raise _depth_error(field) from None
        if "out of range" in reason:
            raise Invalid(
                f"{field} contains a number with too many digits",
                code="value.number.too_long",
                field=field,
                remedy="send it as text",
            ) from None
        if "surrogate" not in reason and "hex escape" not in reason:  # `_check_escaped_surrogates` reports those
            raise _not_json(field, reason) from None


def _check_escaped_surrogates(text: str, field: str) -> None:
    """Raise `Invalid` for half a surrogate pair in a JSON escape; complete pairs are valid."""
    _length_in_bytes(json.dumps(json.loads(text), ensure_ascii=False), field)


def _nul_error(field: str) -> Invalid:
    return Invalid(
        f"{field} contains a NUL character, which cannot be stored",
        code="value.nul_character",
        field=field,
        remedy="remove it, or send bytes as base64",
    )


def _depth_error(field: str) -> Invalid:
    return Invalid(
        f"{field} is nested too deeply",
        code="value.json.too_deep",
        field=field,
        remedy=f"use at most {MAX_JSON_DEPTH} levels",
    )


def _not_json(field: str, reason: str) -> Invalid:
    return Invalid(f"{field} is not valid JSON: {reason}", code="value.json.invalid", field=field)


# --- strict JSON ----------------------------------------------------------------------------------------------------


class DuplicateKey(ValueError):
    """A JSON object contains a key twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the key {quoted(name, 60)} occurs twice")
        self.name = name


def parse_strict_json(text: str) -> Any:
    """Parse JSON without duplicate keys, NaN and Infinity; raise ValueError, or RecursionError if nested too deeply."""
    return strict_json_decoder().decode(text)


def strict_json_decoder(
    *, parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None
) -> json.JSONDecoder:
    """Return a decoder that is as strict as `parse_strict_json`."""
    return json.JSONDecoder(
        object_pairs_hook=build_unique_object,
        parse_constant=_reject_constant,
        parse_int=parse_int,
        parse_float=parse_float,
    )


def build_unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Decoder hook: return the object, or raise `DuplicateKey`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise DuplicateKey(name)
            seen.add(name)
    return found


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


# --- log entries ----------------------------------------------------------------------------------------------------


def check_log_name(text: str) -> str:
    return check_name(text, field="log")


def check_log_message(text: str) -> str:
    if not text.strip():
        raise Invalid("message is empty", code="log.message.empty", field="message", remedy="give a text")
    return check_text(text, field="message", limit=MAX_LOG_MESSAGE_BYTES)


def check_log_fields(given: dict[str, Any] | None) -> dict[str, Any] | None:
    if given is not None:
        dump_json(given, field="fields", limit=MAX_LOG_FIELDS_BYTES)
    return given
