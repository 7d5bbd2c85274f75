"""What may be stored as text and JSON.

PostgreSQL cannot hold a NUL character or half a surrogate pair, and nobody wants a record of a hundred megabytes.
Refused here, with the field and the remedy, before anything is written.

Characters nobody sees and a terminal obeys. Light: the command line looks here before anything else is loaded.

JSON as the standard means it: no name twice in one object, and no NaN or Infinity.

Most readers take the last of two values silently; whoever wrote both meant something by each. Pure.

Entries of named logs: what one may say, and how much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import from_json

from tenuto.errors import Invalid

MAX_INPUT = 256 * 1024
MAX_OUTPUT = 1024 * 1024
MAX_DEPTH = 200
"""What the reader of a job's input can take, and PostgreSQL many times over."""
MAX_TAGS = 20

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")
# A backslash-u0000 counts only if the backslash itself is not escaped.
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_SURROGATE_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")


def storable_json(text: str, *, field: str, limit: int = MAX_INPUT) -> str:
    """The JSON text as it is, or a refusal that says why PostgreSQL could not keep it."""
    storable_text(text, field=field, limit=limit)
    if len(text) > MAX_DEPTH:  # a shorter one is neither too deep nor a number without end
        _refuse_unreadable(text, field)
    if "\\u" in text:
        if _NUL_ESCAPE.search(text):
            raise Invalid(
                "contains a NUL character (\\u0000), which cannot be stored",
                field=field,
                remedy="remove it, or send bytes as base64",
            )
        if _SURROGATE_ESCAPE.search(text):
            _refuse_lone_surrogates(text, field)
    return text


def json_of(value: Any, *, field: str, limit: int = MAX_INPUT) -> str:
    """Plain data as JSON text that can be stored."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise Invalid("is nested too deeply", field=field, remedy=f"keep to {MAX_DEPTH} levels") from None
    except (TypeError, ValueError) as error:
        raise Invalid(f"is not JSON: {error}", field=field) from error
    return storable_json(text, field=field, limit=limit)


def storable_text(text: str, *, field: str, limit: int) -> str:
    """The text as it is, or a refusal that says why it could not be kept."""
    # Counting characters first spares encoding a text that is hopeless anyway.
    if len(text) > limit or (len(text) * 4 > limit and _length_in_bytes(text, field) > limit):
        raise Invalid(
            f"is larger than {limit} bytes", field=field, remedy="store the data elsewhere and pass a reference to it"
        )
    if "\x00" in text:
        raise Invalid(
            "contains a NUL character, which cannot be stored", field=field, remedy="remove it, or send bytes as base64"
        )
    if not text.isascii():
        _length_in_bytes(text, field)
    return text


def kept_text(text: str, limit: int) -> str:
    """Text that must be kept somehow (an error, a log): unstorable characters shown, the middle cut out if too long."""
    clean = text.replace("\x00", "␀").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= limit:
        return clean
    half = limit // 2
    return f"{clean[:half]}\n… {len(clean) - 2 * half} characters cut …\n{clean[-half:]}"


def name(text: str, *, field: str, limit: int = 200) -> str:
    """A name people type: letters, digits and ``_ . : / -``."""
    if not isinstance(text, str) or not text or len(text) > limit or not _NAME.fullmatch(text):
        raise Invalid(
            f"{text!r:.80} is not a name", field=field, remedy=f"use 1 to {limit} letters, digits and _ . : / -"
        )
    return text


def label(text: str, *, field: str, limit: int = 200) -> str:
    """A short free text, such as a key."""
    if not isinstance(text, str) or not text or len(text) > limit:
        raise Invalid(f"must be a text of 1 to {limit} characters", field=field)
    return storable_text(text, field=field, limit=limit * 4)


def title(text: str, *, field: str, limit: int = 200) -> str:
    """A short free text by which people know something: what they see of it must be what they have to type.

    For what is to be saved: what was stored once is read as a `label`.
    """
    found = UNSEEN.search(label(text, field=field, limit=limit))
    if found is not None:
        raise Invalid(
            f"contains U+{ord(found.group()):04X}, which nobody sees and a terminal may obey",
            field=field,
            remedy="remove it",
        )
    return text


def tags(values: Iterable[str], *, check: Callable[..., str] = title) -> list[str]:
    """Each tag once, in order of first mention. Those to look for may be what was stored once: a `label` each."""
    if isinstance(values, str):
        raise Invalid("is one text", field="tags", remedy="give a list of texts")
    unique = list(dict.fromkeys(values))
    if len(unique) > MAX_TAGS:
        raise Invalid(f"{len(unique)} tags given", field="tags", remedy=f"give at most {MAX_TAGS}")
    return [check(tag, field="tags", limit=64) for tag in unique]


def _length_in_bytes(text: str, field: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Invalid(
            "contains half of a surrogate pair, which cannot be stored", field=field, remedy="send valid Unicode text"
        ) from error


def _refuse_unreadable(text: str, field: str) -> None:
    """What could be written but never be read back must not get in."""
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError as error:
        why = str(error)
        if "recursion limit" in why:
            raise Invalid("is nested too deeply", field=field, remedy=f"keep to {MAX_DEPTH} levels") from None
        if "out of range" in why:
            raise Invalid("holds a number of too many digits", field=field, remedy="send it as text") from None
        if "surrogate" not in why and "hex escape" not in why:  # those have words of their own
            raise Invalid(f"is not JSON: {why}", field=field) from None


def _refuse_lone_surrogates(text: str, field: str) -> None:
    """JSON may hide half a pair in an escape; whole pairs are fine."""
    _length_in_bytes(json.dumps(json.loads(text), ensure_ascii=False), field)


# What could move the cursor, change colours or turn text round: C0 but for tab and line end, DEL, C1, and the
# characters that switch the direction of writing.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class NameTwice(ValueError):
    """An object of the text has a name twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r:.60} is there twice")
        self.name = name


def loads(text: str) -> Any:
    """The value of a JSON text, or a ValueError (a RecursionError if it is nested without end)."""
    return decoder().decode(text)


def decoder(
    *, parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None
) -> json.JSONDecoder:
    """Reads from anywhere in a text, as strictly; numbers as told."""
    return json.JSONDecoder(
        object_pairs_hook=each_once, parse_constant=_refused, parse_int=parse_int, parse_float=parse_float
    )


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its names and values: the hook of a reader."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise NameTwice(name)
            seen.add(name)
    return found


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is not a number JSON knows")


DEFAULT = "default"
MAX_MESSAGE = 64 * 1024
MAX_FIELDS = 64 * 1024


def log_name(text: str) -> str:
    """The name of a log, or a refusal."""
    return name(text, field="log")


def message(text: str) -> str:
    """What an entry says, or a refusal."""
    if not text.strip():
        raise Invalid("says nothing", field="message", remedy="give a text")
    return storable_text(text, field="message", limit=MAX_MESSAGE)


def fields(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """The data of an entry, or a refusal."""
    if given is not None:
        json_of(given, field="fields", limit=MAX_FIELDS)
    return given
