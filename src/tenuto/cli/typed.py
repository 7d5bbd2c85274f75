"""What somebody typed, read: values, whole numbers, and a refusal brought back to the option it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tenuto.errors import Invalid, UserError

_WHOLE = re.compile(r"[0-9]{1,18}")
"""No number anybody gives is longer, and Python reads none of more than some thousand digits."""


def value_of(text: str, option: str) -> Any:
    """The value of an argument: JSON or, if it is none, the text itself."""
    from tenuto.model import strictjson

    try:
        return strictjson.loads(text)
    except strictjson.NameTwice as error:
        raise Invalid(str(error), field=option, remedy="say it once") from None
    except (ValueError, RecursionError):
        return text


def whole_number(text: str, option: str, remedy: str) -> int:
    """A whole number that was typed as text; none is less than nothing."""
    if not _WHOLE.fullmatch(text):
        most = " of at most 18 digits" if len(text) > 18 else ""
        raise Invalid(f"{text!r:.40} is not a whole number{most}", field=option, remedy=remedy)
    return int(text)


@contextmanager
def by_option(options: Mapping[str, str], otherwise: str = "--{}") -> Iterator[None]:
    """A refusal of a field names the option it was typed into.

    ``options`` has those that are called otherwise than their fields; under ``field.`` stands how a part of the field
    is told, with ``{}`` for the part.
    """
    try:
        yield
    except UserError as error:
        field = error.field or "--"
        # What has been named by an option, or by a place on the line such as NAME, stays.
        named = field.startswith("--") or field.isupper()
        if not named and (isinstance(error, Invalid) or field in options):
            error.field = _option(field, options, otherwise)
        raise


def _option(field: str, options: Mapping[str, str], otherwise: str) -> str:
    if field in options:
        return options[field]
    whole, _, part = field.partition(".")
    if part and f"{whole}." in options:
        return options[f"{whole}."].replace("{}", part)
    if part and whole in options:
        return f"{options[whole]}, {part}"
    return otherwise.replace("{}", field.replace("_", "-") if otherwise == "--{}" else field)
